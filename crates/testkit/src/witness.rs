//! A watch that misses nothing: what somebody with `kubectl get pods --watch` would have seen, judged afterwards.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use serde::Deserialize;

use crate::cluster::Cluster;
use crate::harness::{is_ready, phase};

/// Writes down every event about the Pods of the namespace `default`, from its start on.
#[derive(Debug)]
pub struct Witness {
    child: RefCell<Child>,
    path: PathBuf,
}

/// One event of the watch.
#[derive(Clone, Debug, Deserialize)]
pub struct Sight {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(rename = "object")]
    pub pod: Pod,
}

// === impl Witness ===

impl Witness {
    /// Watches until dropped. It has seen what is there when this returns.
    #[must_use]
    pub fn start(cluster: &Cluster) -> Witness {
        let path = cluster.node.dir().join("witness.json");
        let file = File::create(&path).unwrap_or_else(|e| panic!("make {}: {e}", path.display()));
        let child = cluster
            .node
            .command(cluster.kubectl_path())
            .arg(format!("--kubeconfig={}", cluster.server.kubeconfig().display()))
            .args(["get", "pods", "--watch", "--output-watch-events", "-o", "json"])
            .env("HOME", cluster.node.dir())
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("start kubectl: {e}"));
        let witness = Witness { child: RefCell::new(child), path };
        cluster.eventually("watched", || (!witness.sights().is_empty()).then_some(()));
        witness
    }

    /// Everything so far, in order.
    #[must_use]
    pub fn sights(&self) -> Vec<Sight> {
        let text = fs::read(&self.path).unwrap_or_default();
        // The last one may be half written.
        serde_json::Deserializer::from_slice(&text).into_iter().map_while(Result::ok).collect()
    }

    /// What would have troubled somebody: a Pod that was Ready and is not, though nobody deletes it; a container that
    /// was replaced; a phase that went back.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let ended = self.child.borrow_mut().try_wait().unwrap_or_else(|e| panic!("look after kubectl: {e}"));
        assert!(ended.is_none(), "the witness has left: {ended:?}");
        let mut last: BTreeMap<String, Pod> = BTreeMap::new();
        let mut wrong = Vec::new();
        for Sight { kind, pod } in self.sights() {
            let name = pod.metadata.name.clone().unwrap_or_default();
            if kind == "DELETED" {
                last.remove(&name);
                continue;
            }
            if let Some(before) = last.get(&name).filter(|b| b.metadata.uid == pod.metadata.uid) {
                compare(&name, before, &pod, &mut wrong);
            }
            last.insert(name, pod);
        }
        wrong
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        let child = self.child.get_mut();
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn compare(name: &str, before: &Pod, after: &Pod, wrong: &mut Vec<String>) {
    let rank = |pod: &Pod| match phase(pod) {
        "" | "Pending" => 0,
        "Running" => 1,
        _ => 2,
    };
    if rank(after) < rank(before) {
        wrong.push(format!("{name} went from {} to {}", phase(before), phase(after)));
    }
    if after.metadata.deletion_timestamp.is_none() && is_ready(before) && !is_ready(after) {
        wrong.push(format!("{name} is not Ready any more: {:?}", after.status));
    }
    for old in containers(before) {
        let Some(new) = containers(after).find(|c| c.name == old.name) else { continue };
        if new.restart_count != old.restart_count {
            wrong.push(format!("{name}/{} was restarted {} times", old.name, new.restart_count));
        }
        if old.container_id.is_some() && new.container_id != old.container_id {
            wrong.push(format!("{name}/{} was replaced", old.name));
        }
    }
}

fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.iter();
    status.flat_map(|s| {
        let own = s.container_statuses.iter().flatten();
        own.chain(s.init_container_statuses.iter().flatten())
    })
}
