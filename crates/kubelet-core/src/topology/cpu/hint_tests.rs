use super::super::wants::Lasting::Regular;
use super::testing::*;
use super::*;

fn hints(topology: CpuTopology, by_socket: bool, shared: &str, count: usize) -> Vec<(Vec<u32>, bool)> {
    let options = Options { by_socket, ..Options::default() };
    let made = StaticCpus::new(topology, options, 0, &CpuSet::default(), false);
    let mut policy = made.unwrap_or_else(|e| panic!("{e}"));
    policy.state.shared = set(shared);
    let pod = pod("p", &[("c", Regular, count)]);
    let of_container = policy.hints(&pod, &pod.containers[0]);
    assert_eq!(of_container, policy.pod_hints(&pod), "one container is the whole Pod");
    match of_container {
        Some(Wish::OneOf(hints)) => {
            let plain = |h: Hint| (h.nodes.into_iter().flat_map(NumaMask::nodes).collect(), h.preferred);
            hints.into_iter().map(plain).collect()
        }
        other => panic!("no hints but {other:?}"),
    }
}

#[test]
fn every_set_of_nodes_with_enough_cpus_is_named() {
    let two = |count| hints(dual_socket(), false, "0-11", count);
    assert_eq!(two(2), [(vec![0], true), (vec![1], true), (vec![0, 1], false)]);
    assert_eq!(two(6), [(vec![0], true), (vec![1], true), (vec![0, 1], false)]);
    assert_eq!(two(11), [(vec![0, 1], true)]);
    assert_eq!(two(13), []);
    assert_eq!(hints(dual_socket(), false, "0,1,3,5", 2), [(vec![1], true), (vec![0, 1], false)]);
    assert_eq!(hints(dual_socket(), false, "0,1", 2), [(vec![0, 1], false)], "one node could, were it free");
}

#[test]
fn a_socket_is_as_good_as_a_node_if_the_operator_says_so() {
    let preferred = |by_socket, shared, count| -> Vec<Vec<u32>> {
        let all = hints(four_nodes(), by_socket, shared, count);
        all.into_iter().filter(|(_, p)| *p).map(|(nodes, _)| nodes).collect()
    };
    assert_eq!(preferred(false, "2,3,11", 2), [vec![0]]);
    assert_eq!(preferred(true, "2,3,11", 2), [vec![0], vec![0, 1]]);
    assert_eq!(preferred(true, "0-28,40-57", 41), [vec![0, 1, 2], vec![0, 1, 2, 3]]);
}

#[test]
fn who_has_cpus_gets_the_hint_of_them_again() {
    let made = StaticCpus::new(dual_socket(), Options::default(), 0, &CpuSet::default(), false);
    let mut policy = made.unwrap_or_else(|e| panic!("{e}"));
    policy.state.shared = set("0,2-6,8-11");
    let of_pod = BTreeMap::from([("c".to_owned(), set("1,7"))]);
    policy.state.entries.insert("p".to_owned(), of_pod);
    let wish = |count| {
        let pod = pod("p", &[("c", Regular, count)]);
        policy.hints(&pod, &pod.containers[0])
    };
    assert_eq!(wish(2), Some(Wish::OneOf(vec![Hint::new([1], true), Hint::new([0, 1], false)])));
    assert_eq!(wish(4), Some(Wish::OneOf(Vec::new())), "it cannot have another number now");
    assert_eq!(wish(0), None);
}
