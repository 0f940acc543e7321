use proptest::prelude::*;

use super::super::wants::Lasting;
use super::*;

const GB: u64 = 1 << 30;

fn lasting() -> impl Strategy<Value = Lasting> {
    prop_oneof![Just(Lasting::Init), Just(Lasting::Sidecar), Just(Lasting::Regular)]
}

type Admission = (Vec<(Lasting, u64, u64)>, u8);

fn pods() -> impl Strategy<Value = Vec<Admission>> {
    let containers = proptest::collection::vec((lasting(), 0u64..9, 0u64..3), 1..4);
    let pod = (containers, 0u8..16).prop_map(|(mut containers, nodes)| {
        containers.sort_by_key(|(lasting, ..)| *lasting == Lasting::Regular);
        (containers, nodes)
    });
    proptest::collection::vec(pod, 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn no_byte_is_given_twice_and_release_restores(sizes in proptest::collection::vec(4u64..17, 1..5), pods in pods()) {
        let node = |(id, size): (u32, &u64)| NumaNode {
            id,
            memory: size * GB,
            hugepages: [("hugepages-1Gi".to_owned(), 2 * GB)].into(),
            ..NumaNode::default()
        };
        let nodes: Vec<NumaNode> = (0..).zip(&sizes).map(node).collect();
        let mut policy = StaticMemory::new(&nodes, &Reserved::from([(0, [("memory".to_owned(), GB)].into())]));
        prop_assert_eq!(policy.resume(MemoryState::default()), Ok(()));
        let fresh = policy.state.clone();
        for (i, (containers, nodes)) in pods.into_iter().enumerate() {
            let want = |(n, (lasting, memory, huge)): (usize, &(Lasting, u64, u64))| {
                let huge = (*huge > 0).then(|| ("hugepages-1Gi".to_owned(), huge * GB));
                ContainerWant {
                    name: format!("c{n}"),
                    lasting: *lasting,
                    memory: Some(huge.into_iter().chain([("memory".to_owned(), memory * GB / 2)]).collect()),
                    ..ContainerWant::default()
                }
            };
            let uid = format!("p{i}");
            let pod = PodWant { uid, containers: containers.iter().enumerate().map(want).collect() };
            let mask = NumaMask::new((0..4).filter(|n| nodes & (1 << n) != 0 && (*n as usize) < sizes.len()));
            let hint = Hint { nodes: (mask.count() > 0).then_some(mask), preferred: false };
            let done = pod.containers.iter().try_for_each(|c| policy.allocate(&pod, c, hint));
            if done.is_err() {
                pod.containers.iter().for_each(|c| policy.release(&pod.uid, &c.name));
            }
            for node in policy.state.nodes.values() {
                for table in node.memory.values() {
                    prop_assert_eq!(table.free + table.reserved, table.allocatable);
                }
            }
            for kind in ["memory", "hugepages-1Gi"] {
                let blocks = policy.state.entries.values().flat_map(|c| c.values().flatten());
                let said: u64 = blocks.filter(|b| b.kind == kind).map(|b| b.size).sum();
                let reserved: u64 = policy.state.nodes.values().map(|n| n.memory[kind].reserved).sum();
                prop_assert!(reserved <= said, "{kind}: {said} are said, {reserved} are reserved");
            }
            prop_assert_eq!(policy.clone().resume(policy.state.clone()), Ok(()), "a restart goes on");
            let text = checkpoint::write("Static", &policy.state);
            prop_assert_eq!(checkpoint::read("Static", &text), Ok(policy.state.clone()));
        }
        let entries = policy.state.entries.clone();
        for (uid, containers) in entries {
            containers.keys().for_each(|c| policy.release(&uid, c));
        }
        prop_assert_eq!(policy.state, fresh);
    }
}
