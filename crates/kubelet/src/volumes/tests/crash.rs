//! `kill -9` at any moment: what is left can always be cleaned up, and set up again.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::*;

const CHILD: &str = "volumes::tests::crash::the_child";
const WHERE: &str = "LONGSHORE_CRASH_TEST_DIR";

fn everything() -> Pod {
    let items = json!([
        {"path": "n", "fieldRef": {"fieldPath": "metadata.name"}},
        {"path": "a/b", "fieldRef": {"fieldPath": "metadata.labels"}},
    ]);
    let volumes = json!([
        {"name": "v", "emptyDir": {}},
        {"name": "m", "emptyDir": {"medium": "Memory"}},
        {"name": "d", "downwardAPI": {"items": items}},
        {"name": "p", "projected": {"sources": [{"downwardAPI": {"items": items}}]}},
    ]);
    with_group(pod_with(volumes, json!({})), 1000)
}

fn use_it(node: &Node, pod: &Pod) {
    let volume = node.mount_v(pod);
    assert_eq!((mode(&volume), gid(&volume)), (0o2777, 1000));
    fs::write(volume.join("f"), "x").unwrap();
    node.sub_path(pod, 0, "dir/deep").unwrap();
    node.sub_path(pod, 1, "f").unwrap();
    let d = node.pod_dir().join("volumes/kubernetes.io~downward-api/d");
    assert_eq!(fs::read_to_string(d.join("n")).unwrap(), "web");
    assert_eq!(gid(&d.join("..data/a/b")), 1000);
}

/// Not a test of its own but the process that gets killed; on its own it does nothing.
#[test]
#[allow(clippy::print_stdout)]
fn the_child() {
    let Some(dir) = std::env::var_os(WHERE) else { return };
    let node = Node::new(Path::new(&dir));
    println!("ready");
    for round in 0u32.. {
        let mut pod = everything();
        pod.metadata.labels.get_or_insert_default().insert("round".into(), round.to_string());
        use_it(&node, &pod);
        pod.metadata.labels.get_or_insert_default().insert("again".into(), round.to_string());
        use_it(&node, &pod);
        node.unmount().unwrap();
    }
}

#[test]
fn a_killed_agent_leaves_nothing_behind() {
    on_node(|node| {
        let mut rng = Rng::new(11);
        let mut interrupted = 0;
        // Where a kill strikes is a matter of luck, and of the machine.
        for round in 0..600 {
            if round >= 60 && interrupted > 20 {
                break;
            }
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", CHILD, "--nocapture"])
                .env(WHERE, &node.dir)
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let mut heard = String::new();
            let out = child.stdout.as_mut().unwrap();
            while !heard.contains("ready\n") {
                let mut byte = [0];
                assert_eq!(out.read(&mut byte).unwrap(), 1, "the child did not start: {heard}");
                heard.push(char::from(byte[0]));
            }
            std::thread::sleep(rng.up_to(Duration::from_millis(12)));
            child.kill().unwrap();
            assert!(!child.wait().unwrap().success());
            interrupted += usize::from(node.pod_dir().exists());
            // Either life: the Pod is gone, or it goes on.
            if round % 2 == 0 {
                use_it(node, &everything());
            }
            node.unmount().unwrap();
            node.assert_clean();
            use_it(node, &everything());
            node.unmount().unwrap();
            node.assert_clean();
        }
        assert!(interrupted > 20, "killed in the middle only {interrupted} times");
    });
}
