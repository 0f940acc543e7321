//! Pods that get other resources while they run, on a real containerd, asked for through kubectl: what upstream's
//! conformance suite asks of in-place resize, and what happens when there is no room, too much in use, or no kubelet.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};
use testkit::cluster::Cluster;
use testkit::harness::{condition, container, container_id, is_ready, restarts, uid};

const STAY: &str = "trap exit TERM; while :; do sleep 0.2; done";

/// Shares, quota and bytes of memory; none where there is no limit.
type Bounds = (i64, Option<i64>, Option<i64>);

/// Requests and limits of one container, `-` for none: `cpu/memory cpu/memory`.
type Sizes = (&'static str, &'static str);

fn list(text: &str) -> Value {
    let (cpu, memory) = text.split_once('/').unwrap();
    let all = [("cpu", cpu), ("memory", memory)].into_iter().filter(|(_, amount)| *amount != "-");
    all.map(|(name, amount)| (name.to_owned(), json!(amount))).collect::<serde_json::Map<_, _>>().into()
}

fn resources((requests, limits): Sizes) -> Value {
    json!({"requests": list(requests), "limits": list(limits)})
}

/// A Pod bound to the node; `more` are fields of its containers.
fn pod(name: &str, containers: &[(&str, Sizes)], more: &Value) -> Value {
    let containers = containers.iter().map(|(c, sizes)| {
        let mut all = json!({"name": c, "image": "localhost/busybox:v1", "command": ["sh", "-c", STAY],
                             "resources": resources(*sizes)});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    });
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "nodeName": "demo", "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1,
        "containers": containers.collect::<Vec<_>>()}})
}

fn patch(containers: &[(&str, Sizes)]) -> String {
    let all = containers.iter().map(|(name, sizes)| json!({"name": name, "resources": resources(*sizes)}));
    json!({"spec": {"containers": all.collect::<Vec<_>>()}}).to_string()
}

fn resize(c: &Cluster, name: &str, containers: &[(&str, Sizes)]) {
    c.run(&["patch", "pod", name, "--subresource=resize", "-p", &patch(containers)]);
}

/// As upstream's suite waits: this version was seen, nothing is pending or in progress, and the Pod is ready.
fn wait_resized(c: &Cluster, name: &str) -> Pod {
    c.wait_pod(name, "resized", |p| {
        let is_seen = p.status.as_ref().and_then(|s| s.observed_generation) == p.metadata.generation;
        let all = p.status.iter().flat_map(|s| s.conditions.iter().flatten());
        let is_done = !all.into_iter().any(|c| c.type_.starts_with("PodResize"));
        is_seen && is_done && is_ready(p)
    })
}

/// What a cgroup of the Pod says.
fn cgroup(c: &Cluster, pod: &Pod, container: Option<&str>) -> Bounds {
    let class = match pod.status.as_ref().and_then(|s| s.qos_class.as_deref()) {
        Some("Burstable") => "burstable/",
        Some("BestEffort") => "besteffort/",
        _ => "",
    };
    let id = container.map(|name| container_id(pod, name).rsplit('/').next().unwrap().to_owned());
    let below = format!("kubepods/{class}pod{}/{}", uid(pod), id.unwrap_or_default());
    let root = Path::new("/sys/fs/cgroup");
    let of = |controller: &str| -> PathBuf {
        let hierarchy = if is_new() { root.to_owned() } else { root.join(controller) };
        hierarchy.join(c.node.cgroup()).join(&below)
    };
    let read = |controller: &str, file: &str| {
        let path = of(controller).join(file);
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).trim().to_owned()
    };
    if is_new() {
        let weight: i64 = read("cpu", "cpu.weight").parse().unwrap();
        let quota = read("cpu", "cpu.max").split(' ').next().unwrap().parse().ok();
        return (weight, quota, read("memory", "memory.max").parse().ok());
    }
    let number = |controller: &str, file: &str| read(controller, file).parse::<i64>().unwrap();
    let quota = Some(number("cpu", "cpu.cfs_quota_us")).filter(|q| *q > 0);
    let memory = Some(number("memory", "memory.limit_in_bytes")).filter(|m| *m < 1 << 60);
    (number("cpu", "cpu.shares"), quota, memory)
}

