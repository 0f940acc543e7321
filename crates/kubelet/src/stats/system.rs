//! Cgroups that are no Pod's: the root of all, that of all Pods with its classes, and those of the node's own programs.

use base::time::Now;
use kubelet_core::stats::proc::own_cgroup;
use kubelet_core::stats::{CgroupStats, Machine, Rates};

use super::{Depth, PodCgroups, Processes, machine, processes};

/// The cgroups of the node's own programs, as configured; none where nobody said.
#[derive(Clone, Debug, Default)]
pub struct SystemCgroups {
    pub kubelet: Option<String>,
    pub runtime: Option<String>,
    pub misc: Option<String>,
}

/// Whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    Kubelet,
    Runtime,
    /// What is neither a Pod nor Kubernetes.
    Misc,
    /// All Pods together.
    Pods,
    /// All Pods of one class.
    PodsOfClass,
}

/// One of them.
#[derive(Clone, Debug)]
pub struct Named {
    pub owner: Owner,
    /// With a slash in front.
    pub path: String,
    /// Seconds since the epoch.
    pub started: Option<i64>,
    pub stats: CgroupStats,
    pub nano_cores: Option<u64>,
    pub processes: Option<Processes>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct System {
    pub root: CgroupStats,
    pub named: Vec<Named>,
}

// === impl Owner ===

impl Owner {
    /// As upstream names it among the system's containers.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        match self {
            Owner::Kubelet => Some("kubelet"),
            Owner::Runtime => Some("runtime"),
            Owner::Misc => Some("misc"),
            Owner::Pods => Some("pods"),
            Owner::PodsOfClass => None,
        }
    }
}

// === impl SystemCgroups ===

impl SystemCgroups {
    fn paths(&self, cgroups: &PodCgroups) -> Vec<(Owner, String)> {
        let own = || {
            std::fs::read_to_string("/proc/self/cgroup").ok().and_then(|t| own_cgroup(&t).map(str::to_owned))
        };
        let all = cgroups.path(&cgroups.all);
        let class =
            |class: &str| cgroups.all.child(class).ok().map(|name| (Owner::PodsOfClass, cgroups.path(&name)));
        let named = [
            (Owner::Kubelet, self.kubelet.clone().or_else(own)),
            (Owner::Runtime, self.runtime.clone()),
            (Owner::Misc, self.misc.clone()),
            (Owner::Pods, Some(all)),
        ];
        let named = named.into_iter().filter_map(|(owner, path)| Some((owner, path?)));
        named.chain(["burstable", "besteffort"].into_iter().filter_map(class)).collect()
    }

    /// Reads them; blocks.
    pub(super) fn read(&self, cgroups: &PodCgroups, depth: Depth, kubelet_started: i64) -> System {
        let read = |(owner, path): (Owner, String)| {
            let path = path.trim_matches('/').to_owned();
            let files = cgroups.hand.files(&path);
            // The root is told of by itself.
            if path.is_empty() || !files.exist() {
                return None;
            }
            let stats = cgroups.read(&files);
            let started = (owner == Owner::Kubelet).then_some(kubelet_started).or_else(|| files.changed());
            let processes = (depth == Depth::Descriptors).then(|| processes::of(&files.processes()));
            Some(Named { owner, path: format!("/{path}"), started, stats, nano_cores: None, processes })
        };
        let named = self.paths(cgroups).into_iter().filter_map(read).collect();
        System { root: cgroups.read(&cgroups.hand.files("")), named }
    }
}

// === impl System ===

impl System {
    pub(super) fn complete(&mut self, machine: &Machine, rates: &mut Rates, now: Now) {
        self.root = machine::root(std::mem::take(&mut self.root), machine);
        for named in &mut self.named {
            let nanos = named.stats.cpu_nanos;
            named.nano_cores = nanos.and_then(|nanos| rates.of(&named.path, nanos, now.mono));
        }
    }

    /// The one with this name among the system's containers.
    #[must_use]
    pub fn of(&self, owner: Owner) -> Option<&Named> {
        self.named.iter().find(|n| n.owner == owner)
    }
}
