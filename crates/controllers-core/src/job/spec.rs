//! A Job as its controller reads it.

use std::sync::Arc;

use api::selector::LabelSelector;
use k8s_openapi::api::batch::v1::JobSpec;
use serde_json::Value;

use crate::conditions;
use crate::object::{Object, Unreadable};

#[derive(Debug)]
pub(super) struct Job {
    pub(super) object: Arc<Object>,
    pub(super) spec: JobSpec,
    pub(super) selector: LabelSelector,
    /// As it was written, with whatever fields it has.
    pub(super) template: Value,
    pub(super) status: Value,
    pub(super) completions: Option<u32>,
    pub(super) parallelism: u32,
    pub(super) backoff_limit: i32,
}

/// Who works on Jobs that name nobody.
const US: &str = "kubernetes.io/job-controller";

// === impl Job ===

impl Job {
    pub(super) fn read(object: Arc<Object>) -> Result<Job, Unreadable> {
        let typed: k8s_openapi::api::batch::v1::Job = object.decode()?;
        let mut value = object.value();
        let spec = typed.spec.ok_or_else(|| object.unreadable("spec is not there"))?;
        let selector = LabelSelector::from_object(&value["spec"]["selector"]);
        if selector.is_empty() {
            return Err(object.unreadable("spec.selector takes everything"));
        }
        let number = |value: i32| u32::try_from(value).unwrap_or(0);
        let job = Job {
            selector,
            template: value["spec"]["template"].take(),
            status: value["status"].take(),
            completions: spec.completions.map(number),
            parallelism: number(spec.parallelism.unwrap_or(1)),
            backoff_limit: spec.backoff_limit.unwrap_or(6),
            spec,
            object,
        };
        if job.is_indexed() && job.completions.is_none() {
            return Err(job.object.unreadable("spec.completions is not there"));
        }
        Ok(job)
    }

    pub(super) fn is_indexed(&self) -> bool {
        self.spec.completion_mode.as_deref() == Some("Indexed")
    }

    pub(super) fn has_known_mode(&self) -> bool {
        matches!(self.spec.completion_mode.as_deref(), None | Some("Indexed" | "NonIndexed"))
    }

    pub(super) fn is_suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }

    /// Each index has failures of its own.
    pub(super) fn per_index(&self) -> Option<i32> {
        self.spec.backoff_limit_per_index.filter(|_| self.is_indexed())
    }

    /// A Pod is replaced when it has ended, not while it is terminating.
    pub(super) fn replaces_ended_only(&self) -> bool {
        self.spec.pod_replacement_policy.as_deref() == Some("Failed")
            || self.spec.pod_failure_policy.is_some()
    }

    pub(super) fn number(&self, name: &str) -> usize {
        self.status[name].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(0)
    }

    /// UIDs that were written down, and are not in the counts yet.
    pub(super) fn uncounted(&self, what: &str) -> Vec<String> {
        let list = self.status["uncountedTerminatedPods"][what].as_array().into_iter().flatten();
        list.into_iter().filter_map(|uid| uid.as_str().map(str::to_owned)).collect()
    }
}

/// Complete or Failed.
pub(super) fn is_finished(status: &Value) -> bool {
    is_true(status, "Complete") || is_true(status, "Failed")
}

pub(super) fn is_true(status: &Value, condition: &str) -> bool {
    conditions::find(status, condition).is_some_and(|c| c["status"] == "True")
}

/// Somebody else works on this Job.
pub(super) fn is_foreign(job: &Object) -> bool {
    job.value()["spec"]["managedBy"].as_str().is_some_and(|who| who != US)
}
