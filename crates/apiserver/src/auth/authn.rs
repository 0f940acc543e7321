//! Who is asking: client certificates, bearer tokens, or nobody in particular.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::bearer;
use aws_lc_rs::digest::{SHA256, digest};
use base::time::{Clock, Mono, Wall};
use http::HeaderMap;
use rustls::pki_types::{CertificateDer, UnixTime};
use x509_parser::prelude::FromDer;

use super::bootstrap_token;
use super::pki::ClientCas;
use super::service_account;
use super::static_tokens::StaticTokens;
use super::tokens::{TokenError, Tokens};
use crate::objects::Objects;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::request::User;

/// Recognises users.
pub struct Authenticator {
    client_cas: Arc<ClientCas>,
    tokens: Arc<Tokens>,
    static_tokens: StaticTokens,
    objects: Objects,
    anonymous: Anonymous,
    clock: Arc<dyn Clock>,
    known: Mutex<Known>,
}

/// Where nobody in particular is let in, before roles are asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Anonymous {
    /// Health and version, and what a machine that joins may know before it trusts anybody.
    #[default]
    Probes,
    /// `--anonymous-auth=true`
    Everywhere,
    /// `--anonymous-auth=false`
    Nowhere,
}

/// The other end of a connection: the certificates it showed, verified once, or a part of this process.
#[derive(Debug, Default)]
pub struct Peer {
    /// Who it is by the word of this process; nothing that is sent changes that.
    vouched: Option<Arc<User>>,
    chain: Vec<CertificateDer<'static>>,
    verified: Mutex<Option<Verified>>,
}

#[derive(Clone, Debug)]
struct Verified {
    generation: u64,
    user: Option<Arc<User>>,
    not_before: Wall,
    not_after: Wall,
}

/// Tokens that were believed a moment ago. A pod that asks ten times a second is not looked up ten times.
#[derive(Debug, Default)]
struct Known(HashMap<[u8; 32], (User, Vec<String>, Mono)>);

/// The user a token stands for, and the audiences it is for among those asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recognised {
    pub user: User,
    pub audiences: Vec<String>,
}

/// As long as upstream remembers a token that was good.
const REMEMBERED: Duration = Duration::from_secs(10);
const MOST_REMEMBERED: usize = 512;
const UID_OID: &str = "1.3.6.1.4.1.57683.2";

// === impl Authenticator ===

impl std::fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authenticator").field("anonymous", &self.anonymous).finish_non_exhaustive()
    }
}

impl Authenticator {
    #[must_use]
    pub fn new(
        client_cas: Arc<ClientCas>,
        tokens: Arc<Tokens>,
        static_tokens: StaticTokens,
        objects: Objects,
        anonymous: Anonymous,
        clock: Arc<dyn Clock>,
    ) -> Authenticator {
        Authenticator {
            client_cas,
            tokens,
            static_tokens,
            objects,
            anonymous,
            clock,
            known: Mutex::default(),
        }
    }

    /// The user of a request on this connection, or 401. What proved it is to be dropped before the request goes on.
    pub async fn authenticate(
        &self,
        peer: &Peer,
        headers: &HeaderMap,
        path: &str,
    ) -> Result<Arc<User>, ApiStatus> {
        if let Some(user) = &peer.vouched {
            return Ok(user.clone());
        }
        let mut refused = false;
        if !peer.chain.is_empty() {
            match self.by_certificate(peer) {
                Some(user) => return Ok(user),
                None => refused = true,
            }
        }
        match bearer::token(headers) {
            Ok(Some(token)) => match self.by_token(&token, self.tokens.audiences()).await {
                Some(recognised) => return Ok(Arc::new(recognised.user.authenticated())),
                None => refused = true,
            },
            Ok(None) => {}
            Err(error) => {
                tracing::debug!(%error, "a token is not looked at");
                refused = true;
            }
        }
        // Whoever shows something that is not good is not nobody: they are to learn that it is not good.
        if !refused && self.anonymous.admits(path) {
            return Ok(Arc::new(User::anonymous()));
        }
        Err(ApiStatus::unauthorized())
    }

    /// Whom tokens are for unless they say otherwise: this server.
    #[must_use]
    pub fn audiences(&self) -> &[String] {
        self.tokens.audiences()
    }

