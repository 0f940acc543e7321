//! A VolumeAttributesClass stays while a claim or a volume names it.

use base::time::Now;
use serde_json::json;

use crate::cache::Change;
use crate::controller::{Controller, Key, Retry, Row, Wakes, Watch};
use crate::object::Object;
use crate::plan::{Act, Plan, Step};
use crate::resource::{PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, VOLUME_ATTRIBUTES_CLASSES};
use crate::view::View;

const NAME: &str = "volumeattributesclass-protection-controller";

pub(crate) const VOLUME_ATTRIBUTES_CLASS_PROTECTION: Row = Row {
    name: NAME,
    aliases: &[],
    identity: NAME,
    event_source: NAME,
    queue: "vacprotection",
    workers: |_| 1,
    retry: Retry::DEFAULT,
    is_on_by_default: true,
    watches: &[
        Watch::itself(VOLUME_ATTRIBUTES_CLASSES),
        Watch { resource: PERSISTENT_VOLUME_CLAIMS, keys: freed },
        Watch { resource: PERSISTENT_VOLUMES, keys: freed },
    ],
    reads: &[],
    is_single: false,
    make: |_| Box::new(Classes),
};

const FINALIZER: &str = "kubernetes.io/vac-protection";

#[derive(Debug)]
struct Classes;

// === impl Classes ===

impl Controller for Classes {
    fn reconcile(&mut self, view: &dyn View, key: &Key, _now: Now) -> Plan {
        let Some(class) = view.get(VOLUME_ATTRIBUTES_CLASSES, "", &key.name) else { return Plan::nothing() };
        let value = class.value();
        let mut finalizers = value["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        let is_held = finalizers.iter().any(|finalizer| finalizer == FINALIZER);
        match (class.is_deleting(), is_held) {
            (false, false) => finalizers.push(FINALIZER.into()),
            (true, true) if !is_used(view, &key.name) => {
                finalizers.retain(|finalizer| finalizer != FINALIZER)
            }
            _ => return Plan::nothing(),
        }
        let write = Act::update(&class, |value| value["metadata"]["finalizers"] = json!(finalizers));
        Plan::of(Step::in_turn([write]))
    }
}

fn is_used(view: &dyn View, class: &str) -> bool {
    let all = [PERSISTENT_VOLUMES, PERSISTENT_VOLUME_CLAIMS]
        .into_iter()
        .flat_map(|resource| view.list(resource, ""));
    all.into_iter().any(|object| named(&object).iter().any(|name| name == class))
}

/// The classes that a claim or a volume names: what it is to have, has, and is getting.
fn named(object: &Object) -> Vec<String> {
    let value = object.value();
    let all = [
        &value["spec"]["volumeAttributesClassName"],
        &value["status"]["currentVolumeAttributesClassName"],
        &value["status"]["modifyVolumeStatus"]["targetVolumeAttributesClassName"],
    ];
    all.into_iter()
        .filter_map(|name| name.as_str().filter(|name| !name.is_empty()).map(str::to_owned))
        .collect()
}

/// Who names a class no more may have been the last.
fn freed(change: &Change, _: &dyn View, wakes: &mut Wakes) {
    let Some(old) = &change.old else { return };
    let now = change.new.as_deref().map(named).unwrap_or_default();
    let gone = named(old).into_iter().filter(|name| !now.contains(name));
    wakes.extend(gone.map(|name| Key::new("", &name)));
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::testing::{Draft, World, at, draft};

    /// The finalizers after a look; None: nothing was written.
    fn finalizers(objects: Vec<Draft>) -> Option<Value> {
        let world = World::new(objects);
        let plan = Classes.reconcile(&world.cache, &Key::new("", "gold"), at(1));
        plan.acts().next().map(|act| act.body()["metadata"]["finalizers"].clone())
    }

    #[test]
    fn a_class_goes_when_nobody_names_it() {
        let class = || draft(VOLUME_ATTRIBUTES_CLASSES, "gold");
        let going = || class().set("/metadata/finalizers", json!([FINALIZER, "other"])).deleting(true);
        let claim = |at: &str| draft(PERSISTENT_VOLUME_CLAIMS, "c").set(at, json!("gold"));
        let volume = draft(PERSISTENT_VOLUMES, "v").set("/spec/volumeAttributesClassName", json!("gold"));
        for (row, objects, want) in [
            ("new", vec![class()], Some(json!([FINALIZER]))),
            ("free", vec![going()], Some(json!(["other"]))),
            ("a claim wants it", vec![going(), claim("/spec/volumeAttributesClassName")], None),
            ("a claim has it", vec![going(), claim("/status/currentVolumeAttributesClassName")], None),
            (
                "a claim is getting it",
                vec![going(), claim("/status/modifyVolumeStatus/targetVolumeAttributesClassName")],
                None,
            ),
            ("a volume has it", vec![going(), volume], None),
        ] {
            assert_eq!(finalizers(objects), want, "{row}");
        }
        let wakes = |old: &Draft, new: Option<&Draft>| {
            World::new([]).wakes(VOLUME_ATTRIBUTES_CLASS_PROTECTION.watches, Some(old), new)
        };
        let claim = claim("/spec/volumeAttributesClassName");
        assert_eq!(wakes(&claim, None), ["gold"]);
        assert!(wakes(&claim, Some(&claim)).is_empty());
    }
}
