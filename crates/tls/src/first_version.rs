//! Certificates of the first version, as `openssl x509 -req` makes them without being told more. The verifier of chains
//! does not read them; other servers take them, and so people have them.

use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer};
use rustls::{DigitallySignedStruct, Error, PeerMisbehaved};

const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const SEQUENCE: u8 = 0x30;
/// Where later versions say which they are.
const VERSION: u8 = 0xa0;

/// What of a certificate a signature is checked with.
struct Fields<'a> {
    is_first_version: bool,
    /// What is signed, with its head.
    signed: &'a [u8],
    /// How, as the algorithms name themselves.
    algorithm: &'a [u8],
    signature: &'a [u8],
    issuer: &'a [u8],
    subject: &'a [u8],
    key: Key<'a>,
}

struct Key<'a> {
    whole: &'a [u8],
    algorithm: &'a [u8],
    bits: &'a [u8],
}

/// Whether this is a certificate of the first version, and the issuer signed it. Nothing else is looked at: not how long it
/// is good for, and not whether the issuer may issue.
#[must_use]
pub fn is_first_version_by(
    certificate: &CertificateDer<'_>,
    issuer: &CertificateDer<'_>,
    algorithms: &WebPkiSupportedAlgorithms,
) -> bool {
    let (Some(leaf), Some(issuer)) = (Fields::read(certificate), Fields::read(issuer)) else { return false };
    let fits = |a: &&&dyn rustls::pki_types::SignatureVerificationAlgorithm| {
        a.signature_alg_id().as_ref() == leaf.algorithm
            && a.public_key_alg_id().as_ref() == issuer.key.algorithm
    };
    let mut fitting = algorithms.all.iter().filter(fits);
    leaf.is_first_version
        && leaf.issuer == issuer.subject
        && fitting.any(|a| a.verify_signature(issuer.key.bits, leaf.signed, leaf.signature).is_ok())
}

/// The key of a certificate of the first version.
pub(crate) fn key<'a>(certificate: &'a CertificateDer<'_>) -> Option<SubjectPublicKeyInfoDer<'a>> {
    let parts = Fields::read(certificate).filter(|p| p.is_first_version)?;
    Some(SubjectPublicKeyInfoDer::from(parts.key.whole))
}

/// Whether the holder of a key signed the handshake of TLS 1.2.
pub(crate) fn check_tls12(
    message: &[u8],
    key: &SubjectPublicKeyInfoDer<'_>,
    signed: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<(), Error> {
    let misbehaved = || Error::PeerMisbehaved(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme);
    let key = Key::read(key.as_ref()).ok_or_else(misbehaved)?;
    let of_scheme = algorithms.mapping.iter().find(|(scheme, _)| *scheme == signed.scheme);
    let (_, candidates) = of_scheme.ok_or_else(misbehaved)?;
    let mut fitting = candidates.iter().filter(|a| a.public_key_alg_id().as_ref() == key.algorithm);
    match fitting.any(|a| a.verify_signature(key.bits, message, signed.signature()).is_ok()) {
        true => Ok(()),
        false => Err(Error::InvalidCertificate(rustls::CertificateError::BadSignature)),
    }
}

// === impl Fields ===

impl<'a> Fields<'a> {
    fn read(certificate: &'a [u8]) -> Option<Self> {
        let (certificate, _) = take(certificate, SEQUENCE)?;
        let (tbs, rest) = take(certificate, SEQUENCE)?;
        let signed = certificate.get(..certificate.len() - rest.len())?;
        let (algorithm, rest) = take(rest, SEQUENCE)?;
        let (signature, _) = take(rest, BIT_STRING)?;
        let (is_first_version, rest) = match take(tbs, VERSION) {
            Some((_, rest)) => (false, rest),
            None => (true, tbs),
        };
        let (_serial, rest) = take(rest, INTEGER)?;
        let (_algorithm, rest) = take(rest, SEQUENCE)?;
        let (issuer, rest) = take(rest, SEQUENCE)?;
        let (_validity, rest) = take(rest, SEQUENCE)?;
        let (subject, rest) = take(rest, SEQUENCE)?;
        let key = Key::read(rest)?;
        Some(Self {
            is_first_version,
            signed,
            algorithm,
            signature: whole_bytes(signature)?,
            issuer,
            subject,
            key,
        })
    }
}

// === impl Key ===

impl<'a> Key<'a> {
    /// Of what follows it.
    fn read(from: &'a [u8]) -> Option<Self> {
        let (content, rest) = take(from, SEQUENCE)?;
        let (algorithm, bits) = take(content, SEQUENCE)?;
        let (bits, _) = take(bits, BIT_STRING)?;
        Some(Self { whole: from.get(..from.len() - rest.len())?, algorithm, bits: whole_bytes(bits)? })
    }
}

/// The content of the first element, which must be of this kind, and what comes after it.
fn take(from: &[u8], kind: u8) -> Option<(&[u8], &[u8])> {
    let (tag, rest) = from.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match *first {
        short @ 0..=0x7f => (usize::from(short), rest),
        long @ 0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(long & 0x7f))?;
            (bytes.iter().fold(0, |sum, b| sum << 8 | usize::from(*b)), rest)
        }
        _ => return None,
    };
    (*tag == kind).then(|| rest.split_at_checked(length))?
}

/// A string of bits that are bytes.
fn whole_bytes(bits: &[u8]) -> Option<&[u8]> {
    bits.strip_prefix(&[0])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rustls::pki_types::pem::PemObject;

    use super::*;

    const AUTHORITY: &str = include_str!("../testdata/authority.pem");
    const LEAF: &str = include_str!("../testdata/first-version.pem");

    #[test]
    fn the_signature_counts() {
        let algorithms = rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms;
        let read = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        let (authority, leaf) = (read(AUTHORITY), read(LEAF));
        assert!(is_first_version_by(&leaf, &authority, &algorithms));
        // It signed itself, but it is of the third version: the verifier of chains reads those.
        assert!(!is_first_version_by(&authority, &authority, &algorithms));
        assert!(!is_first_version_by(&leaf, &leaf, &algorithms));
        assert!(key(&leaf).is_some() && key(&authority).is_none());
        for at in 0..leaf.len() {
            let mut broken = leaf.to_vec();
            broken[at] ^= 1;
            assert!(!is_first_version_by(&broken.into(), &authority, &algorithms), "{at}");
            let short = CertificateDer::from(leaf[..at].to_vec());
            assert!(!is_first_version_by(&short, &authority, &algorithms), "{at}");
        }
    }
}
