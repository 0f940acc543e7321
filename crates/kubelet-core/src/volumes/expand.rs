//! A volume that became larger: whether the driver is told, of which size, and what its claim is told.
//!
//! A controller that can recover from a failed expansion keeps books in the claim's status, and the node calls the
//! driver only when those say that it is the node's turn. An older one keeps none; then the sizes alone count.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::{Value, json};

pub use crate::claims::Claimed;

/// What this node knows of a volume it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Here {
    /// The size it has here.
    pub size: Option<i64>,
    /// The driver does not expand it while it is in use.
    pub refused: bool,
    /// The driver tried, and will not succeed by trying again.
    pub failed: bool,
    /// It was told that a read-only volume does not grow.
    pub told: bool,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expansion {
    Nothing,
    /// It counts as having this size here; nobody is called.
    Settled(i64),
    /// It should grow, and is read-only.
    ReadOnly,
    Call(Call),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    pub size: i64,
    pub writes: Writes,
    /// Whatever the driver refuses for good is infeasible: its owner has asked for another size meanwhile.
    pub gives_up: bool,
}

/// What the claim is told of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// Nothing: it has the size already.
    Nothing,
    /// That it has the new size.
    Size,
    /// That the call failed; another node did the rest.
    Failure,
    /// That the call is about to be made, and what came of it.
    All,
}

/// News for a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    InProgress,
    Size(i64),
    /// The driver will never do it; the words are the driver's.
    Infeasible(String),
    Failed(String),
}

const PENDING: &str = "NodeResizePending";
const IN_PROGRESS: &str = "NodeResizeInProgress";
const INFEASIBLE: &str = "NodeResizeInfeasible";
/// What is no longer true of a claim once it has its size.
const CONDITIONS: [&str; 4] =
    ["FileSystemResizePending", "Resizing", "ControllerResizeError", "NodeResizeError"];

/// What to do about a volume of this capacity, whose driver may or may not expand volumes on nodes.
#[must_use]
pub fn plan_expand(claim: &Claimed, capacity: i64, here: Here, offers: bool, read_only: bool) -> Expansion {
    let Some(before) = here.size.or(claim.capacity) else { return Expansion::Nothing };
    if capacity <= before || here.refused {
        return Expansion::Nothing;
    }
    if read_only {
        return if here.told { Expansion::Nothing } else { Expansion::ReadOnly };
    }
    let has = |size: i64| claim.capacity.is_some_and(|c| c >= size);
    if !claim.is_tracked {
        let writes = if has(capacity) { Writes::Nothing } else { Writes::Size };
        let call = Call { size: capacity, writes, gives_up: false };
        // The claim of a driver that has nothing to do on nodes is its controller's business.
        return if offers { Expansion::Call(call) } else { Expansion::Settled(capacity) };
    }
    let size = claim.allocated.unwrap_or(capacity);
    let gives_up = here.failed && claim.requested != Some(size);
    match claim.state.as_str() {
        "" if has(size) && claim.on_every_node && offers => {
            Expansion::Call(Call { size, writes: Writes::Failure, gives_up })
        }
        "" if has(size) => Expansion::Settled(size),
        PENDING | IN_PROGRESS => Expansion::Call(Call { size, writes: Writes::All, gives_up }),
        _ => Expansion::Nothing,
    }
}

/// A strategic merge patch of the claim as it is now. `now` is for the time of a condition.
#[must_use]
pub fn claim_patch(claim: &PersistentVolumeClaim, news: &News, now: &str) -> Value {
    let state = |name: &str| json!({"storage": name});
    let failed = |why: &str| {
        json!([{"type": "NodeResizeError", "status": "True", "lastTransitionTime": now,
                "message": format!("failed to expand pvc with {why}")}])
    };
    // What is a step forward is made from what was seen; a failure is told in any case.
    let seen = json!({"resourceVersion": claim.metadata.resource_version});
    match news {
        News::InProgress => {
            json!({"metadata": seen, "status": {"allocatedResourceStatuses": state(IN_PROGRESS)}})
        }
        News::Infeasible(why) => json!({
            "status": {"allocatedResourceStatuses": state(INFEASIBLE), "conditions": failed(why)},
        }),
        News::Failed(why) => json!({"status": {"conditions": failed(why)}}),
        News::Size(size) => {
            let known = claim.status.iter().flat_map(|s| s.conditions.iter().flatten());
            let over = known.filter(|c| CONDITIONS.contains(&c.type_.as_str()));
            let over: Vec<Value> = over.map(|c| json!({"type": c.type_, "$patch": "delete"})).collect();
            let mut status = json!({"capacity": {"storage": in_units(*size)}, "conditions": over});
            if claim.status.as_ref().is_some_and(|s| s.allocated_resource_statuses.is_some()) {
                status["allocatedResourceStatuses"] = json!({"storage": null});
            }
            json!({"metadata": seen, "status": status})
        }
    }
}

