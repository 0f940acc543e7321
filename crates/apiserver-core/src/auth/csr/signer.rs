//! What becomes of a signing request: approved where upstream's controller would, refused, signed, or forgotten. Pure.

use std::sync::Arc;

use base::rfc3339::Moment;
use base::time::Wall;
use serde_json::{Value, json};

use super::request::Request;
use crate::auth::authz::Authorizer;
use crate::doc;
use crate::request::{Attributes, Resource, User, groups};
use x509::{Leaf, Usage, backdated};

pub const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
pub const CLIENT_KUBELET: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub const SERVING: &str = "kubernetes.io/kubelet-serving";
pub const LEGACY: &str = "kubernetes.io/legacy-unknown";

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
const SHORTEST: i64 = 600;

/// Decides about one request.
pub fn step(object: &Value, authorizer: &Authorizer, now: Wall) -> Step {
    if is_old(object, now) {
        return Step::Delete;
    }
    let signer = doc::text(object, "spec.signerName");
    if ![CLIENT, CLIENT_KUBELET, SERVING, LEGACY].contains(&signer)
        || has(object, "Denied")
        || has(object, "Failed")
    {
        return Step::Nothing;
    }
    if !doc::text(object, "status.certificate").is_empty() {
        return Step::Nothing;
    }
    let request = match Request::from_object(object) {
        Ok(request) => request,
        Err(error) => return Step::Write(failed(object, &error.to_string(), now)),
    };
    let mut next = object.clone();
    let mut approved = has(object, "Approved");
    if !approved && let Some(message) = approval(object, &request, authorizer) {
        condition(&mut next, "Approved", "AutoApproved", message, now);
        approved = true;
    }
    if !approved {
        return Step::Nothing;
    }
    if let Err(why) = check(signer, &request, object) {
        return Step::Write(failed(&next, why, now));
    }
    Step::Sign(Box::new((next, leaf(request, object, now))))
}

/// Why the request is approved without a person, if it is: a kubelet's client certificate, asked for by somebody whom
/// a role allows just that.
fn approval(object: &Value, request: &Request, authorizer: &Authorizer) -> Option<&'static str> {
    let spec = &object["spec"];
    if doc::text(spec, "signerName") != CLIENT_KUBELET || check(CLIENT_KUBELET, request, object).is_err() {
        return None;
    }
    let words = |list: &Value| -> Vec<String> {
        list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let user = Arc::new(User {
        name: doc::text(spec, "username").to_owned(),
        uid: doc::text(spec, "uid").to_owned(),
        groups: words(&spec["groups"]),
        extra: doc::entries(spec, "extra").map(|(k, v)| (k.to_owned(), words(v))).collect(),
    });
    let itself = user.name == request.common_name;
    let cases = [
        (
            itself,
            "selfnodeclient",
            "Auto approving self kubelet client certificate after SubjectAccessReview.",
        ),
        (true, "nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview."),
    ];
    cases.into_iter().filter(|(fits, ..)| *fits).find_map(|(_, subresource, message)| {
        let resource = Resource {
            group: "certificates.k8s.io".into(),
            version: "*".into(),
            plural: "certificatesigningrequests".into(),
            subresource: subresource.into(),
            ..Resource::default()
        };
        let attributes = Attributes {
            user: user.clone(),
            verb: "create".into(),
            path: String::new(),
            resource: Some(resource),
        };
        authorizer.authorize(&attributes).is_allowed().then_some(message)
    })
}

