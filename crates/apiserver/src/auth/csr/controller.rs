//! The loop around `step`: every new or changed request is looked at once, all of them now and then.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use apiserver_core::auth::csr::serving::{self, Serving};
use apiserver_core::auth::csr::{Step, step};
use base::time::{Clock, Wall};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use x509::pem;

use crate::auth::pki::Ca;
use crate::objects::{Objects, Stored, places};
use apiserver_core::api_status::ApiStatus;
use apiserver_core::auth::authz::Authorizer;
use apiserver_core::doc;
use serde_json::Value;
use store::{ChangeKind, Expect, Watch, WatchError};

const SWEEP: Duration = Duration::from_secs(600);
/// Before a request is looked at again whose Node does not yet say where it is.
const SOON: Duration = Duration::from_secs(1);

/// How following the requests ended.
enum Followed {
    Over(WatchError),
    /// One is to be looked at again soon.
    Waiting,
}

/// Runs until the store closes.
pub async fn run(objects: Objects, authorizer: Arc<Authorizer>, ca: Arc<Ca>, clock: Arc<dyn Clock>) {
    loop {
        let revision = objects.store().revision();
        let swept = sweep(&objects, &authorizer, &ca, clock.now().wall).await;
        if let Err(api_status) = &swept {
            tracing::warn!(error = %api_status.message, "looking through signing requests failed");
        }
        let prefix = places::SIGNING_REQUESTS.prefix("");
        let Ok(mut watch) = objects.store().watch(&prefix, revision) else { continue };
        let pause = if swept.unwrap_or(false) { SOON } else { SWEEP };
        let until = tokio::time::Instant::now() + pause;
        match tokio::time::timeout_at(until, follow(&objects, &authorizer, &ca, &clock, &mut watch)).await {
            // A sweep is due, or the watch fell behind: both begin again.
            Err(_) | Ok(Followed::Over(WatchError::Compacted(_))) => {}
            Ok(Followed::Waiting) => tokio::time::sleep(SOON).await,
            Ok(Followed::Over(WatchError::Fault(_))) => return,
        }
    }
}

/// Looks at all requests once. Says whether one is to be looked at again soon.
pub async fn sweep(
    objects: &Objects,
    authorizer: &Authorizer,
    ca: &Ca,
    now: Wall,
) -> Result<bool, ApiStatus> {
    let mut waits = false;
    for stored in objects.list(places::SIGNING_REQUESTS, "").await? {
        waits |= handle(objects, authorizer, ca, stored, now).await?;
    }
    Ok(waits)
}

async fn follow(
    objects: &Objects,
    authorizer: &Authorizer,
    ca: &Ca,
    clock: &Arc<dyn Clock>,
    watch: &mut Watch,
) -> Followed {
    loop {
        let change = match watch.next().await {
            Ok(change) => change,
            Err(error) => return Followed::Over(error),
        };
        if change.kind == ChangeKind::Deleted {
            continue;
        }
        let (_, name) = places::SIGNING_REQUESTS.split(&change.key);
        // Read again: the change may be old by now.
        let outcome = match objects.find(places::SIGNING_REQUESTS, "", name).await {
            Ok(Some(stored)) => handle(objects, authorizer, ca, stored, clock.now().wall).await,
            Ok(None) => Ok(false),
            Err(api_status) => Err(api_status),
        };
        match outcome {
            Ok(true) => return Followed::Waiting,
            Ok(false) => {}
            Err(api_status) => {
                tracing::warn!(request = name, error = %api_status.message, "handling a signing request failed");
            }
        }
    }
}

/// One step; a lost race shows up again as a change. Says whether it is to be looked at again soon.
async fn handle(
    objects: &Objects,
    authorizer: &Authorizer,
    ca: &Ca,
    Stored { object, rev }: Stored,
    now: Wall,
) -> Result<bool, ApiStatus> {
    let name = doc::text(&object, "metadata.name");
    if serving::is_open(&object) {
        let nodes = objects.list(places::NODES, "").await?;
        let nodes: Vec<Value> = nodes.into_iter().map(|stored| (*stored.object).clone()).collect();
        match serving::approve(&object, authorizer, &nodes, &own_addresses(objects).await?, now) {
            Serving::Approved(next) => {
                objects.put(places::SIGNING_REQUESTS, &next, Expect::Rev(rev)).await?;
                return Ok(false);
            }
            Serving::NotYet => return Ok(true),
            Serving::Left => {}
        }
    }
    match step(&object, authorizer, now) {
        Step::Nothing => {}
        Step::Sign(made) => {
            let (mut next, leaf) = *made;
            let certificate = ca.issue(&leaf).map_err(|e| ApiStatus::internal(e.to_string()))?;
            let certificate = STANDARD.encode(pem::encode("CERTIFICATE", &certificate));
            next["status"]["certificate"] = certificate.into();
            objects.put(places::SIGNING_REQUESTS, &next, Expect::Rev(rev)).await?;
        }
        Step::Write(next) => {
            objects.put(places::SIGNING_REQUESTS, &next, Expect::Rev(rev)).await?;
        }
        Step::Delete => {
            objects.delete(places::SIGNING_REQUESTS, "", name, Expect::Rev(rev)).await?;
        }
    }
    Ok(false)
}

/// Those by which Pods and others reach this server.
async fn own_addresses(objects: &Objects) -> Result<Vec<IpAddr>, ApiStatus> {
    let mut own = Vec::new();
    for (place, fields) in [(places::SERVICES, "spec.clusterIPs"), (places::ENDPOINTS, "subsets")] {
        let Some(found) = objects.find(place, "default", "kubernetes").await? else { continue };
        for value in doc::list(&found.object, fields) {
            let ends = doc::list(value, "addresses").iter().map(|address| doc::text(address, "ip"));
            own.extend(ends.chain(value.as_str()).filter_map(|text| text.parse::<IpAddr>().ok()));
        }
    }
    Ok(own)
}
