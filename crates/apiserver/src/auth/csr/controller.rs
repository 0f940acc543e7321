//! The loop around `step`: every new or changed request is looked at once, all of them now and then.

use std::sync::Arc;
use std::time::Duration;

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
use store::{ChangeKind, Expect, Watch, WatchError};

const SWEEP: Duration = Duration::from_secs(600);

/// Runs until the store closes.
pub async fn run(objects: Objects, authorizer: Arc<Authorizer>, ca: Arc<Ca>, clock: Arc<dyn Clock>) {
    loop {
        let revision = objects.store().revision();
        if let Err(api_status) = sweep(&objects, &authorizer, &ca, clock.now().wall).await {
            tracing::warn!(error = %api_status.message, "looking through signing requests failed");
        }
        let prefix = places::SIGNING_REQUESTS.prefix("");
        let Ok(mut watch) = objects.store().watch(&prefix, revision) else { continue };
        let until = tokio::time::Instant::now() + SWEEP;
        match tokio::time::timeout_at(until, follow(&objects, &authorizer, &ca, &clock, &mut watch)).await {
            // A sweep is due, or the watch fell behind: both begin again.
            Err(_) | Ok(WatchError::Compacted(_)) => {}
            Ok(WatchError::Fault(_)) => return,
        }
    }
}

/// Looks at all requests once.
pub async fn sweep(objects: &Objects, authorizer: &Authorizer, ca: &Ca, now: Wall) -> Result<(), ApiStatus> {
    for stored in objects.list(places::SIGNING_REQUESTS, "").await? {
        handle(objects, authorizer, ca, stored, now).await?;
    }
    Ok(())
}

async fn follow(
    objects: &Objects,
    authorizer: &Authorizer,
    ca: &Ca,
    clock: &Arc<dyn Clock>,
    watch: &mut Watch,
) -> WatchError {
    loop {
        let change = match watch.next().await {
            Ok(change) => change,
            Err(error) => return error,
        };
        if change.kind == ChangeKind::Deleted {
            continue;
        }
        let (_, name) = places::SIGNING_REQUESTS.split(&change.key);
        // Read again: the change may be old by now.
        let outcome = match objects.find(places::SIGNING_REQUESTS, "", name).await {
            Ok(Some(stored)) => handle(objects, authorizer, ca, stored, clock.now().wall).await,
            Ok(None) => Ok(()),
            Err(api_status) => Err(api_status),
        };
        if let Err(api_status) = outcome {
            tracing::warn!(request = name, error = %api_status.message, "handling a signing request failed");
        }
    }
}

/// One step; a lost race shows up again as a change.
async fn handle(
    objects: &Objects,
    authorizer: &Authorizer,
    ca: &Ca,
    Stored { object, rev }: Stored,
    now: Wall,
) -> Result<(), ApiStatus> {
    let name = doc::text(&object, "metadata.name");
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
    Ok(())
}
