//! The static policy against upstream's tables.

use super::super::wants::Lasting::{Init, Regular, Sidecar};
use super::testing::*;
use super::*;

fn policy(topology: CpuTopology, options: Options, reserved: usize) -> StaticCpus {
    StaticCpus::new(topology, options, reserved, &CpuSet::default(), false)
        .unwrap_or_else(|e| panic!("the policy is not to be had: {e}"))
}

/// A state in which another Pod has these.
fn taken(shared: &str, others: &str) -> CpuState {
    let other = BTreeMap::from([("c".to_owned(), set(others))]);
    let entries = if others.is_empty() { Entries::new() } else { [("other".to_owned(), other)].into() };
    CpuState { shared: set(shared), entries }
}

fn allocated(policy: &mut StaticCpus, pod: &PodWant) -> Result<String, String> {
    for container in &pod.containers {
        policy.allocate(pod, container, Hint::default()).map_err(|e| e.message)?;
    }
    let last = pod.containers.last().map(|c| c.name.as_str()).unwrap_or_default();
    Ok(policy.state.own(&pod.uid, last).map(ToString::to_string).unwrap_or_default())
}

const FULL: Options = Options {
    full_cores: true,
    across_numa: false,
    by_socket: false,
    across_cores: false,
    strict_reservation: false,
    by_cache: false,
};

/// The machine, reserved CPUs, the shared ones, those of others, how many are wanted, and what comes of it.
type Row =
    (fn() -> CpuTopology, usize, &'static str, &'static str, usize, Result<&'static str, &'static str>);

#[test]
fn a_container_gets_what_upstream_would_give_it() {
    let rows: [Row; 9] = [
        (single_socket, 1, "0,1,4,5", "2,3,6,7", 2, Ok("1,5")),
        (dual_socket, 1, "0,1,3-11", "2", 6, Ok("1,3,5,7,9,11")),
        (dual_socket, 1, "0,2-4,6-11", "1,5", 6, Ok("2-4,8-10")),
        (dual_socket_without_threads, 1, "0,1,3-7", "2", 4, Ok("4-7")),
        (dual_socket_without_threads, 1, "0,1,3,6,7", "2,4,5", 4, Ok("1,3,6-7")),
        (dual_socket, 1, "0,1,3-11", "2", 8, Ok("1,3-5,7,9-11")),
        (single_socket, 1, "0-7", "", 1, Ok("4")),
        (single_socket, 1, "0-7", "", 8, Err("requested=8, available=7")),
        (dual_socket, 1, "0,4-11", "1-3", 10, Err("requested=10, available=8")),
    ];
    for (machine, reserved, shared, others, count, want) in rows {
        let mut policy = policy(machine(), Options::default(), reserved);
        assert_eq!(policy.resume(taken(shared, others)), Ok(()), "{shared}");
        let got = allocated(&mut policy, &pod("p", &[("c", Regular, count)]));
        let want = want.map(|cpus| set(cpus).to_string()).map_err(|why| {
            format!("Allocate failed due to not enough cpus available to satisfy request: {why}, which is unexpected")
        });
        assert_eq!(got, want, "{count} of {shared}");
    }
}

#[test]
fn whole_cores_or_none() {
    let told = |shared: &str, others: &str, reserved: &str, count| {
        let named = set(reserved);
        let made = StaticCpus::new(single_socket(), FULL, named.len(), &named, false);
        let mut policy = made.unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(policy.resume(taken(shared, others)), Ok(()));
        let pod = pod("p", &[("c", Regular, count)]);
        policy.allocate(&pod, &pod.containers[0], Hint::default()).map_err(|e| (e.reason, e.message))
    };
    let smt = |why: &str| Err(("SMTAlignmentError", format!("SMT Alignment Error: {why}")));
    assert_eq!(told("0-7", "", "0", 1), smt("requested 1 cpus not multiple cpus per core = 2"));
    assert_eq!(
        told("0-7", "", "0,5", 6),
        smt(
            "not enough free physical CPUs: available physical CPUs = 4, requested CPUs = 6, CPUs per core = 2"
        )
    );
    assert_eq!(told("0-7", "", "0", 4), Ok(()));
}

