//! From the API server to the loop: Services, EndpointSlices, this Node and ServiceCIDRs.

use std::time::Duration;

use base::rng::Rng;
use client::{Client, Event, Piece, Read, Resource, Watcher};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use proxy_core::objects::{Family, NodeView};
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

use crate::metrics::Metrics;
use crate::{Listed, Update};

/// Services that this proxy serves: not given to another one, and with an address.
const SERVICES: &str = "!service.kubernetes.io/service-proxy-name";
const WITH_ADDRESS: &str = "spec.clusterIP!=None";
/// Slices of Services that have an address.
const SLICES: &str = "!service.kubernetes.io/headless";
/// A server that knows no ServiceCIDRs, or does not show them, does not keep us from starting.
const CIDR_PATIENCE: Duration = Duration::from_secs(5);

/// What is known of this Node; `None` before it was first seen.
pub type Seen = watch::Receiver<Option<NodeView>>;

/// What the watches share.
#[derive(Clone, Debug)]
pub struct Feed {
    pub client: Client,
    pub news: mpsc::Sender<Update>,
    pub metrics: Arc<Metrics>,
}

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

// === impl Feed ===

impl Feed {
    /// Follows this Node. What it says goes to the loop and into the returned cell.
    pub fn watch_node(&self, name: &str, rng: Rng) -> Seen {
        let (seen, heard) = watch::channel(None);
        let mut resource = Resource::new("/api/v1/nodes");
        resource.field_selector = format!("metadata.name={name}");
        let mut watcher = Watcher::new(self.client.clone(), resource, rng);
        let feed = self.clone();
        tokio::spawn(async move {
            loop {
                let update = match watcher.next().await {
                    // A Node that was deleted under us is still our machine: what it last said holds.
                    Event::Listed(items) => items.first().and_then(|raw| feed.read_node(raw, &seen)),
                    Event::Applied(raw) => feed.read_node(&raw, &seen),
                    Event::Deleted(_) => {
                        tracing::warn!("this Node was deleted");
                        None
                    }
                };
                let sent = match update {
                    None => feed.news.send(Update::NoNode).await,
                    Some(node) => {
                        seen.send_replace(Some(NodeView::read(&node)));
                        feed.news.send(Update::Node(Box::new(node))).await
                    }
                };
                if sent.is_err() {
                    return;
                }
            }
        });
        heard
    }

    /// Follows the ranges of Service addresses; returns when they were listed, or after a while.
    pub async fn watch_service_cidrs(&self, rng: Rng) {
        let resource = Resource::new("/apis/networking.k8s.io/v1/servicecidrs");
        let mut watcher = Watcher::new(self.client.clone(), resource, rng);
        let first = tokio::time::timeout(CIDR_PATIENCE, watcher.next()).await;
        let feed = self.clone();
        let mut known = BTreeSet::new();
        if let Ok(event) = first {
            feed.tell_service_cidrs(event, &mut known).await;
        }
        tokio::spawn(async move {
            while !feed.news.is_closed() {
                let event = watcher.next().await;
                feed.tell_service_cidrs(event, &mut known).await;
            }
        });
    }

    /// Half of a Node is better than none, and no better than what is known.
    fn read_node(&self, raw: &RawValue, seen: &watch::Sender<Option<NodeView>>) -> Option<Node> {
        match self.client.read::<Node>(raw) {
            Read::Whole(node) => Some(node),
            Read::Part(node) => seen.borrow().is_none().then_some(node),
            Read::Nothing => None,
        }
    }

