//! The JSONPath of printer columns and of custom kinds' scale: `.status.conditions[?(@.type=="Ready")].status`.
//!
//! A subset: fields, quoted fields, indices, slices, wildcards, unions of indices or names, recursive descent, and
//! filters that compare a field with a value or ask whether it is there.

use serde_json::Value;

/// A parsed path.
#[derive(Clone, Debug, PartialEq)]
pub struct JsonPath {
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("JSONPath {path:?}: {what} at byte {at}")]
pub struct BadPath {
    path: String,
    what: &'static str,
    at: usize,
}

/// Values one lookup may yield: a wildcard below a wildcard could name millions.
const MAX_FOUND: usize = 10_000;
/// Steps of one path.
const MAX_STEPS: usize = 100;

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Field(String),
    Names(Vec<String>),
    Indices(Vec<i64>),
    /// `[from:to:by]`
    Slice(Option<i64>, Option<i64>, i64),
    Every,
    /// Everything below, at any depth.
    Descend,
    Filter(Filter),
}

#[derive(Clone, Debug, PartialEq)]
struct Filter {
    path: JsonPath,
    /// None asks whether there is anything.
    test: Option<(Comparison, Value)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

// === impl JsonPath ===

impl JsonPath {
    /// Reads a path. The leading `$` and enclosing braces may be left out, as printer columns do.
    pub fn parse(text: &str) -> Result<JsonPath, BadPath> {
        let inner = text.strip_prefix('{').and_then(|t| t.strip_suffix('}')).unwrap_or(text);
        let mut parser = Parser { text: inner, at: 0, whole: text };
        parser.skip("$");
        let path = parser.path(false)?;
        if parser.at < inner.len() {
            return Err(parser.bad("unexpected text"));
        }
        Ok(path)
    }

    /// Every value the path leads to, in order.
    #[must_use]
    pub fn find<'a>(&self, root: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![root];
        for step in &self.steps {
            let mut next = Vec::new();
            for value in found {
                step.follow(value, &mut next);
                next.truncate(MAX_FOUND);
            }
            found = next;
        }
        found
    }

    #[must_use]
    pub fn first<'a>(&self, root: &'a Value) -> Option<&'a Value> {
        self.find(root).into_iter().next()
    }

    /// The fields of a path that is nothing but fields: `.spec.replicas`. None for any other path.
    #[must_use]
    pub fn fields(&self) -> Option<Vec<&str>> {
        let names = self.steps.iter().map(|step| match step {
            Step::Field(name) => Some(name.as_str()),
            _ => None,
        });
        names.collect()
    }
}

// === impl Step ===

impl Step {
    fn follow<'a>(&self, value: &'a Value, found: &mut Vec<&'a Value>) {
        match (self, value) {
            (Step::Field(name), Value::Object(map)) => found.extend(map.get(name)),
            (Step::Names(names), Value::Object(map)) => {
                found.extend(names.iter().filter_map(|name| map.get(name)))
            }
            (Step::Indices(indices), Value::Array(list)) => {
                found.extend(indices.iter().filter_map(|i| list.get(place(*i, list.len())?)));
            }
            (Step::Slice(from, to, by), Value::Array(list)) => {
                let bound = |i: i64| {
                    usize::try_from(if i < 0 { i.saturating_add_unsigned(list.len() as u64) } else { i })
                };
                let from = from.map_or(0, |i| bound(i).unwrap_or(0)).min(list.len());
                let to = to.map_or(list.len(), |i| bound(i).unwrap_or(0)).min(list.len());
                let by = usize::try_from(*by).unwrap_or(1).max(1);
                found.extend(list.get(from..to).into_iter().flatten().step_by(by));
            }
            (Step::Every, Value::Object(map)) => found.extend(map.values()),
            (Step::Every, Value::Array(list)) => found.extend(list),
            (Step::Descend, value) => descend(value, found),
            (Step::Filter(filter), Value::Array(list)) => {
                found.extend(list.iter().filter(|item| filter.holds(item)))
            }
            (Step::Filter(filter), Value::Object(map)) => {
                found.extend(map.values().filter(|item| filter.holds(item)))
            }
            _ => {}
        }
    }
}

fn place(index: i64, len: usize) -> Option<usize> {
    let index = if index < 0 { index.checked_add_unsigned(len as u64)? } else { index };
    usize::try_from(index).ok()
}

fn descend<'a>(value: &'a Value, found: &mut Vec<&'a Value>) {
    if found.len() >= MAX_FOUND {
        return;
    }
    found.push(value);
    match value {
        Value::Object(map) => map.values().for_each(|value| descend(value, found)),
        Value::Array(list) => list.iter().for_each(|value| descend(value, found)),
        _ => {}
    }
}

// === impl Filter ===

