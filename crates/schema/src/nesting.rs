//! How deep documents nest. The walks over them recurse, so depth is bounded wherever a document is made, and a document
//! that is too deep all the same is read without what lies too deep.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// What a store keeps: what clients may send ([`crate::decode::MAX_DEPTH`]) and room for the ownership of its fields, and
/// less than a JSON reader takes (128).
pub const MAX_STORED: usize = 120;

/// Whether the value nests deeper than `max` levels; a text or a number is no level.
#[must_use]
pub fn exceeds(value: &Value, max: usize) -> bool {
    match value {
        Value::Object(map) => max == 0 || map.values().any(|value| exceeds(value, max - 1)),
        Value::Array(list) => max == 0 || list.iter().any(|value| exceeds(value, max - 1)),
        _ => false,
    }
}

/// A stored document. Of one that no reader would take, because somebody wrote it past us, what lies deeper than
/// [`MAX_STORED`] levels is null and the rest is as it is: its name, finalizers and owners still count.
pub fn read_stored(text: &[u8]) -> Result<Value, serde_json::Error> {
    serde_json::from_slice(text).or_else(|_| {
        let mut from = serde_json::Deserializer::from_slice(text);
        let value = Shallow { left: MAX_STORED }.deserialize(&mut from)?;
        from.end()?;
        Ok(value)
    })
}

#[derive(Clone, Copy)]
struct Shallow {
    left: usize,
}

impl Shallow {
    fn below(self) -> Shallow {
        Shallow { left: self.left.saturating_sub(1) }
    }
}

impl<'de> DeserializeSeed<'de> for Shallow {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        match self.left {
            // Skipping does not recurse.
            0 => from.deserialize_ignored_any(IgnoredAny).map(|_| Value::Null),
            _ => from.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Shallow {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = from.next_element_seed(self.below())? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = from.next_key::<String>()? {
            map.insert(name, from.next_value_seed(self.below())?);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn levels_are_counted() {
        for (value, depth) in
            [(json!(1), 0), (json!([]), 1), (json!({"a": 1, "b": {"c": []}}), 3), (json!([[1], [[2]]]), 3)]
        {
            assert!(!exceeds(&value, depth), "{value}");
            assert!(depth == 0 || exceeds(&value, depth - 1), "{value}");
        }
    }

    #[test]
    fn a_document_that_is_too_deep_keeps_what_is_not() {
        for levels in [MAX_STORED, 128, 129, 200_000] {
            let deep = format!("{}1{}", "{\"a\":[".repeat(levels), "]}".repeat(levels));
            let text = format!(r#"{{"metadata":{{"finalizers":["x"],"n":-1.5}},"deep":{deep},"last":true}}"#);
            let read = read_stored(text.as_bytes()).unwrap();
            assert_eq!(read["metadata"], json!({"finalizers": ["x"], "n": -1.5}));
            assert_eq!(read["last"], true);
            assert!(!exceeds(&read, MAX_STORED));
        }
    }

    #[test]
    fn what_is_no_json_is_no_document() {
        for text in ["", "{", "{\"a\":1}x", "[1,]"] {
            assert!(read_stored(text.as_bytes()).is_err(), "{text}");
        }
    }
}
