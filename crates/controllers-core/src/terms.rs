//! Words of many controllers: when a Pod is active, ready and available, what a percentage comes to, how a condition changes.

use std::time::Duration;

use base::rfc3339::Moment;
use base::time::{Now, Wall};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Deserialize;
use serde_json::Value;

/// What controllers ask of a Pod all the time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodTerms {
    pub phase: Phase,
    /// Since when its condition Ready is True, if that is said; None while it is not ready.
    pub ready: Option<Option<Wall>>,
    /// `controller.kubernetes.io/pod-deletion-cost`; zero if it is no number.
    pub deletion_cost: i32,
    /// The most restarts of a container, and of a sidecar.
    pub restarts: (i64, i64),
    pub is_deleting: bool,
    /// It holds the finalizer by which a Job counts its Pods.
    pub is_tracked: bool,
    /// Its place in an Indexed Job.
    pub completion_index: Option<u32>,
}

/// What a Job's Pods hold until they are counted.
pub const JOB_TRACKING: &str = "batch.kubernetes.io/job-tracking";
/// The place of a Pod in an Indexed Job: annotation and label.
pub const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// As upstream's zero value: a Pod that says nothing has not begun.
    #[default]
    Pending,
    Unknown,
    Running,
    Succeeded,
    Failed,
}

