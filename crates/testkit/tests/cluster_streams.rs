//! kubectl through our API server and our kubelet into containers of a real containerd: logs, exec, attach, cp,
//! port-forward, run, debug; and who is turned away at port 10250.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use testkit::cluster::{Cluster, ClusterOptions};
use testkit::harness::is_ready;
use testkit::node::{AgentOptions, Kubectl};

const STAY: &str = "trap exit TERM; while :; do sleep 0.1; done";

/// A Pod bound to the node. `fields` are more fields of its container, as flow YAML.
fn pod(name: &str, spec: &str, fields: &str, script: &str) -> String {
    let comma = if fields.is_empty() { "" } else { ", " };
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{ name: {name} }}\nspec:\n  nodeName: demo\n  \
         automountServiceAccountToken: false\n  terminationGracePeriodSeconds: 1\n{spec}  containers:\n  \
         - {{ name: main, image: localhost/busybox:v1, command: [sh, -c, {script:?}]{comma}{fields} }}\n"
    )
}

/// A cluster whose API server knows where its node is.
fn cluster(kubectl: Kubectl, config: &str) -> Option<Cluster> {
    let agent = AgentOptions { config: config.to_owned(), ..AgentOptions::default() };
    let c = Cluster::start(ClusterOptions { kubectl, agent, ..ClusterOptions::default() })?;
    let address = "jsonpath={.status.addresses[0].address}";
    c.eventually("known", || Some(c.run(&["get", "node", "demo", "-o", address])).filter(|a| !a.is_empty()));
    Some(c)
}

/// kubectl with pipes at both ends. Killed when dropped.
struct Piped {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Drop for Piped {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Piped {
    fn start(c: &Cluster, args: &[&str]) -> Self {
        let mut command = command(c);
        let mut child = command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, stdin, stdout }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    fn say(&mut self, text: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(text.as_bytes()).unwrap();
        stdin.flush().unwrap();
    }

