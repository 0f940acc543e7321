#![allow(clippy::unwrap_used)]

use base::ids::PodUid;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::json;

use super::*;
use crate::pods::status_board::StatusBoard;
use crate::stats::SamplerDeps;
use crate::testing::{ScriptedRuntime, clock};

pub(crate) fn sources() -> Sources {
    of(None)
}

fn of(stats: Option<Vec<v1::ContainerStats>>) -> Sources {
    let pods = Arc::new(StatusBoard::default());
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {"containers": [{"name": "c"}]},
    }))
    .unwrap();
    let status: PodStatus = serde_json::from_value(json!({
        "startTime": "2026-01-01T00:00:00Z",
        "containerStatuses": [{
            "name": "c", "ready": true, "restartCount": 0, "image": "img", "imageID": "",
            "containerID": "containerd://abc", "state": {"running": {"startedAt": "2026-01-01T00:00:01Z"}},
        }],
    }))
    .unwrap();
    pods.publish(&PodUid::from("u"), &Arc::new(pod), status, None);
    let deps = SamplerDeps {
        runtime: Arc::new(ScriptedRuntime { stats, ..ScriptedRuntime::default() }),
        board: pods,
        clock: clock(),
        metrics: Arc::default(),
        root: "/".into(),
        pod_logs: "/nonexistent".into(),
        cgroups: None,
    };
    Sources { sampler: Arc::new(Sampler::new(deps)), node_name: "n1".into(), volumes: Arc::default() }
}

fn stats(id: &str, container: &str) -> v1::ContainerStats {
    let some = |value| Some(v1::UInt64Value { value });
    let labels = [
        ("io.kubernetes.pod.uid", "u"),
        ("io.kubernetes.pod.name", "p"),
        ("io.kubernetes.pod.namespace", "ns"),
        ("io.kubernetes.container.name", container),
    ];
    let labels = labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into_iter().collect();
    v1::ContainerStats {
        attributes: Some(v1::ContainerAttributes { id: id.into(), labels, ..Default::default() }),
        cpu: Some(v1::CpuUsage {
            timestamp: 1_767_225_700_000_000_000,
            usage_core_nano_seconds: some(2_500_000_000),
            ..Default::default()
        }),
        writable_layer: Some(v1::FilesystemUsage { inodes_used: some(7), ..Default::default() }),
        memory: Some(v1::MemoryUsage {
            timestamp: 1_767_225_700_000_000_000,
            working_set_bytes: some(4096),
            usage_bytes: some(8192),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn measured() -> Sources {
    of(Some(vec![stats("abc", "c"), stats("old", "c"), stats("abc", "unknown")]))
}

async fn look(sources: &Sources) -> Look {
    let mut look = sources.look().await;
    look.now = Wall::from_secs(1_767_225_700);
    look.identity.boot_id = "boot".to_owned();
    look.identity.machine_id = "machine".to_owned();
    look.identity.system_uuid = "system".to_owned();
    look
}

#[tokio::test]
async fn a_runtime_that_tells_nothing_is_an_error_and_the_node_is_told_all_the_same() {
    let sources = sources();
    assert_eq!(show_summary(State(sources.clone()), RawQuery(None)).await.status(), 500);
    let (look, mut resource) = (look(&sources).await, String::new());
    resource::write(&mut resource, &look).unwrap();
    assert!(
        resource.contains("\nresource_scrape_error 1\n") && !resource.contains("container_cpu"),
        "{resource}"
    );
    assert!(resource.contains("\nnode_memory_working_set_bytes "), "{resource}");
}

#[tokio::test]
async fn the_summary_tells_what_is_known_and_no_more() {
    let sources = measured();
    let shown = summary::summary(&sources, &look(&sources).await, false);
    let pods = shown["pods"].as_array().unwrap();
    assert_eq!((pods.len(), &pods[0]["podRef"]), (1, &json!({"name": "p", "namespace": "ns", "uid": "u"})));
    assert_eq!(pods[0]["startTime"], "2026-01-01T00:00:00Z");
    let containers = pods[0]["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 1, "those that ended or are unknown are left out");
    assert_eq!(
        containers[0],
        json!({
            "name": "c", "startTime": "2026-01-01T00:00:01Z",
            "cpu": {"time": "2026-01-01T00:01:40Z", "usageCoreNanoSeconds": 2_500_000_000u64},
            "memory": {"time": "2026-01-01T00:01:40Z", "usageBytes": 8192, "workingSetBytes": 4096},
        })
    );
    assert_eq!(pods[0]["memory"]["workingSetBytes"], 4096);
    let node = &shown["node"];
    assert_eq!(node["nodeName"], "n1");
    assert!(node["memory"]["workingSetBytes"].as_u64().unwrap() > 0 && node["fs"]["capacityBytes"].is_u64());
    let brief = summary::summary(&sources, &look(&sources).await, true);
    assert!(brief["node"].get("fs").is_none() && brief["node"]["cpu"]["usageCoreNanoSeconds"].is_u64());
}

#[tokio::test]
async fn metrics_have_the_names_that_dashboards_use() {
    let sources = measured();
    let (mut resource, mut cadvisor) = (String::new(), String::new());
    resource::write(&mut resource, &look(&sources).await).unwrap();
    cadvisor::write(&mut cadvisor, &look(&sources).await).unwrap();
    for line in [
        "container_cpu_usage_seconds_total{container=\"c\",namespace=\"ns\",pod=\"p\"} 2.5 1767225700000",
        "container_memory_working_set_bytes{container=\"c\",namespace=\"ns\",pod=\"p\"} 4096 1767225700000",
        "pod_cpu_usage_seconds_total{namespace=\"ns\",pod=\"p\"} 2.5 1767225700000",
        "resource_scrape_error 0",
        "# TYPE node_cpu_usage_seconds_total counter",
    ] {
        assert!(resource.contains(line), "{line}\n{resource}");
    }
    let line = "container_cpu_usage_seconds_total{container=\"c\",cpu=\"total\",id=\"/abc\",image=\"img\",name=\"abc\",namespace=\"ns\",pod=\"p\"} 2.5";
    assert!(cadvisor.contains(line), "{cadvisor}");
    assert!(
        cadvisor
            .contains("machine_cpu_cores{boot_id=\"boot\",machine_id=\"machine\",system_uuid=\"system\"} ")
    );
    assert!(cadvisor.contains("\nmachine_scrape_error 0\n"));
    // The runtime tells how many inodes are used, and not how many there are.
    assert!(!cadvisor.contains("container_fs_inodes_total"));
}
