//! Sandboxes: made, stopped, removed.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cri::v1::{self, ContainerEventType, NamespaceMode};
use runtime_core::cni::{self, Attachment};
use runtime_core::message::Exit;
use runtime_core::recipe::{Launch, Op, Slot};
use runtime_core::sandbox as core;
use serde_json::{Map, Value, json};
use sys::cgroup::Version;
use tokio::sync::mpsc;
use tonic::Status;

use crate::attempts::Entered;
use crate::books::{Sandbox, name_of_sandbox};
use crate::daemon::{Daemon, blocking, failed, invalid, to_its_end};
use crate::jobs::{INIT, NAMESPACES};
use crate::keeper::{Event, Happened, Keeper};
use crate::records::{Kind, NetworkRecord, SandboxPhase};
use crate::{containers, ids, keepers, launch, pod_files, rootfs, userns};

pub(crate) const INTERFACE: &str = "eth0";
/// For a process that only makes namespaces, or only has to be killed.
const MOMENT: Duration = Duration::from_secs(30);

/// Makes a sandbox, or waits for the attempt that makes it.
pub(crate) async fn run(
    daemon: &Arc<Daemon>,
    config: v1::PodSandboxConfig,
    handler: String,
) -> Result<String, Status> {
    check(daemon, &config, &handler)?;
    let name = name_of_sandbox(&config.metadata.clone().unwrap_or_default());
    let id = ids::new_id().map_err(failed("make an id"))?;
    match daemon.attempts.enter(&name, &id)? {
        Entered::Joined(attempt) => attempt.wait().await,
        Entered::First(attempt) => {
            let (daemon, ours) = (daemon.clone(), attempt.clone());
            supervise::spawn("run sandbox", async move {
                let dir = daemon.sandbox_dir(&id);
                let sandbox = Arc::new(Sandbox::new(&id, config, &handler, ids::now(), dir));
                let made = make(&daemon, &sandbox).await.map(|()| id);
                daemon.attempts.finish(&ours, made);
            });
            attempt.wait().await
        }
    }
}

fn check(daemon: &Daemon, config: &v1::PodSandboxConfig, handler: &str) -> Result<(), Status> {
    let metadata = config.metadata.as_ref().ok_or_else(|| invalid("sandbox config must include metadata"))?;
    if metadata.name.is_empty() || metadata.namespace.is_empty() || metadata.uid.is_empty() {
        return Err(invalid("sandbox metadata must have name, namespace and uid"));
    }
    if !handler.is_empty() && !daemon.handlers.iter().any(|known| known == handler) {
        return Err(invalid(format!("no runtime for {handler:?} is configured")));
    }
    let context = config.linux.as_ref().and_then(|linux| linux.security_context.clone()).unwrap_or_default();
    let options = context.namespace_options.unwrap_or_default();
    if userns::mapping(&options)?.is_some()
        && let Some(why) = daemon.no_user_namespaces.get().and_then(Option::as_ref)
    {
        return Err(invalid(format!("user namespaces are not supported on this machine: {why}")));
    }
    let sandbox = core_sandbox(&Sandbox::new("", config.clone(), handler, 0, Path::new("").into()));
    core::plan(&sandbox).map_err(invalid)?;
    Ok(())
}

fn core_sandbox(sandbox: &Sandbox) -> core::Sandbox {
    let linux = sandbox.config.linux.clone().unwrap_or_default();
    core::Sandbox {
        is_host_network: sandbox.is_host_network(),
        is_host_ipc: sandbox.is_host_ipc(),
        is_host_pid: sandbox.namespaces().pid() == NamespaceMode::Node,
        users: sandbox.mapping(),
        hostname: launch::hostname(sandbox),
        sysctls: linux.sysctls.into_iter().collect(),
    }
}

