//! A node under attack by those who have some right or some container on it: nobody gets further than that, and nobody
//! else is hurt. Each attack is cheap beside starting a node, so they share one.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use base::rng::Rng;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::storage::v1::CSINode;
use tempfile::TempDir;
use testkit::cluster::{Cluster, ClusterOptions};
use testkit::csi::CsiDriver;
use testkit::harness::{container, is_ready, listing, phase, restarts, waiting_reason};
use testkit::node::{Agent, AgentOptions};
use testkit::witness::Witness;

const DRIVER: &str = env!("CARGO_BIN_EXE_csi_driver");
const STAY: &str = "trap exit TERM; while :; do sleep 0.2; done";
const PROBED: &str = "readinessProbe: { exec: { command: ['true'] }, periodSeconds: 1, timeoutSeconds: 60 }";
/// What only its Pod may see.
const SECRET: &str = "c2VzYW1lLW9wZW4tdGhl";

/// A Pod bound to the node. `spec` is more of its spec, `fields` more of its container, as flow YAML.
fn pod(name: &str, spec: &str, fields: &str, script: &str) -> String {
    let comma = if fields.is_empty() { "" } else { ", " };
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{ name: {name} }}\nspec:\n  nodeName: demo\n  \
         automountServiceAccountToken: false\n  terminationGracePeriodSeconds: 1\n{spec}  containers:\n  \
         - {{ name: main, image: localhost/busybox:v1, imagePullPolicy: Never, command: [sh, -c, {script:?}]{comma}{fields} }}\n"
    )
}

/// curl in the node's network: status and body.
fn curl(c: &Cluster, url: &str, token: &str, more: &[&str]) -> (u16, String) {
    let mut curl = c.node.command("curl");
    curl.args(["-sk", "-w", "\n%{http_code}", "--max-time", "60", "--path-as-is", "-g"]);
    if !token.is_empty() {
        curl.args(["-H", &format!("Authorization: Bearer {token}")]);
    }
    let out = curl.args(more).arg(url).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let (body, code) = text.rsplit_once('\n').unwrap();
    (code.parse().unwrap(), body.to_owned())
}

fn secure(c: &Cluster, path: &str, token: &str, more: &[&str]) -> (u16, String) {
    curl(c, &format!("https://{}:10250{path}", c.node.address()), token, more)
}

/// A service account that may do this to nodes/proxy, and a token of it.
fn account(c: &Cluster, name: &str, verbs: &str) -> String {
    c.run(&["create", "serviceaccount", name]);
    c.run(&[
        "create",
        "clusterrole",
        name,
        &format!("--verb={verbs}"),
        "--resource=nodes/proxy,nodes/log,nodes/checkpoint",
    ]);
    bind(c, name);
    c.run(&["create", "token", name]).trim().to_owned()
}

fn bind(c: &Cluster, name: &str) {
    let (role, who) = (format!("--clusterrole={name}"), format!("--serviceaccount=default:{name}"));
    c.run(&["create", "clusterrolebinding", name, &role, &who]);
}

/// What a journalctl is told, a line for each word, and who is asked about.
const JOURNALCTL: &str = "#!/bin/sh\n\
    [ \"$1\" = --field ] && { echo kubelet.service; exit 0; }\n\
    printf '<%s>\\n' \"$@\" >> \"$JOURNAL\"\n\
    case \"$*\" in *bomb*) exec sleep 987654 ;; esac\n\
    echo said\n";

/// A cluster whose reviews are remembered for a second, whose logs can be queried, and whose journal is ours.
fn cluster() -> Option<(Cluster, TempDir)> {
    let config = "authentication: { anonymous: { enabled: false }, webhook: { enabled: true, cacheTTL: 1s } }\n\
         authorization: { mode: Webhook, webhook: { cacheAuthorizedTTL: 1s, cacheUnauthorizedTTL: 1s } }\n\
         enableSystemLogHandler: true\nenableSystemLogQuery: true\n";
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("journalctl");
    fs::write(&program, JOURNALCTL).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let journal = dir.path().join("asked").display().to_string();
    let env = vec![("PATH".to_owned(), path), ("JOURNAL".to_owned(), journal)];
    let agent = AgentOptions { config: config.to_owned(), env, ..AgentOptions::default() };
    let c = Cluster::start(ClusterOptions { agent, ..ClusterOptions::default() })?;
    let address = "jsonpath={.status.addresses[0].address}";
    c.eventually("known", || Some(c.run(&["get", "node", "demo", "-o", address])).filter(|a| !a.is_empty()));
    Some((c, dir))
}

