//! From what the CRI says of a container to what is decided about it: the core's [`Container`](core::Container), and what has
//! to be opened for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cri::v1;
use runtime_core::capabilities::Wanted;
use runtime_core::container::{self as core, Cgroup, Command, Image, Mount, Scope};
use runtime_core::recipe::Target;
use runtime_core::resources::Resources;
use runtime_core::seccomp;
use runtime_core::users::{self, User};
use sys::cgroup::Version;
use sys::detached::Propagation;
use tonic::Status;

use crate::books::{Container, Sandbox};
use crate::daemon::{ARCH, Daemon, Filter, failed, invalid};
use crate::host_devices::{self, Given};
use crate::open::Bind;
use crate::records::ImageFacts;
use crate::{rootfs, userns};

const PROFILE_MAX: u64 = 4 << 20;
const OPEN_FILES: u32 = 7;
/// What programs of old expect; they may raise it themselves.
const OPEN_FILES_SOFT: u64 = 1024;

/// Everything that is decided, and where the rest comes from.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) container: core::Container,
    pub(crate) binds: Vec<Bind>,
    pub(crate) given: Given,
}

/// What can be said before anything is made is said here; it looks at the disk.
pub(crate) fn prepare(daemon: &Daemon, container: &Container) -> Result<Prepared, Status> {
    let security = container.security();
    let given = host_devices::given(
        &container.config,
        (&container.cdi.devices, &container.user),
        security.privileged,
    )?;
    let (mut mounts, mut binds) = (Vec::new(), Vec::new());
    let mut add = |path: &str, bind: Bind| {
        let target = if bind.layers.is_some() || bind.is_dir() { Target::Dir } else { Target::File };
        mounts.push(Mount { path: path.to_owned(), target });
        binds.push(bind);
    };
    for (path, bind) in own_files(container, &security) {
        add(&path, bind);
    }
    for (at, mount) in container.config.mounts.iter().enumerate() {
        add(&absolute(&mount.container_path)?, bind(daemon, container, at, mount)?);
    }
    for mount in &container.cdi.mounts {
        let source = Path::new(&mount.host_path);
        fs::metadata(source).map_err(failed(format!("CDI mount {}", mount.host_path)))?;
        add(&mount.container_path, Bind { flags: mount.flags, ..plain(source, mount.is_read_only) });
    }
    for (path, source) in &given.elsewhere {
        add(path, plain(source, false));
    }
    refuse_apparmor(&security)?;
    let capabilities = wanted(&security);
    let seccomp = filter(daemon, &security, &capabilities)?;
    let options = security.namespace_options.clone().unwrap_or_default();
    if container.sandbox.mapping().is_some() && options.pid() == v1::NamespaceMode::Node {
        return Err(invalid("a user namespace together with the machine's PID namespace is not supported"));
    }
    let linux = container.config.linux.clone().unwrap_or_default();
    let core = core::Container {
        command: command(container)?,
        user: user(container),
        user_root: container.sandbox.mapping().map(|mapping| mapping.host),
        capabilities,
        network: if container.sandbox.is_host_network() { Scope::Node } else { Scope::Pod },
        pid: scope(options.pid()),
        ipc: if container.sandbox.is_host_ipc() { Scope::Node } else { Scope::Pod },
        cgroup: cgroup(daemon, container),
        mounts,
        masked_paths: security.masked_paths.clone(),
        readonly_paths: security.readonly_paths.clone(),
        is_root_readonly: security.readonly_rootfs,
        no_new_privileges: security.no_new_privs,
        seccomp: seccomp.map(|filter| (*filter).clone()),
        rlimits: open_files(),
        oom_score: Some(linux.resources.map_or(0, |resources| resources.oom_score_adj)),
        has_input: container.config.stdin && !container.config.tty,
        has_terminal: container.config.tty,
    };
    Ok(Prepared { container: core, binds, given })
}

/// One more process in a running container.
pub(crate) fn beside(
    daemon: &Daemon,
    container: &Container,
    words: &[String],
    has_terminal: bool,
    stdio: [bool; 3],
) -> Result<core::Exec, Status> {
    let security = container.security();
    let capabilities = wanted(&security);
    let seccomp = filter(daemon, &security, &capabilities)?;
    let linux = container.config.linux.clone().unwrap_or_default();
    Ok(core::Exec {
        command: command(container)?.beside(words, has_terminal).map_err(invalid)?,
        user: user(container),
        has_user_namespace: container.sandbox.mapping().is_some(),
        capabilities,
        cgroup: cgroup(daemon, container),
        no_new_privileges: security.no_new_privs,
        seccomp: seccomp.map(|filter| (*filter).clone()),
        oom_score: Some(linux.resources.map_or(0, |resources| resources.oom_score_adj)),
        rlimits: open_files(),
        has_terminal,
        stdio,
    })
}

