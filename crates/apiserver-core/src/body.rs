//! Bodies: from bytes somebody sent to an object of the kind the path names.

use api::yaml::{self, DuplicateKeys};
use schema::decode::{self, Parsed};
use schema::protobuf;
use schema::types::At;
use serde_json::Value;

use crate::api_status::ApiStatus;
use crate::call::Call;
use crate::kind::Kind;
use crate::options::FieldValidation;

/// The language of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    Json,
    Yaml,
    Protobuf,
}

/// Reads an object of the call's kind. What its type does not know is warned about, refused or passed over, as the
/// call wants it.
pub fn read_object(call: &mut Call, bytes: &[u8], language: Language) -> Result<Value, ApiStatus> {
    let kind = call.kind.clone();
    let Parsed { mut value, mut complaints } = parse(bytes, language)?;
    check_kind(&kind, &mut value)?;
    complaints.extend(conform(&kind, &mut value).map_err(|why| cannot_handle(&kind, &why))?);
    // Upstream's decoder of built-in kinds complains on the way; of custom ones it looks at the text first.
    if language == Language::Json && !kind.is_custom() {
        complaints = decode::in_order(bytes, complaints);
    }
    match complain(call, complaints) {
        Some(why) => Err(cannot_handle(&kind, &why)),
        None => Ok(value),
    }
}

/// Reads text into a document, with what is odd about the text.
pub fn parse(bytes: &[u8], language: Language) -> Result<Parsed, ApiStatus> {
    let bad = |why: String| ApiStatus::bad_request(why);
    match language {
        Language::Json => decode::parse(bytes).map_err(|e| bad(format!("couldn't get version/kind; {e}"))),
        Language::Protobuf => {
            let at = |version: &str, kind: &str| {
                // Options are said to be of the version of what they are for.
                if kind == "DeleteOptions" {
                    return At::named("io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions");
                }
                let (group, version) = version.split_once('/').unwrap_or(("", version));
                At::kind(group, version, kind)
            };
            let decoded = protobuf::decode(bytes, at).map_err(|e| bad(e.to_string()))?;
            Ok(Parsed { value: decoded.value, complaints: Vec::new() })
        }
        Language::Yaml => match yaml::to_value(bytes, DuplicateKeys::Reject) {
            Ok(value) => Ok(Parsed { value, complaints: Vec::new() }),
            Err(yaml::YamlError::DuplicateKey { key, line, .. }) => {
                let value = yaml::to_value(bytes, DuplicateKeys::LastWins);
                let value = value.map_err(|e| bad(format!("error converting YAML to JSON: yaml: {e}")))?;
                let complaint =
                    format!("yaml: unmarshal errors:\n  line {line}: key {key:?} already set in map");
                Ok(Parsed { value, complaints: vec![complaint] })
            }
            Err(error) => Err(bad(format!("error converting YAML to JSON: yaml: {error}"))),
        },
    }
}

/// Brings an object into the form of its kind; returns what the kind does not know.
pub fn conform(kind: &Kind, value: &mut Value) -> Result<Vec<String>, String> {
    match kind.type_name.as_deref().and_then(At::named) {
        Some(at) => decode::conform(value, at).map_err(|misfit| misfit.to_string()),
        None => kind.strategy.conform(value),
    }
}

/// Treats complaints as the call wants them: the text of an error status, warnings, or nothing.
pub fn complain(call: &mut Call, complaints: Vec<String>) -> Option<String> {
    match call.options.field_validation {
        FieldValidation::Strict if !complaints.is_empty() => {
            Some(format!("strict decoding error: {}", complaints.join(", ")))
        }
        FieldValidation::Warn => {
            call.warnings.extend(complaints);
            None
        }
        _ => None,
    }
}