    /// Closes its input and waits for it: exit code and what is left of its output.
    fn finish(mut self) -> (i32, String) {
        drop(self.stdin.take());
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code().unwrap_or(-1), rest)
    }
}

fn command(c: &Cluster) -> Command {
    let mut command = c.node.command(c.kubectl_path());
    command.arg(format!("--kubeconfig={}", c.server.kubeconfig().display())).env("HOME", c.node.dir());
    command
}

/// Every one of these is typed into the kubectl of our release and into the oldest that we promise to serve.
macro_rules! with_each_kubectl {
    ($($what:ident),+ $(,)?) => {
        mod kubectl_1_36 {
            $(#[test] fn $what() { super::$what(super::Kubectl::V1_36); })+
        }
        mod kubectl_1_32 {
            $(#[test] fn $what() { super::$what(super::Kubectl::V1_32); })+
        }
    };
}

with_each_kubectl!(
    logs_of_every_kind,
    commands_with_input_output_and_exit_codes,
    large_input_and_output_arrive_whole,
    a_terminal_is_a_terminal,
    one_attaches_runs_and_debugs,
    ports_are_forwarded_for_many_at_once,
    one_waits_and_describes,
);

fn logs_of_every_kind(kubectl: Kubectl) {
    let Some(c) = cluster(kubectl, "crashLoopBackOff: { maxContainerRestartPeriod: 1s }\n") else { return };
    let script = "for i in 1 2 3 4 5; do echo line $i; done; sleep 0.3; echo wrong >&2; \
                  trap exit TERM; while [ ! -e /tmp/more ]; do sleep 0.1; done; echo last; sleep 1000";
    c.create(&pod("web", "", "", script));
    c.create(&pod("crash", "", "", "echo instance; exit 1"));
    c.create(&pod("never", "", "imagePullPolicy: Never", "true").replace("busybox:v1", "nothing:v0"));
    c.wait_pod("web", "ready", is_ready);
    let all = c.eventually("written", || Some(c.run(&["logs", "web"])).filter(|t| t.contains("wrong")));
    assert_eq!(all, "line 1\nline 2\nline 3\nline 4\nline 5\nwrong\n");
    assert_eq!(c.run(&["logs", "web", "--tail=2"]), "line 5\nwrong\n");
    assert_eq!(c.run(&["logs", "web", "--tail=0"]), "");
    assert_eq!(c.run(&["logs", "web", "--limit-bytes=9"]), "line 1\nli");
    assert_eq!(c.run(&["logs", "web", "--since=1h", "--tail=1"]), "wrong\n");
    assert_eq!(c.run(&["logs", "web", "--since-time=2099-01-01T00:00:00Z"]), "");
    let stamped = c.run(&["logs", "web", "--timestamps", "--tail=1"]);
    let (time, text) = stamped.split_once(' ').unwrap();
    assert!(text == "wrong\n" && time.ends_with('Z') && time.len() == 30, "{stamped}");
    let mut follower = Piped::start(&c, &["logs", "-f", "web", "--tail=1"]);
    assert_eq!(follower.line(), "wrong\n");
    c.run(&["exec", "web", "--", "touch", "/tmp/more"]);
    assert_eq!(follower.line(), "last\n");
    c.run(&["delete", "pod", "web", "--timeout=30s"]);
    assert_eq!(follower.finish(), (0, String::new()), "the follower ends with the container");

    c.eventually("restarted", || {
        let answer = c.kubectl(&["logs", "crash", "--previous"]);
        (answer.code == 0 && answer.out == "instance\n").then_some(())
    });
    let refused = |args: &[&str], text: &str| {
        let answer = c.kubectl(args);
        assert!(answer.code != 0 && answer.err.contains(text), "{args:?}: {}{}", answer.out, answer.err);
    };
    c.eventually("explained", || {
        let answer = c.kubectl(&["logs", "never"]);
        answer
            .err
            .contains("container \"main\" in pod \"never\" is waiting to start: ErrImageNeverPull")
            .then_some(())
    });
    refused(
        &["logs", "never", "--previous"],
        "previous terminated container \"main\" in pod \"never\" not found",
    );
    refused(&["logs", "crash", "-c", "other"], "container other is not valid for pod crash");
}

#[test]
fn a_follower_loses_and_repeats_nothing_when_logs_are_rotated() {
    let config = "containerLogMaxSize: 20Ki\ncontainerLogMaxFiles: 5\ncontainerLogMonitorInterval: 3s\n";
    let Some(c) = cluster(Kubectl::default(), config) else { return };
    let script = "echo begin; while [ ! -e /tmp/go ]; do sleep 0.1; done; \
                  i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo number $i of some more text; \
                  [ $((i % 100)) = 0 ] && sleep 0.4; done; sleep 2";
    c.create(&pod("talk", "  restartPolicy: Never\n", "", script));
    c.wait_pod("talk", "ready", is_ready);
    let mut follower = Piped::start(&c, &["logs", "-f", "talk"]);
    assert_eq!(follower.line(), "begin\n");
    c.run(&["exec", "talk", "--", "touch", "/tmp/go"]);
    let (code, text) = follower.finish();
    let expected: String = (1..=3000).map(|i| format!("number {i} of some more text\n")).collect();
    let differs = text.lines().zip(expected.lines()).find(|(a, b)| a != b);
    assert_eq!((code, differs, text.len()), (0, None, expected.len()));
}

fn commands_with_input_output_and_exit_codes(kubectl: Kubectl) {
    let Some(c) = cluster(kubectl, "") else { return };
    c.create(&pod("box", "", "", STAY));
    c.wait_pod("box", "ready", is_ready);
    assert_eq!(c.run(&["exec", "box", "--", "echo", "a b", "$c"]), "a b $c\n");
    let answer = c.kubectl(&["exec", "box", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!((answer.code, answer.out.as_str()), (7, "out\n"));
    assert!(answer.err.starts_with("err\n") && answer.err.contains("exit code 7"), "{}", answer.err);
    let answer = c.kubectl(&["exec", "box", "--", "no-such-command"]);
    assert!(answer.code != 0 && answer.err.contains("no-such-command"), "{}", answer.err);
    let answer = c.kubectl(&["exec", "box", "-c", "nobody", "--", "true"]);
    assert!(answer.code != 0 && answer.err.contains("nobody"), "{}", answer.err);
    // Input ends where it ends, and not before.
    let answer = c.kubectl_with(&["exec", "-i", "box", "--", "sh", "-c", "cat; echo done"], "one\ntwo\n");
    assert_eq!((answer.code, answer.out.as_str()), (0, "one\ntwo\ndone\n"));
    let mut shell = Piped::start(&c, &["exec", "-i", "box", "--", "sh"]);
    for word in ["first", "second"] {
        shell.say(&format!("echo {word}\n"));
        assert_eq!(shell.line(), format!("{word}\n"));
    }
    shell.say("exit 3\n");
    assert_eq!(shell.finish().0, 3);
}

fn large_input_and_output_arrive_whole(kubectl: Kubectl) {
    let Some(c) = cluster(kubectl, "") else { return };
    c.create(&pod("box", "", "", STAY));
    c.wait_pod("box", "ready", is_ready);
    let numbers: String = (0..2_000_000).map(|i| format!("{i:07}\n")).collect();
    let file = c.node.dir().join("numbers");
    fs::write(&file, &numbers).unwrap();
    let sum = |text: &str| {
        let mut child = Command::new("md5sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    };
    let mut echo = command(&c);
    let out =
        echo.args(["exec", "-i", "box", "--", "cat"]).stdin(fs::File::open(&file).unwrap()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(sum(&String::from_utf8(out.stdout).unwrap()), sum(&numbers));
    // And both ways as files.
    let there = file.display().to_string();
    c.run(&["cp", &there, "box:/tmp/numbers"]);
    assert_eq!(c.run(&["exec", "box", "--", "md5sum", "/tmp/numbers"])[..32], sum(&numbers)[..32]);
    let back = c.node.dir().join("back").display().to_string();
    c.run(&["cp", "box:/tmp/numbers", &back]);
    assert_eq!(sum(&fs::read_to_string(&back).unwrap()), sum(&numbers));
}

/// What a command prints on a terminal of 33 lines of 101 columns while somebody types `hello` into it.
fn typed(c: &Cluster, line: &str) -> String {
    let line = format!("stty rows 33 cols 101; exec {line}");
    let mut script = c.node.command("script");
    script.args(["-qec", &line, "/dev/null"]).env("HOME", c.node.dir());
    let mut child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let typed = child.stdin.as_mut().unwrap().write_all(b"hello\n");
    let out = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(typed.is_ok() && out.status.code() == Some(5), "{:?} {text}", out.status);
    text
}

fn a_terminal_is_a_terminal(kubectl: Kubectl) {
    let Some(c) = cluster(kubectl, "") else { return };
    c.create(&pod("box", "", "", STAY));
    c.wait_pod("box", "ready", is_ready);
    let command = "sh -c 'tty; until stty size 2>/dev/null | grep -v ^0; do sleep 0.1; done; read x; echo got $x; exit 5'";
    let kubectl = format!("{} --kubeconfig={}", c.kubectl_path().display(), c.server.kubeconfig().display());
    let own = std::env::var("LONGSHORE_BINARY").unwrap();
    let pods = format!("{own} pods exec --socket {} -it box -- {command}", c.agent.socket().display());
    for line in [format!("{kubectl} exec -it box -- {command}"), pods] {
        let text = typed(&c, &line);
        for part in ["/dev/pts/", "33 101", "got hello"] {
            assert!(text.contains(part), "{line}: no {part:?} in {text:?}");
        }
    }
    let mut child = c.node.command(own);
    child.args(["pods", "exec", "--socket"]).arg(c.agent.socket());
    child.args(["-i", "box", "--", "sh", "-c", "cat; echo wrong >&2; exit 6"]);
    let child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap();
    child.stdin.take().unwrap().write_all(b"one\ntwo\n").unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!(
        (out.status.code(), out.stdout, out.stderr),
        (Some(6), b"one\ntwo\n".to_vec(), b"wrong\n".to_vec())
    );
}

/// With a terminal of the command's own, the runtime would hang it up as soon as the input has ended, output or not.
#[test]
fn a_command_whose_input_is_no_terminal_gets_none_and_loses_nothing() {
    let Some(c) = cluster(Kubectl::default(), "") else { return };
    c.create(&pod("box", "", "", STAY));
    c.wait_pod("box", "ready", is_ready);
    let own = std::env::var("LONGSHORE_BINARY").unwrap();
    for turn in 0..40 {
        let mut child = c.node.command(&own);
        child.args(["pods", "exec", "--socket"]).arg(c.agent.socket());
        child.args(["-it", "box", "--", "sh", "-c", "cat; echo out; exit 6"]);
        let out = child.stdin(Stdio::null()).output().unwrap();
        assert_eq!((out.status.code(), out.stdout.as_slice()), (Some(6), b"out\n".as_slice()), "turn {turn}");
        let told = "Unable to use a TTY - input is not a terminal or the right kind of file\n";
        assert_eq!(String::from_utf8_lossy(&out.stderr), told);
    }
}

/// CRI has no call that ends a command. What we can do is close its input, which is all that most of them wait for.
#[test]
fn a_command_that_reads_ends_when_its_client_is_gone() {
    let Some(c) = cluster(Kubectl::default(), "") else { return };
    c.create(&pod("box", "", "", STAY));
    c.wait_pod("box", "ready", is_ready);
    for _ in 0..5 {
        let mut reader = Piped::start(&c, &["exec", "-i", "box", "--", "sh", "-c", "echo begun; exec cat"]);
        assert_eq!(reader.line(), "begun\n");
        drop(reader);
    }
    let left = || c.kubectl(&["exec", "box", "--", "pidof", "cat"]);
    c.eventually("gone", || Some(left()).filter(|a| a.code == 1 && a.out.is_empty()));
}

fn one_attaches_runs_and_debugs(kubectl: Kubectl) {
    let Some(c) = cluster(kubectl, "") else { return };
    let script = "while read line; do echo heard $line; [ $line = end ] && exit 0; done";
    c.create(&pod("ears", "  restartPolicy: Never\n", "stdin: true, stdinOnce: true", script));
    c.wait_pod("ears", "ready", is_ready);
    let mut attached = Piped::start(&c, &["attach", "-i", "-q", "ears"]);
    attached.say("one\n");
    assert_eq!(attached.line(), "heard one\n");
    attached.say("end\n");
    assert_eq!(attached.finish(), (0, "heard end\n".to_owned()));

    let overrides = r#"{"spec":{"nodeName":"demo","automountServiceAccountToken":false}}"#;
    let run = ["run", "once", "--rm", "-i", "-q", "--restart=Never", "--image=localhost/busybox:v1"];
    let more = ["--overrides", overrides, "--", "sh", "-c", "cat; echo bye; exit 0"];
    let answer = c.kubectl_with(&[&run[..], &more[..]].concat(), "hello\n");
    assert!(answer.code == 0 && answer.out.contains("hello\nbye\n"), "{}{}", answer.out, answer.err);
    assert!(c.pod("once").is_none());

    c.create(&pod("box", "", "", STAY));
    c.wait_pod("box", "ready", is_ready);
    let debug = ["debug", "box", "-i", "-q", "--image=localhost/busybox:v1", "--target=main", "--"];
    let script = ["sh", "-c", "read x; echo saw $x $(ps | grep -c sleep); read x"];
    let mut debugging = Piped::start(&c, &[&debug[..], &script[..]].concat());
    debugging.say("it\n");
    let seen = debugging.line();
    assert!(seen.starts_with("saw it ") && seen.trim() != "saw it 0", "{seen:?}");
    debugging.say("enough\n");
    assert_eq!(debugging.finish().0, 0);
}

fn ports_are_forwarded_for_many_at_once(kubectl: Kubectl) {
    let Some(c) = cluster(kubectl, "") else { return };
    let script = "mkdir /www; head -c 5000000 /dev/zero > /www/zeros; echo hi > /www/hi; exec httpd -f -p 8080 -h /www";
    c.create(&pod("web", "", "readinessProbe: { tcpSocket: { port: 8080 }, periodSeconds: 1 }", script));
    c.wait_pod("web", "ready", is_ready);
    let mut forward = Piped::start(&c, &["port-forward", "web", "18080:8080"]);
    assert!(forward.line().contains("Forwarding from 127.0.0.1:18080"));
    let get = |path: &str| {
        let mut curl = c.node.command("curl");
        let url = format!("http://127.0.0.1:18080/{path}");
        curl.args(["-sS", "--fail", "--max-time", "60", &url])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let whole = |child: Child| {
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        out.stdout
    };
    assert_eq!(c.eventually("forwarded", || Some(whole(get("hi"))).filter(|b| !b.is_empty())), b"hi\n");
    // All of them read at once: inside kubectl a connection that nobody reads holds up others.
    std::thread::scope(|scope| {
        for i in 0..20 {
            let (path, expected) = if i % 5 == 0 { ("zeros", 5_000_000) } else { ("hi", 3) };
            scope.spawn(move || assert_eq!(whole(get(path)).len(), expected, "connection {i}"));
        }
    });
}

fn one_waits_and_describes(kubectl: Kubectl) {
    let Some(c) = cluster(kubectl, "") else { return };
    let probe = "readinessProbe: { periodSeconds: 1, exec: { command: [test, -e, /tmp/up] } }";
    c.create(&pod("late", "", probe, "sleep 1; touch /tmp/up; trap exit TERM; while :; do sleep 0.1; done"));
    c.create(&pod("once", "  restartPolicy: Never\n", "", "exit 3"));
    c.run(&["wait", "pod/late", "--for=condition=Ready", "--timeout=60s"]);
    c.run(&["wait", "pod/once", "--for=jsonpath={.status.phase}=Failed", "--timeout=60s"]);
    let refused = c.kubectl(&["wait", "pod/once", "--for=condition=Ready", "--timeout=1s"]);
    assert!(refused.code == 1 && refused.err.contains("timed out waiting"), "{refused:?}");

    let told = |args: &[&str], words: &[&str]| {
        let text = c.run(args);
        let missing: Vec<_> = words.iter().filter(|w| !text.contains(**w)).collect();
        assert!(missing.is_empty(), "{args:?} does not say {missing:?}:\n{text}");
    };
    c.eventually("told", || c.run(&["describe", "pod", "late"]).contains("Started").then_some(()));
    let address = c.run(&["get", "pod", "late", "-o", "jsonpath={.status.podIP}"]);
    told(
        &["describe", "pod", "late"],
        &[
            "Status:",
            "Running",
            &address,
            "containerd://",
            "Ready:          True",
            "Restart Count:  0",
            "Readiness:",
        ],
    );
    told(
        &["describe", "pod", "once"],
        &["Terminated", "Reason:       Error", "Exit Code:    3", "Started:", "Finished:"],
    );
    told(&["describe", "node", "demo"], &["late", "KubeletReady", "Allocated resources:", "containerd://"]);
    let watcher = Piped::start(&c, &["wait", "pod/late", "--for=delete", "--timeout=60s"]);
    c.run(&["delete", "pod", "late", "--wait=false"]);
    let (code, text) = watcher.finish();
    assert!(code == 0 && text.contains("condition met"), "{code} {text}");
}

#[test]
fn nobody_comes_in_who_may_not() {
    let Some(c) = cluster(Kubectl::default(), "") else { return };
    let mounts = "volumeMounts: [{ name: v, mountPath: /v }]";
    c.create(&pod("box", "  volumes: [{ name: v, emptyDir: {} }]\n", mounts, STAY));
    c.wait_pod("box", "ready", is_ready);
    c.run(&["create", "serviceaccount", "nobody"]);
    c.run(&["create", "serviceaccount", "reader"]);
    c.run(&["create", "clusterrole", "reader", "--verb=get", "--resource=nodes/proxy"]);
    c.run(&[
        "create",
        "clusterrolebinding",
        "reader",
        "--clusterrole=reader",
        "--serviceaccount=default:reader",
    ]);
    let token = |name: &str| c.run(&["create", "token", name]).trim().to_owned();
    let ask = |token: &str, path: &str| {
        let mut curl = c.node.command("curl");
        curl.args(["-sk", "-w", "\n%{http_code}", "--max-time", "10"]);
        if !token.is_empty() {
            curl.args(["-H", &format!("Authorization: Bearer {token}")]);
        }
        let out = curl.arg(format!("https://{}:10250{path}", c.node.address())).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let (body, code) = text.rsplit_once('\n').unwrap();
        (code.parse::<u16>().unwrap(), body.to_owned())
    };
    assert_eq!(ask("", "/pods"), (401, "Unauthorized".to_owned()));
    assert_eq!(ask("made.up.token", "/pods").0, 401);
    let (code, text) = ask(&token("nobody"), "/pods");
    let refusal = "Forbidden (user=system:serviceaccount:default:nobody, verb=get, resource=nodes, subresource(s)=[pods proxy])\n";
    assert_eq!((code, text.as_str()), (403, refusal));
    let reader = token("reader");
    let (code, text) = ask(&reader, "/pods");
    assert!(code == 200 && text.contains("\"name\":\"box\""), "{code} {text}");
    assert_eq!(ask(&reader, "/containerLogs/default/box/main").0, 200);
    let (code, text) = ask(&reader, "/exec/default/box/main?command=id&output=1");
    assert!(code == 403 && text.contains("verb=create"), "{code} {text}");
    assert_eq!(ask(&reader, "/metrics").0, 403, "metrics have a subresource of their own");
    // The API server may do everything at the kubelet; who asks it to may do no more than without it.
    let through = |path: &str, more: &[&str]| {
        let mut curl = c.node.command("curl");
        curl.args(["-sk", "-o", "/dev/null", "-w", "%{http_code}", "--http1.1", "--max-time", "30"]);
        let url = format!("{}/api/v1/nodes/demo/proxy{path}", c.server.url());
        let curl =
            curl.args(["-H", &format!("Authorization: Bearer {reader}"), "--path-as-is"]).args(more).arg(url);
        String::from_utf8_lossy(&curl.output().unwrap().stdout).into_owned()
    };
    let upgrade = [
        "-HConnection: Upgrade",
        "-HUpgrade: websocket",
        "-HSec-WebSocket-Version: 13",
        "-HSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "-HSec-WebSocket-Protocol: v4.channel.k8s.io",
    ];
    assert_eq!(through("/pods", &[]), "200");
    for path in ["/exec", "/%65xec", "//exec"] {
        let path = format!("{path}/default/box/main?command=id&output=1");
        assert_eq!(through(&path, &upgrade), "403", "{path}");
        assert_eq!(through(&path, &[]), "403", "{path}");
    }
    assert_eq!(through("/pods", &upgrade), "403", "nobody upgrades who may only read");
    // What the administrator sees through the API server.
    let raw = |path: &str| c.run(&["get", "--raw", &format!("/api/v1/nodes/demo/proxy{path}")]);
    assert_eq!(raw("/healthz"), "ok");
    assert!(raw("/configz").contains("\"kubeletconfig\""));
    assert!(raw("/runningpods/").contains("\"box\""));
    assert!(raw("/metrics/resource").contains("node_cpu_usage_seconds_total"));
    assert!(raw("/metrics/cadvisor").contains("machine_cpu_cores"));
    c.eventually("measured", || raw("/stats/summary").contains("\"name\":\"box\"").then_some(()));
    figures(&raw("/metrics/cadvisor"), &raw("/stats/summary"));
    assert!(raw("/statusz").contains("kubelet statusz") && raw("/flagz").contains("root-dir="));
    assert!(raw("/logs/").contains("<pre>"));
    let set = |level: &str| {
        let path = "/api/v1/nodes/demo/proxy/debug/flags/v";
        c.kubectl_with(&["replace", "--raw", path, "-f", "-"], level)
    };
    assert_eq!(set("6").out, "successfully set klog.logging.verbosity to 6\n");
    assert_ne!(set("loud").code, 0);
}

/// Of a Pod that runs, whatever the kernel and the runtime count is told.
fn figures(cadvisor: &str, summary: &str) {
    for (family, labels) in [
        ("container_memory_working_set_bytes", "container=\"main\""),
        ("container_cpu_usage_seconds_total", "container=\"main\""),
        ("container_spec_cpu_shares", "container=\"main\""),
        ("container_processes", "container=\"main\""),
        ("container_file_descriptors", "container=\"main\""),
        ("container_threads", "container=\"main\""),
    ] {
        let is_of_box = |l: &&str| {
            l.starts_with(&format!("{family}{{")) && l.contains(labels) && l.contains("pod=\"box\"")
        };
        let line = cadvisor.lines().find(is_of_box);
        let value = line.and_then(|l| l.rsplit_once("} ")?.1.split(' ').next()?.parse::<f64>().ok());
        assert!(value.is_some_and(|v| v > 0.0), "{family} {line:?}\n{cadvisor}");
    }
    // Nobody may have spoken to it yet.
    let network =
        |l: &str| l.starts_with("container_network_receive_bytes_total{") && l.contains("pod=\"box\"");
    assert!(cadvisor.lines().any(network), "{cadvisor}");
    let whole = "container_memory_usage_bytes{container=\"\",id=\"/\"";
    assert!(cadvisor.lines().any(|l| l.starts_with(whole)), "{cadvisor}");
    let summary: serde_json::Value = serde_json::from_str(summary).unwrap();
    let mut pods = summary["pods"].as_array().unwrap().iter();
    let pod = pods.find(|p| p["podRef"]["name"] == "box").unwrap();
    assert!(pod["network"]["rxBytes"].is_u64(), "{pod}");
    assert!(pod["process_stats"]["process_count"].as_u64().unwrap() > 0, "{pod}");
    assert!(pod["ephemeral-storage"]["usedBytes"].is_u64() && pod["memory"]["usageBytes"].is_u64(), "{pod}");
    assert!(pod["containers"][0]["logs"]["usedBytes"].is_u64(), "{pod}");
    let mut volumes = pod["volume"].as_array().unwrap().iter();
    assert!(volumes.any(|v| v["name"] == "v" && v["usedBytes"].is_u64()), "{pod}");
    let mut system = summary["node"]["systemContainers"].as_array().unwrap().iter();
    assert!(system.any(|s| s["name"] == "pods" && s["memory"]["workingSetBytes"].is_u64()), "{summary}");
}

#[test]
fn streams_of_a_stopping_kubelet_get_a_moment_to_end() {
    let Some(mut c) = cluster(Kubectl::default(), "") else { return };
    c.create(&pod("box", "", "", STAY));
    c.wait_pod("box", "ready", is_ready);
    let mut shell =
        Piped::start(&c, &["exec", "-i", "box", "--", "sh", "-c", "echo begun; sleep 1; echo ended"]);
    assert_eq!(shell.line(), "begun\n");
    let begun = Instant::now();
    c.agent.stop().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(15));
    assert_eq!(shell.finish(), (0, "ended\n".to_owned()));
    c.start_agent();
    assert_eq!(
        c.eventually("back", || Some(c.kubectl(&["exec", "box", "--", "echo", "hi"]))
            .filter(|a| a.code == 0))
            .out,
        "hi\n"
    );
}
