//! Resources as the kernel counts them.

use std::collections::BTreeMap;

use api::pod::{Amount, QosClass, qos_class};
use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::types::{CriSettings, LinuxResources, MemoryQos, NodeFacts, SwapBehavior};
use crate::downward::{limits, requests};
use crate::pod_resources::{self, is_pod_level};

const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
const MIN_QUOTA: i64 = 1000;
/// Limits of memory are whole pages.
const PAGE: i64 = 4096;
const GUARANTEED_OOM: i64 = -997;
const BEST_EFFORT_OOM: i64 = 1000;
/// Priorities from here on belong to the system.
const SYSTEM_CRITICAL: i32 = 2_000_000_000;

/// What one container may use. A limit it does not state is the Pod's.
pub(super) fn of_container(
    pod: &Pod,
    container: &Container,
    node: &NodeFacts,
    config: &CriSettings,
) -> LinuxResources {
    let own = container.resources.as_ref();
    let of_pod = pod.spec.as_ref().and_then(|s| s.resources.as_ref());
    let limit =
        |name: &str| limits(own, name).filter(|v| *v != 0).or_else(|| limits(of_pod, name)).unwrap_or(0);
    let mut out = linux(requests(own, "cpu"), limit("cpu"), limit("memory"), node, config);
    out.oom_score_adj = oom_score_adj(pod, container, node.memory_capacity);
    out.hugepages = hugepages(pod, container, &node.hugepage_sizes);
    if let Some(rules) = config.memory_qos.filter(|_| node.cgroup_v2) {
        memory_qos(&mut out, pod, container, rules, node.allocatable.memory);
    }
    if node.swap_controller {
        if node.cgroup_v2 {
            out.unified.insert("memory.swap.max".into(), swap(pod, container, node, config).to_string());
        } else {
            // Memory and swap together may not exceed memory alone.
            out.memory_swap_limit = out.memory_limit;
        }
    }
    out
}

/// What the whole Pod may use, told to the runtime with the sandbox.
pub(super) fn of_sandbox(pod: &Pod, node: &NodeFacts, config: &CriSettings) -> LinuxResources {
    let (req, lim) = (pod_resources::pod_requests(pod), pod_resources::pod_limits(pod));
    let of = |name: &str| lim.get(name).copied().unwrap_or(0);
    linux(req.get("cpu").copied(), of("cpu"), of("memory"), node, config)
}

/// What the Pod costs beyond its containers; empty without overhead.
pub(super) fn of_overhead(pod: &Pod, node: &NodeFacts, config: &CriSettings) -> LinuxResources {
    if pod.spec.as_ref().is_none_or(|s| s.overhead.is_none()) {
        return LinuxResources::default();
    }
    let cost = pod_resources::overhead(pod);
    let of = |name: &str| cost.get(name).copied().unwrap_or(0);
    linux(Some(of("cpu")), of("cpu"), of("memory"), node, config)
}

/// Static Pods and those of system priority.
#[must_use]
pub fn is_critical(pod: &Pod) -> bool {
    let annotation = |k: &str| pod.metadata.annotations.as_ref().and_then(|a| a.get(k));
    let from_file_or_url = annotation("kubernetes.io/config.source").is_some_and(|s| s != "api");
    from_file_or_url
        || annotation("kubernetes.io/config.mirror").is_some()
        || pod.spec.as_ref().and_then(|s| s.priority).is_some_and(|p| p >= SYSTEM_CRITICAL)
}

fn linux(
    milli_request: Option<i64>,
    milli_limit: i64,
    memory: i64,
    node: &NodeFacts,
    config: &CriSettings,
) -> LinuxResources {
    let mut out = LinuxResources {
        cpu_shares: shares(milli_request.unwrap_or(milli_limit)),
        memory_limit: memory,
        ..LinuxResources::default()
    };
    if config.cpu_cfs_quota {
        out.cpu_period = i64::try_from(config.cpu_cfs_quota_period.as_micros()).unwrap_or(100_000);
        out.cpu_quota = quota(milli_limit, out.cpu_period);
    }
    if node.cgroup_v2 && !config.single_process_oom_kill {
        out.unified.insert("memory.oom.group".into(), "1".into());
    }
    out
}

