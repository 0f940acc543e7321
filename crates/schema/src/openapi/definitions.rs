//! Types as OpenAPI tells them.

use std::collections::{BTreeSet, HashMap};

use serde_json::{Map, Value, json};

use super::{Dialect, Resource};
use crate::types::{At, Field, ListKind, Shape, Type, builtin};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
pub(super) const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
pub(super) const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
const RAW_EXTENSION: &str = "io.k8s.apimachinery.pkg.runtime.RawExtension";
const JSON: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON";

/// What types and fields are for, in words.
pub(super) struct Prose<'a> {
    types: HashMap<&'a str, (&'a str, HashMap<&'a str, &'a str>)>,
}

// === impl Prose ===

impl<'a> Prose<'a> {
    pub(super) fn read(text: &'a str) -> Prose<'a> {
        let mut types: HashMap<&str, (&str, HashMap<&str, &str>)> = HashMap::new();
        let mut current = "";
        for (name, words) in text.lines().filter_map(|line| line.split_once('\x1f')) {
            match name.strip_prefix('=') {
                Some(name) => {
                    current = name;
                    types.insert(name, (words, HashMap::new()));
                }
                None => {
                    types.entry(current).or_default().1.insert(name, words);
                }
            }
        }
        Prose { types }
    }

    fn of_type(&self, name: &str) -> String {
        self.types.get(name).map(|t| unescaped(t.0)).unwrap_or_default()
    }

    fn of_field(&self, name: &str, field: &str) -> String {
        let words = self.types.get(name).and_then(|t| t.1.get(field));
        words.map(|words| unescaped(words)).unwrap_or_default()
    }
}

fn unescaped(words: &str) -> String {
    let mut plain = String::with_capacity(words.len());
    let mut letters = words.chars();
    while let Some(letter) = letters.next() {
        plain.push(match letter {
            '\\' => match letters.next() {
                Some('n') => '\n',
                Some(other) => other,
                None => break,
            },
            letter => letter,
        });
    }
    plain
}

/// A built-in type; the types it speaks of are added to `wanted`. None where there is no such type.
pub(super) fn of(
    name: &str,
    prose: &Prose<'_>,
    dialect: Dialect,
    wanted: &mut BTreeSet<String>,
) -> Option<Value> {
    let types = builtin();
    let mut definition = match types.id(name) {
        Some(id) => {
            let mut definition = object(types.get(id), prose, dialect, wanted);
            let kinds: Vec<Value> = types
                .kinds_of(id)
                .map(|(group, version, kind)| json!({"group": group, "version": version, "kind": kind}))
                .collect();
            if !kinds.is_empty() {
                definition.insert("x-kubernetes-group-version-kind".into(), kinds.into());
            }
            definition
        }
        None => special(name, dialect)?,
    };
    let description = prose.of_type(name);
    if !description.is_empty() {
        definition.insert("description".into(), description.into());
    }
    Some(Value::Object(definition))
}

fn object(
    known: &Type,
    prose: &Prose<'_>,
    dialect: Dialect,
    wanted: &mut BTreeSet<String>,
) -> Map<String, Value> {
    let mut definition = Map::new();
    definition.insert("type".into(), "object".into());
    let required: Vec<&str> = known.fields.iter().filter(|f| f.required).map(|f| &*f.name).collect();
    if !required.is_empty() {
        definition.insert("required".into(), required.into());
    }
    if known.atomic {
        definition.insert("x-kubernetes-map-type".into(), "atomic".into());
    }
    let properties: Map<String, Value> = known
        .fields
        .iter()
        .map(|field| (field.name.to_string(), property(known, field, prose, dialect, wanted)))
        .collect();
    if !properties.is_empty() {
        definition.insert("properties".into(), Value::Object(properties));
    }
    definition
}

fn property(
    known: &Type,
    field: &Field,
    prose: &Prose<'_>,
    dialect: Dialect,
    wanted: &mut BTreeSet<String>,
) -> Value {
    let at = At { types: builtin(), shape: &field.shape };
    let mut told = told(at, dialect, wanted);
    let description = prose.of_field(&known.name, &field.name);
    let is_described = !description.is_empty() || field.default.is_some();
    // Beside a reference nothing else counts in version 3, so it goes one level down.
    if dialect == Dialect::V3 && is_described && told.get("$ref").is_some() {
        told = json!({"allOf": [told]});
    }
    if let Value::Object(told) = &mut told {
        if !description.is_empty() {
            told.insert("description".into(), description.into());
        }
        if let Some(default) = field.default.as_ref().filter(|_| dialect == Dialect::V3) {
            told.insert("default".into(), default.clone());
        }
        let strategy = match (&field.merge.key, field.merge.retain) {
            (Some(_), true) => "merge,retainKeys",
            (Some(_), false) => "merge",
            (None, true) => "retainKeys",
            (None, false) => "",
        };
        if !strategy.is_empty() {
            told.insert("x-kubernetes-patch-strategy".into(), strategy.into());
        }
        if let Some(key) = field.merge.key.as_deref().filter(|key| !key.is_empty()) {
            told.insert("x-kubernetes-patch-merge-key".into(), key.into());
        }
    }
    told
}

fn told(at: At<'_>, dialect: Dialect, wanted: &mut BTreeSet<String>) -> Value {
    let mut refer = |name: &str| {
        wanted.insert(name.to_owned());
        dialect.reference(name)
    };
    match at.shape {
        Shape::String => json!({"type": "string"}),
        Shape::Bytes => json!({"type": "string", "format": "byte"}),
        Shape::Int32 => json!({"type": "integer", "format": "int32"}),
        Shape::Int64 => json!({"type": "integer", "format": "int64"}),
        Shape::Number => json!({"type": "number", "format": "double"}),
        Shape::Boolean => json!({"type": "boolean"}),
        Shape::Quantity => refer(QUANTITY),
        Shape::Time => refer(&format!("{META}.Time")),
        Shape::MicroTime => refer(&format!("{META}.MicroTime")),
        Shape::FieldSet => refer(&format!("{META}.FieldsV1")),
        Shape::IntOrString => refer(INT_OR_STRING),
        Shape::Raw => refer(RAW_EXTENSION),
        Shape::Any => refer(JSON),
        Shape::Either(_) => json!({}),
        Shape::Object(id) => refer(&at.types.get(*id).name),
        Shape::Map { value, atomic } => {
            let mut map =
                json!({"type": "object", "additionalProperties": told(at.with(value), dialect, wanted)});
            if *atomic {
                map["x-kubernetes-map-type"] = "atomic".into();
            }
            map
        }
        Shape::List { item, kind } => {
            let mut list = json!({"type": "array", "items": told(at.with(item), dialect, wanted)});
            let kind = match kind {
                ListKind::Atomic => "atomic",
                ListKind::Set => "set",
                ListKind::Keyed(keys) => {
                    let keys: Vec<Value> = keys.iter().map(|key| Value::from(&**key)).collect();
                    list["x-kubernetes-list-map-keys"] = keys.into();
                    "map"
                }
            };
            list["x-kubernetes-list-type"] = kind.into();
            list
        }
    }
}

/// Types that are not objects with fields.
fn special(name: &str, dialect: Dialect) -> Option<Map<String, Value>> {
    let is_v3 = dialect == Dialect::V3;
    let told = match name {
        QUANTITY if is_v3 => json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
        QUANTITY => json!({"type": "string"}),
        INT_OR_STRING if is_v3 => {
            json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]})
        }
        INT_OR_STRING => json!({"type": "string", "format": "int-or-string"}),
        RAW_EXTENSION => json!({"type": "object"}),
        JSON => json!({}),
        _ => match name.strip_prefix(META)? {
            ".Time" | ".MicroTime" => json!({"type": "string", "format": "date-time"}),
            ".FieldsV1" => json!({"type": "object"}),
            ".Patch" => {
                json!({"type": "object", "description": "A patch: what to change, in one of four forms."})
            }
            _ => return None,
        },
    };
    match told {
        Value::Object(told) => Some(told),
        _ => None,
    }
}

