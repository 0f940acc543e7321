//! The agent on real sockets of the loopback, with a small API server and an upstream of the test's own.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use base::rng::Rng;
use client::{Client, Config, Options};
use dns::{Agent, Settings, Source};
use dns_core::message::{self, Answer, TCP_SIZE};
use dns_core::query::{Query, Read};
use dns_core::{Class, Rcode, Rtype, name, query};
use ipnet::IpNet;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Longer than a slow machine needs.
const DEADLINE: Duration = Duration::from_secs(120);

/// Lists by path, and what the watches say.
#[derive(Clone)]
struct Api {
    lists: Arc<HashMap<&'static str, Value>>,
    events: broadcast::Sender<(&'static str, Value)>,
}

impl Api {
    /// A cluster with this Corefile.
    async fn start(corefile: &str) -> (Api, String) {
        let large: Vec<Value> = (0..100).map(|n| json!({"addresses": [format!("10.7.0.{n}")]})).collect();
        let of = |name: &str, namespace: &str| json!({"name": name, "namespace": namespace, "resourceVersion": "1", "uid": name});
        let service = |name: &str, spec: Value| json!({"metadata": of(name, "default"), "spec": spec});
        let mut labelled = of("large-1", "default");
        labelled["labels"] = json!({"kubernetes.io/service-name": "large"});
        let services = json!([
            service("web", json!({"clusterIP": "10.96.0.20", "ports": [{"name": "http", "port": 80}]})),
            service("large", json!({"clusterIP": "None"})),
            service("far", json!({"type": "ExternalName", "externalName": "far.example"})),
        ]);
        let lists = HashMap::from([
            ("/api/v1/services", services),
            (
                "/apis/discovery.k8s.io/v1/endpointslices",
                json!([{"metadata": labelled, "endpoints": large, "ports": []}]),
            ),
            ("/api/v1/namespaces", json!([{"metadata": of("default", "")}])),
            (
                "/api/v1/namespaces/kube-system/configmaps",
                json!([{"metadata": of("coredns", "kube-system"), "data": {"Corefile": corefile}}]),
            ),
        ]);
        let api = Api { lists: Arc::new(lists), events: broadcast::channel(16).0 };
        let listener = TcpListener::bind((LOCAL, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = axum::Router::new().fallback(answer).with_state(api.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        (api, format!("http://{address}"))
    }
}

async fn answer(State(api): State<Api>, request: Request) -> axum::response::Response {
    let path = request.uri().path().to_owned();
    let asks = request.uri().query().unwrap_or_default().to_owned();
    let items = api.lists.get(path.as_str()).cloned().unwrap_or(json!([]));
    if !asks.contains("watch=") {
        let list =
            json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items});
        return axum::response::Response::builder()
            .header("content-type", "application/json")
            .body(Body::from(list.to_string()))
            .unwrap();
    }
    if asks.contains("sendInitialEvents=true") {
        // An older server: the client lists.
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 422, "reason": "Invalid",
            "message": "sendInitialEvents is forbidden"});
        return axum::response::Response::builder()
            .status(422)
            .header("content-type", "application/json")
            .body(Body::from(status.to_string()))
            .unwrap();
    }
    let events = api.events.subscribe();
    let lines = futures_util::stream::unfold((events, path), |(mut events, path)| async move {
        loop {
            let (of, event) = events.recv().await.ok()?;
            if of == path {
                return Some((Ok::<_, std::io::Error>(format!("{event}\n")), (events, path)));
            }
        }
    });
    axum::response::Response::builder()
        .header("content-type", "application/json")
        .body(Body::from_stream(lines))
        .unwrap()
}

/// An upstream that has one address for every name, and counts.
async fn upstream() -> (SocketAddr, Arc<AtomicUsize>) {
    let socket = UdpSocket::bind((LOCAL, 0)).await.unwrap();
    let (address, count) = (socket.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = count.clone();
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        loop {
            let (size, peer) = socket.recv_from(&mut buffer).await.unwrap();
            let Read::Query(query) = query::read(&buffer[..size]) else { continue };
            counted.fetch_add(1, Ordering::SeqCst);
            let mut said = Answer::new(Rcode::NOERROR);
            if query.rtype == Rtype::A {
                said.answer.push(message::address(&query.name, 60, "192.0.2.9".parse().unwrap()));
            }
            socket.send_to(&said.write(&query, 512), peer).await.unwrap();
        }
    });
    (address, count)
}

/// A running agent, its DNS address, and where its pages are.
async fn start(server: &str) -> (SocketAddr, [SocketAddr; 2], CancellationToken) {
    start_for(server, Vec::new()).await
}

