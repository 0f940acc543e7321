//! Bodies that are made while they are sent: lists page by page, watches event by event.
//!
//! Nothing is made before the client took what was made before it: a slow reader costs one chunk.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream::{self, Stream};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::accept::Format;
use super::answer::{self, Answer, Broken, Gzip};
use super::shape::View;
use crate::refusal::Refusal;
use crate::registry::Registry;
use crate::registry::document::Document;
use crate::registry::list::Lister;
use crate::registry::selection::present;
use crate::registry::watch::{Event, Watcher};

/// Bytes put into one frame.
const CHUNK: usize = 64 * 1024;
/// How often a quiet watch is told how far it is.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);

/// A list as an answer.
pub(crate) async fn list(
    registry: Registry,
    kind: std::sync::Arc<crate::kind::Kind>,
    mut lister: Lister,
    view: View,
    format: Format,
    takes_gzip: bool,
) -> Result<Answer, Refusal> {
    // The first page is at hand; with it we know whether the whole is small.
    let first = lister.next_page().await?.unwrap_or_default();
    let size: usize = first.iter().map(Document::size).sum();
    let compress = takes_gzip && format == Format::Json && (lister.has_more() || size > answer::WORTH_GZIP);
    let (head, close) = view.list_frame(&kind);
    let mut writer = ListWriter {
        registry,
        kind,
        lister,
        view,
        page: first.into_iter(),
        out: BytesMut::with_capacity(size.min(CHUNK) + head.len() + 64),
        close,
        first: true,
        gzip: compress.then(Gzip::new),
        over: false,
    };
    writer.out.put_slice(head.as_bytes());
    if format == Format::Yaml {
        let mut whole = Vec::new();
        while let Some(chunk) = writer.next_chunk().await {
            whole.extend_from_slice(&chunk.map_err(|e| Refusal::internal(e.to_string()))?);
        }
        let value: Value = serde_json::from_slice(&whole).unwrap_or_default();
        return Ok(answer::document(200, &value, format));
    }
    let chunks = stream::unfold(writer, async |mut writer| {
        let chunk = writer.next_chunk().await?;
        Some((chunk, writer))
    });
    let mut answer = answer::stream(format.content_type(), chunks);
    if compress {
        let gzip = http::HeaderValue::from_static("gzip");
        answer.headers_mut().insert(http::header::CONTENT_ENCODING, gzip);
    }
    Ok(answer)
}

struct ListWriter {
    registry: Registry,
    kind: std::sync::Arc<crate::kind::Kind>,
    lister: Lister,
    view: View,
    page: std::vec::IntoIter<Document>,
    out: BytesMut,
    close: &'static str,
    first: bool,
    gzip: Option<Gzip>,
    over: bool,
}

// === impl ListWriter ===

impl ListWriter {
    async fn next_chunk(&mut self) -> Option<Result<Bytes, Broken>> {
        while !self.over {
            if let Err(refusal) = self.fill().await {
                self.over = true;
                return Some(Err(Broken(refusal.message)));
            }
            let chunk = self.out.split().freeze();
            let Some(gzip) = &mut self.gzip else { return Some(Ok(chunk)) };
            let Some(mut packed) = gzip.push(&chunk) else { return Some(Err(Broken("gzip".to_owned()))) };
            if self.over
                && let Some(tail) = self.gzip.take().and_then(Gzip::finish)
            {
                packed = [packed, tail].concat().into();
            }
            if !packed.is_empty() {
                return Some(Ok(packed));
            }
        }
        None
    }

