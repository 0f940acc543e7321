//! A Pod that wanders between Nodes with a volume that may be on one of them only.

use base::rng::Rng;
use controllers_core::resource::{
    NODES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS, VOLUME_ATTACHMENTS,
};
use serde_json::{Value, json};

use super::{end_deleted, is_deleting, some, start};
use crate::cluster::Story;
use crate::server::{Check, Store};

const VOLUME: &str = "kubernetes.io/csi/disk.example.com^h";
const NAMES: [&str; 3] = ["a", "b", "c"];

#[derive(Debug)]
pub(crate) struct Attached {
    /// Where the Pod is wanted; none: nowhere.
    node: Option<&'static str>,
    pods: usize,
}

impl Attached {
    pub(crate) fn new(_: &mut Rng) -> Attached {
        Attached { node: Some("a"), pods: 0 }
    }

    fn add_pod(&mut self, store: &mut Store) {
        let Some(node) = self.node else { return };
        self.pods += 1;
        let pod = json!({"metadata": {"name": format!("p{}", self.pods)}, "spec": {"nodeName": node,
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}});
        store.create(PODS, pod).unwrap();
    }
}

impl Story for Attached {
    fn queues(&self) -> &'static [&'static str] {
        &["pvcs", "claims", "volumes"]
    }

    fn check(&self) -> Check {
        Box::new(check)
    }

    fn begin(&mut self, store: &mut Store) {
        for name in NAMES {
            let node = json!({"metadata": {"name": name,
                "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
                "spec": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
            store.create(NODES, node).unwrap();
        }
        let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}});
        let claim = json!({"metadata": {"name": "c"}, "spec": spec, "status": {"phase": "Pending"}});
        store.create(PERSISTENT_VOLUME_CLAIMS, claim).unwrap();
        let volume = json!({"metadata": {"name": "v"}, "status": {"phase": "Pending"}, "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "persistentVolumeReclaimPolicy": "Retain",
            "csi": {"driver": "disk.example.com", "volumeHandle": "h"}}});
        store.create(PERSISTENT_VOLUMES, volume).unwrap();
        self.add_pod(store);
    }

    fn change(&mut self, store: &mut Store, rng: &mut Rng) {
        for name in store.names(PODS) {
            store.begin_delete(PODS, &name);
        }
        self.node = rng.chance(0.8).then(|| NAMES[rng.below(3) as usize]);
        self.add_pod(store);
    }

    fn live(&self, store: &mut Store, rng: &mut Rng) {
        for name in some(store, rng) {
            kubelet(store, &name);
        }
        for node in NAMES {
            if rng.chance(0.5) {
                let is_used = |(_, pod): (&String, &Value)| {
                    pod["spec"]["nodeName"] == node && pod["status"]["phase"] == "Running"
                };
                let in_use = store.of(PODS).any(is_used);
                let says = store.get(NODES, node)["status"]["volumesInUse"].is_array();
                // Said before it is mounted, and taken back some time after it is not any more.
                if says && !in_use {
                    store.change(NODES, node, |node| node["status"]["volumesInUse"] = Value::Null);
                }
            }
        }
        for name in store.names(VOLUME_ATTACHMENTS) {
            if rng.chance(0.3) {
                driver(store, &name);
            }
        }
    }

    fn is_as_asked(&self, store: &Store) -> Result<(), String> {
        let running: Vec<&Value> = store.of(PODS).map(|(_, pod)| pod).collect();
        let is_there = running.len() == usize::from(self.node.is_some())
            && running.iter().all(|pod| pod["status"]["phase"] == "Running");
        if !is_there {
            return Err(format!("{running:?}"));
        }
        let attached: Vec<&str> =
            store.of(VOLUME_ATTACHMENTS).filter_map(|(_, one)| one["spec"]["nodeName"].as_str()).collect();
        if attached != self.node.into_iter().collect::<Vec<_>>() {
            return Err(format!("attached to {attached:?}, wanted on {:?}", self.node));
        }
        for name in NAMES {
            let reported = store.get(NODES, name)["status"]["volumesAttached"].is_array();
            if reported != (self.node == Some(name)) {
                return Err(format!("{name} is told the wrong thing"));
            }
        }
        Ok(())
    }
}

/// Mounts only what the Node is told that it has, and says before that it is in use.
fn kubelet(store: &mut Store, name: &str) {
    let pod = store.get(PODS, name).clone();
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
    if is_deleting(&pod) {
        return end_deleted(store, name);
    }
    if pod["status"]["phase"] == "Running" {
        return;
    }
    let status = store.get(NODES, &node)["status"].clone();
    let is_told = status["volumesAttached"].as_array().into_iter().flatten().any(|one| one["name"] == VOLUME);
    match (status["volumesInUse"].is_array(), is_told) {
        (false, _) => store.change(NODES, &node, |node| node["status"]["volumesInUse"] = json!([VOLUME])),
        (true, true) => start(store, name, &node),
        (true, false) => {}
    }
}

/// Attaches what is asked for, and lets go of what is deleted.
fn driver(store: &mut Store, name: &str) {
    let attachment = store.get(VOLUME_ATTACHMENTS, name).clone();
    let is_attached = attachment["status"]["attached"] == true;
    if is_deleting(&attachment) {
        store.change(VOLUME_ATTACHMENTS, name, |one| one["metadata"]["finalizers"] = json!([]));
    } else if !is_attached {
        store.change(VOLUME_ATTACHMENTS, name, |one| {
            one["metadata"]["finalizers"] = json!(["external-attacher/disk-example-com"]);
            one["status"]["attached"] = json!(true);
        });
    }
}

fn check(store: &Store) -> Vec<String> {
    let mut broken = Vec::new();
    let attached: Vec<&Value> =
        store.of(VOLUME_ATTACHMENTS).map(|(_, one)| &one["spec"]["nodeName"]).collect();
    if attached.len() > 1 {
        broken.push(format!("it is attached to {attached:?} at once"));
    }
    for (name, pod) in store.of(PODS) {
        let runs = pod["status"]["phase"] == "Running";
        let is_its = |one: &&Value| **one == pod["spec"]["nodeName"];
        if runs && !attached.iter().any(is_its) {
            broken.push(format!("{name} runs and has lost its volume"));
        }
    }
    broken
}
