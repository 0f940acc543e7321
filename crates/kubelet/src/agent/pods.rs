//! Sources, dispatcher, collector, log rotation.

use std::sync::Arc;
use std::time::Duration;

use api::config::kubelet::Loaded;
use kubelet_core::dispatch::Known;
use streaming::Streams;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Builder, StartError, settings};
use crate::logs::Rotator;
use crate::pods::beat::Beat;
use crate::pods::dispatcher::{Dispatcher, EndOrder};
use crate::pods::gc;
use crate::pods::node::Node;
use crate::pods::sources::file::Heritage;
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
        tasks: &mut JoinSet<()>,
        token: &CancellationToken,
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
            let (context, updates, token) = (context.clone(), updates.clone(), token.clone());
            tasks.spawn(async move {
                let heritage = token.run_until_cancelled(Heritage::find(runtime, &root)).await;
                if let Some(heritage) = heritage {
                    sources::file::run(file, context, heritage, updates, token).await;
                }
            });
        }
        if let Some(url) = settings::url_source(config) {
            names.push(SourceName::Url);
            tasks.spawn(sources::url::run(url, context.clone(), updates.clone(), token.clone()));
        }
        if let Some(cluster) = &self.cluster {
            names.push(SourceName::Api);
            let (rng, updates) = (node.rng_for("Pods"), updates.clone());
            tasks.spawn(sources::api::run(cluster.clone(), context.clone(), rng, updates, token.clone()));
        }
        names.push(SourceName::Local);
        self.start_local(node, &context, local, updates, tasks, token).await?;
        let dispatcher = Dispatcher::new(node.clone(), receiver, names, beat).with_orders(orders);
        let known = dispatcher.known();
        let collection = settings::gc(config, flags, &self.dirs);
        tasks.spawn(gc::run(node.clone(), known.clone(), collection, token.clone()));
        tasks.spawn(dispatcher.run(token.clone()));
        let rotation = settings::rotation(config)?;
        let rotator = Rotator::new(rotation, node.runtime.clone(), node.clock.clone(), node.metrics.clone());
        tasks.spawn(rotator.run(token.clone()));
        Ok(known)
    }

    /// Pods given by command, over a socket only root can reach.
    pub(super) async fn start_local(
        &self,
        node: &Arc<Node>,
        context: &Context,
        listener: local_api::Bound,
        updates: mpsc::Sender<SourceUpdate>,
        tasks: &mut JoinSet<()>,
        token: &CancellationToken,
    ) -> Result<(), StartError> {
        let opened = LocalPods::open(context.clone(), self.dirs.root.join("local-pods")).await;
        let (local, sets) = opened.map_err(|e| StartError::new(e.to_string()))?;
        tasks.spawn(sources::local::run(sets, context.clone(), updates, token.clone()));
        let view = Arc::new(BoardView {
            board: node.board.clone(),
            recorder: node.recorder.clone(),
            log_root: self.dirs.pod_logs.clone(),
        });
        let streams = Streams::new(Duration::ZERO);
        let api = LocalApi { local, view, runtime: node.runtime.clone(), context: context.clone(), streams };
        tasks.spawn(listener.serve(api, self.ports.local(), token.clone()));
        Ok(())
    }
}
