//! What the CRI shows of sandboxes and containers.

use cri::v1;

use crate::books::{Container, Sandbox};
use crate::records::{Phase, SandboxPhase};
use crate::signals;

pub(crate) fn sandbox(sandbox: &Sandbox) -> v1::PodSandboxStatus {
    let (phase, network) = sandbox.state(|state| (state.phase, state.network.clone()));
    let mut addresses = network.into_iter().flat_map(|network| network.addresses).map(|ip| ip.to_string());
    let ip = addresses.next().unwrap_or_default();
    let additional_ips = addresses.map(|ip| v1::PodIp { ip }).collect();
    let options = Some(sandbox.namespaces());
    let namespaces = Some(v1::Namespace { options });
    v1::PodSandboxStatus {
        id: sandbox.id.clone(),
        metadata: sandbox.config.metadata.clone(),
        state: sandbox_state(phase).into(),
        created_at: sandbox.created_at,
        network: Some(v1::PodSandboxNetworkStatus { ip, additional_ips }),
        linux: Some(v1::LinuxPodSandboxStatus { namespaces }),
        labels: sandbox.config.labels.clone(),
        annotations: sandbox.config.annotations.clone(),
        runtime_handler: sandbox.handler.clone(),
    }
}

pub(crate) fn sandbox_state(phase: SandboxPhase) -> v1::PodSandboxState {
    match phase {
        SandboxPhase::Ready => v1::PodSandboxState::SandboxReady,
        SandboxPhase::Making | SandboxPhase::NotReady => v1::PodSandboxState::SandboxNotready,
    }
}

pub(crate) fn sandbox_item(sandbox: &Sandbox) -> v1::PodSandbox {
    v1::PodSandbox {
        id: sandbox.id.clone(),
        metadata: sandbox.config.metadata.clone(),
        state: sandbox_state(sandbox.phase()).into(),
        created_at: sandbox.created_at,
        labels: sandbox.config.labels.clone(),
        annotations: sandbox.config.annotations.clone(),
        runtime_handler: sandbox.handler.clone(),
    }
}

pub(crate) fn container(container: &Container) -> v1::ContainerStatus {
    let state = container.state.borrow().clone();
    let (mut started_at, mut finished_at, mut exit_code) = (0, 0, 0);
    let (mut reason, mut message) = (String::new(), String::new());
    match state.phase {
        Phase::Created | Phase::Starting => {}
        Phase::Running { started_at: at, .. } => started_at = at,
        Phase::Exited(ended) => {
            (started_at, finished_at, exit_code) = (ended.started_at, ended.finished_at, ended.code);
            (reason, message) = (ended.reason, ended.message);
        }
    }
    let (image, user) = (&container.image, &container.user);
    let supplemental_groups = user.groups.iter().map(|gid| i64::from(*gid)).collect();
    let linux = v1::LinuxContainerUser { uid: user.uid.into(), gid: user.gid.into(), supplemental_groups };
    let resources = v1::ContainerResources { linux: Some(state.resources) };
    v1::ContainerStatus {
        id: container.id.clone(),
        metadata: container.config.metadata.clone(),
        state: container.cri_state().into(),
        created_at: container.created_at,
        started_at,
        finished_at,
        exit_code,
        image: container.config.image.clone(),
        image_ref: image.reference.clone(),
        image_id: image.id.clone(),
        reason,
        message,
        labels: container.config.labels.clone(),
        annotations: container.config.annotations.clone(),
        mounts: container.config.mounts.clone(),
        log_path: container.log_path().display().to_string(),
        resources: Some(resources),
        user: Some(v1::ContainerUser { linux: Some(linux) }),
        stop_signal: signals::stop(container).1.into(),
    }
}

pub(crate) fn container_item(container: &Container) -> v1::Container {
    v1::Container {
        id: container.id.clone(),
        pod_sandbox_id: container.sandbox.id.clone(),
        metadata: container.config.metadata.clone(),
        image: container.config.image.clone(),
        image_ref: container.image.reference.clone(),
        image_id: container.image.id.clone(),
        state: container.cri_state().into(),
        created_at: container.created_at,
        labels: container.config.labels.clone(),
        annotations: container.config.annotations.clone(),
    }
}
