//! The container runtime: the one in this program, one that runs on the machine, or a containerd of our own, run and watched.
//!
//! The seam is the CRI socket. Containers live in shims or keepers: neither the end of the runtime nor ours is theirs.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use api::config::up::Up;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tokio_util::sync::CancellationToken;

use super::choice::{Chosen, has_systemd};
use super::layout::Layout;
use super::network;
use super::part::{Make, Part, Tell};
use crate::KUBERNETES;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// For a containerd that was told to end.
const STOP: Duration = Duration::from_secs(20);
/// A log that is longer is put aside at the next start.
const LONGEST_LOG: u64 = 10 << 20;
const CAP_SYS_RESOURCE: u32 = 24;

/// Where the runtime is, and our own containerd if it is ours.
pub(super) struct RuntimeHere {
    pub(super) socket: PathBuf,
    own: Option<Own>,
    embedded: Option<Embedded>,
}

/// The runtime in this program.
struct Embedded {
    part: Part,
    token: CancellationToken,
}

/// A containerd that we run.
struct Own {
    thread: JoinHandle<()>,
    shared: Arc<Shared>,
}

struct Shared {
    program: PathBuf,
    config: PathBuf,
    log: PathBuf,
    pid_file: PathBuf,
    pid: Mutex<Option<Pid>>,
    token: CancellationToken,
}

// === impl RuntimeHere ===

impl RuntimeHere {
    /// Starts the runtime where it is ours. `tell` hears how the one in this program is.
    pub(super) fn start(
        chosen: &Chosen,
        up: &Up,
        layout: &Layout,
        tell: Tell,
    ) -> Result<RuntimeHere, String> {
        match chosen {
            Chosen::Embedded => RuntimeHere::embed(up, layout, tell),
            Chosen::Containerd { program } => RuntimeHere::run(program.clone(), up, layout),
            Chosen::Endpoint { socket } => {
                Ok(RuntimeHere { socket: socket.clone(), own: None, embedded: None })
            }
        }
    }

    /// It lives longer than the other parts: at the end it is asked to end the Pods.
    fn embed(up: &Up, layout: &Layout, tell: Tell) -> Result<RuntimeHere, String> {
        let (socket, token) = (layout.runtime_socket(), CancellationToken::new());
        let mut plugins = vec![network::plugins(up.cni_bin_dir.as_deref(), &layout.cni_plugins())?];
        plugins.extend(layout.other_plugins());
        let settings = ::runtime::Settings {
            listen: socket.clone(),
            root_dir: layout.runtime_root(),
            state_dir: layout.runtime_state(),
            stream: ([127, 0, 0, 1], 0).into(),
            metrics: None,
            networks: ::runtime::network::Networks {
                conf_dir: layout.cni_config(),
                bin_dirs: plugins,
                cache_dir: layout.runtime_root().join("cni"),
                built_in: Some(Arc::new(crate::cni_cmd::OwnPlugins)),
            },
            cdi_dirs: ["/etc/cdi", "/var/run/cdi"].map(Into::into).into(),
            registry: registry::Settings {
                hosts_dir: Some(layout.registries()),
                proxies: client::Proxies::named_by(|name| std::env::var(name).ok()),
                ..registry::Settings::default()
            },
            handlers: vec!["longshore".to_owned(), "runc".to_owned()],
            version: KUBERNETES.to_owned(),
        };
        let make: Make = Box::new(move |token| {
            let settings = settings.clone();
            Box::pin(async move { ::runtime::run(settings, token).await.map_err(|e| e.to_string()) })
        });
        let part = Part::start("runtime", make, &token, tell)?;
        Ok(RuntimeHere { socket, own: None, embedded: Some(Embedded { part, token }) })
    }

    fn run(program: PathBuf, up: &Up, layout: &Layout) -> Result<RuntimeHere, String> {
        if !program.is_file() {
            return Err(format!(
                "the containerd that this node was started on is not there: {}; name another with --containerd, or change to the \
                 runtime in this program with --embedded-runtime",
                program.display()
            ));
        }
        let socket = layout.containerd_socket();
        let plugins = network::plugins(up.cni_bin_dir.as_deref(), &layout.cni_plugins())?;
        let root = layout.containerd_root();
        fs::create_dir_all(&root).map_err(|e| format!("make {}: {e}", root.display()))?;
        let config = root.join("config.toml");
        let version = major_version(&program)?;
        let text = configuration(version, layout, &socket, &plugins, &up.pause_image);
        fs::write(&config, text).map_err(|e| format!("write {}: {e}", config.display()))?;
        let shared = Arc::new(Shared {
            log: root.join("containerd.log"),
            pid_file: layout.state.join("containerd.pid"),
            program,
            config,
            pid: Mutex::new(None),
            token: CancellationToken::new(),
        });
        shared.end_earlier();
        let kept = shared.clone();
        let thread = thread::Builder::new().name("containerd".to_owned()).spawn(move || kept.keep());
        let thread = thread.map_err(|e| format!("start a thread for containerd: {e}"))?;
        Ok(RuntimeHere { socket, own: Some(Own { thread, shared }), embedded: None })
    }

