//! Private keys of every kind that authorities have: ECDSA, RSA and Ed25519. Our own are ECDSA over P-256.

use aws_lc_rs::encoding::{AsDer as _, Pkcs8V1Der, PublicKeyX509Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, ECDSA_P521_SHA512_ASN1_SIGNING,
    EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use x509::write::{self, Algorithm};
use x509::{AlternativeNames, Subject, pem};

/// What could not be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateError(pub(crate) &'static str);

/// A private key and the public key it belongs to; never shown.
pub struct Key {
    pkcs8: Vec<u8>,
    pair: Pair,
}

enum Pair {
    Ecdsa(EcdsaKeyPair, Algorithm),
    Rsa(Box<RsaKeyPair>),
    Ed25519(Ed25519KeyPair),
}

const CURVES: [(&EcdsaSigningAlgorithm, Algorithm); 3] = [
    (&ECDSA_P256_SHA256_ASN1_SIGNING, Algorithm::EcdsaSha256),
    (&ECDSA_P384_SHA384_ASN1_SIGNING, Algorithm::EcdsaSha384),
    (&ECDSA_P521_SHA512_ASN1_SIGNING, Algorithm::EcdsaSha512),
];

// === impl CertificateError ===

impl std::fmt::Display for CertificateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} failed", self.0)
    }
}

impl std::error::Error for CertificateError {}

// === impl Key ===

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Key {
    /// A new one, ECDSA over P-256.
    pub fn generate() -> Result<Key, CertificateError> {
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new())
            .map_err(|_| CertificateError("generating a key"))?;
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, document.as_ref())
            .map_err(|_| CertificateError("reading a new key"))?;
        Ok(Key { pkcs8: document.as_ref().to_vec(), pair: Pair::Ecdsa(pair, Algorithm::EcdsaSha256) })
    }

    /// The first key of a PEM text, as PKCS#8 or as Go's tools and OpenSSL write one (RFC 5915, PKCS#1).
    pub fn from_pem(text: &[u8]) -> Result<Key, CertificateError> {
        let key =
            PrivateKeyDer::from_pem_slice(text).map_err(|_| CertificateError("finding a private key"))?;
        let pair = Pair::read(&key).ok_or(CertificateError("reading a key that is ECDSA, RSA or Ed25519"))?;
        let pkcs8 = pair.pkcs8().ok_or(CertificateError("writing a key"))?;
        Ok(Key { pkcs8, pair })
    }

    #[must_use]
    pub fn to_pem(&self) -> String {
        pem::encode("PRIVATE KEY", &self.pkcs8)
    }

    /// DER of the SubjectPublicKeyInfo.
    #[must_use]
    pub fn public_key(&self) -> Vec<u8> {
        let written: Option<PublicKeyX509Der<'_>> = match &self.pair {
            Pair::Ecdsa(pair, _) => pair.public_key().as_der().ok(),
            Pair::Rsa(pair) => pair.public_key().as_der().ok(),
            Pair::Ed25519(pair) => pair.public_key().as_der().ok(),
        };
        written.map(|der| der.as_ref().to_vec()).unwrap_or_default()
    }

    /// A request for a certificate that says this of the key's holder, PEM.
    pub fn request(&self, subject: &Subject, names: &AlternativeNames) -> Result<String, CertificateError> {
        let body = write::request(subject, &self.public_key(), names);
        let signature = self.sign(&body)?;
        Ok(pem::encode("CERTIFICATE REQUEST", &write::signed(&body, self.algorithm(), &signature)))
    }

    /// How it signs.
    pub(crate) fn algorithm(&self) -> Algorithm {
        match &self.pair {
            Pair::Ecdsa(_, algorithm) => *algorithm,
            Pair::Rsa(_) => Algorithm::RsaSha256,
            Pair::Ed25519(_) => Algorithm::Ed25519,
        }
    }

    pub(crate) fn sign(&self, message: &[u8]) -> Result<Vec<u8>, CertificateError> {
        let random = SystemRandom::new();
        let failed = |_| CertificateError("signing");
        match &self.pair {
            Pair::Ecdsa(pair, _) => Ok(pair.sign(&random, message).map_err(failed)?.as_ref().to_vec()),
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).map_err(failed)?;
                Ok(signature)
            }
            Pair::Ed25519(pair) => Ok(pair.sign(message).as_ref().to_vec()),
        }
    }
}

