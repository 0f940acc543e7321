//! The rules one by one.

use k8s_openapi::api::core::v1::{ContainerState as State, PodCondition, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use proptest::prelude::*;

use super::*;

fn phase(status: &PodStatus) -> &str {
    status.phase.as_deref().unwrap_or_default()
}

fn condition<'s>(status: &'s PodStatus, kind: &str) -> &'s PodCondition {
    status.conditions.iter().flatten().find(|c| c.type_ == kind).expect("the condition is there")
}

/// `True`, or `False:<reason>`.
fn short(status: &PodStatus, kind: &str) -> String {
    let c = condition(status, kind);
    c.reason.as_ref().map_or(c.status.clone(), |r| format!("{}:{r}", c.status))
}

fn two(policy: &str) -> String {
    format!(
        "restartPolicy: {policy}\ncontainers: [{{name: app, image: 'app:1'}}, {{name: db, image: 'db:1'}}]"
    )
}

#[test]
fn the_phase() {
    use ContainerState::{Created, Unknown};
    let init = |policy: &str| {
        format!("restartPolicy: {policy}\ninitContainers: [{{name: setup, image: 'setup:1'}}]\n{APP}")
    };
    let side = |policy: &str| {
        format!(
            "restartPolicy: {policy}\ninitContainers: [{{name: mesh, image: 'mesh:1', restartPolicy: Always}}]\n{APP}"
        )
    };
    let odd = |state, c: Instance| Instance { state, ..c };
    let table: Vec<(&str, String, Vec<Instance>, &str)> = vec![
        ("nothing yet", two("Always"), vec![], "Pending"),
        ("one of two", two("Always"), vec![instance("app")], "Pending"),
        ("created only", two("Always"), vec![instance("app"), odd(Created, instance("db"))], "Pending"),
        ("both", two("Always"), vec![instance("app"), instance("db")], "Running"),
        ("one died, Always", two("Always"), vec![instance("app"), exited("db", 1)], "Running"),
        ("one died, Never", two("Never"), vec![instance("app"), exited("db", 1)], "Running"),
        ("both died, Always", two("Always"), vec![exited("app", 0), exited("db", 1)], "Running"),
        ("both died, OnFailure", two("OnFailure"), vec![exited("app", 0), exited("db", 1)], "Running"),
        ("both died, Never", two("Never"), vec![exited("app", 0), exited("db", 1)], "Failed"),
        ("both done, Never", two("Never"), vec![exited("app", 0), exited("db", 0)], "Succeeded"),
        ("both done, OnFailure", two("OnFailure"), vec![exited("app", 0), exited("db", 0)], "Succeeded"),
        ("both done, Always", two("Always"), vec![exited("app", 0), exited("db", 0)], "Running"),
        ("unknown", two("Always"), vec![instance("app"), odd(Unknown, instance("db"))], "Pending"),
        ("init runs", init("Always"), vec![instance("setup")], "Pending"),
        ("init done", init("Always"), vec![exited("setup", 0)], "Pending"),
        ("init failed, Always", init("Always"), vec![exited("setup", 1)], "Pending"),
        ("init failed, Never", init("Never"), vec![exited("setup", 1)], "Failed"),
        ("init over", init("Always"), vec![instance("app"), exited("setup", 0)], "Running"),
        ("init forgotten", init("Always"), vec![instance("app")], "Running"),
        ("sidecar only", side("Never"), vec![instance("mesh")], "Pending"),
        ("sidecar and app", side("Never"), vec![instance("app"), instance("mesh")], "Running"),
        ("sidecar outlives app", side("Never"), vec![exited("app", 0), instance("mesh")], "Running"),
        (
            "a dead sidecar does not count",
            side("Never"),
            vec![exited("app", 0), exited("mesh", 9)],
            "Succeeded",
        ),
        ("a sidecar restarts", side("Never"), vec![instance("app"), exited("mesh", 9)], "Running"),
        (
            "edited when it had ended, Never",
            two("Never"),
            vec![Instance { hash: Some(1), ..exited("app", 143) }, exited("db", 0)],
            "Failed",
        ),
    ];
    for (what, spec, containers, want) in table {
        assert_eq!(phase(&Case::new(&spec, containers).status()), want, "{what}");
    }
}

