//! VolumeRestrictions: disks that only one Pod on a node may use, and claims that only one Pod anywhere may.

use std::sync::Arc;

use api::config::scheduler::PluginArgs;

use crate::cluster::Cluster;
use crate::event::{Action, Event, Resource, What};
use crate::framework::{Plugin, PreFilter, State, Verdict};
use crate::node::NodeInfo;
use crate::pod::{Pod, Volume};
use crate::status::{Code, Rejection};
use crate::{Key, Name};

const DISK: &str = "node(s) had no available disk";
const EXCLUSIVE: &str = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod";

#[derive(Debug)]
struct VolumeRestrictions;

/// Exclusive claims of the Pod, and how many uses of them by others there are.
#[derive(Clone, Debug, Default)]
struct Exclusive {
    claims: Vec<Name>,
    conflicts: i64,
}

pub fn make(_: &PluginArgs) -> Arc<dyn Plugin> {
    Arc::new(VolumeRestrictions)
}

/// Whether two Pods cannot use their disks on one node.
fn conflicts(a: &Volume, b: &Volume) -> bool {
    match (a, b) {
        (Volume::Gce { disk: a, read_only: x }, Volume::Gce { disk: b, read_only: y }) => {
            a == b && !(*x && *y)
        }
        (Volume::Aws { disk: a }, Volume::Aws { disk: b }) => a == b,
        (Volume::Iscsi { iqn: a, read_only: x }, Volume::Iscsi { iqn: b, read_only: y }) => {
            a == b && !(*x && *y)
        }
        (
            Volume::Rbd { monitors: a, pool: p, image: i, read_only: x },
            Volume::Rbd { monitors: b, pool: q, image: j, read_only: y },
        ) => a.iter().any(|m| b.contains(m)) && p == q && i == j && !(*x && *y),
        _ => false,
    }
}

fn has_disks(pod: &Pod) -> bool {
    pod.volumes.iter().any(|v| !matches!(v, Volume::Claim { .. } | Volume::Migrated(_)))
}

impl Plugin for VolumeRestrictions {
    fn pre_filter(&self, cluster: &Cluster, pod: &Pod) -> PreFilter {
        let mut exclusive = Exclusive::default();
        for name in pod.named_claims() {
            let key = Key { namespace: pod.key.namespace.clone(), name: name.clone() };
            let Some(claim) = cluster.storage.claim(&key) else {
                let text = format!("persistentvolumeclaim \"{name}\" not found");
                return PreFilter::Reject(Rejection::said(Code::UnschedulableAndUnresolvable, text));
            };
            if claim.is_exclusive() {
                exclusive.conflicts += i64::from(cluster.is_claim_used(&key));
                exclusive.claims.push(name.clone());
            }
        }
        match exclusive.conflicts == 0 && !has_disks(pod) {
            true => PreFilter::Skip,
            false => PreFilter::Pass(State::new(exclusive)),
        }
    }

    fn filter(&self, _: &Cluster, pod: &Pod, state: &State, info: &NodeInfo) -> Verdict {
        let taken = || info.pods.iter().flat_map(|p| p.volumes.iter());
        if pod.volumes.iter().any(|own| taken().any(|other| conflicts(own, other))) {
            return Err(Rejection::unschedulable(DISK));
        }
        match state.get::<Exclusive>() {
            Some(exclusive) if exclusive.conflicts > 0 => Err(Rejection::unschedulable(EXCLUSIVE)),
            _ => Ok(()),
        }
    }

    fn update(&self, _: &Cluster, pod: &Pod, state: &mut State, other: &Pod, _: &NodeInfo, by: i64) {
        let Some(exclusive) = state.get_mut::<Exclusive>() else { return };
        if other.key.namespace == pod.key.namespace {
            let shared = other.claim_names().filter(|(name, _)| exclusive.claims.contains(name)).count();
            exclusive.conflicts += by * shared as i64;
        }
    }

