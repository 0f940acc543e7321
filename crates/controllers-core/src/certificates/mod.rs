//! Certificate signing requests: which are approved without a person, and what is issued for those that are approved.

mod approving;
mod signing;

use std::time::Duration;

use serde_json::Value;

use crate::controller::Retry;
use crate::object::Object;

pub(crate) use approving::APPROVING;
pub(crate) use signing::SIGNING;

/// Both have their own pauses upstream.
const RETRY: Retry =
    Retry { first: Duration::from_millis(200), last: Duration::from_secs(1000), gives_up_after: None };

/// A request as it stands.
struct Asked {
    value: Value,
}

// === impl Asked ===

impl Asked {
    /// None: it has its certificate.
    fn open(request: &Object) -> Option<Asked> {
        let value = request.value();
        let is_issued = value["status"]["certificate"].as_str().is_some_and(|text| !text.is_empty());
        (!is_issued && !request.is_deleting()).then_some(Asked { value })
    }

    fn has(&self, kind: &str) -> bool {
        crate::conditions::find(&self.value["status"], kind).is_some()
    }

    fn text(&self, key: &str) -> &str {
        self.value["spec"][key].as_str().unwrap_or_default()
    }

    fn usages(&self) -> Vec<&str> {
        self.value["spec"]["usages"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// The status with one condition more.
    fn with(&self, condition: Value) -> Value {
        let mut status = self.value["status"].clone();
        if !status.is_object() {
            status = serde_json::json!({});
        }
        match status["conditions"].as_array_mut() {
            Some(conditions) => conditions.push(condition),
            None => status["conditions"] = serde_json::json!([condition]),
        }
        status
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
    use serde_json::json;

    use crate::resource::CERTIFICATE_SIGNING_REQUESTS;
    use crate::testing::{Draft, draft};

    /// A request of a user for a new key.
    pub(crate) fn request(
        signer: &str,
        user: &str,
        subject: (&str, &str),
        dns: &[&str],
        usages: &[&str],
    ) -> Draft {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, subject.1);
        params.distinguished_name.push(DnType::CommonName, subject.0);
        params.subject_alt_names =
            dns.iter().map(|d| SanType::DnsName((*d).to_owned().try_into().unwrap())).collect();
        let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        draft(CERTIFICATE_SIGNING_REQUESTS, "r").set(
            "/spec",
            json!({"signerName": signer, "username": user, "uid": "7", "groups": ["g"], "extra": {"k": ["v"]},
                   "usages": usages, "request": STANDARD.encode(pem)}),
        )
    }

    pub(crate) fn decided(request: Draft, kinds: &[&str]) -> Draft {
        let all: Vec<_> = kinds.iter().map(|kind| json!({"type": kind, "status": "True"})).collect();
        request.set("/status/conditions", json!(all))
    }
}
