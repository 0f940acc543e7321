use proptest::prelude::*;

use super::*;
use crate::observed::{Observed, Sandbox};
use crate::testing::{exited, instance, sandbox};

const DEFAULT: GcPolicy = GcPolicy { min_age: Duration::ZERO, max_per_container: Some(1), max_total: None };

fn dead(name: &str, n: i64) -> Container {
    Container { id: format!("{name}-{n}").into(), created_at: Wall::from_secs(100 + n), ..exited(name, 1) }
}

fn found(uid: &str, containers: Vec<Container>) -> FoundPod {
    FoundPod {
        uid: uid.into(),
        name: "web".into(),
        namespace: "default".into(),
        observed: Observed { revision: 1, sandboxes: vec![], containers },
    }
}

fn removed(found: &[FoundPod], known: &[&str], sources_ready: bool, policy: GcPolicy) -> Vec<String> {
    let known = known.iter().map(|u| PodUid::from(*u)).collect();
    let input = GcInput { found, known: &known, sources_ready, policy, now: Wall::from_secs(1000) };
    containers_to_remove(&input).into_iter().map(|r| r.id.to_string()).collect()
}

#[test]
fn one_dead_instance_stays_per_container() {
    let pod = found("a", vec![instance("app"), dead("db", 3), dead("db", 2), dead("db", 1)]);
    assert_eq!(removed(&[pod], &["a"], true, DEFAULT), ["db-1", "db-2"]);
}

#[test]
fn gone_pods_lose_everything_but_only_once_all_sources_spoke() {
    let pods = [found("a", vec![dead("app", 1)])];
    assert!(removed(&pods, &[], false, DEFAULT).is_empty());
    assert_eq!(removed(&pods, &[], true, DEFAULT), ["app-1"]);
}

#[test]
fn running_and_young_ones_are_left_alone() {
    let young = Container { created_at: Wall::from_secs(990), ..dead("app", 9) };
    let pods = [found("a", vec![young, instance("app")])];
    let policy = GcPolicy { min_age: Duration::from_secs(60), ..DEFAULT };
    assert!(removed(&pods, &[], true, policy).is_empty());
}

#[test]
fn unknown_ones_are_stopped_first() {
    let odd = Container { state: ContainerState::Unknown, ..dead("app", 1) };
    let (known, pods) = (BTreeSet::new(), [found("a", vec![odd])]);
    let now = Wall::from_secs(1000);
    let input = GcInput { found: &pods, known: &known, sources_ready: true, policy: DEFAULT, now };
    assert_eq!(containers_to_remove(&input), [Removal { id: "app-1".into(), stop_first: true }]);
}

#[test]
fn the_total_is_shared_out_and_then_the_oldest_go() {
    let pods =
        [found("a", vec![dead("app", 9), dead("app", 8), dead("app", 1)]), found("b", vec![dead("db", 7)])];
    let policy = GcPolicy { max_per_container: None, max_total: Some(3), ..DEFAULT };
    assert_eq!(removed(&pods, &["a", "b"], true, policy), ["app-1", "app-8"]);
}

#[test]
fn the_memory_of_a_finished_container_outlives_every_limit() {
    let policy = GcPolicy { max_per_container: Some(0), max_total: Some(0), ..DEFAULT };
    let pods = [found("a", vec![dead("app", 2), dead("app", 1)])];
    assert_eq!(removed(&pods, &["a"], true, policy), ["app-1"]);
}

#[test]
fn sandboxes_go_when_dead_and_empty_except_the_newest() {
    let mut pod = found("a", vec![exited("app", 0)]);
    pod.observed.sandboxes = vec![
        Sandbox { created_at: Wall::from_secs(4), ..sandbox("s4", 3, false) },
        Sandbox { created_at: Wall::from_secs(3), ..sandbox("s3", 2, true) },
        Sandbox { created_at: Wall::from_secs(2), ..sandbox("s2", 1, false) },
        Sandbox { created_at: Wall::from_secs(1), ..sandbox("s0", 0, false) },
    ];
    let pods = [pod];
    for (known, ready, want) in
        [(vec!["a"], true, vec!["s2"]), (vec![], true, vec!["s2", "s4"]), (vec![], false, vec!["s2"])]
    {
        let known = known.into_iter().map(PodUid::from).collect();
        let now = Wall::from_secs(9);
        let input = GcInput { found: &pods, known: &known, sources_ready: ready, policy: DEFAULT, now };
        let got: Vec<String> = sandboxes_to_remove(&input).iter().map(ToString::to_string).collect();
        assert_eq!(got, want, "ready={ready}");
    }
}

#[test]
fn logs_of_unknown_pods_go() {
    let known = [PodUid::from("u1")].into();
    let dirs = ["ns_a_u1", "ns_b_u2", "lost+found", "odd_"].map(String::from);
    let mut input =
        GcInput { found: &[], known: &known, sources_ready: true, policy: DEFAULT, now: Wall::default() };
    assert_eq!(log_directories_to_remove(&dirs, &input), ["ns_b_u2"]);
    input.sources_ready = false;
    assert!(log_directories_to_remove(&dirs, &input).is_empty());
}

#[test]
fn links_to_logs() {
    assert_eq!(container_of_log_link("web_default_app-0a1b.log"), Some("0a1b".into()));
    assert_eq!(container_of_log_link("notes.txt"), None);
    assert!(is_dead_link(false, None));
    assert!(is_dead_link(false, Some(ContainerState::Exited)));
    assert!(!is_dead_link(false, Some(ContainerState::Running)));
    assert!(!is_dead_link(true, None));
}

proptest! {
    #[test]
    fn what_runs_is_never_collected_and_nothing_is_before_all_sources_spoke(
        states in prop::collection::vec((0..3u8, 0..4u8, 0..100i64), 0..12),
        known in any::<bool>(),
        per in prop::option::of(0..3usize),
        total in prop::option::of(0..5usize),
    ) {
        let containers: Vec<Container> = states
            .iter()
            .enumerate()
            .map(|(i, (name, state, age))| Container {
                id: format!("c{i}").into(),
                state: [ContainerState::Running, ContainerState::Exited, ContainerState::Created,
                        ContainerState::Unknown][usize::from(*state)],
                created_at: Wall::from_secs(*age),
                ..instance(["a", "b", "c"][usize::from(*name)])
            })
            .collect();
        let running: Vec<String> = containers
            .iter()
            .filter(|c| c.state == ContainerState::Running)
            .map(|c| c.id.to_string())
            .collect();
        let pods = [found("a", containers.clone())];
        let policy = GcPolicy { max_per_container: per, max_total: total, ..DEFAULT };
        let uids: &[&str] = if known { &["a"] } else { &[] };
        let gone = removed(&pods, uids, true, policy);
        prop_assert!(running.iter().all(|id| !gone.contains(id)));
        let unique: BTreeSet<&String> = gone.iter().collect();
        prop_assert_eq!(unique.len(), gone.len());
        // While the Pod may exist, every name keeps an instance.
        for sure in [removed(&pods, &["a"], true, policy), removed(&pods, &[], false, policy)] {
            for c in &containers {
                let left = containers.iter().any(|o| o.name == c.name && !sure.contains(&o.id.to_string()));
                prop_assert!(left, "{} lost every instance", c.name);
            }
        }
    }
}
