//! A container's launch: from what the CRI and the image say to the recipe, and the list of what the daemon has to open.
//!
//! Nothing here looks at the machine. A [`Plan`] names its descriptors by what they are ([`Source`]); the daemon opens them in
//! that order and sends them along.

mod command;

use crate::capabilities::{UnknownCapability, Wanted};
use crate::recipe::{self, Launch, Op, Slot, Target};
use crate::users::User;

pub use command::{Command, Image, NoCommand};

/// Flags of clone and setns.
pub mod namespace {
    pub const MOUNT: u32 = 0x0002_0000;
    pub const CGROUP: u32 = 0x0200_0000;
    pub const UTS: u32 = 0x0400_0000;
    pub const IPC: u32 = 0x0800_0000;
    pub const USER: u32 = 0x1000_0000;
    pub const PID: u32 = 0x2000_0000;
    pub const NETWORK: u32 = 0x4000_0000;
}

const READ_ONLY: u64 = 1;
pub(crate) const NO_SUID: u64 = 2;
pub(crate) const NO_DEV: u64 = 4;
pub(crate) const NO_EXEC: u64 = 8;
/// The group `tty`, on every distribution.
const TTY_GROUP: &str = "gid=5";

/// Whose namespace a container lives in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The machine's.
    Node,
    Pod,
    /// Its own; another container's, whose first process is sent along.
    Container,
    Target,
}

/// How a container gets into its cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cgroup {
    /// One by one, by name of the hierarchy.
    V1(Vec<String>),
    V2,
}

/// What is mounted at a path, besides what every container has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub path: String,
    pub target: Target,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    pub command: Command,
    pub user: User,
    /// Outside of the Pod's user namespace, who is its root. None for a Pod without one.
    pub user_root: Option<u32>,
    pub capabilities: Wanted,
    pub network: Scope,
    pub pid: Scope,
    pub ipc: Scope,
    pub cgroup: Cgroup,
    /// In the order of the CRI.
    pub mounts: Vec<Mount>,
    pub masked_paths: Vec<String>,
    pub readonly_paths: Vec<String>,
    pub is_root_readonly: bool,
    pub no_new_privileges: bool,
    pub seccomp: Option<(Vec<u64>, u64)>,
    /// Resource, soft, hard.
    pub rlimits: Vec<(u32, u64, u64)>,
    pub oom_score: Option<i64>,
    pub has_input: bool,
    pub has_terminal: bool,
}

/// What a slot of the recipe is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The overlay of the image's layers.
    Root,
    /// A directory of devices, made for this container.
    Dev,
    /// The mount of that place in [`Container::mounts`].
    Mount(usize),
    /// The Pod's namespace of that kind, a flag of clone.
    Namespace(u32),
    /// Whoever is the first process of the PID namespace.
    PidNamespace,
    /// The file to join the cgroup by, in that hierarchy.
    Tasks(String),
    /// The cgroup's directory, of the one hierarchy.
    CgroupDir,
    /// The cgroup's directory in that hierarchy, mounted where the container sees it.
    CgroupTree(String),
    Log,
    /// Where the kernel counts who was killed for memory.
    MemoryEvents,
    /// The first process of the container in which something is executed.
    Target,
    Stdio(usize),
    /// A new file system of that kind, whole.
    Kernel(&'static str),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub launch: Launch,
    /// By slot.
    pub sources: Vec<Source>,
}

/// What is run beside the first process of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exec {
    pub command: Command,
    pub user: User,
    /// The container is in a user namespace of its Pod.
    pub has_user_namespace: bool,
    pub capabilities: Wanted,
    pub cgroup: Cgroup,
    pub no_new_privileges: bool,
    pub seccomp: Option<(Vec<u64>, u64)>,
    /// Resource, soft, hard.
    pub rlimits: Vec<(u32, u64, u64)>,
    pub oom_score: Option<i64>,
    pub has_terminal: bool,
    /// Which of input, output and errors the daemon sends along.
    pub stdio: [bool; 3],
}

#[derive(Default)]
struct Builder {
    ops: Vec<Op>,
    sources: Vec<Source>,
}

