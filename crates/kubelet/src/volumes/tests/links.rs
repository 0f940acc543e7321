//! Symlinks of the operator's on the way to the Pods.

use std::os::unix::fs::symlink;

use super::*;

fn everything() -> Pod {
    let items = json!([{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]);
    let volumes = json!([
        {"name": "v", "emptyDir": {}},
        {"name": "m", "emptyDir": {"medium": "Memory"}},
        {"name": "d", "downwardAPI": {"items": items}},
    ]);
    pod_with(volumes, json!({}))
}

/// Volumes are told of by the path that the operator gave, and found again where they are.
fn lives_behind(node: &Node, real: &Path) {
    let pod = everything();
    for place in node.mount(&pod).unwrap().values() {
        let MountedVolume::Host { path, .. } = place else { panic!("{place:?}") };
        assert!(path.starts_with(node.pod_dir()), "{path:?}");
    }
    let sub = node.sub_path(&pod, 0, "x").unwrap();
    assert!(sub.starts_with(node.pod_dir()), "{sub:?}");
    assert_eq!(mountinfo::below(real).unwrap().len(), 3);
    node.mount(&pod).unwrap();
    assert_eq!(mountinfo::below(real).unwrap().len(), 3, "nothing is mounted twice");
    let next = Node::new(&node.dir);
    next.unmount().unwrap();
    assert_eq!(mountinfo::below(real).unwrap(), []);
    assert!(!node.pod_dir().exists());
    assert_eq!(next.known(), []);
}

#[test]
fn the_root_may_be_a_link() {
    scratch::run(|dir| {
        let real = dir.join("data/kubelet");
        fs::create_dir_all(&real).unwrap();
        symlink(&real, dir.join("root")).unwrap();
        lives_behind(&Node::new(dir), &real);
    });
}

#[test]
fn the_directory_of_pods_may_be_a_link() {
    scratch::run(|dir| {
        let real = dir.join("data");
        fs::create_dir_all(&real).unwrap();
        fs::create_dir(dir.join("root")).unwrap();
        symlink("../data", dir.join("root/pods")).unwrap();
        lives_behind(&Node::new(dir), &real);
    });
}
