//! The end of containers and Pods: hooks, grace, exit reasons and last words.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc;

use testkit::harness::{condition, container, phase, restarts, waiting_reason};
use testkit::node::Containerd;
use testkit::scripts::{STAY, ended, ended_before, notes, pod, quick, told, wait_noted};

/// Runs until it is killed: TERM is no reason to go.
const STUBBORN: &str = "trap : TERM; while :; do sleep 0.1; done";

/// Says so when TERM arrives.
const TELL: &str = "trap 'echo term >> /notes/order; exit 0' TERM; while :; do sleep 0.1; done";

fn read(dir: &Path, file: &str) -> String {
    fs::read_to_string(dir.join(file)).unwrap_or_default()
}

fn stop_hook(action: &str) -> String {
    format!("lifecycle: {{ preStop: {{ {action} }} }}")
}

fn shell(script: &str) -> String {
    format!("exec: {{ command: [sh, -c, {script:?}] }}")
}

fn containers_say_how_they_ended(containerd: Containerd) {
    let Some(h) = quick(containerd) else { return };
    let fallback = "terminationMessagePolicy: FallbackToLogsOnError";
    let words = "echo to the log; echo to the file > /dev/termination-log";
    let ends = [
        ("good", "exit 0".to_owned(), ""),
        ("bad", "exit 9".to_owned(), ""),
        ("file", format!("{words}; exit 0"), ""),
        ("custom", "echo elsewhere > /tmp/last; exit 1".to_owned(), "terminationMessagePath: /tmp/last"),
        ("logs", "echo one; sleep 0.5; echo two >&2; exit 1".to_owned(), fallback),
        ("logs-good", "echo one; exit 0".to_owned(), fallback),
        ("logs-file", format!("{words}; exit 1"), fallback),
    ];
    let scripts: Vec<_> = ends.iter().map(|(n, s, m)| (*n, s.as_str(), *m)).collect();
    h.apply("ends", &pod("ends", "  restartPolicy: Never", &[], &scripts));
    let ends = h.wait("ends", "failed", |p| phase(p) == "Failed");
    for (name, code, reason, message) in [
        ("good", 0, "Completed", None),
        ("bad", 9, "Error", None),
        ("file", 0, "Completed", Some("to the file\n")),
        ("custom", 1, "Error", Some("elsewhere\n")),
        ("logs", 1, "Error", Some("one\ntwo\n")),
        ("logs-good", 0, "Completed", None),
        ("logs-file", 1, "Error", Some("to the file\n")),
    ] {
        let end = ended(&ends, name).unwrap_or_else(|| panic!("{name} has not ended"));
        assert_eq!((end.exit_code, end.reason.as_deref()), (code, Some(reason)), "{name}");
        assert_eq!(end.message.as_deref(), message, "{name}");
        assert!(end.started_at.is_some() && end.finished_at.is_some(), "{name}");
    }
    // The last words of one container are cut; those of many share what one Pod may say.
    let script = "head -c 9000 /dev/zero | tr '\\0' a > /dev/termination-log; exit 1";
    h.apply("long", &pod("long", "  restartPolicy: Never", &[], &[("main", script, "")]));
    let long = h.wait("long", "failed", |p| phase(p) == "Failed");
    assert_eq!(ended(&long, "main").unwrap().message.as_deref(), Some("a".repeat(4096).as_str()));
}

#[test]
fn containers_say_how_they_ended_on_containerd_2() {
    containers_say_how_they_ended(Containerd::V2);
}

#[test]
fn containers_say_how_they_ended_on_containerd_1_6() {
    containers_say_how_they_ended(Containerd::V1_6);
}

#[test]
fn containers_say_how_they_ended_on_the_embedded_runtime() {
    containers_say_how_they_ended(Containerd::Embedded);
}

#[test]
fn a_container_beyond_its_memory_limit_is_called_oom_killed() {
    let Some(h) = quick(Containerd::V2) else { return };
    let limit = "resources: { limits: { memory: 16Mi } }";
    h.apply("big", &pod("big", "  restartPolicy: Never", &[], &[("main", "exec tail /dev/zero", limit)]));
    let pod = h.wait("big", "failed", |p| phase(p) == "Failed");
    let end = ended(&pod, "main").unwrap();
    assert_eq!((end.exit_code, end.reason.as_deref()), (137, Some("OOMKilled")));
}

