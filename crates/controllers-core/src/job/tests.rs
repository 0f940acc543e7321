use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::plan::Why;
use crate::resource::PODS;
use crate::terms::{COMPLETION_INDEX, timestamp};
use crate::testing::{self, Draft, World, at, draft, refused, said};

const NOW: u64 = 1000;

/// A Job that runs three Pods, two at a time, and has started.
fn job(spec: &Value) -> Draft {
    let template = json!({"metadata": {"labels": {"app": "a"}}, "spec": {"restartPolicy": "Never",
        "containers": [{"name": "c", "image": "i"}]}});
    let mut all = json!({"completions": 3, "parallelism": 2, "backoffLimit": 6, "completionMode": "NonIndexed",
        "selector": {"matchLabels": {"app": "a"}}, "template": template});
    for (key, value) in spec.as_object().into_iter().flatten() {
        all[key] = value.clone();
    }
    draft(JOBS, "j")
        .set("/spec", all)
        .set("/status", json!({"startTime": "1970-01-01T00:10:00Z", "ready": 0, "terminating": 0, "uncountedTerminatedPods": {}}))
}

fn pod(name: &str, phase: &str) -> Draft {
    let owner = job(&json!({}));
    testing::pod(name)
        .label("app", "a")
        .owned_by(&owner)
        .created(100)
        .phase(phase)
        .set("/metadata/finalizers", json!([JOB_TRACKING]))
}

fn ended(pod: Draft, code: i64, at: i64) -> Draft {
    let at = timestamp(base::time::Wall::from_secs(at));
    pod.set(
        "/status/containerStatuses",
        json!([{"name": "c", "restartCount": 0,
        "state": {"terminated": {"exitCode": code, "finishedAt": at}}}]),
    )
}

fn indexed(name: &str, phase: &str, index: u32) -> Draft {
    let index = index.to_string();
    pod(name, phase).annotation(COMPLETION_INDEX, &index).label(COMPLETION_INDEX, &index)
}

/// Carries plans out on a small server, settles them, and goes on until nothing is left to do.
struct Play {
    objects: BTreeMap<String, (crate::resource::Resource, Value)>,
    jobs: Jobs,
    now: u64,
    made: usize,
    told: Vec<String>,
    refuses_pods: bool,
    wake: Option<u64>,
}

impl Play {
    fn new(objects: Vec<Draft>) -> Play {
        let all = objects.into_iter().map(|d| {
            let o = d.object();
            (o.meta.name.to_string(), (o.meta.resource, o.value()))
        });
        Play {
            objects: all.collect(),
            jobs: Jobs::default(),
            now: NOW,
            made: 0,
            told: Vec::new(),
            refuses_pods: false,
            wake: None,
        }
    }

    fn world(&self) -> World {
        World::new(self.objects.iter().map(|(name, (resource, value))| {
            let mut one = draft(*resource, name);
            one.value = value.clone();
            one
        }))
    }

    fn act(&mut self, act: &Act) -> Outcome {
        let done = |value: &Value| Outcome::Done(value.to_string().into());
        match act {
            Act::Create { .. } if self.refuses_pods => refused(Why::Forbidden, "exceeded quota"),
            Act::Create { resource, .. } => {
                self.made += 1;
                let mut value = act.body();
                let name = format!(
                    "{}{}",
                    value["metadata"]["generateName"].as_str().unwrap_or_default(),
                    self.made
                );
                value["metadata"]["name"] = json!(name);
                value["metadata"]["uid"] = json!(format!("u-{name}"));
                value["metadata"]["creationTimestamp"] = json!(timestamp(at(self.now).wall));
                let answer = done(&value);
                self.objects.insert(name, (*resource, value));
                answer
            }
            Act::Update { target, .. } => {
                let status = act.body()["status"].clone();
                let Some((_, known)) = self.objects.get_mut(&target.name) else {
                    return refused(Why::NotFound, "gone");
                };
                known["status"] = status;
                done(known)
            }
            Act::Patch { target, .. } => {
                let patch = act.body();
                let Some((_, known)) = self.objects.get_mut(&target.name) else {
                    return refused(Why::NotFound, "gone");
                };
                if !patch["metadata"]["$deleteFromPrimitiveList/finalizers"].is_null() {
                    known["metadata"]["finalizers"] = json!([]);
                }
                let owner = patch["metadata"]["ownerReferences"][0].clone();
                if owner["$patch"] == "delete" {
                    known["metadata"]["ownerReferences"] = json!([]);
                } else if !owner.is_null() {
                    known["metadata"]["ownerReferences"] = json!([owner]);
                    known["metadata"]["finalizers"] = patch["metadata"]["finalizers"].clone();
                }
                let answer = done(known);
                self.sweep();
                answer
            }
            Act::Delete { target, .. } => {
                if let Some((_, known)) = self.objects.get_mut(&target.name) {
                    known["metadata"]["deletionTimestamp"] = json!(timestamp(at(self.now).wall));
                }
                self.sweep();
                Outcome::Done("{}".into())
            }
            Act::DeleteAt { .. }
            | Act::DeleteIf { .. }
            | Act::Merge { .. }
            | Act::Get { .. }
            | Act::Put { .. }
            | Act::Post { .. } => refused(Why::Other, "not served"),
        }
    }

