//! Every row of the action table, then what must hold for any Pod.

mod properties;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use base::time::{Mono, Now, Wall};
use k8s_openapi::api::core::v1::Pod;

use super::super::{CrashLoop, Verdict, Verdicts};
use super::*;
use crate::observed::{Container as Instance, Observed, Sandbox};
use crate::testing::{exited, instance, pod_yaml, sandbox};

pub(super) const NOW: Now = Now { mono: Mono(Duration::from_secs(500)), wall: Wall(1_000_000_000_000) };

/// A Pod with one container `app`.
fn one(policy: &str) -> Pod {
    pod_yaml(&format!("restartPolicy: {policy}\ncontainers: [{{name: app, image: 'app:1'}}]"))
}

/// Sidecar, init container, sidecar with startup probe, regular container.
fn staged() -> Pod {
    pod_yaml(
        "restartPolicy: Always
initContainers:
- {name: proxy, image: 'proxy:1', restartPolicy: Always}
- {name: setup, image: 'setup:1'}
- {name: mesh, image: 'mesh:1', restartPolicy: Always, startupProbe: {tcpSocket: {port: 1}}, livenessProbe: {tcpSocket: {port: 1}}}
containers:
- {name: app, image: 'app:1'}",
    )
}

fn world(containers: Vec<Instance>) -> Observed {
    Observed { revision: 1, sandboxes: vec![sandbox("s0", 0, true)], containers }
}

fn in_state(state: ContainerState, c: Instance) -> Instance {
    Instance { state, ..c }
}

fn plan_of(pod: &Pod, observed: &Observed) -> Plan {
    plan_with(pod, observed, &Verdicts::new())
}

fn plan_with(pod: &Pod, observed: &Observed, verdicts: &Verdicts) -> Plan {
    plan_after(pod, observed, verdicts, &[])
}

/// Where these instances were stopped because their definition changed.
fn plan_after(pod: &Pod, observed: &Observed, verdicts: &Verdicts, replaced: &[&str]) -> Plan {
    let crash_loop = &CrashLoop::new(Duration::from_secs(300));
    let replaced = &replaced.iter().map(|id| (*id).into()).collect();
    plan(&PlanInput { pod, observed, verdicts, replaced, crash_loop, actuated: None, now: NOW })
}

fn verdict(id: &str, v: Verdict) -> Verdicts {
    [(id.into(), v)].into()
}

/// A plan in one line.
fn line(p: &Plan) -> String {
    let mut out = String::new();
    if p.kill_pod.is_some() {
        out.push_str("kill-pod ");
    }
    for k in &p.kill {
        let _ = write!(out, "kill({}:{:?}) ", k.id, k.reason);
    }
    for id in &p.remove {
        let _ = write!(out, "remove({id}) ");
    }
    if let Some(s) = &p.sandbox {
        let _ = write!(out, "sandbox({}) ", s.attempt);
    }
    for s in &p.start {
        let _ = write!(out, "start({}#{}) ", s.name, s.restart_count);
    }
    for (name, w) in &p.waiting {
        let _ = write!(out, "wait({name}:{}) ", w.reason);
    }
    if p.finished {
        out.push_str("finished");
    }
    if out.is_empty() { "rest".into() } else { out.trim_end().to_owned() }
}

/// What is different, the Pod, what is there, and the plan.
type Row<'a> = (&'a str, &'a Pod, Vec<Sandbox>, Vec<Instance>, &'a str);

