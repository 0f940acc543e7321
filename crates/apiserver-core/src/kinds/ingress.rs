//! Ingress: HTTP from outside to Services.

use api::field::{FieldErrors, Path};
use api::names;
use base::time::Wall;
use serde_json::{Value, json};

use super::{address, check, service};
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, Strategy};
use crate::table;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::text("Class", "Who carries it out"),
    Column::text("Hosts", "The hosts it answers for"),
    Column::text("Address", "Where it listens"),
    Column::text("Ports", "The ports it listens on"),
    Column::AGE,
];

/// Where the class was written before there was a field.
const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

pub(super) fn kind() -> Kind {
    Kind::new("networking.k8s.io", "v1", "Ingress", "ingresses", Ingress).short(&["ing"]).with_status()
}

#[derive(Debug)]
struct Ingress;

// === impl Ingress ===

impl Strategy for Ingress {
    fn prepare_create(&self, object: &mut Value) {
        doc::set(object, "status", json!({"loadBalancer": {}}));
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        spec(errors, &Field::root(object).get("spec"));
        let class = doc::at(object, "spec.ingressClassName").as_str();
        let annotation =
            doc::at(object, "metadata.annotations").get(CLASS_ANNOTATION).and_then(Value::as_str);
        if let (Some(class), Some(annotation)) = (class, annotation)
            && class != annotation
        {
            let at = Path::new("annotations").child(CLASS_ANNOTATION);
            errors.invalid(&at, annotation, "must match `ingressClassName` when both are specified");
        }
    }

    fn validate_update(&self, new: &Value, _old: &Value, errors: &mut FieldErrors) {
        spec(errors, &Field::root(new).get("spec"));
    }

    fn validate_status(&self, new: &Value, _old: &Value, errors: &mut FieldErrors) {
        for point in Field::root(new).get("status").get("loadBalancer").get("ingress").items() {
            let (ip, name) = (point.get("ip"), point.get("hostname"));
            if !ip.is_empty() {
                address::ip(errors, &ip);
            }
            if !name.is_empty() {
                host(errors, &name);
            }
        }
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let addresses = service::load_balancer_addresses(object, "status.loadBalancer.ingress");
        let addresses: Vec<&str> = addresses.into_iter().collect();
        let ports = if doc::list(object, "spec.tls").is_empty() { "80" } else { "80, 443" };
        vec![
            table::name(object),
            table::text_or(object, "spec.ingressClassName", "<none>").into(),
            hosts(object).into(),
            addresses.join(",").into(),
            ports.into(),
            table::age(object, now).into(),
        ]
    }
}

/// The first three hosts; rules without one count as more all the same.
fn hosts(object: &Value) -> String {
    let rules = doc::list(object, "spec.rules");
    let mut shown = Vec::new();
    let mut has_more = false;
    for rule in rules {
        has_more |= shown.len() == 3;
        if !has_more && !doc::text(rule, "host").is_empty() {
            shown.push(doc::text(rule, "host"));
        }
    }
    match shown.join(",") {
        none if none.is_empty() => "*".to_owned(),
        list if has_more => format!("{list} + {} more...", rules.len() - 3),
        list => list,
    }
}

fn spec(errors: &mut FieldErrors, spec: &Field<'_>) {
    let (rules, default) = (spec.get("rules"), spec.get("defaultBackend"));
    if rules.is_empty() && !default.is_set() {
        let message = "either `defaultBackend` or `rules` must be specified";
        errors.invalid(&spec.at, rules.value.clone(), message);
    }
    if default.is_set() {
        backend(errors, &default);
    }
    for rule in rules.items() {
        let name = rule.get("host");
        if !name.is_empty() {
            host(errors, &name);
        }
        let http = rule.get("http");
        if http.is_set() {
            let paths = http.get("paths");
            check::required(errors, &paths);
            paths.items().for_each(|p| path(errors, &p));
        }
    }
    for tls in spec.get("tls").items() {
        for name in tls.get("hosts").items() {
            host_name(errors, &name);
        }
        let secret = tls.get("secretName");
        if !secret.is_empty() {
            check::spelled(errors, &secret, names::dns_subdomain);
        }
    }
    let class = spec.get("ingressClassName");
    if class.is_set() {
        check::spelled(errors, &class, names::dns_subdomain);
    }
}

fn host(errors: &mut FieldErrors, name: &Field<'_>) {
    if names::ip(name.text()).is_empty() {
        errors.invalid(&name.at, name.text(), "must be a DNS name, not an IP address");
    }
    host_name(errors, name);
}

fn host_name(errors: &mut FieldErrors, name: &Field<'_>) {
    let rule = if name.text().contains('*') { names::wildcard_dns_subdomain } else { names::dns_subdomain };
    check::spelled(errors, name, rule);
}

