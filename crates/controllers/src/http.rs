//! The API server over HTTP.

use bytes::Bytes;
use client::{Client, ClientError, Request};
use controllers_core::plan::{Act, PatchKind, Target, Why, WriteError};
use controllers_core::resource::Resource;
use serde_json::{Value, json};

use crate::port::Api;

/// A client with the identity of one controller, or of all.
#[derive(Clone, Debug)]
pub struct Http(pub Client);

// === impl Http ===

#[async_trait::async_trait]
impl Api for Http {
    async fn act(&self, act: &Act) -> Result<Bytes, WriteError> {
        match self.0.ask_bytes(request(act)).await {
            Ok(answer) => Ok(answer),
            // Whoever deleted it: it is gone.
            Err(error)
                if error.is_not_found()
                    && matches!(act, Act::Delete { .. } | Act::DeleteAt { .. } | Act::DeleteIf { .. }) =>
            {
                Ok(Bytes::new())
            }
            Err(error) => Err(write_error(&error)),
        }
    }

    async fn revision(&self, resource: Resource) -> Result<u64, WriteError> {
        let request = Request::get(format!("{}?limit=1", resource.path("")));
        let list: Value = self.0.ask(request).await.map_err(|error| write_error(&error))?;
        let revision = list["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok());
        revision.ok_or_else(|| WriteError::new(Why::Other, format!("a list of {resource} has no revision")))
    }
}

fn request(act: &Act) -> Request {
    match act {
        Act::Create { resource, namespace, body } => Request::post(resource.path(namespace), body.clone()),
        Act::Update { target, body } => Request::put(target.path(), body.clone()),
        Act::Patch { target, kind, body } => patch(target, *kind, body.clone()),
        Act::Delete { target, uid, grace, propagation } => {
            let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
            if let Some(uid) = uid {
                options["preconditions"] = json!({ "uid": uid });
            }
            if let Some(grace) = grace {
                options["gracePeriodSeconds"] = json!(grace);
            }
            if let Some(propagation) = propagation {
                options["propagationPolicy"] = json!(propagation.text());
            }
            Request::delete(target.path(), options.to_string())
        }
        Act::Get { path } => Request::get(path.clone()),
        Act::DeleteAt { path } => {
            let options =
                json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"});
            Request::delete(path.clone(), options.to_string())
        }
        Act::DeleteIf { path, options } => Request::delete(path.clone(), options.clone()),
        Act::Merge { path, body } => {
            Request::patch(path.clone(), "application/merge-patch+json", body.clone())
        }
        Act::Put { path, body } => Request::put(path.clone(), body.clone()),
        Act::Post { path, body } => Request::post(path.clone(), body.clone()),
    }
}

fn patch(target: &Target, kind: PatchKind, body: Bytes) -> Request {
    let path = target.path();
    match kind {
        PatchKind::Strategic => Request::strategic_patch(path, body),
        PatchKind::Merge => Request::patch(path, "application/merge-patch+json", body),
        PatchKind::Json => Request::patch(path, "application/json-patch+json", body),
        PatchKind::Apply(owner) => {
            let path = format!("{path}?fieldManager={owner}&force=true");
            Request::patch(path, "application/apply-patch+yaml", body)
        }
    }
}

fn write_error(error: &ClientError) -> WriteError {
    let ClientError::Api { answer, .. } = error else {
        let why = match error {
            // Nothing was sent.
            ClientError::Connect { .. } | ClientError::Credentials(_) | ClientError::Config(_) => Why::Other,
            _ => Why::Lost,
        };
        return WriteError::new(why, error.to_string());
    };
    let why = match answer.code {
        404 => Why::NotFound,
        409 if error.is_already_exists() => Why::AlreadyExists,
        409 => Why::Conflict,
        422 => Why::Invalid,
        403 if error.has_cause("NamespaceTerminating") => Why::NamespaceTerminating,
        403 => Why::Forbidden,
        429 => Why::TooManyRequests,
        500.. => Why::Lost,
        _ => Why::Other,
    };
    WriteError::new(why, answer.message.clone())
}
