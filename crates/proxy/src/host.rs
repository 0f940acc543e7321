//! The machine's own addresses, and how many processors it has.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use proxy_core::rules::Host;
use tokio::sync::mpsc;

use crate::Update;

/// How soon a new address of the machine serves node ports.
const LOOK: Duration = Duration::from_secs(5);

/// Tells of the addresses each time they changed. Ends when nobody listens.
pub async fn watch_addresses(news: mpsc::Sender<Update>, mut known: Host) {
    loop {
        tokio::time::sleep(LOOK).await;
        let Ok(now) = tokio::task::spawn_blocking(addresses).await else { return };
        // A moment without any address is a file that could not be read.
        if now == known || now.addresses.is_empty() {
            continue;
        }
        known = now.clone();
        if news.send(Update::Host(now)).await.is_err() {
            return;
        }
    }
}

/// Every address of the network namespace that the calling thread is in.
pub fn addresses() -> Host {
    let v4 =
        fs::read_to_string("/proc/thread-self/net/fib_trie").map(|t| parse_fib_trie(&t)).unwrap_or_default();
    let v6 =
        fs::read_to_string("/proc/thread-self/net/if_inet6").map(|t| parse_if_inet6(&t)).unwrap_or_default();
    Host { addresses: v4.into_iter().chain(v6).collect::<BTreeSet<_>>() }
}

/// Whether the kernel speaks IPv6 here.
pub fn has_ipv6() -> bool {
    let is_off =
        fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6").is_ok_and(|t| t.trim() == "1");
    Path::new("/proc/thread-self/net/if_inet6").exists() && !is_off
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

fn parse_fib_trie(text: &str) -> Vec<IpAddr> {
    let mut found = Vec::new();
    let mut address: Option<IpAddr> = None;
    for line in text.lines().map(str::trim) {
        match line.strip_prefix("|-- ") {
            Some(ip) => address = ip.parse().ok(),
            None if line.starts_with("/32 host LOCAL") => found.extend(address),
            None => {}
        }
    }
    found
}

fn parse_if_inet6(text: &str) -> Vec<IpAddr> {
    let address = |line: &str| u128::from_str_radix(line.split_whitespace().next()?, 16).ok();
    text.lines().filter_map(address).map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits))).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_understood() {
        let fib = "Local:\n     |-- 10.1.2.3\n        /32 host LOCAL\n     |-- 10.1.2.255\n        /32 link BROADCAST\n\
                   \x20    |-- 127.0.0.0\n        /31 link X\n        /8 host LOCAL\n     |-- 127.0.0.1\n        /32 host LOCAL\n";
        assert_eq!(parse_fib_trie(fib), ["10.1.2.3", "127.0.0.1"].map(|ip| ip.parse::<IpAddr>().unwrap()));
        let v6 = "00000000000000000000000000000001 01 80 10 80       lo\n";
        assert_eq!(parse_if_inet6(v6), ["::1".parse::<IpAddr>().unwrap()]);
        for (text, count) in [("0-3\n", 4), ("0\n", 1), ("0-1,4,6-7", 5), ("", 0), ("3-1", 0)] {
            assert_eq!(count_cpus(text), count, "{text}");
        }
    }
}
