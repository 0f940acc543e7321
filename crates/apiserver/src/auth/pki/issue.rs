//! Issuing certificates: the one place that signs with a CA key.

use std::time::Duration;

use aws_lc_rs::rand::{SecureRandom, SystemRandom};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair};
use base::time::Wall;
use x509_parser::prelude::FromDer;

use super::PkiError;
use apiserver_core::x509::{Leaf, Subject, Usage, der, pem};

/// A private key (P-256) and the public key it belongs to.
pub struct Key {
    pkcs8: Vec<u8>,
    pair: EcdsaKeyPair,
}

/// A certificate authority: its certificate and its key.
pub struct Ca {
    certificate: Vec<u8>,
    subject: Vec<u8>,
    key_id: Vec<u8>,
    not_after: Wall,
    key: Key,
}

const ECDSA_WITH_SHA256: &[u64] = &[1, 2, 840, 10045, 4, 3, 2];
const EC_PUBLIC_KEY: &[u64] = &[1, 2, 840, 10045, 2, 1];
const PRIME256V1: &[u64] = &[1, 2, 840, 10045, 3, 1, 7];
const SUBJECT_KEY_ID: &[u64] = &[2, 5, 29, 14];
const KEY_USAGE: &[u64] = &[2, 5, 29, 15];
const SUBJECT_ALT_NAME: &[u64] = &[2, 5, 29, 17];
const BASIC_CONSTRAINTS: &[u64] = &[2, 5, 29, 19];
const AUTHORITY_KEY_ID: &[u64] = &[2, 5, 29, 35];
const EXTENDED_KEY_USAGE: &[u64] = &[2, 5, 29, 37];
const SERVER_AUTH: &[u64] = &[1, 3, 6, 1, 5, 5, 7, 3, 1];
const CLIENT_AUTH: &[u64] = &[1, 3, 6, 1, 5, 5, 7, 3, 2];

/// Ten years: as long as a machine lives, as upstream's tools choose.
const CA_LIFE: Duration = Duration::from_secs(3650 * 24 * 3600);
/// It begins two years ago: a clock that was ahead at the first start is set back some day, and nobody believes an authority
/// that is yet to begin.
const CA_PAST: i64 = 730 * 24 * 3600;

// === impl Key ===

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    pub fn generate() -> Result<Key, PkiError> {
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new())
            .map_err(|_| PkiError::Crypto("generating a key"))?;
        Key::from_pkcs8(document.as_ref())
    }

    pub fn from_pkcs8(der: &[u8]) -> Result<Key, PkiError> {
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, der)
            .map_err(|_| PkiError::Crypto("reading a P-256 key"))?;
        Ok(Key { pkcs8: der.to_vec(), pair })
    }

    #[must_use]
    pub fn to_pem(&self) -> String {
        pem::encode("PRIVATE KEY", &self.pkcs8)
    }

    #[must_use]
    pub fn pkcs8(&self) -> &[u8] {
        &self.pkcs8
    }

    /// DER of the SubjectPublicKeyInfo.
    #[must_use]
    pub fn public_key(&self) -> Vec<u8> {
        let algorithm = der::sequence(&[&der::oid(EC_PUBLIC_KEY), &der::oid(PRIME256V1)]);
        der::sequence(&[&algorithm, &der::bits(0, self.pair.public_key().as_ref())])
    }

    pub(in crate::auth) fn sign(&self, message: &[u8]) -> Result<Vec<u8>, PkiError> {
        let signature = self
            .pair
            .sign(&SystemRandom::new(), message)
            .map_err(|_| PkiError::Crypto("signing a certificate"))?;
        Ok(signature.as_ref().to_vec())
    }
}

// === impl Ca ===

impl std::fmt::Debug for Ca {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ca").field("not_after", &self.not_after).finish_non_exhaustive()
    }
}

impl Ca {
    /// A new authority that signs itself.
    pub fn create(common_name: &str, now: Wall) -> Result<Ca, PkiError> {
        let key = Key::generate()?;
        let subject = Subject::new(common_name, &[]);
        let public_key = key.public_key();
        let key_id = key_identifier(&public_key);
        let not_after = Wall(now.0.saturating_add(i64::try_from(CA_LIFE.as_nanos()).unwrap_or(i64::MAX)));
        let extensions = [
            // keyCertSign, cRLSign and digitalSignature.
            extension(KEY_USAGE, true, &der::bits(1, &[0b1000_0110])),
            extension(BASIC_CONSTRAINTS, true, &der::sequence(&[&der::value(der::BOOLEAN, &[0xff])])),
            extension(SUBJECT_KEY_ID, false, &der::value(der::OCTET_STRING, &key_id)),
        ];
        let body = certificate_body(
            subject.der(),
            subject.der(),
            &public_key,
            (Wall::from_secs(now.secs() - CA_PAST), not_after),
            &extensions.concat(),
        )?;
        let certificate = signed(&body, &key)?;
        Ok(Ca { certificate, subject: subject.der().to_vec(), key_id, not_after, key })
    }

