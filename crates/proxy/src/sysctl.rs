//! Kernel settings that Services need.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use api::config::proxy::Conntrack;
use base::duration::GoDuration;

/// The limit is not raised beyond this by the number of processors: each entry costs memory.
const MOST_CONNECTIONS: i64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
#[error("setting {name} to {value}: {cause}")]
pub struct Error {
    pub name: String,
    pub value: i64,
    pub cause: io::Error,
}

/// The files of settings, below a root so that tests have their own.
#[derive(Clone, Debug)]
pub struct Sysctls {
    root: PathBuf,
}

/// What connection tracking is to be, as far as the configuration cares: name and value.
pub fn conntrack(config: &Conntrack, processors: usize) -> Vec<(&'static str, i64)> {
    let mut wanted = Vec::new();
    if config.max_per_core > 0 {
        let processors = i64::try_from(processors).unwrap_or(i64::MAX);
        let scaled = i64::from(config.max_per_core).saturating_mul(processors).min(MOST_CONNECTIONS);
        wanted.push(("net/netfilter/nf_conntrack_max", scaled.max(i64::from(config.min))));
    }
    let timeouts = [
        ("net/netfilter/nf_conntrack_tcp_timeout_established", config.tcp_established_timeout),
        ("net/netfilter/nf_conntrack_tcp_timeout_close_wait", config.tcp_close_wait_timeout),
        ("net/netfilter/nf_conntrack_udp_timeout", config.udp_timeout),
        ("net/netfilter/nf_conntrack_udp_timeout_stream", config.udp_stream_timeout),
    ];
    let said = timeouts.into_iter().filter(|(_, timeout)| *timeout > GoDuration::ZERO);
    wanted.extend(said.map(|(name, timeout)| (name, timeout.as_nanos() / 1_000_000_000)));
    if config.tcp_be_liberal {
        wanted.push(("net/netfilter/nf_conntrack_tcp_be_liberal", 1));
    }
    wanted
}

/// What IPVS needs. Some kernels broke connections that reuse a port until this was off, and later ones until it was on.
pub fn ipvs(is_arp_strict: bool, kernel: (u32, u32)) -> Vec<(&'static str, i64)> {
    let mut wanted = vec![("net/ipv4/vs/conntrack", 1)];
    if ((4, 1)..(5, 9)).contains(&kernel) {
        wanted.push(("net/ipv4/vs/conn_reuse_mode", 0));
    }
    wanted.extend([
        ("net/ipv4/vs/expire_nodest_conn", 1),
        ("net/ipv4/vs/expire_quiescent_template", 1),
        ("net/ipv4/ip_forward", 1),
    ]);
    if is_arp_strict {
        wanted.extend([("net/ipv4/conf/all/arp_ignore", 1), ("net/ipv4/conf/all/arp_announce", 2)]);
    }
    wanted
}

/// The first two numbers of the kernel's release.
pub fn kernel_version() -> (u32, u32) {
    let name = rustix::system::uname();
    parse_release(&name.release().to_string_lossy())
}

fn parse_release(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

// === impl Sysctls ===

impl Default for Sysctls {
    fn default() -> Self {
        Self { root: PathBuf::from("/") }
    }
}

impl Sysctls {
    pub fn below(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    pub fn get(&self, name: &str) -> Option<i64> {
        read(&self.root.join("proc/sys").join(name))
    }

    /// Writes only what is different, so that a process without the right to write runs where somebody else set it.
    pub fn set(&self, name: &str, value: i64) -> Result<(), Error> {
        if self.get(name) == Some(value) {
            return Ok(());
        }
        tracing::info!(name, value, "setting sysctl");
        fs::write(self.root.join("proc/sys").join(name), value.to_string()).map_err(|cause| Error {
            name: name.to_owned(),
            value,
            cause,
        })
    }

    /// Sets what connection tracking needs. A table with too few buckets is slow and not wrong, so that one failing is
    /// only told.
    pub fn set_conntrack(&self, config: &Conntrack, processors: usize) -> Result<(), Error> {
        for (name, value) in conntrack(config, processors) {
            self.set(name, value)?;
            if name.ends_with("nf_conntrack_max") {
                self.widen_hash(value / 4);
            }
        }
        Ok(())
    }

    fn widen_hash(&self, wanted: i64) {
        let path = self.root.join("sys/module/nf_conntrack/parameters/hashsize");
        if read(&path).is_some_and(|now| now < wanted)
            && let Err(error) = fs::write(&path, wanted.to_string())
        {
            tracing::warn!(%error, wanted, "the connection table keeps few buckets");
        }
    }
}

fn read(path: &Path) -> Option<i64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use api::config::proxy::KubeProxyConfiguration;

    #[test]
    fn limits_follow_the_processors() {
        let config = KubeProxyConfiguration::default().conntrack;
        let limit = |config: &Conntrack, cpus| {
            conntrack(config, cpus).iter().find(|(name, _)| name.ends_with("_max")).map(|(_, value)| *value)
        };
        let rows = [(1, 131_072), (4, 131_072), (8, 262_144), (64, 1 << 20)];
        for (cpus, wanted) in rows {
            assert_eq!(limit(&config, cpus), Some(wanted), "{cpus}");
        }
        assert_eq!(limit(&Conntrack { max_per_core: 0, ..config.clone() }, 8), None);
        let names: Vec<&str> = conntrack(&config, 1).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), 3, "UDP timeouts and the liberal mode are left alone: {names:?}");
        assert!(
            conntrack(&config, 1).contains(&("net/netfilter/nf_conntrack_tcp_timeout_established", 86_400))
        );
    }

    #[test]
    fn ipvs_follows_the_kernel_and_the_arp_policy() {
        let names =
            |strict, kernel| ipvs(strict, kernel).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let reuse = &"net/ipv4/vs/conn_reuse_mode";
        for (kernel, is_set) in
            [((3, 10), false), ((4, 1), true), ((5, 8), true), ((5, 9), false), ((6, 1), false)]
        {
            assert_eq!(names(false, kernel).contains(reuse), is_set, "{kernel:?}");
        }
        assert_eq!(names(true, (6, 1)).len(), names(false, (6, 1)).len() + 2);
        assert_eq!((parse_release("6.1.0-31-cloud-amd64"), parse_release("x")), ((6, 1), (0, 0)));
    }

    #[test]
    fn only_what_differs_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let sysctls = Sysctls::below(dir.path());
        let at = dir.path().join("proc/sys/net/ipv4");
        fs::create_dir_all(&at).unwrap();
        fs::write(at.join("x"), "1\n").unwrap();
        sysctls.set("net/ipv4/x", 1).unwrap();
        assert_eq!(fs::read_to_string(at.join("x")).unwrap(), "1\n");
        sysctls.set("net/ipv4/x", 2).unwrap();
        assert_eq!(sysctls.get("net/ipv4/x"), Some(2));
        assert!(sysctls.set("net/none/y", 2).is_err());
    }
}
