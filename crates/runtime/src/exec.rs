//! What is run beside the first process of a container, and who joins in: exec, attach, port-forward.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cri::v1::{self, ContainerState};
use runtime_core::container::{self as core, Source, namespace};
use runtime_core::message::Exit;
use runtime_core::recipe::Slot;
use runtime_core::sandbox;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tonic::Status;

use crate::books::{Container, Sandbox};
use crate::containers::{namespaces, started};
use crate::daemon::{Daemon, blocking, failed, invalid};
use crate::keeper::Happened;
use crate::open::{Grounds, open};
use crate::records::SandboxPhase;
use crate::streams::{Processes, Session, Wanted};
use crate::{keepers, launch};

/// Of each stream; the rest is read and thrown away, as with every runtime.
const OUTPUT_MAX: usize = 16 << 20;
/// What a command leaves running may keep its output open for ever; nobody waits for that.
const DRAIN: Duration = Duration::from_secs(2);
/// A listener whose queue is full does not answer.
const DIALING: Duration = Duration::from_secs(10);
/// New children of those who are being killed.
const ROUNDS: usize = 16;

/// A process beside the first.
struct Beside {
    pid: i32,
    terminal: Option<OwnedFd>,
    exit: oneshot::Receiver<i32>,
}

/// Runs a command to its end, or to the end of `seconds` if there is one.
pub(crate) async fn sync(
    daemon: &Arc<Daemon>,
    id: &str,
    words: Vec<String>,
    seconds: i64,
) -> Result<v1::ExecSyncResponse, Status> {
    let container = running(daemon, id)?;
    let limit = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs);
    let (out, out_end) = pipe_pair()?;
    let (err, err_end) = pipe_pair()?;
    let process = run(daemon, &container, &words, false, [None, Some(out_end), Some(err_end)]).await?;
    let Beside { pid, mut exit, .. } = process;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let end = limit.map(|limit| Instant::now() + limit);
    let ended = {
        let mut read =
            std::pin::pin!(async { tokio::join!(drain(out, &mut stdout), drain(err, &mut stderr)) });
        let mut is_read = false;
        loop {
            tokio::select! {
                code = &mut exit => {
                    if !is_read {
                        let _ = tokio::time::timeout(DRAIN, read).await;
                    }
                    break Some(code);
                }
                _ = &mut read, if !is_read => is_read = true,
                () = until(end) => break None,
            }
        }
    };
    let Some(code) = ended else {
        blocking(move || end_tree(pid)).await?;
        let _ = tokio::time::timeout(DRAIN, exit).await;
        let what = words.join(" ");
        return Err(Status::deadline_exceeded(format!("command {what:?} timed out after {seconds} s")));
    };
    let exit_code = code.map_err(|_| Status::unavailable("the keeper of the Pod is gone"))?;
    Ok(v1::ExecSyncResponse { stdout, stderr, exit_code })
}

async fn until(end: Option<Instant>) {
    match end {
        Some(end) => tokio::time::sleep_until(end).await,
        None => std::future::pending().await,
    }
}

async fn drain(from: OwnedFd, into: &mut Vec<u8>) {
    let Ok(mut from) = pipe::Receiver::from_owned_fd(from) else { return };
    let mut buffer = vec![0; 64 << 10];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        let room = OUTPUT_MAX.saturating_sub(into.len()).min(n);
        into.extend_from_slice(&buffer[..room]);
    }
}

fn pipe_pair() -> Result<(OwnedFd, OwnedFd), Status> {
    let (reader, writer) = io::pipe().map_err(failed("make a pipe"))?;
    Ok((reader.into(), writer.into()))
}

pub(crate) fn running(daemon: &Daemon, id: &str) -> Result<Arc<Container>, Status> {
    let container = daemon.books.container(id)?;
    match container.cri_state() {
        ContainerState::ContainerRunning => Ok(container),
        state => Err(failed(format!("container {}", container.id))(format!(
            "container is in {} state",
            state.as_str_name()
        ))),
    }
}

async fn run(
    daemon: &Arc<Daemon>,
    container: &Arc<Container>,
    words: &[String],
    has_terminal: bool,
    stdio: [Option<OwnedFd>; 3],
) -> Result<Beside, Status> {
    let what = format!("exec in container {}", container.id);
    let keeper = keepers::of(&container.sandbox).await?;
    let sent = [0, 1, 2].map(|at| stdio[at].is_some());
    let (with, of, words) = (daemon.clone(), container.clone(), words.to_vec());
    let (plan, fds) = blocking(move || {
        let exec = launch::beside(&with, &of, &words, has_terminal, sent)?;
        let plan = core::plan_exec(&exec, with.capabilities).map_err(invalid)?;
        if let Some(mapping) = of.sandbox.mapping() {
            give(&stdio, mapping.host).map_err(failed("give its streams to the Pod's root"))?;
        }
        let fds = equip(&with, &of, &plan.sources, &stdio)?;
        Ok((plan, fds))
    })
    .await?;
    let job = container.sandbox.jobs.number();
    let mut happened = container.sandbox.jobs.expect(job);
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let launched = keeper.launch(job, &plan.launch, &borrowed).await;
    drop(fds);
    let launched = launched.inspect_err(|_| container.sandbox.jobs.forget(job)).map_err(failed(&what))?;
    let terminal = if has_terminal { terminal(&mut happened).await? } else { None };
    if let Err(error) = started(&mut happened, &plan).await {
        container.sandbox.jobs.forget(job);
        return Err(Status::new(error.code(), format!("{what}: {}", error.message())));
    }
    let (told, exit) = oneshot::channel();
    reap(container.sandbox.clone(), job, happened, Some(told));
    Ok(Beside { pid: launched.pid, terminal, exit })
}

