//! From the API server to the loop: Services, EndpointSlices, this Node and ServiceCIDRs.

use std::time::Duration;

use api::json::FromJson;
use base::metrics::Counter;
use base::rng::Rng;
use client::reflector::{Cache, Change, Identity, Reader, Reflector};
use client::{Client, Event, Piece, Read, Resource, Watcher};
use jiff::Timestamp;
use k8s_openapi::Metadata;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proxy_core::objects::{Family, NodeView};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::sync::Arc;
use supervise::Supervisor;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::{Listed, Update};

/// Services that this proxy serves: not given to another one, and with an address.
const SERVICES: &str = "!service.kubernetes.io/service-proxy-name";
const WITH_ADDRESS: &str = "spec.clusterIP!=None";
/// Slices of Services that have an address.
const SLICES: &str = "!service.kubernetes.io/headless";
/// A server that knows no ServiceCIDRs, or does not show them, does not keep us from starting.
const CIDR_TIMEOUT: Duration = Duration::from_secs(5);

/// What is known of this Node; `None` before it was first seen.
pub type Seen = watch::Receiver<Option<NodeView>>;

/// What the watches share.
#[derive(Clone, Debug)]
pub struct Informers {
    pub client: Client,
    pub news: mpsc::Sender<Update>,
    pub metrics: Arc<Metrics>,
    /// A watch that panics is started again, and begins with a list.
    pub tasks: Supervisor,
}

/// A resource of which each object becomes one update.
struct Followed<O> {
    name: &'static str,
    resource: Resource,
    listed: Listed,
    applied: fn(Read<O>) -> Update,
    gone: fn(Name) -> Update,
    changes: fn(&Metrics) -> &Counter<0>,
}

/// Reads ServiceCIDRs as updates of the loop.
#[derive(Debug)]
struct ServiceCidrs(Client);

/// All that counts of an object that is gone.
#[derive(Deserialize)]
struct Named {
    metadata: Name,
}

#[derive(Deserialize)]
struct Name {
    name: String,
    namespace: Option<String>,
}

// === impl Informers ===

impl Informers {
    /// Follows this Node. What it says goes to the loop and into the returned cell.
    pub fn watch_node(&self, name: &str, mut rng: Rng) -> Seen {
        let (seen, heard) = watch::channel(None);
        let (informers, seen) = (self.clone(), Arc::new(seen));
        let mut resource = Resource::new("/api/v1/nodes");
        resource.field_selector = format!("metadata.name={name}");
        self.tasks.restart("watch of the Node", move || {
            let watcher = Watcher::new(informers.client.clone(), resource.clone(), rng.child());
            informers.clone().follow_node(watcher, seen.clone())
        });
        heard
    }

    async fn follow_node(self, mut watcher: Watcher, seen: Arc<watch::Sender<Option<NodeView>>>) {
        loop {
            let update = match watcher.next().await {
                // A Node that was deleted under us is still our machine: what it last said holds.
                Event::Listed(items) => items.first().and_then(|raw| self.read_node(raw, &seen)),
                Event::Applied(raw) => self.read_node(&raw, &seen),
                Event::Deleted(_) => {
                    tracing::warn!("this Node was deleted");
                    None
                }
            };
            let sent = match update {
                None => self.news.send(Update::NoNode).await,
                Some(node) => {
                    seen.send_replace(Some(NodeView::read(&node)));
                    self.news.send(Update::Node(Box::new(node))).await
                }
            };
            if sent.is_err() {
                return;
            }
        }
    }

    /// Follows the ranges of Service addresses; returns when they were listed, or after a while.
    pub async fn watch_service_cidrs(&self, mut rng: Rng) {
        let resource = Resource::new("/apis/networking.k8s.io/v1/servicecidrs");
        let listed = CancellationToken::new();
        // What is gone is known across restarts of the task.
        let cache = Cache::new(Vec::new());
        let (informers, told) = (self.clone(), listed.clone());
        self.tasks.restart("watch of ServiceCIDRs", move || {
            let (client, resource) = (informers.client.clone(), resource.clone());
            let reader = ServiceCidrs(client.clone());
            let reflector = Reflector::with_cache(client, resource, rng.child(), reader, cache.clone());
            informers.clone().tell_service_cidrs(reflector, told.clone())
        });
        let _ = tokio::time::timeout(CIDR_TIMEOUT, listed.cancelled()).await;
    }

    /// Half of a Node is better than none, and no better than what is known.
    fn read_node(&self, raw: &RawValue, seen: &watch::Sender<Option<NodeView>>) -> Option<Node> {
        match self.client.read::<Node>(raw) {
            Read::Whole(node) => Some(node),
            Read::Part(node) => seen.borrow().is_none().then_some(node),
            Read::Nothing => None,
        }
    }