/// What fails half way is undone. What cannot be undone stays, for the caller to stop and remove.
async fn make(daemon: &Arc<Daemon>, sandbox: &Arc<Sandbox>) -> Result<(), Status> {
    let _turn = sandbox.turn.lock().await;
    daemon.write_sandbox(sandbox)?;
    let Err(error) = build(daemon, sandbox).await else {
        daemon.books.add_sandbox(sandbox.clone());
        daemon.publish_sandbox(sandbox, ContainerEventType::ContainerCreatedEvent);
        daemon.publish_sandbox(sandbox, ContainerEventType::ContainerStartedEvent);
        return Ok(());
    };
    tracing::warn!(sandbox = sandbox.id, pod = sandbox.meta().name, %error, "a sandbox could not be made");
    let undone = match tear_down(daemon, sandbox).await {
        Ok(()) => forget(daemon, sandbox).await,
        failed => failed,
    };
    if let Err(second) = undone {
        tracing::error!(sandbox = sandbox.id, error = %second, "half of a sandbox is left");
        sandbox.state(|state| state.phase = SandboxPhase::NotReady);
        daemon.write_sandbox(sandbox)?;
        daemon.books.add_sandbox(sandbox.clone());
    }
    Err(error)
}

async fn build(daemon: &Arc<Daemon>, sandbox: &Arc<Sandbox>) -> Result<(), Status> {
    let (keeper, events) = start_keeper(daemon, sandbox).await?;
    sandbox.state(|state| state.keeper = Some(keeper.clone()));
    keepers::listen(daemon.clone(), sandbox.clone(), events);
    make_namespaces(sandbox, &keeper).await?;
    let files = sandbox.clone();
    blocking(move || pod_files::make(&files)).await?;
    attach(daemon, sandbox).await?;
    if sandbox.namespaces().pid() == NamespaceMode::Pod {
        start_init(daemon, sandbox, &keeper).await?;
    }
    sandbox.state(|state| state.phase = SandboxPhase::Ready);
    daemon.write_sandbox(sandbox)
}

async fn start_keeper(
    daemon: &Arc<Daemon>,
    sandbox: &Arc<Sandbox>,
) -> Result<(Keeper, mpsc::Receiver<Event>), Status> {
    let dir = sandbox.dir.clone();
    let opened = blocking(move || {
        fs::create_dir_all(&dir)
            .and_then(|()| sys::fd::open_dir(&dir))
            .map_err(failed(format!("make {}", dir.display())))
    });
    let opened = opened.await?;
    Keeper::start(&daemon.program, opened, OsStr::new(keepers::SOCKET))
        .map_err(failed(format!("start the keeper of sandbox {}", sandbox.id)))
}

/// A process makes them and waits while we pin them.
async fn make_namespaces(sandbox: &Arc<Sandbox>, keeper: &Keeper) -> Result<(), Status> {
    let plan = core::plan(&core_sandbox(sandbox)).map_err(invalid)?;
    let what = format!("make the namespaces of sandbox {}", sandbox.id);
    let mut happened = sandbox.jobs.expect(NAMESPACES);
    let launched = keeper.launch(NAMESPACES, &plan, &[]).await.map_err(failed(&what))?;
    wait(&mut happened, &plan, &what, |happened| matches!(happened, Happened::Held(_))).await?;
    let (of, pid) = (sandbox.clone(), launched.pid);
    let pinned = blocking(move || {
        if let Some(mapping) = of.mapping() {
            userns::write(pid, mapping).map_err(failed("map the users of the Pod"))?;
        }
        pin(&of, pid)
    })
    .await;
    keeper.release(NAMESPACES).await.map_err(failed(&what))?;
    wait(&mut happened, &plan, &what, |happened| matches!(happened, Happened::Exited(_))).await?;
    sandbox.jobs.forget(NAMESPACES);
    keeper.acknowledge(NAMESPACES).await.map_err(failed(&what))?;
    pinned?;
    if sandbox.mapping().is_some() { set_up(sandbox, keeper).await } else { Ok(()) }
}

/// The namespaces of a Pod with users of its own, from outside of them.
async fn set_up(sandbox: &Arc<Sandbox>, keeper: &Keeper) -> Result<(), Status> {
    let (plan, kinds) = core::plan_settings(&core_sandbox(sandbox)).map_err(invalid)?;
    let what = format!("set up the namespaces of sandbox {}", sandbox.id);
    let of = sandbox.clone();
    let namespaces = blocking(move || containers::namespaces(&of)).await?;
    let slots: Vec<BorrowedFd<'_>> =
        kinds.iter().filter_map(|kind| Some(namespaces.get(kind)?.as_fd())).collect();
    let mut happened = sandbox.jobs.expect(NAMESPACES);
    keeper.launch(NAMESPACES, &plan, &slots).await.map_err(failed(&what))?;
    let ended = |happened: &Happened| matches!(happened, Happened::Exited(Exit { code: 0, .. }));
    wait(&mut happened, &plan, &what, ended).await?;
    sandbox.jobs.forget(NAMESPACES);
    keeper.acknowledge(NAMESPACES).await.map_err(failed(&what))
}

