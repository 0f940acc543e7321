//! What Pods are told of the volumes they wait for.

use std::sync::Arc;

use super::look::{Claimed, Look, Place, Wanted};
use crate::object::Object;
use crate::plan::Event;

const FAILED: &str = "FailedAttachVolume";

pub(super) fn attached(wanted: &Wanted) -> Vec<Event> {
    // The space at the end is upstream's.
    let message = format!("AttachVolume.Attach succeeded for volume {:?} ", wanted.claimed.name);
    let event = |pod: &Arc<Object>| Event::normal(pod, "SuccessfulAttachVolume", message.clone());
    wanted.pods.iter().map(event).collect()
}

pub(super) fn failed(wanted: &Wanted, why: &str) -> Vec<Event> {
    let message = format!("AttachVolume.Attach failed for volume {:?} : {why}", wanted.claimed.name);
    wanted.pods.iter().map(|pod| Event::warning(pod, FAILED, message.clone())).collect()
}

/// The volume is, or may be, on another Node. Names of Pods are told in their own namespace only.
pub(super) fn elsewhere(look: &Look, place: &Place, wanted: &Wanted) -> Vec<Event> {
    let (volume, node) = place;
    let others: Vec<&Arc<Object>> = look
        .wanted
        .iter()
        .filter(|((other, at), _)| other == volume && at != node)
        .flat_map(|(_, wanted)| &wanted.pods)
        .filter(|pod| {
            let at: Arc<str> = (*pod.meta.node).into();
            let place = (volume.clone(), at);
            look.attachments.contains_key(&place) || look.is_reported(&place)
        })
        .collect();
    wanted.pods.iter().map(|pod| waits(pod, &wanted.claimed, &others)).collect()
}

fn waits(pod: &Arc<Object>, claimed: &Claimed, others: &[&Arc<Object>]) -> Event {
    let near: Vec<&str> = others
        .iter()
        .filter(|other| other.meta.namespace == pod.meta.namespace)
        .map(|other| &*other.meta.name)
        .collect();
    let far = others.len() - near.len();
    let why = match (near.as_slice(), far) {
        ([], 0) => "Volume is already exclusively attached to one node, waiting on detach before it can be attached to \
                    another node"
            .to_owned(),
        ([], far) => format!("Volume is already used by {far} pod(s) in different namespaces"),
        (near, 0) => format!("Volume is already used by pod(s) {}", near.join(", ")),
        (near, far) => {
            format!("Volume is already used by pod(s) {} and {far} pod(s) in different namespaces", near.join(", "))
        }
    };
    Event::warning(pod, FAILED, format!("Waiting for detach for volume {:?} {why}", claimed.name))
}
