//! After a start: what an earlier daemon wrote down, what the keepers have, and what the machine shows, brought together.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use images::DiffId;
use runtime_core::message::State;
use tonic::Status;

use crate::books::{Container, NO_PARENT, Sandbox};
use crate::daemon::{Daemon, blocking, failed};
use crate::jobs::{INIT, NAMESPACES};
use crate::keeper::{Job, Keeper};
use crate::records::{ContainerRecord, Kind, Phase, SandboxPhase, SandboxRecord};
use crate::{cgroups, containers, exits, ids, keepers, pod_files, rootfs, sandboxes};

/// Finishes or undoes whatever was half done, and ends what nobody owns.
pub(crate) async fn run(daemon: &Arc<Daemon>) -> Result<(), Status> {
    let with = daemon.clone();
    let (sandboxes, containers) = blocking(move || {
        let all = (with.records.read(Kind::Sandbox), with.records.read(Kind::Container));
        match all {
            (Ok(sandboxes), Ok(containers)) => Ok((sandboxes, containers)),
            (Err(e), _) | (_, Err(e)) => Err(failed("read the records")(e)),
        }
    })
    .await?;
    for (id, record) in sandboxes {
        remember_sandbox(daemon, &id, record);
    }
    for (id, record) in containers {
        remember_container(daemon, id, record).await?;
    }
    let all = daemon.books.sandboxes().into_iter().map(|sandbox| {
        let daemon = daemon.clone();
        supervise::spawn("find a keeper", async move { find(&daemon, &sandbox).await })
    });
    for done in all.collect::<Vec<_>>() {
        let _ = done.await;
    }
    sweep(daemon).await;
    detach(daemon).await;
    collect(daemon).await;
    Ok(())
}

/// What is attached to a network for a sandbox that is not there holds an address that somebody else could have.
async fn detach(daemon: &Arc<Daemon>) {
    let with = daemon.clone();
    let left = blocking(move || {
        Ok(with.networks.leftovers(|id| with.books.find_sandbox(id).is_some_and(|sandbox| sandbox.id == id)))
    });
    for (path, network, attachment) in left.await.unwrap_or_default() {
        daemon.metrics.leftovers.inc(["network"]);
        tracing::info!(
            sandbox = attachment.container,
            network = network.name,
            "a sandbox that is gone is detached"
        );
        if let Err(error) = daemon.networks.del(&network, &attachment).await {
            tracing::error!(kept = %path.display(), %error, "a sandbox that is gone stays attached");
        }
    }
}

/// Plugins that know the question free what is of no sandbox that is there. Nobody is served yet, so nothing is attached meanwhile.
async fn collect(daemon: &Arc<Daemon>) {
    let networks = daemon.networks.clone();
    let Ok(Ok((network, _))) = blocking(move || Ok(networks.load())).await else { return };
    let sandboxes = daemon.books.sandboxes();
    let valid: Vec<(String, String)> =
        sandboxes.iter().map(|sandbox| (sandbox.id.clone(), sandboxes::INTERFACE.to_owned())).collect();
    if let Err(error) = daemon.networks.collect(&network, &valid).await {
        tracing::warn!(network = network.name, %error, "plugins keep what is nobody's");
    }
}

fn remember_sandbox(daemon: &Daemon, id: &str, record: SandboxRecord) {
    let sandbox =
        Sandbox::new(id, record.config.0, &record.handler, record.created_at, daemon.sandbox_dir(id));
    sandbox.state(|state| (state.phase, state.network) = (record.phase, record.network));
    daemon.attempts.remember(&sandbox.name(), id);
    daemon.books.add_sandbox(Arc::new(sandbox));
}

async fn remember_container(daemon: &Arc<Daemon>, id: String, record: ContainerRecord) -> Result<(), Status> {
    let Some(sandbox) = daemon.books.find_sandbox(&record.sandbox) else {
        tracing::warn!(
            container = id,
            sandbox = record.sandbox,
            "a container whose sandbox is gone is removed"
        );
        daemon.metrics.leftovers.inc(["container"]);
        let daemon = daemon.clone();
        return blocking(move || {
            rootfs::remove(&daemon.containers_dir(), &id)
                .and_then(|()| daemon.records.remove(Kind::Container, &id))
                .map_err(failed(format!("remove container {id}")))
        })
        .await;
    };
    sandbox.jobs.skip(record.job);
    let cgroup = containers::cgroup(daemon, &sandbox, &id)?;
    let container = Container::of_record(&id, record, sandbox, (cgroup, &daemon.containers_dir()));
    hold(daemon, &container);
    daemon.attempts.remember(&container.name(), &id);
    daemon.books.add_container(Arc::new(container));
    Ok(())
}

