//! On which Nodes a DaemonSet belongs: upstream's daemon controller asks the scheduler's rules for names, affinity and taints. A
//! cordon, pressure and resources do not count.

use api::selector::{Operator, Requirement};
use serde_json::{Value, json};

use crate::object::{Object, Unreadable};
use crate::taint_eviction::{Toleration, taints};

/// What a DaemonSet asks of a Node.
#[derive(Debug)]
pub(super) struct Fit {
    /// Empty: any.
    node_name: String,
    node_selector: Vec<(String, String)>,
    /// One of these; None: any Node.
    terms: Option<Vec<Term>>,
    tolerations: Vec<Toleration>,
}

#[derive(Debug)]
struct Term {
    labels: Vec<Requirement>,
    fields: Vec<Requirement>,
}

/// Whether a Pod should run on a Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Run,
    /// Only if it is there already.
    Continue,
    No,
}

/// Every daemon Pod tolerates these: key, effect.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
const NODE_NAME: &str = "metadata.name";

/// Tolerations of a daemon Pod: the template's and those that every one has.
pub(super) fn tolerations(spec: &Value) -> Value {
    let mut list = spec["tolerations"].as_array().cloned().unwrap_or_default();
    let host =
        (spec["hostNetwork"] == true).then_some(("node.kubernetes.io/network-unavailable", "NoSchedule"));
    for (key, effect) in TOLERATED.into_iter().chain(host) {
        let wanted = json!({"key": key, "operator": "Exists", "effect": effect});
        let is_same = |one: &Value| {
            one["key"] == key
                && one["effect"] == effect
                && one["operator"] == "Exists"
                && one["value"].as_str().unwrap_or_default().is_empty()
        };
        match list.iter_mut().find(|one| is_same(one)) {
            // One with a time would let the Pod go.
            Some(known) => *known = wanted,
            None => list.push(wanted),
        }
    }
    Value::Array(list)
}

/// Ties a Pod to a Node, instead of whatever the template requires of Nodes; the scheduler binds it.
pub(super) fn pin(spec: &mut Value, node: &str) {
    let terms = json!([{"matchFields": [{"key": NODE_NAME, "operator": "In", "values": [node]}]}]);
    spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
        json!({ "nodeSelectorTerms": terms });
}

/// The Node that a daemon Pod runs on, or is made for.
pub(super) fn node_of(pod: &Object) -> Option<String> {
    if !pod.meta.node.is_empty() {
        return Some(pod.meta.node.to_string());
    }
    let spec = pod.value()["spec"].take();
    let required = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let fields = required["nodeSelectorTerms"].as_array()?.iter();
    let fields = fields.flat_map(|term| term["matchFields"].as_array().into_iter().flatten());
    let mut names = fields.filter(|field| field["key"] == NODE_NAME && field["operator"] == "In");
    let values = names.next()?["values"].as_array()?;
    values.first().filter(|_| values.len() == 1)?.as_str().map(str::to_owned)
}

// === impl Fit ===

impl Fit {
    pub(super) fn read(object: &Object, template: &Value) -> Result<Fit, Unreadable> {
        let spec = &template["spec"];
        let selector = spec["nodeSelector"].as_object().into_iter().flatten();
        let pair =
            |(key, value): (&String, &Value)| (key.clone(), value.as_str().unwrap_or_default().to_owned());
        let required = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        let terms = required["nodeSelectorTerms"].as_array();
        let tolerations = serde_json::from_value(tolerations(spec))
            .map_err(|_| object.unreadable("spec.template.spec.tolerations"))?;
        Ok(Fit {
            node_name: spec["nodeName"].as_str().unwrap_or_default().to_owned(),
            node_selector: selector.map(pair).collect(),
            terms: terms.map(|terms| terms.iter().map(Term::read).collect()),
            tolerations,
        })
    }

    pub(super) fn place(&self, node: &Object) -> Place {
        let is_named = self.node_name.is_empty() || *self.node_name == *node.meta.name;
        let is_selected = self.node_selector.iter().all(|(key, value)| node.label(key) == Some(value));
        let fits = |terms: &Vec<Term>| terms.iter().any(|term| term.takes(node));
        if !is_named || !is_selected || !self.terms.as_ref().is_none_or(fits) {
            return Place::No;
        }
        let untolerated: Vec<String> = taints(node)
            .into_iter()
            .filter(|taint| !self.tolerations.iter().any(|toleration| toleration.tolerates(taint)))
            .map(|taint| taint.effect)
            .collect();
        let has = |effect: &str| untolerated.iter().any(|one| one == effect);
        match (has("NoExecute"), has("NoSchedule")) {
            (true, _) => Place::No,
            (false, true) => Place::Continue,
            (false, false) => Place::Run,
        }
    }
}

// === impl Term ===

impl Term {
    fn read(term: &Value) -> Term {
        let list = |key: &str| {
            let all = term[key].as_array().into_iter().flatten();
            all.filter_map(requirement).collect()
        };
        Term { labels: list("matchExpressions"), fields: list("matchFields") }
    }

    /// A term that asks for nothing takes nothing.
    fn takes(&self, node: &Object) -> bool {
        let field = |r: &Requirement| r.key == NODE_NAME && r.holds(Some(&node.meta.name));
        !(self.labels.is_empty() && self.fields.is_empty())
            && self.labels.iter().all(|r| r.holds(node.label(&r.key)))
            && self.fields.iter().all(field)
    }
}

fn requirement(value: &Value) -> Option<Requirement> {
    let operator = match value["operator"].as_str()? {
        "In" => Operator::In,
        "NotIn" => Operator::NotIn,
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        "Gt" => Operator::GreaterThan,
        "Lt" => Operator::LessThan,
        _ => return None,
    };
    let values = value["values"].as_array().into_iter().flatten();
    let values = values.filter_map(|value| value.as_str().map(str::to_owned)).collect();
    Some(Requirement { key: value["key"].as_str()?.to_owned(), operator, values })
}