#[test]
fn what_was_stopped_because_it_was_edited_has_not_ended() {
    let mut case = Case::new(&two("Never"), vec![exited("app", 143), exited("db", 0)]);
    case.replaced.insert("app-0".into());
    case.waiting.insert("app".into(), wait("ErrImagePull", "no such image"));
    let status = case.status();
    assert_eq!(phase(&status), "Running");
    let app = &status.container_statuses.as_ref().expect("statuses")[0];
    let waits = app.state.as_ref().and_then(|s| s.waiting.as_ref()).and_then(|w| w.reason.as_deref());
    assert_eq!(waits, Some("ErrImagePull"));
}

#[test]
fn a_pod_whose_next_instance_waits_for_its_start_has_not_ended() {
    for policy in ["OnFailure", "Never"] {
        // Stopped by its liveness probe, it said 0; the start of the next one failed and is held back.
        let next = Instance { state: ContainerState::Created, restart_count: 1, ..instance("app") };
        let mut case = Case::new(&two(policy), vec![next, exited("app", 0), exited("db", 0)]);
        case.waiting.insert("app".into(), wait("CrashLoopBackOff", "back-off 10s"));
        assert_eq!(phase(&case.status()), "Running", "{policy}");
    }
}

#[test]
fn an_ending_pod_gets_a_terminal_phase_once_nothing_runs() {
    let mut case = Case::new(&two("Always"), vec![instance("app"), exited("db", 0)]);
    case.publish();
    case.stage = Stage::Terminating;
    case.kill = Some(KillCause::Deleted);
    assert_eq!(phase(&case.publish()), "Running");
    case.observed.containers = vec![exited("app", 0), exited("db", 0)];
    assert_eq!(phase(&case.status()), "Succeeded");
    case.observed.containers = vec![exited("app", 137), exited("db", 0)];
    assert_eq!(phase(&case.status()), "Failed");
    // A static Pod only goes away.
    case.pod.metadata.annotations = Some([("kubernetes.io/config.source".into(), "file".into())].into());
    assert_eq!(phase(&case.status()), "Running");
}

#[test]
fn what_never_ran_ends_failed() {
    let mut case = Case::new(&two("Always"), vec![]);
    case.publish();
    (case.stage, case.kill) = (Stage::Terminated, Some(KillCause::Deleted));
    let status = case.status();
    assert_eq!(phase(&status), "Failed");
    assert_eq!(short(&status, "Ready"), "False:PodFailed");
}

#[test]
fn a_static_pod_that_never_ran_stays_pending_to_its_end() {
    let mut case = Case::new(&two("Always"), vec![]);
    let source = ("kubernetes.io/config.source".to_owned(), "file".to_owned());
    case.pod.metadata.annotations.get_or_insert_default().extend([source]);
    case.publish();
    (case.stage, case.kill) = (Stage::Terminated, Some(KillCause::Removed));
    let status = case.status();
    assert_eq!(phase(&status), "Pending");
    let ended = status
        .container_statuses
        .iter()
        .flatten()
        .filter(|s| s.state.as_ref().is_some_and(|s| s.terminated.is_some()));
    assert_eq!(ended.count(), 2);
}

#[test]
fn a_kill_by_the_node_is_said_only_when_nothing_runs() {
    let mut case = Case::new(APP, vec![instance("app")]);
    case.publish();
    (case.stage, case.kill) = (Stage::Terminating, Some(KillCause::DeadlineExceeded));
    let status = case.publish();
    assert_eq!((phase(&status), status.reason.as_deref()), ("Running", None));
    case.observed.containers = vec![exited("app", 0)];
    let status = case.publish();
    assert_eq!((phase(&status), status.reason.as_deref()), ("Failed", Some("DeadlineExceeded")));
    let text = "Pod was active on the node longer than the specified deadline";
    assert_eq!(status.message.as_deref(), Some(text));
    // And it stays said.
    (case.stage, case.kill) = (Stage::Terminated, None);
    assert_eq!(case.status().reason.as_deref(), Some("DeadlineExceeded"));
}

