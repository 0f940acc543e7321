//! The certificate that is shown, and the rules of the handshake.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use base::class::{Class, Classify};
use rustls::crypto::{CryptoProvider, SupportedKxGroup, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, SupportedProtocolVersion};
use tokio::sync::watch;

use crate::files::{Files, write_whole};

/// A certificate that somebody else keeps fresh; none until there is one.
pub type Issued = watch::Receiver<Option<Arc<CertifiedKey>>>;

/// Where the certificate comes from.
#[derive(Clone, Debug)]
pub enum CertSource {
    /// tlsCertFile and tlsPrivateKeyFile, read again when they change.
    Files { cert: PathBuf, key: PathBuf },
    /// `<name>.crt` and `<name>.key` in this directory, made for `host` if they are not there.
    SelfSigned { dir: PathBuf, name: &'static str, host: String },
    /// Made for `host`, and forgotten with the process.
    InMemory { host: String },
    /// Signed by the cluster, and renewed.
    Issued(Issued),
}

/// tlsMinVersion, tlsCipherSuites and tlsCurvePreferences.
#[derive(Clone, Debug, Default)]
pub struct TlsRules {
    /// `VersionTLS12` or `VersionTLS13`; older ones are not spoken, and empty is 1.2.
    pub min_version: String,
    /// Names of TLS 1.2 suites; empty is all. Those of 1.3 cannot be chosen.
    pub suites: Vec<String>,
    /// Numbers of key exchanges; empty is all that are usual. Their order does not count, as upstream's.
    pub curves: Vec<i32>,
}

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{act} {}: {why}", .path.display())]
    File { act: &'static str, path: PathBuf, why: String },
    #[error("{0}")]
    Rules(String),
}

impl Classify for TlsError {
    fn class(&self) -> Class {
        Class::Fault
    }
}

/// What is shown in handshakes.
#[derive(Debug)]
pub struct Identity {
    shown: Shown,
    files: Option<(PathBuf, PathBuf, Files)>,
}

#[derive(Debug)]
enum Shown {
    Kept(ArcSwap<CertifiedKey>),
    Issued(Issued),
}

/// HTTP/1.1 under the rules. As upstream's, it does not offer HTTP/2: over that, no stream could be upgraded, and a client
/// that would rather speak it could not exec.
pub fn server_config(identity: Arc<Identity>, rules: &TlsRules) -> Result<ServerConfig, TlsError> {
    let mut provider = aws_lc_rs::default_provider();
    if !rules.suites.is_empty() {
        let asked = |name: &str| rules.suites.iter().any(|s| plain(s) == name);
        provider.cipher_suites.retain(|suite| {
            suite.version() == &rustls::version::TLS13 || asked(&format!("{:?}", suite.suite()))
        });
        for suite in &rules.suites {
            if !known(&provider, suite) {
                tracing::warn!(suite, "a cipher suite is not offered: it is old or unknown");
            }
        }
    }
    if !rules.curves.is_empty() {
        choose_key_exchanges(&mut provider, &rules.curves)?;
    }
    let provider = Arc::new(provider);
    let both: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13, &rustls::version::TLS12];
    let versions = match rules.min_version.as_str() {
        "VersionTLS13" => &both[..1],
        "" | "VersionTLS12" => both,
        older => {
            tracing::warn!(tls_min_version = older, "TLS older than 1.2 is not spoken");
            both
        }
    };
    let mut config = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .map_err(|e| TlsError::Rules(format!("choose TLS versions and cipher suites: {e}")))?
        .with_client_cert_verifier(tls::AnyPeer::new(provider))
        .with_cert_resolver(identity);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Offers these key exchanges only.
fn choose_key_exchanges(provider: &mut CryptoProvider, curves: &[i32]) -> Result<(), TlsError> {
    let number = |group: &&dyn SupportedKxGroup| i32::from(u16::from(group.name()));
    let offered = aws_lc_rs::ALL_KX_GROUPS;
    provider.kx_groups = offered.iter().copied().filter(|group| curves.contains(&number(group))).collect();
    for curve in curves.iter().filter(|curve| !offered.iter().any(|group| number(group) == **curve)) {
        tracing::warn!(curve, "a key exchange is not offered: it is unknown here");
    }
    match provider.kx_groups.is_empty() {
        true => Err(TlsError::Rules(format!("tlsCurvePreferences {curves:?}: none of them is known here"))),
        false => Ok(()),
    }
}

/// Two suites have a second name.
fn plain(suite: &str) -> &str {
    match suite {
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305" => "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305" => "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        name => name,
    }
}

fn known(provider: &CryptoProvider, suite: &str) -> bool {
    // Go's names of the 1.3 suites lack the 13.
    let modern = suite.replacen("TLS_", "TLS13_", 1);
    let names = provider.cipher_suites.iter().map(|s| format!("{:?}", s.suite()));
    names.into_iter().any(|name| name == plain(suite) || name == modern)
}

// === impl Identity ===

impl Identity {
    /// Blocks on files.
    pub fn open(source: CertSource) -> Result<Self, TlsError> {
        let (cert, key) = match source {
            CertSource::Issued(issued) => return Ok(Self { shown: Shown::Issued(issued), files: None }),
            CertSource::Files { cert, key } => (cert, key),
            CertSource::SelfSigned { dir, name, host } => self_signed(&dir, name, &host)?,
            CertSource::InMemory { host } => {
                let rules = |e: &dyn std::fmt::Display| TlsError::Rules(format!("make a certificate: {e}"));
                let (chain, key) = tls::self_signed(&host).map_err(|e| rules(&e))?;
                let pair = certified_key(chain.as_bytes(), key.as_bytes()).map_err(|e| rules(&e))?;
                return Ok(Self { shown: Shown::Kept(ArcSwap::from_pointee(pair)), files: None });
            }
        };
        // Stamped before they are read: a change in between is noticed, if only a second later.
        let files = Files::new(vec![cert.clone(), key.clone()]);
        let pair = read_pair(&cert, &key)?;
        Ok(Self { shown: Shown::Kept(ArcSwap::from_pointee(pair)), files: Some((cert, key, files)) })
    }

