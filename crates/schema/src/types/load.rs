//! Reads what `build.rs` wrote.

use std::io::Read;

use serde_json::Value;

use super::{Field, ListKind, Merge, NamedKind, Presence, Shape, Type, TypeId, Types};

static TYPES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/types"));
static DESCRIPTIONS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptions"));

/// The built-in types. What the build wrote is part of the program: a line that cannot be read is skipped here and
/// found by the tests.
pub(super) fn builtin() -> Types {
    let text = inflate(TYPES);
    let mut types = Types::default();
    for line in text.lines() {
        if let Some(line) = line.strip_prefix('=') {
            let (name, atomic) =
                line.split_once(' ').map_or((line, false), |(name, flags)| (name, flags == "a"));
            let id = TypeId(u32::try_from(types.types.len()).unwrap_or(u32::MAX));
            types.types.push(Type {
                name: name.into(),
                fields: Vec::new(),
                atomic,
                open: false,
                shape: Shape::Object(id),
            });
        } else if let Some(line) = line.strip_prefix('!') {
            types.kinds.extend(kind(line));
        } else if let (Some(last), Some(field)) = (types.types.last_mut(), field(line)) {
            last.fields.push(field);
        }
    }
    types.kinds.sort();
    types
}

/// The prose of all built-in types, about 700 KB: read where it is needed, and let go.
pub(crate) fn descriptions() -> String {
    inflate(DESCRIPTIONS)
}

/// Changes when the types or their prose do.
pub(crate) fn source_digest() -> String {
    format!("{:x}{:x}", base::fnv::fnv1a128(TYPES), base::fnv::fnv1a32(DESCRIPTIONS))
}

fn inflate(bytes: &[u8]) -> String {
    let mut text = String::new();
    let _ = flate2::read::DeflateDecoder::new(bytes).read_to_string(&mut text);
    text
}

fn kind(line: &str) -> Option<NamedKind> {
    let mut words = line.split(' ');
    let id = TypeId(words.next()?.parse().ok()?);
    Some((words.next()?.into(), words.next()?.into(), words.next()?.into(), id))
}

fn field(line: &str) -> Option<Field> {
    let mut words = line.split(' ');
    let (name, shape_text) = (words.next()?, words.next()?);
    let mut shape = shape(shape_text)?;
    let mut field = Attributes::default();
    for word in words.filter(|w| !w.is_empty()) {
        let (letter, rest) = word.split_at(1);
        match letter {
            "r" => field.required = true,
            "p" => field.presence = Some(Presence::Pointer),
            "a" => field.presence = Some(Presence::Always),
            "o" => field.presence = Some(Presence::Omitted),
            "A" => own_as_one(&mut shape),
            "S" => tell_apart(&mut shape, ListKind::Set),
            "K" => tell_apart(&mut shape, ListKind::Keyed(rest.split(',').map(Into::into).collect())),
            "D" => field.default = Some(rest.parse::<i64>().map_or_else(|_| rest.into(), Value::from)),
            "M" => field.merge.key = Some(rest.into()),
            "R" => {
                field.merge.retain = true;
                field.merge.key = rest.strip_prefix('M').map(Into::into);
            }
            _ => return None,
        }
    }
    let presence = field.presence.unwrap_or_else(|| natural_presence(&shape, field.required));
    Some(Field {
        name: name.into(),
        shape,
        required: field.required,
        presence,
        merge: field.merge,
        default: field.default,
    })
}

#[derive(Default)]
struct Attributes {
    required: bool,
    presence: Option<Presence>,
    merge: Merge,
    default: Option<Value>,
}

fn natural_presence(shape: &Shape, required: bool) -> Presence {
    match shape {
        Shape::String
        | Shape::Int32
        | Shape::Int64
        | Shape::Number
        | Shape::Boolean
        | Shape::Bytes
        | Shape::List { .. }
        | Shape::Map { .. } => {
            if required {
                Presence::Always
            } else {
                Presence::Omitted
            }
        }
        _ => Presence::Pointer,
    }
}