    /// Ends a runtime of our own. Containers live on.
    pub(super) fn stop(self) {
        if let Some(Embedded { part, token }) = self.embedded {
            token.cancel();
            let until = Instant::now() + STOP;
            while !part.has_ended() && Instant::now() < until {
                thread::sleep(Duration::from_millis(20));
            }
            // Nobody answers there any more.
            _ = fs::remove_file(&self.socket);
        }
        let Some(own) = self.own else { return };
        own.shared.token.cancel();
        own.shared.signal(Signal::TERM);
        let until = Instant::now() + STOP;
        while !own.thread.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
        if !own.thread.is_finished() {
            tracing::warn!("containerd did not end in time and is killed");
            own.shared.signal(Signal::KILL);
        }
        _ = own.thread.join();
    }
}

// === impl Shared ===

impl Shared {
    /// Runs it until it is told to end, and again whenever it dies.
    fn keep(&self) {
        let mut pause = FIRST_PAUSE;
        while !self.token.is_cancelled() {
            let began = Instant::now();
            let error = match self.run_once() {
                Ok(status) => status,
                Err(error) => error,
            };
            if self.token.is_cancelled() {
                break;
            }
            if began.elapsed() > LONGEST_PAUSE {
                pause = FIRST_PAUSE;
            }
            tracing::error!(error, log = %self.log.display(), again_in = ?pause, "containerd ended");
            let until = Instant::now() + pause;
            while !self.token.is_cancelled() && Instant::now() < until {
                thread::sleep(Duration::from_millis(50));
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        _ = fs::remove_file(&self.pid_file);
    }

    fn run_once(&self) -> Result<String, String> {
        let opened = |e| format!("open {}: {e}", self.log.display());
        if fs::metadata(&self.log).is_ok_and(|log| log.len() > LONGEST_LOG) {
            fs::rename(&self.log, self.log.with_extension("log.1")).map_err(opened)?;
        }
        let log = File::options().create(true).append(true).open(&self.log).map_err(opened)?;
        let also = log.try_clone().map_err(opened)?;
        let mut command = Command::new(&self.program);
        command.arg("--config").arg(&self.config).current_dir("/");
        // Its shim lies beside it.
        if let (Some(beside), Some(path)) = (self.program.parent(), std::env::var_os("PATH")) {
            let all = std::iter::once(beside.to_owned()).chain(std::env::split_paths(&path));
            command.env("PATH", std::env::join_paths(all).unwrap_or(path));
        }
        // Ctrl-C is for us; containerd is told when its turn has come.
        command.process_group(0).stdin(Stdio::null()).stdout(log).stderr(also);
        let mut child = command.spawn().map_err(|e| format!("start {}: {e}", self.program.display()))?;
        *self.pid.lock().unwrap_or_else(PoisonError::into_inner) = Pid::from_raw(child.id().cast_signed());
        _ = fs::write(&self.pid_file, child.id().to_string());
        if self.token.is_cancelled() {
            self.signal(Signal::TERM);
        }
        let status = child.wait();
        *self.pid.lock().unwrap_or_else(PoisonError::into_inner) = None;
        status.map(|status| status.to_string()).map_err(|e| format!("wait for containerd: {e}"))
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = *self.pid.lock().unwrap_or_else(PoisonError::into_inner) {
            _ = kill_process(pid, signal);
        }
    }

    /// Ends what an `up` that was killed left behind: it holds the socket. Its containers live on.
    fn end_earlier(&self) {
        let Ok(text) = fs::read_to_string(&self.pid_file) else { return };
        let Some(pid) = text.trim().parse().ok().and_then(Pid::from_raw) else { return };
        let command_line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        let config = self.config.as_os_str().as_encoded_bytes();
        // The number may be somebody else's by now.
        if !command_line.split(|b| *b == 0).any(|word| word == config) {
            return;
        }
        _ = kill_process(pid, Signal::TERM);
        let until = Instant::now() + STOP;
        while test_kill_process(pid).is_ok() && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Waits until the runtime's socket answers; one line says that we wait, and for what.
pub(super) async fn wait_for(socket: &Path, token: &CancellationToken) {
    let (began, mut told) = (Instant::now(), false);
    let mut pause = Duration::from_millis(20);
    while !answers(socket) {
        if !told && began.elapsed() > Duration::from_secs(10) {
            told = true;
            tracing::warn!(
                socket = %socket.display(),
                "the container runtime does not answer; the kubelet starts when it does"
            );
        }
        if tokio::time::timeout(pause, token.cancelled()).await.is_ok() {
            return;
        }
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

fn answers(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

fn major_version(program: &Path) -> Result<u32, String> {
    let out = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let out = out.map_err(|e| format!("run {} --version: {e}", program.display()))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let major = text.split_whitespace().find_map(|word| {
        let word = word.strip_prefix('v').unwrap_or(word);
        word.split_once('.').and_then(|(major, rest)| {
            rest.starts_with(|c: char| c.is_ascii_digit()).then(|| major.parse().ok())?
        })
    });
    major.ok_or_else(|| format!("{} --version says {:?}, not a version", program.display(), text.trim()))
}

fn configuration(major: u32, layout: &Layout, socket: &Path, plugins: &Path, pause: &str) -> String {
    let (root, state) = (layout.containerd_root(), layout.containerd_state());
    let (root, state, socket) = (root.display(), state.display(), socket.display());
    let (cni, plugins) = (layout.cni_config(), plugins.display());
    let cni = cni.display();
    let (oom, systemd) = (!may_lower_oom_score(), has_systemd());
    let snapshotter = snapshotter(&layout.containerd_root());
    let version = if major >= 2 { 3 } else { 2 };
    let mut text = format!(
        "# Written by longshore up at every start.\nversion = {version}\nroot = \"{root}\"\nstate = \"{state}\"\n\n\
         [grpc]\naddress = \"{socket}\"\n\n[debug]\nlevel = \"warn\"\n\n"
    );
    let (images, runtime) = ("'io.containerd.cri.v1.images'", "'io.containerd.cri.v1.runtime'");
    let runc = |of: &str| {
        format!(
            "[plugins.{of}.containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n\
             [plugins.{of}.containerd.runtimes.runc.options]\nRoot = \"{state}/runc\"\nSystemdCgroup = {systemd}\n"
        )
    };
    let _ = if major >= 2 {
        write!(
            text,
            "[plugins.{images}]\nsnapshotter = \"{snapshotter}\"\n[plugins.{images}.pinned_images]\nsandbox = \"{pause}\"\n\
             [plugins.{images}.registry]\nconfig_path = \"{root}/registries\"\n\n\
             [plugins.{runtime}]\nrestrict_oom_score_adj = {oom}\nnetns_mounts_under_state_dir = true\n\
             [plugins.{runtime}.cni]\nbin_dirs = [\"{plugins}\"]\nconf_dir = \"{cni}\"\n{}\n\
             [plugins.'io.containerd.grpc.v1.cri']\nstream_server_address = \"127.0.0.1\"\nstream_server_port = \"0\"\n",
            runc(runtime)
        )
    } else {
        let cri = "\"io.containerd.grpc.v1.cri\"";
        write!(
            text,
            "[plugins.{cri}]\nsandbox_image = \"{pause}\"\nrestrict_oom_score_adj = {oom}\nnetns_mounts_under_state_dir = true\n\
             stream_server_address = \"127.0.0.1\"\nstream_server_port = \"0\"\n\
             [plugins.{cri}.registry]\nconfig_path = \"{root}/registries\"\n\
             [plugins.{cri}.cni]\nbin_dir = \"{plugins}\"\nconf_dir = \"{cni}\"\n\
             [plugins.{cri}.containerd]\nsnapshotter = \"{snapshotter}\"\n{}",
            runc(cri)
        )
    };
    text
}

/// Without the right to, a container with a lower score than ours would not start.
fn may_lower_oom_score() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
    capabilities >> CAP_SYS_RESOURCE & 1 == 1
}

/// overlayfs cannot stand on overlayfs, which is what one has inside a container.
fn snapshotter(dir: &Path) -> &'static str {
    const OVERLAYFS_MAGIC: i64 = 0x794c_7630;
    match rustix::fs::statfs(dir) {
        Ok(fs) if fs.f_type == OVERLAYFS_MAGIC => "native",
        _ => "overlayfs",
    }
}
