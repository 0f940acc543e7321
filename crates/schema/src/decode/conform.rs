//! A document against its type.

use serde_json::{Map, Value};

use super::scalar::{self, BadScalar};
use super::{Crumb, Step, complain};
use crate::types::{At, Field, Presence, Shape, Type};

/// A value that does not fit its type, in the words of upstream's decoder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    #[error("json: cannot unmarshal {value} into Go {place} of type {wanted}")]
    Kind { value: String, place: String, wanted: String },
    #[error(transparent)]
    Scalar(#[from] BadScalar),
}

/// Brings `value` into the form of its type and returns the complaints (`unknown field "spec.foo"`); unknown fields
/// are dropped, as upstream's decoder drops them when it is not asked to be strict.
pub fn conform(value: &mut Value, at: At<'_>) -> Result<Vec<String>, Misfit> {
    let mut walk = Walk { complaints: Vec::new() };
    walk.place(value, at, &Context { at: None, owner: None })?;
    Ok(walk.complaints)
}

struct Walk {
    complaints: Vec<String>,
}

/// Where the walk is.
#[derive(Clone, Copy)]
struct Context<'a> {
    at: Option<&'a Crumb<'a>>,
    /// The innermost type with fields: messages begin with its name.
    owner: Option<&'a Type>,
}

// === impl Walk ===

impl Walk {
    fn place(&mut self, value: &mut Value, at: At<'_>, context: &Context<'_>) -> Result<(), Misfit> {
        let fits = match at.shape {
            Shape::Any | Shape::Raw | Shape::FieldSet => true,
            Shape::String => value.is_string(),
            Shape::Boolean => value.is_boolean(),
            Shape::Number => value.is_number(),
            Shape::Int64 => value.is_i64(),
            Shape::Int32 => is_int32(value),
            Shape::IntOrString => value.is_string() || is_int32(value),
            Shape::Bytes => return self.text(value, at, context, scalar::bytes),
            Shape::Time => return self.text(value, at, context, |text| scalar::time(text, false)),
            Shape::MicroTime => return self.text(value, at, context, |text| scalar::time(text, true)),
            Shape::Quantity => match scalar::quantity(value) {
                Some(canonical) => {
                    *value = canonical?;
                    true
                }
                None => return Err(BadScalar::Quantity.into()),
            },
            Shape::Either(id) => return self.either(value, at, at.types.get(*id), context),
            Shape::Object(id) => match value {
                Value::Object(map) => return self.object(map, at, at.types.get(*id), context),
                _ => false,
            },
            Shape::Map { value: shape, .. } => match value {
                Value::Object(map) => return self.map(map, at.with(shape), context),
                _ => false,
            },
            Shape::List { item, .. } => match value {
                Value::Array(list) => return self.list(list, at.with(item), context),
                _ => false,
            },
        };
        if fits { Ok(()) } else { Err(misfit(value, at, context)) }
    }

    fn text(
        &mut self,
        value: &mut Value,
        at: At<'_>,
        context: &Context<'_>,
        form: impl Fn(&str) -> Result<String, BadScalar>,
    ) -> Result<(), Misfit> {
        match value.as_str() {
            Some(text) => {
                *value = form(text)?.into();
                Ok(())
            }
            None => Err(misfit(value, at, context)),
        }
    }

    fn object(
        &mut self,
        map: &mut Map<String, Value>,
        at: At<'_>,
        known: &Type,
        context: &Context<'_>,
    ) -> Result<(), Misfit> {
        let mut unknown = Vec::new();
        for (key, value) in map.iter_mut() {
            let crumb = Crumb { parent: context.at, step: Step::Key(key) };
            match known.field(key) {
                // A null is an absent field, whatever the field's type.
                Some(_) if value.is_null() => {}
                Some(field) => {
                    let inside = Context { at: Some(&crumb), owner: Some(known) };
                    self.place(value, at.with(&field.shape), &inside)?;
                }
                None if known.open => {}
                None => {
                    complain(&mut self.complaints, "unknown", &crumb);
                    unknown.push(key.clone());
                }
            }
        }
        for key in unknown {
            map.remove(&key);
        }
        if !known.open {
            map.retain(|key, value| !known.field(key).is_some_and(|field| is_dropped(field, value)));
        }
        self.fill(map, at, known)
    }

    /// Adds the fields that are there even when empty.
    fn fill(&mut self, map: &mut Map<String, Value>, at: At<'_>, known: &Type) -> Result<(), Misfit> {
        for field in known.fields.iter().filter(|f| f.presence == Presence::Always) {
            if map.contains_key(&*field.name) {
                continue;
            }
            let empty = match &field.shape {
                Shape::String => "".into(),
                Shape::Int32 | Shape::Int64 => 0.into(),
                Shape::Boolean => false.into(),
                Shape::Object(id) => {
                    let mut inside = Map::new();
                    self.fill(&mut inside, at, at.types.get(*id))?;
                    Value::Object(inside)
                }
                _ => continue,
            };
            map.insert(field.name.to_string(), empty);
        }
        Ok(())
    }

