//! The whole agent in a node's network namespace, and an API server for it that only lists and watches.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::config::Outcome;
use api::config::proxy::load;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base::verbosity::Verbosity;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use proxy::agent::{self, Start};
use proxy_core::objects::{Family, Protocol};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::no_files::NoFiles;
use super::{Answer, Lab, Party};

pub(crate) const SERVICES: &str = "/api/v1/services";
pub(crate) const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
pub(crate) const NODES: &str = "/api/v1/nodes";
pub(crate) const RANGES: &str = "/apis/networking.k8s.io/v1/servicecidrs";

/// Lists, watches, and remembers what is posted.
#[derive(Clone)]
pub(crate) struct Api(Arc<Shared>);

struct Shared {
    objects: Mutex<BTreeMap<String, Vec<Value>>>,
    /// Objects that are asked for by name.
    named: Mutex<BTreeMap<String, Value>>,
    address: Mutex<Option<SocketAddr>>,
    events: broadcast::Sender<(String, String)>,
    posted: Mutex<Vec<Value>>,
    /// Paths and queries.
    asked: Mutex<Vec<String>>,
}

impl Api {
    pub(crate) fn new() -> Self {
        let shared = Shared {
            objects: Mutex::default(),
            named: Mutex::default(),
            address: Mutex::default(),
            events: broadcast::channel(64).0,
            posted: Mutex::default(),
            asked: Mutex::default(),
        };
        Self(Arc::new(shared))
    }

    pub(crate) fn put(&self, path: &str, objects: &[impl Serialize]) {
        let objects = objects.iter().map(|o| serde_json::to_value(o).unwrap());
        self.0.objects.lock().unwrap().entry(path.to_owned()).or_default().extend(objects);
    }

    pub(crate) fn replace(&self, path: &str, objects: &[impl Serialize]) {
        self.0.objects.lock().unwrap().remove(path);
        self.put(path, objects);
    }

