//! Complaints in the order of the text they are about.
//!
//! A document knows its fields by name, not where they stood. Where there is more than one complaint, which is rare, the
//! text is read once more.

use std::collections::HashMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{Crumb, MAX_DEPTH, Step};

/// Puts complaints (`unknown field "a.b"`, `duplicate field "c"`) about a JSON text into the order of what they name.
#[must_use]
pub fn in_order(bytes: &[u8], complaints: Vec<String>) -> Vec<String> {
    if complaints.len() < 2 {
        return complaints;
    }
    let mut waiting: HashMap<String, usize> = HashMap::new();
    for complaint in &complaints {
        *waiting.entry(complaint.clone()).or_default() += 1;
    }
    let mut told = Vec::with_capacity(complaints.len());
    let walk = Walk { at: None, depth: 0, waiting: &mut waiting, told: &mut told };
    // It was read before; what cannot be read again is told at the end.
    let _ = walk.deserialize(&mut serde_json::Deserializer::from_slice(bytes));
    for complaint in complaints {
        if let Some(left) = waiting.get_mut(&complaint).filter(|left| **left > 0) {
            *left -= 1;
            told.push(complaint);
        }
    }
    told
}

struct Walk<'a> {
    at: Option<&'a Crumb<'a>>,
    depth: usize,
    /// Complaints, and how often each is still to be told.
    waiting: &'a mut HashMap<String, usize>,
    told: &'a mut Vec<String>,
}

// === impl Walk ===

impl Walk<'_> {
    fn tell(&mut self, what: &str, at: &Crumb<'_>) {
        let complaint = format!("{what} field \"{at}\"");
        if let Some(left) = self.waiting.get_mut(&complaint).filter(|left| **left > 0) {
            *left -= 1;
            self.told.push(complaint);
        }
    }

    fn below<'b>(&'b mut self, at: &'b Crumb<'b>) -> Walk<'b> {
        Walk { at: Some(at), depth: self.depth + 1, waiting: self.waiting, told: self.told }
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        if self.depth > MAX_DEPTH {
            return from.deserialize_ignored_any(IgnoredAny).map(drop);
        }
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<(), A::Error> {
        let mut i = 0;
        loop {
            let at = Crumb { parent: self.at, step: Step::Index(i) };
            if items.next_element_seed(self.below(&at))?.is_none() {
                return Ok(());
            }
            i += 1;
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<(), A::Error> {
        let mut seen = std::collections::HashSet::new();
        while let Some(key) = entries.next_key::<String>()? {
            let at = Crumb { parent: self.at, step: Step::Key(&key) };
            let is_first = seen.insert(key.clone());
            self.tell(if is_first { "unknown" } else { "duplicate" }, &at);
            entries.next_value_seed(self.below(&at))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_complaint_is_told_once_and_in_its_place() {
        let text = br#"{"z": {"b": 1, "b": 2}, "a": [{"x": 1}, {"x": 1, "x": 2, "x": 3}]}"#;
        let said = |list: &[&str]| -> Vec<String> { list.iter().map(|s| (*s).to_owned()).collect() };
        let given = said(&[
            "duplicate field \"a[1].x\"",
            "duplicate field \"a[1].x\"",
            "duplicate field \"z.b\"",
            "odd",
            "unknown field \"a[0].x\"",
            "unknown field \"z.b\"",
        ]);
        let want = said(&[
            "unknown field \"z.b\"",
            "duplicate field \"z.b\"",
            "unknown field \"a[0].x\"",
            "duplicate field \"a[1].x\"",
            "duplicate field \"a[1].x\"",
            "odd",
        ]);
        assert_eq!(in_order(text, given), want);
    }
}
