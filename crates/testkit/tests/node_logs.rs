//! Container logs on a real containerd: where they are, how they are rotated, read and cleared away.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use testkit::harness::{Harness, container_id, listing, restarts, uid};
use testkit::node::{AgentOptions, Containerd};

fn pod(name: &str, more: &str, script: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 1\n{more}\
         \x20 containers:\n  - name: main\n    image: localhost/busybox:v1\n    imagePullPolicy: Never\n    \
         command: [sh, -c, {script:?}]\n"
    )
}

fn with_config(config: &str) -> Option<Harness> {
    Harness::start(
        Containerd::default(),
        AgentOptions { config: config.to_owned(), ..AgentOptions::default() },
    )
}

fn directory(h: &Harness, pod: &Pod) -> PathBuf {
    let name = pod.metadata.name.as_deref().unwrap();
    h.agent.pod_logs().join(format!("default_{name}_{}", uid(pod)))
}

fn names(dir: &std::path::Path) -> Vec<String> {
    listing(dir).iter().map(|p| p.file_name().unwrap().to_string_lossy().into_owned()).collect()
}

/// `longshore pods logs -f`, killed at the end.
struct Follower(Child);

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn follow(h: &Harness, pod: &str) -> (Follower, impl Iterator<Item = String> + use<>) {
    let binary = std::env::var_os("LONGSHORE_BINARY").unwrap();
    let mut command = h.node.command(binary);
    command.args(["pods", "logs", pod, "-f", "--socket"]).arg(h.agent.root().join("pods.sock"));
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (Follower(child), lines.map_while(Result::ok))
}

#[test]
fn logs_have_their_places_and_are_read() {
    let Some(h) = Harness::usual() else { return };
    // Two pipes: the runtime reads them in any order, unless there is time in between.
    let script = "echo out; sleep 0.5; echo err >&2; printf 'no end'; sleep 10000";
    h.apply("place", &pod("place", "", script));
    let seen = h.wait_ready("place");
    let log = directory(&h, &seen).join("main/0.log");
    let text = h.until("logged", || fs::read_to_string(&log).ok().filter(|t| t.lines().count() == 2));
    assert!(text.contains(" stdout F out\n") && text.contains(" stderr F err\n"), "{text}");
    let id = container_id(&seen, "main").trim_start_matches("containerd://").to_owned();
    let link =
        h.agent.pod_logs().with_file_name("containers").join(format!("place-demo_default_main-{id}.log"));
    assert_eq!(fs::read_link(link).unwrap(), log);
    assert_eq!(h.pods(&["logs", "place-demo"]).1, "out\nerr\n");
    assert_eq!(h.pods(&["logs", "place-demo", "--tail", "1"]).1, "err\n");
    let (_, stamped, _) = h.pods(&["logs", "place-demo", "--timestamps", "--tail", "1"]);
    assert!(stamped.contains("T") && stamped.ends_with("Z err\n"), "{stamped}");
    let (code, _, why) = h.pods(&["logs", "place-demo", "--previous"]);
    assert!(
        code != 0 && why.contains("previous terminated container \"main\" in pod \"place-demo\" not found"),
        "{why}"
    );
    let (code, _, why) = h.pods(&["logs", "place-demo", "-c", "nobody"]);
    assert!(code != 0 && why.contains("container nobody is not valid for pod place-demo"), "{why}");

    let twice =
        "if [ -f /v/once ]; then echo second life; sleep 10000; fi; echo first life; touch /v/once; exit 3";
    let volumes = "  volumes: [{name: v, emptyDir: {}}]\n";
    let manifest = pod("twice", volumes, twice) + "    volumeMounts: [{name: v, mountPath: /v}]\n";
    h.apply("twice", &manifest);
    h.wait("twice", "restarted", |p| restarts(p, "main") == 1 && testkit::harness::is_ready(p));
    h.until("second life", || (h.pods(&["logs", "twice-demo"]).1 == "second life\n").then_some(()));
    assert_eq!(h.pods(&["logs", "twice-demo", "--previous"]).1, "first life\n");
    let dir = directory(&h, &h.get("twice").unwrap()).join("main");
    assert_eq!(names(&dir), ["0.log", "1.log"]);
}

