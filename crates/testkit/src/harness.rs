//! A kubelet on a private containerd, as the suites on a real machine use it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use k8s_openapi::List;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use crate::node::{Agent, AgentOptions, Census, Containerd, Node, Options, Tools};

/// A node with its agent. Everything goes when it is dropped.
#[derive(Debug)]
pub struct Harness {
    pub node: Node,
    pub agent: Agent,
    binary: PathBuf,
    options: AgentOptions,
}

/// How long anything may take before a test gives up.
pub const TIMEOUT: Duration = Duration::from_secs(180);

// === impl Harness ===

impl Harness {
    /// Starts both, or says (on stderr) why this machine cannot and returns none.
    #[must_use]
    pub fn start(containerd: Containerd, options: AgentOptions) -> Option<Self> {
        let (tools, binary) = means()?;
        let node = Node::start(&tools, Options { containerd, ..Options::default() })
            .unwrap_or_else(|e| panic!("{e}"));
        Some(Self::start_on(node, binary, options))
    }

    /// Starts the agent on a node that is there already.
    #[must_use]
    pub fn start_on(node: Node, binary: PathBuf, options: AgentOptions) -> Self {
        let agent = Agent::start(&node, &binary, &options).unwrap_or_else(|e| panic!("{e}"));
        let mut harness = Self { node, agent, binary, options };
        harness.wait_until_up();
        harness
    }

    /// On the current containerd, with the usual settings.
    #[must_use]
    pub fn usual() -> Option<Self> {
        Self::start(Containerd::default(), AgentOptions::default())
    }