    /// The user of a token that is for one of these audiences.
    pub async fn by_token(&self, token: &str, audiences: &[String]) -> Option<Recognised> {
        let key = token_key(token, audiences);
        let now = self.clock.now();
        if let Some(known) = self.known().get(&key, now.mono) {
            return Some(known);
        }
        let recognised = self.look_up(token, audiences, now.wall).await?;
        self.known().remember(key, &recognised, now.mono);
        Some(recognised)
    }

    async fn look_up(&self, token: &str, audiences: &[String], now: Wall) -> Option<Recognised> {
        if let Some(user) = self.static_tokens.authenticate(token) {
            return self.for_server(user, audiences);
        }
        match self.by_service_account(token, audiences, now).await {
            Ok(recognised) => return Some(recognised),
            Err(TokenError::Foreign) => {}
            Err(error) => {
                tracing::debug!(%error, "a service account token is not believed");
                return None;
            }
        }
        let user = bootstrap_token::authenticate(&self.objects, token, now).await?;
        self.for_server(user, audiences)
    }

    /// Tokens without an audience of their own are for this server.
    fn for_server(&self, user: User, asked: &[String]) -> Option<Recognised> {
        let audiences = common(self.tokens.audiences(), asked);
        (!audiences.is_empty()).then_some(Recognised { user, audiences })
    }

    async fn by_service_account(
        &self,
        token: &str,
        audiences: &[String],
        now: Wall,
    ) -> Result<Recognised, TokenError> {
        let claims = self.tokens.verify(token, now)?;
        let audiences_met = common(&claims.aud.0, audiences);
        if audiences_met.is_empty() {
            return Err(TokenError::Audience(claims.aud.0, audiences.to_vec()));
        }
        let user = service_account::user_of(&self.objects, &claims, now).await?;
        Ok(Recognised { user, audiences: audiences_met })
    }

