//! Metrics with upstream's names.

use std::fmt::Write;
use std::time::Duration;

use base::metrics::{Counter, Family, Gauge, Histogram, exponential_buckets};
use scheduler_core::cluster::Cluster;
use scheduler_core::queue::Queue;

/// All families of the scheduler.
#[derive(Debug)]
pub struct Metrics {
    pub attempts: Counter<2>,
    pub attempt_duration: Histogram<2>,
    pub algorithm_duration: Histogram<0>,
    pub pending: Gauge<1>,
    pub incoming: Counter<2>,
    pub attempts_per_pod: Histogram<0>,
    pub sli_duration: Histogram<1>,
    pub preemption_attempts: Counter<0>,
    pub preemption_victims: Histogram<0>,
    pub unschedulable: Gauge<2>,
    pub cache_size: Gauge<1>,
    pub leader: Gauge<1>,
    pub requests: Counter<3>,
    pub request_durations: Histogram<2>,
}

/// Bounds of how long requests take, as all components have them.
const REQUEST_BOUNDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

impl Default for Metrics {
    fn default() -> Self {
        let short = exponential_buckets(0.001, 2.0, 15);
        Metrics {
            attempts: Counter::new(
                "scheduler_schedule_attempts_total",
                "Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could not be scheduled, while 'error' means an internal scheduler problem.",
                ["profile", "result"],
            ),
            attempt_duration: Histogram::new(
                "scheduler_scheduling_attempt_duration_seconds",
                "Scheduling attempt latency in seconds (scheduling algorithm + binding)",
                ["profile", "result"],
                &short,
            ),
            algorithm_duration: Histogram::new(
                "scheduler_scheduling_algorithm_duration_seconds",
                "Scheduling algorithm latency in seconds",
                [],
                &short,
            ),
            pending: Gauge::new(
                "scheduler_pending_pods",
                "Number of pending pods, by the queue type.",
                ["queue"],
            ),
            incoming: Counter::new(
                "scheduler_queue_incoming_pods_total",
                "Number of pods added to scheduling queues by event and queue type.",
                ["event", "queue"],
            ),
            attempts_per_pod: Histogram::new(
                "scheduler_pod_scheduling_attempts",
                "Number of attempts to successfully schedule a pod.",
                [],
                &exponential_buckets(1.0, 2.0, 5),
            ),
            sli_duration: Histogram::new(
                "scheduler_pod_scheduling_sli_duration_seconds",
                "E2e latency for a pod being scheduled, from the time the pod enters the scheduling queue and might involve multiple scheduling attempts.",
                ["attempts"],
                &exponential_buckets(0.01, 2.0, 20),
            ),
            preemption_attempts: Counter::new(
                "scheduler_preemption_attempts_total",
                "Total preemption attempts in the cluster till now",
                [],
            ),
            preemption_victims: Histogram::new(
                "scheduler_preemption_victims",
                "Number of selected preemption victims",
                [],
                &exponential_buckets(1.0, 2.0, 7),
            ),
            unschedulable: Gauge::new(
                "scheduler_unschedulable_pods",
                "The number of unschedulable pods broken down by plugin name. A pod will increment the gauge for all plugins that caused it to not schedule and so this metric have meaning only when broken down by plugin.",
                ["plugin", "profile"],
            ),
            cache_size: Gauge::new(
                "scheduler_cache_size",
                "Number of nodes, pods, and assumed (bound) pods in the scheduler cache.",
                ["type"],
            ),
            leader: Gauge::new(
                "leader_election_master_status",
                "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master.",
                ["name"],
            ),
            requests: Counter::new(
                "rest_client_requests_total",
                "Number of HTTP requests, partitioned by status code, method, and host.",
                ["code", "host", "method"],
            ),
            request_durations: Histogram::new(
                "rest_client_request_duration_seconds",
                "Request latency in seconds. Broken down by verb, and host.",
                ["host", "verb"],
                &REQUEST_BOUNDS,
            ),
        }
    }
}

// === impl Metrics ===

impl Metrics {
    /// A request of the client was answered, or not.
    pub(crate) fn asked(&self, asked: &client::Asked<'_>) {
        let code = asked.code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        self.requests.inc([&code, asked.host, asked.method]);
        self.request_durations.observe_duration([asked.host, asked.method], asked.took);
    }

    pub(crate) fn attempt(&self, result: &str, profile: &str, took: Duration) {
        self.attempts.inc([profile, result]);
        self.attempt_duration.observe([profile, result], took.as_secs_f64());
    }

    pub(crate) fn algorithm(&self, took: Duration) {
        self.algorithm_duration.observe([], took.as_secs_f64());
    }

    pub(crate) fn scheduled(&self, attempts: u32, since_first: Duration) {
        self.attempts_per_pod.observe([], f64::from(attempts));
        let label = if attempts >= 15 { "15+".to_owned() } else { attempts.to_string() };
        self.sli_duration.observe([&label], since_first.as_secs_f64());
    }

    /// What is counted at the moment of looking.
    pub(crate) fn look(&self, queue: &mut Queue, cluster: &Cluster, profile: &str) {
        let counts = queue.counts();
        for (name, count) in [
            ("active", counts.active),
            ("backoff", counts.backoff),
            ("unschedulable", counts.unschedulable),
            ("gated", counts.gated),
        ] {
            self.pending.set([name], count as f64);
        }
        for ((queue, event), n) in queue.take_incoming() {
            self.incoming.add([event, queue], n as f64);
        }
        let refused = queue.refused_by();
        self.unschedulable.retain(|[plugin, _]| refused.contains_key(plugin));
        for (plugin, count) in refused.into_iter().filter(|(plugin, _)| *plugin != "Extender") {
            self.unschedulable.set([plugin, profile], count as f64);
        }
        self.cache_size.set(["nodes"], cluster.node_count() as f64);
        self.cache_size.set(["pods"], cluster.pod_count() as f64);
        self.cache_size.set(["assumed_pods"], cluster.assumed_count() as f64);
    }

    /// The Prometheus text.
    #[must_use]
    pub fn render(&self) -> String {
        let mut out = String::new();
        let families: [&dyn Family; 14] = [
            &self.attempts,
            &self.attempt_duration,
            &self.algorithm_duration,
            &self.pending,
            &self.incoming,
            &self.attempts_per_pod,
            &self.sli_duration,
            &self.preemption_attempts,
            &self.preemption_victims,
            &self.unschedulable,
            &self.cache_size,
            &self.leader,
            &self.requests,
            &self.request_durations,
        ];
        for family in families {
            let _ = family.write(&mut out);
        }
        let _ = supervise::write_metrics(&mut out);
        let _ = out.write_str("");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_as_everybodys_are() {
        let metrics = Metrics::default();
        let asked =
            |code| client::Asked { method: "GET", host: "h:1", code, took: Duration::from_millis(20) };
        metrics.asked(&asked(Some(200)));
        metrics.asked(&asked(None));
        metrics.leader.set(["kube-scheduler"], 1.0);
        let out = metrics.render();
        for line in [
            "rest_client_requests_total{code=\"200\",host=\"h:1\",method=\"GET\"} 1\n",
            "rest_client_requests_total{code=\"<error>\",host=\"h:1\",method=\"GET\"} 1\n",
            "rest_client_request_duration_seconds_bucket{host=\"h:1\",verb=\"GET\",le=\"0.025\"} 2\n",
            "leader_election_master_status{name=\"kube-scheduler\"} 1\n",
        ] {
            assert!(out.contains(line), "{line}{out}");
        }
    }
}