/// The launch of a container's first process. `machine` are the capabilities that the daemon has to give.
pub fn plan(container: &Container, machine: u64) -> Result<Plan, UnknownCapability> {
    let mut builder = Builder::default();
    let launch = Launch {
        namespaces: own_namespaces(container).into(),
        log: Some(builder.slot(Source::Log)),
        memory_events: Some(builder.slot(Source::MemoryEvents)),
        pid_namespace: matches!(container.pid, Scope::Pod | Scope::Target)
            .then(|| builder.slot(Source::PidNamespace)),
        cgroup: builder.join(&container.cgroup),
        user: container
            .user_root
            .map(|root| recipe::User { namespace: builder.slot(Source::Namespace(namespace::USER)), root }),
        has_input: container.has_input,
        has_terminal: container.has_terminal,
        ..Launch::default()
    };
    if container.user_root.is_some() {
        builder.show();
    }
    builder.ops.extend(container.oom_score.map(Op::OomScore));
    builder.enter(container);
    builder.mount(container);
    builder.ops.push(Op::Pivot);
    builder.ops.extend(container.rlimits.iter().map(|(what, soft, hard)| Op::Rlimit(*what, *soft, *hard)));
    builder.ops.push(Op::Umask(0o022));
    if container.has_terminal {
        builder.ops.push(Op::Terminal { columns: 0, rows: 0 });
    }
    let Container { command, user, capabilities, no_new_privileges, seccomp, .. } = container;
    builder.become_program(command, user, capabilities, machine, *no_new_privileges, seccomp.as_ref())?;
    Ok(Plan { launch: Launch { ops: builder.ops, ..launch }, sources: builder.sources })
}

/// The launch of one more process in a running container.
pub fn plan_exec(exec: &Exec, machine: u64) -> Result<Plan, UnknownCapability> {
    let mut builder = Builder::default();
    let target = builder.slot(Source::Target);
    let mut launch = Launch {
        pid_namespace: Some(target),
        cgroup: builder.join(&exec.cgroup),
        has_terminal: exec.has_terminal,
        ..Launch::default()
    };
    for (at, is_sent) in exec.stdio.into_iter().enumerate().filter(|_| !exec.has_terminal) {
        launch.stdio[at] = is_sent.then(|| builder.slot(Source::Stdio(at)));
    }
    // Before it is in the container's mounts: a process inherits the score of the daemon, which is killed last.
    builder.ops.extend(exec.oom_score.map(Op::OomScore));
    let user = if exec.has_user_namespace { namespace::USER } else { 0 };
    let kinds =
        namespace::MOUNT | namespace::UTS | namespace::IPC | namespace::NETWORK | namespace::CGROUP | user;
    builder.ops.extend([Op::SetNs(target, kinds), Op::RootHere]);
    if exec.has_user_namespace {
        builder.be_root();
    }
    builder.ops.extend(exec.rlimits.iter().map(|(what, soft, hard)| Op::Rlimit(*what, *soft, *hard)));
    builder.ops.push(Op::Umask(0o022));
    if exec.has_terminal {
        builder.ops.push(Op::Terminal { columns: 0, rows: 0 });
    }
    let Exec { command, user, capabilities, no_new_privileges, seccomp, .. } = exec;
    builder.become_program(command, user, capabilities, machine, *no_new_privileges, seccomp.as_ref())?;
    Ok(Plan { launch: Launch { ops: builder.ops, ..launch }, sources: builder.sources })
}

fn own_namespaces(container: &Container) -> u32 {
    let pid = if container.pid == Scope::Container { namespace::PID } else { 0 };
    // The old hierarchies are shown by mounts of their own directories instead.
    let cgroup = match container.cgroup {
        Cgroup::V2 if !container.capabilities.is_privileged || container.user_root.is_some() => {
            namespace::CGROUP
        }
        _ => 0,
    };
    namespace::MOUNT | pid | cgroup
}

// === impl Builder ===

impl Builder {
    fn slot(&mut self, source: Source) -> Slot {
        let known = self.sources.iter().position(|known| *known == source);
        let at = known.unwrap_or_else(|| {
            self.sources.push(source);
            self.sources.len() - 1
        });
        Slot(at as u32)
    }

    /// The slot to be born in, where the kernel can do that; else steps.
    fn join(&mut self, cgroup: &Cgroup) -> Option<Slot> {
        match cgroup {
            Cgroup::V2 => Some(self.slot(Source::CgroupDir)),
            Cgroup::V1(hierarchies) => {
                for hierarchy in hierarchies {
                    let slot = self.slot(Source::Tasks(hierarchy.clone()));
                    self.ops.push(Op::JoinCgroup(slot));
                }
                None
            }
        }
    }

    fn enter(&mut self, container: &Container) {
        let mut kinds = vec![];
        if container.network == Scope::Pod {
            kinds.extend([namespace::NETWORK, namespace::UTS]);
        }
        if container.ipc == Scope::Pod {
            kinds.push(namespace::IPC);
        }
        for kind in kinds {
            let slot = self.slot(Source::Namespace(kind));
            self.ops.push(Op::SetNs(slot, kind));
        }
    }

    /// Without these two the kernel refuses /proc and /sys to a user namespace. They go with the keeper's own root.
    fn show(&mut self) {
        for kind in ["proc", "sysfs"] {
            let slot = self.slot(Source::Kernel(kind));
            self.ops.push(Op::Visible(slot));
        }
    }

    /// What is made from here on is that one's, not of somebody whom the user namespace does not know.
    fn be_root(&mut self) {
        self.ops.push(Op::User { user: 0, group: 0, groups: vec![] });
    }