// === impl Pair ===

impl Pair {
    fn read(key: &PrivateKeyDer<'_>) -> Option<Pair> {
        let der = key.secret_der();
        let ecdsa = CURVES.iter().find_map(|(curve, algorithm)| {
            Some(Pair::Ecdsa(EcdsaKeyPair::from_private_key_der(curve, der).ok()?, *algorithm))
        });
        let rsa = || match key {
            PrivateKeyDer::Pkcs1(_) => RsaKeyPair::from_der(der).ok(),
            _ => RsaKeyPair::from_pkcs8(der).ok(),
        };
        ecdsa
            .or_else(|| rsa().map(|pair| Pair::Rsa(Box::new(pair))))
            .or_else(|| Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).ok().map(Pair::Ed25519))
    }

    fn pkcs8(&self) -> Option<Vec<u8>> {
        match self {
            Pair::Ecdsa(pair, _) => Some(pair.to_pkcs8v1().ok()?.as_ref().to_vec()),
            Pair::Rsa(pair) => {
                let der: Pkcs8V1Der<'_> = pair.as_der().ok()?;
                Some(der.as_ref().to_vec())
            }
            Pair::Ed25519(pair) => Some(pair.to_pkcs8v1().ok()?.as_ref().to_vec()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;
    use x509_parser::certification_request::X509CertificationRequest;
    use x509_parser::prelude::FromDer as _;

    #[test]
    fn a_key_is_read_back_however_it_was_written() {
        let key = Key::generate().unwrap();
        assert_eq!(Key::from_pem(key.to_pem().as_bytes()).unwrap().public_key(), key.public_key());
        // As Go's x509.MarshalECPrivateKey writes it: the bare key, without a word on what kind it is.
        let Pair::Ecdsa(pair, _) = &key.pair else { panic!("not ECDSA") };
        let bare = pair.private_key().as_der().unwrap();
        let bare = pem::encode("EC PRIVATE KEY", bare.as_ref());
        let again = Key::from_pem(bare.as_bytes()).unwrap();
        assert_eq!(again.public_key(), key.public_key());
        assert_eq!(Key::from_pem(again.to_pem().as_bytes()).unwrap().public_key(), key.public_key());
        assert_eq!(Key::from_pem(b"nonsense").unwrap_err().to_string(), "finding a private key failed");
        assert_eq!(format!("{key:?}"), "Key(..)");
    }

    /// Keys of every kind, PKCS#8.
    pub(crate) fn of_every_kind() -> Vec<String> {
        let random = SystemRandom::new();
        let curves = CURVES.iter().map(|(curve, _)| EcdsaKeyPair::generate_pkcs8(curve, &random).unwrap());
        let mut all: Vec<Vec<u8>> = curves.map(|document| document.as_ref().to_vec()).collect();
        all.push(Ed25519KeyPair::generate_pkcs8(&random).unwrap().as_ref().to_vec());
        let rsa = RsaKeyPair::generate(aws_lc_rs::rsa::KeySize::Rsa2048).unwrap();
        let rsa: Pkcs8V1Der<'_> = rsa.as_der().unwrap();
        all.push(rsa.as_ref().to_vec());
        all.iter().map(|der| pem::encode("PRIVATE KEY", der)).collect()
    }

    #[test]
    fn keys_of_every_kind_sign_what_others_can_check() {
        for text in of_every_kind() {
            let key = Key::from_pem(text.as_bytes()).unwrap();
            let again = Key::from_pem(key.to_pem().as_bytes()).unwrap();
            assert_eq!(again.public_key(), key.public_key());
            let request = key.request(&Subject::new("n1", &[]), &AlternativeNames::default()).unwrap();
            let (_, der) = pem::decode(&request).remove(0);
            let (_, parsed) = X509CertificationRequest::from_der(&der).unwrap();
            let info = &parsed.certification_request_info;
            assert_eq!(info.subject_pki.raw, key.public_key(), "{:?}", key.algorithm());
            let signed = x509::verify::is_signed(
                &info.subject_pki,
                &parsed.signature_algorithm.algorithm,
                info.raw,
                &parsed.signature_value.data,
            );
            assert!(signed, "{:?}", key.algorithm());
        }
    }
}