    /// An authority made before.
    pub fn load(certificate: &[u8], key: Key) -> Result<Ca, PkiError> {
        let (_, parsed) = x509_parser::certificate::X509Certificate::from_der(certificate)
            .map_err(|_| PkiError::Crypto("reading the CA certificate"))?;
        if parsed.public_key().raw != key.public_key() {
            return Err(PkiError::Crypto("matching the CA certificate with its key"));
        }
        let subject = parsed.subject().as_raw().to_vec();
        let not_after = Wall::from_secs(parsed.validity().not_after.timestamp());
        let key_id = key_identifier(parsed.public_key().raw);
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
    pub fn issue(&self, leaf: &Leaf) -> Result<Vec<u8>, PkiError> {
        let mut extensions = Vec::new();
        extensions.extend(key_usage(&leaf.usages));
        extensions.extend(extended_key_usage(&leaf.usages));
        extensions.extend(extension(BASIC_CONSTRAINTS, true, &der::sequence(&[])));
        let authority = der::sequence(&[&der::value(0x80, &self.key_id)]);
        extensions.extend(extension(AUTHORITY_KEY_ID, false, &authority));
        if !leaf.names.is_empty() {
            extensions.extend(extension(SUBJECT_ALT_NAME, false, &leaf.names.to_der()));
        }
        let validity = (leaf.not_before, leaf.not_after.min(self.not_after));
        let body =
            certificate_body(&self.subject, leaf.subject.der(), &leaf.public_key, validity, &extensions)?;
        signed(&body, &self.key)
    }
}

fn certificate_body(
    issuer: &[u8],
    subject: &[u8],
    public_key: &[u8],
    (not_before, not_after): (Wall, Wall),
    extensions: &[u8],
) -> Result<Vec<u8>, PkiError> {
    let mut serial = [0u8; 16];
    SystemRandom::new().fill(&mut serial).map_err(|_| PkiError::Crypto("drawing a serial number"))?;
    serial[0] &= 0x7f;
    let time = |at: Wall| {
        jiff::Timestamp::from_second(at.secs())
            .map(der::time)
            .map_err(|_| PkiError::Crypto("writing a time outside of the calendar"))
    };
    Ok(der::sequence(&[
        &der::value(0xa0, &der::value(der::INTEGER, &[2])),
        &der::unsigned(&serial),
        &der::sequence(&[&der::oid(ECDSA_WITH_SHA256)]),
        issuer,
        &der::sequence(&[&time(not_before)?, &time(not_after)?]),
        subject,
        public_key,
        &der::value(0xa3, &der::value(der::SEQUENCE, extensions)),
    ]))
}

fn signed(body: &[u8], key: &Key) -> Result<Vec<u8>, PkiError> {
    let signature = key.sign(body)?;
    Ok(der::sequence(&[body, &der::sequence(&[&der::oid(ECDSA_WITH_SHA256)]), &der::bits(0, &signature)]))
}

fn extension(id: &[u64], critical: bool, content: &[u8]) -> Vec<u8> {
    let critical = if critical { der::value(der::BOOLEAN, &[0xff]) } else { Vec::new() };
    der::sequence(&[&der::oid(id), &critical, &der::value(der::OCTET_STRING, content)])
}

fn key_usage(usages: &[Usage]) -> Vec<u8> {
    let mut flags = 0u8;
    for usage in usages {
        flags |= match usage {
            Usage::DigitalSignature => 0b1000_0000,
            Usage::KeyEncipherment => 0b0010_0000,
            Usage::ClientAuth | Usage::ServerAuth => 0,
        };
    }
    if flags == 0 {
        return Vec::new();
    }
    extension(KEY_USAGE, true, &der::bits(flags.trailing_zeros() as u8, &[flags]))
}

fn extended_key_usage(usages: &[Usage]) -> Vec<u8> {
    let purposes: Vec<u8> = usages
        .iter()
        .filter_map(|u| match u {
            Usage::ClientAuth => Some(der::oid(CLIENT_AUTH)),
            Usage::ServerAuth => Some(der::oid(SERVER_AUTH)),
            Usage::DigitalSignature | Usage::KeyEncipherment => None,
        })
        .flatten()
        .collect();
    if purposes.is_empty() {
        return Vec::new();
    }
    extension(EXTENDED_KEY_USAGE, false, &der::value(der::SEQUENCE, &purposes))
}

/// RFC 7093: the leftmost 160 bits of the SHA-256 of the key.
fn key_identifier(public_key: &[u8]) -> Vec<u8> {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, public_key);
    digest.as_ref()[..20].to_vec()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use apiserver_core::x509::{AlternativeNames, backdated};

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
        let (rest, cert) = x509_parser::certificate::X509Certificate::from_der(&der).unwrap();
        assert!(rest.is_empty());
        let (_, issuer) = x509_parser::certificate::X509Certificate::from_der(ca.certificate()).unwrap();
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
        let (_, cert) = x509_parser::certificate::X509Certificate::from_der(&der).unwrap();
        assert_eq!(cert.validity().not_after.timestamp(), ca.not_after().secs());
    }
}
