//! The Jobs of a CronJob: those that ran, and which of them may stay.

use std::sync::Arc;

use base::time::Wall;
use serde_json::Value;

use crate::object::{Object, wall};
use crate::plan::Target;
use crate::resource::JOBS;
use crate::view::View;

#[derive(Debug)]
pub(super) struct Children(pub(super) Vec<Child>);

#[derive(Debug)]
pub(super) struct Child {
    pub(super) object: Arc<Object>,
    pub(super) end: Option<End>,
    started: Option<Wall>,
    pub(super) completed: Option<Wall>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Complete,
    Failed,
}

/// A Job that the status names and the cache does not know.
#[derive(Debug)]
pub(super) struct Unknown {
    pub(super) target: Target,
    pub(super) uid: String,
}

// === impl Children ===

impl Children {
    pub(super) fn of(owner: &Object, view: &dyn View) -> Children {
        let jobs = view.owned_by(JOBS, &owner.meta.namespace, &owner.meta.uid);
        Children(jobs.into_iter().map(Child::read).collect())
    }

    /// The oldest of those that ended beyond what may stay: of successful ones, and of failed ones.
    pub(super) fn surplus(&self, limits: [Option<usize>; 2]) -> impl Iterator<Item = &Child> {
        let ended = move |(end, limit): (End, Option<usize>)| {
            let mut jobs: Vec<&Child> =
                self.0.iter().filter(|job| job.end == Some(end) && !job.object.is_deleting()).collect();
            // Who has no time to have started at is the last to go.
            jobs.sort_by_key(|job| (job.started.is_none(), job.started, job.object.meta.name.clone()));
            let surplus = limit.map_or(0, |limit| jobs.len().saturating_sub(limit));
            jobs.truncate(surplus);
            jobs
        };
        [End::Complete, End::Failed].into_iter().zip(limits).flat_map(ended)
    }

    pub(super) fn unknown(&self, status: &Value) -> impl Iterator<Item = Unknown> {
        let named = status["active"].as_array().into_iter().flatten();
        named.filter(|job| !self.0.iter().any(|child| job["uid"] == *child.object.meta.uid)).filter_map(
            |job| {
                let namespace = job["namespace"].as_str()?;
                Unknown::at(job, namespace)
            },
        )
    }
}

// === impl Child ===

impl Child {
    fn read(object: Arc<Object>) -> Child {
        let status = object.value()["status"].take();
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let end = conditions.filter(|c| c["status"] == "True").find_map(|c| match c["type"].as_str() {
            Some("Complete") => Some(End::Complete),
            Some("Failed") => Some(End::Failed),
            _ => None,
        });
        let time = |key: &str| status[key].as_str().and_then(wall);
        let (started, completed) = (time("startTime"), time("completionTime"));
        Child { object, end, started, completed }
    }
}

// === impl End ===

impl End {
    pub(super) fn word(self) -> &'static str {
        match self {
            End::Complete => "Complete",
            End::Failed => "Failed",
        }
    }
}

// === impl Unknown ===

impl Unknown {
    /// A Job as the status of this CronJob names it.
    pub(super) fn read(job: &Value, owner: &Object) -> Option<Unknown> {
        Unknown::at(job, &owner.meta.namespace)
    }

    fn at(job: &Value, namespace: &str) -> Option<Unknown> {
        let name = job["name"].as_str()?.to_owned();
        let target = Target { resource: JOBS, namespace: namespace.to_owned(), name, subresource: "" };
        Some(Unknown { target, uid: job["uid"].as_str()?.to_owned() })
    }

    pub(super) fn path(&self) -> String {
        self.target.path()
    }
}
