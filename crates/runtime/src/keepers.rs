//! Listening to each Pod's keeper: events go to who waits for them, and a keeper that was killed is replaced.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tonic::Status;

use crate::books::{Container, Sandbox};
use crate::daemon::{Daemon, blocking, failed};
use crate::jobs::INIT;
use crate::keeper::{Event, Happened, Keeper};
use crate::records::{Phase, SandboxPhase};

/// In the sandbox's directory.
pub(crate) const SOCKET: &str = "keeper";
/// It starts a process and passes descriptors on.
const REPLACING: Duration = Duration::from_secs(5);
const REPLACED: Duration = Duration::from_millis(5);

/// Passes on what a keeper tells, until it is gone.
pub(crate) fn listen(daemon: Arc<Daemon>, sandbox: Arc<Sandbox>, mut events: mpsc::Receiver<Event>) {
    supervise::spawn("keeper events", async move {
        while let Some(Event { job, what }) = events.recv().await {
            let is_exit = matches!(what, Happened::Exited(_));
            if !sandbox.jobs.tell(job, what) && is_exit {
                forget(&sandbox, job);
            }
        }
        let was_there = sandbox.state(|state| state.keeper.take().is_some());
        if !was_there || sandbox.phase() != SandboxPhase::Ready {
            return sandbox.jobs.end();
        }
        daemon.metrics.keepers_lost.inc([]);
        tracing::error!(sandbox = sandbox.id, pod = sandbox.meta().name, "the keeper of a Pod was killed");
        if let Err(error) = replace(&daemon, &sandbox).await {
            tracing::error!(sandbox = sandbox.id, %error, "the keeper of a Pod was not replaced");
            sandbox.jobs.end();
        }
    });
}

/// The keeper of a Pod. One that was killed is being replaced, which is worth a moment.
pub(crate) async fn of(sandbox: &Sandbox) -> Result<Keeper, Status> {
    let replaced = async {
        loop {
            match sandbox.keeper() {
                Some(keeper) => return Some(keeper),
                None if sandbox.phase() != SandboxPhase::Ready => return None,
                None => tokio::time::sleep(REPLACED).await,
            }
        }
    };
    let keeper = tokio::time::timeout(REPLACING, replaced).await.ok().flatten();
    keeper.ok_or_else(|| Status::unavailable("the keeper of the Pod is gone"))
}

/// Another keeper takes over what the one that was killed looked after.
async fn replace(daemon: &Arc<Daemon>, sandbox: &Arc<Sandbox>) -> Result<(), Status> {
    let _turn = sandbox.turn.lock().await;
    if sandbox.phase() != SandboxPhase::Ready {
        sandbox.jobs.end();
        return Ok(());
    }
    let dir = sandbox.dir.clone();
    let opened = blocking(move || {
        // Nobody listens under that name any more.
        std::fs::remove_file(dir.join(SOCKET))
            .and_then(|()| sys::fd::open_dir(&dir))
            .map_err(failed(format!("make room in {}", dir.display())))
    });
    let opened = opened.await?;
    let started = Keeper::start(&daemon.program, opened, OsStr::new(SOCKET));
    let (keeper, events) = started.map_err(failed("start another keeper"))?;
    let mut adopted = BTreeSet::new();
    for container in daemon.books.containers_of(&sandbox.id) {
        match adopt(daemon, &keeper, &container).await {
            Ok(true) => drop(adopted.insert(container.job)),
            Ok(false) => {}
            Err(error) => {
                tracing::error!(container = container.id, %error, "nobody looks after a container any more");
            }
        }
    }
    if let Some(init) = sandbox.state(|state| state.init.clone()) {
        let fds = [Some(init.as_fd()), None, None, None, None, None];
        keeper.adopt(INIT, 0, fds).await.map_err(failed("adopt the first process"))?;
        adopted.insert(INIT);
    }
    // Before anybody can ask the new one for more.
    sandbox.jobs.end_others(&adopted);
    sandbox.state(|state| state.keeper = Some(keeper));
    listen(daemon.clone(), sandbox.clone(), events);
    Ok(())
}

