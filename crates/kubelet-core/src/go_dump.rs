//! Checksums over values as Go's deep printer writes them: upstream protects its checkpoints so.
//!
//! Upstream prints the struct with spew (`%#v`, keys sorted, methods off) and hashes the text with FNV-1a. The names of
//! its Go types are part of that text, so they are part of the file format.

use std::collections::BTreeMap;
use std::fmt::Write;

/// A Go value, as far as checkpoints hold any.
#[derive(Clone, Debug, PartialEq)]
pub enum Go {
    /// Text, number or truth: what `%v` prints.
    Plain(String),
    Nil,
    Slice(Vec<Go>),
    Map(BTreeMap<Key, Go>),
    Struct(Vec<Field>),
    /// A pointer to it.
    Pointer(Box<Go>),
}

/// A field of a struct: its name, its type as Go writes it, its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    pub name: &'static str,
    pub kind: &'static str,
    pub value: Go,
}

/// A key of a map. Numbers are sorted as numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Number(i64),
    Text(String),
}

/// The checksum of a struct of this type, as upstream's checkpoints carry it.
#[must_use]
pub fn checksum(kind: &str, fields: &[Field]) -> u32 {
    base::fnv::fnv1a32(format!("(*{kind}){}", dump(fields)).as_bytes())
}

/// A struct as spew prints it, without its type in front.
#[must_use]
pub fn dump(fields: &[Field]) -> String {
    let mut out = String::new();
    put_struct(fields, &mut out);
    out
}

/// A field.
#[must_use]
pub fn field(name: &'static str, kind: &'static str, value: impl Into<Go>) -> Field {
    Field { name, kind, value: value.into() }
}

// === impl Go ===

impl Go {
    pub fn map<K: Into<Key>>(entries: impl IntoIterator<Item = (K, Go)>) -> Go {
        Go::Map(entries.into_iter().map(|(k, v)| (k.into(), v)).collect())
    }

    #[must_use]
    pub fn pointer(self) -> Go {
        Go::Pointer(Box::new(self))
    }
}

impl From<&str> for Go {
    fn from(text: &str) -> Self {
        Go::Plain(text.to_owned())
    }
}

impl From<u64> for Go {
    fn from(number: u64) -> Self {
        Go::Plain(number.to_string())
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Key::Text(text.to_owned())
    }
}

impl From<u32> for Key {
    fn from(number: u32) -> Self {
        Key::Number(number.into())
    }
}

impl From<i64> for Key {
    fn from(number: i64) -> Self {
        Key::Number(number)
    }
}

fn put(value: &Go, out: &mut String) {
    match value {
        Go::Plain(text) => out.push_str(text),
        Go::Nil => out.push_str("<nil>"),
        Go::Slice(items) => {
            out.push('[');
            separated(items, out, put);
            out.push(']');
        }
        Go::Map(entries) => {
            out.push_str("map[");
            separated(entries, out, |(key, value), out| {
                match key {
                    Key::Number(n) => _ = write!(out, "{n}:"),
                    Key::Text(text) => _ = write!(out, "{text}:"),
                }
                put(value, out);
            });
            out.push(']');
        }
        Go::Struct(fields) => put_struct(fields, out),
        Go::Pointer(to) => {
            out.push_str("<*>");
            put(to, out);
        }
    }
}

fn put_struct(fields: &[Field], out: &mut String) {
    out.push('{');
    separated(fields, out, |field, out| {
        let _ = write!(out, "{}:({})", field.name, field.kind);
        put(&field.value, out);
    });
    out.push('}');
}

fn separated<T>(items: impl IntoIterator<Item = T>, out: &mut String, mut put: impl FnMut(T, &mut String)) {
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            out.push(' ');
        }
        put(item, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nested_value_is_printed_as_spew_prints_it() {
        let inner = Go::Struct(vec![field("N", "int", 3u64), field("Empty", "[]int", Go::Slice(vec![]))]);
        let fields = [
            field("Name", "string", "a b"),
            field("ByNumber", "map[int]*x.T", Go::map([(10u32, inner.clone().pointer()), (9, Go::Nil)])),
            field("List", "[]x.T", Go::Slice(vec![inner, Go::Nil])),
        ];
        assert_eq!(
            dump(&fields),
            "{Name:(string)a b ByNumber:(map[int]*x.T)map[9:<nil> 10:<*>{N:(int)3 Empty:([]int)[]}] \
             List:([]x.T)[{N:(int)3 Empty:([]int)[]} <nil>]}"
        );
    }
}
