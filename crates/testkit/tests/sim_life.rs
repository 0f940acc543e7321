//! Small stories of a Pod that is taken over, edited, resized or ended while its task has other things to do, under
//! paused time.

#![allow(clippy::unwrap_used)]

mod stories;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, EphemeralContainer, ExecAction, Lifecycle, LifecycleHandler, Pod, PodSpec,
    PodStatus, Probe, ResourceRequirements, SleepAction,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use testkit::fake_runtime::{Behaviour, Exec, Op, Pull};
use testkit::sim::pods::{container, pod};
use testkit::sim::{Agent, World, pass};

use stories::play;

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn of(containers: Vec<Container>) -> PodSpec {
    PodSpec { containers, termination_grace_period_seconds: Some(60), ..Default::default() }
}

/// The same Pod, edited.
fn edited(pod: &Arc<Pod>, edit: impl FnOnce(&mut Pod)) -> Arc<Pod> {
    let mut pod = (**pod).clone();
    edit(&mut pod);
    Arc::new(pod)
}

fn deleted(pod: &Arc<Pod>) -> Arc<Pod> {
    edited(pod, |p| {
        p.metadata.deletion_timestamp = Some(Time(Default::default()));
        p.metadata.deletion_grace_period_seconds = Some(60);
    })
}

/// As the API server would send it: no source of the node's own.
fn of_api(pod: &Arc<Pod>) -> Arc<Pod> {
    edited(pod, |p| p.metadata.annotations = None)
}

fn status(agent: &Agent) -> Arc<PodStatus> {
    agent.board.get("p-1").expect("the Pod is on the board").status
}