/// So that it can open them by name, in a namespace that does not know our root.
fn give(stdio: &[Option<OwnedFd>; 3], root: u32) -> io::Result<()> {
    let (uid, gid) = (rustix::process::Uid::from_raw(root), rustix::process::Gid::from_raw(root));
    stdio.iter().flatten().try_for_each(|fd| Ok(rustix::fs::fchown(fd, Some(uid), Some(gid))?))
}

/// The terminal comes before the program runs; a failure may come instead.
async fn terminal(happened: &mut mpsc::Receiver<Happened>) -> Result<Option<OwnedFd>, Status> {
    match happened.recv().await {
        Some(Happened::Terminal(master)) => Ok(Some(master)),
        Some(Happened::Failed { why, .. }) => Err(failed("open a terminal")(why)),
        _ => Err(Status::unavailable("the keeper of the Pod is gone")),
    }
}

/// Takes the exit from the keeper, for whoever wants to know.
fn reap(
    sandbox: Arc<Sandbox>,
    job: u32,
    mut happened: mpsc::Receiver<Happened>,
    told: Option<oneshot::Sender<i32>>,
) {
    supervise::spawn("exec", async move {
        while let Some(what) = happened.recv().await {
            let Happened::Exited(Exit { code, .. }) = what else { continue };
            if let Some(told) = told {
                let _ = told.send(code);
            }
            if let Some(keeper) = sandbox.keeper()
                && let Err(error) = keeper.acknowledge(job).await
            {
                tracing::debug!(%error, job, "an exit stays with its keeper");
            }
            break;
        }
        sandbox.jobs.forget(job);
    });
}

fn equip(
    daemon: &Daemon,
    container: &Container,
    sources: &[Source],
    stdio: &[Option<OwnedFd>; 3],
) -> Result<Vec<OwnedFd>, Status> {
    let pidfd = container.state.borrow().pidfd.clone();
    let grounds = Grounds {
        hierarchies: &daemon.hierarchies,
        cgroup: &container.cgroup,
        root: None,
        namespaces: &Default::default(),
        pid_namespace: None,
        mounts: &[],
        devices: &[],
        user_root: 0,
        log: Path::new("/dev/null"),
        target: pidfd.as_deref(),
        stdio: [stdio[0].as_ref(), stdio[1].as_ref(), stdio[2].as_ref()],
    };
    open(sources, &grounds).map_err(failed(format!("exec in container {}", container.id)))
}

/// Kills a process and all that descend from it.
fn end_tree(root: i32) -> Result<(), Status> {
    let proc = Path::new("/proc");
    for _ in 0..ROUNDS {
        let all = sys::processes::list(proc).map_err(failed("list the processes"))?;
        let mut tree = BTreeSet::from([root]);
        loop {
            let more: Vec<i32> = all
                .iter()
                .filter(|process| tree.contains(&process.parent) && !tree.contains(&process.pid))
                .map(|process| process.pid)
                .collect();
            if more.is_empty() {
                break;
            }
            tree.extend(more);
        }
        let mut killed = 0;
        for process in all.iter().filter(|process| tree.contains(&process.pid)) {
            killed += usize::from(sys::processes::kill(process).unwrap_or(false));
        }
        // Who was killed may still be listed: once nobody has new children, it is done.
        if killed <= 1 {
            break;
        }
    }
    Ok(())
}

/// What a session leaves when its client goes before the command has ended.
struct Guard {
    pid: i32,
    is_over: Arc<std::sync::atomic::AtomicBool>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.is_over.load(std::sync::atomic::Ordering::Acquire) {
            return;
        }
        let pid = self.pid;
        supervise::spawn("end exec", async move {
            if let Err(error) = blocking(move || end_tree(pid)).await {
                tracing::warn!(%error, pid, "what a client had run may still run");
            }
        });
    }
}