#[test]
fn a_sandbox_is_made_or_replaced() {
    let host = pod_yaml("hostNetwork: true\ncontainers: [{name: app, image: 'app:1'}]");
    let pod = one("Always");
    let app = || vec![instance("app")];
    let table: Vec<Row<'_>> = vec![
        ("none", &pod, vec![], vec![], "sandbox(0) start(app#0)"),
        ("not ready", &pod, vec![sandbox("s0", 3, false)], app(), "kill-pod sandbox(4) start(app#1)"),
        (
            "two ready",
            &pod,
            vec![sandbox("s1", 1, true), sandbox("s0", 0, true)],
            app(),
            "kill-pod sandbox(2) start(app#1)",
        ),
        (
            "newest not ready though an older one is",
            &pod,
            vec![sandbox("s1", 1, false), sandbox("s0", 0, true)],
            app(),
            "kill-pod sandbox(2) start(app#1)",
        ),
        ("network mode", &host, vec![sandbox("s0", 0, true)], app(), "kill-pod sandbox(1) start(app#1)"),
        (
            "no IP",
            &pod,
            vec![Sandbox { ips: vec![], ..sandbox("s0", 0, true) }],
            app(),
            "kill-pod sandbox(1) start(app#1)",
        ),
        (
            "no IP on the host network",
            &host,
            vec![Sandbox { ips: vec![], host_network: true, ..sandbox("s0", 0, true) }],
            app(),
            "rest",
        ),
        ("good", &pod, vec![sandbox("s0", 0, true)], app(), "rest"),
        (
            "an old dead one beside a good one",
            &pod,
            vec![sandbox("s0", 1, true), sandbox("x", 0, false)],
            app(),
            "rest",
        ),
    ];
    for (what, pod, sandboxes, containers, want) in table {
        let observed = Observed { revision: 1, sandboxes, containers };
        assert_eq!(line(&plan_of(pod, &observed)), want, "{what}");
    }
}

#[test]
fn a_sandbox_is_not_replaced_for_a_pod_that_had_its_run() {
    let dead = |attempt| vec![sandbox("s0", attempt, false)];
    let two = pod_yaml(
        "restartPolicy: OnFailure
containers: [{name: app, image: 'app:1'}, {name: db, image: 'db:1'}]",
    );
    let table: Vec<(&str, Pod, Vec<Instance>, &str)> = vec![
        ("Never, ran", one("Never"), vec![exited("app", 1)], "finished"),
        ("Never, still runs", one("Never"), vec![instance("app")], "kill-pod"),
        ("Never, nothing was ever made", one("Never"), vec![], "kill-pod sandbox(1) start(app#0)"),
        ("OnFailure, all done", one("OnFailure"), vec![exited("app", 0)], "finished"),
        ("OnFailure, failed", one("OnFailure"), vec![exited("app", 1)], "kill-pod sandbox(1) start(app#1)"),
        (
            "OnFailure, one of two done",
            two,
            vec![exited("app", 0), exited("db", 2)],
            "kill-pod sandbox(1) start(db#1)",
        ),
    ];
    for (what, pod, containers, want) in table {
        let observed = Observed { revision: 1, sandboxes: dead(0), containers };
        assert_eq!(line(&plan_of(&pod, &observed)), want, "{what}");
    }
}

#[test]
fn init_containers_start_over_in_a_new_sandbox() {
    let observed = Observed {
        revision: 1,
        sandboxes: vec![sandbox("s0", 0, false)],
        containers: vec![exited("proxy", 137), exited("setup", 0), exited("mesh", 137), exited("app", 137)],
    };
    let want = "kill-pod remove(mesh-0) remove(proxy-0) remove(setup-0) sandbox(1) start(proxy#1)";
    assert_eq!(line(&plan_of(&staged(), &observed)), want);
    // Then in the new one: what ran in the old one does not count.
    let observed = Observed {
        revision: 2,
        sandboxes: vec![sandbox("s1", 1, true), sandbox("s0", 0, false)],
        containers: vec![Instance { sandbox: "s1".into(), ..instance("proxy") }, exited("app", 137)],
    };
    assert_eq!(line(&plan_of(&staged(), &observed)), "start(setup#0)");
}