/// Who it is, by the files of its image.
pub(crate) fn resolve_user(
    config: &v1::ContainerConfig,
    image: &ImageFacts,
    root: &std::os::fd::OwnedFd,
) -> Result<User, Status> {
    let security = config.linux.as_ref().and_then(|linux| linux.security_context.clone()).unwrap_or_default();
    let wanted = users::Wanted {
        user: security.run_as_user.map(|user| user.value),
        username: security.run_as_username.clone(),
        group: security.run_as_group.map(|group| group.value),
        supplemental: security.supplemental_groups.clone(),
        is_strict: security.supplemental_groups_policy() == v1::SupplementalGroupsPolicy::Strict,
        image: image.user.clone(),
    };
    let (passwd, group) = (rootfs::text(root, "etc/passwd"), rootfs::text(root, "etc/group"));
    users::resolve(&wanted, &passwd, &group).map_err(invalid)
}

pub(crate) fn resources(from: &v1::LinuxContainerResources) -> Resources {
    Resources {
        cpu_period: from.cpu_period,
        cpu_quota: from.cpu_quota,
        cpu_shares: from.cpu_shares,
        memory_limit: from.memory_limit_in_bytes,
        memory_swap_limit: from.memory_swap_limit_in_bytes,
        cpuset_cpus: from.cpuset_cpus.clone(),
        cpuset_mems: from.cpuset_mems.clone(),
        hugepages: from.hugepage_limits.iter().map(|l| (l.page_size.clone(), l.limit)).collect(),
        unified: from.unified.clone(),
    }
}

pub(crate) fn hostname(sandbox: &Sandbox) -> String {
    match sandbox.config.hostname.as_str() {
        "" => rustix::system::uname().nodename().to_string_lossy().into_owned(),
        name => name.to_owned(),
    }
}

fn command(container: &Container) -> Result<Command, Status> {
    let (config, facts) = (&container.config, &container.image);
    let image = Image {
        entrypoint: facts.entrypoint.clone(),
        cmd: facts.cmd.clone(),
        env: facts.env.clone(),
        working_dir: facts.working_dir.clone(),
    };
    let own = config.envs.iter().map(|env| (env.key.clone(), env.value.clone()));
    let of_devices = container.cdi.env.iter().map(|(key, value)| (key.clone(), value.clone().into_bytes()));
    let envs: Vec<(String, Vec<u8>)> = own.chain(of_devices).collect();
    let hostname = hostname(&container.sandbox);
    let rest = (hostname.as_str(), config.tty, &user(container));
    Command::new(&image, (&config.command, &config.args), &envs, &config.working_dir, rest).map_err(invalid)
}

fn user(container: &Container) -> User {
    let facts = container.user.clone();
    User { uid: facts.uid, gid: facts.gid, groups: facts.groups, home: facts.home }
}

fn wanted(security: &v1::LinuxContainerSecurityContext) -> Wanted {
    let asked = security.capabilities.clone().unwrap_or_default();
    Wanted {
        is_privileged: security.privileged,
        add: asked.add_capabilities,
        drop: asked.drop_capabilities,
        ambient: asked.add_ambient_capabilities,
    }
}

fn scope(mode: v1::NamespaceMode) -> Scope {
    match mode {
        v1::NamespaceMode::Pod => Scope::Pod,
        v1::NamespaceMode::Container => Scope::Container,
        v1::NamespaceMode::Node => Scope::Node,
        v1::NamespaceMode::Target => Scope::Target,
    }
}

fn cgroup(daemon: &Daemon, container: &Container) -> Cgroup {
    match daemon.hierarchies.version() {
        Version::V2 => Cgroup::V2,
        Version::V1 => {
            let all = daemon.hierarchies.directories(&container.cgroup);
            Cgroup::V1(all.into_iter().map(|(name, _)| name).collect())
        }
    }
}

fn open_files() -> Vec<(u32, u64, u64)> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let hard = limit.maximum.unwrap_or(1 << 20);
    vec![(OPEN_FILES, OPEN_FILES_SOFT.min(hard), hard)]
}

/// What every container has unless it brings its own.
fn own_files(container: &Container, security: &v1::LinuxContainerSecurityContext) -> Vec<(String, Bind)> {
    let dir = &container.sandbox.dir;
    let shm = match container.sandbox.is_host_ipc() {
        true => PathBuf::from("/dev/shm"),
        false => dir.join("shm"),
    };
    let file = |path: &str, name: &str| (path.to_owned(), plain(&dir.join(name), security.readonly_rootfs));
    let all = [
        file("/etc/hostname", "hostname"),
        file("/etc/hosts", "hosts"),
        file("/etc/resolv.conf", "resolv.conf"),
        ("/dev/shm".to_owned(), plain(&shm, false)),
    ];
    let is_taken = |path: &str| container.config.mounts.iter().any(|mount| mount.container_path == path);
    all.into_iter().filter(|(path, _)| !is_taken(path)).collect()
}

fn plain(source: &Path, is_read_only: bool) -> Bind {
    Bind {
        source: source.to_owned(),
        layers: None,
        is_mapped: false,
        is_read_only,
        flags: 0,
        is_recursively_read_only: false,
        propagation: Propagation::Private,
    }
}