fn path(errors: &mut FieldErrors, entry: &Field<'_>) {
    let (kind, path) = (entry.get("pathType"), entry.get("path"));
    let text = path.text();
    match kind.text() {
        "" => return errors.required(&kind.at, "pathType must be specified"),
        "Exact" | "Prefix" => {
            if !text.starts_with('/') {
                errors.invalid(&path.at, text, "must be an absolute path");
            }
            for part in ["//", "/./", "/../", "%2f", "%2F"].iter().filter(|p| text.contains(**p)) {
                errors.invalid(&path.at, text, format!("must not contain '{part}'"));
            }
            for end in ["/..", "/."].iter().filter(|e| text.ends_with(**e)) {
                errors.invalid(&path.at, text, format!("cannot end with '{end}'"));
            }
        }
        "ImplementationSpecific" => {
            if !text.is_empty() && !text.starts_with('/') {
                errors.invalid(&path.at, text, "must be an absolute path");
            }
        }
        other => errors.unsupported(&kind.at, other, &["Exact", "ImplementationSpecific", "Prefix"]),
    }
    backend(errors, &entry.get("backend"));
}

fn backend(errors: &mut FieldErrors, backend: &Field<'_>) {
    let (resource, service) = (backend.get("resource"), backend.get("service"));
    match (resource.is_set(), service.is_set()) {
        (true, true) => errors.invalid(&backend.at, "", "cannot set both resource and service backends"),
        (false, false) => errors.invalid(&backend.at, "", "resource or service backend is required"),
        (true, false) => reference(errors, &resource),
        (false, true) => {
            let name = service.get("name");
            if name.is_empty() {
                errors.required(&name.at, "");
            } else {
                check::spelled(errors, &name, names::dns_label);
            }
            let (port_name, number) = (service.get("port").get("name"), service.get("port").get("number"));
            match (port_name.is_empty(), number.int().unwrap_or_default()) {
                (true, 0) => errors.required(&backend.at, "port name or number is required"),
                (false, 0) => check::spelled(errors, &port_name, names::port_name),
                (true, _) => check::port_number(errors, &number),
                (false, _) => errors.invalid(&backend.at, "", "cannot set both port name & port number"),
            }
        }
    }
}

/// A reference to an object of some group in the same namespace.
pub(super) fn reference(errors: &mut FieldErrors, reference: &Field<'_>) {
    let group = reference.get("apiGroup");
    if group.is_set() {
        check::spelled(errors, &group, names::dns_subdomain);
    }
    for field in [reference.get("kind"), reference.get("name")] {
        if field.is_empty() {
            errors.required(&field.at, "");
        } else {
            check::spelled(errors, &field, names::path_segment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(spec: Value) -> String {
        let mut errors = FieldErrors::default();
        Ingress.validate(&json!({"spec": spec}), &mut errors);
        errors.to_string()
    }

    #[test]
    fn statuses() {
        let service = json!({"service": {"name": "s", "port": {"number": 80}}});
        let rule = |path: Value| json!({"rules": [{"host": "a.example", "http": {"paths": [path]}}]});
        for (spec, want) in [
            (rule(json!({"path": "/", "pathType": "Prefix", "backend": service})), "[]"),
            (json!({}), "spec: Invalid value: null: either `defaultBackend` or `rules` must be specified"),
            (
                rule(json!({"path": "/", "backend": service})),
                "spec.rules[0].http.paths[0].pathType: Required value: pathType must be specified",
            ),
            (
                rule(json!({"path": "a//", "pathType": "Exact", "backend": service})),
                "[spec.rules[0].http.paths[0].path: Invalid value: \"a//\": must be an absolute path, \
                 spec.rules[0].http.paths[0].path: Invalid value: \"a//\": must not contain '//']",
            ),
            (
                rule(json!({"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "s"}}})),
                "spec.rules[0].http.paths[0].backend: Required value: port name or number is required",
            ),
            (
                json!({"defaultBackend": {}}),
                "spec.defaultBackend: Invalid value: \"\": resource or service backend is required",
            ),
        ] {
            assert_eq!(complaints(spec), want);
        }
        assert!(
            complaints(json!({"rules": [{"host": "1.2.3.4"}]}))
                .contains("must be a DNS name, not an IP address")
        );
    }

    #[test]
    fn cells() {
        let host = |h: &str| json!({"host": h});
        let object = json!({"metadata": {"name": "i"}, "spec": {"ingressClassName": "nginx", "tls": [{}],
            "rules": [host("a"), host("b"), host("c"), host("d")]},
            "status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}}});
        assert_eq!(
            json!(Ingress.cells(&object, Wall::from_secs(0))),
            json!(["i", "nginx", "a,b,c + 1 more...", "1.2.3.4", "80, 443", "<unknown>"])
        );
        assert_eq!(
            json!(&Ingress.cells(&json!({}), Wall::from_secs(0))[1..5]),
            json!(["<none>", "*", "", "80"])
        );
    }
}
