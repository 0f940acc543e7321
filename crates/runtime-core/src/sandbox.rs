//! A Pod's sandbox: its namespaces, its host name, its sysctls, and the first process of a shared PID namespace.

use std::collections::BTreeMap;

use crate::container::namespace;
use crate::recipe::{Capabilities, Launch, Op, Slot, User};
use crate::userns::Mapping;

/// As with containerd: any port, and ping for everybody, because a Pod's network is its own.
const NETWORK_DEFAULTS: [(&str, &str); 2] =
    [("net/ipv4/ip_unprivileged_port_start", "0"), ("net/ipv4/ping_group_range", "0 2147483647")];
/// What the kernel keeps per IPC namespace.
const IPC: [&str; 8] = ["msgmax", "msgmnb", "msgmni", "sem", "shmall", "shmmax", "shmmni", "shm_rmid_forced"];
/// As with the pause container: killed last.
pub const OOM_SCORE: i64 = -998;
/// Nobody, for the process that does nothing.
const NOBODY: u32 = 65_535;
/// Where the daemon takes the namespaces.
pub const MADE: u32 = 1;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sandbox {
    pub is_host_network: bool,
    pub is_host_ipc: bool,
    /// Containers see the processes of the machine.
    pub is_host_pid: bool,
    /// None for a Pod without a user namespace.
    pub users: Option<Mapping>,
    pub hostname: String,
    pub sysctls: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSandbox {
    #[error("sysctl {0:?} is not of a namespace of the Pod: it would change the machine")]
    Sysctl(String),
    #[error("{0:?} is not a host name")]
    Hostname(String),
    #[error("a user namespace together with the machine's {0} namespace is not supported")]
    Machine(&'static str),
}

/// The launch that makes the namespaces. The process waits in them until the daemon has taken them, and ends.
pub fn plan(sandbox: &Sandbox) -> Result<Launch, BadSandbox> {
    check(sandbox)?;
    // Who is in a user namespace sees no /proc to set anything by.
    let mut ops = if sandbox.users.is_some() { vec![] } else { settings(sandbox)? };
    ops.extend([Op::Hold(MADE), Op::Exit(0)]);
    Ok(Launch { namespaces: namespaces(sandbox).into(), ops, ..Launch::default() })
}

/// The launch that sets up the namespaces of a Pod with a user namespace, from outside of that one. The slots are the
/// namespaces, by flag of clone.
pub fn plan_settings(sandbox: &Sandbox) -> Result<(Launch, Vec<u32>), BadSandbox> {
    check(sandbox)?;
    let kinds = [namespace::NETWORK, namespace::UTS, namespace::IPC];
    let made = namespaces(sandbox);
    let kinds: Vec<u32> = kinds.into_iter().filter(|kind| made & kind != 0).collect();
    let enter = kinds.iter().enumerate().map(|(at, kind)| Op::SetNs(Slot(at as u32), *kind));
    let ops = enter.chain(settings(sandbox)?).chain([Op::Exit(0)]).collect();
    Ok((Launch { ops, ..Launch::default() }, kinds))
}

fn check(sandbox: &Sandbox) -> Result<(), BadSandbox> {
    let name = &sandbox.hostname;
    if name.len() > 64 || name.contains(['\0', '/', '\n']) {
        return Err(BadSandbox::Hostname(name.clone()));
    }
    let machine =
        [(sandbox.is_host_network, "network"), (sandbox.is_host_ipc, "IPC"), (sandbox.is_host_pid, "PID")];
    match machine.iter().find(|(is_host, _)| *is_host && sandbox.users.is_some()) {
        Some((_, which)) => Err(BadSandbox::Machine(which)),
        None => sysctls(sandbox).map(drop),
    }
}

fn settings(sandbox: &Sandbox) -> Result<Vec<Op>, BadSandbox> {
    let mut ops = Vec::new();
    if !sandbox.is_host_network {
        let name = Some(&sandbox.hostname).filter(|name| !name.is_empty());
        ops.push(Op::Loopback);
        ops.extend(name.map(|name| Op::Hostname(name.clone())));
    }
    ops.extend(sysctls(sandbox)?.into_iter().map(|(path, value)| Op::Sysctl(path, value)));
    Ok(ops)
}

/// The namespaces that the Pod has of its own, as flags of clone. Host name and network go together, as upstream.
#[must_use]
pub fn namespaces(sandbox: &Sandbox) -> u32 {
    let network = if sandbox.is_host_network { 0 } else { namespace::NETWORK | namespace::UTS };
    let ipc = if sandbox.is_host_ipc { 0 } else { namespace::IPC };
    let user = if sandbox.users.is_some() { namespace::USER } else { 0 };
    network | ipc | user
}

/// The first process of a PID namespace that the containers of a Pod share. It can do nothing but take the exit codes of
/// those whose parents are gone. In a user namespace it is given with its slot, and the daemon sets [`OOM_SCORE`].
#[must_use]
pub fn init(users: Option<(Mapping, Slot)>) -> Launch {
    let nobody = users.map_or(NOBODY, |(mapping, _)| NOBODY.min(mapping.length - 1));
    let mut ops = if users.is_some() { vec![] } else { vec![Op::OomScore(OOM_SCORE)] };
    ops.extend([
        Op::Bounding(0),
        Op::User { user: nobody, group: nobody, groups: vec![] },
        Op::Capabilities(Capabilities::default()),
        Op::NoNewPrivileges,
        Op::Reap,
    ]);
    let user = users.map(|(mapping, namespace)| User { namespace, root: mapping.host });
    Launch { namespaces: namespace::PID.into(), user, ops, ..Launch::default() }
}

/// Connects to a port on the Pod's own loopback, from inside.
#[must_use]
pub fn dial(network: Option<crate::recipe::Slot>, port: u16) -> Launch {
    let enter = network.map(|slot| Op::SetNs(slot, namespace::NETWORK));
    let ops = enter.into_iter().chain([Op::Dial(port)]).collect();
    Launch { ops, ..Launch::default() }
}

fn sysctls(sandbox: &Sandbox) -> Result<BTreeMap<String, String>, BadSandbox> {
    let mut all = BTreeMap::new();
    if !sandbox.is_host_network {
        all.extend(NETWORK_DEFAULTS.map(|(path, value)| (path.to_owned(), value.to_owned())));
    }
    for (name, value) in &sandbox.sysctls {
        let path = path(name);
        if !is_of_the_pod(&path, sandbox) || value.contains('\0') {
            return Err(BadSandbox::Sysctl(name.clone()));
        }
        all.insert(path, value.clone());
    }
    Ok(all)
}

/// `net.ipv4.conf.eth0/1.forwarding` and `net/ipv4/conf/eth0.1/forwarding` are the same: the first separator decides.
fn path(name: &str) -> String {
    let swap = |c| match c {
        '.' => '/',
        '/' => '.',
        other => other,
    };
    match name.find(['.', '/']) {
        Some(at) if name[at..].starts_with('.') => name.chars().map(swap).collect(),
        _ => name.to_owned(),
    }
}

/// Everything else is the machine's, whichever namespace one looks from.
fn is_of_the_pod(path: &str, sandbox: &Sandbox) -> bool {
    let mut parts = path.split('/');
    if path.split('/').any(|part| part.is_empty() || part == "." || part == ".." || part.contains('\0')) {
        return false;
    }
    match (parts.next(), parts.next(), parts.next()) {
        (Some("net"), Some(_), _) => !sandbox.is_host_network,
        (Some("fs"), Some("mqueue"), Some(_)) => !sandbox.is_host_ipc,
        (Some("kernel"), Some(name), None) => !sandbox.is_host_ipc && IPC.contains(&name),
        _ => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn with(name: &str) -> Sandbox {
        Sandbox { sysctls: BTreeMap::from([(name.into(), "1".into())]), ..Sandbox::default() }
    }

    #[test]
    fn only_what_belongs_to_the_pods_namespaces_can_be_set() {
        let good = [
            "kernel.shm_rmid_forced",
            "kernel/shm_rmid_forced",
            "fs.mqueue.msg_max",
            "net.core.somaxconn",
            "net.ipv4.conf.eth0/1.forwarding",
        ];
        for name in good {
            assert!(plan(&with(name)).is_ok(), "{name}");
        }
        let bad = [
            "kernel.core_pattern",
            "kernel.hostname.x",
            "vm.swappiness",
            "net",
            "net/../kernel/core_pattern",
            "net../kernel/core_pattern",
            "fs.mqueue",
            "fs.file-max",
            "",
            "/net/core/somaxconn",
            "kernel.shm_rmid_forced/../core_pattern",
            "net.\0",
        ];
        for name in bad {
            assert_eq!(plan(&with(name)), Err(BadSandbox::Sysctl(name.into())));
        }
    }

    #[test]
    fn the_machines_own_namespaces_are_left_alone() {
        let sandbox = Sandbox { is_host_network: true, hostname: "node".into(), ..Sandbox::default() };
        let launch = plan(&sandbox).unwrap();
        assert_eq!(launch.ops, [Op::Hold(MADE), Op::Exit(0)]);
        assert_eq!(launch.namespaces, u64::from(namespace::IPC));
        let of_network = Sandbox { is_host_network: true, ..with("net.core.somaxconn") };
        assert!(plan(&of_network).is_err());
        let of_ipc = Sandbox { is_host_ipc: true, ..with("kernel.shmmax") };
        assert!(plan(&of_ipc).is_err());
    }

    #[test]
    fn a_pod_may_choose_otherwise_than_the_defaults() {
        let launch = plan(&with("net.ipv4.ip_unprivileged_port_start")).unwrap();
        let set = launch.ops.iter().filter_map(|op| match op {
            Op::Sysctl(path, value) if path.ends_with("port_start") => Some(value.as_str()),
            _ => None,
        });
        assert_eq!(set.collect::<Vec<_>>(), ["1"]);
    }

    #[test]
    fn a_pod_with_users_of_its_own_is_set_up_from_outside() {
        let users = Some(Mapping { host: 65_536, length: 65_536 });
        let sandbox = Sandbox { users, hostname: "web".into(), ..with("kernel.shmmax") };
        let made = plan(&sandbox).unwrap();
        assert_eq!(made.ops, [Op::Hold(MADE), Op::Exit(0)]);
        assert_ne!(made.namespaces & u64::from(namespace::USER), 0);
        let (launch, kinds) = plan_settings(&sandbox).unwrap();
        assert_eq!(kinds, [namespace::NETWORK, namespace::UTS, namespace::IPC]);
        assert_eq!(launch.ops[3..5], [Op::Loopback, Op::Hostname("web".into())]);
        assert!(launch.ops.contains(&Op::Sysctl("kernel/shmmax".into(), "1".into())));
        let hosts = [
            Sandbox { is_host_network: true, ..sandbox.clone() },
            Sandbox { is_host_ipc: true, sysctls: BTreeMap::new(), ..sandbox.clone() },
            Sandbox { is_host_pid: true, ..sandbox },
        ];
        for (sandbox, which) in hosts.into_iter().zip(["network", "IPC", "PID"]) {
            assert_eq!(plan(&sandbox), Err(BadSandbox::Machine(which)));
        }
    }

    /// CVE-2022-0811: a value that holds another setting is a value.
    #[test]
    fn cve_2022_0811_a_value_sets_one_thing() {
        let value = "1+kernel.core_pattern=|/evil";
        let sysctls = BTreeMap::from([("kernel.shm_rmid_forced".into(), value.into())]);
        let launch = plan(&Sandbox { sysctls, is_host_network: true, ..Sandbox::default() }).unwrap();
        let set: Vec<&Op> = launch.ops.iter().filter(|op| matches!(op, Op::Sysctl(..))).collect();
        assert_eq!(set, [&Op::Sysctl("kernel/shm_rmid_forced".into(), value.into())]);
    }

    #[test]
    fn names_of_hosts_are_what_the_kernel_takes() {
        for name in ["a/b", "a\0", &"x".repeat(65)] {
            let sandbox = Sandbox { hostname: name.into(), ..Sandbox::default() };
            assert!(plan(&sandbox).is_err(), "{name:?}");
        }
    }

    proptest! {
        /// No name, however written, reaches a file outside of the three trees.
        #[test]
        fn no_sysctl_leaves_its_tree(name in "(net|fs|kernel|\\.|/|[a-z]){0,12}") {
            if let Ok(launch) = plan(&with(&name)) {
                for op in launch.ops {
                    let Op::Sysctl(path, _) = op else { continue };
                    let known = ["net/", "fs/mqueue/", "kernel/"].iter().any(|tree| path.starts_with(tree));
                    prop_assert!(known && !path.split('/').any(|part| part == ".." || part.is_empty()));
                }
            }
        }
    }
}