    async fn tell_service_cidrs(&self, event: Event, known: &mut BTreeSet<String>) {
        let (applied, gone) = match event {
            Event::Listed(items) => {
                let now: BTreeSet<String> = items.iter().filter_map(|raw| Some(named(raw)?.name)).collect();
                // With one that cannot be named, nobody knows what is gone.
                let is_whole = now.len() == items.len();
                let gone = known.difference(&now).filter(|_| is_whole).cloned().collect();
                if is_whole {
                    *known = now;
                } else {
                    known.extend(now);
                }
                (items, gone)
            }
            Event::Applied(raw) => {
                known.extend(named(&raw).map(|named| named.name));
                (vec![raw], Vec::new())
            }
            Event::Deleted(raw) => {
                let gone: Vec<String> = named(&raw).into_iter().map(|named| named.name).collect();
                known.retain(|name| !gone.contains(name));
                (Vec::new(), gone)
            }
        };
        for raw in &applied {
            let update = match self.client.read::<ServiceCIDR>(raw) {
                Read::Whole(range) => Update::ServiceCidr(Box::new(range)),
                Read::Part(range) => Update::PartOfServiceCidr(Box::new(range)),
                Read::Nothing => continue,
            };
            let _ = self.news.send(update).await;
        }
        for name in gone {
            let _ = self.news.send(Update::NoServiceCidr { name }).await;
        }
    }

    /// Follows Services until nobody listens.
    pub fn watch_services(&self, rng: Rng) {
        let mut resource = Resource::new("/api/v1/services");
        (resource.label_selector, resource.field_selector) = (SERVICES.to_owned(), WITH_ADDRESS.to_owned());
        let mut watcher = Watcher::new(self.client.clone(), resource, rng);
        let feed = self.clone();
        tokio::spawn(async move {
            while !feed.news.is_closed() {
                let update = match watcher.next_piece().await {
                    Piece::Begin => Some(Update::Begin(Listed::Services)),
                    Piece::End => Some(Update::End(Listed::Services)),
                    Piece::Item(raw) | Piece::Applied(raw) => Some(match feed.client.read::<Service>(&raw) {
                        Read::Whole(service) => Update::Service(Box::new(service)),
                        Read::Part(service) => Update::PartOfService(Box::new(service)),
                        Read::Nothing => Update::Nameless(Listed::Services),
                    }),
                    Piece::Deleted(raw) => named(&raw).map(|Name { name, namespace }| Update::NoService {
                        namespace: namespace.unwrap_or_default(),
                        name,
                    }),
                };
                if matches!(update, Some(Update::Nameless(_))) {
                    watcher.list_again();
                }
                if !matches!(update, Some(Update::Begin(_) | Update::End(_))) {
                    feed.metrics.service_changes.inc([]);
                }
                feed.tell(update).await;
            }
        });
    }

    /// Follows EndpointSlices until nobody listens.
    pub fn watch_slices(&self, rng: Rng) {
        let mut resource = Resource::new("/apis/discovery.k8s.io/v1/endpointslices");
        resource.label_selector = SLICES.to_owned();
        let mut watcher = Watcher::new(self.client.clone(), resource, rng);
        let feed = self.clone();
        tokio::spawn(async move {
            while !feed.news.is_closed() {
                let update = match watcher.next_piece().await {
                    Piece::Begin => Some(Update::Begin(Listed::Slices)),
                    Piece::End => Some(Update::End(Listed::Slices)),
                    Piece::Item(raw) | Piece::Applied(raw) => {
                        Some(match feed.client.read::<EndpointSlice>(&raw) {
                            Read::Whole(slice) => Update::Slice(Box::new(slice)),
                            Read::Part(slice) => Update::PartOfSlice(Box::new(slice)),
                            Read::Nothing => Update::Nameless(Listed::Slices),
                        })
                    }
                    Piece::Deleted(raw) => named(&raw).map(|Name { name, namespace }| Update::NoSlice {
                        namespace: namespace.unwrap_or_default(),
                        name,
                    }),
                };
                if matches!(update, Some(Update::Nameless(_))) {
                    watcher.list_again();
                }
                if !matches!(update, Some(Update::Begin(_) | Update::End(_))) {
                    feed.metrics.endpoint_changes.inc([]);
                }
                feed.tell(update).await;
            }
        });
    }

    async fn tell(&self, update: Option<Update>) {
        if let Some(update) = update {
            let now = Timestamp::now().as_millisecond() as f64 / 1000.0;
            Family::BOTH.iter().for_each(|family| self.metrics.queued_at.set([family.name()], now));
            let _ = self.news.send(update).await;
        }
    }
}

fn named(raw: &RawValue) -> Option<Name> {
    serde_json::from_str::<Named>(raw.get()).ok().map(|Named { metadata }| metadata)
}