/// A type whose apiVersion, kind and metadata are described as those of all kinds are.
const TYPICAL: &str = "io.k8s.api.core.v1.Pod";

/// A custom kind and its list.
pub(super) fn custom(
    resource: &Resource<'_>,
    schema: &Value,
    prose: &Prose<'_>,
    dialect: Dialect,
    wanted: &mut BTreeSet<String>,
) -> Vec<(String, Value)> {
    let name = resource.type_name();
    wanted.insert(OBJECT_META.into());
    wanted.insert(LIST_META.into());
    let words = |field: &str| prose.of_field(TYPICAL, field);
    let text = |field: &str| json!({"type": "string", "description": words(field)});
    let mut object = json!({"type": "object"});
    // kubectl takes what has properties as having no others: of a kind that takes anything it is told nothing.
    let is_open = schema["x-kubernetes-preserve-unknown-fields"] == true;
    if schema.is_object() && !(dialect == Dialect::V2 && is_open) {
        object = schema.clone();
        if dialect == Dialect::V2 {
            downgrade(&mut object);
        }
        embed(&mut object, dialect, prose);
        object["type"] = "object".into();
        if !object["properties"].is_object() {
            object["properties"] = json!({});
        }
        object["properties"]["apiVersion"] = text("apiVersion");
        object["properties"]["kind"] = text("kind");
        object["properties"]["metadata"] = described_reference(dialect, OBJECT_META, &words("metadata"));
    }
    object["x-kubernetes-group-version-kind"] =
        json!([{"group": resource.group, "version": resource.version, "kind": resource.kind}]);
    let list_kind = format!("{}List", resource.kind);
    let list = json!({
        "type": "object",
        "description": format!("{list_kind} is a list of {}", resource.kind),
        "required": ["items"],
        "properties": {
            "apiVersion": text("apiVersion"),
            "kind": text("kind"),
            "items": {"type": "array", "items": dialect.reference(&name),
                "description": format!("List of {}.", resource.plural)},
            "metadata": described_reference(dialect, LIST_META, "Standard list metadata."),
        },
        "x-kubernetes-group-version-kind":
            [{"group": resource.group, "version": resource.version, "kind": list_kind}],
    });
    vec![(format!("{name}List"), list), (name, object)]
}

