//! TokenReview and SubjectAccessReview, asked of the API server.

use std::collections::BTreeMap;

use async_trait::async_trait;
use base::class::{Class, Classify};
use client::{Client, ClientError, Request};
use serde::Deserialize;
use serde_json::json;

use super::authn::User;
use super::guard::{ReviewError, Reviews};

/// Asks about one node.
#[derive(Clone, Debug)]
pub struct ApiReviews {
    pub client: Client,
    pub node: String,
}

#[derive(Deserialize)]
struct Reviewed<S> {
    #[serde(default = "Option::default")]
    status: Option<S>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenStatus {
    authenticated: bool,
    user: UserInfo,
    error: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct UserInfo {
    username: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AccessStatus {
    allowed: bool,
    denied: bool,
}

api::from_json!(Reviewed<TokenStatus>, Reviewed<AccessStatus>);

#[async_trait]
impl Reviews for ApiReviews {
    async fn token(&self, token: &str) -> Result<Option<User>, ReviewError> {
        let review = json!({
            "kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "spec": { "token": token },
        });
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        let answer = self.client.ask::<Reviewed<TokenStatus>>(Request::post(path, review.to_string()));
        let status = answer.await.map_err(|e| failed(&e))?.status.unwrap_or_default();
        if !status.authenticated {
            if !status.error.is_empty() {
                tracing::debug!(error = status.error, "a token is nobody's");
            }
            return Ok(None);
        }
        let UserInfo { username: name, uid, groups, extra } = status.user;
        Ok(Some(User { name, uid, groups, extra }))
    }

    async fn access(&self, user: &User, verb: &str, subresource: &str) -> Result<bool, ReviewError> {
        let review = json!({
            "kind": "SubjectAccessReview",
            "apiVersion": "authorization.k8s.io/v1",
            "spec": {
                "resourceAttributes": {
                    "verb": verb, "version": "v1", "resource": "nodes", "subresource": subresource, "name": self.node,
                },
                "user": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra,
            },
        });
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let answer = self.client.ask::<Reviewed<AccessStatus>>(Request::post(path, review.to_string()));
        let status = answer.await.map_err(|e| failed(&e))?.status.unwrap_or_default();
        Ok(status.allowed && !status.denied)
    }
}

fn failed(error: &ClientError) -> ReviewError {
    ReviewError { why: error.to_string(), retry: error.class() == Class::Retry }
}