fn is_new() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// The same from what is asked for. Version 2 has weights where version 1 has shares; how a runtime rounds them is its own.
fn wanted((requests, limits): Sizes) -> Bounds {
    let amount = |text: &str, n: usize| {
        let text = text.split('/').nth(n).unwrap();
        (text != "-").then(|| api::pod::Amount::parse(text).unwrap())
    };
    let milli = amount(requests, 0).or(amount(limits, 0)).map_or(0, |a| a.milli());
    let quota = amount(limits, 0).map(|a| (a.milli() * 100).max(1000));
    ((milli * 1024 / 1000).max(2), quota, amount(limits, 1).map(|a| a.value()))
}

/// Spec, status, cgroups and restarts of every container.
fn check(c: &Cluster, pod: &Pod, containers: &[(&str, Sizes)], restarted: i32) {
    let same = |a: Option<&BTreeMap<String, Quantity>>, b: &Value| {
        let parse = |text: &str| api::pod::Amount::parse(text).unwrap();
        let a: BTreeMap<_, _> = a.into_iter().flatten().map(|(k, q)| (k.clone(), parse(&q.0))).collect();
        let b: BTreeMap<_, _> =
            b.as_object().unwrap().iter().map(|(k, q)| (k.clone(), parse(q.as_str().unwrap()))).collect();
        assert_eq!(a, b);
    };
    for (name, sizes) in containers {
        let status = container(pod, name).unwrap();
        let shown = status.resources.clone().unwrap();
        same(status.allocated_resources.as_ref(), &list(sizes.0));
        same(shown.requests.as_ref(), &list(sizes.0));
        same(shown.limits.as_ref(), &list(sizes.1));
        let (has, mut want) = (cgroup(c, pod, Some(name)), wanted(*sizes));
        if is_new() {
            want.0 = has.0;
        }
        assert_eq!(has, want, "{name}");
        assert_eq!(restarts(pod, name), restarted, "{name}");
    }
}

fn events(c: &Cluster, name: &str, reason: &str) -> Vec<String> {
    #[derive(serde::Deserialize)]
    struct List {
        items: Vec<Event>,
    }
    let field = format!("--field-selector=involvedObject.name={name},reason={reason}");
    let all: List = c.object(&["events", &field]).unwrap();
    all.items.into_iter().filter_map(|e| e.message).collect()
}

