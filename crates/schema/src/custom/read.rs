//! JSON schema to `Structural`.

use regex_lite::{Regex, RegexBuilder};
use serde_json::Value;

use super::{Additional, Checks, Structural};

/// Bytes a compiled pattern may take: a definition is made once, but its author need not be friendly.
const MAX_PATTERN: usize = 1 << 20;

impl Structural {
    pub(super) fn read(schema: &Value) -> Structural {
        let text = |name: &str| -> Box<str> { schema[name].as_str().unwrap_or_default().into() };
        let is = |name: &str| schema[name] == Value::Bool(true);
        let properties = schema["properties"].as_object().into_iter().flatten();
        Structural {
            kind: text("type"),
            properties: properties
                .map(|(name, schema)| (name.as_str().into(), Structural::read(schema)))
                .collect(),
            additional: match &schema["additionalProperties"] {
                Value::Bool(true) => Additional::Any,
                Value::Object(inner) if inner.is_empty() => Additional::Any,
                inner @ Value::Object(_) => Additional::Of(Box::new(Structural::read(inner))),
                _ => Additional::None,
            },
            items: match &schema["items"] {
                items @ Value::Object(_) => Some(Box::new(Structural::read(items))),
                _ => None,
            },
            is_nullable: is("nullable"),
            default: schema.get("default").filter(|default| !default.is_null()).cloned(),
            is_int_or_string: is("x-kubernetes-int-or-string"),
            keeps_unknown: is("x-kubernetes-preserve-unknown-fields"),
            is_embedded: is("x-kubernetes-embedded-resource"),
            list_type: text("x-kubernetes-list-type"),
            list_keys: words(&schema["x-kubernetes-list-map-keys"]),
            is_atomic_map: schema["x-kubernetes-map-type"] == "atomic",
            has_rules: schema["x-kubernetes-validations"].as_array().is_some_and(|rules| !rules.is_empty()),
            checks: Checks::read(schema),
        }
    }
}

impl Checks {
    /// None where nothing is asked.
    fn read(schema: &Value) -> Option<Box<Checks>> {
        const ASKING: &[&str] = &[
            "format",
            "pattern",
            "required",
            "enum",
            "maximum",
            "minimum",
            "multipleOf",
            "maxLength",
            "minLength",
            "maxItems",
            "minItems",
            "maxProperties",
            "minProperties",
            "uniqueItems",
            "allOf",
            "anyOf",
            "oneOf",
            "not",
        ];
        if !ASKING.iter().any(|name| schema.get(name).is_some()) {
            return None;
        }
        let is = |name: &str| schema[name] == Value::Bool(true);
        let count = |name: &str| schema[name].as_u64().and_then(|n| usize::try_from(n).ok());
        let several = |name: &str| -> Vec<Structural> {
            schema[name].as_array().into_iter().flatten().map(Structural::read).collect()
        };
        Some(Box::new(Checks {
            format: schema["format"].as_str().unwrap_or_default().into(),
            pattern: schema["pattern"]
                .as_str()
                .filter(|text| !text.is_empty())
                .and_then(|text| Some((text.into(), pattern(text).ok()?))),
            required: words(&schema["required"]),
            allowed: schema["enum"].as_array().cloned().unwrap_or_default(),
            maximum: schema["maximum"].as_f64(),
            is_maximum_exclusive: is("exclusiveMaximum"),
            minimum: schema["minimum"].as_f64(),
            is_minimum_exclusive: is("exclusiveMinimum"),
            multiple_of: schema["multipleOf"].as_f64(),
            max_length: count("maxLength"),
            min_length: count("minLength"),
            max_items: count("maxItems"),
            min_items: count("minItems"),
            max_properties: count("maxProperties"),
            min_properties: count("minProperties"),
            is_unique: is("uniqueItems"),
            all_of: several("allOf"),
            any_of: several("anyOf"),
            one_of: several("oneOf"),
            not: schema.get("not").filter(|not| not.is_object()).map(Structural::read),
        }))
    }
}

/// A pattern in the syntax of RE2, of which this engine knows all but the Unicode classes.
pub(super) fn pattern(text: &str) -> Result<Regex, regex_lite::Error> {
    RegexBuilder::new(text).size_limit(MAX_PATTERN).build()
}

fn words(list: &Value) -> Vec<Box<str>> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(Into::into).collect()
}
