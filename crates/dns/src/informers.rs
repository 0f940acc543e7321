//! Watched objects go into the zone, a task for each resource.

use std::sync::Arc;
use std::time::Duration;

use base::rng::Rng;
use client::{Client, Piece, Resource, Watcher};
use dns_core::objects::{self, EndpointSlice, Named, Pod, Service};
use dns_core::zone::{Kind, Service as Served};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use supervise::Supervisor;

use crate::resolver::Resolver;

/// Kind, and where its objects are.
const WATCHED: &[(Kind, &str)] = &[
    (Kind::Services, "/api/v1/services"),
    (Kind::Slices, "/apis/discovery.k8s.io/v1/endpointslices"),
    (Kind::Namespaces, "/api/v1/namespaces"),
    (Kind::Pods, "/api/v1/pods"),
];

pub(crate) fn start(client: &Client, resolver: &Arc<Resolver>, tasks: &Supervisor, rng: &mut Rng) {
    for (kind, path) in WATCHED {
        let (client, resolver, rng) = (client.clone(), resolver.clone(), rng.child());
        // A task that panicked lists anew: what it left in the zone is put right by the list.
        tasks.restart(path, move || follow(*kind, path, client.clone(), resolver.clone(), rng.clone()));
    }
}

async fn follow(kind: Kind, path: &str, client: Client, resolver: Arc<Resolver>, mut rng: Rng) {
    let mut live = resolver.live();
    if kind == Kind::Pods {
        // Most never need them.
        let wanted = live.wait_for(|live| live.as_ref().is_some_and(|live| live.verifies_pods())).await;
        if wanted.is_err() {
            return;
        }
    }
    loop {
        let uses_names = live.borrow_and_update().as_ref().is_some_and(|live| live.uses_pod_names());
        if kind == Kind::Slices {
            resolver.zone_mut().keep_pod_names(uses_names);
        }
        let mut watcher = Watcher::new(client.clone(), Resource::new(path), rng.child());
        loop {
            tokio::select! {
                piece = watcher.next_piece() => take(kind, piece, &resolver),
                changed = live.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let now = live.borrow_and_update().as_ref().is_some_and(|live| live.uses_pod_names());
                    // Endpoints have other names from now on: all are read again.
                    if kind == Kind::Slices && now != uses_names {
                        break;
                    }
                }
            }
        }
    }
}

fn take(kind: Kind, piece: Piece, resolver: &Resolver) {
    let mut zone = resolver.zone_mut();
    match piece {
        Piece::Begin => return zone.begin(kind),
        Piece::Bookmark => return,
        Piece::End => {
            zone.end(kind);
            tracing::debug!(?kind, "listed");
        }
        Piece::Item(raw) | Piece::Applied(raw) => match kind {
            Kind::Services => _ = read::<Service>(kind, &raw).map(|object| zone.put_service(&object)),
            Kind::Namespaces => {
                _ = read::<Named>(kind, &raw).map(|object| zone.put_namespace(&object.metadata));
            }
            Kind::Pods => _ = read::<Pod>(kind, &raw).map(|object| zone.put_pod(&object)),
            Kind::Slices => {
                let Some(object) = read::<EndpointSlice>(kind, &raw) else { return };
                zone.put_slice(&object);
                let service =
                    object.metadata.labels.as_ref().and_then(|labels| labels.service_name.as_deref());
                let entry = service.and_then(|name| zone.service(name, object.metadata.namespace()));
                let is_headless = entry.is_some_and(|entry| entry.service == Some(Served::Headless));
                if is_headless && zone.has_synced() {
                    observe(&object.metadata, resolver);
                }
            }
        },
        Piece::Deleted(raw) => {
            if let Some(object) = read::<Named>(kind, &raw) {
                zone.remove(kind, object.metadata.namespace(), &object.metadata.name);
            }
        }
    }
    zone.set_serial(u32::try_from(jiff::Timestamp::now().as_second()).unwrap_or(u32::MAX));
}

fn read<O: DeserializeOwned>(kind: Kind, raw: &RawValue) -> Option<O> {
    let read = serde_json::from_str(raw.get());
    read.inspect_err(|error| tracing::warn!(?kind, %error, "an object cannot be read and has no names")).ok()
}

/// How long it took from the change in the cluster to here.
fn observe(metadata: &objects::Metadata, resolver: &Resolver) {
    let told = metadata.annotations.as_ref().and_then(|annotations| annotations.trigger_time.as_deref());
    let Some(told) = told.and_then(|text| text.parse::<jiff::Timestamp>().ok()) else { return };
    let took = Duration::try_from(jiff::Timestamp::now().duration_since(told)).unwrap_or_default();
    resolver.metrics.programming.observe_duration(["headless_with_selector"], took);
}
