//! List and watch: every object of a resource, and every change from then on, whatever happens in between.

use std::collections::VecDeque;
use std::time::Duration;

use base::rng::Rng;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::connection_pool::Content;
use crate::error::{ApiError, ClientError};
use crate::list::{ITEM_MAX, ListMeta, Splitter};
use crate::request::{Client, Request};

/// Objects asked for at a time. They are read one by one, so a page may be large; many small ones would have to wait for each
/// other at a client's rate.
const PAGE: usize = 10_000;
/// One object and the word before it.
const LINE_MAX: usize = ITEM_MAX;
/// First and longest pause between attempts.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// A watch that the server does not end by itself, this long after it was to, leads nowhere.
const OVERTIME: Duration = Duration::from_secs(30);
/// Until a list is repeated that could not be read whole.
const LIST_AGAIN: Duration = Duration::from_secs(60);
/// A watch that lived this long was healthy: the next failure begins with short pauses again.
const HEALTHY: Duration = Duration::from_secs(30);

/// The forms in which a server sends metadata alone.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
const METADATA_LIST: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// What to watch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resource {
    /// `/api/v1/services`
    pub path: String,
    pub label_selector: String,
    pub field_selector: String,
}

/// What was seen. Objects are raw JSON, as the server sent them.
#[derive(Debug)]
pub enum Event {
    /// All objects there are now: what is not among them is gone.
    Listed(Vec<Box<RawValue>>),
    /// An object was made or changed.
    Applied(Box<RawValue>),
    /// An object was removed; this is its last state.
    Deleted(Box<RawValue>),
}

/// The same for those who would rather not hold a whole list: its objects come one by one.
#[derive(Clone, Debug)]
pub enum Piece {
    /// A list begins, or begins again: what was seen of an earlier one that did not end counts no more.
    Begin,
    /// An object of the list.
    Item(Box<RawValue>),
    /// That was the list: what was not among its objects is gone.
    End,
    /// As [`Event::Applied`].
    Applied(Box<RawValue>),
    /// As [`Event::Deleted`].
    Deleted(Box<RawValue>),
    /// Nothing happened up to [`Watcher::revision`].
    Bookmark,
}

/// A watch that never ends: it lists, watches, and resumes where it was after every interruption.
#[derive(Debug)]
pub struct Watcher {
    client: Client,
    resource: Resource,
    rng: Rng,
    pause: Duration,
    /// Kept here and not in a sleep, so that a caller who drops `next` does not drop the pause.
    retry_at: Option<Instant>,
    state: State,
    /// All of it was told once.
    listed: bool,
    ready: VecDeque<Piece>,
    /// What was seen of a list that somebody waits for as a whole.
    collected: Vec<Box<RawValue>>,
    /// Since when the server has not been reached.
    trouble: Option<Instant>,
    /// When what was listed is listed again, for want of an item that could be read.
    list_again_at: Option<Instant>,
    /// Of objects only their metadata is asked for.
    is_metadata_only: bool,
}

/// What comes next.
#[derive(Debug, Default)]
enum State {
    /// A list begins.
    #[default]
    Unlisted,
    /// The page of the list that begins at `from` is asked for; empty for the first.
    Listing { from: String },
    /// A page arrives.
    Reading { body: Content, splitter: Splitter },
    /// Everything up to `revision` was received. A watch from there on is asked for.
    Listed { revision: String },
    /// A watch is open. Everything up to `revision` was received.
    Watching { revision: String, lines: Lines },
}

#[derive(Debug)]
struct Lines {
    body: Content,
    buffer: BytesMut,
    /// How much of the buffer is known to hold no line's end.
    scanned: usize,
    opened: Instant,
    /// Later than this the server must have ended it.
    lasts: Duration,
}

#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: String,
    object: Box<RawValue>,
}

#[derive(Deserialize)]
struct Versioned {
    metadata: ListMeta,
}

// === impl Watcher ===

impl Watcher {
    /// `rng` spreads the retries of many nodes after an outage.
    #[must_use]
    pub fn new(client: Client, resource: Resource, rng: Rng) -> Watcher {
        Watcher {
            client,
            resource,
            rng,
            pause: PAUSE_MIN,
            retry_at: None,
            state: State::Unlisted,
            listed: false,
            ready: VecDeque::new(),
            collected: Vec::new(),
            trouble: None,
            list_again_at: None,
            is_metadata_only: false,
        }
    }

    /// Of objects only their metadata, for whoever watches all kinds. A server that cannot do that sends whole objects.
    #[must_use]
    pub fn metadata_only(self) -> Watcher {
        Watcher { is_metadata_only: true, ..self }
    }

    /// The first list too comes from the store, and not from a server's cache that may be behind: for whoever acts on what is
    /// missing, and may have made it himself before he was started again.
    #[must_use]
    pub fn from_store(self) -> Watcher {
        Watcher { listed: true, ..self }
    }

