//! A small model of the runtime, and what must hold when plans are carried out on it.

use proptest::prelude::*;

use super::*;

/// Carries a plan out, all of it or only what goes (some executors look again in between).
fn apply(world: &mut Observed, p: &Plan, pod: &Pod, only_what_goes: bool) {
    world.revision += 1;
    let stop = |c: &mut Instance| {
        if matches!(c.state, ContainerState::Running | ContainerState::Unknown) {
            c.state = ContainerState::Exited;
            c.exit_code = 137;
        }
    };
    let alive = world.containers.iter().any(is_live) || world.sandboxes.iter().any(|s| s.ready);
    if p.kill_pod.is_some() {
        world.containers.iter_mut().for_each(stop);
        world.sandboxes.iter_mut().for_each(|s| s.ready = false);
    }
    for k in &p.kill {
        world.containers.iter_mut().filter(|c| c.id == k.id).for_each(stop);
    }
    world.containers.retain(|c| !p.remove.contains(&c.id));
    let something_went = (p.kill_pod.is_some() && alive) || !p.kill.is_empty() || !p.remove.is_empty();
    if only_what_goes && something_went {
        return;
    }
    if let Some(new) = &p.sandbox {
        let host_network = pod.spec.as_ref().and_then(|s| s.host_network).unwrap_or(false);
        let made = Sandbox { host_network, ..sandbox(&format!("n{}", new.attempt), new.attempt, true) };
        world.sandboxes.insert(0, made);
    }
    for s in &p.start {
        let here = world.sandboxes.first().expect("a start needs a sandbox");
        assert!(here.ready, "started in a sandbox that is not ready");
        let id = format!("{}-r{}", s.name, world.revision);
        let made = Instance {
            id: id.into(),
            sandbox: here.id.clone(),
            restart_count: s.restart_count,
            ..instance(&s.name)
        };
        world.containers.insert(0, made);
    }
}

fn live(world: &Observed, name: &str) -> usize {
    let alive = |c: &&Instance| c.name == name && is_live(c);
    world.containers.iter().filter(alive).count()
}

prop_compose! {
    fn any_pod()(
        policy in prop::sample::select(vec!["Always", "OnFailure", "Never"]),
        init in prop::collection::vec(any::<bool>(), 0..3),
        regular in 1..3usize,
        host in any::<bool>(),
    ) -> Pod {
        let mut yaml = format!("restartPolicy: {policy}\nhostNetwork: {host}\n");
        if !init.is_empty() {
            yaml.push_str("initContainers:\n");
        }
        for (i, sidecar) in init.iter().enumerate() {
            let own = if *sidecar { ", restartPolicy: Always" } else { "" };
            let _ = writeln!(yaml, "- {{name: i{i}, image: 'i{i}:1'{own}}}");
        }
        yaml.push_str("containers:\n");
        for i in 0..regular {
            let _ = writeln!(yaml, "- {{name: c{i}, image: 'c{i}:1', livenessProbe: {{tcpSocket: {{port: 1}}}}}}");
        }
        pod_yaml(&yaml)
    }
}