/// False for a container that does not run.
async fn adopt(daemon: &Arc<Daemon>, keeper: &Keeper, container: &Arc<Container>) -> Result<bool, Status> {
    let state = container.state.borrow().clone();
    let (Phase::Running { pid, .. }, Some(pidfd)) = (state.phase, state.pidfd) else { return Ok(false) };
    let (hierarchies, cgroup, log) =
        (daemon.hierarchies.clone(), container.cgroup.clone(), container.log_path());
    let (log, memory) = blocking(move || {
        let log = if log.as_os_str().is_empty() { Path::new("/dev/null") } else { &log };
        let log = crate::open::log(log).map_err(failed("open"))?;
        Ok((log, crate::open::memory_events(&hierarchies, &cgroup)))
    })
    .await?;
    let spare = container.spare.lock().unwrap_or_else(PoisonError::into_inner).take();
    let fd = |fd: &Option<OwnedFd>| fd.as_ref().and_then(|fd| fd.try_clone().ok());
    let spare = spare.unwrap_or_default();
    let copies: Vec<Option<OwnedFd>> = spare.iter().map(fd).collect();
    *container.spare.lock().unwrap_or_else(PoisonError::into_inner) = Some(spare);
    let at = |at: usize| copies.get(at).and_then(Option::as_ref).map(AsFd::as_fd);
    let memory = memory.as_ref().map(AsFd::as_fd);
    let fds = [Some(pidfd.as_fd()), at(0), at(1), at(2), Some(log.as_fd()), memory];
    keeper.adopt(container.job, pid.unsigned_abs(), fds).await.map_err(failed("adopt"))?;
    Ok(true)
}

/// Asks for what another keeper would need to go on reading what a container prints.
pub(crate) async fn keep_spare(keeper: &Keeper, container: &Container) {
    // What it does not have, it does not need.
    let spare = [
        keeper.stream(container.job, 0).await,
        keeper.stream(container.job, 1).await,
        keeper.input(container.job).await,
    ];
    *container.spare.lock().unwrap_or_else(PoisonError::into_inner) = Some(spare.map(Result::ok));
}

/// An exit that nobody waits for: the keeper need not keep it.
fn forget(sandbox: &Arc<Sandbox>, job: u32) {
    let Some(keeper) = sandbox.keeper() else { return };
    supervise::spawn("forget a process", async move {
        if let Err(error) = keeper.acknowledge(job).await {
            tracing::debug!(%error, job, "an exit stays with its keeper");
        }
    });
}

/// When the first process of a shared PID namespace ends, all of the namespace has ended.
pub(crate) fn watch_init(daemon: Arc<Daemon>, sandbox: Arc<Sandbox>, mut happened: mpsc::Receiver<Happened>) {
    supervise::spawn("first process", async move {
        while let Some(what) = happened.recv().await {
            if !matches!(what, Happened::Exited(_)) {
                continue;
            }
            forget(&sandbox, INIT);
            sandbox.jobs.forget(INIT);
            let is_lost =
                sandbox.state(|state| state.init.take().is_some() && state.phase == SandboxPhase::Ready);
            if is_lost {
                tracing::error!(
                    sandbox = sandbox.id,
                    "the first process of a Pod was ended; the Pod is not ready"
                );
                sandbox.state(|state| state.phase = SandboxPhase::NotReady);
                if let Err(error) = daemon.write_sandbox(&sandbox) {
                    tracing::error!(%error, "the end of a Pod was not written down");
                }
                daemon.publish_sandbox(&sandbox, cri::v1::ContainerEventType::ContainerStoppedEvent);
            }
        }
    });
}

/// Whether its network namespace is there.
pub(crate) fn is_pinned(sandbox: &Sandbox) -> bool {
    let Ok(dir) = sys::fd::open_dir(&sandbox.dir) else { return false };
    sys::fd::is_mount_point(&dir, OsStr::new("net")).unwrap_or(false)
}
