//! A node that defends itself, on a real containerd: Pods that fill its disk go, with upstream's words, and nobody else does.
#![allow(clippy::unwrap_used)]

use k8s_openapi::api::core::v1::Pod;
use testkit::cluster::Cluster;
use testkit::harness::{condition, is_ready, phase};

/// A Pod that runs `script` and stays. `spec` are more lines of its spec, `container` more of its container.
fn pod(name: &str, spec: &str, container: &str, script: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{ name: {name} }}\nspec:\n  nodeName: demo\n  \
         automountServiceAccountToken: false\n  terminationGracePeriodSeconds: 1\n{spec}  containers:\n  \
         - {{ name: main, image: localhost/busybox:v1, command: [sh, -c, {script:?}]{container} }}\n"
    )
}

const STAY: &str = "trap exit TERM; while :; do sleep 0.1; done";
const NO_THRESHOLDS: &str = "evictionHard: { memory.available: '0%' }\n";

fn write(path: &str, megabytes: u32) -> String {
    format!("dd if=/dev/zero of={path} bs=1M count={megabytes} 2>/dev/null; {STAY}")
}

/// Waits until the Pod was evicted, and says why.
fn evicted(c: &Cluster, name: &str) -> (Pod, String) {
    let pod = c.wait_pod(name, "evicted", |p| phase(p) == "Failed");
    let status = pod.status.clone().unwrap();
    assert_eq!(status.reason.as_deref(), Some("Evicted"), "{status:?}");
    let event = c.eventually("event", || {
        let args =
            ["get", "events", "--field-selector", "reason=Evicted", "-o", "jsonpath={.items[*].message}"];
        Some(c.run(&args)).filter(|text| !text.is_empty())
    });
    let message = status.message.unwrap();
    assert!(event.contains(message.trim()), "{event}");
    (pod, message)
}

fn limit(quantity: &str) -> String {
    format!(", resources: {{ limits: {{ ephemeral-storage: {quantity} }} }}")
}

#[test]
fn cve_2020_8557_a_pod_that_fills_its_hosts_file_is_evicted() {
    let Some(c) = Cluster::with_config(NO_THRESHOLDS) else { return };
    c.create(&pod("calm", "", &limit("20Mi"), STAY));
    c.create(&pod("greedy", "", &limit("20Mi"), &write("/etc/hosts", 40)));
    let (pod, message) = evicted(&c, "greedy");
    assert_eq!(message, "Pod ephemeral local storage usage exceeds the total limit of containers 20Mi. ");
    assert_eq!(condition(&pod, "DisruptionTarget"), "", "its own fault disrupts nobody");
    c.wait_pod("calm", "ready", is_ready);
}

#[test]
fn a_pod_over_a_limit_of_its_own_goes_and_its_neighbours_stay() {
    let Some(c) = Cluster::with_config(NO_THRESHOLDS) else { return };
    let volume = "  volumes: [{ name: v, emptyDir: { sizeLimit: 5Mi } }]\n";
    let mount = ", volumeMounts: [{ name: v, mountPath: /v }]";
    c.create(&pod("calm", volume, mount, &write("/v/data", 2)));
    c.create(&pod("full", volume, mount, &write("/v/data", 12)));
    let (_, message) = evicted(&c, "full");
    assert_eq!(message, "Usage of EmptyDir volume \"v\" exceeds the limit \"5Mi\". ");
    c.create(&pod("layer", "", &limit("5Mi"), &write("/data", 12)));
    let (_, message) = evicted(&c, "layer");
    assert!(message.contains("5Mi"), "{message}");
    c.wait_pod("calm", "ready", is_ready);
    let metrics = c.run(&["get", "--raw", "/api/v1/nodes/demo/proxy/metrics"]);
    assert!(
        metrics.contains("kubelet_evictions{eviction_signal=\"emptydirfs.limit\"} 1"),
        "evictions not counted"
    );
}

#[test]
fn doctor_eviction_tells_who_would_go_next_and_ends_nobody() {
    let Some(c) = Cluster::with_config("evictionHard: { memory.available: '1Mi', nodefs.available: '1%' }\n")
    else {
        return;
    };
    let asks = |memory: &str| format!(", resources: {{ requests: {{ memory: {memory} }} }}");
    c.create(&pod("modest", "", &asks("500Mi"), STAY));
    c.create(&pod("greedy", "", "", STAY));
    for name in ["modest", "greedy"] {
        c.wait_pod(name, "ready", is_ready);
    }
    let told = c.eventually("measured", || {
        let told = c.doctor_eviction(&["-o", "json"]);
        let told: serde_json::Value = serde_json::from_str(&told).ok()?;
        let memory = told["signals"].as_array()?.iter().find(|s| s["signal"] == "memory.available")?.clone();
        let all = memory["order"].as_array()?;
        (all.len() == 2 && all.iter().all(|p| p["used"].is_string())).then_some(memory)
    });
    let names: Vec<&str> =
        told["order"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["greedy", "modest"], "{told}");
    assert_eq!(told["thresholds"][0]["below"], "1Mi", "{told}");
    let text = c.doctor_eviction(&[]);
    assert!(text.contains("first goes default/greedy (") && text.contains("unused images"), "{text}");
    for name in ["modest", "greedy"] {
        c.wait_pod(name, "still ready", is_ready);
    }
}
