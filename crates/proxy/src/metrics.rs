//! What kube-proxy counts, under upstream's names.

use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::metrics::{Counter, Family, Gauge, Histogram, exponential_buckets};
use sys::nfacct::Accounts;
use tokio::sync::watch;

use crate::host;
use crate::report::Report;

const BUILD: [&str; 9] = [
    "major",
    "minor",
    "git_version",
    "git_commit",
    "git_tree_state",
    "build_date",
    "go_version",
    "compiler",
    "platform",
];

#[derive(Debug)]
pub struct Metrics {
    pub sync_duration: Histogram<1>,
    pub sync_full_duration: Histogram<1>,
    pub sync_partial_duration: Histogram<1>,
    pub sync_at: Gauge<1>,
    pub queued_at: Gauge<1>,
    pub programming: Histogram<1>,
    pub service_changes: Counter<0>,
    pub service_changes_pending: Gauge<0>,
    pub endpoint_changes: Counter<0>,
    pub endpoint_changes_pending: Gauge<0>,
    pub no_local_endpoints: Gauge<2>,
    pub repairs: Counter<1>,
    pub contested: Gauge<1>,
    pub healthz: Counter<1>,
    pub livez: Counter<1>,
    pub iptables_restore_failures: Counter<1>,
    pub iptables_partial_restore_failures: Counter<1>,
    pub iptables_rules: Gauge<2>,
    pub iptables_rules_last: Gauge<2>,
    pub nftables_sync_failures: Counter<1>,
    pub nftables_cleanup_failures: Counter<1>,
    pub conntrack_duration: Histogram<1>,
    pub conntrack_deleted: Counter<1>,
    pub requests: Counter<3>,
    pub request_duration: Histogram<2>,
    pub unreadable: Counter<1>,
    pub build: Gauge<9>,
    /// Who is connected to the ports.
    pub connections: Arc<serve::Metrics>,
    packets: Mutex<Option<Packets>>,
}

/// Seconds until the API server answers.
const REQUEST: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

/// Counted by the kernel, and asked for when somebody wants to know.
#[derive(Debug)]
struct Packets {
    accounts: Accounts,
    /// Accounts, the metrics they are shown as, and what these mean.
    shown: &'static [(&'static str, &'static str, &'static str)],
}

// === impl Metrics ===