fn shares(milli: i64) -> i64 {
    (milli.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

fn quota(milli: i64, period: i64) -> i64 {
    if milli == 0 { 0 } else { (milli.saturating_mul(period) / 1000).max(MIN_QUOTA) }
}

fn oom_score_adj(pod: &Pod, container: &Container, capacity: i64) -> i64 {
    let class = pod.spec.as_ref().and_then(|s| s.priority_class_name.as_deref());
    if is_critical(pod) && class == Some("system-node-critical") {
        return GUARANTEED_OOM;
    }
    match qos_class(pod) {
        QosClass::Guaranteed => return GUARANTEED_OOM,
        QosClass::BestEffort => return BEST_EFFORT_OOM,
        QosClass::Burstable => {}
    }
    let capacity = i128::from(capacity.max(1));
    let score =
        |request: i64| i64::try_from(1000 - 1000 * i128::from(request) / capacity).unwrap_or(i64::MIN);
    let memory = |c: &Container| requests(c.resources.as_ref(), "memory").unwrap_or(0);
    let share = unclaimed_share(pod);
    let mut adj = score(memory(container).saturating_add(share));
    let spec = pod.spec.as_ref();
    let sidecar = container.restart_policy.as_deref() == Some("Always")
        && spec.is_some_and(|s| s.init_containers.iter().flatten().any(|c| c.name == container.name));
    if sidecar {
        // A sidecar must not be killed before the containers it serves.
        let least = spec.and_then(|s| s.containers.iter().map(memory).min()).unwrap_or(0);
        adj = adj.min(score(least.saturating_add(share)));
    }
    adj.clamp(1000 + GUARANTEED_OOM, BEST_EFFORT_OOM - 1)
}

/// Memory the Pod requests as a whole and no container claims, divided among them.
fn unclaimed_share(pod: &Pod) -> i64 {
    let Some(spec) = &pod.spec else { return 0 };
    let Some(whole) = requests(spec.resources.as_ref(), "memory").filter(|v| *v != 0) else { return 0 };
    let claimed = pod_resources::container_requests(pod).get("memory").copied().unwrap_or(0);
    let count = spec.containers.len() + spec.init_containers.as_ref().map_or(0, Vec::len);
    (whole - claimed).max(0) / i64::try_from(count.max(1)).unwrap_or(1)
}

/// Every page size of the node gets a limit; those not asked for get zero.
fn hugepages(pod: &Pod, container: &Container, sizes: &[String]) -> Vec<(String, u64)> {
    let mut wanted = BTreeMap::new();
    if is_pod_level(pod) {
        let of_pod = pod.spec.as_ref().and_then(|s| s.resources.as_ref()?.limits.as_ref());
        wanted.extend(of_pod.into_iter().flatten().filter_map(page_limit));
    }
    let own = container.resources.as_ref().and_then(|r| r.limits.as_ref());
    wanted.extend(own.into_iter().flatten().filter_map(page_limit));
    sizes.iter().map(|s| (s.clone(), wanted.get(s).copied().unwrap_or(0))).collect()
}

fn page_limit((name, quantity): (&String, &Quantity)) -> Option<(String, u64)> {
    let mut size = Amount::parse(name.strip_prefix("hugepages-")?).ok()?.value();
    let units = ["B", "KB", "MB", "GB", "TB", "PB"];
    let mut unit = 0;
    while size > 0 && size % 1024 == 0 && unit + 1 < units.len() {
        size /= 1024;
        unit += 1;
    }
    let bytes = u64::try_from(Amount::parse(&quantity.0).ok()?.value()).ok()?;
    Some((format!("{size}{}", units[unit]), bytes))
}

/// What a container keeps when memory runs short, and from where on it is slowed down before it is killed.
fn memory_qos(
    out: &mut LinuxResources,
    pod: &Pod,
    container: &Container,
    rules: MemoryQos,
    allocatable: i64,
) {
    let own = container.resources.as_ref();
    let (request, limit) = (requests(own, "memory").unwrap_or(0), limits(own, "memory").unwrap_or(0));
    let mut set = |file: &str, bytes: i64| _ = out.unified.insert(file.to_owned(), bytes.to_string());
    match (rules.reserves && request != 0, qos_class(pod)) {
        (true, QosClass::Guaranteed) => set("memory.min", request),
        (true, _) => set("memory.low", request),
        // What an earlier setting left is taken away.
        (false, _) => {
            set("memory.min", 0);
            set("memory.low", 0);
        }
    }
    // One that may use no more than it asked for is never beyond it.
    if request == limit {
        return;
    }
    let most = if limit != 0 { limit } else { allocatable };
    let high = request as f64 + (most - request) as f64 * rules.throttling;
    let high = (high / PAGE as f64).floor() as i64 * PAGE;
    if most > 0 && high > request {
        set("memory.high", high);
    }
}

/// Bytes of swap a container may use: its share of the node's, if it is neither critical nor all
/// memory it wants is guaranteed.
fn swap(pod: &Pod, container: &Container, node: &NodeFacts, config: &CriSettings) -> i64 {
    let own = container.resources.as_ref();
    let request = requests(own, "memory").unwrap_or(0);
    let limit = limits(own, "memory").unwrap_or(0);
    let entitled = config.swap == SwapBehavior::LimitedSwap
        && !is_critical(pod)
        && qos_class(pod) == QosClass::Burstable
        && request != limit
        && node.memory_capacity > 0
        && request <= node.memory_capacity;
    if !entitled {
        return 0;
    }
    (request as f64 / node.memory_capacity as f64 * node.swap_capacity as f64) as i64
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::{node, pod};
    use super::*;

    fn of(spec: &str) -> LinuxResources {
        of_node(spec, &node(), &CriSettings::default())
    }

    fn of_node(spec: &str, node: &NodeFacts, config: &CriSettings) -> LinuxResources {
        let p = pod(spec);
        let c = super::super::spec_of(&p, "main").unwrap();
        of_container(&p, &c, node, config)
    }

    #[test]
    fn cpu_and_memory() {
        for (resources, want) in [
            ("{}", (2, 0, 0)),
            ("{requests: {cpu: 100m}}", (102, 0, 0)),
            ("{requests: {cpu: 1m}}", (2, 0, 0)),
            ("{requests: {cpu: 100m}, limits: {cpu: 500m, memory: 64Mi}}", (102, 50_000, 64 << 20)),
            ("{limits: {cpu: 2}}", (2048, 200_000, 0)),
            ("{limits: {cpu: 5m}}", (5, 1000, 0)),
            ("{requests: {cpu: 1k}}", (262_144, 0, 0)),
        ] {
            let r = of(&format!("containers: [{{name: main, resources: {resources}}}]"));
            assert_eq!((r.cpu_shares, r.cpu_quota, r.memory_limit), want, "{resources}");
            assert_eq!(r.cpu_period, 100_000);
        }
        let of_pod = of("{resources: {limits: {cpu: 1, memory: 1Gi}}, containers: [{name: main}]}");
        assert_eq!((of_pod.cpu_shares, of_pod.cpu_quota, of_pod.memory_limit), (1024, 100_000, 1 << 30));
        let off = CriSettings { cpu_cfs_quota: false, ..CriSettings::default() };
        let r = of_node("containers: [{name: main, resources: {limits: {cpu: 1}}}]", &node(), &off);
        assert_eq!((r.cpu_quota, r.cpu_period), (0, 0));
    }

    #[test]
    fn memory_is_kept_and_slowed_down_as_the_settings_say() {
        let v2 = NodeFacts { cgroup_v2: true, ..node() };
        let of = |resources: &str, reserves| {
            let rules = MemoryQos { throttling: 0.9, reserves };
            let config = CriSettings { memory_qos: Some(rules), ..CriSettings::default() };
            let spec = format!("containers: [{{name: main, resources: {resources}}}]");
            let mut unified = of_node(&spec, &v2, &config).unified;
            ["memory.min", "memory.low", "memory.high"].map(|file| unified.remove(file).unwrap_or_default())
        };
        let text = |rows: [&str; 3]| rows.map(str::to_owned);
        let burst = "{requests: {memory: 100Mi}, limits: {memory: 200Mi}}";
        assert_eq!(of(burst, true), text(["", "104857600", "199229440"]));
        assert_eq!(of(burst, false), text(["0", "0", "199229440"]));
        let sure = "{requests: {cpu: 1, memory: 100Mi}, limits: {cpu: 1, memory: 100Mi}}";
        assert_eq!(of(sure, true), text(["104857600", "", ""]));
        let all = v2.allocatable.memory;
        let asked = 100 << 20;
        let high = ((asked as f64 + (all - asked) as f64 * 0.9) / 4096.0).floor() as i64 * 4096;
        let high = if high > asked { high.to_string() } else { String::new() };
        assert_eq!(of("{requests: {memory: 100Mi}}", true), text(["", "104857600", &high]));
        assert_eq!(
            of("{}", true),
            text(["0", "0", ""]),
            "who asks for nothing and has no limit is beyond nothing"
        );
        let v1 = of_node(
            &format!("containers: [{{name: main, resources: {burst}}}]"),
            &NodeFacts { cgroup_v2: false, ..node() },
            &CriSettings {
                memory_qos: Some(MemoryQos { throttling: 0.9, reserves: true }),
                ..CriSettings::default()
            },
        );
        assert!(
            !v1.unified.keys().any(|k| k.starts_with("memory.") && k != "memory.oom.group"),
            "{:?}",
            v1.unified
        );
    }

    #[test]
    fn oom_scores() {
        let gi = |n: i64| format!("requests: {{memory: {n}Gi}}");
        for (spec, want) in [
            ("containers: [{name: main}]".to_owned(), 1000),
            (
                "containers: [{name: main, resources: {requests: {cpu: 1, memory: 1Gi}, limits: {cpu: 1, memory: 1Gi}}}]".to_owned(),
                -997,
            ),
            ("{priority: 2000001000, priorityClassName: system-node-critical, containers: [{name: main}]}".to_owned(), -997),
            ("{priority: 2000000000, priorityClassName: system-cluster-critical, containers: [{name: main}]}".to_owned(), 1000),
            (format!("containers: [{{name: main, resources: {{{}}}}}]", gi(2)), 750),
            (format!("containers: [{{name: main, resources: {{{}}}}}]", gi(8)), 3),
            ("containers: [{name: main, resources: {requests: {cpu: 1}}}]".to_owned(), 999),
            (
                format!("{{initContainers: [{{name: main, restartPolicy: Always}}], containers: [{{name: a, resources: {{{}}}}}, {{name: b, resources: {{{}}}}}]}}", gi(4), gi(2)),
                750,
            ),
            (
                format!("{{initContainers: [{{name: main, restartPolicy: Always, resources: {{{}}}}}], containers: [{{name: a, resources: {{{}}}}}]}}", gi(4), gi(1)),
                500,
            ),
            (
                format!("{{initContainers: [{{name: main}}], containers: [{{name: a, resources: {{{}}}}}]}}", gi(4)),
                999,
            ),
            (
                format!("{{resources: {{{}}}, containers: [{{name: main}}, {{name: b, resources: {{{}}}}}]}}", gi(6), gi(2)),
                750,
            ),
        ] {
            assert_eq!(of(&spec).oom_score_adj, want, "{spec}");
        }
    }

    #[test]
    fn pages_of_every_size_get_a_limit() {
        let r = of("containers: [{name: main, resources: {limits: {hugepages-2Mi: 4Mi}}}]");
        assert_eq!(r.hugepages, [("2MB".to_owned(), 4 << 20), ("1GB".to_owned(), 0)]);
        let r = of(
            "{resources: {limits: {hugepages-1Gi: 1Gi, hugepages-2Mi: 8Mi}}, containers: [{name: main, resources: {limits: {hugepages-2Mi: 4Mi}}}]}",
        );
        assert_eq!(r.hugepages, [("2MB".to_owned(), 4 << 20), ("1GB".to_owned(), 1 << 30)]);
    }

    #[test]
    fn swap_and_oom_group() {
        let spec = "containers: [{name: main, resources: {requests: {memory: 2Gi}, limits: {memory: 3Gi}}}]";
        let limited = CriSettings { swap: SwapBehavior::LimitedSwap, ..CriSettings::default() };
        let swappy = NodeFacts { swap_controller: true, swap_capacity: 4 << 30, ..node() };
        let unified = |r: &LinuxResources, k: &str| r.unified.get(k).cloned();
        assert_eq!(unified(&of(spec), "memory.oom.group").as_deref(), Some("1"));
        assert_eq!(unified(&of(spec), "memory.swap.max"), None);
        let got = |s: &str, n: &NodeFacts, c: &CriSettings| unified(&of_node(s, n, c), "memory.swap.max");
        assert_eq!(got(spec, &swappy, &CriSettings::default()).as_deref(), Some("0"));
        assert_eq!(got(spec, &swappy, &limited).as_deref(), Some(&*(1i64 << 30).to_string()));
        for none in [
            "containers: [{name: main}]",
            "containers: [{name: main, resources: {requests: {cpu: 1, memory: 1Gi}, limits: {memory: 1Gi}}}]",
            "{priority: 2000000000, containers: [{name: main, resources: {requests: {memory: 1Gi}}}]}",
        ] {
            assert_eq!(got(none, &swappy, &limited).as_deref(), Some("0"), "{none}");
        }
        let v1 = NodeFacts { cgroup_v2: false, ..swappy.clone() };
        let r = of_node(spec, &v1, &limited);
        assert_eq!((r.memory_swap_limit, r.unified.len()), (3 << 30, 0));
        let single = CriSettings { single_process_oom_kill: true, ..CriSettings::default() };
        assert!(of_node(spec, &node(), &single).unified.is_empty());
    }

    #[test]
    fn sandbox_and_overhead() {
        let p = pod(
            "{overhead: {cpu: 10m, memory: 1Mi}, containers: [{name: a, resources: {requests: {cpu: 1}, limits: {cpu: 2, memory: 1Gi}}}, {name: b}]}",
        );
        let (n, c) = (node(), CriSettings::default());
        let s = of_sandbox(&p, &n, &c);
        assert_eq!((s.cpu_shares, s.cpu_quota, s.memory_limit, s.oom_score_adj), (1024, 200_000, 1 << 30, 0));
        let o = of_overhead(&p, &n, &c);
        assert_eq!((o.cpu_shares, o.cpu_quota, o.memory_limit), (10, 1000, 1 << 20));
        assert_eq!(of_overhead(&pod("containers: []"), &n, &c), LinuxResources::default());
    }
}
