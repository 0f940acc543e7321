//! Reading and checking what others signed: certificates and requests for them.

use std::net::IpAddr;

use aws_lc_rs::signature::{
    self, ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA384_ASN1, ECDSA_P384_SHA256_ASN1, ECDSA_P384_SHA384_ASN1,
    ECDSA_P521_SHA256_ASN1, ECDSA_P521_SHA384_ASN1, ECDSA_P521_SHA512_ASN1, ED25519,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, UnparsedPublicKey,
    VerificationAlgorithm,
};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::oid_registry::Oid;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::names::AlternativeNames;

/// Whether the certificate was signed with the private half of `key`.
#[must_use]
pub fn certificate_signature(certificate: &X509Certificate<'_>, key: &SubjectPublicKeyInfo<'_>) -> bool {
    is_signed(
        key,
        &certificate.signature_algorithm.algorithm,
        certificate.tbs_certificate.as_ref(),
        &certificate.signature_value.data,
    )
}

/// Whether `signature` over `message` was made with the private half of `key`.
#[must_use]
pub fn is_signed(
    key: &SubjectPublicKeyInfo<'_>,
    algorithm: &Oid<'_>,
    message: &[u8],
    signature: &[u8],
) -> bool {
    let Some(algorithm) = verification(key, &algorithm.to_id_string()) else { return false };
    UnparsedPublicKey::new(algorithm, &key.subject_public_key.data).verify(message, signature).is_ok()
}

fn verification(
    key: &SubjectPublicKeyInfo<'_>,
    signature: &str,
) -> Option<&'static dyn VerificationAlgorithm> {
    let made_for = key.algorithm.algorithm.to_id_string();
    let fits = match signature {
        "1.3.101.112" => made_for == signature,
        rsa if rsa.starts_with("1.2.840.113549.1.1.") => made_for == "1.2.840.113549.1.1.1",
        _ => made_for == "1.2.840.10045.2.1",
    };
    if !fits {
        return None;
    }
    let curve = || {
        let parameters = key.algorithm.parameters.as_ref()?;
        Some(parameters.as_oid().ok()?.to_id_string())
    };
    let rsa: &'static signature::RsaParameters = match signature {
        "1.2.840.113549.1.1.11" => &RSA_PKCS1_2048_8192_SHA256,
        "1.2.840.113549.1.1.12" => &RSA_PKCS1_2048_8192_SHA384,
        "1.2.840.113549.1.1.13" => &RSA_PKCS1_2048_8192_SHA512,
        "1.3.101.112" => return Some(&ED25519),
        _ => {
            let algorithm: &'static signature::EcdsaVerificationAlgorithm =
                match (curve()?.as_str(), signature) {
                    ("1.2.840.10045.3.1.7", "1.2.840.10045.4.3.2") => &ECDSA_P256_SHA256_ASN1,
                    ("1.2.840.10045.3.1.7", "1.2.840.10045.4.3.3") => &ECDSA_P256_SHA384_ASN1,
                    ("1.3.132.0.34", "1.2.840.10045.4.3.2") => &ECDSA_P384_SHA256_ASN1,
                    ("1.3.132.0.34", "1.2.840.10045.4.3.3") => &ECDSA_P384_SHA384_ASN1,
                    ("1.3.132.0.35", "1.2.840.10045.4.3.2") => &ECDSA_P521_SHA256_ASN1,
                    ("1.3.132.0.35", "1.2.840.10045.4.3.3") => &ECDSA_P521_SHA384_ASN1,
                    ("1.3.132.0.35", "1.2.840.10045.4.3.4") => &ECDSA_P521_SHA512_ASN1,
                    _ => return None,
                };
            return Some(algorithm);
        }
    };
    Some(rsa)
}

/// The names we know how to write back; None where there is one that we do not, or that is no plain text.
#[must_use]
pub fn general_names(names: &[GeneralName<'_>]) -> Option<AlternativeNames> {
    let mut out = AlternativeNames::default();
    let plain = |text: &str| {
        (!text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic())).then(|| text.to_owned())
    };
    for name in names {
        match name {
            GeneralName::DNSName(dns) => out.dns.push(plain(dns)?),
            GeneralName::RFC822Name(email) => out.emails.push(plain(email)?),
            GeneralName::URI(uri) => out.uris.push(plain(uri)?),
            GeneralName::IPAddress(octets) => out.ips.push(address(octets)?),
            _ => return None,
        }
    }
    Some(out)
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    if let Ok(v4) = <[u8; 4]>::try_from(octets) {
        return Some(v4.into());
    }
    <[u8; 16]>::try_from(octets).ok().map(IpAddr::from)
}
