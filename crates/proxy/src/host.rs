//! The machine's own addresses, and how many processors it has.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use proxy_core::ipvs::DEVICE;
use proxy_core::rules::Host;
use sys::link::Links;
use tokio::sync::mpsc;

use crate::Update;

/// How soon a new address of the machine serves node ports.
const LOOK: Duration = Duration::from_secs(5);

/// Tells of the addresses each time they changed. Ends when nobody listens.
pub async fn watch_addresses(news: mpsc::Sender<Update>, mut known: Host) {
    loop {
        tokio::time::sleep(LOOK).await;
        let Ok(now) = tokio::task::spawn_blocking(addresses).await else { return };
        // Without any address the list could not be had.
        if now == known || now.addresses.is_empty() {
            continue;
        }
        known = now.clone();
        if news.send(Update::Host(now)).await.is_err() {
            return;
        }
    }
}

/// Every address of the network namespace that the calling thread is in, but for those that ipvs gave it for Services.
pub fn addresses() -> Host {
    let list = || -> Result<BTreeSet<IpAddr>, sys::link::Error> {
        let mut links = Links::open()?;
        let device = links.find(DEVICE)?;
        let all = links.addresses()?.into_iter();
        Ok(all.filter(|(at, _)| Some(*at) != device).map(|(_, ip)| ip).collect())
    };
    let addresses = list().unwrap_or_else(|error| {
        tracing::warn!(%error, "the machine's own addresses are not known");
        BTreeSet::new()
    });
    Host { addresses }
}

/// Whether the kernel speaks IPv6 here.
pub fn has_ipv6() -> bool {
    let is_off =
        fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6").is_ok_and(|t| t.trim() == "1");
    Path::new("/proc/thread-self/net/if_inet6").exists() && !is_off
}

/// Go's name of this machine's architecture.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Processors of the machine, not of our cgroup: the connection table is everybody's.
pub fn processors() -> usize {
    let text = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    count_cpus(&text).max(1)
}

fn count_cpus(text: &str) -> usize {
    let range = |part: &str| -> Option<usize> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(last.checked_sub(first)? + 1)
    };
    text.trim().split(',').filter_map(range).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted() {
        for (text, count) in [("0-3\n", 4), ("0\n", 1), ("0-1,4,6-7", 5), ("", 0), ("3-1", 0)] {
            assert_eq!(count_cpus(text), count, "{text}");
        }
    }
}