#[test]
fn rights_end_where_they_end_and_the_open_port_tells_no_secret() {
    let Some((c, dir)) = cluster() else { return };
    let secret = format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{ name: key }}\nstringData: {{ word: {SECRET} }}\n"
    );
    c.create(&secret);
    let env = "env: [{ name: WORD, valueFrom: { secretKeyRef: { name: key, key: word } } }], \
               volumeMounts: [{ name: v, mountPath: /v }]";
    let volume = "  volumes: [{ name: v, secret: { secretName: key } }]\n";
    c.create(&pod("box", volume, env, STAY));
    c.wait_pod("box", "ready", is_ready);
    assert_eq!(
        c.exec("box", "main", &["sh", "-c", "echo $WORD; cat /v/word"]),
        format!("{SECRET}\n{SECRET}")
    );
    the_open_port_tells_no_secret(&c);
    rights_that_are_taken_back_are_gone(&c);
    let admin = account(&c, "boss", "*");
    no_query_of_logs_leaves_its_place(&c, &admin, dir.path());
    a_checkpoint_is_made_where_it_belongs_or_not_at_all(&c, &admin);
}

/// Port 10255, where nobody is asked who he is.
fn the_open_port_tells_no_secret(c: &Cluster) {
    let shown = [
        "/pods",
        "/metrics",
        "/metrics/cadvisor",
        "/metrics/resource",
        "/metrics/probes",
        "/stats/summary",
        "/healthz",
    ];
    let hidden = [
        "/configz",
        "/runningpods/",
        "/logs/",
        "/exec/default/box/main?command=env&output=1",
        "/run/default/box/main?cmd=env",
        "/attach/default/box/main?output=1",
        "/portForward/default/box",
        "/containerLogs/default/box/main",
        "/checkpoint/default/box/main",
        "/debug/pprof/heap",
        "/debug/flags/v",
        "/flagz",
        "/statusz",
        "/pods/../configz",
        "//configz",
        "/%63onfigz",
        "/secrets",
        "/",
    ];
    let at = format!("http://127.0.0.1:{}", Agent::READ_ONLY);
    let methods = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"];
    for path in shown.iter().chain(&hidden) {
        for method in methods {
            let (code, body) = curl(c, &format!("{at}{path}"), "", &["-X", method]);
            match shown.contains(path) {
                true => assert!(code == 200 || method != "GET", "{method} {path}: {code} {body}"),
                false => assert!(matches!(code, 404 | 405), "{method} {path}: {code} {body}"),
            }
            assert!(!body.contains(SECRET), "{method} {path} tells a secret");
        }
    }
    let upgrade =
        ["-HConnection: Upgrade", "-HUpgrade: SPDY/3.1", "-HX-Stream-Protocol-Version: v4.channel.k8s.io"];
    for path in ["/exec/default/box/main?command=env&output=1", "/portForward/default/box"] {
        let (code, _) = curl(c, &format!("{at}{path}"), "", &[&["-X", "POST"], &upgrade[..]].concat());
        assert_eq!(code, 405, "{path}");
    }
}