impl Filter {
    fn holds(&self, item: &Value) -> bool {
        let Some(found) = self.path.first(item) else { return false };
        let Some((comparison, wanted)) = &self.test else { return true };
        let order = match (found, wanted) {
            (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()),
            (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
            (a, b) if a == b => Some(std::cmp::Ordering::Equal),
            _ => None,
        };
        match comparison {
            Comparison::Equal => order.is_some_and(std::cmp::Ordering::is_eq),
            Comparison::NotEqual => !order.is_some_and(std::cmp::Ordering::is_eq),
            Comparison::Less => order.is_some_and(std::cmp::Ordering::is_lt),
            Comparison::LessOrEqual => order.is_some_and(std::cmp::Ordering::is_le),
            Comparison::Greater => order.is_some_and(std::cmp::Ordering::is_gt),
            Comparison::GreaterOrEqual => order.is_some_and(std::cmp::Ordering::is_ge),
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    whole: &'a str,
}

// === impl Parser ===

impl<'a> Parser<'a> {
    fn bad(&self, what: &'static str) -> BadPath {
        BadPath { path: self.whole.chars().take(256).collect(), what, at: self.at }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip(&mut self, token: &str) -> bool {
        let is_there = self.rest().starts_with(token);
        if is_there {
            self.at += token.len();
        }
        is_there
    }

    fn skip_spaces(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    /// Steps up to the end, or inside a filter up to what cannot be a step.
    fn path(&mut self, is_inside: bool) -> Result<JsonPath, BadPath> {
        let mut steps = Vec::new();
        while !self.rest().is_empty() {
            if steps.len() >= MAX_STEPS {
                return Err(self.bad("too many steps"));
            }
            if self.skip("..") {
                steps.push(Step::Descend);
                if !self.rest().starts_with('[') {
                    steps.push(self.name()?);
                }
            } else if self.rest().starts_with(".[") {
                self.at += 1;
            } else if self.skip(".") {
                // A lone dot is the object itself.
                if self.rest().is_empty() && steps.is_empty() {
                    break;
                }
                steps.push(self.name()?);
            } else if self.skip("[") {
                steps.push(self.bracket(is_inside)?);
            } else {
                break;
            }
        }
        Ok(JsonPath { steps })
    }

    fn name(&mut self) -> Result<Step, BadPath> {
        if self.skip("*") {
            return Ok(Step::Every);
        }
        let mut name = String::new();
        let mut letters = self.rest().char_indices();
        let mut end = self.rest().len();
        while let Some((i, letter)) = letters.next() {
            match letter {
                '\\' => name.extend(letters.next().map(|(_, escaped)| escaped)),
                letter if letter.is_alphanumeric() || "_-$/:@".contains(letter) => name.push(letter),
                _ => {
                    end = i;
                    break;
                }
            }
        }
        self.at += end;
        if name.is_empty() { Err(self.bad("a field name is missing")) } else { Ok(Step::Field(name)) }
    }

    fn bracket(&mut self, is_inside: bool) -> Result<Step, BadPath> {
        if self.skip("?(") {
            // A filter inside a filter would let a path grow without bound.
            if is_inside {
                return Err(self.bad("a filter inside a filter"));
            }
            return self.filter();
        }
        if self.rest().starts_with(['\'', '"']) {
            let mut names = vec![self.quoted()?];
            while self.skip(",") {
                self.skip_spaces();
                names.push(self.quoted()?);
            }
            self.close("]")?;
            return Ok(if names.len() == 1 { Step::Field(names.swap_remove(0)) } else { Step::Names(names) });
        }
        let end = self.rest().find(']').ok_or_else(|| self.bad("a bracket is not closed"))?;
        let inside = self.rest()[..end].trim();
        let step = if inside == "*" {
            Step::Every
        } else if inside.contains(':') {
            let parts: Vec<&str> = inside.split(':').collect();
            let number = |i: usize| match parts.get(i).map(|p| p.trim()) {
                None | Some("") => Ok(None),
                Some(text) => text.parse::<i64>().map(Some),
            };
            match (number(0), number(1), number(2)) {
                (Ok(from), Ok(to), Ok(by)) if parts.len() <= 3 => Step::Slice(from, to, by.unwrap_or(1)),
                _ => return Err(self.bad("not a slice")),
            }
        } else {
            let indices: Result<Vec<i64>, _> = inside.split(',').map(|i| i.trim().parse()).collect();
            Step::Indices(indices.map_err(|_| self.bad("not an index"))?)
        };
        self.at += end + 1;
        Ok(step)
    }

    fn filter(&mut self) -> Result<Step, BadPath> {
        self.skip_spaces();
        if !self.skip("@") {
            return Err(self.bad("a filter begins with @"));
        }
        let path = self.path(true)?;
        self.skip_spaces();
        if self.skip(")") {
            self.close("]")?;
            return Ok(Step::Filter(Filter { path, test: None }));
        }
        const SIGNS: &[(&str, Comparison)] = &[
            ("==", Comparison::Equal),
            ("!=", Comparison::NotEqual),
            ("<=", Comparison::LessOrEqual),
            (">=", Comparison::GreaterOrEqual),
            ("<", Comparison::Less),
            (">", Comparison::Greater),
        ];
        let Some((_, comparison)) = SIGNS.iter().find(|(sign, _)| self.skip(sign)) else {
            return Err(self.bad("a comparison is missing"));
        };
        self.skip_spaces();
        let wanted = self.literal()?;
        self.skip_spaces();
        self.close(")")?;
        self.close("]")?;
        Ok(Step::Filter(Filter { path, test: Some((*comparison, wanted)) }))
    }

    fn literal(&mut self) -> Result<Value, BadPath> {
        if self.rest().starts_with(['\'', '"']) {
            return Ok(self.quoted()?.into());
        }
        let end = self.rest().find([')', ' ']).unwrap_or(self.rest().len());
        let literal = serde_json::from_str(&self.rest()[..end]).map_err(|_| self.bad("not a value"))?;
        self.at += end;
        Ok(literal)
    }

    fn quoted(&mut self) -> Result<String, BadPath> {
        let mut letters = self.rest().char_indices();
        let Some((_, quote @ ('\'' | '"'))) = letters.next() else {
            return Err(self.bad("a quote is missing"));
        };
        let mut text = String::new();
        while let Some((i, letter)) = letters.next() {
            match letter {
                '\\' => text.extend(letters.next().map(|(_, escaped)| escaped)),
                letter if letter == quote => {
                    self.at += i + letter.len_utf8();
                    return Ok(text);
                }
                letter => text.push(letter),
            }
        }
        Err(self.bad("a quote is not closed"))
    }

    fn close(&mut self, token: &str) -> Result<(), BadPath> {
        if self.skip(token) { Ok(()) } else { Err(self.bad("a bracket is not closed")) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn paths() {
        let object = json!({"metadata": {"name": "x", "annotations": {"a.b/c": "1"}},
            "spec": {"n": 3, "list": [{"k": "a", "v": 1}, {"k": "b", "v": 2}, {"k": "c"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False"}]}});
        let cases = [
            (".metadata.name", json!(["x"])),
            ("$.metadata.name", json!(["x"])),
            ("{.metadata.name}", json!(["x"])),
            (".metadata.annotations.a\\.b/c", json!(["1"])),
            (".metadata.annotations['a.b/c']", json!(["1"])),
            (".spec.n", json!([3])),
            (".spec.missing.deep", json!([])),
            (".spec.list[0].k", json!(["a"])),
            (".spec.list[-1].k", json!(["c"])),
            (".spec.list[9].k", json!([])),
            (".spec.list[*].v", json!([1, 2])),
            (".spec.list[0,2].k", json!(["a", "c"])),
            (".spec.list[1:].k", json!(["b", "c"])),
            (".spec.list[:2].k", json!(["a", "b"])),
            (".spec.list[0:3:2].k", json!(["a", "c"])),
            (".spec.list[?(@.v)].k", json!(["a", "b"])),
            (".spec.list[?(@.v>1)].k", json!(["b"])),
            (".spec.list[?(@.v != 1)].k", json!(["b"])),
            (".status.conditions[?(@.type==\"Ready\")].status", json!(["True"])),
            (".status.conditions[?(@.type=='Other')].status", json!(["False"])),
            ("..type", json!(["Ready", "Other"])),
            (".status.conditions[*]['type','status']", json!(["Ready", "True", "Other", "False"])),
        ];
        for (path, want) in cases {
            let found: Value = JsonPath::parse(path).unwrap().find(&object).into_iter().cloned().collect();
            assert_eq!(found, want, "{path}");
        }
        assert_eq!(JsonPath::parse(".spec.n").unwrap().fields(), Some(vec!["spec", "n"]));
        assert_eq!(JsonPath::parse(".spec.list[0]").unwrap().fields(), None);
        for bad in [
            "spec",
            ".spec.",
            ".a[",
            ".a[x]",
            ".a[?(b)]",
            ".a[?(@.b==)]",
            ".a b",
            ".a['b",
            ".a[?(@.b[?(@.c)])]",
        ] {
            assert!(JsonPath::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_path_or_not(text in "[.\\[\\]?()@'\"a-c0-9:*,\\\\ =<>$é-]{0,24}", object in crate::testing::json_value()) {
            if let Ok(path) = JsonPath::parse(&text) {
                let _ = path.find(&object);
            }
        }
    }
}
