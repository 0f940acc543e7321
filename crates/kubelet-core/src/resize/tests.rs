#![allow(clippy::unwrap_used)]

use std::cell::Cell;

use proptest::prelude::*;

use super::*;
use crate::admission::NodeOffer;
use crate::cgroup::Limits;
use crate::observed::Observed;
use crate::testing::{exited, instance, pod_yaml, sandbox};

const MI: i64 = 1 << 20;

fn world(containers: Vec<crate::observed::Container>) -> Observed {
    Observed { revision: 1, sandboxes: vec![sandbox("s0", 0, true)], containers }
}

/// Containers `name: resources`, with a resizePolicy for memory where there is one.
fn pod(containers: &[(&str, &str)]) -> Pod {
    let all =
        containers.iter().map(|(name, r)| format!("{{name: {name}, image: '{name}:1', resources: {r}}}"));
    pod_yaml(&format!("containers: [{}]", all.collect::<Vec<_>>().join(", ")))
}

/// What is due in one line: `memory a b` in order, `cpu a`, `restarts`, `whole`.
fn line(due: Option<Due>) -> String {
    let Some(due) = due else { return String::new() };
    let names = |list: &[Update]| list.iter().map(|u| u.container.clone()).collect::<Vec<_>>().join(" ");
    let mut out = Vec::new();
    if !due.memory.is_empty() {
        out.push(format!("memory {}", names(&due.memory)));
    }
    if !due.cpu.is_empty() {
        out.push(format!("cpu {}", names(&due.cpu)));
    }
    out.extend(due.restarts.then(|| "restarts".to_owned()));
    out.extend(due.whole.then(|| "whole".to_owned()));
    out.join(", ")
}

#[test]
fn what_is_due() {
    let one = "{requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 200m, memory: 128Mi}}";
    let more_cpu = "{requests: {cpu: 200m, memory: 64Mi}, limits: {cpu: 400m, memory: 128Mi}}";
    let more_memory = "{requests: {cpu: 100m, memory: 96Mi}, limits: {cpu: 200m, memory: 256Mi}}";
    let less_memory = "{requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 200m, memory: 96Mi}}";
    let respelled = "{requests: {cpu: '0.1', memory: 65536Ki}, limits: {cpu: 200m, memory: 128Mi}}";
    let running = || vec![instance("a"), instance("b")];
    for (granted, seen, starting, want) in [
        ([one, one], running(), "", ""),
        ([respelled, one], running(), "", ""),
        ([more_cpu, one], running(), "", "cpu a"),
        ([more_memory, more_cpu], running(), "", "memory a, cpu b"),
        // Who gives back comes first.
        ([more_memory, less_memory], running(), "", "memory b a"),
        // One that does not run gets it when it starts, and only the Pod has to make room for it.
        ([more_cpu, one], vec![exited("a", 1), instance("b")], "", ""),
        ([more_cpu, one], vec![exited("a", 1), instance("b")], "a", "restarts"),
        ([one, one], vec![exited("a", 1), instance("b")], "a", ""),
    ] {
        let actuated = PodResources::of(&pod(&[("a", one), ("b", one)]));
        let granted = pod(&[("a", granted[0]), ("b", granted[1])]);
        let found = due(&granted, &world(seen.clone()), &actuated, |_| false, |name| name == starting);
        assert_eq!(line(found), want, "{granted:?}");
    }
}

#[test]
fn a_container_of_a_replaced_sandbox_or_about_to_be_stopped_is_left_alone() {
    let (old, new) = (pod(&[("a", "{requests: {cpu: 1}}")]), pod(&[("a", "{requests: {cpu: 2}}")]));
    let actuated = PodResources::of(&old);
    let stray = crate::observed::Container { sandbox: "s9".into(), ..instance("a") };
    assert_eq!(line(due(&new, &world(vec![stray]), &actuated, |_| false, |_| false)), "");
    assert_eq!(line(due(&new, &world(vec![instance("a")]), &actuated, |_| true, |_| false)), "");
    assert!(is_in_progress(&new, &world(vec![instance("a")]), &actuated));
    assert!(!is_in_progress(&new, &world(vec![exited("a", 0)]), &actuated));
}

