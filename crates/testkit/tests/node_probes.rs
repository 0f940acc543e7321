//! Probes of every kind on real Pods.
#![allow(clippy::unwrap_used)]

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use testkit::harness::{Harness, condition, container, container_id, is_ready, phase, restarts, uid};
use testkit::node::{Containerd, http};
use testkit::scripts::{STAY, ended_before, pod, quick, told};

/// Runs until it is killed: TERM is no reason to go.
const STUBBORN: &str = "trap : TERM; while :; do sleep 0.1; done";

fn readiness(action: &str) -> String {
    format!("readinessProbe: {{ {action}, periodSeconds: 1, failureThreshold: 1, timeoutSeconds: 10 }}")
}

fn liveness(action: &str, more: &str) -> String {
    format!("livenessProbe: {{ {action}, periodSeconds: 1, failureThreshold: 1, timeoutSeconds: 10{more} }}")
}

/// A Pod of the demo program.
fn demo(name: &str, args: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{ name: {name} }}\nspec:\n  terminationGracePeriodSeconds: 1\n  \
         containers:\n    - {{ name: main, image: 'localhost/demo:v1', imagePullPolicy: Never, args: [{args}], {more} }}\n"
    )
}

fn visit(h: &Harness, pod: &Pod, path: &str) {
    let ip = pod.status.as_ref().unwrap().pod_ip.clone().unwrap();
    let address: SocketAddr = format!("{ip}:8080").parse().unwrap();
    h.node.inside(|| http::get(address, path)).unwrap().unwrap();
}

fn exec_probes_flip_and_restart(containerd: Containerd) {
    let Some(h) = quick(containerd) else { return };
    let has = |file: &str| format!("exec: {{ command: [test, -e, /notes/{file}] }}");
    h.apply("ready", &pod("ready", "", &[], &[("main", STAY, &readiness(&has("ready")))]));
    let script = format!("touch /notes/alive; {STUBBORN}");
    // The Pod's own grace would outlast this test: the probe's decides.
    let probe = liveness(&has("alive"), ", initialDelaySeconds: 1, terminationGracePeriodSeconds: 1");
    h.apply(
        "alive",
        &pod("alive", "  terminationGracePeriodSeconds: 600", &[], &[("main", &script, &probe)]),
    );

    h.wait("ready", "running, not ready", |p| phase(p) == "Running" && condition(p, "Ready") == "False");
    let _ = h.exec("ready", "main", &["touch", "/notes/ready"]);
    let pod = h.wait_ready("ready");
    let id = container_id(&pod, "main").to_owned();
    let _ = h.exec("ready", "main", &["rm", "/notes/ready"]);
    let pod = h.wait("ready", "unready again", |p| !is_ready(p));
    assert_eq!(condition(&pod, "ContainersReady"), "False");
    assert_eq!(container(&pod, "main").unwrap().started, Some(true));
    h.until("told", || told(&h, "ready-demo").contains("Readiness probe failed").then_some(()));
    let _ = h.exec("ready", "main", &["touch", "/notes/ready"]);
    let pod = h.wait_ready("ready");
    assert_eq!((container_id(&pod, "main"), restarts(&pod, "main")), (id.as_str(), 0));

    h.wait_ready("alive");
    let _ = h.exec("alive", "main", &["rm", "/notes/alive"]);
    let pod = h.wait("alive", "restarted", |p| restarts(p, "main") == 1 && is_ready(p));
    assert_eq!(ended_before(&pod, "main").unwrap().exit_code, 137, "killed when the probe's grace was over");
    let shown = told(&h, "alive-demo");
    assert!(shown.contains("Container main failed liveness probe, will be restarted"), "{shown}");
}

#[test]
fn exec_probes_flip_and_restart_on_containerd_2() {
    exec_probes_flip_and_restart(Containerd::V2);
}

#[test]
fn exec_probes_flip_and_restart_on_containerd_1_6() {
    exec_probes_flip_and_restart(Containerd::V1_6);
}

#[test]
fn exec_probes_flip_and_restart_on_the_embedded_runtime() {
    exec_probes_flip_and_restart(Containerd::Embedded);
}

