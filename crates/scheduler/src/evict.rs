//! Pods are told to make way for another.

use std::sync::Arc;

use client::{Client, ClientError, Request};
use jiff::Timestamp;
use scheduler_core::Name;
use scheduler_core::pod::Pod;
use serde_json::json;
use tokio::sync::{Semaphore, mpsc};

use crate::events::{Notice, Recorder};
use crate::status;

/// Pods told at a time.
const AT_ONCE: usize = 16;

/// For whom Pods make way, and where.
#[derive(Clone, Debug)]
pub(crate) struct Eviction {
    pub(crate) client: Client,
    pub(crate) recorder: Recorder,
    pub(crate) preemptor: Arc<Pod>,
    pub(crate) node: Name,
}

/// Tells every victim; the last after all others, so that its end finds the room free.
pub(crate) async fn evict(eviction: &Eviction, mut victims: Vec<Arc<Pod>>) -> Result<(), ClientError> {
    let Some(last) = victims.pop() else { return Ok(()) };
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let (answers, mut told) = mpsc::channel(victims.len().max(1));
    for victim in victims {
        let Ok(place) = places.clone().acquire_owned().await else { break };
        let (eviction, answers) = (eviction.clone(), answers.clone());
        supervise::spawn("preemption of a Pod", async move {
            let answer = eviction.evict_one(&victim).await;
            drop(place);
            let _ = answers.send(answer).await;
        });
    }
    drop(answers);
    while let Some(answer) = told.recv().await {
        answer?;
    }
    eviction.evict_one(&last).await
}

impl Eviction {
    async fn evict_one(&self, victim: &Arc<Pod>) -> Result<(), ClientError> {
        let client = &self.client;
        let condition = json!({
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": format!("{}: preempting to accommodate a higher priority pod", self.preemptor.scheduler),
            "lastProbeTime": null,
            "lastTransitionTime": format!("{:.0}", Timestamp::now()),
        });
        let patch = json!({"metadata": {"uid": &*victim.uid}, "status": {"conditions": [condition]}});
        forgive_absence(status::send(client, victim, &patch).await)?;
        let path = format!("/api/v1/namespaces/{}/pods/{}", victim.key.namespace, victim.key.name);
        let options =
            json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": &*victim.uid}});
        forgive_absence(client.ask_bytes(Request::delete(path, options.to_string())).await.map(|_| ()))?;
        self.tell(victim, false);
        Ok(())
    }

    /// What users read. `in_memory`: the victim was on no node yet, and goes back to the queue.
    pub(crate) fn tell(&self, victim: &Arc<Pod>, in_memory: bool) {
        let Eviction { recorder, preemptor, node, .. } = self;
        let suffix = if in_memory { " (in kube-scheduler memory)." } else { "" };
        recorder.tell(Notice {
            is_warning: false,
            reason: "Preempted",
            action: "Preempting",
            note: format!("Preempted by pod {} on node {node}{suffix}", preemptor.uid),
            about: victim.clone(),
            related: Some(preemptor.clone()),
            scheduler: preemptor.scheduler.to_string(),
        });
    }
}

/// A Pod that is gone has made way; so has one whose name belongs to another now.
fn forgive_absence(answer: Result<(), ClientError>) -> Result<(), ClientError> {
    match answer {
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        other => other,
    }
}
