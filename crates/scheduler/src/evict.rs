//! Pods are told to make way for another.

use std::sync::Arc;

use client::{Client, ClientError, Request};
use jiff::Timestamp;
use scheduler_core::Name;
use scheduler_core::pod::Pod;
use serde_json::json;

use crate::events::{Notice, Recorder};
use crate::status;

/// Tells every victim; the last after all others, so that its end finds the room free.
pub(crate) async fn evict(
    client: &Client,
    recorder: &Recorder,
    preemptor: &Arc<Pod>,
    node: &Name,
    victims: &[Arc<Pod>],
) -> Result<(), ClientError> {
    let Some((last, others)) = victims.split_last() else {
        return Ok(());
    };
    for victim in others {
        evict_one(client, recorder, preemptor, node, victim).await?;
    }
    evict_one(client, recorder, preemptor, node, last).await
}

async fn evict_one(
    client: &Client,
    recorder: &Recorder,
    preemptor: &Arc<Pod>,
    node: &Name,
    victim: &Arc<Pod>,
) -> Result<(), ClientError> {
    // One that is going already has been told.
    if victim.is_terminating {
        return Ok(());
    }
    let condition = json!({
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": format!("{}: preempting to accommodate a higher priority pod", preemptor.scheduler),
        "lastProbeTime": null,
        "lastTransitionTime": format!("{:.0}", Timestamp::now()),
    });
    let patch = json!({"metadata": {"uid": &*victim.uid}, "status": {"conditions": [condition]}});
    forgive_absence(status::send(client, victim, &patch).await)?;
    let path = format!("/api/v1/namespaces/{}/pods/{}", victim.key.namespace, victim.key.name);
    let options =
        json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": &*victim.uid}});
    forgive_absence(client.ask_bytes(Request::delete(path, options.to_string())).await.map(|_| ()))?;
    recorder.tell(Notice {
        is_warning: false,
        reason: "Preempted",
        action: "Preempting",
        note: format!("Preempted by pod {} on node {node}", preemptor.uid),
        about: victim.clone(),
        related: Some(preemptor.clone()),
        scheduler: preemptor.scheduler.to_string(),
    });
    Ok(())
}

/// A Pod that is gone has made way; so has one whose name belongs to another now.
fn forgive_absence(answer: Result<(), ClientError>) -> Result<(), ClientError> {
    match answer {
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        other => other,
    }
}