#[tonic::async_trait]
impl Processes for Arc<Daemon> {
    async fn exec(&self, id: &str, words: &[String], wanted: Wanted) -> Result<Session, Status> {
        let container = running(self, id)?;
        let (mut ours, mut theirs) = ([None, None, None], [None, None, None]);
        let is_asked = [wanted.stdin, wanted.stdout, wanted.stderr];
        for at in (0..3).filter(|at| is_asked[*at] && !wanted.terminal) {
            let (reader, writer) = pipe_pair()?;
            (ours[at], theirs[at]) =
                if at == 0 { (Some(writer), Some(reader)) } else { (Some(reader), Some(writer)) };
        }
        let process = run(self, &container, words, wanted.terminal, theirs).await?;
        let [mut stdin, mut stdout, stderr] = ours;
        if let Some(master) = &process.terminal {
            stdin = if wanted.stdin { Some(copy(master)?) } else { None };
            stdout = Some(copy(master)?);
        }
        for fd in [&stdin, &stdout, &stderr].into_iter().flatten() {
            rustix::io::ioctl_fionbio(fd, true).map_err(failed("open the streams"))?;
        }
        let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let guard = Guard { pid: process.pid, is_over: is_over.clone() };
        let (tell, told) = oneshot::channel();
        supervise::spawn("exec session", async move {
            if let Ok(code) = process.exit.await {
                is_over.store(true, std::sync::atomic::Ordering::Release);
                let _ = tell.send(code);
            }
        });
        Ok(Session {
            stdin,
            stdout,
            stderr,
            terminal: process.terminal,
            ends_with_input: false,
            exit: Some(told),
            guard: Box::new(guard),
        })
    }

    async fn attach(&self, id: &str, wanted: Wanted) -> Result<Session, Status> {
        let container = running(self, id)?;
        let what = format!("attach to container {}", container.id);
        let (keeper, job, config) =
            (keepers::of(&container.sandbox).await?, container.job, &container.config);
        let (stdout, out_end) = sys::message::pair().map_err(failed(&what))?;
        let (stderr, err_end) = sys::message::pair().map_err(failed(&what))?;
        let (terminal, input) = match keeper.input(job).await {
            Ok(input) if config.tty => (Some(copy(&input)?), Some(input)),
            Ok(input) => (None, Some(input)),
            Err(_) => (None, None),
        };
        let ends = [out_end.as_fd(), err_end.as_fd()];
        let wanted_ends = if wanted.stderr && !config.tty { &ends[..] } else { &ends[..1] };
        keeper.tee(job, wanted_ends).await.map_err(failed(&what))?;
        let stdin = input.filter(|_| wanted.stdin && config.stdin);
        if stdin.is_some() && config.stdin_once && !config.tty {
            keeper.close_input(job).await.map_err(failed(&what))?;
            // Nor may we keep it open: the container waits for the end of what its one client says.
            container.forget_spare_input();
        }
        for fd in [stdin.as_ref(), Some(&stdout), Some(&stderr)].into_iter().flatten() {
            rustix::io::ioctl_fionbio(fd, true).map_err(failed(&what))?;
        }
        Ok(Session {
            ends_with_input: stdin.is_some() && !config.stdin_once,
            stdin,
            stdout: Some(stdout).filter(|_| wanted.stdout),
            stderr: Some(stderr).filter(|_| wanted.stderr && !config.tty),
            terminal,
            exit: None,
            guard: Box::new(()),
        })
    }

    async fn port_forward(&self, id: &str, port: u16) -> Result<OwnedFd, Status> {
        let sandbox = self.books.sandbox(id)?;
        let what = format!("connect to port {port} of sandbox {}", sandbox.id);
        if sandbox.phase() != SandboxPhase::Ready {
            return Err(failed(what)("the sandbox is not running"));
        }
        let keeper = keepers::of(&sandbox).await?;
        let of = sandbox.clone();
        let network = blocking(move || Ok(namespaces(&of)?.remove(&namespace::NETWORK))).await?;
        let plan = sandbox::dial(network.as_ref().map(|_| Slot(0)), port);
        let job = sandbox.jobs.number();
        let mut happened = sandbox.jobs.expect(job);
        let slots: Vec<BorrowedFd<'_>> = network.iter().map(AsFd::as_fd).collect();
        let launched = keeper.launch(job, &plan, &slots).await;
        launched.inspect_err(|_| sandbox.jobs.forget(job)).map_err(failed(&what))?;
        let dialed = tokio::time::timeout(DIALING, async {
            match happened.recv().await {
                Some(Happened::Held(Some(socket))) => Ok(socket),
                Some(Happened::Failed { why, .. }) => Err(failed(&what)(why)),
                _ => Err(Status::unavailable("the keeper of the Pod is gone")),
            }
        });
        let dialed = dialed.await;
        if dialed.is_err() {
            // It ends with an answer of its own that nobody waits for.
            let _ = keeper.signal(job, crate::signals::SIGKILL).await;
        }
        reap(sandbox, job, happened, None);
        let socket =
            dialed.unwrap_or_else(|_| Err(Status::deadline_exceeded(format!("{what}: no answer"))))?;
        rustix::io::ioctl_fionbio(&socket, true).map_err(failed("open the connection"))?;
        Ok(socket)
    }
}

fn copy(fd: &OwnedFd) -> Result<OwnedFd, Status> {
    fd.try_clone().map_err(failed("copy a terminal"))
}
