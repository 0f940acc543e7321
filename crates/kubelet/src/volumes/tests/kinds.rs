//! emptyDir, hostPath, image, subPath, fsGroup.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;

use base::class::Class;
use kubelet_core::volumes::{ChangePolicy, FsGroup};
use sys::fd;

use super::super::fs_group::{self, Access};
use super::*;

#[test]
fn an_empty_dir_on_disk() {
    on_node(|node| {
        let pod = pod(json!({"emptyDir": {}}));
        let path = node.mount_v(&pod);
        assert_eq!(path, node.pod_dir().join("volumes/kubernetes.io~empty-dir/v"));
        assert_eq!((mode(&path), gid(&path)), (0o777, 0));
        for own in ["", "volumes", "volumes/kubernetes.io~empty-dir"] {
            assert_eq!(mode(&node.pod_dir().join(own)), 0o750, "{own}");
        }
        // What the Pod does to it afterwards is the Pod's business.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(path.join("kept"), "x").unwrap();
        assert_eq!(node.mount_v(&pod), path);
        assert_eq!(mode(&path), 0o700);
        assert!(path.join("kept").exists());
        assert_eq!(node.known(), [PodUid::from(UID)]);
        node.unmount().unwrap();
        node.assert_clean();
        node.unmount().unwrap();
    });
}

#[test]
fn volumes_are_counted_when_they_are_wanted_and_when_they_are_there() {
    on_node(|node| {
        let volume = |name: &str, source: Value| {
            let mut volume = source;
            volume["name"] = name.into();
            volume
        };
        let missing = volume("h", json!({"hostPath": {"path": "/nowhere", "type": "Directory"}}));
        let all =
            json!([volume("a", json!({"emptyDir": {}})), volume("b", json!({"emptyDir": {}})), missing]);
        assert!(node.mount(&pod_with(all, json!({}))).is_err());
        let count = |plugin: &str| {
            let of = |state: &str| node.metrics.volume_manager_total_volumes.get([plugin, state]);
            (of("desired_state_of_world"), of("actual_state_of_world"))
        };
        assert_eq!(count("kubernetes.io/empty-dir"), (2.0, 2.0));
        assert_eq!(count("kubernetes.io/host-path"), (1.0, 0.0));
        node.unmount().unwrap();
        assert_eq!(count("kubernetes.io/empty-dir"), (0.0, 0.0));
    });
}

