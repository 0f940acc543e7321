//! CPUs and memory of one's own, as containers on a real containerd see them.
#![allow(clippy::unwrap_used)]

use std::fs;

use testkit::harness::{Harness, container_id};
use testkit::node::{AgentOptions, Containerd};

const CONFIG: &str = "cpuManagerPolicy: static\ncpuManagerReconcilePeriod: 1s\nreservedSystemCPUs: '0'\n\
    evictionHard: { memory.available: 100Mi }\nmemoryManagerPolicy: Static\n\
    reservedMemory: [{ numaNode: 0, limits: { memory: 100Mi } }]\ntopologyManagerPolicy: single-numa-node\n";

fn pod(name: &str, resources: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{terminationGracePeriodSeconds: 1, \
         containers: [{{name: main, image: localhost/busybox:v1, imagePullPolicy: Never, command: [sleep, '10000']\
         {resources}}}]}}}}"
    )
}

/// What the kernel lets the container's first process use.
fn allowed(h: &Harness, pod: &str, what: &str) -> String {
    let text = h.exec(pod, "main", &["grep", &format!("{what}_allowed_list"), "/proc/1/status"]);
    text.split_whitespace().last().unwrap_or_default().to_owned()
}

#[test]
fn who_asks_for_whole_cpus_has_them_for_himself() {
    let options = AgentOptions { config: CONFIG.to_owned(), ..AgentOptions::default() };
    let Some(mut h) = Harness::start(Containerd::default(), options) else { return };
    let every = fs::read_to_string("/sys/devices/system/cpu/online").unwrap().trim().to_owned();
    assert_ne!(every, "0", "with one CPU nobody can have one for himself");
    h.apply("shared", &pod("shared", ""));
    h.wait_running("shared");
    assert_eq!(allowed(&h, "shared", "Cpus"), every);

    let list = "{cpu: 1, memory: 32Mi}";
    h.apply("own", &pod("own", &format!(", resources: {{requests: {list}, limits: {list}}}")));
    let own = h.wait_running("own");
    let id = container_id(&own, "main").to_owned();
    let cpu = allowed(&h, "own", "Cpus");
    assert_eq!(cpu, "1", "CPU 0 is kept for the system");
    assert_eq!(allowed(&h, "own", "Mems"), "0");
    let moved = |h: &Harness, to: &dyn Fn(&str) -> bool| {
        h.until("the others to move", || Some(allowed(h, "shared", "Cpus")).filter(|c| to(c)))
    };
    let left = moved(&h, &|cpus| cpus != every);
    assert!(!left.split(',').any(|range| range == cpu) && left.starts_with('0'), "{left}");

    h.restart_agent();
    h.wait_until_up();
    let same = h.wait_running("own");
    assert_eq!(container_id(&same, "main"), id);
    assert_eq!(allowed(&h, "own", "Cpus"), cpu);
    assert_eq!(moved(&h, &|cpus| cpus == left), left);

    h.remove("own");
    h.wait_gone("own");
    assert_eq!(moved(&h, &|cpus| cpus == every), every);
}
