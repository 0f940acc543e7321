//! CertificateSigningRequest: a wish for a certificate, and what became of it.

use std::borrow::Cow;
use std::collections::BTreeSet;

use api::field::{FieldErrors, Path};
use base::time::Wall;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use x509_parser::prelude::{FromDer, X509CertificationRequest};

use super::check;
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, NameRule, Strategy, Subresource, Verb};
use crate::table;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::AGE,
    Column::text("SignerName", "Who shall sign"),
    Column::text("Requestor", "Who asks"),
    Column::text("RequestedDuration", "How long the certificate shall last"),
    Column::text("Condition", "What became of it"),
];

const USAGES: &[&str] = &[
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

pub(super) fn kind() -> Kind {
    const APPROVE: &[Verb] = &[Verb::Get, Verb::Patch, Verb::Update];
    Kind::new("certificates.k8s.io", "v1", "CertificateSigningRequest", "certificatesigningrequests", Request)
        .cluster_scoped()
        .short(&["csr"])
        .with(Subresource::new("approval", "CertificateSigningRequest", APPROVE))
        .with_status()
}

/// A write through `/approval` changes nothing but the conditions.
pub fn prepare_approval(new: &mut Value, old: &Value) {
    let conditions = doc::at(new, "status.conditions").clone();
    doc::keep(new, old, "spec");
    doc::keep(new, old, "status");
    doc::set(new, "status.conditions", conditions);
}

/// Says when each condition came up, where its writer does not.
pub fn stamp_conditions(new: &mut Value, old: &Value, now: Wall) {
    let Ok(now) = jiff::Timestamp::from_second(now.secs()) else { return };
    let now = now.to_string();
    for condition in doc::list_mut(new, "status.conditions") {
        doc::fill(condition, "lastUpdateTime", now.as_str());
        let same = |c: &&Value| c["type"] == condition["type"] && c["status"] == condition["status"];
        let known =
            doc::list(old, "status.conditions").iter().find(same).map(|c| c["lastTransitionTime"].clone());
        let since = known.filter(|t| !t.is_null()).unwrap_or_else(|| now.as_str().into());
        doc::fill(condition, "lastTransitionTime", since);
    }
}

pub fn validate_approval(new: &Value, old: &Value, errors: &mut FieldErrors) {
    conditions(errors, new);
    none_removed(errors, new, old);
    no_certificate(errors, new, old);
}

#[derive(Debug)]
struct Request;

// === impl Request ===

impl Strategy for Request {
    fn prepare_create(&self, object: &mut Value) {
        doc::set(object, "status", json!({}));
    }

    fn prepare_update(&self, new: &mut Value, old: &Value) {
        doc::keep(new, old, "spec");
    }

    fn prepare_status(&self, new: &mut Value, old: &Value) {
        keep_decisions(new, old);
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let spec = Field::root(object).get("spec");
        let request = spec.get("request");
        if let Err(why) = parse(request.text()) {
            errors.invalid(&request.at, request.text(), why);
        }
        let usages = spec.get("usages");
        if usages.is_empty() {
            errors.required(&usages.at, "");
        }
        let mut seen = BTreeSet::new();
        for usage in usages.items() {
            check::one_of_if_set(errors, &usage, USAGES);
            if !seen.insert(usage.text()) {
                errors.duplicate(&usage.at, usage.text());
            }
        }
        signer(errors, &spec.get("signerName"));
        let expiry = spec.get("expirationSeconds");
        if let Some(seconds) = expiry.int().filter(|s| *s < 600) {
            let message = "may not specify a duration less than 600 seconds (10 minutes)";
            errors.invalid(&expiry.at, seconds, message);
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        none_removed(errors, new, old);
        none_decided(errors, new, old);
        no_certificate(errors, new, old);
    }

    fn validate_status(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        conditions(errors, new);
        none_removed(errors, new, old);
        none_decided(errors, new, old);
        let at = Path::new("status.certificate");
        let (now, before) = (doc::text(new, "status.certificate"), doc::text(old, "status.certificate"));
        if now != before && !before.is_empty() {
            errors.forbidden(&at, "updates may not modify existing certificate content");
        }
        if !now.is_empty()
            && let Err(why) = certificates(now)
        {
            errors.invalid(&at, "<certificate data>", why);
        }
    }

    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn field<'a>(&self, name: &str, object: &'a Value) -> Option<Cow<'a, str>> {
        (name == "spec.signerName").then(|| doc::text(object, name).into())
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let duration = match doc::at(object, "spec.expirationSeconds").as_i64() {
            Some(seconds) => table::short_duration(seconds),
            None => "<none>".to_owned(),
        };
        vec![
            table::name(object),
            table::age(object, now).into(),
            table::text_or(object, "spec.signerName", "<none>").into(),
            doc::text(object, "spec.username").into(),
            duration.into(),
            condition(object).into(),
        ]
    }
}

