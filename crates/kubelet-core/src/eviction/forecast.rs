//! Who would go next, by which figures and by which rule: what eviction would do, told and not done.

use serde::{Deserialize, Serialize};

use super::rank::{self, use_of};
use super::thresholds::State;
use super::{Candidate, Layout, Readings, Resource, Signal, is_protected, limits, priority};

/// The whole of it, as programs read it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Forecast {
    pub signals: Vec<SignalLine>,
    /// Pods over a limit of their own: they go at the next look, whatever else there is.
    pub over_limit: Vec<OverLimit>,
    /// What would be cleared away before a Pod goes.
    pub collectable: Collectable,
}

/// Something that a node can run out of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SignalLine {
    pub signal: String,
    pub resource: String,
    pub available: String,
    pub capacity: String,
    pub thresholds: Vec<ThresholdLine>,
    /// In the order in which they would go.
    pub order: Vec<PodLine>,
    /// Those that are never taken.
    pub protected: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ThresholdLine {
    /// Pods go when less than this is left.
    pub below: String,
    pub soft: bool,
    /// For so long, where it is soft.
    pub grace_seconds: u64,
    pub met: bool,
    /// How much more has to be used until then.
    pub distance: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodLine {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub priority: i32,
    pub used: Option<String>,
    pub requested: Option<String>,
    pub rule: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OverLimit {
    pub uid: String,
    pub message: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Collectable {
    pub dead_containers: usize,
    pub unused_images: usize,
    pub image_bytes: u64,
    /// What could not be asked, and why.
    pub unknown: Vec<String>,
}

api::from_json!(Forecast);

/// Foretells. `states` are the thresholds as they stand.
#[must_use]
pub fn forecast(
    states: &[State],
    readings: &Readings,
    layout: Layout,
    candidates: &[Candidate<'_>],
    collectable: Collectable,
) -> Forecast {
    let over = limits::exceeded(candidates, layout).into_iter();
    let line = |signal: Signal| {
        let reading = *readings.get(&signal)?;
        let of_signal: Vec<&State> = states.iter().filter(|s| s.signal == signal).collect();
        (!of_signal.is_empty()).then(|| SignalLine {
            signal: signal.as_str().to_owned(),
            resource: signal.resource().as_str().to_owned(),
            available: signal.quantity(reading.available).to_string(),
            capacity: signal.quantity(reading.capacity).to_string(),
            thresholds: of_signal.into_iter().map(|s| threshold(s, reading.available)).collect(),
            order: order(signal, layout, candidates),
            protected: protected(candidates),
        })
    };
    Forecast {
        signals: Signal::ALL.into_iter().filter_map(line).collect(),
        over_limit: over.map(|e| OverLimit { uid: e.uid.to_string(), message: e.message }).collect(),
        collectable,
    }
}

fn threshold(state: &State, available: i64) -> ThresholdLine {
    let distance = available.saturating_sub(state.limit).max(0);
    ThresholdLine {
        below: state.signal.quantity(state.limit).to_string(),
        soft: !state.grace.is_zero(),
        grace_seconds: state.grace.as_secs(),
        met: available < state.limit,
        distance: state.signal.quantity(distance).to_string(),
    }
}

fn order(signal: Signal, layout: Layout, candidates: &[Candidate<'_>]) -> Vec<PodLine> {
    let order = rank::rank(signal, layout, candidates).into_iter().map(|at| candidates[at]);
    order.filter(|c| !is_protected(c.pod)).map(|c| pod(signal, layout, c)).collect()
}

fn protected(candidates: &[Candidate<'_>]) -> Vec<String> {
    let name = |c: &Candidate<'_>| {
        let meta = &c.pod.metadata;
        format!(
            "{}/{}",
            meta.namespace.as_deref().unwrap_or_default(),
            meta.name.as_deref().unwrap_or_default()
        )
    };
    let mut all: Vec<String> = candidates.iter().filter(|c| is_protected(c.pod)).map(name).collect();
    all.sort();
    all
}

fn pod(signal: Signal, layout: Layout, candidate: Candidate<'_>) -> PodLine {
    let Candidate { pod, stats } = candidate;
    let (meta, priority) = (&pod.metadata, priority(pod));
    let figures = stats.map(|stats| use_of(signal, layout, pod, stats));
    let show = |amount: i64| signal.quantity(amount).to_string();
    let rule = match (signal.resource(), figures) {
        (Resource::Pids, _) => format!("priority {priority}, then how many processes it has"),
        (_, None) => "nobody measured it: it goes before all who were".to_owned(),
        (_, Some((used, asked, _))) if used > asked => {
            let beyond = show(used.saturating_sub(asked));
            format!(
                "uses {beyond} more than it asked for; among such Pods by priority ({priority}), then by how much"
            )
        }
        (_, Some(_)) => {
            format!("keeps to what it asked for: after those who do not, by priority ({priority})")
        }
    };
    let asks = matches!(signal.resource(), Resource::Memory | Resource::EphemeralStorage);
    PodLine {
        namespace: meta.namespace.clone().unwrap_or_default(),
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        priority,
        used: figures.map(|(used, ..)| show(used)),
        requested: figures.filter(|_| asks).map(|(_, asked, _)| show(asked)),
        rule,
    }
}

impl Forecast {
    /// For people; `most` Pods of each order.
    #[must_use]
    pub fn text(&self, most: usize) -> String {
        let mut out = String::new();
        for line in &self.signals {
            line.write(&mut out, most);
        }
        if self.signals.is_empty() {
            out += "No threshold is set: no Pod goes because the node runs short.\n";
        }
        for over in &self.over_limit {
            out += &format!(
                "\nOver a limit of its own, goes at the next look: {}\n  {}\n",
                over.uid,
                over.message.trim_end()
            );
        }
        let Collectable { dead_containers, unused_images, image_bytes, unknown } = &self.collectable;
        let bytes = Signal::ImagefsAvailable.quantity(i64::try_from(*image_bytes).unwrap_or(i64::MAX));
        out += &format!(
            "\nBefore a Pod goes for want of disk: {dead_containers} dead containers, {unused_images} unused images ({bytes}).\n"
        );
        unknown.iter().for_each(|what| out += &format!("Not known: {what}\n"));
        out
    }

    /// Whether some threshold is met, or somebody is over a limit.
    #[must_use]
    pub fn is_pressed(&self) -> bool {
        !self.over_limit.is_empty() || self.signals.iter().any(|s| s.thresholds.iter().any(|t| t.met))
    }
}

impl SignalLine {
    fn write(&self, out: &mut String, most: usize) {
        if !out.is_empty() {
            out.push('\n');
        }
        *out += &format!("{}: {} of {} left\n", self.signal, self.available, self.capacity);
        for t in &self.thresholds {
            let (below, distance) = (&t.below, &t.distance);
            let kind = if t.soft { format!("soft, for {} s", t.grace_seconds) } else { "hard".to_owned() };
            *out += &match t.met {
                true => format!("  below {below} ({kind}): MET\n"),
                false => format!("  below {below} ({kind}): after {distance} more\n"),
            };
        }
        for (at, pod) in self.order.iter().take(most).enumerate() {
            let word = if at == 0 { "first goes" } else { "then" };
            let figures = match (&pod.used, &pod.requested) {
                (Some(used), Some(asked)) => format!("{used} in use, {asked} asked for"),
                (Some(used), None) => format!("{used} in use"),
                _ => "not measured".to_owned(),
            };
            *out += &format!("  {word} {}/{} ({figures}): {}\n", pod.namespace, pod.name, pod.rule);
        }
        match self.order.len().saturating_sub(most) {
            _ if self.order.is_empty() => *out += "  there is no Pod that may go\n",
            0 => {}
            more => *out += &format!("  and {more} more\n"),
        }
        if !self.protected.is_empty() {
            *out += &format!("  never: {}\n", self.protected.join(", "));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use base::time::Mono;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;
    use crate::eviction::Reading;
    use crate::stats::{MemoryStats, PodStats};

    fn pod(name: &str, priority: i64, asked: &str, source: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name,
                         "annotations": {"kubernetes.io/config.source": source}},
            "spec": {"priority": priority, "containers": [{"name": "c",
                     "resources": {"requests": {"memory": asked}}}]},
        }))
        .unwrap()
    }

    fn stats(mebibytes: u64) -> PodStats {
        let memory = MemoryStats { working_set: Some(mebibytes << 20), ..MemoryStats::default() };
        PodStats { memory: Some(memory), processes: Some(3), ..PodStats::default() }
    }

    #[test]
    fn the_order_is_the_one_in_which_they_go_and_each_place_has_its_reason() {
        let pods = [
            pod("modest", 0, "100Mi", "api"),
            pod("greedy", 5, "10Mi", "api"),
            pod("unseen", 9, "1Mi", "api"),
            pod("static", 0, "1Mi", "file"),
        ];
        let used = [stats(50), stats(60), stats(0), stats(900)];
        let mut all: Vec<Candidate<'_>> =
            pods.iter().zip(&used).map(|(pod, stats)| Candidate { pod, stats: Some(stats) }).collect();
        all[2].stats = None;
        let reading = |available: i64| Reading { available, capacity: 1 << 30, at: Mono::default() };
        let readings = Readings::from([
            (Signal::MemoryAvailable, reading(300 << 20)),
            (Signal::PidAvailable, reading(40)),
        ]);
        let state = |signal, limit, grace| State { signal, limit, grace: Duration::from_secs(grace) };
        let states = [
            state(Signal::MemoryAvailable, 100 << 20, 0),
            state(Signal::MemoryAvailable, 400 << 20, 90),
            state(Signal::PidAvailable, 50, 0),
            state(Signal::ImagefsAvailable, 5, 0),
        ];
        let told = forecast(&states, &readings, Layout::default(), &all, Collectable::default());
        let names = |at: usize| told.signals[at].order.iter().map(|p| p.name.as_str()).collect::<Vec<_>>();
        assert_eq!(
            (names(0), names(1)),
            (vec!["unseen", "greedy", "modest"], vec!["modest", "greedy", "unseen"])
        );
        assert_eq!(told.signals.len(), 2, "what cannot be read is not told of");
        assert_eq!(told.signals[0].protected, ["ns/static"]);
        assert!(told.is_pressed());
        assert_eq!(
            told.text(2),
            "memory.available: 300Mi of 1Gi left\n  \
               below 100Mi (hard): after 200Mi more\n  \
               below 400Mi (soft, for 90 s): MET\n  \
               first goes ns/unseen (not measured): nobody measured it: it goes before all who were\n  \
               then ns/greedy (60Mi in use, 10Mi asked for): uses 50Mi more than it asked for; among such Pods by \
               priority (5), then by how much\n  \
               and 1 more\n  \
               never: ns/static\n\n\
             pid.available: 40 of 1073741824 left\n  \
               below 50 (hard): MET\n  \
               first goes ns/modest (3 in use): priority 0, then how many processes it has\n  \
               then ns/greedy (3 in use): priority 5, then how many processes it has\n  \
               and 1 more\n  \
               never: ns/static\n\n\
             Before a Pod goes for want of disk: 0 dead containers, 0 unused images (0).\n"
        );
        let json = serde_json::to_string(&told).unwrap();
        assert_eq!(serde_json::from_str::<Forecast>(&json).unwrap(), told);
        let calm = forecast(&[], &readings, Layout::default(), &all, Collectable::default());
        assert!(!calm.is_pressed() && calm.text(1).starts_with("No threshold is set"));
    }
}
