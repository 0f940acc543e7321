//! Watches: bodies that are made while they are sent, event by event.
//!
//! Nothing is made before the client took what was made before it, and a watch asks whether it
//! was taken: those who send it would take more and keep it. So one that nobody reads costs 64 KB at most, of which 32 are the
//! connection's, or as much as one object that is larger.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream::{self, Stream};
use schema::protobuf;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::accept::{Format, Shape};
use super::answer::{self, Answer, Broken};
use super::shape::View;
use crate::registry::Registry;
use crate::registry::watch::{Event, Watcher};
use apiserver_core::selection::present;

/// Bytes put into one frame.
const WATCH_CHUNK: usize = 8 * 1024;
/// How often a quiet watch is told how far it is.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);

/// How the events of a watch are told, and whether with bookmarks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WatchForm {
    pub(crate) view: View,
    pub(crate) format: Format,
    pub(crate) bookmarks: bool,
}

/// A watch as an answer. It ends after `timeout`, or when the server does.
pub(crate) fn watch(
    registry: Registry,
    watcher: Watcher,
    form: WatchForm,
    timeout: Duration,
    stopping: CancellationToken,
) -> Answer {
    let now = Instant::now();
    let mut writer = WatchWriter {
        registry,
        watcher,
        view: form.view,
        format: form.format,
        bookmark: None,
        end: now + timeout,
        alarm: Box::pin(tokio::time::sleep_until(now + timeout)),
        columns: true,
        stopping: Box::pin(stopping.cancelled_owned()),
        untaken: Arc::default(),
        over: false,
    };
    if form.bookmarks {
        writer.mark_at(now + BOOKMARK_PERIOD.min(timeout.mul_f32(0.9)));
    }
    let content_type = match form.format {
        Format::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        _ => Format::Json.content_type(),
    };
    answer::stream(content_type, writer.frames())
}

struct WatchWriter {
    registry: Registry,
    watcher: Watcher,
    view: View,
    format: Format,
    /// When the next bookmark is due.
    bookmark: Option<Instant>,
    end: Instant,
    /// Wakes at the first of the two. Kept, as the next one is, from event to event: most events come before it.
    alarm: Pin<Box<Sleep>>,
    stopping: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Whether a Table still has to say its columns.
    columns: bool,
    untaken: Arc<Untaken>,
    over: bool,
}

/// What a watch has said and the connection has not sent.
#[derive(Debug, Default)]
struct Untaken {
    frames: AtomicUsize,
    taken: Notify,
}

/// A frame that tells when it was sent.
struct Frame {
    bytes: Bytes,
    untaken: Arc<Untaken>,
}

// === impl Untaken ===

impl Untaken {
    fn is_none(&self) -> bool {
        self.frames.load(Ordering::Acquire) == 0
    }

    async fn is_taken(&self) {
        loop {
            let taken = self.taken.notified();
            if self.is_none() {
                return;
            }
            taken.await;
        }
    }
}

// === impl Frame ===

impl Frame {
    fn wrap(bytes: Bytes, untaken: &Arc<Untaken>) -> Bytes {
        untaken.frames.fetch_add(1, Ordering::AcqRel);
        Bytes::from_owner(Frame { bytes, untaken: untaken.clone() })
    }
}

impl AsRef<[u8]> for Frame {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.untaken.frames.fetch_sub(1, Ordering::AcqRel);
        self.untaken.taken.notify_one();
    }
}

// === impl WatchWriter ===

impl WatchWriter {
    fn frames(self) -> impl Stream<Item = Result<Bytes, Broken>> + Send {
        stream::unfold(self, async |mut writer| {
            let frame = writer.next_frame().await?;
            Some((Ok(Frame::wrap(frame, &writer.untaken)), writer))
        })
    }

    async fn next_frame(&mut self) -> Option<Bytes> {
        if self.over {
            return None;
        }
        if !self.untaken.is_none() {
            tokio::select! {
                biased;
                () = &mut self.stopping => return None,
                () = self.untaken.is_taken() => {}
                () = tokio::time::sleep_until(self.end) => return None,
            }
        }
        loop {
            tokio::select! {
                biased;
                () = &mut self.stopping => return None,
                event = self.watcher.next() => return self.write(event?).into(),
                () = &mut self.alarm => {}
            }
            if self.bookmark.is_none_or(|due| due >= self.end) {
                return None;
            }
            self.mark_at(Instant::now() + BOOKMARK_PERIOD);
            if let Some(event) = self.watcher.bookmark() {
                return self.write(event).into();
            }
        }
    }

    fn mark_at(&mut self, due: Instant) {
        self.bookmark = Some(due);
        self.alarm.as_mut().reset(due.min(self.end));
    }

