//! The static policy against upstream's tables.

use super::super::wants::Lasting::{Init, Regular, Sidecar};
use super::*;
use base::quantity::Quantity;

const MB: u64 = 1 << 20;
const GB: u64 = 1 << 30;
const HUGE: &str = "hugepages-1Gi";

/// So much memory on each node, with one gigabyte in pages of that size; half a gigabyte kept for the system.
fn machine(nodes: &[u64]) -> StaticMemory {
    let node = |(id, memory): (u32, &u64)| NumaNode {
        id,
        memory: *memory,
        hugepages: [(HUGE.to_owned(), GB)].into(),
        ..NumaNode::default()
    };
    let nodes: Vec<NumaNode> = (0..).zip(nodes).map(node).collect();
    let reserved = nodes.iter().map(|n| (n.id, [("memory".to_owned(), 512 * MB)].into())).collect();
    let mut policy = StaticMemory::new(&nodes, &reserved);
    policy.resume(MemoryState::default()).unwrap_or_else(|e| panic!("{e}"));
    policy
}

fn pod(uid: &str, containers: &[(&str, Lasting, u64)]) -> PodWant {
    let container = |(name, lasting, size): &(&str, Lasting, u64)| ContainerWant {
        name: (*name).to_owned(),
        lasting: *lasting,
        memory: Some([("memory".to_owned(), *size)].into()),
        ..ContainerWant::default()
    };
    PodWant { uid: uid.to_owned(), containers: containers.iter().map(container).collect() }
}

fn admit(policy: &mut StaticMemory, pod: &PodWant, hint: Hint) -> Result<(), String> {
    pod.containers.iter().try_for_each(|c| policy.allocate(pod, c, hint)).map_err(|e| e.message)
}

fn reserved(policy: &StaticMemory) -> Vec<u64> {
    policy.state.nodes.values().map(|n| n.memory["memory"].reserved).collect()
}

fn sizes(policy: &StaticMemory, uid: &str) -> Vec<u64> {
    policy.state.entries[uid].values().map(|blocks| blocks[0].size).collect()
}

fn unexpected(why: &str) -> Result<(), String> {
    Err(format!("Allocate failed due to [memorymanager] {why}, which is unexpected"))
}

#[test]
fn memory_comes_from_one_node_if_it_can() {
    let mut policy = machine(&[4 * GB, 4 * GB]);
    assert_eq!(admit(&mut policy, &pod("a", &[("c", Regular, GB)]), Hint::default()), Ok(()));
    assert_eq!(reserved(&policy), [GB, 0]);
    assert_eq!(admit(&mut policy, &pod("b", &[("c", Regular, GB)]), Hint::new([1], true)), Ok(()));
    assert_eq!(reserved(&policy), [GB, GB]);
    assert_eq!(policy.state.nodes_of("b", "c"), [1]);
}

#[test]
fn a_node_is_used_alone_or_always_with_the_same_others() {
    let mut policy = machine(&[4 * GB, 4 * GB, 4 * GB]);
    let big = pod("big", &[("c", Regular, 4 * GB)]);
    assert_eq!(admit(&mut policy, &big, Hint::default()), Ok(()));
    assert_eq!(policy.state.nodes_of("big", "c"), [0, 1]);
    assert_eq!(reserved(&policy), [2560 * MB, 1536 * MB, 0]);
    assert_eq!(policy.state.nodes[&0].cells, [0, 1]);
    // What is left of the two nodes is for whoever uses both.
    let small = pod("small", &[("c", Regular, GB)]);
    assert_eq!(admit(&mut policy, &small, Hint::default()), Ok(()));
    assert_eq!(policy.state.nodes_of("small", "c"), [2]);
    let told = admit(&mut policy, &pod("x", &[("c", Regular, 100 * MB)]), Hint::new([1, 2], false));
    assert_eq!(told, unexpected("preferred hint violates NUMA node allocation"));
    policy.release("big", "c");
    assert_eq!(policy.state.nodes[&0].cells, [0]);
}

