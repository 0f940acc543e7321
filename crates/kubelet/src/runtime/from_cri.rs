//! The runtime's answers in the core's words.

use std::collections::BTreeMap;
use std::net::IpAddr;

use base::ids::{ContainerId, PodUid, SandboxId};
use base::time::Wall;
use cri::v1;
use kubelet_core::cri_config::metadata::{
    CONTAINER_NAME, HASH, POD_NAME, POD_NAMESPACE, POD_UID, RESTART_COUNT,
};
use kubelet_core::observed::{Container, ContainerState, FoundPod, Observed, Resources, Sandbox, User};

#[must_use]
pub fn sandbox(status: &v1::PodSandboxStatus) -> Sandbox {
    let options = status.linux.as_ref().and_then(|l| l.namespaces.as_ref()).and_then(|n| n.options.as_ref());
    let network = status.network.as_ref();
    let first = network.map(|n| n.ip.as_str());
    let more = network.iter().flat_map(|n| n.additional_ips.iter()).map(|ip| ip.ip.as_str());
    Sandbox {
        id: SandboxId::from(status.id.as_str()),
        attempt: status.metadata.as_ref().map_or(0, |m| m.attempt),
        ready: status.state == v1::PodSandboxState::SandboxReady as i32,
        created_at: Wall(status.created_at),
        host_network: options.is_some_and(|o| o.network == v1::NamespaceMode::Node as i32),
        ips: first.into_iter().chain(more).filter_map(|ip| ip.parse::<IpAddr>().ok()).collect(),
    }
}

#[must_use]
pub fn container(status: &v1::ContainerStatus, sandbox: &str) -> Container {
    let image = status.image.as_ref();
    let written = image.map(|i| i.user_specified_image.as_str()).filter(|i| !i.is_empty());
    let time = |t: i64| (t > 0).then_some(Wall(t));
    Container {
        id: ContainerId::from(status.id.as_str()),
        sandbox: SandboxId::from(sandbox),
        name: container_name(status.metadata.as_ref(), &status.labels),
        restart_count: restart_count(status.metadata.as_ref(), &status.annotations),
        state: state(status.state),
        hash: hash(&status.annotations),
        image: written.or(image.map(|i| i.image.as_str())).unwrap_or_default().to_owned(),
        image_ref: status.image_ref.clone(),
        image_id: status.image_id.clone(),
        created_at: Wall(status.created_at),
        started_at: time(status.started_at),
        finished_at: time(status.finished_at),
        exit_code: status.exit_code,
        reason: status.reason.clone(),
        message: status.message.clone(),
        termination_message: String::new(),
        resources: status.resources.as_ref().and_then(|r| r.linux.as_ref()).map(resources),
        user: status.user.as_ref().and_then(|u| u.linux.as_ref()).map(|u| User {
            uid: u.uid,
            gid: u.gid,
            supplemental_groups: u.supplemental_groups.clone(),
        }),
    }
}

/// Newest first, by attempt and then by age: the wall clock may have been set back between two
/// instances. Ids break ties so that the order never flips.
pub fn newest_first(observed: &mut Observed) {
    observed
        .sandboxes
        .sort_by(|a, b| (b.attempt, b.created_at, &b.id).cmp(&(a.attempt, a.created_at, &a.id)));
    observed
        .containers
        .sort_by(|a, b| (b.restart_count, b.created_at, &b.id).cmp(&(a.restart_count, a.created_at, &a.id)));
}

/// Every Pod that bears a kubelet's labels, from plain lists: states and names, no details.
#[must_use]
pub fn survey(sandboxes: &[v1::PodSandbox], containers: &[v1::Container]) -> Vec<FoundPod> {
    let mut pods: BTreeMap<String, FoundPod> = BTreeMap::new();
    for s in sandboxes {
        let Some(found) = entry(&mut pods, &s.labels) else { continue };
        found.observed.sandboxes.push(Sandbox {
            id: SandboxId::from(s.id.as_str()),
            attempt: s.metadata.as_ref().map_or(0, |m| m.attempt),
            ready: s.state == v1::PodSandboxState::SandboxReady as i32,
            created_at: Wall(s.created_at),
            host_network: false,
            ips: Vec::new(),
        });
    }
    for c in containers {
        let Some(found) = entry(&mut pods, &c.labels) else { continue };
        found.observed.containers.push(listed(c));
    }
    let mut pods: Vec<FoundPod> = pods.into_values().collect();
    pods.iter_mut().for_each(|p| newest_first(&mut p.observed));
    pods.sort_by(|a, b| a.uid.cmp(&b.uid));
    pods
}

