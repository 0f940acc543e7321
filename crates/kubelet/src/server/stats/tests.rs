#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;

use base::ids::PodUid;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kubelet_core::stats::proc::{DiskWork, Traffic};
use kubelet_core::stats::{Disk, Disks, Interface, Processes, Sandbox, Usage, VolumeStats};
use serde_json::json;

use super::*;
use crate::pods::status_board::StatusBoard;
use crate::stats::{Named, Owner, SamplerDeps, SystemCgroups};
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
        system: SystemCgroups::default(),
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
    let mut look = sources.look(Depth::Descriptors).await;
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
    let line = "container_cpu_usage_seconds_total{container=\"c\",id=\"/abc\",image=\"img\",name=\"abc\",namespace=\"ns\",pod=\"p\",cpu=\"total\"} 2.5";
    assert!(cadvisor.contains(line), "{cadvisor}");
    assert!(
        cadvisor
            .contains("machine_cpu_cores{boot_id=\"boot\",machine_id=\"machine\",system_uuid=\"system\"} ")
    );
    assert!(cadvisor.contains("\nmachine_scrape_error 0\n"));
    // Of a container the runtime tells how many inodes are used, and not how many there are.
    assert!(!cadvisor.contains("container_fs_inodes_total{container=\"c\""));
}

/// A node of cgroup version 2 with one Pod of which everything is known.
fn whole() -> Look {
    let files = |_: &str, name: &str| {
        let text = match name {
            "cpu.stat" => {
                "usage_usec 5000\nuser_usec 3000\nsystem_usec 2000\nnr_periods 1\nnr_throttled 1\nthrottled_usec 9\n"
            }
            "cpu.max" => "50000 100000",
            "cpu.weight" => "100",
            "memory.current" => "1000",
            "memory.stat" => "anon 20\nfile 500\ninactive_file 400\nkernel 9\npgfault 6\npgmajfault 1\n",
            "memory.max" => "4096",
            "memory.peak" => "2000",
            "memory.swap.current" => "0",
            "memory.events" => "max 7\noom_kill 2\n",
            "pids.current" => "4",
            "io.stat" => "8:0 rbytes=10 wbytes=20 rios=1 wios=2\n9:9 rbytes=1\n9:8 rbytes=2\n",
            name if name.ends_with(".pressure") => {
                "some avg10=1.50 avg60=0 avg300=0 total=2000000\nfull avg10=0 avg60=0 avg300=0 total=1000000\n"
            }
            _ => return None,
        };
        Some(text.to_owned())
    };
    let stats = kubelet_core::stats::cgroup::read_v2(&files);
    let processes = Some(Processes { count: 2, descriptors: 9, sockets: 3, open_files: Some(1024) });
    let traffic = Traffic { bytes: 10, packets: 1, errors: 0, dropped: 0 };
    let interface = |name: &str| Interface { name: name.into(), received: traffic, sent: traffic };
    let disk =
        Disk { capacity: 1000, available: 600, used: 400, inodes: 50, inodes_free: 40, device: 8 << 8 };
    let at = Wall::from_secs(1_767_225_700);
    let used = Usage { bytes: 7, inodes: 2 };
    let container = ContainerStats {
        name: "c".into(),
        id: "abc".into(),
        image: "img".into(),
        started: Some(1),
        rootfs: Some((at, used)),
        logs: Some(used),
        cgroup: Some(("/kubepods/podu/abc".into(), stats.clone())),
        processes,
        ..ContainerStats::of_cgroup(&stats, Some(5), at)
    };
    let sandbox =
        Sandbox { id: "box".into(), path: "/kubepods/podu/box".into(), cgroup: stats.clone(), processes };
    let pod = PodStats {
        uid: "u".into(),
        name: "p".into(),
        namespace: "ns".into(),
        memory: container.memory,
        cpu: container.cpu,
        swap: container.swap,
        io: container.io,
        containers: vec![container],
        network: Some((at, vec![interface("a\"b"), interface("eth0")])),
        volumes: [("v".to_owned(), VolumeStats { at, used, disk: Some(disk) })].into(),
        ephemeral: Some(used),
        process_count: Some(2),
        cgroup: Some(("/kubepods/podu".into(), stats.clone())),
        sandbox: Some(sandbox),
        ..PodStats::default()
    };
    let named = Named {
        owner: Owner::Kubelet,
        path: "/system.slice/kubelet.service".into(),
        started: Some(3),
        stats: stats.clone(),
        nano_cores: Some(1),
        processes,
    };
    let work = DiskWork { now: 1, ..DiskWork::default() };
    let mut look = Look { now: at, pods: vec![pod], ..Look::default() };
    look.system = System { root: stats, named: vec![named] };
    look.devices = [((8, 0), Device { name: "/dev/sda".into(), work })].into();
    look.signals.disks = Disks { node: Some(disk), images: Some(disk), containers: None };
    look.signals.machine.interfaces = vec![interface("eth0")];
    look.signals.machine.memory = kubelet_core::stats::proc::memory("MemTotal: 8 kB\nMemFree: 4 kB\n");
    look.processors = Processors { logical: 4, cores: Some(2), sockets: Some(1) };
    look
}