#[test]
fn init_containers_run_in_order_and_sidecars_stay() {
    use ContainerState::{Created, Unknown};
    let started = verdict("mesh-0", Verdict { startup: Some(true), ..Default::default() });
    let none = Verdicts::new();
    let table: Vec<(&str, Vec<Instance>, &Verdicts, &str)> = vec![
        ("nothing yet", vec![], &none, "start(proxy#0)"),
        ("first sidecar runs", vec![instance("proxy")], &none, "start(setup#0)"),
        ("init at work", vec![instance("setup"), instance("proxy")], &none, "rest"),
        ("init done", vec![exited("setup", 0), instance("proxy")], &none, "start(mesh#0)"),
        ("init failed", vec![exited("setup", 1), instance("proxy")], &none, "start(setup#1)"),
        (
            "init was interrupted",
            vec![in_state(Created, instance("setup")), instance("proxy")],
            &none,
            "remove(setup-0) start(setup#1)",
        ),
        (
            "init is in an unknown state",
            vec![in_state(Unknown, instance("setup")), instance("proxy")],
            &none,
            "kill(setup-0:UnknownState) start(setup#1)",
        ),
        ("a sidecar died during init", vec![instance("setup"), exited("proxy", 1)], &none, "start(proxy#1)"),
        (
            "the next init container does not wait for a dead sidecar before it",
            vec![exited("setup", 0), exited("proxy", 1)],
            &none,
            "start(proxy#1) start(mesh#0)",
        ),
        ("sidecar not started", vec![instance("mesh"), exited("setup", 0), instance("proxy")], &none, "rest"),
        (
            "last sidecar started",
            vec![instance("mesh"), exited("setup", 0), instance("proxy")],
            &started,
            "start(app#0)",
        ),
        (
            "the runtime forgot the earlier ones",
            vec![instance("mesh"), instance("proxy")],
            &started,
            "start(app#0)",
        ),
        (
            "all is well",
            vec![instance("app"), instance("mesh"), exited("setup", 0), instance("proxy")],
            &none,
            "rest",
        ),
        (
            "init containers never rerun once a regular one existed",
            vec![instance("app"), instance("mesh"), instance("proxy")],
            &none,
            "rest",
        ),
        (
            "forgotten sidecars are restarted",
            vec![instance("app"), exited("setup", 1)],
            &none,
            "start(proxy#0) start(mesh#0)",
        ),
        (
            "dead and odd sidecars are restarted",
            vec![instance("app"), in_state(Unknown, instance("mesh")), exited("proxy", 0)],
            &none,
            "kill(mesh-0:UnknownState) start(proxy#1) start(mesh#1)",
        ),
    ];
    for (what, containers, verdicts, want) in table {
        assert_eq!(line(&plan_with(&staged(), &world(containers), verdicts)), want, "{what}");
    }
}

#[test]
fn sidecars_answer_for_their_probes_and_their_image() {
    let base = vec![instance("app"), instance("mesh"), exited("setup", 0), instance("proxy")];
    for (v, want) in [
        (Verdict { startup: Some(false), ..Default::default() }, "StartupFailed"),
        (Verdict { startup: Some(true), liveness: Some(false), ..Default::default() }, "LivenessFailed"),
    ] {
        let p = plan_with(&staged(), &world(base.clone()), &verdict("mesh-0", v));
        assert_eq!(line(&p), format!("kill(mesh-0:{want}) start(mesh#1)"));
    }
    let mut edited = base.clone();
    edited[3].hash = Some(7);
    let p = plan_of(&staged(), &world(edited));
    assert_eq!(line(&p), "kill(proxy-0:SpecChanged) start(proxy#1)");
    assert_eq!(p.kill[0].message, "Init container proxy definition changed");
}

