//! Recipes: what a keeper does between clone and exec, written as data.
//!
//! The keeper executes and decides nothing, so whatever can be wrong about a launch can be read here. [`decode`] turns the
//! bytes back into ops for tests and for error messages: a keeper reports which op was refused by its number.

use crate::wire::*;

/// A descriptor that goes along with the recipe, by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// What a path is to be when it has to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Dir,
    File,
}

/// Sets of capabilities, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    pub effective: u64,
    pub permitted: u64,
    pub inheritable: u64,
    pub ambient: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Flags of clone say which namespaces.
    SetNs(Slot, u32),
    JoinCgroup(Slot),
    Root(Slot),
    RootHere,
    Attach(Slot, Target, Vec<u8>),
    FsMount {
        kind: &'static str,
        target: String,
        /// Attributes of the mount (MOUNT_ATTR_…).
        attributes: u64,
        settings: Vec<(String, String)>,
    },
    Mask(Vec<u8>),
    ReadOnly(Vec<u8>),
    RootReadOnly,
    Pivot,
    Hostname(String),
    /// Path below /proc/sys, value.
    Sysctl(String, String),
    Hold(u32),
    MkDir(Vec<u8>),
    ChDir(Vec<u8>),
    User {
        user: u32,
        group: u32,
        groups: Vec<u32>,
    },
    Bounding(u64),
    Capabilities(Capabilities),
    NoNewPrivileges,
    Seccomp {
        program: Vec<u64>,
        flags: u64,
    },
    Rlimit(u32, u64, u64),
    Umask(u32),
    OomScore(i64),
    Terminal {
        columns: u16,
        rows: u16,
    },
    Exec {
        candidates: Vec<Vec<u8>>,
        arguments: Vec<Vec<u8>>,
        environment: Vec<Vec<u8>>,
    },
    Reap,
    Dial(u16),
    Exit(u32),
    Loopback,
    Visible(Slot),
}

/// The user namespace that a process is born in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    pub namespace: Slot,
    /// Who is its root, outside of it: pipes are that one's.
    pub root: u32,
}