/// What each signer lets pass.
pub(super) fn check(signer: &str, request: &Request, object: &Value) -> Result<(), &'static str> {
    let usages: Vec<&str> = doc::list(object, "spec.usages").iter().filter_map(Value::as_str).collect();
    let within = |allowed: &[&str]| usages.iter().all(|u| allowed.contains(u));
    match signer {
        CLIENT_KUBELET => {
            node_subject(request)?;
            match () {
                () if !request.names.dns.is_empty() => Err("DNS subjectAltNames are not allowed"),
                () if !request.names.emails.is_empty() => Err("email subjectAltNames are not allowed"),
                () if !request.names.ips.is_empty() => Err("IP subjectAltNames are not allowed"),
                () if !request.names.uris.is_empty() => Err("URI subjectAltNames are not allowed"),
                () if !node_usages(&usages, "client auth") => Err("usages did not match expected usages"),
                () => Ok(()),
            }
        }
        SERVING => {
            node_subject(request)?;
            match () {
                () if request.names.dns.is_empty() && request.names.ips.is_empty() => {
                    Err("at least one DNS or IP subjectAltName is required")
                }
                () if !request.names.emails.is_empty() => Err("email subjectAltNames are not allowed"),
                () if !request.names.uris.is_empty() => Err("URI subjectAltNames are not allowed"),
                () if !node_usages(&usages, "server auth") => Err("usages did not match expected usages"),
                () => Ok(()),
            }
        }
        CLIENT => {
            if request.organizations.iter().any(|o| o == groups::MASTERS) {
                return Err("subject must not name system:masters");
            }
            if usages.contains(&"client auth")
                && within(&["digital signature", "key encipherment", "client auth"])
            {
                Ok(())
            } else {
                Err("usages did not match expected usages")
            }
        }
        _ => Ok(()),
    }
}

fn node_subject(request: &Request) -> Result<(), &'static str> {
    if request.organizations != [groups::NODES] {
        return Err("subject organization is not system:nodes");
    }
    let named = request.common_name.strip_prefix("system:node:").is_some_and(|n| !n.is_empty());
    if named { Ok(()) } else { Err("subject common name does not begin with system:node: ") }
}

fn node_usages(usages: &[&str], auth: &str) -> bool {
    let known = |u: &&str| matches!(*u, "digital signature" | "key encipherment") || *u == auth;
    usages.iter().all(known) && usages.contains(&auth) && usages.contains(&"digital signature")
}

fn leaf(request: Request, object: &Value, now: Wall) -> Leaf {
    let usages = doc::list(object, "spec.usages").iter().filter_map(|u| match u.as_str()? {
        "digital signature" | "signing" => Some(Usage::DigitalSignature),
        "key encipherment" => Some(Usage::KeyEncipherment),
        "client auth" => Some(Usage::ClientAuth),
        "server auth" => Some(Usage::ServerAuth),
        _ => None,
    });
    let seconds = object["spec"]["expirationSeconds"].as_i64();
    let life = seconds.map_or(LONGEST, |s| s.clamp(SHORTEST, LONGEST));
    Leaf {
        subject: request.subject,
        public_key: request.public_key,
        names: request.names,
        usages: usages.collect(),
        not_before: backdated(now),
        not_after: Wall::from_secs(now.secs() + life),
    }
}

fn has(object: &Value, kind: &str) -> bool {
    doc::list(object, "status.conditions").iter().any(|c| c["type"] == kind)
}

/// The request with nobody's objection.
pub(super) fn approved(object: &Value, message: &str, now: Wall) -> Value {
    let mut next = object.clone();
    condition(&mut next, "Approved", "AutoApproved", message, now);
    next
}

fn failed(object: &Value, why: &str, now: Wall) -> Value {
    let mut next = object.clone();
    condition(&mut next, "Failed", "SignerValidationFailure", why, now);
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
mod tests {
    use super::super::request::tests::{encoded, smuggled};
    use super::*;
    use crate::auth::rbac::policy;
    use x509::Subject;

    const NOW: Wall = Wall(1_800_000_000_000_000_000);
    const NODE_USAGES: [&str; 2] = ["digital signature", "client auth"];

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
            (json!(1), SHORTEST),
            (json!(null), LONGEST),
            (json!(10 * LONGEST), LONGEST),
        ] {
            let mut object = request(CLIENT_KUBELET, node, node, &[], &NODE_USAGES);
            object["spec"]["expirationSeconds"] = seconds;
            let Step::Sign(made) = step(&object, &authorizer(), NOW) else { panic!("not signed") };
            assert_eq!(made.1.not_after.secs() - NOW.secs(), life);
            assert_eq!(made.1.subject, Subject::new("system:node:n1", &["system:nodes"]));
        }
    }

    #[test]
    fn a_group_in_letters_we_cannot_read_gets_no_certificate() {
        for text in smuggled() {
            for signer in [CLIENT, LEGACY, CLIENT_KUBELET, SERVING] {
                let mut object = request(signer, ("jane", "dev"), ("jane", "dev"), &[], &["client auth"]);
                object["spec"]["request"] = text.clone().into();
                condition(&mut object, "Approved", "Person", "", NOW);
                assert_eq!(outcome(&object), "Approved,Failed", "{signer}");
            }
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