#[test]
fn an_empty_dir_in_memory() {
    on_node(|node| {
        let pod = pod(json!({"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}));
        let path = node.mount_v(&pod);
        let mounts = node.mounts();
        assert_eq!((mounts[0].fs_type.as_str(), &mounts[0].mount_point), ("tmpfs", &path));
        assert!(mounts[0].super_options.contains("size=1024k"), "{}", mounts[0].super_options);
        assert_eq!(mode(&path), 0o1777);
        fs::write(path.join("kept"), "x").unwrap();
        node.mount_v(&pod);
        assert_eq!(node.mounts().len(), 1);
        assert!(path.join("kept").exists());
        // As after a restart of the machine: the mark is there, the mount is not.
        let parent = fd::open_dir(path.parent().unwrap()).unwrap();
        sys::mount::unmount(parent, path.file_name().unwrap(), sys::mount::Busy::Refuse).unwrap();
        node.mount_v(&pod);
        assert_eq!(node.mounts().len(), 1);
        node.unmount().unwrap();
        node.assert_clean();
    });
}

#[test]
fn an_empty_dir_on_huge_pages() {
    if !Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB").exists() {
        return;
    }
    on_node(|node| {
        let mut pod = with_group(pod(json!({"emptyDir": {"medium": "HugePages"}})), 7);
        pod.spec.as_mut().unwrap().containers[0].resources =
            serde_json::from_value(json!({"requests": {"hugepages-2Mi": "4Mi"}})).unwrap();
        let path = node.mount_v(&pod);
        let mounts = node.mounts();
        assert_eq!(mounts[0].fs_type, "hugetlbfs");
        assert!(mounts[0].super_options.contains("pagesize=2M"), "{}", mounts[0].super_options);
        assert_eq!((mode(&path), gid(&path)), (0o2777, 7));
        node.unmount().unwrap();
        node.assert_clean();
    });
}

#[test]
fn something_foreign_where_memory_should_be() {
    on_node(|node| {
        let place = node.pod_dir().join("volumes/kubernetes.io~empty-dir/v");
        fs::create_dir_all(&place).unwrap();
        bind(Path::new("/proc"), &place);
        let error = node.mount(&pod(json!({"emptyDir": {"medium": "Memory"}}))).unwrap_err();
        assert!(error.message.contains("no tmpfs is mounted there"), "{error}");
        assert_eq!((error.act, error.volume.as_str(), error.class), (VolumeAct::SetUp, "v", Class::Retry));
    });
}

#[test]
fn host_paths_of_every_type() {
    on_node(|node| {
        let dir = node.dir.join("host");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("file"), "").unwrap();
        symlink("file", dir.join("link")).unwrap();
        let _listener = UnixListener::bind(dir.join("socket")).unwrap();
        let try_one = |path: &Path, kind: &str| {
            let volume = json!({"hostPath": {"path": path.to_str().unwrap(), "type": kind}});
            node.mount(&pod(volume)).map_err(|e| e.message)
        };
        for (name, kind) in [
            ("none", ""),
            (".", "Directory"),
            ("new/deep", "DirectoryOrCreate"),
            ("new/deep", "DirectoryOrCreate"),
            ("file", "File"),
            ("link", "File"),
            ("made", "FileOrCreate"),
            ("made", "FileOrCreate"),
            ("socket", "Socket"),
            ("/dev/null", "CharDevice"),
        ] {
            let path = dir.join(name);
            let want = MountedVolume::Host { path: path.clone(), read_only: false };
            assert_eq!(try_one(&path, kind).unwrap()["v"], want, "{name} {kind}");
        }
        assert_eq!((mode(&dir.join("new/deep")), mode(&dir.join("made"))), (0o755, 0o644));
        assert!(!dir.join("none").exists());
        for (name, kind, want) in [
            ("file", "Directory", "is not a directory"),
            ("file", "DirectoryOrCreate", "is not a directory"),
            (".", "File", "is not a file"),
            (".", "FileOrCreate", "is not a file"),
            ("file", "Socket", "is not a socket file"),
            ("/dev/null", "BlockDevice", "is not a block device"),
            ("socket", "CharDevice", "is not a character device"),
            ("none", "Directory", "none is not a directory"),
            ("none", "Socket", "none is not a socket file"),
        ] {
            let message = try_one(&dir.join(name), kind).unwrap_err();
            assert!(message.starts_with("hostPath type check failed: "), "{message}");
            assert!(message.ends_with(want), "{message}");
        }
        node.unmount().unwrap();
        node.assert_clean();
        assert!(dir.join("new/deep").exists() && dir.join("made").exists());
    });
}

#[test]
fn a_host_path_is_looked_at_once() {
    on_node(|node| {
        let dir = node.dir.join("made");
        let pod = pod(json!({"hostPath": {"path": dir.to_str().unwrap(), "type": "DirectoryOrCreate"}}));
        node.mount(&pod).unwrap();
        fs::remove_dir(&dir).unwrap();
        let still = node.mount_all(&pod).unwrap();
        assert!(still.stale.is_empty() && still.places.contains_key("v"), "{still:?}");
        assert!(!dir.exists(), "what somebody took away from a running Pod is not made again");
        node.unmount().unwrap();
        node.mount(&pod).unwrap();
        assert!(dir.exists());
    });
}

#[test]
fn what_has_no_host_path_or_no_api_server() {
    on_node(|node| {
        let mounted = node.mount(&pod(json!({"image": {"reference": "a/b:1"}}))).unwrap();
        assert_eq!(mounted["v"], MountedVolume::Image { reference: "a/b:1".into() });
        let error = node.mount(&pod(json!({"configMap": {"name": "x"}}))).unwrap_err();
        assert_eq!((error.class, error.volume.as_str()), (Class::Reject, "v"));
        let mut evil = pod(json!({"emptyDir": {}}));
        for uid in ["..", "", "a/b", "."] {
            evil.metadata.uid = Some(uid.into());
            assert_eq!(node.mount(&evil).unwrap_err().class, Class::Reject, "{uid:?}");
            assert!(node.runtime.block_on(node.volumes.unmount(&PodUid::from(uid))).is_err(), "{uid:?}");
        }
    });
}

#[test]
fn sub_paths() {
    on_node(|node| {
        let pod = with_group(pod(json!({"emptyDir": {}})), 77);
        let volume = node.mount_v(&pod);
        assert_eq!((mode(&volume), gid(&volume)), (0o2777, 77));
        let made = node.sub_path(&pod, 0, "a/b").unwrap();
        assert_eq!(made, node.pod_dir().join("volume-subpaths/v/c/0"));
        for path in ["a", "a/b"] {
            assert_eq!((mode(&volume.join(path)), gid(&volume.join(path))), (0o2777, 77));
        }
        fs::write(made.join("hello"), "x").unwrap();
        assert!(volume.join("a/b/hello").exists());

        fs::write(volume.join("a/file"), "content").unwrap();
        symlink("a/file", volume.join("link")).unwrap();
        let file = node.sub_path(&pod, 1, "link").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "content");
        let before = node.mounts().len();
        node.sub_path(&pod, 1, "link").unwrap();
        assert_eq!(node.mounts().len(), before);
        // The file is replaced: the next start of the container gets the new one.
        fs::write(volume.join("a/new"), "newer").unwrap();
        fs::rename(volume.join("a/new"), volume.join("a/file")).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "content");
        node.sub_path(&pod, 1, "link").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "newer");
        // And by a directory.
        fs::remove_file(volume.join("link")).unwrap();
        assert!(node.sub_path(&pod, 1, "link").unwrap().is_dir());
        assert_eq!(
            node.sub_path(&pod, 2, "").unwrap().metadata().unwrap().ino(),
            volume.metadata().unwrap().ino()
        );
        node.unmount().unwrap();
        node.assert_clean();
    });
}