/// A resource inside another has what every resource has.
fn embed(schema: &mut Value, dialect: Dialect, prose: &Prose<'_>) {
    let Value::Object(map) = schema else { return };
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = map.get_mut(key) {
            embed(inner, dialect, prose);
        }
    }
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().for_each(|inner| embed(inner, dialect, prose));
    }
    let is = |key: &str| map.get(key) == Some(&Value::Bool(true));
    let is_open = is("x-kubernetes-preserve-unknown-fields") && dialect == Dialect::V2;
    if !is("x-kubernetes-embedded-resource") || is_open {
        return;
    }
    for field in ["apiVersion", "kind"] {
        let told = json!({"type": "string", "description": prose.of_field(TYPICAL, field)});
        schema["properties"][field] = told;
        match schema["required"].as_array_mut() {
            Some(required) if required.iter().any(|name| name == field) => {}
            Some(required) => required.push(field.into()),
            None => schema["required"] = json!([field]),
        }
    }
    let metadata = prose.of_field(TYPICAL, "metadata");
    schema["properties"]["metadata"] = described_reference(dialect, OBJECT_META, &metadata);
}

fn described_reference(dialect: Dialect, name: &str, words: &str) -> Value {
    match dialect {
        Dialect::V3 => json!({"allOf": [dialect.reference(name)], "description": words}),
        Dialect::V2 => {
            let mut told = dialect.reference(name);
            told["description"] = words.into();
            told
        }
    }
}

/// Leaves out what version 2 cannot say, loosening where in doubt: clients validate with it.
fn downgrade(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    for key in ["oneOf", "anyOf", "allOf", "not", "x-kubernetes-validations"] {
        map.remove(key);
    }
    let is_nullable = map.remove("nullable") == Some(Value::Bool(true));
    let is_either = map.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true));
    let is_open = map.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true));
    if is_nullable || is_either || is_open {
        for key in ["type", "items", "properties", "additionalProperties", "format"] {
            map.remove(key);
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = map.get_mut(key) {
            downgrade(inner);
        }
    }
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        properties.values_mut().for_each(downgrade);
    }
}
