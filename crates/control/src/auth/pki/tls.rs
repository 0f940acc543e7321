//! TLS ends: the certificate we show, changed while we serve, and the client certificates we ask for.

use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};

use super::PkiError;
use super::pem;

/// The certificate shown to clients; a new one is shown from the next handshake on.
#[derive(Debug)]
pub struct Serving(ArcSwap<CertifiedKey>);

/// The authorities whose client certificates we believe.
pub struct ClientCas {
    current: ArcSwap<Believed>,
}

struct Believed {
    verifier: Arc<dyn ClientCertVerifier>,
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

// === impl ClientCas ===

impl std::fmt::Debug for ClientCas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientCas").field("generation", &self.generation()).finish()
    }
}

impl ClientCas {
    pub fn new(roots: &[CertificateDer<'static>]) -> Result<ClientCas, PkiError> {
        let believed = Believed { verifier: verifier(roots)?, generation: 0 };
        Ok(ClientCas { current: ArcSwap::from_pointee(believed) })
    }

    pub(super) fn believe(&self, roots: &[CertificateDer<'static>]) -> Result<(), PkiError> {
        let next = Believed { verifier: verifier(roots)?, generation: self.generation() + 1 };
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
        self.current.load().verifier.verify_client_cert(leaf, rest, now).map(|_| ())
    }
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