fn pin(sandbox: &Sandbox, pid: i32) -> Result<(), Status> {
    for (_, name) in sandbox.pinned() {
        let path = sandbox.dir.join(name);
        let bind = || {
            let source = File::open(format!("/proc/{pid}/ns/{name}"))?;
            let target = File::create(&path)?;
            sys::mount::bind(source, target, false)
        };
        bind().map_err(failed(format!("pin {}", path.display())))?;
    }
    Ok(())
}

/// Waits for what is to happen to a job; what else happens to it is a failure.
async fn wait(
    happened: &mut mpsc::Receiver<Happened>,
    plan: &Launch,
    what: &str,
    is_it: impl Fn(&Happened) -> bool,
) -> Result<(), Status> {
    loop {
        let next = tokio::time::timeout(MOMENT, happened.recv()).await;
        match next.map_err(|_| Status::deadline_exceeded(format!("{what}: it takes too long")))? {
            None => return Err(failed(what)("the keeper is gone")),
            Some(happened) if is_it(&happened) => return Ok(()),
            Some(Happened::Failed { op, why }) => {
                let op = plan.ops.get(op as usize).map(Op::describe).unwrap_or_default();
                return Err(failed(what)(format!("{op}: {why}")));
            }
            Some(Happened::Exited(Exit { code, .. })) => {
                return Err(failed(what)(format!("it ended with {code}")));
            }
            Some(_) => {}
        }
    }
}

/// The first process of the PID namespace, in a cgroup of its own below the Pod's.
async fn start_init(daemon: &Arc<Daemon>, sandbox: &Arc<Sandbox>, keeper: &Keeper) -> Result<(), Status> {
    let what = format!("start the first process of sandbox {}", sandbox.id);
    let cgroup = own_cgroup(daemon, sandbox)?;
    let hierarchies = daemon.hierarchies.clone();
    let (name, words) = (cgroup.clone(), what.clone());
    let fds: Vec<OwnedFd> = blocking(move || {
        let open = || -> std::io::Result<Vec<OwnedFd>> {
            hierarchies.make(&name)?;
            let dirs = hierarchies.directories(&name).into_iter();
            match hierarchies.version() {
                Version::V2 => dirs.map(|(_, dir)| sys::fd::open_dir(&dir)).collect(),
                Version::V1 => {
                    let tasks = |dir: std::path::PathBuf| File::options().write(true).open(dir.join("tasks"));
                    dirs.map(|(_, dir)| tasks(dir).map(Into::into)).collect()
                }
            }
        };
        open().map_err(failed(words))
    })
    .await?;
    let mut fds = fds;
    let users = match sandbox.mapping() {
        None => None,
        Some(mapping) => {
            let of = sandbox.clone();
            let user =
                blocking(move || of.user_namespace().map_err(failed("open the user namespace"))).await?;
            fds.extend(user);
            Some((mapping, Slot(fds.len() as u32 - 1)))
        }
    };
    let joins = fds.len() - usize::from(users.is_some());
    let mut plan = core::init(users);
    match daemon.hierarchies.version() {
        Version::V2 => plan.cgroup = Some(Slot(0)),
        Version::V1 => {
            let joins = (0..joins as u32).map(|at| Op::JoinCgroup(Slot(at)));
            plan.ops = joins.chain(plan.ops).collect();
        }
    }
    let slots: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let mut happened = sandbox.jobs.expect(INIT);
    let launched = keeper.launch(INIT, &plan, &slots).await.map_err(failed(&what))?;
    wait(&mut happened, &plan, &what, |happened| matches!(happened, Happened::Started)).await?;
    if users.is_some() {
        let score = format!("/proc/{}/oom_score_adj", launched.pid);
        let set = move || match fs::write(score, core::OOM_SCORE.to_string()) {
            // As for every container: where lowering is not allowed, it stays as it was.
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
            set => set.map_err(failed("set its OOM score")),
        };
        blocking(set).await?;
    }
    sandbox.state(|state| state.init = Some(Arc::new(launched.pidfd)));
    keepers::watch_init(daemon.clone(), sandbox.clone(), happened);
    Ok(())
}