/// What the dashboards, rules and alerts of kubernetes-mixin ask of the job `cadvisor`, with the labels they select and
/// join by.
const MIXIN: &[(&str, &[&str])] = &[
    ("container_cpu_cfs_periods_total", &["container", "namespace", "pod"]),
    ("container_cpu_cfs_throttled_periods_total", &["container", "namespace", "pod"]),
    ("container_cpu_usage_seconds_total", &["container", "image", "namespace", "pod"]),
    ("container_fs_reads_bytes_total", &["container", "device", "namespace", "pod"]),
    ("container_fs_reads_total", &["container", "device", "namespace", "pod"]),
    ("container_fs_writes_bytes_total", &["container", "device", "namespace", "pod"]),
    ("container_fs_writes_total", &["container", "device", "namespace", "pod"]),
    ("container_memory_cache", &["container", "image", "namespace", "pod"]),
    ("container_memory_rss", &["container", "image", "namespace", "pod"]),
    ("container_memory_swap", &["container", "image", "namespace", "pod"]),
    ("container_memory_usage_bytes", &["container", "image", "namespace", "pod"]),
    ("container_memory_working_set_bytes", &["container", "image", "namespace", "pod"]),
    ("container_network_receive_bytes_total", &["interface", "namespace", "pod"]),
    ("container_network_receive_packets_dropped_total", &["interface", "namespace", "pod"]),
    ("container_network_receive_packets_total", &["interface", "namespace", "pod"]),
    ("container_network_transmit_bytes_total", &["interface", "namespace", "pod"]),
    ("container_network_transmit_packets_dropped_total", &["interface", "namespace", "pod"]),
    ("container_network_transmit_packets_total", &["interface", "namespace", "pod"]),
];

#[test]
fn dashboards_find_every_series_with_the_labels_they_select_by() {
    let mut text = String::new();
    cadvisor::write(&mut text, &whole()).unwrap();
    for (name, labels) in MIXIN {
        let is_of_pod = |l: &&str| l.starts_with(&format!("{name}{{")) && l.contains("pod=\"p\"");
        let line = text.lines().find(is_of_pod).unwrap_or_else(|| panic!("{name}\n{text}"));
        labels.iter().for_each(|label| assert!(line.contains(&format!("{label}=\"")), "{label}: {line}"));
    }
    // The network is the sandbox's, and the machine's.
    let lines = || text.lines().filter(|l| l.starts_with("container_network_receive_bytes_total{"));
    assert!(lines().all(|l| l.contains("container=\"\"")), "{text}");
    assert!(lines().any(|l| l.contains("id=\"/\"")) && lines().any(|l| l.contains("interface=\"a\\\"b\"")));
}