fn condition(object: &Value) -> String {
    let has = |kind: &str| of_type(object, kind).next().is_some();
    let decision = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (_, true) => "Approved",
        _ => "Pending",
    };
    let mut text = decision.to_owned();
    if has("Failed") {
        text.push_str(",Failed");
    }
    if !doc::text(object, "status.certificate").is_empty() {
        text.push_str(",Issued");
    }
    text
}

fn of_type<'a>(object: &'a Value, kind: &str) -> impl Iterator<Item = &'a Value> {
    let kind = kind.to_owned();
    doc::list(object, "status.conditions").iter().filter(move |c| doc::text(c, "type") == kind)
}

fn parse(request: &str) -> Result<(), String> {
    let bytes = STANDARD.decode(request).map_err(|e| e.to_string())?;
    let (_, pem) = x509_parser::pem::parse_x509_pem(&bytes)
        .map_err(|_| "PEM block type must be CERTIFICATE REQUEST".to_owned())?;
    if pem.label != "CERTIFICATE REQUEST" {
        return Err("PEM block type must be CERTIFICATE REQUEST".to_owned());
    }
    X509CertificationRequest::from_der(&pem.contents).map(|_| ()).map_err(|e| e.to_string())
}

fn certificates(text: &str) -> Result<(), String> {
    let bytes = STANDARD.decode(text).map_err(|e| e.to_string())?;
    let mut count = 0;
    for pem in x509_parser::pem::Pem::iter_from_buffer(&bytes) {
        let pem = pem.map_err(|e| e.to_string())?;
        if pem.label != "CERTIFICATE" {
            return Err(format!("only CERTIFICATE PEM blocks are allowed, found {:?}", pem.label));
        }
        pem.parse_x509().map_err(|e| e.to_string())?;
        count += 1;
    }
    if count == 0 { Err("must contain at least one CERTIFICATE PEM block".to_owned()) } else { Ok(()) }
}

pub(super) fn signer(errors: &mut FieldErrors, signer: &Field<'_>) {
    let text = signer.text();
    match text.split_once('/') {
        _ if text.is_empty() => errors.required(&signer.at, ""),
        _ if text == "kubernetes.io/legacy-unknown" => {
            errors.invalid(&signer.at, text, "the legacy signerName is not allowed via this API version");
        }
        Some((domain, path)) if !domain.is_empty() && !path.is_empty() => {
            errors.each(&signer.at, domain, api::names::dns_subdomain(domain));
            for part in path.split('.') {
                errors.each(&signer.at, part, api::names::dns_subdomain(part));
            }
        }
        _ => {
            let message = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
            errors.invalid(&signer.at, text, message);
        }
    }
}

fn conditions(errors: &mut FieldErrors, object: &Value) {
    let list = Field::root(object).get("status").get("conditions");
    let mut seen = BTreeSet::new();
    for condition in list.items() {
        let (kind, status) = (condition.get("type"), condition.get("status"));
        check::required(errors, &kind);
        let values: &[&str] = match kind.text() {
            "Approved" | "Denied" | "Failed" => &["True"],
            _ => &["False", "True", "Unknown"],
        };
        check::one_of(errors, &status, values);
        if !seen.insert(kind.text()) {
            errors.duplicate(&kind.at, kind.text());
        }
    }
    if seen.contains("Approved") && seen.contains("Denied") {
        errors.invalid(&list.at, "Denied", "Approved and Denied conditions are mutually exclusive");
    }
}

fn none_removed(errors: &mut FieldErrors, new: &Value, old: &Value) {
    for kind in ["Approved", "Denied", "Failed"] {
        if of_type(new, kind).count() < of_type(old, kind).count() {
            let message = format!("updates may not remove a condition of type {kind:?}");
            errors.forbidden(&Path::new("status.conditions"), &message);
        }
    }
}

