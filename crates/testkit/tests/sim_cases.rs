//! Small stories with a known end: one rule of the kubelet each, under paused time.

#![allow(clippy::unwrap_used)]

mod stories;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    Container, ContainerRestartRule, ContainerRestartRuleOnExitCodes, ContainerStatus, EmptyDirVolumeSource,
    ExecAction, ImageVolumeSource, Lifecycle, LifecycleHandler, Pod, PodSpec, Probe, ResourceRequirements,
    Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use testkit::fake_runtime::{Behaviour, Exec, Faults, Op, Pull, Quirks};
use testkit::sim::pods::{IMAGE, container, pod};
use testkit::sim::{Agent, World, pass};
use tonic::Code;

use stories::play;

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn one(containers: Vec<Container>) -> PodSpec {
    PodSpec { containers, termination_grace_period_seconds: Some(5), ..Default::default() }
}

/// Kill -9, and a new life that is told the same.
async fn reboot(world: &World, agent: Agent, pods: &[Arc<Pod>]) -> Agent {
    agent.crash();
    world.boot_with(pods).await
}

fn container_status(agent: &Agent, uid: &str, name: &str) -> ContainerStatus {
    let entry = agent.board.get(uid).expect("the Pod is on the board");
    entry.status.container_statuses.iter().flatten().find(|s| s.name == name).expect("a status").clone()
}

fn waiting(agent: &Agent, uid: &str, name: &str) -> (String, String) {
    let state = container_status(agent, uid, name).state.and_then(|s| s.waiting).unwrap_or_default();
    (state.reason.unwrap_or_default(), state.message.unwrap_or_default())
}

