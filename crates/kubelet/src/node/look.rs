//! One look at everything the status is made of. What is expensive is looked at seldom, and never in the way of
//! the heartbeat: an answer that does not come leaves the last one standing.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use cri::v1;
use kubelet_core::node::addresses::Sources;
use kubelet_core::node::conditions::{Health, Pressures};
use kubelet_core::node::status::{Fixed, Handler, Image, Moment, Runtime};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, timeout};

use super::ClusterDeps;
use crate::host::facts;
use crate::pods::node::Node;

/// How old the list of images may be.
const IMAGES_AGE: Duration = Duration::from_secs(30);
/// How old addresses and the runtime's version may be.
const FACTS_AGE: Duration = Duration::from_secs(30);
/// A resolver or runtime that takes longer is asked again at the next look.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Gathers what the status is made of.
#[derive(Clone)]
pub(super) struct Look {
    node: Arc<Node>,
    moment: Moment,
    storage: watch::Receiver<Option<String>>,
    in_use: watch::Receiver<Option<Vec<String>>>,
    shutting_down: watch::Receiver<bool>,
    pressures: watch::Receiver<Pressures>,
    devices: watch::Receiver<u64>,
    images_at: Option<Instant>,
    facts_at: Option<Instant>,
    resolving: OneAtATime<Found>,
}

/// A read of the kernel or the resolver that may hang. One that has not ended is waited for again before another is
/// begun: the threads for such reads are few, and all of the agent's files are read on them.
struct OneAtATime<T>(Option<JoinHandle<T>>);

/// The machine's addresses: by its name, towards the default route of either family, and all.
type Found = (Vec<IpAddr>, Option<IpAddr>, Option<IpAddr>, BTreeSet<IpAddr>);

// A copy begins with nothing under way.
impl<T> Clone for OneAtATime<T> {
    fn clone(&self) -> Self {
        OneAtATime(None)
    }
}

// === impl Look ===

impl Look {
    pub(super) fn new(w: &ClusterDeps<'_>, fixed: &Fixed, storage: watch::Receiver<Option<String>>) -> Look {
        let counts = w.loaded.config.local_storage_capacity_isolation;
        let moment = Moment {
            machine: w.machine.numbers(counts),
            addresses: Sources {
                given: w.loaded.flags.node_ips(),
                hostname: fixed.name.clone(),
                external_cloud: w.loaded.flags.cloud_provider == "external",
                ..Sources::default()
            },
            runtime: Runtime { name: w.node.facts.runtime_name.clone(), ..Runtime::default() },
            ..Moment::default()
        };
        Look {
            node: w.node.clone(),
            moment,
            storage,
            in_use: w.cluster.volumes_in_use.subscribe(),
            shutting_down: w.node.shutting_down.subscribe(),
            pressures: w.node.pressures.subscribe(),
            devices: w.node.places.subscribe_devices(),
            images_at: None,
            facts_at: None,
            resolving: OneAtATime(None),
        }
    }

    /// Something changed that others wait to hear of. Cancel-safe.
    pub(super) async fn changed(
        &mut self,
        health: &mut watch::Receiver<crate::runtime::health::RuntimeHealth>,
    ) {
        tokio::select! {
            Ok(()) = health.changed() => {}
            Ok(()) = self.storage.changed() => {}
            Ok(()) = self.in_use.changed() => {}
            Ok(()) = self.shutting_down.changed() => {}
            Ok(()) = self.pressures.changed() => {}
            Ok(()) = self.devices.changed() => {}
            else => std::future::pending().await,
        }
    }

    /// What is true now.
    pub(super) async fn take(&mut self) -> &Moment {
        if self.facts_at.is_none_or(|at| at.elapsed() >= FACTS_AGE) {
            self.facts_at = Some(Instant::now());
            tokio::join!(
                addresses(&mut self.moment.addresses, &mut self.resolving),
                version(&self.node, &mut self.moment.runtime)
            );
        }
        if self.images_at.is_none_or(|at| at.elapsed() >= IMAGES_AGE) {
            self.images_at = Some(Instant::now());
            self.list_images().await;
        }
        self.moment.pressures = *self.pressures.borrow_and_update();
        self.devices.borrow_and_update();
        if let Some(devices) = self.node.places.devices() {
            let (counts, gone) = devices.counts();
            self.moment.devices.gone.extend(gone);
            self.moment.devices.gone.retain(|name| !counts.capacity.contains_key(name));
            self.moment.devices.counts = counts;
        }
        self.moment.health = self.health();
        self.moment.volumes_in_use.clone_from(&self.in_use.borrow_and_update());
        &self.moment
    }

