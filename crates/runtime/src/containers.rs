//! Containers: created, started, stopped, removed, changed.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use cri::v1::{self, ContainerEventType, ContainerState};
use images::{DiffId, Image};
use runtime_core::container::{self as core, Plan, Source};
use runtime_core::recipe::Op;
use tokio::sync::mpsc;
use tonic::Status;

use crate::attempts::Entered;
use crate::books::{Container, Sandbox, name_of_container};
use crate::daemon::{Daemon, blocking, failed, invalid, to_its_end};
use crate::keeper::{Happened, Keeper};
use crate::launch::Prepared;
use crate::open::{Grounds, open};
use crate::records::{ContainerRecord, ImageFacts, Kind, Phase, SandboxPhase, UserFacts};
use crate::signals::SIGKILL;
use crate::{cdi, cgroups, exits, ids, launch, rootfs, signals};

/// A process that was killed is gone by then.
const DYING: Duration = Duration::from_secs(30);
/// From clone to exec. Opening a program may mean waiting for its file system.
const STARTING: Duration = Duration::from_secs(60);

pub(crate) async fn create(
    daemon: &Arc<Daemon>,
    sandbox: &str,
    config: v1::ContainerConfig,
) -> Result<String, Status> {
    let sandbox = daemon.books.sandbox(sandbox)?;
    let metadata =
        config.metadata.clone().ok_or_else(|| invalid("container config must include metadata"))?;
    if metadata.name.is_empty() {
        return Err(invalid("container metadata must have a name"));
    }
    let is_privileged =
        config.linux.as_ref().and_then(|l| l.security_context.as_ref()).is_some_and(|c| c.privileged);
    if is_privileged && !sandbox.is_privileged() {
        return Err(invalid("no privileged container allowed in sandbox"));
    }
    let name = name_of_container(&sandbox.id, &metadata);
    let id = ids::new_id().map_err(failed("make an id"))?;
    match daemon.attempts.enter(&name, &id)? {
        Entered::Joined(attempt) => attempt.wait().await,
        Entered::First(attempt) => {
            let (daemon, ours) = (daemon.clone(), attempt.clone());
            supervise::spawn("create container", async move {
                let made = make(&daemon, &sandbox, id.clone(), config).await;
                daemon.attempts.finish(&ours, made.map(|()| id));
            });
            attempt.wait().await
        }
    }
}

async fn make(
    daemon: &Arc<Daemon>,
    sandbox: &Arc<Sandbox>,
    id: String,
    config: v1::ContainerConfig,
) -> Result<(), Status> {
    let (with, of) = (daemon.clone(), sandbox.clone());
    let container = blocking(move || build(&with, &of, &id, config)).await?;
    daemon.books.add_container(container.clone());
    daemon.publish_container(&container, ContainerEventType::ContainerCreatedEvent);
    Ok(())
}

/// Everything that can be found wrong with a container is found here.
fn build(
    daemon: &Daemon,
    sandbox: &Arc<Sandbox>,
    id: &str,
    config: v1::ContainerConfig,
) -> Result<Arc<Container>, Status> {
    let wanted = config.image.as_ref().map(|image| image.image.as_str()).unwrap_or_default();
    let image = daemon.store.find(wanted);
    let image = image.ok_or_else(|| Status::not_found(format!("image {wanted:?} is not found")))?;
    let mut layers: Vec<DiffId> = image.layers.clone();
    let mut image_mounts = BTreeMap::new();
    for (at, mount) in config.mounts.iter().enumerate() {
        let Some(spec) = mount.image.as_ref().filter(|spec| !spec.image.is_empty()) else { continue };
        let found = daemon.store.find(&spec.image).ok_or_else(|| {
            Status::unknown(format!(
                "ImageVolumeMountFailed: image {:?} of mount {} is not found",
                spec.image, mount.container_path
            ))
        })?;
        layers.extend(found.layers.iter().cloned());
        image_mounts.insert(at, found.layers.iter().map(ToString::to_string).collect());
    }
    let held = daemon.store.hold(&layers).map_err(failed(format!("hold the layers of {wanted}")))?;
    let mut record = ContainerRecord::new(
        &sandbox.id,
        config,
        facts(&image),
        UserFacts::default(),
        ids::now(),
        sandbox.jobs.number(),
    );
    record.image_mounts = image_mounts;
    record.cdi = cdi::edits(&daemon.cdi_dirs, &record.config.0)?;
    // Written before anything is made: what lies under this id is this container's.
    daemon
        .records
        .write(Kind::Container, id, &record)
        .map_err(failed(format!("write down container {id}")))?;
    let built = complete(daemon, sandbox, id, record);
    match built {
        Ok(container) => {
            *container.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(held);
            Ok(container)
        }
        Err(error) => {
            let undone = rootfs::remove(&daemon.containers_dir(), id)
                .and_then(|()| daemon.records.remove(Kind::Container, id));
            if let Err(second) = undone {
                tracing::error!(container = id, error = %second, "half of a container is left");
            }
            Err(error)
        }
    }
}

