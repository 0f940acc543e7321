//! An API server in memory and the network between it and the node, with trouble drawn from a seed.
//!
//! It speaks HTTP over pipes, so that the kubelet's own client, watches and writers are what is tried. Its objects
//! outlive every agent; users make and delete Pods whether or not the node can see it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::rng::Rng;
use base::time::Clock;
use bytes::Bytes;
use client::{Client, Dial, Options, Wire};
use futures_util::stream;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tokio::io::DuplexStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{SimClock, merge};

type Body = UnsyncBoxBody<Bytes, Infallible>;
type Answer = io::Result<Response<Body>>;

/// The node every simulated Pod is bound to.
pub const NODE: &str = "sim";

/// An API server; clones are the same one.
#[derive(Clone, Debug)]
pub struct FakeApi(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    clock: Arc<SimClock>,
    state: Mutex<State>,
    /// The newest revision.
    changed: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    rng: Rng,
    weather: Weather,
    revision: u64,
    pods: BTreeMap<String, Value>,
    node: Value,
    /// Answers to every write whose path has this in it.
    refusals: Vec<(String, u16)>,
    log: Vec<Change>,
    /// Watches from before this revision are told to list again.
    floor: u64,
    /// Ends every connection there is.
    cut: CancellationToken,
    record: Record,
}

#[derive(Clone, Debug)]
struct Change {
    revision: u64,
    resource: &'static str,
    kind: &'static str,
    object: Value,
}

/// What the way to the server is like.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Nobody gets through.
    pub partition: bool,
    /// Everything gets through, and nothing comes back.
    pub black_hole: bool,
    /// How long what happens to the node's object is held back from those who watch it.
    pub node_lag: Duration,
    /// The longest an answer takes.
    pub latency: Duration,
    /// The longest an event of a watch is held back.
    pub lag: Duration,
    /// How often a write meets another one, a request fails, an answer is lost on its way, an event comes twice.
    pub conflicts: f64,
    pub failures: f64,
    pub lost: f64,
    pub duplicates: f64,
}

/// What arrived, for those who judge.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Attempts to connect, whether or not they succeeded.
    pub dials: Vec<Duration>,
    /// When, which method, which path.
    pub requests: Vec<(Duration, Method, String)>,
    /// When all Pods were listed.
    pub lists: Vec<Duration>,
    /// The Event objects, by name.
    pub events: BTreeMap<String, Value>,
}

// === impl Weather ===

impl Weather {
    /// Everything happens, nothing lasts.
    #[must_use]
    pub fn stormy() -> Weather {
        Weather {
            partition: false,
            black_hole: false,
            node_lag: Duration::ZERO,
            latency: Duration::from_millis(400),
            lag: Duration::from_secs(2),
            conflicts: 0.1,
            failures: 0.1,
            lost: 0.05,
            duplicates: 0.2,
        }
    }
}

// === impl FakeApi ===

impl FakeApi {
    #[must_use]
    pub fn new(seed: u64, clock: Arc<SimClock>) -> FakeApi {
        let state = State {
            rng: Rng::new(seed),
            weather: Weather::default(),
            revision: 1,
            pods: BTreeMap::new(),
            node: json!({"metadata": {"name": NODE, "uid": NODE, "resourceVersion": "1"}}),
            refusals: Vec::new(),
            log: Vec::new(),
            floor: 0,
            cut: CancellationToken::new(),
            record: Record::default(),
        };
        FakeApi(Arc::new(Shared { clock, state: Mutex::new(state), changed: watch::channel(1).0 }))
    }

    /// A client as the kubelet has it.
    #[must_use]
    pub fn client(&self) -> Client {
        let this = self.clone();
        let dial: Dial = Arc::new(move || this.dial());
        Client::over(dial, Options { qps: 50.0, burst: 100, ..Options::default() })
    }

    pub fn set_weather(&self, weather: Weather) {
        let mut state = self.0.lock();
        state.weather = weather;
        if weather.partition {
            state.cut_off();
        }
    }

    #[must_use]
    pub fn weather(&self) -> Weather {
        self.0.lock().weather
    }

    /// Every connection breaks; new ones can be made.
    pub fn cut(&self) {
        self.0.lock().cut_off();
    }

    /// History is forgotten: who watches from before has to list.
    pub fn compact(&self) {
        let mut state = self.0.lock();
        state.floor = state.revision;
        state.log.clear();
    }