    /// Waits until the agent answers.
    pub fn wait_until_up(&mut self) {
        self.agent.wait_until_up(&self.node, TIMEOUT).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Puts a manifest into the directory, whole at once.
    pub fn apply(&self, name: &str, manifest: &str) {
        let dir = self.agent.manifests();
        let early = dir.join(format!(".{name}.yaml"));
        fs::write(&early, manifest).unwrap_or_else(|e| panic!("write {}: {e}", early.display()));
        fs::rename(&early, dir.join(format!("{name}.yaml"))).unwrap_or_else(|e| panic!("rename: {e}"));
    }

    /// Takes a manifest away.
    pub fn remove(&self, name: &str) {
        let path = self.agent.manifests().join(format!("{name}.yaml"));
        fs::remove_file(&path).unwrap_or_else(|e| panic!("remove {}: {e}", path.display()));
    }

    /// Kill -9 and a new life.
    pub fn restart_agent(&mut self) {
        self.agent.kill9();
        self.start_agent();
    }

    /// The agent ends in good order, and another program takes its place: its next version, or upstream's kubelet.
    pub fn replace_agent(&mut self, binary: &Path) {
        self.agent.stop().unwrap_or_else(|e| panic!("{e}"));
        self.agent = Agent::start(&self.node, binary, &self.options).unwrap_or_else(|e| panic!("{e}"));
        self.wait_until_up();
    }

    /// The agent ends in good order and begins again with other settings.
    pub fn reconfigure_agent(&mut self, options: AgentOptions) {
        self.agent.stop().unwrap_or_else(|e| panic!("{e}"));
        self.options = options;
        self.start_agent();
    }

    /// The program under test.
    #[must_use]
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    pub fn start_agent(&mut self) {
        self.spawn_agent();
        self.wait_until_up();
    }

    /// Starts the agent and does not wait for it.
    pub fn spawn_agent(&mut self) {
        self.agent = Agent::start(&self.node, &self.binary, &self.options).unwrap_or_else(|e| panic!("{e}"));
    }

    /// `longshore pods …` on this node: exit code, output, complaints.
    #[must_use]
    pub fn pods(&self, args: &[&str]) -> (i32, String, String) {
        let socket = self.agent.root().join("pods.sock");
        let (verb, rest) = args.split_first().unwrap_or((&"help", &[]));
        let mut command = self.node.command(&self.binary);
        command.args(["pods", verb, "--socket"]).arg(socket).args(rest);
        let out = command.stdin(Stdio::null()).output();
        let out = out.unwrap_or_else(|e| panic!("run longshore pods: {e}"));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (out.status.code().unwrap_or(-1), text(&out.stdout), text(&out.stderr))
    }

    /// `longshore doctor eviction …` on this node; what it prints.
    #[must_use]
    pub fn doctor_eviction(&self, args: &[&str]) -> String {
        let mut command = self.node.command(&self.binary);
        command.args(["doctor", "eviction", "--socket"]).arg(self.agent.root().join("pods.sock")).args(args);
        let out = command.stdin(Stdio::null()).output();
        let out = out.unwrap_or_else(|e| panic!("run longshore doctor: {e}"));
        assert!(out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    /// Every Pod as `/pods` shows it.
    #[must_use]
    pub fn list(&self) -> Vec<Pod> {
        let body = self
            .agent
            .get(&self.node, "/pods")
            .unwrap_or_else(|e| panic!("{e}\n{}", self.agent.last_words()));
        let list: List<Pod> = serde_json::from_slice(&body).unwrap_or_else(|e| panic!("/pods: {e}"));
        list.items
    }

    /// A Pod by the name its manifest gives it; only Pods given by command keep it as it is.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Pod> {
        let full = format!("{name}-demo");
        let is_it = |p: &Pod| p.metadata.name.as_deref().is_some_and(|n| n == name || n == full);
        self.list().into_iter().find(is_it)
    }

    /// Waits until the Pod is as wanted.
    #[track_caller]
    pub fn wait(&self, name: &str, what: &str, is: impl Fn(&Pod) -> bool) -> Pod {
        self.until(what, || self.get(name).filter(|p| is(p)))
    }

    #[track_caller]
    pub fn wait_running(&self, name: &str) -> Pod {
        self.wait(name, "running", |p| phase(p) == "Running")
    }

    #[track_caller]
    pub fn wait_ready(&self, name: &str) -> Pod {
        self.wait(name, "ready", is_ready)
    }

    /// Waits until nothing of the Pod is shown any more.
    #[track_caller]
    pub fn wait_gone(&self, name: &str) {
        self.until("gone", || self.get(name).is_none().then_some(()));
    }

    /// Asks again and again until there is an answer.
    #[track_caller]
    pub fn until<T>(&self, what: &str, ask: impl Fn() -> Option<T>) -> T {
        let end = Instant::now() + TIMEOUT;
        loop {
            if let Some(answer) = ask() {
                return answer;
            }
            if Instant::now() > end {
                let shown = serde_json::to_string_pretty(&self.list()).unwrap_or_default();
                panic!("not {what} in time.\nPods: {shown}\nThe kubelet says:\n{}", self.agent.last_words());
            }
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Waits until the node has nothing that was not there before.
    #[track_caller]
    pub fn wait_clean(&self, before: &Census) {
        self.wait_clean_but(before, Census::is_empty);
    }

    /// Waits until what the node has and had not before may stay.
    #[track_caller]
    pub fn wait_clean_but(&self, before: &Census, may_stay: impl Fn(&Census) -> bool) {
        let end = Instant::now() + TIMEOUT;
        loop {
            let left = self.left_since(before);
            if may_stay(&left) {
                return;
            }
            if Instant::now() > end {
                panic!("left behind:\n{left}\nThe kubelet says:\n{}", self.agent.last_words());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What the node has that was not there before; the agent and the runtime may have been started anew.
    #[must_use]
    pub fn left_since(&self, before: &Census) -> Census {
        let mut left = self.node.census().since(before);
        left.processes.retain(|p| !p.ends_with(" longshore") && !p.ends_with(" containerd"));
        left
    }

    /// Runs a command in a container of the usual runtime and returns its output.
    #[must_use]
    pub fn exec(&self, pod: &str, container: &str, command: &[&str]) -> String {
        let mut args = vec!["exec", pod, "-c", container, "--"];
        args.extend(command);
        let (code, out, err) = self.pods(&args);
        assert_eq!(code, 0, "{command:?} in {pod}/{container}: {out}{err}");
        out
    }

    #[must_use]
    pub fn pod_dir(&self, pod: &Pod) -> PathBuf {
        self.agent.root().join("pods").join(uid(pod))
    }
}

#[must_use]
pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

#[must_use]
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

#[must_use]
pub fn condition<'a>(pod: &'a Pod, kind: &str) -> &'a str {
    let all = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    all.filter(|c| c.type_ == kind).map(|c| c.status.as_str()).next().unwrap_or("")
}

#[must_use]
pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready") == "True"
}

/// The status of a container, of whatever kind.
#[must_use]
pub fn container<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let lists =
        [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    lists.into_iter().flatten().flatten().find(|c| c.name == name)
}

#[must_use]
pub fn restarts(pod: &Pod, name: &str) -> i32 {
    container(pod, name).map_or(0, |c| c.restart_count)
}

#[must_use]
pub fn container_id<'a>(pod: &'a Pod, name: &str) -> &'a str {
    container(pod, name).and_then(|c| c.container_id.as_deref()).unwrap_or_default()
}

#[must_use]
pub fn waiting_reason<'a>(pod: &'a Pod, name: &str) -> &'a str {
    let state = container(pod, name).and_then(|c| c.state.as_ref());
    state.and_then(|s| s.waiting.as_ref()).and_then(|w| w.reason.as_deref()).unwrap_or_default()
}

/// Files below a directory, for looking at what a Pod left.
#[must_use]
pub fn listing(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut all: Vec<PathBuf> = entries.map(|e| e.path()).collect();
    all.sort();
    all
}

/// What a node is made of and the binary under test, or none with a word on stderr.
#[must_use]
pub fn means() -> Option<(Tools, PathBuf)> {
    match (Tools::from_env(), std::env::var_os("LONGSHORE_BINARY")) {
        (Ok(tools), Some(binary)) => Some((tools, PathBuf::from(binary))),
        (Err(why), _) => skip(&why),
        (_, None) => skip("LONGSHORE_BINARY is not set: run `cargo xtask test`"),
    }
}

#[allow(clippy::print_stderr)]
fn skip<T>(why: &str) -> Option<T> {
    eprintln!("skipped: {why}");
    None
}
