//! `cargo xtask up`: containerd and the kubelet on this machine, with Pods to look at, until Ctrl-C.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use fixture::{Agent, AgentOptions, Doing, Failure, Network, Node, Options, Result, Tools};

use crate::glance::{Glance, pods};
use crate::interrupt::Interrupt;
use crate::layout::Layout;
use crate::terminal::{complain, say, step};
use crate::{debs, images};

const READY_WITHIN: Duration = Duration::from_secs(120);
const GONE_WITHIN: Duration = Duration::from_secs(40);

/// A cargo profile and the directory it builds into.
type Profile = (&'static str, &'static str);
const RELEASE: Profile = ("release-fast", "release-fast");
const DEBUG: Profile = ("dev", "debug");

/// The binary, on its way. Whoever drops it does not want it any more.
struct Build {
    cargo: Child,
    binary: PathBuf,
}

/// Why waiting ended.
enum Wait {
    Ready(Vec<Glance>),
    Interrupted,
}

pub(crate) fn up(layout: &Layout, args: &[String]) -> Result<ExitCode> {
    let profile = match args {
        [] => RELEASE,
        [flag] if flag == "--debug" => DEBUG,
        _ => return Err(Failure::new("up takes only --debug")),
    };
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("containers need root: run it as root"));
    }
    let _only_one = claim(layout)?;
    // The one waits for the network and the other for the processor.
    let build = Build::begin(layout, profile)?;
    debs::fetch(layout, false)?;
    images::build(layout)?;
    let binary = build.finish()?;
    // Before anything is on the machine that a signal should clear away.
    let interrupt = Interrupt::catch()?;
    let dir = layout.target.join("run/up");
    let _ = fs::remove_dir_all(&dir);
    copy_manifests(&layout.root.join("examples/manifests"), &dir.join("manifests"))?;

    step("starting containerd");
    let options = Options {
        id: Some("up".into()),
        dir: Some(dir),
        keep_dir: true,
        network: Network::Host,
        ..Options::default()
    };
    let node = Node::start(&Tools::new(&layout.cache)?, options)?;
    step("starting the kubelet");
    let mut agent = Agent::start(&node, &binary, &AgentOptions::default())?;
    let outcome = serve(layout, &node, &mut agent, &binary, &interrupt);
    let cleared = clear(node, agent, &binary);
    outcome.and(cleared)?;
    Ok(ExitCode::SUCCESS)
}

/// Shows progress until the Pods are Ready, then waits for Ctrl-C.
fn serve(
    layout: &Layout,
    node: &Node,
    agent: &mut Agent,
    binary: &Path,
    interrupt: &Interrupt,
) -> Result<()> {
    match wait_until_ready(node, agent, interrupt)? {
        Wait::Ready(pods) => tell(layout, node, agent, binary, &pods),
        Wait::Interrupted => return Ok(()),
    }
    while !interrupt.within(Duration::from_millis(500)) {
        if let Some(status) = agent.ended() {
            return Err(Failure::new(format!(
                "the kubelet ended by itself, with {status}:\n{}",
                agent.last_words()
            )));
        }
    }
    Ok(())
}

fn wait_until_ready(node: &Node, agent: &mut Agent, interrupt: &Interrupt) -> Result<Wait> {
    let wanted = fs::read_dir(agent.manifests()).map(Iterator::count).unwrap_or_default();
    let until = Instant::now() + READY_WITHIN;
    let mut said: BTreeMap<String, String> = BTreeMap::new();
    loop {
        // Until its server answers there is nothing to tell.
        let pods = pods(node, agent).unwrap_or_default();
        for pod in &pods {
            if said.insert(pod.name.clone(), pod.words()) != Some(pod.words()) {
                step(format_args!("{}: {}", pod.name, pod.words()));
            }
        }
        if pods.len() >= wanted && pods.iter().all(|pod| pod.ready) {
            return Ok(Wait::Ready(pods));
        }
        if interrupt.within(Duration::from_millis(100)) {
            return Ok(Wait::Interrupted);
        }
        if let Some(status) = agent.ended() {
            return Err(Failure::new(format!("the kubelet ended with {status}:\n{}", agent.last_words())));
        }
        if Instant::now() > until {
            return Err(Failure::new(format!(
                "the Pods are not Ready after two minutes:\n{}",
                agent.last_words()
            )));
        }
    }
}

