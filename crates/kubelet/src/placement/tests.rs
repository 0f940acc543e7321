#![allow(clippy::unwrap_used)]

use kubelet_core::topology::machine::{CpuFacts, NumaNode};

use super::*;

fn machine() -> Machine {
    let node =
        NumaNode { memory: 8 << 30, distances: vec![10], cpus: (0..4).collect(), ..NumaNode::default() };
    let cpus: Vec<CpuFacts> =
        (0..4).map(|cpu| CpuFacts { cpu, core_id: cpu, ..CpuFacts::default() }).collect();
    Machine::new(vec![node], &cpus)
}

fn settings() -> Settings {
    let q = |text: &str| text.parse::<Quantity>().unwrap();
    Settings {
        cpu_policy: "static".into(),
        cpu_options: BTreeMap::new(),
        option_gates: OptionGates { alpha: false, beta: true },
        reserved_cpus: "0".into(),
        memory_policy: "Static".into(),
        reserved_memory: vec![(0, [("memory".to_owned(), q("1Gi"))].into())],
        topology_policy: "single-numa-node".into(),
        topology_scope: "container".into(),
        topology_options: BTreeMap::new(),
        kept_back: [("cpu".to_owned(), q("1")), ("memory".to_owned(), q("1Gi"))].into(),
    }
}

fn open(root: &Path, settings: &Settings) -> Result<Places, String> {
    Places::open(settings, &machine(), root, Arc::default()).map_err(|e| e.to_string())
}

fn pod(uid: &str, cpu: &str) -> Pod {
    let list = serde_json::json!({ "cpu": cpu, "memory": "1Gi" });
    let container = serde_json::json!({ "name": "c", "resources": { "requests": list, "limits": list } });
    serde_json::from_value(serde_json::json!({
        "metadata": { "uid": uid, "name": uid }, "spec": { "containers": [container] },
    }))
    .unwrap()
}

fn cpus(places: &Places, uid: &str) -> (String, bool) {
    let place = places.of(uid, "c");
    (place.cpus, place.exclusive)
}

#[tokio::test]
async fn places_outlive_the_agent_and_end_with_their_pods() {
    let root = tempfile::tempdir().unwrap();
    let places = open(root.path(), &settings()).unwrap();
    places.admit(&pod("a", "2"), |_| false).await.unwrap();
    assert_eq!(cpus(&places, "a"), ("1-2".to_owned(), true));
    assert_eq!(cpus(&places, "other"), ("0,3".to_owned(), false));
    assert_eq!(places.of("a", "c").memory_nodes, "0");
    let refused = places.admit(&pod("b", "2"), |_| false).await.unwrap_err();
    assert_eq!(refused.reason, "TopologyAffinityError");
    places.release("b").await;
    drop(places);

    let again = open(root.path(), &settings()).unwrap();
    assert_eq!(cpus(&again, "a"), ("1-2".to_owned(), true));
    again.admit(&pod("c", "1"), |_| false).await.unwrap();
    again.forget_strangers(|uid| uid == "c").await;
    assert_eq!(cpus(&again, "a"), ("0-2".to_owned(), false), "nobody knows it any more");
    assert_eq!(cpus(&again, "c"), ("3".to_owned(), true), "it is of this life");
    again.release("c").await;
    assert_eq!(cpus(&again, "c"), ("0-3".to_owned(), false));
    let metrics = &again.metrics;
    assert!((metrics.cpu_manager_pinning_requests_total.get([]) - 1.0).abs() < f64::EPSILON);
    assert!((metrics.cpu_manager_shared_pool_size_millicores.get([]) - 3000.0).abs() < f64::EPSILON);
}

#[test]
fn what_cannot_be_had_on_this_machine_stops_the_kubelet() {
    let root = tempfile::tempdir().unwrap();
    let told = |change: &dyn Fn(&mut Settings)| {
        let mut settings = settings();
        change(&mut settings);
        open(root.path(), &settings).err().unwrap_or_default()
    };
    assert!(
        told(&|s| {
            s.kept_back.remove("cpu");
        })
        .ends_with("to be greater than zero")
    );
    assert_eq!(told(&|s| s.cpu_policy = "dynamic".into()), "unknown policy: \"dynamic\"");
    assert!(told(&|s| s.reserved_cpus = "0-1".into()).contains("(size of 0-1 did not equal 1)"));
    assert!(told(&|s| s.reserved_memory.clear()).contains("is not equal to the value \"1Gi\""));
    let option = |name: &str| BTreeMap::from([(name.to_owned(), "true".to_owned())]);
    assert!(told(&|s| s.cpu_options = option("align-by-socket")).contains("Alpha-level Options not enabled"));
    assert!(
        told(&|s| {
            s.cpu_policy = "none".into();
            s.cpu_options = option("full-pcpus-only");
        })
        .contains("None policy")
    );
    // A machine that lost a CPU while nobody was here.
    drop(open(root.path(), &settings()).unwrap());
    let smaller = Machine::new(machine().nodes, &[CpuFacts::default()]);
    let told = Places::open(&settings(), &smaller, root.path(), Arc::default()).err().unwrap().to_string();
    assert!(
        told.contains("current set of available CPUs \"0\" doesn't match with CPUs in state \"0-3\""),
        "{told}"
    );
}
