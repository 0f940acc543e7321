//! Lenient decoding: what another server wrote, in the form our types can read.
//!
//! An object that decodes as it is stays as it is; this is for the others. The document is walked along its type and written
//! anew. What upstream's decoder takes and ours does not is brought into shape: a null is an absent field or an empty
//! item, a time out of the calendar is the nearest one in it, a whole number may have a point. What nobody could read is left
//! out and named, so that whoever needs it knows that it is missing (docs/decisions/015.md).

use std::fmt;

use api::json::{FromJson, Mended, Reading};
use base::rfc3339::Moment;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::decode::{Crumb, Step};
use crate::types::{At, Field, Shape, Type};

/// What upstream has for a time that was never set.
const ZERO_TIME: &str = "0001-01-01T00:00:00Z";
/// Everybody writes here, and no reader decides by it alone.
const UNUSED: &str = "status.conditions[";
/// Losses named per object; a hostile one could hold millions.
const MAX_LOST: usize = 16;

/// Reads an object that another server wrote.
pub fn read<T: FromJson>(json: &[u8]) -> serde_json::Result<Reading<T>> {
    T::read(json, mend)
}

/// The object as its type can read it. None where it is no object, or says that it is of another kind.
#[must_use]
pub fn mend(name: &str, json: &[u8]) -> Option<Mended> {
    let at = At::named(name)?;
    let raw: &RawValue = serde_json::from_slice(json).ok()?;
    if !names_its_kind(raw, at) {
        return None;
    }
    let mut walk = Walk { out: Vec::with_capacity(json.len()), lost: Vec::new() };
    (walk.place(raw, at, None) == Outcome::Written).then_some(Mended { json: walk.out, lost: walk.lost })
}

/// Items of lists do not say what they are; an answer that says so must be what was asked for.
fn names_its_kind(raw: &RawValue, at: At<'_>) -> bool {
    let Shape::Object(id) = at.shape else { return true };
    let Ok(Entries(entries)) = serde_json::from_str(raw.get()) else { return false };
    let text = |name: &str| {
        let found = entries.iter().rfind(|(key, _)| key == name);
        found
            .and_then(|(_, raw)| serde_json::from_str::<String>(raw.get()).ok())
            .filter(|text| !text.is_empty())
    };
    let (version, kind) = (text("apiVersion"), text("kind"));
    let is_one_of = |(g, v, k): (&str, &str, &str)| {
        let whole = if g.is_empty() { v.to_owned() } else { format!("{g}/{v}") };
        version.as_ref().is_none_or(|version| *version == whole)
            && kind.as_deref().is_none_or(|kind| kind == k)
    };
    let mut kinds = at.types.kinds_of(*id).peekable();
    kinds.peek().is_none() || kinds.any(is_one_of)
}

struct Walk {
    out: Vec<u8>,
    lost: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Written,
    /// A null: as if nothing were said.
    Absent,
    /// Something is there, and it cannot be read.
    Lost,
}

/// The members of an object, as they stand.
struct Entries<'a>(Vec<(String, &'a RawValue)>);

// === impl Walk ===