    /// The next event; waits as long as it takes. Failures are logged and retried here.
    ///
    /// Cancel-safe: dropped in the middle, nothing that was received is lost.
    pub async fn next(&mut self) -> Event {
        loop {
            match self.next_piece().await {
                Piece::Begin => self.collected.clear(),
                Piece::Item(object) => self.collected.push(object),
                Piece::End => return Event::Listed(std::mem::take(&mut self.collected)),
                Piece::Applied(object) => return Event::Applied(object),
                Piece::Deleted(object) => return Event::Deleted(object),
                Piece::Bookmark => {}
            }
        }
    }

    /// The same with lists in pieces. Not to be mixed with the above.
    pub async fn next_piece(&mut self) -> Piece {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return piece;
            }
            if let Some(at) = self.retry_at {
                tokio::time::sleep_until(at).await;
                self.retry_at = None;
            }
            if let Err(error) = self.step().await {
                self.recover(&error);
            }
        }
    }

    /// An item of the last list could not be told from the others, so nobody knows what is gone: lists again in a while.
    pub fn list_again(&mut self) {
        self.list_again_at.get_or_insert_with(|| Instant::now() + LIST_AGAIN);
    }

    /// Up to where everything was received. Whoever was handed the end of a list or a bookmark has seen all of it.
    #[must_use]
    pub fn revision(&self) -> Option<&str> {
        match &self.state {
            State::Listed { revision } | State::Watching { revision, .. } => Some(revision),
            State::Unlisted | State::Listing { .. } | State::Reading { .. } => None,
        }
    }

    /// How long the server has been out of reach.
    #[must_use]
    pub fn out_of_reach(&self) -> Option<Duration> {
        self.trouble.map(|since| since.elapsed())
    }

    /// Cancel-safe: what was read is kept in the state.
    async fn step(&mut self) -> Result<(), ClientError> {
        match &self.state {
            State::Unlisted => {
                self.state = State::Listing { from: String::new() };
                self.ready.push_back(Piece::Begin);
                Ok(())
            }
            State::Listing { from } => {
                let from = from.clone();
                self.open_page(&from).await
            }
            State::Reading { .. } => self.read_page().await,
            State::Listed { revision } => {
                let revision = revision.clone();
                let lines = self.open(&revision).await?;
                self.state = State::Watching { revision, lines };
                self.trouble = None;
                Ok(())
            }
            State::Watching { .. } => self.read_line().await,
        }
    }

    async fn open_page(&mut self, from: &str) -> Result<(), ClientError> {
        self.state = match self.client.open(self.request(self.page_path(from), METADATA_LIST)).await {
            // The snapshot a page belongs to is compacted: begin again.
            Err(e) if e.is_expired() && !from.is_empty() => State::Unlisted,
            other => State::Reading { body: other?.into_body(), splitter: Splitter::default() },
        };
        Ok(())
    }

    async fn read_page(&mut self) -> Result<(), ClientError> {
        let act = || format!("GET {}", self.resource.path);
        let unreadable = |e: crate::list::Unreadable| ClientError::Decode { act: act(), why: e.to_string() };
        let State::Reading { body, splitter } = &mut self.state else { return Ok(()) };
        let after = self.client.request_timeout();
        let frame = tokio::time::timeout(after, body.frame()).await;
        match frame.map_err(|_| ClientError::Timeout { act: act(), after })? {
            Some(Ok(frame)) => {
                let data = frame.into_data().unwrap_or_default();
                splitter.take(&data, |item| self.ready.push_back(Piece::Item(item))).map_err(unreadable)
            }
            Some(Err(e)) => Err(ClientError::Transport { act: act(), why: e.to_string() }),
            None => {
                let meta = std::mem::take(splitter).finish().map_err(unreadable)?;
                if meta.next.is_empty() {
                    self.state = State::Listed { revision: meta.resource_version };
                    self.listed = true;
                    self.trouble = None;
                    self.ready.push_back(Piece::End);
                } else {
                    self.state = State::Listing { from: meta.next };
                }
                Ok(())
            }
        }
    }

    async fn read_line(&mut self) -> Result<(), ClientError> {
        let State::Watching { lines, .. } = &mut self.state else { return Ok(()) };
        let line = lines.next(&self.resource.path);
        let line = match self.list_again_at {
            Some(at) => tokio::time::timeout_at(at, line).await,
            None => Ok(line.await),
        };
        let Ok(line) = line else {
            (self.list_again_at, self.state) = (None, State::Unlisted);
            return Ok(());
        };
        match line? {
            Some(line) => self.take(&line),
            None => {
                // The server ends watches after a while; that is no trouble, but a loop of it would be.
                if self.close().is_some_and(|lived| lived < Duration::from_secs(1)) {
                    self.retry_at = Some(Instant::now() + self.rng.up_to(Duration::from_secs(1)));
                }
                Ok(())
            }
        }
    }

    /// Ends what is under way: a list begins again, a watch goes on where it was. Says how long the watch lived.
    fn close(&mut self) -> Option<Duration> {
        let (state, lived) = match std::mem::take(&mut self.state) {
            State::Watching { revision, lines } => (State::Listed { revision }, Some(lines.opened.elapsed())),
            State::Listed { revision } => (State::Listed { revision }, None),
            State::Unlisted | State::Listing { .. } | State::Reading { .. } => (State::Unlisted, None),
        };
        self.state = state;
        lived
    }

    fn request(&self, path: String, metadata: &'static str) -> Request {
        let request = Request::get(path);
        if self.is_metadata_only { request.accepting(metadata) } else { request }
    }

    fn page_path(&self, from: &str) -> String {
        let path = self.query(&format!("limit={PAGE}"));
        match from {
            // Nothing that was told may be taken back, and a cache may be behind what was.
            "" if self.listed => path,
            // Any recent state will do, as upstream's informers ask: a server may answer from its cache.
            "" => format!("{path}&resourceVersion=0"),
            from => format!("{path}&continue={}", encode(from)),
        }
    }

    async fn open(&mut self, revision: &str) -> Result<Lines, ClientError> {
        // Between 5 and 10 minutes, so that the watches of many nodes do not end together.
        let seconds = 300 + self.rng.below(300);
        let path = self.query(&format!(
            "watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={}",
            encode(revision)
        ));
        let response = self.client.open(self.request(path, METADATA)).await?;
        let opened = Instant::now();
        let lasts = Duration::from_secs(seconds) + OVERTIME;
        Ok(Lines { body: response.into_body(), buffer: BytesMut::new(), scanned: 0, opened, lasts })
    }

    fn take(&mut self, line: &[u8]) -> Result<(), ClientError> {
        let act = || format!("watch {}", self.resource.path);
        let decode = |e: serde_json::Error| ClientError::Decode { act: act(), why: e.to_string() };
        // Upstream's decoder reads through bytes that are no text.
        let line: Line = serde_json::from_str(&String::from_utf8_lossy(line)).map_err(decode)?;
        if line.kind == "ERROR" {
            #[derive(Deserialize)]
            struct Code {
                #[serde(default)]
                code: u16,
            }
            let code: Code = serde_json::from_str(line.object.get()).map_err(decode)?;
            let answer = ApiError::read(code.code, None, line.object.get().as_bytes());
            return Err(ClientError::Api { act: act(), answer });
        }
        let at: Versioned = serde_json::from_str(line.object.get()).map_err(decode)?;
        match line.kind.as_str() {
            "ADDED" | "MODIFIED" => self.ready.push_back(Piece::Applied(line.object)),
            "DELETED" => self.ready.push_back(Piece::Deleted(line.object)),
            // BOOKMARK, and whatever a newer server may say: only its revision counts.
            _ => self.ready.push_back(Piece::Bookmark),
        }
        if let State::Watching { revision, .. } = &mut self.state {
            *revision = at.metadata.resource_version;
        }
        Ok(())
    }

    fn recover(&mut self, error: &ClientError) {
        if self.close().is_some_and(|lived| lived > HEALTHY) {
            self.pause = PAUSE_MIN;
        }
        self.trouble.get_or_insert_with(Instant::now);
        if error.is_expired() {
            tracing::debug!(path = %self.resource.path, "The watched revision is compacted, listing again");
            self.state = State::Unlisted;
        } else {
            tracing::warn!(path = %self.resource.path, %error, "Watch interrupted");
        }
        let asked = error.retry_after();
        // Jitter on the upper half: quick for one node, spread for a thousand.
        let pause = self.pause / 2 + self.rng.up_to(self.pause / 2);
        self.retry_at = Some(Instant::now() + asked.unwrap_or_default().max(pause));
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    fn query(&self, rest: &str) -> String {
        let mut path = format!("{}?{rest}", self.resource.path);
        for (name, value) in [
            ("labelSelector", &self.resource.label_selector),
            ("fieldSelector", &self.resource.field_selector),
        ] {
            if !value.is_empty() {
                path.push_str(&format!("&{name}={}", encode(value)));
            }
        }
        path
    }
}