prop_compose! {
    /// Any leftovers: containers of any state in either of two sandboxes.
    fn any_world()(
        sandboxes in prop::collection::vec((any::<bool>(), any::<bool>(), any::<bool>()), 0..3),
        containers in prop::collection::vec((0..6usize, 0..4usize, 0..2i32, 0..2usize, any::<bool>()), 0..7),
    ) -> Observed {
        let sandboxes: Vec<Sandbox> = sandboxes
            .into_iter()
            .enumerate()
            .map(|(i, (ready, host_network, ip))| {
                let mut s = sandbox(&format!("s{i}"), 9 - u32::try_from(i).expect("small"), ready);
                s.host_network = host_network;
                if !ip {
                    s.ips.clear();
                }
                s
            })
            .collect();
        let states = [ContainerState::Created, ContainerState::Running, ContainerState::Exited, ContainerState::Unknown];
        let containers = containers
            .into_iter()
            .enumerate()
            .filter(|_| !sandboxes.is_empty())
            .map(|(i, (name, state, code, at, edited))| {
                let name = ["i0", "i1", "c0", "c1", "e0", "zz"][name];
                let base = instance(name);
                Instance {
                    id: format!("{name}-x{i}").into(),
                    sandbox: sandboxes[at % sandboxes.len()].id.clone(),
                    state: states[state],
                    exit_code: code,
                    restart_count: u32::try_from(9 - i).expect("small"),
                    hash: if edited { Some(1) } else { base.hash },
                    ..base
                }
            })
            .collect();
        Observed { revision: 1, sandboxes, containers }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn plans_settle(pod in any_pod(), start in any_world(), cautious in any::<bool>()) {
        let mut world = start;
        for step in 0..24 {
            let p = plan_of(&pod, &world);
            prop_assert_eq!(&p, &plan_of(&pod, &world), "not deterministic");
            let rests = p.kill_pod.is_none() && p.kill.is_empty() && p.remove.is_empty()
                && p.sandbox.is_none() && p.start.is_empty();
            // Init containers that run to completion do so in the model between two plans.
            let mut moved = false;
            for c in world.containers.iter_mut().filter(|c| rests && c.name.starts_with('i')) {
                let sidecar = kind_of(&pod, &c.name) == Some(ContainerKind::Sidecar);
                if c.state == ContainerState::Running && !sidecar {
                    (c.state, c.exit_code, moved) = (ContainerState::Exited, 0, true);
                }
            }
            if rests && !moved {
                return Ok(());
            }
            prop_assert!(step < 23, "no fixed point: {}", line(&p));
            apply(&mut world, &p, &pod, cautious);
        }
    }

    #[test]
    fn never_two_live_instances_of_one_container(pod in any_pod(), world in any_world()) {
        let p = plan_of(&pod, &world);
        for s in &p.start {
            let spared = world.containers.iter().any(|c| {
                c.name == s.name && is_live(c) && p.kill_pod.is_none() && !p.kill.iter().any(|k| k.id == c.id)
            });
            prop_assert!(!spared, "{} would run twice: {}", s.name, line(&p));
        }
        let mut after = world.clone();
        apply(&mut after, &p, &pod, false);
        for c in &after.containers {
            prop_assert!(live(&after, &c.name) <= 1, "{} runs twice after {}", c.name, line(&p));
        }
        let unique: std::collections::BTreeSet<&str> = p.start.iter().map(|s| s.name.as_str()).collect();
        prop_assert_eq!(unique.len(), p.start.len());
    }

    #[test]
    fn policy_never_restarts_only_what_was_edited(pod in any_pod(), world in any_world()) {
        let mut pod = pod;
        pod.spec.as_mut().expect("spec").restart_policy = Some("Never".into());
        let p = plan_of(&pod, &world);
        for s in p.start.iter().filter(|s| s.kind == ContainerKind::Regular) {
            let newest = world.newest(&s.name);
            let ran = newest.is_some_and(|c| matches!(c.state, ContainerState::Running | ContainerState::Exited));
            let edited = newest.is_some_and(|c| c.hash == Some(1));
            prop_assert!(!ran || edited, "restarted {}: {}", s.name, line(&p));
        }
    }

    #[test]
    fn a_kept_container_is_never_touched(pod in any_pod(), world in any_world()) {
        // What the plan does not kill survives, and restart counts only grow.
        let p = plan_of(&pod, &world);
        for s in &p.start {
            let before = world.newest(&s.name).map(|c| c.restart_count);
            prop_assert!(before.is_none_or(|n| s.restart_count == n + 1));
        }
        for id in &p.remove {
            let c = world.container(id).expect("removes what exists");
            let stopped = p.kill_pod.is_some() || p.kill.iter().any(|k| k.id == *id);
            prop_assert!(!is_live(c) || stopped, "removes {} alive", id);
        }
        prop_assert!(!p.finished || (p.start.is_empty() && p.sandbox.is_none() && p.waiting.is_empty()));
    }
}
