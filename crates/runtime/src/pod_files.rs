//! The files that every container of a Pod finds: its host name, its resolver, its shared memory.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;

use cri::v1::DnsConfig;
use sys::mount::{self, Busy, Memory};
use tonic::Status;

use crate::books::Sandbox;
use crate::daemon::{failed, invalid};
use crate::launch::hostname;

/// As with every runtime.
const SHARED_MEMORY: u64 = 64 << 20;
const RESOLVER: &str = "/etc/resolv.conf";
const HOSTS: &str = "/etc/hosts";

/// Writes and mounts them in the sandbox's directory.
pub(crate) fn make(sandbox: &Sandbox) -> Result<(), Status> {
    let dns = sandbox.config.dns_config.clone().unwrap_or_default();
    let resolver = match resolver(&dns)? {
        Some(text) => text,
        None => or_empty(Path::new(RESOLVER)),
    };
    let write = || {
        fs::write(sandbox.dir.join("hostname"), format!("{}\n", hostname(sandbox)))?;
        fs::write(sandbox.dir.join("hosts"), or_empty(Path::new(HOSTS)))?;
        fs::write(sandbox.dir.join("resolv.conf"), resolver)?;
        give(sandbox, &["hostname", "hosts", "resolv.conf"])?;
        if sandbox.is_host_ipc() {
            return Ok(());
        }
        let shm = sandbox.dir.join("shm");
        fs::create_dir_all(&shm)?;
        let what = Memory::Tmpfs { size: Some(SHARED_MEMORY), inodes: None, mode: 0o1777, noswap: false };
        mount::memory(sys::fd::open_dir(&shm)?, &what)?;
        give(sandbox, &["shm"])
    };
    write().map_err(failed(format!("make the files of sandbox {}", sandbox.id)))
}

/// To the root of a Pod with users of its own.
fn give(sandbox: &Sandbox, names: &[&str]) -> io::Result<()> {
    let Some(mapping) = sandbox.mapping() else { return Ok(()) };
    let root = Some(mapping.host);
    names.iter().try_for_each(|name| std::os::unix::fs::lchown(sandbox.dir.join(name), root, root))
}

/// Takes away what is mounted in the sandbox's directory.
pub(crate) fn unmount(dir: &Path) -> io::Result<()> {
    let parent = match sys::fd::open_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    for name in ["shm", "net", "uts", "ipc", crate::userns::NAME] {
        let name = OsStr::new(name);
        while sys::fd::is_mount_point(&parent, name)? {
            mount::unmount(&parent, name, Busy::Detach)?;
        }
    }
    Ok(())
}

fn or_empty(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// None for a Pod that says nothing: it has the machine's.
fn resolver(dns: &DnsConfig) -> Result<Option<String>, Status> {
    let all = dns.servers.iter().chain(&dns.searches).chain(&dns.options);
    if let Some(bad) = all.clone().find(|word| word.contains(['\n', '\0'])) {
        return Err(invalid(format!("dns_config: {bad:?} is more than one line")));
    }
    if all.count() == 0 {
        return Ok(None);
    }
    let mut text = String::new();
    if !dns.searches.is_empty() {
        text.push_str(&format!("search {}\n", dns.searches.join(" ")));
    }
    for server in &dns.servers {
        text.push_str(&format!("nameserver {server}\n"));
    }
    if !dns.options.is_empty() {
        text.push_str(&format!("options {}\n", dns.options.join(" ")));
    }
    Ok(Some(text))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_resolver_is_written_as_every_runtime_writes_it() {
        let own = |words: &[&str]| words.iter().map(ToString::to_string).collect();
        let mut dns = DnsConfig {
            servers: own(&["10.96.0.10", "8.8.8.8"]),
            searches: own(&["default.svc.cluster.local", "svc.cluster.local"]),
            options: own(&["ndots:5"]),
        };
        let want = "search default.svc.cluster.local svc.cluster.local\nnameserver 10.96.0.10\n\
            nameserver 8.8.8.8\noptions ndots:5\n";
        assert_eq!(resolver(&dns).unwrap().unwrap(), want);
        assert_eq!(resolver(&DnsConfig::default()).unwrap(), None);
        dns.searches.push("x\nnameserver 6.6.6.6".into());
        assert!(resolver(&dns).unwrap_err().message().contains("more than one line"));
    }
}