/// The same, for some clients only.
async fn start_for(server: &str, clients: Vec<IpNet>) -> (SocketAddr, [SocketAddr; 2], CancellationToken) {
    let free = || std::net::TcpListener::bind((LOCAL, 0)).unwrap().local_addr().unwrap();
    let (ready, metrics) = (free(), free());
    let settings = Settings {
        listen: vec![LOCAL],
        port: 0,
        clients: tokio::sync::watch::channel(clients).1,
        cluster_domain: "cluster.local".into(),
        corefile: Source::ConfigMap { namespace: "kube-system".into(), name: "coredns".into() },
        health: None,
        ready: Some(ready),
        metrics: Some(metrics),
        publish: None,
        version: "v0".into(),
        seed: 1,
    };
    let agent = Agent::bind(settings).await.unwrap();
    let address = agent.addresses()[0];
    let client = Client::new(Config::plain(server), Options::default()).await.unwrap();
    let token = CancellationToken::new();
    let ending = token.clone();
    tokio::spawn(async move { agent.run(client, ending).await.unwrap() });
    (address, [ready, metrics], token)
}

fn question(name: &str, rtype: Rtype) -> Query {
    let name = name::parse(name).unwrap();
    Query {
        id: 0,
        wants_recursion: true,
        checking_disabled: false,
        name,
        rtype,
        class: Class::IN,
        edns: None,
    }
}

async fn ask_udp(server: SocketAddr, name: &str, size: u16) -> Answer {
    let query = question(name, Rtype::A);
    let socket = UdpSocket::bind((LOCAL, 0)).await.unwrap();
    socket.connect(server).await.unwrap();
    let mut buffer = vec![0; TCP_SIZE];
    // Datagrams may be lost on a busy machine.
    for id in 1..20 {
        socket.send(&message::ask(&query, id, &query.name, size)).await.unwrap();
        let heard = tokio::time::timeout(Duration::from_secs(20), socket.recv(&mut buffer)).await;
        if let Ok(size) = heard {
            return message::hear(&buffer[..size.unwrap()]).unwrap().answer;
        }
    }
    panic!("no answer for {name}")
}

async fn ask_tcp(server: SocketAddr, names: &[&str]) -> Vec<Answer> {
    let mut stream = TcpStream::connect(server).await.unwrap();
    let mut answers = Vec::new();
    for name in names {
        let query = question(name, Rtype::A);
        let bytes = message::ask(&query, 7, &query.name, 512);
        stream.write_u16(bytes.len().try_into().unwrap()).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        let mut answer = vec![0; stream.read_u16().await.unwrap().into()];
        stream.read_exact(&mut answer).await.unwrap();
        answers.push(message::hear(&answer).unwrap().answer);
    }
    answers
}

async fn page(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes())
        .await
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

