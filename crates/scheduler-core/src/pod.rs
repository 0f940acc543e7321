//! A Pod as the scheduler sees it.

use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;

use crate::labels::{Labels, NodeSelector, NodeTerm, Selector};
use crate::migration;
use crate::resources::{self, Resources};
use crate::{Key, Name};

pub const DEFAULT_SCHEDULER: &str = "default-scheduler";

/// What is known of a Pod. Made once for each change of the object.
#[derive(Clone, Debug)]
pub struct Pod {
    pub key: Key,
    pub uid: Name,
    /// Namespace, labels and inter-pod terms: what other Pods look at.
    pub class: Arc<Class>,
    pub scheduler: Name,
    /// Empty until it is bound.
    pub node: Name,
    pub nominated: Name,
    pub priority: i32,
    pub never_preempts: bool,
    pub is_terminating: bool,
    /// It goes to make room for another: see `DisruptionTarget`.
    pub is_preempted: bool,
    /// Nanoseconds since the epoch; None before the kubelet has taken it.
    pub started: Option<i64>,
    pub requests: Resources,
    pub score_requests: Resources,
    pub gates: Vec<Name>,
    pub selects: Selects,
    pub tolerations: Arc<[Toleration]>,
    pub spread: Arc<[Spread]>,
    pub ports: Vec<Port>,
    /// Images of all its containers, by their full names.
    pub images: Vec<Name>,
    /// Containers that an image is fetched for.
    pub containers: usize,
    pub volumes: Arc<[Volume]>,
    /// Names of the resource claims it waits for.
    pub claims: Vec<Name>,
    /// Features its node must have declared.
    pub features: Vec<&'static str>,
    pub owner: Option<Owner>,
    pub generation: i64,
    pub condition: Option<Condition>,
}

/// What Pods on a node look like to others. Equal Pods share one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Class {
    pub namespace: Name,
    pub labels: Labels,
    pub affinity: Affinity,
}

/// Terms about other Pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Affinity {
    pub required: Box<[Term]>,
    pub required_anti: Box<[Term]>,
    pub preferred: Box<[(i32, Term)]>,
    pub preferred_anti: Box<[(i32, Term)]>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Term {
    pub namespaces: Box<[Name]>,
    pub namespace_selector: Selector,
    pub selector: Selector,
    pub topology_key: Name,
}

