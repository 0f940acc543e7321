//! What must be true of every story, whatever the weather.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use super::{Agent, World, ends};
use crate::fake_runtime::{Entry, Op};

/// A probe is in the journal from its beginning; its answer may come after another one's.
const IN_FLIGHT: Duration = Duration::from_secs(5);

/// Of one object the API server is told so many events at once; what comes more is dropped.
const EVENT_BURST: i64 = 25;

/// A change of a Pod's Ready condition, as the board showed it.
#[derive(Clone, Debug)]
pub struct Flip {
    pub at: Duration,
    pub uid: String,
    pub ready: bool,
}

/// Everything wrong with the end of a story: faults have stopped and time has passed.
#[must_use]
pub fn check(world: &World, wanted: &[Arc<Pod>], flips: &[Flip], orders: &[Duration]) -> Vec<String> {
    let mut wrong = world.runtime.violations();
    wrong.extend(leftovers(world, wanted));
    wrong.extend(unfounded_flips(world, flips));
    wrong.extend(unfounded_stops(world, orders));
    wrong
}

/// Nothing of an unwanted Pod is left anywhere.
fn leftovers(world: &World, wanted: &[Arc<Pod>]) -> Vec<String> {
    let uids: BTreeSet<&str> = wanted.iter().filter_map(|p| p.metadata.uid.as_deref()).collect();
    let mut wrong = Vec::new();
    for s in world.runtime.sandboxes() {
        let uid = s.metadata.map(|m| m.uid).unwrap_or_default();
        if !uids.contains(uid.as_str()) {
            wrong.push(format!("sandbox {} of unwanted Pod {uid} is left", s.id));
        }
    }
    let disk = world.disk.lock();
    let extra = disk.directories.iter().filter(|u| !uids.contains(u.as_str()));
    wrong.extend(extra.map(|u| format!("directory of unwanted Pod {u} is left")));
    let extra = disk.mounted.keys().filter(|u| !uids.contains(u.as_str()));
    wrong.extend(extra.map(|u| format!("volume of unwanted Pod {u} is left")));
    wrong
}

/// Every wanted Pod is where its spec leads it, and the board says what the runtime does.
pub(super) fn unsettled(world: &World, agent: &Agent, wanted: &[Arc<Pod>]) -> Vec<String> {
    wanted.iter().flat_map(|pod| ends::astray(world, agent, pod, ends::LONGEST_PAUSE)).collect()
}

/// Whether nothing waits for anything: whoever has time to wait for more need not.
pub(super) fn is_settled(world: &World, agent: &Agent, wanted: &[Arc<Pod>]) -> bool {
    wanted.iter().all(|pod| ends::astray(world, agent, pod, Duration::ZERO).is_empty())
}

/// A Ready change follows a probe result, a start, or an exit.
fn unfounded_flips(world: &World, flips: &[Flip]) -> Vec<String> {
    let journal = world.runtime.journal();
    let mut last: BTreeMap<&str, &Flip> = BTreeMap::new();
    let mut wrong = Vec::new();
    for flip in flips {
        if let Some(before) = last.insert(&flip.uid, flip)
            && before.ready != flip.ready
        {
            let cause = |e: &&Entry| {
                e.pod_uid == flip.uid
                    && e.at + IN_FLIGHT >= before.at
                    && e.at <= flip.at
                    && matches!(
                        e.op,
                        Op::Exec | Op::Start | Op::Exit { .. } | Op::Stop { .. } | Op::StopSandbox
                    )
            };
            if !journal.entries().iter().any(|e| cause(&e)) {
                wrong.push(format!("Ready changed without a cause: {before:?} -> {flip:?}"));
            }
        }
    }
    wrong
}

/// No event tells of a start that was none. Of the Pod that knew only good weather every start is told, unless so
/// much happened to it that nobody wants to hear it.
pub(super) fn untrue_events(world: &World, favoured: &str) -> Vec<String> {
    let (journal, mut starts) = (world.runtime.journal(), BTreeMap::<(&str, &str), i64>::new());
    for e in journal.entries().iter().filter(|e| e.op == Op::Start) {
        *starts.entry((&e.pod_uid, &e.container)).or_default() += 1;
    }
    let (events, mut told) = (world.api.record().events, BTreeMap::<(&str, &str), i64>::new());
    for event in events.values().filter(|e| e["reason"] == "Started") {
        let text = |field: &str| event["involvedObject"][field].as_str().unwrap_or_default();
        let container = text("fieldPath").split(['{', '}']).nth(1).unwrap_or_default();
        *told.entry((text("uid"), container)).or_default() += event["count"].as_i64().unwrap_or(0);
    }
    let of_favoured = events.values().filter(|e| e["involvedObject"]["uid"] == favoured);
    let is_quiet = of_favoured.filter_map(|e| e["count"].as_i64()).sum::<i64>() < EVENT_BURST;
    let all: BTreeSet<_> = starts.keys().chain(told.keys()).collect();
    let wrong = all.into_iter().filter_map(|key| {
        let (told, starts) = (told.get(key).copied().unwrap_or(0), starts.get(key).copied().unwrap_or(0));
        let is_wrong = told > starts || (key.0 == favoured && is_quiet && told < starts);
        is_wrong.then(|| format!("{key:?} was started {starts} times, and events tell of {told}"))
    });
    wrong.collect()
}

/// No container is stopped before the source of the agent's life has reported: `orders` holds the
/// silent stretches as pairs of boot and first report.
fn unfounded_stops(world: &World, orders: &[Duration]) -> Vec<String> {
    let journal = world.runtime.journal();
    let silent = |at: Duration| orders.chunks_exact(2).any(|w| at >= w[0] && at < w[1]);
    journal
        .entries()
        .iter()
        .filter(|e| matches!(e.op, Op::Stop { .. } | Op::Remove { .. } | Op::RemoveSandbox) && silent(e.at))
        .map(|e| format!("stopped before every source had reported: {e:?}"))
        .collect()
}
