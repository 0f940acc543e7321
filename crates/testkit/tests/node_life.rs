//! A Pod's life on a real containerd: it starts, its containers begin again or do not, and it ends by itself.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::time::Duration;

use cri::{Client, Endpoint};
use k8s_openapi::api::core::v1::Pod;
use testkit::harness::{
    Harness, condition, container, container_id, is_ready, listing, phase, restarts, uid, waiting_reason,
};
use testkit::node::Containerd;
use testkit::scripts::{STAY, ended, ended_before, notes, pod, quick, told, wait_noted};

fn read(dir: &Path, file: &str) -> String {
    fs::read_to_string(dir.join(file)).unwrap_or_default()
}

fn reason<'a>(pod: &'a Pod, kind: &str) -> &'a str {
    let all = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    all.filter(|c| c.type_ == kind).filter_map(|c| c.reason.as_deref()).next().unwrap_or("")
}

fn cri<T>(h: &Harness, ask: impl AsyncFnOnce(&Client) -> cri::Result<T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = Endpoint::parse(&h.node.endpoint()).unwrap();
        ask(&Client::new(endpoint, None, Duration::from_secs(60))).await.unwrap()
    })
}

/// Stops a sandbox behind the kubelet's back. The kubelet may see it dying and stop it at the same moment; of two calls the
/// runtime may refuse one, because the other took the network away.
fn lose_sandbox(h: &Harness, id: &str) {
    h.until("the sandbox has stopped", || cri(h, async |c| Ok(c.stop_pod_sandbox(id).await)).ok());
}

/// The sandboxes of a Pod, newest first: id, attempt, ready.
fn sandboxes(h: &Harness, pod: &Pod) -> Vec<(String, u32, bool)> {
    let all = cri(h, async |c| c.list_pod_sandboxes(None).await);
    let mut own: Vec<_> = all
        .into_iter()
        .filter_map(|s| {
            let meta = s.metadata?;
            (meta.uid == uid(pod)).then_some((s.id, meta.attempt, s.state == 0))
        })
        .collect();
    own.sort_by_key(|(_, attempt, _)| std::cmp::Reverse(*attempt));
    own
}

fn a_pod_comes_and_goes(containerd: Containerd) {
    let Some(h) = quick(containerd) else { return };
    let before = h.node.census();
    h.apply("one", &pod("one", "", &[], &[("main", STAY, "")]));
    let one = h.wait_ready("one");
    assert_eq!(phase(&one), "Running");
    assert!(one.status.as_ref().unwrap().pod_ip.is_some());
    h.remove("one");
    h.wait_gone("one");
    h.wait_clean(&before);
    assert!(!h.pod_dir(&one).exists());
}

#[test]
fn a_pod_comes_and_goes_on_containerd_2() {
    a_pod_comes_and_goes(Containerd::V2);
}

#[test]
fn a_pod_comes_and_goes_on_containerd_1_6() {
    a_pod_comes_and_goes(Containerd::V1_6);
}

#[test]
fn a_pod_comes_and_goes_on_the_embedded_runtime() {
    a_pod_comes_and_goes(Containerd::Embedded);
}

/// By the kernel's own mapping. The containerds here run a runc that is older than it.
#[test]
fn a_pod_has_users_of_its_own_on_the_embedded_runtime() {
    let Some(h) = quick(Containerd::Embedded) else { return };
    let before = h.node.census();
    let script = "cat /proc/self/uid_map > /notes/map; stat -c '%u %u' /notes /etc/hosts > /notes/owners; \
                  id -u >> /notes/owners; echo done > /notes/order; trap exit TERM; while :; do sleep 0.1; done";
    let (dir, volume) = notes(&h, "users");
    let more = format!("  hostUsers: false\n{volume}");
    h.apply("users", &pod("users", &more, &[], &[("main", script, "")]));
    let users = h.wait_ready("users");
    wait_noted(&h, &dir, "done\n");
    let map = read(&dir, "map");
    let map: Vec<u32> = map.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let [inside, outside, length] = map[..] else { panic!("{map:?}") };
    assert_eq!((inside, outside % 65_536, length), (0, 0, 65_536), "{map:?}");
    assert!(outside > 0, "root of the Pod is root of the machine: {map:?}");
    assert_eq!(read(&dir, "owners"), "0 0\n0 0\n0\n");
    // What root of the Pod has written into the volume is root's: the volume is mapped, nothing was given away.
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&fs::metadata(dir.join("map")).unwrap()), 0);
    h.remove("users");
    h.wait_gone("users");
    h.wait_clean(&before);
    assert!(!h.pod_dir(&users).exists());
}

