//! What becomes of a signing request: approved where upstream's controller would, refused, signed, or forgotten. Pure.

use std::sync::Arc;

use base::rfc3339::Moment;
use base::time::Wall;
use serde_json::{Value, json};

use crate::auth::authz::Authorizer;
use crate::doc;
use crate::request::{Attributes, Resource, User};
use x509::signers::{self, AUTO_APPROVED, VALIDATION_FAILURE};
use x509::{Leaf, Request};

/// The next thing to do with a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Write it like this.
    Write(Value),
    /// Issue this certificate and write it into `status.certificate`.
    Sign(Box<(Value, Leaf)>),
    Delete,
    Nothing,
}

const DAY: i64 = 24 * 3600;
const HOUR: i64 = 3600;
/// `--cluster-signing-duration`
const LONGEST: i64 = 365 * DAY;

/// Decides about one request.
pub fn step(object: &Value, authorizer: &Authorizer, now: Wall) -> Step {
    if is_old(object, now) {
        return Step::Delete;
    }
    let signer = doc::text(object, "spec.signerName");
    if !signers::ALL.contains(&signer) || has(object, "Denied") || has(object, "Failed") {
        return Step::Nothing;
    }
    if !doc::text(object, "status.certificate").is_empty() {
        return Step::Nothing;
    }
    let request = match super::request(object) {
        Ok(request) => request,
        Err(error) => return Step::Write(failed(object, &error.to_string(), now)),
    };
    let usages: Vec<&str> = doc::list(object, "spec.usages").iter().filter_map(Value::as_str).collect();
    let mut next = object.clone();
    let mut approved = has(object, "Approved");
    if !approved && let Some(message) = approval(object, &request, &usages, authorizer) {
        condition(&mut next, "Approved", AUTO_APPROVED, message, now);
        approved = true;
    }
    if !approved {
        return Step::Nothing;
    }
    let leaf = signers::check(signer, &request, &usages).and_then(|()| {
        let seconds = object["spec"]["expirationSeconds"].as_i64();
        signers::leaf(request, &usages, seconds, LONGEST, now)
    });
    match leaf {
        Ok(leaf) => Step::Sign(Box::new((next, leaf))),
        Err(why) => Step::Write(failed(&next, &why, now)),
    }
}

/// Why the request is approved without a person, if it is: a kubelet's client certificate, asked for by somebody whom
/// a role allows just that.
fn approval(
    object: &Value,
    request: &Request,
    usages: &[&str],
    authorizer: &Authorizer,
) -> Option<&'static str> {
    let spec = &object["spec"];
    let words = |list: &Value| -> Vec<String> {
        list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let user = Arc::new(User {
        name: doc::text(spec, "username").to_owned(),
        uid: doc::text(spec, "uid").to_owned(),
        groups: words(&spec["groups"]),
        extra: doc::entries(spec, "extra").map(|(k, v)| (k.to_owned(), words(v))).collect(),
    });
    let rights = signers::approvals(doc::text(spec, "signerName"), &user.name, request, usages);
    rights.into_iter().find_map(|approval| {
        let resource = Resource {
            group: "certificates.k8s.io".into(),
            version: "*".into(),
            plural: "certificatesigningrequests".into(),
            subresource: approval.subresource.into(),
            ..Resource::default()
        };
        let attributes = Attributes {
            user: user.clone(),
            verb: "create".into(),
            path: String::new(),
            resource: Some(resource),
        };
        authorizer.authorize(&attributes).is_allowed().then_some(approval.message)
    })
}

fn has(object: &Value, kind: &str) -> bool {
    doc::list(object, "status.conditions").iter().any(|c| c["type"] == kind)
}

/// The request with nobody's objection.
pub(super) fn approved(object: &Value, message: &str, now: Wall) -> Value {
    let mut next = object.clone();
    condition(&mut next, "Approved", AUTO_APPROVED, message, now);
    next
}

fn failed(object: &Value, why: &str, now: Wall) -> Value {
    let mut next = object.clone();
    condition(&mut next, "Failed", VALIDATION_FAILURE, why, now);
    next
}

