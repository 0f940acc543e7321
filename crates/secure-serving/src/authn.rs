//! Who asks: a client certificate, a bearer token, or nobody in particular.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use base::time::{Clock, Wall};
use http::HeaderMap;
use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use sha2::{Digest, Sha256};
use x509_parser::prelude::FromDer;

use super::files::Files;
use super::remember::Remembered;
use super::tls::TlsError;

/// The attribute of a subject that is the user's uid.
const UID_OID: &str = "1.3.6.1.4.1.57683.2";
const AUTHENTICATED: &str = "system:authenticated";
/// Tokens longer than this are nobody's.
const TOKEN_MAX: usize = 64 << 10;

/// Who somebody is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The request's proof is not good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Unauthorized")]
pub struct Unauthorized;

/// What the other end of a connection showed in the handshake, and what came of it.
#[derive(Debug, Default)]
pub struct Peer {
    chain: Vec<CertificateDer<'static>>,
    verified: Mutex<Option<Verified>>,
}

#[derive(Clone, Debug)]
struct Verified {
    generation: u64,
    user: Option<Arc<User>>,
    from: Wall,
    until: Wall,
}

/// The authorities whose client certificates are believed.
pub(crate) struct Authorities {
    /// Where they are read from; None: they were told.
    source: Option<(PathBuf, Files)>,
    current: ArcSwap<Believed>,
}

struct Believed {
    verifier: Arc<dyn ClientCertVerifier>,
    roots: Vec<CertificateDer<'static>>,
    /// Rises when the file changes: what was verified before must be verified again.
    generation: u64,
}

/// Answers to TokenReviews, for a while.
pub(crate) type Tokens = Remembered<[u8; 32], Option<Arc<User>>>;

// === impl User ===

impl User {
    #[must_use]
    pub fn anonymous() -> Self {
        let groups = vec!["system:unauthenticated".to_owned()];
        Self { name: "system:anonymous".to_owned(), groups, ..Self::default() }
    }

    /// Somebody who proved who they are.
    #[must_use]
    pub(crate) fn authenticated(mut self) -> Self {
        if !self.groups.iter().any(|g| g == AUTHENTICATED) {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }
}

// === impl Peer ===

impl Peer {
    pub fn new(chain: Option<&[CertificateDer<'_>]>) -> Self {
        let chain = chain.unwrap_or_default().iter().map(|c| c.clone().into_owned()).collect();
        Self { chain, verified: Mutex::default() }
    }

    /// The user its certificate names; none without a certificate.
    pub(crate) fn user(
        &self,
        authorities: &Authorities,
        clock: &dyn Clock,
    ) -> Result<Option<Arc<User>>, Unauthorized> {
        if self.chain.is_empty() {
            return Ok(None);
        }
        let (now, believed) = (clock.now().wall, authorities.current.load());
        let mut known = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = |v: &&Verified| v.generation == believed.generation && v.from <= now && now <= v.until;
        let verified = match known.as_ref().filter(fresh) {
            Some(verified) => verified.clone(),
            None => known.insert(verify(&self.chain, &believed, now)).clone(),
        };
        verified.user.map(Some).ok_or(Unauthorized)
    }
}

fn verify(chain: &[CertificateDer<'static>], believed: &Believed, now: Wall) -> Verified {
    let nobody = Verified { generation: believed.generation, user: None, from: now, until: now };
    let at = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(now.secs()).unwrap_or_default()));
    let Some((leaf, rest)) = chain.split_first() else { return nobody };
    let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
    let by_root = |root| tls::is_first_version_by(leaf, root, &algorithms);
    if let Err(error) = believed.verifier.verify_client_cert(leaf, rest, at)
        && !believed.roots.iter().any(by_root)
    {
        tracing::debug!(%error, "a client certificate is not believed");
        return nobody;
    }
    match subject(leaf) {
        Some((user, from, until)) if from <= now && now <= until => {
            Verified { user: Some(Arc::new(user.authenticated())), from, until, ..nobody }
        }
        _ => nobody,
    }
}

/// Whom a certificate names, and between which times.
fn subject(leaf: &CertificateDer<'_>) -> Option<(User, Wall, Wall)> {
    let (_, certificate) = x509_parser::certificate::X509Certificate::from_der(leaf).ok()?;
    let subject = certificate.subject();
    // Of several common names the last counts, as Go reads a name.
    let name = subject.iter_common_name().filter_map(|a| a.as_str().ok()).last()?.to_owned();
    if name.is_empty() {
        return None;
    }
    let mut uid = subject.iter_attributes().filter(|a| a.attr_type().to_id_string() == UID_OID);
    let uid = uid.find_map(|a| a.as_str().ok()).unwrap_or_default().to_owned();
    let groups = subject.iter_organization().filter_map(|a| a.as_str().ok()).map(str::to_owned).collect();
    let fingerprint: String = Sha256::digest(leaf).iter().map(|b| format!("{b:02x}")).collect();
    let credential = "authentication.kubernetes.io/credential-id".to_owned();
    let extra = BTreeMap::from([(credential, vec![format!("X509SHA256={fingerprint}")])]);
    let validity = certificate.validity();
    let (from, until) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    Some((User { name, uid, groups, extra }, Wall::from_secs(from), Wall::from_secs(until)))
}

// === impl Authorities ===

impl std::fmt::Debug for Authorities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path = self.source.as_ref().map(|(path, _)| path);
        f.debug_struct("Authorities").field("path", &path).finish_non_exhaustive()
    }
}