pub(crate) fn own_cgroup(daemon: &Daemon, sandbox: &Sandbox) -> Result<String, Status> {
    runtime_core::resources::cgroup(daemon.driver, sandbox.cgroup_parent(), &sandbox.id).map_err(invalid)
}

async fn attach(daemon: &Arc<Daemon>, sandbox: &Arc<Sandbox>) -> Result<(), Status> {
    if sandbox.is_host_network() {
        return Ok(());
    }
    let networks = daemon.networks.clone();
    let what = format!("attach sandbox {} to the Pod network", sandbox.id);
    let (network, config) = blocking(move || networks.load().map_err(failed("Pod network"))).await?;
    let text = config.as_str().unwrap_or_default().to_owned();
    let record = NetworkRecord { config: text, addresses: Vec::new() };
    sandbox.state(|state| state.network = Some(record.clone()));
    daemon.write_sandbox(sandbox)?;
    let began = Instant::now();
    let attached =
        daemon.networks.add(&network, &config, &attachment(sandbox)).await.map_err(failed(&what))?;
    daemon.metrics.network.observe_duration(["add"], began.elapsed());
    if attached.addresses.is_empty() {
        return Err(failed(&what)("the plugins gave it no address"));
    }
    let addresses = attached.addresses;
    sandbox.state(|state| state.network = Some(NetworkRecord { addresses, ..record }));
    Ok(())
}

fn attachment(sandbox: &Sandbox) -> Attachment {
    let metadata = sandbox.meta();
    let mut capabilities = Map::new();
    let ports: Vec<Value> =
        sandbox.config.port_mappings.iter().filter(|p| p.host_port > 0).map(port).collect();
    if !ports.is_empty() {
        capabilities.insert("portMappings".into(), Value::Array(ports));
    }
    let dns = sandbox.config.dns_config.clone().unwrap_or_default();
    if !(dns.servers.is_empty() && dns.searches.is_empty() && dns.options.is_empty()) {
        let dns = json!({"servers": dns.servers, "searches": dns.searches, "options": dns.options});
        capabilities.insert("dns".into(), dns);
    }
    if let Some(bandwidth) = bandwidth(sandbox) {
        capabilities.insert("bandwidth".into(), bandwidth);
    }
    capabilities.insert("io.kubernetes.cri.pod-annotations".into(), json!(sandbox.config.annotations));
    capabilities.insert("cgroupPath".into(), json!(sandbox.cgroup_parent()));
    Attachment {
        container: sandbox.id.clone(),
        namespace: sandbox.network_path().map(|path| path.display().to_string()),
        interface: INTERFACE.into(),
        arguments: cni::pod_arguments(&metadata.namespace, &metadata.name, &metadata.uid, &sandbox.id),
        capabilities,
    }
}

fn port(mapping: &v1::PortMapping) -> Value {
    let protocol = match mapping.protocol() {
        v1::Protocol::Tcp => "tcp",
        v1::Protocol::Udp => "udp",
        v1::Protocol::Sctp => "sctp",
    };
    json!({"hostPort": mapping.host_port, "containerPort": mapping.container_port, "protocol": protocol, "hostIP": mapping.host_ip})
}

/// As the annotations ask for, in bits; the burst is as large as can be.
fn bandwidth(sandbox: &Sandbox) -> Option<Value> {
    let rate = |way: &str| {
        let text = sandbox.config.annotations.get(&format!("kubernetes.io/{way}-bandwidth"))?;
        text.parse::<base::quantity::Quantity>().ok().map(|q| q.value()).filter(|rate| *rate > 0)
    };
    let (ingress, egress) = (rate("ingress"), rate("egress"));
    let mut all = Map::new();
    for (name, rate) in [("ingress", ingress), ("egress", egress)] {
        if let Some(rate) = rate {
            all.insert(format!("{name}Rate"), json!(rate));
            all.insert(format!("{name}Burst"), json!(i64::from(u32::MAX >> 1)));
        }
    }
    (!all.is_empty()).then_some(Value::Object(all))
}

