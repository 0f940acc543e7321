//! Clean-up: finds everything, deletes nothing that is not ours.

use base::class::Class;

use super::*;

fn everything() -> Pod {
    pod_with(
        json!([
            {"name": "v", "emptyDir": {}},
            {"name": "m", "emptyDir": {"medium": "Memory"}},
            {"name": "d", "downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        ]),
        json!({}),
    )
}

fn user_data(node: &Node) -> PathBuf {
    let user = node.dir.join("user");
    fs::create_dir(&user).unwrap();
    fs::write(user.join("data"), "precious").unwrap();
    user
}

#[test]
fn mounts_of_others_are_undone_and_their_data_survive() {
    on_node(|node| {
        let pod = everything();
        let volume = node.mount_v(&pod);
        node.sub_path(&pod, 0, "x").unwrap();
        let user = user_data(node);
        // Bidirectional propagation leaves such things: in a volume, over a volume, over the Pod.
        fs::create_dir(volume.join("inside")).unwrap();
        bind(&user, &volume.join("inside"));
        bind(&user, &volume);
        bind(&user, &volume);
        bind(&user, &node.pod_dir());
        node.unmount().unwrap();
        node.assert_clean();
        assert_eq!(fs::read_to_string(user.join("data")).unwrap(), "precious");
    });
}

#[test]
fn a_mount_in_use_is_named_and_nothing_is_deleted() {
    on_node(|node| {
        let pod = everything();
        let volume = node.mount_v(&pod);
        fs::write(volume.join("own"), "x").unwrap();
        let user = user_data(node);
        fs::create_dir(volume.join("inside")).unwrap();
        bind(&user, &volume.join("inside"));
        let held = fs::File::open(volume.join("inside/data")).unwrap();
        for _ in 0..3 {
            let error = node.unmount().unwrap_err();
            assert_eq!(
                (error.class, error.act, error.volume.as_str()),
                (Class::Retry, VolumeAct::Unmount, "v")
            );
            let blocker = volume.join("inside").display().to_string();
            assert!(error.message.contains(&blocker) && error.message.contains("busy"), "{error}");
            assert_eq!(fs::read_to_string(user.join("data")).unwrap(), "precious");
            assert!(volume.join("own").exists());
        }
        drop(held);
        node.unmount().unwrap();
        node.assert_clean();
        assert_eq!(fs::read_to_string(user.join("data")).unwrap(), "precious");
    });
}

#[test]
fn our_own_memory_in_use_does_not_block() {
    on_node(|node| {
        let pod = pod(json!({"emptyDir": {"medium": "Memory"}}));
        let volume = node.mount_v(&pod);
        let _held = fs::File::create(volume.join("held")).unwrap();
        let _sub = fs::File::create(node.sub_path(&pod, 0, "s").unwrap().join("held")).unwrap();
        node.unmount().unwrap();
        node.assert_clean();
    });
}

#[test]
fn memory_is_not_detached_from_under_somebody_elses_mount() {
    on_node(|node| {
        let pod = pod(json!({"emptyDir": {"medium": "Memory"}}));
        let volume = node.mount_v(&pod);
        let user = user_data(node);
        fs::create_dir(volume.join("inside")).unwrap();
        bind(&user, &volume.join("inside"));
        let _held = fs::File::open(volume.join("inside/data")).unwrap();
        assert!(node.unmount().unwrap_err().message.contains("inside"));
        assert_eq!(node.mounts().len(), 2);
    });
}

#[test]
fn a_new_life_finds_what_the_old_one_left() {
    on_node(|node| {
        let pod = everything();
        node.mount_v(&pod);
        node.sub_path(&pod, 0, "x").unwrap();
        let next = Node::new(&node.dir);
        assert_eq!(next.known(), [PodUid::from(UID)]);
        assert_eq!(next.mount(&pod).unwrap(), node.mount(&pod).unwrap());
        next.unmount().unwrap();
        next.assert_clean();
    });
}

#[test]
fn a_pod_that_comes_back_never_meets_half_removed_volumes() {
    on_node(|node| {
        let pod = everything();
        let volume = node.mount_v(&pod);
        fs::write(volume.join("old"), "x").unwrap();
        // A crash between setting the volumes aside and removing them.
        let parent = sys::fd::open_dir(&node.pod_dir().join("volumes")).unwrap();
        for (plugin, name) in [("kubernetes.io~empty-dir", "m"), ("kubernetes.io~downward-api", "d")] {
            let dir =
                sys::fd::open_beneath(&parent, Path::new(plugin), rustix::fs::OFlags::PATH, sys::fd::OWN);
            sys::mount::unmount(dir.unwrap(), name.as_ref(), sys::mount::Busy::Refuse).unwrap();
        }
        drop(parent);
        fs::rename(node.pod_dir().join("volumes"), node.pod_dir().join("volumes.removing")).unwrap();
        node.mount_v(&pod);
        assert!(!volume.join("old").exists());
        assert!(!node.pod_dir().join("volumes.removing").exists());
        fs::create_dir_all(node.pod_dir().join("volumes.removing/x")).unwrap();
        node.unmount().unwrap();
        node.assert_clean();
    });
}

#[test]
fn the_root_may_become_shared_under_us() {
    on_node(|node| {
        let pod = everything();
        let root = node.dir.join("root");
        assert!(super::super::share_root(&root).unwrap());
        let volume = node.mount_v(&pod);
        fs::write(volume.join("own"), "x").unwrap();
        assert!(!super::super::share_root(&root).unwrap());
        assert!(mountinfo::below(&root).unwrap().iter().all(Mount::is_shared));
        node.unmount().unwrap();
        assert_eq!(node.mounts().len(), 1);
        assert!(!node.pod_dir().exists());
    });
}

#[test]
fn fifty_pods_leave_nothing() {
    on_node(|node| {
        let mut pod = everything();
        for n in 0..50 {
            pod.metadata.uid = Some(format!("pod-{n}"));
            node.mount(&pod).unwrap();
            node.sub_path(&pod, 0, "x").unwrap();
        }
        assert_eq!(node.mounts().len(), 150);
        assert_eq!(node.known().len(), 50);
        for uid in node.known() {
            node.runtime.block_on(node.volumes.unmount(&uid)).unwrap();
        }
        assert!(node.mounts().is_empty());
        assert_eq!(node.known().len(), 50, "what the Pods last said is still there");
        for uid in node.known() {
            assert!(!node.pod_dir().with_file_name(uid.as_str()).join("volumes").exists());
            node.runtime.block_on(node.volumes.remove(&uid)).unwrap();
        }
        node.assert_clean();
    });
}