fn complete(
    daemon: &Daemon,
    sandbox: &Arc<Sandbox>,
    id: &str,
    mut record: ContainerRecord,
) -> Result<Arc<Container>, Status> {
    let cgroup = cgroup(daemon, sandbox, id)?;
    let place = (cgroup, daemon.containers_dir());
    let first = of_record(id, record.clone(), sandbox, &place);
    let root = rootfs::mount(&daemon.store, &first)?;
    let user = launch::resolve_user(&first.config, &first.image, &root)?;
    let mut groups = user.groups;
    groups.extend(record.cdi.groups.iter().filter(|gid| !groups.contains(gid)).collect::<Vec<_>>());
    record.user = UserFacts { uid: user.uid, gid: user.gid, groups, home: user.home };
    let container = of_record(id, record, sandbox, &place);
    // The plan is made again when it is started; here it shows what is wrong.
    let prepared = launch::prepare(daemon, &container)?;
    core::plan(&prepared.container, daemon.capabilities).map_err(invalid)?;
    make_log_dir(&container)?;
    *container.root.lock().unwrap_or_else(PoisonError::into_inner) = Some(root);
    daemon.write_container(&container)?;
    Ok(Arc::new(container))
}

fn of_record(
    id: &str,
    record: ContainerRecord,
    sandbox: &Arc<Sandbox>,
    place: &(String, PathBuf),
) -> Container {
    Container::of_record(id, record, sandbox.clone(), (place.0.clone(), &place.1))
}

pub(crate) fn cgroup(daemon: &Daemon, sandbox: &Sandbox, id: &str) -> Result<String, Status> {
    runtime_core::resources::cgroup(daemon.driver, sandbox.cgroup_parent(), id).map_err(invalid)
}

fn facts(image: &Image) -> ImageFacts {
    let config = &image.config;
    ImageFacts {
        id: image.id.clone(),
        reference: image.digests.first().cloned().unwrap_or_else(|| image.id.clone()),
        layers: image.layers.iter().map(ToString::to_string).collect(),
        user: config.user.clone(),
        env: config.env.clone(),
        entrypoint: config.entrypoint.clone(),
        cmd: config.cmd.clone(),
        working_dir: config.working_dir.clone(),
        stop_signal: config.stop_signal.clone(),
        volumes: config.volumes.clone(),
    }
}

fn make_log_dir(container: &Container) -> Result<(), Status> {
    let path = container.log_path();
    match path.parent() {
        Some(dir) => fs::create_dir_all(dir).map_err(failed(format!("make {}", dir.display()))),
        None => Ok(()),
    }
}

pub(crate) async fn start(daemon: &Arc<Daemon>, id: &str) -> Result<(), Status> {
    let container = daemon.books.container(id)?;
    let daemon = daemon.clone();
    to_its_end("start container", async move {
        let _turn = container.turn.lock().await;
        let state = container.cri_state();
        if container.phase() != Phase::Created {
            return Err(failed(format!("start container {}", container.id))(format!(
                "container is in {} state",
                state.as_str_name()
            )));
        }
        let Err(error) = launch_first(&daemon, &container).await else { return Ok(()) };
        let message = format!("start container {}: {}", container.id, error.message());
        exits::finish(&daemon, &container, exits::never_ran(message.clone())).await;
        Err(Status::new(error.code(), message))
    })
    .await
}