#[test]
fn a_killed_agent_finds_its_pods_again() {
    let Some(mut h) = Harness::usual() else { return };
    h.apply("one", &pod("one", "", &[], &[("main", STAY, "")]));
    let one = h.wait_ready("one");
    let id = container_id(&one, "main").to_owned();
    h.restart_agent();
    let one = h.wait("one", "found again", is_ready);
    assert_eq!(container_id(&one, "main"), id, "the container was not restarted");
    assert_eq!(restarts(&one, "main"), 0);
}

fn containers_begin_again_by_policy(containerd: Containerd) {
    let Some(h) = quick(containerd) else { return };
    h.apply("always", &pod("always", "", &[], &[("main", "exit 0", "")]));
    h.apply(
        "on-failure",
        &pod(
            "on-failure",
            "  restartPolicy: OnFailure",
            &[],
            &[("good", "exit 0", ""), ("bad", "exit 3", "")],
        ),
    );
    h.apply("never-good", &pod("never-good", "  restartPolicy: Never", &[], &[("main", "exit 0", "")]));
    h.apply("never-bad", &pod("never-bad", "  restartPolicy: Never", &[], &[("main", "exit 4", "")]));

    let always = h.wait("always", "in back-off", |p| waiting_reason(p, "main") == "CrashLoopBackOff");
    let main = container(&always, "main").unwrap();
    assert_eq!(
        main.state.as_ref().unwrap().waiting.as_ref().unwrap().message.as_deref(),
        Some("back-off 1s restarting failed container=main pod=always-demo_default(always-uid)")
    );
    assert_eq!(ended_before(&always, "main").unwrap().reason.as_deref(), Some("Completed"));
    assert_eq!(phase(&always), "Running");
    h.wait("always", "restarted thrice", |p| restarts(p, "main") >= 3);
    let shown = told(&h, "always-demo");
    assert!(
        shown.contains("Back-off restarting failed container main in pod always-demo_default(always-uid)"),
        "{shown}"
    );

    let pod = h.wait("on-failure", "restarted", |p| restarts(p, "bad") >= 2);
    assert_eq!(restarts(&pod, "good"), 0);
    assert_eq!(ended(&pod, "good").unwrap().reason.as_deref(), Some("Completed"));
    assert_eq!(phase(&pod), "Running");

    let good = h.wait("never-good", "succeeded", |p| phase(p) == "Succeeded");
    assert_eq!((restarts(&good, "main"), ended(&good, "main").unwrap().exit_code), (0, 0));
    assert_eq!((condition(&good, "Ready"), reason(&good, "Ready")), ("False", "PodCompleted"));
    let bad = h.wait("never-bad", "failed", |p| phase(p) == "Failed");
    assert_eq!((restarts(&bad, "main"), ended(&bad, "main").unwrap().exit_code), (0, 4));
    assert_eq!((condition(&bad, "Ready"), reason(&bad, "Ready")), ("False", "PodFailed"));
    assert_eq!(ended(&bad, "main").unwrap().reason.as_deref(), Some("Error"));
}

#[test]
fn containers_begin_again_by_policy_on_containerd_2() {
    containers_begin_again_by_policy(Containerd::V2);
}

#[test]
fn containers_begin_again_by_policy_on_containerd_1_6() {
    containers_begin_again_by_policy(Containerd::V1_6);
}

#[test]
fn containers_begin_again_by_policy_on_the_embedded_runtime() {
    containers_begin_again_by_policy(Containerd::Embedded);
}