    /// A user makes a Pod that is bound to the node.
    pub fn create(&self, pod: &Pod) {
        let mut object = serde_json::to_value(pod).unwrap_or_default();
        object["spec"]["nodeName"] = NODE.into();
        object["status"] = json!({"phase": "Pending"});
        object["metadata"]["annotations"] = Value::Null;
        object["metadata"]["creationTimestamp"] = self.0.now_text().into();
        self.0.put("ADDED", object);
    }

    /// A user deletes a Pod, with its own grace period; with none at all the object is gone at once.
    pub fn delete(&self, name: &str, grace: Option<i64>) {
        let Some(mut object) = self.0.lock().pods.get(name).cloned() else { return };
        let own = object["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
        let grace = grace.unwrap_or(own);
        if grace == 0 {
            return self.0.remove(name);
        }
        let before = object["metadata"]["deletionGracePeriodSeconds"].as_i64();
        if before.is_some_and(|before| before <= grace) {
            return;
        }
        object["metadata"]["deletionTimestamp"] = self.0.now_text().into();
        object["metadata"]["deletionGracePeriodSeconds"] = grace.into();
        self.0.put("MODIFIED", object);
    }

    /// A user changes something that is none of the kubelet's business.
    pub fn label(&self, name: &str, value: &str) {
        let Some(mut object) = self.0.lock().pods.get(name).cloned() else { return };
        object["metadata"]["labels"] = json!({"touched": value});
        self.0.put("MODIFIED", object);
    }

    /// Somebody makes anything at all of an object.
    pub fn edit(&self, name: &str, edit: impl FnOnce(&mut Value)) {
        let Some(mut object) = self.0.lock().pods.get(name).cloned() else { return };
        edit(&mut object);
        self.0.put("MODIFIED", object);
    }

    /// Somebody writes into the status that is ours.
    pub fn lie(&self, name: &str) {
        let Some(mut object) = self.0.lock().pods.get(name).cloned() else { return };
        object["status"]["podIP"] = "192.0.2.1".into();
        self.0.put("MODIFIED", object);
    }

    /// Every write to a path with this in it is answered with this code; with zero no longer.
    pub fn refuse_writes(&self, path: &str, code: u16) {
        let refusals = &mut self.0.lock().refusals;
        refusals.retain(|(of, _)| of != path);
        if code != 0 {
            refusals.push((path.to_owned(), code));
        }
    }

    /// Somebody changes the node's object.
    pub fn change_node(&self, change: &Value) {
        let mut node = self.0.lock().node.clone();
        merge::strategic(&mut node, change);
        self.0.put_node(node);
    }

    /// All Pods there are.
    #[must_use]
    pub fn pods(&self) -> Vec<Pod> {
        let all: Vec<Value> = self.0.lock().pods.values().cloned().collect();
        all.into_iter().filter_map(|object| serde_json::from_value(object).ok()).collect()
    }

    #[must_use]
    pub fn record(&self) -> Record {
        self.0.lock().record.clone()
    }

    fn dial(&self) -> io::Result<Box<dyn Wire>> {
        let mut state = self.0.lock();
        state.record.dials.push(self.0.now());
        if state.weather.partition {
            return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "simulated partition"));
        }
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        tokio::spawn(serve(self.0.clone(), theirs, state.cut.clone()));
        Ok(Box::new(ours))
    }
}

