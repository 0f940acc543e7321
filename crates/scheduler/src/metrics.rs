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
}

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
        }
    }
}

// === impl Metrics ===

impl Metrics {
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
        let families: [&dyn Family; 11] = [
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
        ];
        for family in families {
            let _ = family.write(&mut out);
        }
        let _ = supervise::write_metrics(&mut out);
        let _ = out.write_str("");
        out
    }
}
