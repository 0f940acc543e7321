//! NodeVolumeLimits: a driver attaches so many volumes to a node and no more. Volumes of old in-tree kinds count as their drivers'.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::config::scheduler::PluginArgs;

use crate::cluster::Cluster;
use crate::event::{Action, Event, Resource, What};
use crate::framework::{Plugin, PreFilter, State, Verdict};
use crate::migration::{self, Handle, Provisioner};
use crate::node::NodeInfo;
use crate::objects::Claim;
use crate::pod::{Pod, Volume};
use crate::status::Rejection;
use crate::{Key, Name};

const REASON: &str = "node(s) exceed max volume count";

#[derive(Debug)]
struct NodeVolumeLimits;

/// Driver and handle; a volume that is still to be made is known by its claim.
type Attached = BTreeSet<Handle>;

pub fn make(_: &PluginArgs) -> Arc<dyn Plugin> {
    Arc::new(NodeVolumeLimits)
}

fn collect(cluster: &Cluster, pod: &Pod, into: &mut Attached) {
    for (name, _) in pod.claim_names() {
        let key = Key { namespace: pod.key.namespace.clone(), name: name.clone() };
        if let Some(claim) = cluster.storage.claim(&key) {
            into.extend(handle_of(cluster, claim));
        }
    }
    into.extend(pod.volumes.iter().filter_map(inline));
}

fn handle_of(cluster: &Cluster, claim: &Claim) -> Option<Handle> {
    if let Some(volume) = cluster.storage.volume(&claim.volume) {
        return volume.csi.clone().or_else(|| volume.migrated.clone());
    }
    let class = cluster.storage.classes.get(claim.class.as_ref()?)?;
    match migration::of_provisioner(&class.provisioner) {
        Provisioner::Driver(driver) => Some((driver.into(), format!("claim {}", claim.key).into())),
        Provisioner::Uncounted => None,
    }
}

/// A volume that the Pod describes itself, if a driver attaches it.
fn inline(volume: &Volume) -> Option<Handle> {
    match volume {
        Volume::Gce { disk, .. } => migration::of_gce_disk(disk),
        Volume::Aws { disk } => migration::of_aws_disk(disk),
        Volume::Migrated(handle) => Some(handle.clone()),
        Volume::Claim { .. } | Volume::Iscsi { .. } | Volume::Rbd { .. } => None,
    }
}

fn is_attachable(volume: &Volume) -> bool {
    matches!(volume, Volume::Claim { .. }) || inline(volume).is_some()
}

impl Plugin for NodeVolumeLimits {
    fn pre_filter(&self, cluster: &Cluster, pod: &Pod) -> PreFilter {
        let mut wanted = Attached::new();
        collect(cluster, pod, &mut wanted);
        if wanted.is_empty() { PreFilter::Skip } else { PreFilter::Pass(State::new(wanted)) }
    }

    fn filter(&self, cluster: &Cluster, _: &Pod, state: &State, info: &NodeInfo) -> Verdict {
        let (Some(wanted), Some(node)) = (state.get::<Attached>(), &info.node) else { return Ok(()) };
        let Some(limits) = cluster.storage.csi_nodes.get(&node.name).map(|n| &n.limits) else {
            return Ok(());
        };
        if limits.values().all(Option::is_none) {
            return Ok(());
        }
        let mut attached = Attached::new();
        info.pods.iter().for_each(|pod| collect(cluster, pod, &mut attached));
        let mut new: BTreeMap<&Name, i64> = BTreeMap::new();
        for (driver, _) in wanted.iter().filter(|volume| !attached.contains(*volume)) {
            *new.entry(driver).or_default() += 1;
        }
        for attachment in cluster.storage.attachments.values().filter(|a| a.node == node.name) {
            let volume = attachment.volume.as_ref().and_then(|v| cluster.storage.volume(v));
            let handle = volume.and_then(|v| v.csi.as_ref()).map(|(_, handle)| handle.clone());
            attached.extend(handle.map(|handle| (attachment.attacher.clone(), handle)));
        }
        let exceeds = |(driver, count): (&&Name, &i64)| {
            let limit = limits.get(*driver).copied().flatten();
            let used = attached.iter().filter(|(d, _)| d == *driver).count() as i64;
            limit.is_some_and(|limit| used + count > limit)
        };
        if new.iter().any(exceeds) { Err(Rejection::unschedulable(REASON)) } else { Ok(()) }
    }