#[test]
fn a_failed_init_container_obeys_the_policy() {
    let pod = |policy: &str, own: &str| {
        pod_yaml(&format!(
            "restartPolicy: {policy}
initContainers: [{{name: setup, image: 'setup:1'{own}}}]
containers: [{{name: app, image: 'app:1'}}]"
        ))
    };
    for (pod, code, want) in [
        (pod("Never", ""), 1, "kill-pod finished"),
        (pod("Never", ""), 0, "start(app#0)"),
        (pod("OnFailure", ""), 1, "start(setup#1)"),
        (pod("Never", ", restartPolicy: OnFailure"), 1, "start(setup#1)"),
        (pod("Always", ", restartPolicy: Never"), 1, "kill-pod finished"),
    ] {
        assert_eq!(line(&plan_of(&pod, &world(vec![exited("setup", code)]))), want);
    }
}

#[test]
fn regular_containers_restart_by_policy() {
    use ContainerState::{Created, Unknown};
    let table: Vec<(&str, &str, Vec<Instance>, &str)> = vec![
        ("missing", "Never", vec![], "start(app#0)"),
        ("running", "Always", vec![instance("app")], "rest"),
        ("done", "Always", vec![exited("app", 0)], "start(app#1)"),
        ("done", "OnFailure", vec![exited("app", 0)], "kill-pod finished"),
        ("failed", "OnFailure", vec![exited("app", 3)], "start(app#1)"),
        ("failed", "Never", vec![exited("app", 3)], "kill-pod finished"),
        ("interrupted", "Never", vec![in_state(Created, instance("app"))], "remove(app-0) start(app#1)"),
        (
            "unknown",
            "Never",
            vec![in_state(Unknown, instance("app"))],
            "kill(app-0:UnknownState) start(app#1)",
        ),
        (
            "edited",
            "Never",
            vec![Instance { hash: Some(1), ..instance("app") }],
            "kill(app-0:SpecChanged) start(app#1)",
        ),
        (
            "somebody else made it",
            "Never",
            vec![Instance { hash: None, ..instance("app") }],
            "kill(app-0:SpecChanged) start(app#1)",
        ),
        (
            "edited when it had ended",
            "Never",
            vec![Instance { hash: Some(1), ..exited("app", 1) }],
            "kill-pod finished",
        ),
        (
            "edited when it had ended",
            "OnFailure",
            vec![Instance { hash: Some(1), ..exited("app", 0) }],
            "kill-pod finished",
        ),
        ("counts go on", "Always", vec![Instance { restart_count: 41, ..exited("app", 1) }], "start(app#42)"),
        (
            "a twin",
            "Always",
            vec![instance("app"), Instance { id: "old".into(), ..instance("app") }],
            "kill(old:Duplicate)",
        ),
        (
            "alive in a replaced sandbox",
            "Always",
            vec![Instance { sandbox: "gone".into(), ..instance("app") }],
            "kill(app-0:Duplicate)",
        ),
        ("a stranger", "Always", vec![instance("app"), instance("who")], "kill(who-0:NotWanted)"),
    ];
    for (what, policy, containers, want) in table {
        assert_eq!(line(&plan_of(&one(policy), &world(containers))), want, "{what} {policy}");
    }
}

#[test]
fn failed_probes_kill_and_restart_unless_never() {
    let pod = |policy: &str| {
        pod_yaml(&format!(
            "restartPolicy: {policy}
containers:
- name: app
  image: 'app:1'
  livenessProbe: {{tcpSocket: {{port: 1}}, terminationGracePeriodSeconds: 5}}
  startupProbe: {{tcpSocket: {{port: 1}}}}"
        ))
    };
    let dead = verdict("app-0", Verdict { liveness: Some(false), ..Default::default() });
    let stuck = verdict("app-0", Verdict { startup: Some(false), ..Default::default() });
    let up = world(vec![instance("app")]);
    let p = plan_with(&pod("OnFailure"), &up, &dead);
    assert_eq!(line(&p), "kill(app-0:LivenessFailed) start(app#1)");
    assert_eq!(p.kill[0].message, "Container app failed liveness probe, will be restarted");
    assert_eq!(p.kill[0].grace, Some(5));
    let p = plan_with(&pod("Always"), &up, &stuck);
    assert_eq!(line(&p), "kill(app-0:StartupFailed) start(app#1)");
    assert_eq!(p.kill[0].grace, None);
    let p = plan_with(&pod("Never"), &up, &dead);
    assert_eq!(line(&p), "kill(app-0:LivenessFailed)");
    assert_eq!(p.kill[0].message, "Container app failed liveness probe");
    // The kill may end in exit code 0: the probe's word still counts when the exit is seen.
    let over = world(vec![exited("app", 0)]);
    assert_eq!(line(&plan_with(&pod("OnFailure"), &over, &dead)), "start(app#1)");
    assert_eq!(line(&plan_with(&pod("Never"), &over, &dead)), "kill-pod finished");
}

