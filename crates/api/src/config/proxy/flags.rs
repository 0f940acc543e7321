//! Every kube-proxy flag: what it is, what it says in `--help`, and the field it sets.

use FlagType::{Bool, BoolMap, Duration, Float, Int32, Ip, List, Quantity, Raw, Text, Uint32};
use base::flags::{Flag, FlagType};

use crate::config::doc::Standing;
use crate::config::flag::{self, FlagRow, Target, field, old, short};
use Standing::{Honoured as YES, Inert as INERT};

/// The rows as the parser takes them.
pub fn table() -> Vec<Flag> {
    FLAGS.iter().map(|row| row.flag).collect()
}

/// The flag that sets a field, if any.
pub fn for_field(path: &str) -> Option<&'static str> {
    flag::for_field(FLAGS, path)
}

/// Flags that set a second field: upstream keeps one value per process and one field per mode.
pub(super) const ALSO: &[(&str, &str)] = &[
    ("masquerade-all", "nftables.masqueradeAll"),
    ("iptables-sync-period", "nftables.syncPeriod"),
    ("iptables-min-sync-period", "nftables.minSyncPeriod"),
];

/// A zero is refused, while in a file it is the same as silence.
pub(super) const NEVER_ZERO: [&str; 2] = ["config-sync-period", "iptables-sync-period"];

/// Whether a flag counts although there is a configuration file.
pub(super) fn survives_file(row: &FlagRow) -> bool {
    match row.target {
        Target::Field(path) => path.starts_with("logging.") || path == "hostnameOverride",
        Target::Own(_) => !matches!(row.flag.name, "healthz-port" | "metrics-port"),
    }
}

const CADVISOR: &str = "it belongs to the resource monitor and was registered by mistake.";

const fn own(name: &'static str, kind: FlagType, default: &'static str, help: &'static str) -> FlagRow {
    flag::own(name, kind, default, YES, help)
}