#[test]
fn sub_paths_that_lead_out() {
    on_node(|node| {
        let pod = pod(json!({"emptyDir": {}}));
        let volume = node.mount_v(&pod);
        fs::create_dir(node.dir.join("secret")).unwrap();
        symlink("../../../../../../secret", volume.join("out")).unwrap();
        symlink(node.dir.join("secret"), volume.join("abs")).unwrap();
        symlink("nowhere", volume.join("dangling")).unwrap();
        symlink("self", volume.join("self")).unwrap();
        for (path, class, want) in [
            ("/etc", Class::Reject, "absolute"),
            ("../x", Class::Reject, "'..'"),
            ("a/../../x", Class::Reject, "'..'"),
            ("out", Class::Retry, "leads out of the volume"),
            ("out/new", Class::Retry, "leads out of the volume"),
            ("abs", Class::Retry, "leads out of the volume"),
            ("abs/new/dir", Class::Retry, "leads out of the volume"),
            ("dangling", Class::Retry, "dangling"),
            ("self", Class::Retry, "too many"),
        ] {
            let error = node.sub_path(&pod, 0, path).unwrap_err();
            assert_eq!(error.class, class, "{path}: {error}");
            assert!(error.message.contains(want), "{path}: {error}");
        }
        assert_eq!(fs::read_dir(node.dir.join("secret")).unwrap().count(), 0);
        assert_eq!(node.mounts(), []);
        let mut image = super::pod(json!({"image": {"reference": "a/b:1"}}));
        image.metadata.uid = Some("another".into());
        assert_eq!(node.sub_path(&image, 0, "x").unwrap_err().class, Class::Reject);
    });
}