#[test]
fn containers_begin_again_by_rules_of_their_own() {
    let Some(h) = quick(Containerd::V2) else { return };
    let first = |then: &str| format!("test -e /notes/been && {{ {then}; }}; touch /notes/been; exit 42");
    let rule = |action: &str| {
        format!(
            "restartPolicy: Never, restartPolicyRules: [{{ action: {action}, exitCodes: {{ operator: In, values: [42] }} }}]"
        )
    };
    // A rule for one exit code, in a Pod that never restarts anything.
    let script = first("exit 1");
    h.apply("rule", &pod("rule", "  restartPolicy: Never", &[], &[("main", &script, &rule("Restart"))]));
    // A policy of one container's own, against the Pod's.
    h.apply(
        "own",
        &pod(
            "own",
            "  restartPolicy: Never",
            &[],
            &[("again", "exit 5", "restartPolicy: Always"), ("once", "exit 6", "")],
        ),
    );
    // A rule that restarts all: the trigger, its neighbour, and the init container before both.
    let (dir, volume) = notes(&h, "all");
    let script = first(STAY);
    h.apply(
        "all",
        &pod(
            "all",
            &format!("  restartPolicy: Never\n{volume}"),
            &[("init", "echo init >> /notes/order", "")],
            &[("neighbour", STAY, ""), ("trigger", &script, &rule("RestartAllContainers"))],
        ),
    );

    let rule = h.wait("rule", "failed at last", |p| phase(p) == "Failed");
    assert_eq!((restarts(&rule, "main"), ended(&rule, "main").unwrap().exit_code), (1, 1));
    let own = h.wait("own", "restarted", |p| restarts(p, "again") >= 2);
    assert_eq!((restarts(&own, "once"), ended(&own, "once").unwrap().exit_code), (0, 6));
    assert_eq!(phase(&own), "Running");
    let all = h.wait("all", "restarted whole", |p| restarts(p, "trigger") == 1 && is_ready(p));
    assert_eq!((restarts(&all, "neighbour"), restarts(&all, "init")), (1, 1));
    assert_eq!(read(&dir, "order"), "init\ninit\n");
    assert_eq!(condition(&all, "AllContainersRestarting"), "False");
}

#[test]
fn init_containers_run_in_order_and_their_failure_counts() {
    let Some(h) = quick(Containerd::V2) else { return };
    let (dir, volume) = notes(&h, "order");
    h.apply(
        "order",
        &pod(
            "order",
            &volume,
            &[
                ("first", "sleep 0.3; echo first >> /notes/order", ""),
                (
                    "second",
                    "test -e /notes/tried || { touch /notes/tried; exit 1; }; echo second >> /notes/order",
                    "",
                ),
            ],
            &[("main", &format!("echo main >> /notes/order; {STAY}"), "")],
        ),
    );
    h.apply(
        "lost",
        &pod("lost", "  restartPolicy: Never", &[("first", "exit 7", "")], &[("main", STAY, "")]),
    );
    let order = h.wait_ready("order");
    wait_noted(&h, &dir, "first\nsecond\nmain\n");
    assert_eq!((restarts(&order, "first"), restarts(&order, "second"), restarts(&order, "main")), (0, 1, 0));
    assert_eq!(condition(&order, "Initialized"), "True");
    assert_eq!(ended(&order, "first").unwrap().reason.as_deref(), Some("Completed"));

    let lost = h.wait("lost", "failed", |p| phase(p) == "Failed");
    assert_eq!(ended(&lost, "first").unwrap().exit_code, 7);
    assert_eq!(waiting_reason(&lost, "main"), "PodInitializing");
    assert_eq!((condition(&lost, "Initialized"), condition(&lost, "Ready")), ("False", "False"));
    // An init container that fails stays in back-off, and is shown so.
    h.apply("stuck", &pod("stuck", "", &[("first", "exit 7", "")], &[("main", STAY, "")]));
    let stuck = h.wait("stuck", "in back-off", |p| waiting_reason(p, "first") == "CrashLoopBackOff");
    assert_eq!((phase(&stuck), waiting_reason(&stuck, "main")), ("Pending", "PodInitializing"));
}

