//! What a PKCS#10 request asks for.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::FromDer;

use crate::auth::pki::{AlternativeNames, Subject, pem};
use crate::auth::verify;
use crate::doc;

/// A request that was signed with the key it is about.
#[derive(Clone, Debug)]
pub struct Request {
    pub common_name: String,
    pub organizations: Vec<String>,
    pub names: AlternativeNames,
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
}

// === impl Request ===

impl Request {
    /// Reads `spec.request` of a CertificateSigningRequest.
    pub fn from_object(object: &Value) -> Result<Request, RequestError> {
        let text = STANDARD.decode(doc::text(object, "spec.request")).map_err(|_| RequestError::Pem)?;
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
        let texts = |found: Vec<&x509_parser::x509::AttributeTypeAndValue<'_>>| -> Vec<String> {
            found.iter().filter_map(|a| a.as_str().ok()).map(str::to_owned).collect()
        };
        let mut names = AlternativeNames::default();
        for extension in parsed.requested_extensions().into_iter().flatten() {
            if let ParsedExtension::SubjectAlternativeName(found) = extension {
                names = verify::general_names(&found.general_names);
            }
        }
        Ok(Request {
            common_name: texts(info.subject.iter_common_name().collect()).pop().unwrap_or_default(),
            organizations: texts(info.subject.iter_organization().collect()),
            names,
            subject: Subject::from_der(info.subject.as_raw()),
            public_key: info.subject_pki.raw.to_vec(),
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests {
    use super::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

    /// `spec.request` for a new key.
    pub(in crate::auth) fn encoded(common_name: &str, organization: &str, dns: &[&str]) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, organization);
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.subject_alt_names =
            dns.iter().map(|d| SanType::DnsName((*d).to_owned().try_into().unwrap())).collect();
        let request = params.serialize_request(&KeyPair::generate().unwrap()).unwrap();
        STANDARD.encode(request.pem().unwrap())
    }

    #[test]
    fn a_request_says_who_and_proves_its_key() {
        let text =
            String::from_utf8(STANDARD.decode(encoded("system:node:n1", "system:nodes", &["n1"])).unwrap())
                .unwrap();
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
}
