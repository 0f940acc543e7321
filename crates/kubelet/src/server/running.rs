//! `/runningpods`: what the runtime runs, whoever asked for it.

use std::collections::BTreeMap;

use cri::v1;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use crate::ports::Runtime;

/// Pods with something running in the runtime: names and images, no more.
pub async fn running_pods(runtime: &dyn Runtime) -> cri::Result<Vec<Pod>> {
    let ready = v1::PodSandboxStateValue { state: v1::PodSandboxState::SandboxReady as i32 };
    let filter = v1::PodSandboxFilter { state: Some(ready), ..Default::default() };
    let sandboxes = runtime.list_pod_sandboxes(Some(filter)).await?;
    let running = v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning as i32 };
    let filter = v1::ContainerFilter { state: Some(running), ..Default::default() };
    let containers = runtime.list_containers(Some(filter)).await?;
    Ok(join(&sandboxes, &containers))
}

fn join(sandboxes: &[v1::PodSandbox], containers: &[v1::Container]) -> Vec<Pod> {
    let mut pods: BTreeMap<String, Pod> = BTreeMap::new();
    for sandbox in sandboxes {
        let Some(meta) = &sandbox.metadata else { continue };
        let mut pod = Pod::default();
        pod.metadata.name = Some(meta.name.clone());
        pod.metadata.namespace = Some(meta.namespace.clone());
        pod.metadata.uid = Some(meta.uid.clone());
        let mut of = containers.iter().filter(|c| c.pod_sandbox_id == sandbox.id).map(outline).collect();
        let known = pods.entry(meta.uid.clone()).or_insert(pod);
        known.spec.get_or_insert_with(PodSpec::default).containers.append(&mut of);
    }
    pods.into_values().collect()
}

fn outline(container: &v1::Container) -> Container {
    Container {
        name: container.metadata.as_ref().map(|m| m.name.clone()).unwrap_or_default(),
        image: container.image.as_ref().map(|i| i.image.clone()),
        ..Container::default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_shown_under_their_pod() {
        let meta =
            v1::PodSandboxMetadata { name: "p".into(), namespace: "ns".into(), uid: "u".into(), attempt: 0 };
        let sandbox = v1::PodSandbox { id: "s".into(), metadata: Some(meta), ..Default::default() };
        let container = |sandbox: &str, name: &str| v1::Container {
            pod_sandbox_id: sandbox.into(),
            metadata: Some(v1::ContainerMetadata { name: name.into(), attempt: 0 }),
            image: Some(v1::ImageSpec { image: "i".into(), ..Default::default() }),
            ..Default::default()
        };
        let pods = join(&[sandbox], &[container("s", "a"), container("other", "b")]);
        assert_eq!(pods.len(), 1);
        let spec = pods[0].spec.as_ref().unwrap();
        assert_eq!((spec.containers.len(), spec.containers[0].name.as_str()), (1, "a"));
    }
}
