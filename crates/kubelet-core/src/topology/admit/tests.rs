use super::super::cpu::options::Options;
use super::super::cpu::testing::{dual_socket, pod};
use super::super::cpu::{CpuState, StaticCpus};
use super::super::cpu_set::CpuSet;
use super::super::machine::NumaNode;
use super::super::wants::Lasting::Regular;
use super::*;

/// Devices that are all on one node.
struct On(u32);

impl Provider for On {
    fn hints(&self, _: &PodWant, _: &ContainerWant) -> BTreeMap<String, Wish> {
        [("vendor.com/device".to_owned(), Wish::OneOf(vec![Hint::new([self.0], true)]))].into()
    }

    fn pod_hints(&self, pod: &PodWant) -> BTreeMap<String, Wish> {
        self.hints(pod, &ContainerWant::default())
    }
}

fn placement(policy: &str, scope: &str) -> Placement {
    let nodes = [0, 1].map(|id| NumaNode { id, ..NumaNode::default() });
    let cpus = StaticCpus::new(dual_socket(), Options::default(), 2, &CpuSet::default(), false);
    let mut cpus = cpus.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(cpus.resume(CpuState::default()), Ok(()));
    let policy = Policy::new(policy, scope, &BTreeMap::new(), &nodes).unwrap_or_else(|e| panic!("{e}"));
    Placement { policy, cpus: Some(cpus), ..Placement::default() }
}

fn admit(placement: &mut Placement, pod: &PodWant, others: &impl Provider) -> Result<String, AdmissionError> {
    let of_pod = placement.begin(pod, others)?;
    for container in &pod.containers {
        placement.place(pod, container, of_pod, others)?;
    }
    let cpus = placement.cpus.as_ref().map(|c| c.state.exclusive().to_string());
    Ok(cpus.unwrap_or_default())
}

#[test]
fn cpus_come_from_where_the_devices_are() {
    let two = pod("p", &[("c", Regular, 2)]);
    assert_eq!(admit(&mut placement("none", "container"), &two, &On(1)).as_deref(), Ok("2,8"));
    for scope in ["container", "pod"] {
        assert_eq!(admit(&mut placement("best-effort", scope), &two, &On(1)).as_deref(), Ok("1,7"));
        assert_eq!(admit(&mut placement("single-numa-node", scope), &two, &On(0)).as_deref(), Ok("2,8"));
    }
}

#[test]
fn what_cannot_be_aligned_is_refused_where_it_must_be() {
    // Reserved CPUs are on node 0: of its six, four are free.
    let five = pod("p", &[("c", Regular, 5)]);
    for (policy, scope) in [("restricted", "container"), ("single-numa-node", "pod")] {
        let mut placement = placement(policy, scope);
        let told = admit(&mut placement, &five, &On(0)).map_err(|r| (r.reason, r.message));
        let message = "Resources cannot be allocated with Topology locality".to_owned();
        assert_eq!(told, Err(("TopologyAffinityError", message)));
        assert_eq!((placement.figures.requests, placement.figures.errors), (1, 1));
    }
    assert!(admit(&mut placement("best-effort", "pod"), &five, &On(0)).is_ok());
    assert!(admit(&mut placement("restricted", "container"), &five, &On(1)).is_ok());
}

#[test]
fn a_pod_is_aligned_as_a_whole_only_in_its_scope() {
    let both = pod("p", &[("a", Regular, 4), ("b", Regular, 4)]);
    let mut by_container = placement("single-numa-node", "container");
    assert_eq!(admit(&mut by_container, &both, &NoProvider).as_deref(), Ok("1-4,7-10"));
    assert_eq!(by_container.figures.aligned, [2, 0]);
    let mut by_pod = placement("single-numa-node", "pod");
    assert!(admit(&mut by_pod, &both, &NoProvider).is_err(), "eight are on no one node");
    assert_eq!(by_pod.figures.unaligned, [0, 1]);
}

#[test]
fn what_nobody_lists_any_more_is_free_again() {
    let mut placement = placement("none", "container");
    assert!(admit(&mut placement, &pod("p", &[("c", Regular, 4)]), &NoProvider).is_ok());
    assert!(admit(&mut placement, &pod("q", &[("c", Regular, 2)]), &NoProvider).is_ok());
    placement.keep_only(|uid, _| uid == "q");
    let state = placement.cpus.map(|c| c.state).unwrap_or_default();
    assert_eq!(state.entries.keys().collect::<Vec<_>>(), ["q"]);
    assert_eq!(state.exclusive().len() + state.shared.len(), 12);
}
