//! Whose objects are whose: adopting orphans that a selector takes, releasing those it takes no more.

use std::sync::Arc;

use api::selector::LabelSelector;
use serde_json::{Value, json};

use crate::object::Object;
use crate::plan::{Act, Guard, PatchKind, Step};

/// What a controller has after looking at the objects that may be its own.
#[derive(Clone, Debug, Default)]
pub struct Claim {
    /// Owned, and taken by the selector.
    pub owned: Vec<Arc<Object>>,
    pub adopt: Vec<Arc<Object>>,
    pub release: Vec<Arc<Object>>,
}

/// Who claims, and what.
#[derive(Clone, Copy)]
pub struct Claimant<'a> {
    pub owner: &'a Object,
    pub selector: &'a LabelSelector,
    /// What an object must be besides; a StatefulSet looks at names.
    pub filter: &'a dyn Fn(&Object) -> bool,
    /// Added when adopting and taken away when releasing (Job).
    pub finalizers: &'a [&'a str],
}

// === impl Claimant ===

impl<'a> Claimant<'a> {
    #[must_use]
    pub fn new(owner: &'a Object, selector: &'a LabelSelector) -> Claimant<'a> {
        Claimant { owner, selector, filter: &|_| true, finalizers: &[] }
    }

    #[must_use]
    pub fn claim(&self, objects: impl IntoIterator<Item = Arc<Object>>) -> Claim {
        let (mut claim, owner) = (Claim::default(), &self.owner.meta);
        for object in objects {
            let matches = object.is_selected(self.selector) && (self.filter)(&object);
            match &object.meta.controller {
                Some(controller) if controller.uid != owner.uid => {}
                Some(_) if matches => claim.owned.push(object),
                Some(_) if owner.deleted.is_none() => claim.release.push(object),
                None if matches
                    && owner.deleted.is_none()
                    && !object.is_deleting()
                    && (owner.namespace.is_empty() || owner.namespace == object.meta.namespace) =>
                {
                    claim.adopt.push(object);
                }
                _ => {}
            }
        }
        claim
    }

    /// The steps that put it right. Who adopts proves first that he is alive: an orphan whose controller is deleted must stay
    /// one.
    #[must_use]
    pub fn steps(&self, claim: &Claim) -> Vec<Step> {
        let adopt = claim.adopt.iter().map(|object| self.adopt(object));
        let release = claim.release.iter().map(|object| self.release(object));
        let adopt = Step::at_once(adopt).guarded(Guard::alive(self.owner));
        let release = Step::at_once(release);
        [release, adopt].into_iter().filter(|step| !step.acts.is_empty()).collect()
    }

    fn adopt(&self, object: &Object) -> Act {
        let mut metadata = json!({"ownerReferences": [self.owner.as_controller()], "uid": object.meta.uid});
        if !self.finalizers.is_empty() {
            metadata["finalizers"] = json!(self.finalizers);
        }
        Act::patch(object, PatchKind::Strategic, &json!({ "metadata": metadata }))
    }

    fn release(&self, object: &Object) -> Act {
        let mut metadata = json!({
            "ownerReferences": [{"$patch": "delete", "uid": self.owner.meta.uid}],
            "uid": object.meta.uid,
        });
        if !self.finalizers.is_empty() {
            metadata["$deleteFromPrimitiveList/finalizers"] = json!(self.finalizers);
        }
        Act::patch(object, PatchKind::Strategic, &json!({ "metadata": metadata }))
    }
}

impl std::fmt::Debug for Claimant<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Claimant").field("owner", &self.owner.meta.name).finish_non_exhaustive()
    }
}

// === impl Claim ===

impl Claim {
    /// Nothing has to be adopted or released first.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.adopt.is_empty() && self.release.is_empty()
    }
}

/// `metadata` of an object that a controller makes.
#[must_use]
pub fn owned_metadata(owner: &Object, mut metadata: Value) -> Value {
    metadata["namespace"] = json!(&*owner.meta.namespace);
    metadata["ownerReferences"] = json!([owner.as_controller()]);
    metadata
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, World};

    /// Table 1.3 of the contract: controller of the object, whether labels match, whether the claimant is deleted.
    #[test]
    fn objects_are_kept_adopted_released_or_left_alone() {
        let selector = LabelSelector::parse("app=a").unwrap_or_default();
        for (controller, matches, deleting, want) in [
            ("u-rs", true, false, "keep"),
            ("u-rs", true, true, "keep"),
            ("u-rs", false, false, "release"),
            ("u-rs", false, true, ""),
            ("other", true, false, ""),
            ("", true, false, "adopt"),
            ("", true, true, ""),
            ("", false, false, ""),
        ] {
            let world = World::new(testing::replica_set("rs", 1).deleting(deleting));
            let pod = testing::pod("p").label("app", if matches { "a" } else { "b" }).controller(
                "ReplicaSet",
                "rs",
                controller,
            );
            let owner = world.only();
            let claim = Claimant::new(&owner, &selector).claim([Arc::new(pod.object())]);
            let said = [("keep", &claim.owned), ("adopt", &claim.adopt), ("release", &claim.release)];
            let said: Vec<&str> =
                said.into_iter().filter(|(_, list)| !list.is_empty()).map(|(word, _)| word).collect();
            assert_eq!(said.concat(), want, "{controller} {matches} {deleting}");
        }
    }

    #[test]
    fn who_adopts_is_looked_up_first_and_the_patch_names_the_uid() {
        let selector = LabelSelector::parse("app=a").unwrap_or_default();
        let world = World::new(testing::replica_set("rs", 1));
        let owner = world.only();
        let orphan = testing::pod("p").label("app", "a").object();
        let lost = testing::pod("q").label("app", "b").controller("ReplicaSet", "rs", "u-rs").object();
        let claimant = Claimant { finalizers: &["f"], ..Claimant::new(&owner, &selector) };
        let steps = claimant.steps(&claimant.claim([Arc::new(orphan), Arc::new(lost)]));
        assert_eq!((steps[0].guard.is_none(), steps[1].guard.clone()), (true, Some(Guard::alive(&owner))));
        assert_eq!(
            steps[0].acts[0].body(),
            json!({"metadata": {"uid": "u-q", "ownerReferences": [{"$patch": "delete", "uid": "u-rs"}],
                "$deleteFromPrimitiveList/finalizers": ["f"]}})
        );
        let adopt = steps[1].acts[0].body();
        assert_eq!(
            (&adopt["metadata"]["uid"], &adopt["metadata"]["finalizers"]),
            (&json!("u-p"), &json!(["f"]))
        );
        assert_eq!(adopt["metadata"]["ownerReferences"][0]["controller"], true);
    }
}
