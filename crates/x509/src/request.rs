//! What a PKCS#10 request asks for.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use x509_parser::asn1_rs::{Any, Class, Tag};
use x509_parser::certification_request::{X509CertificationRequest, X509CertificationRequestInfo};
use x509_parser::cri_attributes::ParsedCriAttribute;
use x509_parser::extensions::ParsedExtension;
use x509_parser::oid_registry::OID_X509_EXT_SUBJECT_ALT_NAME;
use x509_parser::prelude::FromDer;
use x509_parser::x509::X509Name;

use crate::names::{AlternativeNames, Attribute, Subject};
use crate::{pem, verify};

/// A request that was signed with the key it is about. All that is said in it was read: what nobody can judge is
/// refused, because others would read it differently in the certificate.
#[derive(Clone, Debug)]
pub struct Request {
    pub common_name: String,
    pub organizations: Vec<String>,
    pub names: AlternativeNames,
    /// Written anew from what was read.
    pub subject: Subject,
    /// DER of the SubjectPublicKeyInfo.
    pub public_key: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("PEM block type must be CERTIFICATE REQUEST")]
    Pem,
    #[error("the certificate request cannot be read")]
    Der,
    #[error("the certificate request is not signed with its own key")]
    Signature,
    #[error("the subject of the certificate request has {0}")]
    Subject(&'static str),
    #[error("the certificate request has {0}")]
    Names(&'static str),
}

/// More is no name.
const LONGEST: usize = 1024;

// === impl Request ===

impl Request {
    /// Reads `spec.request` of a CertificateSigningRequest, base64 of a PEM text.
    pub fn from_spec(encoded: &str) -> Result<Request, RequestError> {
        let text = STANDARD.decode(encoded).map_err(|_| RequestError::Pem)?;
        Request::from_pem(&String::from_utf8_lossy(&text))
    }

    pub fn from_pem(text: &str) -> Result<Request, RequestError> {
        let section = pem::decode(text).into_iter().find(|(label, _)| label == "CERTIFICATE REQUEST");
        let (_, der) = section.ok_or(RequestError::Pem)?;
        let (rest, parsed) = X509CertificationRequest::from_der(&der).map_err(|_| RequestError::Der)?;
        if !rest.is_empty() {
            return Err(RequestError::Der);
        }
        let info = &parsed.certification_request_info;
        let signed = verify::is_signed(
            &info.subject_pki,
            &parsed.signature_algorithm.algorithm,
            info.raw,
            &parsed.signature_value.data,
        );
        if !signed {
            return Err(RequestError::Signature);
        }
        let attributes = attributes(&info.subject)?;
        let all = |wanted: Attribute| {
            attributes.iter().filter(move |(kind, _)| *kind == wanted).map(|(_, text)| (*text).to_owned())
        };
        if all(Attribute::CommonName).count() > 1 {
            return Err(RequestError::Subject("more than one common name"));
        }
        Ok(Request {
            common_name: all(Attribute::CommonName).next().unwrap_or_default(),
            organizations: all(Attribute::Organization).collect(),
            names: alternative_names(info)?,
            subject: Subject::of(attributes.iter().copied()),
            public_key: info.subject_pki.raw.to_vec(),
        })
    }
}

/// Everything a subject says.
fn attributes<'n>(subject: &'n X509Name<'_>) -> Result<Vec<(Attribute, &'n str)>, RequestError> {
    subject
        .iter_attributes()
        .map(|attribute| {
            let kind = Attribute::from_id(&attribute.attr_type().to_id_string())
                .ok_or(RequestError::Subject("an attribute that nobody knows"))?;
            let text = plain_text(attribute.attr_value())
                .ok_or(RequestError::Subject("an attribute that is no plain text"))?;
            Ok((kind, text))
        })
        .collect()
}

/// Text in an encoding that all readers agree about. Go takes T61String, BMPString and others for text too, and so
/// could see a group in what we cannot read.
fn plain_text<'v>(value: &'v Any<'_>) -> Option<&'v str> {
    let plain = value.class() == Class::Universal && !value.header.is_constructed();
    let text = std::str::from_utf8(value.data).ok()?;
    let spelled = match value.tag() {
        Tag::Utf8String => true,
        Tag::PrintableString | Tag::Ia5String => text.is_ascii(),
        _ => false,
    };
    let fits = (1..=LONGEST).contains(&text.len()) && !text.chars().any(char::is_control);
    (plain && spelled && fits).then_some(text)
}

