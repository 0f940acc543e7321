#![allow(clippy::unwrap_used)]

use super::*;
use crate::events::Recorder;
use crate::pods::sources::test_context::{context, manifest};
use crate::pods::sources::{SourceName, SourceUpdate, local};
use crate::testing::{ScriptedRuntime, exit};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

struct View {
    pods: Mutex<Vec<Pod>>,
    events: Recorder,
    changed: watch::Sender<u64>,
    logs: PathBuf,
}

impl PodView for View {
    fn list(&self) -> Vec<Pod> {
        self.pods.lock().unwrap().clone()
    }
    fn events(&self, uid: &str) -> Vec<Event> {
        self.events.of(uid)
    }
    fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
    fn log_root(&self) -> PathBuf {
        self.logs.clone()
    }
}

impl View {
    fn show(&self, pods: Vec<Pod>) {
        *self.pods.lock().unwrap() = pods;
        self.changed.send_modify(|n| *n += 1);
    }
}

struct Bench {
    directory: tempfile::TempDir,
    view: Arc<View>,
    context: Context,
    runtime: Arc<ScriptedRuntime>,
    rx: mpsc::Receiver<SourceUpdate>,
    token: CancellationToken,
}

impl Bench {
    async fn new() -> Bench {
        let directory = tempfile::tempdir().unwrap();
        let (context, token) = (context(), CancellationToken::new());
        let (local, sets) = LocalPods::open(context.clone(), directory.path().join("store")).await.unwrap();
        let (tx, rx) = mpsc::channel(crate::pods::sources::CHANNEL);
        tokio::spawn(local::run(sets, context.clone(), tx, token.clone()));
        let logs = directory.path().join("logs");
        let view = Arc::new(View {
            pods: Mutex::default(),
            events: context.events.clone(),
            changed: watch::Sender::new(0),
            logs,
        });
        let exec = |_: &str, command: &[String]| exit(command.len() as i32, &command.join(" "));
        let runtime = Arc::new(ScriptedRuntime { exec: Some(Box::new(exec)), ..ScriptedRuntime::default() });
        let streams = streaming::Streams::new(std::time::Duration::ZERO);
        let (view_, runtime_) = (view.clone(), runtime.clone());
        let forecasts = Arc::default();
        let api =
            LocalApi { forecasts, local, view: view_, runtime: runtime_, context: context.clone(), streams };
        let bench = Bench { directory, view, context, runtime, rx, token };
        tokio::spawn(bind(&bench.socket()).unwrap().serve(
            api,
            crate::server::Ports::for_tests().local(),
            bench.token.clone(),
        ));
        bench
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("run/pods.sock")
    }

    async fn raw(&self, method: &str, path: &str, body: &str) -> http::Response<hyper::body::Incoming> {
        let stream = TokioIo::new(UnixStream::connect(self.socket()).await.unwrap());
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let request =
            http::Request::builder().method(method).uri(path).header("content-type", "application/json");
        let body = Full::new(bytes::Bytes::from(body.to_owned()));
        sender.send_request(request.body(body).unwrap()).await.unwrap()
    }

    async fn text(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let answer = self.raw(method, path, body).await;
        let status = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8_lossy(&bytes).into_owned())
    }

    async fn json(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let (status, text) = self.text(method, path, body).await;
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.token.cancel();
    }
}

/// A Pod of a file, with one running container.
fn running(name: &str, restarts: i32) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"),
            "annotations": {"kubernetes.io/config.source": "file"}},
        "spec": {"containers": [{"name": "c"}, {"name": "d"}], "nodeName": "n1"},
        "status": {"phase": "Running", "containerStatuses": [{
            "name": "c", "ready": true, "restartCount": restarts, "image": "x", "imageID": "",
            "containerID": "containerd://abc", "state": {"running": {}},
            "lastState": if restarts > 0 { json!({"terminated": {"exitCode": 1, "containerID": "containerd://old"}}) } else { json!({}) }
        }]}
    }))
    .unwrap()
}

