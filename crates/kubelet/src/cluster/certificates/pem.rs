//! Keys, requests and certificates.

use std::net::IpAddr;

use base::time::Wall;
use kubelet_core::node::certificate::{Held, Names};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tls::Key;
use x509::{AlternativeNames, Subject, pem};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// A signed request for a certificate with these names, PEM.
pub(super) fn request(key: &Key, names: &Names) -> Result<String, String> {
    let organizations: Vec<&str> = names.organizations.iter().map(String::as_str).collect();
    let alternatives = AlternativeNames {
        dns: names.dns.iter().cloned().collect(),
        ips: names.ips.iter().copied().collect(),
        ..AlternativeNames::default()
    };
    let subject = Subject::new(&names.common_name, &organizations);
    key.request(&subject, &alternatives).map_err(|e| format!("write a certificate request: {e}"))
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
        if chain == 0 && parsed.public_key().raw != key.public_key() {
            return Err("the certificate that was signed is for another key".to_owned());
        }
        chain += 1;
        if chain > CHAIN_MAX {
            return Err(format!("the answer has more than {CHAIN_MAX} certificates"));
        }
        text.push_str(&pem::encode("CERTIFICATE", &der));
    }
    let held = read(text.as_bytes())?;
    Ok((text, held))
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
    use rcgen::{CertificateParams, DnType, KeyPair};

    #[test]
    fn an_answer_is_taken_for_its_own_key_only_and_nothing_but_certificates_is_kept() {
        let pair = || {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec!["n1".to_owned()]).unwrap();
            let ours = Key::from_pem(key.serialize_pem().as_bytes()).unwrap();
            (params.self_signed(&key).unwrap().pem(), ours)
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
        let pem = request(&Key::generate().unwrap(), &names).unwrap();
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
