//! On real mounts, in a mount namespace of their own; they need root, and do nothing without it.
#![allow(clippy::unwrap_used)]

mod attack;
mod crash;
mod files;
mod kinds;
mod links;
mod stale;
mod teardown;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::ids::PodUid;
use base::rng::Rng;
use base::time::{Clock, Mono, Now, Wall};
use k8s_openapi::api::core::v1::Pod;
use kubelet_core::downward::Allocatable;
use serde_json::{Value, json};
use sys::mountinfo::{self, Mount};
use sys::scratch;

use super::NodeVolumes;
use crate::metrics::Metrics;
use crate::ports::{Mounted, MountedVolume, MountedVolumes, VolumeAct, VolumeError, Volumes};

struct Fixed;

impl Clock for Fixed {
    fn now(&self) -> Now {
        Now { mono: Mono::default(), wall: Wall::from_secs(1_700_000_000) }
    }
}

/// A node in a scratch directory, with the calls made blocking.
struct Node {
    dir: PathBuf,
    volumes: NodeVolumes,
    metrics: Arc<Metrics>,
    runtime: tokio::runtime::Runtime,
}

const UID: &str = "8f1c2b1e-0000-4000-8000-000000000001";

fn on_node(test: impl FnOnce(&Node) + Send) {
    scratch::run(|dir| test(&Node::new(dir)));
}

impl Node {
    fn new(dir: &Path) -> Node {
        let node = Allocatable { memory: 64 << 20, milli_cpu: 2000, ..Default::default() };
        let volumes = NodeVolumes::open(&dir.join("root"), node, Arc::new(Fixed), Rng::new(1)).unwrap();
        let metrics: Arc<Metrics> = Arc::default();
        Node {
            dir: dir.to_owned(),
            volumes: volumes.with_metrics(metrics.clone()),
            metrics,
            runtime: tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap(),
        }
    }

    fn mount(&self, pod: &Pod) -> Result<MountedVolumes, VolumeError> {
        self.mount_all(pod).map(|mounted| mounted.places)
    }

    fn mount_all(&self, pod: &Pod) -> Result<Mounted, VolumeError> {
        self.runtime.block_on(self.volumes.mount(pod))
    }

    /// Mounts and returns the host path of the volume `v`.
    fn mount_v(&self, pod: &Pod) -> PathBuf {
        match self.mount(pod).unwrap().remove("v").unwrap() {
            MountedVolume::Host { path, .. } => path,
            other => panic!("{other:?}"),
        }
    }

    fn sub_path(&self, pod: &Pod, index: usize, sub_path: &str) -> Result<PathBuf, VolumeError> {
        self.runtime.block_on(self.volumes.sub_path(pod, "c", index, "v", sub_path))
    }

    fn unmount(&self) -> Result<(), VolumeError> {
        let uid = PodUid::from(UID);
        self.runtime.block_on(async {
            self.volumes.unmount(&uid).await?;
            self.volumes.remove(&uid).await
        })
    }

    fn known(&self) -> Vec<PodUid> {
        self.runtime.block_on(self.volumes.known()).unwrap()
    }

    fn pod_dir(&self) -> PathBuf {
        self.dir.join("root/pods").join(UID)
    }

    fn mounts(&self) -> Vec<Mount> {
        mountinfo::below(&self.dir.join("root")).unwrap()
    }

    fn assert_clean(&self) {
        assert_eq!(self.mounts(), []);
        assert!(!self.pod_dir().exists());
        assert_eq!(self.known(), []);
    }
}

/// A Pod whose only container mounts all of `volumes`.
fn pod_with(volumes: Value, extra: Value) -> Pod {
    let names = volumes.as_array().unwrap().iter().map(|v| v["name"].clone());
    let mounts: Vec<Value> = names.map(|n| json!({"name": n, "mountPath": "/m"})).collect();
    let mut pod = json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": UID, "labels": {"app": "web"}},
        "spec": {"volumes": volumes, "containers": [{"name": "c", "volumeMounts": mounts}]},
    });
    for (key, value) in extra.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    serde_json::from_value(pod).unwrap()
}

/// A Pod with one volume `v`.
fn pod(mut volume: Value) -> Pod {
    volume["name"] = json!("v");
    pod_with(json!([volume]), json!({}))
}

fn with_group(mut pod: Pod, gid: i64) -> Pod {
    pod.spec.as_mut().unwrap().security_context =
        serde_json::from_value(json!({"fsGroup": gid, "fsGroupChangePolicy": "Always"})).unwrap();
    pod
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn gid(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().gid()
}

/// A bind mount made by somebody else.
fn bind(source: &Path, target: &Path) {
    let open = |p: &Path| super::host_path::open(p).unwrap();
    sys::mount::bind(open(source), open(target), false).unwrap();
}