    async fn list_images(&mut self) {
        match timeout(TIMEOUT, self.node.runtime.list_images()).await {
            Ok(Ok(images)) => self.moment.images = images.into_iter().map(image).collect(),
            Ok(Err(error)) => tracing::warn!(%error, "images not listed"),
            Err(_) => tracing::warn!("images not listed in time"),
        }
    }

    fn health(&mut self) -> Health {
        let runtime = self.node.health.borrow().clone();
        self.moment.runtime.handlers = runtime.handlers.iter().map(handler).collect();
        self.moment.runtime.groups_policy = runtime.groups_policy;
        let error = |text: &str| Some(text.to_owned()).filter(|t| !t.is_empty());
        let now = self.node.now().mono;
        Health {
            runtime_seen: runtime
                .answered
                .then(|| runtime.last_ready.map_or(Duration::ZERO, |at| at.elapsed())),
            runtime_error: error(&runtime.runtime_message),
            network_error: match runtime.answered {
                true => error(&runtime.network_message),
                false => Some("network state unknown".to_owned()),
            },
            relisted: self.node.observer.last_relist().map(|at| now.since(at)),
            storage_error: self.storage.borrow_and_update().clone(),
            shutdown: self.shutting_down.borrow_and_update().then(|| "node is shutting down".to_owned()),
        }
    }
}

// === impl OneAtATime ===

impl<T: Send + 'static> OneAtATime<T> {
    /// None if it has not ended by then; the next call gets its answer, if there is one by then.
    async fn within(
        &mut self,
        limit: Duration,
        read: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Result<T, JoinError>> {
        let handle = self.0.get_or_insert_with(|| tokio::task::spawn_blocking(read));
        let ended = timeout(limit, handle).await.ok()?;
        self.0 = None;
        Some(ended)
    }
}

/// The resolver may take its time, and reads of /proc are reads of files: off the loop.
async fn addresses(sources: &mut Sources, resolving: &mut OneAtATime<Found>) {
    let (name, given) = (sources.hostname.clone(), sources.given.clone());
    let asked = resolving.within(TIMEOUT, move || {
        let specified = given.first().is_some_and(|ip| !ip.is_unspecified());
        let by_name: Vec<IpAddr> = match specified {
            true => Vec::new(),
            false => facts::resolve(&name),
        };
        (
            by_name,
            facts::towards_default_route(false),
            facts::towards_default_route(true),
            facts::local_addresses(),
        )
    });
    match asked.await {
        Some(Ok((by_name, v4, v6, local))) => {
            sources.by_name = by_name;
            sources.default_v4 = v4;
            sources.default_v6 = v6;
            sources.local = local;
        }
        Some(Err(error)) => tracing::warn!(%error, "addresses not read"),
        None => tracing::warn!("addresses not read in time"),
    }
}

async fn version(node: &Node, runtime: &mut Runtime) {
    match timeout(TIMEOUT, node.runtime.version()).await {
        Ok(Ok(answer)) => {
            runtime.name = answer.runtime_name;
            runtime.version = Some(answer.runtime_version);
        }
        // The version does not change because the runtime is silent.
        Ok(Err(error)) => tracing::debug!(%error, "the runtime's version was not told"),
        Err(_) => tracing::debug!("the runtime's version was not told in time"),
    }
}

fn image(image: v1::Image) -> Image {
    Image {
        id: image.id,
        digests: image.repo_digests,
        tags: image.repo_tags,
        size: i64::try_from(image.size).unwrap_or(i64::MAX),
    }
}

fn handler(h: &v1::RuntimeHandler) -> Handler {
    Handler {
        name: h.name.clone(),
        recursive_read_only: h.features.as_ref().is_some_and(|f| f.recursive_read_only_mounts),
        user_namespaces: h.features.as_ref().is_some_and(|f| f.user_namespaces),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_read_that_hangs_is_the_only_one() {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let mut slow = OneAtATime(None);
        let hang = move || {
            let _ = wait.recv();
            1
        };
        let short = Duration::from_millis(20);
        assert!(slow.within(short, hang).await.is_none());
        for _ in 0..3 {
            assert!(slow.within(short, || panic!("begun although another hangs")).await.is_none());
        }
        drop(go);
        let late =
            slow.within(Duration::from_secs(60), || panic!("begun although another has an answer")).await;
        assert_eq!(late.unwrap().unwrap(), 1);
        assert_eq!(
            slow.within(Duration::from_secs(60), || 2).await.unwrap().unwrap(),
            2,
            "and then a new one"
        );
    }
}
