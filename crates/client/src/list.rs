//! A list taken apart while it arrives: its items one by one, so that nobody holds all of it as text.

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// One object; upstream refuses larger ones long before.
pub(crate) const ITEM_MAX: usize = 16 << 20;
/// What a list says besides its items.
const FRAME_MAX: usize = 1 << 20;

/// Takes the text of a `…List` in pieces of any size. Only the shape is looked at: strings, brackets, and the name of the
/// member that holds the items. Whether an item is JSON is seen when it is whole.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    /// Everything but the items.
    frame: Vec<u8>,
    item: Vec<u8>,
    /// The last string directly inside the list: the name of the member whose value is next.
    name: Vec<u8>,
    depth: usize,
    in_items: bool,
    in_string: bool,
    is_escaped: bool,
}

/// What a page of a list says of itself.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ListMeta {
    #[serde(deserialize_with = "text")]
    pub(crate) resource_version: String,
    #[serde(rename = "continue", deserialize_with = "text")]
    pub(crate) next: String,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("an item is larger than {ITEM_MAX} bytes")]
    LargeItem,
    #[error("the list says more than {FRAME_MAX} bytes besides its items")]
    LargeFrame,
    #[error("the items of the list are not objects")]
    NoObject,
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

#[derive(Deserialize)]
struct Frame {
    metadata: ListMeta,
}

/// A null is an empty text, as for upstream's decoder.
fn text<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// How deep we are when we are between two items: inside the list, inside its items.
const BETWEEN_ITEMS: usize = 2;

// === impl Splitter ===

impl Splitter {
    /// Takes the next piece, and hands out the items that end in it.
    pub(crate) fn take(
        &mut self,
        piece: &[u8],
        mut hand_out: impl FnMut(Box<RawValue>),
    ) -> Result<(), Unreadable> {
        for byte in piece {
            let was_in_item = self.is_in_item();
            self.step(*byte);
            if !was_in_item && !self.is_in_item() {
                self.keep_frame(*byte)?;
                continue;
            }
            self.item.push(*byte);
            if self.item.len() > ITEM_MAX {
                return Err(Unreadable::LargeItem);
            }
            if !self.is_in_item() {
                hand_out(serde_json::from_str(&String::from_utf8_lossy(&self.item))?);
                self.item.clear();
            }
        }
        Ok(())
    }

    /// What the list said of itself, now that all of it was heard.
    pub(crate) fn finish(self) -> Result<ListMeta, Unreadable> {
        let frame: Frame = serde_json::from_slice(&self.frame)?;
        Ok(frame.metadata)
    }

    fn is_in_item(&self) -> bool {
        self.in_items && self.depth > BETWEEN_ITEMS
    }

    fn step(&mut self, byte: u8) {
        if self.in_string {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.in_string = false,
                _ if self.depth == 1 => self.name.push(byte),
                _ => {}
            }
            return;
        }
        match byte {
            b'"' => {
                self.in_string = true;
                if self.depth == 1 {
                    self.name.clear();
                }
            }
            b'{' | b'[' => {
                self.in_items |= byte == b'[' && self.depth == 1 && self.name == b"items";
                self.depth += 1;
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.in_items &= self.depth >= BETWEEN_ITEMS;
            }
            _ => {}
        }
    }

    /// What is between two items is not kept, so that the frame reads as a list without any.
    fn keep_frame(&mut self, byte: u8) -> Result<(), Unreadable> {
        if self.in_items && byte != b'[' {
            return match byte {
                b',' | b' ' | b'\n' | b'\t' | b'\r' => Ok(()),
                _ => Err(Unreadable::NoObject),
            };
        }
        self.frame.push(byte);
        if self.frame.len() > FRAME_MAX { Err(Unreadable::LargeFrame) } else { Ok(()) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The items, the revision and the mark of the next page.
    fn split(text: &str, step: usize) -> Result<(Vec<String>, String, String), Unreadable> {
        let (mut splitter, mut items) = (Splitter::default(), Vec::new());
        for piece in text.as_bytes().chunks(step) {
            splitter.take(piece, |item| items.push(item.get().to_owned()))?;
        }
        let meta = splitter.finish()?;
        Ok((items, meta.resource_version, meta.next))
    }

    #[test]
    fn items_are_found_however_the_text_is_cut() {
        let cases: [(&str, &[&str], &str); 8] = [
            (
                r#"{"metadata":{"resourceVersion":"7"},"items":[{"a":1},{"b":[2]}]}"#,
                &[r#"{"a":1}"#, r#"{"b":[2]}"#],
                "7",
            ),
            (
                "{ \"items\" : [\n {} ,\n {}\n ], \"metadata\": {\"resourceVersion\": \"8\"} }\n",
                &["{}", "{}"],
                "8",
            ),
            (r#"{"metadata":{"resourceVersion":"9"},"items":[]}"#, &[], "9"),
            (r#"{"metadata":{"resourceVersion":"9"},"items":null}"#, &[], "9"),
            (r#"{"metadata":{"resourceVersion":"9"}}"#, &[], "9"),
            (r#"{"metadata":{"continue":null,"resourceVersion":"9"}}"#, &[], "9"),
            // Brackets and names in strings mean nothing, nor does a member of that name elsewhere.
            (
                r#"{"kind":"items","metadata":{"items":[{"x":1}],"resourceVersion":"1"},"items":[{"a":"}],{\"\\"}]}"#,
                &[r#"{"a":"}],{\"\\"}"#],
                "1",
            ),
            (
                r#"{"items":[{"items":[{}]}],"metadata":{"resourceVersion":"2"},"more":["items"]}"#,
                &[r#"{"items":[{}]}"#],
                "2",
            ),
        ];
        for (text, items, revision) in cases {
            for step in [1, 2, 3, 7, text.len()] {
                let found = split(text, step).unwrap();
                assert_eq!(
                    (found.0, found.1.as_str()),
                    (items.iter().map(|i| (*i).to_owned()).collect(), revision),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn a_page_says_where_the_next_begins() {
        let text =
            r#"{"metadata":{"continue":"tok","resourceVersion":"7","remainingItemCount":3},"items":[{}]}"#;
        assert_eq!(split(text, 5).unwrap().2, "tok");
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in [
            "",
            "null",
            r#"{"items":[{}]}"#,
            r#"{"metadata":{},"items":[1]}"#,
            r#"{"metadata":{},"items":[[]]"#,
            r#"{"metadata":{},"items":[{"a":}]}"#,
            r#"{"metadata":{},"items":[{"a":1]}"#,
            r#"{"metadata":{},"items":[{}"#,
            r#"{"metadata":{},"items":[{}]"#,
        ] {
            assert!(split(text, 4).is_err(), "{text}");
        }
    }

    #[test]
    fn nothing_grows_without_bound() {
        let mut splitter = Splitter::default();
        splitter.take(br#"{"items":[{"a":""#, |_| {}).unwrap();
        let lot = vec![b'x'; 1 << 20];
        let ended = (0..32).find_map(|_| splitter.take(&lot, |_| {}).err());
        assert!(matches!(ended, Some(Unreadable::LargeItem)));
        let mut splitter = Splitter::default();
        splitter.take(br#"{"metadata":""#, |_| {}).unwrap();
        let ended = (0..2).find_map(|_| splitter.take(&lot, |_| {}).err());
        assert!(matches!(ended, Some(Unreadable::LargeFrame)));
    }
}
