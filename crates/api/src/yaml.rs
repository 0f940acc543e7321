//! The one place where YAML and JSON text enters: bytes in, `serde_json::Value` out.
//!
//! Kubernetes reads manifests and configuration with Go's YAML 1.1 parser, so `0644` is octal,
//! `yes` and `on` are booleans and `<<` merges. Typed decoding always goes through the `Value`:
//! decoding YAML straight into types is laxer than Go (`enabled: "true"` would pass as a boolean).

use base::class::{Class, Classify};
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::DuplicateKeyPolicy;

/// Nesting beyond this is refused, in YAML and in JSON alike. A Pod needs about 15 levels; the YAML
/// reader takes 20 KB of stack for each in a debug build, and a worker thread has 2 MB.
pub const MAX_DEPTH: usize = 48;
/// How many parser events aliases may add to a document.
const MAX_REPLAYED_EVENTS: usize = 100_000;

/// What to do when one mapping says the same key twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DuplicateKeys {
    Reject,
    LastWins,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum YamlError {
    #[error("parse: {0}")]
    Syntax(String),
    #[error("duplicate key {key:?}{}", at(*.line, *.column))]
    DuplicateKey { key: String, line: u64, column: u64 },
    #[error("more than one document in the file; expected exactly one")]
    MultipleDocuments,
    #[error("not valid UTF-8 text")]
    NotUtf8,
}

/// Parses one YAML or JSON document. An empty document is `Value::Null`, as in Go.
pub fn to_value(bytes: &[u8], dup: DuplicateKeys) -> Result<Value, YamlError> {
    let text = std::str::from_utf8(bytes).map_err(|_| YamlError::NotUtf8)?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim_start().starts_with(['{', '['])
        && let Some(outcome) = json_to_value(text, dup)
    {
        return outcome;
    }
    let text = without_empty_tail(text);
    let mut value = match serde_saphyr::from_str_with_options::<Value>(text, options(dup)) {
        Ok(value) => value,
        Err(e) => return Err(YamlError::from_saphyr(&e)),
    };
    settle_numbers(&mut value);
    Ok(value)
}

/// Renders a value as one YAML document that `to_value` reads back unchanged.
pub fn from_value_to_yaml(value: &Value) -> String {
    let mut out = String::new();
    write_node(&mut out, value, 0);
    out
}

/// Whether the bytes hold more than one non-empty document.
pub fn has_multiple_documents(bytes: &[u8]) -> bool {
    matches!(to_value(bytes, DuplicateKeys::LastWins), Err(YamlError::MultipleDocuments))
}

// === impl YamlError ===

impl YamlError {
    fn from_saphyr(e: &serde_saphyr::Error) -> Self {
        use serde_saphyr::Error as E;
        let e = e.without_snippet();
        match e {
            E::MultipleDocuments { .. } => Self::MultipleDocuments,
            E::DuplicateMappingKey { key, .. } => {
                let place = e.location();
                Self::DuplicateKey {
                    key: key.clone().unwrap_or_default(),
                    line: place.map_or(0, |l| l.line()),
                    column: place.map_or(0, |l| l.column()),
                }
            }
            // The snippet is dropped on purpose: a manifest's text may hold secrets.
            _ => Self::Syntax(e.to_string()),
        }
    }
}

impl Classify for YamlError {
    fn class(&self) -> Class {
        Class::Reject
    }
}

fn at(line: u64, column: u64) -> String {
    if line == 0 { String::new() } else { format!(" at line {line} column {column}") }
}

/// A file that ends in `---` holds one document, not two.
fn without_empty_tail(text: &str) -> &str {
    let mut kept = text;
    while let Some(rest) = kept.trim_end().strip_suffix("\n---") {
        kept = rest;
    }
    kept
}

fn options(dup: DuplicateKeys) -> serde_saphyr::Options {
    let duplicate_keys = match dup {
        DuplicateKeys::Reject => DuplicateKeyPolicy::Error,
        DuplicateKeys::LastWins => DuplicateKeyPolicy::LastWins,
    };
    serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH },
        duplicate_keys: duplicate_keys,
        legacy_octal_numbers: true,
        ignore_binary_tag_for_string: true,
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_REPLAYED_EVENTS,
            max_replay_stack_depth: 32,
        },
    }
}

