//! Certificates and requests, up to the signature.

use base::time::Wall;

use crate::der;
use crate::leaf::{Leaf, Usage};
use crate::names::{AlternativeNames, Subject};

const EXTENSION_REQUEST: &[u64] = &[1, 2, 840, 113549, 1, 9, 14];
const SUBJECT_KEY_ID: &[u64] = &[2, 5, 29, 14];
const KEY_USAGE: &[u64] = &[2, 5, 29, 15];
const SUBJECT_ALT_NAME: &[u64] = &[2, 5, 29, 17];
const BASIC_CONSTRAINTS: &[u64] = &[2, 5, 29, 19];
const AUTHORITY_KEY_ID: &[u64] = &[2, 5, 29, 35];
const EXTENDED_KEY_USAGE: &[u64] = &[2, 5, 29, 37];

/// How something is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    EcdsaSha256,
    EcdsaSha384,
    EcdsaSha512,
    RsaSha256,
    Ed25519,
}

/// What a certificate says, before it is signed.
#[derive(Clone, Debug)]
pub struct Body<'a> {
    /// Drawn by whoever signs.
    pub serial: [u8; 16],
    /// DER of the issuer's Name.
    pub issuer: &'a [u8],
    /// DER of the subject's Name.
    pub subject: &'a [u8],
    /// DER of the SubjectPublicKeyInfo.
    pub public_key: &'a [u8],
    /// The first and the last moment.
    pub validity: (Wall, Wall),
    /// As the functions below write them.
    pub extensions: Vec<u8>,
}

// === impl Algorithm ===

impl Algorithm {
    fn to_der(self) -> Vec<u8> {
        let id: &[u64] = match self {
            Algorithm::EcdsaSha256 => &[1, 2, 840, 10045, 4, 3, 2],
            Algorithm::EcdsaSha384 => &[1, 2, 840, 10045, 4, 3, 3],
            Algorithm::EcdsaSha512 => &[1, 2, 840, 10045, 4, 3, 4],
            Algorithm::RsaSha256 => &[1, 2, 840, 113549, 1, 1, 11],
            Algorithm::Ed25519 => &[1, 3, 101, 112],
        };
        // RFC 4055 wants a NULL here, the others want nothing.
        let parameters = if self == Algorithm::RsaSha256 { der::value(der::NULL, &[]) } else { Vec::new() };
        der::sequence(&[&der::oid(id), &parameters])
    }
}

// === impl Body ===

impl Body<'_> {
    /// None if the validity is outside of the calendar.
    #[must_use]
    pub fn to_der(&self, algorithm: Algorithm) -> Option<Vec<u8>> {
        let mut serial = self.serial;
        serial[0] &= 0x7f;
        let time = |at: Wall| jiff::Timestamp::from_second(at.secs()).map(der::time).ok();
        let (not_before, not_after) = self.validity;
        Some(der::sequence(&[
            &der::value(0xa0, &der::value(der::INTEGER, &[2])),
            &der::unsigned(&serial),
            &algorithm.to_der(),
            self.issuer,
            &der::sequence(&[&time(not_before)?, &time(not_after)?]),
            self.subject,
            self.public_key,
            &der::value(0xa3, &der::value(der::SEQUENCE, &self.extensions)),
        ]))
    }
}

/// A certificate, or a request for one: what it says and the signature over that.
#[must_use]
pub fn signed(body: &[u8], algorithm: Algorithm, signature: &[u8]) -> Vec<u8> {
    der::sequence(&[body, &algorithm.to_der(), &der::bits(0, signature)])
}

/// What a request for a certificate says (PKCS#10), before it is signed.
#[must_use]
pub fn request(subject: &Subject, public_key: &[u8], names: &AlternativeNames) -> Vec<u8> {
    let mut attributes = Vec::new();
    if !names.is_empty() {
        let extensions = der::value(der::SEQUENCE, &alternative_names(names));
        attributes = der::sequence(&[&der::oid(EXTENSION_REQUEST), &der::value(der::SET, &extensions)]);
    }
    let version = der::value(der::INTEGER, &[0]);
    der::sequence(&[&version, subject.der(), public_key, &der::value(0xa0, &attributes)])
}

/// RFC 7093: the leftmost 160 bits of the SHA-256 of the key.
#[must_use]
pub fn key_identifier(public_key: &[u8]) -> Vec<u8> {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, public_key);
    digest.as_ref()[..20].to_vec()
}

/// What makes a certificate one of an authority.
#[must_use]
pub fn authority_extensions(key_id: &[u8]) -> Vec<u8> {
    [
        // keyCertSign, cRLSign and digitalSignature.
        extension(KEY_USAGE, true, &der::bits(1, &[0b1000_0110])),
        extension(BASIC_CONSTRAINTS, true, &der::sequence(&[&der::value(der::BOOLEAN, &[0xff])])),
        extension(SUBJECT_KEY_ID, false, &der::value(der::OCTET_STRING, key_id)),
    ]
    .concat()
}

/// What a leaf is good for, and whose key signs it.
#[must_use]
pub fn leaf_extensions(leaf: &Leaf, authority_key_id: &[u8]) -> Vec<u8> {
    let authority = der::sequence(&[&der::value(0x80, authority_key_id)]);
    let mut all = key_usage(&leaf.usages);
    all.extend(extended_key_usage(&leaf.usages));
    all.extend(extension(BASIC_CONSTRAINTS, true, &der::sequence(&[])));
    all.extend(extension(AUTHORITY_KEY_ID, false, &authority));
    if !leaf.names.is_empty() {
        all.extend(alternative_names(&leaf.names));
    }
    all
}

fn alternative_names(names: &AlternativeNames) -> Vec<u8> {
    extension(SUBJECT_ALT_NAME, false, &names.to_der())
}

fn extension(id: &[u64], critical: bool, content: &[u8]) -> Vec<u8> {
    let critical = if critical { der::value(der::BOOLEAN, &[0xff]) } else { Vec::new() };
    der::sequence(&[&der::oid(id), &critical, &der::value(der::OCTET_STRING, content)])
}

fn key_usage(usages: &[Usage]) -> Vec<u8> {
    let flags = usages.iter().filter_map(|usage| usage.bit()).fold(0u16, |all, bit| all | (0x8000 >> bit));
    if flags == 0 {
        return Vec::new();
    }
    let bytes = flags.to_be_bytes();
    let length = if bytes[1] == 0 { 1 } else { 2 };
    let unused = bytes[length - 1].trailing_zeros() as u8;
    extension(KEY_USAGE, true, &der::bits(unused, &bytes[..length]))
}

fn extended_key_usage(usages: &[Usage]) -> Vec<u8> {
    let purposes: std::collections::BTreeSet<Usage> =
        usages.iter().copied().filter(|usage| usage.purpose().is_some()).collect();
    let purposes: Vec<u8> = purposes.iter().filter_map(|usage| usage.purpose()).flat_map(der::oid).collect();
    if purposes.is_empty() {
        return Vec::new();
    }
    extension(EXTENDED_KEY_USAGE, false, &der::value(der::SEQUENCE, &purposes))
}