#[test]
fn a_limit_of_the_whole_pod_is_each_containers_that_states_none() {
    let spec = |cpu: &str| {
        pod_yaml(&format!(
            "resources: {{limits: {{cpu: {cpu}}}}}\ncontainers:\n- {{name: a, image: 'a:1'}}\n\
             - {{name: b, image: 'b:1', resources: {{limits: {{cpu: 500m}}}}}}"
        ))
    };
    let running = world(vec![instance("a"), instance("b")]);
    let (old, new) = (spec("1"), spec("2"));
    let told = |pod: &Pod| {
        let spec = pod.spec.as_ref().unwrap();
        let of = |c: &Container| (c.name.clone(), recorded_at_start(spec, c));
        PodResources { containers: all(spec).map(of).collect(), pod: spec.resources.clone() }
    };
    let found = due(&new, &running, &told(&old), |_| false, |_| false);
    assert_eq!(line(found), "cpu a, whole");
    assert_eq!(line(due(&new, &running, &told(&new), |_| false, |_| false)), "");
}

#[test]
fn who_has_to_start_again() {
    let with_policy = |resources: &str, policies: &str| {
        pod_yaml(&format!(
            "containers: [{{name: a, image: 'a:1', resources: {resources}, resizePolicy: [{policies}]}}]"
        ))
    };
    let restart = |resource: &str| format!("{{resourceName: {resource}, restartPolicy: RestartContainer}}");
    let old = "{requests: {cpu: 1, memory: 1Gi}}";
    for (new, policies, want) in [
        ("{requests: {cpu: 2, memory: 1Gi}}", String::new(), false),
        ("{requests: {cpu: 2, memory: 1Gi}}", restart("memory"), false),
        ("{requests: {cpu: 2, memory: 1Gi}}", restart("cpu"), true),
        ("{requests: {cpu: 2, memory: 2Gi}}", restart("memory"), true),
        ("{requests: {cpu: 1, memory: 1Gi}, limits: {memory: 2Gi}}", restart("memory"), true),
        (old, restart("memory"), false),
    ] {
        let pod = with_policy(new, &policies);
        let spec = pod.spec.as_ref().unwrap();
        let actuated = PodResources::of(&with_policy(old, &policies));
        assert_eq!(restarts(spec, &spec.containers[0], &actuated), want, "{new} {policies}");
        assert!(
            !restarts(spec, &spec.containers[0], &PodResources::default()),
            "nobody wrote down what it has"
        );
    }
}

