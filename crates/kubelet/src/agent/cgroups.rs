//! Which cgroups this node gives its Pods.

use std::sync::Arc;

use api::config::kubelet::{KubeletConfiguration, KubeletFlags};
use kubelet_core::cgroup::{self, Driver, Limits, Rules};
use kubelet_core::node::capacity::Reserved;

use super::StartError;
use crate::cgroups::{NodeCgroups, RuntimeCgroups, SliceCgroups};
use crate::facts::Machine;
use crate::ports::Cgroups;

/// The tree of Pods' cgroups, its upper levels made.
pub(super) fn open(
    config: &KubeletConfiguration,
    flags: &KubeletFlags,
    machine: &Machine,
    driver: Driver,
) -> Result<Arc<dyn Cgroups>, StartError> {
    if !config.cgroups_per_qos {
        return Ok(Arc::new(RuntimeCgroups { parent: config.cgroup_root.clone() }));
    }
    let all = cgroup::all_pods(&config.cgroup_root)
        .map_err(|e| StartError::new(format!("cgroupRoot {:?}: {e}", config.cgroup_root)))?;
    if driver == Driver::Systemd {
        return Ok(Arc::new(SliceCgroups { all }));
    }
    let hand = sys::cgroup::Hierarchies::find();
    let hand = hand.map_err(|e| StartError::new(format!("find the cgroup hierarchies: {e}")))?;
    let rules = Rules {
        cfs_quota: config.cpu_cfs_quota,
        cfs_period: config.cpu_cfs_quota_period.to_std(),
        pids: Some(config.pod_pids_limit).filter(|n| *n > 0),
        hugepage_sizes: machine.hugepage_sizes.clone(),
    };
    let whole = whole(config, flags, machine);
    let made = NodeCgroups::open(hand, all, &whole, rules);
    let made = made.map_err(|e| StartError::new(format!("set up the cgroups of Pods: {e}")))?;
    Ok(Arc::new(made))
}

/// What all Pods together may use: the machine, less what is kept back from them.
fn whole(config: &KubeletConfiguration, flags: &KubeletFlags, machine: &Machine) -> Limits {
    let enforced = config.enforce_node_allocatable.iter().any(|level| level == "pods");
    let reserved = Reserved::new(config, flags.experimental_allocatable_ignore_eviction);
    let kept = |name: &str| if enforced { reserved.for_good(name) } else { Default::default() };
    let milli = (machine.cpus * 1000).saturating_sub(kept("cpu").milli_value()).max(0);
    Limits {
        cpu_shares: Some(cgroup::shares(milli)),
        memory: Some(machine.memory.total.saturating_sub(kept("memory").value()).max(0)),
        ..Limits::default()
    }
}