/// Only `/approval` decides.
fn none_decided(errors: &mut FieldErrors, new: &Value, old: &Value) {
    for kind in ["Approved", "Denied"] {
        let (now, before): (Vec<_>, Vec<_>) = (of_type(new, kind).collect(), of_type(old, kind).collect());
        let message = match now.len().cmp(&before.len()) {
            std::cmp::Ordering::Greater => format!("updates may not add a condition of type {kind:?}"),
            std::cmp::Ordering::Equal if now != before => {
                format!("updates may not modify a condition of type {kind:?}\n")
            }
            _ => continue,
        };
        errors.forbidden(&Path::new("status.conditions"), &message);
    }
}

fn no_certificate(errors: &mut FieldErrors, new: &Value, old: &Value) {
    if doc::text(new, "status.certificate") != doc::text(old, "status.certificate") {
        errors.forbidden(&Path::new("status.certificate"), "updates may not set certificate content");
    }
}

/// A client that read the object may send its conditions back without their times.
fn keep_decisions(new: &mut Value, old: &Value) {
    for kind in ["Approved", "Denied"] {
        let before: Vec<Value> = of_type(old, kind).cloned().collect();
        if of_type(new, kind).count() != before.len() {
            continue;
        }
        let now = doc::list_mut(new, "status.conditions").filter(|c| doc::text(c, "type") == kind);
        for (condition, before) in now.zip(before) {
            *condition = before;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_of_it() {
        let object = |types: &[&str], certificate: &str| {
            let conditions: Vec<Value> = types.iter().map(|t| json!({"type": t, "status": "True"})).collect();
            json!({"metadata": {"name": "c"}, "spec": {"signerName": "k/x", "username": "u", "expirationSeconds": 3600},
                "status": {"conditions": conditions, "certificate": certificate}})
        };
        assert_eq!(condition(&object(&[], "")), "Pending");
        assert_eq!(condition(&object(&["Approved"], "x")), "Approved,Issued");
        assert_eq!(condition(&object(&["Approved", "Denied", "Failed"], "")), "Denied,Failed");
        assert_eq!(
            json!(Request.cells(&object(&[], ""), Wall::from_secs(0))),
            json!(["c", "<unknown>", "k/x", "u", "60m", "Pending"])
        );
        assert_eq!(Request.field("spec.signerName", &object(&[], "")).as_deref(), Some("k/x"));
        let decided = |new: &[&str], old: &[&str], by: fn(&Value, &Value, &mut FieldErrors)| {
            let mut errors = FieldErrors::default();
            by(&object(new, ""), &object(old, ""), &mut errors);
            errors.to_string()
        };
        assert_eq!(decided(&["Approved"], &[], validate_approval), "[]");
        assert_eq!(
            decided(&["Approved"], &[], |n, o, e| Request.validate_status(n, o, e)),
            "status.conditions: Forbidden: updates may not add a condition of type \"Approved\""
        );
        assert_eq!(
            decided(&[], &["Approved"], validate_approval),
            "status.conditions: Forbidden: updates may not remove a condition of type \"Approved\""
        );
        assert!(
            decided(&["Approved", "Denied"], &["Approved"], validate_approval).contains("mutually exclusive")
        );
    }

    #[test]
    fn statuses() {
        let mut errors = FieldErrors::default();
        let object = json!({"spec": {"request": "eA==", "signerName": "x", "usages": ["fun"], "expirationSeconds": 1}});
        Request.validate(&object, &mut errors);
        let text = errors.to_string();
        for want in [
            "spec.request: Invalid value: \"eA==\": PEM block type must be CERTIFICATE REQUEST",
            "spec.usages[0]: Unsupported value: \"fun\"",
            "must be a fully qualified domain and path of the form",
            "may not specify a duration less than 600 seconds (10 minutes)",
        ] {
            assert!(text.contains(want), "{text}");
        }
    }

    #[test]
    fn conditions_are_stamped() {
        let mut new = json!({"status": {"conditions": [{"type": "Approved", "status": "True"}]}});
        stamp_conditions(&mut new, &json!({}), Wall::from_secs(0));
        assert_eq!(new["status"]["conditions"][0]["lastUpdateTime"], "1970-01-01T00:00:00Z");
        assert_eq!(new["status"]["conditions"][0]["lastTransitionTime"], "1970-01-01T00:00:00Z");
    }
}