/// Tokens, rights and their absence are remembered for as long as configured, and no longer.
fn rights_that_are_taken_back_are_gone(c: &Cluster) {
    let codes = |token: &str| secure(c, "/pods", token, &[]).0;
    let reader = account(c, "reader", "get");
    assert_eq!(codes(&reader), 200);
    c.run(&["delete", "clusterrolebinding", "reader"]);
    c.eventually("forbidden", || (codes(&reader) == 403).then_some(()));
    // A refusal is not for ever either.
    bind(c, "reader");
    c.eventually("allowed again", || (codes(&reader) == 200).then_some(()));
    c.run(&["delete", "serviceaccount", "reader"]);
    c.eventually("nobody's", || (codes(&reader) == 401).then_some(()));
    // An account of the same name is another one.
    c.run(&["create", "serviceaccount", "reader"]);
    let fresh = c.run(&["create", "token", "reader"]).trim().to_owned();
    c.eventually("the new one is known", || (codes(&fresh) == 200).then_some(()));
    assert_eq!(codes(&reader), 401);
}

/// Nothing of a query is read by a shell or taken for an option, and a search ends with whoever wanted it.
fn no_query_of_logs_leaves_its_place(c: &Cluster, token: &str, dir: &Path) {
    let witness = dir.join("witness");
    let shell = format!("touch${{IFS}}{}", witness.display());
    let names = [
        format!("$({shell})"),
        format!("`{shell}`"),
        format!("kubelet;{shell}"),
        format!("kubelet|{shell}"),
        format!("kubelet\n{shell}"),
        "kubelet\r".to_owned(),
        "--file=/etc/shadow".to_owned(),
        "-D/etc".to_owned(),
        "kube let".to_owned(),
        "кубелет".to_owned(),
        "k".repeat(257),
        "/../../etc/passwd".to_owned(),
        "/../../../../proc/self/environ".to_owned(),
        "..".to_owned(),
        ".".to_owned(),
    ];
    let ask = |words: &[String]| {
        let mut more = vec!["-G".to_owned()];
        words.iter().for_each(|word| more.extend(["--data-urlencode".to_owned(), word.clone()]));
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        secure(c, "/logs/", token, &more)
    };
    for name in names {
        let (code, body) = ask(&[format!("query={name}")]);
        let refused =
            matches!(code, 400 | 403 | 404 | 406) || body.trim() == format!("log not found for {name}");
        assert!(refused && !body.contains("root:"), "{name:?}: {code} {body}");
    }
    assert!(!witness.exists(), "a shell has read a name");
    let asked = dir.join("asked");
    assert!(!asked.exists(), "the journal was asked: {:?}", fs::read_to_string(&asked));
    let pattern = format!("(a+)+$ --file=/etc/shadow\n$({shell})");
    let (code, body) = ask(&["query=kubelet".into(), format!("pattern={pattern}"), "tailLines=5".into()]);
    assert_eq!((code, body.as_str()), (200, "said\n"));
    let words = fs::read_to_string(&asked).unwrap();
    assert!(words.ends_with(&format!("<--lines=5>\n<--unit=kubelet>\n<--grep={pattern}>\n")), "{words}");
    assert!(!witness.exists(), "a shell has read a pattern");
    searches_end_with_their_readers(c, token);
}

/// A pattern can be made to cost much. Who asks and leaves must not leave a search behind, and not all may ask at once.
fn searches_end_with_their_readers(c: &Cluster, token: &str) {
    let url = format!("https://{}:10250/logs/?query=kubelet&pattern=bomb", c.node.address());
    let start = || {
        let mut curl = c.node.command("curl");
        curl.args([
            "-sk",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "-H",
            &format!("Authorization: Bearer {token}"),
        ]);
        curl.arg(&url).stdout(Stdio::piped()).spawn().unwrap()
    };
    let searching = || {
        let all = c.node.census().processes;
        all.iter().filter(|p| p.ends_with(" sleep")).filter(|p| told(p).contains("987654")).count()
    };
    let mut clients: Vec<Child> = (0..16).map(|_| start()).collect();
    c.eventually("all search", || (searching() == 16).then_some(()));
    let (code, body) = secure(c, "/logs/?query=kubelet", token, &[]);
    assert_eq!((code, body.as_str()), (429, "16 queries of logs are under way on this node\n"));
    assert_eq!(secure(c, "/pods", token, &[]).0, 200, "others are served");
    for client in &mut clients {
        client.kill().unwrap();
        client.wait().unwrap();
    }
    c.eventually("all ended", || (searching() == 0).then_some(()));
    c.eventually("served again", || (secure(c, "/logs/?query=kubelet", token, &[]).0 == 200).then_some(()));
}