#[test]
fn logs_are_rotated_and_followed_across() {
    let config = "containerLogMaxSize: 40Ki\ncontainerLogMaxFiles: 3\ncontainerLogMonitorInterval: 3s\n";
    let Some(h) = with_config(config) else { return };
    let script = "echo begin; while [ ! -e /tmp/go ]; do sleep 0.1; done; i=0; while :; do for j in 1 2 3 4 5 6 7 8 9 10; do i=$((i+1)); echo line $i ...........................................; done; sleep 0.05; done";
    h.apply("chatty", &pod("chatty", "", script));
    let seen = h.wait_ready("chatty");
    let dir = directory(&h, &seen).join("main");
    h.until("logging", || (h.pods(&["logs", "chatty-demo"]).1 == "begin\n").then_some(()));
    let (_child, mut lines) = follow(&h, "chatty-demo");
    assert_eq!(lines.next().as_deref(), Some("begin"));
    assert_eq!(h.pods(&["exec", "chatty-demo", "--", "touch", "/tmp/go"]).0, 0);
    let mut expected = 1;
    let mut rotated = std::collections::BTreeSet::new();
    let end = Instant::now() + Duration::from_secs(180);
    // Three rotations seen, and not a line lost or told twice on the way.
    while rotated.len() < 3 {
        let line = lines.next().expect("the log goes on");
        assert!(line.starts_with(&format!("line {expected} ")), "wanted line {expected}, got {line:?}");
        expected += 1;
        if expected % 50 == 0 {
            let files = names(&dir);
            assert!(files.iter().filter(|f| !f.ends_with(".tmp")).count() <= 4, "{files:?}");
            rotated.extend(
                files
                    .into_iter()
                    .filter(|f| f != "0.log" && !f.ends_with(".tmp"))
                    .map(|f| f.trim_end_matches(".gz").to_owned()),
            );
        }
        assert!(Instant::now() < end, "rotated {rotated:?}");
    }
    let files = h.until("compressed", || {
        Some(names(&dir)).filter(|f| f.len() == 3 && f.iter().any(|n| n.ends_with(".gz")))
    });
    assert!(files.contains(&"0.log".to_owned()), "{files:?}");
    let (code, tail, why) = h.pods(&["logs", "chatty-demo", "--tail", "3"]);
    assert_eq!((code, tail.lines().count()), (0, 3), "{tail}{why}");
    let packed = h.until("still there", || {
        let packed = listing(&dir).into_iter().find(|p| p.extension().is_some_and(|e| e == "gz"))?;
        let out = Command::new("gzip").arg("-dc").arg(&packed).output().unwrap();
        out.status.success().then(|| String::from_utf8(out.stdout).unwrap())
    });
    assert!(packed.lines().count() > 100 && packed.lines().all(|l| l.contains(" stdout F line ")));
}

#[test]
fn what_is_dead_is_collected_but_for_the_last() {
    let config = "crashLoopBackOff: {maxContainerRestartPeriod: 1s}\nfeatureGates: {KubeletCrashLoopBackOffMax: true}\n";
    let Some(mut h) = with_config(config) else { return };
    let script = "echo x >> /v/n; echo life $(wc -l < /v/n); if [ $(wc -l < /v/n) -ge 5 ]; then sleep 10000; fi; exit 1";
    let first = "echo x >> /v/i; [ $(wc -l < /v/i) -ge 3 ]";
    let more = format!(
        "  volumes: [{{name: v, emptyDir: {{}}}}]\n  initContainers:\n  - name: first\n    \
         image: localhost/busybox:v1\n    imagePullPolicy: Never\n    command: [sh, -c, {first:?}]\n    \
         volumeMounts: [{{name: v, mountPath: /v}}]\n"
    );
    h.apply("crash", &(pod("crash", &more, script) + "    volumeMounts: [{name: v, mountPath: /v}]\n"));
    h.apply("leaves", &pod("leaves", "", "sleep 10000"));
    let leaver = h.wait_ready("leaves");
    let logs = directory(&h, &leaver);
    h.remove("leaves");
    h.wait_gone("leaves");
    let links = h.agent.pod_logs().with_file_name("containers");
    h.wait("crash", "restarted four times", |p| restarts(p, "main") == 4 && testkit::harness::is_ready(p));
    let containers = |h: &Harness| {
        let out = h.node.ctr().args(["containers", "ls", "-q"]).output().unwrap();
        String::from_utf8(out.stdout).unwrap().lines().count()
    };
    assert!(containers(&h) > 3 && logs.exists());
    // The collector comes once a minute, and when the agent starts.
    h.restart_agent();
    h.until("collected", || {
        let dead_links = names(&links).iter().filter(|n| n.starts_with("leaves")).count();
        // A sandbox, the running container, the last dead one and the last init container.
        (containers(&h) == 4 && !logs.exists() && dead_links == 0).then_some(())
    });
    let seen = h.get("crash").unwrap();
    assert_eq!((restarts(&seen, "main"), restarts(&seen, "first")), (4, 2));
    // What the others wrote went with them, as upstream's kubelet has it.
    let dir = directory(&h, &seen);
    assert_eq!(names(&dir.join("main")), ["3.log", "4.log"]);
    assert_eq!(names(&dir.join("first")), ["2.log"]);
    assert_eq!(names(&links).len(), 3, "{:?}", names(&links));
    assert_eq!(h.pods(&["logs", "crash-demo"]).1, "life 5\n");
    assert_eq!(h.pods(&["logs", "crash-demo", "--previous"]).1, "life 4\n");
    let last = testkit::harness::container(&seen, "main").unwrap().last_state.clone().unwrap();
    assert_eq!(last.terminated.unwrap().exit_code, 1);
}