#[test]
fn a_pre_stop_hook_runs_before_the_signal() {
    let Some(h) = quick(Containerd::V2) else { return };
    let (exec_dir, exec_volume) = notes(&h, "exec");
    let (sleep_dir, sleep_volume) = notes(&h, "sleep");
    let (http_dir, http_volume) = notes(&h, "http");
    let listener = h.node.inside(|| TcpListener::bind("0.0.0.0:0").unwrap()).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (heard, hears) = mpsc::channel();
    let order = http_dir.join("order");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 1024];
            let n = stream.read(&mut head).unwrap_or(0);
            // What came before the hook was answered.
            let _ = heard.send((String::from_utf8_lossy(&head[..n]).into_owned(), order.exists()));
            // Any answer will do.
            let _ = stream.write_all(b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        }
    });
    let grace = "  terminationGracePeriodSeconds: 20\n";
    let exec = stop_hook(&shell("sleep 1; echo hook >> /notes/order"));
    h.apply("exec", &pod("exec", &format!("{grace}{exec_volume}"), &[], &[("main", TELL, &exec)]));
    // The beat goes on while the hook sleeps: one second is many beats.
    let beat = "trap 'echo term >> /notes/order; exit 0' TERM; while :; do echo beat >> /notes/order; sleep 0.1; done";
    let sleep = stop_hook("sleep: { seconds: 2 }");
    h.apply("sleep", &pod("sleep", &format!("{grace}{sleep_volume}"), &[], &[("main", beat, &sleep)]));
    let http = stop_hook(&format!("httpGet: {{ host: {}, port: {port}, path: /bye }}", h.node.address()));
    h.apply("http", &pod("http", &format!("{grace}{http_volume}"), &[], &[("main", TELL, &http)]));
    for name in ["exec", "sleep", "http"] {
        h.wait_ready(name);
    }
    fs::write(sleep_dir.join("order"), "").unwrap();
    for name in ["exec", "sleep", "http"] {
        h.remove(name);
    }
    for name in ["exec", "sleep", "http"] {
        h.wait_gone(name);
    }
    assert_eq!(read(&exec_dir, "order"), "hook\nterm\n");
    let beats = read(&sleep_dir, "order");
    assert!(beats.ends_with("beat\nterm\n") && beats.matches("beat").count() > 3, "{beats}");
    let (request, too_late) = hears.recv().unwrap();
    assert!(request.starts_with("GET /bye HTTP/1.1\r\n"), "{request}");
    assert!(!too_late, "the signal came before the hook");
    assert_eq!(read(&http_dir, "order"), "term\n");
}

#[test]
fn a_hung_or_failing_pre_stop_hook_delays_the_end_by_no_more_than_the_grace() {
    let Some(h) = quick(Containerd::V2) else { return };
    let before = h.node.census();
    let (dir, volume) = notes(&h, "hung");
    let hung = stop_hook(&shell("echo hook >> /notes/order; sleep 1000"));
    h.apply("hung", &pod("hung", &volume, &[], &[("main", TELL, &hung)]));
    let failing = stop_hook(&shell("exit 1"));
    let long = "  terminationGracePeriodSeconds: 600\n";
    h.apply("failing", &pod("failing", long, &[], &[("main", STAY, &failing)]));
    h.wait_ready("hung");
    h.wait_ready("failing");
    h.remove("hung");
    h.remove("failing");
    h.wait_gone("hung");
    h.wait_gone("failing");
    assert_eq!(
        read(&dir, "order"),
        "hook\nterm\n",
        "the signal still came, with the two seconds that are always left"
    );
    h.wait_clean(&before);
}

#[test]
fn post_start_holds_the_next_container_back_and_its_failure_kills() {
    let Some(h) = quick(Containerd::V2) else { return };
    let (dir, volume) = notes(&h, "post");
    let hook = |script: &str| format!("lifecycle: {{ postStart: {{ {} }} }}", shell(script));
    let up = |name: &str| format!("echo {name} >> /notes/order; {STAY}");
    h.apply(
        "post",
        &pod(
            "post",
            &volume,
            &[],
            &[("one", &up("one"), &hook("sleep 1; echo hook >> /notes/order")), ("two", &up("two"), "")],
        ),
    );
    h.apply("bad", &pod("bad", "", &[], &[("main", STAY, &hook("exit 3")), ("other", STAY, "")]));
    h.wait_ready("post");
    wait_noted(&h, &dir, "one\nhook\ntwo\n");
    let bad = h.wait("bad", "restarted", |p| restarts(p, "main") >= 1);
    assert_eq!(restarts(&bad, "other"), 0, "its neighbour lives");
    assert_eq!(condition(&bad, "Ready"), "False");
    let shown = told(&h, "bad-demo");
    assert!(shown.contains("FailedPostStartHook") && shown.contains("PostStartHook failed"), "{shown}");
    h.wait("bad", "shown with its reason", |p| {
        ["PostStartHookError", "CrashLoopBackOff"].contains(&waiting_reason(p, "main"))
    });
}