/// How a share of a whole is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    Up,
    Down,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Doc {
    metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    annotations: Value,
    deletion_timestamp: Option<Value>,
    finalizers: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    init_containers: Option<Vec<Init>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Init {
    name: String,
    restart_policy: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    phase: Option<String>,
    conditions: Option<Vec<Condition>>,
    container_statuses: Option<Vec<ContainerStatus>>,
    init_container_statuses: Option<Vec<ContainerStatus>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Condition {
    r#type: String,
    status: String,
    last_transition_time: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ContainerStatus {
    name: String,
    restart_count: i64,
}

// === impl PodTerms ===

impl PodTerms {
    /// Reads them from a Pod. A Pod that does not decode is mended first, as everywhere.
    #[must_use]
    pub fn read(json: &[u8]) -> Option<PodTerms> {
        let doc: Doc = serde_json::from_slice(json).ok().or_else(|| {
            let mended = schema::lenient::mend("io.k8s.api.core.v1.Pod", json)?;
            serde_json::from_slice(&mended.json).ok()
        })?;
        let Doc { metadata, spec, status } = doc;
        let conditions = status.conditions.unwrap_or_default();
        let ready = conditions.iter().find(|c| c.r#type == "Ready").filter(|c| c.status == "True");
        let cost = metadata.annotations["controller.kubernetes.io/pod-deletion-cost"].as_str();
        let sidecars = spec.init_containers.unwrap_or_default();
        let is_sidecar = |name: &str| {
            let one = sidecars.iter().find(|init| init.name == name);
            one.is_some_and(|init| init.restart_policy.as_deref() == Some("Always"))
        };
        let most = |list: &[ContainerStatus]| list.iter().map(|c| c.restart_count).max().unwrap_or(0);
        let mut inits = status.init_container_statuses.unwrap_or_default();
        inits.retain(|c| is_sidecar(&c.name));
        Some(PodTerms {
            phase: Phase::read(status.phase.as_deref().unwrap_or_default()),
            ready: ready.map(|c| c.last_transition_time.as_deref().and_then(time)),
            deletion_cost: cost.and_then(|cost| cost.parse().ok()).unwrap_or(0),
            restarts: (most(&status.container_statuses.unwrap_or_default()), most(&inits)),
            is_deleting: metadata.deletion_timestamp.is_some_and(|at| !at.is_null()),
            is_tracked: metadata
                .finalizers
                .as_array()
                .is_some_and(|all| all.iter().any(|f| f == JOB_TRACKING)),
            completion_index: metadata.annotations[COMPLETION_INDEX].as_str().and_then(|n| n.parse().ok()),
        })
    }

    /// Neither ended nor being deleted.
    #[must_use]
    pub fn is_active(&self) -> bool {
        !self.is_terminal() && !self.is_deleting
    }

    /// Being deleted, and its containers have not ended yet.
    #[must_use]
    pub fn is_terminating(&self) -> bool {
        self.is_deleting && !self.is_terminal()
    }

    #[must_use]
    pub fn is_terminal(&self) -> bool {
        matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }

    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready.is_some()
    }

    /// Ready for at least so long.
    #[must_use]
    pub fn is_available(&self, min_ready_seconds: i32, now: Now) -> bool {
        self.available_in(min_ready_seconds, now) == Some(Duration::ZERO)
    }

    /// How long until it is available if it stays ready; None if it is not ready, or does not say since when.
    #[must_use]
    pub fn available_in(&self, min_ready_seconds: i32, now: Now) -> Option<Duration> {
        let since = self.ready?;
        if min_ready_seconds <= 0 {
            return Some(Duration::ZERO);
        }
        let at = since?.0.saturating_add(i64::from(min_ready_seconds).saturating_mul(1_000_000_000));
        Some(Wall(at).since(now.wall))
    }
}

// === impl Phase ===

impl Phase {
    #[must_use]
    pub fn read(text: &str) -> Phase {
        match text {
            "Unknown" => Phase::Unknown,
            "Running" => Phase::Running,
            "Succeeded" => Phase::Succeeded,
            "Failed" => Phase::Failed,
            _ => Phase::Pending,
        }
    }
}

/// A number, or a percentage of a whole. None: it is neither.
#[must_use]
pub fn scaled(value: &IntOrString, whole: i32, round: Round) -> Option<i32> {
    match value {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(text) => {
            let percent: i64 = text.strip_suffix('%')?.parse().ok()?;
            let product = percent.checked_mul(i64::from(whole))?;
            let share = match round {
                Round::Up => -((-product).div_euclid(100)),
                Round::Down => product.div_euclid(100),
            };
            i32::try_from(share).ok()
        }
    }
}

/// The time as the API writes it in metadata and conditions.
#[must_use]
pub fn timestamp(wall: Wall) -> String {
    Moment { secs: wall.secs(), nanos: 0 }.to_seconds()
}

fn time(text: &str) -> Option<Wall> {
    let Moment { secs, nanos } = Moment::parse_lenient(text)?;
    Some(Wall(Wall::from_secs(secs).0.saturating_add(i64::from(nanos))))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use base::time::Mono;
    use serde_json::json;

    use super::*;

    fn pod(status: &Value) -> PodTerms {
        PodTerms::read(json!({"metadata": {"name": "a"}, "status": status}).to_string().as_bytes()).unwrap()
    }

    fn at(text: &str) -> Now {
        Now { mono: Mono::default(), wall: time(text).unwrap() }
    }

    #[test]
    fn a_pod_is_available_after_it_was_ready_for_long_enough() {
        let ready = json!({"phase": "Running", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
        let (terms, now) = (pod(&ready), at("2026-01-01T00:00:10Z"));
        let seconds = |least| terms.available_in(least, now).map(|d| d.as_secs());
        assert_eq!(
            [seconds(0), seconds(10), seconds(11), seconds(30)],
            [Some(0), Some(0), Some(1), Some(20)]
        );
        assert!(terms.is_available(10, now) && !terms.is_available(11, now));
        let unready = pod(&json!({"conditions": [{"type": "Ready", "status": "False"}]}));
        assert_eq!(unready.available_in(0, now), None);
        let since_when = pod(&json!({"conditions": [{"type": "Ready", "status": "True"}]}));
        assert!(since_when.is_available(0, now) && !since_when.is_available(1, now));
    }

    #[test]
    fn a_pod_is_active_until_it_ends_or_is_deleted() {
        for (phase, active) in [
            ("Pending", true),
            ("Running", true),
            ("", true),
            ("Unknown", true),
            ("Succeeded", false),
            ("Failed", false),
        ] {
            assert_eq!(pod(&json!({"phase": phase})).is_active(), active, "{phase}");
        }
        let deleting = |phase: &str| {
            let doc = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"phase": phase}});
            PodTerms::read(doc.to_string().as_bytes()).unwrap()
        };
        assert!(!deleting("Running").is_active() && deleting("Running").is_terminating());
        assert!(!deleting("Failed").is_active() && !deleting("Failed").is_terminating());
    }

    #[test]
    fn a_pod_nobody_wrote_properly_is_read_as_far_as_it_goes() {
        let odd = json!({"metadata": {"name": "a"}, "status": {"phase": "Running", "conditions": "none"}});
        assert_eq!(PodTerms::read(odd.to_string().as_bytes()).unwrap().phase, Phase::Running);
        assert_eq!(PodTerms::read(b"7"), None);
    }

    #[test]
    fn shares_are_rounded_as_asked() {
        let percent = |text: &str| IntOrString::String(text.into());
        for (value, whole, up, down) in [
            (IntOrString::Int(3), 10, Some(3), Some(3)),
            (percent("25%"), 10, Some(3), Some(2)),
            (percent("25%"), 4, Some(1), Some(1)),
            (percent("0%"), 4, Some(0), Some(0)),
            (percent("100%"), 7, Some(7), Some(7)),
            (percent("ten"), 7, None, None),
            (percent("9223372036854775807%"), 7, None, None),
        ] {
            assert_eq!(
                (scaled(&value, whole, Round::Up), scaled(&value, whole, Round::Down)),
                (up, down),
                "{value:?}"
            );
        }
    }
}
