//! `cargo xtask up`: builds Longshore and runs `longshore up` on this machine, with a page to look at, until Ctrl-C.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use fixture::{Doing, Failure, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::images;
use crate::interrupt::Interrupt;
use crate::layout::Layout;
use crate::terminal::{say, step};

const READY_WITHIN: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(50);
/// Sockets and what a reboot may take away; the data directory is under target/.
pub(crate) const STATE: &str = "/run/longshore-xtask-up";
/// The port of the demo's Service.
pub(crate) const PAGE: u16 = 8088;

/// A cargo profile and the directory it builds into.
type Profile = (&'static str, &'static str);
pub(crate) const RELEASE: Profile = ("release-fast", "release-fast");
const DEBUG: Profile = ("dev", "debug");

/// A running `longshore up`. Whoever drops it tells it to end and waits.
pub(crate) struct Running {
    child: Child,
    lines: Receiver<String>,
    began: Instant,
    data: PathBuf,
}

/// How long it took to get there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) api: Duration,
    pub(crate) node: Duration,
    pub(crate) page: Duration,
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
    let binary = prepare(layout, profile)?;
    // Before anything is on the machine that a signal should clear away.
    let interrupt = Interrupt::catch()?;
    step(format_args!("{} up", layout.shown(&binary)));
    let mut running = Running::start(layout, &binary, &layout.target.join("run/up"))?;
    let outcome = running.show(layout, &binary, &interrupt);
    let ended = running.stop(&interrupt);
    outcome.and(ended)?;
    step("nothing runs any more; `cargo xtask up` goes on where it was");
    Ok(ExitCode::SUCCESS)
}

/// Everything that is needed, built: nothing is fetched for a node.
pub(crate) fn prepare(layout: &Layout, profile: Profile) -> Result<PathBuf> {
    let binary = build(layout, profile)?;
    images::build_demo_archive(layout)?;
    Ok(binary)
}

/// A second `up` would fight over ports and directories.
pub(crate) fn claim(layout: &Layout) -> Result<File> {
    let run = layout.target.join("run");
    fs::create_dir_all(&run).doing(|| format!("making {}", run.display()))?;
    let path = run.join("up.lock");
    let lock = File::create(&path).doing(|| format!("opening {}", path.display()))?;
    if lock.try_lock().is_err() {
        return Err(Failure::new("`cargo xtask up` runs already; stop it with Ctrl-C first"));
    }
    Ok(lock)
}

// === impl Running ===

