//! downwardAPI and projected, and how their files are replaced.

use std::os::unix::fs::symlink;

use super::*;

fn downward(extra_labels: Value) -> Pod {
    let mut pod = pod(json!({"downwardAPI": {"defaultMode": 0o640, "items": [
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "deep/er/name", "mode": 0o400, "fieldRef": {"fieldPath": "metadata.name"}},
    ]}}));
    let labels = serde_json::from_value::<std::collections::BTreeMap<_, _>>(extra_labels).unwrap();
    pod.metadata.labels.get_or_insert_default().extend(labels);
    pod
}

fn data_dir(volume: &Path) -> PathBuf {
    fs::read_link(volume.join("..data")).unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_layout_is_upstreams() {
    on_node(|node| {
        let volume = node.mount_v(&downward(json!({})));
        assert_eq!(volume, node.pod_dir().join("volumes/kubernetes.io~downward-api/v"));
        assert_eq!(node.mounts()[0].fs_type, "tmpfs");
        let data = data_dir(&volume);
        assert!(data.to_str().unwrap().starts_with("..2023_11_14_22_13_20."), "{data:?}");
        assert_eq!(names(&volume), [data.to_str().unwrap(), "..data", "deep", "labels"]);
        assert_eq!(fs::read_link(volume.join("labels")).unwrap(), Path::new("..data/labels"));
        assert_eq!(fs::read_link(volume.join("deep")).unwrap(), Path::new("..data/deep"));
        assert_eq!(fs::read_to_string(volume.join("labels")).unwrap(), "app=\"web\"");
        assert_eq!(fs::read_to_string(volume.join("deep/er/name")).unwrap(), "web");
        let real = volume.join(&data);
        assert_eq!([mode(&real), mode(&real.join("deep/er"))], [0o755, 0o755]);
        assert_eq!([mode(&real.join("labels")), mode(&real.join("deep/er/name"))], [0o640, 0o400]);
    });
}

#[test]
fn rewritten_when_and_only_when_it_changes() {
    on_node(|node| {
        let volume = node.mount_v(&downward(json!({})));
        let first = data_dir(&volume);
        node.mount_v(&downward(json!({})));
        assert_eq!(data_dir(&volume), first);

        let held = fs::File::open(volume.join("labels")).unwrap();
        node.mount_v(&downward(json!({"tier": "front"})));
        let second = data_dir(&volume);
        assert_ne!(second, first);
        assert!(!volume.join(&first).exists());
        assert_eq!(fs::read_to_string(volume.join("labels")).unwrap(), "app=\"web\"\ntier=\"front\"");
        assert_eq!(std::io::read_to_string(held).unwrap(), "app=\"web\"");

        let mut fewer = downward(json!({"tier": "front"}));
        let items = fewer.spec.as_mut().unwrap().volumes.as_mut().unwrap()[0].downward_api.as_mut().unwrap();
        items.items.as_mut().unwrap().remove(1);
        node.mount_v(&fewer);
        assert_eq!(names(&volume), [data_dir(&volume).to_str().unwrap(), "..data", "labels"]);
        assert_eq!(node.mounts().len(), 1);
    });
}

#[test]
fn what_an_interrupted_write_left_is_repaired() {
    on_node(|node| {
        let pod = downward(json!({}));
        let volume = node.mount_v(&pod);
        let user = node.dir.join("user");
        fs::create_dir(&user).unwrap();
        fs::write(user.join("data"), "precious").unwrap();

        fs::create_dir(volume.join("..2020_01_01_00_00_00.1")).unwrap();
        fs::write(volume.join("..2020_01_01_00_00_00.1/labels"), "half").unwrap();
        symlink("..2020_01_01_00_00_00.1", volume.join("..data_tmp")).unwrap();
        fs::remove_file(volume.join("labels")).unwrap();
        symlink(user.join("data"), volume.join("labels")).unwrap();
        symlink(&user, volume.join("stray")).unwrap();
        node.mount_v(&pod);
        assert_eq!(names(&volume), [data_dir(&volume).to_str().unwrap(), "..data", "deep", "labels"]);
        assert_eq!(fs::read_to_string(volume.join("labels")).unwrap(), "app=\"web\"");

        // `..data` itself leads away.
        fs::remove_file(volume.join("..data")).unwrap();
        symlink(&user, volume.join("..data")).unwrap();
        node.mount_v(&pod);
        assert_eq!(fs::read_to_string(volume.join("labels")).unwrap(), "app=\"web\"");
        assert_eq!(names(&user), ["data"]);
        assert_eq!(fs::read_to_string(user.join("data")).unwrap(), "precious");
        node.unmount().unwrap();
        node.assert_clean();
    });
}

/// `v` at /etc/app, and another volume at each of these places.
fn with_inner(mut pod: Pod, places: &[&str]) -> Pod {
    let mut mounts = vec![json!({"name": "v", "mountPath": "/etc/app"})];
    mounts.extend(places.iter().map(|at| json!({"name": "w", "mountPath": at})));
    let spec = pod.spec.as_mut().unwrap();
    spec.containers[0].volume_mounts = Some(serde_json::from_value(json!(mounts)).unwrap());
    spec.volumes
        .as_mut()
        .unwrap()
        .push(serde_json::from_value(json!({"name": "w", "emptyDir": {}})).unwrap());
    pod
}

#[test]
fn there_is_room_for_other_volumes_inside() {
    on_node(|node| {
        let pod = |labels| with_group(with_inner(downward(labels), &["/etc/app/certs", "/etc/app/a/b"]), 60);
        let volume = node.mount_v(&pod(json!({})));
        let first = data_dir(&volume);
        for place in ["certs", "a", "a/b"] {
            assert_eq!((mode(&volume.join(place)), gid(&volume.join(place))), (0o2755, 60), "{place}");
        }
        // Containers have them mounted, so they stay the same through every change.
        let inode = |place: &str| volume.join(place).symlink_metadata().unwrap().ino();
        let before = (inode("certs"), inode("a/b"));
        node.mount_v(&pod(json!({})));
        assert_eq!(data_dir(&volume), first);
        node.mount_v(&pod(json!({"tier": "front"})));
        assert_ne!(data_dir(&volume), first);
        // Also after the Pod that named them, and those that a subPath made.
        let sub = node.sub_path(&pod(json!({})), 0, "made").unwrap();
        node.mount_v(&with_group(downward(json!({})), 60));
        assert_eq!((inode("certs"), inode("a/b")), before);
        assert_eq!(inode("made"), sub.metadata().unwrap().ino());
        node.unmount().unwrap();
        node.assert_clean();
    });
}

#[test]
fn a_volume_inside_hides_files_that_are_not_in_use_yet() {
    on_node(|node| {
        let pod = with_inner(downward(json!({})), &["/etc/app/deep/er", "/etc/app/labels"]);
        let volume = node.mount_v(&pod);
        assert!(volume.join("deep/er").is_dir() && volume.join("labels").is_dir());
        assert!(!volume.join("deep/er/name").exists());
        assert!(volume.join("..data/deep/er/name").exists());
        node.unmount().unwrap();
        // A container that joins later finds room where the files are, before and after they change.
        let volume = node.mount_v(&downward(json!({})));
        for labels in [json!({}), json!({"tier": "front"})] {
            node.mount_v(&with_inner(downward(labels), &["/etc/app/deep/new"]));
            assert!(volume.join("deep/new").is_dir());
            assert_eq!(fs::read_to_string(volume.join("deep/er/name")).unwrap(), "web");
        }
        // Where a file is, no directory can be.
        node.mount_v(&downward(json!({})));
        let ready = node.mount_all(&with_inner(downward(json!({})), &["/etc/app/labels"])).unwrap();
        assert_eq!(ready.stale.len(), 1, "{ready:?}");
        assert!(volume.join("labels").is_file());
    });
}

#[test]
fn the_group_is_there_before_the_files_are() {
    on_node(|node| {
        let pod = with_group(downward(json!({})), 60);
        let volume = node.mount_v(&pod);
        let real = volume.join(data_dir(&volume));
        assert_eq!([mode(&volume), mode(&real), mode(&real.join("deep"))], [0o3777, 0o2755, 0o2755]);
        assert_eq!([mode(&real.join("labels")), mode(&real.join("deep/er/name"))], [0o640, 0o440]);
        for path in
            [&volume, &real, &real.join("deep/er/name"), &volume.join("labels"), &volume.join("..data")]
        {
            assert_eq!(gid(path), 60, "{path:?}");
        }
        let first = data_dir(&volume);
        node.mount_v(&pod);
        assert_eq!(data_dir(&volume), first);
        node.mount_v(&with_group(downward(json!({})), 61));
        assert_eq!(gid(&volume.join("..data/labels")), 61);
    });
}

#[test]
fn projected_is_the_same_in_another_place() {
    on_node(|node| {
        let items = json!([{"path": "uid", "fieldRef": {"fieldPath": "metadata.uid"}}]);
        let pod = pod(json!({"projected": {"sources": [{"downwardAPI": {"items": items}}]}}));
        let mounted = node.mount(&pod).unwrap();
        let path = node.pod_dir().join("volumes/kubernetes.io~projected/v");
        assert_eq!(mounted["v"], MountedVolume::Host { path: path.clone(), read_only: true });
        assert_eq!(fs::read_to_string(path.join("uid")).unwrap(), UID);
        // A subPath into it holds the file it was made with.
        let file = node.sub_path(&pod, 0, "uid").unwrap();
        assert_eq!(fs::read_to_string(file).unwrap(), UID);
        node.unmount().unwrap();
        node.assert_clean();
    });
}
