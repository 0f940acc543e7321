//! What holds when nobody says anything.

use std::net::IpAddr;

use base::duration::GoDuration;
use serde_json::Value;

use super::fields::FIELDS;
use super::types::{KubeProxyConfiguration, Mode};
use crate::config::doc;
use crate::config::file::Doc;

pub(super) const HEALTHZ_PORT: i64 = 10256;
pub(super) const METRICS_PORT: i64 = 10249;

/// Fields that mean the same in two blocks. A file written for upstream without a mode means its iptables
/// block; where the mode is ours to choose, what it says there holds in either.
const SHARED: [&str; 4] = ["masqueradeBit", "masqueradeAll", "syncPeriod", "minSyncPeriod"];

/// Fills every unset field.
pub(super) fn fill(doc: &mut Doc) {
    let word =
        |doc: &Doc, path: &str| doc::get(doc, path).and_then(Value::as_str).unwrap_or_default().to_owned();
    if word(doc, "mode").is_empty() {
        share_blocks(doc);
    }
    let is_v6 = word(doc, "bindAddress").parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6());
    let hosts = if is_v6 { ["[::]", "[::1]"] } else { ["0.0.0.0", "127.0.0.1"] };
    let ports = [("healthzBindAddress", HEALTHZ_PORT), ("metricsBindAddress", METRICS_PORT)];
    for ((path, port), host) in ports.into_iter().zip(hosts) {
        let address = match word(doc, path).as_str() {
            "" => format!("{host}:{port}"),
            said => with_port(said, port),
        };
        doc::set(doc, path, Value::from(address));
    }
    doc::fill_defaults(FIELDS, doc);
}

/// Whether somebody set the least time between two changes; a zero means the default, and so nothing.
pub(super) fn says_min_sync_period(doc: &Doc, mode: Mode) -> bool {
    let says = |block: &str| {
        let said = doc::get(doc, &format!("{block}.minSyncPeriod")).cloned();
        said.and_then(|value| serde_json::from_value::<GoDuration>(value).ok())
            .is_some_and(|d| d.as_nanos() != 0)
    };
    let is_blank = doc::get(doc, "mode").and_then(Value::as_str).unwrap_or_default().is_empty();
    says(mode.name()) || is_blank && mode == Mode::Nftables && says(Mode::Iptables.name())
}

/// Puts a port to an address that has none; anything else is left for validation.
pub(super) fn with_port(address: &str, port: i64) -> String {
    let bare = address.strip_prefix('[').and_then(|a| a.strip_suffix(']')).unwrap_or(address);
    match bare.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) => format!("{ip}:{port}"),
        Ok(IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
        Err(_) => address.to_owned(),
    }
}

fn share_blocks(doc: &mut Doc) {
    for name in SHARED {
        let [from, to] = ["iptables", "nftables"].map(|block| format!("{block}.{name}"));
        let said = doc::get(doc, &from).filter(|v| !v.is_null()).cloned();
        if let Some(value) = said.filter(|_| doc::get(doc, &to).is_none_or(Value::is_null)) {
            doc::set(doc, &to, value);
        }
    }
}

// === impl KubeProxyConfiguration ===

impl Default for KubeProxyConfiguration {
    /// What a configuration that sets nothing gives.
    fn default() -> Self {
        let mut doc = Doc::new();
        fill(&mut doc);
        match Self::from_doc(doc) {
            Ok(config) => config,
            // A test keeps the field table and the type equal, so this cannot be met at run time.
            Err(e) => panic!("the field table and the configuration type disagree: {e}"),
        }
    }
}
