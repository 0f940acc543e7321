//! Labels, annotations and log paths: the only memory of a container across restarts of the agent.

use std::collections::BTreeMap;
use std::path::Path;

use k8s_openapi::api::core::v1::{Container, Pod};

pub const POD_NAME: &str = "io.kubernetes.pod.name";
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub const POD_UID: &str = "io.kubernetes.pod.uid";
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
pub const HASH: &str = "io.kubernetes.container.hash";
pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
pub const TERMINATION_PATH: &str = "io.kubernetes.container.terminationMessagePath";
pub const TERMINATION_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
pub const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
pub const PORTS: &str = "io.kubernetes.container.ports";
pub const TERMINATION_GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
pub const DELETION_GRACE: &str = "io.kubernetes.pod.deletionGracePeriod";

/// `name_namespace(uid)`, how messages speak of a Pod.
#[must_use]
pub fn describe(pod: &Pod) -> String {
    let (namespace, name, uid) = identity(pod);
    format!("{name}_{namespace}({uid})")
}

/// `<podLogsDir>/<namespace>_<name>_<uid>`.
#[must_use]
pub fn log_directory(pod_logs_dir: &Path, pod: &Pod) -> std::path::PathBuf {
    let (namespace, name, uid) = identity(pod);
    pod_logs_dir.join(format!("{namespace}_{name}_{uid}"))
}

/// Relative to the Pod's log directory.
#[must_use]
pub fn log_path(container: &str, restart_count: u32) -> String {
    format!("{container}/{restart_count}.log")
}

pub(super) fn identity(pod: &Pod) -> (&str, &str, &str) {
    let m = &pod.metadata;
    (
        m.namespace.as_deref().unwrap_or_default(),
        m.name.as_deref().unwrap_or_default(),
        m.uid.as_deref().unwrap_or_default(),
    )
}

pub(super) fn sandbox_labels(pod: &Pod) -> BTreeMap<String, String> {
    let mut labels = pod.metadata.labels.clone().unwrap_or_default();
    labels.extend(identity_labels(pod));
    labels
}

pub(super) fn container_labels(pod: &Pod, container: &str) -> BTreeMap<String, String> {
    let mut labels = identity_labels(pod);
    labels.insert(CONTAINER_NAME.into(), container.into());
    labels
}

pub(super) fn container_annotations(
    pod: &Pod,
    container: &Container,
    restart_count: u32,
) -> BTreeMap<String, String> {
    let text = |s: &Option<String>| s.clone().unwrap_or_default();
    let hash = api::pod::container_hash(&container.name, container.image.as_deref().unwrap_or_default());
    let mut out = BTreeMap::from([
        (HASH.to_owned(), format!("{hash:x}")),
        (RESTART_COUNT.to_owned(), restart_count.to_string()),
        (TERMINATION_PATH.to_owned(), text(&container.termination_message_path)),
        (TERMINATION_POLICY.to_owned(), text(&container.termination_message_policy)),
    ]);
    if let Some(grace) = pod.metadata.deletion_grace_period_seconds {
        out.insert(DELETION_GRACE.into(), grace.to_string());
    }
    if let Some(grace) = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds) {
        out.insert(TERMINATION_GRACE.into(), grace.to_string());
    }
    let pre_stop = container.lifecycle.as_ref().and_then(|l| l.pre_stop.as_ref());
    if let Some(json) = pre_stop.and_then(|h| serde_json::to_string(h).ok()) {
        out.insert(PRE_STOP.into(), json);
    }
    let ports = container.ports.as_ref().filter(|p| !p.is_empty());
    if let Some(json) = ports.and_then(|p| serde_json::to_string(p).ok()) {
        out.insert(PORTS.into(), json);
    }
    out
}

fn identity_labels(pod: &Pod) -> BTreeMap<String, String> {
    let (namespace, name, uid) = identity(pod);
    BTreeMap::from([
        (POD_NAME.to_owned(), name.to_owned()),
        (POD_NAMESPACE.to_owned(), namespace.to_owned()),
        (POD_UID.to_owned(), uid.to_owned()),
    ])
}