fn condition(object: &mut Value, kind: &str, reason: &str, message: &str, now: Wall) {
    let at = jiff::Timestamp::from_second(now.secs()).unwrap_or_default().to_string();
    let condition = json!({"type": kind, "status": "True", "reason": reason, "message": message,
        "lastUpdateTime": at, "lastTransitionTime": at});
    match doc::at_mut(object, "status.conditions").and_then(Value::as_array_mut) {
        Some(conditions) => conditions.push(condition),
        None => doc::set(object, "status.conditions", json!([condition])),
    }
}

/// Requests are not kept for ever: an hour when they are settled, a day when nobody answered.
fn is_old(object: &Value, now: Wall) -> bool {
    let secs = |text: &str| Moment::parse_lenient(text).map(|t| t.secs);
    let since = |at: Option<i64>, limit: i64| at.is_some_and(|at| now.secs() - at > limit);
    let at = |kind: &str| {
        let found = doc::list(object, "status.conditions").iter().find(|c| c["type"] == kind)?;
        secs(doc::text(found, "lastUpdateTime"))
    };
    let created = secs(doc::text(object, "metadata.creationTimestamp"));
    let issued = !doc::text(object, "status.certificate").is_empty();
    if ["Denied", "Failed"].into_iter().any(|kind| since(at(kind), HOUR)) {
        return true;
    }
    match (has(object, "Approved"), issued) {
        (true, true) => since(at("Approved"), HOUR),
        _ => since(created, DAY),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests {
    use super::*;
    use crate::auth::rbac::policy;
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
    use x509::Subject;
    use x509::signers::{CLIENT, CLIENT_KUBELET, SERVING};

    const NOW: Wall = Wall(1_800_000_000_000_000_000);
    const NODE_USAGES: [&str; 2] = ["digital signature", "client auth"];

    /// `spec.request` for a new key.
    pub(in crate::auth::csr) fn encoded(common_name: &str, organization: &str, dns: &[&str]) -> String {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, organization);
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.subject_alt_names =
            dns.iter().map(|d| SanType::DnsName((*d).to_owned().try_into().unwrap())).collect();
        let request = params.serialize_request(&KeyPair::generate().unwrap()).unwrap();
        STANDARD.encode(request.pem().unwrap())
    }

    fn authorizer() -> Authorizer {
        let authorizer = Authorizer::default();
        policy::defaults().iter().for_each(|(kind, object)| authorizer.rbac().put(*kind, object));
        authorizer
    }

    fn request(
        signer: &str,
        user: (&str, &str),
        subject: (&str, &str),
        dns: &[&str],
        usages: &[&str],
    ) -> Value {
        json!({"metadata": {"name": "r", "creationTimestamp": "2027-01-15T07:59:00Z"}, "spec": {
            "signerName": signer, "username": user.0, "groups": [user.1], "usages": usages,
            "request": encoded(subject.0, subject.1, dns)}})
    }

    fn outcome(object: &Value) -> String {
        let kinds = |object: &Value| {
            let conditions = doc::list(object, "status.conditions").iter();
            conditions.map(|c| doc::text(c, "type")).collect::<Vec<_>>().join(",")
        };
        match step(object, &authorizer(), NOW) {
            Step::Nothing => "nothing".to_owned(),
            Step::Delete => "delete".to_owned(),
            Step::Write(next) => kinds(&next),
            Step::Sign(made) => format!("{}+issued", kinds(&made.0)),
        }
    }

    #[test]
    fn requests_go_where_upstream_would_send_them() {
        let boot = ("system:bootstrap:abcdef", "system:bootstrappers");
        let node = ("system:node:n1", "system:nodes");
        let approved = |mut object: Value| {
            condition(&mut object, "Approved", "Person", "", NOW);
            object
        };
        let cases = [
            (request(CLIENT_KUBELET, boot, node, &[], &NODE_USAGES), "Approved+issued"),
            (request(CLIENT_KUBELET, node, node, &[], &NODE_USAGES), "Approved+issued"),
            (request(CLIENT_KUBELET, ("jane", "dev"), node, &[], &NODE_USAGES), "nothing"),
            (request(CLIENT_KUBELET, boot, ("root", "system:masters"), &[], &NODE_USAGES), "nothing"),
            (request(CLIENT_KUBELET, boot, node, &["n1"], &NODE_USAGES), "nothing"),
            (request(SERVING, node, node, &["n1"], &["digital signature", "server auth"]), "nothing"),
            (
                approved(request(SERVING, node, node, &["n1"], &["digital signature", "server auth"])),
                "Approved+issued",
            ),
            (
                approved(request(SERVING, node, node, &[], &["digital signature", "server auth"])),
                "Approved,Failed",
            ),
            (approved(request(SERVING, node, ("n1", "x"), &["n1"], &["server auth"])), "Approved,Failed"),
            (
                approved(request(CLIENT, ("jane", "dev"), ("jane", "dev"), &[], &["client auth"])),
                "Approved+issued",
            ),
            (
                approved(request(CLIENT, ("jane", "dev"), ("jane", "dev"), &[], &["server auth"])),
                "Approved,Failed",
            ),
            (
                approved(request(CLIENT, ("jane", "dev"), ("jane", "system:masters"), &[], &["client auth"])),
                "Approved,Failed",
            ),
            (
                approved(request("example.com/own", ("jane", "dev"), ("jane", "dev"), &[], &["client auth"])),
                "nothing",
            ),
        ];
        for (object, expected) in cases {
            assert_eq!(outcome(&object), expected, "{}", object["spec"]["signerName"]);
        }
    }

    #[test]
    fn a_certificate_lives_as_long_as_it_was_asked_to() {
        let node = ("system:node:n1", "system:nodes");
        for (seconds, life) in [
            (json!(3600), 3600),
            (json!(1), 600),
            (json!(null), LONGEST - 300),
            (json!(10 * LONGEST), LONGEST - 300),
        ] {
            let mut object = request(CLIENT_KUBELET, node, node, &[], &NODE_USAGES);
            object["spec"]["expirationSeconds"] = seconds;
            let Step::Sign(made) = step(&object, &authorizer(), NOW) else { panic!("not signed") };
            assert_eq!(made.1.not_after.secs() - NOW.secs(), life);
            assert_eq!(made.1.subject, Subject::new("system:node:n1", &["system:nodes"]));
        }
    }

    #[test]
    fn a_request_that_nobody_can_read_fails_once_it_is_approved_or_before() {
        for signer in signers::ALL {
            let mut object = request(signer, ("jane", "dev"), ("jane", "dev"), &[], &["client auth"]);
            object["spec"]["request"] = "bm9uc2Vuc2U=".into();
            assert_eq!(outcome(&object), "Failed", "{signer}");
            condition(&mut object, "Approved", "Person", "", NOW);
            assert_eq!(outcome(&object), "Approved,Failed", "{signer}");
        }
    }

    #[test]
    fn old_requests_are_forgotten() {
        let base = request("example.com/x", ("jane", "dev"), ("jane", "dev"), &[], &[]);
        let with = |created: &str, kind: Option<&str>, issued: bool| {
            let mut object = base.clone();
            object["metadata"]["creationTimestamp"] = created.into();
            if let Some(kind) = kind {
                condition(&mut object, kind, "", "", Wall::from_secs(NOW.secs() - 2 * HOUR));
            }
            if issued {
                object["status"]["certificate"] = "x".into();
            }
            outcome(&object)
        };
        assert_eq!(with("2027-01-15T07:00:00Z", None, false), "nothing");
        assert_eq!(with("2027-01-13T07:00:00Z", None, false), "delete");
        assert_eq!(with("2027-01-15T05:00:00Z", Some("Denied"), false), "delete");
        assert_eq!(with("2027-01-15T05:00:00Z", Some("Approved"), true), "delete");
        assert_eq!(with("2027-01-15T05:00:00Z", Some("Approved"), false), "nothing");
    }
}