#[test]
fn a_state_that_cannot_be_true_is_refused() {
    let strict = Options { strict_reservation: true, ..Options::default() };
    let start = |options, reserved, shared: &str, others: &str| {
        let mut policy = policy(dual_socket(), options, reserved);
        policy.resume(taken(shared, others)).map(|()| policy.state.shared.to_string())
    };
    let usual = Options::default();
    let told = |text: &str| Err(text.to_owned());
    assert_eq!(start(usual, 0, "1-11", "0"), Ok("1-11".to_owned()));
    assert_eq!(start(usual, 1, "", ""), Ok("0-11".to_owned()));
    assert_eq!(start(strict, 2, "", ""), Ok("1-5,7-11".to_owned()));
    assert_eq!(start(usual, 0, "", "1"), told("default cpuset cannot be empty"));
    assert_eq!(
        start(usual, 2, "0-1", ""),
        told("not all reserved cpus: \"0,6\" are present in defaultCpuSet: \"0-1\"")
    );
    assert_eq!(
        start(strict, 2, "0-1", ""),
        told("some of strictly reserved cpus: \"0\" are present in defaultCpuSet: \"0-1\"")
    );
    assert_eq!(
        start(usual, 0, "2-11", "0-2"),
        told("pod: other, container: c cpuset: \"0-2\" overlaps with default cpuset \"2-11\"")
    );
    assert_eq!(
        start(usual, 0, "5-12", "0-4"),
        told("current set of available CPUs \"0-11\" doesn't match with CPUs in state \"0-12\"")
    );
}

#[test]
fn reserved_cpus_are_named_or_the_lowest_cores() {
    let reserve = |count, named: &str| {
        let made = StaticCpus::new(dual_socket(), Options::default(), count, &set(named), false);
        made.map(|p| (p.reserved.to_string(), p.reserved_cores.to_string()))
    };
    assert_eq!(reserve(2, ""), Ok(("0,6".to_owned(), "0,6".to_owned())));
    assert_eq!(reserve(2, "0-1"), Ok(("0-1".to_owned(), "0-1,6-7".to_owned())));
    let told = reserve(1, "0-1").err().unwrap_or_default();
    assert!(
        told.ends_with("unable to reserve the required amount of CPUs (size of 0-1 did not equal 1)"),
        "{told}"
    );
    let told = reserve(1, "44").err().unwrap_or_default();
    assert!(told.ends_with("unknown CPU ID: 44"), "{told}");
}

#[test]
fn what_an_init_container_had_its_pod_uses_again() {
    let pod = pod("p", &[("i1", Init, 4), ("i2", Init, 7), ("a", Regular, 3), ("b", Regular, 4)]);
    let mut policy = policy(single_socket(), Options::default(), 1);
    assert_eq!(policy.resume(CpuState::default()), Ok(()));
    assert_eq!(allocated(&mut policy, &pod).map_err(|e| panic!("{e}")).as_deref(), Ok("2-3,6-7"));
    let own = |c| policy.state.own("p", c).map(ToString::to_string).unwrap_or_default();
    assert_eq!((own("i2"), own("a")), ("1-7".to_owned(), "1,4-5".to_owned()));
    assert_eq!(policy.state.shared.to_string(), "0");
    for container in ["i1", "i2", "a", "b"] {
        policy.release("p", container);
    }
    assert_eq!(policy.state, CpuState { shared: set("0-7"), entries: Entries::new() });
}

#[test]
fn what_a_sidecar_has_nobody_else_gets() {
    let pod = pod("p", &[("s", Sidecar, 4), ("a", Regular, 4)]);
    let mut policy = policy(single_socket(), Options::default(), 1);
    assert_eq!(policy.resume(CpuState::default()), Ok(()));
    let told = allocated(&mut policy, &pod).err().unwrap_or_default();
    assert!(told.contains("requested=4, available=3"), "{told}");
}

#[test]
fn sockets_must_fit_nodes_to_be_aligned_to() {
    let options = Options { by_socket: true, ..Options::default() };
    let new = |topology, single| StaticCpus::new(topology, options, 1, &CpuSet::default(), single);
    assert!(new(four_nodes(), false).is_ok());
    let told = |made: Result<StaticCpus, String>| made.err().unwrap_or_default();
    assert_eq!(
        told(new(four_nodes(), true)),
        "new static policy error: Topolgy manager single-numa-node policy is incompatible with CPUManager align-by-socket policy option"
    );
    assert!(told(new(two_sockets_a_node(), false)).contains("more than number of NUMA"));
}