fn tell(layout: &Layout, node: &Node, agent: &Agent, binary: &Path, pods: &[Glance]) {
    say("");
    for pod in pods {
        say(format_args!("  {:<16} {:<14} {}", pod.name, pod.ip, pod.words()));
    }
    say("");
    let command = format!("{} pods get --socket {}", layout.shown(binary), layout.shown(&agent.socket()));
    for (what, place) in [
        ("web page", "http://127.0.0.1:8088/".to_owned()),
        ("by command", command),
        ("read-only API", format!("http://127.0.0.1:{}/pods", Agent::READ_ONLY)),
        ("manifests", format!("{}   add, edit, remove: it follows", layout.shown(&agent.manifests()))),
        ("container logs", layout.shown(&agent.pod_logs())),
        ("kubelet log", layout.shown(&agent.log())),
        ("containerd log", layout.shown(&node.containerd_log())),
        ("runtime", node.endpoint()),
        ("stop", "Ctrl-C".to_owned()),
    ] {
        say(format_args!("  {what:<16} {place}"));
    }
}

/// Takes the Pods away first, as a person would, so that the kubelet clears up what it made; then the rest.
fn clear(node: Node, mut agent: Agent, binary: &Path) -> Result<()> {
    say("");
    step("removing the Pods");
    if let Ok(entries) = fs::read_dir(agent.manifests()) {
        for entry in entries.flatten() {
            let _ = fs::remove_file(entry.path());
        }
    }
    for pod in pods(&node, &agent).unwrap_or_default() {
        // Those that came from manifests are going already, and it refuses them.
        let mut delete = Command::new(binary);
        delete
            .args(["pods", "delete", &pod.name, "-n", &pod.namespace, "--no-wait", "--socket"])
            .arg(agent.socket());
        let _ = delete.stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
    let until = Instant::now() + GONE_WITHIN;
    while agent.ended().is_none() && !pods(&node, &agent).is_ok_and(|pods| pods.is_empty()) {
        if Instant::now() > until {
            complain("some Pods do not go by themselves; taking them down");
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    step("stopping the kubelet and containerd");
    if let Err(error) = agent.stop() {
        complain(error.to_string());
    }
    node.stop()?;
    step("nothing is left behind");
    Ok(())
}

/// A second `up` would fight over ports and directories.
fn claim(layout: &Layout) -> Result<File> {
    let run = layout.target.join("run");
    fs::create_dir_all(&run).doing(|| format!("making {}", run.display()))?;
    let path = run.join("up.lock");
    let lock = File::create(&path).doing(|| format!("opening {}", path.display()))?;
    if lock.try_lock().is_err() {
        return Err(Failure::new("`cargo xtask up` runs already; stop it with Ctrl-C first"));
    }
    // What a killed one left may hold the port.
    fixture::sweep_stale()?;
    // Also seen when the other one runs in another checkout.
    TcpListener::bind(("127.0.0.1", Agent::READ_ONLY))
        .doing(|| format!("port {} on 127.0.0.1 is taken, perhaps by another kubelet", Agent::READ_ONLY))?;
    Ok(lock)
}

fn copy_manifests(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).doing(|| format!("making {}", to.display()))?;
    let entries = fs::read_dir(from).doing(|| format!("listing {}", from.display()))?;
    for entry in entries.flatten() {
        let goal = to.join(entry.file_name());
        fs::copy(entry.path(), &goal).doing(|| format!("copying {}", entry.path().display()))?;
    }
    Ok(())
}

// === impl Build ===

impl Build {
    fn begin(layout: &Layout, (profile, dir): Profile) -> Result<Self> {
        step("building longshore (the first time takes minutes)");
        let cargo = Command::new("cargo")
            .args(["build", "--locked", "--profile", profile, "--package", "longshore"])
            .current_dir(&layout.root)
            .spawn()
            .doing(|| "running cargo build".into())?;
        Ok(Self { cargo, binary: layout.target.join(dir).join("longshore") })
    }

    fn finish(mut self) -> Result<PathBuf> {
        let status = self.cargo.wait().doing(|| "waiting for cargo build".into())?;
        match status.success() {
            true => Ok(std::mem::take(&mut self.binary)),
            false => Err(Failure::new("longshore does not build")),
        }
    }
}

impl Drop for Build {
    fn drop(&mut self) {
        let _ = self.cargo.kill();
        let _ = self.cargo.wait();
    }
}