#[test]
fn terminal_phases_are_sticky() {
    for old in ["Succeeded", "Failed"] {
        let mut case = Case::new(APP, vec![instance("app")]);
        case.previous.phase = Some(old.into());
        case.previous.reason = Some("Because".into());
        let status = case.status();
        assert_eq!((phase(&status), status.reason.as_deref()), (old, Some("Because")));
        // Also those that somebody else wrote, with what he said of it.
        case.pod.status = Some(from_yaml(&format!("{{phase: {old}, reason: Evicted, message: by another}}")));
        for before in [PodStatus::default(), from_yaml("{phase: Running, reason: Because, message: why}")] {
            case.previous = before;
            let status = case.status();
            assert_eq!((phase(&status), status.reason.as_deref()), (old, Some("Evicted")));
            assert_eq!(status.message.as_deref(), Some("by another"));
        }
    }
}

#[test]
fn readiness_follows_probes_and_their_start_values() {
    let spec = "containers: [{name: app, image: 'app:1', readinessProbe: {tcpSocket: {port: 1}}, startupProbe: {tcpSocket: {port: 1}}}]";
    let say = |startup, readiness| Verdict { startup, readiness, ..Default::default() };
    for (verdict, started, ready) in [
        (say(None, None), false, false),
        (say(None, Some(true)), false, false),
        (say(Some(true), None), true, false),
        (say(Some(true), Some(false)), true, false),
        (say(Some(true), Some(true)), true, true),
        (say(Some(false), Some(true)), false, false),
    ] {
        let mut case = Case::new(spec, vec![instance("app")]);
        case.verdicts.insert("app-0".into(), verdict);
        let status = case.status();
        let app = &status.container_statuses.as_ref().expect("statuses")[0];
        assert_eq!((app.started, app.ready), (Some(started), ready), "{verdict:?}");
        let want = if ready { "True".into() } else { "False:ContainersNotReady".to_owned() };
        assert_eq!(short(&status, "Ready"), want);
    }
}

#[test]
fn while_nobody_looks_only_readiness_changes() {
    let mut case =
        Case::new(STAGED, vec![instance("app"), instance("web"), instance("mesh"), exited("zeta", 0)]);
    let says = |good| Verdict { startup: Some(true), readiness: Some(good), ..Default::default() };
    case.verdicts = ["web-0", "mesh-0"].map(|id| (id.into(), says(true))).into();
    let before = case.publish();
    assert_eq!(short(&before, "Ready"), "True");
    (case.now, case.stage, case.kill) = (2_000, Stage::Terminating, Some(KillCause::Deleted));
    assert_eq!(case.readiness(), before, "nothing was said");
    case.verdicts.insert("web-0".into(), says(false));
    let mut after = case.readiness();
    for kind in ["Ready", "ContainersReady"] {
        assert_eq!(short(&after, kind), "False:ContainersNotReady");
        assert_eq!(condition(&after, kind).message.as_deref(), Some("containers with unready status: [web]"));
        let since = condition(&after, kind).last_transition_time.as_ref();
        assert_eq!(since.map(|t| t.0.as_second()), Some(2_000));
    }
    let ready: Vec<bool> = after.container_statuses.iter().flatten().map(|s| s.ready).collect();
    assert_eq!(ready, [true, false]);
    // The rest is as it was, and a look says the same.
    assert_eq!(case.status().conditions, after.conditions);
    case.verdicts.insert("web-0".into(), says(true));
    case.previous = after;
    after = case.readiness();
    for c in after.conditions.iter_mut().flatten() {
        let old = condition(&before, &c.type_).last_transition_time.clone();
        c.last_transition_time = old;
    }
    assert_eq!(after, before);
}

#[test]
fn an_agent_that_restarts_changes_no_readiness() {
    let spec = "containers: [{name: app, image: 'app:1', readinessProbe: {tcpSocket: {port: 1}}, startupProbe: {tcpSocket: {port: 1}}}]";
    let mut case = Case::new(spec, vec![instance("app")]);
    case.verdicts
        .insert("app-0".into(), Verdict { startup: Some(true), readiness: Some(true), ..Default::default() });
    let before = case.publish();
    case.verdicts.clear();
    case.now += 60;
    assert_eq!(case.status(), before);
    // Another instance must prove itself anew.
    case.observed.containers[0].id = "app-1".into();
    assert!(!case.status().container_statuses.expect("statuses")[0].ready);
}