/// Asks until the answer is as wanted.
async fn until(server: SocketAddr, name: &str, is_wanted: impl Fn(&Answer) -> bool) {
    let end = tokio::time::Instant::now() + DEADLINE;
    loop {
        let answer = ask_udp(server, name, 1232).await;
        if is_wanted(&answer) {
            return;
        }
        assert!(tokio::time::Instant::now() < end, "{name}: {answer:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn corefile(forward: &str) -> String {
    format!(".:53 {{\n kubernetes cluster.local in-addr.arpa\n {forward}\n cache 30\n}}")
}

const WEB: &str = "web.default.svc.cluster.local";

#[tokio::test]
async fn questions_are_answered_over_udp_and_tcp_whatever_else_is_sent() {
    let (upstream, asked) = upstream().await;
    let (api, server) = Api::start(&corefile(&format!("forward . {upstream}"))).await;
    let (dns, [ready, metrics], token) = start(&server).await;
    until(dns, WEB, |answer| answer.rcode == Rcode::NOERROR).await;
    assert!(page(ready, "/ready").await.starts_with("HTTP/1.1 200"));

    // What is too large for a datagram comes whole over TCP, on one connection.
    let large = "large.default.svc.cluster.local";
    let cut = ask_udp(dns, large, 512).await;
    assert!(cut.is_truncated && cut.answer.len() < 100);
    let whole = ask_tcp(dns, &[large, WEB, "no.default.svc.cluster.local"]).await;
    assert_eq!((whole[0].is_truncated, whole[0].answer.len(), whole[1].answer.len()), (false, 100, 1));
    assert_eq!(whole[2].rcode, Rcode::NXDOMAIN);

    // Others are asked once, and for what is behind an alias.
    let before = asked.load(Ordering::SeqCst);
    for _ in 0..3 {
        assert_eq!(ask_udp(dns, "one.example", 1232).await.answer.len(), 1);
    }
    assert_eq!(asked.load(Ordering::SeqCst), before + 1);
    assert_eq!(ask_udp(dns, "far.default.svc.cluster.local", 1232).await.answer.len(), 2);

    // Noise, answers, halves of questions; over TCP lengths that lie.
    let socket = UdpSocket::bind((LOCAL, 0)).await.unwrap();
    let mut rng = Rng::new(5);
    let query = question(WEB, Rtype::A);
    for _ in 0..500 {
        let mut bytes = message::ask(&query, 3, &query.name, 1232);
        for _ in 0..=rng.below(6) {
            let at = usize::try_from(rng.below(bytes.len() as u64)).unwrap();
            bytes[at] = u8::try_from(rng.below(256)).unwrap();
        }
        bytes.truncate(usize::try_from(rng.below(bytes.len() as u64 + 1)).unwrap());
        socket.send_to(&bytes, dns).await.unwrap();
    }
    for bytes in [&b"\xff\xff\x00"[..], b"\x00\x00", b"\x00\x03abc", b"GET / HTTP/1.1\r\n\r\n"] {
        let mut stream = TcpStream::connect(dns).await.unwrap();
        stream.write_all(bytes).await.unwrap();
    }
    until(dns, WEB, |answer| answer.answer.len() == 1).await;

    // A Corefile that is wrong changes nothing; the next one has a stub domain that leads nowhere.
    let changed = |text: &str, revision: &str| {
        let metadata = json!({"name": "coredns", "namespace": "kube-system", "uid": "coredns", "resourceVersion": revision});
        json!({"type": "MODIFIED", "object": {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": {"Corefile": text}}})
    };
    let path = "/api/v1/namespaces/kube-system/configmaps";
    api.events.send((path, changed(".:53 { nonsense }", "2"))).unwrap();
    let text = corefile("hosts /nowhere {\n 192.0.2.77 stub.example\n fallthrough\n }");
    api.events.send((path, changed(&text, "3"))).unwrap();
    until(dns, "stub.example", |answer| answer.answer.iter().any(|r| r.data().to_string() == "192.0.2.77"))
        .await;
    until(dns, WEB, |answer| answer.answer.len() == 1).await;

    let text = page(metrics, "/metrics").await;
    for name in [
        "coredns_dns_requests_total{server=\"dns://:53\",zone=\".\",view=\"\",proto=\"udp\",family=\"1\",type=\"A\"}",
        "coredns_dns_responses_total",
        "coredns_dns_request_duration_seconds_bucket",
        "coredns_cache_hits_total",
        "coredns_proxy_request_duration_seconds_bucket{proxy_name=\"forward\"",
        "coredns_reload_failed_total 1",
    ] {
        assert!(text.contains(name), "{name} is not in\n{text}");
    }
    token.cancel();
}

#[tokio::test]
async fn nothing_is_denied_before_the_api_server_was_heard() {
    let nowhere = std::net::TcpListener::bind((LOCAL, 0)).unwrap().local_addr().unwrap();
    let (dns, [ready, _], token) = start(&format!("http://{nowhere}")).await;
    for name in [WEB, "no.default.svc.cluster.local", "example.com"] {
        assert_eq!(ask_udp(dns, name, 512).await.rcode, Rcode::SERVFAIL, "{name}");
    }
    let text = page(ready, "/ready").await;
    assert!(text.starts_with("HTTP/1.1 503") && text.ends_with("kubernetes"), "{text}");
    token.cancel();
}

#[tokio::test]
async fn an_upstream_that_asks_us_back_is_found_and_left_alone() {
    let relay = Arc::new(UdpSocket::bind((LOCAL, 0)).await.unwrap());
    let file = corefile(&format!("forward . {}\n loop", relay.local_addr().unwrap()));
    let (_api, server) = Api::start(&file).await;
    let (dns, _, token) = start(&server).await;
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        loop {
            let (size, peer) = relay.recv_from(&mut buffer).await.unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
            let (bytes, relay) = (buffer[..size].to_vec(), relay.clone());
            tokio::spawn(async move {
                let socket = UdpSocket::bind((LOCAL, 0)).await.unwrap();
                socket.send_to(&bytes, dns).await.unwrap();
                let mut answer = [0; 4096];
                let size = socket.recv(&mut answer).await.unwrap();
                relay.send_to(&answer[..size], peer).await.unwrap();
            });
        }
    });
    until(dns, WEB, |answer| answer.answer.len() == 1).await;
    let end = tokio::time::Instant::now() + DEADLINE;
    // Questions stop going out, and the cluster's names are answered still.
    for number in 0.. {
        let before = count.load(Ordering::SeqCst);
        let said = ask_udp(dns, &format!("n{number}.example"), 512).await;
        if said.rcode == Rcode::SERVFAIL && before > 0 && count.load(Ordering::SeqCst) == before {
            break;
        }
        assert!(tokio::time::Instant::now() < end, "questions still go in circles");
    }
    assert_eq!(ask_udp(dns, WEB, 512).await.answer.len(), 1);
    token.cancel();
}

#[tokio::test]
async fn an_answer_that_was_lost_is_asked_for_again_by_the_next() {
    // An upstream that hears each question, and answers from the second one on.
    let socket = UdpSocket::bind((LOCAL, 0)).await.unwrap();
    let (address, count) = (socket.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counted = count.clone();
    tokio::spawn(async move {
        let mut buffer = [0; 4096];
        loop {
            let (size, peer) = socket.recv_from(&mut buffer).await.unwrap();
            let Read::Query(query) = query::read(&buffer[..size]) else { continue };
            let is_meant = query.name == name::parse("lost.example").unwrap();
            if is_meant && counted.fetch_add(1, Ordering::SeqCst) == 0 {
                continue;
            }
            let mut said = Answer::new(Rcode::NOERROR);
            said.answer.push(message::address(&query.name, 60, "192.0.2.9".parse().unwrap()));
            socket.send_to(&said.write(&query, 512), peer).await.unwrap();
        }
    });
    let (_api, server) = Api::start(&corefile(&format!("forward . {address}"))).await;
    let (dns, _, token) = start(&server).await;
    until(dns, WEB, |answer| answer.answer.len() == 1).await;
    let first = ask_udp(dns, "lost.example", 512).await;
    // That nobody answered is kept for nobody: the next one is asked for at once, and answered.
    let second = ask_udp(dns, "lost.example", 512).await;
    assert_eq!((first.rcode, second.rcode), (Rcode::SERVFAIL, Rcode::NOERROR));
    assert_eq!(count.load(Ordering::SeqCst), 2);
    token.cancel();
}

/// Nothing is sent back to who must not ask: the sender of a datagram may be somebody who is to be flooded.
#[tokio::test]
async fn strangers_are_not_answered() {
    let (upstream, asked) = upstream().await;
    let (_api, server) = Api::start(&corefile(&format!("forward . {upstream}"))).await;
    let (dns, [_, metrics], token) = start_for(&server, vec!["127.0.0.1/32".parse().unwrap()]).await;
    until(dns, WEB, |answer| answer.rcode == Rcode::NOERROR).await;
    let before = asked.load(Ordering::SeqCst);
    let stranger = UdpSocket::bind("127.0.0.2:0").await.unwrap();
    for name in [WEB, "one.example"] {
        let query = question(name, Rtype::A);
        stranger.send_to(&message::ask(&query, 9, &query.name, 1232), dns).await.unwrap();
    }
    let tcp = tokio::net::TcpSocket::new_v4().unwrap();
    tcp.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut tcp = tcp.connect(dns).await.unwrap();
    let query = question(WEB, Rtype::A);
    let bytes = message::ask(&query, 7, &query.name, 512);
    tcp.write_u16(bytes.len().try_into().unwrap()).await.unwrap();
    tcp.write_all(&bytes).await.unwrap();
    assert!(tcp.read_u16().await.is_err(), "a stranger is answered over TCP");
    // All three were seen, and nobody else was asked for them.
    let end = tokio::time::Instant::now() + DEADLINE;
    while !page(metrics, "/metrics").await.contains("longshore_dns_dropped_total 3") {
        assert!(tokio::time::Instant::now() < end, "{}", page(metrics, "/metrics").await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(asked.load(Ordering::SeqCst), before);
    assert!(stranger.try_recv(&mut [0; 512]).is_err(), "a stranger is answered");
    token.cancel();
}

#[tokio::test]
async fn idle_and_half_sent_questions_shut_nobody_out() {
    let (upstream, _) = upstream().await;
    let (_api, server) = Api::start(&corefile(&format!("forward . {upstream}"))).await;
    let (dns, _, token) = start(&server).await;
    until(dns, WEB, |answer| answer.rcode == Rcode::NOERROR).await;
    let query = question(WEB, Rtype::A);
    let whole = message::ask(&query, 7, &query.name, 512);
    let size = u16::try_from(whole.len()).unwrap().to_be_bytes();
    let halves: [&[u8]; 4] = [&[], &size[..1], &size, b"\xff\xffhalf"];
    let mut held = Vec::new();
    // More than there are places for.
    for number in 0..400 {
        let Ok(mut stream) = TcpStream::connect(dns).await else { continue };
        let _ = stream.write_all(halves[number % halves.len()]).await;
        held.push(stream);
    }
    for _ in 0..20 {
        let answers = tokio::time::timeout(DEADLINE, ask_tcp(dns, &[WEB, WEB])).await.unwrap();
        assert_eq!(answers.iter().map(|answer| answer.answer.len()).collect::<Vec<_>>(), [1, 1]);
    }
    assert_eq!(ask_udp(dns, WEB, 512).await.answer.len(), 1);
    assert!(held.len() > 256, "only {} connections were taken", held.len());
    token.cancel();
}
