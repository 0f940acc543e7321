//! May this Pod run here? The checks of upstream's kubelet, in its order and with its words.

mod affinity;
mod features;
mod fit;
mod preempt;
mod taints;

pub use affinity::any_term_matches;

use std::collections::BTreeMap;

use api::pod::{QosClass, qos_class};
use base::ids::PodUid;
use k8s_openapi::api::core::v1::{AppArmorProfile, Pod, Taint};

use crate::cri_config::is_critical;
use crate::downward::Allocatable;
use crate::node::conditions::Pressures;
use crate::sysctl::Allowlist;

/// Everything [`admit`] looks at.
#[derive(Clone, Copy, Debug)]
pub struct AdmitInput<'a> {
    pub pod: &'a Pod,
    /// Pods already admitted and not finished.
    pub others: &'a [&'a Pod],
    pub node: &'a NodeOffer,
}

/// What the node offers to Pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeOffer {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// What the Node object repels Pods with.
    pub taints: Vec<Taint>,
    pub allocatable: Allocatable,
    /// Extended resources that the Node object has, and how much of each.
    pub extended: BTreeMap<String, i64>,
    pub sysctls: Allowlist,
    /// The kernel enforces AppArmor profiles.
    pub app_armor: bool,
    /// The runtime knows supplementalGroupsPolicy Strict.
    pub strict_groups: bool,
    /// The gate PodLevelResources is off.
    pub no_pod_resources: bool,
    /// The gate InPlacePodLevelResourcesVerticalScaling is off.
    pub no_pod_resize: bool,
    /// Containers have swap by what they ask for.
    pub limited_swap: bool,
    /// Guaranteed Pods have CPUs of their own.
    pub static_cpus: bool,
    /// Guaranteed Pods have memory of chosen NUMA nodes.
    pub static_memory: bool,
    /// What the Node object declares; none with the gate NodeDeclaredFeatures off, and nobody asks.
    pub declared: Option<Vec<String>>,
    pub shutting_down: bool,
    /// What the node is short of.
    pub pressures: Pressures,
}

/// A Pod that may not run here: an event with this reason and message, and phase Failed with the
/// message after `Pod was rejected: `.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub reason: String,
    pub message: String,
    /// The node's labels speak against the Pod: a label that is on its way here could change that.
    pub by_labels: bool,
}

/// Why general checks failed, in the order they are made.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Failure {
    Insufficient(fit::Insufficient),
    Predicate(Predicate),
}

/// What a Pod and the node must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Predicate {
    NodeAffinity,
    NodeName,
    NodePorts,
    TaintToleration,
}

/// Admits the Pod, or says why not. A critical Pod may be admitted at the cost of others, which must
/// then be ended (reason Preempting).
pub fn admit(input: &AdmitInput<'_>) -> Result<Vec<PodUid>, Rejection> {
    let (pod, node) = (input.pod, input.node);
    check_pressures(pod, node.pressures)?;
    node.sysctls.check(pod).map_err(|e| reject("SysctlForbidden", format!("forbidden sysctl: {e}")))?;
    check_platform(pod, node)?;
    let victims = check_general(input)?;
    check_app_armor(pod, node.app_armor)
        .map_err(|e| reject("AppArmor", format!("Cannot enforce AppArmor: {e}")))?;
    features::check(pod, node)?;
    if node.shutting_down {
        return Err(reject("NodeShutdown", "Pod was rejected as the node is shutting down."));
    }
    Ok(victims)
}

/// The first resource of which there is too little for the Pod.
#[must_use]
pub fn shortage(input: &AdmitInput<'_>) -> Option<String> {
    let short = fit::insufficient(input.pod, input.others, input.node);
    short.into_iter().next().map(|s| s.resource)
}

impl Rejection {
    /// The reason as `kubelet_admission_rejections_total` counts it: reasons beyond upstream's list are not told
    /// apart, so that nobody can make labels at will.
    #[must_use]
    pub fn label(&self) -> &str {
        const COUNTED: [&str; 17] = [
            "AppArmor",
            "Evicted",
            "InvalidNodeInfo",
            "NodeShutdown",
            "OutOfcpu",
            "OutOfephemeral-storage",
            "OutOfmemory",
            "OutOfpods",
            "PodFeatureUnsupported",
            "PodLevelResourcesNotSupported",
            "PodOSNotSupported",
            "PodOSSelectorNodeLabelDoesNotMatch",
            "SupplementalGroupsPolicyNotSupported",
            "SysctlForbidden",
            "TopologyAffinityError",
            "UnexpectedAdmissionError",
            "VolumeAttachmentLimitExceeded",
        ];
        match self.reason.as_str() {
            known if COUNTED.contains(&known) => known,
            extended if extended.starts_with("OutOf") => "OutOfExtendedResources",
            _ => "Other",
        }
    }
}

fn reject(reason: &str, message: impl Into<String>) -> Rejection {
    Rejection { reason: reason.to_owned(), message: message.into(), by_labels: false }
}

