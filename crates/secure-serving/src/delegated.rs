//! Asked of a cluster: one client for who it is, one for what that one may. Either may be missing.

use async_trait::async_trait;
use client::{Client, Request};
use serde_json::Value;

use crate::authn::User;
use crate::guard::{Access, ReviewError, Reviews};
use crate::reviews::ApiReviews;

/// Where the API server says which client certificates it believes.
const AUTHENTICATION: &str = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";

#[derive(Clone, Debug, Default)]
pub struct Delegated {
    authentication: Option<ApiReviews>,
    authorization: Option<ApiReviews>,
}

// === impl Delegated ===

impl Delegated {
    #[must_use]
    pub fn new(authentication: Option<Client>, authorization: Option<Client>) -> Delegated {
        let reviews = |client| ApiReviews { client, name: String::new() };
        Delegated { authentication: authentication.map(reviews), authorization: authorization.map(reviews) }
    }
}

#[async_trait]
impl Reviews for Delegated {
    async fn token(&self, token: &str) -> Result<Option<User>, ReviewError> {
        match &self.authentication {
            Some(reviews) => reviews.token(token).await,
            None => Ok(None),
        }
    }

    async fn access(&self, user: &User, asked: &Access) -> Result<bool, ReviewError> {
        match &self.authorization {
            Some(reviews) => reviews.access(user, asked).await,
            None => Ok(false),
        }
    }
}

/// The client CA that the cluster publishes; none where it publishes none.
pub async fn client_ca(client: &Client) -> Result<Option<String>, client::ClientError> {
    match client.ask::<Value>(Request::get(AUTHENTICATION)).await {
        Ok(map) => {
            Ok(map["data"]["client-ca-file"].as_str().filter(|text| !text.is_empty()).map(str::to_owned))
        }
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}
