//! The roles and bindings every cluster starts with, as objects; and what is to be done where they are already there.

use serde_json::{Map, Value, json};

use super::index::RbacKind;
use super::rule::{Rule, missing};

const TABLE: &str = include_str!("policy.txt");
const AGGREGATE: &str = "rbac.authorization.k8s.io/aggregate-to-";
const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const API_VERSION: &str = "rbac.authorization.k8s.io/v1";
const GROUP: &str = "rbac.authorization.k8s.io";

/// All default objects, in the order of the table; aggregated roles already hold their rules.
#[must_use]
pub fn defaults() -> Vec<(RbacKind, Value)> {
    let mut out: Vec<(RbacKind, Value)> = Vec::new();
    for line in TABLE.lines().filter(|l| !l.starts_with('#')) {
        if let Some(rule) = line.strip_prefix("  ") {
            if let Some((_, role)) = out.iter_mut().rev().find(|(kind, _)| is_role(*kind))
                && let Some(rules) = role["rules"].as_array_mut()
            {
                rules.push(parse_rule(rule));
            }
            continue;
        }
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words.as_slice() {
            ["role", name, marks @ ..] => out.push(role(name, marks)),
            ["controller", name, marks @ ..] => {
                let full = format!("system:controller:{name}");
                let account = format!("account:kube-system/{name}");
                out.push(binding(&full, &full, &[&account]));
                out.push(role(&full, marks));
            }
            ["binding", name, role, subjects @ ..] => out.push(binding(name, role, subjects)),
            _ => {}
        }
    }
    fill_aggregates(&mut out);
    out
}

/// The rules of every node: what a kubelet may do besides what the node authorizer knows better.
#[must_use]
pub fn node_rules() -> Vec<Rule> {
    let roles = defaults();
    let node =
        roles.iter().find(|(k, o)| *k == RbacKind::ClusterRole && o["metadata"]["name"] == "system:node");
    node.map(|(_, role)| Rule::all_of(role)).unwrap_or_default()
}

/// What an aggregated role should hold: the rules of all roles its selectors pick, selector by selector and by name, each
/// once, as upstream's controller orders them: two that order otherwise would write for ever.
/// None for a role that is no aggregate.
#[must_use]
pub fn aggregate<'a>(role: &Value, all: impl Iterator<Item = &'a Value>) -> Option<Vec<Rule>> {
    let selectors = role["aggregationRule"]["clusterRoleSelectors"].as_array()?;
    let selectors: Vec<_> = selectors.iter().map(api::selector::LabelSelector::from_object).collect();
    let own = &role["metadata"]["name"];
    let mut all: Vec<&Value> = all.filter(|r| r["metadata"]["name"] != *own).collect();
    all.sort_by_key(|r| r["metadata"]["name"].as_str().unwrap_or_default());
    let mut rules: Vec<Rule> = Vec::new();
    let picked = selectors.iter().flat_map(|s| all.iter().filter(|r| s.matches_object(r)));
    for rule in picked.flat_map(|r| Rule::all_of(r)) {
        if !rules.contains(&rule) {
            rules.push(rule);
        }
    }
    Some(rules)
}

/// What the stored object must become to hold at least what the default says; None when it does, or when its owner
/// asked to be left alone.
#[must_use]
pub fn reconcile(kind: RbacKind, stored: &Value, default: &Value) -> Option<Value> {
    if stored["metadata"]["annotations"][AUTO_UPDATE] == "false" {
        return None;
    }
    let mut next = stored.clone();
    for field in ["labels", "annotations"] {
        for (key, value) in default["metadata"][field].as_object().into_iter().flatten() {
            if stored["metadata"][field].get(key).is_none() {
                next["metadata"][field][key] = value.clone();
            }
        }
    }
    if is_role(kind) {
        if let Some(rule) = default.get("aggregationRule") {
            next["aggregationRule"] = rule.clone();
        } else {
            let lacking = missing(&Rule::all_of(stored), &Rule::all_of(default));
            append(&mut next, "rules", lacking.iter().map(Rule::to_json));
        }
    } else {
        if stored["roleRef"] != default["roleRef"] {
            // A binding to something else cannot be turned: it is replaced, keeping who it was for.
            next["roleRef"] = default["roleRef"].clone();
        }
        let has = |s: &Value| stored["subjects"].as_array().is_some_and(|all| all.contains(s));
        let lacking: Vec<Value> =
            default["subjects"].as_array().into_iter().flatten().filter(|s| !has(s)).cloned().collect();
        append(&mut next, "subjects", lacking.into_iter());
    }
    (next != *stored).then_some(next)
}

