//! A thousand random nodes against the rules as they are written down: nothing goes that should not, and who goes is who
//! the rules say.

use proptest::prelude::*;

use super::*;

/// A Pod as the rules see it: facts only.
#[derive(Clone, Debug)]
struct Facts {
    priority: i32,
    is_static: bool,
    is_measured: bool,
    asked: (u64, u64),
    memory: u64,
    layer: u64,
    logs: u64,
    volume: u64,
    processes: u64,
    size_limit: Option<u64>,
    storage_limit: Option<u64>,
}

fn facts() -> impl Strategy<Value = Facts> {
    let priority = prop_oneof![Just(0), Just(-10), 0..3i32, Just(2_000_000_000)];
    let limit = || prop_oneof![3 => Just(None), 1 => (1u64..60).prop_map(Some)];
    let small = || 0u64..40;
    (
        (priority, prop::bool::weighted(0.1), prop::bool::weighted(0.9), (small(), small())),
        (small(), small(), small(), small(), small()),
        (limit(), limit()),
    )
        .prop_map(
            |(
                (priority, is_static, is_measured, asked),
                (memory, layer, logs, volume, processes),
                limits,
            )| {
                let (size_limit, storage_limit) = limits;
                Facts {
                    priority,
                    is_static,
                    is_measured,
                    asked,
                    memory,
                    layer,
                    logs,
                    volume,
                    processes,
                    size_limit,
                    storage_limit,
                }
            },
        )
}

fn build(at: usize, f: &Facts) -> (Pod, Option<PodStats>) {
    let size = f.size_limit.map_or(String::new(), |n| format!("sizeLimit: '{n}'"));
    let limits = f.storage_limit.map_or(String::new(), |n| format!(", limits: {{ephemeral-storage: '{n}'}}"));
    let (memory, disk) = f.asked;
    let spec = format!(
        "{{priority: {}, containers: [{{name: c, resources: {{requests: {{memory: '{memory}', ephemeral-storage: '{disk}'}}\
         {limits}}}}}], volumes: [{{name: v, emptyDir: {{{size}}}}}]}}",
        f.priority
    );
    let mut pod = named(&at.to_string(), &spec);
    if f.is_static {
        let source = ("kubernetes.io/config.source".to_owned(), "file".to_owned());
        pod.metadata.annotations = Some(BTreeMap::from([source]));
    }
    let stats = PodStats { processes: Some(f.processes), ..stats(f.memory, f.layer, f.logs, f.volume) };
    (pod, f.is_measured.then_some(stats))
}

type Figure<'a> = Box<dyn Fn(&Facts) -> u64 + 'a>;

/// Rule 4 of the facts, word by word: whether `a` must go before `b`.
fn goes_before(signal: Signal, layout: Layout, a: &Facts, b: &Facts) -> Option<bool> {
    let of_disk = |f: &Facts| match (signal, layout.image_disk, layout.split) {
        (Signal::NodefsAvailable, true, false) => f.logs + f.volume,
        (Signal::ImagefsAvailable, true, false) => f.layer,
        (Signal::ImagefsAvailable, true, true) => 0,
        _ => f.layer + f.logs + f.volume,
    };
    let (used, asked): (Figure<'_>, Figure<'_>) = match signal {
        Signal::MemoryAvailable => (Box::new(|f| f.memory), Box::new(|f| f.asked.0)),
        Signal::PidAvailable => (Box::new(|f| f.processes), Box::new(|_| 0)),
        _ => (Box::new(of_disk), Box::new(|f| f.asked.1)),
    };
    let by_priority = (a.priority != b.priority).then_some(a.priority < b.priority);
    if signal == Signal::PidAvailable && by_priority.is_some() {
        return by_priority;
    }
    if a.is_measured != b.is_measured {
        return Some(!a.is_measured);
    }
    if !a.is_measured {
        return by_priority;
    }
    if signal != Signal::PidAvailable {
        let over = |f: &Facts| used(f) > asked(f);
        if over(a) != over(b) {
            return Some(over(a));
        }
    }
    let beyond = |f: &Facts| i128::from(used(f)) - i128::from(asked(f));
    by_priority.or_else(|| (beyond(a) != beyond(b)).then_some(beyond(a) > beyond(b)))
}

fn is_safe(f: &Facts) -> bool {
    f.is_static || f.priority >= 2_000_000_000
}

fn breaks_limit(f: &Facts, layout: Layout) -> bool {
    let container = f.logs + if layout.image_disk { 0 } else { f.layer };
    f.is_measured
        && (f.size_limit.is_some_and(|l| f.volume > l)
            || f.storage_limit.is_some_and(|l| f.layer + f.logs + f.volume > l || container > l))
}

fn signal() -> impl Strategy<Value = Signal> {
    prop_oneof![
        Just(Signal::MemoryAvailable),
        Just(Signal::NodefsAvailable),
        Just(Signal::ImagefsAvailable),
        Just(Signal::PidAvailable)
    ]
}

fn layout() -> impl Strategy<Value = Layout> {
    prop_oneof![Just(ONE_DISK), Just(TWO_DISKS), Just(SPLIT)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn in_a_thousand_scenarios_the_right_pod_goes(
        all in proptest::collection::vec(facts(), 0..12), signal in signal(), layout in layout(),
    ) {
        let pods: Vec<(Pod, Option<PodStats>)> = all.iter().enumerate().map(|(at, f)| build(at, f)).collect();
        let chosen = chosen(signal, 0, layout, &pods);
        prop_assert_eq!(chosen.is_some(), all.iter().any(|f| !is_safe(f)), "somebody goes if anybody may");
        if let Some(eviction) = chosen {
            let at: usize = eviction.uid.as_str().parse().unwrap();
            prop_assert!(!is_safe(&all[at]));
            for (other, f) in all.iter().enumerate().filter(|(_, f)| !is_safe(f)) {
                prop_assert_ne!(goes_before(signal, layout, f, &all[at]), Some(true), "{} before {}", other, at);
            }
        }
        let candidates: Vec<Candidate<'_>> =
            pods.iter().map(|(pod, stats)| Candidate { pod, stats: stats.as_ref() }).collect();
        let gone: Vec<usize> =
            limits::exceeded(&candidates, layout).iter().map(|e| e.uid.as_str().parse().unwrap()).collect();
        let want: Vec<usize> = all.iter().enumerate()
            .filter(|(_, f)| !is_safe(f) && breaks_limit(f, layout)).map(|(at, _)| at).collect();
        prop_assert_eq!(gone, want, "exactly those that broke a limit of their own");
    }

    #[test]
    fn ranking_is_a_total_order(all in proptest::collection::vec(facts(), 0..12), signal in signal(), layout in layout()) {
        let pods: Vec<(Pod, Option<PodStats>)> = all.iter().enumerate().map(|(at, f)| build(at, f)).collect();
        let candidates: Vec<Candidate<'_>> =
            pods.iter().map(|(pod, stats)| Candidate { pod, stats: stats.as_ref() }).collect();
        let order = rank::rank(signal, layout, &candidates);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        prop_assert_eq!(sorted, (0..all.len()).collect::<Vec<_>>());
        for (i, a) in order.iter().enumerate() {
            for b in &order[i + 1..] {
                prop_assert_ne!(goes_before(signal, layout, &all[*b], &all[*a]), Some(true));
            }
        }
    }
}