    fn map(&mut self, map: &mut Map<String, Value>, at: At<'_>, context: &Context<'_>) -> Result<(), Misfit> {
        for (key, value) in map.iter_mut() {
            let crumb = Crumb { parent: context.at, step: Step::Entry(key) };
            if value.is_null() {
                *value = zero(at.shape);
            } else {
                self.place(value, at, &Context { at: Some(&crumb), ..*context })?;
            }
        }
        Ok(())
    }

    fn list(&mut self, list: &mut [Value], at: At<'_>, context: &Context<'_>) -> Result<(), Misfit> {
        for (i, value) in list.iter_mut().enumerate() {
            let crumb = Crumb { parent: context.at, step: Step::Index(i) };
            if value.is_null() {
                *value = zero(at.shape);
            }
            if !value.is_null() {
                self.place(value, at, &Context { at: Some(&crumb), ..*context })?;
            }
        }
        Ok(())
    }

    /// A schema, or a list of them, or a truth value, or a list of names.
    fn either(
        &mut self,
        value: &mut Value,
        at: At<'_>,
        known: &Type,
        context: &Context<'_>,
    ) -> Result<(), Misfit> {
        match value {
            Value::Object(map) => self.object(map, at, known, context),
            Value::Array(list) => {
                for (i, value) in list.iter_mut().enumerate() {
                    let crumb = Crumb { parent: context.at, step: Step::Index(i) };
                    if let Value::Object(map) = value {
                        self.object(map, at, known, &Context { at: Some(&crumb), ..*context })?;
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn is_int32(value: &Value) -> bool {
    value.as_i64().is_some_and(|n| i32::try_from(n).is_ok())
}

/// Whether upstream's encoder would leave the field out.
fn is_dropped(field: &Field, value: &Value) -> bool {
    if value.is_null() {
        return true;
    }
    if field.presence != Presence::Omitted {
        return false;
    }
    match value {
        Value::Bool(set) => !set,
        Value::String(text) => text.is_empty() && matches!(field.shape, Shape::String | Shape::Bytes),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Null => true,
    }
}

fn zero(shape: &Shape) -> Value {
    match shape {
        Shape::String | Shape::Bytes => "".into(),
        Shape::Int32 | Shape::Int64 | Shape::Number | Shape::IntOrString => 0.into(),
        Shape::Boolean => false.into(),
        Shape::Quantity => "0".into(),
        Shape::Object(_) | Shape::Map { .. } => Value::Object(Map::new()),
        _ => Value::Null,
    }
}

fn misfit(value: &Value, at: At<'_>, context: &Context<'_>) -> Misfit {
    let given = match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "bool".to_owned(),
        Value::Number(n) if matches!(at.shape, Shape::Int32 | Shape::Int64 | Shape::IntOrString) => {
            format!("number {n}")
        }
        Value::Number(_) => "number".to_owned(),
        Value::String(_) => "string".to_owned(),
        Value::Array(_) => "array".to_owned(),
        Value::Object(_) => "object".to_owned(),
    };
    let place = match context.owner {
        None => "value".to_owned(),
        Some(owner) => {
            let mut fields = Vec::new();
            let mut crumb = context.at;
            while let Some(Crumb { parent, step }) = crumb {
                if let Step::Key(key) = step {
                    fields.push(*key);
                }
                crumb = *parent;
            }
            fields.reverse();
            format!("struct field {}.{}", owner.short_name(), fields.join("."))
        }
    };
    Misfit::Kind { value: given, place, wanted: go_type(at) }
}

/// What upstream's messages call the type of a place.
fn go_type(at: At<'_>) -> String {
    match at.shape {
        Shape::String => "string".to_owned(),
        Shape::Bytes => "[]uint8".to_owned(),
        Shape::Int32 | Shape::IntOrString => "int32".to_owned(),
        Shape::Int64 => "int64".to_owned(),
        Shape::Number => "float64".to_owned(),
        Shape::Boolean => "bool".to_owned(),
        Shape::Quantity => "resource.Quantity".to_owned(),
        // These two decode through a string of their own.
        Shape::Time | Shape::MicroTime => "string".to_owned(),
        Shape::Raw | Shape::FieldSet | Shape::Any => "interface {}".to_owned(),
        Shape::Either(id) | Shape::Object(id) => {
            let name = &at.types.get(*id).name;
            let mut words = name.rsplit('.');
            let last = words.next().unwrap_or_default();
            words.next().map_or_else(|| last.to_owned(), |package| format!("{package}.{last}"))
        }
        Shape::Map { value, .. } => format!("map[string]{}", go_type(at.with(value))),
        Shape::List { item, .. } => format!("[]{}", go_type(at.with(item))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn conformed(kind: (&str, &str), mut value: Value) -> Result<(Value, Vec<String>), String> {
        let at = At::kind(kind.0, "v1", kind.1).unwrap();
        let complaints = conform(&mut value, at).map_err(|e| e.to_string())?;
        Ok((value, complaints))
    }

    #[test]
    fn unknown_fields_are_named_and_dropped() {
        let pod = json!({"kind": "Pod", "foo": 1, "metadata": {"name": "a", "bar": {}},
            "spec": {"containers": [{"name": "c", "imag": "x"}]}});
        let (pod, complaints) = conformed(("", "Pod"), pod).unwrap();
        let want = [
            "unknown field \"foo\"",
            "unknown field \"metadata.bar\"",
            "unknown field \"spec.containers[0].imag\"",
        ];
        assert_eq!(complaints, want);
        assert_eq!(pod["spec"]["containers"][0], json!({"name": "c", "resources": {}}));
    }

    #[test]
    fn misfits_speak_as_upstream() {
        let cases = [
            (
                ("apps", "Deployment"),
                json!({"spec": {"replicas": "2"}}),
                "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
            (
                ("apps", "Deployment"),
                json!({"spec": {"template": {"spec": {"containers": [{"ports": [{"containerPort": "x"}]}]}}}}),
                "json: cannot unmarshal string into Go struct field \
                 ContainerPort.spec.template.spec.containers.ports.containerPort of type int32",
            ),
            (
                ("", "Pod"),
                json!({"metadata": {"labels": {"a": 1}}}),
                "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
            ),
            (
                ("", "Pod"),
                json!({"spec": {"containers": {}}}),
                "json: cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container",
            ),
            (("", "Pod"), json!([]), "json: cannot unmarshal array into Go value of type v1.Pod"),
            (
                ("", "Service"),
                json!({"spec": {"ports": [{"port": 99_999_999_999_i64}]}}),
                "json: cannot unmarshal number 99999999999 into Go struct field ServicePort.spec.ports.port of type int32",
            ),
            (
                ("", "Service"),
                json!({"spec": {"ports": [{"port": 1, "targetPort": 1.5}]}}),
                "json: cannot unmarshal number 1.5 into Go struct field ServicePort.spec.ports.targetPort of type int32",
            ),
            (("", "Secret"), json!({"data": {"a": "a*"}}), "illegal base64 data at input byte 1"),
        ];
        for (kind, value, want) in cases {
            assert_eq!(conformed(kind, value).unwrap_err(), want);
        }
    }

    #[test]
    fn one_form() {
        let cases = [
            (
                ("", "Service"),
                json!({"metadata": {"namespace": "", "labels": {}, "creationTimestamp": null},
                    "spec": {"ports": [{"port": 0, "nodePort": 0, "name": ""}], "externalIPs": [],
                        "publishNotReadyAddresses": false, "allocateLoadBalancerNodePorts": false}}),
                json!({"metadata": {}, "spec": {"ports": [{"port": 0}], "allocateLoadBalancerNodePorts": false},
                    "status": {"loadBalancer": {}}}),
            ),
            (
                ("apps", "Deployment"),
                json!({"spec": {"replicas": 0, "paused": false, "selector": {"matchLabels": {}}}}),
                json!({"metadata": {}, "spec": {"replicas": 0, "selector": {}, "strategy": {},
                    "template": {"metadata": {}, "spec": {}}}, "status": {}}),
            ),
            (
                ("", "ConfigMap"),
                json!({"data": {"a": null, "b": ""}, "immutable": false}),
                json!({"metadata": {}, "data": {"a": "", "b": ""}, "immutable": false}),
            ),
            (
                ("", "ResourceQuota"),
                json!({"spec": {"hard": {"cpu": "1000m", "pods": 4}}}),
                json!({"metadata": {}, "spec": {"hard": {"cpu": "1", "pods": "4"}}, "status": {}}),
            ),
        ];
        for (kind, value, want) in cases {
            let (value, complaints) = conformed(kind, value).unwrap();
            assert_eq!(value, want);
            assert_eq!(complaints, [""; 0]);
            // A second pass changes nothing.
            assert_eq!(conformed(kind, value).unwrap().0, want);
        }
    }

    #[test]
    fn schemas_inside_schemas_are_checked() {
        let crd = json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": {"type": "object", "properties": {
            "a": {"type": "array", "items": {"type": "string", "typo": 1}},
            "b": {"additionalProperties": true, "default": {"any": ["thing"]}}}}}}]}});
        let (crd, complaints) = conformed(("apiextensions.k8s.io", "CustomResourceDefinition"), crd).unwrap();
        let at = "spec.versions[0].schema.openAPIV3Schema.properties";
        assert_eq!(complaints, [format!("unknown field \"{at}.a.items.typo\"")]);
        let b = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["b"];
        assert_eq!(b, &json!({"additionalProperties": true, "default": {"any": ["thing"]}}));
    }
}