    /// Writes until there is a chunk's worth, or everything.
    async fn fill(&mut self) -> Result<(), Refusal> {
        let now = self.registry.now();
        while self.out.len() < CHUNK {
            if let Some(document) = self.page.next() {
                if !std::mem::take(&mut self.first) {
                    self.out.put_u8(b',');
                }
                self.view.write_item(&self.kind, &document, now, &mut self.out);
                continue;
            }
            match self.lister.next_page().await? {
                Some(page) => self.page = page.into_iter(),
                None => {
                    self.write_end();
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn write_end(&mut self) {
        let end = self.lister.end();
        let mut metadata = json!({"resourceVersion": self.lister.revision.to_string()});
        if let Some(token) = end.continue_token {
            metadata["continue"] = token.into();
        }
        if let Some(remaining) = end.remaining.filter(|n| *n > 0) {
            metadata["remainingItemCount"] = remaining.into();
        }
        let tail = format!("{},\"metadata\":{metadata}}}\n", self.close);
        self.out.put_slice(tail.as_bytes());
        self.over = true;
    }
}

/// A watch as an answer. It ends after `timeout`, or when the server does.
pub(crate) fn watch(
    registry: Registry,
    watcher: Watcher,
    view: View,
    bookmarks: bool,
    timeout: Duration,
    stopping: CancellationToken,
) -> Answer {
    let now = Instant::now();
    let writer = WatchWriter {
        registry,
        watcher,
        view,
        bookmark: bookmarks.then(|| now + BOOKMARK_PERIOD.min(timeout.mul_f32(0.9))),
        end: now + timeout,
        columns: true,
        stopping,
        over: false,
    };
    answer::stream(Format::Json.content_type(), writer.frames())
}

struct WatchWriter {
    registry: Registry,
    watcher: Watcher,
    view: View,
    /// When the next bookmark is due.
    bookmark: Option<Instant>,
    end: Instant,
    /// Whether a Table still has to say its columns.
    columns: bool,
    stopping: CancellationToken,
    over: bool,
}

// === impl WatchWriter ===

impl WatchWriter {
    fn frames(self) -> impl Stream<Item = Result<Bytes, Broken>> + Send {
        stream::unfold(self, async |mut writer| {
            let frame = writer.next_frame().await?;
            Some((Ok(frame), writer))
        })
    }

    async fn next_frame(&mut self) -> Option<Bytes> {
        if self.over {
            return None;
        }
        loop {
            let due = self.bookmark.unwrap_or(self.end).min(self.end);
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => return None,
                event = self.watcher.next() => return self.write(event?).into(),
                () = tokio::time::sleep_until(due) => {}
            }
            if due >= self.end {
                return None;
            }
            self.bookmark = Some(Instant::now() + BOOKMARK_PERIOD);
            if let Some(event) = self.watcher.bookmark() {
                return self.write(event).into();
            }
        }
    }

    /// This event and those that are at hand, up to a frame's worth.
    fn write(&mut self, event: Event) -> Bytes {
        let mut out = BytesMut::new();
        let mut next = Some(event);
        while let Some(event) = next {
            self.write_event(event, &mut out);
            next = if self.over || out.len() >= CHUNK { None } else { self.watcher.try_next() };
        }
        out.freeze()
    }

    fn write_event(&mut self, event: Event, out: &mut BytesMut) {
        let (kind, document) = match event {
            Event::Added(document) => ("ADDED", document),
            Event::Modified(document) => ("MODIFIED", document),
            Event::Deleted(document) => ("DELETED", document),
            Event::Bookmark { rev, initial_events_end } => {
                let object = self.mark(rev, initial_events_end);
                return push_line(out, &json!({"type": "BOOKMARK", "object": object}));
            }
            Event::Failed(refusal) => {
                self.over = true;
                return push_line(out, &json!({"type": "ERROR", "object": refusal.to_status()}));
            }
        };
        let shown = &self.watcher.selection().kind;
        if self.view == View::WHOLE && !shown.strategy.converts() {
            out.reserve(document.size() + 40);
            out.put_slice(b"{\"type\":\"");
            out.put_slice(kind.as_bytes());
            out.put_slice(b"\",\"object\":");
            document.write_json(out);
            out.put_slice(b"}\n");
            return;
        }
        let object = present(shown, &document);
        let columns = std::mem::take(&mut self.columns);
        let object = self.view.object(shown, &object, self.registry.now(), columns);
        push_line(out, &json!({"type": kind, "object": object}));
    }

    /// The object of a bookmark: only its revision counts.
    fn mark(&mut self, rev: u64, initial_events_end: bool) -> Value {
        let kind = &self.watcher.selection().kind;
        let mut object = json!({
            "kind": kind.kind, "apiVersion": kind.api_version(),
            "metadata": {"resourceVersion": rev.to_string(), "creationTimestamp": null},
        });
        if initial_events_end {
            object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        match self.view.shape {
            super::accept::Shape::Whole => object,
            super::accept::Shape::Metadata => {
                object["kind"] = "PartialObjectMetadata".into();
                object["apiVersion"] = "meta.k8s.io/v1".into();
                object
            }
            super::accept::Shape::Table => json!({
                "kind": "Table", "apiVersion": "meta.k8s.io/v1",
                "metadata": {"resourceVersion": rev.to_string()},
                "columnDefinitions": null,
                "rows": [{"cells": [], "object": {
                    "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"],
                }}],
            }),
        }
    }
}

fn push_line(out: &mut BytesMut, value: &Value) {
    // Writing JSON to memory cannot fail.
    let _ = serde_json::to_writer(out.writer(), value);
    out.put_u8(b'\n');
}
