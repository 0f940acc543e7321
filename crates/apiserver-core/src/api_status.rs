//! Answers that are no success, as a Kubernetes Status.

use api::field::{FieldErrors, Problem};
use serde_json::{Value, json};

use crate::kind::Kind;

/// Why a request was not carried out: the body and the code of the answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiStatus {
    pub code: u16,
    /// `NotFound`, `AlreadyExists`, `Conflict`, …: what clients branch on.
    pub reason: &'static str,
    pub message: String,
    /// Boxed: an error status is the rare case and should not widen every result.
    pub details: Option<Box<Details>>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Details {
    pub name: String,
    pub group: String,
    /// The resource (`pods`) or kind, as upstream fills it for this reason.
    pub kind: String,
    pub uid: String,
    pub causes: Vec<Cause>,
    pub retry_after_seconds: i32,
    /// How a list whose token is too old can go on regardless.
    pub continue_token: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    pub reason: String,
    pub message: String,
    pub field: String,
}

// === impl ApiStatus ===

impl ApiStatus {
    /// There is no such object.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.reason == "NotFound"
    }

    #[must_use]
    pub fn is_already_exists(&self) -> bool {
        self.reason == "AlreadyExists"
    }

    /// Somebody else was first.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.reason == "Conflict"
    }

    #[must_use]
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> ApiStatus {
        ApiStatus { code, reason, message: message.into(), details: None }
    }

    #[must_use]
    pub fn bad_request(message: impl Into<String>) -> ApiStatus {
        ApiStatus::new(400, "BadRequest", message)
    }

    #[must_use]
    pub fn unauthorized() -> ApiStatus {
        ApiStatus::new(401, "Unauthorized", "Unauthorized")
    }

    #[must_use]
    pub fn forbidden(kind: &Kind, name: &str, why: &str) -> ApiStatus {
        let message = if name.is_empty() {
            format!("{} is forbidden: {why}", kind.resource_name())
        } else {
            format!("{} {name:?} is forbidden: {why}", kind.resource_name())
        };
        ApiStatus::new(403, "Forbidden", message).about(kind, name)
    }

    #[must_use]
    pub fn not_found(kind: &Kind, name: &str) -> ApiStatus {
        ApiStatus::new(404, "NotFound", format!("{} {name:?} not found", kind.resource_name()))
            .about(kind, name)
    }

    /// No such path at all.
    #[must_use]
    pub fn no_resource() -> ApiStatus {
        ApiStatus::new(404, "NotFound", "the server could not find the requested resource")
    }

    #[must_use]
    pub fn method_not_allowed() -> ApiStatus {
        ApiStatus::new(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
    }

    #[must_use]
    pub fn not_acceptable(offered: &[&str]) -> ApiStatus {
        let offered = offered.join(", ");
        ApiStatus::new(
            406,
            "NotAcceptable",
            format!("only the following media types are accepted: {offered}"),
        )
    }

    #[must_use]
    pub fn already_exists(kind: &Kind, name: &str) -> ApiStatus {
        ApiStatus::new(409, "AlreadyExists", format!("{} {name:?} already exists", kind.resource_name()))
            .about(kind, name)
    }

    #[must_use]
    pub fn conflict(kind: &Kind, name: &str, why: &str) -> ApiStatus {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", kind.resource_name());
        ApiStatus::new(409, "Conflict", message).about(kind, name)
    }

    /// The write was based on an older version of the object.
    #[must_use]
    pub fn modified(kind: &Kind, name: &str) -> ApiStatus {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        ApiStatus::conflict(kind, name, why)
    }

    /// The revision asked for is compacted away.
    #[must_use]
    pub fn expired(message: impl Into<String>) -> ApiStatus {
        ApiStatus::new(410, "Expired", message)
    }

    #[must_use]
    pub fn too_large(message: impl Into<String>) -> ApiStatus {
        ApiStatus::new(413, "RequestEntityTooLarge", message)
    }

    #[must_use]
    pub fn unsupported_media_type(accepted: &[&str]) -> ApiStatus {
        let accepted = accepted.join(", ");
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {accepted}"
        );
        ApiStatus::new(415, "UnsupportedMediaType", message)
    }

    #[must_use]
    pub fn invalid(kind: &Kind, name: &str, errors: &FieldErrors) -> ApiStatus {
        let group = if kind.group.is_empty() { String::new() } else { format!(".{}", kind.group) };
        let message = format!("{}{group} {name:?} is invalid: {errors}", kind.kind);
        let mut api_status = ApiStatus::new(422, "Invalid", message).about(kind, name);
        if let Some(details) = &mut api_status.details {
            details.kind = kind.kind.to_string();
            details.causes = errors
                .iter()
                .map(|e| Cause {
                    reason: cause_reason(e.problem).to_owned(),
                    message: e.body(),
                    field: e.field.clone(),
                })
                .collect();
        }
        api_status
    }

    #[must_use]
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: i32) -> ApiStatus {
        let mut api_status = ApiStatus::new(429, "TooManyRequests", message);
        api_status.details = Some(Box::new(Details { retry_after_seconds, ..Details::default() }));
        api_status
    }

    #[must_use]
    pub fn internal(message: impl Into<String>) -> ApiStatus {
        ApiStatus::new(500, "InternalError", format!("Internal error occurred: {}", message.into()))
    }

    #[must_use]
    pub fn unavailable(message: impl Into<String>) -> ApiStatus {
        ApiStatus::new(503, "ServiceUnavailable", message)
    }

    #[must_use]
    pub fn timeout(message: impl Into<String>) -> ApiStatus {
        ApiStatus::new(504, "Timeout", message)
    }

    /// Fills the details with the object the error status is about.
    #[must_use]
    pub fn about(mut self, kind: &Kind, name: &str) -> ApiStatus {
        let details = self.details.get_or_insert_default();
        details.name = name.to_owned();
        details.group = kind.group.to_string();
        details.kind = kind.plural.to_string();
        self
    }

    #[must_use]
    pub fn with_causes(mut self, causes: Vec<Cause>) -> ApiStatus {
        self.details.get_or_insert_default().causes = causes;
        self
    }

    /// The Status document.
    #[must_use]
    pub fn to_status(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let Some(details) = &self.details {
            if !details.continue_token.is_empty() {
                status["metadata"]["continue"] = details.continue_token.as_str().into();
            }
            status["details"] = details.to_json();
        }
        status
    }
}