    /// Ends watches as a server does that has forgotten what came after a list.
    pub(crate) fn expire(&self, path: &str) {
        let status = json!({"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410});
        let line = format!("{}\n", json!({"type": "ERROR", "object": status}));
        self.0.events.send((path.to_owned(), line)).unwrap();
    }

    pub(crate) fn count_lists(&self, path: &str) -> usize {
        let asked = self.0.asked.lock().unwrap();
        asked.iter().filter(|uri| uri.split('?').next() == Some(path) && !uri.contains("watch=true")).count()
    }

    pub(crate) fn is_watched(&self, path: &str) -> bool {
        let asked = self.0.asked.lock().unwrap();
        asked.iter().any(|uri| uri.split('?').next() == Some(path) && uri.contains("watch=true"))
    }

    pub(crate) fn name(&self, path: &str, object: impl Serialize) {
        self.0.named.lock().unwrap().insert(path.to_owned(), serde_json::to_value(object).unwrap());
    }

    /// What a doctor would be shown: the Service and its slices, as they are asked for.
    pub(crate) fn show(&self, service: &Service, slices: &[EndpointSlice]) {
        self.name("/api/v1/namespaces/ns/services/web", service);
        let of_namespace = "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices";
        self.0.objects.lock().unwrap().remove(of_namespace);
        self.put(of_namespace, slices);
    }

    pub(crate) fn tell(&self, path: &str, kind: &str, object: impl Serialize) {
        let mut object = serde_json::to_value(object).unwrap();
        object["metadata"]["resourceVersion"] = json!("7");
        let line = format!("{}\n", json!({"type": kind, "object": object}));
        self.0.events.send((path.to_owned(), line)).unwrap();
    }

    /// Where it listens, once it does.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.0.address.lock().unwrap().unwrap())
    }

    /// Whether everything of a kind is asked for with these selectors, and nothing without.
    pub(crate) fn is_selected(&self, path: &str, selectors: &[&str]) -> bool {
        let asked = self.0.asked.lock().unwrap();
        let mut of_kind = asked.iter().filter(|uri| uri.split('?').next() == Some(path)).peekable();
        of_kind.peek().is_some() && of_kind.all(|uri| selectors.iter().all(|s| uri.contains(s)))
    }

    pub(crate) fn event(&self, reason: &str) -> Option<Value> {
        self.0.posted.lock().unwrap().iter().find(|event| event["reason"] == reason).cloned()
    }

    pub(crate) fn has_event(&self, reason: &str) -> bool {
        self.event(reason).is_some()
    }
}

async fn answer(State(Api(api)): State<Api>, uri: http::Uri, body: Bytes) -> Response {
    if let Ok(posted) = serde_json::from_slice(&body) {
        api.posted.lock().unwrap().push(posted);
        return axum::Json(json!({})).into_response();
    }
    api.asked.lock().unwrap().push(uri.to_string());
    let (path, query) = (uri.path().to_owned(), uri.query().unwrap_or_default());
    if let Some(object) = api.named.lock().unwrap().get(&path) {
        return axum::Json(object.clone()).into_response();
    }
    // One object of a kind that is listed elsewhere.
    if path.starts_with("/api/v1/nodes/") {
        return (http::StatusCode::NOT_FOUND, axum::Json(json!({"code": 404}))).into_response();
    }
    if !query.contains("watch=true") {
        let items = api.objects.lock().unwrap().get(&path).cloned().unwrap_or_default();
        return axum::Json(json!({"metadata": {"resourceVersion": "1"}, "items": items})).into_response();
    }
    let events = api.events.subscribe();
    let lines = futures_util::stream::unfold((events, path), |(mut events, path)| async move {
        loop {
            let (to, line) = events.recv().await.ok()?;
            if to == path {
                return Some((Ok::<_, io::Error>(line), (events, path)));
            }
        }
    });
    Body::from_stream(lines).into_response()
}

fn start(master: &str, more: &[&str]) -> Start {
    let args = [
        "--hostname-override=here",
        "--conntrack-max-per-core=0",
        "--iptables-min-sync-period=10ms",
        "--cluster-cidr=10.244.0.0/16,fd44::/32",
        "--oom-score-adj=0",
        &format!("--master={master}"),
    ];
    let args: Vec<OsString> = args.iter().chain(more).map(OsString::from).collect();
    let Ok(Outcome::Run(loaded)) = load(&args, &NoFiles) else { panic!("arguments") };
    Start {
        loaded: *loaded,
        hostname: "x".into(),
        in_cluster: (None, None),
        within: None,
        any_kernel: false,
        keeps_sources: false,
        version: "v0".into(),
        seed: 1,
        verbosity: Verbosity::default(),
    }
}

/// Runs the API server and the agent on a thread inside of the node until the token is cancelled.
pub(crate) fn run_agent(lab: &Lab, api: Api, args: &[&str], token: CancellationToken) -> Result<(), String> {
    lab.node.ns.within(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            *api.0.address.lock().unwrap() = Some(address);
            let router = Router::new().fallback(answer).with_state(api);
            let ports = proxy::server::Ports::new(Default::default(), serve::Budget::of(1_000_000));
            tokio::spawn(proxy::server::serve(listener, router, ports.metrics(), token.clone()));
            agent::run(start(&format!("http://{address}"), args), token).await.map_err(|e| e.to_string())
        })
    })
}

pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Status line and body of a GET from inside of the node.
pub(crate) fn get(party: &Party, address: &str, path: &str) -> Option<(u16, String)> {
    use std::io::{Read, Write};
    party.ns.within(|| {
        let mut stream = std::net::TcpStream::connect(address).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let code = text.split(' ').nth(1)?.parse().ok()?;
        Some((code, text.split_once("\r\n\r\n")?.1.to_owned()))
    })
}

pub(crate) fn answers_to(lab: &Lab, to: &str, protocol: Protocol, name: &str) -> bool {
    let to: SocketAddr = to.parse().unwrap();
    matches!(lab.pods[2].call(to, protocol), Answer::From { name: found, .. } if found == name)
}

/// A client that never pauses, from one port all the time.
pub(crate) struct Talker(std::net::UdpSocket);

impl Talker {
    pub(crate) fn new(party: &Party, to: &str) -> Self {
        let to: SocketAddr = to.parse().unwrap();
        let socket =
            party.ns.within(|| std::net::UdpSocket::bind((party.ip(Family::of(to.ip())), 0))).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        socket.connect(to).unwrap();
        Self(socket)
    }

    /// Who answers now.
    pub(crate) fn ask(&self) -> Option<String> {
        self.0.send(b"?").ok()?;
        let mut buffer = [0; 64];
        let len = self.0.recv(&mut buffer).ok()?;
        let text = String::from_utf8_lossy(&buffer[..len]).into_owned();
        text.split(' ').next().map(str::to_owned)
    }
}