#[test]
fn sub_path_of_a_host_path() {
    on_node(|node| {
        let host = node.dir.join("host");
        fs::create_dir_all(host.join("sub")).unwrap();
        let pod = pod(json!({"hostPath": {"path": host.to_str().unwrap()}}));
        let bound = node.sub_path(&pod, 3, "sub").unwrap();
        fs::write(bound.join("data"), "x").unwrap();
        node.unmount().unwrap();
        node.assert_clean();
        assert!(host.join("sub/data").exists());
    });
}

#[test]
fn the_group_gets_everything_in_the_volume() {
    on_node(|node| {
        let root = node.dir.join("v");
        let outside = node.dir.join("outside");
        fs::create_dir_all(root.join("d")).unwrap();
        fs::write(&outside, "").unwrap();
        fs::write(root.join("d/f"), "").unwrap();
        symlink(&outside, root.join("d/link")).unwrap();
        for (path, mode) in [("", 0o700), ("d", 0o755), ("d/f", 0o4604)] {
            fs::set_permissions(root.join(path), fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::set_permissions(&outside, fs::Permissions::from_mode(0o600)).unwrap();
        let apply = |gid, policy, access| {
            fs_group::apply(fd::open_dir(&root).unwrap(), FsGroup { gid, policy }, access).unwrap();
        };
        apply(50, ChangePolicy::OnRootMismatch, Access::ReadOnly);
        assert_eq!([mode(&root), mode(&root.join("d")), mode(&root.join("d/f"))], [0o2750, 0o2755, 0o4644]);
        apply(50, ChangePolicy::Always, Access::ReadWrite);
        assert_eq!([mode(&root), mode(&root.join("d")), mode(&root.join("d/f"))], [0o2770, 0o2775, 0o4664]);
        for path in ["", "d", "d/f", "d/link"] {
            assert_eq!(gid(&root.join(path)), 50, "{path}");
        }
        assert_eq!((gid(&outside), mode(&outside)), (0, 0o600));
        // The root is right: nothing below is looked at.
        fs::write(root.join("late"), "").unwrap();
        std::os::unix::fs::chown(root.join("late"), None, Some(0)).unwrap();
        apply(50, ChangePolicy::OnRootMismatch, Access::ReadWrite);
        assert_eq!(gid(&root.join("late")), 0);
        apply(51, ChangePolicy::OnRootMismatch, Access::ReadWrite);
        assert_eq!((gid(&root.join("late")), gid(&root)), (51, 51));
    });
}

#[test]
fn a_file_that_nobody_may_change_holds_up_nobody() {
    on_node(|node| {
        let root = node.dir.join("v");
        fs::create_dir_all(root.join("d")).unwrap();
        for name in ["d/a", "d/fixed", "d/z", "late"] {
            fs::write(root.join(name), "").unwrap();
        }
        // As in a directory of snapshots.
        let fixed = root.join("d/fixed");
        bind(&fixed, &fixed);
        let flags = rustix::mount::MountFlags::BIND | rustix::mount::MountFlags::RDONLY;
        rustix::mount::mount_remount(&fixed, flags, c"").unwrap();
        let group = FsGroup { gid: 50, policy: ChangePolicy::Always };
        fs_group::apply(fd::open_dir(&root).unwrap(), group, Access::ReadWrite).unwrap();
        for name in ["", "d", "d/a", "d/z", "late"] {
            assert_eq!(gid(&root.join(name)), 50, "{name}");
        }
        assert_eq!(gid(&fixed), 0);
        // Files of our own are ours to change.
        let file = super::super::host_path::open(&fixed).unwrap();
        assert!(fs_group::set(&file, 50, Access::ReadWrite).is_err());
    });
}