#[rustfmt::skip]
pub const FLAGS: &[FlagRow] = &[
    // What to do
    short(own("help", Bool, "false", "Print this text and exit."), 'h'),
    own("version", Bool, "false", "Print the version and exit."),
    own("config", Text, "", "The configuration file. It replaces every flag that sets a field, but for the host name and the log."),
    own("write-config-to", Text, "", "Write the effective configuration to this file and exit."),
    own("cleanup", Bool, "false", "Remove the rules of every mode and exit."),
    own("init-only", Bool, "false", "Do what needs full root rights and exit; kube-proxy then runs with CAP_NET_ADMIN alone."),
    own("master", Text, "", "The API server's address; wins over the kubeconfig's."),
    old("healthz-port", Int32, "10256", "use --healthz-bind-address instead.", YES, "The health server's port; 0 for no health server."),
    old("metrics-port", Int32, "10249", "use --metrics-bind-address instead.", YES, "The metrics server's port."),
    old("machine-id-file", Text, "/etc/machine-id,/var/lib/dbus/machine-id", CADVISOR, INERT, "Files to look for a machine id in."),
    old("boot-id-file", Text, "/proc/sys/kernel/random/boot_id", CADVISOR, INERT, "Files to look for a boot id in."),
    // API client
    field("kubeconfig", "clientConnection.kubeconfig", Text, "", "The kubeconfig file; without it and --master, the credentials of a Pod are used."),
    field("kube-api-content-type", "clientConnection.contentType", Text, "application/vnd.kubernetes.protobuf", "Content type of requests to the API server."),
    field("kube-api-burst", "clientConnection.burst", Int32, "10", "Requests to the API server in a burst."),
    field("kube-api-qps", "clientConnection.qps", Float, "5", "Requests to the API server a second."),
    field("config-sync-period", "configSyncPeriod", Duration, "15m0s", "How often objects from the API server are looked at again."),
    // Identity and servers
    field("hostname-override", "hostnameOverride", Text, "", "The Node's name, instead of the machine's."),
    field("bind-address", "bindAddress", Ip, "0.0.0.0", "The node's address, if not what the Node says. Nothing is bound to it."),
    field("healthz-bind-address", "healthzBindAddress", Text, "0.0.0.0:10256", "Address and port of the health server."),
    field("metrics-bind-address", "metricsBindAddress", Text, "127.0.0.1:10249", "Address and port of the metrics server."),
    field("bind-address-hard-fail", "bindAddressHardFail", Bool, "false", "Exit when a server cannot be bound."),
    field("profiling", "enableProfiling", Bool, "false", "Serve /debug/pprof on the metrics server."),
    field("show-hidden-metrics-for-version", "showHiddenMetricsForVersion", Text, "", "Show metrics that this version hid; only the previous minor version is possible."),
    // Modes
    field("proxy-mode", "mode", Text, "", "nftables, iptables or ipvs. Blank for nftables where the kernel has it, else iptables."),
    field("masquerade-all", "iptables.masqueradeAll", Bool, "false", "Masquerade all traffic to ClusterIPs."),
    field("iptables-masquerade-bit", "iptables.masqueradeBit", Int32, "14", "The bit of the packet mark that asks for masquerading, in iptables and ipvs mode; 0 to 31."),
    field("iptables-localhost-nodeports", "iptables.localhostNodePorts", Bool, "true", "Serve node ports on 127.0.0.0/8, in iptables mode."),
    field("iptables-sync-period", "iptables.syncPeriod", Duration, "30s", "How often rules are checked and left-overs collected."),
    field("iptables-min-sync-period", "iptables.minSyncPeriod", Duration, "1s", "The least time between two changes of the rules; 0 for none."),
    field("ipvs-sync-period", "ipvs.syncPeriod", Duration, "30s", "How often rules are checked in ipvs mode."),
    field("ipvs-min-sync-period", "ipvs.minSyncPeriod", Duration, "0s", "The least time between two changes of the rules in ipvs mode."),
    field("ipvs-scheduler", "ipvs.scheduler", Text, "", "How ipvs chooses an endpoint; blank for rr."),
    field("ipvs-exclude-cidrs", "ipvs.excludeCIDRs", List, "", "Prefixes whose virtual servers ipvs mode leaves alone."),
    field("ipvs-strict-arp", "ipvs.strictARP", Bool, "false", "Set arp_ignore to 1 and arp_announce to 2."),
    field("ipvs-tcp-timeout", "ipvs.tcpTimeout", Duration, "0s", "Timeout of idle TCP connections in ipvs; 0 to leave it."),
    field("ipvs-tcpfin-timeout", "ipvs.tcpFinTimeout", Duration, "0s", "Timeout of TCP connections after a FIN in ipvs; 0 to leave it."),
    field("ipvs-udp-timeout", "ipvs.udpTimeout", Duration, "0s", "Timeout of UDP packets in ipvs; 0 to leave it."),
    // Which traffic
    field("detect-local-mode", "detectLocalMode", Text, "ClusterCIDR", "How Pods of this node are known: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix."),
    field("pod-bridge-interface", "detectLocal.bridgeInterface", Text, "", "The bridge of this node's Pods, for BridgeInterface."),
    field("pod-interface-name-prefix", "detectLocal.interfaceNamePrefix", Text, "", "How names of Pod interfaces begin, for InterfaceNamePrefix."),
    field("cluster-cidr", "clusterCIDR", Text, "", "The cluster's Pod addresses, one prefix or one per family, for ClusterCIDR."),
    field("nodeport-addresses", "nodePortAddresses", List, "", "Prefixes of the addresses that serve node ports, or the word primary."),
    // The machine
    field("oom-score-adj", "oomScoreAdj", Int32, "-999", "kube-proxy's own OOM score adjustment, -1000 to 1000."),
    field("conntrack-max-per-core", "conntrack.maxPerCore", Int32, "32768", "Tracked connections per CPU; 0 to leave the limit."),
    field("conntrack-min", "conntrack.min", Int32, "131072", "The least limit of tracked connections."),
    field("conntrack-tcp-timeout-established", "conntrack.tcpEstablishedTimeout", Duration, "24h0m0s", "Timeout of idle TCP connections; 0 to leave it."),
    field("conntrack-tcp-timeout-close-wait", "conntrack.tcpCloseWaitTimeout", Duration, "1h0m0s", "Timeout of TCP connections in CLOSE_WAIT."),
    field("conntrack-tcp-be-liberal", "conntrack.tcpBeLiberal", Bool, "false", "Accept TCP packets outside of the window."),
    field("conntrack-udp-timeout", "conntrack.udpTimeout", Duration, "0s", "Timeout of unanswered UDP flows; 0 to leave it."),
    field("conntrack-udp-timeout-stream", "conntrack.udpStreamTimeout", Duration, "0s", "Timeout of answered UDP flows; 0 to leave it."),
    field("feature-gates", "featureGates", BoolMap, "", "Gates as name=true, comma separated."),
    // Log
    field("logging-format", "logging.format", Text, "text", "text or json."),
    field("log-flush-frequency", "logging.flushFrequency", Duration, "5s", "The longest time a log line may be buffered."),
    short(field("v", "logging.verbosity", Uint32, "0", "How much to log; 0 to 10."), 'v'),
    field("vmodule", "logging.vmodule", Raw("pattern=N,..."), "", "Verbosity per source file, text format only."),
    field("log-text-split-stream", "logging.options.text.splitStream", Bool, "false", "In text format, errors to stderr and the rest to stdout."),
    field("log-text-info-buffer-size", "logging.options.text.infoBufferSize", Quantity, "0", "Buffer of the info stream in text format."),
    field("log-json-split-stream", "logging.options.json.splitStream", Bool, "false", "In JSON format, errors to stderr and the rest to stdout."),
    field("log-json-info-buffer-size", "logging.options.json.infoBufferSize", Quantity, "0", "Buffer of the info stream in JSON format."),
];

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::config::doc;
    use crate::config::proxy::{defaults, fields::FIELDS};
    use serde_json::Value;
    use std::collections::BTreeSet;

    #[test]
    fn names_and_targets_are_unique_and_known() {
        let names: BTreeSet<&str> = FLAGS.iter().map(|r| r.flag.name).collect();
        assert_eq!(names.len(), FLAGS.len());
        let known: BTreeSet<&str> = FIELDS.iter().map(|f| f.path).collect();
        let mut paths = BTreeSet::new();
        for row in FLAGS {
            assert!(!row.flag.name.contains('_') && row.flag.help.ends_with('.'), "{row:?}");
            if let Target::Field(path) = row.target {
                assert!(known.contains(path), "{path}");
                assert!(paths.insert(path), "{path} has two flags");
            }
        }
        for (flag, path) in ALSO {
            assert!(names.contains(flag) && known.contains(path), "{flag} {path}");
        }
    }

    /// Help shows what holds without a file; the text must be that value.
    #[test]
    fn default_texts_are_the_defaults() {
        let mut base = serde_json::Map::new();
        defaults::fill(&mut base);
        for row in FLAGS {
            let Target::Field(path) = row.target else { continue };
            let field = FIELDS.iter().find(|f| f.path == path).unwrap();
            let text = match doc::get(&base, path).cloned().unwrap_or_else(|| field.zero()) {
                Value::String(s) => s,
                Value::Array(_) | Value::Object(_) => String::new(),
                other => other.as_f64().unwrap_or_default().to_string(),
            };
            let shown = match row.flag.default {
                "true" | "false" => continue,
                shown => shown,
            };
            assert_eq!(shown, if text == "NaN" { "" } else { &text }, "--{}", row.flag.name);
        }
    }
}