impl Default for Metrics {
    fn default() -> Self {
        const FAMILY: [&str; 1] = ["ip_family"];
        let syncs = exponential_buckets(0.001, 2.0, 15);
        let time = |name, help| Histogram::new(name, help, FAMILY, &syncs);
        Self {
            sync_duration: time(
                "kubeproxy_sync_proxy_rules_duration_seconds",
                "How long it took to bring the rules to the kernel",
            ),
            sync_full_duration: time(
                "kubeproxy_sync_full_proxy_rules_duration_seconds",
                "How long it took to bring all rules to the kernel",
            ),
            sync_partial_duration: time(
                "kubeproxy_sync_partial_proxy_rules_duration_seconds",
                "How long it took to bring a change of the rules to the kernel",
            ),
            sync_at: Gauge::new(
                "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
                "When the rules were last brought to the kernel",
                FAMILY,
            ),
            queued_at: Gauge::new(
                "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
                "When the rules last had to change",
                FAMILY,
            ),
            programming: Histogram::new(
                "kubeproxy_network_programming_duration_seconds",
                "From a change of endpoints in the cluster to the rules in the kernel",
                FAMILY,
                &programming_buckets(),
            ),
            service_changes: Counter::new(
                "kubeproxy_sync_proxy_rules_service_changes_total",
                "Changes of Services seen",
                [],
            ),
            service_changes_pending: Gauge::new(
                "kubeproxy_sync_proxy_rules_service_changes_pending",
                "Changes of Services that the kernel does not know yet",
                [],
            ),
            endpoint_changes: Counter::new(
                "kubeproxy_sync_proxy_rules_endpoint_changes_total",
                "Changes of EndpointSlices seen",
                [],
            ),
            endpoint_changes_pending: Gauge::new(
                "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
                "Changes of EndpointSlices that the kernel does not know yet",
                [],
            ),
            no_local_endpoints: Gauge::new(
                "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
                "Service ports that keep traffic on the node and have no endpoint there",
                ["traffic_policy", "ip_family"],
            ),
            repairs: Counter::new(
                "longshore_proxy_repairs_total",
                "How often rules that others changed were put right",
                ["ip_family"],
            ),
            contested: Gauge::new(
                "longshore_proxy_rules_contested",
                "1 while another process changes the rules again each time they are put right",
                ["ip_family"],
            ),
            healthz: Counter::new("kubeproxy_proxy_healthz_total", "Answers of /healthz", ["code"]),
            livez: Counter::new("kubeproxy_proxy_livez_total", "Answers of /livez", ["code"]),
            iptables_restore_failures: Counter::new(
                "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
                "Failures of iptables-restore",
                FAMILY,
            ),
            iptables_partial_restore_failures: Counter::new(
                "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
                "Failures of iptables-restore with a change",
                FAMILY,
            ),
            iptables_rules: Gauge::new(
                "kubeproxy_sync_proxy_rules_iptables_total",
                "Rules of ours in iptables",
                ["table", "ip_family"],
            ),
            iptables_rules_last: Gauge::new(
                "kubeproxy_sync_proxy_rules_iptables_last",
                "Rules written by the last iptables-restore",
                ["table", "ip_family"],
            ),
            nftables_sync_failures: Counter::new(
                "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
                "Failed changes of the nftables table",
                FAMILY,
            ),
            nftables_cleanup_failures: Counter::new(
                "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
                "Failed removals of stale nftables objects",
                FAMILY,
            ),
            conntrack_duration: time(
                "kubeproxy_conntrack_reconciler_sync_duration_seconds",
                "How long it took to look for flows to endpoints that are gone",
            ),
            conntrack_deleted: Counter::new(
                "kubeproxy_conntrack_reconciler_deleted_entries_total",
                "Flows forgotten because their endpoint is gone",
                FAMILY,
            ),
            requests: Counter::new(
                "rest_client_requests_total",
                "Requests to the API server, by the code of its answer",
                ["code", "method", "host"],
            ),
            request_duration: Histogram::new(
                "rest_client_request_duration_seconds",
                "Seconds until the API server began to answer, by verb",
                ["verb", "host"],
                &REQUEST,
            ),
            unreadable: Counter::new(
                "longshore_unreadable_objects_total",
                "Objects of the API server that could not be read, or not all of them",
                ["kind"],
            ),
            build: Gauge::new(
                "kubernetes_build_info",
                "Always 1; the labels say what was built, from what and how",
                BUILD,
            ),
            connections: Arc::default(),
            packets: Mutex::default(),
        }
    }
}

