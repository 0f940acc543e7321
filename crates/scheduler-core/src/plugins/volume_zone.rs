//! VolumeZone: a volume with zone labels is used in its zone.

use std::sync::Arc;

use api::config::scheduler::PluginArgs;

use crate::cluster::Cluster;
use crate::event::{Action, Event, Resource, What};
use crate::framework::{Plugin, PreFilter, State, Verdict};
use crate::node::NodeInfo;
use crate::objects::Volume;
use crate::pod::Pod;
use crate::status::{Code, Rejection};
use crate::{Key, Name};

const REASON: &str = "node(s) had no available volume zone";
/// Old names, and what they are called now.
const LABELS: [(&str, &str); 4] = [
    ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
    ("topology.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ("topology.kubernetes.io/region", "topology.kubernetes.io/region"),
];

#[derive(Debug)]
struct VolumeZone;

/// A label of a volume with the values that a node may have.
type Zones = Vec<(&'static str, &'static str, Vec<Name>)>;

pub fn make(_: &PluginArgs) -> Arc<dyn Plugin> {
    Arc::new(VolumeZone)
}

fn zones_of(volume: &Volume) -> Zones {
    let labels = LABELS.iter().filter_map(|(label, now)| Some((label, now, volume.labels.get(label)?)));
    labels.map(|(label, now, value)| (*label, *now, value.split("__").map(Name::from).collect())).collect()
}

/// The volume a claim is bound to; none where it waits for its first consumer.
fn volume_of<'a>(cluster: &'a Cluster, key: &Key) -> Result<Option<&'a Arc<Volume>>, String> {
    let missing = || format!("persistentvolumeclaim \"{}\" not found", key.name);
    let claim = cluster.storage.claim(key).ok_or_else(missing)?;
    if !claim.volume.is_empty() {
        let missing = || format!("persistentvolume \"{}\" not found", claim.volume);
        return cluster.storage.volume(&claim.volume).map(Some).ok_or_else(missing);
    }
    let Some(class) = claim.class.as_ref().filter(|c| !c.is_empty()) else {
        return Err("PersistentVolumeClaim had no pv name and storageClass name".to_owned());
    };
    match cluster.storage.classes.get(class) {
        None => Err(format!("storageclass.storage.k8s.io \"{class}\" not found")),
        Some(class) if class.waits_for_consumer => Ok(None),
        Some(_) => Err("PersistentVolume had no name".to_owned()),
    }
}

impl Plugin for VolumeZone {
    fn pre_filter(&self, cluster: &Cluster, pod: &Pod) -> PreFilter {
        let mut zones = Zones::new();
        for name in pod.named_claims() {
            let key = Key { namespace: pod.key.namespace.clone(), name: name.clone() };
            match volume_of(cluster, &key) {
                Ok(Some(volume)) => zones.extend(zones_of(volume)),
                Ok(None) => {}
                Err(text) => {
                    return PreFilter::Reject(Rejection::said(Code::UnschedulableAndUnresolvable, text));
                }
            }
        }
        if zones.is_empty() { PreFilter::Skip } else { PreFilter::Pass(State::new(zones)) }
    }

    fn filter(&self, _: &Cluster, _: &Pod, state: &State, info: &NodeInfo) -> Verdict {
        let (Some(zones), Some(node)) = (state.get::<Zones>(), &info.node) else { return Ok(()) };
        // A node without any such label belongs to no cloud.
        if !LABELS.iter().any(|(label, _)| node.labels.has(label)) {
            return Ok(());
        }
        for (label, now, values) in zones {
            let here = node.labels.get(label).or_else(|| node.labels.get(now));
            if !here.is_some_and(|here| values.contains(here)) {
                return Err(Rejection::unresolvable(REASON));
            }
        }
        Ok(())
    }

