//! Which cgroups this node gives its Pods, and that all Pods together leave the node its part.

use std::sync::Arc;
use std::time::Duration;

use api::config::kubelet::{KubeletConfiguration, KubeletFlags, Loaded};
use kubelet_core::cgroup::{self, Driver, Limits, Rules};
use kubelet_core::node::capacity::Reserved;
use tokio_util::sync::CancellationToken;

use super::{Builder, StartError, settings};
use crate::events::{EventType, Recorder};
use crate::host::cgroups::{NodeCgroups, RuntimeCgroups, Timed};
use crate::host::facts::Machine;
use crate::ports::Cgroups;

/// Before what could not be enforced is tried again: Pods that use too much are evicted meanwhile.
const AGAIN: Duration = Duration::from_secs(60);

impl Builder<'_> {
    /// The tree of Pods' cgroups, its upper levels made. Until cancelled, what all Pods may use is seen to.
    pub(super) async fn cgroups(
        &self,
        recorder: &Recorder,
        token: &CancellationToken,
    ) -> Result<Arc<dyn Cgroups>, StartError> {
        let Loaded { config, flags, .. } = &self.start.loaded;
        let cgroups: Arc<dyn Cgroups> = match config.cgroups_per_qos {
            false => Arc::new(RuntimeCgroups { parent: config.cgroup_root.clone() }),
            true => {
                let made = self.open_cgroups(config).await?;
                let whole = whole(config, flags, &self.machine);
                let node = flags.node_name(&self.machine.hostname).to_string();
                hold_reserved(&made, &self.start.loaded, recorder, &node).await?;
                let (tree, recorder) = (made.clone(), recorder.clone());
                supervise::spawn_restarting("node_allocatable", token.clone(), move || {
                    enforce(made.clone(), whole.clone(), recorder.clone(), node.clone())
                });
                Arc::new(tree)
            }
        };
        let (clock, metrics) = (self.clock.clone(), self.metrics.clone());
        Ok(Arc::new(Timed { cgroups, clock, metrics }))
    }

    async fn open_cgroups(&self, config: &KubeletConfiguration) -> Result<NodeCgroups, StartError> {
        let all = cgroup::all_pods(&config.cgroup_root)
            .map_err(|e| StartError::new(format!("cgroupRoot {:?}: {e}", config.cgroup_root)))?;
        let hand = sys::cgroup::Hierarchies::find();
        let hand = hand.map_err(|e| StartError::new(format!("find the cgroup hierarchies: {e}")))?;
        let rules = Rules {
            cfs_quota: config.cpu_cfs_quota,
            cfs_period: config.cpu_cfs_quota_period.to_std(),
            exclusive_cpus: config.cpu_manager_policy == "static",
            pids: Some(config.pod_pids_limit).filter(|n| *n > 0),
            hugepage_sizes: self.machine.hugepage_sizes.clone(),
            reserves_memory: settings::reserves_memory(config, &self.start.loaded.gates),
        };
        let systemd = (self.driver == Driver::Systemd).then(|| self.start.places.clone());
        let made = NodeCgroups::open(hand, systemd, all, rules).await;
        made.map_err(|e| StartError::new(format!("set up the cgroups of Pods: {e}")))
    }
}

/// Holds all Pods together to their part of the machine. What they use already may be more, which the kernel does not
/// take: then it is tried until enough of them were evicted.
async fn enforce(cgroups: NodeCgroups, whole: Limits, recorder: Recorder, node: String) {
    while let Err(error) = cgroups.enforce(&whole).await {
        let message = format!("Failed to update Node Allocatable Limits {}: {error}", cgroups.all());
        recorder.node(&node, EventType::Warning, "FailedNodeAllocatableEnforcement", message);
        tokio::time::sleep(AGAIN).await;
    }
    let message = "Updated Node Allocatable limit across pods";
    recorder.node(&node, EventType::Normal, "NodeAllocatableEnforced", message);
}

/// Holds the system and the components of Kubernetes to what is kept back for them, where that is wanted. A cgroup that is
/// not there is a mistake of the configuration.
async fn hold_reserved(
    cgroups: &NodeCgroups,
    Loaded { config, gates, .. }: &Loaded,
    recorder: &Recorder,
    node: &str,
) -> Result<(), StartError> {
    // On version 1 there is nothing to write it to.
    let keeps = gates.enabled("MemoryQoS");
    let system = ("System", &config.system_reserved_cgroup, &config.system_reserved);
    let kube = ("Kube", &config.kube_reserved_cgroup, &config.kube_reserved);
    for (key, (word, path, kept), only_shares) in [
        ("system-reserved", system, false),
        ("kube-reserved", kube, false),
        ("system-reserved-compressible", system, true),
        ("kube-reserved-compressible", kube, true),
    ] {
        if !config.enforce_node_allocatable.iter().any(|level| level == key) {
            continue;
        }
        let mut limits = cgroup::reserved(kept, only_shares);
        limits.memory_min = limits.memory.filter(|_| keeps);
        if let Err(error) = cgroups.hold_existing(path, &limits).await {
            let kind = if only_shares { "Compressible Cgroup" } else { "Cgroup" };
            let message = format!("Failed to enforce {word} Reserved {kind} Limits on {path:?}: {error}");
            recorder.node(node, EventType::Warning, "FailedNodeAllocatableEnforcement", message.as_str());
            return Err(StartError::new(message));
        }
        let message = format!("Updated limits on {} reserved cgroup {path}", word.to_lowercase());
        recorder.node(node, EventType::Normal, "NodeAllocatableEnforced", message);
    }
    Ok(())
}

/// What all Pods together may use: the machine, less what is kept back from them.
fn whole(config: &KubeletConfiguration, flags: &KubeletFlags, machine: &Machine) -> Limits {
    let enforced = config.enforce_node_allocatable.iter().any(|level| level == "pods");
    let reserved = Reserved::new(config, flags.experimental_allocatable_ignore_eviction);
    let kept = |name: &str| if enforced { reserved.for_good(name) } else { Default::default() };
    let milli = (machine.cpus * 1000).saturating_sub(kept("cpu").milli_value()).max(0);
    let left = |of: i64, name: &str| of.saturating_sub(kept(name).value()).max(0);
    Limits {
        cpu_shares: Some(cgroup::shares(milli)),
        memory: Some(left(machine.memory.total, "memory")),
        pids: machine.tasks.map(|tasks| left(tasks, "pid")),
        cpus: machine.online.clone(),
        ..Limits::default()
    }
}