/// Its layers, which its image may have lost meanwhile.
fn hold(daemon: &Daemon, container: &Container) {
    let all = container.image.layers.iter().chain(container.image_mounts.values().flatten());
    let layers: Result<Vec<DiffId>, _> = all.map(|layer| layer.parse()).collect();
    let held =
        layers.map_err(|e| e.to_string()).and_then(|all| daemon.store.hold(&all).map_err(|e| e.to_string()));
    match held {
        Ok(held) => *container.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(held),
        Err(error) => {
            tracing::error!(container = container.id, error, "a container has lost a layer of its image")
        }
    }
}

/// Connects to the keeper of a Pod, and takes up what it tells.
async fn find(daemon: &Arc<Daemon>, sandbox: &Arc<Sandbox>) {
    let _turn = sandbox.turn.lock().await;
    if sandbox.phase() == SandboxPhase::Making {
        return undo(daemon, sandbox).await;
    }
    match connect(sandbox).await {
        Ok((keeper, events, jobs, mut ended)) => {
            sandbox.state(|state| state.keeper = Some(keeper));
            let mut left = Vec::new();
            for job in jobs {
                sandbox.jobs.skip(job.key);
                left.push(job);
            }
            adopt(daemon, sandbox, left, &mut ended).await;
            keepers::listen(daemon.clone(), sandbox.clone(), events);
        }
        Err(error) => {
            if sandbox.phase() == SandboxPhase::Ready {
                tracing::error!(sandbox = sandbox.id, %error, "the keeper of a Pod is gone");
                daemon.metrics.keepers_lost.inc([]);
            }
            lose(daemon, sandbox).await;
        }
    }
}

type Found = (
    Keeper,
    tokio::sync::mpsc::Receiver<crate::keeper::Event>,
    Vec<Job>,
    Vec<(u32, runtime_core::message::Exit)>,
);

async fn connect(sandbox: &Arc<Sandbox>) -> Result<Found, Status> {
    let dir = sandbox.dir.clone();
    let opened = blocking(move || sys::fd::open_dir(&dir).map_err(failed("open its directory"))).await?;
    let (keeper, events) = Keeper::connect(opened, OsStr::new(keepers::SOCKET)).map_err(failed("connect"))?;
    let (jobs, exits) = keeper.list().await.map_err(failed("list"))?;
    Ok((keeper, events, jobs, exits))
}

/// Nobody was told of it.
async fn undo(daemon: &Arc<Daemon>, sandbox: &Arc<Sandbox>) {
    tracing::info!(sandbox = sandbox.id, "a sandbox that was half made is undone");
    daemon.metrics.leftovers.inc(["sandbox"]);
    if let Ok((keeper, ..)) = connect(sandbox).await {
        sandbox.state(|state| state.keeper = Some(keeper));
        // It may have made one already.
        if let Some(keeper) = sandbox.keeper() {
            for job in [INIT, NAMESPACES] {
                let _ = keeper.signal(job, crate::signals::SIGKILL).await;
            }
        }
    }
    let undone = match sandboxes::tear_down(daemon, sandbox).await {
        Ok(()) => sandboxes::forget(daemon, sandbox).await,
        failed => failed,
    };
    if let Err(error) = undone {
        tracing::error!(sandbox = sandbox.id, %error, "half of a sandbox is left");
        sandbox.state(|state| state.phase = SandboxPhase::NotReady);
    }
}

/// What the keeper has, against what is written.
async fn adopt(
    daemon: &Arc<Daemon>,
    sandbox: &Arc<Sandbox>,
    mut jobs: Vec<Job>,
    exits: &mut Vec<(u32, runtime_core::message::Exit)>,
) {
    let mut take = |key: u32| jobs.iter().position(|job| job.key == key).map(|at| jobs.remove(at));
    if let Some(init) = take(INIT) {
        sandbox.state(|state| state.init = init.pidfd.map(Arc::new));
        keepers::watch_init(daemon.clone(), sandbox.clone(), sandbox.jobs.expect(INIT));
    }
    for container in daemon.books.containers_of(&sandbox.id) {
        let job = take(container.job);
        let exit = exits.iter().position(|(key, _)| *key == container.job).map(|at| exits.remove(at).1);
        resume(daemon, &container, job, exit).await;
    }
    // Commands that somebody ran: who waited for them is gone.
    let Some(keeper) = sandbox.keeper() else { return };
    for job in jobs {
        if job.state != State::Exited {
            let _ = keeper.signal(job.key, crate::signals::SIGKILL).await;
        } else if let Err(error) = keeper.acknowledge(job.key).await {
            tracing::debug!(%error, job = job.key, "an exit stays with its keeper");
        }
    }
}

