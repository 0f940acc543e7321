//! What becomes of a volume that nobody claims any more: kept, deleted by who made it, or scrubbed by a Pod and offered again.

use std::collections::HashMap;
use std::sync::Arc;

use api::config::controllers::Recycler;
use serde_json::{Value, json};

use super::bind::{unbind, volume_phase_with_event, write};
use super::newest::Newest;
use super::terms::{Doc, MIGRATED_TO, PROVISIONED_BY, quantity};
use super::users;
use crate::object::Object;
use crate::plan::{Act, Event, Plan};
use crate::resource::{PERSISTENT_VOLUME_CLAIMS, PODS};
use crate::terms::Phase;

/// Where the Pods that scrub run.
pub(super) const NAMESPACE: &str = "default";
const NAME: &str = "recycler-for-";
const IMAGE: &str = "registry.k8s.io/build-image/debian-base:bookworm-v1.0.6";
const SCRUB: &str =
    "test -e /scrub && find /scrub -mindepth 1 -delete && test -z \"$(ls -A /scrub)\" || exit 1";
const GIB: i64 = 1 << 30;

/// Scrubbing under way. A Pod of the name that is not known here may be anybody's, and proves nothing.
#[derive(Debug)]
pub(super) struct Recycling {
    settings: Recycler,
    by_volume: HashMap<Box<str>, Stage>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    /// A Pod was asked for.
    Starting,
    /// By the UID of the Pod.
    Running(Box<str>),
    Failed(String),
    Scrubbed,
}

// === impl Recycling ===

impl Recycling {
    pub(super) fn new(settings: Recycler) -> Recycling {
        Recycling { settings, by_volume: HashMap::new() }
    }

    pub(super) fn forget(&mut self, volume: &str) {
        self.by_volume.remove(volume);
    }

    /// The answer to what was asked for last.
    pub(super) fn made(&mut self, volume: &str, pod: Option<&Object>) {
        if self.by_volume.get(volume) != Some(&Stage::Starting) {
            return;
        }
        match pod {
            Some(pod) => self.by_volume.insert(volume.into(), Stage::Running(pod.meta.uid.clone())),
            None => self.by_volume.remove(volume),
        };
    }
}

/// The volume of a Pod that scrubs.
pub(super) fn volume_of(pod: &Object) -> Option<&str> {
    pod.meta.name.strip_prefix(NAME).filter(|_| *pod.meta.namespace == *NAMESPACE)
}

pub(super) fn reclaim(newest: Newest<'_>, recycling: &mut Recycling, volume: &Doc) -> Plan {
    if volume.annotation(MIGRATED_TO).is_some_and(|driver| !driver.is_empty()) {
        return Plan::nothing();
    }
    match volume.value["spec"]["persistentVolumeReclaimPolicy"].as_str() {
        Some("Retain") => Plan::nothing(),
        Some("Delete") => delete(newest, volume),
        Some("Recycle") => recycle(newest, recycling, volume),
        _ => volume_phase_with_event(
            newest,
            volume,
            "Failed",
            "VolumeUnknownReclaimPolicy",
            "Volume has unrecognized PersistentVolumeReclaimPolicy",
        ),
    }
}

/// Who made the volume deletes it. What nobody made, nobody can delete.
fn delete(newest: Newest<'_>, volume: &Doc) -> Plan {
    let spec = &volume.value["spec"];
    let why = match volume.annotation(PROVISIONED_BY) {
        Some(by) if !by.is_empty() && !by.starts_with("kubernetes.io/") => return Plan::nothing(),
        Some(by) if !by.is_empty() && by != "kubernetes.io/host-path" => {
            format!("no volume plugin matched name: {by}")
        }
        _ if spec["csi"].is_object() => return Plan::nothing(),
        _ => match spec["hostPath"]["path"].as_str() {
            // Upstream deletes directories below /tmp of the machine it runs on, whichever Node they were used on.
            Some(path) if path.starts_with("/tmp/") => {
                format!("host_path deleter is not supported, delete {path} and the volume")
            }
            Some(path) => format!("host_path deleter only supports /tmp/.+ but received provided {path}"),
            None => format!(
                "error getting deleter volume plugin for volume {:?}: no deletable volume plugin matched",
                volume.object.meta.name
            ),
        },
    };
    volume_phase_with_event(newest, volume, "Failed", "VolumeFailedDelete", &why)
}