fn is_ready(agent: &Agent, uid: &str) -> bool {
    let Some(entry) = agent.board.get(uid) else { return false };
    entry.status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// How often an event with this reason, whose message starts so, was recorded.
fn told(agent: &Agent, uid: &str, reason: &str, message: &str) -> u32 {
    let all = agent.recorder.of(uid);
    all.iter().filter(|e| e.reason == reason && e.message.starts_with(message)).map(|e| e.count).sum()
}

fn count(world: &World, op: Op) -> usize {
    world.runtime.journal().entries().iter().filter(|e| e.op == op).count()
}

#[test]
fn the_first_restart_is_immediate_and_the_next_ones_are_told_as_back_off() {
    play(async {
        let world = World::new(1);
        world.runtime.script("p", "a", [Behaviour::exits(1, secs(1))]);
        let agent = world.boot_with(&[pod("p", 1, one(vec![container("a")]))]).await;
        pass(secs(6)).await;
        assert_eq!(world.runtime.journal().starts("p", "a"), 2);
        let (reason, message) = waiting(&agent, "p-1", "a");
        assert_eq!(reason, "CrashLoopBackOff");
        assert_eq!(message, "back-off 10s restarting failed container=a pod=p_default(p-1)");
        let text = "Back-off restarting failed container a in pod p_default(p-1)";
        assert!(told(&agent, "p-1", "BackOff", text) > 0);
        pass(secs(8)).await;
        assert_eq!(world.runtime.journal().starts("p", "a"), 3);
    });
}

#[test]
fn a_failing_pull_is_told_once_per_attempt_and_remembered_in_the_back_off() {
    play(async {
        let world = World::new(2);
        world.runtime.script_pull("sim/none:v1", Pull::fails(Code::NotFound, "no such image"));
        let broken = Container { image: Some("sim/none:v1".into()), ..container("a") };
        let agent = world.boot_with(&[pod("p", 1, one(vec![broken, container("b")]))]).await;
        pass(secs(8)).await;
        let (reason, message) = waiting(&agent, "p-1", "a");
        assert_eq!(reason, "ImagePullBackOff");
        assert!(message.starts_with("Back-off pulling image \"sim/none:v1\": ErrImagePull: "), "{message}");
        assert!(message.contains("no such image"), "{message}");
        assert!(world.runtime.is_running("p", "b"), "the other container does not wait");
        pass(secs(60)).await;
        let pulls = told(&agent, "p-1", "Pulling", "Pulling image");
        assert!((2..8).contains(&pulls), "{pulls}");
        assert_eq!(told(&agent, "p-1", "Failed", "Failed to pull image \"sim/none:v1\": "), pulls);
        assert_eq!(told(&agent, "p-1", "Failed", "Error: ErrImagePull"), pulls);
    });
}

#[test]
fn an_image_volume_is_pulled_before_the_containers_that_mount_it() {
    play(async {
        let world = World::new(3);
        let image = |name: &str, reference: &str| Volume {
            name: name.into(),
            image: Some(ImageVolumeSource {
                reference: Some(reference.into()),
                pull_policy: Some("IfNotPresent".into()),
            }),
            ..Default::default()
        };
        let mounts = |name: &str, volume: &str| Container {
            volume_mounts: Some(vec![VolumeMount {
                name: volume.into(),
                mount_path: "/data".into(),
                ..Default::default()
            }]),
            ..container(name)
        };
        world.runtime.script_pull("sim/data:v1", Pull::takes(secs(3)));
        world.runtime.script_pull("sim/none:v1", Pull::fails(Code::NotFound, "no such image"));
        let spec = PodSpec {
            volumes: Some(vec![image("data", "sim/data:v1"), image("none", "sim/none:v1")]),
            ..one(vec![mounts("a", "data"), mounts("b", "none"), container("c")])
        };
        let agent = world.boot_with(&[pod("p", 1, spec)]).await;
        pass(secs(8)).await;
        let journal = world.runtime.journal();
        let at = |op: Op, name: &str| {
            journal.entries().iter().find(|e| e.op == op && e.container == name).map(|e| e.at)
        };
        assert!(at(Op::Pull, "").unwrap() <= at(Op::Create, "a").unwrap());
        assert!(world.runtime.is_running("p", "a") && world.runtime.is_running("p", "c"));
        assert_eq!(at(Op::Create, "b"), None);
        assert_eq!(waiting(&agent, "p-1", "b").0, "ImagePullBackOff");
        assert!(told(&agent, "p-1", "Pulled", "Successfully pulled image \"sim/data:v1\"") > 0);
    });
}

#[test]
fn a_pod_past_its_deadline_stays_ended_after_a_restart_and_whatever_the_clock_says() {
    for jump in [0, -7200, 7200] {
        play(async {
            let world = World::new(4);
            let spec = PodSpec { active_deadline_seconds: Some(20), ..one(vec![container("a")]) };
            let pods = [pod("p", 1, spec)];
            let agent = world.boot_with(&pods).await;
            pass(secs(10)).await;
            let agent = reboot(&world, agent, &pods).await;
            pass(secs(1)).await;
            assert_eq!(agent.phase("p-1"), "Running");
            world.clock.jump(jump);
            pass(secs(30)).await;
            assert_eq!(agent.phase("p-1"), "Failed", "after a jump of {jump} s");
            let agent = reboot(&world, agent, &pods).await;
            pass(secs(120)).await;
            let status = agent.board.get("p-1").unwrap().status;
            assert_eq!(status.phase.as_deref(), Some("Failed"));
            assert_eq!(status.reason.as_deref(), Some("DeadlineExceeded"));
            assert_eq!(world.runtime.journal().starts("p", "a"), 1);
            agent.want(&[]).await;
            pass(secs(30)).await;
            assert!(world.runtime.is_empty() && world.disk.lock().directories.is_empty());
            assert!(agent.board.get("p-1").is_none());
        });
    }
}

#[test]
fn a_completed_pod_stays_so_when_it_is_taken_away() {
    play(async {
        let world = World::new(5);
        world.runtime.script("p", "a", [Behaviour::exits(0, secs(1))]);
        let spec = PodSpec { restart_policy: Some("OnFailure".into()), ..one(vec![container("a")]) };
        let pods = [pod("p", 1, spec)];
        let agent = world.boot_with(&pods).await;
        pass(secs(5)).await;
        assert_eq!(agent.phase("p-1"), "Succeeded");
        let agent = reboot(&world, agent, &pods).await;
        pass(secs(5)).await;
        assert_eq!(agent.phase("p-1"), "Succeeded");
        let board = agent.board.clone();
        let mut changed = board.subscribe();
        let watch = tokio::spawn(async move {
            while changed.changed().await.is_ok() {
                if let Some(e) = board.get("p-1") {
                    assert_eq!(e.status.phase.as_deref(), Some("Succeeded"));
                }
            }
        });
        agent.want(&[]).await;
        pass(secs(20)).await;
        assert!(world.runtime.is_empty());
        assert_eq!(world.runtime.journal().starts("p", "a"), 1);
        assert!(!watch.is_finished());
        watch.abort();
    });
}

#[test]
fn a_shorter_grace_interrupts_a_stop_that_is_under_way() {
    play(async {
        let world = World::new(6);
        world.runtime.script("p", "a", [Behaviour::ignores_term()]);
        let running = pod("p", 1, one(vec![container("a")]));
        let deleted = |grace: i64| {
            let mut p = (*running).clone();
            p.metadata.deletion_timestamp = Some(Time(Default::default()));
            p.metadata.deletion_grace_period_seconds = Some(grace);
            Arc::new(p)
        };
        let agent = world.boot_with(std::slice::from_ref(&running)).await;
        pass(secs(5)).await;
        agent.want(&[deleted(600)]).await;
        pass(secs(10)).await;
        assert!(world.runtime.is_running("p", "a"));
        agent.want(&[deleted(20)]).await;
        pass(secs(5)).await;
        assert!(world.runtime.is_running("p", "a"), "ten of twenty seconds are left");
        pass(secs(8)).await;
        assert!(!world.runtime.is_running("p", "a"));
        assert_eq!(world.runtime.journal().graces("p", "a"), [600, 10]);
        agent.want(&[]).await;
        pass(secs(5)).await;
        assert!(world.runtime.is_empty(), "a deleted Pod that nobody lists leaves nothing");
    });
}

#[test]
fn static_pods_of_one_name_run_one_after_the_other() {
    play(async {
        let world = World::new(7);
        world.runtime.script("p", "a", [Behaviour::slow_to_stop(0, secs(3)), Behaviour::forever()]);
        let version = |n| [pod("p", n, one(vec![container("a")]))];
        let agent = world.boot_with(&version(1)).await;
        pass(secs(5)).await;
        agent.want(&version(2)).await;
        agent.want(&version(3)).await;
        pass(secs(20)).await;
        let journal = world.runtime.journal();
        let made: Vec<_> = journal.entries().iter().filter(|e| e.op == Op::RunSandbox).collect();
        let uids: Vec<&str> = made.iter().map(|e| e.pod_uid.as_str()).collect();
        assert_eq!(uids, ["p-1", "p-3"]);
        let gone = journal.entries().iter().find(|e| e.op == Op::RemoveSandbox).unwrap();
        assert!(gone.at <= made[1].at);
        assert_eq!(agent.phase("p-3"), "Running");
    });
}

#[test]
fn a_stranger_of_the_same_name_that_vanishes_by_itself_holds_nobody_up() {
    play(async {
        let world = World::new(8);
        let agent = world.boot_with(&[pod("p", 1, one(vec![container("a")]))]).await;
        pass(secs(5)).await;
        agent.crash();
        let agent = world.boot();
        pass(secs(1)).await;
        // Somebody else takes the old Pod away before any source has spoken.
        let sandbox = world.runtime.sandboxes()[0].id.clone();
        use kubelet::ports::Runtime;
        world.runtime.stop_pod_sandbox(&sandbox).await.unwrap();
        world.runtime.remove_pod_sandbox(&sandbox).await.unwrap();
        agent.want(&[pod("p", 2, one(vec![container("a")]))]).await;
        pass(secs(20)).await;
        assert_eq!(agent.phase("p-2"), "Running");
    });
}

#[test]
fn a_uid_that_comes_back_while_it_is_leaving_starts_afresh() {
    play(async {
        let world = World::new(9);
        let pods = [pod("p", 1, one(vec![container("a")]))];
        let agent = world.boot_with(&pods).await;
        pass(secs(5)).await;
        agent.want(&[]).await;
        agent.want(&pods).await;
        pass(secs(20)).await;
        assert_eq!(agent.phase("p-1"), "Running");
        assert_eq!(world.runtime.journal().starts("p", "a"), 2);
        assert_eq!(agent.node.metrics.restarted_pods_total.get(["true"]), 1.0);
    });
}

#[test]
fn restart_counts_go_on_when_the_runtime_forgets_the_dead() {
    play(async {
        let world = World::new(10);
        world.runtime.script("p", "a", [Behaviour::exits(1, secs(1))]);
        let agent = world.boot_with(&[pod("p", 1, one(vec![container("a")]))]).await;
        pass(secs(6)).await;
        assert_eq!(container_status(&agent, "p-1", "a").restart_count, 1);
        world.runtime.forget_dead();
        pass(secs(20)).await;
        let newest = world.runtime.containers().into_iter().max_by_key(|c| c.created_at).unwrap();
        assert!(newest.annotations["io.kubernetes.container.restartCount"].parse::<u32>().unwrap() >= 2);
        assert!(container_status(&agent, "p-1", "a").restart_count >= 2);
    });
}

fn restarts_all_on(code: i32) -> Container {
    Container {
        restart_policy: Some("Never".into()),
        restart_policy_rules: Some(vec![ContainerRestartRule {
            action: "RestartAllContainers".into(),
            exit_codes: Some(ContainerRestartRuleOnExitCodes {
                operator: "In".into(),
                values: Some(vec![code]),
            }),
        }]),
        ..container("a")
    }
}

#[test]
fn one_exit_restarts_all_containers_in_the_same_sandbox() {
    play(async {
        let world = World::new(11);
        world.runtime.script("p", "i", [Behaviour::exits(0, secs(1))]);
        world.runtime.script("p", "a", [Behaviour::exits(42, secs(5)), Behaviour::forever()]);
        let spec = PodSpec {
            init_containers: Some(vec![container("i")]),
            ..one(vec![restarts_all_on(42), container("b")])
        };
        let agent = world.boot_with(&[pod("p", 1, spec)]).await;
        pass(secs(30)).await;
        let journal = world.runtime.journal();
        for name in ["i", "a", "b"] {
            assert_eq!(journal.starts("p", name), 2, "{name}");
        }
        assert_eq!(count(&world, Op::RunSandbox), 1);
        assert_eq!(agent.phase("p-1"), "Running");
        for name in ["a", "b"] {
            assert_eq!(container_status(&agent, "p-1", name).restart_count, 1, "{name}");
        }
        let status = agent.board.get("p-1").unwrap().status;
        let restarting = status.conditions.iter().flatten().find(|c| c.type_ == "AllContainersRestarting");
        assert_eq!(restarting.unwrap().status, "False");
        assert!(world.runtime.violations().is_empty(), "{:?}", world.runtime.violations());
    });
}

#[test]
fn a_pod_that_restarts_itself_all_the_time_backs_off() {
    play(async {
        let world = World::new(12);
        world.runtime.script("p", "a", [Behaviour::exits(42, Duration::ZERO)]);
        let spec = one(vec![restarts_all_on(42), container("b")]);
        let agent = world.boot_with(&[pod("p", 1, spec)]).await;
        pass(secs(60)).await;
        let starts = world.runtime.journal().starts("p", "a");
        assert!((2..=5).contains(&starts), "{starts}");
        assert!(told(&agent, "p-1", "BackOff", "Back-off restarting failed container a") > 0);
    });
}

#[test]
fn a_volume_that_fails_is_told_and_tried_again() {
    play(async {
        let world = World::new(13);
        world.disk.lock().faults = 1.0;
        let volume = Volume {
            name: "v".into(),
            empty_dir: Some(EmptyDirVolumeSource::default()),
            ..Default::default()
        };
        let spec = PodSpec { volumes: Some(vec![volume]), ..one(vec![container("a")]) };
        let agent = world.boot_with(&[pod("p", 1, spec)]).await;
        pass(secs(20)).await;
        let text = "MountVolume.SetUp failed for volume \"simulated\" : simulated fault";
        assert!((2..10).contains(&told(&agent, "p-1", "FailedMount", text)));
        assert_eq!(agent.phase("p-1"), "Pending");
        world.disk.lock().faults = 0.0;
        pass(secs(15)).await;
        assert_eq!(agent.phase("p-1"), "Running");
    });
}

#[test]
fn pods_wait_for_the_network_unless_they_live_on_the_hosts() {
    play(async {
        let world = World::new(14);
        world.runtime.set_network_ready(false);
        let agent = world.boot();
        pass(secs(1)).await;
        let host = PodSpec { host_network: Some(true), ..one(vec![container("a")]) };
        agent.want(&[pod("p", 1, one(vec![container("a")])), pod("h", 1, host)]).await;
        pass(secs(5)).await;
        let text = "network is not ready: container runtime network not ready: NetworkReady=false reason:";
        assert!(told(&agent, "p-1", "NetworkNotReady", text) > 0, "{:?}", agent.recorder.of("p-1"));
        assert_eq!(agent.phase("p-1"), "Pending");
        assert!(world.runtime.is_running("h", "a"), "{:?}", agent.recorder.of("h-1"));
        // A runtime that falls silent has not said that its network is well.
        let before = agent.node.health.borrow().network_message.clone();
        world.runtime.restart(secs(20));
        pass(secs(10)).await;
        let silent = agent.node.health.borrow().clone();
        assert!(!silent.runtime_ready && !silent.network_ready);
        assert_eq!(silent.network_message, before);
        pass(secs(20)).await;
        world.runtime.set_network_ready(true);
        pass(secs(5)).await;
        assert_eq!(agent.phase("p-1"), "Running");
    });
}

#[test]
fn an_exit_is_seen_without_an_event() {
    // (quirks, every event is lost, seconds until it must be seen)
    for (quirks, lost, within) in [(Quirks::CONTAINERD_2_1, 1.0, 150), (Quirks::CONTAINERD_1_6, 0.0, 3)] {
        play(async {
            let world = World::new(15);
            world.runtime.set_quirks(quirks);
            world.runtime.set_faults(Faults { lost_event: lost, ..Faults::default() });
            let _agent = world.boot_with(&[pod("p", 1, one(vec![container("a")]))]).await;
            pass(secs(10)).await;
            assert!(world.runtime.crash("p", "a", 1, "Error"));
            pass(secs(within)).await;
            assert_eq!(world.runtime.journal().starts("p", "a"), 2);
        });
    }
}

#[test]
fn ready_survives_restarts_and_jumps_of_the_clock() {
    play(async {
        let world = World::new(16);
        let probe = Probe {
            exec: Some(ExecAction { command: Some(vec!["check".into()]) }),
            period_seconds: Some(5),
            ..Default::default()
        };
        let c = Container {
            readiness_probe: Some(probe.clone()),
            liveness_probe: Some(probe.clone()),
            startup_probe: Some(probe),
            ..container("a")
        };
        let pods = [pod("p", 1, one(vec![c]))];
        let mut agent = world.boot_with(&pods).await;
        pass(secs(60)).await;
        assert!(is_ready(&agent, "p-1"));
        for hours in [0, 4, -8, 3] {
            world.clock.jump(hours * 3600);
            agent = reboot(&world, agent, &pods).await;
            for step in 0..200 {
                pass(Duration::from_millis(100)).await;
                let seen = agent.board.get("p-1").is_some();
                assert!(!seen || is_ready(&agent, "p-1"), "{hours} h, step {step}");
            }
            assert!(is_ready(&agent, "p-1"));
        }
        assert_eq!(world.runtime.journal().starts("p", "a"), 1);
    });
}

#[test]
fn a_rejection_is_told_bare_and_shown_with_its_prefix() {
    play(async {
        let world = World::new(17);
        let requests = [("cpu".to_owned(), Quantity("100".into()))].into();
        let resources = Some(ResourceRequirements { requests: Some(requests), ..Default::default() });
        let mut p = (*pod("p", 1, one(vec![Container { resources, ..container("a") }]))).clone();
        p.metadata.annotations = None;
        let agent = world.boot_with(&[Arc::new(p)]).await;
        pass(secs(5)).await;
        let text = "Node didn't have enough resource: cpu";
        assert_eq!(told(&agent, "p-1", "OutOfcpu", text), 1, "{:?}", agent.recorder.of("p-1"));
        let status = agent.board.get("p-1").unwrap().status;
        assert_eq!(status.phase.as_deref(), Some("Failed"));
        assert_eq!(status.reason.as_deref(), Some("OutOfcpu"));
        assert!(status.message.as_ref().unwrap().starts_with(&format!("Pod was rejected: {text}")));
        assert_eq!((&status.container_statuses, &status.conditions), (&None, &None));
        assert_eq!(count(&world, Op::RunSandbox), 0);
    });
}

#[test]
fn a_pod_that_is_ending_still_holds_its_place() {
    play(async {
        let world = World::new(31);
        let large = |name: &str| {
            let requests = [("cpu".to_owned(), Quantity("3".into()))].into();
            let resources = Some(ResourceRequirements { requests: Some(requests), ..Default::default() });
            pod(name, 1, one(vec![Container { resources, ..container("a") }]))
        };
        world.runtime.script("p", "a", [Behaviour::ignores_term()]);
        let agent = world.boot_with(&[large("p")]).await;
        pass(secs(2)).await;
        agent.want(&[large("q")]).await;
        pass(secs(2)).await;
        assert!(world.runtime.is_running("p", "a"), "it is still ending");
        assert_eq!(agent.phase("q-1"), "Failed");
        // A Pod that was turned away holds nothing, and one that has ended neither.
        pass(secs(20)).await;
        agent.want(&[large("q"), large("r")]).await;
        pass(secs(2)).await;
        assert_eq!(agent.phase("r-1"), "Running");
    });
}

#[test]
fn a_hung_sandbox_does_not_keep_a_pod_that_is_to_end() {
    play(async {
        let world = World::new(32);
        world.runtime.set_quirks(Quirks { sandboxes_hang: true, ..Quirks::CONTAINERD_2_1 });
        let agent = world.boot_with(&[pod("p", 1, one(vec![container("a")]))]).await;
        pass(secs(5)).await;
        agent.want(&[]).await;
        pass(secs(5)).await;
        assert!(agent.board.get("p-1").is_some(), "the call is given a little time");
        pass(secs(10)).await;
        assert!(agent.board.get("p-1").is_none());
        let blocker = "error killing pod: the runtime took too long to make the sandbox";
        assert_eq!(told(&agent, "p-1", "FailedKillPod", blocker), 1, "{:?}", agent.recorder.of("p-1"));
    });
}

#[test]
fn a_crashed_container_does_not_wait_for_one_that_cannot_be_started() {
    play(async {
        let world = World::new(33);
        world.runtime.script_pull("sim/none:v1", Pull::fails(Code::NotFound, "no such image"));
        let names: Vec<String> = (0..10).map(|n| format!("p{n}")).collect();
        let broken = || Container { image: Some("sim/none:v1".into()), ..container("a") };
        let pods: Vec<_> = names.iter().map(|n| pod(n, 1, one(vec![broken(), container("b")]))).collect();
        for (after, name) in (20..).zip(&names) {
            world.runtime.script(name, "b", [Behaviour::exits(1, secs(after)), Behaviour::forever()]);
        }
        let _agent = world.boot_with(&pods).await;
        pass(secs(60)).await;
        let journal = world.runtime.journal();
        for name in &names {
            let moments = |op: Op| journal.of(name, "b").filter(move |e| e.op == op).map(|e| e.at);
            let exit = moments(Op::Exit { code: 1 }).next().unwrap();
            let again = moments(Op::Start).nth(1).unwrap();
            let waited = again.saturating_sub(exit);
            assert!(waited < secs(2), "{name} waited {waited:?}");
        }
    });
}

fn exec(command: &str) -> Option<LifecycleHandler> {
    let exec = Some(ExecAction { command: Some(vec![command.into()]) });
    Some(LifecycleHandler { exec, ..Default::default() })
}

#[test]
fn a_failed_post_start_hook_stops_the_container_as_any_other() {
    play(async {
        let world = World::new(18);
        let stops = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let seen = stops.clone();
        world.runtime.script_exec("p", "a", move |command, _| {
            if command == ["stop"] {
                seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                return Exec::exits(0);
            }
            Exec::exits(7)
        });
        let lifecycle = Lifecycle { post_start: exec("start"), pre_stop: exec("stop"), ..Default::default() };
        let c = Container { lifecycle: Some(lifecycle), ..container("a") };
        let agent = world.boot_with(&[pod("p", 1, one(vec![c]))]).await;
        pass(secs(3)).await;
        assert!(told(&agent, "p-1", "FailedPostStartHook", "PostStartHook failed") > 0);
        assert!(told(&agent, "p-1", "Killing", "FailedPostStartHook") > 0);
        assert!(stops.load(std::sync::atomic::Ordering::Relaxed) > 0, "preStop ran");
        assert!(!world.runtime.is_running("p", "a"));
    });
}

#[test]
fn an_exit_during_post_start_is_an_error_and_the_container_comes_back() {
    play(async {
        let world = World::new(19);
        world.runtime.script("p", "a", [Behaviour::exits(3, secs(2)), Behaviour::forever()]);
        world.runtime.script_exec("p", "a", |_, age| if age > secs(1) { Exec::exits(0) } else { Exec::Hang });
        let c = Container {
            lifecycle: Some(Lifecycle { post_start: exec("start"), ..Default::default() }),
            ..container("a")
        };
        let agent = world.boot_with(&[pod("p", 1, one(vec![c]))]).await;
        pass(secs(4)).await;
        assert!(told(&agent, "p-1", "FailedPostStartHook", "") > 0);
        assert!(world.runtime.journal().of("p", "a").any(|e| e.op == Op::Exit { code: 3 }));
        pass(secs(20)).await;
        assert!(world.runtime.journal().starts("p", "a") >= 2);
    });
}

#[test]
fn a_hung_pre_stop_ends_with_the_grace_and_is_no_failure() {
    play(async {
        let world = World::new(20);
        world.runtime.script_exec("p", "a", |_, _| Exec::Hang);
        let c = Container {
            lifecycle: Some(Lifecycle { pre_stop: exec("stop"), ..Default::default() }),
            ..container("a")
        };
        let agent = world.boot_with(&[pod("p", 1, one(vec![c]))]).await;
        pass(secs(3)).await;
        agent.want(&[]).await;
        pass(secs(10)).await;
        assert!(world.runtime.is_empty());
        assert_eq!(world.runtime.journal().graces("p", "a"), [2]);
        assert_eq!(told(&agent, "p-1", "FailedPreStopHook", ""), 0);
    });
}

#[test]
fn lost_replies_never_make_two_of_anything() {
    for seed in 100..140 {
        play(async {
            let world = World::new(seed);
            world.runtime.set_faults(Faults { lost_reply: 0.3, ..Faults::default() });
            let agent = world.boot_with(&[pod("p", 1, one(vec![container("a"), container("b")]))]).await;
            pass(secs(120)).await;
            world.runtime.set_faults(Faults::default());
            pass(secs(30)).await;
            assert_eq!(agent.phase("p-1"), "Running", "seed {seed}");
            let journal = world.runtime.journal();
            assert!(world.runtime.violations().is_empty(), "seed {seed}: {:?}", world.runtime.violations());
            assert_eq!((journal.starts("p", "a"), journal.starts("p", "b")), (1, 1), "seed {seed}");
            assert_eq!(count(&world, Op::RunSandbox), 1, "seed {seed}");
        });
    }
}

#[test]
fn a_thousand_pods_that_came_and_went_are_forgotten() {
    play(async {
        let world = World::new(21);
        let agent = world.boot_with(&[]).await;
        for round in 0..20 {
            let pods: Vec<_> =
                (0..50).map(|n| pod(&format!("p{n}"), round * 50 + n, one(vec![container("a")]))).collect();
            agent.want(&pods).await;
            pass(secs(10)).await;
            agent.want(&[]).await;
            pass(secs(20)).await;
        }
        assert_eq!(count(&world, Op::RunSandbox), 1000);
        assert!(world.runtime.is_empty());
        assert!(agent.board.all().is_empty());
        assert_eq!((agent.node.observer.watched(), agent.node.prober.pods()), (0, 0));
        assert!(world.disk.lock().directories.is_empty());
    });
}

#[test]
fn exits_and_steps_are_counted() {
    play(async {
        let world = World::new(22);
        world.runtime.script("p", "a", [Behaviour::exits(1, secs(2)), Behaviour::forever()]);
        let pods = [pod("p", 1, one(vec![container("a")]))];
        let agent = world.boot_with(&pods).await;
        pass(secs(10)).await;
        let metrics = &agent.node.metrics;
        assert_eq!(metrics.terminated_containers_total.get(["container", "1", "Error"]), 1.0);
        assert_eq!(metrics.working_pods.get(["sync", "desired", "true"]), 1.0);
        assert_eq!(metrics.pod_worker_duration_seconds.count(["create"]), 1);
        assert_eq!(metrics.pod_worker_start_duration_seconds.count([]), 1);
        assert_eq!(metrics.pod_start_duration_seconds.count([]), 1);
        let agent = reboot(&world, agent, &pods).await;
        pass(secs(10)).await;
        let metrics = &agent.node.metrics;
        assert_eq!(metrics.terminated_containers_total.get(["container", "1", "Error"]), 0.0, "old news");
        agent.want(&[]).await;
        pass(secs(10)).await;
        assert_eq!(agent.node.metrics.pod_worker_duration_seconds.count(["kill"]), 1);
        assert_eq!(agent.node.metrics.working_pods.get(["sync", "desired", "true"]), 0.0);
    });
}

#[test]
fn the_usual_image_is_present() {
    // The other tests lean on this: a Pod of the usual image needs no pull.
    play(async {
        let world = World::new(23);
        let agent = world.boot_with(&[pod("p", 1, one(vec![container("a")]))]).await;
        pass(secs(5)).await;
        assert_eq!(count(&world, Op::Pull), 0);
        let text = format!("Container image {IMAGE:?} already present on machine");
        assert_eq!(told(&agent, "p-1", "Pulled", &text), 1);
        let reasons: Vec<String> = agent.recorder.of("p-1").into_iter().map(|e| e.reason).collect();
        assert_eq!(reasons, ["MissingClusterDNS", "Pulled", "Created", "Started"]);
    });
}

#[test]
fn a_clock_set_back_between_two_instances_does_not_make_the_dead_one_the_newest() {
    play(async {
        let world = World::new(24);
        world.runtime.script("p", "a", [Behaviour::exits(1, secs(5)), Behaviour::forever()]);
        let _agent = world.boot_with(&[pod("p", 1, one(vec![container("a")]))]).await;
        pass(secs(3)).await;
        world.clock.jump(-7200);
        pass(secs(60)).await;
        assert_eq!(world.runtime.journal().starts("p", "a"), 2);
        assert!(world.runtime.is_running("p", "a"));
    });
}

#[test]
fn a_critical_pod_waits_for_its_victims() {
    play(async {
        let world = World::new(70);
        world.runtime.script("victim", "a", [Behaviour::ignores_term()]);
        let asks = |name: &str| Container {
            resources: Some(ResourceRequirements {
                requests: Some([("cpu".to_owned(), Quantity("3".into()))].into()),
                ..Default::default()
            }),
            ..container(name)
        };
        let victim = PodSpec { termination_grace_period_seconds: Some(20), ..one(vec![asks("a")]) };
        let vital = PodSpec {
            priority_class_name: Some("system-node-critical".into()),
            priority: Some(2_000_001_000),
            ..one(vec![asks("b")])
        };
        let (victim, vital) = (pod("victim", 1, victim), pod("vital", 1, vital));
        let as_api = |p: &Arc<Pod>| {
            let mut p = (**p).clone();
            p.metadata.annotations = None;
            Arc::new(p)
        };
        let (victim, vital) = (as_api(&victim), as_api(&vital));
        let agent = world.boot_with(std::slice::from_ref(&victim)).await;
        pass(secs(5)).await;
        assert_eq!(agent.phase("victim-1"), "Running");
        agent.want(&[victim.clone(), vital.clone()]).await;
        pass(secs(15)).await;
        assert!(world.runtime.is_running("victim", "a"), "it has its grace");
        assert_eq!(world.runtime.journal().starts("vital", "b"), 0);
        // Its place is taken already.
        let third = as_api(&pod("third", 1, one(vec![asks("c")])));
        agent.want(&[victim, vital, third]).await;
        pass(secs(15)).await;
        assert!(world.runtime.is_running("vital", "b"));
        assert_eq!(agent.phase("victim-1"), "Failed");
        assert_eq!(agent.phase("third-1"), "Failed");
        let journal = world.runtime.journal();
        let exit = journal.entries().iter().find(|e| matches!(e.op, Op::Exit { .. }) && e.container == "a");
        let begun = journal.entries().iter().find(|e| e.op == Op::RunSandbox && e.pod_uid == "vital-1");
        assert!(exit.unwrap().at <= begun.unwrap().at);
        assert_eq!(told(&agent, "victim-1", "ExceededGracePeriod", ""), 0);
    });
}

#[test]
fn a_victim_that_does_not_go_is_told_of_and_waited_for_no_more() {
    play(async {
        let world = World::new(71);
        let asks = |name: &str| Container {
            resources: Some(ResourceRequirements {
                requests: Some([("cpu".to_owned(), Quantity("3".into()))].into()),
                ..Default::default()
            }),
            ..container(name)
        };
        let vital = PodSpec { priority: Some(2_000_001_000), ..one(vec![asks("b")]) };
        let (victim, vital) = (pod("victim", 1, one(vec![asks("a")])), pod("vital", 1, vital));
        let mut plain = (*victim).clone();
        plain.metadata.annotations = None;
        let victim = Arc::new(plain);
        let agent = world.boot_with(std::slice::from_ref(&victim)).await;
        pass(secs(5)).await;
        world.disk.lock().stuck = true;
        agent.want(&[victim, vital]).await;
        pass(secs(8)).await;
        assert_eq!(world.runtime.journal().starts("vital", "b"), 0);
        pass(secs(10)).await;
        assert!(world.runtime.is_running("vital", "b"));
        assert_eq!(told(&agent, "victim-1", "ExceededGracePeriod", "Container runtime did not kill"), 1);
    });
}