#[test]
fn a_pre_stop_hook_goes_on_until_its_container_is_stopped() {
    let Some(h) = quick(Containerd::V2) else { return };
    let (dir, volume) = notes(&h, "long");
    let hook = stop_hook(&shell("while :; do date +%s >> /notes/beats; sleep 0.2; done"));
    let spec = format!("  terminationGracePeriodSeconds: 2\n{volume}");
    h.apply("long", &pod("long", &spec, &[], &[("main", STUBBORN, &hook)]));
    h.wait_ready("long");
    h.remove("long");
    h.wait_gone("long");
    let beats = read(&dir, "beats");
    let beats: Vec<u64> = beats.lines().filter_map(|l| l.parse().ok()).collect();
    let lasted = beats.last().zip(beats.first()).map_or(0, |(last, first)| last - first);
    // Two seconds of grace, and the two that a container gets whose hook has used them up.
    assert!(lasted >= 3, "{beats:?}");
}

#[test]
fn readiness_is_told_while_a_pod_ends() {
    let Some(h) = quick(Containerd::V2) else { return };
    let (dir, volume) = notes(&h, "leaves");
    fs::write(dir.join("ready"), "").unwrap();
    // The usual way to leave: fail the probe, and serve until nobody comes any more.
    let hook = stop_hook(&shell("rm /notes/ready; while ! test -e /notes/go; do sleep 0.1; done"));
    let probe = "exec: { command: [test, -e, /notes/ready] }, periodSeconds: 1, failureThreshold: 1, timeoutSeconds: 10";
    let more = format!("{hook}, readinessProbe: {{ {probe} }}");
    let spec = format!("  terminationGracePeriodSeconds: 600\n{volume}");
    h.apply("leaves", &pod("leaves", &spec, &[], &[("main", STAY, &more)]));
    h.wait_ready("leaves");
    h.remove("leaves");
    let leaves = h.wait("leaves", "unready", |p| condition(p, "Ready") == "False");
    assert_eq!((phase(&leaves), condition(&leaves, "ContainersReady")), ("Running", "False"));
    let main = container(&leaves, "main").unwrap();
    assert!(!main.ready && main.state.as_ref().is_some_and(|s| s.running.is_some()), "{main:?}");
    fs::write(dir.join("go"), "").unwrap();
    h.wait_gone("leaves");
}

#[test]
fn a_shorter_grace_cuts_a_running_end_short() {
    let Some(h) = quick(Containerd::V2) else { return };
    let before = h.node.census();
    let path = h.node.dir().join("slow.yaml");
    let text = pod("slow", "  terminationGracePeriodSeconds: 600\n", &[], &[("main", STUBBORN, "")]);
    fs::write(&path, text).unwrap();
    let (code, out, err) = h.pods(&["apply", "-f", path.to_str().unwrap()]);
    assert_eq!((code, out.as_str()), (0, "pod/slow created\n"), "{err}");
    let find = || h.list().into_iter().find(|p| p.metadata.name.as_deref() == Some("slow"));
    h.until("running", || find().filter(|p| phase(p) == "Running"));
    let (code, _, err) = h.pods(&["delete", "slow", "--no-wait"]);
    assert_eq!(code, 0, "{err}");
    h.until("ending", || told(&h, "slow").contains("Stopping container main").then_some(()));
    // Nothing makes it longer again.
    let (code, _, err) = h.pods(&["delete", "slow", "--no-wait", "--grace-period", "900"]);
    assert_eq!(code, 0, "{err}");
    let (code, _, err) = h.pods(&["delete", "slow", "--grace-period", "1"]);
    assert_eq!(code, 0, "{err}");
    h.until("gone", || find().is_none().then_some(()));
    h.wait_clean(&before);
}

#[test]
fn a_container_deaf_to_its_signal_is_killed() {
    let Some(h) = quick(Containerd::V2) else { return };
    let before = h.node.census();
    h.apply("deaf", &pod("deaf", "", &[], &[("main", STUBBORN, "")]));
    h.wait_ready("deaf");
    h.remove("deaf");
    h.wait_gone("deaf");
    h.wait_clean(&before);
}

#[test]
fn a_container_killed_from_outside_is_an_error_and_begins_again() {
    let Some(h) = quick(Containerd::V2) else { return };
    h.apply("one", &pod("one", "", &[], &[("main", STAY, "")]));
    let one = h.wait_ready("one");
    let id = container(&one, "main").unwrap().container_id.clone().unwrap();
    let id = id.rsplit_once('/').unwrap().1.to_owned();
    let killed = h.node.ctr().args(["tasks", "kill", "--signal", "KILL", &id]).output().unwrap();
    assert!(killed.status.success(), "{killed:?}");
    let one = h.wait("one", "restarted", |p| restarts(p, "main") == 1 && condition(p, "Ready") == "True");
    let end = ended_before(&one, "main").unwrap();
    assert_eq!((end.exit_code, end.reason.as_deref()), (137, Some("Error")));
}