    /// Shows what the files hold now. New files that cannot be used change nothing.
    pub async fn refresh(&self) {
        let (Shown::Kept(kept), Some((cert, key, files))) = (&self.shown, &self.files) else { return };
        if !files.have_changed() {
            return;
        }
        let (cert, key) = (cert.clone(), key.clone());
        match tokio::task::spawn_blocking(move || read_pair(&cert, &key)).await {
            Ok(Ok(pair)) => {
                kept.store(Arc::new(pair));
                tracing::info!("the serving certificate was read anew");
            }
            Ok(Err(error)) => tracing::warn!(%error, "the new serving certificate is not used"),
            Err(error) => tracing::warn!(%error, "the serving certificate was not read"),
        }
    }
}

impl Identity {
    /// The certificate that is shown now, where it is kept here.
    pub fn leaf(&self) -> Option<CertificateDer<'static>> {
        match &self.shown {
            Shown::Kept(kept) => kept.load().cert.first().cloned(),
            Shown::Issued(_) => None,
        }
    }
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        match &self.shown {
            Shown::Kept(kept) => Some(kept.load_full()),
            Shown::Issued(issued) => issued.borrow().clone(),
        }
    }
}

/// Joins a chain and its key, both as PEM.
pub fn certified_key(chain: &[u8], key: &[u8]) -> Result<CertifiedKey, String> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(chain)
        .collect::<Result<_, _>>()
        .map_err(|e| format!("the certificate is no PEM: {e}"))?;
    if chain.is_empty() {
        return Err("it holds no certificate".to_owned());
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| format!("the key is no PEM: {e}"))?;
    let key = aws_lc_rs::default_provider()
        .key_provider
        .load_private_key(key)
        .map_err(|e| format!("the key is not understood: {e}"))?;
    let pair = CertifiedKey::new(chain, key);
    match pair.keys_match() {
        // One of the first version cannot be read here; whether it goes with its key is the client's to find out.
        Ok(())
        | Err(
            rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)
            | rustls::Error::InvalidCertificate(_),
        ) => Ok(pair),
        Err(_) => Err("certificate and key do not belong together".to_owned()),
    }
}

fn read_pair(cert: &Path, key: &Path) -> Result<CertifiedKey, TlsError> {
    let read = |path: &Path| {
        fs::read(path).map_err(|e| TlsError::File { act: "read", path: path.to_owned(), why: e.to_string() })
    };
    let pair = certified_key(&read(cert)?, &read(key)?);
    pair.map_err(|why| TlsError::File { act: "use the serving certificate", path: cert.to_owned(), why })
}

/// The pair in `dir`, made if it is missing or unusable, as upstream keeps it.
fn self_signed(dir: &Path, name: &str, host: &str) -> Result<(PathBuf, PathBuf), TlsError> {
    let (cert, key) = (dir.join(format!("{name}.crt")), dir.join(format!("{name}.key")));
    if read_pair(&cert, &key).is_ok() {
        return Ok((cert, key));
    }
    let failed = |act: &'static str, path: &Path| {
        let path = path.to_owned();
        move |e: &dyn std::fmt::Display| TlsError::File { act, path, why: e.to_string() }
    };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(dir)
        .map_err(|e| failed("make the directory", dir)(&e))?;
    let (chain, private) = tls::self_signed(host).map_err(|e| failed("make a certificate in", dir)(&e))?;
    write_whole(&key, private.as_bytes(), 0o600).map_err(|e| failed("write", &key)(&e))?;
    write_whole(&cert, chain.as_bytes(), 0o644).map_err(|e| failed("write", &cert)(&e))?;
    tracing::info!(cert = %cert.display(), "made a self-signed serving certificate");
    Ok((cert, key))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_the_key_exchanges_that_are_named_are_offered() {
        let chosen = |curves: &[i32]| {
            let mut provider = aws_lc_rs::default_provider();
            choose_key_exchanges(&mut provider, curves).map(|()| {
                let mut numbers: Vec<u16> = provider.kx_groups.iter().map(|g| g.name().into()).collect();
                numbers.sort_unstable();
                numbers
            })
        };
        assert_eq!(chosen(&[29, 23]).unwrap(), [23, 29]);
        assert_eq!(chosen(&[4588, 24]).unwrap(), [24, 4588]);
        assert_eq!(chosen(&[29, 1]).unwrap(), [29], "what is unknown is left out");
        assert!(chosen(&[1]).unwrap_err().to_string().contains("tlsCurvePreferences [1]"));
    }
}
