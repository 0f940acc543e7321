//! Pods made of shell scripts, for the suites on a real machine.

use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};

use crate::harness::{Harness, container};
use crate::node::{AgentOptions, Containerd};

/// Runs until it is asked to stop.
pub const STAY: &str = "trap exit TERM; while :; do sleep 0.1; done";

/// Name, script, and more fields of the container as flow YAML.
pub type Script<'a> = (&'a str, &'a str, &'a str);

/// A kubelet that lets a crashed container wait for one second at most.
#[must_use]
pub fn quick(containerd: Containerd) -> Option<Harness> {
    let config = "crashLoopBackOff: { maxContainerRestartPeriod: 1s }\n".to_owned();
    Harness::start(containerd, AgentOptions { config, ..AgentOptions::default() })
}

/// A manifest. `more` are lines of its spec. The containers share the volume `notes`, an emptyDir unless
/// `more` has volumes. The manifest names its UID, so that an edited one is still the same Pod.
#[must_use]
pub fn pod(name: &str, more: &str, init: &[Script<'_>], containers: &[Script<'_>]) -> String {
    let list = |all: &[Script<'_>]| all.iter().map(line).collect::<String>();
    let init = if init.is_empty() { String::new() } else { format!("  initContainers:\n{}", list(init)) };
    let notes = if more.contains("volumes:") { "" } else { "  volumes: [{ name: notes, emptyDir: {} }]\n" };
    let grace = if more.contains("terminationGrace") { "" } else { "  terminationGracePeriodSeconds: 2\n" };
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{ name: {name}, uid: {name}-uid }}\nspec:\n\
         {grace}{notes}{more}\n{init}  containers:\n{}",
        list(containers)
    )
}

/// A directory of the machine as the volume `notes`, for what has to outlive the Pod, and its line in the spec.
#[must_use]
pub fn notes(h: &Harness, name: &str) -> (PathBuf, String) {
    let dir = h.node.dir().join(format!("notes-{name}"));
    fs::create_dir_all(&dir).unwrap_or_else(|e| panic!("make {}: {e}", dir.display()));
    let volume = format!("  volumes: [{{ name: notes, hostPath: {{ path: {} }} }}]\n", dir.display());
    (dir, volume)
}

/// Waits until the scripts have written this: a container that runs has not said a word yet.
#[track_caller]
pub fn wait_noted(h: &Harness, dir: &Path, want: &str) {
    let read = || fs::read_to_string(dir.join("order")).unwrap_or_default();
    h.until(&format!("noted as {want:?}"), || (read() == want).then_some(()));
}

/// How the container's current instance ended.
#[must_use]
pub fn ended<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStateTerminated> {
    container(pod, name)?.state.as_ref()?.terminated.as_ref()
}

/// How the instance before it ended.
#[must_use]
pub fn ended_before<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStateTerminated> {
    container(pod, name)?.last_state.as_ref()?.terminated.as_ref()
}

/// What `longshore pods get -o wide` tells of a Pod, its events among it; or why it tells nothing.
#[must_use]
pub fn told(h: &Harness, name: &str) -> String {
    let (_, out, err) = h.pods(&["get", name, "-o", "wide"]);
    out + &err
}

fn line((name, script, more): &Script<'_>) -> String {
    let comma = if more.is_empty() { "" } else { ", " };
    format!(
        "    - {{ name: {name}, image: localhost/busybox:v1, imagePullPolicy: Never, \
         command: [sh, -c, {script:?}], volumeMounts: [{{ name: notes, mountPath: /notes }}]{comma}{more} }}\n"
    )
}
