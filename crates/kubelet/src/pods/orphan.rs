//! A Pod that runs but that nobody lists: what its containers' annotations remember of it.

use base::ids::PodUid;
use k8s_openapi::api::core::v1::{Container, Lifecycle, Pod, PodSpec};
use kubelet_core::cri_config::metadata::PRE_STOP;
use kubelet_core::observed::FoundPod;

use crate::ports::Runtime;

/// Rebuilds as much of the Pod as its end needs: names, and each container's preStop hook.
pub async fn pod_from_runtime(runtime: &dyn Runtime, found: &FoundPod) -> Pod {
    let mut containers: Vec<Container> = Vec::new();
    for c in &found.observed.containers {
        if containers.iter().any(|known| known.name == c.name) {
            continue;
        }
        let annotations = runtime
            .container_status(c.id.as_str())
            .await
            .ok()
            .and_then(|answer| answer.status)
            .map(|status| status.annotations)
            .unwrap_or_default();
        let pre_stop = annotations.get(PRE_STOP).and_then(|json| serde_json::from_str(json).ok());
        containers.push(Container {
            name: c.name.clone(),
            lifecycle: pre_stop.map(|h| Lifecycle { pre_stop: Some(h), ..Default::default() }),
            ..Default::default()
        });
    }
    let mut pod = pod_without_trace(&found.uid);
    pod.metadata.name = Some(found.name.clone());
    pod.metadata.namespace = Some(found.namespace.clone());
    pod.spec = Some(PodSpec { containers, ..Default::default() });
    pod
}

/// Only a directory is left of it.
#[must_use]
pub fn pod_without_trace(uid: &PodUid) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.uid = Some(uid.to_string());
    pod.spec = Some(PodSpec::default());
    pod
}