    async fn tell_service_cidrs(self, mut reflector: Reflector<ServiceCidrs>, listed: CancellationToken) {
        while !self.news.is_closed() {
            let update = match reflector.next().await {
                Change::Added { new, .. } | Change::Updated { new, .. } => new,
                Change::Deleted { key, .. } => Update::NoServiceCidr { name: key.name },
                Change::Synced => {
                    listed.cancel();
                    continue;
                }
                Change::Unnamed => continue,
            };
            let _ = self.news.send(update).await;
        }
    }

    /// Follows Services until nobody listens.
    pub fn watch_services(&self, rng: Rng) {
        let mut resource = Resource::new("/api/v1/services");
        (resource.label_selector, resource.field_selector) = (SERVICES.to_owned(), WITH_ADDRESS.to_owned());
        let services = Followed::<Service> {
            name: "watch of Services",
            resource,
            listed: Listed::Services,
            applied: |read| match read {
                Read::Whole(service) => Update::Service(Box::new(service)),
                Read::Part(service) => Update::PartOfService(Box::new(service)),
                Read::Nothing => Update::Nameless(Listed::Services),
            },
            gone: |Name { name, namespace }| Update::NoService {
                namespace: namespace.unwrap_or_default(),
                name,
            },
            changes: |metrics| &metrics.service_changes,
        };
        self.follow(services, rng);
    }

    /// Follows EndpointSlices until nobody listens.
    pub fn watch_slices(&self, rng: Rng) {
        let mut resource = Resource::new("/apis/discovery.k8s.io/v1/endpointslices");
        resource.label_selector = SLICES.to_owned();
        let slices = Followed::<EndpointSlice> {
            name: "watch of EndpointSlices",
            resource,
            listed: Listed::Slices,
            applied: |read| match read {
                Read::Whole(slice) => Update::Slice(Box::new(slice)),
                Read::Part(slice) => Update::PartOfSlice(Box::new(slice)),
                Read::Nothing => Update::Nameless(Listed::Slices),
            },
            gone: |Name { name, namespace }| Update::NoSlice {
                namespace: namespace.unwrap_or_default(),
                name,
            },
            changes: |metrics| &metrics.endpoint_changes,
        };
        self.follow(slices, rng);
    }

    fn follow<O>(&self, followed: Followed<O>, mut rng: Rng)
    where
        O: FromJson + k8s_openapi::Resource + Metadata<Ty = ObjectMeta> + 'static,
    {
        let (informers, followed) = (self.clone(), Arc::new(followed));
        self.tasks.restart(followed.name, move || {
            let watcher = Watcher::new(informers.client.clone(), followed.resource.clone(), rng.child());
            informers.clone().tell_pieces(watcher, followed.clone())
        });
    }

    async fn tell_pieces<O>(self, mut watcher: Watcher, followed: Arc<Followed<O>>)
    where
        O: FromJson + k8s_openapi::Resource + Metadata<Ty = ObjectMeta>,
    {
        while !self.news.is_closed() {
            let update = match watcher.next_piece().await {
                Piece::Begin => Some(Update::Begin(followed.listed)),
                Piece::End => Some(Update::End(followed.listed)),
                Piece::Item(raw) | Piece::Applied(raw) => Some((followed.applied)(self.client.read(&raw))),
                Piece::Deleted(raw) => named(&raw).map(followed.gone),
                Piece::Bookmark => continue,
            };
            if matches!(update, Some(Update::Nameless(_))) {
                watcher.list_again();
            }
            if !matches!(update, Some(Update::Begin(_) | Update::End(_))) {
                (followed.changes)(&self.metrics).inc([]);
            }
            self.tell(update).await;
        }
    }

    async fn tell(&self, update: Option<Update>) {
        if let Some(update) = update {
            let now = Timestamp::now().as_millisecond() as f64 / 1000.0;
            Family::BOTH.iter().for_each(|family| self.metrics.queued_at.set([family.name()], now));
            let _ = self.news.send(update).await;
        }
    }
}

// === impl ServiceCidrs ===

impl Reader for ServiceCidrs {
    type Object = Update;
    type Kept = ();

    fn read(&self, raw: Box<RawValue>) -> Read<(Identity, Update)> {
        let (is_whole, range) = match self.0.read::<ServiceCIDR>(&raw) {
            Read::Whole(range) => (true, range),
            Read::Part(range) => (false, range),
            Read::Nothing => return Read::Nothing,
        };
        let Some(identity) = Identity::of(range.metadata()) else { return Read::Nothing };
        match is_whole {
            true => Read::Whole((identity, Update::ServiceCidr(Box::new(range)))),
            false => Read::Part((identity, Update::PartOfServiceCidr(Box::new(range)))),
        }
    }

    fn keep(&self, _: &Update) {}

    /// The loop knows what it knew, and keeps it.
    fn part(&self, part: Update, _: Option<&()>) -> Option<Update> {
        Some(part)
    }
}

fn named(raw: &RawValue) -> Option<Name> {
    serde_json::from_str::<Named>(raw.get()).ok().map(|Named { metadata }| metadata)
}