#[tokio::test]
async fn pods_are_given_shown_and_taken_back() {
    let mut b = Bench::new().await;
    assert!(b.rx.recv().await.unwrap().pods.is_empty());
    let (status, applied) = b.json("POST", "/v1/pods", &manifest("web", "x:1")).await;
    assert_eq!((status, applied[0]["outcome"].as_str()), (200, Some("created")));
    let update = b.rx.recv().await.unwrap();
    assert_eq!((update.source, update.pods.len()), (SourceName::Local, 1));
    let (_, applied) = b.json("PUT", "/v1/pods", &manifest("web", "x:1")).await;
    assert_eq!(applied[0]["outcome"], "unchanged");
    let (status, pod) = b.json("GET", "/v1/pods/default/web", "").await;
    assert_eq!((status, &pod["status"]["phase"]), (200, &json!("Pending")), "shown before its task speaks");
    let (_, list) = b.json("GET", "/v1/pods", "").await;
    assert_eq!((list["kind"].as_str(), list["items"].as_array().unwrap().len()), (Some("PodList"), 1));
    let (status, gone) = b.json("DELETE", "/v1/pods/default/web?gracePeriodSeconds=7", "").await;
    assert_eq!((status, &gone["metadata"]["deletionGracePeriodSeconds"]), (200, &json!(7)));
    assert_eq!(b.rx.recv().await.unwrap().pods[0].metadata.deletion_grace_period_seconds, Some(7));
    assert!(b.rx.recv().await.unwrap().pods.is_empty());
    let (status, refusal) = b.json("GET", "/v1/pods/default/web", "").await;
    assert_eq!(
        (status, &refusal["message"]),
        (404, &json!("pods \"web\" not found in namespace \"default\""))
    );
}

#[tokio::test]
async fn refusals_are_clear() {
    let b = Bench::new().await;
    for (body, want) in [
        ("kind: [", "couldn't read the manifest"),
        ("", "the manifest is empty"),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c}]}",
            "spec.containers[0].image: Required value",
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {serviceAccountName: s, containers: [{name: c, image: x}]}",
            "static pods may not reference serviceaccounts",
        ),
    ] {
        let (status, refusal) = b.json("POST", "/v1/pods", body).await;
        let message = refusal["message"].as_str().unwrap_or_default();
        assert!(status == 400 && message.contains(want), "{status} {refusal}");
    }
    let (status, _) = b.text("POST", "/v1/pods", &"x".repeat(crate::pods::sources::MANIFEST_MAX + 1)).await;
    assert_eq!(status, 413);
    b.view.show(vec![running("web-n1", 0)]);
    let (status, refusal) = b.json("DELETE", "/v1/pods/default/web-n1", "").await;
    assert_eq!(status, 409);
    assert!(
        refusal["message"].as_str().unwrap().contains("by the file source; remove it there"),
        "{refusal}"
    );
    assert_eq!(b.json("DELETE", "/v1/pods/default/web-n1?gracePeriodSeconds=-1", "").await.0, 400);
    b.context.problems.set(SourceName::File, "/m/a.yaml", "bad");
    let (_, problems) = b.json("GET", "/v1/problems", "").await;
    assert_eq!(problems, json!([{"source": "file", "place": "/m/a.yaml", "message": "bad"}]));
}