    /// This event and those that are at hand, up to a frame's worth.
    fn write(&mut self, event: Event) -> Bytes {
        let mut out = BytesMut::new();
        let mut next = Some(event);
        while let Some(event) = next {
            self.write_event(event, &mut out);
            next = if self.over || out.len() >= WATCH_CHUNK { None } else { self.watcher.try_next() };
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
                return self.push(out, "BOOKMARK", object);
            }
            Event::Failed(api_status) => {
                self.over = true;
                return self.push(out, "ERROR", api_status.to_status());
            }
        };
        let shown = &self.watcher.selection().kind;
        if self.format == Format::Json && self.view == View::WHOLE && !shown.strategy.converts() {
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
        self.push(out, kind, object);
    }

    fn push(&mut self, out: &mut BytesMut, kind: &str, object: Value) {
        if self.format != Format::Protobuf {
            return push_line(out, &json!({"type": kind, "object": object}));
        }
        match answer::to_protobuf(&object) {
            Some(packed) => out.put_slice(&protobuf::watch_frame(kind, &packed)),
            // Better no watch than one that leaves events out.
            None => {
                tracing::error!(kind, "an object has no protobuf form; its watch ends");
                self.over = true;
            }
        }
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
            Shape::Whole => object,
            Shape::Metadata => {
                object["kind"] = "PartialObjectMetadata".into();
                object["apiVersion"] = "meta.k8s.io/v1".into();
                object
            }
            Shape::Table => json!({
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use futures_util::{FutureExt, StreamExt};

    use super::*;
    use crate::clock::SystemClock;
    use crate::registry::addresses::{Addresses, Ranges};
    use apiserver_core::call::Call;
    use apiserver_core::catalog::Catalog;
    use apiserver_core::kind::Kind;
    use apiserver_core::kinds;
    use apiserver_core::options::ListOptions;
    use apiserver_core::selection::Selection;
    use store::Store;

    /// What a connection may hold besides: gathered, and in TLS.
    const CONNECTION: usize = 2 * super::super::wire::ROOM;
    const BOUND: usize = 64 << 10;

    async fn write(registry: &Registry, kind: &Arc<Kind>, names: std::ops::Range<usize>) {
        for i in names {
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": format!("m-{i}")}, "data": {"text": "x".repeat(1500)}});
            let mut call = Call::internal(kind.clone(), "create", "ns", "");
            registry.create(&mut call, object).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_watcher_that_never_reads_costs_little_and_misses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        // Little is kept in memory for all, so that the watch falls back to the log.
        let options = store::Options { recent_bytes: 10_000, ..store::Options::default() };
        let store = Store::open(dir.path(), options).unwrap();
        let catalog = Catalog::new(kinds::all().into_iter().map(Arc::new));
        let clock = Arc::new(SystemClock::default());
        let registry = Registry::new(store, catalog, clock, None, Addresses::new(Ranges::default()));
        let kind = registry.kind("", "v1", "configmaps").unwrap();
        write(&registry, &kind, 0..200).await;
        // From the objects that are there, and from the changes after a revision.
        for version in [None, Some(1)] {
            let asked = ListOptions { version, ..ListOptions::default() };
            let watcher = registry.watch(Selection::all(kind.clone()), &asked).await.unwrap();
            let writer = writer(&registry, watcher);
            let mut frames = Box::pin(writer.frames());
            let first = frames.next().await.unwrap().unwrap();
            assert!(first.len() + CONNECTION < BOUND, "{}", first.len());
            // The connection keeps what it cannot send. However often it asks, there is no more.
            for _ in 0..100 {
                assert!(frames.next().now_or_never().is_none());
            }
            let mut text = first.to_vec();
            drop(first);
            let mut lines = 0;
            let wanted = if version.is_none() { 200 } else { 199 };
            while lines < wanted {
                let frame = frames.next().await.unwrap().unwrap();
                text.extend_from_slice(&frame);
                lines = text.iter().filter(|b| **b == b'\n').count();
            }
            assert_eq!(lines, wanted);
        }
        // What is read ahead for one watch.
        for version in [None, Some(1)] {
            let asked = ListOptions { version, ..ListOptions::default() };
            let mut watcher = registry.watch(Selection::all(kind.clone()), &asked).await.unwrap();
            let mut most = watcher.held_bytes();
            for _ in 0..150 {
                watcher.next().await.unwrap();
                most = most.max(watcher.held_bytes());
            }
            let all = most + WATCH_CHUNK + 2000 + CONNECTION;
            assert!(most > 0 && all <= BOUND, "{most} of {all}");
        }
    }

    fn writer(registry: &Registry, watcher: Watcher) -> WatchWriter {
        let end = Instant::now() + Duration::from_secs(600);
        WatchWriter {
            registry: registry.clone(),
            watcher,
            view: View::WHOLE,
            format: Format::Json,
            bookmark: None,
            end,
            alarm: Box::pin(tokio::time::sleep_until(end)),
            stopping: Box::pin(CancellationToken::new().cancelled_owned()),
            columns: true,
            untaken: Arc::default(),
            over: false,
        }
    }
}