impl Metrics {
    /// The Prometheus text of all of them.
    pub fn render(&self) -> String {
        let families: [&dyn Family; 27] = [
            &self.sync_duration,
            &self.sync_full_duration,
            &self.sync_partial_duration,
            &self.sync_at,
            &self.queued_at,
            &self.programming,
            &self.service_changes,
            &self.service_changes_pending,
            &self.endpoint_changes,
            &self.endpoint_changes_pending,
            &self.no_local_endpoints,
            &self.repairs,
            &self.contested,
            &self.healthz,
            &self.livez,
            &self.iptables_restore_failures,
            &self.iptables_partial_restore_failures,
            &self.iptables_rules,
            &self.iptables_rules_last,
            &self.nftables_sync_failures,
            &self.nftables_cleanup_failures,
            &self.conntrack_duration,
            &self.conntrack_deleted,
            &self.requests,
            &self.request_duration,
            &self.unreadable,
            &self.build,
        ];
        let mut out = String::new();
        for family in families {
            // Writing to a String cannot fail.
            let _ = family.write(&mut out);
        }
        if let Some(packets) = self.packets.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            let _ = packets.write(&mut out);
        }
        let _ = self.connections.write(&mut out);
        let _ = supervise::write_metrics(&mut out);
        let _ = sys::process::write_process(&mut out);
        out
    }

    /// Counts what the client asks the API server, and how it goes.
    pub fn of_requests(self: &Arc<Self>) -> client::Meter {
        let metrics = self.clone();
        client::Meter::new(move |asked| {
            let code = asked.code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
            metrics.requests.inc([&code, asked.method, asked.host]);
            metrics.request_duration.observe_duration([asked.method, asked.host], asked.took);
        })
    }

    /// Shows the release whose contract we follow.
    pub fn set_version(&self, version: &str) {
        let mut numbers = version.trim_start_matches('v').split('.');
        let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
        let platform = format!("{}/{}", std::env::consts::OS, host::architecture());
        self.build.set([major, minor, version, "", "", "", "", "rustc", &platform], 1.0);
    }

    /// From now on these accounts are shown: each with the metric's name and meaning.
    pub fn count_packets(
        &self,
        accounts: Accounts,
        shown: &'static [(&'static str, &'static str, &'static str)],
    ) {
        *self.packets.lock().unwrap_or_else(PoisonError::into_inner) = Some(Packets { accounts, shown });
    }

    /// Shows how much the loop has not told the kernel yet, as long as there is a loop.
    pub async fn follow(self: Arc<Self>, mut report: watch::Receiver<Report>) {
        while report.changed().await.is_ok() {
            let report = report.borrow_and_update();
            self.service_changes_pending.set([], report.pending.services as f64);
            self.endpoint_changes_pending.set([], report.pending.slices as f64);
            for family in &report.families {
                let name = [family.family.name()];
                self.repairs.add(name, family.repairs as f64 - self.repairs.get(name));
                self.contested.set(name, f64::from(u8::from(family.contested_by.is_some())));
            }
        }
    }

    pub fn observe_sync(&self, family: &str, took: Duration, is_full: bool) {
        self.sync_duration.observe_duration([family], took);
        let kind = if is_full { &self.sync_full_duration } else { &self.sync_partial_duration };
        kind.observe_duration([family], took);
    }
}

// === impl Packets ===

impl Packets {
    fn write(&mut self, out: &mut String) -> fmt::Result {
        for (account, metric, help) in self.shown {
            match self.accounts.packets(account) {
                Ok(Some(count)) => {
                    write!(out, "# HELP {metric} {help}\n# TYPE {metric} counter\n{metric} {count}\n")?;
                }
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "a metric is missing"),
            }
        }
        Ok(())
    }
}

