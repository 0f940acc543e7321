//! VolumeBinding: a Pod's claims are bound, or can be on that node.

use std::collections::HashSet;
use std::sync::Arc;

use api::config::scheduler::PluginArgs;

use crate::cluster::Cluster;
use crate::event::{Action, Event, Resource, What};
use crate::framework::{Plugin, PreFilter, PreScore, State, Verdict};
use crate::node::{Node, NodeInfo};
use crate::objects::{Claim, NO_PROVISIONER, StorageClass, Volume};
use crate::pod::Pod;
use crate::status::{Code, Reasons, Rejection};
use crate::{Key, Name};

const IMMEDIATE: &str = "pod has unbound immediate PersistentVolumeClaims";
const AFFINITY: &str = "node(s) didn't match PersistentVolume's node affinity";
const NO_VOLUME: &str = "node(s) didn't find available persistent volumes to bind";
const NO_SPACE: &str = "node(s) did not have enough free storage";
const NO_PV: &str = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";

#[derive(Debug)]
struct VolumeBinding;

/// A Pod's claims, by what has to be done about them.
#[derive(Clone, Debug, Default)]
struct Claims {
    bound: Vec<Arc<Claim>>,
    waiting: Vec<Arc<Claim>>,
}

/// What binds the claims of a Pod on its node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumePlan {
    /// Volumes that are there, with the claims they are for.
    pub bindings: Vec<(Name, Key)>,
    /// Claims for which a volume is made on the node.
    pub provisions: Vec<Key>,
}

pub fn make(_: &PluginArgs) -> Arc<dyn Plugin> {
    Arc::new(VolumeBinding)
}

/// How a Pod's claims are bound on a node that passed the filter; nothing to do where all are.
#[must_use]
pub fn plan(cluster: &Cluster, pod: &Pod, node: &Node) -> VolumePlan {
    match classify(cluster, pod) {
        Ok(Some(claims)) => find(cluster, &claims, node).unwrap_or_default(),
        _ => VolumePlan::default(),
    }
}

/// None where the Pod has no claims.
fn classify(cluster: &Cluster, pod: &Pod) -> Result<Option<Claims>, Rejection> {
    let mut claims = Claims::default();
    let mut has_any = false;
    let mut is_immediate = false;
    let refuse = |text: String| Rejection::said(Code::UnschedulableAndUnresolvable, text);
    for (name, is_ephemeral) in pod.claim_names() {
        has_any = true;
        let key = Key { namespace: pod.key.namespace.clone(), name: name.clone() };
        let Some(claim) = cluster.storage.claim(&key) else {
            return Err(refuse(match is_ephemeral {
                true => format!(
                    "waiting for ephemeral volume controller to create the persistentvolumeclaim \"{name}\""
                ),
                false => format!("persistentvolumeclaim \"{name}\" not found"),
            }));
        };
        if claim.is_lost {
            let volume = &claim.volume;
            return Err(refuse(format!(
                "persistentvolumeclaim \"{name}\" bound to non-existent persistentvolume \"{volume}\""
            )));
        }
        if claim.is_terminating {
            return Err(refuse(format!("persistentvolumeclaim \"{name}\" is being deleted")));
        }
        if is_ephemeral && claim.owner.as_ref() != Some(&pod.uid) {
            return Err(refuse(format!("PVC {key} was not created for pod {} (pod is not owner)", pod.key)));
        }
        let waits = class_of(cluster, claim).is_some_and(|c| c.waits_for_consumer);
        match (claim.is_fully_bound(), waits && claim.volume.is_empty()) {
            (true, _) => claims.bound.push(claim.clone()),
            (false, true) => claims.waiting.push(claim.clone()),
            (false, false) => is_immediate = true,
        }
    }
    match is_immediate {
        true => Err(Rejection::unresolvable(IMMEDIATE)),
        false => Ok(has_any.then_some(claims)),
    }
}

fn class_of<'a>(cluster: &'a Cluster, claim: &Claim) -> Option<&'a Arc<StorageClass>> {
    claim.class.as_ref().and_then(|class| cluster.storage.classes.get(class))
}

