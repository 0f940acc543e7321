//! Metrics with CoreDNS's names.

use base::metrics::{Counter, Family, Gauge, Histogram, exponential_buckets};

/// All families. What has the zone in a label knows only zones of the Corefile, so their number is small.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) requests: Counter<6>,
    pub(crate) responses: Counter<5>,
    pub(crate) duration: Histogram<3>,
    pub(crate) request_size: Histogram<4>,
    pub(crate) response_size: Histogram<4>,
    pub(crate) cache_entries: Gauge<4>,
    pub(crate) cache_hits: Counter<4>,
    pub(crate) cache_requests: Counter<3>,
    pub(crate) upstream_duration: Histogram<3>,
    pub(crate) health_failures: Counter<2>,
    pub(crate) broken: Counter<0>,
    pub(crate) rejects: Counter<0>,
    pub(crate) programming: Histogram<1>,
    /// Of ours alone: there was no room for them.
    pub(crate) dropped: Counter<0>,
    pub(crate) reload_failures: Counter<0>,
    build: Gauge<3>,
}

/// The label `server`, as CoreDNS writes it.
pub(crate) const SERVER: &str = "dns://:53";

impl Metrics {
    pub(crate) fn new(version: &str) -> Metrics {
        let times: Vec<f64> = exponential_buckets(0.00025, 2.0, 16);
        let sizes = [0., 100., 200., 300., 400., 511., 1023., 2047., 4095., 8291., 16e3, 32e3, 48e3, 64e3];
        let build = Gauge::new(
            "coredns_build_info",
            "A metric with a constant '1' value labeled by version, revision, and goversion from which CoreDNS was built.",
            ["version", "revision", "goversion"],
        );
        build.set([version, "longshore", ""], 1.0);
        Metrics {
            requests: Counter::new(
                "coredns_dns_requests_total",
                "Counter of DNS requests made per zone, protocol and family.",
                ["server", "zone", "view", "proto", "family", "type"],
            ),
            responses: Counter::new(
                "coredns_dns_responses_total",
                "Counter of response status codes.",
                ["server", "zone", "view", "rcode", "plugin"],
            ),
            duration: Histogram::new(
                "coredns_dns_request_duration_seconds",
                "Histogram of the time (in seconds) each request took per zone.",
                ["server", "zone", "view"],
                &times,
            ),
            request_size: Histogram::new(
                "coredns_dns_request_size_bytes",
                "Size of the EDNS0 UDP buffer in bytes (64K for TCP) per zone and protocol.",
                ["server", "zone", "view", "proto"],
                &sizes,
            ),
            response_size: Histogram::new(
                "coredns_dns_response_size_bytes",
                "Size of the returned response in bytes.",
                ["server", "zone", "view", "proto"],
                &sizes,
            ),
            cache_entries: Gauge::new(
                "coredns_cache_entries",
                "The number of elements in the cache.",
                ["server", "type", "zones", "view"],
            ),
            cache_hits: Counter::new(
                "coredns_cache_hits_total",
                "The count of cache hits.",
                ["server", "type", "zones", "view"],
            ),
            cache_requests: Counter::new(
                "coredns_cache_requests_total",
                "The count of cache requests.",
                ["server", "zones", "view"],
            ),
            upstream_duration: Histogram::new(
                "coredns_proxy_request_duration_seconds",
                "Histogram of the time each request took.",
                ["proxy_name", "to", "rcode"],
                &times,
            ),
            health_failures: Counter::new(
                "coredns_proxy_healthcheck_failures_total",
                "Counter of the number of failed healthchecks.",
                ["proxy_name", "to"],
            ),
            broken: Counter::new(
                "coredns_forward_healthcheck_broken_total",
                "Counter of the number of complete failures of the healthchecks.",
                [],
            ),
            rejects: Counter::new(
                "coredns_forward_max_concurrent_rejects_total",
                "Counter of the number of queries rejected because the concurrent queries were at maximum.",
                [],
            ),
            programming: Histogram::new(
                "coredns_kubernetes_dns_programming_duration_seconds",
                "Histogram of the time (in seconds) it took to program a dns instance.",
                ["service_kind"],
                &exponential_buckets(0.001, 2.0, 20),
            ),
            dropped: Counter::new(
                "longshore_dns_dropped_total",
                "Questions that were not answered: too many waited for upstreams, or they were those of strangers.",
                [],
            ),
            reload_failures: Counter::new(
                "coredns_reload_failed_total",
                "Counter of the number of failed reload attempts.",
                [],
            ),
            build,
        }
    }

    pub(crate) fn render(&self) -> String {
        let families: [&dyn Family; 16] = [
            &self.build,
            &self.requests,
            &self.responses,
            &self.duration,
            &self.request_size,
            &self.response_size,
            &self.cache_entries,
            &self.cache_hits,
            &self.cache_requests,
            &self.upstream_duration,
            &self.health_failures,
            &self.broken,
            &self.rejects,
            &self.programming,
            &self.dropped,
            &self.reload_failures,
        ];
        let mut text = String::new();
        for family in families {
            let _ = family.write(&mut text);
        }
        let _ = supervise::write_metrics(&mut text);
        text
    }
}