// === impl Resource ===

impl Resource {
    #[must_use]
    pub fn new(path: impl Into<String>) -> Resource {
        Resource { path: path.into(), label_selector: String::new(), field_selector: String::new() }
    }
}

// === impl Lines ===

impl Lines {
    /// The next line; None at the end. Cancel-safe: what was read stays in the buffer.
    async fn next(&mut self, path: &str) -> Result<Option<Bytes>, ClientError> {
        loop {
            if let Some(end) = self.buffer[self.scanned..].iter().position(|b| *b == b'\n') {
                let line = self.buffer.split_to(self.scanned + end + 1).freeze();
                self.scanned = 0;
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                return Ok(Some(line));
            }
            self.scanned = self.buffer.len();
            if self.scanned > LINE_MAX {
                return Err(ClientError::TooLarge { act: format!("watch {path}"), limit: LINE_MAX });
            }
            let late = |_| ClientError::Timeout { act: format!("watch {path}"), after: self.lasts };
            let frame = tokio::time::timeout_at(self.opened + self.lasts, self.body.frame()).await;
            match frame.map_err(late)? {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(e)) => {
                    return Err(ClientError::Transport { act: format!("watch {path}"), why: e.to_string() });
                }
            }
        }
    }
}

/// Percent-encodes a query value.
fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}