#[test]
fn sidecars_start_first_gate_the_rest_and_die_last() {
    let Some(h) = quick(Containerd::V2) else { return };
    let (dir, volume) = notes(&h, "side");
    let tell = |name: &str| {
        format!(
            "echo {name} up >> /notes/order; trap 'echo {name} down >> /notes/order; exit 0' TERM; \
             while :; do sleep 0.1; done"
        )
    };
    let probe = "restartPolicy: Always, startupProbe: { exec: { command: [test, -e, /notes/go] }, periodSeconds: 1, failureThreshold: 100 }";
    // Time enough for each to go in its turn.
    let spec = format!("  terminationGracePeriodSeconds: 60\n{volume}");
    let side = |name| {
        pod(
            name,
            &spec,
            &[
                ("one", &tell("one"), probe),
                ("two", &tell("two"), "restartPolicy: Always"),
                ("init", "echo init >> /notes/order", ""),
            ],
            &[("main", &tell("main"), "")],
        )
    };
    h.apply("side", &side("side"));
    let waiting = h.wait("side", "held back by the first sidecar", |p| {
        container(p, "one").and_then(|c| c.state.as_ref()).is_some_and(|s| s.running.is_some())
    });
    assert_eq!(container(&waiting, "one").unwrap().started, Some(false));
    assert_eq!(waiting_reason(&waiting, "two"), "PodInitializing");
    assert_eq!(phase(&waiting), "Pending");
    fs::write(dir.join("go"), "").unwrap();
    let pod = h.wait_ready("side");
    wait_noted(&h, &dir, "one up\ntwo up\ninit\nmain up\n");
    // A sidecar that dies is started again, and nothing else is.
    cri(&h, async |c| c.stop_container(container_id(&pod, "two").rsplit_once('/').unwrap().1, 5).await);
    let pod = h.wait("side", "the sidecar back", |p| restarts(p, "two") == 1 && is_ready(p));
    assert_eq!((restarts(&pod, "one"), restarts(&pod, "main")), (0, 0));
    wait_noted(&h, &dir, "one up\ntwo up\ninit\nmain up\ntwo down\ntwo up\n");
    fs::write(dir.join("order"), "").unwrap();
    h.remove("side");
    h.wait_gone("side");
    assert_eq!(read(&dir, "order"), "main down\ntwo down\none down\n");
}

#[test]
fn sidecars_do_not_keep_a_finished_pod_alive() {
    let Some(h) = quick(Containerd::V2) else { return };
    h.apply(
        "job",
        &pod(
            "job",
            "  restartPolicy: Never",
            &[("side", STAY, "restartPolicy: Always")],
            &[("main", "sleep 0.3", "")],
        ),
    );
    let job = h.wait("job", "succeeded", |p| phase(p) == "Succeeded");
    assert!(ended(&job, "side").is_some(), "the sidecar was stopped");
    assert_eq!(restarts(&job, "side"), 0);
}

#[test]
fn a_finished_pod_gives_back_what_it_held_and_stays_finished() {
    let Some(mut h) = quick(Containerd::V2) else { return };
    let before = h.node.census();
    h.apply("done", &pod("done", "  restartPolicy: OnFailure", &[], &[("main", "echo x > /notes/x", "")]));
    h.apply("late", &pod("late", "  activeDeadlineSeconds: 1", &[], &[("main", STAY, "")]));
    let done = h.wait("done", "succeeded", |p| phase(p) == "Succeeded");
    let id = container_id(&done, "main").to_owned();
    let volumes = h.pod_dir(&done).join("volumes");
    h.until("volumes torn down", || {
        let left: Vec<_> = listing(&volumes).iter().flat_map(|plugin| listing(plugin)).collect();
        left.is_empty().then_some(())
    });
    let late = h.wait("late", "failed", |p| phase(p) == "Failed");
    let status = late.status.as_ref().unwrap();
    assert_eq!(status.reason.as_deref(), Some("DeadlineExceeded"));
    assert_eq!(
        status.message.as_deref(),
        Some("Pod was active on the node longer than the specified deadline")
    );
    h.until("no sandbox up", || {
        sandboxes(&h, &done).iter().chain(&sandboxes(&h, &late)).all(|(_, _, ready)| !ready).then_some(())
    });
    // Neither a new life of the agent nor the file that is still there brings them back.
    h.restart_agent();
    let done = h.wait("done", "remembered", |p| phase(p) == "Succeeded");
    assert_eq!((container_id(&done, "main"), restarts(&done, "main")), (id.as_str(), 0));
    let late = h.wait("late", "remembered", |p| phase(p) == "Failed");
    assert_eq!(late.status.as_ref().unwrap().reason.as_deref(), Some("DeadlineExceeded"));
    h.remove("done");
    h.remove("late");
    h.wait_gone("done");
    h.wait_gone("late");
    h.wait_clean(&before);
}