/// Go writes an integral float without a fraction when it turns YAML into JSON, so `port: 80.0`
/// and `089` (not octal, hence a float) still fit integer fields.
fn settle_numbers(value: &mut Value) {
    match value {
        Value::Number(n) => {
            if let Some(f) = n.as_f64()
                && n.is_f64()
                && f.fract() == 0.0
                && f.abs() < 9.0e15
            {
                *n = Number::from(f as i64);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(settle_numbers),
        Value::Object(map) => map.values_mut().for_each(settle_numbers),
        _ => {}
    }
}

// --- JSON ---

/// `None` when the text is not JSON: a flow-style YAML mapping also starts with a brace.
fn json_to_value(text: &str, dup: DuplicateKeys) -> Option<Result<Value, YamlError>> {
    let mut duplicate = None;
    let mut de = serde_json::Deserializer::from_str(text);
    let seed = JsonSeed { dup, depth: 0, duplicate: &mut duplicate };
    match seed.deserialize(&mut de).and_then(|v| de.end().map(|()| v)) {
        Ok(value) => Some(Ok(value)),
        Err(e) => duplicate.map(|key| {
            Err(YamlError::DuplicateKey { key, line: e.line() as u64, column: e.column() as u64 })
        }),
    }
}

/// Builds a `Value` while watching for repeated keys, which serde_json itself passes over.
struct JsonSeed<'a> {
    dup: DuplicateKeys,
    depth: usize,
    duplicate: &'a mut Option<String>,
}

impl JsonSeed<'_> {
    fn child(&mut self) -> JsonSeed<'_> {
        JsonSeed { dup: self.dup, depth: self.depth + 1, duplicate: self.duplicate }
    }

    fn check_depth<E: serde::de::Error>(&self) -> Result<(), E> {
        if self.depth >= MAX_DEPTH {
            return Err(E::custom(format!("nested deeper than {MAX_DEPTH} levels")));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for JsonSeed<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, de: D) -> Result<Value, D::Error> {
        de.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for JsonSeed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<Value, A::Error> {
        self.check_depth()?;
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(self.child())? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut access: A) -> Result<Value, A::Error> {
        self.check_depth()?;
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if self.dup == DuplicateKeys::Reject && map.contains_key(&key) {
                *self.duplicate = Some(key);
                return Err(A::Error::custom("duplicate key"));
            }
            let value = access.next_value_seed(self.child())?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

// --- writing ---

/// Block style for what has children, JSON scalars for the rest: every JSON scalar is a YAML
/// scalar, so quoting is needed only to keep a string from being read as something else.
fn write_node(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (i, (key, child)) in map.iter().enumerate() {
                if i > 0 {
                    pad(out, indent);
                }
                write_string(out, key);
                out.push(':');
                match child {
                    Value::Object(m) if !m.is_empty() => {
                        out.push('\n');
                        pad(out, indent + 2);
                        write_node(out, child, indent + 2);
                    }
                    Value::Array(a) if !a.is_empty() => {
                        out.push('\n');
                        pad(out, indent);
                        write_node(out, child, indent);
                    }
                    _ => {
                        out.push(' ');
                        write_node(out, child, indent);
                    }
                }
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    pad(out, indent);
                }
                out.push_str("- ");
                write_node(out, item, indent + 2);
            }
        }
        Value::String(s) => {
            write_string(out, s);
            out.push('\n');
        }
        other => {
            out.push_str(&other.to_string());
            out.push('\n');
        }
    }
}

fn pad(out: &mut String, indent: usize) {
    out.extend(std::iter::repeat_n(' ', indent));
}

fn write_string(out: &mut String, s: &str) {
    if is_plain(s) {
        out.push_str(s);
    } else {
        write_quoted(out, s);
    }
}