/// Seconds: fine below a minute, where a good cluster is, and coarse up to five.
fn programming_buckets() -> Vec<f64> {
    let whole = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
    [0.25, 0.5].into_iter().chain(whole.map(f64::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each with its kind and labels, as upstream 1.36.4 registers them for the three modes.
    #[rustfmt::skip]
    const UPSTREAMS: [(&str, &str, &str); 24] = [
        ("kubeproxy_sync_proxy_rules_duration_seconds", "histogram", "ip_family"),
        ("kubeproxy_sync_full_proxy_rules_duration_seconds", "histogram", "ip_family"),
        ("kubeproxy_sync_partial_proxy_rules_duration_seconds", "histogram", "ip_family"),
        ("kubeproxy_sync_proxy_rules_last_timestamp_seconds", "gauge", "ip_family"),
        ("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "gauge", "ip_family"),
        ("kubeproxy_network_programming_duration_seconds", "histogram", "ip_family"),
        ("kubeproxy_sync_proxy_rules_service_changes_total", "counter", ""),
        ("kubeproxy_sync_proxy_rules_service_changes_pending", "gauge", ""),
        ("kubeproxy_sync_proxy_rules_endpoint_changes_total", "counter", ""),
        ("kubeproxy_sync_proxy_rules_endpoint_changes_pending", "gauge", ""),
        ("kubeproxy_sync_proxy_rules_no_local_endpoints_total", "gauge", "traffic_policy ip_family"),
        ("kubeproxy_proxy_healthz_total", "counter", "code"),
        ("kubeproxy_proxy_livez_total", "counter", "code"),
        ("kubeproxy_sync_proxy_rules_iptables_restore_failures_total", "counter", "ip_family"),
        ("kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total", "counter", "ip_family"),
        ("kubeproxy_sync_proxy_rules_iptables_total", "gauge", "table ip_family"),
        ("kubeproxy_sync_proxy_rules_iptables_last", "gauge", "table ip_family"),
        ("kubeproxy_sync_proxy_rules_nftables_sync_failures_total", "counter", "ip_family"),
        ("kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total", "counter", "ip_family"),
        ("kubeproxy_conntrack_reconciler_sync_duration_seconds", "histogram", "ip_family"),
        ("kubeproxy_conntrack_reconciler_deleted_entries_total", "counter", "ip_family"),
        ("rest_client_requests_total", "counter", "code method host"),
        ("rest_client_request_duration_seconds", "histogram", "verb host"),
        ("kubernetes_build_info", "gauge",
         "major minor git_version git_commit git_tree_state build_date go_version compiler platform"),
    ];

    /// One of each, so that all are shown.
    fn touched() -> Metrics {
        const V4: [&str; 1] = ["IPv4"];
        let metrics = Metrics::default();
        metrics.observe_sync("IPv4", Duration::from_millis(3), true);
        metrics.observe_sync("IPv4", Duration::from_millis(3), false);
        [&metrics.sync_at, &metrics.queued_at].iter().for_each(|gauge| gauge.set(V4, 1.0));
        metrics.programming.observe(V4, 0.3);
        metrics.conntrack_duration.observe(V4, 0.3);
        [&metrics.service_changes, &metrics.endpoint_changes].iter().for_each(|counter| counter.inc([]));
        [&metrics.service_changes_pending, &metrics.endpoint_changes_pending]
            .iter()
            .for_each(|gauge| gauge.set([], 1.0));
        metrics.no_local_endpoints.set(["internal", "IPv4"], 1.0);
        [&metrics.iptables_rules, &metrics.iptables_rules_last]
            .iter()
            .for_each(|gauge| gauge.set(["nat", "IPv4"], 1.0));
        [&metrics.healthz, &metrics.livez].iter().for_each(|counter| counter.inc(["200"]));
        let failures = [
            &metrics.iptables_restore_failures,
            &metrics.iptables_partial_restore_failures,
            &metrics.nftables_sync_failures,
            &metrics.nftables_cleanup_failures,
            &metrics.conntrack_deleted,
        ];
        failures.iter().for_each(|counter| counter.inc(V4));
        metrics.requests.inc(["200", "GET", "server"]);
        metrics.request_duration.observe(["GET", "server"], 0.1);
        metrics.set_version("v1.36.4");
        metrics
    }

    #[test]
    fn names_kinds_and_labels_are_upstreams() {
        let text = touched().render();
        let shown: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        for (name, kind, labels) in UPSTREAMS {
            assert!(shown.contains(&format!("{name} {kind}").as_str()), "{name}");
            let suffix = if kind == "histogram" { "_count" } else { "" };
            let series = |line: &&str| line.split(['{', ' ']).next() == Some(&*format!("{name}{suffix}"));
            let line = text.lines().find(series).unwrap_or_default();
            let found: Vec<&str> =
                line.split(['{', ',']).filter_map(|part| Some(part.split_once('=')?.0)).collect();
            assert_eq!(found.join(" "), labels, "{line}");
        }
        let own = shown
            .iter()
            .filter(|line| !line.starts_with("process_") && !line.starts_with("longshore_"))
            .count();
        assert_eq!(own, UPSTREAMS.len(), "{shown:?}");
        assert!(text.contains("git_version=\"v1.36.4\""), "{text}");
    }

    #[test]
    fn names_and_buckets_are_upstreams() {
        let metrics = Metrics::default();
        metrics.observe_sync("IPv4", Duration::from_millis(3), true);
        metrics.programming.observe(["IPv4"], 0.3);
        let text = metrics.render();
        for line in [
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.004\"} 1",
            "kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 1",
            "kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.5\"} 1",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        let buckets = programming_buckets();
        assert_eq!((buckets.len(), buckets.last()), (2 + 59 + 12 + 7, Some(&300.0)));
    }
}