fn a_lost_sandbox_is_made_again(containerd: Containerd) {
    let Some(h) = quick(containerd) else { return };
    let (dir, volume) = notes(&h, "sandbox");
    let init: &[_] = &[("init", "echo init >> /notes/order", "")];
    h.apply("one", &pod("one", &volume, init, &[("main", STAY, "")]));
    h.apply("never", &pod("never", "  restartPolicy: Never", &[], &[("main", STAY, "")]));
    let one = h.wait_ready("one");
    h.wait_ready("never");
    // Behind the kubelet's back, as an operator with a CRI client would.
    let own = sandboxes(&h, &one);
    assert_eq!(own.len(), 1);
    lose_sandbox(&h, &own[0].0);
    // The containers die a moment before their sandbox, so one may be started in vain before it is lost too:
    // only the sandbox itself counts its attempts.
    let up = |attempt| {
        let ready = h.get("one").filter(is_ready)?;
        let (id, newest, _) = sandboxes(&h, &ready).into_iter().find(|(_, _, ready)| *ready)?;
        (newest == attempt && restarts(&ready, "main") > 0).then_some(id)
    };
    let id = h.until("up in a new sandbox", || up(1));
    assert_eq!(read(&dir, "order"), "init\ninit\n", "init containers run again in a new sandbox");
    // The sandbox's first process dies.
    let killed = h.node.ctr().args(["tasks", "kill", "--signal", "KILL", &id]).output().unwrap();
    assert!(killed.status.success(), "{killed:?}");
    h.until("up in a third sandbox", || up(2));
    let shown = told(&h, "one-demo");
    assert!(shown.contains("Pod sandbox changed, it will be killed and re-created."), "{shown}");
    // A Pod that restarts nothing gets no second sandbox.
    let never = h.get("never").unwrap();
    let own = sandboxes(&h, &never);
    lose_sandbox(&h, &own[0].0);
    let never = h.wait("never", "failed", |p| phase(p) == "Failed");
    assert_eq!(restarts(&never, "main"), 0);
    assert_eq!(sandboxes(&h, &never).len(), 1);
}

#[test]
fn a_lost_sandbox_is_made_again_on_containerd_2() {
    a_lost_sandbox_is_made_again(Containerd::V2);
}

#[test]
fn a_lost_sandbox_is_made_again_on_containerd_1_6() {
    a_lost_sandbox_is_made_again(Containerd::V1_6);
}

#[test]
fn another_image_restarts_a_container_in_place() {
    let Some(h) = quick(Containerd::V2) else { return };
    let tagged = h
        .node
        .ctr()
        .args(["images", "tag", "localhost/busybox:v1", "localhost/busybox:v2"])
        .output()
        .unwrap();
    assert!(tagged.status.success(), "{tagged:?}");
    let text = pod("one", "  restartPolicy: Never", &[], &[("main", STAY, ""), ("other", STAY, "")]);
    h.apply("one", &text);
    let old = h.wait_ready("one");
    // The manifest names the UID: an edit is the same Pod.
    h.apply("one", &text.replacen("busybox:v1", "busybox:v2", 1));
    let new = h.wait("one", "restarted with the new image", |p| restarts(p, "main") == 1 && is_ready(p));
    assert_eq!(uid(&new), uid(&old));
    assert_ne!(container_id(&new, "main"), container_id(&old, "main"));
    assert_eq!(container_id(&new, "other"), container_id(&old, "other"));
    assert_eq!(phase(&new), "Running");
    // Without a UID in the manifest, an edit is another Pod.
    let text = text.replace(", uid: one-uid", "").replace("name: one", "name: two");
    h.apply("two", &text);
    let old = h.wait_ready("two");
    h.apply("two", &text.replacen("busybox:v1", "busybox:v2", 1));
    let new = h.wait("two", "replaced", |p| uid(p) != uid(&old) && is_ready(p));
    assert_eq!(restarts(&new, "main"), 0);
    h.until("the old one gone", || (!h.pod_dir(&old).exists()).then_some(()));
}