#[tokio::test]
async fn exec_returns_output_and_exit_code() {
    let b = Bench::new().await;
    b.view.show(vec![running("web-n1", 0)]);
    // The name in the manifest is enough.
    let answer = b.raw("POST", "/v1/pods/default/web/exec", r#"{"command":["echo","hi"]}"#).await;
    let bytes = answer.into_body().collect().await.unwrap().to_bytes();
    let mut reader = frames::FrameReader::default();
    reader.push(&bytes);
    let mut next = || reader.next_frame().unwrap().unwrap();
    assert_eq!((next().bytes, next().channel), ("echo hi".into(), frames::STDERR));
    assert_eq!(next().bytes, 2i32.to_be_bytes().as_slice());
    assert_eq!(b.runtime.execs.lock().unwrap()[0].0, "abc");
    let (status, refusal) =
        b.json("POST", "/v1/pods/default/web/exec?container=d", r#"{"command":["x"]}"#).await;
    assert_eq!(
        (status, &refusal["message"]),
        (409, &json!("container \"d\" of pod \"web-n1\" is not running"))
    );
    let (status, refusal) =
        b.json("POST", "/v1/pods/default/web/exec?container=z", r#"{"command":["x"]}"#).await;
    assert_eq!(
        (status, &refusal["message"]),
        (400, &json!("container z is not valid for pod web-n1; it has c, d"))
    );
}

fn write_log(b: &Bench, pod: &str, file: &str, text: &str) {
    let directory = b.view.logs.join(format!("default_{pod}_uid-{pod}/c"));
    std::fs::create_dir_all(&directory).unwrap();
    let lines = text.lines().map(|l| format!("2026-01-01T00:00:00.0Z stdout F {l}\n"));
    std::fs::write(directory.join(file), lines.collect::<String>()).unwrap();
}

#[tokio::test]
async fn logs_of_now_and_before() {
    let b = Bench::new().await;
    b.view.show(vec![running("web-n1", 2), running("new-n1", 0)]);
    write_log(&b, "web-n1", "1.log", "old");
    write_log(&b, "web-n1", "2.log", "one\ntwo\nthree");
    assert_eq!(b.text("GET", "/v1/pods/default/web/log", "").await, (200, "one\ntwo\nthree\n".to_owned()));
    assert_eq!(b.text("GET", "/v1/pods/default/web/log?tailLines=1", "").await.1, "three\n");
    assert_eq!(b.text("GET", "/v1/pods/default/web/log?previous=true", "").await.1, "old\n");
    let (status, refusal) = b.json("GET", "/v1/pods/default/new/log?previous=true", "").await;
    assert_eq!(
        (status, &refusal["message"]),
        (400, &json!("previous terminated container \"c\" in pod \"new-n1\" not found"))
    );
    let (_, refusal) = b.json("GET", "/v1/pods/default/web/log?container=d", "").await;
    assert_eq!(
        refusal["message"],
        "container \"d\" in pod \"web-n1\" is waiting to start: ContainerCreating"
    );
}

#[tokio::test]
async fn a_followed_log_ends_with_its_container() {
    let b = Bench::new().await;
    b.view.show(vec![running("web-n1", 0)]);
    write_log(&b, "web-n1", "0.log", "one");
    let mut body = b.raw("GET", "/v1/pods/default/web/log?follow=true", "").await.into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(first, "one\n");
    b.view.show(Vec::new());
    let rest =
        tokio::time::timeout(Duration::from_secs(10), body.collect()).await.expect("the log never ends");
    assert_eq!(rest.unwrap().to_bytes(), "");
}

#[tokio::test]
async fn a_watch_sends_a_list_for_each_change() {
    let b = Bench::new().await;
    let mut body = b.raw("GET", "/v1/pods?watch=true", "").await.into_body();
    for expected in 0..3 {
        let line = tokio::time::timeout(Duration::from_secs(10), body.frame()).await.unwrap();
        let list: Value = serde_json::from_slice(&line.unwrap().unwrap().into_data().unwrap()).unwrap();
        assert_eq!(list["items"].as_array().unwrap().len(), expected);
        b.view.show((0..=expected).map(|i| running(&format!("p{i}"), 0)).collect());
    }
}

#[tokio::test]
async fn events_are_told() {
    let b = Bench::new().await;
    let pod = running("web-n1", 0);
    b.context.events.container(&pod, "c", EventType::Warning, "BackOff", "Back-off");
    b.view.show(vec![pod]);
    let (_, events) = b.json("GET", "/v1/pods/default/web-n1/events", "").await;
    assert_eq!(
        (&events[0]["type"], &events[0]["fieldPath"]),
        (&json!("Warning"), &json!("spec.containers{c}"))
    );
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn the_socket_is_for_root_and_for_one() {
    let b = Bench::new().await;
    assert_eq!((mode(&b.socket()), mode(b.socket().parent().unwrap())), (0o600, 0o700));
    assert!(matches!(socket::bind(&b.socket()), Err(SocketError::Taken { .. })));
    b.token.cancel();
    for _ in 0..10_000 {
        if !b.socket().exists() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("the socket was left behind");
}

#[tokio::test]
async fn a_socket_left_by_a_crash_is_taken_over() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pods.sock");
    drop(socket::bind(&path).unwrap());
    assert!(path.exists());
    socket::bind(&path).unwrap();
}

#[test]
fn a_path_too_long_for_a_socket_is_told_with_what_helps() {
    let path = std::path::Path::new("/tmp").join("d".repeat(120)).join("pods.sock");
    let error = super::bind(&path).unwrap_err().to_string();
    assert!(error.contains("pods.sock") && error.contains("--root-dir"), "{error}");
}