impl Walk {
    /// Writes what stands here. Of what is not written nothing stays behind.
    fn place(&mut self, raw: &RawValue, at: At<'_>, crumb: Option<&Crumb<'_>>) -> Outcome {
        let text = raw.get();
        if text.starts_with('n') {
            return Outcome::Absent;
        }
        let is_text = text.starts_with('"');
        let scalar = match at.shape {
            Shape::Object(id) => return self.object(text, at, at.types.get(*id), crumb),
            Shape::Map { value, .. } => return self.map(text, at.with(value), crumb),
            Shape::List { item, .. } => return self.list(text, at.with(item), crumb),
            Shape::String => lossless(text),
            Shape::Boolean => text.starts_with(['t', 'f']).then(|| text.to_owned()),
            Shape::Int64 => whole(text).map(|n| n.to_string()),
            Shape::Int32 => whole32(text),
            Shape::Number => text.parse::<f64>().ok().filter(|n| n.is_finite()).map(|_| text.to_owned()),
            Shape::IntOrString if is_text => lossless(text),
            Shape::IntOrString => whole32(text),
            // Of a number only its digits count, however many they are.
            Shape::Quantity if is_text => lossless(text),
            Shape::Quantity => {
                text.starts_with(|c: char| c == '-' || c.is_ascii_digit()).then(|| quoted(text))
            }
            Shape::Bytes => string(text).and_then(|text| bytes(&text)).map(|text| quoted(&text)),
            Shape::Time | Shape::MicroTime => return self.time(text, crumb),
            Shape::Raw | Shape::Any | Shape::Either(_) | Shape::FieldSet => {
                serde_json::from_str::<Value>(text).is_ok().then(|| text.to_owned())
            }
        };
        match scalar {
            Some(text) => {
                self.out.extend_from_slice(text.as_bytes());
                Outcome::Written
            }
            None => self.lose(crumb),
        }
    }

    fn object(&mut self, text: &str, at: At<'_>, known: &Type, crumb: Option<&Crumb<'_>>) -> Outcome {
        let Ok(Entries(entries)) = serde_json::from_str(text) else { return self.lose(crumb) };
        self.out.push(b'{');
        for field in &known.fields {
            // Nobody here reads it, and it is often larger than all the rest.
            if matches!(&*field.name, "managedFields") {
                continue;
            }
            // Of a key that stands twice the last value counts.
            let found = entries.iter().rfind(|(key, _)| *key == *field.name);
            let step = Crumb { parent: crumb, step: Step::Key(&field.name) };
            let written = found.is_some_and(|(key, raw)| {
                self.entry(key, |walk| walk.place(raw, at.with(&field.shape), Some(&step)))
            });
            if !written && needs_time(field) {
                self.entry(&field.name, |walk| walk.write(&quoted(ZERO_TIME)));
            }
        }
        self.close(b'}')
    }

    fn map(&mut self, text: &str, at: At<'_>, crumb: Option<&Crumb<'_>>) -> Outcome {
        let Ok(Entries(entries)) = serde_json::from_str(text) else { return self.lose(crumb) };
        self.out.push(b'{');
        for (key, raw) in &entries {
            let step = Crumb { parent: crumb, step: Step::Entry(key) };
            self.entry(key, |walk| walk.item(raw, at, &step));
        }
        self.close(b'}')
    }

    fn list(&mut self, text: &str, at: At<'_>, crumb: Option<&Crumb<'_>>) -> Outcome {
        let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(text) else { return self.lose(crumb) };
        self.out.push(b'[');
        for (i, raw) in items.into_iter().enumerate() {
            let (step, before) = (Crumb { parent: crumb, step: Step::Index(i) }, self.out.len());
            match self.item(raw, at, &step) {
                Outcome::Written => self.out.push(b','),
                _ => self.out.truncate(before),
            }
        }
        self.close(b']')
    }

    /// A value that cannot be left out: a null is its zero.
    fn item(&mut self, raw: &RawValue, at: At<'_>, step: &Crumb<'_>) -> Outcome {
        match (self.place(raw, at, Some(step)), at.shape) {
            // Even an empty one has its times.
            (Outcome::Absent, Shape::Object(id)) => self.object("{}", at, at.types.get(*id), Some(step)),
            (Outcome::Absent, _) => self.write(zero(at)),
            (other, _) => other,
        }
    }

    fn time(&mut self, text: &str, crumb: Option<&Crumb<'_>>) -> Outcome {
        let given = string(text);
        let read = given.as_deref().and_then(|given| match given.parse::<Timestamp>() {
            Ok(_) => Some(given.to_owned()),
            Err(_) => nearest(given).map(|time| time.to_string()),
        });
        if read.is_none() {
            self.lose(crumb);
        }
        // That there is a time says something even where nobody knows which: an object with a deletionTimestamp is deleted.
        self.write(&quoted(read.as_deref().unwrap_or(ZERO_TIME)))
    }

