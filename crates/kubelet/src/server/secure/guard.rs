//! May they? Every request on 10250 is asked who sends it and whether that one may.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::response::{IntoResponse, Response};
use base::time::Clock;
use http::StatusCode;
use http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use kubelet_core::access::{Question, question};

use super::authn::{Authorities, Peer, Tokens, Unauthorized, User, bearer, token_key};
use super::remember::Remembered;
use super::tls::TlsError;

/// How often a question is asked again that got no answer.
const RETRIES: u32 = 2;

/// What the API server is asked.
#[async_trait]
pub trait Reviews: Send + Sync + 'static {
    /// Whose token it is; none if nobody's.
    async fn token(&self, token: &str) -> Result<Option<User>, ReviewError>;
    /// Whether the user may do this to this node.
    async fn access(&self, user: &User, verb: &str, subresource: &str) -> Result<bool, ReviewError>;
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
    pub client_ca: Option<PathBuf>,
    pub anonymous: bool,
    /// Tokens are reviewed, and the answer is good for so long.
    pub tokens: Option<Duration>,
    /// Access is reviewed; otherwise whoever is known may do everything.
    pub access: Option<AccessRules>,
}

#[derive(Clone, Copy, Debug)]
pub struct AccessRules {
    pub allowed_for: Duration,
    pub denied_for: Duration,
}

/// Judges requests.
pub(super) struct Guard {
    rules: GuardRules,
    authorities: Option<Authorities>,
    reviews: Option<Arc<dyn Reviews>>,
    clock: Arc<dyn Clock>,
    tokens: Tokens,
    verdicts: Remembered<(Arc<User>, &'static str, &'static str), bool>,
}

// === impl Guard ===

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard").field("rules", &self.rules).finish_non_exhaustive()
    }
}

impl Guard {
    /// Blocks on the client CA file.
    pub(super) fn new(
        rules: GuardRules,
        reviews: Option<Arc<dyn Reviews>>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, TlsError> {
        let authorities = rules.client_ca.as_deref().map(Authorities::open).transpose()?;
        Ok(Self {
            rules,
            authorities,
            reviews,
            clock,
            tokens: Tokens::default(),
            verdicts: Remembered::default(),
        })
    }

    /// The user, or the refusal.
    pub(super) async fn admit(&self, peer: &Peer, head: &Parts) -> Result<Arc<User>, Response> {
        let user = self
            .authenticate(peer, head)
            .await
            .map_err(|Unauthorized| refuse(StatusCode::UNAUTHORIZED, "Unauthorized".to_owned()))?;
        self.authorize(&user, question(head.method.as_str(), head.uri.path())).await?;
        Ok(user)
    }

    /// A proof that is bad is not as good as none: it is never taken for nobody's.
    async fn authenticate(&self, peer: &Peer, head: &Parts) -> Result<Arc<User>, Unauthorized> {
        let mut proof = Ok(None);
        if let Some(authorities) = &self.authorities {
            authorities.refresh().await;
            proof = peer.user(authorities, &*self.clock);
        }
        if let Ok(Some(user)) = proof {
            return Ok(user);
        }
        if let Some(good_for) = self.rules.tokens
            && let Some(token) = bearer(&head.headers)?
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

    async fn authorize(&self, user: &Arc<User>, asked: Question) -> Result<(), Response> {
        let Some(rules) = self.rules.access else { return Ok(()) };
        for subresource in asked.subresources {
            match self.may(user, asked.verb, subresource, rules).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(user = user.name, verb = asked.verb, subresource, %error, "authorization error");
                    let text = format!(
                        "Authorization error (user={}, verb={}, resource=nodes, subresource={subresource})",
                        user.name, asked.verb
                    );
                    return Err(refuse(StatusCode::INTERNAL_SERVER_ERROR, text));
                }
            }
        }
        let mut text = format!("Forbidden (user={}, verb={}, resource=nodes, ", user.name, asked.verb);
        let _ = writeln!(text, "subresource(s)=[{}])", asked.subresources.join(" "));
        Err(refuse(StatusCode::FORBIDDEN, text))
    }

    async fn may(
        &self,
        user: &Arc<User>,
        verb: &'static str,
        subresource: &'static str,
        rules: AccessRules,
    ) -> Result<bool, ReviewError> {
        let (key, now) = ((user.clone(), verb, subresource), self.clock.now().mono);
        if let Some(known) = self.verdicts.get(&key, now) {
            return Ok(known);
        }
        // Without an API server nobody can say that it is allowed.
        let Some(reviews) = &self.reviews else { return Ok(false) };
        let allowed = retry(|| reviews.access(user, verb, subresource)).await?;
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

fn refuse(status: StatusCode, text: String) -> Response {
    let headers = [(CONTENT_TYPE, "text/plain; charset=utf-8"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (status, headers, text).into_response()
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