async fn resume(
    daemon: &Arc<Daemon>,
    container: &Arc<Container>,
    job: Option<Job>,
    exit: Option<runtime_core::message::Exit>,
) {
    let was = container.phase();
    match (job, exit, &was) {
        // It is written; only the keeper was not told.
        (Some(_), Some(_), Phase::Exited(_)) => {
            if let Some(keeper) = container.sandbox.keeper() {
                let _ = keeper.acknowledge(container.job).await;
            }
        }
        (_, Some(exit), _) => {
            began(container, 0);
            exits::finish(daemon, container, exits::ended(container, exit)).await;
        }
        (Some(job), None, Phase::Starting | Phase::Running { .. }) => {
            began(container, job.pid);
            container.state.send_modify(|state| state.pidfd = job.pidfd.map(Arc::new));
            let happened = container.sandbox.jobs.expect(container.job);
            if let Some(keeper) = container.sandbox.keeper() {
                keepers::keep_spare(&keeper, container).await;
            }
            if let Err(error) = write(daemon, container).await {
                tracing::error!(container = container.id, %error, "that a container runs was not written down");
            }
            exits::watch(daemon.clone(), container.clone(), happened);
        }
        (None, None, Phase::Starting) => {
            let why = "the runtime was ended while it started".to_owned();
            exits::finish(daemon, container, exits::never_ran(why)).await;
        }
        (None, None, Phase::Running { .. }) => {
            exits::finish(daemon, container, exits::lost("nobody knows how it ended")).await;
        }
        _ => {}
    }
}

/// That it was started was known, but not yet written.
fn began(container: &Container, pid: i32) {
    container.state.send_if_modified(|state| match &mut state.phase {
        Phase::Running { .. } => false,
        other => {
            *other = Phase::Running { pid, started_at: ids::now() };
            true
        }
    });
}

async fn write(daemon: &Arc<Daemon>, container: &Arc<Container>) -> Result<(), Status> {
    let (daemon, container) = (daemon.clone(), container.clone());
    blocking(move || daemon.write_container(&container)).await
}

/// Without a keeper nobody knows how its containers end.
async fn lose(daemon: &Arc<Daemon>, sandbox: &Arc<Sandbox>) {
    for container in daemon.books.containers_of(&sandbox.id) {
        match container.phase() {
            Phase::Running { .. } => {
                exits::finish(daemon, &container, exits::lost("its keeper was killed")).await;
            }
            Phase::Starting => {
                let why = "the runtime was ended while it started".to_owned();
                exits::finish(daemon, &container, exits::never_ran(why)).await;
            }
            Phase::Created | Phase::Exited(_) => {}
        }
    }
    if sandbox.phase() == SandboxPhase::Ready {
        sandbox.state(|state| state.phase = SandboxPhase::NotReady);
        if let Err(error) = daemon.write_sandbox(sandbox) {
            tracing::error!(sandbox = sandbox.id, %error, "the end of a Pod was not written down");
        }
    }
}

/// Directories without a record: of what was removed when the daemon was ended, or of an earlier boot.
async fn sweep(daemon: &Arc<Daemon>) {
    let with = daemon.clone();
    let swept = blocking(move || {
        let is_sandbox = |id: &str| with.books.find_sandbox(id).is_some_and(|sandbox| sandbox.id == id);
        let is_container = |id: &str| with.books.find_container(id).is_some_and(|c| c.id == id);
        for id in names(&with.state_dir.join("sandboxes"))?.into_iter().filter(|id| !is_sandbox(id)) {
            sweep_sandbox(&with, &id)?;
        }
        for id in names(&with.containers_dir())?.into_iter().filter(|id| !is_container(id)) {
            with.metrics.leftovers.inc(["container"]);
            rootfs::remove(&with.containers_dir(), &id).map_err(failed(format!("remove container {id}")))?;
        }
        Ok(())
    });
    if let Err(error) = swept.await {
        tracing::error!(%error, "something without an owner is left");
    }
}

fn sweep_sandbox(daemon: &Daemon, id: &str) -> Result<(), Status> {
    let dir = daemon.sandbox_dir(id);
    tracing::warn!(sandbox = id, "a sandbox without a record is removed");
    daemon.metrics.leftovers.inc(["sandbox"]);
    if let Ok(opened) = sys::fd::open_dir(&dir)
        && let Ok(socket) = sys::message::connect(opened, OsStr::new(keepers::SOCKET))
    {
        let quit = runtime_core::message::encode(runtime_core::message::Ask::Quit, 0, 0);
        let _ = sys::message::send(socket, &quit, &[]);
    }
    // Where its Pod had no place of its own. Everywhere else the kubelet ends what is in the cgroups of Pods it does not know.
    cgroups::remove(&daemon.hierarchies, &format!("{NO_PARENT}/{id}"))?;
    pod_files::unmount(&dir).map_err(failed(format!("unmount what is in {}", dir.display())))?;
    let parent = dir.parent().unwrap_or(Path::new("/"));
    rootfs::remove(parent, id).map_err(failed(format!("remove {}", dir.display())))
}

fn names(dir: &Path) -> Result<Vec<String>, Status> {
    let entries = fs::read_dir(dir).map_err(failed(format!("list {}", dir.display())))?;
    Ok(entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}