#[test]
fn sidecars_count_for_readiness_and_init_containers_do_not() {
    let mut case =
        Case::new(STAGED, vec![instance("app"), instance("web"), instance("mesh"), exited("zeta", 0)]);
    let good = Verdict { startup: Some(true), readiness: Some(true), ..Default::default() };
    case.verdicts.insert("web-0".into(), good);
    let status = case.status();
    assert_eq!(short(&status, "ContainersReady"), "False:ContainersNotReady");
    let text = "containers with unready status: [mesh]";
    assert_eq!(condition(&status, "Ready").message.as_deref(), Some(text));
    case.verdicts.insert("mesh-0".into(), good);
    assert_eq!(short(&case.status(), "Ready"), "True");
}

#[test]
fn readiness_gates() {
    let spec = format!("readinessGates: [{{conditionType: example.com/lb}}]\n{APP}");
    let mut case = Case::new(&spec, vec![instance("app")]);
    let status = case.status();
    assert_eq!(short(&status, "ContainersReady"), "True");
    assert_eq!(short(&status, "Ready"), "False:ReadinessGatesNotReady");
    let text = "corresponding condition of pod readiness gate \"example.com/lb\" does not exist.";
    assert_eq!(condition(&status, "Ready").message.as_deref(), Some(text));
    for (gate, want) in [("False", "False:ReadinessGatesNotReady"), ("True", "True")] {
        case.pod.status = Some(from_yaml(&format!(
            "conditions: [{{type: example.com/lb, status: '{gate}'}}, {{type: Ready, status: Unknown}}]"
        )));
        let status = case.status();
        assert_eq!(short(&status, "Ready"), want);
        assert_eq!(condition(&status, "example.com/lb").status, gate, "foreign conditions stay");
    }
}

#[test]
fn conditions_of_the_stages() {
    let mut case = Case::new(STAGED, vec![]);
    case.observed.sandboxes.clear();
    let status = case.status();
    assert_eq!(short(&status, "PodScheduled"), "True");
    assert_eq!(short(&status, "PodReadyToStartContainers"), "False");
    assert_eq!(short(&status, "Initialized"), "False:ContainersNotInitialized");
    let text = "containers with incomplete status: [zeta mesh]";
    assert_eq!(condition(&status, "Initialized").message.as_deref(), Some(text));
    case.observed = Case::new(STAGED, vec![instance("app"), exited("mesh", 1), exited("zeta", 0)]).observed;
    let status = case.status();
    assert_eq!(short(&status, "PodReadyToStartContainers"), "True");
    assert_eq!(short(&status, "Initialized"), "True", "a restarting sidecar does not undo it");
    case.previous = status;
    case.observed = Case::new(STAGED, vec![instance("zeta")]).observed;
    assert_eq!(short(&case.status(), "Initialized"), "True", "nor does a new sandbox");
    for (code, init, ready) in [(0, "True:PodCompleted", "PodCompleted"), (1, "True", "PodFailed")] {
        let case = Case::new(&format!("restartPolicy: Never\n{APP}"), vec![exited("app", code)]);
        let status = case.status();
        assert_eq!(short(&status, "Initialized"), init);
        assert_eq!(short(&status, "Ready"), format!("False:{ready}"));
        assert_eq!(short(&status, "ContainersReady"), format!("False:{ready}"));
    }
}

#[test]
fn transition_times_move_only_when_the_status_flips() {
    let mut case = Case::new(APP, vec![instance("app")]);
    let first = case.publish();
    case.now = 2_000;
    let same = case.publish();
    assert_eq!(first, same);
    case.observed.containers = vec![exited("app", 1)];
    let then = case.status();
    let at =
        |s: &PodStatus, kind: &str| condition(s, kind).last_transition_time.as_ref().map(|t| t.0.as_second());
    assert_eq!((at(&then, "Ready"), at(&then, "Initialized")), (Some(2_000), Some(1_000)));
    assert_eq!(then.start_time, first.start_time);
    assert_eq!(condition(&then, "Ready").observed_generation, Some(3));
    assert_eq!(then.observed_generation, Some(3));
}