impl Running {
    /// With the demo's images and manifest in the directories that it looks into.
    pub(crate) fn start(layout: &Layout, binary: &Path, data: &Path) -> Result<Running> {
        for (from, to) in [
            (images::demo_archive(layout), data.join("images/demo.tar")),
            (layout.root.join("examples/demo/hello.yaml"), data.join("deploy/hello.yaml")),
        ] {
            put(&from, &to)?;
        }
        let flag = |name: &str, value: &Path| format!("--{name}={}", value.display());
        let mut command = Command::new(binary);
        command
            .arg("up")
            .arg(flag("data-dir", data))
            .arg(flag("state-dir", Path::new(STATE)))
            // Also where an earlier one ran on a containerd.
            .args(["--embedded-runtime", "--stop-pods"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log(data)?)
            // Ctrl-C is for us, and passed on once.
            .process_group(0);
        let began = Instant::now();
        let mut child = command.spawn().doing(|| format!("starting {}", binary.display()))?;
        let (tell, lines) = mpsc::channel();
        let out = child.stdout.take().ok_or_else(|| Failure::new("no output of longshore up"))?;
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(std::result::Result::ok) {
                let _ = tell.send(line);
            }
        });
        Ok(Running { child, lines, began, data: data.to_owned() })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the API server, the node and the page, in this order; `hear` is told of each line on the way.
    pub(crate) fn wait(
        &mut self,
        interrupt: &Interrupt,
        hear: impl Fn(&str),
    ) -> Result<Option<(Times, SocketAddr)>> {
        let (mut api, mut node, mut page) = (None, None, None);
        while self.began.elapsed() < READY_WITHIN {
            match self.lines.recv_timeout(LOOK) {
                Ok(line) => {
                    hear(&line);
                    let now = Some(self.began.elapsed());
                    if line.starts_with("API server ") {
                        api = now;
                    }
                    if line.ends_with(" s)") && line.contains(" is Ready (") {
                        node = now;
                        page =
                            line.split_whitespace().nth(2).and_then(|ip| format!("{ip}:{PAGE}").parse().ok());
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let (Some(api), Some(node), Some(address)) = (api, node, page)
                && fixture::http::get(address, "/").is_ok()
            {
                return Ok(Some((Times { api, node, page: self.began.elapsed() }, address)));
            }
            if interrupt.within(Duration::ZERO) {
                return Ok(None);
            }
        }
        Err(Failure::new(format!("the page does not answer after two minutes:\n{}", self.last_words())))
    }

    /// Shows progress until the page answers, then waits for Ctrl-C.
    fn show(&mut self, layout: &Layout, binary: &Path, interrupt: &Interrupt) -> Result<()> {
        let Some((times, address)) = self.wait(interrupt, |line| say(line))? else { return Ok(()) };
        self.tell(layout, binary, times, address);
        while !interrupt.within(Duration::from_millis(500)) {
            if self.child.try_wait().doing(|| "looking at longshore up".into())?.is_some() {
                return Err(self.ended());
            }
            self.lines.try_iter().for_each(say);
        }
        Ok(())
    }

    fn tell(&self, layout: &Layout, binary: &Path, times: Times, address: SocketAddr) {
        let unpacked = layout.cache.join("kubectl/usr/bin/kubectl");
        let kubectl = match on_the_path("kubectl") || !unpacked.exists() {
            true => "kubectl".to_owned(),
            false => layout.shown(&unpacked),
        };
        let kubeconfig = layout.shown(&self.data.join("admin.kubeconfig"));
        say("");
        for (what, place) in [
            (
                "page",
                format!("http://{address}/   answers {:.1} s after the start", times.page.as_secs_f32()),
            ),
            ("try", format!("{kubectl} --kubeconfig {kubeconfig} get pods,services -o wide")),
            ("without kubectl", format!("{} ps", layout.shown(binary))),
            (
                "manifests",
                format!("{}/   add, edit, remove: it follows", layout.shown(&self.data.join("deploy"))),
            ),
            ("log", layout.shown(&self.data.join("up.log"))),
            ("stop", "Ctrl-C".to_owned()),
        ] {
            say(format_args!("  {what:<16} {place}"));
        }
    }

    /// Tells it to end, and again whenever somebody asks again; says what it waits for.
    pub(crate) fn stop(mut self, interrupt: &Interrupt) -> Result<()> {
        self.signal();
        loop {
            while let Ok(line) = self.lines.try_recv() {
                say(line);
            }
            let status = self.child.try_wait().doing(|| "waiting for longshore up".into())?;
            match status {
                Some(status) if status.success() => return Ok(()),
                Some(_) => return Err(self.ended()),
                None if interrupt.within(LOOK) => self.signal(),
                None => {}
            }
        }
    }

    fn signal(&self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::INT);
    }

    fn ended(&mut self) -> Failure {
        let status = self.child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
        Failure::new(format!("longshore up ended with {status}:\n{}", self.last_words()))
    }

    fn last_words(&self) -> String {
        let text = fs::read_to_string(self.data.join("up.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            self.signal();
            let _ = self.child.wait();
        }
    }
}

/// Copies a file where it is another; a file of the same content keeps its time, and is not read again.
fn put(from: &Path, to: &Path) -> Result<()> {
    let act = || format!("copying {} to {}", from.display(), to.display());
    let parent = to.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent).doing(act)?;
    let new = fs::read(from).doing(act)?;
    if fs::read(to).is_ok_and(|old| old == new) {
        return Ok(());
    }
    fs::write(to, new).doing(act)
}

fn log(data: &Path) -> Result<File> {
    let path = data.join("up.log");
    File::create(&path).doing(|| format!("opening {}", path.display()))
}

fn on_the_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

fn build(layout: &Layout, (profile, dir): Profile) -> Result<PathBuf> {
    step("building longshore (the first time takes minutes)");
    let status = Command::new("cargo")
        .args(["build", "--locked", "--profile", profile, "--package", "longshore"])
        .current_dir(&layout.root)
        .status()
        .doing(|| "running cargo build".into())?;
    match status.success() {
        true => Ok(layout.target.join(dir).join("longshore")),
        false => Err(Failure::new("longshore does not build")),
    }
}