// === impl Shared ===

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.clock.now().mono.0
    }

    fn now_text(&self) -> String {
        let seconds = self.clock.now().wall.secs();
        jiff::Timestamp::from_second(seconds).map(|t| t.to_string()).unwrap_or_default()
    }

    /// Stores an object under the next revision, and returns it.
    fn put(&self, kind: &'static str, mut object: Value) -> Value {
        let mut state = self.lock();
        let revision = state.next();
        object["metadata"]["resourceVersion"] = revision.to_string().into();
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        state.pods.insert(name, object.clone());
        state.log.push(Change { revision, resource: "pods", kind, object: object.clone() });
        drop(state);
        self.changed.send_replace(revision);
        object
    }

    fn put_node(&self, mut object: Value) {
        let mut state = self.lock();
        let revision = state.next();
        object["metadata"]["resourceVersion"] = revision.to_string().into();
        state.node.clone_from(&object);
        state.log.push(Change { revision, resource: "nodes", kind: "MODIFIED", object });
        drop(state);
        self.changed.send_replace(revision);
    }

    fn remove(&self, name: &str) {
        let mut state = self.lock();
        let Some(mut object) = state.pods.remove(name) else { return };
        let revision = state.next();
        object["metadata"]["resourceVersion"] = revision.to_string().into();
        state.log.push(Change { revision, resource: "pods", kind: "DELETED", object });
        drop(state);
        self.changed.send_replace(revision);
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Answer {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let body = request.into_body().collect().await.map_err(io::Error::other)?.to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let (delay, fails, conflicts, lost) = {
            let mut state = self.lock();
            let now = self.now();
            state.record.requests.push((now, method.clone(), uri.path().to_owned()));
            state.draw()
        };
        tokio::time::sleep(delay).await;
        if self.lock().weather.black_hole {
            std::future::pending::<()>().await;
        }
        let refusal = self.lock().refusals.iter().find(|(of, _)| uri.path().contains(of)).map(|r| r.1);
        if let Some(code) = refusal.filter(|_| method != Method::GET) {
            return Ok(refuse(code, "InternalError"));
        }
        if fails {
            return Ok(refuse(500, "InternalError"));
        }
        if conflicts && method != Method::GET && !uri.path().ends_with("/events") {
            return Ok(refuse(409, "Conflict"));
        }
        let answer = self.route(&method, uri.path(), uri.query().unwrap_or_default(), &body);
        if lost && method != Method::GET {
            return Err(io::Error::other("the answer is lost"));
        }
        Ok(answer)
    }

    fn route(self: &Arc<Self>, method: &Method, path: &str, query: &str, body: &Value) -> Response<Body> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let watched = field(query, "watch") == Some("true");
        match (method, &parts[..]) {
            (&Method::GET, ["api", "v1", "pods"]) if watched => self.watch("pods", query),
            (&Method::GET, ["api", "v1", "pods"]) => self.list(),
            (&Method::GET, ["api", "v1", "nodes"]) if watched => self.watch("nodes", query),
            (&Method::GET, ["api", "v1", "nodes"]) => {
                let state = self.lock();
                let meta = json!({"resourceVersion": state.revision.to_string()});
                say(200, &json!({"metadata": meta, "items": [state.node]}))
            }
            (&Method::GET, ["api", "v1", "nodes", NODE]) => say(200, &self.lock().node),
            (&Method::POST, ["api", "v1", "nodes"]) => refuse(409, "AlreadyExists"),
            (&Method::PATCH, ["api", "v1", "nodes", NODE, ..]) => {
                let mut node = self.lock().node.clone();
                merge::strategic(&mut node, body);
                self.put_node(node);
                say(200, &self.lock().node)
            }
            (&Method::PATCH, ["api", "v1", "namespaces", _, "pods", name, "status"]) => {
                self.patch(name, body)
            }
            (&Method::DELETE, ["api", "v1", "namespaces", _, "pods", name]) => self.take_away(name, body),
            (&Method::POST, ["api", "v1", "namespaces", _, "events"]) => self.keep_event(body),
            (&Method::PATCH, ["api", "v1", "namespaces", _, "events", name]) => {
                match self.lock().record.events.get_mut(*name) {
                    Some(event) => {
                        merge::strategic(event, body);
                        say(200, event)
                    }
                    None => refuse(404, "NotFound"),
                }
            }
            _ => refuse(404, "NotFound"),
        }
    }

    fn keep_event(&self, event: &Value) -> Response<Body> {
        let name = event["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        match self.lock().record.events.entry(name) {
            Entry::Occupied(_) => refuse(409, "AlreadyExists"),
            Entry::Vacant(place) => say(201, place.insert(event.clone())),
        }
    }

    fn list(&self) -> Response<Body> {
        let now = self.now();
        let mut state = self.lock();
        state.record.lists.push(now);
        let items: Vec<&Value> = state.pods.values().collect();
        say(200, &json!({"metadata": {"resourceVersion": state.revision.to_string()}, "items": items}))
    }

    fn patch(&self, name: &str, patch: &Value) -> Response<Body> {
        let Some(mut object) = self.lock().pods.get(name).cloned() else { return refuse(404, "NotFound") };
        if patch["metadata"]["uid"] != object["metadata"]["uid"] {
            return refuse(409, "Conflict");
        }
        let before = object["status"].clone();
        merge::strategic(&mut object["status"], &patch["status"]);
        if object["status"] == before {
            return say(200, &object);
        }
        say(200, &self.put("MODIFIED", object))
    }

    fn take_away(&self, name: &str, options: &Value) -> Response<Body> {
        let Some(object) = self.lock().pods.get(name).cloned() else { return refuse(404, "NotFound") };
        if options["preconditions"]["uid"] != object["metadata"]["uid"] {
            return refuse(409, "Conflict");
        }
        self.remove(name);
        say(200, &object)
    }

    /// Everything after a revision, until the time the client named is over.
    fn watch(self: &Arc<Self>, resource: &'static str, query: &str) -> Response<Body> {
        let from = field(query, "resourceVersion").and_then(|r| r.parse().ok()).unwrap_or(0);
        let (floor, in_band) = {
            let mut state = self.lock();
            (state.floor, state.rng.chance(0.5))
        };
        if from < floor {
            let gone = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"});
            let line = json!({"type": "ERROR", "object": gone});
            return if in_band { say(200, &line) } else { refuse(410, "Expired") };
        }
        let reader = Reader {
            shared: self.clone(),
            resource,
            changed: self.changed.subscribe(),
            seen: from,
            end: Instant::now() + seconds(query),
        };
        let lines = stream::unfold(reader, |mut reader| async move {
            let lines = reader.next().await?;
            Some((Ok(Frame::data(lines)), reader))
        });
        Response::new(StreamBody::new(lines).boxed_unsync())
    }
}

