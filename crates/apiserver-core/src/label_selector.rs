//! LabelSelector as objects carry it: what it matches, and its text.

use serde_json::Value;

use crate::doc;

/// Whether it selects everything: neither labels nor expressions.
#[must_use]
pub fn is_empty(selector: &Value) -> bool {
    doc::is_unset(&selector["matchLabels"]) && doc::is_unset(&selector["matchExpressions"])
}

/// The selector as text, as `kubectl get -l` takes it; empty for one that selects everything or nothing.
#[must_use]
pub fn to_text(selector: &Value) -> String {
    let mut terms: Vec<(&str, String)> = doc::entries(selector, "matchLabels")
        .map(|(key, value)| (key, format!("{key}={}", value.as_str().unwrap_or_default())))
        .collect();
    for requirement in doc::list(selector, "matchExpressions") {
        let key = doc::text(requirement, "key");
        let mut values: Vec<&str> =
            doc::list(requirement, "values").iter().filter_map(Value::as_str).collect();
        values.sort_unstable();
        let values = values.join(",");
        let term = match doc::text(requirement, "operator") {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        };
        terms.push((key, term));
    }
    terms.sort_by(|a, b| a.0.cmp(b.0));
    terms.into_iter().map(|(_, term)| term).collect::<Vec<_>>().join(",")
}

/// Whether a label selector matches these labels. One that is not there matches nothing, an empty one everything.
#[must_use]
pub fn matches(selector: &Value, labels: &Value) -> bool {
    if selector.is_null() {
        return false;
    }
    let label = |key: &str| labels.get(key).and_then(Value::as_str);
    doc::entries(selector, "matchLabels").all(|(key, value)| label(key) == value.as_str())
        && doc::list(selector, "matchExpressions").iter().all(|requirement| {
            let found = label(doc::text(requirement, "key"));
            let listed = || {
                doc::list(requirement, "values").iter().any(|v| v.as_str().is_some_and(|v| found == Some(v)))
            };
            match doc::text(requirement, "operator") {
                "In" => listed(),
                "NotIn" => !listed(),
                "Exists" => found.is_some(),
                "DoesNotExist" => found.is_none(),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn text_and_matching_agree_with_each_other() {
        let selector = json!({"matchLabels": {"app": "web"}, "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["b", "a"]},
            {"key": "old", "operator": "DoesNotExist"},
            {"key": "zone", "operator": "Exists"},
            {"key": "env", "operator": "NotIn", "values": ["prod"]},
        ]});
        assert_eq!(to_text(&selector), "app=web,env notin (prod),!old,tier in (a,b),zone");
        assert!(matches(&selector, &json!({"app": "web", "tier": "a", "zone": "x"})));
        assert!(!matches(&selector, &json!({"app": "web", "tier": "c", "zone": "x"})));
        assert!(!matches(&selector, &json!({"app": "web", "tier": "a", "zone": "x", "old": ""})));
        assert!(matches(&json!({}), &json!({})));
        assert!(!matches(&Value::Null, &json!({})));
    }
}
