//! Reading and filling JSON documents. Paths are dotted (`spec.nodeName`) and lead through objects only; whatever is
//! missing or of another shape reads as nothing, and nothing here panics.

use api::field::Path;
use serde_json::{Map, Value};

/// A value and where it is, for messages.
#[derive(Clone, Debug)]
pub struct Field<'a> {
    pub value: &'a Value,
    pub at: Path,
}

static NULL: Value = Value::Null;

/// What is at `path`, null where there is nothing.
#[must_use]
pub fn at<'a>(object: &'a Value, path: &str) -> &'a Value {
    path.split('.').try_fold(object, |value, name| value.get(name)).unwrap_or(&NULL)
}

/// The text at `path`, empty where there is none.
#[must_use]
pub fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    at(object, path).as_str().unwrap_or_default()
}

/// The number at `path`, zero where there is none.
#[must_use]
pub fn int(object: &Value, path: &str) -> i64 {
    at(object, path).as_i64().unwrap_or_default()
}

#[must_use]
pub fn is_true(object: &Value, path: &str) -> bool {
    at(object, path).as_bool().unwrap_or_default()
}

#[must_use]
pub fn list<'a>(object: &'a Value, path: &str) -> &'a [Value] {
    at(object, path).as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The entries of the object at `path`, none where there is none.
pub fn entries<'a>(object: &'a Value, path: &str) -> impl Iterator<Item = (&'a str, &'a Value)> + use<'a> {
    at(object, path).as_object().into_iter().flatten().map(|(key, value)| (key.as_str(), value))
}

/// The elements of the list at `path`, to be changed in place.
pub fn list_mut<'a>(object: &'a mut Value, path: &str) -> impl Iterator<Item = &'a mut Value> + use<'a> {
    at_mut(object, path).and_then(Value::as_array_mut).into_iter().flatten()
}

/// What is at `path`, if there is something.
pub fn at_mut<'a>(object: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('.').try_fold(object, |value, name| value.get_mut(name)).filter(|v| !v.is_null())
}

/// Puts `value` at `path`, making the objects on the way.
pub fn set(object: &mut Value, path: &str, value: impl Into<Value>) {
    if let Some(slot) = slot(object, path) {
        *slot = value.into();
    }
}

/// Puts `value` at `path` where there is nothing.
pub fn fill(object: &mut Value, path: &str, value: impl Into<Value>) {
    if at(object, path).is_null() {
        set(object, path, value);
    }
}

/// Puts `value` at `path` where there is nothing or an empty text.
pub fn fill_text(object: &mut Value, path: &str, value: &str) {
    if is_unset(at(object, path)) {
        set(object, path, value);
    }
}

/// Puts `value` at `path` where there is nothing or zero.
pub fn fill_zero(object: &mut Value, path: &str, value: i64) {
    if at(object, path).is_null() || at(object, path).as_i64() == Some(0) {
        set(object, path, value);
    }
}

/// Takes what is at `path` away.
pub fn remove(object: &mut Value, path: &str) -> Option<Value> {
    let (parent, name) = match path.rsplit_once('.') {
        Some((parent, name)) => (at_mut(object, parent)?, name),
        None => (object, path),
    };
    parent.as_object_mut()?.remove(name)
}

/// Makes what is at `path` in `new` what it is in `old`.
pub fn keep(new: &mut Value, old: &Value, path: &str) {
    match at(old, path) {
        Value::Null => drop(remove(new, path)),
        value => set(new, path, value.clone()),
    }
}

/// Null, or an empty text, list or object: what Kubernetes' own encoding leaves out.
#[must_use]
pub fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
        _ => false,
    }
}

/// Whether two values mean the same: what is unset and what is not there are equal.
#[must_use]
pub fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(x), Value::Object(y)) => {
            let covers = |x: &Map<String, Value>, y: &Map<String, Value>| {
                x.iter().all(|(key, value)| match y.get(key) {
                    Some(other) => same(value, other),
                    None => is_unset(value) || is_plain_zero(key, value),
                })
            };
            covers(x, y) && y.iter().all(|(k, v)| x.contains_key(k) || is_unset(v) || is_plain_zero(k, v))
        }
        (Value::Array(x), Value::Array(y)) => x.len() == y.len() && x.iter().zip(y).all(|(a, b)| same(a, b)),
        _ => a == b || (is_unset(a) && is_unset(b)),
    }
}

