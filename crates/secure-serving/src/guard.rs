//! May they? Who asks is found out here or by the API server, and so is whether that one may.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::time::Clock;
use http::HeaderMap;

use crate::authn::{Authorities, Peer, Tokens, Unauthorized, User, bearer, token_key};
use crate::remember::Remembered;
use crate::tls::TlsError;

/// How often a question is asked again that got no answer.
const RETRIES: u32 = 2;

/// What the API server is asked.
#[async_trait]
pub trait Reviews: Send + Sync + 'static {
    /// Whose token it is; none if nobody's.
    async fn token(&self, token: &str) -> Result<Option<User>, ReviewError>;
    /// Whether the user may do this.
    async fn access(&self, user: &User, asked: &Access) -> Result<bool, ReviewError>;
}

/// What somebody wants to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    Resource {
        verb: String,
        resource: &'static str,
        subresource: &'static str,
    },
    /// No resource, but a page: `/metrics`.
    Path {
        verb: String,
        path: String,
    },
}

/// There was no answer.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{why}")]
pub struct ReviewError {
    pub why: String,
    /// Asking again may help.
    pub retry: bool,
}

/// The switches of authentication and authorization.
#[derive(Clone, Debug, Default)]
pub struct GuardRules {
    pub client_ca: ClientCa,
    pub anonymous: bool,
    /// Tokens are reviewed, and the answer is good for so long.
    pub tokens: Option<Duration>,
    /// Access is reviewed; otherwise whoever is known may do everything.
    pub access: Option<AccessRules>,
}

/// Whose client certificates are believed.
#[derive(Clone, Debug, Default)]
pub enum ClientCa {
    #[default]
    Nobodys,
    /// Read again when the file changes.
    File(PathBuf),
    /// As PEM, for instance what the cluster publishes.
    Text(String),
}

#[derive(Clone, Copy, Debug)]
pub struct AccessRules {
    pub allowed_for: Duration,
    pub denied_for: Duration,
}

/// Judges requests.
pub struct Guard {
    rules: GuardRules,
    authorities: Option<Authorities>,
    reviews: Option<Arc<dyn Reviews>>,
    clock: Arc<dyn Clock>,
    tokens: Tokens,
    verdicts: Remembered<(Arc<User>, Access), bool>,
}

// === impl Access ===

impl Access {
    /// A part of the node's own API.
    #[must_use]
    pub fn node(verb: &str, subresource: &'static str) -> Access {
        Access::Resource { verb: verb.to_owned(), resource: "nodes", subresource }
    }
}

// === impl Guard ===

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard").field("rules", &self.rules).finish_non_exhaustive()
    }
}

impl Guard {
    /// Blocks on the client CA file.
    pub fn new(
        rules: GuardRules,
        reviews: Option<Arc<dyn Reviews>>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, TlsError> {
        let authorities = match &rules.client_ca {
            ClientCa::Nobodys => None,
            ClientCa::File(path) => Some(Authorities::open(path)?),
            ClientCa::Text(text) => {
                Some(Authorities::of(text.as_bytes(), "the cluster's client CA".as_ref())?)
            }
        };
        Ok(Self {
            rules,
            authorities,
            reviews,
            clock,
            tokens: Tokens::default(),
            verdicts: Remembered::default(),
        })
    }

    /// A proof that is bad is not as good as none: it is never taken for nobody's.
    pub async fn authenticate(&self, peer: &Peer, headers: &HeaderMap) -> Result<Arc<User>, Unauthorized> {
        let mut proof = Ok(None);
        if let Some(authorities) = &self.authorities {
            authorities.refresh().await;
            proof = peer.user(authorities, &*self.clock);
        }
        if let Ok(Some(user)) = proof {
            return Ok(user);
        }
        if let Some(good_for) = self.rules.tokens
            && let Some(token) = bearer(headers)?
        {
            return self.by_token(&token, good_for).await;
        }
        proof?;
        match self.rules.anonymous {
            true => Ok(Arc::new(User::anonymous())),
            false => Err(Unauthorized),
        }
    }

    async fn by_token(&self, token: &str, good_for: Duration) -> Result<Arc<User>, Unauthorized> {
        let (key, now) = (token_key(token), self.clock.now().mono);
        if let Some(known) = self.tokens.get(&key, now) {
            return known.ok_or(Unauthorized);
        }
        let Some(reviews) = &self.reviews else { return Err(Unauthorized) };
        let user = match retry(|| reviews.token(token)).await {
            Ok(user) => user.map(|u| Arc::new(u.authenticated())),
            Err(error) => {
                tracing::warn!(%error, "a token could not be reviewed");
                return Err(Unauthorized);
            }
        };
        self.tokens.put(key, user.clone(), now, good_for);
        user.ok_or(Unauthorized)
    }

    /// Whether the user may do this. Without rules whoever is known may.
    pub async fn may(&self, user: &Arc<User>, asked: Access) -> Result<bool, ReviewError> {
        let Some(rules) = self.rules.access else { return Ok(true) };
        let (key, now) = ((user.clone(), asked), self.clock.now().mono);
        if let Some(known) = self.verdicts.get(&key, now) {
            return Ok(known);
        }
        // Without an API server nobody can say that it is allowed.
        let Some(reviews) = &self.reviews else { return Ok(false) };
        let allowed = retry(|| reviews.access(user, &key.1)).await?;
        let good_for = if allowed { rules.allowed_for } else { rules.denied_for };
        self.verdicts.put(key, allowed, now, good_for);
        Ok(allowed)
    }
}

/// Asks again where that may help.
async fn retry<T, F>(mut ask: impl FnMut() -> F) -> Result<T, ReviewError>
where
    F: Future<Output = Result<T, ReviewError>>,
{
    let mut pause = Duration::from_millis(100);
    for _ in 0..RETRIES {
        match ask().await {
            Err(error) if error.retry => tracing::debug!(%error, "a review is asked for again"),
            answer => return answer,
        }
        tokio::time::sleep(pause).await;
        pause *= 4;
    }
    ask().await
}