    /// Who is deleted, has ended and has no finalizer is gone.
    fn sweep(&mut self) {
        self.objects.retain(|_, (resource, value)| {
            let finalizers = value["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
            let is_over = matches!(value["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
            *resource != PODS || value["metadata"]["deletionTimestamp"].is_null() || finalizers || !is_over
        });
    }

    fn run(&mut self) -> &mut Play {
        for _ in 0..20 {
            let world = self.world();
            let key = Key::new(testing::NAMESPACE, "j");
            let mut plan = self.jobs.reconcile(&world.cache, &key, at(self.now));
            let (mut done, mut again, mut acted) = (Done::default(), false, false);
            self.wake = plan.wake.map(|wake| wake.as_secs());
            loop {
                again |= plan.again;
                self.told.extend(said(&Plan { steps: Vec::new(), ..plan.clone() }));
                if !plan.has_acts() {
                    break;
                }
                acted = true;
                done.last = done.acts.len();
                done.rounds += 1;
                for step in plan.steps {
                    let outcomes: Vec<_> = step
                        .acts
                        .into_iter()
                        .map(|act| {
                            let o = self.act(&act);
                            (act, o)
                        })
                        .collect();
                    let failed = outcomes.iter().any(|(_, outcome)| !outcome.is_done());
                    done.acts.extend(outcomes);
                    if failed {
                        break;
                    }
                }
                plan = self.jobs.settle(&world.cache, &key, at(self.now), &done);
            }
            if !(again || acted && done.failure().is_none()) {
                break;
            }
        }
        self
    }

    fn status(&self) -> &Value {
        &self.objects["j"].1["status"]
    }

    fn pods(&self) -> Vec<&str> {
        self.objects
            .iter()
            .filter(|(_, (resource, _))| *resource == PODS)
            .map(|(name, _)| name.as_str())
            .collect()
    }

    fn set(&mut self, name: &str, pointer: &str, to: Value) -> &mut Play {
        let (resource, value) = self.objects[name].clone();
        let mut one = draft(resource, name);
        one.value = value;
        self.objects.insert(name.to_owned(), (resource, one.set(pointer, to).value));
        self
    }

    /// Every Pod that lives ends so.
    fn end(&mut self, phase: &str, code: i64) -> &mut Play {
        let at = timestamp(at(self.now).wall);
        for name in self.pods().into_iter().map(str::to_owned).collect::<Vec<_>>() {
            let is_over =
                matches!(self.objects[&name].1["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
            if !is_over {
                let statuses = json!([{"name": "c", "restartCount": 0,
                    "state": {"terminated": {"exitCode": code, "finishedAt": at}}}]);
                self.set(&name, "/status", json!({"phase": phase, "containerStatuses": statuses}));
            }
        }
        self.sweep();
        self
    }

    /// The condition that is True with its reason and message.
    fn condition(&self, kind: &str) -> String {
        let found =
            conditions(self.status()).into_iter().find(|c| c["type"] == kind && c["status"] == "True");
        let text = |c: &Value| {
            format!("{}: {}", c["reason"].as_str().unwrap_or(""), c["message"].as_str().unwrap_or(""))
        };
        found.as_ref().map(text).unwrap_or_default()
    }
}

fn conditions(status: &Value) -> Vec<Value> {
    status["conditions"].as_array().cloned().unwrap_or_default()
}

#[test]
fn a_job_runs_its_pods_to_the_end_and_counts_each_once() {
    let mut play = Play::new(vec![job(&json!({})).set("/status", json!({}))]);
    play.run();
    assert_eq!((play.status()["active"].clone(), play.pods()), (json!(2), vec!["j-1", "j-2"]));
    assert_eq!(play.status()["startTime"], "1970-01-01T00:16:40Z");
    assert_eq!(play.status()["uncountedTerminatedPods"], json!({}));
    play.end("Succeeded", 0).run();
    assert_eq!((play.status()["succeeded"].clone(), play.status()["active"].clone()), (json!(2), json!(1)));
    play.end("Succeeded", 0).run();
    let status = play.status();
    assert_eq!((&status["succeeded"], &status["active"]), (&json!(3), &Value::Null));
    assert_eq!((&status["ready"], &status["terminating"]), (&json!(0), &json!(0)));
    assert_eq!(status["completionTime"], "1970-01-01T00:16:40Z");
    let why = "CompletionsReached: Reached expected number of succeeded pods";
    assert_eq!((play.condition("SuccessCriteriaMet"), play.condition("Complete")), (why.into(), why.into()));
    assert_eq!(play.told.last().map(String::as_str), Some("Normal Completed: Job completed"));
    assert!(play.told.contains(&"Normal SuccessfulCreate: Created pod: j-1".to_owned()));
    let finalizers =
        play.objects.values().filter(|(r, _)| *r == PODS).map(|(_, pod)| &pod["metadata"]["finalizers"]);
    assert!(finalizers.into_iter().all(|all| *all == json!([])), "nobody is held any more");
}

#[test]
fn without_completions_one_success_is_enough_and_the_others_may_end() {
    let mut play = Play::new(vec![job(&json!({"completions": null, "parallelism": 2}))]);
    play.run().set("j-1", "/status", json!({"phase": "Succeeded"})).run();
    assert_eq!((play.pods().len(), play.status()["succeeded"].clone()), (2, json!(1)));
    assert_eq!(play.condition("Complete"), "", "one is still running");
    play.end("Failed", 1).run();
    assert_ne!(play.condition("Complete"), "");
}

#[test]
fn failures_are_waited_for_and_end_at_the_limit() {
    let mut play = Play::new(vec![job(&json!({"completions": 1, "parallelism": 1, "backoffLimit": 1}))]);
    play.run().end("Failed", 1).run();
    assert_eq!((play.status()["failed"].clone(), play.pods().len(), play.wake), (json!(1), 1, Some(10)));
    play.now += 10;
    play.run().end("Failed", 1).run();
    assert_eq!(play.status()["failed"], 2);
    let why = "BackoffLimitExceeded: Job has reached the specified backoff limit";
    assert_eq!((play.condition("FailureTarget"), play.condition("Failed")), (why.into(), why.into()));
    assert_eq!(play.status()["completionTime"], Value::Null);
    assert_eq!(play.told.last().cloned(), Some(format!("Warning {why}")));
}

#[test]
fn what_still_runs_is_deleted_and_the_end_waits_for_it() {
    let mut play = Play::new(vec![job(&json!({"backoffLimit": 0})), pod("a", "Failed"), pod("b", "Running")]);
    play.run();
    assert_eq!((play.status()["terminating"].clone(), play.status()["failed"].clone()), (json!(1), json!(2)));
    assert_ne!(play.condition("FailureTarget"), "");
    assert_eq!(play.condition("Failed"), "", "one is terminating");
    play.objects.remove("b");
    play.run();
    assert_ne!(play.condition("Failed"), "");
}

#[test]
fn restarts_by_the_kubelet_count_against_the_limit() {
    for (limit, restarts, fails) in [(2, 1, false), (2, 2, true), (0, 0, false), (0, 1, true)] {
        let on_failure =
            job(&json!({"backoffLimit": limit})).set("/spec/template/spec/restartPolicy", json!("OnFailure"));
        let mut play = Play::new(vec![on_failure, pod("a", "Running").restarts(restarts)]);
        play.run();
        assert_eq!(!play.condition("FailureTarget").is_empty(), fails, "{limit} {restarts}");
    }
}

#[test]
fn a_deadline_runs_from_the_start() {
    let mut play = Play::new(vec![job(&json!({"activeDeadlineSeconds": 500}))]);
    play.run();
    assert_eq!(play.wake, Some(100));
    play.now = 1100;
    play.run().end("Failed", 137).run();
    assert_eq!(play.condition("Failed"), "DeadlineExceeded: Job was active longer than specified deadline");
}

#[test]
fn rules_decide_what_a_failure_means() {
    let exit = |action: &str| json!({"action": action, "onExitCodes": {"operator": "In", "values": [42]}});
    let evicted =
        json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]});
    let policy = |rules: Value| job(&json!({"podFailurePolicy": {"rules": rules}, "backoffLimit": 3}));
    let a = ended(pod("a", "Failed"), 42, 990);
    let mut play = Play::new(vec![policy(json!([evicted, exit("FailJob")])), a.clone()]);
    play.run();
    assert_eq!(
        play.condition("FailureTarget"),
        "PodFailurePolicy: Container c for pod ns/a failed with exit code 42 matching FailJob rule at index 1"
    );
    let other = json!({"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [42]}});
    for (rules, failed) in [
        (json!([exit("Ignore")]), Value::Null),
        (json!([exit("Count")]), json!(1)),
        (json!([other]), json!(1)),
    ] {
        let mut play = Play::new(vec![policy(rules.clone()), a.clone()]);
        play.run();
        assert_eq!(
            (&play.status()["failed"], play.condition("FailureTarget")),
            (&failed, String::new()),
            "{rules}"
        );
    }
    let target = json!([{"type": "DisruptionTarget", "status": "True"}]);
    let gone = pod("a", "Failed").set("/status/conditions", target);
    let mut play = Play::new(vec![policy(json!([evicted])), gone.clone()]);
    assert_eq!(play.run().status()["failed"], Value::Null, "an eviction is no failure");
    let fatal = json!([{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]}]);
    let mut play = Play::new(vec![policy(fatal), gone]);
    play.run();
    assert_eq!(
        play.condition("FailureTarget"),
        "PodFailurePolicy: Pod ns/a has condition DisruptionTarget matching FailJob rule at index 0"
    );
}

#[test]
fn pods_of_an_indexed_job_know_their_place() {
    let mut play = Play::new(vec![
        job(&json!({"completionMode": "Indexed", "completions": 4})),
        indexed("x", "Succeeded", 0),
    ]);
    play.run();
    assert_eq!(play.pods(), ["j-1-1", "j-2-2", "x"], "the lowest free ones");
    let made = &play.objects["j-1-1"].1;
    assert_eq!(made["metadata"]["annotations"][COMPLETION_INDEX], "1");
    assert_eq!(made["metadata"]["labels"][COMPLETION_INDEX], "1");
    assert_eq!(made["spec"]["hostname"], "j-1");
    let env = &made["spec"]["containers"][0]["env"][0];
    assert_eq!(env["valueFrom"]["fieldRef"]["fieldPath"], format!("metadata.labels['{COMPLETION_INDEX}']"));
    play.end("Succeeded", 0).run().end("Succeeded", 0).run();
    assert_eq!((&play.status()["completedIndexes"], &play.status()["succeeded"]), (&json!("0-3"), &json!(4)));
    assert_ne!(play.condition("Complete"), "");
}

#[test]
fn surplus_indexes_go_first() {
    let two = job(&json!({"completionMode": "Indexed", "completions": 2}));
    let pods = vec![
        two,
        indexed("a", "Running", 0).on("n").ready(1),
        indexed("b", "Running", 0),
        indexed("c", "Running", 1),
        indexed("d", "Running", 7),
    ];
    let mut play = Play::new(pods);
    play.run();
    let going = |name: &str| {
        play.objects.get(name).is_none_or(|(_, pod)| !pod["metadata"]["deletionTimestamp"].is_null())
    };
    assert_eq!(["a", "b", "c", "d"].map(going), [false, true, false, true]);
    assert_eq!(play.status()["failed"], Value::Null, "who is taken away has not failed");
}

#[test]
fn each_index_has_its_own_limit_and_the_count_is_exact() {
    let spec = json!({"completionMode": "Indexed", "completions": 2, "backoffLimitPerIndex": 1, "backoffLimit": i32::MAX});
    let mut play = Play::new(vec![job(&spec)]);
    play.run().end("Failed", 1).run();
    assert_eq!((play.pods().len(), play.wake), (2, Some(10)), "each waits for itself");
    let held = |play: &Play| {
        play.objects.values().filter(|(r, p)| *r == PODS && p["metadata"]["finalizers"] != json!([])).count()
    };
    assert_eq!(held(&play), 2, "the last one carries the count");
    play.now += 10;
    play.run();
    let counts: Vec<Value> = play
        .objects
        .values()
        .filter(|(r, _)| *r == PODS)
        .map(|(_, p)| p["metadata"]["annotations"][super::pod::FAILURES].clone())
        .collect();
    assert_eq!(counts, ["0", "1", "0", "1"].map(|n| json!(n)));
    play.end("Failed", 1).run();
    let status = play.status();
    assert_eq!((&status["failed"], &status["failedIndexes"]), (&json!(4), &json!("0,1")));
    assert_eq!(play.condition("Failed"), "FailedIndexes: Job has failed indexes");
    assert_eq!(held(&play), 0);
}

#[test]
fn too_many_failed_indexes_and_a_rule_may_end_it_early() {
    let rule = json!({"rules": [{"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [3]}}]});
    let spec = json!({"completionMode": "Indexed", "completions": 4, "backoffLimitPerIndex": 1, "maxFailedIndexes": 1,
        "podFailurePolicy": rule, "backoffLimit": i32::MAX});
    let mut play = Play::new(vec![job(&spec), ended(indexed("a", "Failed", 1), 3, 990)]);
    play.run();
    assert_eq!((&play.status()["failedIndexes"], &play.status()["failed"]), (&json!("1"), &json!(1)));
    assert_eq!(play.condition("FailureTarget"), "");
    play.objects.insert("b".into(), (PODS, ended(indexed("b", "Failed", 3), 3, 990).value));
    play.run();
    assert_eq!(play.status()["failedIndexes"], "1,3");
    let why = "MaxFailedIndexesExceeded: Job has exceeded the specified maximal number of failed indexes";
    assert_eq!(play.condition("FailureTarget"), why);
}

#[test]
fn a_success_policy_ends_the_job_and_those_who_run_have_not_failed() {
    for (rule, met) in [
        (json!({"succeededIndexes": "0"}), true),
        (json!({"succeededIndexes": "0,1"}), false),
        (json!({"succeededCount": 1}), true),
        (json!({"succeededIndexes": "1-3", "succeededCount": 1}), false),
    ] {
        let spec = json!({"completionMode": "Indexed", "completions": 4, "successPolicy": {"rules": [rule]}});
        let mut play = Play::new(vec![job(&spec), indexed("a", "Succeeded", 0), indexed("b", "Running", 1)]);
        play.run().end("Failed", 137).run();
        let want = if met { "SuccessPolicy: Matched rules at index 0" } else { "" };
        assert_eq!(play.condition("SuccessCriteriaMet"), want, "{rule}");
        if met {
            assert_eq!(
                (play.condition("Complete"), play.status()["failed"].clone()),
                (want.to_owned(), Value::Null),
                "{rule}"
            );
        }
    }
}

#[test]
fn a_suspended_job_loses_its_pods_and_starts_anew() {
    let mut play = Play::new(vec![job(&json!({"activeDeadlineSeconds": 500}))]);
    play.run().set("j", "/spec/suspend", json!(true)).run();
    assert_eq!(play.condition("Suspended"), "JobSuspended: Job suspended");
    assert_eq!((play.status()["startTime"].clone(), play.wake), (Value::Null, None));
    play.end("Failed", 137).run();
    assert_eq!((play.pods(), play.status()["failed"].clone()), (vec![], Value::Null));
    play.now += 1000;
    play.set("j", "/spec/suspend", json!(false)).run();
    assert_eq!((play.condition("Suspended"), play.pods().len()), (String::new(), 2));
    assert_eq!(play.status()["startTime"], "1970-01-01T00:33:20Z");
    let told = |text: &str| play.told.iter().filter(|line| *line == text).count();
    assert_eq!((told("Normal Suspended: Job suspended"), told("Normal Resumed: Job resumed")), (1, 1));
}

#[test]
fn who_replaces_ended_pods_only_waits_for_those_that_terminate() {
    for (policy, pods) in [("TerminatingOrFailed", 3), ("Failed", 2)] {
        let job = job(&json!({"podReplacementPolicy": policy, "backoffLimit": 6}));
        let going = pod("a", "Running").deleting(true);
        let mut play = Play::new(vec![job, going, pod("b", "Running")]);
        play.now = 2000;
        play.run();
        assert_eq!(play.pods().len(), pods, "{policy}");
        assert_eq!(play.status()["terminating"], 1, "{policy}");
        assert_eq!(play.status()["failed"].is_null(), policy == "Failed");
    }
}

#[test]
fn counting_goes_on_from_wherever_it_was_broken_off() {
    let uncounted = json!({"succeeded": ["u-a", "u-gone"]});
    let job = |uncounted: &Value| {
        job(&json!({"completions": 9, "parallelism": 0}))
            .set("/status/uncountedTerminatedPods", uncounted.clone())
    };
    let mut play = Play::new(vec![job(&uncounted), pod("a", "Succeeded"), pod("b", "Succeeded")]);
    play.run();
    let status = play.status();
    assert_eq!((&status["succeeded"], &status["uncountedTerminatedPods"]), (&json!(3), &json!({})));
}

#[test]
fn a_refused_pod_is_told_and_what_has_ended_is_counted_all_the_same() {
    let mut play = Play::new(vec![job(&json!({})), pod("a", "Succeeded")]);
    play.refuses_pods = true;
    play.run();
    assert!(
        play.told.iter().any(|line| line.ends_with("Warning FailedCreate: Error creating: exceeded quota"))
    );
    let status = play.status();
    let known =
        status["uncountedTerminatedPods"]["succeeded"] == json!(["u-a"]) || status["succeeded"] == json!(1);
    assert!(known, "{status}");
}

#[test]
fn a_job_that_goes_frees_its_pods_and_makes_none() {
    let mut play =
        Play::new(vec![job(&json!({})).deleting(true), pod("a", "Running"), pod("b", "Succeeded")]);
    play.run();
    let held = play.objects.values().any(|(r, p)| *r == PODS && p["metadata"]["finalizers"] != json!([]));
    assert_eq!((held, play.pods()), (false, vec!["a", "b"]));
}

#[test]
fn others_jobs_and_ended_ones_are_left_alone() {
    let complete = json!([{"type": "Complete", "status": "True"}]);
    for one in
        [job(&json!({"managedBy": "example.com/x"})), job(&json!({})).set("/status/conditions", complete)]
    {
        assert_eq!(
            World::new(vec![one, pod("a", "Failed")]).reconcile(&mut Jobs::default(), "j", at(NOW)),
            Plan::nothing()
        );
    }
    let ours = World::new(job(&json!({"managedBy": "kubernetes.io/job-controller"})));
    assert!(ours.reconcile(&mut Jobs::default(), "j", at(NOW)).has_acts());
    let odd =
        World::new(job(&json!({"completionMode": "Later"}))).reconcile(&mut Jobs::default(), "j", at(NOW));
    assert_eq!(
        said(&odd),
        ["Warning UnknownCompletionMode: Skipped Job sync because completion mode is unknown"]
    );
}

#[test]
fn an_orphan_is_adopted_with_its_finalizer() {
    let orphan = testing::pod("p").label("app", "a").phase("Running");
    let plan = World::new(vec![job(&json!({})), orphan]).reconcile(&mut Jobs::default(), "j", at(NOW));
    assert_eq!(said(&plan), ["patch pods ns/p"]);
    assert_eq!(plan.steps[0].acts[0].body()["metadata"]["finalizers"], json!([JOB_TRACKING]));
}

#[test]
fn a_pod_without_a_living_job_loses_its_finalizer() {
    let complete = json!([{"type": "Complete", "status": "True"}]);
    let rows: [(&str, Vec<Draft>, bool); 7] = [
        ("its job is gone", vec![pod("p", "Running")], true),
        ("its job lives", vec![job(&json!({})), pod("p", "Running")], false),
        ("another of that name", vec![job(&json!({})).uid("u2"), pod("p", "Running")], true),
        (
            "its job has ended",
            vec![job(&json!({})).set("/status/conditions", complete), pod("p", "Running")],
            true,
        ),
        ("somebody else's", vec![job(&json!({"managedBy": "x.io/y"})), pod("p", "Running")], false),
        ("let go", vec![pod("p", "Running").set("/metadata/ownerReferences", json!([]))], true),
        ("another kind's", vec![pod("p", "Running").controller("ReplicaSet", "r", "u-r")], false),
    ];
    for (row, objects, freed) in rows {
        let world = World::new(objects);
        let plan = world.reconcile(&mut orphans::Orphans, "p", at(NOW));
        assert_eq!(plan.has_acts(), freed, "{row}");
        let wakes = world.wakes(orphans::WATCHES, None, Some(&pod("p", "Running")));
        assert!(wakes.is_empty() || freed || row == "another kind's", "{row}");
    }
    let gone = World::new(vec![pod("p", "Running")]);
    assert_eq!(gone.wakes(orphans::WATCHES, Some(&job(&json!({}))), None), ["ns/p"]);
}
