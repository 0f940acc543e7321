//! What was ready once stays, whatever becomes of where it came from.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use base::class::Class;
use kubelet_core::references::{Bound, Referenced, ReferencedObjects, References};
use kubelet_core::volumes as core;
use tokio::sync::watch;

use super::*;
use crate::ports::{Objects, VolumeAct};

/// An API server whose answers the test gives.
#[derive(Default)]
struct FakeObjects(Mutex<ReferencedObjects>, AtomicUsize);

#[async_trait]
impl Objects for FakeObjects {
    fn follow(&self, _: &Pod) {}

    fn forget(&self, _: &PodUid) {}

    fn wake(&self, _: &PodUid) -> watch::Receiver<u64> {
        watch::channel(0).1
    }

    async fn supply(&self, _: &Pod, _: &References) -> ReferencedObjects {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.lock().unwrap().clone()
    }

    async fn service_env(&self, _: &Pod) -> Result<BTreeMap<String, String>, String> {
        Ok(BTreeMap::new())
    }

    async fn runtime_handler(&self, class: &str) -> Result<String, String> {
        Ok(class.to_owned())
    }
}

fn secret() -> Referenced<k8s_openapi::api::core::v1::Secret> {
    Referenced::Found(Arc::new(serde_json::from_value(json!({"data": {"key": "b2xk"}})).unwrap()))
}

fn disk(path: &Path, misplaced: Option<String>) -> Result<Arc<Bound>, String> {
    let volume = json!({
        "metadata": {"name": "pv", "annotations": {"pv.beta.kubernetes.io/gid": "777"}},
        "spec": {"local": {"path": path}},
    });
    let volume = serde_json::from_value(volume).unwrap();
    Ok(Arc::new(Bound { volume, misplaced, ..Bound::default() }))
}

impl FakeObjects {
    fn put(&self, secret: Referenced<k8s_openapi::api::core::v1::Secret>, disk: Result<Arc<Bound>, String>) {
        let (secrets, claims) = ([("s".to_owned(), secret)].into(), [("c".to_owned(), disk)].into());
        *self.0.lock().unwrap() =
            ReferencedObjects { has_server: true, secrets, claims, ..ReferencedObjects::default() };
    }
}

fn local_pv(path: &Path, more: Value) -> Result<Arc<Bound>, String> {
    let mut spec = json!({"local": {"path": path, "fsType": "ext4"}});
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let volume = json!({"metadata": {"name": "pv"}, "spec": spec});
    Ok(Arc::new(Bound { volume: serde_json::from_value(volume).unwrap(), ..Bound::default() }))
}

fn on_node_of(test: impl FnOnce(&FakeObjects, &mut dyn FnMut() -> Node, &Path) + Send) {
    scratch::run(|dir| {
        let objects = Arc::new(FakeObjects::default());
        let mut life = || {
            let mut node = Node::new(dir);
            node.volumes = node.volumes.with_objects(objects.clone());
            node
        };
        let disk = dir.join("disk");
        fs::create_dir(&disk).unwrap();
        test(&objects, &mut life, &disk);
    });
}

fn both() -> Pod {
    let volumes = json!([
        {"name": "secret", "secret": {"secretName": "s"}},
        {"name": "v", "persistentVolumeClaim": {"claimName": "c"}},
    ]);
    pod_with(volumes, json!({}))
}

#[test]
fn what_cannot_be_refreshed_stays_as_it_was() {
    on_node_of(|objects, life, path| {
        let (node, pod) = (life(), both());
        objects.put(secret(), disk(path, None));
        let ready = node.mount_all(&pod).unwrap();
        assert!(ready.stale.is_empty(), "{:?}", ready.stale);
        assert_eq!(ready.groups, [777]);
        fs::create_dir(path.join("sub")).unwrap();

        objects.put(Referenced::Missing, Err("failed to fetch PVC from API server: refused".into()));
        let still = node.mount_all(&pod).unwrap();
        assert_eq!((&still.places, &still.groups), (&ready.places, &ready.groups));
        let told: Vec<_> = still.stale.iter().map(|e| (e.act, e.volume.as_str())).collect();
        assert_eq!(told, [(VolumeAct::SetUp, "secret"), (VolumeAct::Process, "v")]);
        let MountedVolume::Host { path: files, .. } = &still.places["secret"] else { panic!("{still:?}") };
        assert_eq!(fs::read(files.join("key")).unwrap(), b"old");
        node.sub_path(&pod, 0, "sub").unwrap();

        // Another life of the agent finds the files; what a claim was it cannot know.
        let next = life();
        assert_eq!(next.mount(&pod).unwrap_err().volume, "v");
        objects.put(Referenced::Missing, disk(path, None));
        let still = next.mount_all(&pod).unwrap();
        assert_eq!((&still.places, still.stale.len()), (&ready.places, 1));

        // What it was is no longer of interest once it is gone.
        next.unmount().unwrap();
        next.assert_clean();
        objects.put(secret(), Err("gone".into()));
        assert_eq!(next.mount(&pod).unwrap_err().volume, "v");
        next.unmount().unwrap();
    });
}

#[test]
fn a_sub_path_asks_nobody_for_what_is_known() {
    on_node_of(|objects, life, path| {
        let (node, pod) = (life(), both());
        objects.put(secret(), disk(path, None));
        node.mount_all(&pod).unwrap();
        let asked = || objects.1.load(Ordering::Relaxed);
        assert_eq!(asked(), 1);
        let sub_path = |node: &Node, volume| {
            node.runtime.block_on(node.volumes.sub_path(&pod, "c", 0, volume, "")).unwrap()
        };
        sub_path(&node, "v");
        assert_eq!(fs::read(sub_path(&node, "secret").join("key")).unwrap(), b"old");
        assert_eq!(asked(), 1);
        // Another life does not know what the claim was.
        sub_path(&life(), "v");
        assert_eq!(asked(), 2);
        node.unmount().unwrap();
    });
}

