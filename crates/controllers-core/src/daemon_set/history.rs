//! The templates that a DaemonSet has had.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::fnv::fnv1a32;
use serde_json::json;

use super::{DaemonSet, HASH};
use crate::claim::Claimant;
use crate::names;
use crate::object::Object;
use crate::plan::{Act, PatchKind, Plan, Step};
use crate::resource::CONTROLLER_REVISIONS;
use crate::revision::{self, Revision};
use crate::view::View;

#[derive(Debug)]
pub(super) struct History {
    /// That of the present template.
    pub(super) current: Revision,
    /// The others, oldest first.
    pub(super) old: Vec<Revision>,
}

// === impl History ===

impl History {
    pub(super) fn hash(&self) -> String {
        self.current.object.label(HASH).unwrap_or_default().to_owned()
    }
}

// === impl DaemonSet ===

impl DaemonSet {
    /// Its revisions. A template that has none gets one first, and what is not in order is put so.
    pub(super) fn history(&self, view: &dyn View, pods: &[Arc<Object>]) -> Result<History, Plan> {
        let data = revision::data(&self.object, &self.template)
            .map_err(|error| Plan::unreadable(&self.object, &error))?;
        let text = revision::encode(&data);
        let all = self.revisions(view)?;
        let unlabelled = all.iter().filter(|one| one.object.label(HASH).is_none());
        let label = |one: &Revision| {
            Act::update(&one.object, |value| value["metadata"]["labels"][HASH] = json!(one.name()))
        };
        in_the_way(Step::at_once(unlabelled.map(label)))?;
        let (mut current, old): (Vec<_>, Vec<_>) = all.into_iter().partition(|one| one.data == text);
        let next = old.iter().map(|one| one.number).max().unwrap_or(0) + 1;
        let Some(keep) = current.pop() else {
            let count = self.status["collisionCount"].as_i64();
            let seed = count.map(|count| count.to_string()).unwrap_or_default();
            let hash = names::letters(fnv1a32(&[&text[..], seed.as_bytes()].concat()));
            let name = format!("{}-{hash}", self.object.meta.name);
            let labels = self.template["metadata"]["labels"].clone();
            let create = revision::create(&self.object, &name, labels, (HASH, &hash), &data, next);
            return Err(Plan::of(Step::in_turn([create])).again());
        };
        self.drop_doubles(&current, &keep, pods)?;
        if keep.number < next {
            return Err(Plan::of(Step::in_turn([keep.renumber(next)])).again());
        }
        Ok(History { current: keep, old })
    }

    /// Oldest first.
    fn revisions(&self, view: &dyn View) -> Result<Vec<Revision>, Plan> {
        let meta = &self.object.meta;
        let mut all = view.owned_by(CONTROLLER_REVISIONS, &meta.namespace, &meta.uid);
        all.extend(view.owned_by(CONTROLLER_REVISIONS, &meta.namespace, ""));
        let claimant = Claimant::new(&self.object, &self.selector);
        let claim = claimant.claim(all);
        if !claim.is_settled() {
            return Err(Plan { steps: claimant.steps(&claim), again: true, ..Plan::default() });
        }
        let mut revisions: Vec<Revision> = claim.owned.into_iter().map(Revision::read).collect();
        revision::sort(&mut revisions);
        Ok(revisions)
    }

    /// Several revisions of one template: the highest stays, and Pods of the others become its own.
    fn drop_doubles(&self, doubles: &[Revision], keep: &Revision, pods: &[Arc<Object>]) -> Result<(), Plan> {
        let hash = keep.object.label(HASH).unwrap_or_default();
        let is_doubles =
            |pod: &&Arc<Object>| doubles.iter().any(|one| one.object.label(HASH) == pod.label(HASH));
        let patch = json!({"metadata": {"labels": {HASH: hash}}});
        let relabel = pods.iter().filter(is_doubles).map(|pod| Act::patch(pod, PatchKind::Strategic, &patch));
        in_the_way(Step::at_once(relabel))?;
        in_the_way(Step::at_once(doubles.iter().map(|one| Act::delete(&one.object))))
    }

    /// Old revisions beyond the limit, but for those that Pods still are of.
    pub(super) fn clean_up(&self, history: &History, pods: &[Arc<Object>]) -> Vec<Act> {
        let limit = usize::try_from(self.history_limit).unwrap_or(0);
        let surplus = history.old.len().saturating_sub(limit);
        let live: BTreeSet<&str> = pods.iter().filter_map(|pod| pod.label(HASH)).collect();
        let is_used = |one: &&Revision| one.object.label(HASH).is_some_and(|hash| live.contains(hash));
        let unused = history.old.iter().filter(|one| !is_used(one));
        unused.take(surplus).map(|one| Act::delete(&one.object)).collect()
    }
}

/// Nothing else is done until the cache shows that this is.
fn in_the_way(step: Step) -> Result<(), Plan> {
    match step.acts.is_empty() {
        true => Ok(()),
        false => Err(Plan::of(step).again()),
    }
}