async fn launch_first(daemon: &Arc<Daemon>, container: &Arc<Container>) -> Result<(), Status> {
    let sandbox = &container.sandbox;
    if sandbox.phase() != SandboxPhase::Ready {
        return Err(failed("sandbox")(format!("sandbox {} is not running", sandbox.id)));
    }
    let keeper = crate::keepers::of(sandbox).await?;
    set_phase(daemon, container, Phase::Starting).await?;
    let target = target(daemon, container)?;
    let (with, of) = (daemon.clone(), container.clone());
    let (plan, fds) = blocking(move || equip(&with, &of, target.as_deref())).await?;
    let mut happened = sandbox.jobs.expect(container.job);
    let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let launched = keeper.launch(container.job, &plan.launch, &borrowed).await.map_err(failed("launch"))?;
    drop(fds);
    started(&mut happened, &plan).await?;
    crate::keepers::keep_spare(&keeper, container).await;
    let pidfd = Some(Arc::new(launched.pidfd));
    container.state.send_modify(|state| state.pidfd = pidfd);
    set_phase(daemon, container, Phase::Running { pid: launched.pid, started_at: ids::now() }).await?;
    daemon.publish_container(container, ContainerEventType::ContainerStartedEvent);
    exits::watch(daemon.clone(), container.clone(), happened);
    Ok(())
}

/// Waits until the program runs. An exit that came meanwhile is not lost: it comes after this.
pub(crate) async fn started(happened: &mut mpsc::Receiver<Happened>, plan: &Plan) -> Result<(), Status> {
    let wait = async {
        loop {
            match happened.recv().await {
                Some(Happened::Started) => return Ok(()),
                Some(Happened::Failed { op, why }) => {
                    let op = plan.launch.ops.get(op as usize);
                    let what = op.map(Op::describe).unwrap_or_default();
                    return Err(failed("failed to start")(format!("{what}: {why}")));
                }
                Some(_) => {}
                None => return Err(Status::unavailable("the keeper of the Pod is gone")),
            }
        }
    };
    tokio::time::timeout(STARTING, wait)
        .await
        .unwrap_or_else(|_| Err(Status::deadline_exceeded("it does not start")))
}

/// The first process of another container of the Pod, whose PID namespace this one joins.
fn target(daemon: &Daemon, container: &Container) -> Result<Option<Arc<OwnedFd>>, Status> {
    let options = container.security().namespace_options.unwrap_or_default();
    match options.pid() {
        v1::NamespaceMode::Pod => {
            let init = container.sandbox.state(|state| state.init.clone());
            init.map(Some).ok_or_else(|| invalid("the sandbox has no PID namespace of its own to share"))
        }
        v1::NamespaceMode::Target => {
            let other = daemon.books.container(&options.target_id)?;
            if other.sandbox.id != container.sandbox.id {
                return Err(invalid(format!("container {} is not of the same Pod", options.target_id)));
            }
            let pidfd = other.state.borrow().pidfd.clone();
            pidfd.map(Some).ok_or_else(|| invalid(format!("container {} does not run", options.target_id)))
        }
        v1::NamespaceMode::Container | v1::NamespaceMode::Node => Ok(None),
    }
}

/// Makes the cgroup and opens all that the plan asks for.
fn equip(
    daemon: &Daemon,
    container: &Container,
    target: Option<&OwnedFd>,
) -> Result<(Plan, Vec<OwnedFd>), Status> {
    let limits = launch::resources(&container.state.borrow().resources);
    let prepared = launch::prepare(daemon, container)?;
    let rules = prepared.given.rules.clone();
    cgroups::make(&daemon.hierarchies, &container.cgroup, &limits, rules.as_deref())?;
    // A machine's controllers are known by directories that are there.
    let Prepared { container: core, binds, given } = launch::prepare(daemon, container)?;
    let plan = core::plan(&core, daemon.capabilities).map_err(invalid)?;
    let kept = container.root.lock().unwrap_or_else(PoisonError::into_inner).take();
    let root = kept.map_or_else(|| rootfs::mount(&daemon.store, container), Ok)?;
    make_log_dir(container)?;
    let log = container.log_path();
    let grounds = Grounds {
        hierarchies: &daemon.hierarchies,
        cgroup: &container.cgroup,
        root: Some(&root),
        namespaces: &namespaces(&container.sandbox)?,
        pid_namespace: target,
        mounts: &binds,
        devices: &given.devices,
        user_root: core.user_root.unwrap_or(0),
        log: if log.as_os_str().is_empty() { std::path::Path::new("/dev/null") } else { &log },
        target: None,
        stdio: [None; 3],
    };
    let fds = open(&plan.sources, &grounds).map_err(|error| refused(&plan.sources, &error))?;
    Ok((plan, fds))
}