/// Steps in one line: `+memory` and `-memory` move the Pod's limit, `shares` its shares, names are containers.
fn told(acts: &[Act]) -> String {
    let word = |act: &Act| match act {
        Act::PodLimit(r) => format!("limit:{}", r.name()),
        Act::PodShares => "shares".to_owned(),
        Act::Container { name, sizes, .. } => {
            format!("{name}({}/{})", sizes.cpu_limit, sizes.memory_limit / MI)
        }
        Act::Whole(r) => format!("whole:{}", r.name()),
    };
    acts.iter().map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_pod_grows_before_its_containers_and_shrinks_after_them() {
    let update = |name: &str, (cpu, memory): (i64, i64), (cpu2, memory2): (i64, i64)| Update {
        container: name.into(),
        id: name.into(),
        current: Sizes { cpu_limit: cpu, memory_limit: memory * MI, ..Sizes::default() },
        desired: Sizes { cpu_limit: cpu2, memory_limit: memory2 * MI, ..Sizes::default() },
    };
    let limits = |shares, quota: Option<i64>, memory: Option<i64>| Limits {
        cpu_shares: Some(shares),
        cpu_quota: quota.map(|q| (q, 100_000)),
        memory: memory.map(|m| m * MI),
        ..Limits::default()
    };
    let (small, large) = (update("a", (100, 64), (200, 128)), update("a", (200, 128), (100, 64)));
    let both = |u: &Update| Due { memory: vec![u.clone()], cpu: vec![u.clone()], ..Due::default() };
    let only_cpu = |u: &Update| Due { cpu: vec![u.clone()], ..Due::default() };
    let (low, high) = (limits(102, Some(10_000), Some(64)), limits(204, Some(20_000), Some(128)));
    for (due, now, next, want) in [
        (both(&small), &low, &high, "limit:memory a(100/128) limit:cpu shares a(200/128)"),
        (both(&large), &high, &low, "a(200/64) limit:memory a(100/64) shares limit:cpu"),
        (only_cpu(&small), &low, &limits(204, Some(20_000), Some(64)), "limit:cpu shares a(200/128)"),
        // A limit that comes where none was is a shrinking one, one that goes stays as it is.
        (
            both(&small),
            &limits(102, Some(-1), None),
            &high,
            "a(100/128) limit:memory shares a(200/128) limit:cpu",
        ),
        (both(&small), &low, &limits(204, None, None), "a(100/128) shares a(200/128)"),
        // Containers that start again, and nothing that runs.
        (Due { restarts: true, ..Due::default() }, &low, &high, "limit:memory limit:cpu shares"),
        (Due { restarts: true, ..Due::default() }, &low, &low, ""),
        (
            Due { whole: true, ..Due::default() },
            &low,
            &high,
            "limit:memory whole:memory limit:cpu shares whole:cpu",
        ),
    ] {
        assert_eq!(told(&acts(&due, now, next)), want, "{due:?}");
    }
}

proptest! {
    /// Whatever is asked for: after each step the containers fit into the Pod, and in the end all is as granted.
    #[test]
    fn containers_always_fit_into_their_pod(
        old in prop::collection::vec((1..500i64, 1..500i64), 3),
        new in prop::collection::vec((1..500i64, 1..500i64), 3),
    ) {
        let spec = |sizes: &[(i64, i64)]| {
            let resources: Vec<String> = sizes.iter().map(|(cpu, memory)| {
                format!("{{requests: {{cpu: {cpu}m, memory: {memory}Mi}}, limits: {{cpu: {cpu}m, memory: {memory}Mi}}}}")
            }).collect();
            pod(&[("a", &resources[0]), ("b", &resources[1]), ("c", &resources[2])])
        };
        let (before, after) = (spec(&old), spec(&new));
        let sum = |sizes: &[(i64, i64)]| Limits {
            cpu_shares: Some(sizes.iter().map(|s| s.0).sum()),
            cpu_quota: Some((sizes.iter().map(|s| s.0).sum::<i64>() * 100, 100_000)),
            memory: Some(sizes.iter().map(|s| s.1).sum::<i64>() * MI),
            ..Limits::default()
        };
        let seen = world(vec![instance("a"), instance("b"), instance("c")]);
        let mut actuated = PodResources::of(&before);
        let Some(due) = due(&after, &seen, &actuated, |_| false, |_| false) else {
            prop_assert_eq!(old, new);
            return Ok(());
        };
        let (now, next) = (sum(&old), sum(&new));
        let spec = after.spec.as_ref().unwrap();
        let (mut quota, mut memory) = (now.cpu_quota.unwrap().0, now.memory.unwrap());
        for act in acts(&due, &now, &next) {
            match act {
                Act::PodLimit(Resource::Memory) => memory = next.memory.unwrap(),
                Act::PodLimit(Resource::Cpu) => quota = next.cpu_quota.unwrap().0,
                Act::PodShares | Act::Whole(_) => {}
                Act::Container { name, sizes, .. } => {
                    let c = all(spec).find(|c| c.name == name).unwrap();
                    actuated.containers.insert(name, recorded(spec, c, sizes));
                }
            }
            let has: Vec<Sizes> = actuated.containers.values().map(|r| Sizes::of(Some(r))).collect();
            // The sum as the Pod's cgroup would be set for it: it never has to hold less than what is inside.
            prop_assert!(has.iter().map(|s| s.memory_limit).max() <= Some(memory));
            prop_assert!(has.iter().map(|s| s.cpu_limit * 100).max() <= Some(quota));
        }
        prop_assert_eq!(&actuated, &PodResources::of(&after));
        prop_assert!(!is_in_progress(&after, &seen, &actuated));
    }
}

#[test]
fn a_limit_below_what_is_in_use_is_refused() {
    let update = |name: &str, now: i64, next: i64| Update {
        container: name.into(),
        id: name.into(),
        current: Sizes { memory_limit: now * MI, ..Sizes::default() },
        desired: Sizes { memory_limit: next * MI, ..Sizes::default() },
    };
    let due = |updates: &[Update]| Due { memory: updates.to_vec(), ..Due::default() };
    let usage = |pod: Option<u64>, a: Option<u64>| Usage {
        pod,
        containers: a.into_iter().map(|used| ("a".to_owned(), used)).collect(),
    };
    let used = (60 * MI).unsigned_abs();
    let text =
        format!("attempting to set container \"a\" memory limit ({}) below current usage ({used})", 50 * MI);
    let of_pod = format!("attempting to set pod memory limit ({}) below current usage ({used})", 50 * MI);
    for (due, (now, next), usage, want) in [
        (due(&[update("a", 64, 128)]), (Some(64), Some(128)), None, Ok(())),
        (due(&[update("a", 64, 50)]), (None, None), Some(usage(None, Some(49))), Ok(())),
        (due(&[update("a", 64, 50)]), (None, None), Some(usage(None, Some(used))), Err(text.clone())),
        (due(&[update("a", 0, 50)]), (None, None), Some(usage(None, Some(used))), Err(text.clone())),
        (
            due(&[update("a", 64, 50)]),
            (None, None),
            Some(usage(None, None)),
            Err("missing container \"a\" memory usage".into()),
        ),
        (
            due(&[update("a", 64, 50)]),
            (Some(64), Some(50)),
            Some(usage(Some(used), Some(used))),
            Err(format!("[{of_pod}, {text}]")),
        ),
        (
            Due { restarts: true, ..Due::default() },
            (Some(64), Some(50)),
            Some(usage(Some(used), None)),
            Err(of_pod.clone()),
        ),
        (
            Due { restarts: true, ..Due::default() },
            (Some(64), Some(50)),
            Some(usage(None, None)),
            Err("missing pod memory usage".into()),
        ),
        (Due { whole: true, ..Due::default() }, (Some(64), Some(50)), None, Ok(())),
    ] {
        let asked = Cell::new(false);
        let figures = || {
            asked.set(true);
            usage.clone()
        };
        let bytes = |limit: Option<i64>| limit.map(|l| l * MI);
        let got = check_shrink(&due, bytes(now), bytes(next), figures);
        let want = want.map_err(|e| format!("cannot decrease memory limits: {e}"));
        assert_eq!(got, want, "{due:?}");
        assert_eq!(asked.get(), usage.is_some(), "figures are asked for only where a limit shrinks");
    }
    let nobody = check_shrink(&due(&[update("a", 64, 50)]), None, None, || None);
    assert_eq!(nobody, Err("unable to read memory usage for pod".to_owned()));
}

#[test]
fn what_a_node_never_does() {
    let guaranteed = |cpu: &str| {
        let list = format!("{{cpu: {cpu}, memory: 1Gi}}");
        pod(&[("a", &format!("{{requests: {list}, limits: {list}}}"))])
    };
    let burstable = |memory: &str, policy: &str| {
        pod_yaml(&format!(
            "containers: [{{name: a, image: 'a:1', resources: {{requests: {{memory: {memory}}}, limits: {{memory: 4Gi}}}}, \
             resizePolicy: [{policy}]}}]"
        ))
    };
    let restart = "{resourceName: memory, restartPolicy: RestartContainer}";
    let cpus = NodeOffer { static_cpus: true, ..NodeOffer::default() };
    let memory = NodeOffer { static_memory: true, ..NodeOffer::default() };
    let swap = NodeOffer { limited_swap: true, ..NodeOffer::default() };
    let no_swap = "In-place resize of containers with swap is not supported.";
    let pinned = "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"";
    for (old, new, node, want) in [
        (guaranteed("1"), guaranteed("2"), &NodeOffer::default(), None),
        (guaranteed("1"), guaranteed("2"), &cpus, Some((pinned, "guaranteed_pod_cpu_manager_static_policy"))),
        (guaranteed("1"), guaranteed("1000m"), &cpus, None),
        (guaranteed("1"), guaranteed("2"), &memory, None),
        (burstable("1Gi", ""), burstable("2Gi", ""), &cpus, None),
        (burstable("1Gi", ""), burstable("2Gi", ""), &swap, Some((no_swap, "swap_limitation"))),
        (burstable("1Gi", restart), burstable("2Gi", restart), &swap, None),
        (guaranteed("1"), guaranteed("2"), &swap, None),
    ] {
        let got = judge(&new, &PodResources::of(&old), node).err();
        assert_eq!(got.as_ref().map(|i| (i.message.as_str(), i.detail)), want);
    }
}

#[test]
fn who_is_looked_at_first() {
    let of = |name: &str, priority: i32, cpu: &str, is_guaranteed: bool| {
        let limits =
            if is_guaranteed { format!(", limits: {{cpu: {cpu}, memory: 1Gi}}") } else { String::new() };
        let mut pod = pod(&[("a", &format!("{{requests: {{cpu: {cpu}, memory: 1Gi}}{limits}}}"))]);
        pod.metadata.name = Some(name.into());
        pod.spec.as_mut().unwrap().priority = Some(priority);
        pod
    };
    let rows = [
        (of("late", 0, "2", false), of("late", 0, "1", false), 9),
        (of("early", 0, "2", false), of("early", 0, "1", false), 1),
        (of("guaranteed", 0, "2", true), of("guaranteed", 0, "1", true), 8),
        (of("important", 5, "2", false), of("important", 5, "1", false), 7),
        (of("giver", -5, "1", false), of("giver", -5, "2", false), 6),
    ];
    let waiting =
        rows.iter().map(|(desired, allocated, since)| queue::Waiting { desired, allocated, since: *since });
    let mut waiting: Vec<_> = waiting.collect();
    waiting.sort_by(queue::order);
    let names: Vec<_> = waiting.iter().map(|w| w.desired.metadata.name.as_deref().unwrap()).collect();
    assert_eq!(names, ["giver", "important", "guaranteed", "early", "late"]);
}

#[test]
fn the_words_of_upstream() {
    let pod = pod(&[("a", "{requests: {cpu: 1}, limits: {cpu: 2}}"), ("b", "{}")]);
    assert_eq!(
        message("Pod resize started", &pod, Some(4), ""),
        r#"Pod resize started: {"containers":[{"name":"a","resources":{"limits":{"cpu":"2"},"requests":{"cpu":"1"}}},{"name":"b","resources":{}}],"generation":4}"#
    );
    let told = message("Pod resize Deferred", &pod_yaml("containers: []"), None, "no \"room\"");
    assert_eq!(told, r#"Pod resize Deferred: {"generation":0,"error":"no \"room\""}"#);
}

#[test]
fn operations_by_resource_and_requirement() {
    let old = pod(&[("a", "{requests: {cpu: 1, memory: 1Gi}, limits: {memory: 2Gi}}")]);
    let new = pod(&[("a", "{requests: {cpu: 2, memory: 1Gi}, limits: {cpu: 3, memory: 1Gi}}")]);
    let want = [["memory", "limits", "decrease"], ["cpu", "requests", "increase"], ["cpu", "limits", "add"]];
    assert_eq!(operations(&old, &new), want);
    assert_eq!(operations(&new, &new), [[""; 3]; 0]);
    assert!(is_resize(&old, &new) && !is_resize(&old, &old));
}

#[test]
fn a_pod_is_seen_with_what_it_was_granted_and_counts_with_what_it_still_has() {
    let old = pod(&[("a", "{requests: {cpu: 1, memory: 2Gi}}")]);
    let new = Arc::new(pod(&[("a", "{requests: {cpu: 2, memory: 1Gi}}")]));
    let granted = PodResources::of(&old);
    assert_eq!(PodResources::of(&granted.applied(&new)), granted);
    assert!(Arc::ptr_eq(&PodResources::of(&new).applied(&new), &new));
    let raised = granted.raised(&new);
    let requests = Sizes::of(raised.spec.as_ref().unwrap().containers[0].resources.as_ref());
    assert_eq!((requests.cpu_request, requests.memory_request), (2000, 2 << 30));
    assert!(Arc::ptr_eq(&PodResources::of(&new).raised(&new), &new));
}