/// What a process of a census was told.
fn told(process: &str) -> String {
    let pid = process.split(' ').next().unwrap_or_default();
    fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default()
}

fn a_checkpoint_is_made_where_it_belongs_or_not_at_all(c: &Cluster, token: &str) {
    let reader = c.run(&["create", "token", "reader"]).trim().to_owned();
    let ask = |path: &str, token: &str| secure(c, &format!("/checkpoint/{path}"), token, &["-X", "POST"]);
    assert_eq!(ask("default/box/main", &reader).0, 403, "it writes memory of others to a disk");
    assert_eq!(ask("default/box/main", "").0, 401);
    let tricks = [
        "default/..%2f..%2f..%2ftmp%2fx/main",
        "default/box/..%2f..%2f..%2ftmp%2fx",
        "..%2f..%2ftmp/box/main",
        "default/box/%00",
        "default/box/nobody",
    ];
    for path in tricks {
        let (code, body) = ask(path, token);
        assert!(matches!(code, 400 | 404), "{path}: {code} {body}");
    }
    let places = || listing(&c.agent.root().join("checkpoints"));
    assert_eq!(places(), Vec::<PathBuf>::new());
    assert_eq!(c.agent.root().join("checkpoints").metadata().unwrap().permissions().mode() & 0o777, 0o700);
    // Without criu the runtime refuses. With it the file is below our root, and only root reads it.
    let (code, body) = ask("default/box/main?timeout=20", token);
    match code {
        200 => assert_eq!(places().len(), 1, "{body}"),
        _ => assert!(
            code == 500 && body.starts_with("checkpointing of default/box/main failed ("),
            "{code} {body}"
        ),
    }
    assert!(is_ready(&c.pod("box").unwrap()));
}

/// kubectl with pipes. Killed when dropped.
struct Forward(Child);

