//! A kubelet that is stopped, killed or replaced under its Pods: nobody who watches the cluster notices.
//!
//! `LONGSHORE_PODS=20` has it happen under fewer Pods.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Event, Pod};
use serde::Deserialize;
use testkit::cluster::Cluster;
use testkit::csi::CsiDriver;
use testkit::harness::{is_ready, listing, uid};
use testkit::witness::Witness;

const STAY: &str = "trap exit TERM; while :; do sleep 0.5; done";
const PODS: usize = 60;

const DRIVER: &str = env!("CARGO_BIN_EXE_csi_driver");
const DRIVEN: &str = "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: { name: d.test }\n\
    spec: { attachRequired: false, fsGroupPolicy: None, volumeLifecycleModes: [Ephemeral] }\n";

const CONFIG: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: { name: settings }\ndata: { color: blue }\n";

/// A Pod bound to the node, with more lines of its spec and more fields of its container.
fn pod(name: &str, spec: &str, fields: &str, script: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{ name: {name} }}\nspec:\n  nodeName: demo\n  \
         automountServiceAccountToken: false\n  dnsPolicy: Default\n{spec}  containers:\n  - name: main\n    \
         image: localhost/busybox:v1\n    imagePullPolicy: Never\n    command: [sh, -c, {script:?}]\n{fields}"
    )
}

/// One of each kind, over and over. The node has to be green for them.
fn crowd(count: usize) -> (Vec<String>, String) {
    const SELECTOR: &str = "  nodeSelector: { colour: green }\n  terminationGracePeriodSeconds: 1\n";
    let kinds = [
        ("bare", String::new(), String::new()),
        (
            "probed",
            String::new(),
            "    readinessProbe: { exec: { command: ['true'] }, periodSeconds: 5, timeoutSeconds: 60 }\n    \
             livenessProbe: { exec: { command: ['true'] }, periodSeconds: 10, timeoutSeconds: 60 }\n"
                .to_owned(),
        ),
        (
            "slow",
            String::new(),
            // Its first verdict comes late: until then only memory says that it is ready.
            "    readinessProbe: { exec: { command: ['true'] }, periodSeconds: 30, timeoutSeconds: 60 }\n    \
             startupProbe: { exec: { command: ['true'] }, periodSeconds: 1, timeoutSeconds: 60 }\n"
                .to_owned(),
        ),
        (
            "mounted",
            "  volumes: [{ name: c, configMap: { name: settings } }, { name: e, emptyDir: {} }]\n".to_owned(),
            "    volumeMounts: [{ name: c, mountPath: /c }, { name: e, mountPath: /e }]\n".to_owned(),
        ),
        (
            "sided",
            format!(
                "  initContainers:\n  - {{ name: side, image: localhost/busybox:v1, imagePullPolicy: Never, \
                 restartPolicy: Always, command: [sh, -c, {STAY:?}] }}\n"
            ),
            String::new(),
        ),
    ];
    let mut names = Vec::new();
    let mut text = CONFIG.to_owned();
    for (n, (kind, spec, fields)) in (0..count).zip(kinds.iter().cycle()) {
        names.push(format!("{kind}-{n}"));
        text += &pod(&names[n], &format!("{SELECTOR}{spec}"), fields, &format!("echo here; {STAY}"));
    }
    (names, text)
}