/// What a machine is counted as after each step has to be what a restart would count.
#[test]
fn a_node_that_is_used_with_others_and_alone_loses_nothing() {
    let sizes = [5 * GB, 6 * GB];
    let mut policy = machine(&sizes);
    let fresh = policy.state.clone();
    let together = pod("together", &[("c", Regular, GB / 2)]);
    assert_eq!(admit(&mut policy, &together, Hint::new([0, 1], false)), Ok(()));
    let large = pod("large", &[("a", Regular, 5 * GB), ("b", Regular, 2560 * MB)]);
    assert_eq!(admit(&mut policy, &large, Hint::default()), Ok(()));
    assert_eq!(reserved(&policy).iter().sum::<u64>(), 8 * GB);
    policy.release("large", "a");
    policy.release("large", "b");
    let alone = pod("alone", &[("c", Regular, GB / 2)]);
    assert_eq!(admit(&mut policy, &alone, Hint::new([0], false)), Ok(()));
    assert_eq!(machine(&sizes).resume(policy.state.clone()), Ok(()), "a restart goes on");
    policy.release("together", "c");
    assert_eq!(reserved(&policy), [GB / 2, 0]);
    policy.release("alone", "c");
    assert_eq!(policy.state, fresh);
}

#[test]
fn what_cannot_be_given_is_refused_in_upstreams_words() {
    let mut policy = machine(&[4 * GB]);
    let told = admit(&mut policy, &pod("a", &[("c", Regular, 9 * GB)]), Hint::default());
    assert_eq!(
        told,
        unexpected("failed to get the default NUMA affinity, no NUMA nodes with enough memory is available")
    );
    let told = admit(&mut policy, &pod("a", &[("c", Regular, 9 * GB)]), Hint::new([0], true));
    assert_eq!(told, unexpected("failed to find NUMA nodes to extend the current topology hint"));
    let mut two = machine(&[3 * GB, 3 * GB]);
    assert_eq!(admit(&mut two, &pod("a", &[("c", Regular, GB)]), Hint::new([0], true)), Ok(()));
    assert_eq!(admit(&mut two, &pod("b", &[("c", Regular, GB)]), Hint::new([1], true)), Ok(()));
    let preferred = Hint { nodes: None, preferred: true };
    let told = admit(&mut two, &pod("d", &[("c", Regular, 2 * GB)]), preferred);
    assert_eq!(
        told,
        unexpected("failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"),
        "nodes in use alone are not used together"
    );
    assert_eq!((two.figures.requests, two.figures.errors), (3, 1));
}

#[test]
fn what_init_containers_had_their_pod_uses_again() {
    let rows: [([u64; 4], u64, [u64; 4]); 3] = [
        // Init containers, then containers; what the Pod has in the end; what each is said to have.
        ([1, 2, 3, 4], 7, [3, 4, 0, 0]),
        ([4, 3, 2, 1], 4, [2, 1, 0, 1]),
        ([7, 4, 5, 2], 7, [5, 2, 0, 0]),
    ];
    for ([i, j, a, b], whole, want) in rows {
        let mut policy = machine(&[9 * GB]);
        let containers =
            [("i", Init, i * GB), ("j", Init, j * GB), ("a", Regular, a * GB), ("b", Regular, b * GB)];
        assert_eq!(admit(&mut policy, &pod("p", &containers), Hint::default()), Ok(()));
        assert_eq!(reserved(&policy), [whole * GB]);
        assert_eq!(policy.state.nodes[&0].assignments, 4);
        let told = sizes(&policy, "p");
        assert_eq!(told.iter().sum::<u64>(), whole * GB);
        assert_eq!(
            [told[0], told[1], told[2], told[3]],
            want.map(|w| w * GB),
            "a, b, i, j of {i} {j} {a} {b}"
        );
    }
}

#[test]
fn what_a_sidecar_has_is_not_used_again() {
    let mut policy = machine(&[9 * GB]);
    let pod = pod("p", &[("s", Sidecar, 2 * GB), ("i", Init, GB), ("a", Regular, 3 * GB)]);
    assert_eq!(admit(&mut policy, &pod, Hint::default()), Ok(()));
    assert_eq!(reserved(&policy), [5 * GB]);
    policy.started(&pod, "a");
    assert_eq!(
        policy.state.entries["p"].keys().collect::<Vec<_>>(),
        ["a", "s"],
        "the init container has ended"
    );
    assert_eq!(reserved(&policy), [5 * GB]);
}

