//! VolumeZone: a volume with zone labels is used in its zone.

use std::sync::Arc;

use api::config::scheduler::PluginArgs;

use crate::cluster::Cluster;
use crate::event::{Action, Event, Resource, What};
use crate::framework::{Plugin, PreFilter, State, Verdict};
use crate::node::NodeInfo;
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

impl Plugin for VolumeZone {
    fn pre_filter(&self, cluster: &Cluster, pod: &Pod) -> PreFilter {
        let mut zones = Zones::new();
        for (name, _) in pod.claim_names() {
            let key = Key { namespace: pod.key.namespace.clone(), name: name.clone() };
            let Some(claim) = cluster.storage.claim(&key) else {
                let text = format!("persistentvolumeclaim \"{name}\" not found");
                return PreFilter::Reject(Rejection::said(Code::UnschedulableAndUnresolvable, text));
            };
            let Some(volume) = cluster.storage.volume(&claim.volume) else { continue };
            for (label, now) in LABELS {
                if let Some(value) = volume.labels.get(label) {
                    zones.push((label, now, value.split("__").map(Name::from).collect()));
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
            What::Claim(_, Some(claim)) => pod.mounts(&claim.key),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::objects::{Claim, Volume};
    use crate::testing;

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