/// What it says about nodes.
#[derive(Clone, Debug, Default)]
pub struct Selects {
    pub labels: Option<Selector>,
    pub required: Option<NodeSelector>,
    pub preferred: Vec<(i32, NodeTerm)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toleration {
    pub key: Name,
    pub exists: bool,
    pub value: Name,
    /// None: every effect.
    pub effect: Option<Effect>,
    /// Operators that this scheduler does not know tolerate nothing.
    pub is_known: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spread {
    pub max_skew: i64,
    pub topology_key: Name,
    pub is_hard: bool,
    /// With `matchLabelKeys` in it.
    pub selector: Selector,
    pub min_domains: i64,
    pub honours_affinity: bool,
    pub honours_taints: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Port {
    /// None: every address of the node.
    pub ip: Option<Name>,
    pub protocol: Name,
    pub port: i32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Volume {
    Claim {
        name: Name,
        is_ephemeral: bool,
    },
    Gce {
        disk: Name,
        read_only: bool,
    },
    Aws {
        disk: Name,
    },
    Iscsi {
        iqn: Name,
        read_only: bool,
    },
    Rbd {
        monitors: Vec<Name>,
        pool: Name,
        image: Name,
        read_only: bool,
    },
    /// Another old kind that a CSI driver took over, as that driver knows it.
    Migrated(migration::Handle),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub kind: Name,
    pub name: Name,
    pub uid: Name,
}

/// `PodScheduled` as the API server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub status: Name,
    pub reason: Name,
    pub message: Name,
    pub observed_generation: Option<i64>,
}

// === impl Pod ===

impl Pod {
    #[must_use]
    pub fn read(pod: &core::Pod) -> Pod {
        let empty = core::PodSpec::default();
        let spec = pod.spec.as_ref().unwrap_or(&empty);
        let status = pod.status.as_ref();
        let meta = &pod.metadata;
        let text = |text: &Option<String>| Name::from(text.as_deref().unwrap_or_default());
        let key = Key { namespace: text(&meta.namespace), name: text(&meta.name) };
        let labels = Labels::from(meta.labels.as_ref());
        let spread = spec.topology_spread_constraints.iter().flatten();
        let spread = spread.map(|constraint| Spread::read(constraint, &labels)).collect();
        let (requests, score_requests) = resources::requests(pod);
        let conditions = status.and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        let find = |kind: &str| conditions.iter().find(|c| c.type_ == kind);
        let preempted = find("DisruptionTarget")
            .is_some_and(|c| c.status == "True" && c.reason.as_deref() == Some("PreemptionByScheduler"));
        Pod {
            uid: text(&meta.uid),
            class: Arc::new(Class {
                namespace: key.namespace.clone(),
                affinity: Affinity::read(spec.affinity.as_ref(), &key.namespace),
                labels,
            }),
            scheduler: spec.scheduler_name.as_deref().unwrap_or(DEFAULT_SCHEDULER).into(),
            node: text(&spec.node_name),
            nominated: status.map(|s| text(&s.nominated_node_name)).unwrap_or_default(),
            priority: spec.priority.unwrap_or(0),
            never_preempts: spec.preemption_policy.as_deref() == Some("Never"),
            is_terminating: meta.deletion_timestamp.is_some(),
            is_preempted: preempted,
            started: status.and_then(|s| s.start_time.as_ref()).map(nanoseconds),
            requests,
            score_requests,
            gates: spec.scheduling_gates.iter().flatten().map(|g| g.name.as_str().into()).collect(),
            selects: Selects::read(spec),
            tolerations: spec.tolerations.iter().flatten().map(Toleration::read).collect(),
            spread,
            ports: ports(spec),
            images: images(spec),
            containers: spec.containers.len() + spec.init_containers.as_ref().map_or(0, Vec::len),
            volumes: volumes(spec, &key.name),
            claims: spec.resource_claims.iter().flatten().map(|c| c.name.as_str().into()).collect(),
            features: features(spec),
            owner: meta.owner_references.iter().flatten().find(|o| o.controller == Some(true)).map(|o| {
                Owner {
                    kind: o.kind.as_str().into(),
                    name: o.name.as_str().into(),
                    uid: o.uid.as_str().into(),
                }
            }),
            generation: meta.generation.unwrap_or(0),
            condition: find("PodScheduled").map(|c| Condition {
                status: c.status.as_str().into(),
                reason: text(&c.reason),
                message: text(&c.message),
                observed_generation: c.observed_generation,
            }),
            key,
        }
    }

    #[must_use]
    pub fn labels(&self) -> &Labels {
        &self.class.labels
    }

    #[must_use]
    pub fn is_bound(&self) -> bool {
        !self.node.is_empty()
    }

    /// Whether it mounts this claim.
    pub fn mounts(&self, claim: &Key) -> bool {
        claim.namespace == self.key.namespace && self.claim_names().any(|(name, _)| *name == claim.name)
    }

    /// The claims it names itself. Those of its ephemeral volumes are made for it, and some rules are not about them.
    pub fn named_claims(&self) -> impl Iterator<Item = &Name> {
        self.claim_names().filter(|(_, is_ephemeral)| !is_ephemeral).map(|(name, _)| name)
    }

    /// The claims it mounts, by name.
    pub fn claim_names(&self) -> impl Iterator<Item = (&Name, bool)> {
        self.volumes.iter().filter_map(|volume| match volume {
            Volume::Claim { name, is_ephemeral } => Some((name, *is_ephemeral)),
            _ => None,
        })
    }

    /// The same Pod on a node.
    #[must_use]
    pub fn on(&self, node: &str) -> Pod {
        Pod { node: node.into(), ..self.clone() }
    }
}

fn nanoseconds(time: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Time) -> i64 {
    i64::try_from(time.0.as_nanosecond()).unwrap_or(i64::MAX)
}

// === impl Affinity ===

impl Affinity {
    fn read(affinity: Option<&core::Affinity>, namespace: &Name) -> Affinity {
        let (with, without) = match affinity {
            Some(affinity) => (affinity.pod_affinity.clone(), affinity.pod_anti_affinity.clone()),
            None => return Affinity::default(),
        };
        let (with, without) = (with.unwrap_or_default(), without.unwrap_or_default());
        let required = |terms: &Option<Vec<core::PodAffinityTerm>>| {
            terms.iter().flatten().map(|term| Term::read(term, namespace)).collect()
        };
        let preferred = |terms: &Option<Vec<core::WeightedPodAffinityTerm>>| {
            let weighted = terms.iter().flatten();
            weighted.map(|w| (w.weight, Term::read(&w.pod_affinity_term, namespace))).collect()
        };
        Affinity {
            required: required(&with.required_during_scheduling_ignored_during_execution),
            required_anti: required(&without.required_during_scheduling_ignored_during_execution),
            preferred: preferred(&with.preferred_during_scheduling_ignored_during_execution),
            preferred_anti: preferred(&without.preferred_during_scheduling_ignored_during_execution),
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.required.is_empty()
            && self.required_anti.is_empty()
            && self.preferred.is_empty()
            && self.preferred_anti.is_empty()
    }
}

// === impl Term ===

impl Term {
    fn read(term: &core::PodAffinityTerm, own: &Name) -> Term {
        let mut namespaces: Vec<Name> = term.namespaces.iter().flatten().map(|n| n.as_str().into()).collect();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.push(own.clone());
        }
        namespaces.sort();
        Term {
            namespaces: namespaces.into(),
            namespace_selector: Selector::read(term.namespace_selector.as_ref()),
            selector: Selector::read(term.label_selector.as_ref()),
            topology_key: term.topology_key.as_str().into(),
        }
    }

    /// Whether it is about such a Pod; `namespace` are the labels of the Pod's namespace.
    #[must_use]
    pub fn matches(&self, class: &Class, namespace: &Labels) -> bool {
        let listed = self.namespaces.contains(&class.namespace);
        (listed || self.namespace_selector.matches(namespace)) && self.selector.matches(&class.labels)
    }
}

// === impl Selects ===

impl Selects {
    fn read(spec: &core::PodSpec) -> Selects {
        let affinity = spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
        let required = affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
        let preferred =
            affinity.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_ref());
        Selects {
            labels: spec.node_selector.as_ref().filter(|s| !s.is_empty()).map(Selector::exactly),
            required: required.map(|s| NodeSelector::read(&s.node_selector_terms)),
            preferred: preferred
                .into_iter()
                .flatten()
                .filter(|term| term.weight != 0)
                .map(|term| (term.weight, NodeTerm::read(&term.preference)))
                .collect(),
        }
    }

    /// Whether a node may be used at all.
    #[must_use]
    pub fn allows(&self, labels: &Labels, name: &Name) -> bool {
        self.labels.as_ref().is_none_or(|s| s.matches(labels))
            && self.required.as_ref().is_none_or(|s| s.matches(labels, name))
    }
}

// === impl Toleration ===

impl Toleration {
    fn read(t: &core::Toleration) -> Toleration {
        let text = |text: &Option<String>| Name::from(text.as_deref().unwrap_or_default());
        let operator = t.operator.as_deref().unwrap_or_default();
        let effect = t.effect.as_deref().unwrap_or_default();
        Toleration {
            key: text(&t.key),
            exists: operator == "Exists",
            value: text(&t.value),
            effect: Effect::read(effect),
            is_known: matches!(operator, "" | "Equal" | "Exists")
                && (effect.is_empty() || Effect::read(effect).is_some()),
        }
    }

    #[must_use]
    pub fn tolerates(&self, key: &str, value: &str, effect: Effect) -> bool {
        self.is_known
            && self.effect.is_none_or(|e| e == effect)
            && (self.key.is_empty() || *self.key == *key)
            && match self.exists {
                true => true,
                false => *self.value == *value,
            }
            // A key may be left out only where all of them are meant.
            && (!self.key.is_empty() || self.exists)
    }
}

// === impl Effect ===

impl Effect {
    #[must_use]
    pub fn read(text: &str) -> Option<Effect> {
        match text {
            "NoSchedule" => Some(Effect::NoSchedule),
            "PreferNoSchedule" => Some(Effect::PreferNoSchedule),
            "NoExecute" => Some(Effect::NoExecute),
            _ => None,
        }
    }
}

// === impl Spread ===

impl Spread {
    pub(crate) fn read(c: &core::TopologySpreadConstraint, labels: &Labels) -> Spread {
        let selector = Selector::read(c.label_selector.as_ref());
        let own = c.match_label_keys.iter().flatten();
        let own = own.filter_map(|k| labels.get(k).map(|v| (k.clone(), v.to_string()))).collect();
        Spread {
            max_skew: i64::from(c.max_skew),
            topology_key: c.topology_key.as_str().into(),
            is_hard: c.when_unsatisfiable == "DoNotSchedule",
            selector: selector.and(&Selector::exactly(&own)),
            min_domains: i64::from(c.min_domains.unwrap_or(1)),
            honours_affinity: c.node_affinity_policy.as_deref() != Some("Ignore"),
            honours_taints: c.node_taints_policy.as_deref() == Some("Honor"),
        }
    }
}

/// Host ports of containers that run on: plain init containers are gone by then.
fn ports(spec: &core::PodSpec) -> Vec<Port> {
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten());
    ports
        .filter_map(|p| {
            let ip = p.host_ip.as_deref().filter(|ip| !matches!(*ip, "" | "0.0.0.0"));
            Some(Port {
                ip: ip.map(Name::from),
                protocol: p.protocol.as_deref().filter(|p| !p.is_empty()).unwrap_or("TCP").into(),
                port: p.host_port.filter(|port| *port > 0)?,
            })
        })
        .collect()
}

fn images(spec: &core::PodSpec) -> Vec<Name> {
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    let volumes = spec.volumes.iter().flatten().filter_map(|v| v.image.as_ref()?.reference.as_deref());
    containers
        .filter_map(|c| c.image.as_deref())
        .chain(volumes)
        .map(|image| full_image_name(image).into())
        .collect()
}

/// A name without a tag means the latest.
fn full_image_name(image: &str) -> String {
    match image.rfind(':') <= image.rfind('/') {
        true => format!("{image}:latest"),
        false => image.to_owned(),
    }
}

fn volumes(spec: &core::PodSpec, pod: &str) -> Arc<[Volume]> {
    let read = |volume: &core::Volume| {
        let flag = |flag: Option<bool>| flag.unwrap_or_default();
        if let Some(claim) = &volume.persistent_volume_claim {
            return Some(Volume::Claim { name: claim.claim_name.as_str().into(), is_ephemeral: false });
        }
        if volume.ephemeral.is_some() {
            return Some(Volume::Claim { name: format!("{pod}-{}", volume.name).into(), is_ephemeral: true });
        }
        if let Some(gce) = &volume.gce_persistent_disk {
            return Some(Volume::Gce { disk: gce.pd_name.as_str().into(), read_only: flag(gce.read_only) });
        }
        if let Some(aws) = &volume.aws_elastic_block_store {
            return Some(Volume::Aws { disk: aws.volume_id.as_str().into() });
        }
        if let Some(iscsi) = &volume.iscsi {
            return Some(Volume::Iscsi { iqn: iscsi.iqn.as_str().into(), read_only: flag(iscsi.read_only) });
        }
        if let Some(handle) = migration::of_inline(volume) {
            return Some(Volume::Migrated(handle));
        }
        let rbd = volume.rbd.as_ref()?;
        Some(Volume::Rbd {
            monitors: rbd.monitors.iter().map(|m| m.as_str().into()).collect(),
            pool: rbd.pool.as_deref().unwrap_or("rbd").into(),
            image: rbd.image.as_str().into(),
            read_only: flag(rbd.read_only),
        })
    };
    spec.volumes.iter().flatten().filter_map(read).collect()
}

/// Upstream infers these two from a Pod; the other features it knows concern updates of running Pods.
fn features(spec: &core::PodSpec) -> Vec<&'static str> {
    let mut out = Vec::new();
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    if containers
        .flat_map(|c| c.restart_policy_rules.iter().flatten())
        .any(|r| r.action == "RestartAllContainers")
    {
        out.push("RestartAllContainersOnContainerExits");
    }
    if spec.host_network == Some(true) && spec.host_users == Some(false) {
        out.push("UserNamespacesHostNetworkSupport");
    }
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn toleration(value: Value) -> Toleration {
        Toleration::read(&serde_json::from_value(value).unwrap())
    }