/// `2Gi` rather than 2147483648, where that is exact.
fn in_units(size: i64) -> String {
    let units = [("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];
    let fits = units.iter().find(|(_, shift)| size > 0 && size % (1 << shift) == 0);
    fits.map_or_else(|| size.to_string(), |(unit, shift)| format!("{}{unit}", size >> shift))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const GI: i64 = 1 << 30;

    fn claim(status: Value) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {"name": "c", "resourceVersion": "7"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}},
            "status": status,
        }))
        .unwrap()
    }

    /// As the controller's books say, of a claim that has 1Gi and is to have 2Gi.
    fn tracked(state: &str) -> Claimed {
        Claimed::of(&claim(json!({
            "capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": state},
        })))
    }

    fn call(size: i64, writes: Writes) -> Expansion {
        Expansion::Call(Call { size, writes, gives_up: false })
    }

    #[test]
    fn the_driver_is_called_when_it_is_the_nodes_turn() {
        let here = |size| Here { size: Some(size), ..Here::default() };
        let old = Claimed::of(&claim(json!({"capacity": {"storage": "1Gi"}})));
        let grown = Claimed::of(&claim(json!({"capacity": {"storage": "2Gi"}})));
        let done = Claimed { capacity: Some(2 * GI), state: String::new(), ..tracked(PENDING) };
        let shared = Claimed { on_every_node: true, ..done.clone() };
        let waiting = Claimed { state: String::new(), ..tracked(PENDING) };
        let larger = Claimed { allocated: Some(3 * GI), ..tracked(PENDING) };
        let none = Here::default();
        for (what, claim, here, want) in [
            ("a controller without books", &old, none, call(2 * GI, Writes::Size)),
            ("the same, on another node", &grown, here(GI), call(2 * GI, Writes::Nothing)),
            ("nothing grew", &grown, none, Expansion::Nothing),
            ("done here", &old, here(2 * GI), Expansion::Nothing),
            ("its turn", &tracked(PENDING), none, call(2 * GI, Writes::All)),
            ("begun before", &tracked(IN_PROGRESS), none, call(2 * GI, Writes::All)),
            ("to the size of the books", &larger, none, call(3 * GI, Writes::All)),
            ("given up", &tracked(INFEASIBLE), none, Expansion::Nothing),
            ("the controller's turn", &tracked("ControllerResizeInProgress"), none, Expansion::Nothing),
            ("the controller gave up", &tracked("ControllerResizeInfeasible"), none, Expansion::Nothing),
            ("nobody's turn yet", &waiting, none, Expansion::Nothing),
            ("done by the controller alone", &done, here(GI), Expansion::Settled(2 * GI)),
            ("on every node", &shared, here(GI), call(2 * GI, Writes::Failure)),
            ("refused while in use", &old, Here { refused: true, ..none }, Expansion::Nothing),
            ("no size is known", &Claimed::default(), none, Expansion::Nothing),
        ] {
            assert_eq!(plan_expand(claim, 2 * GI, here, true, false), want, "{what}");
        }
        // A read-only one is told of once.
        assert_eq!(plan_expand(&old, 2 * GI, none, true, true), Expansion::ReadOnly);
        let told = Here { told: true, ..none };
        assert_eq!(plan_expand(&old, 2 * GI, told, true, true), Expansion::Nothing);
        // A driver that has nothing to do on nodes is not called, unless the books say that it is its turn.
        assert_eq!(plan_expand(&old, 2 * GI, none, false, false), Expansion::Settled(2 * GI));
        assert_eq!(plan_expand(&shared, 2 * GI, here(GI), false, false), Expansion::Settled(2 * GI));
        assert_eq!(plan_expand(&tracked(PENDING), 2 * GI, none, false, false), call(2 * GI, Writes::All));
        // Its owner asked for less after it failed: the controller may go back.
        let regrets = Claimed { requested: Some(GI), ..tracked(IN_PROGRESS) };
        let failed = Here { failed: true, ..none };
        let Expansion::Call(Call { gives_up, .. }) = plan_expand(&regrets, 2 * GI, failed, true, false)
        else {
            panic!("not called")
        };
        assert!(gives_up);
    }

    #[test]
    fn who_expands_is_read_from_the_claim() {
        let mut shared = claim(json!({"capacity": {"storage": "1Gi"}}));
        shared.spec.as_mut().unwrap().access_modes = Some(vec!["ReadWriteMany".into()]);
        let read = Claimed::of(&shared);
        assert_eq!((read.on_every_node, read.is_tracked, read.requested), (true, false, Some(2 * GI)));
        shared.metadata.annotations = Some([(crate::claims::NOT_ON_NODES.to_owned(), String::new())].into());
        assert!(!Claimed::of(&shared).on_every_node);
    }

    #[test]
    fn a_claim_is_told_no_more_than_is_true() {
        let known = claim(json!({
            "allocatedResourceStatuses": {"storage": IN_PROGRESS},
            "conditions": [{"type": "FileSystemResizePending", "status": "True"}, {"type": "Other", "status": "True"}],
        }));
        let seen = json!({"resourceVersion": "7"});
        assert_eq!(
            claim_patch(&known, &News::Size(2 * GI), ""),
            json!({"metadata": seen, "status": {
                "capacity": {"storage": "2Gi"},
                "conditions": [{"type": "FileSystemResizePending", "$patch": "delete"}],
                "allocatedResourceStatuses": {"storage": null},
            }})
        );
        assert_eq!(
            claim_patch(&known, &News::InProgress, ""),
            json!({"metadata": seen, "status": {"allocatedResourceStatuses": {"storage": IN_PROGRESS}}})
        );
        let condition = json!([{"type": "NodeResizeError", "status": "True", "lastTransitionTime": "t",
                                "message": "failed to expand pvc with no"}]);
        assert_eq!(
            claim_patch(&known, &News::Infeasible("no".into()), "t"),
            json!({"status": {"allocatedResourceStatuses": {"storage": INFEASIBLE}, "conditions": condition}})
        );
        assert_eq!(
            claim_patch(&known, &News::Failed("no".into()), "t"),
            json!({"status": {"conditions": condition}})
        );
        assert_eq!(in_units(1536 << 20), "1536Mi");
        assert_eq!(in_units(7), "7");
    }
}