fn recycle(newest: Newest<'_>, recycling: &mut Recycling, volume: &Doc) -> Plan {
    let name = &volume.object.meta.name;
    match recycling.by_volume.get(name) {
        Some(Stage::Scrubbed) => {
            let told = Event::normal(&volume.object, "VolumeRecycled", "Volume recycled");
            return if volume.claim_ref().is_some() { unbind(volume).event(told) } else { Plan::nothing() };
        }
        Some(Stage::Failed(why)) => {
            let why = format!("Recycle failed: {why}");
            let plan = volume_phase_with_event(newest, volume, "Failed", "VolumeFailedRecycle", &why);
            if !plan.has_acts() {
                recycling.forget(name);
            }
            return plan;
        }
        _ => {}
    }
    let meant = volume.claim_ref();
    let (namespace, claim) = meant.map(|meant| (meant.namespace, meant.name)).unwrap_or_default();
    let pods = users::all(newest.view, &namespace, &claim);
    // A claim of the name is another one, and the Pods are its own.
    if !pods.is_empty() && newest.get(PERSISTENT_VOLUME_CLAIMS, &namespace, &claim).is_none() {
        let message = format!("Volume is used by pods: {}", pods.join(","));
        return Plan::nothing().event(Event::normal(&volume.object, "VolumeFailedRecycle", message));
    }
    let Some(scrubber) = scrubber(&recycling.settings, volume) else {
        let why = "No recycler plugin found for the volume!";
        return volume_phase_with_event(newest, volume, "Failed", "VolumeFailedRecycle", why);
    };
    let pod = newest.view.get(PODS, NAMESPACE, &format!("{NAME}{name}"));
    match (recycling.by_volume.get(name).cloned(), pod) {
        (None, None) => {
            recycling.by_volume.insert(name.clone(), Stage::Starting);
            write(Act::create(PODS, NAMESPACE, scrubber))
        }
        (Some(Stage::Running(uid)), Some(pod)) if pod.meta.uid == uid => follow(recycling, name, &pod),
        (Some(Stage::Running(_)), None) => {
            failed(recycling, name, "failed to recycle volume: recycler pod was deleted")
        }
        (_, Some(pod)) => {
            recycling
                .by_volume
                .insert(name.clone(), Stage::Failed("old recycler pod found, will retry later".into()));
            write(Act::delete(&pod))
        }
        (Some(_), None) => Plan::nothing(),
    }
}

/// A Pod that scrubs goes when it has ended, well or not.
fn follow(recycling: &mut Recycling, volume: &str, pod: &Arc<Object>) -> Plan {
    let status = &pod.value()["status"];
    let stage = match pod.pod().map(|terms| terms.phase) {
        Some(Phase::Succeeded) => Stage::Scrubbed,
        Some(Phase::Failed) => {
            let why = status["message"].as_str().filter(|why| !why.is_empty());
            let why = why.unwrap_or("pod failed, pod.Status.Message unknown");
            Stage::Failed(format!("failed to recycle volume: {why}"))
        }
        _ => return Plan::nothing(),
    };
    recycling.by_volume.insert(volume.into(), stage);
    write(Act::delete(pod))
}

fn failed(recycling: &mut Recycling, volume: &str, why: &str) -> Plan {
    recycling.by_volume.insert(volume.into(), Stage::Failed(why.to_owned()));
    Plan::nothing().again()
}

/// None: nobody knows how to scrub it.
fn scrubber(settings: &Recycler, volume: &Doc) -> Option<Value> {
    let spec = &volume.value["spec"];
    let (source, least, each) = match (&spec["hostPath"], &spec["nfs"]) {
        (path, _) if path.is_object() => {
            let source = json!({"name": "vol", "hostPath": {"path": path["path"]}});
            (source, settings.least_host_path, settings.each_gib_host_path)
        }
        (_, nfs) if nfs.is_object() => {
            let source = json!({"name": "vol", "nfs": {"server": nfs["server"], "path": nfs["path"]}});
            (source, settings.least_nfs, settings.each_gib_nfs)
        }
        _ => return None,
    };
    let size = quantity(&spec["capacity"]["storage"]).map_or(0, base::quantity::Quantity::value) / GIB;
    let deadline = (size.saturating_mul(i64::from(each))).max(i64::from(least));
    Some(json!({
        "metadata": {"name": format!("{NAME}{}", volume.object.meta.name), "namespace": NAMESPACE},
        "spec": {
            "activeDeadlineSeconds": deadline,
            "restartPolicy": "Never",
            "volumes": [source],
            "containers": [{
                "name": "pv-recycler", "image": IMAGE, "command": ["/bin/sh"], "args": ["-c", SCRUB],
                "volumeMounts": [{"name": "vol", "mountPath": "/scrub"}],
            }],
        },
    }))
}
