//! ClusterRoles that are made of others: `admin`, `edit`, `view`, and what users add.

use api::selector::LabelSelector;
use base::time::Now;
use serde_json::{Value, json};

use crate::cache::Change;
use crate::controller::{Controller, Key, Retry, Row, Wakes, Watch};
use crate::object::Object;
use crate::plan::{Act, PatchKind, Plan, Step};
use crate::resource::CLUSTER_ROLES;
use crate::view::View;

const NAME: &str = "clusterrole-aggregation-controller";

pub(crate) const CLUSTER_ROLE_AGGREGATION: Row = Row {
    name: NAME,
    aliases: &["clusterrole-aggregation"],
    identity: NAME,
    event_source: NAME,
    queue: "ClusterRoleAggregator",
    workers: |_| 5,
    retry: Retry::DEFAULT,
    is_on_by_default: true,
    watches: &[Watch { resource: CLUSTER_ROLES, keys: aggregates }],
    reads: &[],
    is_single: false,
    make: |_| Box::new(Aggregation),
};

#[derive(Debug)]
struct Aggregation;

impl Controller for Aggregation {
    fn reconcile(&mut self, view: &dyn View, key: &Key, _now: Now) -> Plan {
        let Some(role) = view.get(CLUSTER_ROLES, "", &key.name) else { return Plan::nothing() };
        let value = role.value();
        let Some(selectors) = value["aggregationRule"]["clusterRoleSelectors"].as_array() else {
            return Plan::nothing();
        };
        let rules = aggregated(view, &role, selectors);
        if value["rules"].as_array().into_iter().flatten().map(plain).eq(rules.iter().cloned()) {
            return Plan::nothing();
        }
        let patch = json!({
            "apiVersion": CLUSTER_ROLES.api_version(), "kind": CLUSTER_ROLES.kind,
            "metadata": {"name": role.meta.name}, "rules": rules,
        });
        Plan::of(Step::in_turn([Act::patch(&role, PatchKind::Apply(NAME), &patch)]))
    }
}

/// The selectors in their order, the roles of each by name, every rule once.
fn aggregated(view: &dyn View, role: &Object, selectors: &[Value]) -> Vec<Value> {
    let mut rules: Vec<Value> = Vec::new();
    for selector in selectors {
        let parts = view.selected(CLUSTER_ROLES, "", &LabelSelector::from_object(selector));
        for part in parts.iter().filter(|part| part.meta.name != role.meta.name) {
            for rule in part.value()["rules"].as_array().into_iter().flatten().map(plain) {
                if !rules.contains(&rule) {
                    rules.push(rule);
                }
            }
        }
    }
    rules
}

/// Without what is empty: our API server aggregates too, and two that count otherwise would write for ever.
fn plain(rule: &Value) -> Value {
    let mut rule = rule.clone();
    if let Some(rule) = rule.as_object_mut() {
        rule.retain(|_, words| !words.is_null() && words.as_array().is_none_or(|words| !words.is_empty()));
    }
    rule
}

/// Any role may be a part of any aggregate.
fn aggregates(_: &Change, view: &dyn View, wakes: &mut Wakes) {
    let is_aggregate = |role: &Object| role.value()["aggregationRule"].is_object();
    wakes.extend(
        view.list(CLUSTER_ROLES, "").iter().filter(|role| is_aggregate(role)).map(|role| Key::of(role)),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Draft, World, at, draft};

    fn role(name: &str, label: &str, verbs: &[&str]) -> Draft {
        let rules: Vec<Value> = verbs.iter().map(|verb| json!({"verbs": [verb]})).collect();
        draft(CLUSTER_ROLES, name).label(label, "true").set("/rules", json!(rules))
    }

    fn aggregate(labels: &[&str]) -> Draft {
        let selectors: Vec<Value> =
            labels.iter().map(|label| json!({"matchLabels": {*label: "true"}})).collect();
        draft(CLUSTER_ROLES, "all").set("/aggregationRule", json!({"clusterRoleSelectors": selectors}))
    }

    fn written(world: &World) -> Option<Value> {
        let plan = Aggregation.reconcile(&world.cache, &Key::new("", "all"), at(1));
        plan.acts().next().map(|act| act.body()["rules"].clone())
    }

    #[test]
    fn an_aggregate_holds_the_rules_of_its_parts_in_order_and_once() {
        let parts =
            [role("b", "x", &["get", "list"]), role("c", "x", &["get"]), role("a", "y", &["watch", "list"])];
        let mut world = World::new(parts.into_iter().chain([aggregate(&["x", "y"]).label("x", "true")]));
        let rules = json!([{"verbs": ["get"]}, {"verbs": ["list"]}, {"verbs": ["watch"]}]);
        assert_eq!(written(&world), Some(rules.clone()), "selectors before names");
        world.put(aggregate(&["x", "y"]).set("/rules", rules));
        assert_eq!(written(&world), None, "nothing is written twice");
        world.put(
            draft(CLUSTER_ROLES, "d")
                .label("x", "true")
                .set("/rules", json!([{"verbs": ["get"], "resourceNames": []}])),
        );
        assert_eq!(written(&world), None, "an empty list says nothing");
        world.put(aggregate(&["z"]));
        assert_eq!(written(&world), None, "nothing picked, nothing there");
        world.put(aggregate(&["z"]).set("/rules", json!([{"verbs": ["get"]}])));
        assert_eq!(written(&world), Some(json!([])));
    }

    #[test]
    fn any_role_wakes_the_aggregates_only() {
        let world = World::new([aggregate(&["x"]), role("b", "x", &[])]);
        let plain = role("b", "x", &[]);
        assert_eq!(world.wakes(CLUSTER_ROLE_AGGREGATION.watches, Some(&plain), None), ["all"]);
    }
}