fn entry<'a>(
    pods: &'a mut BTreeMap<String, FoundPod>,
    labels: &BTreeMap<String, String>,
) -> Option<&'a mut FoundPod> {
    let uid = labels.get(POD_UID).filter(|u| !u.is_empty())?;
    let label = |key: &str| labels.get(key).cloned().unwrap_or_default();
    Some(pods.entry(uid.clone()).or_insert_with(|| FoundPod {
        uid: PodUid::from(uid.as_str()),
        name: label(POD_NAME),
        namespace: label(POD_NAMESPACE),
        observed: Observed::default(),
    }))
}

/// The name of a listed container and the hash of what it was made from.
#[must_use]
pub fn name_and_hash(c: &v1::Container) -> (String, Option<u32>) {
    (container_name(c.metadata.as_ref(), &c.labels), hash(&c.annotations))
}

/// A container as a list shows it: enough to find, group and collect it.
fn listed(c: &v1::Container) -> Container {
    Container {
        id: ContainerId::from(c.id.as_str()),
        sandbox: SandboxId::from(c.pod_sandbox_id.as_str()),
        name: container_name(c.metadata.as_ref(), &c.labels),
        restart_count: restart_count(c.metadata.as_ref(), &c.annotations),
        state: state(c.state),
        hash: hash(&c.annotations),
        image: c.image.as_ref().map(|i| i.image.clone()).unwrap_or_default(),
        image_ref: c.image_ref.clone(),
        image_id: c.image_id.clone(),
        created_at: Wall(c.created_at),
        started_at: None,
        finished_at: None,
        exit_code: 0,
        reason: String::new(),
        message: String::new(),
        termination_message: String::new(),
        resources: None,
        user: None,
    }
}

fn state(state: i32) -> ContainerState {
    match v1::ContainerState::try_from(state) {
        Ok(v1::ContainerState::ContainerCreated) => ContainerState::Created,
        Ok(v1::ContainerState::ContainerRunning) => ContainerState::Running,
        Ok(v1::ContainerState::ContainerExited) => ContainerState::Exited,
        _ => ContainerState::Unknown,
    }
}

fn container_name(metadata: Option<&v1::ContainerMetadata>, labels: &BTreeMap<String, String>) -> String {
    let label = labels.get(CONTAINER_NAME).filter(|n| !n.is_empty());
    label.cloned().or_else(|| metadata.map(|m| m.name.clone())).unwrap_or_default()
}

fn restart_count(metadata: Option<&v1::ContainerMetadata>, annotations: &BTreeMap<String, String>) -> u32 {
    let noted = annotations.get(RESTART_COUNT).and_then(|n| n.parse().ok());
    noted.or_else(|| metadata.map(|m| m.attempt)).unwrap_or(0)
}

fn hash(annotations: &BTreeMap<String, String>) -> Option<u32> {
    u32::from_str_radix(annotations.get(HASH)?, 16).ok()
}

fn resources(r: &v1::LinuxContainerResources) -> Resources {
    Resources {
        cpu_shares: r.cpu_shares,
        cpu_quota: r.cpu_quota,
        cpu_period: r.cpu_period,
        memory_limit: r.memory_limit_in_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn annotations_are_the_memory() {
        let status = v1::ContainerStatus {
            id: "c1".into(),
            metadata: Some(v1::ContainerMetadata { name: "web".into(), attempt: 1 }),
            state: v1::ContainerState::ContainerExited as i32,
            finished_at: 5,
            exit_code: 137,
            reason: "OOMKilled".into(),
            annotations: map(&[(HASH, "8e45cbd0"), (RESTART_COUNT, "7")]),
            ..Default::default()
        };
        let c = container(&status, "s1");
        assert_eq!((c.hash, c.restart_count, c.state), (Some(0x8e45_cbd0), 7, ContainerState::Exited));
        assert_eq!((c.started_at, c.finished_at, c.reason.as_str()), (None, Some(Wall(5)), "OOMKilled"));
    }

    #[test]
    fn a_survey_groups_by_uid_and_leaves_strangers_alone() {
        let labels = map(&[(POD_UID, "u1"), (POD_NAME, "web"), (POD_NAMESPACE, "default")]);
        let sandbox = |id: &str, attempt, labels: &BTreeMap<String, String>| v1::PodSandbox {
            id: id.into(),
            metadata: Some(v1::PodSandboxMetadata { attempt, ..Default::default() }),
            labels: labels.clone(),
            ..Default::default()
        };
        let foreign = sandbox("x", 0, &BTreeMap::new());
        let found = survey(&[sandbox("s0", 0, &labels), foreign, sandbox("s1", 1, &labels)], &[]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].uid.as_str(), found[0].name.as_str()), ("u1", "web"));
        let order: Vec<&str> = found[0].observed.sandboxes.iter().map(|s| s.id.as_str()).collect();
        assert_eq!(order, ["s1", "s0"]);
    }
}