#[test]
fn nothing_to_keep_ends_the_pod_and_its_sidecars() {
    let mut pod = staged();
    pod.spec.as_mut().expect("spec").restart_policy = Some("OnFailure".into());
    let p = plan_of(&pod, &world(vec![exited("app", 0), exited("mesh", 1), instance("proxy")]));
    assert_eq!(line(&p), "kill-pod finished");
}

#[test]
fn ephemeral_containers_start_once_even_before_init_is_over() {
    let pod = pod_yaml(
        "initContainers: [{name: setup, image: 'setup:1'}]
containers: [{name: app, image: 'app:1'}]
ephemeralContainers: [{name: debug, image: 'debug:1'}]",
    );
    assert_eq!(line(&plan_of(&pod, &world(vec![instance("setup")]))), "start(debug#0)");
    assert_eq!(line(&plan_of(&pod, &world(vec![instance("setup"), exited("debug", 1)]))), "rest");
}

#[test]
fn one_exit_can_restart_all() {
    let pod = pod_yaml(
        "restartPolicy: Never
initContainers: [{name: setup, image: 'setup:1'}]
containers:
- {name: app, image: 'app:1'}
- name: judge
  image: 'judge:1'
  restartPolicy: Never
  restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [88]}}]",
    );
    let p = plan_of(&pod, &world(vec![exited("judge", 88), instance("app"), exited("setup", 0)]));
    assert_eq!(line(&p), "kill(app-0:RestartAll) remove(app-0) remove(setup-0) remove(judge-0)");
    assert_eq!((p.kill[0].grace, p.keep_logs), (Some(0), true));
    let p = plan_of(&pod, &world(vec![exited("judge", 1), instance("app"), exited("setup", 0)]));
    assert_eq!(line(&p), "rest");
    assert_eq!(line(&plan_of(&pod, &world(vec![]))), "start(setup#0)");
}

/// The agent was killed while the runtime was at it: nothing ran, so nothing may be held against it.
#[test]
fn a_start_that_was_called_off_is_made_up_for() {
    let called_off = |name: &str| Instance {
        started_at: None,
        reason: "StartError".into(),
        message: "failed to create containerd task: failed to create shim task: context canceled".into(),
        ..exited(name, 128)
    };
    let pod = one("Never");
    assert_eq!(line(&plan_of(&pod, &world(vec![called_off("app")]))), "start(app#1)");
    let ran = Instance { started_at: Some(Wall::from_secs(101)), ..called_off("app") };
    assert_eq!(
        line(&plan_of(&pod, &world(vec![ran]))),
        line(&plan_of(&pod, &world(vec![exited("app", 128)])))
    );
    let pod = pod_yaml(
        "restartPolicy: Never
initContainers: [{name: setup, image: 'setup:1'}]
containers: [{name: app, image: 'app:1'}]",
    );
    assert_eq!(line(&plan_of(&pod, &world(vec![called_off("setup")]))), "start(setup#1)");
}

