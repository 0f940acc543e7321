//! Patch: JSON, merge, strategic merge, and server-side apply.

use schema::patch::{self, PatchError};
use schema::types::At;
use serde_json::Value;

use super::{Registry, Written};
use apiserver_core::api_status::{ApiStatus, Details};
use apiserver_core::body;
use apiserver_core::call::Call;
use apiserver_core::kind::Kind;

/// A patch somebody sent.
#[derive(Clone, Debug)]
pub enum Patch {
    Json(Value),
    Merge(Value),
    Strategic(Value),
    /// The whole of what the sender wants to have a say in.
    Apply(Value),
}

/// The media types of patches.
pub const ACCEPTED: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

impl Registry {
    /// Patches the object the call names, or its subresource.
    pub async fn patch(&self, call: &mut Call, patch: &Patch) -> Result<Written, ApiStatus> {
        if let Patch::Apply(wanted) = patch {
            return self.apply(call, wanted).await;
        }
        self.modify(call, &mut |call, old| {
            let mut new = old.clone();
            patch.apply_to(&call.kind, &mut new)?;
            settle(call, patch, &mut new)?;
            Ok(new)
        })
        .await
    }
}

/// What a patch made must still be an object of its kind.
fn settle(call: &mut Call, patch: &Patch, new: &mut Value) -> Result<(), ApiStatus> {
    let kind = call.kind.clone();
    let unprocessable = |why: String| {
        let sent = patch.document().to_string();
        let shown: String = sent.chars().take(1024).collect();
        let message = format!(" \"\" is invalid: patch: Invalid value: {shown:?}: {why}");
        ApiStatus::new(422, "Invalid", message)
    };
    if !new.is_object() {
        return Err(unprocessable("the patched document is no object".to_owned()));
    }
    let mut complaints = call.complaints.clone();
    complaints.extend(body::conform(&kind, new).map_err(unprocessable)?);
    match body::complain(call, complaints) {
        Some(why) => Err(unprocessable(why)),
        None => Ok(()),
    }
}

// === impl Patch ===

impl Patch {
    /// Applies it to a document of a kind.
    pub fn apply_to(&self, kind: &Kind, target: &mut Value) -> Result<(), ApiStatus> {
        if kind.type_name.is_none() && matches!(self, Patch::Strategic(_)) {
            return Err(ApiStatus::unsupported_media_type(&[ACCEPTED[0], ACCEPTED[1], ACCEPTED[3]]));
        }
        self.apply_at(kind.at(), target)
    }

    /// Applies it to a document of a type.
    pub fn apply_at(&self, at: At<'_>, target: &mut Value) -> Result<(), ApiStatus> {
        match self {
            Patch::Json(patch) => patch::apply_json(target, patch).map_err(refuse),
            Patch::Merge(patch) | Patch::Apply(patch) => {
                if !patch.is_object() {
                    return Err(ApiStatus::bad_request("a merge patch is an object"));
                }
                patch::apply_merge(target, patch);
                Ok(())
            }
            Patch::Strategic(patch) => patch::apply_strategic(target, patch.clone(), at).map_err(refuse),
        }
    }

    fn document(&self) -> &Value {
        match self {
            Patch::Json(value) | Patch::Merge(value) | Patch::Strategic(value) | Patch::Apply(value) => value,
        }
    }
}

fn refuse(error: PatchError) -> ApiStatus {
    match error {
        PatchError::Malformed(why) => ApiStatus::bad_request(why),
        PatchError::Refused(why) => {
            // Upstream keeps the reason to itself.
            tracing::debug!(why, "a patch did not apply");
            let message = "the server rejected our request due to an error in our request";
            let mut api_status = ApiStatus::new(422, "Invalid", message);
            api_status.details = Some(Box::new(Details::default()));
            api_status
        }
        PatchError::TooLarge(why) => ApiStatus::too_large(why),
    }
}
