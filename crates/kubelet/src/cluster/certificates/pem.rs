//! Keys, requests and certificates.

use std::net::IpAddr;

use base::time::Wall;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kubelet_core::node::certificate::{Held, Names};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// A private key; never shown.
pub(super) struct Key(KeyPair);

// === impl Key ===

impl Key {
    /// A new one: ECDSA on P-256.
    pub(super) fn generate() -> Result<Key, String> {
        KeyPair::generate().map(Key).map_err(|e| format!("generate a key: {e}"))
    }

    /// One that was kept.
    pub(super) fn read(pem: &[u8]) -> Result<Key, String> {
        let der = PrivateKeyDer::from_pem_slice(pem).map_err(|e| format!("read a key: {e}"))?;
        KeyPair::try_from(&der).map(Key).map_err(|e| format!("read a key: {e}"))
    }

    pub(super) fn to_pem(&self) -> String {
        self.0.serialize_pem()
    }

    /// DER of its public half.
    pub(super) fn public(&self) -> Vec<u8> {
        use rcgen::PublicKeyData;
        self.0.subject_public_key_info()
    }

    /// A signed request for a certificate with these names, PEM.
    pub(super) fn request(&self, names: &Names) -> Result<String, String> {
        let failed = |e: rcgen::Error| format!("write a certificate request: {e}");
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for organization in &names.organizations {
            params.distinguished_name.push(DnType::OrganizationName, organization.as_str());
        }
        params.distinguished_name.push(DnType::CommonName, names.common_name.as_str());
        let dns = names.dns.iter().map(|name| name.clone().try_into().map(SanType::DnsName));
        let mut all: Vec<SanType> = dns.collect::<Result<_, _>>().map_err(failed)?;
        all.extend(names.ips.iter().map(|ip| SanType::IpAddress(*ip)));
        params.subject_alt_names = all;
        params.serialize_request(&self.0).and_then(|r| r.pem()).map_err(failed)
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Certificates of one answer: a node's own, and those that lead to an authority.
const CHAIN_MAX: usize = 16;

/// What a signer answered: the certificates in it and nothing else, PEM, and what the first one says. An answer that is
/// not for this key would take the node's identity away instead of renewing it.
pub(super) fn signed(answer: &str, key: &Key) -> Result<(String, Held), String> {
    let (mut text, mut chain) = (String::new(), 0);
    for der in CertificateDer::pem_slice_iter(answer.as_bytes()) {
        let der = der.map_err(|e| format!("read a certificate: {e}"))?;
        let (_, parsed) = X509Certificate::from_der(&der).map_err(|e| format!("read a certificate: {e}"))?;
        if chain == 0 && parsed.public_key().raw != key.public() {
            return Err("the certificate that was signed is for another key".to_owned());
        }
        chain += 1;
        if chain > CHAIN_MAX {
            return Err(format!("the answer has more than {CHAIN_MAX} certificates"));
        }
        put(&mut text, &der);
    }
    let held = read(text.as_bytes())?;
    Ok((text, held))
}

fn put(text: &mut String, der: &[u8]) {
    text.push_str("-----BEGIN CERTIFICATE-----\n");
    for line in STANDARD.encode(der).as_bytes().chunks(64) {
        text.push_str(&String::from_utf8_lossy(line));
        text.push('\n');
    }
    text.push_str("-----END CERTIFICATE-----\n");
}

/// The first certificate of a PEM text, and when the first of all ends: a chain is as good as its weakest link.
pub(super) fn read(pem: &[u8]) -> Result<Held, String> {
    let mut held: Option<Held> = None;
    for der in CertificateDer::pem_slice_iter(pem) {
        let der = der.map_err(|e| format!("read a certificate: {e}"))?;
        let (_, parsed) = X509Certificate::from_der(&der).map_err(|e| format!("read a certificate: {e}"))?;
        let one = describe(&parsed);
        held = Some(match held {
            Some(leaf) => Held { not_after: leaf.not_after.min(one.not_after), ..leaf },
            None => one,
        });
    }
    held.ok_or_else(|| "there is no certificate in it".to_owned())
}

fn describe(parsed: &X509Certificate<'_>) -> Held {
    let texts = |all: Vec<&x509_parser::x509::AttributeTypeAndValue<'_>>| -> Vec<String> {
        all.iter().filter_map(|a| a.as_str().ok()).map(str::to_owned).collect()
    };
    let subject = parsed.subject();
    let mut names = Names {
        common_name: texts(subject.iter_common_name().collect()).pop().unwrap_or_default(),
        organizations: texts(subject.iter_organization().collect()).into_iter().collect(),
        ..Names::default()
    };
    if let Ok(Some(alternatives)) = parsed.subject_alternative_name() {
        for name in &alternatives.value.general_names {
            match name {
                GeneralName::DNSName(text) => {
                    names.dns.insert((*text).to_owned());
                }
                GeneralName::IPAddress(bytes) => names.ips.extend(ip(bytes)),
                _ => {}
            }
        }
    }
    let validity = parsed.validity();
    Held {
        names,
        not_before: Wall::from_secs(validity.not_before.timestamp()),
        not_after: Wall::from_secs(validity.not_after.timestamp()),
    }
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use kubelet_core::node::certificate::client_names;

    #[test]
    fn a_kept_key_is_the_same_key() {
        let key = Key::generate().unwrap();
        let again = Key::read(key.to_pem().as_bytes()).unwrap();
        assert_eq!(key.public(), again.public());
        assert!(Key::read(b"nonsense").is_err());
        assert_eq!(format!("{key:?}"), "Key(..)");
    }

    #[test]
    fn an_answer_is_taken_for_its_own_key_only_and_nothing_but_certificates_is_kept() {
        let pair = || {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec!["n1".to_owned()]).unwrap();
            (params.self_signed(&key).unwrap().pem(), Key(key))
        };
        let ((mine, key), (other, foreign)) = (pair(), pair());
        let (kept, held) = signed(&format!("# hello\n{}{mine}{other}", foreign.to_pem()), &key).unwrap();
        assert!(!kept.contains("PRIVATE") && !kept.contains("hello"), "{kept}");
        assert_eq!(kept.matches("BEGIN CERTIFICATE").count(), 2);
        assert_eq!(read(mine.as_bytes()).unwrap().names, held.names);
        for (answer, want) in [
            (other.clone(), "the certificate that was signed is for another key"),
            (format!("{other}{mine}"), "the certificate that was signed is for another key"),
            (mine.repeat(17), "the answer has more than 16 certificates"),
            (foreign.to_pem(), "there is no certificate in it"),
            (String::new(), "there is no certificate in it"),
        ] {
            assert_eq!(signed(&answer, &key).unwrap_err(), want);
        }
        let torn = mine.replace("MII", "MIJ");
        assert!(signed(&torn, &key).unwrap_err().starts_with("read a certificate: "));
    }