    #[test]
    fn tolerations_tolerate_as_upstreams() {
        for (t, expected) in [
            (json!({"operator": "Exists"}), true),
            (json!({"key": "a", "operator": "Exists"}), true),
            (json!({"key": "a", "value": "1"}), true),
            (json!({"key": "a", "operator": "Equal", "value": "1", "effect": "NoSchedule"}), true),
            (json!({"key": "a", "value": "2"}), false),
            (json!({"key": "b", "operator": "Exists"}), false),
            (json!({"key": "a", "operator": "Exists", "effect": "NoExecute"}), false),
            (json!({"key": "a", "operator": "Gt", "value": "1"}), false),
            (json!({"value": "1"}), false),
        ] {
            assert_eq!(toleration(t.clone()).tolerates("a", "1", Effect::NoSchedule), expected, "{t}");
        }
    }

    #[test]
    fn an_image_without_a_tag_is_the_latest() {
        for (image, full) in [
            ("busybox", "busybox:latest"),
            ("busybox:1", "busybox:1"),
            ("host:5000/busybox", "host:5000/busybox:latest"),
            ("host:5000/busybox:1", "host:5000/busybox:1"),
        ] {
            assert_eq!(full_image_name(image), full);
        }
    }

    #[test]
    fn a_pod_is_read_with_what_the_decisions_need() {
        let pod: core::Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": "p", "uid": "u", "labels": {"app": "web", "rev": "7"}, "generation": 3},
            "spec": {
                "containers": [{"name": "a", "image": "x", "ports": [{"containerPort": 80, "hostPort": 80}, {"containerPort": 1}]}],
                "initContainers": [{"name": "i", "ports": [{"containerPort": 9, "hostPort": 9}]}],
                "volumes": [{"name": "v", "ephemeral": {}}, {"name": "w", "emptyDir": {}}],
                "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
                    "labelSelector": {"matchLabels": {"app": "web"}}, "matchLabelKeys": ["rev", "none"]}],
                "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "host", "labelSelector": {"matchLabels": {"app": "web"}}}]}},
                "hostNetwork": true, "hostUsers": false,
            },
            "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "m"}]},
        }))
        .unwrap();
        let pod = Pod::read(&pod);
        assert_eq!(&*pod.scheduler, DEFAULT_SCHEDULER);
        assert_eq!(pod.ports, [Port { ip: None, protocol: "TCP".into(), port: 80 }]);
        assert_eq!(*pod.volumes, [Volume::Claim { name: "p-v".into(), is_ephemeral: true }]);
        let other = |rev: &str| {
            Labels::from(&[("app", "web"), ("rev", rev)].map(|(k, v)| (k.into(), v.into())).into())
        };
        assert!(pod.spread[0].selector.matches(&other("7")) && !pod.spread[0].selector.matches(&other("8")));
        assert!(pod.class.affinity.required_anti[0].matches(&pod.class, &Labels::default()));
        assert_eq!(pod.features, ["UserNamespacesHostNetworkSupport"]);
        assert_eq!(pod.condition.as_ref().map(|c| &*c.reason), Some("Unschedulable"));
    }
}
