//! ClusterTrustBundle: certificates that Pods may believe. Served where `--runtime-config` asks for it, as upstream.

use std::borrow::Cow;
use std::collections::BTreeMap;

use api::field::{FieldErrors, Path};
use api::names;
use base::time::Wall;
use serde_json::Value;
use x509_parser::pem::Pem;

use super::{certificate_signing_request, check};
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, NameRule, Strategy};
use crate::table;

const COLUMNS: &[Column] = &[Column::NAME, Column::text("SignerName", "Whose certificates these are")];
const MAX_BYTES: usize = 1024 * 1024;

pub(super) fn kind() -> Kind {
    Kind::new("certificates.k8s.io", "v1beta1", "ClusterTrustBundle", "clustertrustbundles", Bundle)
        .cluster_scoped()
}

#[derive(Debug)]
struct Bundle;

// === impl Bundle ===

impl Strategy for Bundle {
    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        validate_names(object, errors);
        trust_bundle(errors, &Field::root(object).get("spec").get("trustBundle"));
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        validate_names(new, errors);
        let field = "spec.trustBundle";
        if doc::text(new, field) != doc::text(old, field) {
            trust_bundle(errors, &Field::root(new).get("spec").get("trustBundle"));
        }
        check::immutable(errors, new, old, "spec.signerName");
    }

    /// The signer's part of the name is told apart by colons, see [`validate_names`].
    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }

    fn field<'a>(&self, name: &str, object: &'a Value) -> Option<Cow<'a, str>> {
        (name == "spec.signerName").then(|| doc::text(object, name).into())
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, _: Wall) -> Vec<Value> {
        vec![table::name(object), table::text_or(object, "spec.signerName", "<none>").into()]
    }
}

/// A bundle of a signer is called after it: `example.com:signer:name`.
fn validate_names(object: &Value, errors: &mut FieldErrors) {
    let (name, signer) = (doc::text(object, "metadata.name"), doc::text(object, "spec.signerName"));
    let at = Path::new("metadata.name");
    if signer.is_empty() {
        match name.contains(':') {
            true => {
                let message = "ClusterTrustBundle without signer name must not have \":\" in its name";
                errors.invalid(&at, name, message);
            }
            false => errors.each(&at, name, names::dns_subdomain(name)),
        }
        return;
    }
    let prefix = format!("{}:", signer.replace('/', ":"));
    match name.strip_prefix(&prefix) {
        Some(rest) => errors.each(&at, name, names::dns_subdomain(rest)),
        None => {
            let message =
                format!("ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}");
            errors.invalid(&at, name, message);
        }
    }
    certificate_signing_request::signer(errors, &Field::root(object).get("spec").get("signerName"));
}

fn trust_bundle(errors: &mut FieldErrors, field: &Field<'_>) {
    if field.text().len() > MAX_BYTES {
        return errors.too_long(&field.at, MAX_BYTES);
    }
    let mut wrong = Vec::new();
    let mut seen: BTreeMap<Vec<u8>, Vec<usize>> = BTreeMap::new();
    for (i, block) in Pem::iter_from_buffer(field.text().as_bytes()).enumerate() {
        // What cannot be read at all ends the list, as it does upstream.
        let Ok(block) = block else { break };
        match anchor(&block) {
            Ok(()) => seen.entry(block.contents).or_default().push(i),
            Err(why) => wrong.push(format!("entry {i} {why}")),
        }
    }
    if wrong.is_empty() {
        if seen.is_empty() {
            wrong.push("at least one trust anchor must be provided".to_owned());
        }
        for places in seen.values().filter(|p| p.len() > 1) {
            let places: Vec<String> = places.iter().map(usize::to_string).collect();
            wrong.push(format!("duplicate trust anchor (indices [{}])", places.join(" ")));
        }
    }
    for message in wrong {
        errors.invalid(&field.at, "<value omitted>", message);
    }
}

/// Whether a block is the certificate of an authority; otherwise what is wrong with it.
fn anchor(block: &Pem) -> Result<(), String> {
    if block.label != "CERTIFICATE" {
        return Err(format!("has bad block type: {}", block.label));
    }
    let certificate = block.parse_x509().map_err(|_| "does not parse as X.509".to_owned())?;
    match certificate.basic_constraints() {
        Ok(Some(constraints)) if constraints.value.ca => Ok(()),
        Ok(_) => Err("does not have the CA bit set".to_owned()),
        Err(_) => Err("has invalid basic constraints".to_owned()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
    use serde_json::json;

    fn certificate(is_ca: IsCa) -> String {
        let mut params = CertificateParams::new(vec!["x.test".to_owned()]).unwrap();
        params.is_ca = is_ca;
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
    }

    fn refused(name: &str, signer: &str, bundle: &str) -> String {
        let mut errors = FieldErrors::default();
        let object =
            json!({"metadata": {"name": name}, "spec": {"signerName": signer, "trustBundle": bundle}});
        Bundle.validate(&object, &mut errors);
        if errors.is_empty() { String::new() } else { errors.to_string() }
    }

    #[test]
    fn only_authorities_are_trusted_and_each_once() {
        let ca = certificate(IsCa::Ca(BasicConstraints::Unconstrained));
        let leaf = certificate(IsCa::ExplicitNoCa);
        let omitted = "spec.trustBundle: Invalid value: \"<value omitted>\": ";
        assert_eq!(refused("a", "", &format!("a comment\n{ca}")), "");
        let rows = [
            (String::new(), "at least one trust anchor must be provided"),
            (format!("{ca}{leaf}"), "entry 1 does not have the CA bit set"),
            (format!("{ca}{ca}"), "duplicate trust anchor (indices [0 1])"),
            (ca.replace("CERTIFICATE", "PRIVATE KEY"), "entry 0 has bad block type: PRIVATE KEY"),
            (
                "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n".to_owned(),
                "entry 0 does not parse as X.509",
            ),
        ];
        for (bundle, why) in rows {
            assert_eq!(refused("a", "", &bundle), format!("{omitted}{why}"));
        }
    }

    #[test]
    fn a_signers_bundles_bear_its_name() {
        let ca = certificate(IsCa::Ca(BasicConstraints::Unconstrained));
        assert_eq!(refused("k.test:web:one", "k.test/web", &ca), "");
        assert!(refused("one", "k.test/web", &ca).contains("must be named with prefix k.test:web:"));
        assert!(refused("k.test:web:one", "", &ca).contains("must not have \":\" in its name"));
        assert!(refused("k.test:one", "k.test", &ca).contains("fully qualified domain and path"));
        let mut errors = FieldErrors::default();
        let bundle = |name: &str, signer: &str| json!({"metadata": {"name": name}, "spec": {"signerName": signer, "trustBundle": "kept"}});
        Bundle.validate_update(&bundle("k:x:a", "k/x"), &bundle("k:x:a", "k/y"), &mut errors);
        assert_eq!(
            errors.to_string(),
            "spec.signerName: Invalid value: \"k/x\": field is immutable",
            "what is unchanged is not read again"
        );
    }
}
