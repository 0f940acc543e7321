//! Claims that ask for more than they have. Nothing here makes a volume bigger: who does is told, by an event or an annotation.

use base::quantity::Quantity;
use base::time::Now;
use serde_json::{Value, json};

use super::binder::migrated;
use crate::cache::Change;
use crate::controller::{Controller, Key, Retry, Row, Wakes, Watch};
use crate::object::Object;
use crate::plan::{Act, Done, Event, Outcome, PatchKind, Plan, Step};
use crate::resource::{PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES};
use crate::view::View;

pub(crate) const EXPAND: Row = Row {
    name: "persistentvolume-expander-controller",
    aliases: &["persistentvolume-expander"],
    identity: "expand-controller",
    event_source: "volume_expand",
    queue: "volume_expand",
    workers: |_| 10,
    retry: Retry::DEFAULT,
    is_on_by_default: true,
    watches: &[Watch { resource: PERSISTENT_VOLUME_CLAIMS, keys: grown }],
    reads: &[PERSISTENT_VOLUMES],
    is_single: false,
    make: |_| Box::new(Expand),
};

const RESIZER: &str = "volume.kubernetes.io/storage-resizer";
const PRE_RESIZE_CAPACITY: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";
const REASON: &str = "ExternalExpanding";

/// Sources of former times, by the plugins that served them.
const SOURCES: &[(&str, &str)] = &[
    ("awsElasticBlockStore", "kubernetes.io/aws-ebs"),
    ("azureDisk", "kubernetes.io/azure-disk"),
    ("azureFile", "kubernetes.io/azure-file"),
    ("cinder", "kubernetes.io/cinder"),
    ("gcePersistentDisk", "kubernetes.io/gce-pd"),
    ("portworxVolume", "kubernetes.io/portworx-volume"),
    ("vsphereVolume", "kubernetes.io/vsphere-volume"),
];

#[derive(Debug)]
struct Expand;

impl Controller for Expand {
    fn reconcile(&mut self, view: &dyn View, key: &Key, _now: Now) -> Plan {
        let Some(claim) = view.get(PERSISTENT_VOLUME_CLAIMS, &key.namespace, &key.name) else {
            return Plan::nothing();
        };
        let value = claim.value();
        let name = value["spec"]["volumeName"].as_str().unwrap_or_default();
        let Some(volume) = view.get(PERSISTENT_VOLUMES, "", name).map(|volume| volume.value()) else {
            return Plan::failed(format!("failed to get PV {name:?}: not found"));
        };
        let meant = &volume["spec"]["claimRef"];
        if meant["uid"] != *claim.meta.uid || meant["namespace"] != *claim.meta.namespace {
            return Plan::failed(format!("persistent Volume is not bound to PVC being updated : {key}"));
        }
        let resizes = volume["metadata"]["annotations"][PRE_RESIZE_CAPACITY].is_string();
        if request(&value) <= capacity(&value) && !resizes {
            return Plan::nothing();
        }
        let plugin = SOURCES.iter().find(|(source, _)| volume["spec"][*source].is_object());
        let Some((_, plugin)) = plugin else {
            let message = "waiting for an external controller to expand this PVC";
            return Plan::nothing().event(Event::normal(&claim, REASON, message));
        };
        let message =
            format!("CSI migration enabled for {plugin}; waiting for external resizer to expand the pvc");
        let plan = Plan::nothing().event(Event::normal(&claim, REASON, message));
        let driver = migrated(plugin).unwrap_or_default();
        if value["metadata"]["annotations"][RESIZER] == driver {
            return plan;
        }
        let patch = json!({"metadata": {
            "annotations": {RESIZER: driver}, "resourceVersion": claim.meta.resource_version.to_string(),
        }});
        plan.then(Step::in_turn([Act::patch_status(&claim, PatchKind::Strategic, &patch)]))
    }

    fn settle(&mut self, view: &dyn View, key: &Key, _now: Now, done: &Done) -> Plan {
        let claim = view.get(PERSISTENT_VOLUME_CLAIMS, &key.namespace, &key.name);
        match (claim, done.last().last()) {
            (Some(claim), Some((_, Outcome::Failed(refusal)))) => {
                let message = format!("error setting resizer annotation to pvc {key}, with error {refusal}");
                Plan::nothing().event(Event::warning(&claim, REASON, message))
            }
            _ => Plan::nothing(),
        }
    }
}