// === impl State ===

impl State {
    fn next(&mut self) -> u64 {
        self.revision += 1;
        self.revision
    }

    fn cut_off(&mut self) {
        std::mem::take(&mut self.cut).cancel();
    }

    /// How long an answer takes, and whether it is a failure, a conflict, or lost.
    fn draw(&mut self) -> (Duration, bool, bool, bool) {
        let Weather { latency, failures, conflicts, lost, .. } = self.weather;
        let rng = &mut self.rng;
        (rng.up_to(latency), rng.chance(failures), rng.chance(conflicts), rng.chance(lost))
    }
}

/// One watch, at the server's end.
struct Reader {
    shared: Arc<Shared>,
    resource: &'static str,
    changed: watch::Receiver<u64>,
    seen: u64,
    end: Instant,
}

// === impl Reader ===

impl Reader {
    /// The next events; none at the end.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            self.changed.borrow_and_update();
            let (lines, lag) = self.lines();
            if self.shared.lock().weather.black_hole {
                std::future::pending::<()>().await;
            }
            if !lines.is_empty() {
                tokio::time::sleep(lag).await;
                return Some(lines.into());
            }
            let changed = tokio::time::timeout_at(self.end, self.changed.changed());
            changed.await.ok()?.ok()?;
        }
    }

    fn lines(&mut self) -> (String, Duration) {
        let mut state = self.shared.lock();
        let Weather { lag, node_lag, duplicates, .. } = state.weather;
        let ours = |c: &&Change| c.resource == self.resource && c.revision > self.seen;
        let fresh: Vec<Change> = state.log.iter().filter(ours).cloned().collect();
        let mut lines = String::new();
        for change in fresh {
            self.seen = change.revision;
            let line = json!({"type": change.kind, "object": change.object}).to_string() + "\n";
            lines += &line;
            if state.rng.chance(duplicates) {
                lines += &line;
            }
        }
        let held_back = if self.resource == "nodes" { node_lag } else { Duration::ZERO };
        (lines, held_back + state.rng.up_to(lag))
    }
}

async fn serve(shared: Arc<Shared>, io: DuplexStream, cut: CancellationToken) {
    let service = service_fn(move |request| shared.clone().answer(request));
    let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(io), service);
    let _ = cut.run_until_cancelled(connection).await;
}

fn say(status: u16, body: &Value) -> Response<Body> {
    let mut answer = Response::new(Full::new(Bytes::from(body.to_string() + "\n")).boxed_unsync());
    *answer.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
    answer
}

fn refuse(code: u16, reason: &str) -> Response<Body> {
    let status = json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason,
                        "message": "simulated"});
    say(code, &status)
}

fn field<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    query.split('&').filter_map(|pair| pair.split_once('=')).find_map(|(k, v)| (k == name).then_some(v))
}

fn seconds(query: &str) -> Duration {
    let seconds = field(query, "timeoutSeconds").and_then(|s| s.parse().ok());
    Duration::from_secs(seconds.unwrap_or(300))
}