/// Fields whose zero is the same as their absence, because upstream keeps them as plain values.
fn is_plain_zero(key: &str, value: &Value) -> bool {
    const PLAIN: &[&str] = &[
        "globalDefault",
        "hostIPC",
        "hostNetwork",
        "hostPID",
        "hostPort",
        "initialDelaySeconds",
        "minReadySeconds",
        "nodePort",
        "paused",
        "publishNotReadyAddresses",
        "readOnly",
        "stdin",
        "stdinOnce",
        "tty",
        "unschedulable",
    ];
    (value == &Value::Bool(false) || value.as_i64() == Some(0)) && PLAIN.contains(&key)
}

fn slot<'a>(object: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('.').try_fold(object, |value, name| {
        if value.is_null() {
            *value = Value::Object(Map::new());
        }
        Some(value.as_object_mut()?.entry(name).or_insert(Value::Null))
    })
}

// === impl Field ===

impl<'a> Field<'a> {
    #[must_use]
    pub fn root(object: &'a Value) -> Field<'a> {
        Field { value: object, at: Path::new("") }
    }

    /// A member; null where there is none.
    #[must_use]
    pub fn get(&self, name: &str) -> Field<'a> {
        Field { value: self.value.get(name).unwrap_or(&NULL), at: self.at.child(name) }
    }

    /// The elements of a list; none of anything else.
    pub fn items(&self) -> impl Iterator<Item = Field<'a>> + use<'a> {
        let (value, at) = (self.value, self.at.clone());
        let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter().enumerate().map(move |(i, value)| Field { value, at: at.index(i) })
    }

    /// The entries of an object; none of anything else.
    pub fn entries(&self) -> impl Iterator<Item = (&'a str, Field<'a>)> + use<'a> {
        let at = self.at.clone();
        let map = self.value.as_object().into_iter().flatten();
        map.map(move |(key, value)| (key.as_str(), Field { value, at: at.key(key) }))
    }

    #[must_use]
    pub fn len(&self) -> usize {
        match self.value {
            Value::Array(a) => a.len(),
            Value::Object(o) => o.len(),
            Value::String(s) => s.len(),
            _ => 0,
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[must_use]
    pub fn text(&self) -> &'a str {
        self.value.as_str().unwrap_or_default()
    }

    #[must_use]
    pub fn int(&self) -> Option<i64> {
        self.value.as_i64()
    }

    #[must_use]
    pub fn is_set(&self) -> bool {
        !self.value.is_null()
    }

    #[must_use]
    pub fn is_true(&self) -> bool {
        self.value == &Value::Bool(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reading_and_filling_never_mind_the_shape() {
        let mut doc = json!({"spec": {"a": "x", "n": 0, "e": ""}, "list": [1]});
        assert_eq!(text(&doc, "spec.a"), "x");
        assert_eq!(text(&doc, "spec.a.b.c"), "");
        assert_eq!(text(&doc, "list.0"), "");
        fill(&mut doc, "spec.b.c", 1);
        fill(&mut doc, "spec.b.c", 2);
        fill_text(&mut doc, "spec.e", "y");
        fill_zero(&mut doc, "spec.n", 3);
        set(&mut doc, "spec.a.under", 1);
        set(&mut doc, "list.under", 1);
        assert_eq!(remove(&mut doc, "spec.a"), Some(json!("x")));
        assert_eq!(doc, json!({"spec": {"b": {"c": 1}, "n": 3, "e": "y"}, "list": [1]}));
        keep(&mut doc, &json!({"spec": {"n": 9}}), "spec.n");
        keep(&mut doc, &json!({}), "spec.b");
        assert_eq!(doc, json!({"spec": {"n": 9, "e": "y"}, "list": [1]}));
    }

    #[test]
    fn what_is_left_out_is_the_same_as_what_is_empty() {
        assert!(same(&json!({"a": [], "b": {"c": ""}}), &json!({"b": {}})));
        assert!(same(&json!({"hostNetwork": false}), &json!({})));
        assert!(!same(&json!({"hostUsers": false}), &json!({})));
        assert!(!same(&json!({"a": [1]}), &json!({"a": [1, 2]})));
        assert!(!same(&json!({}), &json!({"a": 0})));
    }
}