    fn interests(&self) -> &'static [(Resource, Action)] {
        const { &[(Resource::Pod, Action::DELETE), (Resource::Node, Action::ADD), (Resource::Claim, Action::ADD)] }
    }

    fn wakes(&self, _: &Cluster, pod: &Pod, event: &Event) -> bool {
        match &event.what {
            What::Pod(Some(gone), None) => {
                let shares_claim =
                    || gone.named_claims().any(|name| pod.named_claims().any(|own| own == name));
                let shares_disk =
                    || pod.volumes.iter().any(|own| gone.volumes.iter().any(|other| conflicts(own, other)));
                gone.key.namespace == pod.key.namespace && (shares_claim() || shares_disk())
            }
            What::Claim(_, Some(claim)) => {
                claim.key.namespace == pod.key.namespace && pod.named_claims().any(|n| *n == claim.key.name)
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::objects::Claim;
    use crate::testing;

    fn with(name: &str, volume: Value) -> Pod {
        let mut volume = volume;
        volume["name"] = json!("v");
        testing::pod(name, json!({"volumes": [volume]}))
    }

    #[test]
    fn disks_conflict_as_their_kinds_say() {
        let plugin = make(&PluginArgs::default());
        let gce = |read_only: bool| json!({"gcePersistentDisk": {"pdName": "d", "readOnly": read_only}});
        let aws = json!({"awsElasticBlockStore": {"volumeID": "d", "readOnly": true}});
        let rbd = |monitor: &str| json!({"rbd": {"monitors": [monitor], "image": "i"}});
        for (taken, wanted, passes) in [
            (gce(false), gce(true), false),
            (gce(true), gce(true), true),
            (aws.clone(), aws.clone(), false),
            (rbd("m"), rbd("m"), false),
            (rbd("m"), rbd("n"), true),
            (json!({"emptyDir": {}}), gce(false), true),
        ] {
            let mut cluster = testing::cluster([testing::node("n", json!({}))]);
            testing::put(&mut cluster, &with("old", taken.clone()), "n");
            let expected = if passes { Ok(()) } else { Err(Rejection::unschedulable(DISK)) };
            assert_eq!(
                testing::filter(&plugin, &cluster, &with("new", wanted.clone()), "n"),
                expected,
                "{taken} {wanted}"
            );
        }
    }

    #[test]
    fn claims_of_ephemeral_volumes_are_the_business_of_others() {
        let plugin = make(&PluginArgs::default());
        let cluster = testing::cluster([testing::node("a", json!({}))]);
        let pod = with("p", json!({"ephemeral": {}}));
        assert!(matches!(plugin.pre_filter(&cluster, &pod), PreFilter::Skip));
    }

    #[test]
    fn a_pod_that_goes_is_news_where_it_shared_a_disk_or_a_claim_in_the_same_namespace() {
        let plugin = make(&PluginArgs::default());
        let cluster = testing::cluster([]);
        let claim = |name: &str| json!({"persistentVolumeClaim": {"claimName": name}});
        let disk = json!({"gcePersistentDisk": {"pdName": "d"}});
        for (gone, namespace, expected) in [
            (claim("c"), "default", true),
            (claim("d"), "default", false),
            (claim("c"), "other", false),
            (disk.clone(), "default", true),
            (disk.clone(), "other", false),
        ] {
            let waiting = if gone == disk { with("p", disk.clone()) } else { with("p", claim("c")) };
            let mut other = with("x", gone.clone()).on("n");
            other.key.namespace = namespace.into();
            let event = Event::of_pod(Some(Arc::new(other)), None);
            assert_eq!(plugin.wakes(&cluster, &waiting, &event), expected, "{gone} {namespace}");
        }
    }

    #[test]
    #[allow(clippy::unwrap_used)]
    fn an_exclusive_claim_has_one_user_in_the_whole_cluster() {
        let plugin = make(&PluginArgs::default());
        let mut cluster = testing::cluster(["a", "b"].map(|n| testing::node(n, json!({}))));
        let using = |name: &str| with(name, json!({"persistentVolumeClaim": {"claimName": "c"}}));
        let missing = testing::filter(&plugin, &cluster, &using("p"), "a").unwrap_err();
        assert_eq!(missing.message(), "persistentvolumeclaim \"c\" not found");
        let claim = json!({"metadata": {"name": "c", "namespace": "default"}, "spec": {"accessModes": ["ReadWriteOncePod"]}});
        cluster.storage.set_claim(Claim::read(&serde_json::from_value(claim).unwrap()));
        assert!(testing::filter(&plugin, &cluster, &using("p"), "a").is_ok());
        testing::put(&mut cluster, &using("q"), "b");
        assert_eq!(
            testing::filter(&plugin, &cluster, &using("p"), "a"),
            Err(Rejection::unschedulable(EXCLUSIVE))
        );
        let PreFilter::Pass(mut state) = plugin.pre_filter(&cluster, &using("p")) else { panic!("skipped") };
        let info = testing::info(&cluster, "b");
        plugin.update(&cluster, &using("p"), &mut state, &using("q"), info, -1);
        assert!(plugin.filter(&cluster, &using("p"), &state, testing::info(&cluster, "a")).is_ok());
    }
}
