//! The templates that a StatefulSet has had.

use std::collections::BTreeSet;

use super::{Pods, REVISION, StatefulSet};
use crate::claim::Claimant;
use crate::names;
use crate::plan::{Act, Plan, Step};
use crate::resource::CONTROLLER_REVISIONS;
use crate::revision::{self, Revision};
use crate::template;
use crate::view::View;

const HASH: &str = "controller.kubernetes.io/hash";
/// What of a set's name stands in that of a revision.
const NAME: usize = 223;

#[derive(Debug)]
pub(super) struct Revisions {
    /// Where the Pods come from.
    pub(super) current: Revision,
    /// Where they go.
    pub(super) update: Revision,
    /// All of them, oldest first.
    all: Vec<Revision>,
}

impl StatefulSet {
    /// Its revisions. A template that has none gets one first; one that had one before gets it back under a new number.
    pub(super) fn revisions(&self, view: &dyn View) -> Result<Revisions, Plan> {
        let all = self.claimed(view)?;
        let data = revision::data(&self.object, &self.template)
            .map_err(|error| Plan::unreadable(&self.object, &error))?;
        let text = revision::encode(&data);
        let next = all.last().map_or(1, |last| last.number + 1);
        let update = match (all.iter().rev().find(|one| one.data == text), all.last()) {
            (Some(found), Some(last)) if found.data == last.data => last.clone(),
            (Some(found), _) => return Err(Plan::of(Step::in_turn([found.renumber(next)])).again()),
            // Written by another version, and the same.
            (None, Some(last)) if template::is_same(&last.template, &self.template) => last.clone(),
            (None, _) => {
                let count = self.status["collisionCount"].as_i64().unwrap_or(0);
                let hash = names::revision_hash(&text, i32::try_from(count).unwrap_or(0));
                let owner = &self.object.meta.name;
                let name = format!("{}-{hash}", &owner[..owner.len().min(NAME)]);
                let labels = self.template["metadata"]["labels"].clone();
                let create = revision::create(&self.object, &name, labels, (HASH, &hash), &data, next);
                return Err(Plan::of(Step::in_turn([create])).again());
            }
        };
        let known = self.status["currentRevision"].as_str();
        let current = all.iter().find(|one| Some(one.name()) == known).unwrap_or(&update).clone();
        Ok(Revisions { current, update, all })
    }

    /// Oldest first. Orphans are adopted; what was labelled away is left alone.
    fn claimed(&self, view: &dyn View) -> Result<Vec<Revision>, Plan> {
        let meta = &self.object.meta;
        let mut all = view.owned_by(CONTROLLER_REVISIONS, &meta.namespace, &meta.uid);
        all.extend(view.owned_by(CONTROLLER_REVISIONS, &meta.namespace, ""));
        let claimant = Claimant::new(&self.object, &self.selector);
        let mut claim = claimant.claim(all);
        claim.release.clear();
        if !claim.is_settled() {
            return Err(Plan { steps: claimant.steps(&claim), again: true, ..Plan::default() });
        }
        let mut revisions: Vec<Revision> = claim.owned.into_iter().map(Revision::read).collect();
        revision::sort(&mut revisions);
        Ok(revisions)
    }

    /// Revisions beyond the limit that nobody is of.
    pub(super) fn clean_up(&self, pods: &Pods, revisions: &Revisions) -> Vec<Act> {
        let mut live: BTreeSet<&str> = pods.all.iter().filter_map(|pod| pod.label(REVISION)).collect();
        live.extend([revisions.current.name(), revisions.update.name()]);
        let unused: Vec<&Revision> = revisions.all.iter().filter(|one| !live.contains(one.name())).collect();
        let surplus = unused.len().saturating_sub(usize::try_from(self.history_limit).unwrap_or(0));
        unused.iter().take(surplus).map(|one| Act::delete(&one.object)).collect()
    }
}
