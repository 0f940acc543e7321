//! How many Pods a second the scheduler's decisions take, and how much memory Pods: queue, filters, scores, assuming, and what
//! the informer tells afterwards. Classes and sizes are those of upstream's scheduler_perf; there the API server and etcd work
//! too, and upstream's floors are 270 (basic), 60 (anti-affinity) and 85 (spread) Pods a second.
//!
//! `cargo run --release -p scheduler-core --example pods_per_second [-- CLASS NODES PODS]`
#![allow(clippy::print_stdout)]

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::rng::Rng;
use base::time::Mono;
use scheduler_core::cluster::Cluster;
use scheduler_core::cycle::{Cycle, Found, Sampling};
use scheduler_core::event::Event;
use scheduler_core::node::Node;
use scheduler_core::pod::Pod;
use scheduler_core::profile::Profile;
use scheduler_core::queue::{MAX_UNSCHEDULABLE, Pauses, Queue};
use serde_json::{Value, json};

const CLASSES: [&str; 3] = ["basic", "anti-affinity", "spread"];

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.as_slice() {
        [class, nodes, pods] => measure(class, nodes.parse()?, pods.parse()?)?,
        _ => {
            weigh(5000)?;
            println!(
                "{:<14}{:>7}{:>7}{:>10}{:>14}{:>10}",
                "class", "nodes", "Pods", "Pods/s", "Pods/cpu s", "p50"
            );
            for nodes in [1000, 5000] {
                for class in CLASSES {
                    let pods = if class == "anti-affinity" { nodes.min(2000) - nodes / 5 } else { nodes };
                    measure(class, nodes, pods)?;
                }
            }
        }
    }
    Ok(())
}

fn node(i: usize) -> Value {
    json!({
        "metadata": {"name": format!("node-{i}"), "labels": {
            "kubernetes.io/hostname": format!("node-{i}"), "topology.kubernetes.io/zone": format!("moon-{}", i % 3)}},
        "status": {"allocatable": {"cpu": "4", "memory": "32Gi", "pods": "110"}},
    })
}

fn pod(class: &str, name: &str) -> Value {
    let blue = json!({"matchLabels": {"color": "blue"}});
    let term = json!({"labelSelector": blue, "topologyKey": "kubernetes.io/hostname"});
    let mut object = json!({
        "metadata": {"name": name, "namespace": "sched-1", "uid": name, "labels": {"color": "blue"}},
        "spec": {"schedulerName": "default-scheduler", "containers": [{"name": "pause", "image": "registry.k8s.io/pause:3.10",
            "ports": [{"containerPort": 80}], "resources": {"requests": {"cpu": "100m", "memory": "500Mi"}}}]},
    });
    match class {
        "anti-affinity" => {
            object["spec"]["affinity"] =
                json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
        }
        "spread" => {
            object["spec"]["topologySpreadConstraints"] = json!([{"maxSkew": 5, "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "DoNotSchedule", "labelSelector": blue}]);
        }
        _ => {}
    }
    object
}

fn read(object: Value) -> Result<Pod, serde_json::Error> {
    serde_json::from_value(object).map(|object| Pod::read(&object))
}

fn measure(class: &str, nodes: usize, pods: usize) -> Result<(), Box<dyn Error>> {
    let mut cluster = Cluster::default();
    cluster.namespaces.insert("sched-1".into(), Default::default());
    for i in 0..nodes {
        cluster.set_node(Node::read(&serde_json::from_value(node(i))?));
    }
    // Some are there already, as upstream has it.
    let there = if class == "anti-affinity" { nodes / 5 } else { nodes };
    for i in 0..there {
        let first = read(pod(class, &format!("first-{i}")))?;
        cluster.set_pod(first.on(&format!("node-{i}")));
    }
    let pauses = Pauses {
        first: Duration::from_secs(1),
        most: Duration::from_secs(10),
        max_unschedulable: MAX_UNSCHEDULABLE,
    };
    let profile = Arc::new(Profile::default());
    let profiles = Arc::new([Profile::default()].into_iter().collect());
    let mut queue = Queue::new(profiles, pauses);
    let (mut sampling, mut rng) = (Sampling::default(), Rng::new(1));
    for i in 0..pods {
        queue.set(Arc::new(read(pod(class, &format!("pod-{i}")))?), &cluster, Mono::default());
    }
    let (begun, on_processor) = (Instant::now(), processor_time());
    let (mut each, mut bound) = (Vec::with_capacity(pods), 0);
    while let Some(turn) = queue.pop(Mono::default()) {
        let turn_begun = Instant::now();
        let (cycle, found) = Cycle::find(&profile, &mut cluster, &turn.pod, &mut sampling);
        let Found::Nodes { feasible, .. } = found else { return Err(format!("{found:?}").into()) };
        let choice = cycle.choose(&cluster, &feasible, &HashMap::new(), &mut rng)?;
        let choice = choice.ok_or_else(|| format!("{} fits nowhere", turn.pod.key))?;
        let on = turn.pod.on(cluster.info(choice.node).name());
        cluster.assume(on.clone());
        queue.remove(&turn.pod.uid);
        let (_, new) = cluster.set_pod(on);
        queue.happened(&Event::of_pod(None, Some(new)), &cluster, Mono::default());
        each.push(turn_begun.elapsed());
        bound += 1;
    }
    let took = begun.elapsed().as_secs_f64();
    let used = processor_time().saturating_sub(on_processor).as_secs_f64();
    each.sort();
    let usual = each.get(each.len() / 2).copied().unwrap_or_default();
    let rate = |seconds: f64| f64::from(bound) / seconds.max(1e-9);
    println!(
        "{class:<14}{nodes:>7}{bound:>7}{:>10.0}{:>14.0}{:>10}",
        rate(took),
        rate(used),
        format!("{usual:.0?}")
    );
    Ok(())
}

/// Memory of Pods on nodes, as records, each made from an object of its own.
fn weigh(count: usize) -> Result<(), Box<dyn Error>> {
    let mut cluster = Cluster::default();
    for i in 0..1000 {
        cluster.set_node(Node::read(&serde_json::from_value(node(i))?));
    }
    let before = resident();
    for i in 0..count {
        let mut object = pod("basic", &format!("web-6d9f7c5b8-{i:05}"));
        object["metadata"]["labels"] = json!({"app": format!("app-{}", i % 50)});
        cluster.set_pod(read(object)?.on(&format!("node-{}", i % 1000)));
    }
    let memory = resident().saturating_sub(before);
    println!("{count} Pods: {} KB, {} B each", memory / 1024, memory / count.max(1));
    Ok(())
}

/// What this thread has used of a processor: unlike the clock on the wall it does not count the work of others.
fn processor_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0))
}

/// Bytes of memory this process has.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}
