//! What a Pod says about itself.

mod conditions;
mod containers;
mod phase;
mod resources;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use base::ids::ContainerId;
use base::time::Wall;
use k8s_openapi::api::core::v1::{Container, HostIP, Pod, PodIP, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

use super::policy::will_restart;
use super::{KillCause, Stage, Verdicts, Waiting};
use crate::observed::{ContainerState, Observed};
use crate::resize::{InProgress, Pending, PodResources};

/// Everything [`status`] looks at.
#[derive(Clone, Copy, Debug)]
pub struct StatusInput<'a> {
    pub pod: &'a Pod,
    pub observed: &'a Observed,
    pub verdicts: &'a Verdicts,
    /// As in [`PlanInput`](super::PlanInput).
    pub replaced: &'a BTreeSet<ContainerId>,
    /// Why containers are not started: from the plan (back-off) and from starts that failed.
    pub waiting: &'a BTreeMap<String, Waiting>,
    /// The status last published; after a restart of the agent, the one the API server holds.
    pub previous: &'a PodStatus,
    pub stage: Stage,
    pub kill: Option<&'a KillCause>,
    /// What the cgroups were last told, where a record of it is kept.
    pub actuated: Option<&'a PodResources>,
    /// Other resources that were asked for and not granted.
    pub pending: Option<&'a Pending>,
    /// Other resources that were granted and are not in force.
    pub resizing: Option<&'a InProgress>,
    /// The node's addresses, the preferred family first.
    pub host_ips: &'a [IpAddr],
    /// What CRI Version calls the runtime: the scheme of every containerID.
    pub runtime_name: &'a str,
    /// The Pod's runtime handler can make mounts read-only all the way down.
    pub recursive_read_only: bool,
    pub now: Wall,
}

/// The Pod's status as of this observation.
#[must_use]
pub fn status(input: &StatusInput<'_>) -> PodStatus {
    let blank = PodSpec::default();
    let view = View { spec: input.pod.spec.as_ref().unwrap_or(&blank), input };
    let mut out = view.foreign_fields();
    if view.never_began() {
        view.set_phase(&mut out);
        out.conditions = some_list(view.foreign_conditions().into_iter());
        return out;
    }
    view.container_statuses(&mut out);
    // As upstream, before what never ran is said to have ended: a static Pod that was pending still is.
    view.set_phase(&mut out);
    view.end_all(&mut out);
    resources::set_of_pod(view.spec, input.actuated, &mut out);
    view.set_readiness(&mut out);
    view.set_addresses(&mut out);
    view.set_conditions(&mut out);
    out
}

/// The status last published, with what the probes say by now of the containers it shows. For one who cannot look at
/// the runtime at the moment: nothing else of it is judged anew.
#[must_use]
pub fn readiness(input: &StatusInput<'_>) -> PodStatus {
    let mut out = input.previous.clone();
    let Some(spec) = &input.pod.spec else { return out };
    let view = View { spec, input };
    view.set_readiness(&mut out);
    view.refresh_readiness(&mut out);
    out
}

/// The input with the spec at hand.
#[derive(Clone, Copy)]
struct View<'a> {
    spec: &'a PodSpec,
    input: &'a StatusInput<'a>,
}

impl<'a> View<'a> {
    /// Fields that others own, or that are set once.
    fn foreign_fields(self) -> PodStatus {
        let StatusInput { pod, previous, now, .. } = *self.input;
        let api = pod.status.clone().unwrap_or_default();
        let generation = pod.metadata.generation.max(previous.observed_generation);
        PodStatus {
            start_time: previous.start_time.clone().or(api.start_time).or_else(|| time(now)),
            qos_class: Some(api::pod::qos_class(pod).as_str().to_owned()),
            observed_generation: generation,
            nominated_node_name: api.nominated_node_name,
            resource_claim_statuses: api.resource_claim_statuses,
            extended_resource_claim_status: api.extended_resource_claim_status,
            node_allocatable_resource_claim_statuses: api.node_allocatable_resource_claim_statuses,
            ..Default::default()
        }
    }

