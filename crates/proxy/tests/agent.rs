//! The whole agent in a node's network namespace, fed by an API server that only lists and watches.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::config::Outcome;
use api::config::proxy::load;
use api::config::{DirEntry, ReadFiles};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use proxy::agent::{self, Start};
use proxy::doctor;
use proxy_core::objects::{Family, Protocol, ServiceKey};
use serde::Serialize;
use serde_json::{Value, json};
use support::{Answer, Lab, Party, service, slices};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

const SERVICES: &str = "/api/v1/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
const NODES: &str = "/api/v1/nodes";
const TRIGGER: &str = "endpoints.kubernetes.io/last-change-trigger-time";
const RANGES: &str = "/apis/networking.k8s.io/v1/servicecidrs";

#[derive(Clone)]
struct Api(Arc<Shared>);

struct Shared {
    objects: Mutex<BTreeMap<String, Vec<Value>>>,
    /// Objects that are asked for by name.
    named: Mutex<BTreeMap<String, Value>>,
    address: Mutex<Option<SocketAddr>>,
    events: broadcast::Sender<(String, String)>,
    posted: Mutex<Vec<Value>>,
}

impl Api {
    fn new() -> Self {
        let shared = Shared {
            objects: Mutex::default(),
            named: Mutex::default(),
            address: Mutex::default(),
            events: broadcast::channel(64).0,
            posted: Mutex::default(),
        };
        Self(Arc::new(shared))
    }

    fn put(&self, path: &str, objects: &[impl Serialize]) {
        let objects = objects.iter().map(|o| serde_json::to_value(o).unwrap());
        self.0.objects.lock().unwrap().entry(path.to_owned()).or_default().extend(objects);
    }

    fn name(&self, path: &str, object: impl Serialize) {
        self.0.named.lock().unwrap().insert(path.to_owned(), serde_json::to_value(object).unwrap());
    }

    /// What a doctor would be shown: the Service and its slices, as they are asked for.
    fn show(&self, service: &Service, slices: &[EndpointSlice]) {
        self.name("/api/v1/namespaces/ns/services/web", service);
        let of_namespace = "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices";
        self.0.objects.lock().unwrap().remove(of_namespace);
        self.put(of_namespace, slices);
    }

    fn tell(&self, path: &str, kind: &str, object: impl Serialize) {
        let mut object = serde_json::to_value(object).unwrap();
        object["metadata"]["resourceVersion"] = json!("7");
        let line = format!("{}\n", json!({"type": kind, "object": object}));
        self.0.events.send((path.to_owned(), line)).unwrap();
    }
}