// === impl Details ===

impl Details {
    fn to_json(&self) -> Value {
        let mut out = serde_json::Map::new();
        for (key, value) in
            [("name", &self.name), ("group", &self.group), ("kind", &self.kind), ("uid", &self.uid)]
        {
            if !value.is_empty() {
                out.insert(key.to_owned(), value.as_str().into());
            }
        }
        if !self.causes.is_empty() {
            let causes = self.causes.iter().map(Cause::to_json).collect();
            out.insert("causes".to_owned(), Value::Array(causes));
        }
        if self.retry_after_seconds > 0 {
            out.insert("retryAfterSeconds".to_owned(), self.retry_after_seconds.into());
        }
        Value::Object(out)
    }
}

// === impl Cause ===

impl Cause {
    fn to_json(&self) -> Value {
        let mut out = serde_json::Map::new();
        for (key, value) in [("reason", &self.reason), ("message", &self.message), ("field", &self.field)] {
            if !value.is_empty() {
                out.insert(key.to_owned(), value.as_str().into());
            }
        }
        Value::Object(out)
    }
}

fn cause_reason(problem: Problem) -> &'static str {
    match problem {
        Problem::Required => "FieldValueRequired",
        Problem::Invalid => "FieldValueInvalid",
        Problem::Unsupported => "FieldValueNotSupported",
        Problem::Duplicate => "FieldValueDuplicate",
        Problem::NotFound => "FieldValueNotFound",
        Problem::Forbidden => "FieldValueForbidden",
        Problem::TooLong => "FieldValueTooLong",
        Problem::TooMany => "FieldValueTooMany",
    }
}