impl Forward {
    fn start(c: &Cluster, pod: &str, ports: &str) -> Forward {
        let mut command = c.node.command(c.kubectl_path());
        command.arg(format!("--kubeconfig={}", c.server.kubeconfig().display())).env("HOME", c.node.dir());
        let command = command.args(["port-forward", pod]).args(ports.split(' '));
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for _ in ports.split(' ') {
            assert!(lines.next().unwrap().unwrap().contains("Forwarding from"));
        }
        std::thread::spawn(move || lines.for_each(drop));
        Forward(child)
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_pod_that_attacks_its_node_hurts_itself_alone() {
    let config = "podPidsLimit: 120\ncrashLoopBackOff: { maxContainerRestartPeriod: 1s }\n";
    let Some(c) = Cluster::with_config(config) else { return };
    let census = c.node.census();
    c.create(&pod("calm", "", PROBED, "mkdir /www; echo hi > /www/hi; exec httpd -f -p 8080 -h /www"));
    c.wait_pod("calm", "ready", is_ready);
    let witness = Witness::start(&c);
    a_forwarded_port_is_the_pods(&c);
    a_termination_log_leads_nowhere(&c);
    large_secrets_are_large_and_no_more(&c);
    names_of_drivers_end_with_their_sockets(&c);
    a_fork_bomb_stays_in_its_pod(&c);
    let complaints = witness.complaints();
    let others: Vec<&String> = complaints.iter().filter(|l| l.starts_with("calm")).collect();
    assert!(others.is_empty(), "{others:?}");
    c.run(&["delete", "pod", "--all", "--timeout=60s"]);
    drop(witness);
    c.wait_clean(&census);
}

/// What listens on the node's loopback is not the Pod's, whatever port is named.
fn a_forwarded_port_is_the_pods(c: &Cluster) {
    let _forward = Forward::start(c, "calm", "18080:8080 18081:10255 18082:10248 18083:10250");
    let get = |port: u16, path: &str| curl(c, &format!("http://127.0.0.1:{port}{path}"), "", &[]);
    assert_eq!(curl(c, "http://127.0.0.1:10248/healthz", "", &[]).0, 200, "the node has it");
    c.eventually("forwarded", || (get(18080, "/hi") == (200, "hi\n".to_owned())).then_some(()));
    for port in [18081, 18082, 18083] {
        assert_eq!(get(port, "/healthz").0, 0, "port {port} leads out of the Pod");
    }
}

/// The file is ours, in the container it is a mount: it cannot be exchanged, and what is planted in a volume at its place
/// leads around inside the container at most.
fn a_termination_log_leads_nowhere(c: &Cluster) {
    let script = "for t in /dev/termination-log /v/log; do rm -f $t; ln -sf /proc/1/environ $t; done; \
                  rm -f /dev/termination-log && ln -s /etc/shadow /dev/termination-log; exit 3";
    let init = |plant: &str| {
        format!(
            "  restartPolicy: Never\n  volumes: [{{ name: v, emptyDir: {{}} }}]\n  initContainers:\n  \
             - {{ name: plant, image: localhost/busybox:v1, imagePullPolicy: Never, command: [sh, -c, {plant:?}], \
             volumeMounts: [{{ name: v, mountPath: /v }}] }}\n"
        )
    };
    let mount = "volumeMounts: [{ name: v, mountPath: /v }]";
    c.create(&pod("exchanger", &init("true"), mount, script));
    let planted = format!("{mount}, terminationMessagePath: /v/log");
    c.create(&pod("planter", &init("ln -s /etc/shadow /v/log"), &planted, "echo mine > /v/log; exit 3"));
    for name in ["exchanger", "planter"] {
        let ended = c.wait_pod(name, "ended", |p| {
            phase(p) == "Failed" || waiting_reason(p, "main") == "RunContainerError" || !message(p).is_empty()
        });
        assert!(!message(&ended).contains("root:"), "{name}: {}", message(&ended));
    }
}

fn message(pod: &Pod) -> String {
    let state = container(pod, "main").and_then(|c| c.state.clone());
    state.and_then(|s| s.terminated?.message).unwrap_or_default()
}

/// As large as the API server takes them, several at once: in volumes they arrive whole, and where they cannot be (the
/// kernel takes no such variable) the Pod is told.
fn large_secrets_are_large_and_no_more(c: &Cluster) {
    const MANY: usize = 8;
    let file = c.node.dir().join("large");
    fs::write(&file, "x".repeat(1 << 20)).unwrap();
    for n in 0..MANY {
        c.run(&[
            "create",
            "secret",
            "generic",
            &format!("large-{n}"),
            &format!("--from-file=data={}", file.display()),
        ]);
    }
    let (mut volumes, mut mounts) = (Vec::new(), Vec::new());
    for n in 0..MANY {
        volumes.push(format!("{{ name: v{n}, secret: {{ secretName: large-{n} }} }}"));
        mounts.push(format!("{{ name: v{n}, mountPath: /v{n} }}"));
    }
    let spec = format!("  volumes: [{}]\n", volumes.join(", "));
    let mounts = format!("volumeMounts: [{}]", mounts.join(", "));
    for name in ["holder-1", "holder-2", "holder-3"] {
        c.create(&pod(name, &spec, &mounts, STAY));
    }
    let env = "env: [{ name: X, valueFrom: { secretKeyRef: { name: large-0, key: data } } }]";
    c.create(&pod("teller", "", env, STAY));
    for name in ["holder-1", "holder-2", "holder-3"] {
        c.wait_pod(name, "ready", is_ready);
    }
    assert_eq!(
        c.exec("holder-2", "main", &["sh", "-c", "cat /v*/data | wc -c"]).trim(),
        (MANY << 20).to_string()
    );
    c.wait_pod("teller", "told", |p| {
        restarts(p, "main") > 0
            || !waiting_reason(p, "main").is_empty() && waiting_reason(p, "main") != "ContainerCreating"
    });
    c.run(&["delete", "pod", "teller", "holder-1", "holder-2", "holder-3", "--timeout=60s"]);
}

fn a_fork_bomb_stays_in_its_pod(c: &Cluster) {
    c.create(&pod("bomb", "", "", "b() { b | b & }; while :; do b; sleep 0.1; done"));
    c.create(&pod("after", "", PROBED, STAY));
    let limited = || {
        let log = c.kubectl(&["logs", "bomb"]).out;
        log.contains("fork").then_some(())
    };
    c.eventually("at its limit", limited);
    c.wait_pod("after", "ready", is_ready);
    c.run(&["delete", "pod", "bomb", "--timeout=100s"]);
}

/// A plugin that calls itself otherwise each time it is asked leaves nothing behind, and takes nobody's place.
fn names_of_drivers_end_with_their_sockets(c: &Cluster) {
    let honest = CsiDriver::start(DRIVER, c, "d.test", &[]);
    let names = || -> Vec<String> {
        let object: CSINode = c.object(&["csinode", "demo"]).unwrap();
        object.spec.drivers.into_iter().map(|d| d.name).collect()
    };
    c.eventually("registered", || (names() == ["d.test"]).then_some(()));
    let mut liar = CsiDriver::start(DRIVER, c, "liar.test", &[]);
    c.eventually("known", || names().contains(&"liar.test".to_owned()).then_some(()));
    liar.stop();
    c.eventually("gone", || (names() == ["d.test"]).then_some(()));
    // Refused under its first name, let in under its second.
    liar.fail("NodeGetInfo", 13);
    liar.restart(c);
    c.eventually("refused", || {
        liar.asked("NotifyRegistrationStatus").last().filter(|t| t["registered"] == false).cloned()
    });
    liar.call_itself("other.test");
    liar.heal("NodeGetInfo");
    c.eventually("known again", || names().contains(&"other.test".to_owned()).then_some(()));
    liar.stop();
    c.eventually("gone under both", || (names() == ["d.test"]).then_some(()));
    // Another's name is taken already.
    liar.call_itself("d.test");
    liar.restart(c);
    c.eventually("refused as another", || {
        let told = liar.asked("NotifyRegistrationStatus").pop()?;
        told["error"].as_str()?.contains("already registered").then_some(())
    });
    liar.stop();
    assert_eq!(names(), ["d.test"]);
    assert_eq!(honest.asked("NotifyRegistrationStatus").last().unwrap()["registered"], true);
}

/// Somebody who watches the Pods sees nothing of a kubelet that dies fifty times, at any moment of its short lives.
#[test]
fn fifty_kills_flip_no_readiness() {
    const KILLS: u64 = 50;
    let Some(mut c) = Cluster::usual() else { return };
    let slow = PROBED.replace("periodSeconds: 1", "periodSeconds: 30");
    let alive = PROBED.replace("readinessProbe", "livenessProbe");
    let side = format!(
        "  initContainers:\n  - {{ name: side, image: localhost/busybox:v1, imagePullPolicy: Never, restartPolicy: \
         Always, command: [sh, -c, {STAY:?}], {} }}\n",
        PROBED.replace("readinessProbe", "startupProbe")
    );
    let kinds = [
        ("bare", "", String::new()),
        ("quick", "", format!("{PROBED}, {alive}")),
        ("slow", "", slow),
        ("sided", side.as_str(), PROBED.to_owned()),
    ];
    for (name, spec, fields) in &kinds {
        c.create(&pod(name, spec, fields, STAY));
    }
    for (name, ..) in &kinds {
        c.wait_pod(name, "ready", is_ready);
    }
    let witness = Witness::start(&c);
    let mut rng = Rng::new(20);
    for kill in 0..KILLS {
        c.agent.kill9();
        c.spawn_agent();
        // Now and then it gets so far as to probe; mostly it is killed while it looks around.
        match kill % 5 {
            0 => c.wait_until_up(),
            _ => std::thread::sleep(rng.up_to(Duration::from_millis(400))),
        }
    }
    c.wait_until_up();
    // It has caught up when it runs something new.
    c.create(&pod("last", "", PROBED, STAY));
    c.wait_pod("last", "ready", is_ready);
    let complaints = witness.complaints();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}