async fn answer(State(Api(api)): State<Api>, uri: http::Uri, body: Bytes) -> Response {
    if let Ok(posted) = serde_json::from_slice(&body) {
        api.posted.lock().unwrap().push(posted);
        return axum::Json(json!({})).into_response();
    }
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

struct NoFiles;

impl ReadFiles for NoFiles {
    fn read(&self, _: &Path) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn list(&self, _: &Path) -> io::Result<Vec<DirEntry>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn current_dir(&self) -> io::Result<PathBuf> {
        Ok("/".into())
    }
}

fn start(master: &str) -> Start {
    let args = [
        "--hostname-override=here",
        "--conntrack-max-per-core=0",
        "--proxy-mode=nftables",
        "--iptables-min-sync-period=10ms",
        "--cluster-cidr=10.244.0.0/16,fd44::/32",
        "--oom-score-adj=0",
        &format!("--master={master}"),
    ];
    let Ok(Outcome::Run(loaded)) = load(&args.map(OsString::from), &NoFiles) else { panic!("arguments") };
    Start { loaded: *loaded, hostname: "x".into(), in_cluster: (None, None), version: "v0".into(), seed: 1 }
}

/// Runs the API server and the agent on a thread inside of the node until the token is cancelled.
fn run_agent(lab: &Lab, api: Api, token: CancellationToken) -> Result<(), String> {
    lab.node.ns.within(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            *api.0.address.lock().unwrap() = Some(address);
            let router = Router::new().fallback(answer).with_state(api);
            tokio::spawn(proxy::server::serve(listener, router, token.clone()));
            agent::run(start(&format!("http://{address}")), token).await.map_err(|e| e.to_string())
        })
    })
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Status line and body of a GET from inside of the node.
fn get(party: &Party, address: &str, path: &str) -> Option<(u16, String)> {
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

fn answers_to(lab: &Lab, to: &str, protocol: Protocol, name: &str) -> bool {
    let to: SocketAddr = to.parse().unwrap();
    matches!(lab.pods[2].call(to, protocol), Answer::From { name: found, .. } if found == name)
}

#[test]
fn services_work_and_follow_their_endpoints() {
    if support::skipped() {
        return;
    }
    let lab = Lab::new();
    lab.node.ns.ip("link set lo up\n").unwrap();
    let (a, b) = (&lab.pods[0], &lab.pods[1]);
    let api = Api::new();
    let checked = json!({"spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32100}});
    api.put(SERVICES, &[service("web", 10, checked)]);
    api.put(SLICES, &slices("web", &[a]));
    api.put(NODES, &[support::node()]);
    api.put(RANGES, &[support::service_cidr()]);
    let token = CancellationToken::new();
    std::thread::scope(|scope| {
        let agent = scope.spawn(|| run_agent(&lab, api.clone(), token.clone()));
        let _stop = token.clone().drop_guard();
        until("the Service answers", || answers_to(&lab, "10.96.0.10:80", Protocol::Tcp, "a"));
        until("in the other family", || answers_to(&lab, "[fd96::10]:80", Protocol::Udp, "a"));
        servers_answer(&lab);
        doctor_agrees(&lab, &api);
        // The endpoint moves: new connections and old flows go to the new one.
        for slice in slices("web", &[b]) {
            api.tell(SLICES, "MODIFIED", slice);
        }
        until("the new endpoint answers", || answers_to(&lab, "10.96.0.10:80", Protocol::Tcp, "b"));
        api.tell(SERVICES, "DELETED", service("web", 10, json!({})));
        let gone: SocketAddr = "10.96.0.10:80".parse().unwrap();
        until("nobody answers", || !matches!(lab.pods[2].call(gone, Protocol::Tcp), Answer::From { .. }));
        until("the load balancer's port is closed", || get(&lab.node, "192.168.0.1:32100", "/").is_none());
        token.cancel();
        assert_eq!(agent.join().unwrap(), Ok(()));
    });
    let posted = api.0.posted.lock().unwrap();
    assert!(posted.iter().any(|event| event["reason"] == "Starting"), "{posted:?}");
}

/// What the doctor says first, in the node.
fn verdict(lab: &Lab, api: &Api) -> Option<String> {
    let server = format!("http://{}", api.0.address.lock().unwrap().unwrap());
    lab.node.ns.within(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let config = client::Config {
                server,
                tls_server_name: None,
                ca: None,
                insecure: false,
                identity: client::kubeconfig::Identity::default(),
                namespace: "ns".into(),
            };
            let client = client::Client::new(config, client::Options::default()).await.unwrap();
            let key = ServiceKey::new("ns", "web");
            let facts = doctor::gather(&client, "here", &key).await.unwrap();
            let findings = proxy_core::doctor::examine(&key, &facts);
            doctor::verdict(&findings).map(|finding| finding.text.clone())
        })
    })
}

fn doctor_agrees(lab: &Lab, api: &Api) {
    let (a, b) = (&lab.pods[0], &lab.pods[1]);
    let web = service("web", 10, json!({}));
    api.show(&web, &slices("web", &[a]));
    assert_eq!(verdict(lab, api), None);
    // As if kube-proxy had not heard of the new endpoint.
    api.show(&web, &slices("web", &[b]));
    let wrong = verdict(lab, api).unwrap();
    let wanted = "the kernel sends packets for 10.96.0.10:80/tcp to 10.244.0.5:8080, but should send them to \
                  10.244.0.6:8080";
    assert_eq!(wrong, wanted);
    api.show(&web, &[]);
    assert_eq!(verdict(lab, api).as_deref(), Some("no EndpointSlice belongs to it"));
}

/// A client that never pauses, from one port all the time.
struct Talker(std::net::UdpSocket);

impl Talker {
    fn new(party: &Party, to: &str) -> Self {
        let to: SocketAddr = to.parse().unwrap();
        let socket =
            party.ns.within(|| std::net::UdpSocket::bind((party.ip(Family::of(to.ip())), 0))).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        socket.connect(to).unwrap();
        Self(socket)
    }

    /// Who answers now.
    fn ask(&self) -> Option<String> {
        self.0.send(b"?").ok()?;
        let mut buffer = [0; 64];
        let len = self.0.recv(&mut buffer).ok()?;
        let text = String::from_utf8_lossy(&buffer[..len]).into_owned();
        text.split(' ').next().map(str::to_owned)
    }
}

