//! What a request may say besides its object.

use api::selector::{FieldSelector, LabelSelector};
use serde_json::Value;

use crate::api_status::ApiStatus;

/// How strictly fields nobody knows are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

/// `resourceVersionMatch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionMatch {
    NotOlderThan,
    Exact,
}

/// Which objects, and as of when.
#[derive(Clone, Debug, Default)]
pub struct ListOptions {
    pub labels: LabelSelector,
    pub fields: FieldSelector,
    /// As it was sent: nothing and zero differ.
    pub version: Option<u64>,
    pub version_match: Option<VersionMatch>,
    pub limit: Option<usize>,
    pub continue_token: Option<String>,
    pub timeout_seconds: Option<u64>,
    pub bookmarks: bool,
    pub send_initial_events: Option<bool>,
}

/// What every write may say.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    pub dry_run: bool,
    pub field_manager: String,
    pub field_validation: FieldValidation,
    /// Server-side apply only.
    pub force: bool,
}

/// How an object is to be deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    pub grace_seconds: Option<i64>,
    /// Only the object with this uid …
    pub uid: Option<String>,
    /// … and only at this resourceVersion.
    pub version: Option<String>,
    pub propagation: Option<Propagation>,
    pub dry_run: bool,
}

/// What becomes of the objects an object owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Background,
    Foreground,
    Orphan,
}

// === impl DeleteOptions ===

impl DeleteOptions {
    /// Reads a DeleteOptions document.
    pub fn from_body(body: &Value) -> Result<DeleteOptions, ApiStatus> {
        let bad = |what: &str| ApiStatus::bad_request(format!("DeleteOptions: {what} has the wrong type"));
        let text = |value: &Value, what: &str| match value {
            Value::Null => Ok(None),
            Value::String(s) => Ok(Some(s.clone())),
            _ => Err(bad(what)),
        };
        if !body.is_object() && !body.is_null() {
            return Err(bad("the document"));
        }
        if let Some(kind) = body["kind"].as_str()
            && kind != "DeleteOptions"
        {
            let why = format!("decoded object cannot be converted to DeleteOptions: kind {kind:?}");
            return Err(ApiStatus::bad_request(why));
        }
        let grace_seconds = match &body["gracePeriodSeconds"] {
            Value::Null => None,
            value => Some(value.as_i64().ok_or_else(|| bad("gracePeriodSeconds"))?),
        };
        let policy = text(&body["propagationPolicy"], "propagationPolicy")?;
        let orphan = match &body["orphanDependents"] {
            Value::Null => None,
            value => Some(value.as_bool().ok_or_else(|| bad("orphanDependents"))?),
        };
        let dry_run = body["dryRun"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let mut options = DeleteOptions {
            grace_seconds,
            uid: text(&body["preconditions"]["uid"], "preconditions.uid")?,
            version: text(&body["preconditions"]["resourceVersion"], "preconditions.resourceVersion")?,
            ..DeleteOptions::default()
        };
        options.say(policy.as_deref(), orphan, dry_run)?;
        Ok(options)
    }

    /// Takes policy and dry run from where they were said.
    pub fn say<'v>(
        &mut self,
        policy: Option<&str>,
        orphan: Option<bool>,
        dry_run: impl Iterator<Item = &'v str>,
    ) -> Result<(), ApiStatus> {
        let invalid =
            |why: String| ApiStatus::new(422, "Invalid", format!("DeleteOptions is invalid: {why}"));
        self.propagation = match (policy, orphan) {
            (Some(_), Some(_)) => {
                let why = "orphanDependents and deletionPropagation cannot be both set";
                return Err(invalid(format!("propagationPolicy: Invalid value: {why}")));
            }
            (Some("Background"), None) | (None, Some(false)) => Some(Propagation::Background),
            (Some("Foreground"), None) => Some(Propagation::Foreground),
            (Some("Orphan"), None) | (None, Some(true)) => Some(Propagation::Orphan),
            (Some(other), None) => {
                return Err(invalid(format!(
                    "propagationPolicy: Unsupported value: {other:?}: supported values: \"Background\", \"Foreground\", \"Orphan\""
                )));
            }
            (None, None) => self.propagation,
        };
        for value in dry_run {
            if value != "All" {
                return Err(invalid(format!(
                    "dryRun: Unsupported value: {value:?}: supported values: \"All\""
                )));
            }
            self.dry_run = true;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn deletions_say_what_they_want() {
        let options = DeleteOptions::from_body(&json!({
            "kind": "DeleteOptions", "gracePeriodSeconds": 0, "propagationPolicy": "Foreground",
            "preconditions": {"uid": "u"}, "dryRun": ["All"],
        }))
        .unwrap();
        let told = DeleteOptions {
            grace_seconds: Some(0),
            uid: Some("u".into()),
            version: None,
            propagation: Some(Propagation::Foreground),
            dry_run: true,
        };
        assert_eq!(options, told);
        assert_eq!(DeleteOptions::from_body(&Value::Null).unwrap(), DeleteOptions::default());
        let orphan = DeleteOptions::from_body(&json!({"orphanDependents": true})).unwrap();
        assert_eq!(orphan.propagation, Some(Propagation::Orphan));
        for body in [
            json!([]),
            json!({"kind": "Pod"}),
            json!({"gracePeriodSeconds": "1"}),
            json!({"propagationPolicy": "Maybe"}),
            json!({"propagationPolicy": "Orphan", "orphanDependents": true}),
            json!({"dryRun": ["Some"]}),
        ] {
            assert!(DeleteOptions::from_body(&body).is_err(), "{body}");
        }
    }
}