#[test]
fn containers_get_other_resources_while_they_run() {
    let Some(c) = Cluster::usual() else { return };
    let none = json!({});
    // Guaranteed, three containers: net increase, net decrease, and each its own way.
    let old: [(&str, Sizes); 3] = ["c1", "c2", "c3"].map(|n| (n, ("100m/64Mi", "100m/64Mi")));
    c.create(&pod("web", &old, &none).to_string());
    let first = c.wait_pod("web", "ready", is_ready);
    check(&c, &first, &old, 0);
    let ids = |p: &Pod| ["c1", "c2", "c3"].map(|n| container_id(p, n).to_owned());
    for sizes in [
        [("150m/96Mi", "150m/96Mi"), ("150m/96Mi", "150m/96Mi"), ("50m/48Mi", "50m/48Mi")],
        [("160m/100Mi", "160m/100Mi"), ("50m/48Mi", "50m/48Mi"), ("40m/40Mi", "40m/40Mi")],
        [("180m/100Mi", "180m/100Mi"), ("40m/64Mi", "40m/64Mi"), ("60m/64Mi", "60m/64Mi")],
    ] {
        let new = [("c1", sizes[0]), ("c2", sizes[1]), ("c3", sizes[2])];
        resize(&c, "web", &new);
        let web = wait_resized(&c, "web");
        assert_eq!(ids(&web), ids(&first));
        check(&c, &web, &new, 0);
        let (_, quota, memory) = cgroup(&c, &web, None);
        let sum =
            |part: fn(Bounds) -> Option<i64>| sizes.iter().filter_map(|s| part(wanted(*s))).sum::<i64>();
        assert_eq!((quota, memory), (Some(sum(|w| w.1)), Some(sum(|w| w.2))), "the Pod's own cgroup");
    }
    assert_eq!(events(&c, "web", "ResizeStarted").len(), 3);
    let completed = events(&c, "web", "ResizeCompleted");
    assert!(
        completed.iter().any(|e| e.contains(r#""cpu":"180m""#) && e.contains(r#""generation":4"#)),
        "{completed:?}"
    );
    let metrics = String::from_utf8(c.agent.get(&c.node, "/metrics").unwrap()).unwrap();
    for line in [
        "kubelet_pod_resize_duration_milliseconds_count{success=\"true\"} 3",
        "kubelet_container_requested_resizes_total{resource=\"cpu\",requirement=\"limits\",operation=\"increase\"}",
        "kubelet_pod_pending_resizes{reason=\"deferred\"} 0",
        "kubelet_runtime_operations_total{operation_type=\"update_container\"}",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }

    // Burstable: requests and limits that were not there are added.
    let old: [(&str, Sizes); 5] = [
        ("c1", ("100m/-", "-/-")),
        ("c2", ("-/64Mi", "-/-")),
        ("c3", ("100m/64Mi", "-/-")),
        ("c4", ("100m/-", "-/-")),
        ("c5", ("-/64Mi", "-/-")),
    ];
    let new: [(&str, Sizes); 5] = [
        ("c1", ("150m/-", "200m/-")),
        ("c2", ("-/48Mi", "-/96Mi")),
        ("c3", ("100m/48Mi", "-/-")),
        ("c4", ("50m/64Mi", "-/-")),
        ("c5", ("100m/96Mi", "-/-")),
    ];
    c.create(&pod("mixed", &old, &none).to_string());
    check(&c, &c.wait_pod("mixed", "ready", is_ready), &old, 0);
    resize(&c, "mixed", &new);
    check(&c, &wait_resized(&c, "mixed"), &new, 0);

    // The kernel has the same for both: what was asked for is what is shown.
    let (tiny, tinier): (Sizes, Sizes) = (("2m/-", "10m/-"), ("1m/-", "5m/-"));
    c.create(&pod("tiny", &[("c1", tiny)], &none).to_string());
    c.wait_pod("tiny", "ready", is_ready);
    for sizes in [tinier, tiny] {
        resize(&c, "tiny", &[("c1", sizes)]);
        check(&c, &wait_resized(&c, "tiny"), &[("c1", sizes)], 0);
    }

    // Through the replace endpoint; what the subresource shows is the Pod.
    let mut object: Value = serde_json::from_str(&c.run(&["get", "pod", "tiny", "-o", "json"])).unwrap();
    object["spec"]["containers"][0]["resources"] = resources(("20m/-", "40m/-"));
    let answer = c.kubectl_with(
        &["replace", "--raw", "/api/v1/namespaces/default/pods/tiny/resize", "-f", "-"],
        &object.to_string(),
    );
    assert_eq!(answer.code, 0, "{answer:?}");
    check(&c, &wait_resized(&c, "tiny"), &[("c1", ("20m/-", "40m/-"))], 0);
    let whole: Value =
        serde_json::from_str(&c.run(&["get", "--raw", "/api/v1/namespaces/default/pods/tiny"])).unwrap();
    let part: Value =
        serde_json::from_str(&c.run(&["get", "--raw", "/api/v1/namespaces/default/pods/tiny/resize"]))
            .unwrap();
    assert_eq!(part["spec"], whole["spec"]);
}

#[test]
fn a_container_starts_again_only_where_its_policy_says_so() {
    let Some(c) = Cluster::usual() else { return };
    let policy = json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"},
                                         {"resourceName": "memory", "restartPolicy": "RestartContainer"}]});
    let old: [(&str, Sizes); 1] = [("c1", ("100m/64Mi", "200m/128Mi"))];
    c.create(&pod("web", &old, &policy).to_string());
    c.wait_pod("web", "ready", is_ready);
    let cpu: [(&str, Sizes); 1] = [("c1", ("150m/64Mi", "250m/128Mi"))];
    resize(&c, "web", &cpu);
    check(&c, &wait_resized(&c, "web"), &cpu, 0);
    let memory: [(&str, Sizes); 1] = [("c1", ("150m/96Mi", "250m/160Mi"))];
    resize(&c, "web", &memory);
    let again = c.wait_pod("web", "started again", |p| restarts(p, "c1") == 1 && is_ready(p));
    check(&c, &wait_resized(&c, "web"), &memory, 1);
    assert_eq!(cgroup(&c, &again, None).2, Some(160 << 20));
    let killed = events(&c, "web", "Killing");
    assert!(killed.iter().any(|e| e == "Container c1 resize requires restart"), "{killed:?}");

    // Limits of the whole Pod bound it, and the containers that state none of their own.
    let mut whole = pod("whole", &[("a", ("-/-", "-/-")), ("b", ("50m/32Mi", "100m/64Mi"))], &json!({}));
    whole["spec"]["resources"] = resources(("100m/64Mi", "200m/128Mi"));
    c.create(&whole.to_string());
    let first = c.wait_pod("whole", "ready", is_ready);
    assert_eq!(cgroup(&c, &first, Some("a")).1, Some(20_000));
    let wish = json!({"spec": {"resources": resources(("150m/96Mi", "300m/192Mi"))}}).to_string();
    c.run(&["patch", "pod", "whole", "--subresource=resize", "-p", &wish]);
    let grown = wait_resized(&c, "whole");
    let (_, quota, memory) = cgroup(&c, &grown, None);
    assert_eq!((quota, memory), (Some(30_000), Some(192 << 20)));
    assert_eq!(cgroup(&c, &grown, Some("a")).1, Some(30_000));
    assert_eq!(cgroup(&c, &grown, Some("b")).1, Some(10_000));
    assert_eq!((restarts(&grown, "a"), container_id(&grown, "a")), (0, container_id(&first, "a")));
    let shown = grown.status.as_ref().unwrap();
    assert_eq!(shown.resources.as_ref().unwrap().limits.as_ref().unwrap()["cpu"].0, "300m");
    assert_eq!(shown.allocated_resources.as_ref().unwrap()["cpu"].0, "150m");
}