#[test]
fn every_family_is_in_one_piece_and_no_sample_comes_twice() {
    let mut text = String::new();
    cadvisor::write(&mut text, &whole()).unwrap();
    let (mut families, mut samples, mut now) = (BTreeSet::new(), BTreeSet::new(), String::new());
    for line in text.lines() {
        if let Some(header) = line.strip_prefix("# TYPE ") {
            let (name, kind) = header.split_once(' ').unwrap();
            assert!(families.insert(name.to_owned()), "{name} comes twice");
            let counts = name.ends_with("_total") && name != "container_fs_inodes_total";
            assert_eq!(kind == "counter", counts || name == "container_memory_failcnt", "{name}");
            name.clone_into(&mut now);
        } else if !line.starts_with('#') {
            let sample = line.split_once(' ').unwrap().0;
            assert_eq!(sample.split('{').next(), Some(now.as_str()), "{line}");
            assert!(samples.insert(sample.to_owned()), "{line} comes twice");
        }
    }
    let missing: Vec<&str> = families::SPEC
        .iter()
        .chain(families::MEASURED)
        .map(|f| f.0)
        .filter(|name| !families.contains(*name))
        .collect();
    assert_eq!(missing, Vec::<&str>::new(), "of whom everything is known, everything is told");
    for line in [
        "container_pressure_memory_waiting_seconds_total{container=\"c\",id=\"/kubepods/podu/abc\",image=\"img\",\
         name=\"abc\",namespace=\"ns\",pod=\"p\"} 2 1767225700000",
        "container_spec_cpu_quota{container=\"\",id=\"/kubepods/podu\",image=\"\",name=\"\",namespace=\"ns\",pod=\"p\"} 50000",
        "container_ulimits_soft{container=\"\",id=\"/system.slice/kubelet.service\",image=\"\",name=\"\",namespace=\"\",\
         pod=\"\",ulimit=\"max_open_files\"} 1024 1767225700000",
        "container_fs_inodes_free{container=\"\",id=\"/\",image=\"\",name=\"\",namespace=\"\",pod=\"\",\
         device=\"/dev/sda\"} 40 1767225700000",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
}

#[test]
fn the_summary_tells_of_networks_volumes_logs_pressure_and_the_system() {
    let shown = summary::summary(&sources(), &whole(), false);
    let time = "2026-01-01T00:01:40Z";
    let pod = &shown["pods"][0];
    let of = |name: &str| json!({"name": name, "rxBytes": 10, "rxErrors": 0, "txBytes": 10, "txErrors": 0});
    let mut network = of("eth0");
    network["time"] = json!(time);
    network["interfaces"] = json!([of("a\"b"), of("eth0")]);
    assert_eq!(pod["network"], network);
    let disk = json!({
        "time": time, "availableBytes": 600, "capacityBytes": 1000, "usedBytes": 7, "inodesFree": 40, "inodes": 50,
        "inodesUsed": 2,
    });
    let mut volume = disk.clone();
    volume["name"] = json!("v");
    assert_eq!(pod["volume"], json!([volume]));
    assert_eq!((&pod["ephemeral-storage"], &pod["process_stats"]), (&disk, &json!({"process_count": 2})));
    let container = &pod["containers"][0];
    assert_eq!((&container["logs"], &container["rootfs"]), (&disk, &disk));
    let stall = |total: u64, avg10: f64| json!({"total": total, "avg10": avg10, "avg60": 0.0, "avg300": 0.0});
    let psi = json!({"full": stall(1_000_000, 0.0), "some": stall(2_000_000, 1.5)});
    assert_eq!(container["io"], json!({"time": time, "psi": psi}));
    for of in [&pod["cpu"], &pod["memory"], &container["cpu"], &container["memory"]] {
        assert_eq!(of["psi"], psi, "{of}");
    }
    assert_eq!(pod["memory"]["availableBytes"], 4096 - 600);
    let system = &shown["node"]["systemContainers"][0];
    assert_eq!((&system["name"], &system["cpu"]["usageNanoCores"]), (&json!("kubelet"), &json!(1)));
    assert_eq!(system["startTime"], "1970-01-01T00:00:03Z");
    let brief = summary::summary(&sources(), &whole(), true);
    assert!(brief["pods"][0].get("network").is_none() && brief["pods"][0]["swap"]["swapUsageBytes"] == 0);
}
