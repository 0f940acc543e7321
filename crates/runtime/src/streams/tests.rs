//! Clients on one side, real processes and sockets on the other.
#![allow(clippy::unwrap_used)]

mod client;
mod local;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use client::{Answered, Client};
use cri::v1::{AttachRequest, ExecRequest, PortForwardRequest};
use http::StatusCode;
use local::{ALL, Local};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::Streams;

const SOON: Duration = Duration::from_secs(20);

struct Bench {
    streams: Streams,
    local: Arc<Local>,
    token: CancellationToken,
}

impl Bench {
    async fn new() -> Bench {
        let local = Arc::new(Local::default());
        let streams = Streams::bind("127.0.0.1:0".parse().unwrap(), local.clone()).await.unwrap();
        let token = CancellationToken::new();
        tokio::spawn(streams.clone().serve(token.clone()));
        Bench { streams, local, token }
    }

    fn exec(&self, script: &str) -> String {
        let request = ExecRequest {
            container_id: "c".into(),
            cmd: ["sh", "-c", script].map(str::to_owned).into(),
            stdin: true,
            stdout: true,
            stderr: true,
            tty: false,
        };
        self.streams.exec(request).unwrap()
    }

    fn attach(&self) -> String {
        let request =
            AttachRequest { container_id: "c".into(), stdin: true, stdout: true, stderr: true, tty: false };
        self.streams.attach(request).unwrap()
    }

    fn ports(&self) -> String {
        self.streams.port_forward(PortForwardRequest { pod_sandbox_id: "p".into(), port: vec![] }).unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.token.cancel();
    }
}

async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, what).await.expect("it takes too long")
}

#[tokio::test]
async fn a_command_has_its_streams_and_tells_its_code_in_every_protocol() {
    let bench = Bench::new().await;
    let script = "cat; echo oh >&2; exit 7";
    for protocol in ["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io"] {
        let mut client = Client::spdy(&bench.exec(script), protocol, ALL).await;
        client.input(b"hello").await;
        client.end_input().await;
        let heard = soon(client.hear()).await;
        assert_eq!((heard.stdout.as_slice(), heard.stderr.as_slice()), (&b"hello"[..], &b"oh\n"[..]));
        let told = String::from_utf8(heard.error).unwrap();
        if protocol.starts_with("v4") {
            let status: serde_json::Value = serde_json::from_str(&told).unwrap();
            assert_eq!(status["details"]["causes"][0]["message"], "7");
        } else {
            assert_eq!(told, "command terminated with non-zero exit code: 7");
        }
    }
    let mut client = Client::websocket(&bench.exec(script), "v5.channel.k8s.io").await;
    client.input(b"hello").await;
    client.end_input().await;
    let heard = soon(client.hear()).await;
    assert_eq!((heard.stdout.as_slice(), heard.stderr.as_slice()), (&b"hello"[..], &b"oh\n"[..]));
    assert!(String::from_utf8(heard.error).unwrap().contains("NonZeroExitCode"));
    let mut text = String::new();
    bench.streams.metrics().write(&mut text).unwrap();
    assert!(text.contains("longshore_runtime_streams_total{kind=\"exec\"} 4"), "{text}");
}

#[tokio::test]
async fn much_output_arrives_whole_and_before_the_end() {
    let bench = Bench::new().await;
    let mut client =
        Client::spdy(&bench.exec("head -c 3000000 /dev/zero; exit 3"), "v4.channel.k8s.io", ALL).await;
    let heard = soon(client.hear()).await;
    assert_eq!(heard.stdout.len(), 3_000_000);
    assert!(String::from_utf8(heard.error).unwrap().contains("\"3\""));
}