#[test]
fn restart_counts_and_last_states_survive_the_runtimes_amnesia() {
    let terminated = |s: &Option<State>| s.as_ref().and_then(|s| s.terminated.clone());
    let mut case = Case::new(APP, vec![Instance { restart_count: 4, ..instance("app") }]);
    case.publish();
    case.observed.containers.clear();
    let gone = case.publish();
    let app = &gone.container_statuses.as_ref().expect("statuses")[0];
    let last = terminated(&app.last_state).expect("a last state");
    assert_eq!((last.exit_code, last.reason.as_deref()), (137, Some("ContainerStatusUnknown")));
    assert_eq!(app.restart_count, 5);
    assert_eq!(case.publish(), gone, "counted once");
    case.observed.containers = vec![Instance { id: "app-1".into(), ..instance("app") }];
    let back = case.publish();
    let app = &back.container_statuses.as_ref().expect("statuses")[0];
    assert_eq!(app.restart_count, 5);
    assert_eq!(terminated(&app.last_state), Some(last));
    // A collected instance stays in the status as it ended.
    case.observed.containers = vec![Instance { id: "app-1".into(), ..exited("app", 3) }];
    let ended = case.publish();
    case.observed.containers.clear();
    assert_eq!(case.status().container_statuses, ended.container_statuses);
}

#[test]
fn termination_messages_share_a_budget() {
    let six = (0..6).map(|i| format!("{{name: c{i}, image: 'c{i}:1'}}")).collect::<Vec<_>>().join(", ");
    let long = |name: &str| Instance { termination_message: "é".repeat(4_000), ..exited(name, 1) };
    let case = Case::new(&format!("containers: [{six}]"), (0..6).map(|i| long(&format!("c{i}"))).collect());
    let one = Case::new(APP, vec![long("app")]);
    for (case, limit) in [(case, 2_048), (one, 4_096)] {
        for s in case.status().container_statuses.expect("statuses") {
            let message = s.state.and_then(|s| s.terminated).and_then(|t| t.message).expect("a message");
            assert_eq!(message.len(), limit);
        }
    }
}

#[test]
fn addresses() {
    let ips = |s: &PodStatus| s.pod_ips.iter().flatten().map(|p| p.ip.clone()).collect::<Vec<_>>();
    let mut case = Case::new(&format!("hostNetwork: true\n{APP}"), vec![]);
    assert_eq!(ips(&case.publish()), ["192.0.2.1"]);
    case.host_ips = vec!["192.0.2.99".parse().expect("ip"), "2001:db8::1".parse().expect("ip")];
    assert_eq!(ips(&case.publish()), ["192.0.2.1", "2001:db8::1"], "immutable, but a family may join");
    let mut case = Case::new(APP, vec![instance("app")]);
    case.host_ips = vec!["2001:db8::1".parse().expect("ip")];
    case.observed.sandboxes[0].ips = ["10.0.0.7", "2001:db8::7"].map(|i| i.parse().expect("ip")).to_vec();
    assert_eq!(ips(&case.publish()), ["2001:db8::7", "10.0.0.7"]);
    case.observed.sandboxes[0].ready = false;
    assert_eq!(ips(&case.status()), ["2001:db8::7", "10.0.0.7"], "kept after the end");
}

#[test]
fn at_the_end_every_started_container_has_ended() {
    let mut case = Case::new(&two("Always"), vec![instance("app"), instance("db")]);
    case.publish();
    (case.stage, case.kill) = (Stage::Terminated, Some(KillCause::Deleted));
    for s in case.status().container_statuses.expect("statuses") {
        let end = s.state.and_then(|s| s.terminated).expect("ended");
        assert_eq!((end.exit_code, end.reason.as_deref()), (137, Some("ContainerStatusUnknown")));
    }
}