    fn mount(&mut self, container: &Container) {
        let root = self.slot(Source::Root);
        self.ops.push(Op::Root(root));
        if container.user_root.is_some() {
            self.be_root();
        }
        self.own_file_systems(container);
        // Parents before what lies in them; otherwise in the order of the CRI.
        let mut order: Vec<usize> = (0..container.mounts.len()).collect();
        order.sort_by_key(|at| depth(&container.mounts[*at].path));
        for at in order {
            let Mount { path, target } = &container.mounts[at];
            let slot = self.slot(Source::Mount(at));
            self.ops.push(Op::Attach(slot, *target, path.clone().into_bytes()));
        }
        if let Some(dir) = Some(&container.command.directory).filter(|dir| *dir != "/") {
            self.ops.push(Op::MkDir(dir.clone().into_bytes()));
        }
        if !container.capabilities.is_privileged {
            self.ops.extend(container.readonly_paths.iter().map(|p| Op::ReadOnly(p.clone().into_bytes())));
            self.ops.extend(container.masked_paths.iter().map(|p| Op::Mask(p.clone().into_bytes())));
        }
        if container.is_root_readonly {
            self.ops.push(Op::RootReadOnly);
        }
    }

    fn own_file_systems(&mut self, container: &Container) {
        let fs = |kind, target: &str, attributes, settings: &[(&str, &str)]| Op::FsMount {
            kind,
            target: target.to_owned(),
            attributes,
            settings: settings.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        };
        let is_ours = |path: &str| !container.mounts.iter().any(|mount| mount.path == path);
        let closed = NO_SUID | NO_DEV | NO_EXEC;
        let readable = if container.capabilities.is_privileged { closed } else { closed | READ_ONLY };
        self.ops.push(fs("proc", "/proc", closed, &[]));
        if is_ours("/dev") {
            let dev = self.slot(Source::Dev);
            self.ops.push(Op::Attach(dev, Target::Dir, b"/dev".to_vec()));
            let tty = TTY_GROUP.split_once('=').unwrap_or_default();
            let settings = [("newinstance", ""), ("ptmxmode", "0666"), ("mode", "0620"), tty];
            self.ops.push(fs("devpts", "/dev/pts", NO_SUID | NO_EXEC, &settings));
            self.ops.push(fs("mqueue", "/dev/mqueue", closed, &[]));
        }
        if is_ours("/sys") {
            self.ops.push(fs("sysfs", "/sys", readable, &[]));
            self.cgroups(container, readable);
        }
    }

    fn cgroups(&mut self, container: &Container, attributes: u64) {
        let at = "/sys/fs/cgroup";
        let fs = |kind, settings| Op::FsMount { kind, target: at.to_owned(), attributes, settings };
        match &container.cgroup {
            Cgroup::V2 => self.ops.push(fs("cgroup2", vec![])),
            Cgroup::V1(hierarchies) => {
                let settings = vec![("mode".to_owned(), "0755".to_owned())];
                self.ops.push(Op::FsMount {
                    kind: "tmpfs",
                    target: at.to_owned(),
                    attributes: NO_SUID | NO_DEV | NO_EXEC,
                    settings,
                });
                for hierarchy in hierarchies {
                    let slot = self.slot(Source::CgroupTree(hierarchy.clone()));
                    self.ops.push(Op::Attach(slot, Target::Dir, format!("{at}/{hierarchy}").into_bytes()));
                }
                if attributes & READ_ONLY != 0 {
                    self.ops.push(Op::ReadOnly(at.as_bytes().to_vec()));
                }
            }
        }
    }

    /// From a process of root in its place to the program. A filter can be loaded by who has privileges or gives up
    /// gaining any; in the second case it comes last, so that it need not allow the steps before.
    fn become_program(
        &mut self,
        command: &Command,
        user: &User,
        wanted: &Wanted,
        machine: u64,
        no_new_privileges: bool,
        seccomp: Option<&(Vec<u64>, u64)>,
    ) -> Result<(), UnknownCapability> {
        let (bounding, sets) = wanted.sets(machine, user.uid)?;
        let filter = seccomp.map(|(program, flags)| Op::Seccomp { program: program.clone(), flags: *flags });
        self.ops.push(Op::ChDir(command.directory.clone().into_bytes()));
        if !no_new_privileges {
            self.ops.extend(filter.clone());
        }
        self.ops.push(Op::Bounding(bounding));
        self.ops.push(Op::User { user: user.uid, group: user.gid, groups: user.groups.clone() });
        self.ops.push(Op::Capabilities(sets));
        if no_new_privileges {
            self.ops.push(Op::NoNewPrivileges);
            self.ops.extend(filter);
        }
        self.ops.push(Op::Exec {
            candidates: command.candidates(),
            arguments: command.arguments.clone(),
            environment: command.environment.clone(),
        });
        Ok(())
    }
}

fn depth(path: &str) -> usize {
    path.split('/').filter(|part| !part.is_empty()).count()
}

#[cfg(test)]
mod tests;
