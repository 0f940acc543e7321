//! A connection to a registry: TCP, a proxy on the way, TLS.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use client::{Proxies, Wire};
use http::Uri;
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::hosts::Server;

/// Address, TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// How one host is met. The second set-up is for where it sends us on to: that one learns nothing of who we are.
#[derive(Clone, Debug)]
pub(crate) struct Trust {
    own: Arc<ClientConfig>,
    others: Arc<ClientConfig>,
    pub(crate) may_be_plain: bool,
}

// === impl Trust ===

impl Trust {
    /// Reads the files that were named; it blocks. The error names the file.
    pub(crate) fn of(server: &Server) -> Result<Trust, String> {
        let mut roots = tls::system_roots();
        for file in &server.roots {
            let mut any = false;
            for certificate in CertificateDer::pem_file_iter(file).map_err(|e| named(file, e))? {
                roots.add(certificate.map_err(|e| named(file, e))?).map_err(|e| named(file, e))?;
                any = true;
            }
            if !any {
                return Err(named(file, "holds no certificate"));
            }
        }
        // What answers on this machine itself is this machine's.
        let skip = server.skip_verify || server.may_be_plain;
        Ok(Trust {
            own: Arc::new(config(&roots, skip, server)?),
            others: Arc::new(config(&roots, skip, &Server::default())?),
            may_be_plain: server.may_be_plain,
        })
    }
}

fn config(roots: &RootCertStore, skip_verify: bool, server: &Server) -> Result<ClientConfig, String> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?;
    let builder = if skip_verify {
        builder.dangerous().with_custom_certificate_verifier(tls::AnyPeer::new(provider))
    } else {
        builder.with_root_certificates(roots.clone())
    };
    let Some((certificate, key)) = server.identities.first() else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = CertificateDer::pem_file_iter(certificate).map_err(|e| named(certificate, e))?;
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(|e| named(certificate, e))?;
    let key = key.as_ref().unwrap_or(certificate);
    let private = PrivateKeyDer::from_pem_file(key).map_err(|e| named(key, e))?;
    builder.with_client_auth_cert(chain, private).map_err(|e| named(key, e))
}

fn named(file: &Path, why: impl std::fmt::Display) -> String {
    format!("{}: {why}", file.display())
}

/// Connects to where the URL leads. `is_own`: it is the host itself, and not where it sent us.
pub(crate) async fn connect(
    uri: &Uri,
    proxies: &Proxies,
    trust: &Trust,
    is_own: bool,
) -> io::Result<Box<dyn Wire>> {
    let tried = tokio::time::timeout(CONNECT_TIMEOUT, async {
        if uri.scheme_str() != Some("https") {
            return Ok(Box::new(tcp(uri, proxies).await?) as Box<dyn Wire>);
        }
        match secure(uri, proxies, trust, is_own).await {
            // It speaks no TLS, and is here.
            Err(_) if is_own && trust.may_be_plain => Ok(Box::new(tcp(uri, proxies).await?) as Box<dyn Wire>),
            other => other,
        }
    });
    tried.await.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no connection within 30 s")))
}

async fn secure(uri: &Uri, proxies: &Proxies, trust: &Trust, is_own: bool) -> io::Result<Box<dyn Wire>> {
    let (host, _) = place(uri);
    let name = ServerName::try_from(host).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
    let config = if is_own { &trust.own } else { &trust.others };
    let stream = TlsConnector::from(config.clone()).connect(name, tcp(uri, proxies).await?).await?;
    Ok(Box::new(stream))
}

async fn tcp(uri: &Uri, proxies: &Proxies) -> io::Result<TcpStream> {
    let (host, port) = place(uri);
    let proxy = proxies.on_the_way_to(&uri.to_string());
    match proxy.map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))? {
        Some(proxy) => proxy.connect(&host, port).await,
        None => TcpStream::connect((host.as_str(), port)).await,
    }
}

fn place(uri: &Uri) -> (String, u16) {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let usual = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    (host, uri.port_u16().unwrap_or(usual))
}