fn write_quoted(out: &mut String, s: &str) {
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            // What YAML calls unprintable, and what it would fold as a line break.
            c if c.is_control()
                || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}') =>
            {
                out.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Whether a string survives unquoted in any YAML reader. Conservative on purpose.
fn is_plain(s: &str) -> bool {
    const WORDS: [&str; 9] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];
    let safe = |c: char| c.is_ascii_alphanumeric() || "-_./ ()".contains(c);
    s.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && !s.ends_with(' ')
        && s.len() <= 200
        && s.chars().all(safe)
        && !WORDS.contains(&s.to_ascii_lowercase().as_str())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn lax(text: &str) -> Value {
        to_value(text.as_bytes(), DuplicateKeys::LastWins).unwrap_or_else(|e| panic!("{text:?}: {e}"))
    }

    #[test]
    fn scalars_read_as_go_reads_them() {
        let rows: &[(&str, Value)] = &[
            ("a: 0644", json!({"a": 420})),
            ("a: 0o644", json!({"a": 420})),
            ("a: 0x1F", json!({"a": 31})),
            ("a: 089", json!({"a": 89})),
            ("a: 1_000", json!({"a": 1000})),
            ("a: yes", json!({"a": true})),
            ("a: On", json!({"a": true})),
            ("a: off", json!({"a": false})),
            ("a: y", json!({"a": true})),
            ("a: 'yes'", json!({"a": "yes"})),
            ("a: \"0644\"", json!({"a": "0644"})),
            ("a: ~", json!({"a": null})),
            ("a:", json!({"a": null})),
            ("a: 80.0", json!({"a": 80})),
            ("a: 0.5", json!({"a": 0.5})),
            ("a: -7", json!({"a": -7})),
            ("a: 1e3", json!({"a": 1000})),
            ("a: 100m", json!({"a": "100m"})),
            ("a: 1Gi", json!({"a": "1Gi"})),
            ("a: 5m30s", json!({"a": "5m30s"})),
            ("a: 2001-01-01", json!({"a": "2001-01-01"})),
            ("a: 10:20", json!({"a": "10:20"})),
            ("a: 18446744073709551615", json!({"a": 18446744073709551615u64})),
            ("a: |\n  x\n  y\n", json!({"a": "x\ny\n"})),
            ("a: >-\n  x\n  y\n", json!({"a": "x y"})),
            ("a: !!str 5", json!({"a": "5"})),
            ("8: b", json!({"8": "b"})),
            ("a: [1, {b: c}]", json!({"a": [1, {"b": "c"}]})),
            ("{a: b}", json!({"a": "b"})),
            ("", Value::Null),
            ("# only a comment\n", Value::Null),
            ("---\na: 1\n", json!({"a": 1})),
            ("---\na: 1\n---\n", json!({"a": 1})),
            ("\u{feff}a: 1", json!({"a": 1})),
        ];
        for (text, want) in rows {
            assert_eq!(&lax(text), want, "{text:?}");
        }
    }

    #[test]
    fn merge_keys_merge_and_the_explicit_key_wins() {
        let text = "base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\n";
        for dup in [DuplicateKeys::Reject, DuplicateKeys::LastWins] {
            let v = to_value(text.as_bytes(), dup).unwrap();
            assert_eq!(v["use"], json!({"x": 1, "y": 3}));
        }
    }

    #[test]
    fn duplicate_keys_follow_the_policy() {
        for text in ["a: 1\nb: 0\na: 2\n", r#"{"a": 1, "b": 0, "a": 2}"#] {
            assert_eq!(lax(text)["a"], json!(2));
            let e = to_value(text.as_bytes(), DuplicateKeys::Reject).unwrap_err();
            assert!(
                matches!(&e, YamlError::DuplicateKey { key, line, .. } if key == "a" && *line > 0),
                "{e:?}"
            );
            assert!(e.to_string().starts_with("duplicate key \"a\" at line "), "{e}");
        }
    }

    #[test]
    fn several_documents_are_told_apart_from_a_broken_one() {
        assert!(has_multiple_documents(b"a: 1\n---\nb: 2\n"));
        assert!(!has_multiple_documents(b"a: 1\n"));
        assert!(!has_multiple_documents(b"a: [\n"));
        let e = to_value(b"a: 1\n---\nb: 2\n", DuplicateKeys::Reject).unwrap_err();
        assert_eq!(e, YamlError::MultipleDocuments);
    }

    #[test]
    fn bombs_and_abysses_are_refused() {
        let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for i in 1..12 {
            let refs = vec![format!("*a{}", i - 1); 10].join(",");
            bomb.push_str(&format!("a{i}: &a{i} [{refs}]\n"));
        }
        assert!(to_value(bomb.as_bytes(), DuplicateKeys::LastWins).is_err());
        for deep in ["[".repeat(3000), "{\"a\":".repeat(3000), "- ".repeat(3000)] {
            assert!(to_value(deep.as_bytes(), DuplicateKeys::LastWins).is_err());
        }
        assert_eq!(to_value(b"a: \xff", DuplicateKeys::Reject), Err(YamlError::NotUtf8));
        assert!(to_value(b"a: .nan", DuplicateKeys::Reject).is_err());
    }

    #[test]
    fn errors_do_not_quote_the_text() {
        let e = to_value(b"password: hunter2\n bad: [\n", DuplicateKeys::Reject).unwrap_err();
        assert!(!e.to_string().contains("hunter2"), "{e}");
    }

    #[test]
    fn written_yaml_is_pleasant() {
        let v = json!({"kind": "Pod", "n": 1, "e": {}, "l": ["a", {"b": "yes", "c": [1]}], "s": "a: b"});
        let want = "e: {}\nkind: Pod\nl:\n- a\n- b: \"yes\"\n  c:\n  - 1\n\"n\": 1\ns: \"a: b\"\n";
        assert_eq!(from_value_to_yaml(&v), want);
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<i32>().prop_map(|n| Value::from(f64::from(n) + 0.5)),
            ".{0,12}".prop_map(Value::from),
            "[a-z0-9:#&*!|>%@~ _.-]{0,10}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map("[a-zA-Z0-9:./ <=~-]{0,8}", inner, 0..5)
                    .prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(v in values()) {
            let mut want = v.clone();
            settle_numbers(&mut want);
            let text = from_value_to_yaml(&v);
            prop_assert_eq!(to_value(text.as_bytes(), DuplicateKeys::Reject), Ok(want), "{}", text);
        }

        #[test]
        fn json_text_reads_as_json(v in values()) {
            let mut want = json!({ "v": v });
            let mut got = to_value(want.to_string().as_bytes(), DuplicateKeys::Reject).unwrap();
            settle_numbers(&mut got);
            settle_numbers(&mut want);
            prop_assert_eq!(got, want);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = to_value(&bytes, DuplicateKeys::Reject);
        }
    }
}
