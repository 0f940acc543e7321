//! The ServiceAccount of one controller: `--use-service-account-credentials`.
//!
//! Each controller then may do what its own account may (`system:controller:…`), and audit logs say who it was. The manager
//! itself needs no more than to make the accounts and to ask for their tokens, which is what upstream's role allows it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base::time::{Clock, Mono};
use bytes::Bytes;
use controllers_core::plan::{Act, Why, WriteError};
use controllers_core::resource::Resource;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::port::Api;

/// What a token is asked for, as upstream; the server may say otherwise.
const LIFE: Duration = Duration::from_secs(3600);
/// A token younger than this was not what the server refused.
const FRESH: Duration = Duration::from_secs(10);

/// Makes an API of a token.
pub type WithToken = dyn Fn(&str) -> Arc<dyn Api> + Send + Sync;

/// An API server that takes us for a ServiceAccount of kube-system.
pub struct Account {
    name: &'static str,
    manager: Arc<dyn Api>,
    with_token: Arc<WithToken>,
    clock: Arc<dyn Clock>,
    /// Held while a token is asked for, so that the workers of a controller ask once.
    current: Mutex<Option<Current>>,
}

struct Current {
    api: Arc<dyn Api>,
    since: Mono,
    life: Duration,
}

// === impl Account ===

impl Account {
    #[must_use]
    pub fn new(
        name: &'static str,
        manager: Arc<dyn Api>,
        with_token: Arc<WithToken>,
        clock: Arc<dyn Clock>,
    ) -> Account {
        Account { name, manager, with_token, clock, current: Mutex::default() }
    }

    /// The API with a token that lives for a while yet.
    async fn api(&self) -> Result<Arc<dyn Api>, WriteError> {
        let mut current = self.current.lock().await;
        let now = self.clock.now().mono;
        if let Some(current) = current.as_ref().filter(|c| now.since(c.since) < c.life / 5 * 4) {
            return Ok(current.api.clone());
        }
        let (token, life) = self.token().await?;
        let api = (self.with_token)(&token);
        *current = Some(Current { api: api.clone(), since: now, life });
        Ok(api)
    }

    /// Asks for a token; the account is made where it is missing.
    async fn token(&self) -> Result<(String, Duration), WriteError> {
        let answer = match self.ask().await {
            Err(refusal) if refusal.why == Why::NotFound => {
                self.make().await?;
                self.ask().await
            }
            other => other,
        }?;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        let life = answer["spec"]["expirationSeconds"].as_u64().map_or(LIFE, Duration::from_secs);
        match answer["status"]["token"].as_str() {
            Some(token) if !token.is_empty() => Ok((token.to_owned(), life)),
            _ => {
                let why = format!("the server gave no token for ServiceAccount kube-system/{}", self.name);
                Err(WriteError::new(Why::Other, why))
            }
        }
    }

    async fn ask(&self) -> Result<Bytes, WriteError> {
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"expirationSeconds": LIFE.as_secs()}});
        let path = format!("/api/v1/namespaces/kube-system/serviceaccounts/{}/token", self.name);
        self.manager.act(&Act::Post { path, body: body.to_string().into() }).await
    }

    async fn make(&self) -> Result<(), WriteError> {
        let body = json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": self.name, "namespace": "kube-system"}});
        let path = "/api/v1/namespaces/kube-system/serviceaccounts".to_owned();
        match self.manager.act(&Act::Post { path, body: body.to_string().into() }).await {
            Err(refusal) if refusal.why != Why::AlreadyExists => Err(refusal),
            _ => Ok(()),
        }
    }

    /// An account that was deleted and made again has tokens of its own: the next request asks for one.
    async fn forget(&self) {
        let mut current = self.current.lock().await;
        let now = self.clock.now().mono;
        if current.as_ref().is_some_and(|c| now.since(c.since) > FRESH) {
            *current = None;
        }
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Account({})", self.name)
    }
}

#[async_trait::async_trait]
impl Api for Account {
    async fn act(&self, act: &Act) -> Result<Bytes, WriteError> {
        let done = self.api().await?.act(act).await;
        if done.as_ref().is_err_and(|refusal| refusal.why == Why::Other) {
            self.forget().await;
        }
        done
    }