fn is_role(kind: RbacKind) -> bool {
    matches!(kind, RbacKind::Role | RbacKind::ClusterRole)
}

fn append(object: &mut Value, field: &str, more: impl Iterator<Item = Value>) {
    let mut more = more.peekable();
    if more.peek().is_none() {
        return;
    }
    let list = &mut object[field];
    if !list.is_array() {
        *list = json!([]);
    }
    if let Some(list) = list.as_array_mut() {
        list.extend(more);
    }
}

fn fill_aggregates(objects: &mut [(RbacKind, Value)]) {
    // An aggregate may be part of another (view of edit, edit of admin): twice round reaches them all, a third changes nothing.
    for _ in 0..3 {
        let roles: Vec<Value> =
            objects.iter().filter(|(k, _)| *k == RbacKind::ClusterRole).map(|(_, o)| o.clone()).collect();
        for (kind, object) in objects.iter_mut() {
            if *kind == RbacKind::ClusterRole
                && let Some(rules) = aggregate(object, roles.iter())
            {
                object["rules"] = rules.iter().map(Rule::to_json).collect();
            }
        }
    }
}

fn parse_rule(text: &str) -> Value {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let list = |w: &str| w.split(',').map(str::to_owned).collect::<Vec<_>>();
    match words.as_slice() {
        [verbs, "url", paths] => json!({"verbs": list(verbs), "nonResourceURLs": list(paths)}),
        [verbs, groups, resources, names @ ..] => {
            let groups: Vec<&str> = groups.split(',').map(|g| if g == "core" { "" } else { g }).collect();
            let mut rule = json!({"verbs": list(verbs), "apiGroups": groups, "resources": list(resources)});
            if let [names] = names {
                rule["resourceNames"] = json!(list(names.trim_start_matches('=')));
            }
            rule
        }
        _ => Value::Null,
    }
}

fn metadata(name: &str, labels: Map<String, Value>) -> (Value, bool) {
    let mut meta = json!({"labels": labels, "annotations": {AUTO_UPDATE: "true"}});
    meta["labels"]["kubernetes.io/bootstrapping"] = "rbac-defaults".into();
    let namespaced = match name.split_once('/') {
        Some((namespace, name)) => {
            meta["name"] = name.into();
            meta["namespace"] = namespace.into();
            true
        }
        None => {
            meta["name"] = name.into();
            false
        }
    };
    (meta, namespaced)
}

fn role(name: &str, marks: &[&str]) -> (RbacKind, Value) {
    let mut labels = Map::new();
    let mut selectors = Vec::new();
    for mark in marks {
        if let Some(to) = mark.strip_prefix("to:") {
            labels.insert(format!("{AGGREGATE}{to}"), "true".into());
        } else if let Some(from) = mark.strip_prefix("from:") {
            selectors.push(json!({"matchLabels": {format!("{AGGREGATE}{from}"): "true"}}));
        }
    }
    let (metadata, namespaced) = metadata(name, labels);
    let kind = if namespaced { RbacKind::Role } else { RbacKind::ClusterRole };
    let mut object =
        json!({"apiVersion": API_VERSION, "kind": format!("{kind:?}"), "metadata": metadata, "rules": []});
    if !selectors.is_empty() {
        object["aggregationRule"] = json!({"clusterRoleSelectors": selectors});
    }
    (kind, object)
}

fn binding(name: &str, role: &str, subjects: &[&str]) -> (RbacKind, Value) {
    let (metadata, namespaced) = metadata(name, Map::new());
    let kind = if namespaced { RbacKind::RoleBinding } else { RbacKind::ClusterRoleBinding };
    let role_kind = if namespaced { "Role" } else { "ClusterRole" };
    let mut object = json!({
        "apiVersion": API_VERSION, "kind": format!("{kind:?}"), "metadata": metadata,
        "roleRef": {"apiGroup": GROUP, "kind": role_kind, "name": role},
    });
    let subjects: Vec<Value> = subjects.iter().filter_map(|s| subject(s)).collect();
    if !subjects.is_empty() {
        object["subjects"] = subjects.into();
    }
    (kind, object)
}

