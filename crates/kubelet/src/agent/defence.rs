//! What defends the node: figures, eviction, collection of images, word of processes killed for want of memory.

use std::sync::Arc;

use api::config::kubelet::Loaded;
use futures_util::future::BoxFuture;
use kubelet_core::cgroup;
use kubelet_core::dispatch::{EndOrder, Known};
use kubelet_core::eviction::forecast::Forecast;
use kubelet_core::oom::Killed;
use supervise::Supervisor;
use tokio::sync::{mpsc, watch};

use super::{Builder, settings};
use crate::events::EventType;
use crate::eviction::image_gc::ImageCollector;
use crate::eviction::{self, EvictionDeps, Settings};
use crate::host::kmsg;
use crate::pods::node::Node;
use crate::server::local_api::Forecasts;
use crate::stats::{self, PodCgroups, Sampler, SystemCgroups};

impl Builder<'_> {
    pub(super) fn start_defence(
        &self,
        node: &Arc<Node>,
        orders: mpsc::Sender<EndOrder>,
        known: watch::Receiver<Arc<Known>>,
        sampler: Arc<Sampler>,
        tasks: &Supervisor,
    ) {
        let Loaded { config, flags, .. } = &self.start.loaded;
        let policy = settings::image_collection(config);
        let images = Arc::new(ImageCollector::new(node.clone(), sampler.clone(), policy));
        tasks.lasting("image_gc", images.clone(), ImageCollector::run);
        let deps = eviction::EvictionDeps {
            node: node.clone(),
            sampler,
            images,
            orders,
            known,
            collection: settings::gc(config, flags, &self.dirs),
            settings: Settings::new(config),
        };
        // Set once: the agent is assembled once.
        let _ = self.forecasts.set(Arc::new(Foreteller(deps.clone())));
        tasks.lasting("eviction", deps, eviction::run);
        tasks.lasting("oom_watcher", node.clone(), |node, end| {
            kmsg::watch(move |killed| tell_of_killed(&node, &killed), end)
        });
    }

    /// The one that everybody asks.
    pub(super) fn sampler(&self, node: &Arc<Node>) -> Sampler {
        Sampler::new(stats::SamplerDeps {
            runtime: node.runtime.clone(),
            board: node.board.clone(),
            clock: self.clock.clone(),
            metrics: self.metrics.clone(),
            root: self.dirs.root.clone(),
            pod_logs: self.dirs.pod_logs.clone(),
            cgroups: self.pod_cgroups(),
            system: self.system_cgroups(),
        })
    }

    fn system_cgroups(&self) -> SystemCgroups {
        let Loaded { config, flags, .. } = &self.start.loaded;
        let named = |path: &str| (!path.is_empty()).then(|| path.to_owned());
        SystemCgroups {
            kubelet: named(&config.kubelet_cgroups),
            runtime: named(&flags.runtime_cgroups),
            misc: named(&config.system_cgroups),
        }
    }

    /// Where the cgroups of Pods are; none where each is the runtime's business.
    fn pod_cgroups(&self) -> Option<PodCgroups> {
        let config = &self.start.loaded.config;
        let all = cgroup::all_pods(&config.cgroup_root).ok().filter(|_| config.cgroups_per_qos)?;
        Some(PodCgroups { hand: sys::cgroup::Hierarchies::find().ok()?, all, driver: self.driver })
    }
}

/// Eviction as the local API asks it.
struct Foreteller(EvictionDeps);

impl Forecasts for Foreteller {
    fn forecast(&self) -> BoxFuture<'_, Result<Forecast, String>> {
        Box::pin(self.0.forecast())
    }
}

fn tell_of_killed(node: &Node, killed: &Killed) {
    let Killed { process, pid, limit_of } = killed;
    tracing::info!(process, pid, limit_of, "the kernel killed a process for want of memory");
    if let Some(message) = killed.system_message() {
        node.recorder.node(&node.facts.cri_config.name, EventType::Warning, "SystemOOM", message);
    }
}
