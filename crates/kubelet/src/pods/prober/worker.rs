//! The task of one probe.

use std::sync::Arc;
use std::time::Duration;

use base::rng::Rng;
use kubelet_core::probe::{Outcome, ProbeKind, ProbeSpec, Seen, Worker, first_tick_spread};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::attempt::{Said, Target};
use super::{Board, Hands, SeenPod};
use crate::events::EventType;

#[derive(Clone)]
pub(super) struct Task {
    pub(super) spec: ProbeSpec,
    pub(super) target: Arc<Target>,
    pub(super) board: Arc<Board>,
    pub(super) hands: Arc<Hands>,
    pub(super) rng: Rng,
    pub(super) token: CancellationToken,
}

/// Runs until the token is cancelled. A panic costs a pause and the memory of the probe.
pub(super) fn spawn(task: Task) {
    // The order to end is looked at first: one that came before the task's first turn, or with the tick of a probe, is the
    // last word. A container that is gone is not asked once more.
    supervise::spawn_restarting("probe", task.token.clone(), move || {
        let mut task = task.clone();
        async move { match task.run().await {} }
    });
}

// === impl Task ===

impl Task {
    async fn run(&mut self) -> std::convert::Infallible {
        let mut worker = Worker::new(self.spec);
        let mut news = self.board.seen.subscribe();
        self.spread().await;
        loop {
            let (seen, ip, revision) = self.look(&mut news);
            let tick = worker.tick(seen.as_ref(), self.hands.clock.now());
            let next = Instant::now() + tick.next;
            if let Some(change) = &tick.change {
                self.board.publish(change, &self.target.container.name);
            }
            if let (true, Some(seen)) = (tick.probe, &seen) {
                self.probe(&mut worker, seen, ip.as_deref(), &mut news).await;
            }
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                () = self.news(seen.as_ref(), ip.as_deref(), revision, &mut news) => {}
            }
        }
    }

    /// Right after a start of the agent, probes of every Pod would fire at once. Readiness is exempt:
    /// until it has spoken, a Pod that was ready all the time would look unready.
    async fn spread(&mut self) {
        if self.spec.kind == ProbeKind::Readiness {
            return;
        }
        if let Some(most) = first_tick_spread(self.spec.period, self.hands.up_for()) {
            tokio::time::sleep(self.rng.up_to(most)).await;
        }
    }

    fn look(&self, news: &mut watch::Receiver<SeenPod>) -> (Option<Seen>, Option<String>, u64) {
        let pod = news.borrow_and_update();
        (pod.containers.get(&self.target.container.name).cloned(), pod.ip.clone(), pod.revision)
    }

    /// Probes until there is a result, or the third try in a row could not be carried out. Given up
    /// at once when the container stops or is replaced.
    async fn probe(
        &self,
        worker: &mut Worker,
        seen: &Seen,
        ip: Option<&str>,
        news: &mut watch::Receiver<SeenPod>,
    ) {
        let begun = self.hands.mono();
        loop {
            let said = tokio::select! {
                biased;
                () = gone(news, &self.target.container.name, seen) => return,
                said = self.target.attempt(&self.hands, &seen.id, ip) => said,
            };
            let answer = worker.outcome(&seen.id, said.outcome);
            if answer.again {
                continue;
            }
            self.tell(&said);
            self.count(said.outcome, self.hands.mono().since(begun));
            if let Some(change) = &answer.change {
                self.board.publish(change, &self.target.container.name);
            }
            return;
        }
    }

    /// Returns when there is news that make an earlier tick worth while. Those of other containers
    /// do not: they must not disturb the period.
    async fn news(
        &self,
        seen: Option<&Seen>,
        ip: Option<&str>,
        revision: u64,
        news: &mut watch::Receiver<SeenPod>,
    ) {
        let worth = |pod: &SeenPod| {
            let now = pod.containers.get(&self.target.container.name);
            // As upstream's, an unready container is asked again whenever its Pod is looked at.
            let eager = self.spec.kind == ProbeKind::Readiness
                && pod.revision > revision
                && now.is_some_and(|seen| seen.running && !self.is_ready(seen));
            now != seen || pod.ip.as_deref() != ip || eager
        };
        // The sender lives as long as this task.
        let _ = news.wait_for(worth).await;
    }

    fn is_ready(&self, seen: &Seen) -> bool {
        self.board.verdicts.borrow().get(&seen.id).is_some_and(|v| v.readiness == Some(true))
    }

    fn tell(&self, said: &Said) {
        let (kind, text) = (kind_name(self.spec.kind), &said.text);
        let (reason, message) = match said.outcome {
            Outcome::Success => return,
            Outcome::Warning => ("ProbeWarning", format!("{kind} probe warning: {text}")),
            Outcome::Failure => ("Unhealthy", format!("{kind} probe failed: {text}")),
            Outcome::Error => {
                ("Unhealthy", format!("{kind} probe errored and resulted in unknown state: {text}"))
            }
        };
        let (pod, container) = (&self.target.pod, &self.target.container.name);
        tracing::debug!(pod_uid = self.uid(), container, probe = kind, reason, "probe not successful");
        self.hands.recorder.container(pod, container, EventType::Warning, reason, message);
    }

    /// A probe that could not be carried out is not counted.
    fn count(&self, outcome: Outcome, took: Duration) {
        let meta = &self.target.pod.metadata;
        let text = |s: &'_ Option<String>| s.clone().unwrap_or_default();
        let (name, namespace) = (text(&meta.name), text(&meta.namespace));
        let (kind, container) = (kind_name(self.spec.kind), self.target.container.name.as_str());
        let result = match outcome {
            Outcome::Success | Outcome::Warning => "successful",
            Outcome::Failure => "failed",
            Outcome::Error => return,
        };
        let metrics = &self.hands.metrics;
        metrics.total.inc([kind, result, container, &name, &namespace, self.uid()]);
        if result == "successful" {
            metrics.duration_seconds.observe_duration([kind, container, &name, &namespace], took);
        }
    }

    fn uid(&self) -> &str {
        self.target.pod.metadata.uid.as_deref().unwrap_or_default()
    }
}

/// Returns when `seen` is no longer the running instance.
async fn gone(news: &mut watch::Receiver<SeenPod>, container: &str, seen: &Seen) {
    let over = |pod: &SeenPod| pod.containers.get(container).is_none_or(|c| c.id != seen.id || !c.running);
    // An error means that the Pod is gone altogether.
    let _ = news.wait_for(over).await;
}

fn kind_name(kind: ProbeKind) -> &'static str {
    match kind {
        ProbeKind::Startup => "Startup",
        ProbeKind::Liveness => "Liveness",
        ProbeKind::Readiness => "Readiness",
    }
}
