//! Kernel parameters a Pod may set.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;

/// What may be set: the safe ones this kernel keeps per namespace, and those the operator adds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowlist {
    names: BTreeMap<String, Namespace>,
    prefixes: BTreeMap<String, Namespace>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Namespace {
    Ipc,
    Net,
}

/// Safe parameters with the kernel version that first kept them per namespace.
const SAFE: [(&str, (u32, u32)); 12] = [
    ("kernel.shm_rmid_forced", (0, 0)),
    ("net.ipv4.ip_local_port_range", (0, 0)),
    ("net.ipv4.tcp_syncookies", (0, 0)),
    ("net.ipv4.ping_group_range", (0, 0)),
    ("net.ipv4.ip_unprivileged_port_start", (0, 0)),
    ("net.ipv4.ip_local_reserved_ports", (3, 16)),
    ("net.ipv4.tcp_keepalive_time", (4, 5)),
    ("net.ipv4.tcp_fin_timeout", (4, 6)),
    ("net.ipv4.tcp_keepalive_intvl", (4, 5)),
    ("net.ipv4.tcp_keepalive_probes", (4, 5)),
    ("net.ipv4.tcp_rmem", (4, 15)),
    ("net.ipv4.tcp_wmem", (4, 15)),
];

/// Dots between the parts: `net/ipv4/conf/eno2.100/x` is `net.ipv4.conf.eno2/100.x`.
#[must_use]
pub fn normalize(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(at) if name.as_bytes()[at] == b'/' => name
            .chars()
            .map(|c| match c {
                '.' => '/',
                '/' => '.',
                c => c,
            })
            .collect(),
        _ => name.to_owned(),
    }
}

// === impl Allowlist ===

impl Allowlist {
    /// `kernel` is the release (`6.1.0-13-amd64`), `unsafe_patterns` is allowedUnsafeSysctls. A pattern
    /// that names nothing namespaced is an error.
    pub fn new(kernel: &str, unsafe_patterns: &[String]) -> Result<Self, String> {
        let version = parse_version(kernel).unwrap_or((0, 0));
        let mut list = Self::default();
        for (name, since) in SAFE {
            if version >= since {
                list.add(name)?;
            }
        }
        unsafe_patterns.iter().try_for_each(|p| list.add(p))?;
        Ok(list)
    }

    /// Why the Pod's parameters are refused.
    pub fn check(&self, pod: &Pod) -> Result<(), String> {
        let Some(spec) = &pod.spec else { return Ok(()) };
        let sysctls = spec.security_context.as_ref().and_then(|s| s.sysctls.as_deref()).unwrap_or_default();
        for sysctl in sysctls {
            let name = normalize(&sysctl.name);
            let namespace = self.find(&name).ok_or_else(|| format!("{name:?} not allowlisted"))?;
            let (shared, word) = match namespace {
                Namespace::Ipc => (spec.host_ipc, "IPC"),
                Namespace::Net => (spec.host_network, "Net"),
            };
            if shared == Some(true) {
                return Err(format!("{name:?} not allowed with host {word} enabled"));
            }
        }
        Ok(())
    }

    fn add(&mut self, pattern: &str) -> Result<(), String> {
        let name = normalize(pattern);
        let (stem, prefixed) = match name.split_once('*') {
            Some((stem, _)) => (stem, true),
            None => (name.as_str(), false),
        };
        let namespace = namespace_of(stem)
            .ok_or_else(|| format!("the sysctls {stem:?} are not known to be namespaced"))?;
        let map = if prefixed { &mut self.prefixes } else { &mut self.names };
        map.insert(stem.to_owned(), namespace);
        Ok(())
    }

    fn find(&self, name: &str) -> Option<Namespace> {
        let by_prefix = || self.prefixes.iter().find(|(p, _)| name.starts_with(p.as_str())).map(|(_, n)| *n);
        self.names.get(name).copied().or_else(by_prefix)
    }
}

fn namespace_of(name: &str) -> Option<Namespace> {
    const IPC: [&str; 10] = [
        "kernel.sem",
        "kernel.shmall",
        "kernel.shmmax",
        "kernel.shmmni",
        "kernel.shm_rmid_forced",
        "kernel.shm",
        "kernel.msgmax",
        "kernel.msgmnb",
        "kernel.msgmni",
        "kernel.msg",
    ];
    if IPC.contains(&name) || name.starts_with("fs.mqueue.") {
        Some(Namespace::Ipc)
    } else if name.starts_with("net.") {
        Some(Namespace::Net)
    } else {
        None
    }
}

fn parse_version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cri_config::testing::pod;

    #[test]
    fn who_may_set_what() {
        let list = |kernel: &str, more: &[&str]| {
            let more: Vec<String> = more.iter().map(|s| (*s).to_owned()).collect();
            Allowlist::new(kernel, &more)
        };
        let safe = list("6.1.0-13-amd64", &[]).unwrap();
        let old = list("4.4.0", &[]).unwrap();
        let wide = list("6.1.0", &["kernel.msg*", "net.core.*", "kernel.sem", "net/ipv4/vs/*"]).unwrap();
        for (list, spec, name, want) in [
            (&safe, "", "net.ipv4.tcp_syncookies", Ok(())),
            (&safe, "", "net/ipv4/tcp_syncookies", Ok(())),
            (&safe, "", "net.ipv4.tcp_keepalive_time", Ok(())),
            (&old, "", "net.ipv4.tcp_keepalive_time", Err("\"net.ipv4.tcp_keepalive_time\" not allowlisted")),
            (&safe, "", "kernel.msgmax", Err("\"kernel.msgmax\" not allowlisted")),
            (&wide, "", "kernel.msgmax", Ok(())),
            (&wide, "", "net.core.somaxconn", Ok(())),
            (&wide, "", "net.ipv4.vs.x", Ok(())),
            (
                &safe,
                "hostNetwork: true,",
                "net.ipv4.tcp_syncookies",
                Err("\"net.ipv4.tcp_syncookies\" not allowed with host Net enabled"),
            ),
            (&wide, "hostIPC: true,", "kernel.sem", Err("\"kernel.sem\" not allowed with host IPC enabled")),
            (&safe, "hostIPC: true,", "net.ipv4.tcp_syncookies", Ok(())),
        ] {
            let p = pod(&format!(
                "{{{spec} containers: [], securityContext: {{sysctls: [{{name: {name}, value: '1'}}]}}}}"
            ));
            assert_eq!(list.check(&p), want.map_err(str::to_owned), "{name}");
        }
        assert_eq!(
            list("6.1", &["vm.swappiness"]).unwrap_err(),
            "the sysctls \"vm.swappiness\" are not known to be namespaced"
        );
    }

    #[test]
    fn slashes_and_dots() {
        for (name, want) in [
            ("net.ipv4.conf.eno2/100.rp_filter", "net.ipv4.conf.eno2/100.rp_filter"),
            ("net/ipv4/conf/eno2.100/rp_filter", "net.ipv4.conf.eno2/100.rp_filter"),
            ("kernel", "kernel"),
        ] {
            assert_eq!(normalize(name), want);
        }
    }
}
