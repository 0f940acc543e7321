//! What memory the classes of Pods keep from each other: qosReserved and memoryReservationPolicy. Their cgroups are set
//! anew when Pods come, go or change, and every minute.

use std::sync::Arc;
use std::time::Duration;

use api::pod::QosClass;
use kubelet_core::cgroup::{AskedMemory, Limits};
use tokio_util::sync::CancellationToken;

use crate::pods::node::Node;

const PERIOD: Duration = Duration::from_secs(60);
/// Changes closer together than this are one.
const BREATH: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassMemory {
    /// How much of what a class asked for is kept from the classes below it.
    pub percent: Option<i64>,
    /// Whether Pods keep what they asked for; none where the kernel is not to be told.
    pub reserves: Option<bool>,
    /// What all Pods may have, in bytes.
    pub allocatable: i64,
}

/// Runs until cancelled.
pub async fn run(node: Arc<Node>, rules: ClassMemory, token: CancellationToken) {
    let work = async {
        let (mut news, mut last) = (node.board.subscribe(), None);
        loop {
            let asked = asked(&node);
            let is_new = last != Some(asked);
            for (class, limits) in bounds(rules, asked) {
                // A class that could not be held is tried again with the next minute.
                if let Err(error) = node.cgroups.hold_class(class, &limits).await {
                    tracing::warn!(?class, %error, "the memory of a class of Pods is not held");
                }
            }
            if is_new && rules.reserves == Some(true) {
                node.metrics.memory_qos_node_memory_min_bytes.set([], asked.guaranteed as f64);
                node.metrics.memory_qos_node_memory_low_bytes.set([], asked.burstable as f64);
            }
            last = Some(asked);
            tokio::time::sleep(BREATH).await;
            let changed = async { while news.changed().await.is_ok() && self::asked(&node) == asked {} };
            tokio::select! {
                () = tokio::time::sleep(PERIOD) => {}
                () = changed => {}
            }
        }
    };
    token.run_until_cancelled(Box::pin(work)).await;
}

fn bounds(rules: ClassMemory, asked: AskedMemory) -> Vec<(QosClass, Limits)> {
    let kept = rules.reserves.into_iter().flat_map(|reserves| asked.kept(reserves));
    let limits = rules.percent.and_then(|percent| asked.bounds(rules.allocatable, percent));
    kept.chain(limits.into_iter().flatten()).collect()
}

/// Of Pods that have not ended, with the resources they were granted.
fn asked(node: &Node) -> AskedMemory {
    let allocated = node.records.allocated();
    let has_ended = |phase: Option<&str>| matches!(phase, Some("Failed" | "Succeeded"));
    let mut entries = node.board.all();
    entries.retain(|e| !e.finished && !has_ended(e.status.phase.as_deref()));
    let granted = |e: &crate::pods::status_board::Entry| {
        let uid = e.pod.metadata.uid.as_deref().unwrap_or_default();
        allocated.get(uid).map_or_else(|| e.pod.clone(), |granted| granted.applied(&e.pod))
    };
    let pods: Vec<_> = entries.iter().map(granted).collect();
    AskedMemory::of(pods.iter().map(|pod| &**pod))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_writes_what_is_its_own() {
        let asked = AskedMemory { guaranteed: 100, burstable: 50 };
        let of = |percent, reserves| {
            let all = bounds(ClassMemory { percent, reserves, allocatable: 1000 }, asked);
            all.into_iter().map(|(c, l)| (c, l.memory, l.memory_min, l.memory_low)).collect::<Vec<_>>()
        };
        use QosClass::{BestEffort, Burstable, Guaranteed};
        assert_eq!(of(None, None), []);
        let kept = [(Guaranteed, None, Some(150), None), (Burstable, None, None, Some(50))];
        assert_eq!(of(None, Some(true)), kept);
        let held = [(Burstable, Some(900), None, None), (BestEffort, Some(850), None, None)];
        assert_eq!(of(Some(100), None), held);
        assert_eq!(of(Some(100), Some(false)).len(), 4);
    }
}
