//! `/scale`: how many there are of something, whatever it is. The document is autoscaling/v1 Scale.

use api::field::{FieldErrors, Path};
use serde_json::{Value, json};

use super::{check, selector};
use crate::doc::{self, Field};
use crate::kind::ScalePaths;

/// The Scale of an object.
#[must_use]
pub fn read(object: &Value, paths: &ScalePaths) -> Value {
    let mut meta = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object["metadata"].get(field) {
            meta[field] = value.clone();
        }
    }
    let mut scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": meta, "spec": {},
        "status": {"replicas": doc::int(object, &paths.status_replicas)},
    });
    let wanted = doc::int(object, &paths.replicas);
    if wanted != 0 {
        scale["spec"]["replicas"] = wanted.into();
    }
    let selector = paths.selector.as_deref().map_or_else(String::new, |path| text(doc::at(object, path)));
    if !selector.is_empty() {
        scale["status"]["selector"] = selector.into();
    }
    scale
}

/// Makes the object as many as the Scale says.
pub fn write(object: &mut Value, scale: &Value, paths: &ScalePaths) {
    doc::set(object, &paths.replicas, doc::int(scale, "spec.replicas"));
}

/// What a Scale may not ask for.
pub fn validate(scale: &Value, errors: &mut FieldErrors) {
    check::non_negative(
        errors,
        &Field { value: doc::at(scale, "spec.replicas"), at: Path::new("spec.replicas") },
    );
}

/// A selector as text, whether it is a label selector, a map of labels or text already.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(map) if map.contains_key("matchLabels") || map.contains_key("matchExpressions") => {
            selector::to_text(value)
        }
        Value::Object(_) => selector::to_text(&json!({"matchLabels": value})),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let paths = super::super::replicas::scale_paths("spec.selector");
        let mut object = json!({"metadata": {"name": "d", "namespace": "n", "resourceVersion": "5", "labels": {}},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"a": "b"}}}, "status": {"replicas": 2}});
        let mut scale = read(&object, &paths);
        assert_eq!(
            scale,
            json!({"kind": "Scale", "apiVersion": "autoscaling/v1",
                "metadata": {"name": "d", "namespace": "n", "resourceVersion": "5"},
                "spec": {"replicas": 3}, "status": {"replicas": 2, "selector": "a=b"}})
        );
        scale["spec"]["replicas"] = json!(0);
        write(&mut object, &scale, &paths);
        assert_eq!(object["spec"]["replicas"], 0);
        let controller = json!({"spec": {"selector": {"app": "x"}}});
        assert_eq!(read(&controller, &paths)["status"]["selector"], "app=x");
        let mut errors = FieldErrors::default();
        validate(&json!({"spec": {"replicas": -1}}), &mut errors);
        assert_eq!(
            errors.to_string(),
            "spec.replicas: Invalid value: -1: must be greater than or equal to 0"
        );
    }
}