fn shape(text: &str) -> Option<Shape> {
    let (letter, rest) = text.split_at_checked(1)?;
    Some(match letter {
        "s" => Shape::String,
        "y" => Shape::Bytes,
        "i" => Shape::Int32,
        "l" => Shape::Int64,
        "n" => Shape::Number,
        "b" => Shape::Boolean,
        "q" => Shape::Quantity,
        "t" => Shape::Time,
        "u" => Shape::MicroTime,
        "p" => Shape::IntOrString,
        "x" => Shape::Raw,
        "f" => Shape::FieldSet,
        "*" => Shape::Any,
        "@" => Shape::Object(TypeId(rest.parse().ok()?)),
        "|" => Shape::Either(TypeId(rest.strip_prefix('@')?.parse().ok()?)),
        "{" => Shape::Map { value: Box::new(shape(rest)?), atomic: false },
        "[" => Shape::List { item: Box::new(shape(rest)?), kind: ListKind::Atomic },
        _ => return None,
    })
}

fn own_as_one(shape: &mut Shape) {
    if let Shape::Map { atomic, .. } = shape {
        *atomic = true;
    }
}

fn tell_apart(shape: &mut Shape, by: ListKind) {
    if let Shape::List { kind, .. } = shape {
        *kind = by;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::types::At;

    #[test]
    fn every_line_is_read() {
        let text = inflate(TYPES);
        let types = builtin();
        assert_eq!(text.lines().filter(|l| l.starts_with('=')).count(), types.types.len());
        assert_eq!(text.lines().filter(|l| l.starts_with('!')).count(), types.kinds.len());
        let fields = text.lines().filter(|l| !l.starts_with(['=', '!'])).count();
        assert_eq!(fields, types.types.iter().map(|t| t.fields.len()).sum::<usize>());
        assert!(types.types.is_sorted_by(|a, b| a.name < b.name));
        assert!(types.types.iter().all(|t| t.fields.is_sorted_by(|a, b| a.name < b.name)));
        assert!(types.types.len() > 500, "{}", types.types.len());
    }

    /// The build refuses facts about unknown fields; this refuses facts that fit the field badly.
    #[test]
    fn facts_fit_their_fields() {
        let types = builtin();
        for t in &types.types {
            for f in &t.fields {
                let at = At { types: &types, shape: &f.shape };
                if let Shape::List { kind: ListKind::Keyed(keys), .. } = &f.shape {
                    let item = at.item().object().unwrap();
                    for key in keys {
                        assert!(item.field(key).is_some(), "{}.{} key {key}", t.name, f.name);
                    }
                }
                if let Some(key) = &f.merge.key {
                    match at.item().object() {
                        Some(item) => assert!(item.field(key).is_some(), "{}.{} key {key}", t.name, f.name),
                        None => assert!(key.is_empty(), "{}.{}", t.name, f.name),
                    }
                }
                if f.presence == Presence::Always {
                    assert!(!matches!(f.shape, Shape::Either(_) | Shape::Any), "{}.{}", t.name, f.name);
                }
            }
        }
    }

    #[test]
    fn facts_of_a_pod() {
        let at = At::named("io.k8s.api.core.v1.PodSpec").unwrap();
        let field = |name: &str| at.object().unwrap().field(name).unwrap();
        assert_eq!(field("containers").merge.key.as_deref(), Some("name"));
        assert!(field("volumes").merge.retain);
        assert_eq!(field("tolerations").merge, Merge::default());
        assert_eq!(field("hostNetwork").presence, Presence::Omitted);
        assert_eq!(field("hostUsers").presence, Presence::Pointer);
        let port = at.child("containers").item().child("ports");
        let Shape::List { kind: ListKind::Keyed(keys), .. } = port.shape else { panic!("{port:?}") };
        assert_eq!(keys.iter().map(|k| &**k).collect::<Vec<_>>(), ["containerPort", "protocol"]);
        let protocol = port.item().object().unwrap().field("protocol").unwrap();
        assert_eq!(protocol.default, Some("TCP".into()));
        assert!(At::kind("apps", "v1", "DeploymentList").is_some());
        assert!(At::kind("", "v1", "Status").is_some());
    }
}