    /// A member, unless there is nothing to write of it.
    fn entry(&mut self, key: &str, value: impl FnOnce(&mut Walk) -> Outcome) -> bool {
        let before = self.out.len();
        self.write(&quoted(key));
        self.out.push(b':');
        let is_written = value(self) == Outcome::Written;
        if is_written {
            self.out.push(b',');
        } else {
            self.out.truncate(before);
        }
        is_written
    }

    fn close(&mut self, bracket: u8) -> Outcome {
        if self.out.last() == Some(&b',') {
            self.out.pop();
        }
        self.out.push(bracket);
        Outcome::Written
    }

    fn write(&mut self, text: &str) -> Outcome {
        self.out.extend_from_slice(text.as_bytes());
        Outcome::Written
    }

    fn lose(&mut self, crumb: Option<&Crumb<'_>>) -> Outcome {
        let place = crumb.map_or_else(|| "the object".to_owned(), Crumb::to_string);
        if self.lost.len() < MAX_LOST && !place.starts_with(UNUSED) {
            self.lost.push(place);
        }
        Outcome::Lost
    }
}

// === impl Entries ===

impl<'de> Deserialize<'de> for Entries<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }

        from.deserialize_map(Members)
    }
}

/// Our types have a few times that may not be absent.
fn needs_time(field: &Field) -> bool {
    field.required && matches!(field.shape, Shape::Time | Shape::MicroTime)
}

fn zero(at: At<'_>) -> &'static str {
    match at.shape {
        Shape::String | Shape::Bytes => "\"\"",
        Shape::Int32 | Shape::Int64 | Shape::Number | Shape::IntOrString => "0",
        Shape::Boolean => "false",
        Shape::Quantity => "\"0\"",
        Shape::Time | Shape::MicroTime => "\"0001-01-01T00:00:00Z\"",
        Shape::List { .. } => "[]",
        Shape::Raw | Shape::Any | Shape::Either(_) | Shape::FieldSet => "null",
        Shape::Object(_) | Shape::Map { .. } => "{}",
    }
}

/// A time that our calendar does not have becomes the last or the first that it has and that others can read.
fn nearest(text: &str) -> Option<Timestamp> {
    let Moment { secs, nanos } = Moment::parse_lenient(text)?;
    let nanos = i128::from(secs.max(Moment::FIRST)) * 1_000_000_000 + i128::from(nanos);
    Some(Timestamp::from_nanosecond(nanos).unwrap_or(Timestamp::MAX))
}

/// A text as it stands, if it is one that can be read; half a surrogate pair is not, and is replaced.
fn lossless(text: &str) -> Option<String> {
    match serde_json::from_str::<String>(text) {
        Ok(_) => Some(text.to_owned()),
        Err(_) => string(text).map(|text| quoted(&text)),
    }
}

fn string(text: &str) -> Option<String> {
    struct Text(String);

    impl<'de> Deserialize<'de> for Text {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            struct Bytes;

            impl Visitor<'_> for Bytes {
                type Value = Text;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("a text")
                }

                fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Text, E> {
                    Ok(Text(String::from_utf8_lossy(bytes).into_owned()))
                }
            }

            from.deserialize_bytes(Bytes)
        }
    }

    if !text.starts_with('"') {
        return None;
    }
    serde_json::from_str::<Text>(text).ok().map(|Text(text)| text)
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Base64 without the line ends that upstream's decoder passes over.
fn bytes(text: &str) -> Option<String> {
    let plain: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    STANDARD.decode(&plain).is_ok().then_some(plain)
}

/// `3`, and also `3.0` and `3e0`.
fn whole(text: &str) -> Option<i64> {
    /// Up to here a float has every whole number.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    text.parse().ok().or_else(|| {
        let number: f64 = text.parse().ok()?;
        (number.fract() == 0.0 && number.abs() <= EXACT).then_some(number as i64)
    })
}

fn whole32(text: &str) -> Option<String> {
    whole(text).and_then(|n| i32::try_from(n).ok()).map(|n| n.to_string())
}
