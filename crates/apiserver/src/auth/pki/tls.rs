//! TLS ends: the certificate we show, changed while we serve, and the client certificates we ask for.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::client::ResolvesClientCert;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig, SignatureScheme};
use x509_parser::prelude::FromDer as _;

use super::PkiError;
use super::pem;

/// The certificate shown to clients; a new one is shown from the next handshake on.
#[derive(Debug)]
pub struct Serving(ArcSwap<CertifiedKey>);

/// The certificate we show as a client; a new one is shown from the next handshake on.
#[derive(Debug)]
pub struct Identity(ArcSwap<CertifiedKey>);

/// The authorities whose client certificates we believe.
pub struct ClientCas {
    current: ArcSwap<Believed>,
}

struct Believed {
    verifier: Arc<dyn ClientCertVerifier>,
    roots: Vec<CertificateDer<'static>>,
    generation: u64,
}

/// What `ServerConfig` needs for one listener: HTTP/2 and HTTP/1.1 over TLS 1.2 and 1.3.
pub(super) fn server_config(serving: Arc<Serving>) -> Result<ServerConfig, PkiError> {
    let provider = provider();
    let mut config = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|_| PkiError::Crypto("choosing TLS versions"))?
        .with_client_cert_verifier(tls::AnyPeer::new(provider))
        .with_cert_resolver(serving);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Joins a chain and its key, both as PEM.
pub(super) fn certified_key(chain: &str, key: &str) -> Result<CertifiedKey, PkiError> {
    let certificates: Vec<_> = certificates(chain);
    if certificates.is_empty() {
        return Err(PkiError::Crypto("finding a certificate in the certificate file"));
    }
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
        .map_err(|_| PkiError::Crypto("finding a private key in the key file"))?;
    let key = provider()
        .key_provider
        .load_private_key(key)
        .map_err(|_| PkiError::Crypto("reading the private key"))?;
    let pair = CertifiedKey::new(certificates, key);
    match pair.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => Ok(pair),
        Err(_) => Err(PkiError::Crypto("matching the certificate with its key")),
    }
}

pub(super) fn certificates(text: &str) -> Vec<CertificateDer<'static>> {
    pem::decode(text)
        .into_iter()
        .filter(|(label, _)| label == "CERTIFICATE")
        .map(|(_, der)| CertificateDer::from(der))
        .collect()
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

// === impl Serving ===

impl Serving {
    pub(super) fn new(first: CertifiedKey) -> Arc<Serving> {
        Arc::new(Serving(ArcSwap::from_pointee(first)))
    }

    pub(super) fn show(&self, next: CertifiedKey) {
        self.0.store(Arc::new(next));
    }

    /// The certificate shown now.
    #[must_use]
    pub fn leaf(&self) -> Option<CertificateDer<'static>> {
        self.0.load().cert.first().cloned()
    }
}

impl ResolvesServerCert for Serving {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

// === impl Identity ===

impl Identity {
    pub(super) fn new(first: CertifiedKey) -> Arc<Identity> {
        Arc::new(Identity(ArcSwap::from_pointee(first)))
    }

    pub(super) fn show(&self, next: CertifiedKey) {
        self.0.store(Arc::new(next));
    }

    /// The certificate shown now.
    #[must_use]
    pub fn leaf(&self) -> Option<CertificateDer<'static>> {
        self.0.load().cert.first().cloned()
    }
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _authorities: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let shown = self.0.load_full();
        shown.key.choose_scheme(schemes).is_some().then_some(shown)
    }

    fn has_certs(&self) -> bool {
        true
    }
}

// === impl ClientCas ===

impl std::fmt::Debug for ClientCas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientCas").field("generation", &self.generation()).finish()
    }
}

impl ClientCas {
    pub fn new(roots: &[CertificateDer<'static>]) -> Result<ClientCas, PkiError> {
        let believed = Believed { verifier: verifier(roots)?, roots: roots.to_vec(), generation: 0 };
        Ok(ClientCas { current: ArcSwap::from_pointee(believed) })
    }

    pub(super) fn believe(&self, roots: &[CertificateDer<'static>]) -> Result<(), PkiError> {
        let generation = self.generation() + 1;
        let next = Believed { verifier: verifier(roots)?, roots: roots.to_vec(), generation };
        self.current.store(Arc::new(next));
        Ok(())
    }

    /// Rises when the set of authorities changes: what was verified before must be verified again.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.current.load().generation
    }

    /// Whether the chain ends at an authority of ours and is meant for clients.
    pub fn verify(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Result<(), rustls::Error> {
        let (leaf, rest) = chain.split_first().ok_or(rustls::Error::NoCertificatesPresented)?;
        let believed = self.current.load();
        let Err(error) = believed.verifier.verify_client_cert(leaf, rest, now) else { return Ok(()) };
        let algorithms = provider().signature_verification_algorithms;
        let by_root = |root| ::tls::is_first_version_by(leaf, root, &algorithms);
        match believed.roots.iter().any(by_root) && is_good_at(leaf, now) {
            true => Ok(()),
            false => Err(error),
        }
    }
}

fn is_good_at(certificate: &CertificateDer<'_>, now: UnixTime) -> bool {
    let Ok((_, certificate)) = x509_parser::certificate::X509Certificate::from_der(certificate) else {
        return false;
    };
    let (validity, now) = (certificate.validity(), i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    (validity.not_before.timestamp()..=validity.not_after.timestamp()).contains(&now)
}

fn verifier(roots: &[CertificateDer<'static>]) -> Result<Arc<dyn ClientCertVerifier>, PkiError> {
    let mut store = RootCertStore::empty();
    let (added, _) = store.add_parsable_certificates(roots.iter().cloned());
    if added == 0 {
        return Err(PkiError::Crypto("finding an authority in the client CA file"));
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(store), provider())
        .build()
        .map(|v| v as Arc<dyn ClientCertVerifier>)
        .map_err(|_| PkiError::Crypto("building the client certificate verifier"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn certificates_of_the_first_version_are_believed_while_they_are_good() {
        macro_rules! data {
            ($name:literal) => {
                include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../tls/testdata/", $name))
            };
        }
        let read = |pem: &[u8]| CertificateDer::from_pem_slice(pem).unwrap();
        let good = read(data!("first-version.pem"));
        let expired = read(data!("first-version-expired.pem"));
        let cas = ClientCas::new(&[read(data!("authority.pem"))]).unwrap();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(1_800_000_000));
        assert!(cas.verify(&[good], now).is_ok());
        assert!(cas.verify(&[expired], now).is_err());
    }
}