    #[test]
    fn a_request_carries_its_names() {
        use x509_parser::certification_request::X509CertificationRequest;
        let mut names = client_names("n1");
        names.dns.insert("n1.example".into());
        names.ips.insert("10.0.0.1".parse().unwrap());
        let pem = Key::generate().unwrap().request(&names).unwrap();
        assert!(pem.starts_with("-----BEGIN CERTIFICATE REQUEST-----"));
        let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap();
        let (_, request) = X509CertificationRequest::from_der(&block.contents).unwrap();
        let subject = request.certification_request_info.subject.to_string();
        assert_eq!(subject, "O=system:nodes, CN=system:node:n1");
        assert!(request.requested_extensions().unwrap().count() > 0);
    }

    #[test]
    fn a_certificate_says_whose_it_is_and_for_how_long() {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["n1".to_owned(), "fd00::1".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, "system:node:n1");
        params.not_after = rcgen::date_time_ymd(2031, 1, 2);
        let pem = params.self_signed(&key).unwrap().pem();
        let held = read(pem.as_bytes()).unwrap();
        assert_eq!(held.names.common_name, "system:node:n1");
        assert_eq!(held.names.dns, ["n1".to_owned()].into());
        assert_eq!(held.names.ips, ["fd00::1".parse().unwrap()].into());
        assert_eq!(held.not_after.secs(), 1_925_078_400);
        assert_eq!(read(b"").unwrap_err(), "there is no certificate in it");
    }
}