/// The kubelet tells what failed by this word.
fn refused(sources: &[Source], error: &crate::open::OpenError) -> Status {
    let is_image = matches!(error, crate::open::OpenError::Path { what, .. } if what.contains("image"));
    let prefix = if is_image && !sources.is_empty() { "ImageVolumeMountFailed: " } else { "" };
    Status::unknown(format!("{prefix}{error}"))
}

pub(crate) fn namespaces(sandbox: &Sandbox) -> Result<BTreeMap<u32, OwnedFd>, Status> {
    let open = |(kind, name): (u32, &str)| {
        let path = sandbox.dir.join(name);
        let file = fs::File::open(&path).map_err(failed(format!("open {}", path.display())))?;
        Ok((kind, file.into()))
    };
    sandbox.pinned().into_iter().map(open).collect()
}

async fn set_phase(daemon: &Arc<Daemon>, container: &Arc<Container>, phase: Phase) -> Result<(), Status> {
    container.state.send_modify(|state| state.phase = phase);
    let (daemon, container) = (daemon.clone(), container.clone());
    blocking(move || daemon.write_container(&container)).await
}

/// Asks once, waits as long as is granted, and kills. Who gives up waiting has killed nothing.
pub(crate) async fn stop(daemon: &Arc<Daemon>, id: &str, seconds: i64) -> Result<(), Status> {
    // As with every runtime: what is not there has stopped.
    let Some(container) = daemon.books.find_container(id) else { return Ok(()) };
    let grace = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    if container.pid().is_some() && !grace.is_zero() {
        let keeper = container.sandbox.keeper();
        let (signal, _) = signals::stop(&container);
        if let (Some(keeper), false) = (keeper, container.is_signalled.swap(true, Ordering::AcqRel)) {
            ask(&keeper, &container, signal).await?;
        }
        if ended_within(&container, grace).await {
            return Ok(());
        }
    }
    let daemon = daemon.clone();
    to_its_end("stop container", async move {
        let _turn = container.turn.lock().await;
        kill(&daemon, &container).await
    })
    .await
}

async fn ask(keeper: &Keeper, container: &Container, signal: u32) -> Result<(), Status> {
    match keeper.signal(container.job, signal).await {
        // It has ended meanwhile.
        Err(_) if container.pid().is_none() => Ok(()),
        Err(crate::keeper::KeeperError::Refused(..) | crate::keeper::KeeperError::Gone) => Ok(()),
        other => other.map_err(failed(format!("signal container {}", container.id))),
    }
}

async fn ended_within(container: &Container, limit: Duration) -> bool {
    let mut state = container.state.subscribe();
    let ended = state.wait_for(|state| matches!(state.phase, Phase::Exited(_)));
    tokio::time::timeout(limit, ended).await.is_ok()
}

/// Ends it for certain. One that does not run is left as it is.
pub(crate) async fn kill(daemon: &Arc<Daemon>, container: &Arc<Container>) -> Result<(), Status> {
    if container.pid().is_none() {
        return Ok(());
    }
    if let Some(keeper) = container.sandbox.keeper() {
        ask(&keeper, container, SIGKILL).await?;
    }
    // In a PID namespace of others its children would stay.
    if container.pid_mode() != v1::NamespaceMode::Container {
        let (hierarchies, cgroup) = (daemon.hierarchies.clone(), container.cgroup.clone());
        let kill =
            move || hierarchies.kill(&cgroup).map(drop).map_err(failed(format!("end what is in {cgroup}")));
        blocking(kill).await?;
    }
    match ended_within(container, DYING).await {
        true => Ok(()),
        false => Err(Status::deadline_exceeded(format!("container {} does not end", container.id))),
    }
}

pub(crate) async fn remove(daemon: &Arc<Daemon>, id: &str) -> Result<(), Status> {
    let Some(container) = daemon.books.find_container(id) else { return Ok(()) };
    let daemon = daemon.clone();
    to_its_end("remove container", async move { remove_whole(&daemon, &container).await }).await
}