    fn interests(&self) -> &'static [(Resource, Action)] {
        const CHANGE: Action = Action::ADD.or(Action::UPDATE);
        const {
            &[
                (Resource::StorageClass, Action::ADD),
                (Resource::Claim, CHANGE),
                (Resource::Volume, CHANGE),
                (Resource::Node, Action::ADD.or(Action::NODE_LABEL)),
            ]
        }
    }

    fn wakes(&self, _: &Cluster, pod: &Pod, event: &Event) -> bool {
        match &event.what {
            What::Claim(_, Some(claim)) => {
                claim.key.namespace == pod.key.namespace && pod.named_claims().any(|n| *n == claim.key.name)
            }
            What::Class(_, class) => class.waits_for_consumer,
            What::Volume(Some(old), new) => zones_of(old) != zones_of(new),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::objects::{Claim, StorageClass};
    use crate::testing;

    #[test]
    #[allow(clippy::unwrap_used)]
    fn claims_without_a_volume_are_told_word_for_word() {
        let plugin = make(&PluginArgs::default());
        let mut cluster = testing::cluster([testing::node("a", json!({}))]);
        for (name, mode) in [("later", "WaitForFirstConsumer"), ("now", "Immediate")] {
            let class = json!({"metadata": {"name": name}, "provisioner": "p", "volumeBindingMode": mode});
            let class = StorageClass::read(&serde_json::from_value(class).unwrap());
            cluster.storage.classes.insert(class.name.clone(), Arc::new(class));
        }
        let spec = json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]});
        let pod = testing::pod("p", spec);
        let said = |cluster: &Cluster| match plugin.pre_filter(cluster, &pod) {
            PreFilter::Reject(rejection) => rejection.message(),
            other => format!("{other:?}"),
        };
        assert_eq!(said(&cluster), "persistentvolumeclaim \"c\" not found");
        for (spec, expected) in [
            (json!({"volumeName": "v"}), "persistentvolume \"v\" not found"),
            (json!({}), "PersistentVolumeClaim had no pv name and storageClass name"),
            (json!({"storageClassName": "none"}), "storageclass.storage.k8s.io \"none\" not found"),
            (json!({"storageClassName": "now"}), "PersistentVolume had no name"),
            (json!({"storageClassName": "later"}), "Skip"),
        ] {
            let claim = json!({"metadata": {"name": "c", "namespace": "default"}, "spec": spec});
            cluster.storage.set_claim(Claim::read(&serde_json::from_value(claim).unwrap()));
            assert_eq!(said(&cluster), expected, "{spec}");
        }
    }

    #[test]
    #[allow(clippy::unwrap_used)]
    fn only_a_change_of_zones_is_news() {
        let plugin = make(&PluginArgs::default());
        let volume = |zone: &str, other: &str| -> Arc<Volume> {
            let labels = json!({"topology.kubernetes.io/zone": zone, "other": other});
            let object = json!({"metadata": {"name": "v", "labels": labels}});
            Arc::new(Volume::read(&serde_json::from_value(object).unwrap()))
        };
        for (old, new, expected) in [
            (None, volume("a", "1"), true),
            (Some(volume("a", "1")), volume("a", "2"), false),
            (Some(volume("a", "1")), volume("b", "1"), true),
        ] {
            let event = Event::of_volume(old, new);
            assert_eq!(plugin.wakes(&Cluster::default(), &testing::pod("p", json!({})), &event), expected);
        }
    }

    #[test]
    #[allow(clippy::unwrap_used)]
    fn a_volume_is_used_in_its_zones_and_where_there_are_none() {
        let plugin = make(&PluginArgs::default());
        for (label, value, expected) in [
            ("topology.kubernetes.io/zone", "x", vec!["a", "c"]),
            ("failure-domain.beta.kubernetes.io/zone", "x", vec!["a", "c"]),
            ("topology.kubernetes.io/zone", "x__y", vec!["a", "b", "c"]),
            ("other", "x", vec!["a", "b", "c"]),
        ] {
            let zone = |z: &str| json!({"topology.kubernetes.io/zone": z});
            let nodes =
                [testing::node("a", zone("x")), testing::node("b", zone("y")), testing::node("c", json!({}))];
            let mut cluster = testing::cluster(nodes);
            let claim =
                json!({"metadata": {"name": "c", "namespace": "default"}, "spec": {"volumeName": "v"}});
            cluster.storage.set_claim(Claim::read(&serde_json::from_value(claim).unwrap()));
            let volume = json!({"metadata": {"name": "v", "labels": {label: value}}});
            cluster.storage.set_volume(Volume::read(&serde_json::from_value(volume).unwrap()));
            let spec = json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]});
            let mut passing = testing::passing(&plugin, &mut cluster, &testing::pod("p", spec));
            passing.sort();
            assert_eq!(passing, expected, "{label}={value}");
        }
    }
}
