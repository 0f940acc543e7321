//! Keeps running containers on their CPUs: upstream's CPU manager's reconcile loop. Whoever shares moves away when somebody
//! gets CPUs of his own, and back when they are free again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cri::v1;
use k8s_openapi::api::core::v1::PodStatus;
use kubelet_core::dispatch::Known;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::pods::node::Node;

/// Looks every `period`, and when a place was given or taken back, until cancelled.
pub async fn run(
    node: Arc<Node>,
    mut known: watch::Receiver<Arc<Known>>,
    period: Duration,
    token: CancellationToken,
) {
    let work = async {
        // Who listed nothing yet may list the Pods of an earlier life.
        if known.wait_for(|k| k.sources_ready).await.is_ok() {
            let pods = known.borrow().pods.clone();
            node.places.forget_strangers(|uid| pods.iter().any(|p| p.as_str() == uid)).await;
        }
        let mut applied = HashMap::new();
        let mut tick = tokio::time::interval(period.max(Duration::from_millis(1)));
        while node.places.pins_cpus() {
            tokio::select! {
                _ = tick.tick() => {}
                () = node.places.changed.notified() => {}
            }
            reconcile(&node, &mut applied).await;
        }
        // Under the policy none nobody has to move. The task lasts all the same: a kubelet ends with those that may not end.
        std::future::pending::<()>().await;
    };
    token.run_until_cancelled(Box::pin(work)).await;
}

/// Moves every running container that is not where it should be. `applied`: CPUs by container id.
async fn reconcile(node: &Node, applied: &mut HashMap<String, String>) {
    let mut alive = HashMap::new();
    for entry in node.board.all() {
        let uid = entry.pod.metadata.uid.clone().unwrap_or_default();
        for (name, id) in running(&entry.status) {
            let cpus = node.places.of(&uid, &name).cpus;
            if cpus.is_empty() {
                continue;
            }
            if applied.get(&id) != Some(&cpus) {
                let resources =
                    v1::LinuxContainerResources { cpuset_cpus: cpus.clone(), ..Default::default() };
                if let Err(error) = node.runtime.update_container_resources(&id, resources).await {
                    tracing::warn!(pod_uid = uid, container = name, %error, "container not moved to its CPUs");
                    continue;
                }
            }
            alive.insert(id, cpus);
        }
    }
    *applied = alive;
}

/// Names and ids of running containers; ephemeral ones stay where they began, as upstream's do.
fn running(status: &PodStatus) -> impl Iterator<Item = (String, String)> + '_ {
    let all = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    all.filter_map(|c| {
        c.state.as_ref()?.running.as_ref()?;
        let id = c.container_id.as_deref()?.split_once("://")?.1;
        Some((c.name.clone(), id.to_owned()))
    })
}
