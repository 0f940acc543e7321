//! JSON text to a document, with a note of every key that stands twice in one object.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::{Crumb, Step, complain};

/// How deep a document may nest. The walks over documents recurse, so this bounds their stack.
pub const MAX_DEPTH: usize = 100;

/// A document and the complaints about its text.
#[derive(Debug)]
pub struct Parsed {
    pub value: Value,
    /// `duplicate field "spec.replicas"`
    pub complaints: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
#[error("json parse error: {0}")]
pub struct ParseError(#[from] serde_json::Error);

/// Reads one JSON document. Of a key that stands twice the last value counts.
pub fn parse(bytes: &[u8]) -> Result<Parsed, ParseError> {
    let mut complaints = Vec::new();
    let mut from = serde_json::Deserializer::from_slice(bytes);
    let value = Reader { at: None, depth: 0, complaints: &mut complaints }.deserialize(&mut from)?;
    from.end()?;
    Ok(Parsed { value, complaints })
}

struct Reader<'a> {
    at: Option<&'a Crumb<'a>>,
    depth: usize,
    complaints: &'a mut Vec<String>,
}

// === impl Reader ===

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        if self.depth > MAX_DEPTH {
            return Err(D::Error::custom("exceeded max depth"));
        }
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
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
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let at = Crumb { parent: self.at, step: Step::Index(list.len()) };
            let reader = Reader { at: Some(&at), depth: self.depth + 1, complaints: self.complaints };
            match items.next_element_seed(reader)? {
                Some(item) => list.push(item),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let at = Crumb { parent: self.at, step: Step::Key(&key) };
            if map.contains_key(&key) {
                complain(self.complaints, "duplicate", &at);
            }
            let reader = Reader { at: Some(&at), depth: self.depth + 1, complaints: self.complaints };
            let value = entries.next_value_seed(reader)?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn duplicates_are_named_and_the_last_counts() {
        let parsed = parse(br#"{"a":{"b":1,"b":2},"c":[{"d":1},{"d":1,"d":3,"d":4}]}"#).unwrap();
        assert_eq!(parsed.value, serde_json::json!({"a":{"b":2},"c":[{"d":1},{"d":4}]}));
        let want = ["duplicate field \"a.b\"", "duplicate field \"c[1].d\"", "duplicate field \"c[1].d\""];
        assert_eq!(parsed.complaints, want);
    }

    #[test]
    fn depth_and_complaints_are_bounded() {
        assert!(parse(format!("{}1{}", "[".repeat(90), "]".repeat(90)).as_bytes()).is_ok());
        for deep in [105, 5000, 1_000_000] {
            assert!(parse("[".repeat(deep).as_bytes()).is_err());
            assert!(parse(r#"{"a":"#.repeat(deep).as_bytes()).is_err());
        }
        let many = format!("{{{}\"a\":1}}", "\"a\":1,".repeat(10_000));
        assert_eq!(parse(many.as_bytes()).unwrap().complaints.len(), super::super::MAX_COMPLAINTS);
        assert!(parse(b"{} {}").is_err());
        assert!(parse(b"\xff").is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn agrees_with_the_plain_parser(text in r#"[\[\]{}:,"a-c0-2.eE\-]{0,30}"#) {
            let plain = serde_json::from_str::<Value>(&text);
            match parse(text.as_bytes()) {
                Ok(parsed) => prop_assert_eq!(parsed.value, plain.unwrap()),
                Err(_) => prop_assert!(plain.is_err()),
            }
        }
    }
}
