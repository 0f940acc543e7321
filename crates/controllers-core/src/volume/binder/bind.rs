//! The writes that make and undo a binding. Each is told apart from the next by what is there, so any of them may be the last.

use serde_json::{Value, json};

use super::newest::Newest;
use super::terms::{BIND_COMPLETED, BOUND_BY_CONTROLLER, Doc, annotate, quantity};
use crate::plan::{Act, Event, Plan, Step};
use crate::volume::set;

/// What the file system had before the volume was made bigger.
const PRE_RESIZE_CAPACITY: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";

pub(super) fn write(act: Act) -> Plan {
    Plan::of(Step::in_turn([act]))
}

/// The next of the four writes: volume, its phase, claim, its status. Nothing: both say that they belong together.
pub(super) fn bind(volume: &Doc, claim: &Doc) -> Plan {
    if let Some(act) = volume_to_claim(volume, claim) {
        return write(act);
    }
    if let Some(act) = volume_phase(volume, "Bound", "") {
        return write(act);
    }
    if let Some(act) = claim_to_volume(claim, volume) {
        return write(act);
    }
    match claim_status(claim, "Bound", Some(volume)) {
        Ok(act) => act.map(write).unwrap_or_default(),
        Err(why) => Plan::failed(why),
    }
}

fn volume_to_claim(volume: &Doc, claim: &Doc) -> Option<Act> {
    let meta = &claim.object.meta;
    let known = volume.claim_ref();
    let is_meant = known.as_ref().is_some_and(|known| known.is(&claim.object));
    let is_bound = is_meant && known.is_some_and(|known| known.uid == *meta.uid);
    let says_so = is_meant || volume.annotation(BOUND_BY_CONTROLLER).is_some();
    if is_bound && says_so {
        return None;
    }
    Some(Act::update(&volume.object, |value| {
        if !is_bound {
            let claim = json!({
                "kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": &*meta.namespace,
                "name": meta.name, "uid": meta.uid, "resourceVersion": meta.resource_version.to_string(),
            });
            set(value, &["spec", "claimRef"], claim);
        }
        if !says_so {
            annotate(value, BOUND_BY_CONTROLLER, "yes");
        }
    }))
}

fn claim_to_volume(claim: &Doc, volume: &Doc) -> Option<Act> {
    let is_named = claim.volume_name() == &*volume.object.meta.name;
    if is_named && claim.annotation(BIND_COMPLETED).is_some() {
        return None;
    }
    let is_ours = !is_named && claim.annotation(BOUND_BY_CONTROLLER).is_none();
    Some(Act::update(&claim.object, |value| {
        set(value, &["spec", "volumeName"], json!(volume.object.meta.name));
        if is_ours {
            annotate(value, BOUND_BY_CONTROLLER, "yes");
        }
        if claim.annotation(BIND_COMPLETED).is_none() {
            annotate(value, BIND_COMPLETED, "yes");
        }
    }))
}

pub(super) fn volume_phase(volume: &Doc, phase: &str, message: &str) -> Option<Act> {
    if volume.phase() == phase {
        return None;
    }
    let mut whole = volume.value.clone();
    set(&mut whole, &["status", "phase"], json!(phase));
    match (message, whole["status"].as_object_mut()) {
        ("", Some(status)) => _ = status.remove("message"),
        _ => set(&mut whole, &["status", "message"], json!(message)),
    }
    Some(Act::replace_status(&volume.object, &whole))
}

/// The phase with a word about it, told when it has come to it and not at every look.
pub(super) fn volume_phase_with_event(
    newest: Newest<'_>,
    volume: &Doc,
    phase: &str,
    reason: &str,
    message: &str,
) -> Plan {
    match volume_phase(volume, phase, message) {
        Some(act) => write(act),
        None if newest.just_wrote(&volume.object, "status") => {
            Plan::nothing().event(Event::warning(&volume.object, reason, message))
        }
        None => Plan::nothing(),
    }
}

/// None: it says so already.
pub(super) fn claim_status(claim: &Doc, phase: &str, volume: Option<&Doc>) -> Result<Option<Act>, String> {
    let mut whole = claim.value.clone();
    let was = claim.phase();
    set(&mut whole, &["status", "phase"], json!(phase));
    let Some(volume) = volume else {
        ["accessModes", "capacity", "currentVolumeAttributesClassName"]
            .iter()
            .for_each(|field| remove_status(&mut whole, field));
        return Ok(changed(claim, &whole));
    };
    if volume.value["spec"]["accessModes"].is_array() {
        set(&mut whole, &["status", "accessModes"], volume.value["spec"]["accessModes"].clone());
    }
    // Only while it becomes Bound: later the file system may rightly be smaller than the volume.
    if was != phase {
        let capacity = &volume.value["spec"]["capacity"];
        let Some(storage) = quantity(&capacity["storage"]) else {
            return Err(format!(
                "PersistentVolume {:?} is without a storage capacity",
                volume.object.meta.name
            ));
        };
        let before = volume.annotation(PRE_RESIZE_CAPACITY);
        match before.filter(|text| quantity(&json!(text)).is_some()) {
            Some(before) => set(&mut whole, &["status", "capacity", "storage"], json!(before)),
            None if quantity(&whole["status"]["capacity"]["storage"]) == Some(storage) => {}
            None => set(&mut whole, &["status", "capacity"], capacity.clone()),
        }
        if was == "Pending" {
            const CLASS: &str = "currentVolumeAttributesClassName";
            match volume.attributes_class() {
                "" => remove_status(&mut whole, CLASS),
                class => set(&mut whole, &["status", CLASS], json!(class)),
            }
        }
    }
    Ok(changed(claim, &whole))
}

fn remove_status(whole: &mut Value, field: &str) {
    if let Some(status) = whole["status"].as_object_mut() {
        status.remove(field);
    }
}

fn changed(claim: &Doc, whole: &Value) -> Option<Act> {
    (whole["status"] != claim.value["status"]).then(|| Act::replace_status(&claim.object, whole))
}

/// Takes back what we have done; of what its maker wrote only the UID goes, and the volume stays set aside.
pub(super) fn unbind(volume: &Doc) -> Plan {
    let is_ours = volume.annotation(BOUND_BY_CONTROLLER).is_some();
    write(Act::update(&volume.object, |value| {
        if !is_ours {
            if let Some(claim) = value["spec"]["claimRef"].as_object_mut() {
                claim.remove("uid");
            }
            return;
        }
        if let Some(spec) = value["spec"].as_object_mut() {
            spec.remove("claimRef");
        }
        if let Some(annotations) = value["metadata"]["annotations"].as_object_mut() {
            annotations.remove(BOUND_BY_CONTROLLER);
        }
    }))
}