/// kubectl that goes on while other things happen.
struct Stream {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Stream {
    fn start(c: &Cluster, args: &[&str]) -> Stream {
        let mut command = c.node.command(c.kubectl_path());
        command.arg(format!("--kubeconfig={}", c.server.kubeconfig().display())).env("HOME", c.node.dir());
        let command = command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Stream { child, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(Duration::from_secs(60)).unwrap()
    }

    /// Its exit code, and what it printed since.
    fn end(mut self, within: Duration) -> (i32, Vec<String>) {
        let until = Instant::now() + within;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "a stream of a kubelet that is gone lives on");
            std::thread::sleep(Duration::from_millis(20));
        }
        (self.child.wait().unwrap().code().unwrap_or(-1), self.lines.iter().collect())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The calls that hang.
const CALLS: [&str; 2] = ["NodePublishVolume", "NodeUnpublishVolume"];

/// How the kubelet goes.
#[derive(Clone, Copy, Debug)]
enum Way {
    Killed,
    Stopped,
    Replaced,
}

/// What is under way when the kubelet goes: a hook after a start, a hook before an end, volumes that wait for what
/// they show, and calls to a driver that has not answered.
fn begin_things(c: &Cluster, driver: &CsiDriver, way: &str) {
    let grace = "  terminationGracePeriodSeconds: 20\n";
    let hook = |kind: &str| format!("    lifecycle: {{ {kind}: {{ exec: {{ command: [sleep, '4'] }} }} }}\n");
    let missing = format!("  volumes: [{{ name: c, configMap: {{ name: later-{way} }} }}]\n");
    let driven = "  terminationGracePeriodSeconds: 1\n  volumes: [{ name: c, csi: { driver: d.test } }]\n";
    let mount = "    volumeMounts: [{ name: c, mountPath: /c }]\n";
    c.create(&pod(&format!("leaving-{way}"), grace, &hook("preStop"), STAY));
    c.create(&pod(&format!("emptied-{way}"), driven, mount, STAY));
    for name in ["leaving", "emptied"] {
        c.wait_pod(&format!("{name}-{way}"), "ready", is_ready);
    }
    let before = CALLS.map(|call| driver.asked(call).len());
    CALLS.iter().for_each(|call| driver.hang(call));
    c.create(&pod(&format!("filled-{way}"), driven, mount, STAY));
    c.run(&["delete", "pod", &format!("emptied-{way}"), "--wait=false"]);
    c.create(&pod(&format!("coming-{way}"), "", &hook("postStart"), STAY));
    c.create(&pod(&format!("waiting-{way}"), &missing, mount, STAY));
    c.run(&["delete", "pod", &format!("leaving-{way}"), "--wait=false"]);
    c.eventually("begun", || {
        let shape = "jsonpath={range .items[*]}{.involvedObject.name}/{.reason} {end}";
        let events = c.run(&["get", "events", "-o", shape]);
        let all = [("coming", "Started"), ("leaving", "Killing"), ("waiting", "FailedMount")];
        let told = all.iter().all(|(name, reason)| events.contains(&format!("{name}-{way}/{reason} ")));
        let asked = CALLS.iter().zip(before).all(|(call, before)| driver.asked(call).len() > before);
        (told && asked).then_some(())
    });
}

fn end_things(c: &Cluster, driver: &CsiDriver, way: &str) {
    CALLS.iter().for_each(|call| driver.heal(call));
    let later =
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{ name: later-{way} }}\ndata: {{ a: b }}\n");
    c.create(&later);
    for name in ["waiting", "coming", "filled"] {
        c.wait_pod(&format!("{name}-{way}"), "ready", is_ready);
    }
    for name in ["leaving", "emptied"] {
        c.wait_pod_gone(&format!("{name}-{way}"));
    }
}

fn go(c: &mut Cluster, way: Way) {
    match way {
        Way::Killed => c.restart_agent(),
        Way::Stopped => {
            c.agent.stop().unwrap();
            c.start_agent();
        }
        Way::Replaced => {
            // As a package does it: under the name the unit starts.
            let next = c.node.dir().join("kubelet-next");
            fs::create_dir_all(&next).unwrap();
            let next = next.join("kubelet");
            fs::hard_link(c.binary(), &next).or_else(|_| fs::copy(c.binary(), &next).map(|_| ())).unwrap();
            c.replace_agent(&next);
        }
    }
}

/// People who look at some of the crowd when the kubelet goes.
fn look_on(c: &Cluster, names: &[String]) -> Vec<Stream> {
    let looking = names.iter().take(5).flat_map(|name| {
        let follow = Stream::start(c, &["logs", "-f", name, "-c", "main"]);
        let shell = Stream::start(c, &["exec", name, "-c", "main", "--", "sh", "-c", "echo here; sleep 600"]);
        [follow, shell]
    });
    let looking: Vec<Stream> = looking.collect();
    for stream in &looking {
        assert_eq!(stream.line(), "here");
    }
    looking
}

/// What kubectl makes of many objects.
#[derive(Deserialize)]
struct Items<T> {
    items: Vec<T>,
}

/// Each container of the crowd started once, was told of once, and nothing was ended or rejected.
fn check_events(c: &Cluster, names: &[String]) {
    let mut started: BTreeMap<String, i32> = BTreeMap::new();
    let events: Items<Event> = c.object(&["events"]).unwrap();
    for event in events.items {
        let name = event.involved_object.name.clone().unwrap_or_default();
        let reason = event.reason.clone().unwrap_or_default();
        if !names.contains(&name) {
            continue;
        }
        match reason.as_str() {
            "Started" => *started.entry(name).or_default() += event.count.unwrap_or(1),
            "Pulled" | "Created" => {}
            other => panic!("{name}: {other} {:?}", event.message),
        }
    }
    for name in names {
        let wanted = if name.starts_with("sided") { 2 } else { 1 };
        assert_eq!(started.get(name), Some(&wanted), "{name} was told of another number of starts");
    }
}

#[test]
fn a_kubelet_that_goes_in_any_way_is_not_missed() {
    let Some(mut c) = Cluster::usual() else { return };
    let count = std::env::var("LONGSHORE_PODS").ok().and_then(|n| n.parse().ok()).unwrap_or(PODS);
    c.run(&["label", "node", "demo", "colour=green"]);
    let (names, manifests) = crowd(count);
    c.create(&manifests);
    c.create(DRIVEN);
    let driver = CsiDriver::start(DRIVER, &c, "d.test", &[]);
    c.run(&["wait", "pod", "--all", "--for=condition=Ready", "--timeout=400s"]);
    let before: Items<Pod> = c.object(&["pods"]).unwrap();
    // What they were let in for is gone; who runs already is not asked again.
    c.run(&["label", "node", "demo", "colour=red", "--overwrite"]);
    let witness = Witness::start(&c);
    for way in [Way::Killed, Way::Stopped, Way::Replaced] {
        let name = format!("{way:?}").to_lowercase();
        let looking = look_on(&c, &names);
        begin_things(&c, &driver, &name);
        go(&mut c, way);
        for stream in looking {
            stream.end(Duration::from_secs(60));
        }
        end_things(&c, &driver, &name);
        let complaints = witness.complaints();
        assert!(complaints.is_empty(), "{way:?}:\n{}", complaints.join("\n"));
    }
    check_events(&c, &names);
    for old in &before.items {
        let new = c.pod(old.metadata.name.as_deref().unwrap()).unwrap();
        assert_eq!(old.status, new.status, "the status was touched");
    }
}

#[test]
fn streams_end_with_a_kubelet_that_goes_and_lose_nothing_before() {
    let Some(mut c) = Cluster::usual() else { return };
    let count = "trap exit TERM; n=0; while :; do n=$((n+1)); echo $n; sleep 0.1; done";
    c.create(&pod("teller", "  terminationGracePeriodSeconds: 1\n", "", count));
    c.wait_pod("teller", "ready", is_ready);
    for kill in [false, true] {
        let follow = c.eventually("followed", || {
            let follow = Stream::start(&c, &["logs", "-f", "teller"]);
            (follow.lines.recv_timeout(Duration::from_secs(5)).ok()? == "1").then_some(follow)
        });
        let shell = Stream::start(&c, &["exec", "teller", "--", "sh", "-c", "echo in; sleep 600"]);
        assert_eq!(shell.line(), "in");
        let begun = Instant::now();
        if kill {
            c.agent.kill9();
        } else {
            c.agent.stop().unwrap();
            assert!(begun.elapsed() < Duration::from_secs(14), "it waited {:?} for streams", begun.elapsed());
        }
        let (code, _) = shell.end(Duration::from_secs(10));
        assert_ne!(code, 0, "the command had not ended");
        let (_, lines) = follow.end(Duration::from_secs(10));
        let numbers: Vec<u64> = lines.iter().filter_map(|l| l.parse().ok()).collect();
        assert!(numbers.len() > 3, "{lines:?}");
        let wanted: Vec<u64> = (2..).take(numbers.len()).collect();
        assert_eq!(numbers, wanted, "a line was lost or said twice");
        c.start_agent();
    }
}

#[test]
fn a_corrupt_memory_is_set_aside_and_named() {
    let Some(mut c) = Cluster::usual() else { return };
    let probe =
        "    readinessProbe: { exec: { command: ['true'] }, periodSeconds: 30, timeoutSeconds: 20 }\n";
    c.create(&pod("web", "", probe, STAY));
    let web = c.wait_pod("web", "ready", is_ready);
    let dir = c.pod_dir(&web);
    c.agent.stop().unwrap();
    let witness = Witness::start(&c);
    let status = dir.join("status.json");
    let text = fs::read_to_string(&status).unwrap();
    fs::write(&status, text.replace("Running", "Failed!")).unwrap();
    fs::write(dir.join("userns"), "{").unwrap();
    for kind in ["pulling", "pulled"] {
        let dir = c.agent.root().join("image_manager").join(kind);
        fs::write(dir.join(format!("sha256-{}", "0".repeat(64))), "{").unwrap();
    }
    c.start_agent();
    c.create(&pod("next", "", "", STAY));
    c.wait_pod("next", "ready", is_ready);
    let complaints = witness.complaints();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    let log = fs::read_to_string(c.agent.log()).unwrap();
    for aside in ["status.json.corrupt", "userns.corrupt"] {
        let path = dir.join(aside);
        assert!(path.exists(), "{path:?} among {:?}", listing(&dir));
        assert!(log.contains(&path.display().to_string()), "nobody was told of {aside} of {}", uid(&web));
    }
}