pub(crate) async fn stop(daemon: &Arc<Daemon>, id: &str) -> Result<(), Status> {
    // As with every runtime: what is not there has stopped.
    let Some(sandbox) = daemon.books.find_sandbox(id) else { return Ok(()) };
    let daemon = daemon.clone();
    to_its_end("stop sandbox", async move {
        let _turn = sandbox.turn.lock().await;
        stop_whole(&daemon, &sandbox).await
    })
    .await
}

async fn stop_whole(daemon: &Arc<Daemon>, sandbox: &Arc<Sandbox>) -> Result<(), Status> {
    let was = sandbox.state(|state| std::mem::replace(&mut state.phase, SandboxPhase::NotReady));
    // Nothing starts in it from here on; what still runs ends.
    for container in daemon.books.containers_of(&sandbox.id) {
        let _turn = container.turn.lock().await;
        containers::kill(daemon, &container).await?;
    }
    tear_down(daemon, sandbox).await?;
    daemon.write_sandbox(sandbox)?;
    if was == SandboxPhase::Ready {
        daemon.publish_sandbox(sandbox, ContainerEventType::ContainerStoppedEvent);
    }
    Ok(())
}

/// Takes away all that a sandbox has, in any state of it. What is gone already is fine.
pub(crate) async fn tear_down(daemon: &Arc<Daemon>, sandbox: &Arc<Sandbox>) -> Result<(), Status> {
    let keeper = sandbox.keeper();
    let init = sandbox.state(|state| state.init.take());
    if let (Some(keeper), Some(_)) = (&keeper, init) {
        // One that is gone already is what was wanted.
        let _ = keeper.signal(INIT, crate::signals::SIGKILL).await;
    }
    detach(daemon, sandbox).await?;
    let (cgroup, hierarchies) = (own_cgroup(daemon, sandbox)?, daemon.hierarchies.clone());
    let of = sandbox.clone();
    blocking(move || {
        crate::cgroups::remove(&hierarchies, &cgroup)?;
        pod_files::unmount(&of.dir).map_err(failed(format!("unmount what is in {}", of.dir.display())))
    })
    .await?;
    if let Some(keeper) = keeper {
        // One that is gone already is what was wanted.
        let _ = keeper.quit().await;
    }
    sandbox.state(|state| state.keeper = None);
    Ok(())
}

async fn detach(daemon: &Daemon, sandbox: &Sandbox) -> Result<(), Status> {
    let Some(record) = sandbox.state(|state| state.network.clone()) else { return Ok(()) };
    let what = format!("detach sandbox {} from the Pod network", sandbox.id);
    let network = cni::network(&record.config).map_err(failed(&what))?;
    let mut attachment = attachment(sandbox);
    if !crate::keepers::is_pinned(sandbox) {
        attachment.namespace = None;
    }
    let began = Instant::now();
    daemon.networks.del(&network, &attachment).await.map_err(failed(&what))?;
    daemon.metrics.network.observe_duration(["del"], began.elapsed());
    sandbox.state(|state| state.network = None);
    Ok(())
}

pub(crate) async fn remove(daemon: &Arc<Daemon>, id: &str) -> Result<(), Status> {
    let Some(sandbox) = daemon.books.find_sandbox(id) else { return Ok(()) };
    let daemon = daemon.clone();
    to_its_end("remove sandbox", async move {
        let _turn = sandbox.turn.lock().await;
        stop_whole(&daemon, &sandbox).await?;
        for container in daemon.books.containers_of(&sandbox.id) {
            containers::remove_whole(&daemon, &container).await?;
        }
        forget(&daemon, &sandbox).await?;
        daemon.publish_sandbox(&sandbox, ContainerEventType::ContainerDeletedEvent);
        Ok(())
    })
    .await
}

/// Removes its directory and its record.
pub(crate) async fn forget(daemon: &Arc<Daemon>, sandbox: &Arc<Sandbox>) -> Result<(), Status> {
    let (of, with) = (sandbox.clone(), daemon.clone());
    blocking(move || {
        let parent = of.dir.parent().unwrap_or(Path::new("/"));
        rootfs::remove(parent, &of.id).map_err(failed(format!("remove {}", of.dir.display())))?;
        with.records.remove(Kind::Sandbox, &of.id).map_err(failed(format!("forget sandbox {}", of.id)))
    })
    .await?;
    daemon.books.remove_sandbox(&sandbox.id);
    daemon.attempts.leave(&sandbox.name(), &sandbox.id);
    Ok(())
}
