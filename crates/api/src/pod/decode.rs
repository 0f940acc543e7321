//! From the bytes of a manifest to a Pod.

use base::class::{Class, Classify};
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use serde_json::Value;

use crate::field::{FieldErrors, cut};
use crate::path_decode::{self, ShapeError};
use crate::yaml::{self, DuplicateKeys, YamlError};

/// What a manifest holds. Nothing is defaulted or validated yet.
#[derive(Clone, Debug)]
pub enum Manifest {
    Pod(Box<Pod>),
    List(Vec<Pod>),
}

/// Why a manifest cannot become a Pod. The message names the field, the caller adds the file.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ManifestError {
    #[error("couldn't read the manifest: {0}")]
    Text(#[from] YamlError),
    #[error("the manifest is empty")]
    Empty,
    #[error("a manifest must be one object with apiVersion and kind")]
    NotAnObject,
    #[error("{field}: Required value")]
    Missing { field: &'static str },
    #[error("expected apiVersion v1, kind Pod; found apiVersion {api_version:?}, kind {kind:?}")]
    WrongKind { api_version: String, kind: String },
    #[error("couldn't parse as pod: {0}")]
    Shape(#[from] ShapeError),
    #[error("invalid pod: name is needed for the pod")]
    NoName,
    #[error("invalid pod: {0}")]
    Invalid(FieldErrors),
    #[error("static pods may not reference {0}")]
    Reference(&'static str),
    #[error("the manifest is larger than {limit} bytes")]
    TooLarge { limit: usize },
}

impl Classify for ManifestError {
    fn class(&self) -> Class {
        Class::Reject
    }
}

/// Decodes YAML or JSON that holds a Pod or a PodList. Fields nobody knows are tolerated, and
/// `unknown` hears their paths.
pub fn decode(bytes: &[u8], unknown: &mut dyn FnMut(&str)) -> Result<Manifest, ManifestError> {
    // Go's reader lets the last of two equal keys win.
    let mut value = yaml::to_value(bytes, DuplicateKeys::LastWins)?;
    if value.is_null() {
        return Err(ManifestError::Empty);
    }
    if value.get("kind").and_then(Value::as_str) != Some("PodList") {
        return decode_pod(value, unknown).map(|pod| Manifest::Pod(Box::new(pod)));
    }
    check_version(&value, "PodList")?;
    let items = match value.get_mut("items").map(Value::take) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(items)) => items,
        Some(_) => {
            let (path, message) = ("items".to_owned(), "invalid type: expected a sequence".to_owned());
            return Err(ShapeError { path, message }.into());
        }
    };
    let pods = items.into_iter().enumerate().map(|(i, mut item)| {
        complete_type(&mut item);
        decode_pod(item, unknown).map_err(|e| match e {
            ManifestError::Shape(s) => ShapeError { path: format!("items[{i}].{}", s.path), ..s }.into(),
            other => other,
        })
    });
    pods.collect::<Result<_, _>>().map(Manifest::List)
}

/// Decodes one Pod from its JSON form.
pub fn decode_pod(value: Value, unknown: &mut dyn FnMut(&str)) -> Result<Pod, ManifestError> {
    check_version(&value, "Pod")?;
    let decoded = path_decode::decode::<Pod>(&value)?;
    decoded.unknown.iter().for_each(|path| unknown(path));
    Ok(decoded.object)
}

/// Decodes the spec of a Pod, or of a template of Pods.
pub fn decode_spec(value: &Value) -> Result<PodSpec, ShapeError> {
    path_decode::decode(value).map(|decoded| decoded.object)
}

fn check_version(value: &Value, expected: &str) -> Result<(), ManifestError> {
    let Value::Object(map) = value else { return Err(ManifestError::NotAnObject) };
    let text = |key: &'static str| match map.get(key) {
        Some(Value::String(s)) if !s.is_empty() => Ok(s.as_str()),
        None | Some(Value::Null | Value::String(_)) => Err(ManifestError::Missing { field: key }),
        Some(other) => {
            let message = format!("invalid type: {}, expected a string", cut(&other.to_string()));
            Err(ShapeError { path: key.to_owned(), message }.into())
        }
    };
    let (kind, api_version) = (text("kind")?, text("apiVersion")?);
    if (api_version, kind) != ("v1", expected) {
        let (api_version, kind) = (cut(api_version).into_owned(), cut(kind).into_owned());
        return Err(ManifestError::WrongKind { api_version, kind });
    }
    Ok(())
}

/// Items of a list need not repeat what the list says.
fn complete_type(item: &mut Value) {
    if let Value::Object(map) = item {
        map.entry("apiVersion").or_insert_with(|| "v1".into());
        map.entry("kind").or_insert_with(|| "Pod".into());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Manifest, String> {
        decode(text.as_bytes(), &mut |_| {}).map_err(|e| e.to_string())
    }

    #[test]
    fn yaml_json_and_lists() {
        let yaml = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - name: c\n    image: x\n";
        assert!(matches!(read(yaml).unwrap(), Manifest::Pod(p) if p.metadata.name.as_deref() == Some("a")));
        let json = r#"{"apiVersion":"v1","kind":"Pod","spec":{"containers":[]}}"#;
        assert!(matches!(read(json).unwrap(), Manifest::Pod(_)));
        let list = r#"{"apiVersion":"v1","kind":"PodList","items":[{"metadata":{"name":"b"}},{}]}"#;
        assert!(matches!(read(list).unwrap(), Manifest::List(l) if l.len() == 2));
        assert!(matches!(read("apiVersion: v1\nkind: PodList").unwrap(), Manifest::List(l) if l.is_empty()));
    }

    #[test]
    fn errors_say_what_is_wrong() {
        for (text, want) in [
            ("", "the manifest is empty"),
            ("[]", "a manifest must be one object"),
            ("hello", "a manifest must be one object"),
            ("kind: Pod", "apiVersion: Required value"),
            ("apiVersion: v1", "kind: Required value"),
            (
                "apiVersion: 1\nkind: Pod",
                "couldn't parse as pod: apiVersion: invalid type: 1, expected a string",
            ),
            (
                "apiVersion: apps/v1\nkind: Deployment",
                "expected apiVersion v1, kind Pod; found apiVersion \"apps/v1\", kind \"Deployment\"",
            ),
            ("apiVersion: v1\nkind: Pod\nspec: 3", "couldn't parse as pod: spec: invalid type: integer `3`"),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {name: [a]}",
                "couldn't parse as pod: metadata.name: invalid type: sequence",
            ),
            (
                "apiVersion: v1\nkind: PodList\nitems: [{spec: {containers: 4}}]",
                "couldn't parse as pod: items[0].spec.containers: invalid type",
            ),
            ("a: [", "couldn't read the manifest: "),
        ] {
            let got = read(text).unwrap_err();
            assert!(got.starts_with(want), "{text:?}: {got}");
        }
    }

    #[test]
    fn unknown_fields_are_heard() {
        let mut heard = Vec::new();
        let text = b"apiVersion: v1\nkind: Pod\nspec: {containers: [], hostnet: true}\nextra: 1";
        decode(text, &mut |path| heard.push(path.to_owned())).unwrap();
        assert_eq!(heard, ["extra", "spec.hostnet"]);
    }
}
