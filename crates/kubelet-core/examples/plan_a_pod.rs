//! Reads a Pod manifest (standard input) and prints the steps a kubelet would take, one plan after the
//! other, in a observed where every start works and every init container exits with 0.
//!
//! `cargo run -p kubelet-core --example plan_a_pod < pod.yaml`
#![allow(clippy::print_stdout)]

use std::collections::BTreeSet;
use std::error::Error;
use std::io::Read;
use std::net::IpAddr;
use std::time::Duration;

use base::time::{Now, Wall};
use k8s_openapi::api::core::v1::{Container as Spec, Pod};
use kubelet_core::hash::container_hash;
use kubelet_core::observed::{Container, ContainerState, Observed, Sandbox};
use kubelet_core::pod::{ContainerKind, CrashLoop, PlanInput, Verdicts, plan};

fn main() -> Result<(), Box<dyn Error>> {
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text)?;
    let pod: Pod = serde_json::from_value(api::yaml::to_value(&text, api::yaml::DuplicateKeys::Reject)?)?;
    let crash_loop = &CrashLoop::new(Duration::from_secs(300));
    let (mut observed, verdicts, replaced) = (Observed::default(), &Verdicts::new(), &BTreeSet::new());
    for step in 1..=64 {
        let now = Now { wall: Wall::from_secs(step), ..Now::default() };
        let todo = plan(&PlanInput {
            pod: &pod,
            observed: &observed,
            verdicts,
            replaced,
            crash_loop,
            actuated: None,
            now,
        });
        if let Some(new) = &todo.sandbox {
            println!("{step}: sandbox, attempt {}", new.attempt);
            let ips = vec![IpAddr::from([10, 0, 0, 2])];
            let host_network = pod.spec.as_ref().and_then(|s| s.host_network).unwrap_or(false);
            let (id, created_at) = ("sandbox".into(), now.wall);
            observed.sandboxes =
                vec![Sandbox { id, attempt: new.attempt, ready: true, created_at, host_network, ips }];
        }
        for start in &todo.start {
            println!(
                "{step}: start {} ({:?}), restart count {}",
                start.name, start.kind, start.restart_count
            );
            let done = start.kind == ContainerKind::Init;
            observed.containers.insert(0, instance(&pod, &start.name, done, now.wall));
        }
        if todo.start.is_empty() && todo.sandbox.is_none() {
            println!("{step}: {}", if todo.finished { "finished" } else { "nothing to do" });
            return Ok(());
        }
    }
    Err("the Pod does not settle".into())
}

fn instance(pod: &Pod, name: &str, done: bool, now: Wall) -> Container {
    let spec = pod.spec.as_ref();
    let mut all = spec.into_iter().flat_map(|s| s.init_containers.iter().flatten().chain(&s.containers));
    let found: Option<&Spec> = all.find(|c| c.name == name);
    Container {
        id: name.into(),
        sandbox: "sandbox".into(),
        name: name.into(),
        restart_count: 0,
        state: if done { ContainerState::Exited } else { ContainerState::Running },
        hash: found.map(container_hash),
        image: found.and_then(|c| c.image.clone()).unwrap_or_default(),
        image_ref: String::new(),
        image_id: String::new(),
        created_at: now,
        started_at: Some(now),
        finished_at: done.then_some(now),
        exit_code: 0,
        reason: String::new(),
        message: String::new(),
        termination_message: String::new(),
        resources: None,
        user: None,
    }
}
