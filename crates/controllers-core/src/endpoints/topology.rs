//! Hints by the share of CPU that each zone has: the annotation `service.kubernetes.io/topology-mode: Auto`.

use std::collections::BTreeMap;

use base::quantity::Quantity;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::conditions;
use crate::object::Object;
use crate::resource::NODES;
use crate::view::View;

use super::ZONE;

/// How much more than its share a zone may have to carry: a fifth.
const OVERLOAD: f64 = 0.2;

const MODES: [&str; 2] =
    ["service.kubernetes.io/topology-mode", "service.kubernetes.io/topology-aware-hints"];

/// What of a Node decides about shares.
#[derive(Debug, PartialEq)]
pub(super) struct Capacity {
    zone: Option<String>,
    cpu: i64,
    /// Ready, and not for the control plane.
    counts: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeDoc {
    status: Value,
}

/// Whether the annotations of a Service ask for it.
pub(super) fn is_asked(service: &Value) -> bool {
    let annotations = &service["metadata"]["annotations"];
    let mode = MODES.iter().find_map(|key| annotations[key].as_str());
    matches!(mode, Some("Auto" | "auto"))
}

/// Gives the endpoints of one family, of all sets of ports, their hints. Err: why there are none, in upstream's words.
pub(super) fn assign<'a>(
    endpoints: impl Iterator<Item = &'a mut Value>,
    shares: Option<&BTreeMap<String, f64>>,
) -> Result<(), String> {
    let mut ready: Vec<&mut Value> =
        endpoints.filter(|endpoint| endpoint["conditions"]["ready"] == true).collect();
    let wanted = wanted(ready.len(), shares)?;
    let mut zones: Vec<String> = Vec::with_capacity(ready.len());
    for endpoint in &ready {
        let zone = endpoint["zone"].as_str().filter(|zone| !zone.is_empty());
        zones.push(zone.ok_or("One or more endpoints do not have a zone specified")?.to_owned());
    }
    let (mut giving, mut receiving) = moves(&wanted, &zones);
    for (endpoint, own) in ready.iter_mut().zip(zones) {
        let taker = receiving.iter().find(|(_, number)| **number > 0).map(|(zone, _)| zone.clone());
        let zone = match (giving.get_mut(&own).filter(|number| **number > 0), taker) {
            (Some(left), Some(taker)) => {
                *left -= 1;
                if let Some(number) = receiving.get_mut(&taker) {
                    *number -= 1;
                }
                taker
            }
            _ => own,
        };
        endpoint["hints"] = json!({"forZones": [{"name": zone}]});
    }
    Ok(())
}

/// How many endpoints each zone should have.
fn wanted(count: usize, shares: Option<&BTreeMap<String, f64>>) -> Result<BTreeMap<String, f64>, String> {
    let insufficient =
        "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes";
    let shares = shares.ok_or(insufficient)?;
    let zones = shares.len();
    if zones > count {
        return Err(format!("Insufficient number of endpoints ({count} endpoints, {zones} zones)"));
    }
    let (mut left, mut wanted) = (count as f64, BTreeMap::new());
    for (zone, share) in shares {
        let exact = share * count as f64;
        let least = (exact / (1.0 + OVERLOAD)).ceil();
        left -= least;
        if left < 0.0 {
            return Err(format!(
                "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold \
                 ({count} endpoints, {zones} zones)"
            ));
        }
        wanted.insert(zone.clone(), exact.max(least));
    }
    Ok(wanted)
}

/// How many endpoints of each zone serve another, and how many of others each zone has. What comes to less than half an endpoint
/// is left as it is.
fn moves(
    wanted: &BTreeMap<String, f64>,
    zones: &[String],
) -> (BTreeMap<String, usize>, BTreeMap<String, usize>) {
    let (mut over, mut under) = (BTreeMap::new(), BTreeMap::new());
    for (zone, wanted) in wanted {
        let has = zones.iter().filter(|known| *known == zone).count() as f64;
        let side = if has > *wanted { &mut over } else { &mut under };
        side.insert(zone.clone(), (has - wanted).abs());
    }
    let most = |side: &BTreeMap<String, f64>| {
        side.iter()
            .max_by(|a, b| a.1.total_cmp(b.1).then_with(|| b.0.cmp(a.0)))
            .map(|(zone, n)| (zone.clone(), *n))
    };
    let (mut giving, mut receiving) = (BTreeMap::new(), BTreeMap::new());
    while let (Some((giver, gives)), Some((taker, takes))) = (most(&over), most(&under)) {
        if gives + takes < 1.0 || gives < 0.5 || takes < 0.5 {
            break;
        }
        *giving.entry(giver.clone()).or_default() += 1;
        *receiving.entry(taker.clone()).or_default() += 1;
        over.insert(giver, gives - 1.0);
        under.insert(taker, takes - 1.0);
    }
    (giving, receiving)
}

