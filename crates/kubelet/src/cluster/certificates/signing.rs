//! Asking the cluster for a certificate.

use std::time::Duration;

use base::rng::Rng;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use client::{Client, ClientError, Event, Request, Resource, Watcher};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kubelet_core::node::certificate::Names;
use serde_json::json;
use sha2::{Digest, Sha512_256};

use tls::Key;

use super::pem;

const PATH: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// What a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Client,
    Serving,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum SigningError {
    #[error(transparent)]
    Api(#[from] ClientError),
    #[error("certificate signing request {name} was {what}: {why}")]
    Refused { name: String, what: &'static str, why: String },
    #[error("certificate signing request {name} was not signed within {} s", .after.as_secs())]
    Unsigned { name: String, after: Duration },
    #[error("{0}")]
    Key(String),
}

// === impl Purpose ===

impl Purpose {
    pub(super) fn signer(self) -> &'static str {
        match self {
            Purpose::Client => kubelet_core::node::certificate::CLIENT_SIGNER,
            Purpose::Serving => kubelet_core::node::certificate::SERVING_SIGNER,
        }
    }

    fn usages(self) -> [&'static str; 2] {
        match self {
            Purpose::Client => ["digital signature", "client auth"],
            Purpose::Serving => ["digital signature", "server auth"],
        }
    }
}

/// Asks, waits until somebody approved and signed, and returns the certificate, PEM.
pub(super) async fn certificate(
    client: &Client,
    purpose: Purpose,
    key: &Key,
    names: &Names,
    name: Option<String>,
    (limit, rng): (Duration, Rng),
) -> Result<String, SigningError> {
    let request = pem::request(key, names).map_err(SigningError::Key)?;
    let metadata = match &name {
        Some(name) => json!({ "name": name }),
        None => json!({ "generateName": "csr-" }),
    };
    let object = json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": metadata,
        "spec": {
            "request": STANDARD.encode(request),
            "signerName": purpose.signer(),
            "usages": purpose.usages(),
        },
    });
    let made: Result<CertificateSigningRequest, _> =
        client.ask(Request::post(PATH, object.to_string())).await;
    let name = match (made, name) {
        (Ok(made), _) => made.metadata.name.unwrap_or_default(),
        // Asked for with the same key in an earlier life: the answer to that is as good.
        (Err(e), Some(name)) if e.is_already_exists() => name,
        (Err(e), _) => return Err(e.into()),
    };
    tracing::info!(name, signer = purpose.signer(), "certificate asked for");
    let waiting = wait(client, &name, rng);
    match tokio::time::timeout(limit, waiting).await {
        Ok(result) => result,
        Err(_) => Err(SigningError::Unsigned { name, after: limit }),
    }
}

async fn wait(client: &Client, name: &str, rng: Rng) -> Result<String, SigningError> {
    let resource = Resource {
        path: PATH.to_owned(),
        label_selector: String::new(),
        field_selector: format!("metadata.name={name}"),
    };
    let mut watcher = Watcher::new(client.clone(), resource, rng);
    let refused = |what, why: String| SigningError::Refused { name: name.to_owned(), what, why };
    loop {
        let object = match watcher.next().await {
            // A list may be older than the request; the watch brings it.
            Event::Listed(all) => match all.into_iter().next() {
                Some(object) => object,
                None => continue,
            },
            Event::Applied(object) => object,
            Event::Deleted(_) => return Err(refused("deleted", "it is gone".to_owned())),
        };
        let Some(csr) = client.read::<CertificateSigningRequest>(&object).any() else { continue };
        if let Some(answer) = read(&csr) {
            return answer.map_err(|(what, why)| refused(what, why));
        }
    }
}

/// The answer, if there is one yet.
fn read(csr: &CertificateSigningRequest) -> Option<Result<String, (&'static str, String)>> {
    let status = csr.status.as_ref()?;
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let find = |kind: &str| conditions.iter().find(|c| c.type_ == kind);
    let why = |c: &k8s_openapi::api::certificates::v1::CertificateSigningRequestCondition| {
        let text = |t: &Option<String>| t.clone().unwrap_or_default();
        format!("{}: {}", text(&c.reason), text(&c.message))
    };
    if let Some(denied) = find("Denied") {
        return Some(Err(("denied", why(denied))));
    }
    if let Some(failed) = find("Failed") {
        return Some(Err(("not signed", why(failed))));
    }
    let signed = status.certificate.as_ref().filter(|c| !c.0.is_empty() && find("Approved").is_some())?;
    Some(String::from_utf8(signed.0.clone()).map_err(|_| ("signed in vain", "it is no PEM".to_owned())))
}

/// The name a node's first request has: the same key asks under the same name, so that a kubelet that is started
/// again while it waits does not ask twice. As upstream derives it.
pub(super) fn bootstrap_name(key: &Key, names: &Names) -> String {
    let mut hash = Sha512_256::new();
    let mut add = |bytes: &[u8]| {
        hash.update(URL_SAFE_NO_PAD.encode(bytes));
        hash.update(b"|");
    };
    add(&key.public_key());
    add(names.common_name.as_bytes());
    names.organizations.iter().for_each(|o| add(o.as_bytes()));
    Purpose::Client.usages().iter().for_each(|u| add(u.as_bytes()));
    format!("node-csr-{}", URL_SAFE_NO_PAD.encode(hash.finalize()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use kubelet_core::node::certificate::client_names;

    fn csr(status: serde_json::Value) -> CertificateSigningRequest {
        let spec = json!({"request": "", "signerName": "x"});
        serde_json::from_value(json!({"metadata": {}, "spec": spec, "status": status})).unwrap()
    }

    #[test]
    fn an_answer_is_a_certificate_or_a_reason() {
        let condition = |kind: &str| json!([{"type": kind, "status": "True", "reason": "R", "message": "m"}]);
        assert_eq!(read(&csr(json!({}))), None);
        assert_eq!(read(&csr(json!({"conditions": condition("Approved")}))), None, "approved, not signed");
        let signed = json!({"conditions": condition("Approved"), "certificate": "UEVN"});
        assert_eq!(read(&csr(signed)), Some(Ok("PEM".to_owned())));
        let denied = read(&csr(json!({"conditions": condition("Denied")}))).unwrap();
        assert_eq!(denied, Err(("denied", "R: m".to_owned())));
        assert!(read(&csr(json!({"conditions": condition("Failed")}))).unwrap().is_err());
    }

    #[test]
    fn the_first_request_is_named_after_its_key() {
        let (a, b) = (Key::generate().unwrap(), Key::generate().unwrap());
        let names = client_names("n1");
        let name = bootstrap_name(&a, &names);
        assert_eq!(name.len(), "node-csr-".len() + 43);
        assert_eq!(name, bootstrap_name(&a, &names));
        assert_ne!(name, bootstrap_name(&b, &names));
        assert_ne!(name, bootstrap_name(&a, &client_names("n2")));
    }
}
