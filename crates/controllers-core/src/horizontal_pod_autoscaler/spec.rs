//! An autoscaler as it is read.

use std::sync::Arc;
use std::time::Duration;

use api::config::controllers::Tuning;
use base::quantity::Quantity;
use serde_json::Value;

use crate::object::{Object, Unreadable};

#[derive(Debug)]
pub(super) struct Hpa {
    pub(super) object: Arc<Object>,
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) target: String,
    pub(super) min: i32,
    pub(super) max: i32,
    pub(super) metrics: Vec<Value>,
    /// How fast it may go up and down. None: by the old rules.
    pub(super) behavior: Option<Behavior>,
    pub(super) tolerances: Tolerances,
    pub(super) status: Value,
}

#[derive(Debug)]
pub(super) struct Behavior {
    pub(super) up: Rules,
    pub(super) down: Rules,
}

#[derive(Debug)]
pub(super) struct Rules {
    pub(super) window: Duration,
    pub(super) select: Select,
    pub(super) policies: Vec<Policy>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Select {
    Max,
    Min,
    Disabled,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    pub(super) is_percent: bool,
    pub(super) value: i32,
    pub(super) period: Duration,
}

/// How far from its target a metric may be before something is done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tolerances {
    pub(super) down: f64,
    pub(super) up: f64,
}

// === impl Hpa ===

impl Hpa {
    pub(super) fn read(object: Arc<Object>, tuning: &Tuning) -> Result<Hpa, Unreadable> {
        let mut value = object.value();
        let status = value["status"].take();
        let spec = &mut value["spec"];
        let number = |key: &str| spec[key].as_i64().and_then(|n| i32::try_from(n).ok());
        let max = number("maxReplicas").ok_or_else(|| object.unreadable("spec.maxReplicas is no number"))?;
        let min = if spec["minReplicas"].is_null() { Some(1) } else { number("minReplicas") };
        let min = min.ok_or_else(|| object.unreadable("spec.minReplicas is no number"))?;
        let target = |key: &str| spec["scaleTargetRef"][key].as_str().unwrap_or_default().to_owned();
        let (api_version, kind, name) = (target("apiVersion"), target("kind"), target("name"));
        let metrics = spec["metrics"].as_array().cloned().unwrap_or_default();
        let said = &spec["behavior"];
        let tolerance = |side: &str| {
            let said: Option<Quantity> = said[side]["tolerance"].as_str().and_then(|text| text.parse().ok());
            said.map_or(tuning.hpa_tolerance, |quantity| quantity.milli_value() as f64 / 1000.0)
        };
        let tolerances = Tolerances { down: tolerance("scaleDown"), up: tolerance("scaleUp") };
        let behavior = said.is_object().then(|| Behavior {
            up: Rules::read(&said["scaleUp"], Rules::up()),
            down: Rules::read(&said["scaleDown"], Rules::down(tuning.hpa_downscale_stabilization)),
        });
        let status = if status.is_object() { status } else { serde_json::json!({}) };
        Ok(Hpa { object, api_version, kind, target: name, min, max, metrics, behavior, tolerances, status })
    }

    /// The target in messages.
    pub(super) fn reference(&self) -> String {
        format!("{}/{}/{}", self.kind, self.object.meta.namespace, self.target)
    }
}

// === impl Rules ===

impl Rules {
    fn up() -> Rules {
        let policy = |is_percent, value| Policy { is_percent, value, period: Duration::from_secs(15) };
        Rules {
            window: Duration::ZERO,
            select: Select::Max,
            policies: vec![policy(false, 4), policy(true, 100)],
        }
    }

    fn down(window: Duration) -> Rules {
        let policy = Policy { is_percent: true, value: 100, period: Duration::from_secs(15) };
        Rules { window, select: Select::Max, policies: vec![policy] }
    }

    /// What is not said stays as it usually is.
    fn read(said: &Value, mut rules: Rules) -> Rules {
        if let Some(seconds) = said["stabilizationWindowSeconds"].as_u64() {
            rules.window = Duration::from_secs(seconds);
        }
        match said["selectPolicy"].as_str() {
            Some("Min") => rules.select = Select::Min,
            Some("Disabled") => rules.select = Select::Disabled,
            _ => {}
        }
        let policies = said["policies"].as_array().into_iter().flatten();
        let policies: Vec<Policy> = policies
            .map(|policy| Policy {
                is_percent: policy["type"] == "Percent",
                value: policy["value"].as_i64().and_then(|n| i32::try_from(n).ok()).unwrap_or(0),
                period: Duration::from_secs(policy["periodSeconds"].as_u64().unwrap_or(0)),
            })
            .collect();
        if !policies.is_empty() {
            rules.policies = policies;
        }
        rules
    }

    pub(super) fn longest_period(&self) -> Duration {
        self.policies.iter().map(|policy| policy.period).max().unwrap_or_default()
    }
}

// === impl Tolerances ===

impl Tolerances {
    pub(super) fn has(self, ratio: f64) -> bool {
        (1.0 - self.down..=1.0 + self.up).contains(&ratio)
    }
}
