//! What objects use of what a namespace may have. Objects are JSON: what is counted is what stands there, of every version.

use serde_json::Value;

pub mod amounts;
pub mod usage;

/// What stands at a path (`spec.containers`); null where there is nothing.
fn at<'a>(object: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(object, |value, key| &value[key])
}

fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    at(object, path).as_str().unwrap_or_default()
}

fn list<'a>(object: &'a Value, path: &str) -> &'a [Value] {
    at(object, path).as_array().map(Vec::as_slice).unwrap_or_default()
}