#[test]
fn a_pod_tells_what_it_has_as_a_whole() {
    let spec = |cpu: &str| {
        format!(
            "containers:\n- {{name: app, image: 'app:1', resources: {{requests: {{cpu: {cpu}, memory: 16Mi, \
             ephemeral-storage: 1Gi}}, limits: {{cpu: '1'}}}}}}\n- {{name: db, image: 'db:1'}}\n\
             overhead: {{memory: 16Mi}}"
        )
    };
    let list = |list: &Option<BTreeMap<String, Quantity>>| -> String {
        let all: Vec<String> = list.iter().flatten().map(|(name, q)| format!("{name}={}", q.0)).collect();
        all.join(" ")
    };
    let mut case = Case::new(&spec("100m"), vec![]);
    let waiting = case.publish().resources.expect("resources");
    assert_eq!(list(&waiting.requests), "cpu=100m ephemeral-storage=1Gi memory=32Mi");
    case.observed.containers = vec![instance("app"), instance("db")];
    let status = case.publish();
    assert_eq!(list(&status.allocated_resources), "cpu=100m ephemeral-storage=1Gi memory=32Mi");
    let resources = status.resources.expect("resources");
    assert_eq!(list(&resources.requests), "cpu=100m memory=32Mi", "of one that runs, what its cgroup bounds");
    assert_eq!(list(&resources.limits), "cpu=1");
    let statuses = status.container_statuses.expect("statuses");
    assert_eq!(statuses[1].resources, Some(ResourceRequirements::default()), "none, which is said");
    // What was granted and is not in force counts as granted alone.
    case.pod.spec = crate::testing::pod_yaml(&spec("200m")).spec;
    case.actuated = Some(PodResources::of(&crate::testing::pod_yaml(&spec("100m"))));
    let status = case.publish();
    assert_eq!(list(&status.allocated_resources), "cpu=200m ephemeral-storage=1Gi memory=32Mi");
    assert_eq!(list(&status.resources.expect("resources").requests), "cpu=100m memory=32Mi");
}

#[test]
fn a_resize_tells_who_asked_for_it_and_since_when() {
    let mut case = Case::new(APP, vec![instance("app")]);
    let shown = |case: &mut Case, kind: &str| {
        let status = case.publish();
        let c = status.conditions.into_iter().flatten().find(|c| c.type_ == kind)?;
        let since = c.last_transition_time.expect("a time").0.as_second();
        Some((c.status, c.reason, c.message, c.observed_generation, since))
    };
    assert_eq!(shown(&mut case, "PodResizePending"), None);
    let pending = |reason, message: &str| Pending { reason, message: message.into(), generation: Some(2) };
    let row = |reason: &str, message: &str, since| {
        let text = |t: &str| (!t.is_empty()).then(|| t.to_owned());
        Some(("True".to_owned(), text(reason), text(message), Some(2), since))
    };
    for (now, is, want) in [
        (1_000, pending(PendingReason::Deferred, "full"), row("Deferred", "full", 1_000)),
        (1_010, pending(PendingReason::Deferred, "fuller"), row("Deferred", "fuller", 1_000)),
        (1_020, pending(PendingReason::Infeasible, "never"), row("Infeasible", "never", 1_020)),
    ] {
        (case.now, case.pending) = (now, Some(is));
        assert_eq!(shown(&mut case, "PodResizePending"), want);
    }
    case.pending = None;
    assert_eq!(shown(&mut case, "PodResizePending"), None);
    let error = |text: &str| Some(text.to_owned());
    for (now, error, want) in [
        (1_030, None, row("", "", 1_030)),
        (1_040, error("in use"), row("Error", "in use", 1_040)),
        (1_050, error("still"), row("Error", "still", 1_040)),
    ] {
        (case.now, case.resizing) = (now, Some(InProgress { generation: Some(2), error }));
        assert_eq!(shown(&mut case, "PodResizeInProgress"), want);
    }
    case.observed.containers = vec![exited("app", 0)];
    case.pod.spec.as_mut().expect("spec").restart_policy = Some("Never".into());
    assert_eq!(shown(&mut case, "PodResizeInProgress"), None, "a Pod that is over");
}