    fn interests(&self) -> &'static [(Resource, Action)] {
        const {
            &[
                (Resource::CsiNode, Action::ADD.or(Action::UPDATE)),
                (Resource::Pod, Action::DELETE),
                (Resource::Claim, Action::ADD),
                (Resource::Attachment, Action::DELETE),
            ]
        }
    }

    fn wakes(&self, _: &Cluster, pod: &Pod, event: &Event) -> bool {
        match &event.what {
            What::Pod(Some(gone), None) => {
                (gone.is_bound() || !gone.nominated.is_empty()) && gone.volumes.iter().any(is_attachable)
            }
            // As upstream has it, a Pod whose only claims are of ephemeral volumes is not woken.
            What::Attachment(Some(gone), None) => {
                let has_driver = |v: &Volume| inline(v).is_some_and(|(driver, _)| driver == gone.attacher);
                pod.named_claims().next().is_some() || pod.volumes.iter().any(has_driver)
            }
            What::Claim(_, Some(claim)) => {
                claim.key.namespace == pod.key.namespace
                    && pod.claim_names().any(|(name, _)| *name == claim.key.name)
            }
            What::CsiNode(Some(old), Some(new)) => {
                let limit =
                    |of: &crate::objects::CsiNode, driver: &Name| of.limits.get(driver).copied().flatten();
                new.limits.keys().any(|d| limit(new, d).unwrap_or(0) > limit(old, d).unwrap_or(0))
            }
            _ => true,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::objects::{Attachment, Claim, CsiNode, Volume};
    use crate::testing;

    #[test]
    fn volumes_of_old_kinds_count_as_their_drivers() {
        let plugin = make(&PluginArgs::default());
        let gce = |name: &str, disk: &str| {
            testing::pod(
                name,
                json!({"volumes": [{"name": "v", "gcePersistentDisk": {"pdName": disk, "readOnly": true}}]}),
            )
        };
        let mut cluster = testing::cluster([testing::node("n", json!({}))]);
        testing::put(&mut cluster, &gce("1", "d1"), "n");
        assert!(testing::filter(&plugin, &cluster, &gce("p", "d2"), "n").is_ok(), "nobody says a limit");
        let drivers = json!([{"name": "pd.csi.storage.gke.io", "nodeID": "n", "allocatable": {"count": 1}}]);
        let csi_node = json!({"metadata": {"name": "n"}, "spec": {"drivers": drivers}});
        let csi_node = CsiNode::read(&serde_json::from_value(csi_node).unwrap());
        cluster.storage.csi_nodes.insert("n".into(), Arc::new(csi_node));
        assert_eq!(
            testing::filter(&plugin, &cluster, &gce("p", "d2"), "n"),
            Err(Rejection::unschedulable(REASON))
        );
        assert!(testing::filter(&plugin, &cluster, &gce("p", "d1"), "n").is_ok());
    }

    #[test]
    fn volumes_count_once_whoever_uses_them() {
        let plugin = make(&PluginArgs::default());
        let mut cluster = testing::cluster([testing::node("n", json!({}))]);
        for i in 1..=3 {
            let (claim, volume) = (format!("c{i}"), format!("v{i}"));
            let object =
                json!({"metadata": {"name": claim, "namespace": "default"}, "spec": {"volumeName": volume}});
            cluster.storage.set_claim(Claim::read(&serde_json::from_value(object).unwrap()));
            let object = json!({"metadata": {"name": volume}, "spec": {"csi": {"driver": "d", "volumeHandle": volume}}});
            cluster.storage.set_volume(Volume::read(&serde_json::from_value(object).unwrap()));
        }
        let csi_node = json!({"metadata": {"name": "n"}, "spec": {"drivers": [{"name": "d", "nodeID": "n", "allocatable": {"count": 2}}]}});
        let csi_node = CsiNode::read(&serde_json::from_value(csi_node).unwrap());
        cluster.storage.csi_nodes.insert("n".into(), Arc::new(csi_node));
        let using = |name: &str, claim: &str| {
            testing::pod(
                name,
                json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]}),
            )
        };
        testing::put(&mut cluster, &using("1", "c1"), "n");
        assert!(testing::filter(&plugin, &cluster, &using("p", "c2"), "n").is_ok());
        let attachment = json!({"metadata": {"name": "x"}, "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "v3"}}});
        let attachment = Attachment::read(&serde_json::from_value(attachment).unwrap());
        cluster.storage.attachments.insert("x".into(), Arc::new(attachment));
        assert_eq!(
            testing::filter(&plugin, &cluster, &using("p", "c2"), "n"),
            Err(Rejection::unschedulable(REASON))
        );
        assert!(testing::filter(&plugin, &cluster, &using("p", "c1"), "n").is_ok(), "it is attached already");
    }
}
