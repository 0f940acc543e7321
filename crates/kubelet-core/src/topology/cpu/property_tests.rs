use proptest::prelude::*;

use super::super::wants::Lasting;
use super::testing::*;
use super::*;

#[derive(Clone, Debug)]
enum Step {
    Admit { pod: u8, containers: Vec<(Lasting, usize)>, nodes: u8 },
    Release { pod: u8 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let lasting = prop_oneof![Just(Lasting::Init), Just(Lasting::Sidecar), Just(Lasting::Regular)];
    let containers = proptest::collection::vec((lasting, 0usize..9), 1..5);
    let admit = (0u8..6, containers, 0u8..16).prop_map(|(pod, mut containers, nodes)| {
        // Init containers and sidecars come before the others.
        containers.sort_by_key(|(lasting, _)| *lasting == Lasting::Regular);
        Step::Admit { pod, containers, nodes }
    });
    let release = (0u8..6).prop_map(|pod| Step::Release { pod });
    proptest::collection::vec(prop_oneof![3 => admit, 1 => release], 0..24)
}

fn options() -> impl Strategy<Value = Options> {
    any::<[bool; 6]>().prop_map(
        |[full_cores, across_numa, by_socket, across_cores, strict_reservation, by_cache]| Options {
            full_cores,
            across_numa,
            by_socket,
            across_cores: across_cores && !full_cores && !across_numa && !by_cache,
            strict_reservation,
            by_cache: by_cache && !across_numa,
        },
    )
}

fn machines() -> impl Strategy<Value = CpuTopology> {
    let all: [fn() -> CpuTopology; 5] =
        [single_socket, dual_socket, four_nodes, two_caches, || four_caches(1)];
    proptest::sample::select(all.to_vec()).prop_map(|machine| machine())
}

/// Within a Pod, an init container's CPUs may be used again; apart from that a CPU has one owner.
fn check(policy: &StaticCpus, pods: &BTreeMap<String, PodWant>) -> Result<(), TestCaseError> {
    let all = policy.topology.all.cpus();
    let kept = if policy.options.strict_reservation { all.without(&policy.reserved) } else { all };
    prop_assert_eq!(policy.state.shared.union(&policy.state.exclusive()), kept);
    prop_assert!(policy.state.exclusive().intersection(&policy.state.shared).is_empty());
    prop_assert!(policy.state.exclusive().intersection(&policy.reserved).is_empty());
    let mut of_others = CpuSet::default();
    for (uid, containers) in &policy.state.entries {
        let of_pod: CpuSet = containers.values().flat_map(CpuSet::iter).collect();
        prop_assert!(of_pod.intersection(&of_others).is_empty(), "two Pods share a CPU");
        of_others = of_others.union(&of_pod);
        let lasting = pods[uid].containers.iter().filter(|c| c.lasting != Lasting::Init);
        let mut together = CpuSet::default();
        for container in lasting {
            let Some(own) = containers.get(&container.name) else { continue };
            prop_assert!(own.intersection(&together).is_empty(), "two containers share a CPU");
            prop_assert_eq!(own.len(), container.cpus);
            together = together.union(own);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn no_cpu_is_given_twice_and_release_restores(
        topology in machines(), options in options(), reserved in 1usize..3, steps in steps()
    ) {
        let options = Options { by_socket: options.by_socket && topology.sockets <= topology.numa_nodes, ..options };
        let Ok(mut policy) = StaticCpus::new(topology, options, reserved, &CpuSet::default(), false) else {
            return Ok(());
        };
        prop_assert_eq!(policy.resume(CpuState::default()), Ok(()));
        let fresh = policy.state.clone();
        let mut pods = BTreeMap::<String, PodWant>::new();
        for step in steps {
            match step {
                Step::Admit { pod: id, containers, nodes } => {
                    let uid = format!("p{id}");
                    if pods.contains_key(&uid) {
                        continue;
                    }
                    let names: Vec<String> = (0..containers.len()).map(|i| format!("c{i}")).collect();
                    let named: Vec<(&str, Lasting, usize)> =
                        names.iter().zip(&containers).map(|(n, (l, c))| (n.as_str(), *l, *c)).collect();
                    let want = pod(&uid, &named);
                    pods.insert(uid.clone(), want.clone());
                    let nodes = NumaMask::new((0..4).filter(|n| nodes & (1 << n) != 0));
                    let hint = Hint { nodes: Some(nodes), preferred: false };
                    let done = want.containers.iter().try_for_each(|c| policy.allocate(&want, c, hint));
                    check(&policy, &pods)?;
                    if done.is_err() {
                        want.containers.iter().for_each(|c| policy.release(&uid, &c.name));
                        pods.remove(&uid);
                    }
                }
                Step::Release { pod: id } => {
                    let uid = format!("p{id}");
                    for container in pods.remove(&uid).iter().flat_map(|p| &p.containers) {
                        policy.release(&uid, &container.name);
                    }
                }
            }
            check(&policy, &pods)?;
            let text = checkpoint::write("static", &policy.state);
            prop_assert_eq!(checkpoint::read("static", &text), Ok(policy.state.clone()));
            let mut again = policy.clone();
            // With strict reservation nobody may be left to share with, and upstream takes that for a broken file.
            if !policy.state.shared.is_empty() {
                prop_assert_eq!(again.resume(policy.state.clone()), Ok(()), "a restart goes on");
            }
        }
        for (uid, want) in pods {
            want.containers.iter().for_each(|c| policy.release(&uid, &c.name));
        }
        prop_assert_eq!(policy.state, fresh);
    }

    #[test]
    fn a_hint_that_was_given_can_be_kept(topology in machines(), count in 1usize..12, taken in any::<u64>()) {
        let options = Options::default();
        let Ok(mut policy) = StaticCpus::new(topology, options, 1, &CpuSet::default(), false) else {
            return Ok(());
        };
        prop_assert_eq!(policy.resume(CpuState::default()), Ok(()));
        let others: CpuSet = policy.allocatable().iter().filter(|c| taken & (1 << (c % 64)) != 0).collect();
        policy.state.shared = policy.state.shared.without(&others);
        policy.state.entries.insert("other".to_owned(), [("c".to_owned(), others)].into());
        let pod = pod("p", &[("c", Lasting::Regular, count)]);
        let Some(Wish::OneOf(hints)) = policy.hints(&pod, &pod.containers[0]) else { return Ok(()) };
        for hint in hints {
            let mut policy = policy.clone();
            prop_assert!(policy.allocate(&pod, &pod.containers[0], hint).is_ok());
            let own = policy.state.own("p", "c").cloned().unwrap_or_default();
            let nodes: Vec<u32> = hint.nodes.into_iter().flat_map(NumaMask::nodes).collect();
            prop_assert!(own.is_subset(&policy.topology.all.cpus_in(Level::Numa, &nodes)));
        }
    }
}