#[test]
fn http_and_tcp_probes_reach_the_pod() {
    let Some(h) = quick(Containerd::V2) else { return };
    let both = format!(
        "ports: [{{ name: web, containerPort: 8080 }}], {}, {}",
        readiness("httpGet: { path: /readyz, port: web }"),
        liveness("httpGet: { path: /healthz, port: 8080 }", ", initialDelaySeconds: 3")
    );
    h.apply("web", &demo("web", "serve", &both));
    h.apply("tcp", &demo("tcp", "tcp, '9000'", &readiness("tcpSocket: { port: 9000 }")));
    h.apply("shut", &demo("shut", "tcp, '9000'", &readiness("tcpSocket: { port: 9001 }")));
    let web = h.wait_ready("web");
    visit(&h, &web, "/toggle");
    h.wait("web", "unready", |p| !is_ready(p));
    let shown = told(&h, "web-demo");
    assert!(shown.contains("Readiness probe failed: HTTP probe failed with statuscode: 503"), "{shown}");
    visit(&h, &web, "/toggle");
    h.wait_ready("web");
    let so_far = restarts(&h.get("web").unwrap(), "main");
    visit(&h, &web, "/toggle-health");
    let web = h.wait("web", "restarted", |p| restarts(p, "main") > so_far && is_ready(p));
    assert_eq!(ended_before(&web, "main").unwrap().reason.as_deref(), Some("Completed"));
    h.wait_ready("tcp");
    h.until("refused", || told(&h, "shut-demo").contains("connection refused").then_some(()));
    let shut = h.wait_running("shut");
    assert!(!is_ready(&shut));
}

#[test]
fn grpc_probes_ask_the_health_service() {
    let Some(h) = quick(Containerd::V2) else { return };
    // The server is ours; the Pod is in the node's network, so that its address is the node's.
    let listener = h.node.inside(|| TcpListener::bind("0.0.0.0:0").unwrap()).unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = Arc::new(AtomicBool::new(false));
    let says = serving.clone();
    std::thread::spawn(move || health::serve(&listener, &says));
    let probe = readiness(&format!("grpc: {{ port: {port}, service: shore }}"));
    h.apply("grpc", &pod("grpc", "  hostNetwork: true", &[], &[("main", STAY, &probe)]));
    h.until("told", || {
        let shown = told(&h, "grpc-demo");
        shown.contains("service unhealthy (responded with \"NOT_SERVING\")").then_some(())
    });
    assert!(!is_ready(&h.wait_running("grpc")));
    serving.store(true, Ordering::Relaxed);
    h.wait_ready("grpc");
    serving.store(false, Ordering::Relaxed);
    h.wait("grpc", "unready again", |p| !is_ready(p));
}

#[test]
fn a_startup_probe_holds_the_others_back_and_restarts_what_does_not_start() {
    let Some(h) = quick(Containerd::V2) else { return };
    let startup = |file: &str, tries: u32| {
        format!(
            "startupProbe: {{ exec: {{ command: [test, -e, {file}] }}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: {tries} }}"
        )
    };
    let alive = liveness("exec: { command: [test, -e, /notes/go] }", "");
    let ready = readiness("exec: { command: ['true'] }");
    let slow = format!("{}, {alive}, {ready}", startup("/notes/go", 100));
    h.apply("slow", &pod("slow", "", &[], &[("main", STAY, &slow)]));
    h.apply("stuck", &pod("stuck", "", &[], &[("main", STAY, &startup("/nowhere", 2))]));
    h.until("probed twice", || told(&h, "slow-demo").contains("Startup probe failed").then_some(()));
    let slow = h.wait_running("slow");
    assert_eq!(container(&slow, "main").unwrap().started, Some(false));
    assert!(!is_ready(&slow), "readiness is not asked yet");
    let stuck = h.wait("stuck", "restarted", |p| restarts(p, "main") >= 1);
    assert_eq!(condition(&stuck, "Ready"), "False");
    let shown = told(&h, "stuck-demo");
    assert!(shown.contains("Container main failed startup probe, will be restarted"), "{shown}");
    let slow = h.get("slow").unwrap();
    assert_eq!(restarts(&slow, "main"), 0, "liveness is not asked yet");
    let _ = h.exec("slow", "main", &["touch", "/notes/go"]);
    let slow = h.wait_ready("slow");
    assert_eq!(container(&slow, "main").unwrap().started, Some(true));
    let _ = h.exec("slow", "main", &["rm", "/notes/go"]);
    h.wait("slow", "restarted by liveness", |p| restarts(p, "main") == 1);
}

#[test]
fn a_sidecar_that_is_taken_over_has_started_and_is_still_probed() {
    let Some(mut h) = quick(Containerd::V2) else { return };
    let alive = "exec: { command: [test, -e, /notes/alive] }";
    let probes = format!(
        "restartPolicy: Always, startupProbe: {{ {alive}, periodSeconds: 1, timeoutSeconds: 10 }}, {}",
        liveness(alive, "")
    );
    let script = format!("touch /notes/alive; {STAY}");
    h.apply("side", &pod("side", "", &[("proxy", &script, &probes)], &[("main", STAY, "")]));
    h.wait_ready("side");
    // What started moments before an agent may have started after it: only an older one is taken at its word.
    std::thread::sleep(Duration::from_secs(11));
    h.restart_agent();
    let side = h.wait_ready("side");
    assert_eq!((restarts(&side, "proxy"), container(&side, "proxy").unwrap().started), (0, Some(true)));
    let _ = h.exec("side", "proxy", &["rm", "/notes/alive"]);
    let side = h.wait("side", "its sidecar restarted", |p| restarts(p, "proxy") == 1 && is_ready(p));
    assert_eq!(restarts(&side, "main"), 0);
}

