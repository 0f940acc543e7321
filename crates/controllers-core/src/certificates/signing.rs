//! The signers of the cluster: what is approved is issued, or is told why it cannot be.

use api::config::controllers::{Certificate, CertificateSigner};
use base::time::Now;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use x509::Request;
use x509::signers::{self, VALIDATION_FAILURE};

use super::{Asked, RETRY};
use crate::controller::{Controller, Key, Row, Watch};
use crate::object::Object;
use crate::plan::{Act, Plan, Step};
use crate::resource::CERTIFICATE_SIGNING_REQUESTS;
use crate::terms::timestamp;
use crate::view::View;

pub(crate) const SIGNING: Row = Row {
    name: "certificatesigningrequest-signing-controller",
    aliases: &["csrsigning"],
    identity: "certificate-controller",
    event_source: "certificatesigningrequest-signing-controller",
    queue: "certificate",
    workers: |_| 5,
    retry: RETRY,
    is_on_by_default: true,
    watches: &[Watch::itself(CERTIFICATE_SIGNING_REQUESTS)],
    reads: &[],
    is_single: false,
    make: |tuning| Box::new(Signing { signer: tuning.certificate_signer.clone() }),
};

#[derive(Debug)]
struct Signing {
    /// None: no files were given, and nobody signs here.
    signer: Option<CertificateSigner>,
}

impl Controller for Signing {
    fn reconcile(&mut self, view: &dyn View, key: &Key, now: Now) -> Plan {
        let found = view.get(CERTIFICATE_SIGNING_REQUESTS, "", &key.name);
        let (Some(signer), Some(request)) = (&self.signer, found) else { return Plan::nothing() };
        let Some(asked) = Asked::open(&request) else { return Plan::nothing() };
        let is_ours = signer.signers.contains(asked.text("signerName"));
        if !is_ours || !asked.has("Approved") || asked.has("Denied") || asked.has("Failed") {
            return Plan::nothing();
        }
        let usages = asked.usages();
        let wanted = Request::from_spec(asked.text("request")).map_err(|error| error.to_string());
        let checked = wanted.and_then(|wanted| signers::check(asked.text("signerName"), &wanted, &usages));
        if let Err(why) = checked {
            return failed(&request, &asked, &why, now);
        }
        let wanted = Certificate {
            signer: asked.text("signerName"),
            request: asked.text("request"),
            usages: &usages,
            seconds: asked.value["spec"]["expirationSeconds"].as_i64(),
            now: now.wall,
        };
        match (signer.sign)(wanted) {
            Ok(pem) => {
                let mut status = asked.value["status"].clone();
                status["certificate"] = STANDARD.encode(pem).into();
                Plan::of(Step::in_turn([Act::update_status(&request, status)]))
            }
            Err(why) => Plan::failed(format!("error auto signing csr: {why}")),
        }
    }
}

fn failed(request: &Object, asked: &Asked, why: &str, now: Now) -> Plan {
    let status = asked.with(json!({
        "type": "Failed", "status": "True", "reason": VALIDATION_FAILURE, "message": why,
        "lastUpdateTime": timestamp(now.wall),
    }));
    Plan::of(Step::in_turn([Act::update_status(request, status)]))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::tests::{decided, request};
    use super::*;
    use crate::testing::{World, at};

    const NODE: (&str, &str) = ("system:node:n1", "system:nodes");
    const KUBELET: &[&str] = &["digital signature", "client auth"];

    /// Signs for kubelets only, and tells what it was asked.
    fn controller(signer: Option<&str>) -> Signing {
        let sign = |wanted: Certificate<'_>| match wanted.seconds {
            Some(13) => Err("no ink".to_owned()),
            seconds => Ok(format!("{} {seconds:?} {}", wanted.usages.join(","), wanted.now.secs())),
        };
        let signers = signer.into_iter().map(str::to_owned).collect();
        Signing { signer: Some(CertificateSigner { signers, sign: Arc::new(sign) }) }
    }

    #[test]
    fn what_is_approved_is_issued_and_what_cannot_be_is_told() {
        let kubelet = || request(signers::CLIENT_KUBELET, NODE.0, NODE, &[], KUBELET);
        let approved = || decided(kubelet(), &["Approved"]);
        let named = request(signers::CLIENT_KUBELET, NODE.0, NODE, &["n1"], KUBELET);
        for (row, object, certificate, failed) in [
            ("good", approved(), "digital signature,client auth None 5", ""),
            (
                "for a while",
                approved().set("/spec/expirationSeconds", json!(3600)),
                "digital signature,client auth Some(3600) 5",
                "",
            ),
            ("not approved", kubelet(), "", ""),
            ("denied", decided(kubelet(), &["Approved", "Denied"]), "", ""),
            ("failed before", decided(kubelet(), &["Approved", "Failed"]), "", ""),
            ("another signer's", approved().set("/spec/signerName", json!(signers::SERVING)), "", ""),
            ("names", decided(named, &["Approved"]), "", "DNS subjectAltNames are not allowed"),
            (
                "nonsense",
                approved().set("/spec/request", json!("bm9uc2Vuc2U=")),
                "",
                "PEM block type must be CERTIFICATE REQUEST",
            ),
        ] {
            let mut world = World::new([object]);
            let key = Key::new("", "r");
            world.sync_key(&mut controller(Some(signers::CLIENT_KUBELET)), &key, at(5));
            let status = world.get(CERTIFICATE_SIGNING_REQUESTS, "r").value()["status"].take();
            let issued = STANDARD.decode(status["certificate"].as_str().unwrap_or_default());
            let issued = String::from_utf8(issued.unwrap_or_default()).unwrap_or_default();
            assert_eq!(issued, certificate, "{row}");
            let last =
                status["conditions"].as_array().and_then(|all| all.last().cloned()).unwrap_or_default();
            let told = last["message"].as_str().unwrap_or_default();
            assert_eq!(told, failed, "{row}");
            if !failed.is_empty() {
                assert_eq!(
                    (&last["type"], &last["reason"]),
                    (&json!("Failed"), &json!("SignerValidationFailure"))
                );
                assert_eq!(last["lastUpdateTime"], "1970-01-01T00:00:05Z");
            }
            let again = world.sync_key(&mut controller(Some(signers::CLIENT_KUBELET)), &key, at(6));
            assert!(again.said.is_empty(), "{row}: {:?}", again.said);
        }
    }

    #[test]
    fn a_signer_without_its_key_tries_again_and_one_without_files_signs_nothing() {
        let approved = || {
            decided(request(signers::CLIENT_KUBELET, NODE.0, NODE, &[], KUBELET), &["Approved"])
                .set("/spec/expirationSeconds", json!(13))
        };
        let mut world = World::new([approved()]);
        let ran = world.sync_key(&mut controller(Some(signers::CLIENT_KUBELET)), &Key::new("", "r"), at(1));
        assert_eq!(ran.failure.as_deref(), Some("error auto signing csr: no ink"));
        for mut nobody in [controller(None), Signing { signer: None }] {
            let ran = World::new([approved()]).sync_key(&mut nobody, &Key::new("", "r"), at(1));
            assert!(ran.said.is_empty() && ran.failure.is_none());
        }
    }
}