/// What has to be done on a node, or all that is in the way.
fn find(cluster: &Cluster, claims: &Claims, node: &Node) -> Result<VolumePlan, Vec<&'static str>> {
    let mut reasons = Vec::new();
    let (mut reachable, mut known) = (true, true);
    for claim in &claims.bound {
        match cluster.storage.volume(&claim.volume) {
            Some(volume) => reachable &= volume.is_reachable(&node.labels, &node.name),
            None => known = false,
        }
    }
    if !reachable {
        reasons.push(AFFINITY);
    }
    let mut plan = VolumePlan::default();
    match find_unbound(cluster, &claims.waiting, node) {
        Ok(found) => plan = found,
        Err(reason) => reasons.push(reason),
    }
    if !known {
        reasons.push(NO_PV);
    }
    if reasons.is_empty() { Ok(plan) } else { Err(reasons) }
}

fn find_unbound(cluster: &Cluster, waiting: &[Arc<Claim>], node: &Node) -> Result<VolumePlan, &'static str> {
    let mut plan = VolumePlan::default();
    let mut to_match = Vec::new();
    let mut to_provision = Vec::new();
    for claim in waiting {
        match &claim.selected_node {
            Some(selected) if *selected != node.name => return Err(NO_VOLUME),
            Some(_) => to_provision.push(claim),
            None => to_match.push(claim),
        }
    }
    to_match.sort_by_key(|claim| claim.request);
    let mut chosen: HashSet<Name> = HashSet::new();
    for claim in to_match {
        match find_volume(cluster, claim, node, &chosen) {
            Some(volume) => {
                chosen.insert(volume.name.clone());
                plan.bindings.push((volume.name.clone(), claim.key.clone()));
            }
            None => to_provision.push(claim),
        }
    }
    for claim in to_provision {
        let class = class_of(cluster, claim).ok_or(NO_VOLUME)?;
        let is_made = !class.provisioner.is_empty() && *class.provisioner != *NO_PROVISIONER;
        if !is_made || !class.allows(&node.labels) {
            return Err(NO_VOLUME);
        }
        if !has_space(cluster, class, claim, node) {
            return Err(NO_SPACE);
        }
        plan.provisions.push(claim.key.clone());
    }
    Ok(plan)
}

/// The volume that was set aside for the claim, or the smallest that will do.
fn find_volume(cluster: &Cluster, claim: &Claim, node: &Node, chosen: &HashSet<Name>) -> Option<Arc<Volume>> {
    let class = claim.class.clone().unwrap_or_default();
    let is_meant = |v: &Volume| {
        let reference = v.claim.as_ref();
        reference.is_some_and(|r| r.key == claim.key && (r.uid.is_empty() || r.uid == claim.uid))
    };
    let mut best: Option<&Arc<Volume>> = None;
    for volume in cluster.storage.volumes_of(&class) {
        if chosen.contains(&volume.name)
            || (volume.claim.is_some() && !is_meant(volume))
            || volume.capacity < claim.request
            || volume.is_block != claim.is_block
            || volume.attributes_class != claim.attributes_class
            || volume.is_terminating
        {
            continue;
        }
        let reachable = volume.is_reachable(&node.labels, &node.name);
        if is_meant(volume) {
            return reachable.then(|| volume.clone());
        }
        let fits = volume.is_available
            && reachable
            && claim.selector.as_ref().is_none_or(|s| s.matches(&volume.labels))
            && claim.modes.iter().all(|mode| volume.modes.contains(mode));
        let rank = |v: &Arc<Volume>| (v.capacity, v.name.clone());
        if fits && best.is_none_or(|best| rank(volume) < rank(best)) {
            best = Some(volume);
        }
    }
    best.cloned()
}

fn has_space(cluster: &Cluster, class: &StorageClass, claim: &Claim, node: &Node) -> bool {
    let driver = cluster.storage.drivers.get(&class.provisioner);
    if !driver.is_some_and(|d| d.tracks_capacity) {
        return true;
    }
    cluster.storage.capacities.values().any(|c| {
        c.class == class.name
            && c.limit.is_some_and(|limit| limit >= claim.request)
            && c.topology.matches(&node.labels)
    })
}