    fn by_certificate(&self, peer: &Peer) -> Option<Arc<User>> {
        let now = self.clock.now().wall;
        let generation = self.client_cas.generation();
        let mut slot = peer.verified.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = slot
            .as_ref()
            .is_some_and(|v| v.generation == generation && v.not_before <= now && now <= v.not_after);
        if !fresh {
            *slot = Some(verify_chain(&self.client_cas, &peer.chain, generation, now));
        }
        slot.as_ref().and_then(|v| v.user.clone())
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Peer ===

impl Peer {
    #[must_use]
    pub fn new(chain: Option<&[CertificateDer<'_>]>) -> Peer {
        let chain = chain.unwrap_or_default().iter().map(|c| c.clone().into_owned()).collect();
        Peer { chain, ..Peer::default() }
    }

    /// A part of this process, which acts as this user.
    #[must_use]
    pub fn of_this_process(user: Arc<User>) -> Peer {
        Peer { vouched: Some(user), ..Peer::default() }
    }
}

/// Whom to trust, signed with the tokens of machines that are to join; roles have a word too.
const CLUSTER_INFO: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";

// === impl Anonymous ===

impl Anonymous {
    fn admits(&self, path: &str) -> bool {
        match self {
            Anonymous::Everywhere => true,
            Anonymous::Nowhere => false,
            Anonymous::Probes => {
                let path = path.trim_end_matches('/');
                let below =
                    |root: &str| path == root || path.strip_prefix(root).is_some_and(|r| r.starts_with('/'));
                path == "/version"
                    || path == CLUSTER_INFO
                    || ["/healthz", "/livez", "/readyz"].into_iter().any(below)
            }
        }
    }
}

// === impl Known ===

impl Known {
    fn get(&self, key: &[u8; 32], now: Mono) -> Option<Recognised> {
        let (user, audiences, until) = self.0.get(key)?;
        (*until > now).then(|| Recognised { user: user.clone(), audiences: audiences.clone() })
    }

    fn remember(&mut self, key: [u8; 32], recognised: &Recognised, now: Mono) {
        if self.0.len() >= MOST_REMEMBERED {
            self.0.retain(|_, (_, _, until)| *until > now);
        }
        if self.0.len() >= MOST_REMEMBERED {
            self.0.clear();
        }
        self.0.insert(key, (recognised.user.clone(), recognised.audiences.clone(), now + REMEMBERED));
    }
}

fn verify_chain(cas: &ClientCas, chain: &[CertificateDer<'_>], generation: u64, now: Wall) -> Verified {
    let nobody = Verified { generation, user: None, not_before: Wall(i64::MIN), not_after: now };
    let at = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(now.secs()).unwrap_or_default()));
    if let Err(error) = cas.verify(chain, at) {
        tracing::debug!(%error, "a client certificate is not believed");
        return nobody;
    }
    let Some(leaf) = chain.first() else { return nobody };
    let Ok((_, certificate)) = x509_parser::certificate::X509Certificate::from_der(leaf) else {
        return nobody;
    };
    let subject = certificate.subject();
    let texts = |found: Vec<&x509_parser::x509::AttributeTypeAndValue<'_>>| -> Vec<String> {
        found.iter().filter_map(|a| a.as_str().ok()).map(str::to_owned).collect()
    };
    // The last common name counts, as Go reads a name; where we cannot read it, another one must not stand in.
    let last = subject.iter_common_name().last().and_then(|name| name.as_str().ok());
    let Some(name) = last.filter(|n| !n.is_empty()).map(str::to_owned) else {
        return nobody;
    };
    // Nobody but us has this certificate, and we do not ask ourselves: a Node that gives our address for its own leads us here,
    // and whoever may reach that Node would act as us on all others.
    if name == User::KUBELET_CLIENT {
        tracing::warn!(
            "what was meant for a kubelet came back to this server: some Node has this server's address"
        );
        return nobody;
    }
    let uid = subject
        .iter_attributes()
        .find(|a| a.attr_type().to_id_string() == UID_OID)
        .and_then(|a| a.as_str().ok())
        .unwrap_or_default();
    let mut user = User {
        name,
        uid: uid.to_owned(),
        groups: texts(subject.iter_organization().collect()),
        ..User::default()
    };
    let fingerprint: String = digest(&SHA256, leaf).as_ref().iter().map(|b| format!("{b:02x}")).collect();
    user.extra.insert(
        "authentication.kubernetes.io/credential-id".to_owned(),
        vec![format!("X509SHA256={fingerprint}")],
    );
    let validity = certificate.validity();
    Verified {
        generation,
        user: Some(Arc::new(user.authenticated())),
        not_before: Wall::from_secs(validity.not_before.timestamp()),
        not_after: Wall::from_secs(validity.not_after.timestamp()),
    }
}

fn common(have: &[String], asked: &[String]) -> Vec<String> {
    have.iter().filter(|a| asked.contains(a)).cloned().collect()
}

fn token_key(token: &str, audiences: &[String]) -> [u8; 32] {
    let mut context = aws_lc_rs::digest::Context::new(&SHA256);
    context.update(token.as_bytes());
    for audience in audiences {
        context.update(&[0]);
        context.update(audience.as_bytes());
    }
    let mut out = [0; 32];
    out.copy_from_slice(context.finish().as_ref());
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use http::header::AUTHORIZATION;

    use super::*;
    use crate::auth::pki::{Ca, Key};
    use crate::auth::tokens::tests::tokens;
    use crate::objects::places;
    use crate::objects::testing::Scratch;
    use apiserver_core::request::groups;
    use base::time::Now;
    use serde_json::json;
    use std::sync::atomic::{AtomicI64, Ordering};
    use store::Expect;
    use x509::{AlternativeNames, Leaf, Subject, Usage};

    /// A clock that goes when it is told to.
    #[derive(Debug)]
    pub(crate) struct Hand(AtomicI64);

    impl Hand {
        pub(crate) fn at(secs: i64) -> Arc<Hand> {
            Arc::new(Hand(AtomicI64::new(secs)))
        }

        fn pass(&self, secs: i64) {
            self.0.fetch_add(secs, Ordering::Relaxed);
        }
    }

    impl Clock for Hand {
        fn now(&self) -> Now {
            let secs = self.0.load(Ordering::Relaxed);
            Now { mono: Mono(Duration::from_secs(secs as u64)), wall: Wall::from_secs(secs) }
        }
    }

    const NOW: i64 = 1_800_000_000;

    struct Setup {
        authenticator: Authenticator,
        ca: Ca,
        clock: Arc<Hand>,
        cluster: Scratch,
    }

    async fn setup(anonymous: Anonymous) -> Setup {
        let ca = Ca::create("ca", Wall::from_secs(NOW)).unwrap();
        let cas = ClientCas::new(&[CertificateDer::from(ca.certificate().to_vec())]).unwrap();
        let account = json!({"metadata": {"name": "bot", "namespace": "ns", "uid": "1"}});
        let cluster = Scratch::new().with(&[(places::SERVICE_ACCOUNTS, account)]).await;
        let clock = Hand::at(NOW);
        let authenticator = Authenticator::new(
            Arc::new(cas),
            Arc::new(tokens()),
            StaticTokens::default(),
            cluster.objects.clone(),
            anonymous,
            clock.clone(),
        );
        Setup { authenticator, ca, clock, cluster }
    }

    fn certificate(ca: &Ca, subject: Subject, usage: Usage) -> CertificateDer<'static> {
        let leaf = Leaf {
            subject,
            public_key: Key::generate().unwrap().public_key(),
            names: AlternativeNames::default(),
            usages: vec![Usage::DigitalSignature, usage],
            not_before: Wall::from_secs(NOW),
            not_after: Wall::from_secs(NOW + 3600),
        };
        ca.issue(&leaf).unwrap().into()
    }