#[test]
fn a_volume_for_one_pod_is_given_to_one_at_a_time() {
    on_node_of(|objects, life, path| {
        let (node, first) = (life(), both());
        let mut second = both();
        second.metadata.uid = Some("another".into());
        let pv = |modes: Value| objects.put(secret(), local_pv(path, json!({"accessModes": modes})));
        pv(json!(["ReadWriteOncePod"]));
        node.mount_v(&first);
        for node in [&node, &life()] {
            node.mount_v(&first);
            let error = node.mount(&second).unwrap_err();
            assert_eq!(
                (error.act, error.volume.as_str(), error.class),
                (VolumeAct::SetUp, "pv", Class::Retry)
            );
            assert_eq!(error.message, core::IN_USE);
        }
        // Of several modes nobody knows which is meant.
        pv(json!(["ReadWriteOncePod", "ReadOnlyMany"]));
        node.mount_v(&second);
        node.runtime.block_on(node.volumes.unmount(&PodUid::from("another"))).unwrap();
        pv(json!(["ReadWriteOncePod"]));
        assert!(node.mount(&second).is_err());
        node.unmount().unwrap();
        node.mount_v(&second);
        assert!(node.mount(&first).is_err());
        node.runtime.block_on(node.volumes.remove(&PodUid::from("another"))).unwrap();
        node.mount_v(&first);
        node.unmount().unwrap();
    });
}

#[test]
fn a_device_for_one_pod_is_given_to_one_at_a_time() {
    on_node_of(|objects, life, path| {
        let Some(disk) = Disk::make(&path.join("image")) else { return };
        let node = life();
        let device = json!([{"name": "c", "volumeDevices": [{"name": "v", "devicePath": "/dev/x"}]}]);
        let pod = |uid: &str| {
            let volume = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
            let mut pod = pod_with(volume, json!({"containers": device}));
            pod.metadata.uid = Some(uid.into());
            pod
        };
        let modes = json!({"volumeMode": "Block", "accessModes": ["ReadWriteOncePod"]});
        objects.put(secret(), local_pv(Path::new("/dev/none"), modes.clone()));
        assert!(node.mount(&pod("b")).unwrap_err().message.contains("/dev/none"), "what fails holds nothing");
        objects.put(secret(), local_pv(Path::new(&disk.0), modes));
        node.mount(&pod("a")).unwrap();
        node.mount(&pod("a")).unwrap();
        let error = node.mount(&pod("b")).unwrap_err();
        assert_eq!((error.act, error.message.as_str()), (VolumeAct::StageDevice, core::IN_USE));
        node.runtime.block_on(node.volumes.unmount(&PodUid::from("a"))).unwrap();
        node.mount(&pod("b")).unwrap();
    });
}

#[test]
fn what_was_never_there_is_refused() {
    on_node_of(|objects, life, path| {
        let (node, pod) = (life(), both());
        objects.put(Referenced::Missing, disk(path, None));
        let error = node.mount(&pod).unwrap_err();
        assert_eq!((error.volume.as_str(), error.class), ("secret", Class::Reject));
        node.unmount().unwrap();
        node.assert_clean();
    });
}

/// A block device that lies in a file, for as long as this lives.
struct Disk(String);

impl Disk {
    fn make(file: &Path) -> Option<Self> {
        fs::File::create(file).unwrap().set_len(4 << 20).unwrap();
        let out = std::process::Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        out.status.success().then(|| Self(String::from_utf8(out.stdout).unwrap().trim().to_owned()))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn a_device_becomes_a_file_system_once() {
    on_node_of(|objects, life, path| {
        let Some(disk) = Disk::make(&path.join("image")) else { return };
        let (node, pod) = (life(), both());
        let options = json!({"mountOptions": ["noatime"]});
        for content in ["", "kept"] {
            objects.put(secret(), local_pv(Path::new(&disk.0), options.clone()));
            let at = node.mount_v(&pod);
            assert_eq!(fs::read_to_string(at.join("file")).unwrap_or_default(), content);
            fs::write(at.join("file"), "kept").unwrap();
            let mounts = node.mounts();
            let mount = mounts.iter().find(|m| m.mount_point == at).unwrap();
            assert_eq!(mount.fs_type, "ext4");
            node.unmount().unwrap();
            node.assert_clean();
        }
        // Neither the one nor the other.
        objects.put(secret(), local_pv(&path.join("image"), json!({})));
        let error = node.mount(&pod).unwrap_err();
        assert_eq!(error.message, "only directory and block device are supported");
        objects.put(secret(), local_pv(path, options));
        node.mount_v(&pod);
        node.unmount().unwrap();
    });
}

#[test]
fn the_node_matters_only_at_first() {
    on_node_of(|objects, life, path| {
        let (node, pod) = (life(), both());
        let elsewhere = || disk(path, Some("no matching NodeSelectorTerms".into()));
        objects.put(secret(), elsewhere());
        let error = node.mount(&pod).unwrap_err();
        assert_eq!(
            (error.act, error.message.as_str()),
            (VolumeAct::CheckNode, "no matching NodeSelectorTerms")
        );
        objects.put(secret(), disk(path, None));
        let ready = node.mount_all(&pod).unwrap();
        objects.put(secret(), elsewhere());
        let still = node.mount_all(&pod).unwrap();
        assert_eq!((still.places, still.stale.len()), (ready.places, 0));
        node.unmount().unwrap();
    });
}
