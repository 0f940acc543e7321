//! LimitRange: bounds and defaults for what Pods of a namespace ask for.

use std::collections::BTreeSet;

use api::field::FieldErrors;
use api::names;
use api::pod::Amount;
use api::pod::resources::is_overcommit_allowed;
use serde_json::{Map, Value};

use super::quantity;
use crate::doc::{self, Field};
use crate::kind::{Kind, Strategy};

pub(super) fn kind() -> Kind {
    Kind::core("LimitRange", "limitranges", LimitRange).short(&["limits"])
}

#[derive(Debug)]
struct LimitRange;

// === impl LimitRange ===

impl Strategy for LimitRange {
    fn set_defaults(&self, object: &mut Value) {
        for limit in doc::list_mut(object, "spec.limits") {
            if doc::text(limit, "type") != "Container" {
                continue;
            }
            for (from, to) in [("max", "default"), ("default", "defaultRequest"), ("min", "defaultRequest")] {
                let source = limit[from].as_object().cloned().unwrap_or_default();
                doc::fill(limit, to, Map::new());
                let Some(target) = doc::at_mut(limit, to).and_then(Value::as_object_mut) else { continue };
                for (name, amount) in source {
                    target.entry(name).or_insert(amount);
                }
            }
        }
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let mut seen = BTreeSet::new();
        for limit in Field::root(object).get("spec").get("limits").items() {
            let kind = limit.get("type");
            type_name(errors, &kind);
            if !seen.insert(kind.text()) {
                errors.duplicate(&kind.at, kind.text());
            }
            if kind.text() == "Pod" {
                for list in [limit.get("default"), limit.get("defaultRequest")] {
                    if !list.is_empty() {
                        errors.forbidden(&list.at, "may not be specified when `type` is 'Pod'");
                    }
                }
            }
            let bounded = ["min", "max"].iter().any(|l| limit.get(l).get("storage").is_set());
            if kind.text() == "PersistentVolumeClaim" && !bounded {
                let message = "either minimum or maximum storage value is required, but neither was provided";
                errors.required(&limit.at.child("limits"), message);
            }
            amounts(errors, &limit);
        }
    }

    fn creates_on_update(&self) -> bool {
        true
    }
}

fn type_name(errors: &mut FieldErrors, kind: &Field<'_>) {
    let complaints = names::qualified_name(kind.text());
    if complaints.is_empty()
        && !kind.text().contains('/')
        && !matches!(kind.text(), "Pod" | "Container" | "PersistentVolumeClaim")
    {
        errors.invalid(&kind.at, kind.text(), "must be a standard limit type or fully qualified");
    }
    errors.each(&kind.at, kind.text(), complaints);
}

fn amounts(errors: &mut FieldErrors, limit: &Field<'_>) {
    let lists = ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"];
    let mut resources = BTreeSet::new();
    for list in lists {
        for (name, amount) in limit.get(list).entries() {
            errors.each(&amount.at, name, names::qualified_name(name));
            resources.insert(name);
        }
    }
    for name in resources {
        let amount = |list: &str| quantity::parse(&limit.value[list][name]);
        let (min, max, default) = (amount("min"), amount("max"), amount("default"));
        let request = amount("defaultRequest");
        // A list, its value, and what the smaller and the larger of two values are called.
        let pairs = [
            ("min", min, "min value", max, "max value"),
            ("defaultRequest", min, "min value", request, "default request value"),
            ("defaultRequest", request, "default request value", max, "max value"),
            ("defaultRequest", request, "default request value", default, "default limit value"),
            ("default", min, "min value", default, "default value"),
            ("default", default, "default value", max, "max value"),
        ];
        for (list, small, small_name, large, large_name) in pairs {
            if let (Some(small), Some(large)) = (small, large)
                && small > large
            {
                let at = limit.at.child(list).key(name);
                let shown = if list == "defaultRequest" { request.unwrap_or(small) } else { small };
                let message = format!("{small_name} {small} is greater than {large_name} {large}");
                errors.invalid(&at, shown.to_string(), message);
            }
        }
        ratio(errors, limit, name, min, max);
        if let (Some(default), Some(request)) = (default, request)
            && !is_overcommit_allowed(name)
            && default != request
        {
            let at = limit.at.child("defaultRequest").key(name);
            let message =
                format!("default value {default} must equal to defaultRequest value {request} in {name}");
            errors.invalid(&at, request.to_string(), message);
        }
    }
}

fn ratio(errors: &mut FieldErrors, limit: &Field<'_>, name: &str, min: Option<Amount>, max: Option<Amount>) {
    let Some(ratio) = quantity::parse(&limit.value["maxLimitRequestRatio"][name]) else { return };
    let at = limit.at.child("maxLimitRequestRatio").key(name);
    if ratio.milli() < 1000 {
        errors.invalid(&at, ratio.to_string(), format!("ratio {ratio} is less than 1"));
    }
    if let (Some(min), Some(max)) = (min, max)
        && min.milli() > 0
    {
        let bound = max.milli() as f64 / min.milli() as f64;
        if ratio.milli() as f64 / 1000.0 > bound {
            errors.invalid(
                &at,
                ratio.to_string(),
                format!("ratio {ratio} is greater than max/min = {bound:.6}"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn defaults_come_from_the_bounds() {
        let mut object = json!({"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "1Mi"}}]}});
        LimitRange.set_defaults(&mut object);
        assert_eq!(
            object["spec"]["limits"][0],
            json!({"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "1Mi"}, "default": {"cpu": "2"},
                "defaultRequest": {"cpu": "2", "memory": "1Mi"}})
        );
    }

    #[test]
    fn statuses() {
        let object = json!({"spec": {"limits": [
            {"type": "Container", "min": {"cpu": "2"}, "max": {"cpu": "1"}},
            {"type": "Pod", "default": {"cpu": "1"}},
            {"type": "Pod"},
            {"type": "PersistentVolumeClaim"},
            {"type": "Thing"}]}});
        let mut errors = FieldErrors::default();
        LimitRange.validate(&object, &mut errors);
        assert_eq!(
            errors.to_string(),
            "[spec.limits[0].min[cpu]: Invalid value: \"2\": min value 2 is greater than max value 1, \
             spec.limits[1].default: Forbidden: may not be specified when `type` is 'Pod', \
             spec.limits[2].type: Duplicate value: \"Pod\", \
             spec.limits[3].limits: Required value: either minimum or maximum storage value is required, but neither \
             was provided, spec.limits[4].type: Invalid value: \"Thing\": must be a standard limit type or fully \
             qualified]"
        );
    }
}