fn of_container(agent: &Agent, name: &str) -> ContainerStatus {
    let status = status(agent);
    let lists =
        [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    lists.into_iter().flatten().flatten().find(|s| s.name == name).expect("a status").clone()
}

fn waiting(agent: &Agent, name: &str) -> (String, String) {
    let state = of_container(agent, name).state.and_then(|s| s.waiting).unwrap_or_default();
    (state.reason.unwrap_or_default(), state.message.unwrap_or_default())
}

/// The conditions Ready and ContainersReady.
fn ready(agent: &Agent) -> [String; 2] {
    let status = status(agent);
    ["Ready", "ContainersReady"].map(|kind| {
        let mut all = status.conditions.iter().flatten();
        all.find(|c| c.type_ == kind).map(|c| c.status.clone()).unwrap_or_default()
    })
}

fn probe() -> Option<Probe> {
    Some(Probe {
        exec: Some(ExecAction { command: Some(vec!["check".into()]) }),
        period_seconds: Some(2),
        failure_threshold: Some(1),
        ..Default::default()
    })
}

/// The probes of a container say what the returned switch says.
fn switch(world: &World, container: &str) -> Arc<AtomicBool> {
    let good = Arc::new(AtomicBool::new(true));
    let says = good.clone();
    world
        .runtime
        .script_exec("p", container, move |_, _| Exec::exits(i32::from(!says.load(Ordering::Relaxed))));
    good
}

#[test]
fn a_sidecar_that_had_started_before_the_agent_did_holds_nobody_back_and_is_still_restarted() {
    play(async {
        let world = World::new(1);
        let good = switch(&world, "s");
        world.runtime.script_pull("sim/slow:v1", Pull::takes(secs(40)));
        let sidecar = Container {
            restart_policy: Some("Always".into()),
            startup_probe: probe(),
            liveness_probe: probe(),
            ..container("s")
        };
        let slow = Container { image: Some("sim/slow:v1".into()), ..container("i") };
        world.runtime.script("p", "i", [Behaviour::exits(0, secs(1))]);
        let spec = PodSpec { init_containers: Some(vec![sidecar, slow]), ..of(vec![container("a")]) };
        let pods = [pod("p", 1, spec)];
        let agent = world.boot_with(&pods).await;
        pass(secs(20)).await;
        assert_eq!(of_container(&agent, "s").started, Some(true));
        agent.crash();
        let agent = world.boot_with(&pods).await;
        pass(secs(60)).await;
        assert!(world.runtime.is_running("p", "a"), "{:?}", status(&agent));
        good.store(false, Ordering::Relaxed);
        pass(secs(10)).await;
        assert_eq!(world.runtime.journal().starts("p", "s"), 2);
    });
}

#[test]
fn readiness_is_told_while_the_pod_stops() {
    play(async {
        let world = World::new(2);
        let good = switch(&world, "a");
        world.runtime.script("p", "a", [Behaviour::ignores_term()]);
        let sleep = Some(LifecycleHandler { sleep: Some(SleepAction { seconds: 20 }), ..Default::default() });
        let c = Container {
            readiness_probe: probe(),
            lifecycle: Some(Lifecycle { pre_stop: sleep, ..Default::default() }),
            ..container("a")
        };
        let p = of_api(&pod("p", 1, of(vec![c, container("b")])));
        let agent = world.boot_with(std::slice::from_ref(&p)).await;
        pass(secs(10)).await;
        assert_eq!(ready(&agent), ["True", "True"]);
        agent.want(&[deleted(&p)]).await;
        pass(secs(5)).await;
        assert_eq!(ready(&agent), ["True", "True"], "it still serves");
        // In the hook, and then between the signal and the end.
        for (is_good, want) in [(false, "False"), (true, "True"), (true, "True"), (false, "False")] {
            good.store(is_good, Ordering::Relaxed);
            pass(secs(10)).await;
            assert_eq!(ready(&agent), [want, want]);
            assert_eq!(of_container(&agent, "a").ready, is_good);
            assert!(world.runtime.is_running("p", "a"));
        }
        // What was seen outside is still true after a crash.
        let shown = status(&agent);
        assert_eq!(world.disk.lock().statuses["p-1"], *shown);
        pass(secs(30)).await;
        assert_eq!(agent.phase("p-1"), "Failed");
        let since = |s: &PodStatus| {
            let mut all = s.conditions.iter().flatten();
            all.find(|c| c.type_ == "Ready").and_then(|c| c.last_transition_time.clone())
        };
        assert_eq!(since(&status(&agent)), since(&shown), "it was unready before it ended");
    });
}

#[test]
fn readiness_is_told_while_another_container_starts_or_stops() {
    play(async {
        let world = World::new(3);
        let good = switch(&world, "a");
        world.runtime.script("p", "b", [Behaviour::ignores_term(), Behaviour::forever()]);
        world.runtime.script_pull("sim/slow:v1", Pull::takes(secs(600)));
        let probed = Container { readiness_probe: probe(), ..container("a") };
        let p = pod("p", 1, of(vec![probed, container("b")]));
        let agent = world.boot_with(std::slice::from_ref(&p)).await;
        pass(secs(10)).await;
        assert_eq!(ready(&agent), ["True", "True"]);
        let slow = |p: &mut Pod| p.spec.as_mut().unwrap().containers[1].image = Some("sim/slow:v1".into());
        agent.want(&[edited(&p, slow)]).await;
        for (of_b, runs) in [("stops", true), ("is pulled", false)] {
            pass(secs(20)).await;
            assert_eq!(world.runtime.is_running("p", "b"), runs, "while b {of_b}");
            for is_good in [false, true] {
                good.store(is_good, Ordering::Relaxed);
                pass(secs(10)).await;
                assert_eq!(of_container(&agent, "a").ready, is_good, "while b {of_b}");
            }
            pass(secs(20)).await;
        }
    });
}

#[test]
fn a_resize_that_is_pending_does_not_hurry_a_container_that_crashes() {
    play(async {
        let world = World::new(4);
        world.runtime.script("p", "a", [Behaviour::exits(1, secs(1))]);
        let asks = |cpu: &str| {
            let requests = Some([("cpu".to_owned(), Quantity(cpu.into()))].into());
            Some(ResourceRequirements { requests, ..Default::default() })
        };
        let p = pod("p", 1, of(vec![Container { resources: asks("100m"), ..container("a") }]));
        let agent = world.boot_with(std::slice::from_ref(&p)).await;
        pass(secs(8)).await;
        // More than the node has.
        let resize = |p: &mut Pod| p.spec.as_mut().unwrap().containers[0].resources = asks("5");
        agent.want(&[edited(&p, resize)]).await;
        pass(secs(120)).await;
        // At once, after 10, 20, 40 and 80 seconds.
        let starts = world.runtime.journal().starts("p", "a");
        assert!((4..=6).contains(&starts), "{starts}");
        assert_eq!(waiting(&agent, "a").0, "CrashLoopBackOff");
    });
}

#[test]
fn an_edited_image_replaces_what_runs_and_not_what_has_ended() {
    play(async {
        let world = World::new(5);
        world.runtime.add_image("sim/app:v2");
        world.runtime.script("p", "done", [Behaviour::exits(0, secs(1))]);
        let spec = PodSpec {
            restart_policy: Some("Never".into()),
            ..of(vec![container("done"), container("runs")])
        };
        let p = pod("p", 1, spec);
        let agent = world.boot_with(std::slice::from_ref(&p)).await;
        pass(secs(10)).await;
        let newer = |p: &mut Pod| {
            for c in &mut p.spec.as_mut().unwrap().containers {
                c.image = Some("sim/app:v2".into());
            }
        };
        agent.want(&[edited(&p, newer)]).await;
        pass(secs(30)).await;
        let journal = world.runtime.journal();
        assert_eq!((journal.starts("p", "done"), journal.starts("p", "runs")), (1, 2));
        assert_eq!(agent.phase("p-1"), "Running");
        assert_eq!(of_container(&agent, "runs").restart_count, 1);
    });
}

#[test]
fn a_deadline_that_ran_out_is_told_of_a_pod_that_is_deleted_while_it_stops() {
    play(async {
        let world = World::new(6);
        world.runtime.script("p", "a", [Behaviour::ignores_term()]);
        let spec = PodSpec { active_deadline_seconds: Some(20), ..of(vec![container("a")]) };
        let p = of_api(&pod("p", 1, spec));
        let agent = world.boot_with(std::slice::from_ref(&p)).await;
        pass(secs(30)).await;
        assert_eq!(agent.phase("p-1"), "Running", "it has its grace");
        agent.want(&[deleted(&p)]).await;
        pass(secs(80)).await;
        assert!(!world.runtime.is_running("p", "a"));
        let status = status(&agent);
        assert_eq!(status.phase.as_deref(), Some("Failed"));
        assert_eq!(status.reason.as_deref(), Some("DeadlineExceeded"));
    });
}

#[test]
fn a_pod_that_somebody_else_calls_failed_is_ended() {
    play(async {
        let world = World::new(7);
        let p = of_api(&pod("p", 1, of(vec![container("a")])));
        let agent = world.boot_with(std::slice::from_ref(&p)).await;
        pass(secs(10)).await;
        let (phase, reason) = (Some("Failed".to_owned()), Some("Evicted".to_owned()));
        let told = PodStatus { phase, reason, ..(*status(&agent)).clone() };
        agent.want(&[edited(&p, |p| p.status = Some(told))]).await;
        pass(secs(20)).await;
        assert!(!world.runtime.is_running("p", "a"));
        assert_eq!(agent.phase("p-1"), "Failed");
        assert_eq!(status(&agent).reason.as_deref(), Some("Evicted"));
    });
}

#[test]
fn an_ephemeral_container_waits_for_its_target_and_holds_nobody_up() {
    play(async {
        let world = World::new(8);
        for name in ["i", "j"] {
            world.runtime.script("p", name, [Behaviour::exits(0, secs(7))]);
        }
        let init = Some(vec![container("i"), container("j")]);
        let p = pod("p", 1, PodSpec { init_containers: init, ..of(vec![container("a")]) });
        let agent = world.boot_with(std::slice::from_ref(&p)).await;
        pass(secs(1)).await;
        let debug = |p: &mut Pod| {
            p.spec.as_mut().unwrap().ephemeral_containers = Some(vec![EphemeralContainer {
                name: "debug".into(),
                image: container("debug").image,
                target_container_name: Some("a".into()),
                ..Default::default()
            }]);
        };
        agent.want(&[edited(&p, debug)]).await;
        pass(secs(5)).await;
        let text = "unable to find target container a".to_owned();
        assert_eq!(waiting(&agent, "debug"), ("CreateContainerConfigError".into(), text));
        pass(secs(30)).await;
        assert!(world.runtime.is_running("p", "debug"));
        let journal = world.runtime.journal();
        let at = |name: &str, op: Op| journal.of("p", name).find(|e| e.op == op).unwrap().at;
        assert!(at("a", Op::Start) <= at("debug", Op::Create));
        for (before, after) in [("i", "j"), ("j", "a")] {
            let waited = at(after, Op::Start).saturating_sub(at(before, Op::Exit { code: 0 }));
            assert!(waited < secs(2), "{after} waited {waited:?}");
        }
    });
}

#[test]
fn an_update_is_tried_at_once() {
    play(async {
        let world = World::new(9);
        world.runtime.script("p", "a", [Behaviour::fails_to_create("no such program")]);
        let p = pod("p", 1, of(vec![container("a")]));
        let agent = world.boot_with(std::slice::from_ref(&p)).await;
        let told = |agent: &Agent| -> u32 {
            let all = agent.recorder.of("p-1");
            all.iter().filter(|e| e.message.contains("no such program")).map(|e| e.count).sum()
        };
        // By now it is tried every ten seconds.
        pass(secs(60)).await;
        let before = told(&agent);
        assert!(before > 3, "{:?}", agent.recorder.of("p-1"));
        // What comes back of our own words is no update.
        let mut wanted = edited(&p, |p| p.status = Some((*status(&agent)).clone()));
        agent.want(std::slice::from_ref(&wanted)).await;
        pass(Duration::from_millis(100)).await;
        assert_eq!(told(&agent), before);
        for n in 1..=5 {
            wanted = edited(&wanted, |p| {
                p.metadata.labels.get_or_insert_default().insert("n".into(), n.to_string());
            });
            agent.want(std::slice::from_ref(&wanted)).await;
            pass(Duration::from_millis(100)).await;
            assert_eq!(told(&agent), before + n);
        }
    });
}

/// A year is longer than every time there is in a Pod: what was to come has not come, and what was is not undone.
#[test]
fn a_clock_that_is_a_year_off_restarts_nobody_and_flips_no_probe() {
    const YEAR: i64 = 366 * 24 * 3600;
    play(async {
        let world = World::new(31);
        let probe = |period| Probe {
            exec: Some(ExecAction { command: Some(vec!["check".into()]) }),
            period_seconds: Some(period),
            initial_delay_seconds: Some(3),
            ..Default::default()
        };
        let c = Container {
            readiness_probe: Some(probe(5)),
            liveness_probe: Some(probe(10)),
            startup_probe: Some(probe(1)),
            ..container("a")
        };
        let spec = PodSpec { active_deadline_seconds: Some(7200), ..of(vec![c]) };
        let p = of_api(&pod("p", 1, spec));
        let agent = world.boot_with(std::slice::from_ref(&p)).await;
        pass(secs(60)).await;
        let is_ready = || {
            let conditions = status(&agent).conditions.clone().unwrap_or_default();
            conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
        };
        assert!(is_ready());
        for jump in [YEAR, -2 * YEAR, YEAR, 3600, -3600] {
            world.clock.jump(jump);
            for step in 0..300 {
                pass(Duration::from_millis(200)).await;
                assert!(is_ready(), "{jump} s, step {step}");
            }
        }
        assert_eq!(world.runtime.journal().starts("p", "a"), 1);
        assert_eq!(status(&agent).phase.as_deref(), Some("Running"), "its deadline is not over");
    });
}

#[test]
fn of_two_hundred_pods_at_once_those_run_for_which_there_is_room() {
    play(async {
        let world = World::new(32);
        let pods: Vec<Arc<Pod>> = (1..=200)
            .map(|n| of_api(&pod(&format!("p{n}"), n, of(vec![container("a"), container("b")]))))
            .collect();
        let agent = world.boot_with(&pods).await;
        pass(secs(120)).await;
        let in_phase = |phase: &str| {
            agent.board.all().iter().filter(|e| e.status.phase.as_deref() == Some(phase)).count()
        };
        assert_eq!((in_phase("Running"), in_phase("Failed")), (110, 90));
        let journal = world.runtime.journal();
        let starts = journal.entries().iter().filter(|e| e.op == Op::Start).count();
        assert_eq!(starts, 220, "each container of each Pod that runs, once");
        agent.want(&[]).await;
        pass(secs(120)).await;
        assert!(world.runtime.is_empty() && agent.board.all().is_empty());
    });
}