#[tokio::test]
async fn what_a_command_leaves_running_does_not_hold_its_client() {
    let bench = Bench::new().await;
    let mut client = Client::spdy(&bench.exec("sleep 100 & echo done"), "v4.channel.k8s.io", ALL).await;
    let heard = soon(client.hear()).await;
    assert_eq!(heard.stdout, b"done\n");
    assert_eq!(heard.error, br#"{"metadata":{},"status":"Success"}"#);
}

#[tokio::test]
async fn a_client_that_goes_away_ends_its_command() {
    let bench = Bench::new().await;
    let client = Client::spdy(&bench.exec("sleep 100"), "v4.channel.k8s.io", ALL).await;
    soon(bench.local.started.notified()).await;
    drop(client);
    soon(bench.local.ended.notified()).await;
}

#[tokio::test]
async fn a_command_that_cannot_start_says_why() {
    let bench = Bench::new().await;
    let request = ExecRequest {
        container_id: "c".into(),
        cmd: vec!["/no/such/program".into()],
        stdout: true,
        ..ExecRequest::default()
    };
    let url = bench.streams.exec(request).unwrap();
    let mut client = Client::spdy(&url, "v4.channel.k8s.io", [false, true, false]).await;
    let heard = soon(client.hear()).await;
    let told = String::from_utf8(heard.error).unwrap();
    assert!(told.contains("InternalError") && told.contains("No such file"), "{told}");
}

#[tokio::test]
async fn an_attachment_ends_with_the_output_or_with_the_input_that_others_may_use_later() {
    let bench = Bench::new().await;
    bench.local.attach_to("echo first; exit 0", false);
    let heard = soon(Client::spdy(&bench.attach(), "v4.channel.k8s.io", ALL).await.hear()).await;
    assert_eq!(heard.stdout, b"first\n");
    assert_eq!(heard.error, br#"{"metadata":{},"status":"Success"}"#);
    bench.local.attach_to("read line; echo $line; sleep 100", true);
    let mut client = Client::spdy(&bench.attach(), "v4.channel.k8s.io", ALL).await;
    client.input(b"second\n").await;
    client.end_input().await;
    assert_eq!(soon(client.hear()).await.stdout, b"second\n");
}

#[tokio::test]
async fn a_terminal_gets_its_size() {
    let bench = Bench::new().await;
    let terminal: OwnedFd = std::fs::File::options().read(true).write(true).open("/dev/ptmx").unwrap().into();
    bench.local.lend(terminal.try_clone().unwrap());
    let request = ExecRequest {
        container_id: "c".into(),
        cmd: vec!["sleep".into(), "100".into()],
        stdin: true,
        stdout: true,
        tty: true,
        ..ExecRequest::default()
    };
    let url = bench.streams.exec(request).unwrap();
    let mut client = Client::websocket(&url, "v4.channel.k8s.io").await;
    client.say(&[b"\x04", &br#"{"Width":132,"Height":43}"#[..]].concat()).await;
    let is_set = async {
        while sys::terminal::size(&terminal) != Some((43, 132)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(is_set).await;
}

#[tokio::test]
async fn a_url_works_once_and_for_what_it_is() {
    let bench = Bench::new().await;
    let url = bench.exec("true");
    let wrong = url.replace("/exec/", "/attach/");
    let refused = |answer: Answered| answer.status;
    assert_eq!(refused(Client::ask(&wrong, "v4.channel.k8s.io").await), StatusCode::NOT_FOUND);
    assert_eq!(refused(Client::ask(&url, "v4.channel.k8s.io").await), StatusCode::NOT_FOUND);
    let url = bench.exec("true");
    assert_eq!(refused(Client::ask(&url, "v9.channel.k8s.io").await), StatusCode::FORBIDDEN);
    // Who was refused for how it talks may try again.
    assert_eq!(refused(Client::ask(&url, "v4.channel.k8s.io").await), StatusCode::SWITCHING_PROTOCOLS);
    assert_eq!(refused(Client::ask(&url, "v4.channel.k8s.io").await), StatusCode::NOT_FOUND);
    let bare = format!("http://{}/", bench.streams.address());
    assert_eq!(refused(Client::ask(&bare, "v4.channel.k8s.io").await), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_by_name() {
    let bench = Bench::new().await;
    let exec = |container: &str, cmd: &[&str], [stdout, stderr, tty]: [bool; 3]| {
        let cmd = cmd.iter().map(|word| (*word).to_owned()).collect();
        let request = ExecRequest { container_id: container.into(), cmd, stdin: false, stdout, stderr, tty };
        bench.streams.exec(request).unwrap_err().message().to_owned()
    };
    assert!(exec("", &["a"], [true; 3]).starts_with("container_id"));
    assert!(exec("c", &[], [true; 3]).starts_with("cmd"));
    assert!(exec("c", &["a"], [false; 3]).starts_with("one of stdin"));
    assert!(exec("c", &["a"], [true; 3]).starts_with("tty and stderr"));
    let error = bench.streams.port_forward(PortForwardRequest::default()).unwrap_err();
    assert!(error.message().starts_with("pod_sandbox_id"));
}

/// Says everything it hears, when there is no more to hear.
async fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut all = Vec::new();
                stream.read_to_end(&mut all).await.unwrap();
                stream.write_all(&all).await.unwrap();
            });
        }
    });
    port
}

#[tokio::test]
async fn ports_are_reached_many_at_a_time_and_closed_one_way_at_a_time() {
    let bench = Bench::new().await;
    let port = echo().await;
    for is_wrapped in [false, true] {
        let mut client = match is_wrapped {
            false => Client::ports(&bench.ports()).await,
            true => Client::wrapped_ports(&bench.ports()).await,
        };
        let (first, second) = (client.connect(port, "0").await, client.connect(port, "1").await);
        client.send(second, b"two", true).await;
        client.send(first, b"one", false).await;
        assert_eq!(soon(client.until_end(second)).await, b"two");
        client.send(first, b" and more", true).await;
        assert_eq!(soon(client.until_end(first)).await, b"one and more");
        assert_eq!(soon(client.until_end(first - 2)).await, b"", "no error");
    }
}

#[tokio::test]
async fn a_port_where_nobody_listens_says_so_and_the_others_go_on() {
    let bench = Bench::new().await;
    let port = echo().await;
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap().port()
    };
    let mut client = Client::ports(&bench.ports()).await;
    let (bad, good) = (client.connect(closed, "0").await, client.connect(port, "").await);
    let told = String::from_utf8(soon(client.until_end(bad - 2)).await).unwrap();
    assert!(told.contains(&format!("error forwarding port {closed} to pod p: ")), "{told}");
    client.send(good, b"still", true).await;
    assert_eq!(soon(client.until_end(good)).await, b"still");
    let odd = client.open(&[("streamtype", "data"), ("port", "70000")]).await;
    assert!(soon(client.is_refused(odd)).await);
}

#[tokio::test]
async fn a_connection_that_its_client_gives_up_ends_though_the_port_says_nothing() {
    let bench = Bench::new().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = Client::ports(&bench.ports()).await;
    let stream = client.connect(silent.local_addr().unwrap().port(), "0").await;
    let (mut port, _) = soon(silent.accept()).await.unwrap();
    client.reset(stream).await;
    assert_eq!(soon(client.until_end(stream - 2)).await, b"");
    // Nobody holds the connection any more.
    assert_eq!(soon(port.read(&mut [0; 8])).await.unwrap(), 0);
}

#[tokio::test]
async fn streams_end_with_the_server() {
    let bench = Bench::new().await;
    let mut client = Client::spdy(&bench.exec("sleep 100"), "v4.channel.k8s.io", ALL).await;
    soon(bench.local.started.notified()).await;
    bench.token.cancel();
    soon(bench.local.ended.notified()).await;
    soon(client.is_over()).await;
}
