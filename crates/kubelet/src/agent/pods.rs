//! Sources, dispatcher, collector, log rotation.

use std::sync::Arc;
use std::time::Duration;

use api::config::kubelet::Loaded;
use kubelet_core::dispatch::Known;
use streaming::Streams;
use supervise::Supervisor;
use tokio::sync::{mpsc, watch};

use super::{Builder, StartError, settings};
use crate::logs::Rotator;
use crate::pods::beat::Beat;
use crate::pods::class_memory;
use crate::pods::cpu_sets;
use crate::pods::dispatcher::{Dispatcher, EndOrder};
use crate::pods::gc;
use crate::pods::node::Node;
use crate::pods::sources::file::Handover;
use crate::pods::sources::local::LocalPods;
use crate::pods::sources::{self, Context, Problems, SourceName, SourceUpdate};
use crate::server::local_api::{self, BoardView, LocalApi};

impl Builder<'_> {
    /// Sources, dispatcher, collector, log rotation.
    pub(super) async fn start_pods(
        &self,
        node: &Arc<Node>,
        beat: Beat,
        (local, orders): (local_api::Bound, mpsc::Receiver<EndOrder>),
        tasks: &Supervisor,
    ) -> Result<watch::Receiver<Arc<Known>>, StartError> {
        let Loaded { config, flags, .. } = &self.start.loaded;
        let (updates, receiver) = mpsc::channel(sources::CHANNEL);
        let context = Context {
            node: node.facts.cri_config.name.as_str().into(),
            clock: node.clock.clone(),
            events: node.recorder.clone(),
            problems: Problems::default(),
        };
        let mut names = Vec::new();
        if let Some(file) = settings::file_source(config) {
            names.push(SourceName::File);
            let (runtime, root) = (node.runtime.clone(), self.dirs.root.clone());
            let parts = (file, runtime, root, context.clone(), updates.clone());
            tasks.lasting("source_file", parts, |(file, runtime, root, context, updates), end| async move {
                let handover = end.run_until_cancelled(Handover::find(runtime, &root)).await;
                if let Some(handover) = handover {
                    sources::file::run(file, context, handover, updates, end).await;
                }
            });
        }
        if let Some(url) = settings::url_source(config) {
            names.push(SourceName::Url);
            let parts = (url, context.clone(), updates.clone());
            tasks.lasting("source_url", parts, |(url, context, updates), end| {
                sources::url::run(url, context, updates, end)
            });
        }
        if let Some(cluster) = &self.cluster {
            names.push(SourceName::Api);
            let parts = (cluster.clone(), context.clone(), node.rng_for("Pods"), updates.clone());
            tasks.lasting("source_api", parts, |(cluster, context, rng, updates), end| {
                sources::api::run(cluster, context, rng, updates, end)
            });
        }
        names.push(SourceName::Local);
        self.start_local(node, &context, local, updates, tasks).await?;
        let dispatcher = Dispatcher::new(node.clone(), receiver, names, beat).with_orders(orders);
        let known = dispatcher.known();
        let collection = settings::gc(config, flags, &self.dirs);
        let parts = (node.clone(), known.clone(), collection);
        tasks.lasting("container_gc", parts, |(node, known, collection), end| {
            gc::run(node, known, collection, end)
        });
        let period = config.cpu_manager_reconcile_period.to_std();
        let parts = (node.clone(), known.clone());
        tasks.lasting("cpu_sets", parts, move |(node, known), end| cpu_sets::run(node, known, period, end));
        let all = node.facts.cri_config.allocatable.memory;
        if let Some(rules) = settings::class_memory(&self.start.loaded, all, self.machine.cgroup_v2) {
            tasks.lasting("class_memory", node.clone(), move |node, end| class_memory::run(node, rules, end));
        }
        // It owns the Pods' tasks, and all that it knows of them.
        tasks.essential("dispatcher", dispatcher.run(tasks.token().clone()));
        let rotation = settings::rotation(config)?;
        let rotator = Rotator::new(rotation, node.runtime.clone(), node.clock.clone(), node.metrics.clone());
        tasks.lasting("log_rotation", rotator, Rotator::run);
        Ok(known)
    }

    /// Pods given by command, over a socket only root can reach.
    pub(super) async fn start_local(
        &self,
        node: &Arc<Node>,
        context: &Context,
        listener: local_api::Bound,
        updates: mpsc::Sender<SourceUpdate>,
        tasks: &Supervisor,
    ) -> Result<(), StartError> {
        let opened = LocalPods::open(context.clone(), self.dirs.root.join("local-pods")).await;
        let (local, sets) = opened.map_err(|e| StartError::new(e.to_string()))?;
        tasks.lasting("source_local", (sets, context.clone(), updates), |(sets, context, updates), end| {
            sources::local::run(sets, context, updates, end)
        });
        let view = Arc::new(BoardView {
            board: node.board.clone(),
            recorder: node.recorder.clone(),
            log_root: self.dirs.pod_logs.clone(),
        });
        let streams = Streams::new(Duration::ZERO);
        let api = LocalApi {
            forecasts: self.forecasts.clone(),
            local,
            view,
            runtime: node.runtime.clone(),
            context: context.clone(),
            streams,
        };
        tasks.essential("local_api", listener.serve(api, self.ports.local(), tasks.token().clone()));
        Ok(())
    }
}