#[test]
fn what_was_stopped_because_it_was_edited_comes_back_whatever_its_policy() {
    let gone = || exited("app", 143);
    for (hash, want) in [(Some(1), "start(app#1)"), (gone().hash, "start(app#1)")] {
        let observed = world(vec![Instance { hash, ..gone() }]);
        let p = plan_after(&one("Never"), &observed, &Verdicts::new(), &["app-0"]);
        assert_eq!(line(&p), want);
        // Its successor lives by the policy again.
        let next = Instance { id: "app-1".into(), ..gone() };
        let observed = world(vec![next, Instance { hash, ..gone() }]);
        let p = plan_after(&one("Never"), &observed, &Verdicts::new(), &["app-0"]);
        assert_eq!(line(&p), "kill-pod finished");
    }
}

#[test]
fn the_first_restart_is_immediate_and_the_next_waits() {
    let pod = one("Always");
    let spec = &pod.spec.as_ref().expect("spec").containers[0];
    let mut crash_loop = CrashLoop::new(Duration::from_secs(300));
    let at = |secs: u64| Now {
        mono: Mono(Duration::from_secs(secs)),
        wall: Wall::from_secs(i64::try_from(secs).expect("small")),
    };
    let go = |observed: &Observed, crash_loop: &CrashLoop, secs| {
        let verdicts = Verdicts::new();
        let (verdicts, replaced, now) = (&verdicts, &BTreeSet::new(), at(secs));
        plan(&PlanInput { pod: &pod, observed, verdicts, replaced, crash_loop, actuated: None, now })
    };
    let first = world(vec![exited("app", 1)]);
    crash_loop.note_exits(&first, at(110));
    assert_eq!(line(&go(&first, &crash_loop, 110)), "start(app#1)");
    crash_loop.restarted(spec, &"app-0".into(), at(110).mono);

    let again = Instance {
        id: "app-1".into(),
        restart_count: 1,
        finished_at: Some(Wall::from_secs(112)),
        ..exited("app", 1)
    };
    let second = world(vec![again, exited("app", 1)]);
    crash_loop.note_exits(&second, at(112));
    let p = go(&second, &crash_loop, 113);
    assert_eq!(line(&p), "wait(app:CrashLoopBackOff)");
    assert_eq!(
        p.waiting["app"].message,
        "back-off 10s restarting failed container=app pod=web_default(uid-1)"
    );
    assert_eq!(p.wake_at, Some(at(122).mono));
    assert!(!p.finished);
    assert_eq!(line(&go(&second, &crash_loop, 122)), "start(app#2)");
}

#[test]
fn nothing_starts_once_deletion_was_asked_for() {
    let mut pod = one("Always");
    pod.metadata.deletion_timestamp = Some(Time(Default::default()));
    assert_eq!(line(&plan_of(&pod, &world(vec![exited("app", 1)]))), "kill-pod finished");
    assert_eq!(line(&plan_of(&pod, &Observed::default())), "finished");
}

#[test]
fn old_executions_of_init_containers_are_pruned() {
    let pod = pod_yaml(
        "initContainers: [{name: setup, image: 'setup:1'}]\ncontainers: [{name: app, image: 'app:1'}]",
    );
    let newer = Instance { id: "setup-1".into(), ..exited("setup", 0) };
    let p = plan_of(&pod, &world(vec![newer, exited("setup", 1)]));
    assert_eq!(line(&p), "remove(setup-0) start(app#0)");
}

#[test]
fn the_deadline_counts_from_the_start_time() {
    let mut pod = one("Always");
    let started = Time(k8s_openapi::jiff::Timestamp::from_second(940).expect("in range"));
    assert_eq!(deadline(&pod, Some(&started), NOW), None);
    pod.spec.as_mut().expect("spec").active_deadline_seconds = Some(100);
    // 60 of the 100 seconds have passed.
    assert_eq!(deadline(&pod, Some(&started), NOW), Some(Mono(Duration::from_secs(540))));
    pod.spec.as_mut().expect("spec").active_deadline_seconds = Some(10);
    assert_eq!(deadline(&pod, Some(&started), NOW), Some(NOW.mono));
    assert_eq!(deadline(&pod, None, NOW), Some(NOW.mono + Duration::from_secs(10)));
}
