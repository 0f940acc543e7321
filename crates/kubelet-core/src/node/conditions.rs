//! Ready and the pressures: what they say, and the moments they changed.

use std::time::Duration;

use base::duration::GoDuration;
use base::time::Wall;
use k8s_openapi::api::core::v1::NodeCondition;

use super::{NodeEvent, time};

/// The runtime is down when its last good answer is this old.
pub const RUNTIME_SILENCE: Duration = Duration::from_secs(30);
/// Containers are no longer watched when the last look at all of them is this old.
pub const RELIST_THRESHOLD: Duration = Duration::from_secs(180);

/// Everything the Ready condition depends on. A Pod's troubles are not in here, and must never be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// How long ago the runtime last said that it is ready; none if it never did.
    pub runtime_seen: Option<Duration>,
    /// Its words when it says that it is not.
    pub runtime_error: Option<String>,
    pub network_error: Option<String>,
    /// How long ago all containers were last looked at; none if they never were.
    pub relisted: Option<Duration>,
    pub storage_error: Option<String>,
    pub shutdown: Option<String>,
}

/// What the machine is short of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pressures {
    pub memory: bool,
    pub disk: bool,
    pub pids: bool,
}

impl Pressures {
    /// The conditions that hold.
    #[must_use]
    pub fn names(self) -> Vec<&'static str> {
        let all = [(self.memory, "MemoryPressure"), (self.disk, "DiskPressure"), (self.pids, "PIDPressure")];
        all.into_iter().filter(|(holds, _)| *holds).map(|(_, name)| name).collect()
    }
}

