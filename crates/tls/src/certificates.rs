//! What is signed with keys: the one place of the product where certificates are made.

use std::net::IpAddr;
use std::time::Duration;

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use base::time::Wall;
use x509::write::{self, Body};
use x509::{AlternativeNames, Leaf, Subject, Usage, pem};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::FromDer as _;

use crate::key::{CertificateError, Key};

/// A certificate authority: its certificate and its key.
pub struct Ca {
    certificate: Vec<u8>,
    subject: Vec<u8>,
    key_id: Vec<u8>,
    not_after: Wall,
    key: Key,
}

/// Ten years: as long as a machine lives, as upstream's tools choose.
const CA_LIFE: Duration = Duration::from_secs(3650 * 24 * 3600);
/// It begins two years ago: a clock that was ahead at the first start is set back some day, and nobody believes an authority
/// that is yet to begin.
const CA_PAST: i64 = 730 * 24 * 3600;
/// From 1975 to 2200: nobody vouches for what signs itself, so no clock is to mind it either.
const SELF_SIGNED: (Wall, Wall) = (Wall::from_secs(157_766_400), Wall::from_secs(7_258_118_400));

/// A certificate for `host`, a name or an address, that signs itself, and its key; both PEM.
pub fn self_signed(host: &str) -> Result<(String, String), CertificateError> {
    let key = Key::generate()?;
    let names = match host.parse::<IpAddr>() {
        Ok(ip) => AlternativeNames { ips: vec![ip], ..AlternativeNames::default() },
        Err(_) => AlternativeNames { dns: vec![host.to_owned()], ..AlternativeNames::default() },
    };
    let leaf = Leaf {
        subject: Subject::new(host, &[]),
        public_key: key.public_key(),
        names,
        usages: vec![Usage::DigitalSignature, Usage::KeyEncipherment, Usage::ServerAuth],
        not_before: SELF_SIGNED.0,
        not_after: SELF_SIGNED.1,
    };
    let extensions = write::leaf_extensions(&leaf, &write::key_identifier(&leaf.public_key));
    let name = leaf.subject.der();
    let certificate = certify(&key, name, name, &leaf.public_key, SELF_SIGNED, extensions)?;
    Ok((pem::encode("CERTIFICATE", &certificate), key.to_pem()))
}

/// Writes a certificate and signs it.
fn certify(
    key: &Key,
    issuer: &[u8],
    subject: &[u8],
    public_key: &[u8],
    validity: (Wall, Wall),
    extensions: Vec<u8>,
) -> Result<Vec<u8>, CertificateError> {
    let mut serial = [0u8; 16];
    SystemRandom::new().fill(&mut serial).map_err(|_| CertificateError("drawing a serial number"))?;
    let body = Body { serial, issuer, subject, public_key, validity, extensions };
    let body =
        body.to_der(key.algorithm()).ok_or(CertificateError("writing a time outside of the calendar"))?;
    let signature = key.sign(&body)?;
    Ok(write::signed(&body, key.algorithm(), &signature))
}

// === impl Ca ===

impl std::fmt::Debug for Ca {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ca").field("not_after", &self.not_after).finish_non_exhaustive()
    }
}

impl Ca {
    /// A new authority that signs itself.
    pub fn create(common_name: &str, now: Wall) -> Result<Ca, CertificateError> {
        let key = Key::generate()?;
        let subject = Subject::new(common_name, &[]).der().to_vec();
        let public_key = key.public_key();
        let key_id = write::key_identifier(&public_key);
        let not_after = Wall(now.0.saturating_add(i64::try_from(CA_LIFE.as_nanos()).unwrap_or(i64::MAX)));
        let validity = (Wall::from_secs(now.secs() - CA_PAST), not_after);
        let extensions = write::authority_extensions(&key_id);
        let certificate = certify(&key, &subject, &subject, &public_key, validity, extensions)?;
        Ok(Ca { certificate, subject, key_id, not_after, key })
    }