pub(crate) async fn remove_whole(daemon: &Arc<Daemon>, container: &Arc<Container>) -> Result<(), Status> {
    let _turn = container.turn.lock().await;
    if container.state.borrow().is_removed {
        return Ok(());
    }
    kill(daemon, container).await?;
    let (with, of) = (daemon.clone(), container.clone());
    blocking(move || {
        cgroups::remove(&with.hierarchies, &of.cgroup)?;
        drop(of.root.lock().unwrap_or_else(PoisonError::into_inner).take());
        rootfs::remove(&with.containers_dir(), &of.id)
            .map_err(failed(format!("remove {}", of.dir.display())))?;
        with.records.remove(Kind::Container, &of.id).map_err(failed(format!("forget container {}", of.id)))
    })
    .await?;
    container.state.send_modify(|state| state.is_removed = true);
    drop(container.held.lock().unwrap_or_else(PoisonError::into_inner).take());
    daemon.books.remove_container(&container.id);
    daemon.attempts.leave(&container.name(), &container.id);
    daemon.publish_container(container, ContainerEventType::ContainerDeletedEvent);
    Ok(())
}

/// Changes its limits, now where it runs, else when it starts.
pub(crate) async fn update(
    daemon: &Arc<Daemon>,
    id: &str,
    change: Option<v1::LinuxContainerResources>,
) -> Result<(), Status> {
    let container = daemon.books.container(id)?;
    let change = change.unwrap_or_default();
    let daemon = daemon.clone();
    to_its_end("update container", async move {
        let _turn = container.turn.lock().await;
        if container.cri_state() == ContainerState::ContainerExited {
            return Err(failed(format!("update container {}", container.id))(
                "container is in CONTAINER_EXITED state",
            ));
        }
        let merged = merge(&container.state.borrow().resources, &change);
        let (with, of) = (daemon.clone(), container.clone());
        blocking(move || {
            if of.pid().is_some() {
                cgroups::update(&with.hierarchies, &of.cgroup, &launch::resources(&merged))?;
            }
            of.state.send_modify(|state| state.resources = merged);
            with.write_container(&of)
        })
        .await
    })
    .await
}

/// What is zero or empty is not changed.
fn merge(
    before: &v1::LinuxContainerResources,
    change: &v1::LinuxContainerResources,
) -> v1::LinuxContainerResources {
    let number = |new: i64, old: i64| if new == 0 { old } else { new };
    let text = |new: &String, old: &String| if new.is_empty() { old.clone() } else { new.clone() };
    let mut unified = before.unified.clone();
    unified.extend(change.unified.clone());
    v1::LinuxContainerResources {
        cpu_period: number(change.cpu_period, before.cpu_period),
        cpu_quota: number(change.cpu_quota, before.cpu_quota),
        cpu_shares: number(change.cpu_shares, before.cpu_shares),
        memory_limit_in_bytes: number(change.memory_limit_in_bytes, before.memory_limit_in_bytes),
        oom_score_adj: number(change.oom_score_adj, before.oom_score_adj),
        cpuset_cpus: text(&change.cpuset_cpus, &before.cpuset_cpus),
        cpuset_mems: text(&change.cpuset_mems, &before.cpuset_mems),
        hugepage_limits: match change.hugepage_limits.is_empty() {
            true => before.hugepage_limits.clone(),
            false => change.hugepage_limits.clone(),
        },
        unified,
        memory_swap_limit_in_bytes: number(
            change.memory_swap_limit_in_bytes,
            before.memory_swap_limit_in_bytes,
        ),
    }
}

/// From now on it writes its log into a new file of that name.
pub(crate) async fn reopen_log(daemon: &Arc<Daemon>, id: &str) -> Result<(), Status> {
    let container = daemon.books.container(id)?;
    let (path, what) = (container.log_path(), format!("reopen the log of container {}", container.id));
    if container.cri_state() != ContainerState::ContainerRunning {
        return Err(failed(what)("container is not running"));
    }
    let keeper =
        container.sandbox.keeper().ok_or_else(|| Status::unavailable("the keeper of the Pod is gone"))?;
    let log = blocking(move || crate::open::log(&path).map_err(failed("open"))).await?;
    keeper.set_log(container.job, log.as_fd()).await.map_err(failed(what))
}