/// One pressure, in upstream's words.
struct Words {
    kind: &'static str,
    /// Reason, message and event when there is pressure, and when there is none.
    on: [&'static str; 3],
    off: [&'static str; 3],
}

const MEMORY: Words = Words {
    kind: "MemoryPressure",
    on: [
        "KubeletHasInsufficientMemory",
        "kubelet has insufficient memory available",
        "NodeHasInsufficientMemory",
    ],
    off: ["KubeletHasSufficientMemory", "kubelet has sufficient memory available", "NodeHasSufficientMemory"],
};
const DISK: Words = Words {
    kind: "DiskPressure",
    on: ["KubeletHasDiskPressure", "kubelet has disk pressure", "NodeHasDiskPressure"],
    off: ["KubeletHasNoDiskPressure", "kubelet has no disk pressure", "NodeHasNoDiskPressure"],
};
const PIDS: Words = Words {
    kind: "PIDPressure",
    on: ["KubeletHasInsufficientPID", "kubelet has insufficient PID available", "NodeHasInsufficientPID"],
    off: ["KubeletHasSufficientPID", "kubelet has sufficient PID available", "NodeHasSufficientPID"],
};

/// Brings the conditions up to date in place; those of others stay as they are. Returns what is worth telling.
pub fn update(
    conditions: &mut Vec<NodeCondition>,
    node: &str,
    pressures: Pressures,
    troubles: &[String],
    now: Wall,
) -> Vec<NodeEvent> {
    let mut events = Vec::new();
    let all = [(&MEMORY, pressures.memory), (&DISK, pressures.disk), (&PIDS, pressures.pids)];
    for (words, on) in all {
        events.extend(press(conditions, node, words, on, now));
    }
    events.extend(ready(conditions, node, troubles, now));
    events
}

/// Everything that keeps the node from being ready, each said once.
#[must_use]
pub fn troubles(health: &Health, missing_capacity: &[&str]) -> Vec<String> {
    let mut all = Vec::new();
    match health.runtime_seen {
        None => all.push("container runtime status check may not have completed yet".to_owned()),
        Some(ago) if ago >= RUNTIME_SILENCE => all.push("container runtime is down".to_owned()),
        Some(_) => {}
    }
    match health.relisted {
        None => all.push("PLEG is not healthy: pleg has yet to be successful".to_owned()),
        Some(ago) if ago > RELIST_THRESHOLD => all.push(format!(
            "PLEG is not healthy: pleg was last seen active {} ago; threshold is {}",
            go(ago),
            go(RELIST_THRESHOLD)
        )),
        Some(_) => {}
    }
    let told = [&health.runtime_error, &health.network_error, &health.storage_error, &health.shutdown];
    all.extend(told.into_iter().flatten().cloned());
    if !missing_capacity.is_empty() {
        all.push(format!("missing node capacity for resources: {}", missing_capacity.join(", ")));
    }
    let mut once = Vec::new();
    all.into_iter().for_each(|text| {
        if !once.contains(&text) {
            once.push(text);
        }
    });
    once
}

/// Whether the conditions say Ready.
#[must_use]
pub fn is_ready(conditions: &[NodeCondition]) -> bool {
    conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

fn press(
    conditions: &mut Vec<NodeCondition>,
    node: &str,
    words: &Words,
    on: bool,
    now: Wall,
) -> Option<NodeEvent> {
    let at = position(conditions, words.kind).unwrap_or_else(|| {
        conditions.push(NodeCondition {
            type_: words.kind.to_owned(),
            status: "Unknown".to_owned(),
            ..Default::default()
        });
        conditions.len() - 1
    });
    let condition = &mut conditions[at];
    condition.last_heartbeat_time = time(now);
    let (status, [reason, message, event]) = if on { ("True", words.on) } else { ("False", words.off) };
    if condition.status == status {
        return None;
    }
    condition.status = status.to_owned();
    condition.reason = Some(reason.to_owned());
    condition.message = Some(message.to_owned());
    condition.last_transition_time = time(now);
    Some(NodeEvent::status(node, event))
}

fn ready(
    conditions: &mut Vec<NodeCondition>,
    node: &str,
    troubles: &[String],
    now: Wall,
) -> Option<NodeEvent> {
    let (status, reason, event) = match troubles {
        [] => ("True", "KubeletReady", "NodeReady"),
        _ => ("False", "KubeletNotReady", "NodeNotReady"),
    };
    let message = match troubles {
        [] => "kubelet is posting ready status".to_owned(),
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    };
    let mut condition = NodeCondition {
        type_: "Ready".to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_heartbeat_time: time(now),
        last_transition_time: time(now),
    };
    let Some(at) = position(conditions, "Ready") else {
        // Last in the list: old controllers read only that one.
        conditions.push(condition);
        return None;
    };
    let before = &mut conditions[at];
    let changed = before.status != status;
    if !changed {
        condition.last_transition_time = before.last_transition_time.clone();
    }
    *before = condition;
    changed.then(|| NodeEvent::status(node, event))
}

fn position(conditions: &[NodeCondition], kind: &str) -> Option<usize> {
    conditions.iter().position(|c| c.type_ == kind)
}

fn go(d: Duration) -> GoDuration {
    GoDuration::from_nanos(i64::try_from(d.as_nanos()).unwrap_or(i64::MAX))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const T: fn(i64) -> Wall = Wall::from_secs;

    fn good() -> Health {
        let zero = Some(Duration::ZERO);
        Health { runtime_seen: zero, relisted: zero, ..Health::default() }
    }

    fn show(conditions: &[NodeCondition]) -> Vec<String> {
        let second = |t: &Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
            t.as_ref().unwrap().0.as_second()
        };
        conditions
            .iter()
            .map(|c| {
                let (beat, turn) = (second(&c.last_heartbeat_time), second(&c.last_transition_time));
                format!("{}={} {} beat={beat} turn={turn}", c.type_, c.status, c.reason.as_ref().unwrap())
            })
            .collect()
    }

    fn reasons(events: &[NodeEvent]) -> Vec<&str> {
        events.iter().map(|e| e.reason.as_str()).collect()
    }

    #[test]
    fn a_new_node_tells_its_pressures_and_ready_comes_last() {
        let mut all = Vec::new();
        let events = update(&mut all, "n1", Pressures::default(), &[], T(7));
        let want = [
            "MemoryPressure=False KubeletHasSufficientMemory beat=7 turn=7",
            "DiskPressure=False KubeletHasNoDiskPressure beat=7 turn=7",
            "PIDPressure=False KubeletHasSufficientPID beat=7 turn=7",
            "Ready=True KubeletReady beat=7 turn=7",
        ];
        assert_eq!(show(&all), want);
        assert_eq!(
            reasons(&events),
            ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"]
        );
        assert_eq!(events[0].message, "Node n1 status is now: NodeHasSufficientMemory");
    }

    #[test]
    fn only_a_change_moves_the_transition_time() {
        let foreign =
            NodeCondition { type_: "KernelDeadlock".into(), status: "False".into(), ..Default::default() };
        let mut all = vec![foreign.clone()];
        update(&mut all, "n1", Pressures::default(), &[], T(1));
        let disk = Pressures { disk: true, ..Default::default() };
        let events = update(&mut all, "n1", disk, &["down".into()], T(5));
        assert_eq!(reasons(&events), ["NodeHasDiskPressure", "NodeNotReady"]);
        assert_eq!(all[0], foreign, "another's condition is left alone");
        let want = [
            "MemoryPressure=False KubeletHasSufficientMemory beat=5 turn=1",
            "DiskPressure=True KubeletHasDiskPressure beat=5 turn=5",
            "PIDPressure=False KubeletHasSufficientPID beat=5 turn=1",
            "Ready=False KubeletNotReady beat=5 turn=5",
        ];
        assert_eq!(show(&all[1..]), want);
        // A new reason for the same state is no transition.
        assert!(update(&mut all, "n1", disk, &["other".into()], T(9)).is_empty());
        assert_eq!(show(&all[4..]), ["Ready=False KubeletNotReady beat=9 turn=5"]);
        assert_eq!(all[4].message.as_deref(), Some("other"));
    }

    #[test]
    fn every_trouble_is_named_in_upstreams_words() {
        let s = Duration::from_secs;
        let cases: &[(Health, &[&str])] = &[
            (good(), &[]),
            (Health { runtime_seen: Some(s(29)), ..good() }, &[]),
            (Health { runtime_seen: Some(s(30)), ..good() }, &["container runtime is down"]),
            (
                Health::default(),
                &[
                    "container runtime status check may not have completed yet",
                    "PLEG is not healthy: pleg has yet to be successful",
                ],
            ),
            (Health { relisted: Some(s(180)), ..good() }, &[]),
            (
                Health { relisted: Some(s(200)), ..good() },
                &["PLEG is not healthy: pleg was last seen active 3m20s ago; threshold is 3m0s"],
            ),
            (
                Health {
                    network_error: Some("net".into()),
                    storage_error: Some("CSINode is not yet initialized".into()),
                    shutdown: Some("net".into()),
                    ..good()
                },
                &["net", "CSINode is not yet initialized"],
            ),
        ];
        for (health, want) in cases {
            assert_eq!(troubles(health, &[]), *want, "{health:?}");
        }
        let missing = troubles(&good(), &["cpu", "memory"]);
        assert_eq!(missing, ["missing node capacity for resources: cpu, memory"]);
        let mut all = Vec::new();
        update(&mut all, "n", Pressures::default(), &["a".into(), "b".into()], T(0));
        assert_eq!(all[3].message.as_deref(), Some("[a, b]"));
        assert!(!is_ready(&all));
    }

    proptest! {
        #[test]
        fn events_and_transitions_go_together(steps in proptest::collection::vec((any::<bool>(), any::<bool>()), 1..20)) {
            let mut all = Vec::new();
            update(&mut all, "n", Pressures::default(), &[], T(0));
            for (i, (memory, broken)) in steps.into_iter().enumerate() {
                let before = all.clone();
                let now = T(i64::try_from(i).unwrap() + 1);
                let troubles: Vec<String> = broken.then(|| "x".to_owned()).into_iter().collect();
                let events = update(&mut all, "n", Pressures { memory, ..Default::default() }, &troubles, now);
                let turned = all.iter().filter(|c| c.last_transition_time == time(now)).count();
                prop_assert_eq!(events.len(), turned);
                let differ = all.iter().zip(&before).filter(|(a, b)| a.status != b.status).count();
                prop_assert_eq!(turned, differ);
                prop_assert_eq!(all.len(), 4);
            }
        }
    }
}