/// A node that is short of something lets in only what the cluster cannot do without; one that is short of memory alone
/// also who said how much he needs, or that he does not mind.
fn check_pressures(pod: &Pod, pressures: Pressures) -> Result<(), Rejection> {
    let names = pressures.names();
    if names.is_empty() || is_critical(pod) {
        return Ok(());
    }
    let taint = Taint {
        key: "node.kubernetes.io/memory-pressure".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    let modest = qos_class(pod) != QosClass::BestEffort || taints::is_tolerated(pod, &taint);
    if names == ["MemoryPressure"] && modest {
        return Ok(());
    }
    Err(reject("Evicted", format!("The node had condition: [{}]. ", names.join(" "))))
}

fn check_platform(pod: &Pod, node: &NodeOffer) -> Result<(), Rejection> {
    let label = pod.metadata.labels.as_ref().and_then(|l| l.get("kubernetes.io/os"));
    if label.is_some_and(|os| os != "linux") {
        return Err(reject(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        ));
    }
    let spec = pod.spec.as_ref();
    if spec.and_then(|s| s.os.as_ref()).is_some_and(|os| os.name != "linux") {
        return Err(reject("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"));
    }
    let policy = spec.and_then(|s| s.security_context.as_ref()?.supplemental_groups_policy.as_deref());
    if policy == Some("Strict") && !node.strict_groups {
        return Err(reject(
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        ));
    }
    Ok(())
}

/// Resources, node affinity, node name and host ports. Resources never stop a critical Pod: others
/// make way, if there are any it may displace.
fn check_general(input: &AdmitInput<'_>) -> Result<Vec<PodUid>, Rejection> {
    let failures = failures(input);
    if !is_critical(input.pod) {
        return failures.first().map_or(Ok(Vec::new()), |f| Err(f.rejection()));
    }
    if let Some(f) = failures.iter().find(|f| matches!(f, Failure::Predicate(_))) {
        return Err(f.rejection());
    }
    let short: Vec<_> = failures
        .iter()
        .filter_map(|f| match f {
            Failure::Insufficient(i) => Some((i.resource.clone(), i.missing())),
            Failure::Predicate(_) => None,
        })
        .collect();
    preempt::victims(input.pod, input.others, short).map_err(|e| {
        let what = "Unexpected error while attempting to recover from admission failure";
        reject(
            "UnexpectedAdmissionError",
            format!("{what}: preemption: error finding a set of pods to preempt: {e}"),
        )
    })
}

fn failures(input: &AdmitInput<'_>) -> Vec<Failure> {
    let (pod, node) = (input.pod, input.node);
    let mut out: Vec<Failure> =
        fit::insufficient(pod, input.others, node).into_iter().map(Failure::Insufficient).collect();
    let mut predicate = |ok: bool, predicate| {
        if !ok {
            out.push(Failure::Predicate(predicate));
        }
    };
    let wanted_node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default();
    predicate(affinity::matches(pod, &node.name, &node.labels), Predicate::NodeAffinity);
    predicate(wanted_node.is_empty() || wanted_node == node.name, Predicate::NodeName);
    predicate(fit::ports_are_free(pod, input.others), Predicate::NodePorts);
    predicate(taints::are_tolerated(pod, &node.taints), Predicate::TaintToleration);
    out
}

fn check_app_armor(pod: &Pod, enabled: bool) -> Result<(), &'static str> {
    let spec = pod.spec.as_ref();
    let of_pod = spec.and_then(|s| s.security_context.as_ref()?.app_armor_profile.as_ref());
    let of_containers = api::pod::containers(pod).filter_map(|c| match c {
        api::pod::ContainerRef::Spec { container, .. } => {
            container.security_context.as_ref()?.app_armor_profile.as_ref()
        }
        api::pod::ContainerRef::Ephemeral(c) => c.security_context.as_ref()?.app_armor_profile.as_ref(),
    });
    let fields: Vec<&AppArmorProfile> = of_pod.into_iter().chain(of_containers).collect();
    let annotations: Vec<&str> = pod
        .metadata
        .annotations
        .iter()
        .flatten()
        .filter(|(k, _)| k.starts_with("container.apparmor.security.beta.kubernetes.io/"))
        .map(|(_, v)| v.as_str())
        .collect();
    let required =
        fields.iter().any(|p| p.type_ != "Unconfined") || annotations.iter().any(|v| *v != "unconfined");
    if !required {
        return Ok(());
    }
    if !enabled {
        return Err("AppArmor is not enabled on the host");
    }
    let nameless = |p: &&AppArmorProfile| {
        p.type_ == "Localhost" && p.localhost_profile.as_deref().unwrap_or_default().trim().is_empty()
    };
    if fields.iter().any(nameless) || annotations.iter().any(|v| v.trim() == "localhost/") {
        return Err("invalid empty AppArmor profile name");
    }
    Ok(())
}

// === impl Failure ===

impl Failure {
    fn rejection(&self) -> Rejection {
        match self {
            Failure::Insufficient(i) => reject(
                &format!("OutOf{}", i.resource),
                format!(
                    "Node didn't have enough resource: {}, requested: {}, used: {}, capacity: {}",
                    i.resource, i.requested, i.used, i.capacity
                ),
            ),
            Failure::Predicate(predicate) => {
                let (name, why) = predicate.words();
                Rejection {
                    by_labels: *predicate == Predicate::NodeAffinity,
                    ..reject(name, format!("Predicate {name} failed: {why}"))
                }
            }
        }
    }
}

// === impl Predicate ===

impl Predicate {
    /// Upstream's name for it, and why it failed.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::NodeAffinity => ("NodeAffinity", "node(s) didn't match Pod's node affinity/selector"),
            Self::NodeName => ("NodeName", "node(s) didn't match the requested node name"),
            Self::NodePorts => ("NodePorts", "node(s) didn't have free ports for the requested pod ports"),
            Self::TaintToleration => ("TaintToleration", "node(s) had taints that the pod didn't tolerate"),
        }
    }
}

#[cfg(test)]
mod tests;