    /// Pod and host addresses, those of the node's own family first.
    fn set_addresses(self, out: &mut PodStatus) {
        let StatusInput { observed, previous, host_ips, .. } = *self.input;
        let hosts = by_family(host_ips, host_ips);
        out.host_ip = hosts.first().cloned();
        out.host_ips = some_list(hosts.iter().map(|ip| HostIP { ip: ip.clone() }));

        let old: Vec<String> = previous.pod_ips.iter().flatten().map(|p| p.ip.clone()).collect();
        let newest = observed.sandboxes.first().filter(|s| s.ready);
        let found = newest.map(|s| by_family(&s.ips, host_ips)).unwrap_or_default();
        let ips = if self.spec.host_network.unwrap_or(false) {
            host_network_ips(old, &hosts)
        } else if found.is_empty() && observed.ready_sandbox().is_none() {
            // A Pod that has ended keeps the address it had.
            old
        } else {
            found
        };
        out.pod_ip = ips.first().cloned();
        out.pod_ips = some_list(ips.into_iter().map(|ip| PodIP { ip }));
    }

    /// The Pod was turned away: it has a verdict and nothing else, so that the verdict is what people are shown.
    /// Known by its bare status once the rejection itself is forgotten.
    fn never_began(self) -> bool {
        let StatusInput { pod, previous, observed, kill, .. } = *self.input;
        let has_nothing = observed.containers.is_empty() && observed.sandboxes.is_empty();
        let bare = |s: &PodStatus| s.phase.as_deref() == Some("Failed") && s.container_statuses.is_none();
        let was_rejected = bare(previous) || pod.status.as_ref().is_some_and(bare);
        has_nothing && (was_rejected || matches!(kill, Some(KillCause::Rejected { .. })))
    }

    /// Whether this exited instance is to run again.
    fn comes_back(self, c: &Container, exited: &crate::observed::Container) -> bool {
        let verdict = self.input.verdicts.get(&exited.id).copied().unwrap_or_default();
        will_restart(c, self.spec, exited, verdict, self.input.replaced.contains(&exited.id))
    }

    /// Some container runs, or may run for all we know.
    fn something_may_run(self) -> bool {
        let live = |c: &crate::observed::Container| {
            matches!(c.state, ContainerState::Running | ContainerState::Unknown)
        };
        self.input.stage != Stage::Terminated && self.input.observed.containers.iter().any(live)
    }

    /// The Pod is ending and nothing of it runs any more: what stopped stays stopped.
    fn is_final(self) -> bool {
        self.input.stage != Stage::Run && !self.something_may_run()
    }

    fn is_static(self) -> bool {
        let annotations = self.input.pod.metadata.annotations.as_ref();
        annotations.and_then(|a| a.get("kubernetes.io/config.source")).is_some_and(|s| s != "api")
    }

    /// A regular container exists in the current sandbox, so init containers are done.
    fn has_initialised(self) -> bool {
        let observed = self.input.observed;
        let Some(sandbox) = observed.sandboxes.first().filter(|s| s.ready) else { return false };
        let here = |name: &str| observed.containers.iter().any(|i| i.name == name && i.sandbox == sandbox.id);
        self.spec.containers.iter().any(|c| here(&c.name))
    }
}

/// Once set, the addresses of a Pod on the host's network stay; a second family may join later.
fn host_network_ips(old: Vec<String>, hosts: &[String]) -> Vec<String> {
    if old.is_empty() {
        return hosts.to_vec();
    }
    let v6 = |ip: &String| ip.contains(':');
    let joins = hosts.get(1).filter(|ip| old.len() == 1 && v6(ip) != v6(&old[0])).cloned();
    old.into_iter().chain(joins).collect()
}

/// The first address of the node's family, then the first of the other one.
fn by_family(ips: &[IpAddr], node: &[IpAddr]) -> Vec<String> {
    let v6_first = node.first().is_some_and(IpAddr::is_ipv6);
    let first = |v6: bool| ips.iter().find(|ip| ip.is_ipv6() == v6);
    [first(v6_first), first(!v6_first)].into_iter().flatten().map(ToString::to_string).collect()
}

fn some_list<T>(items: impl Iterator<Item = T>) -> Option<Vec<T>> {
    let list: Vec<T> = items.collect();
    (!list.is_empty()).then_some(list)
}

fn is_terminal(phase: Option<&str>) -> bool {
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// API times carry whole seconds.
fn time(at: Wall) -> Option<Time> {
    Timestamp::from_second(at.secs()).ok().map(Time)
}
