//! Tokens of service accounts, each bound to one Pod, asked for anew long before they end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::ids::PodUid;
use base::rng::Rng;
use base::time::{Clock, Mono, Wall};
use client::{Client, Request};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::Pod;
use kubelet_core::references::TokenWant;

/// However long a token lives, it is renewed after a day.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// Renewals of Pods that began together spread over this.
const JITTER: Duration = Duration::from_secs(10);

pub(super) struct Tokens {
    client: Client,
    clock: Arc<dyn Clock>,
    rng: Mutex<Rng>,
    cache: Mutex<HashMap<Key, Token>>,
}

/// The Pod, the UID of its service account where whoever asks knows it, and what is wanted.
type Key = (PodUid, String, TokenWant);

#[derive(Clone)]
struct Token {
    text: String,
    /// As the server wrote it.
    ends: String,
    renew_at: Mono,
    ends_at: Mono,
}

// === impl Tokens ===

impl Tokens {
    pub(super) fn new(client: Client, clock: Arc<dyn Clock>, rng: Rng) -> Self {
        Self { client, clock, rng: Mutex::new(rng), cache: Mutex::default() }
    }

    /// A token that is good for a while. One that is due to be renewed serves on while the server cannot be reached.
    pub(super) async fn get(&self, pod: &Pod, want: &TokenWant) -> Result<String, String> {
        self.get_dated(pod, want).await.map(|(token, _)| token)
    }

    /// A token of the service account with this UID, and of none that has since taken its name.
    pub(super) async fn get_of(&self, pod: &Pod, account: &str, want: &TokenWant) -> Result<String, String> {
        self.get_known(pod, account, want).await.map(|(token, _)| token)
    }

    /// A token, and when it ends.
    pub(super) async fn get_dated(&self, pod: &Pod, want: &TokenWant) -> Result<(String, String), String> {
        self.get_known(pod, "", want).await
    }

    async fn get_known(
        &self,
        pod: &Pod,
        account: &str,
        want: &TokenWant,
    ) -> Result<(String, String), String> {
        let uid = PodUid::from(pod.metadata.uid.as_deref().unwrap_or_default());
        let key = (uid, account.to_owned(), want.clone());
        let known = self.lock().get(&key).cloned();
        if let Some(token) = known.as_ref().filter(|t| self.clock.now().mono < t.renew_at) {
            return Ok((token.text.clone(), token.ends.clone()));
        }
        match self.request(pod, account, want).await {
            Ok(token) => {
                let dated = (token.text.clone(), token.ends.clone());
                self.keep(key, token);
                Ok(dated)
            }
            Err(error) => match known.filter(|t| self.clock.now().mono < t.ends_at) {
                Some(old) => {
                    tracing::warn!(pod = pod.metadata.name, %error, "token not renewed, the old one serves on");
                    Ok((old.text, old.ends))
                }
                None => Err(format!("failed to fetch token: {error}")),
            },
        }
    }

    /// A token may come for a Pod that is forgotten already, so those that have ended go with every one that comes.
    fn keep(&self, key: Key, token: Token) {
        let now = self.clock.now().mono;
        let mut cache = self.lock();
        cache.retain(|_, token| now < token.ends_at);
        cache.insert(key, token);
    }

    pub(super) fn forget(&self, uid: &PodUid) {
        self.lock().retain(|(of, ..), _| of != uid);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    async fn request(&self, pod: &Pod, account_uid: &str, want: &TokenWant) -> Result<Token, String> {
        let meta = &pod.metadata;
        let account = pod.spec.as_ref().and_then(|s| s.service_account_name.as_deref());
        let account = account.filter(|a| !a.is_empty()).unwrap_or("default");
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let audiences: Vec<&str> =
            Some(want.audience.as_str()).into_iter().filter(|a| !a.is_empty()).collect();
        let mut body = serde_json::json!({
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "spec": {
                "audiences": audiences,
                "expirationSeconds": want.seconds,
                "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": meta.name, "uid": meta.uid},
            },
        });
        if !account_uid.is_empty() {
            body["metadata"] = serde_json::json!({"uid": account_uid});
        }
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let answer: TokenRequest =
            self.client.ask(Request::post(path, body.to_string())).await.map_err(|e| e.to_string())?;
        let seconds = answer.spec.and_then(|s| s.expiration_seconds).unwrap_or(want.seconds);
        let status = answer.status.unwrap_or_default();
        let (Some(token), Some(ends)) = (status.token, status.expiration_timestamp) else {
            return Err("the answer holds no token".to_owned());
        };
        Ok(Token {
            ends: ends.0.to_string(),
            ..self.dated(token, Wall::from_secs(ends.0.as_second()), seconds)
        })
    }

    /// From here on only the monotonic clock counts: a wall clock that is set renews nothing.
    fn dated(&self, text: String, ends: Wall, seconds: i64) -> Token {
        let now = self.clock.now();
        let jitter = self.rng.lock().unwrap_or_else(PoisonError::into_inner).up_to(JITTER);
        let left = ends.since(now.wall);
        let life = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        let renew = left.saturating_sub(life / 5 + jitter).min(LONGEST.saturating_sub(jitter));
        Token { text, ends: String::new(), renew_at: now.mono + renew, ends_at: now.mono + left }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Token>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