/// Flows follow their endpoints, also through a time without any: nothing but us would ever tell them.
#[test]
fn udp_flows_follow_their_endpoints() {
    if support::skipped() {
        return;
    }
    let lab = Lab::new();
    lab.node.ns.ip("link set lo up\n").unwrap();
    let (a, b) = (&lab.pods[0], &lab.pods[1]);
    let api = Api::new();
    api.put(SERVICES, &[service("web", 10, json!({}))]);
    api.put(SLICES, &slices("web", &[a]));
    api.put(NODES, &[support::node()]);
    let token = CancellationToken::new();
    std::thread::scope(|scope| {
        let agent = scope.spawn(|| run_agent(&lab, api.clone(), token.clone()));
        let _stop = token.clone().drop_guard();
        until("the Service answers", || answers_to(&lab, "10.96.0.10:80", Protocol::Udp, "a"));
        until("in the other family", || answers_to(&lab, "[fd96::10]:80", Protocol::Udp, "a"));
        let talkers = ["10.96.0.10:80", "[fd96::10]:80"].map(|to| Talker::new(&lab.pods[2], to));
        let all = |who: Option<&str>| talkers.iter().all(|talker| talker.ask().as_deref() == who);
        until("flows begin", || all(Some("a")));
        let turn_to = |who: &[&Party]| {
            for mut slice in slices("web", who) {
                let now = jiff::Timestamp::now().to_string();
                slice.metadata.annotations = Some(BTreeMap::from([(TRIGGER.to_owned(), now)]));
                api.tell(SLICES, "MODIFIED", slice);
            }
        };
        turn_to(&[b]);
        until("flows move", || all(Some("b")));
        turn_to(&[]);
        until("flows end", || all(None));
        turn_to(&[a]);
        until("flows find the new endpoint", || all(Some("a")));
        let metrics = get(&lab.node, "127.0.0.1:10249", "/metrics").unwrap().1;
        assert!(metrics.contains("kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv4\"}"));
        // From the change in the cluster to the rule in the kernel, once per change and family.
        for family in ["IPv4", "IPv6"] {
            let name =
                format!("kubeproxy_network_programming_duration_seconds_count{{ip_family=\"{family}\"}} 3\n");
            assert!(metrics.contains(&name), "{metrics}");
        }
        token.cancel();
        assert_eq!(agent.join().unwrap(), Ok(()));
    });
}

fn servers_answer(lab: &Lab) {
    let node = &lab.node;
    let (code, body) = get(node, "127.0.0.1:10256", "/healthz").unwrap();
    assert_eq!(code, 200, "{body}");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&body["nodeEligible"], &body["healthy"]), (&json!(true), &json!(true)));
    assert!(body["status"]["IPv4"]["healthy"] == json!(true), "{body}");
    assert_eq!(get(node, "127.0.0.1:10256", "/livez").unwrap().0, 200);
    assert_eq!(get(node, "127.0.0.1:10249", "/proxyMode").unwrap().1, "nftables");
    assert_eq!(get(node, "127.0.0.1:10249", "/healthz").unwrap().1, "ok");
    let flags = get(node, "127.0.0.1:10249", "/flagz").unwrap().1;
    assert!(flags.contains("\nhostname-override=here\n"), "{flags}");
    assert!(get(node, "127.0.0.1:10249", "/statusz").unwrap().1.contains("kube-proxy statusz"));
    let slis = get(node, "127.0.0.1:10249", "/metrics/slis").unwrap().1;
    assert!(slis.contains("kubernetes_healthcheck{name=\"ping\",type=\"healthz\"} 1"), "{slis}");
    let configz = get(node, "127.0.0.1:10249", "/configz").unwrap().1;
    assert!(configz.contains("\"clusterCIDR\":\"10.244.0.0/16,fd44::/32\""), "{configz}");
    let metrics = get(node, "127.0.0.1:10249", "/metrics").unwrap().1;
    assert!(
        metrics.contains("kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}"),
        "{metrics}"
    );
    until("the load balancer is answered", || get(node, "192.168.0.1:32100", "/any").is_some());
    let (code, body) = get(node, "192.168.0.1:32100", "/any").unwrap();
    assert_eq!(code, 200, "{body}");
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["localEndpoints"], json!(1));
}