#[test]
fn hints_name_every_set_of_nodes_that_has_enough() {
    let policy = machine(&[3 * GB, 4 * GB]);
    let hints = |size| {
        let pod = pod("p", &[("c", Regular, size)]);
        assert_eq!(policy.hints(&pod, &pod.containers[0]), policy.pod_hints(&pod));
        policy.hints(&pod, &pod.containers[0]).remove("memory")
    };
    let all = |hints: &[(&[u32], bool)]| {
        Some(Wish::OneOf(hints.iter().map(|(n, p)| Hint::new(n.iter().copied(), *p)).collect()))
    };
    assert_eq!(hints(GB), all(&[(&[0], true), (&[1], true), (&[0, 1], false)]));
    assert_eq!(hints(2 * GB), all(&[(&[1], true), (&[0, 1], false)]));
    assert_eq!(hints(3 * GB), all(&[(&[0, 1], true)]));
    assert_eq!(hints(9 * GB), None, "no opinion: the allocation says why not");
}

#[test]
fn a_state_that_cannot_be_true_is_refused() {
    let mut policy = machine(&[4 * GB]);
    assert_eq!(admit(&mut policy, &pod("p", &[("c", Regular, GB)]), Hint::default()), Ok(()));
    let good = policy.state.clone();
    let start = |state: MemoryState| machine(&[4 * GB]).resume(state);
    assert_eq!(start(good.clone()), Ok(()));
    let with = |change: &dyn Fn(&mut MemoryState)| {
        let mut state = good.clone();
        change(&mut state);
        start(state)
    };
    let told = |text: &str| Err(format!("[memorymanager] {text}"));
    let other = "the expected machine state is different from the real one";
    assert_eq!(
        with(&|s| s.nodes.clear()),
        told("machine state can not be empty when it has memory assignments")
    );
    assert_eq!(with(&|s| s.entries.clear()), told(other));
    assert_eq!(machine(&[5 * GB]).resume(good.clone()), told(other));
    let block = |change: &dyn Fn(&mut Block)| {
        with(&|s| s.entries.values_mut().flat_map(|c| c.values_mut()).flatten().for_each(change))
    };
    assert_eq!(
        block(&|b| b.nodes = vec![1]),
        told("(pod: p, container: c) the memory assignment uses the NUMA that does not exist")
    );
    assert_eq!(
        block(&|b| b.kind = "hugepages-2Mi".to_owned()),
        told("(pod: p, container: c) the memory assignment uses memory resource that does not exist")
    );
}

#[test]
fn reserved_memory_must_add_up() {
    let nodes = [NumaNode::default(), NumaNode { id: 1, ..NumaNode::default() }];
    let q = |text: &str| text.parse::<Quantity>().unwrap_or_else(|e| panic!("{e}"));
    let list = |kinds: &[(&str, &str)]| {
        kinds.iter().map(|(k, v)| ((*k).to_owned(), q(v))).collect::<BTreeMap<_, _>>()
    };
    let check = |kept: &[(&str, &str)], given: &[(u32, &[(&str, &str)])]| {
        let given: Vec<_> = given.iter().map(|(node, kinds)| (*node, list(kinds))).collect();
        reserved::check(&nodes, &list(kept), &given)
    };
    let kept: &[(&str, &str)] = &[("memory", "2Gi"), ("cpu", "1")];
    let good = check(kept, &[(0, &[("memory", "1Gi")]), (1, &[("memory", "1Gi")])]);
    assert_eq!(good.map(|r| r[&1]["memory"]), Ok(GB));
    assert_eq!(
        check(kept, &[(0, &[("memory", "1Gi")])]).err().unwrap_or_default(),
        "the total amount \"1Gi\" of type \"memory\" is not equal to the value \"2Gi\" determined by Node Allocatable feature"
    );
    assert_eq!(
        check(kept, &[(2, &[("memory", "2Gi")])]).err().unwrap_or_default(),
        "the reserved memory configuration references a NUMA node 2 that does not exist on this machine"
    );
    assert_eq!(
        check(&[], &[]).err().unwrap_or_default(),
        "[memorymanager] you should specify the system reserved memory"
    );
}
