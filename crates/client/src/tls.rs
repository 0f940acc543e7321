//! Whom to trust, and the certificate we show.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, InconsistentKeys, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::kubeconfig::Source;

/// PEM of a certificate chain and its key.
pub(crate) type KeyPair = (Vec<u8>, Vec<u8>);

/// A TLS set-up, made anew when a certificate changes.
pub(crate) fn client_config(
    ca: Option<&Source>,
    insecure: bool,
    identity: Option<&KeyPair>,
) -> Result<ClientConfig, String> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?;
    let builder = if insecure {
        // The user asked for it.
        builder.dangerous().with_custom_certificate_verifier(tls::AnyPeer::new(provider.clone()))
    } else {
        let roots = match ca {
            Some(ca) => roots(ca)?,
            None => system_roots()?,
        };
        builder.with_root_certificates(roots)
    };
    let mut config = match identity {
        Some((chain, key)) => {
            let (chain, key) = read_pair(chain, key)?;
            let pair = certify(&provider, chain, key).map_err(|e| format!("client certificate: {e}"))?;
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair)))
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// The roots of the machine.
fn system_roots() -> Result<RootCertStore, String> {
    let roots = tls::system_roots();
    match roots.is_empty() {
        true => Err("the kubeconfig names no certificate authority, and the machine has none".to_owned()),
        false => Ok(roots),
    }
}

fn roots(ca: &Source) -> Result<RootCertStore, String> {
    let pem = ca.read().map_err(|e| e.to_string())?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|e| format!("certificate authority {ca:?}: {e}"))?;
        roots.add(certificate).map_err(|e| format!("certificate authority {ca:?}: {e}"))?;
    }
    if roots.is_empty() {
        Err(format!("certificate authority {ca:?}: holds no certificate"))
    } else {
        Ok(roots)
    }
}

fn read_pair(
    chain: &[u8],
    key: &[u8],
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), String> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(chain)
        .collect::<Result<_, _>>()
        .map_err(|e| format!("client certificate: {e}"))?;
    if chain.is_empty() {
        return Err("client certificate: holds no certificate".to_owned());
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|e| format!("client key: {e}"))?;
    Ok((chain, key))
}

/// Certificates of the first version, as `openssl x509 -req` makes them without being told more, cannot be read here, but
/// servers take them: whether one goes with its key is theirs to find out.
fn certify(
    provider: &CryptoProvider,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<CertifiedKey, rustls::Error> {
    let pair = CertifiedKey::new(chain, provider.key_provider.load_private_key(key)?);
    match pair.keys_match() {
        Ok(())
        | Err(
            rustls::Error::InconsistentKeys(InconsistentKeys::Unknown) | rustls::Error::InvalidCertificate(_),
        ) => Ok(pair),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Of the first version, and good for nothing but this test.
    const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----
MIIBHTCBwwIUNm1D8Lz70tEj7okJdCzMTGD+0EkwCgYIKoZIzj0EAwIwEDEOMAwG
A1UEAwwFYWRtaW4wIBcNMjYxMTE2MDU0NTQwWhgPMjEyNjEwMjMwNTQ1NDBaMBAx
DjAMBgNVBAMMBWFkbWluMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEv2elwsVc
lyBJw70CsAT4CK8q9gBmqczQVuDiM2NodWrcUuuAkl9W0ACZd3PjDTyequbby+t7
pZer0ZfWrw159TAKBggqhkjOPQQDAgNJADBGAiEAvR+jfJn6UFOXdLPZoG6XMohU
P6DWENeA2rd5sdfpdeQCIQDUwb5n7UEs6WnzmnYMLmu1+DYTQoDF8i/ieiLmh74E
rg==
-----END CERTIFICATE-----
";
    const KEY: &str = "\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQggwHSpXnuJJlMXiET
eRotQ4vdjyhu3G3fhafEmxYYByyhRANCAAS/Z6XCxVyXIEnDvQKwBPgIryr2AGap
zNBW4OIzY2h1atxS64CSX1bQAJl3c+MNPJ6q5tvL63ull6vRl9avDXn1
-----END PRIVATE KEY-----
";

    #[test]
    fn certificates_of_the_first_version_are_shown() {
        let pair = (CERTIFICATE.as_bytes().to_vec(), KEY.as_bytes().to_vec());
        client_config(None, true, Some(&pair)).unwrap();
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let [a, b] = ["a", "b"].map(|name| rcgen::generate_simple_self_signed([name.to_owned()]).unwrap());
        let with = |key: &rcgen::KeyPair| (a.cert.pem().into_bytes(), key.serialize_pem().into_bytes());
        client_config(None, true, Some(&with(&a.signing_key))).unwrap();
        assert!(client_config(None, true, Some(&with(&b.signing_key))).is_err());
    }
}
