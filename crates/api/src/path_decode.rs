//! Decoding a JSON value into a typed object with the path of what went wrong, and a list of the
//! fields the type does not know.

use std::cell::RefCell;
use std::fmt;

use serde::de::{self, DeserializeOwned, DeserializeSeed, IntoDeserializer, Visitor};
use serde_json::Value;

use crate::field::cut;

/// Unknown fields reported per object.
const UNKNOWN_KEPT: usize = 16;

/// The decoded object and the paths of fields that were ignored because the type has no such field.
#[derive(Clone, Debug)]
pub struct Decoded<T> {
    pub object: T,
    pub unknown: Vec<String>,
}

/// A value of the wrong shape, with the path of its field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeError {
    pub path: String,
    pub message: String,
}

/// Decodes `value` as a `T`.
pub fn decode<T: DeserializeOwned>(value: &Value) -> Result<Decoded<T>, ShapeError> {
    let unknown = RefCell::new(Vec::new());
    let object = T::deserialize(PathDeserializer { value, path: Step::Root, unknown: &unknown })?;
    Ok(Decoded { object, unknown: unknown.into_inner() })
}

#[derive(Clone, Copy)]
struct PathDeserializer<'a> {
    value: &'a Value,
    path: Step<'a>,
    unknown: &'a RefCell<Vec<String>>,
}

/// A path as a chain on the stack: nothing is allocated unless something is wrong.
#[derive(Clone, Copy)]
enum Step<'a> {
    Root,
    Field(&'a Step<'a>, &'a str),
    Index(&'a Step<'a>, usize),
}

impl fmt::Display for Step<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Root => Ok(()),
            Step::Field(Step::Root, name) => f.write_str(&cut(name)),
            Step::Field(parent, name) => write!(f, "{parent}.{}", cut(name)),
            Step::Index(parent, i) => write!(f, "{parent}[{i}]"),
        }
    }
}

// === impl ShapeError ===

impl fmt::Display for ShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.path, self.message)
        }
    }
}

impl std::error::Error for ShapeError {}

impl de::Error for ShapeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        ShapeError { path: String::new(), message: cut(&message.to_string()).into_owned() }
    }
}

impl ShapeError {
    /// The innermost path wins.
    fn at(mut self, step: Step<'_>) -> Self {
        if self.path.is_empty() {
            self.path = step.to_string();
        }
        self
    }
}

// === impl PathDeserializer ===

impl<'de> de::Deserializer<'de> for PathDeserializer<'_> {
    type Error = ShapeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ShapeError> {
        let result = match self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(b) => visitor.visit_bool(*b),
            Value::Number(n) => match (n.as_i64(), n.as_u64(), n.as_f64()) {
                (Some(i), ..) => visitor.visit_i64(i),
                (_, Some(u), _) => visitor.visit_u64(u),
                (_, _, Some(f)) => visitor.visit_f64(f),
                _ => Err(de::Error::custom("a number out of range")),
            },
            Value::String(s) => visitor.visit_str(s),
            Value::Array(items) => visitor.visit_seq(Items { items, next: 0, parent: self }),
            Value::Object(map) => visitor.visit_map(Fields { iter: map.iter(), pending: None, parent: self }),
        };
        result.map_err(|e| e.at(self.path))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ShapeError> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self).map_err(|e| e.at(self.path)),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ShapeError> {
        visitor.visit_newtype_struct(self).map_err(|e| e.at(self.path))
    }

    /// Whole numbers written with a fraction (`80.0`) are taken as what they are, as Go's YAML reader does.
    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ShapeError> {
        self.deserialize_whole(visitor)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ShapeError> {
        self.deserialize_whole(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ShapeError> {
        match self.value {
            Value::String(s) => {
                visitor.visit_enum(s.as_str().into_deserializer()).map_err(|e: ShapeError| e.at(self.path))
            }
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ShapeError> {
        let mut unknown = self.unknown.borrow_mut();
        if unknown.len() < UNKNOWN_KEPT {
            unknown.push(self.path.to_string());
        }
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map struct identifier
    }
}

impl PathDeserializer<'_> {
    fn deserialize_whole<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ShapeError> {
        match self.value.as_f64() {
            Some(f) if self.value.is_f64() && f.fract() == 0.0 && f.abs() < 9e15 => {
                visitor.visit_i64(f as i64).map_err(|e: ShapeError| e.at(self.path))
            }
            _ => de::Deserializer::deserialize_any(self, visitor),
        }
    }
}

struct Items<'a> {
    items: &'a [Value],
    next: usize,
    parent: PathDeserializer<'a>,
}

impl<'de> de::SeqAccess<'de> for Items<'_> {
    type Error = ShapeError;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, ShapeError> {
        let Some(value) = self.items.get(self.next) else { return Ok(None) };
        let path = Step::Index(&self.parent.path, self.next);
        self.next += 1;
        seed.deserialize(PathDeserializer { value, path, ..self.parent }).map(Some)
    }
}

struct Fields<'a> {
    iter: serde_json::map::Iter<'a>,
    pending: Option<(&'a str, &'a Value)>,
    parent: PathDeserializer<'a>,
}

impl<'de> de::MapAccess<'de> for Fields<'_> {
    type Error = ShapeError;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, ShapeError> {
        let Some((key, value)) = self.iter.next() else { return Ok(None) };
        self.pending = Some((key, value));
        seed.deserialize(key.as_str().into_deserializer()).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, ShapeError> {
        let (key, value) = self.pending.take().ok_or_else(|| de::Error::custom("a value without a key"))?;
        let path = Step::Field(&self.parent.path, key);
        seed.deserialize(PathDeserializer { value, path, ..self.parent })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    #[test]
    fn names_the_field_of_a_wrong_shape() {
        for (pod, message) in [
            (
                json!({"spec": {"containers": [{"name": "a"}, {"name": 5}]}}),
                "spec.containers[1].name: invalid type: integer `5`, expected a string",
            ),
            (json!({"spec": {"containers": {}}}), "spec.containers: invalid type: map, expected a sequence"),
            (
                json!({"metadata": {"labels": {"a": 1}}}),
                "metadata.labels.a: invalid type: integer `1`, expected a string",
            ),
            (
                json!({"spec": {"hostNetwork": "yes"}}),
                "spec.hostNetwork: invalid type: string \"yes\", expected a boolean",
            ),
            (json!([]), "invalid type: sequence, expected Pod"),
        ] {
            assert_eq!(decode::<Pod>(&pod).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn lists_unknown_fields_and_reads_numbers_as_quantities() {
        let pod = json!({"spec": {"nodename": 1, "containers": [
            {"name": "a", "resources": {"limits": {"cpu": 1, "memory": "1Gi"}}, "imag": "x"}]}});
        let decoded = decode::<Pod>(&pod).unwrap();
        assert_eq!(decoded.unknown, ["spec.containers[0].imag", "spec.nodename"]);
        let limits = decoded.object.spec.unwrap().containers.remove(0).resources.unwrap().limits.unwrap();
        assert_eq!(limits["cpu"].0, "1");
    }

    #[test]
    fn whole_numbers_may_carry_a_fraction() {
        let pod = json!({"spec": {"priority": 3.0, "containers": []}});
        assert_eq!(decode::<Pod>(&pod).unwrap().object.spec.unwrap().priority, Some(3));
        assert!(decode::<Pod>(&json!({"spec": {"priority": 3.5, "containers": []}})).is_err());
    }
}