    /// Caches are the manager's, and so is what they are compared with.
    async fn revision(&self, resource: Resource) -> Result<u64, WriteError> {
        self.manager.revision(resource).await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Mutex as Held;

    use base::time::{Now, Wall};

    use super::*;

    /// A server that writes down who asked for what.
    #[derive(Default)]
    struct Server {
        asked: Held<Vec<String>>,
        has_account: Held<bool>,
        refuses: Held<bool>,
    }

    struct As(&'static str, Arc<Server>);

    #[derive(Debug, Default)]
    struct Hands(Held<Duration>);

    impl Clock for Hands {
        fn now(&self) -> Now {
            Now { mono: Mono(*self.0.lock().unwrap()), wall: Wall(0) }
        }
    }

    #[async_trait::async_trait]
    impl Api for As {
        async fn act(&self, act: &Act) -> Result<Bytes, WriteError> {
            let path = match act {
                Act::Post { path, .. } | Act::Get { path } => path.clone(),
                other => format!("{other:?}"),
            };
            self.1.asked.lock().unwrap().push(format!("{} {path}", self.0));
            let mut has_account = self.1.has_account.lock().unwrap();
            if path.ends_with("/token") {
                let refusal = WriteError::new(Why::NotFound, "no such account".to_owned());
                let answer = r#"{"spec":{"expirationSeconds":1000},"status":{"token":"t"}}"#;
                return if *has_account { Ok(answer.into()) } else { Err(refusal) };
            }
            *has_account |= path.ends_with("/serviceaccounts");
            match *self.1.refuses.lock().unwrap() && self.0 == "account" {
                true => Err(WriteError::new(Why::Other, "Unauthorized".to_owned())),
                false => Ok(Bytes::new()),
            }
        }

        async fn revision(&self, _: Resource) -> Result<u64, WriteError> {
            Ok(7)
        }
    }

    fn account(server: &Arc<Server>, clock: &Arc<Hands>) -> Account {
        let made = server.clone();
        let with_token = move |token: &str| {
            assert_eq!(token, "t");
            Arc::new(As("account", made.clone())) as Arc<dyn Api>
        };
        let manager = Arc::new(As("manager", server.clone()));
        Account::new("job-controller", manager, Arc::new(with_token), clock.clone())
    }

    async fn get(account: &Account) -> Result<Bytes, WriteError> {
        account.act(&Act::Get { path: "/x".to_owned() }).await
    }

    fn told(server: &Server) -> Vec<String> {
        std::mem::take(&mut *server.asked.lock().unwrap())
    }

    const TOKEN: &str = "manager /api/v1/namespaces/kube-system/serviceaccounts/job-controller/token";

    #[tokio::test]
    async fn the_account_is_made_once_and_its_token_renewed_before_it_ends() {
        let (server, clock) = (Arc::new(Server::default()), Arc::new(Hands::default()));
        let account = account(&server, &clock);
        get(&account).await.unwrap();
        let made = "manager /api/v1/namespaces/kube-system/serviceaccounts";
        assert_eq!(told(&server), [TOKEN, made, TOKEN, "account /x"]);
        *clock.0.lock().unwrap() = Duration::from_secs(799);
        get(&account).await.unwrap();
        assert_eq!(told(&server), ["account /x"]);
        *clock.0.lock().unwrap() = Duration::from_secs(801);
        get(&account).await.unwrap();
        assert_eq!(told(&server), [TOKEN, "account /x"]);
    }

    #[tokio::test]
    async fn a_token_that_the_server_refuses_is_asked_for_anew_and_not_in_a_hurry() {
        let (server, clock) = (Arc::new(Server::default()), Arc::new(Hands::default()));
        *server.has_account.lock().unwrap() = true;
        let account = account(&server, &clock);
        *server.refuses.lock().unwrap() = true;
        for _ in 0..3 {
            get(&account).await.unwrap_err();
        }
        assert_eq!(told(&server), [TOKEN, "account /x", "account /x", "account /x"]);
        *clock.0.lock().unwrap() = Duration::from_secs(11);
        get(&account).await.unwrap_err();
        get(&account).await.unwrap_err();
        assert_eq!(told(&server), ["account /x", TOKEN, "account /x"]);
    }
}