fn bind(daemon: &Daemon, container: &Container, at: usize, mount: &v1::Mount) -> Result<Bind, Status> {
    let path = &mount.container_path;
    let is_mapped = userns::is_mapped(container.sandbox.mapping(), mount)?;
    let propagation = match mount.propagation() {
        v1::MountPropagation::PropagationPrivate => Propagation::Private,
        v1::MountPropagation::PropagationHostToContainer => Propagation::Slave,
        v1::MountPropagation::PropagationBidirectional => Propagation::Shared,
    };
    if mount.recursive_read_only && (!mount.readonly || propagation != Propagation::Private) {
        return Err(invalid(format!(
            "mount {path}: recursive_read_only needs readonly and private propagation"
        )));
    }
    if let Some(layers) = container.image_mounts.get(&at) {
        let source = PathBuf::from(mount.image_sub_path.trim_start_matches('/'));
        let layers = Some(rootfs::layer_dirs(&daemon.store, layers)?);
        let is_mapped = container.sandbox.mapping().is_some();
        return Ok(Bind { source, layers, is_mapped, ..plain(Path::new(""), true) });
    }
    let source = PathBuf::from(absolute(&mount.host_path)?);
    // As with containerd: what is not there is a directory.
    if let Err(error) = fs::metadata(&source)
        && error.kind() == std::io::ErrorKind::NotFound
    {
        fs::create_dir_all(&source).map_err(failed(format!("make the volume {}", source.display())))?;
    }
    if propagation == Propagation::Shared {
        shared(&source)?;
    }
    Ok(Bind {
        source,
        layers: None,
        is_mapped,
        is_read_only: mount.readonly,
        flags: 0,
        is_recursively_read_only: mount.recursive_read_only,
        propagation,
    })
}

/// What the container mounts there would be seen by nobody.
fn shared(source: &Path) -> Result<(), Status> {
    let real = source.canonicalize().map_err(failed(format!("look at the volume {}", source.display())))?;
    let mounts = sys::mountinfo::read().map_err(failed("read the mounts of this machine"))?;
    match sys::mountinfo::containing(&mounts, &real) {
        Some(mount) if !mount.is_shared() => Err(failed(format!("mount {}", source.display()))(format!(
            "path is mounted on {} but it is not a shared mount",
            mount.mount_point.display()
        ))),
        _ => Ok(()),
    }
}

fn absolute(path: &str) -> Result<String, Status> {
    if path.is_empty() || path.contains('\0') {
        return Err(invalid(format!("{path:?} is no path to mount")));
    }
    Ok(format!("/{}", path.trim_start_matches('/')))
}

/// What filters its system calls. Who says nothing has no filter, as with every runtime.
fn filter(
    daemon: &Daemon,
    security: &v1::LinuxContainerSecurityContext,
    capabilities: &Wanted,
) -> Result<Option<Arc<Filter>>, Status> {
    use v1::security_profile::ProfileType;
    if security.privileged {
        return Ok(None);
    }
    #[allow(deprecated)]
    let old = security.seccomp_profile_path.as_str();
    let (kind, path) = match &security.seccomp {
        Some(profile) => (profile.profile_type(), profile.localhost_ref.clone()),
        None => match old {
            "" | "unconfined" => (ProfileType::Unconfined, String::new()),
            "runtime/default" | "docker/default" => (ProfileType::RuntimeDefault, String::new()),
            other => (ProfileType::Localhost, other.trim_start_matches("localhost/").to_owned()),
        },
    };
    match kind {
        ProfileType::Unconfined => Ok(None),
        ProfileType::RuntimeDefault => {
            let bounding = capabilities.bounding(daemon.capabilities).map_err(invalid)?;
            daemon.default_filter(bounding).map(Some)
        }
        ProfileType::Localhost => {
            let path = absolute(path.trim_start_matches("localhost/"))?;
            let text = read_profile(Path::new(&path)).map_err(failed(format!("seccomp profile {path}")))?;
            let profile =
                seccomp::parse(&text, ARCH).map_err(|e| invalid(format!("seccomp profile {path}: {e}")))?;
            let program =
                seccomp::compile(&profile).map_err(|e| invalid(format!("seccomp profile {path}: {e}")))?;
            Ok(Some(Arc::new((program, profile.flags))))
        }
    }
}

/// Without it a container would run with more than it was allowed to.
fn refuse_apparmor(security: &v1::LinuxContainerSecurityContext) -> Result<(), Status> {
    use v1::security_profile::ProfileType;
    #[allow(deprecated)]
    let old = security.apparmor_profile.as_str();
    let asked = match &security.apparmor {
        Some(profile) if profile.profile_type() == ProfileType::Unconfined => return Ok(()),
        Some(profile) if profile.profile_type() == ProfileType::Localhost => profile.localhost_ref.as_str(),
        Some(_) => "runtime/default",
        None if old.is_empty() || old == "unconfined" => return Ok(()),
        None => old,
    };
    match security.privileged {
        // As with every runtime: nothing confines who is privileged.
        true => Ok(()),
        false => {
            Err(invalid(format!("AppArmor profile {asked:?}: AppArmor is not supported by this runtime")))
        }
    }
}

fn read_profile(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let file = fs::File::open(path)?;
    std::io::Read::read_to_string(&mut std::io::Read::take(file, PROFILE_MAX), &mut text)?;
    Ok(text)
}