fn alternative_names(info: &X509CertificationRequestInfo<'_>) -> Result<AlternativeNames, RequestError> {
    let mut found = None;
    for attribute in info.iter_attributes() {
        let ParsedCriAttribute::ExtensionRequest(requested) = attribute.parsed_attribute() else { continue };
        for extension in requested.extensions.iter().filter(|e| e.oid == OID_X509_EXT_SUBJECT_ALT_NAME) {
            if found.is_some() {
                return Err(RequestError::Names("more than one list of subjectAltNames"));
            }
            let ParsedExtension::SubjectAlternativeName(names) = extension.parsed_extension() else {
                return Err(RequestError::Names("subjectAltNames that cannot be read"));
            };
            let names = verify::general_names(&names.general_names);
            found = Some(names.ok_or(RequestError::Names("a subjectAltName that nobody knows"))?);
        }
    }
    Ok(found.unwrap_or_default())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;
    use crate::der;
    use crate::write::{self, Algorithm};
    use aws_lc_rs::encoding::{AsDer as _, PublicKeyX509Der};
    use aws_lc_rs::rand::SystemRandom;
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};

    fn new_key() -> EcdsaKeyPair {
        let pkcs8 =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new()).unwrap();
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8.as_ref()).unwrap()
    }

    /// A request for a new key, PEM.
    pub(crate) fn asked(common_name: &str, organizations: &[&str], names: &AlternativeNames) -> String {
        let key = new_key();
        let public: PublicKeyX509Der<'_> = key.public_key().as_der().unwrap();
        let body = write::request(&Subject::new(common_name, organizations), public.as_ref(), names);
        let signature = key.sign(&SystemRandom::new(), &body).unwrap();
        let signed = write::signed(&body, Algorithm::EcdsaSha256, signature.as_ref());
        pem::encode("CERTIFICATE REQUEST", &signed)
    }

    #[test]
    fn a_request_says_who_and_proves_its_key() {
        let names = AlternativeNames { dns: vec!["n1".into()], ..AlternativeNames::default() };
        let text = asked("system:node:n1", &["system:nodes"], &names);
        let request = Request::from_pem(&text).unwrap();
        assert_eq!(request.common_name, "system:node:n1");
        assert_eq!(request.organizations, ["system:nodes"]);
        assert_eq!(request.names.dns, ["n1"]);
        let (label, mut der) = pem::decode(&text).remove(0);
        let last = der.len() - 1;
        der[last] ^= 1;
        assert_eq!(Request::from_pem(&pem::encode(&label, &der)).unwrap_err(), RequestError::Signature);
        assert_eq!(Request::from_pem(&pem::encode("X", &der)).unwrap_err(), RequestError::Pem);
        assert_eq!(Request::from_pem(&pem::encode(&label, &der[..40])).unwrap_err(), RequestError::Der);
    }

    const COMMON_NAME: &[u64] = &[2, 5, 4, 3];
    const ORGANIZATION: &[u64] = &[2, 5, 4, 10];
    /// UTF8String, PrintableString, T61String, BMPString, UniversalString, NumericString, OCTET STRING and a UTF8String in pieces.
    const UTF8: u8 = 0x0c;
    const PRINTABLE: u8 = 0x13;
    const T61: u8 = 0x14;
    const BMP: u8 = 0x1e;
    const UNIVERSAL: u8 = 0x1c;

    /// `spec.request` with these attributes and extensions, written byte by byte and well signed.
    fn handmade(attributes: &[(&[u64], u8, &[u8])], extensions: &[(&[u64], &[u8])]) -> String {
        let key = new_key();
        let kind = [der::oid(&[1, 2, 840, 10045, 2, 1]), der::oid(&[1, 2, 840, 10045, 3, 1, 7])].concat();
        let public =
            der::sequence(&[&der::value(der::SEQUENCE, &kind), &der::bits(0, key.public_key().as_ref())]);
        let subject: Vec<u8> = attributes
            .iter()
            .flat_map(|(id, tag, value)| {
                der::value(der::SET, &der::sequence(&[&der::oid(id), &der::value(*tag, value)]))
            })
            .collect();
        let wanted: Vec<u8> = extensions
            .iter()
            .flat_map(|(id, value)| der::sequence(&[&der::oid(id), &der::value(der::OCTET_STRING, value)]))
            .collect();
        let wanted = der::sequence(&[
            &der::oid(&[1, 2, 840, 113549, 1, 9, 14]),
            &der::value(der::SET, &der::value(der::SEQUENCE, &wanted)),
        ]);
        let wanted = if extensions.is_empty() { Vec::new() } else { wanted };
        let info = der::sequence(&[
            &der::value(der::INTEGER, &[0]),
            &der::value(der::SEQUENCE, &subject),
            &public,
            &der::value(0xa0, &wanted),
        ]);
        let signature = der::bits(0, key.sign(&SystemRandom::new(), &info).unwrap().as_ref());
        let algorithm = der::sequence(&[&der::oid(&[1, 2, 840, 10045, 4, 3, 2])]);
        let request = der::sequence(&[&info, &algorithm, &signature]);
        STANDARD.encode(pem::encode("CERTIFICATE REQUEST", &request))
    }

    fn smuggled() -> Vec<String> {
        let masters = "system:masters";
        let wide = |bytes: usize| -> Vec<u8> {
            masters.chars().flat_map(|c| u32::from(c).to_be_bytes()[4 - bytes..].to_vec()).collect()
        };
        let pieces = der::value(UTF8, masters.as_bytes());
        [
            (T61, masters.as_bytes().to_vec()),
            (BMP, wide(2)),
            (UNIVERSAL, wide(4)),
            (0x12, masters.as_bytes().to_vec()),
            (der::OCTET_STRING, masters.as_bytes().to_vec()),
            (0x2c, pieces),
            (UTF8, b"system:masters\0".to_vec()),
            (UTF8, b"\xff".to_vec()),
            (UTF8, Vec::new()),
        ]
        .into_iter()
        .map(|(tag, value)| {
            handmade(
                &[(ORGANIZATION, UTF8, b"dev"), (ORGANIZATION, tag, &value), (COMMON_NAME, UTF8, b"jane")],
                &[],
            )
        })
        .collect()
    }

    fn read(request: String) -> Result<Request, RequestError> {
        Request::from_spec(&request)
    }

    #[test]
    fn a_subject_that_others_could_read_differently_is_refused() {
        for request in smuggled() {
            assert!(matches!(read(request).unwrap_err(), RequestError::Subject(_) | RequestError::Der));
        }
        let name: (&[u64], u8, &[u8]) = (COMMON_NAME, UTF8, b"jane");
        assert_eq!(
            read(handmade(&[name, (COMMON_NAME, UTF8, b"root")], &[])).unwrap_err(),
            RequestError::Subject("more than one common name")
        );
        // A user's uid, as kube-apiserver reads it from a certificate.
        assert_eq!(
            read(handmade(&[name, (&[1, 3, 6, 1, 4, 1, 57683, 2], UTF8, b"0")], &[])).unwrap_err(),
            RequestError::Subject("an attribute that nobody knows")
        );
    }

    #[test]
    fn a_good_subject_is_written_anew() {
        let groups: [(&[u64], u8, &[u8]); 4] = [
            (&[2, 5, 4, 6], PRINTABLE, b"DE"),
            (ORGANIZATION, PRINTABLE, b"dev"),
            (ORGANIZATION, UTF8, "Häfen".as_bytes()),
            (COMMON_NAME, PRINTABLE, b"jane"),
        ];
        let request = read(handmade(&groups, &[])).unwrap();
        assert_eq!((request.common_name.as_str(), request.organizations.len()), ("jane", 2));
        let anew = [
            (Attribute::Country, "DE"),
            (Attribute::Organization, "dev"),
            (Attribute::Organization, "Häfen"),
            (Attribute::CommonName, "jane"),
        ];
        assert_eq!(request.subject, Subject::of(anew));
    }

    #[test]
    fn alternative_names_that_cannot_be_judged_are_refused() {
        const ALT: &[u64] = &[2, 5, 29, 17];
        let list = |names: &[(u8, &[u8])]| {
            let all: Vec<u8> = names.iter().flat_map(|(tag, value)| der::value(*tag, value)).collect();
            der::value(der::SEQUENCE, &all)
        };
        let with = |extensions: &[(&[u64], &[u8])]| read(handmade(&[(COMMON_NAME, UTF8, b"n")], extensions));
        let good = list(&[(0x82, b"n1.example"), (0x87, &[10, 0, 0, 1])]);
        assert_eq!(with(&[(ALT, &good)]).unwrap().names.dns, ["n1.example"]);
        for bad in [
            list(&[(0x87, &[10, 0, 0, 1, 5])]),
            list(&[(0x82, b"n1\0.example")]),
            list(&[(0x82, b"")]),
            list(&[(0x82, "nä".as_bytes())]),
            list(&[(
                0xa0,
                &der::sequence(&[&der::oid(&[1, 2, 3]), &der::value(0xa0, &der::value(UTF8, b"x"))]),
            )]),
            list(&[(0x88, &[42, 3])]),
            b"nonsense".to_vec(),
        ] {
            assert!(matches!(with(&[(ALT, &bad)]).unwrap_err(), RequestError::Names(_) | RequestError::Der));
        }
        assert_eq!(
            with(&[(ALT, &good), (ALT, &good)]).unwrap_err(),
            RequestError::Names("more than one list of subjectAltNames")
        );
    }
}