    /// An authority made before.
    pub fn load(certificate: &[u8], key: Key) -> Result<Ca, CertificateError> {
        let (_, parsed) = X509Certificate::from_der(certificate)
            .map_err(|_| CertificateError("reading the CA certificate"))?;
        if parsed.public_key().raw != key.public_key() {
            return Err(CertificateError("matching the CA certificate with its key"));
        }
        let subject = parsed.subject().as_raw().to_vec();
        let not_after = Wall::from_secs(parsed.validity().not_after.timestamp());
        // What points at the authority must say what the authority says of itself: OpenSSL compares the two.
        let own = parsed.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
            _ => None,
        });
        let key_id = own.unwrap_or_else(|| write::key_identifier(parsed.public_key().raw));
        Ok(Ca { certificate: certificate.to_vec(), subject, key_id, not_after, key })
    }

    #[must_use]
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    #[must_use]
    pub fn certificate_pem(&self) -> String {
        pem::encode("CERTIFICATE", &self.certificate)
    }

    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    #[must_use]
    pub fn subject(&self) -> &[u8] {
        &self.subject
    }

    #[must_use]
    pub fn not_after(&self) -> Wall {
        self.not_after
    }

    /// Signs a certificate; it never outlives the authority.
    pub fn issue(&self, leaf: &Leaf) -> Result<Vec<u8>, CertificateError> {
        let extensions = write::leaf_extensions(leaf, &self.key_id);
        let validity = (leaf.not_before, leaf.not_after.min(self.not_after));
        certify(&self.key, &self.subject, leaf.subject.der(), &leaf.public_key, validity, extensions)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use x509::{backdated, verify};
    use x509_parser::certification_request::X509CertificationRequest;

    #[test]
    fn an_issued_certificate_says_what_was_asked_and_verifies() {
        let now = Wall::from_secs(1_800_000_000);
        let ca = Ca::create("longshore-ca", now).unwrap();
        let key = Key::generate().unwrap();
        let leaf = Leaf {
            subject: Subject::new("jane", &["dev", "ops"]),
            public_key: key.public_key(),
            names: AlternativeNames {
                dns: vec!["a.example".into()],
                ips: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
                ..AlternativeNames::default()
            },
            usages: vec![Usage::DigitalSignature, Usage::ClientAuth],
            not_before: backdated(now),
            not_after: Wall::from_secs(now.secs() + 3600),
        };
        let der = ca.issue(&leaf).unwrap();
        let (rest, cert) = X509Certificate::from_der(&der).unwrap();
        assert!(rest.is_empty());
        let (_, issuer) = X509Certificate::from_der(ca.certificate()).unwrap();
        let groups: Vec<_> =
            cert.subject().iter_organization().map(|o| o.as_str().unwrap().to_owned()).collect();
        assert_eq!(groups, ["dev", "ops"]);
        assert_eq!(cert.subject().to_string(), "O=dev, O=ops, CN=jane");
        assert_eq!(cert.issuer(), issuer.subject());
        assert_eq!(cert.validity().not_after.timestamp(), now.secs() + 3600);
        assert_eq!(cert.subject_alternative_name().unwrap().unwrap().value.general_names.len(), 3);
        assert!(cert.extended_key_usage().unwrap().unwrap().value.client_auth);
        assert!(!cert.extended_key_usage().unwrap().unwrap().value.server_auth);
        assert!(cert.key_usage().unwrap().unwrap().value.digital_signature());
        assert!(issuer.key_usage().unwrap().unwrap().value.key_cert_sign());
        assert!(issuer.is_ca() && !cert.is_ca());
    }

    #[test]
    fn a_leaf_never_outlives_its_authority() {
        let now = Wall::from_secs(1_800_000_000);
        let ca = Ca::create("ca", now).unwrap();
        let leaf = Leaf {
            subject: Subject::new("x", &[]),
            public_key: Key::generate().unwrap().public_key(),
            names: AlternativeNames::default(),
            usages: vec![],
            not_before: now,
            not_after: Wall::from_secs(now.secs() + 20 * 365 * 24 * 3600),
        };
        let der = ca.issue(&leaf).unwrap();
        let (_, cert) = X509Certificate::from_der(&der).unwrap();
        assert_eq!(cert.validity().not_after.timestamp(), ca.not_after().secs());
    }

    #[test]
    fn an_authority_of_any_kind_signs_and_is_pointed_at_by_its_own_identifier() {
        let now = Wall::from_secs(1_800_000_000);
        for text in crate::key::tests::of_every_kind() {
            let key = Key::from_pem(text.as_bytes()).unwrap();
            let (subject, public_key) = (Subject::new("their-ca", &[]), key.public_key());
            let theirs = [7u8; 20];
            let validity = (now, Wall::from_secs(now.secs() + 3600));
            let name = subject.der();
            let extensions = write::authority_extensions(&theirs);
            let certificate = certify(&key, name, name, &public_key, validity, extensions).unwrap();
            let ca = Ca::load(&certificate, key).unwrap();
            let leaf = Leaf {
                subject: Subject::new("x", &[]),
                public_key: Key::generate().unwrap().public_key(),
                names: AlternativeNames::default(),
                usages: vec![Usage::ClientAuth],
                not_before: now,
                not_after: now,
            };
            let der = ca.issue(&leaf).unwrap();
            let (_, issuer) = X509Certificate::from_der(&certificate).unwrap();
            let (_, issued) = X509Certificate::from_der(&der).unwrap();
            assert!(verify::certificate_signature(&issued, issuer.public_key()));
            let points_at = issued.extensions().iter().find_map(|e| match e.parsed_extension() {
                ParsedExtension::AuthorityKeyIdentifier(id) => {
                    id.key_identifier.as_ref().map(|id| id.0.to_vec())
                }
                _ => None,
            });
            assert_eq!(points_at, Some(theirs.to_vec()));
        }
    }

    #[test]
    fn a_request_says_what_its_holder_says_and_is_signed_with_its_key() {
        let key = Key::generate().unwrap();
        let names = AlternativeNames {
            dns: vec!["n1.example".into()],
            ips: vec!["10.0.0.1".parse().unwrap()],
            ..AlternativeNames::default()
        };
        for names in [names, AlternativeNames::default()] {
            let text = key.request(&Subject::new("n1", &["a", "b"]), &names).unwrap();
            let (label, der) = pem::decode(&text).remove(0);
            assert_eq!(label, "CERTIFICATE REQUEST");
            let (rest, request) = X509CertificationRequest::from_der(&der).unwrap();
            assert!(rest.is_empty());
            let info = &request.certification_request_info;
            assert_eq!(info.subject.to_string(), "O=a, O=b, CN=n1");
            assert_eq!(info.subject_pki.raw, key.public_key());
            let (algorithm, signature) =
                (&request.signature_algorithm.algorithm, &request.signature_value.data);
            assert!(verify::is_signed(&info.subject_pki, algorithm, info.raw, signature));
            assert_eq!(
                request.requested_extensions().into_iter().flatten().count(),
                usize::from(!names.is_empty())
            );
        }
    }

    #[test]
    fn what_signs_itself_is_good_for_its_host_whatever_the_clock_says() {
        for host in ["node-1", "10.0.0.1", "fd00::1"] {
            let (chain, key) = self_signed(host).unwrap();
            let (_, der) = pem::decode(&chain).remove(0);
            let (_, cert) = X509Certificate::from_der(&der).unwrap();
            assert!(verify::certificate_signature(&cert, cert.public_key()));
            assert_eq!(cert.public_key().raw, Key::from_pem(key.as_bytes()).unwrap().public_key());
            assert!(cert.extended_key_usage().unwrap().unwrap().value.server_auth);
            assert_eq!(cert.validity().not_before.timestamp(), 157_766_400);
            let der = rustls::pki_types::CertificateDer::from(der.as_slice());
            let name = rustls::pki_types::ServerName::try_from(host).unwrap();
            let parsed = rustls::server::ParsedCertificate::try_from(&der).unwrap();
            rustls::client::verify_server_name(&parsed, &name).unwrap();
        }
    }
}
