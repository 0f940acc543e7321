//! What may change what is attached where. Heartbeats of Nodes and the daily life of Pods do not.

use serde_json::Value;

use super::look::in_use;
use super::uses_claims;
use crate::cache::Change;
use crate::controller::{Key, Wakes, Watch};
use crate::object::Object;
use crate::resource::{
    CSI_DRIVERS, NODES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS, VOLUME_ATTACHMENTS,
};
use crate::view::View;
use crate::volume::is_over;

pub(super) const WATCHES: &[Watch] = &[
    Watch { resource: PODS, keys: pods },
    Watch { resource: NODES, keys: nodes },
    Watch { resource: VOLUME_ATTACHMENTS, keys: always },
    Watch { resource: PERSISTENT_VOLUME_CLAIMS, keys: claims },
    Watch { resource: PERSISTENT_VOLUMES, keys: volumes },
    Watch { resource: CSI_DRIVERS, keys: always },
];

fn always(_: &Change, _: &dyn View, wakes: &mut Wakes) {
    wakes.add(Key::all());
}

fn pods(change: &Change, _: &dyn View, wakes: &mut Wakes) {
    let needs =
        |pod: Option<&std::sync::Arc<Object>>| pod.is_some_and(|pod| uses_claims(pod) && !is_over(pod));
    if needs(change.old.as_ref()) != needs(change.new.as_ref()) {
        wakes.add(Key::all());
    }
}

fn nodes(change: &Change, _: &dyn View, wakes: &mut Wakes) {
    let terms = |node: &Value| {
        let status = &node["status"];
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let ready =
            conditions.into_iter().find(|one| one["type"] == "Ready").map(|one| one["status"].clone());
        let (taints, attached) = (node["spec"]["taints"].clone(), status["volumesAttached"].clone());
        (in_use(node), attached, ready, taints, node["metadata"]["annotations"].clone())
    };
    let terms = |node: &Option<std::sync::Arc<Object>>| node.as_ref().map(|node| terms(&node.value()));
    if terms(&change.old) != terms(&change.new) {
        wakes.add(Key::all());
    }
}

/// Claims that become bound.
fn claims(change: &Change, _: &dyn View, wakes: &mut Wakes) {
    let is_bound = |claim: &std::sync::Arc<Object>| claim.value()["status"]["phase"] == "Bound";
    let was = change.old.as_ref().is_some_and(is_bound);
    if was != change.new.as_ref().is_some_and(is_bound) {
        wakes.add(Key::all());
    }
}

fn volumes(change: &Change, _: &dyn View, wakes: &mut Wakes) {
    let claim = |volume: &Option<std::sync::Arc<Object>>| {
        let value = volume.as_ref().map(|volume| volume.value())?;
        value["spec"]["csi"].is_object().then(|| value["spec"]["claimRef"]["uid"].clone())
    };
    if claim(&change.old) != claim(&change.new) {
        wakes.add(Key::all());
    }
}