#[test]
fn a_resize_waits_for_room_and_outlives_the_kubelet() {
    let Some(mut c) = Cluster::usual() else { return };
    let node: Value = serde_json::from_str(&c.run(&["get", "node", "demo", "-o", "json"])).unwrap();
    let all =
        api::pod::Amount::parse(node["status"]["allocatable"]["cpu"].as_str().unwrap()).unwrap().milli();
    let most: &'static str = Box::leak(format!("{}m/-", all - 300).into_boxed_str());
    c.create(&pod("big", &[("c1", ("100m/-", "-/-"))], &json!({})).to_string());
    c.create(&pod("other", &[("c1", ("400m/-", "-/-"))], &json!({})).to_string());
    let first = c.wait_pod("big", "ready", is_ready);
    c.wait_pod("other", "ready", is_ready);
    resize(&c, "big", &[("c1", (most, "-/-"))]);
    let is_deferred = |p: &Pod| {
        let all = p.status.iter().flat_map(|s| s.conditions.iter().flatten());
        let mut pending = all.filter(|c| c.type_ == "PodResizePending");
        pending.any(|c| c.reason.as_deref() == Some("Deferred") && c.observed_generation == Some(2))
    };
    let waiting = c.wait_pod("big", "deferred", is_deferred);
    let message = waiting.status.as_ref().unwrap().conditions.iter().flatten();
    let message = message.filter(|c| c.type_ == "PodResizePending").find_map(|c| c.message.clone()).unwrap();
    let want = format!(
        "Node didn't have enough resource: cpu, requested: {}, used: 400, capacity: {all}",
        all - 300
    );
    assert_eq!(message, want);
    check(&c, &waiting, &[("c1", ("100m/-", "-/-"))], 0);
    assert_eq!(events(&c, "big", "ResizeDeferred").len(), 1);

    // The next kubelet goes by what the last one granted, and room that appears is used.
    c.restart_agent();
    let after = c.wait_pod("big", "deferred still", is_deferred);
    assert_eq!(container_id(&after, "c1"), container_id(&first, "c1"));
    let state = fs::read_to_string(c.agent.root().join("allocated_pods_state")).unwrap();
    assert!(
        state.starts_with(r#"{"data":"{\"entries\":{"#) && state.contains(r#"\"cpu\":\"100m\""#),
        "{state}"
    );
    resize(&c, "other", &[("c1", ("200m/-", "-/-"))]);
    check(&c, &wait_resized(&c, "big"), &[("c1", (most, "-/-"))], 0);
    check(&c, &wait_resized(&c, "other"), &[("c1", ("200m/-", "-/-"))], 0);
    let metrics = String::from_utf8(c.agent.get(&c.node, "/metrics").unwrap()).unwrap();
    assert!(
        metrics.contains("kubelet_pod_deferred_accepted_resizes_total{retry_trigger=\"pod_"),
        "{metrics}"
    );

    // A kubelet that is killed in the middle of it finishes it in its next life.
    for (round, cpu) in ["50m/-", "150m/-", "60m/-"].into_iter().enumerate() {
        resize(&c, "other", &[("c1", (cpu, "-/-"))]);
        c.agent.kill9();
        c.start_agent();
        check(&c, &wait_resized(&c, "other"), &[("c1", (cpu, "-/-"))], 0);
        assert!(round < 3);
    }
}

#[test]
fn a_limit_below_what_is_in_use_is_an_error_until_it_is_not() {
    let Some(c) = Cluster::usual() else { return };
    let mut hog = pod(
        "hog",
        &[("c1", ("100m/32Mi", "200m/128Mi"))],
        &json!({"volumeMounts": [{"name": "m", "mountPath": "/m"}]}),
    );
    hog["spec"]["volumes"] = json!([{"name": "m", "emptyDir": {"medium": "Memory"}}]);
    c.create(&hog.to_string());
    c.wait_pod("hog", "ready", is_ready);
    let _ = c.exec("hog", "c1", &["dd", "if=/dev/zero", "of=/m/fill", "bs=1M", "count=64"]);
    resize(&c, "hog", &[("c1", ("100m/32Mi", "200m/40Mi"))]);
    let failed = c.wait_pod("hog", "refused", |p| {
        let all = p.status.iter().flat_map(|s| s.conditions.iter().flatten());
        let mut errors =
            all.filter(|c| c.type_ == "PodResizeInProgress" && c.reason.as_deref() == Some("Error"));
        errors.any(|c| c.message.as_deref().unwrap_or_default().contains("below current usage"))
    });
    assert_eq!(cgroup(&c, &failed, Some("c1")).2, Some(128 << 20));
    assert_eq!(condition(&failed, "PodResizeInProgress"), "True");
    assert!(!events(&c, "hog", "ResizeError").is_empty());
    assert_eq!(c.exec("hog", "c1", &["rm", "/m/fill"]), "");
    check(&c, &wait_resized(&c, "hog"), &[("c1", ("100m/32Mi", "200m/40Mi"))], 0);
}
