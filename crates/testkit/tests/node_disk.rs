//! A node whose disk is full: the kubelet's root and the directory of logs are small file systems of their own.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use sys::mount::Memory;
use testkit::harness::{Harness, container_id, is_ready, listing, restarts};
use testkit::node::{AgentOptions, Node, Options, Tools};

/// A Pod that writes a line now and then, and is probed. With files of its own on the disk of the kubelet's root.
fn pod(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{ name: {name} }}\nspec:\n  terminationGracePeriodSeconds: 1\n  \
         volumes: [{{ name: v, downwardAPI: {{ items: [{{ path: labels, fieldRef: {{ fieldPath: metadata.name }} }}] }} }}]\n  \
         containers:\n    - name: main\n      image: localhost/busybox:v1\n      imagePullPolicy: Never\n      \
         command: [sh, -c, 'trap exit TERM; while :; do echo line; sleep 0.2; done']\n      \
         volumeMounts: [{{ name: v, mountPath: /v }}]\n      \
         readinessProbe: {{ exec: {{ command: ['true'] }}, periodSeconds: 1, timeoutSeconds: 60 }}\n"
    )
}

/// A node whose kubelet's root and logs have little room. The mounts go with the node.
fn cramped() -> Option<Harness> {
    let (Ok(tools), Some(binary)) = (Tools::from_env(), std::env::var_os("LONGSHORE_BINARY")) else {
        return None;
    };
    let node = Node::start(&tools, Options::default()).unwrap();
    for part in ["kubelet", "pod-logs"] {
        let dir = node.dir().join(part);
        fs::create_dir_all(&dir).unwrap();
        let room = Memory::Tmpfs { size: Some(4 << 20), inodes: Some(4096), mode: 0o755, noswap: false };
        sys::mount::memory(sys::fd::open_dir(&dir).unwrap(), &room).unwrap();
    }
    // The node has room elsewhere: nothing of this is about evictions.
    let config = "evictionHard: { memory.available: '0%' }\ncontainerLogMaxSize: 20Ki\n\
                  containerLogMonitorInterval: 3s\n";
    Some(Harness::start_on(
        node,
        binary.into(),
        AgentOptions { config: config.to_owned(), ..AgentOptions::default() },
    ))
}

/// Takes all the room there is, and what others let go of meanwhile.
fn fill(dir: &Path) -> PathBuf {
    let path = dir.join("filler");
    let mut file = File::options().create(true).append(true).open(&path).unwrap();
    for piece in [vec![b'x'; 64 << 10], vec![b'x'; 4096], vec![b'x']] {
        while file.write_all(&piece).is_ok() {}
    }
    assert!(fs::write(dir.join("no-room"), "x").is_err(), "there is room left in {}", dir.display());
    let _ = fs::remove_file(dir.join("no-room"));
    path
}

#[test]
fn a_full_disk_costs_no_running_pod_and_is_recovered_from() {
    let Some(mut h) = cramped() else { return };
    for name in ["one", "two", "gone"] {
        h.apply(name, &pod(name));
    }
    let before: Vec<_> = ["one", "two"].iter().map(|name| h.wait_ready(name)).collect();
    h.wait_ready("gone");
    let calm = |h: &Harness| {
        for (name, old) in ["one", "two"].iter().zip(&before) {
            let pod = h.wait_ready(name);
            assert_eq!((container_id(&pod, "main"), restarts(&pod, "main")), (container_id(old, "main"), 0));
        }
    };
    let fillers = [fill(&h.agent.root()), fill(&h.agent.pod_logs())];
    // What comes waits, what goes goes, and who runs runs on, also under a kubelet that starts on the full disk.
    h.apply("late", &pod("late"));
    h.remove("gone");
    h.wait_gone("gone");
    fillers.iter().for_each(|f| drop(fill(f.parent().unwrap())));
    calm(&h);
    h.restart_agent();
    calm(&h);
    h.until("it is said what is missing", || {
        let text = fs::read_to_string(h.agent.log()).unwrap();
        text.to_lowercase().contains("no space left").then_some(())
    });
    assert!(h.get("late").is_none_or(|p| !is_ready(&p)), "it has no place for its files");
    fillers.iter().for_each(|f| fs::remove_file(f).unwrap());
    h.wait_ready("late");
    calm(&h);
    h.restart_agent();
    calm(&h);
    for name in ["one", "two", "late"] {
        h.remove(name);
        h.wait_gone(name);
    }
    assert_eq!(listing(&h.agent.root().join("pods")), Vec::<PathBuf>::new());
}