/// The share of CPU that each zone has. None: of some Node it is not known, or there is one zone only.
pub(super) fn shares(view: &dyn View) -> Option<BTreeMap<String, f64>> {
    let mut zones: BTreeMap<String, i64> = BTreeMap::new();
    for node in view.list(NODES, "") {
        let Capacity { zone, cpu, counts } = Capacity::of(&node);
        if !counts {
            continue;
        }
        let zone = zone.filter(|zone| !zone.is_empty() && cpu > 0)?;
        let sum = zones.entry(zone).or_default();
        *sum = sum.saturating_add(cpu);
    }
    let all: f64 = zones.values().map(|cpu| *cpu as f64).sum();
    let share = |(zone, cpu): (String, i64)| (zone, cpu as f64 / all);
    (zones.len() > 1).then(|| zones.into_iter().map(share).collect())
}

// === impl Capacity ===

impl Capacity {
    pub(super) fn of(node: &Object) -> Capacity {
        let NodeDoc { status } = node.part().unwrap_or_default();
        let is_for_control =
            ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"].into_iter();
        let is_for_control = is_for_control.filter(|role| node.label(role).is_some()).count() > 0;
        let is_ready = conditions::find(&status, "Ready").is_some_and(|ready| ready["status"] == "True");
        let cpu: Option<Quantity> = status["allocatable"]["cpu"].as_str().and_then(|text| text.parse().ok());
        Capacity {
            zone: node.label(ZONE).map(str::to_owned),
            cpu: cpu.map_or(0, Quantity::milli_value),
            counts: is_ready && !is_for_control,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hints(zones: &[&str], shares: &[(&str, f64)]) -> Result<String, String> {
        let endpoint = |zone: &&str| json!({"zone": zone, "conditions": {"ready": !zone.starts_with('-')}});
        let mut endpoints: Vec<Value> = zones.iter().map(endpoint).collect();
        let shares: BTreeMap<String, f64> =
            shares.iter().map(|(zone, share)| ((*zone).to_owned(), *share)).collect();
        assign(endpoints.iter_mut(), Some(&shares).filter(|shares| shares.len() > 1))?;
        let word =
            |endpoint: &Value| endpoint["hints"]["forZones"][0]["name"].as_str().unwrap_or("-").to_owned();
        Ok(endpoints.iter().map(word).collect())
    }

    #[test]
    fn every_zone_gets_its_share_and_as_few_as_possible_move() {
        let even = [("a", 0.5), ("b", 0.5)];
        for (zones, shares, want) in [
            (&["a", "b"][..], &even[..], Ok("ab")),
            (
                &["a", "a", "b"],
                &even,
                Err(
                    "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (3 endpoints, 2 zones)",
                ),
            ),
            (&["a", "a", "a", "b"], &even, Ok("baab")),
            (&["a", "a", "a", "a"], &even, Ok("bbaa")),
            (&["a", "b", "-"], &even, Ok("ab-")),
            (
                &["a", "a", "b", "b", "b", "c", "c", "c"],
                &[("a", 0.5), ("b", 0.25), ("c", 0.25)],
                Ok("aaabbacc"),
            ),
            (&["a"], &even, Err("Insufficient number of endpoints (1 endpoints, 2 zones)")),
            (
                &["a", "b", "c"],
                &[("a", 0.8), ("b", 0.1), ("c", 0.1)],
                Err(
                    "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (3 endpoints, 3 zones)",
                ),
            ),
            (&["a", "b", "c", "a", "b"], &[("a", 0.45), ("b", 0.45), ("c", 0.1)], Ok("abcab")),
            (
                &["a", "b"],
                &[("a", 0.7), ("b", 0.3)],
                Err(
                    "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (2 endpoints, 2 zones)",
                ),
            ),
            (&["a", ""], &even, Err("One or more endpoints do not have a zone specified")),
            (
                &["a", "a"],
                &[("a", 1.0)],
                Err(
                    "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes",
                ),
            ),
        ] {
            assert_eq!(
                hints(zones, shares),
                want.map(str::to_owned).map_err(str::to_owned),
                "{zones:?} {shares:?}"
            );
        }
    }
}