/// The object must be of the kind the path names; it may leave that unsaid.
pub fn check_kind(kind: &Kind, value: &mut Value) -> Result<(), ApiStatus> {
    let version = kind.api_version();
    let Some(object) = value.as_object_mut() else {
        let why = "couldn't get version/kind; json parse error: json: cannot unmarshal into Go value of type struct";
        return Err(ApiStatus::bad_request(why));
    };
    let said = |object: &serde_json::Map<String, Value>, field: &str| {
        object.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let (said_version, said_kind) = (said(object, "apiVersion"), said(object, "kind"));
    let version_fits = said_version.is_empty() || said_version == version;
    let kind_fits = said_kind.is_empty() || said_kind == kind.kind;
    if !version_fits && kind_fits {
        return Err(ApiStatus::bad_request(format!(
            "the API version in the data ({said_version}) does not match the expected API version ({version})"
        )));
    }
    if !kind_fits {
        let said_version = said_version.rsplit('/').next().unwrap_or_default().to_owned();
        return Err(ApiStatus::bad_request(format!(
            "{said_kind} in version {said_version:?} cannot be handled as a {}: converting ({said_kind}) to ({}): unknown conversion",
            kind.kind, kind.kind
        )));
    }
    object.insert("apiVersion".to_owned(), version.into());
    object.insert("kind".to_owned(), kind.kind.clone().into());
    Ok(())
}

pub fn cannot_handle(kind: &Kind, why: &str) -> ApiStatus {
    let (name, version) = (&kind.kind, &kind.version);
    ApiStatus::bad_request(format!("{name} in version \"{version}\" cannot be handled as a {name}: {why}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    fn strict(plural: &str, group: &str, text: &str, language: Language) -> String {
        let kind = crate::kinds::all().into_iter().find(|k| k.plural == plural && k.group == group).unwrap();
        let mut call = Call::internal(std::sync::Arc::new(kind), "create", "ns", "");
        call.options.field_validation = FieldValidation::Strict;
        read_object(&mut call, text.as_bytes(), language).unwrap_err().message
    }

    #[test]
    fn complaints_come_in_the_order_of_the_text() {
        let text = r#"{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": {
            "unknownField": 1, "replicas": 1, "replicas": 2, "paused": true, "paused": true, "aunknown": 1,
            "template": {"spec": {"containers": [{"name": "c"}, {"zz": 1, "name": "d", "name": "e"}]}}}}"#;
        let want = "strict decoding error: unknown field \"spec.unknownField\", duplicate field \"spec.replicas\", \
                    duplicate field \"spec.paused\", unknown field \"spec.aunknown\", unknown field \
                    \"spec.template.spec.containers[1].zz\", duplicate field \"spec.template.spec.containers[1].name\"";
        let told = strict("deployments", "apps", text, Language::Json);
        assert!(told.ends_with(want), "{told}");
    }

    #[test]
    fn a_key_that_stands_twice_in_yaml_is_told_with_its_line() {
        let text = "\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  a: b\n  a: c\n";
        let told = strict("configmaps", "", text, Language::Yaml);
        let want = "strict decoding error: yaml: unmarshal errors:\n  line 8: key \"a\" already set in map";
        assert!(told.ends_with(want), "{told}");
    }

    /// What upstream's kubelet sends to have a Pod removed that has ended, byte by byte.
    #[test]
    fn options_in_protobuf_are_of_any_version() {
        let uid = b"a490545c-5112-461d-8cbe-b2b22d6ee309";
        for version in ["v1", "apps/v1"] {
            let mut body = b"k8s\0".to_vec();
            let names = [&[0x0a, version.len() as u8], version.as_bytes(), b"\x12\x0dDeleteOptions"].concat();
            body.extend([0x0a, names.len() as u8]);
            body.extend(names);
            let raw = [b"\x08\x00\x12\x26\x0a\x24", &uid[..]].concat();
            body.extend([0x12, raw.len() as u8]);
            body.extend(raw);
            body.extend(b"\x1a\x00\x22\x00");
            let value = parse(&body, Language::Protobuf).unwrap().value;
            assert_eq!(value["gracePeriodSeconds"], 0);
            assert_eq!(value["preconditions"], json!({"uid": String::from_utf8_lossy(uid)}));
        }
    }
}