    fn with_token(token: &str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, format!("Bearer {token}").parse().unwrap())])
    }

    #[tokio::test]
    async fn a_certificate_names_user_and_groups_while_it_lasts() {
        let d = setup(Anonymous::Everywhere).await;
        let none = HeaderMap::new();
        let subject = Subject::new("jane", &["dev", "ops"]);
        let peer = Peer::new(Some(&[certificate(&d.ca, subject.clone(), Usage::ClientAuth)]));
        let user = d.authenticator.authenticate(&peer, &none, "/api").await.unwrap();
        assert_eq!(
            (user.name.as_str(), user.groups.as_slice()),
            ("jane", &["dev", "ops", groups::AUTHENTICATED].map(String::from)[..])
        );
        d.clock.pass(3601);
        assert_eq!(d.authenticator.authenticate(&peer, &none, "/api").await.unwrap_err().code, 401);
        d.clock.pass(-3601);
        for bad in [
            certificate(
                &Ca::create("other", Wall::from_secs(NOW)).unwrap(),
                subject.clone(),
                Usage::ClientAuth,
            ),
            certificate(&d.ca, subject, Usage::ServerAuth),
            CertificateDer::from(vec![1, 2, 3]),
        ] {
            let peer = Peer::new(Some(&[bad]));
            assert_eq!(d.authenticator.authenticate(&peer, &none, "/api").await.unwrap_err().code, 401);
        }
    }

    #[tokio::test]
    async fn a_service_account_token_is_remembered_for_a_moment_only() {
        let d = setup(Anonymous::Nowhere).await;
        let peer = Peer::default();
        let lifetimes = service_account::Lifetimes { max_seconds: None, extend: true };
        let (made, _) = service_account::request_token(
            &d.cluster.objects,
            &d.authenticator.tokens,
            lifetimes,
            ("ns", "bot"),
            json!({"spec": {}}),
            Wall::from_secs(NOW),
        )
        .await
        .unwrap();
        let headers = with_token(made["status"]["token"].as_str().unwrap());
        let user = d.authenticator.authenticate(&peer, &headers, "/api").await.unwrap();
        assert_eq!(user.name, "system:serviceaccount:ns:bot");
        assert!(user.is_in(groups::AUTHENTICATED) && user.is_in("system:serviceaccounts:ns"));
        d.cluster.objects.delete(places::SERVICE_ACCOUNTS, "ns", "bot", Expect::Any).await.unwrap();
        assert!(d.authenticator.authenticate(&peer, &headers, "/api").await.is_ok());
        d.clock.pass(11);
        assert_eq!(d.authenticator.authenticate(&peer, &headers, "/api").await.unwrap_err().code, 401);
    }

    #[tokio::test]
    async fn nobody_in_particular_may_ask_for_health_and_version() {
        let d = setup(Anonymous::default()).await;
        let (peer, none) = (Peer::default(), HeaderMap::new());
        for path in ["/healthz", "/livez/", "/readyz/store", "/version", CLUSTER_INFO] {
            assert_eq!(
                d.authenticator.authenticate(&peer, &none, path).await.unwrap(),
                User::anonymous().into()
            );
        }
        for path in ["/api", "/healthzz", "/versions", "/", "/api/v1/namespaces/kube-public/configmaps"] {
            assert_eq!(d.authenticator.authenticate(&peer, &none, path).await.unwrap_err().code, 401);
        }
        assert_eq!(
            d.authenticator.authenticate(&peer, &with_token("bad"), "/version").await.unwrap_err().code,
            401
        );
    }
}
