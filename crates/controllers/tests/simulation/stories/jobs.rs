//! A Job whose Pods succeed or fail by chance, and which is counted exactly.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::rng::Rng;
use controllers_core::resource::{JOBS, PODS};
use controllers_core::terms::JOB_TRACKING;
use serde_json::{Value, json};

use super::{end_deleted, equal, is_deleting, some, start};
use crate::cluster::Story;
use crate::server::{Check, Store};

#[derive(Debug)]
pub(crate) struct Work {
    completions: i64,
    parallelism: i64,
    is_indexed: bool,
    /// Pods were too many at some time. They are freed, then deleted, and not counted, even one that has just ended: so does
    /// upstream.
    had_surplus: Arc<AtomicBool>,
}

impl Work {
    pub(crate) fn new(rng: &mut Rng) -> Work {
        Work {
            completions: 1 + rng.below(6).cast_signed(),
            parallelism: 1 + rng.below(4).cast_signed(),
            is_indexed: rng.chance(0.5),
            had_surplus: Arc::default(),
        }
    }
}

impl Story for Work {
    fn queues(&self) -> &'static [&'static str] {
        &["job", "job_orphan_pod"]
    }

    fn check(&self) -> Check {
        let (completions, had_surplus) = (self.completions, self.had_surplus.clone());
        Box::new(move |store| check(store, completions, had_surplus.load(Ordering::Relaxed)))
    }

    fn begin(&mut self, store: &mut Store) {
        let template = json!({"metadata": {"labels": {"job": "j"}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
        let job = json!({"metadata": {"name": "j"}, "spec": {
            "completions": self.completions, "parallelism": self.parallelism, "backoffLimit": 100,
            "completionMode": if self.is_indexed { "Indexed" } else { "NonIndexed" },
            "selector": {"matchLabels": {"job": "j"}}, "suspend": false, "podReplacementPolicy": "TerminatingOrFailed",
            "template": template}});
        store.create(JOBS, job).unwrap();
    }

    fn change(&mut self, store: &mut Store, rng: &mut Rng) {
        match rng.below(3) {
            0 => {
                self.had_surplus.store(true, Ordering::Relaxed);
                let job = store.get(JOBS, "j");
                let is_suspended = job["spec"]["suspend"] == true;
                store.change(JOBS, "j", |job| job["spec"]["suspend"] = json!(!is_suspended));
            }
            1 => {
                self.had_surplus.store(true, Ordering::Relaxed);
                self.parallelism = 1 + rng.below(4).cast_signed();
                let parallelism = self.parallelism;
                store.change(JOBS, "j", |job| job["spec"]["parallelism"] = json!(parallelism));
            }
            // Somebody deletes a Pod.
            _ => {
                let names = store.names(PODS);
                if !names.is_empty() {
                    store.begin_delete(PODS, &names[rng.below(names.len() as u64) as usize]);
                }
            }
        }
    }

    fn live(&self, store: &mut Store, rng: &mut Rng) {
        // Nobody stays suspended for ever.
        let job = store.get(JOBS, "j");
        let is_over = !job["status"]["completionTime"].is_null();
        if job["spec"]["suspend"] == true && !is_over && rng.chance(0.02) {
            store.change(JOBS, "j", |job| job["spec"]["suspend"] = json!(false));
        }
        for name in some(store, rng) {
            let pod = store.get(PODS, &name);
            match (is_deleting(pod), pod["status"]["phase"].as_str()) {
                (true, _) => end_deleted(store, &name),
                (false, None) => start(store, &name, "node"),
                (false, Some("Running")) => {
                    let phase = if rng.chance(0.8) { "Succeeded" } else { "Failed" };
                    let time = store.time();
                    store.change(PODS, &name, |pod| {
                        pod["status"]["phase"] = json!(phase);
                        pod["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
                        pod["status"]["containerStatuses"] = json!([{"name": "c", "state":
                            {"terminated": {"exitCode": i32::from(phase == "Failed"), "finishedAt": time}}}]);
                    });
                }
                _ => {}
            }
        }
    }

    fn is_as_asked(&self, store: &Store) -> Result<(), String> {
        let job = store.get(JOBS, "j");
        let status = &job["status"];
        let is = |kind: &str| {
            let conditions = status["conditions"].as_array().into_iter().flatten();
            conditions.into_iter().any(|one| one["type"] == kind && one["status"] == "True")
        };
        if !is("Complete") || is("Failed") {
            return Err(format!("it is not complete: {status}"));
        }
        equal("succeeded", &status["succeeded"], self.completions)?;
        equal("active", &status["active"], 0)?;
        let ended = |phase: &str| store.of(PODS).filter(|(_, pod)| pod["status"]["phase"] == phase).count();
        // Those that were deleted are not there to be counted any more.
        let had_surplus = self.had_surplus.load(Ordering::Relaxed);
        if !had_surplus && status["failed"].as_i64().unwrap_or(0) < ended("Failed") as i64 {
            return Err(format!("{} Pods have failed: {status}", ended("Failed")));
        }
        if !status["uncountedTerminatedPods"]["succeeded"].is_null()
            || !status["uncountedTerminatedPods"]["failed"].is_null()
        {
            return Err("some are not counted".to_owned());
        }
        if let Some((name, _)) = store.of(PODS).find(|(_, pod)| is_tracked(pod)) {
            return Err(format!("{name} is held"));
        }
        let want = (1..self.completions).fold("0".to_owned(), |_, _| format!("0-{}", self.completions - 1));
        let want = if self.completions == 2 { "0,1".to_owned() } else { want };
        match self.is_indexed && status["completedIndexes"] != want {
            true => Err(format!("{} are complete, not {want}", status["completedIndexes"])),
            false => Ok(()),
        }
    }
}

fn is_tracked(pod: &Value) -> bool {
    pod["metadata"]["finalizers"].as_array().is_some_and(|all| all.iter().any(|one| one == JOB_TRACKING))
}

fn check(store: &Store, completions: i64, had_surplus: bool) -> Vec<String> {
    let job = store.get(JOBS, "j");
    let mut broken = Vec::new();
    let number = |value: &Value| value.as_i64().unwrap_or(0);
    let succeeded = number(&job["status"]["succeeded"]);
    if succeeded > completions {
        broken.push(format!("{succeeded} have succeeded of {completions}"));
    }
    if had_surplus {
        return broken;
    }
    // Nobody who has not been counted is let go: what is free is in the numbers or among the UIDs.
    let listed =
        |what: &str| job["status"]["uncountedTerminatedPods"][what].as_array().map_or(0, Vec::len) as i64;
    let free = |phase: &str| {
        let pods = store.of(PODS).filter(|(_, pod)| pod["status"]["phase"] == phase && !is_tracked(pod));
        pods.count() as i64
    };
    let failed = number(&job["status"]["failed"]);
    if free("Failed") > failed + listed("failed") {
        broken.push(format!("{} Pods have failed and are free, {failed} are counted", free("Failed")));
    }
    if job["spec"]["completionMode"] == "NonIndexed" && free("Succeeded") > succeeded + listed("succeeded") {
        broken.push(format!("{} have succeeded and are free, {succeeded} are counted", free("Succeeded")));
    }
    broken
}