/// How the process is made and what happens to its input and output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// Of clone.
    pub namespaces: u64,
    pub log: Option<Slot>,
    pub memory_events: Option<Slot>,
    pub pid_namespace: Option<Slot>,
    pub cgroup: Option<Slot>,
    pub user: Option<User>,
    /// What is none is the container's own /dev/null, unless the keeper makes pipes.
    pub stdio: [Option<Slot>; 3],
    /// The keeper makes a pipe for input.
    pub has_input: bool,
    pub has_terminal: bool,
    pub ops: Vec<Op>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRecipe {
    #[error("{0} holds a NUL byte")]
    Nul(&'static str),
    #[error("arguments and environment take {0} bytes, more than {RECIPE_MAX}")]
    TooLarge(usize),
    #[error("the recipe is cut short or malformed")]
    Malformed,
}

/// The bytes that a keeper takes.
pub fn encode(launch: &Launch) -> Result<Vec<u8>, BadRecipe> {
    let mut out = vec![0; RECIPE_HEAD];
    for op in &launch.ops {
        put(&mut out, op)?;
    }
    if out.len() > RECIPE_MAX {
        return Err(BadRecipe::TooLarge(out.len()));
    }
    let flags = [
        (launch.log.is_some(), FLAG_LOG),
        (launch.has_input, FLAG_INPUT),
        (launch.has_terminal, FLAG_TERMINAL),
        (launch.user.is_some(), FLAG_USER),
    ];
    let flags = flags.iter().filter(|(is_set, _)| *is_set).fold(0, |sum, (_, flag)| sum | flag);
    let slot = |slot: Option<Slot>| slot.map_or(NONE, |slot| slot.0);
    let words = [
        (0, MAGIC),
        (4, VERSION),
        (8, out.len() as u32),
        (AT_FLAGS, flags),
        (AT_CLONE, launch.namespaces as u32),
        (AT_CLONE + 4, (launch.namespaces >> 32) as u32),
        (AT_LOG, slot(launch.log)),
        (AT_MEMORY_EVENTS, slot(launch.memory_events)),
        (AT_PID_NAMESPACE, slot(launch.pid_namespace)),
        (AT_CGROUP, slot(launch.cgroup)),
        (AT_STDIN, slot(launch.stdio[0])),
        (AT_STDOUT, slot(launch.stdio[1])),
        (AT_STDERR, slot(launch.stdio[2])),
        (AT_USER_NAMESPACE, slot(launch.user.map(|user| user.namespace))),
        (AT_USER_ROOT, launch.user.map_or(0, |user| user.root)),
    ];
    for (at, word) in words {
        out[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    Ok(out)
}

fn put(out: &mut Vec<u8>, op: &Op) -> Result<(), BadRecipe> {
    let words = |words: &[u64]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    let text = |what, text: &[u8]| ended(what, [text]);
    let high = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
    let (code, argument, payload) = match op {
        Op::SetNs(slot, kinds) => (OP_SETNS, high(*kinds, slot.0), vec![]),
        Op::JoinCgroup(slot) => (OP_JOIN_CGROUP, slot.0.into(), vec![]),
        Op::Root(slot) => (OP_ROOT, slot.0.into(), vec![]),
        Op::RootHere => (OP_ROOT_HERE, 0, vec![]),
        Op::Attach(slot, target, path) => {
            let kind = if *target == Target::File { TARGET_FILE } else { TARGET_DIR };
            (OP_ATTACH, high(kind, slot.0), text("a mount's path", path)?)
        }
        Op::FsMount { kind, target, attributes, settings } => {
            let settings = settings.iter().flat_map(|(key, value)| [key.as_bytes(), value.as_bytes()]);
            let all = [kind.as_bytes(), target.as_bytes()].into_iter().chain(settings);
            (OP_FSMOUNT, *attributes, ended("a mount's setting", all)?)
        }
        Op::Mask(path) => (OP_MASK, 0, text("a masked path", path)?),
        Op::ReadOnly(path) => (OP_READONLY, 0, text("a read-only path", path)?),
        Op::RootReadOnly => (OP_ROOT_READONLY, 0, vec![]),
        Op::Pivot => (OP_PIVOT, 0, vec![]),
        Op::Hostname(name) => (OP_HOSTNAME, 0, name.clone().into_bytes()),
        Op::Sysctl(path, value) => {
            let mut payload = text("a sysctl", &[b"sys/", path.as_bytes()].concat())?;
            payload.extend_from_slice(value.as_bytes());
            (OP_SYSCTL, 0, payload)
        }
        Op::Hold(number) => (OP_HOLD, (*number).into(), vec![]),
        Op::MkDir(path) => (OP_MKDIR, 0, text("a directory's path", path)?),
        Op::ChDir(path) => (OP_CHDIR, 0, text("the working directory", path)?),
        Op::User { user, group, groups } => {
            (OP_USER, high(*group, *user), groups.iter().flat_map(|g| g.to_le_bytes()).collect())
        }
        Op::Bounding(set) => (OP_BOUNDING, 0, words(&[*set])),
        Op::Capabilities(sets) => {
            let payload = words(&[sets.effective, sets.permitted, sets.inheritable, sets.ambient]);
            (OP_CAPABILITIES, 0, payload)
        }
        Op::NoNewPrivileges => (OP_NO_NEW_PRIVILEGES, 0, vec![]),
        Op::Seccomp { program, flags } => (OP_SECCOMP, *flags, words(program)),
        Op::Rlimit(resource, soft, hard) => (OP_RLIMIT, (*resource).into(), words(&[*soft, *hard])),
        Op::Umask(mask) => (OP_UMASK, (*mask).into(), vec![]),
        Op::OomScore(score) => (OP_OOM_SCORE, score.cast_unsigned(), vec![]),
        Op::Terminal { columns, rows } => {
            (OP_TERMINAL, high(0, u32::from(*rows) << 16 | u32::from(*columns)), vec![])
        }
        Op::Exec { candidates, arguments, environment } => {
            (OP_EXEC, 0, exec(candidates, arguments, environment)?)
        }
        Op::Reap => (OP_REAP, 0, vec![]),
        Op::Dial(port) => (OP_DIAL, (*port).into(), vec![]),
        Op::Exit(code) => (OP_EXIT, (*code).into(), vec![]),
        Op::Loopback => (OP_LOOPBACK, 0, vec![]),
        Op::Visible(slot) => (OP_VISIBLE, slot.0.into(), vec![]),
    };
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&argument.to_le_bytes());
    out.extend_from_slice(&payload);
    out.resize(out.len().next_multiple_of(8), 0);
    Ok(())
}

/// Strings, each ended by NUL.
fn ended<'a>(what: &'static str, all: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<u8>, BadRecipe> {
    let mut out = Vec::new();
    for text in all {
        if text.contains(&0) {
            return Err(BadRecipe::Nul(what));
        }
        out.extend_from_slice(text);
        out.push(0);
    }
    Ok(out)
}

fn exec(
    candidates: &[Vec<u8>],
    arguments: &[Vec<u8>],
    environment: &[Vec<u8>],
) -> Result<Vec<u8>, BadRecipe> {
    let mut payload = Vec::new();
    for list in [candidates, arguments, environment] {
        payload.extend_from_slice(&(list.len() as u32).to_le_bytes());
    }
    for (what, list) in [("the command", candidates), ("an argument", arguments), ("a variable", environment)]
    {
        payload.extend(ended(what, list.iter().map(Vec::as_slice))?);
    }
    Ok(payload)
}

/// The codes of the ops, in order, and whether all of them are whole.
pub fn codes(bytes: &[u8]) -> Result<Vec<u32>, BadRecipe> {
    let word = |at: usize| {
        let bytes = at.checked_add(4).and_then(|end| bytes.get(at..end)).ok_or(BadRecipe::Malformed)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    if word(0)? != MAGIC || word(4)? != VERSION || word(8)? as usize != bytes.len() {
        return Err(BadRecipe::Malformed);
    }
    let (mut at, mut codes) = (RECIPE_HEAD, Vec::new());
    while at < bytes.len() {
        codes.push(word(at)?);
        let len = word(at + 4)? as usize;
        at = (at + OP_HEAD).checked_add(len.next_multiple_of(8)).ok_or(BadRecipe::Malformed)?;
    }
    if at == bytes.len() { Ok(codes) } else { Err(BadRecipe::Malformed) }
}

// === impl Op ===

impl Op {
    /// What was being done, for a person: `number` is the op that a keeper said was refused.
    #[must_use]
    pub fn describe(&self) -> String {
        let path = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        match self {
            Op::SetNs(..) => "entering the namespaces".into(),
            Op::JoinCgroup(_) => "joining the cgroup".into(),
            Op::Root(_) | Op::RootHere => "attaching the root file system".into(),
            Op::Attach(_, _, target) => format!("mounting {}", path(target)),
            Op::FsMount { kind, target, .. } => format!("mounting {kind} on {target}"),
            Op::Mask(target) => format!("masking {}", path(target)),
            Op::ReadOnly(target) => format!("making {} read-only", path(target)),
            Op::RootReadOnly => "making the root read-only".into(),
            Op::Pivot => "changing the root".into(),
            Op::Hostname(name) => format!("setting the host name {name}"),
            Op::Sysctl(name, value) => format!("setting sysctl {name} to {value}"),
            Op::Hold(_) => "waiting for the runtime".into(),
            Op::MkDir(dir) => format!("making the directory {}", path(dir)),
            Op::ChDir(dir) => format!("changing to the working directory {}", path(dir)),
            Op::User { user, group, .. } => format!("becoming user {user} of group {group}"),
            Op::Bounding(_) | Op::Capabilities(_) => "dropping capabilities".into(),
            Op::NoNewPrivileges => "setting no_new_privs".into(),
            Op::Seccomp { .. } => "loading the seccomp filter".into(),
            Op::Rlimit(..) | Op::Umask(_) | Op::OomScore(_) => "setting limits".into(),
            Op::Terminal { .. } => "opening the terminal".into(),
            Op::Exec { arguments, .. } => {
                format!("exec {}", arguments.first().map(|name| path(name)).unwrap_or_default())
            }
            Op::Reap => "reaping".into(),
            Op::Dial(port) => format!("connecting to port {port}"),
            Op::Exit(_) => "exiting".into(),
            Op::Loopback => "raising the loopback device".into(),
            Op::Visible(_) => "showing a file system of the kernel".into(),
        }
    }
}

#[cfg(test)]
#[path = "recipe_tests.rs"]
mod tests;