fn subject(text: &str) -> Option<Value> {
    let (kind, name) = text.split_once(':')?;
    Some(match kind {
        "account" => {
            let (namespace, name) = name.split_once('/')?;
            json!({"kind": "ServiceAccount", "name": name, "namespace": namespace})
        }
        "user" => json!({"apiGroup": GROUP, "kind": "User", "name": name}),
        "group" => json!({"apiGroup": GROUP, "kind": "Group", "name": name}),
        _ => return None,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn named(kind: RbacKind, name: &str) -> Value {
        let found = defaults().into_iter().find(|(k, o)| *k == kind && o["metadata"]["name"] == name);
        found.unwrap_or_else(|| panic!("{name} is missing")).1
    }

    #[test]
    fn every_line_of_the_table_is_understood() {
        let all = defaults();
        let count = |kind| all.iter().filter(|(k, _)| *k == kind).count();
        let lines = |start: &str| TABLE.lines().filter(|l| l.starts_with(start)).count();
        assert_eq!(
            count(RbacKind::ClusterRole) + count(RbacKind::Role),
            lines("role ") + lines("controller ")
        );
        assert_eq!(
            count(RbacKind::ClusterRoleBinding) + count(RbacKind::RoleBinding),
            lines("binding ") + lines("controller ")
        );
        for (kind, object) in &all {
            for rule in object["rules"].as_array().into_iter().flatten() {
                assert!(rule["verbs"].is_array(), "{object}");
            }
            assert!(!is_role(*kind) || !object["rules"].as_array().unwrap().is_empty(), "{object}");
        }
        let subjects: usize = TABLE
            .lines()
            .filter(|l| l.starts_with("binding "))
            .map(|l| l.split_ascii_whitespace().count() - 3)
            .sum();
        let made: usize = all.iter().map(|(_, o)| o["subjects"].as_array().map_or(0, Vec::len)).sum();
        assert_eq!(made, subjects + lines("controller "));
    }

    #[test]
    fn aggregates_hold_the_rules_of_what_feeds_them() {
        let (view, edit, admin) = (
            Rule::all_of(&named(RbacKind::ClusterRole, "view")),
            Rule::all_of(&named(RbacKind::ClusterRole, "edit")),
            Rule::all_of(&named(RbacKind::ClusterRole, "admin")),
        );
        assert!(missing(&edit, &view).is_empty() && missing(&admin, &edit).is_empty());
        assert!(!missing(&view, &edit).is_empty() && !missing(&edit, &admin).is_empty());
    }

    #[test]
    fn what_was_taken_away_comes_back_and_what_was_added_stays() {
        let default = named(RbacKind::ClusterRole, "system:basic-user");
        for (kind, object) in defaults() {
            assert_eq!(reconcile(kind, &object, &object), None, "{object}");
        }
        let mut stored = default.clone();
        let extra = json!({"verbs": ["get"], "apiGroups": ["x"], "resources": ["y"]});
        stored["rules"] = json!([extra]);
        stored["metadata"]["labels"] = json!({"mine": "1"});
        let next = reconcile(RbacKind::ClusterRole, &stored, &default).unwrap();
        let rules = Rule::all_of(&next);
        assert!(missing(&rules, &Rule::all_of(&default)).is_empty());
        assert!(rules.contains(&Rule::from_json(&extra)));
        assert_eq!(next["metadata"]["labels"]["mine"], "1");
        assert_eq!(next["metadata"]["labels"]["kubernetes.io/bootstrapping"], "rbac-defaults");
        stored["metadata"]["annotations"][AUTO_UPDATE] = "false".into();
        assert_eq!(reconcile(RbacKind::ClusterRole, &stored, &default), None);
        let default = named(RbacKind::ClusterRoleBinding, "system:basic-user");
        let mut stored = default.clone();
        stored["subjects"] = json!([{"kind": "User", "name": "me", "apiGroup": GROUP}]);
        let next = reconcile(RbacKind::ClusterRoleBinding, &stored, &default).unwrap();
        assert_eq!(next["subjects"].as_array().unwrap().len(), 2);
    }
}
