//! Secret: data of a stated type, which may be frozen.

use std::borrow::Cow;

use api::field::{FieldErrors, Path};
use api::names;
use base::time::Wall;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::check;
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, Strategy};
use crate::table;

/// Bytes of all values together, as upstream limits them.
const MAX_SIZE: usize = 1 << 20;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::text("Type", "What the data is for"),
    Column::text("Data", "Number of entries"),
    Column::AGE,
];

pub(super) fn kind() -> Kind {
    Kind::core("Secret", "secrets", Secret)
}

#[derive(Debug)]
struct Secret;

// === impl Secret ===

impl Strategy for Secret {
    fn set_defaults(&self, object: &mut Value) {
        doc::fill_text(object, "type", "Opaque");
        fold_string_data(object);
    }

    fn prepare_update(&self, new: &mut Value, old: &Value) {
        // An update without a type means the type it had.
        if doc::text(new, "type").is_empty() {
            doc::keep(new, old, "type");
        }
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let data = Field::root(object).get("data");
        let mut size = 0;
        for (key, value) in data.entries() {
            errors.each(&value.at, key, names::config_key(key));
            size += decoded_len(value.text());
        }
        if size > MAX_SIZE {
            errors.too_long(&data.at, MAX_SIZE);
        }
        shape(errors, object, &data);
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        check::immutable(errors, new, old, "type");
        super::config_map::frozen(errors, new, old, &["data"]);
        self.validate(new, errors);
    }

    fn field<'a>(&self, name: &str, object: &'a Value) -> Option<Cow<'a, str>> {
        (name == "type").then(|| doc::text(object, name).into())
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let entries = doc::entries(object, "data").count();
        vec![
            table::name(object),
            doc::text(object, "type").into(),
            entries.into(),
            table::age(object, now).into(),
        ]
    }
}

/// `stringData` is a convenience for writing: it overlays `data` and is never kept.
fn fold_string_data(object: &mut Value) {
    let Some(Value::Object(plain)) = doc::remove(object, "stringData") else { return };
    if plain.is_empty() {
        return;
    }
    doc::fill(object, "data", json!(Map::new()));
    let Some(data) = doc::at_mut(object, "data").and_then(Value::as_object_mut) else { return };
    for (key, value) in plain {
        data.insert(key, STANDARD.encode(value.as_str().unwrap_or_default()).into());
    }
}

/// What each well-known type must hold.
fn shape(errors: &mut FieldErrors, object: &Value, data: &Field<'_>) {
    let require = |errors: &mut FieldErrors, key: &str| {
        let missing = !data.get(key).is_set();
        if missing {
            errors.required(&data.at.key(key), "");
        }
        !missing
    };
    match doc::text(object, "type") {
        "kubernetes.io/service-account-token" => {
            let name = "kubernetes.io/service-account.name";
            let value = doc::entries(object, "metadata.annotations").find(|(key, _)| *key == name);
            if value.and_then(|(_, v)| v.as_str()).unwrap_or_default().is_empty() {
                errors.required(&Path::new("metadata.annotations").key(name), "");
            }
        }
        "kubernetes.io/dockercfg" => {
            let _ = require(errors, ".dockercfg") && is_json(errors, data, ".dockercfg");
        }
        "kubernetes.io/dockerconfigjson" => {
            let _ = require(errors, ".dockerconfigjson") && is_json(errors, data, ".dockerconfigjson");
        }
        "kubernetes.io/basic-auth" if !data.get("username").is_set() && !data.get("password").is_set() => {
            require(errors, "username");
            require(errors, "password");
        }
        "kubernetes.io/ssh-auth" if data.get("ssh-privatekey").is_empty() => {
            errors.required(&data.at.key("ssh-privatekey"), "");
        }
        "kubernetes.io/tls" => {
            require(errors, "tls.crt");
            require(errors, "tls.key");
        }
        _ => {}
    }
}

fn is_json(errors: &mut FieldErrors, data: &Field<'_>, key: &str) -> bool {
    let bytes = STANDARD.decode(data.get(key).text()).unwrap_or_default();
    match serde_json::from_slice::<Map<String, Value>>(&bytes) {
        Ok(_) => true,
        Err(e) => {
            errors.invalid(&data.at.key(key), "<secret contents redacted>", e.to_string());
            false
        }
    }
}

/// Exactly: a Secret may be as large as its limit.
fn decoded_len(text: &str) -> usize {
    text.trim_end_matches('=').len() * 3 / 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_is_folded_into_the_data() {
        let mut object = json!({"data": {"a": "eA==", "b": "eA=="}, "stringData": {"b": "hello"}});
        Secret.set_defaults(&mut object);
        assert_eq!(object, json!({"type": "Opaque", "data": {"a": "eA==", "b": "aGVsbG8="}}));
    }

    #[test]
    fn a_secret_may_be_as_large_as_its_limit() {
        for (sizes, fits) in [
            (&[MAX_SIZE][..], true),
            (&[MAX_SIZE + 1], false),
            (&[MAX_SIZE - 1, 1], true),
            (&[MAX_SIZE, 1], false),
        ] {
            let encoded = sizes.iter().map(|size| STANDARD.encode("x".repeat(*size)).into());
            let data: serde_json::Map<String, Value> =
                (0..).map(|n: u32| n.to_string()).zip(encoded).collect();
            let mut errors = FieldErrors::default();
            Secret.validate(&json!({"type": "Opaque", "data": data}), &mut errors);
            assert_eq!(errors.to_string() == "[]", fits, "{sizes:?}: {errors}");
        }
    }

    #[test]
    fn types_say_what_they_hold() {
        for (object, want) in [
            (json!({"type": "Opaque", "data": {"a": "eA=="}}), "[]"),
            (json!({"type": "kubernetes.io/tls", "data": {"tls.crt": ""}}), "data[tls.key]: Required value"),
            (
                json!({"type": "kubernetes.io/basic-auth"}),
                "[data[username]: Required value, data[password]: Required value]",
            ),
            (
                json!({"type": "kubernetes.io/service-account-token"}),
                "metadata.annotations[kubernetes.io/service-account.name]: Required value",
            ),
            (json!({"type": "kubernetes.io/ssh-auth"}), "data[ssh-privatekey]: Required value"),
            (json!({"type": "kubernetes.io/dockercfg"}), "data[.dockercfg]: Required value"),
        ] {
            let mut errors = FieldErrors::default();
            Secret.validate(&object, &mut errors);
            assert_eq!(errors.to_string(), want);
        }
    }

    #[test]
    fn what_is_frozen_stays() {
        let old = json!({"type": "Opaque", "immutable": true, "data": {"a": "eA=="}});
        let new = json!({"type": "x", "data": {}});
        let mut errors = FieldErrors::default();
        Secret.validate_update(&new, &old, &mut errors);
        assert_eq!(
            errors.to_string(),
            "[type: Invalid value: \"x\": field is immutable, immutable: Forbidden: field is immutable when \
             `immutable` is set, data: Forbidden: field is immutable when `immutable` is set]"
        );
    }
}
