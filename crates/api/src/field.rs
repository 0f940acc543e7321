//! Mistakes in an object, each with the path of its field, in upstream's words.

use std::fmt;

use serde_json::Value;

/// Values longer than this are cut in messages: a manifest may carry megabytes.
const SHOWN: usize = 256;
/// Mistakes kept per object; a hostile manifest could hold millions.
const KEPT: usize = 256;

/// Where a field is: `spec.containers[0].resources.limits[cpu]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path(String);

/// One mistake.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    pub field: String,
    pub problem: Problem,
    /// The offending value, where showing it helps.
    pub value: Option<Value>,
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    Required,
    Invalid,
    Unsupported,
    Duplicate,
    NotFound,
    Forbidden,
    TooLong,
    TooMany,
}

/// All mistakes found in one object.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldErrors {
    errors: Vec<FieldError>,
    dropped: usize,
}

// === impl Path ===

impl Path {
    #[must_use]
    pub fn new(name: &str) -> Path {
        Path(name.to_owned())
    }

    #[must_use]
    pub fn child(&self, name: &str) -> Path {
        if self.0.is_empty() {
            return Path::new(name);
        }
        Path(format!("{}.{name}", self.0))
    }

    #[must_use]
    pub fn index(&self, i: usize) -> Path {
        Path(format!("{}[{i}]", self.0))
    }

    #[must_use]
    pub fn key(&self, key: &str) -> Path {
        Path(format!("{}[{}]", self.0, cut(key)))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl FieldErrors ===

impl FieldErrors {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &FieldError> {
        self.errors.iter()
    }

    pub fn required(&mut self, at: &Path, detail: &str) {
        self.push(at, Problem::Required, None, detail);
    }

    pub fn invalid(&mut self, at: &Path, value: impl Into<Value>, detail: impl AsRef<str>) {
        self.push(at, Problem::Invalid, Some(value.into()), detail.as_ref());
    }

    /// `invalid` where the value itself says nothing.
    pub fn invalid_here(&mut self, at: &Path, detail: &str) {
        self.push(at, Problem::Invalid, None, detail);
    }

    pub fn forbidden(&mut self, at: &Path, detail: &str) {
        self.push(at, Problem::Forbidden, None, detail);
    }

    pub fn duplicate(&mut self, at: &Path, value: impl Into<Value>) {
        self.push(at, Problem::Duplicate, Some(value.into()), "");
    }

    pub fn duplicate_because(&mut self, at: &Path, value: impl Into<Value>, detail: &str) {
        self.push(at, Problem::Duplicate, Some(value.into()), detail);
    }

    pub fn not_found(&mut self, at: &Path, value: impl Into<Value>) {
        self.push(at, Problem::NotFound, Some(value.into()), "");
    }

    pub fn too_long(&mut self, at: &Path, max: usize) {
        self.push(at, Problem::TooLong, None, &format!("may not be more than {max} bytes"));
    }

    pub fn too_many(&mut self, at: &Path, count: usize, max: usize) {
        self.push(at, Problem::TooMany, Some(count.into()), &format!("must have at most {max} items"));
    }

    pub fn unsupported(&mut self, at: &Path, value: &str, supported: &[&str]) {
        self.unsupported_value(at, value.into(), supported);
    }

    /// `unsupported` where what is shown is more than a word.
    pub fn unsupported_value(&mut self, at: &Path, value: Value, supported: &[&str]) {
        let list: Vec<String> = supported.iter().map(|s| format!("{s:?}")).collect();
        let detail = format!("supported values: {}", list.join(", "));
        self.push(at, Problem::Unsupported, Some(value), &detail);
    }

    /// `invalid` once for each message.
    pub fn each(&mut self, at: &Path, value: &str, messages: Vec<String>) {
        for message in messages {
            self.invalid(at, value, message);
        }
    }

    pub fn extend(&mut self, other: FieldErrors) {
        let room = KEPT - self.errors.len();
        self.dropped += other.dropped + other.errors.len().saturating_sub(room);
        self.errors.extend(other.errors.into_iter().take(room));
    }

    fn push(&mut self, at: &Path, problem: Problem, value: Option<Value>, detail: &str) {
        if self.errors.len() >= KEPT {
            self.dropped += 1;
            return;
        }
        let detail = detail.to_owned();
        self.errors.push(FieldError { field: at.0.clone(), problem, value, detail });
    }
}

/// One mistake plainly, several in brackets, as upstream prints an aggregate.
impl fmt::Display for FieldErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines: Vec<String> = self.errors.iter().map(ToString::to_string).collect();
        if self.dropped > 0 {
            lines.push(format!("and {} more", self.dropped));
        }
        match &*lines {
            [one] => f.write_str(one),
            many => write!(f, "[{}]", many.join(", ")),
        }
    }
}

impl std::error::Error for FieldErrors {}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

impl FieldError {
    /// The mistake without its place.
    #[must_use]
    pub fn body(&self) -> String {
        let mut text = self.problem.words().to_owned();
        match &self.value {
            Some(Value::String(s)) => text.push_str(&format!(": {:?}", cut(s))),
            Some(v) => text.push_str(&format!(": {}", cut(&v.to_string()))),
            None => {}
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }
}

impl Problem {
    fn words(self) -> &'static str {
        match self {
            Problem::Required => "Required value",
            Problem::Invalid => "Invalid value",
            Problem::Unsupported => "Unsupported value",
            Problem::Duplicate => "Duplicate value",
            Problem::NotFound => "Not found",
            Problem::Forbidden => "Forbidden",
            Problem::TooLong => "Too long",
            Problem::TooMany => "Too many",
        }
    }
}

pub(crate) fn cut(text: &str) -> std::borrow::Cow<'_, str> {
    match text.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}...", &text[..at]).into(),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wording() {
        let mut e = FieldErrors::default();
        let at = Path::new("spec").child("containers").index(0).child("name");
        e.required(&at, "");
        assert_eq!(e.to_string(), "spec.containers[0].name: Required value");
        e.invalid(&at, "A", "must be lower case");
        e.unsupported(&Path::new("x").key("cpu"), "b", &["c", "d"]);
        e.invalid(&at, -1, "too small");
        assert_eq!(
            e.to_string(),
            "[spec.containers[0].name: Required value, \
             spec.containers[0].name: Invalid value: \"A\": must be lower case, \
             x[cpu]: Unsupported value: \"b\": supported values: \"c\", \"d\", \
             spec.containers[0].name: Invalid value: -1: too small]"
        );
    }

    #[test]
    fn messages_are_bounded() {
        let mut e = FieldErrors::default();
        for _ in 0..10_000 {
            e.invalid(&Path::new("x"), "é".repeat(10_000), "no");
        }
        assert!(e.to_string().len() < 300 * 1024);
        assert!(e.to_string().ends_with("and 9744 more]"));
    }
}