fn request(claim: &Value) -> Quantity {
    storage(&claim["spec"]["resources"]["requests"])
}

fn capacity(claim: &Value) -> Quantity {
    storage(&claim["status"]["capacity"])
}

fn storage(list: &Value) -> Quantity {
    serde_json::from_value(list["storage"].clone()).unwrap_or(Quantity::ZERO)
}

/// A bound claim that is new here, asks for more than before, or has got more.
fn grown(change: &Change, _: &dyn View, wakes: &mut Wakes) {
    let Some(new) = &change.new else { return };
    let now = new.value();
    let before = change.old.as_ref().map(|old: &std::sync::Arc<Object>| old.value());
    let has_grown = before.is_none_or(|old| request(&now) > request(&old) || capacity(&now) > capacity(&old));
    if now["status"]["phase"] == "Bound" && has_grown {
        wakes.add(Key::of(new));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Draft, World, at, draft, said};

    fn claim(asks: &str, has: &str) -> Draft {
        draft(PERSISTENT_VOLUME_CLAIMS, "c")
            .set("/spec/volumeName", json!("v"))
            .set("/spec/resources/requests/storage", json!(asks))
            .set("/status/capacity/storage", json!(has))
            .phase("Bound")
    }

    fn volume(source: &str) -> Draft {
        draft(PERSISTENT_VOLUMES, "v")
            .set("/spec/claimRef", json!({"namespace": "ns", "name": "c", "uid": "u-c"}))
            .set(&format!("/spec/{source}/driver"), json!("x"))
    }

    #[test]
    fn who_makes_a_volume_bigger_is_told() {
        let waits = "Normal ExternalExpanding: waiting for an external controller to expand this PVC";
        let migrated = "Normal ExternalExpanding: CSI migration enabled for kubernetes.io/gce-pd; waiting for external \
                        resizer to expand the pvc";
        let patch = "patch persistentvolumeclaims/status ns/c";
        let old = || volume("gcePersistentDisk");
        let told = || claim("2Gi", "1Gi").annotation(RESIZER, "pd.csi.storage.gke.io");
        for (objects, want) in [
            (vec![claim("2Gi", "1Gi"), volume("csi")], vec![waits]),
            (vec![claim("2Gi", "1Gi"), volume("hostPath")], vec![waits]),
            (vec![claim("1Gi", "1Gi"), volume("csi")], vec![]),
            (vec![claim("1Gi", "1Gi"), volume("csi").annotation(PRE_RESIZE_CAPACITY, "1Gi")], vec![waits]),
            (vec![claim("2Gi", "1Gi"), old()], vec![patch, migrated]),
            (vec![told(), old()], vec![migrated]),
        ] {
            let plan = World::new(objects.clone()).reconcile(&mut Expand, "c", at(1));
            assert_eq!(
                (said(&plan), plan.failure),
                (want.iter().map(|s| (*s).to_owned()).collect(), None),
                "{objects:?}"
            );
        }
        for objects in [vec![claim("2Gi", "1Gi")], vec![claim("2Gi", "1Gi").uid("new"), volume("csi")]] {
            assert!(World::new(objects).reconcile(&mut Expand, "c", at(1)).failure.is_some());
        }
    }

    #[test]
    fn only_claims_that_grow_are_looked_at() {
        let world = World::new([]);
        let wakes = |old: Option<&Draft>, new: &Draft| world.wakes(EXPAND.watches, old, Some(new));
        let before = claim("1Gi", "1Gi");
        assert_eq!(wakes(None, &before), ["ns/c"]);
        assert_eq!(wakes(Some(&before), &before.clone().label("a", "b")), [""; 0]);
        assert_eq!(wakes(Some(&before), &claim("2Gi", "1Gi")), ["ns/c"]);
        assert_eq!(wakes(Some(&claim("2Gi", "1Gi")), &claim("2Gi", "2Gi")), ["ns/c"]);
        assert_eq!(wakes(Some(&claim("2Gi", "1Gi")), &before), [""; 0]);
        assert_eq!(wakes(None, &before.phase("Pending")), [""; 0]);
    }
}