impl Authorities {
    /// Blocks on the file.
    pub(crate) fn open(path: &Path) -> Result<Self, TlsError> {
        let files = Files::new(vec![path.to_owned()]);
        let (verifier, roots) = read(path)?;
        let current = ArcSwap::from_pointee(Believed { verifier, roots, generation: 0 });
        Ok(Self { source: Some((path.to_owned(), files)), current })
    }

    /// Those of a text, which is named in errors.
    pub(crate) fn of(text: &[u8], name: &Path) -> Result<Self, TlsError> {
        let (verifier, roots) = parse(text, name)?;
        let current = ArcSwap::from_pointee(Believed { verifier, roots, generation: 0 });
        Ok(Self { source: None, current })
    }

    /// Believes what the file holds now. A new file that cannot be used changes nothing.
    pub(crate) async fn refresh(&self) {
        let Some((known, _)) = self.source.as_ref().filter(|(_, files)| files.have_changed()) else { return };
        let path = known.clone();
        match tokio::task::spawn_blocking(move || read(&path)).await {
            Ok(Ok((verifier, roots))) => {
                let generation = self.current.load().generation + 1;
                self.current.store(Arc::new(Believed { verifier, roots, generation }));
                tracing::info!(path = %known.display(), "the client CA was read anew");
            }
            Ok(Err(error)) => tracing::warn!(%error, "the new client CA is not used"),
            Err(error) => tracing::warn!(%error, "the client CA was not read"),
        }
    }
}

type Read = (Arc<dyn ClientCertVerifier>, Vec<CertificateDer<'static>>);

fn read(path: &Path) -> Result<Read, TlsError> {
    let failed = |why: String| TlsError::File { act: "read the client CA file", path: path.to_owned(), why };
    let text = std::fs::read(path).map_err(|e| failed(e.to_string()))?;
    parse(&text, path)
}

fn parse(text: &[u8], path: &Path) -> Result<Read, TlsError> {
    let failed = |act: &'static str, why: String| TlsError::File { act, path: path.to_owned(), why };
    let roots: Vec<_> = CertificateDer::pem_slice_iter(text)
        .collect::<Result<_, _>>()
        .map_err(|e| failed("read the client CA file", e.to_string()))?;
    let mut store = RootCertStore::empty();
    if store.add_parsable_certificates(roots.clone()).0 == 0 {
        return Err(failed("read the client CA file", "it holds no certificate".to_owned()));
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(store), provider).build();
    verifier
        .map(|v| (v as Arc<dyn ClientCertVerifier>, roots))
        .map_err(|e| failed("use the client CA file", e.to_string()))
}

/// The token a request shows. One that is too long is nobody's.
pub(crate) fn bearer(headers: &HeaderMap) -> Result<Option<String>, Unauthorized> {
    let shown = api::bearer::token(headers);
    let shown = shown.inspect_err(|error| tracing::debug!(%error, "a token is not looked at"));
    Ok(shown.map_err(|_| Unauthorized)?.filter(|t| t.len() <= TOKEN_MAX))
}

/// What a token is remembered by: the token itself is not kept.
pub(crate) fn token_key(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}