#[test]
fn a_container_shows_what_is_in_force() {
    let granted = "{requests: {cpu: 200m, memory: 2Gi}, limits: {cpu: '1', memory: 4Gi}}";
    let told = "{requests: {cpu: 100m, memory: 1Gi}, limits: {cpu: 500m, memory: 3Gi}}";
    let spec =
        |resources: &str| format!("containers: [{{name: app, image: 'app:1', resources: {resources}}}]");
    let record = |resources: &str| Some(PodResources::of(&pod_yaml(&spec(resources))));
    let applied = |shares, quota, memory| {
        Some(Resources { cpu_shares: shares, cpu_quota: quota, cpu_period: 100_000, memory_limit: memory })
    };
    for (granted, told, applied, want) in [
        // What the runtime says counts; of a request for memory it knows nothing.
        (
            granted,
            Some(told),
            applied(154, 70_000, 5 << 30),
            "cpu=151m memory=1Gi; cpu=700m memory=5368709120",
        ),
        (granted, Some(told), applied(205, 100_000, 4 << 30), "cpu=201m memory=1Gi; cpu=1 memory=4Gi"),
        (granted, Some(granted), applied(204, 100_000, 4 << 30), "cpu=200m memory=2Gi; cpu=1 memory=4Gi"),
        // A runtime that says nothing: as it was last told.
        (granted, Some(told), None, "cpu=100m memory=1Gi; cpu=500m memory=3Gi"),
        (granted, None, None, "cpu=200m memory=2Gi; cpu=1 memory=4Gi"),
        // The kernel's floors are not shown, as long as nothing above them was granted.
        ("{requests: {cpu: 1m}, limits: {cpu: 5m}}", None, applied(2, 1_000, 0), "cpu=1m; cpu=5m"),
        ("{requests: {cpu: 3m}, limits: {cpu: 20m}}", None, applied(2, 1_000, 0), "cpu=2m; cpu=10m"),
        // No limit is made up.
        ("{requests: {cpu: 100m}}", None, applied(103, 70_000, 1 << 30), "cpu=101m; "),
    ] {
        let running = Instance { resources: applied, ..instance("app") };
        let mut case = Case::new(&spec(granted), vec![running]);
        case.actuated = told.and_then(record);
        let status = case.status().container_statuses.expect("statuses").remove(0);
        let resources = status.resources.expect("resources");
        let list = |list: Option<BTreeMap<String, Quantity>>| -> String {
            let all = list.into_iter().flatten().map(|(name, q)| format!("{name}={}", q.0));
            all.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(format!("{}; {}", list(resources.requests), list(resources.limits)), want, "{granted}");
    }
}

proptest! {
    #[test]
    fn any_history_keeps_its_promises(
        steps in prop::collection::vec((0..4usize, 0..3i32, any::<bool>(), any::<bool>()), 1..12),
        policy in prop::sample::select(vec!["Always", "OnFailure", "Never"]),
        end_at in 0..14usize,
    ) {
        let spec = format!(
            "restartPolicy: {policy}\ncontainers: [{{name: app, image: 'app:1', readinessProbe: {{tcpSocket: {{port: 1}}}}}}]"
        );
        let states = [ContainerState::Created, ContainerState::Running, ContainerState::Exited, ContainerState::Unknown];
        let mut case = Case::new(&spec, vec![]);
        let mut before = case.publish();
        for (i, (state, code, ready, known)) in steps.into_iter().enumerate() {
            case.now += 10;
            let count = u32::try_from(i).expect("small");
            let c = Instance { id: format!("app-{i}").into(), state: states[state], exit_code: code,
                restart_count: count, ..instance("app") };
            case.observed.containers = if known { vec![c] } else { vec![] };
            case.verdicts.insert(format!("app-{i}").into(), Verdict { readiness: Some(ready), ..Default::default() });
            if i == end_at {
                (case.stage, case.kill) = (Stage::Terminating, Some(KillCause::DeadlineExceeded));
            }
            let now = case.publish();
            prop_assert_eq!(&case.status(), &now, "publishing twice changes nothing");
            let was_terminal = matches!(phase(&before), "Succeeded" | "Failed");
            prop_assert!(!was_terminal || phase(&before) == phase(&now), "left a terminal phase");
            let live = known && matches!(states[state], ContainerState::Running | ContainerState::Unknown);
            let terminal = matches!(phase(&now), "Succeeded" | "Failed");
            prop_assert!(!terminal || was_terminal || !live, "terminal while a container may run");
            prop_assert_eq!(&now.start_time, &before.start_time);
            let count = |s: &PodStatus| s.container_statuses.as_ref().map_or(0, |s| s[0].restart_count);
            prop_assert!(count(&now) >= count(&before), "a restart count fell");
            let app = &now.container_statuses.as_ref().expect("statuses")[0];
            let running = app.state.as_ref().is_some_and(|s| s.running.is_some());
            prop_assert!(!app.ready || (running && ready), "ready without a good probe");
            prop_assert!(short(&now, "Ready") != "True" || app.ready);
            before = now;
        }
    }
}