/// A hundred exec probes, one of which never ends, and the node still does everything else.
#[test]
fn a_hundred_exec_probes_stall_nobody() {
    let Some(h) = quick(Containerd::V2) else { return };
    let ask = "exec: { command: ['true'] }, periodSeconds: 5, timeoutSeconds: 20";
    let probes = format!("readinessProbe: {{ {ask} }}, livenessProbe: {{ {ask} }}");
    let names: Vec<String> = (0..10).map(|n| format!("c{n}")).collect();
    let containers: Vec<_> = names.iter().map(|n| (n.as_str(), STAY, probes.as_str())).collect();
    let hung = "readinessProbe: { exec: { command: [sleep, '1000'] }, timeoutSeconds: 600 }";
    h.apply("hung", &pod("hung", "", &[], &[("main", STAY, hung)]));
    h.wait_running("hung");
    for n in 0..5 {
        let name = format!("many{n}");
        h.apply(&name, &pod(&name, "", &[], &containers));
    }
    for n in 0..5 {
        h.wait_ready(&format!("many{n}"));
    }
    // While they go on, Pods come and go, and the hung one can still be ended.
    h.apply("new", &pod("new", "", &[], &[("main", STAY, "")]));
    h.wait_ready("new");
    assert!(!is_ready(&h.get("hung").unwrap()));
    h.remove("new");
    h.remove("hung");
    h.wait_gone("new");
    h.wait_gone("hung");
    for n in 0..5 {
        let pod = h.get(&format!("many{n}")).unwrap();
        assert!(is_ready(&pod), "{}", uid(&pod));
        assert!(names.iter().all(|c| restarts(&pod, c) == 0), "{}", uid(&pod));
    }
}

/// The least of a gRPC health server: every call gets the same answer, whatever it asks.
mod health {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::{AtomicBool, Ordering};

    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const ACK: u8 = 1;
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;

    pub(super) fn serve(listener: &TcpListener, serving: &AtomicBool) {
        for stream in listener.incoming().flatten() {
            // A client that goes away in the middle is no concern of ours.
            let _ = talk(stream, serving);
        }
    }

    fn talk(mut stream: TcpStream, serving: &AtomicBool) -> std::io::Result<()> {
        stream.read_exact(&mut [0; 24])?;
        send(&mut stream, SETTINGS, 0, 0, &[])?;
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head)?;
            let mut body = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            stream.read_exact(&mut body)?;
            let (kind, flags) = (head[3], head[4]);
            let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            match kind {
                SETTINGS | PING if flags & ACK == 0 => send(&mut stream, kind, ACK, 0, &body)?,
                DATA | HEADERS if flags & END_STREAM != 0 => {
                    answer(&mut stream, id, 2 - u8::from(serving.load(Ordering::Relaxed)))?;
                }
                _ => {}
            }
        }
    }

    fn answer(stream: &mut TcpStream, id: u32, status: u8) -> std::io::Result<()> {
        // `:status: 200` and `content-type`, by their places in the static table.
        let mut headers = vec![0x88, 0x0f, 0x10, 16];
        headers.extend_from_slice(b"application/grpc");
        send(stream, HEADERS, END_HEADERS, id, &headers)?;
        send(stream, DATA, 0, id, &[0, 0, 0, 0, 2, 8, status])?;
        let mut trailers = vec![0, 11];
        trailers.extend_from_slice(b"grpc-status");
        trailers.extend_from_slice(&[1, b'0']);
        send(stream, HEADERS, END_HEADERS | END_STREAM, id, &trailers)
    }

    fn send(stream: &mut TcpStream, kind: u8, flags: u8, id: u32, body: &[u8]) -> std::io::Result<()> {
        let length = u32::try_from(body.len()).unwrap_or_default().to_be_bytes();
        // An acknowledged SETTINGS frame is empty.
        let body = if kind == SETTINGS { &[] } else { body };
        let length = if kind == SETTINGS { [0; 4] } else { length };
        let mut frame = vec![length[1], length[2], length[3], kind, flags];
        frame.extend_from_slice(&id.to_be_bytes());
        frame.extend_from_slice(body);
        stream.write_all(&frame)
    }
}