impl Plugin for VolumeBinding {
    fn pre_filter(&self, cluster: &Cluster, pod: &Pod) -> PreFilter {
        match classify(cluster, pod) {
            Ok(None) => PreFilter::Skip,
            Ok(Some(claims)) => PreFilter::Pass(State::new(claims)),
            Err(rejection) => PreFilter::Reject(rejection),
        }
    }

    fn filter(&self, cluster: &Cluster, _: &Pod, state: &State, info: &NodeInfo) -> Verdict {
        let (Some(claims), Some(node)) = (state.get::<Claims>(), &info.node) else { return Ok(()) };
        find(cluster, claims, node).map(|_| ()).map_err(|reasons| Rejection {
            code: Code::UnschedulableAndUnresolvable,
            reasons: Reasons::Many(reasons.into_iter().map(Into::into).collect()),
        })
    }

    fn pre_score(&self, _: &Cluster, _: &Pod, _: &State, _: &[&NodeInfo]) -> PreScore {
        PreScore::Skip
    }

    fn interests(&self) -> &'static [(Resource, Action)] {
        const CHANGE: Action = Action::ADD.or(Action::UPDATE);
        const {
            &[
                (Resource::StorageClass, CHANGE),
                (Resource::Claim, CHANGE),
                (Resource::Volume, CHANGE),
                (Resource::Node, Action::ADD.or(Action::NODE_LABEL)),
                (Resource::CsiNode, CHANGE),
                (Resource::CsiDriver, Action::UPDATE),
                (Resource::Capacity, CHANGE),
            ]
        }
    }

    fn wakes(&self, _: &Cluster, pod: &Pod, event: &Event) -> bool {
        match &event.what {
            What::Claim(_, Some(claim)) => pod.mounts(&claim.key),
            What::Class(Some(old), new) => old.topologies != new.topologies,
            What::Capacity(Some(old), new) => new.limit.is_some() && new.limit > old.limit,
            What::CsiNode(Some(old), Some(new)) => old.migrated != new.migrated,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing;

    #[allow(clippy::unwrap_used)]
    fn cluster(claims: Value, volumes: Value, provisioner: &str) -> Cluster {
        let mut cluster =
            testing::cluster(["a", "b"].map(|n| testing::node(n, json!({"kubernetes.io/hostname": n}))));
        for (name, mode) in [("later", "WaitForFirstConsumer"), ("now", "Immediate")] {
            let class =
                json!({"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode});
            let class = StorageClass::read(&serde_json::from_value(class).unwrap());
            cluster.storage.classes.insert(class.name.clone(), Arc::new(class));
        }
        for mut claim in claims.as_array().cloned().unwrap_or_default() {
            claim["metadata"]["namespace"] = json!("default");
            claim["spec"]["resources"] =
                json!({"requests": {"storage": claim["size"].as_str().unwrap_or("1Gi")}});
            cluster.storage.set_claim(Claim::read(&serde_json::from_value(claim).unwrap()));
        }
        for volume in volumes.as_array().cloned().unwrap_or_default() {
            cluster.storage.set_volume(Volume::read(&serde_json::from_value(volume).unwrap()));
        }
        cluster
    }

    fn volume(name: &str, size: &str, node: &str) -> Value {
        let term = json!({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]});
        json!({"metadata": {"name": name}, "status": {"phase": "Available"}, "spec": {"capacity": {"storage": size},
            "storageClassName": "later", "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}})
    }

    fn pod() -> Pod {
        testing::pod("p", json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}))
    }

    #[test]
    fn claims_that_keep_a_pod_waiting_are_told_word_for_word() {
        let plugin = make(&PluginArgs::default());
        let claim = |extra: Value| json!([{"metadata": {"name": "c"}, "spec": extra}]);
        for (claims, expected) in [
            (json!([]), "persistentvolumeclaim \"c\" not found"),
            (claim(json!({"storageClassName": "now"})), IMMEDIATE),
            (claim(json!({})), IMMEDIATE),
            (
                json!([{"metadata": {"name": "c"}, "spec": {"volumeName": "v"}, "status": {"phase": "Lost"}}]),
                "persistentvolumeclaim \"c\" bound to non-existent persistentvolume \"v\"",
            ),
            (
                json!([{"metadata": {"name": "c", "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {}}]),
                "persistentvolumeclaim \"c\" is being deleted",
            ),
        ] {
            let cluster = cluster(claims, json!([]), NO_PROVISIONER);
            let PreFilter::Reject(rejection) = plugin.pre_filter(&cluster, &pod()) else {
                panic!("{expected}")
            };
            assert_eq!(
                (rejection.code, rejection.message().as_str()),
                (Code::UnschedulableAndUnresolvable, expected)
            );
        }
        let ephemeral = testing::pod("p", json!({"volumes": [{"name": "v", "ephemeral": {}}]}));
        let PreFilter::Reject(rejection) = plugin.pre_filter(&Cluster::default(), &ephemeral) else {
            panic!()
        };
        let told = "waiting for ephemeral volume controller to create the persistentvolumeclaim \"p-v\"";
        assert_eq!(rejection.message(), told);
    }

    #[test]
    fn the_smallest_volume_that_the_node_reaches_is_chosen() {
        let plugin = make(&PluginArgs::default());
        let claims =
            json!([{"metadata": {"name": "c"}, "spec": {"storageClassName": "later"}, "size": "2Gi"}]);
        let volumes =
            json!([volume("small", "1Gi", "a"), volume("right", "3Gi", "a"), volume("large", "9Gi", "a")]);
        let mut cluster = cluster(claims, volumes, NO_PROVISIONER);
        assert_eq!(testing::passing(&plugin, &mut cluster, &pod()), ["a"]);
        let verdict = testing::filter(&plugin, &cluster, &pod(), "b");
        assert_eq!(verdict.err().map(|r| r.message()).as_deref(), Some(NO_VOLUME));
        let node = testing::info(&cluster, "a").node.clone().unwrap_or_default();
        let planned = plan(&cluster, &pod(), &node);
        assert_eq!(planned.bindings, [("right".into(), Key::new("default", "c"))]);
        let other = Claim {
            key: Key::new("default", "other"),
            ..(**cluster.storage.claim(&Key::new("default", "c")).unwrap_or_else(|| panic!())).clone()
        };
        cluster.storage.assume_volume(&"right".into(), &other);
        assert_eq!(plan(&cluster, &pod(), &node).bindings[0].0, "large".into(), "a promised volume is taken");
        cluster.storage.forget_volume(&"right".into());
        assert_eq!(plan(&cluster, &pod(), &node), planned);
    }

    #[test]
    fn what_is_not_there_is_made_where_it_can_be_made() {
        let plugin = make(&PluginArgs::default());
        let claims = json!([{"metadata": {"name": "c"}, "spec": {"storageClassName": "later"}}]);
        let mut cluster = cluster(claims, json!([]), "example.com/made");
        let node = testing::info(&cluster, "a").node.clone().unwrap_or_default();
        assert_eq!(plan(&cluster, &pod(), &node).provisions, [Key::new("default", "c")]);
        cluster.storage.assume_claim(&Key::new("default", "c"), &"b".into());
        assert_eq!(testing::passing(&plugin, &mut cluster, &pod()), ["b"], "the selected node alone");
        cluster.storage.forget_claim(&Key::new("default", "c"));
        let driver = crate::objects::CsiDriver { name: "example.com/made".into(), tracks_capacity: true };
        cluster.storage.drivers.insert(driver.name.clone(), Arc::new(driver));
        let verdict = testing::filter(&plugin, &cluster, &pod(), "a");
        assert_eq!(verdict.err().map(|r| r.message()).as_deref(), Some(NO_SPACE));
    }

    #[test]
    fn a_bound_volume_ties_the_pod_to_its_nodes() {
        let plugin = make(&PluginArgs::default());
        let bound = json!([{"metadata": {"name": "c", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
            "spec": {"volumeName": "v", "storageClassName": "later"}}]);
        let mut there = cluster(bound.clone(), json!([volume("v", "1Gi", "b")]), NO_PROVISIONER);
        assert_eq!(testing::passing(&plugin, &mut there, &pod()), ["b"]);
        let gone = cluster(bound, json!([]), NO_PROVISIONER);
        let verdict = testing::filter(&plugin, &gone, &pod(), "b");
        assert_eq!(verdict.err().map(|r| r.message()).as_deref(), Some(NO_PV));
    }
}
