//! Webhook configurations, admission policies and APIServices: known, so that clients find their groups and informers sync,
//! and never kept. A policy that is stored and not enforced would be a lie about security, so writes are refused.

use std::borrow::Cow;

use base::time::Wall;
use serde_json::Value;

use crate::doc;
use crate::kind::{Column, Kind, Strategy};
use crate::table;

const ADMISSION: &str = "admission webhooks and policies are not served by this API server yet";
const AGGREGATION: &str = "API aggregation is not served by this API server yet";

const WEBHOOKS: &[Column] =
    &[Column::NAME, Column::number("Webhooks", "How many webhooks there are"), Column::AGE];
const VALIDATIONS: &[Column] = &[
    Column::NAME,
    Column::number("Validations", "How many validation rules there are"),
    Column::text("ParamKind", "The kind of its parameters"),
    Column::AGE,
];
const MUTATIONS: &[Column] = &[
    Column::NAME,
    Column::number("Mutations", "How many mutations there are"),
    Column::text("ParamKind", "The kind of its parameters"),
    Column::AGE,
];
const BINDING: &[Column] = &[
    Column::NAME,
    Column::text("PolicyName", "The policy that is bound"),
    Column::text("ParamRef", "Where its parameters are"),
    Column::AGE,
];
const API_SERVICE: &[Column] = &[
    Column::NAME,
    Column::text("Service", "Who serves the group and version"),
    Column::text("Available", "Whether it is available"),
    Column::AGE,
];

/// In the order of upstream's table.
pub(super) fn kinds() -> Vec<Kind> {
    let policy =
        |kind, plural, columns, cells| admission(kind, plural, Unserved { what: ADMISSION, columns, cells });
    vec![
        policy("MutatingAdmissionPolicy", "mutatingadmissionpolicies", MUTATIONS, mutations),
        policy("MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings", BINDING, binding),
        policy("MutatingWebhookConfiguration", "mutatingwebhookconfigurations", WEBHOOKS, webhooks),
        policy("ValidatingAdmissionPolicy", "validatingadmissionpolicies", VALIDATIONS, validations)
            .with_status(),
        policy("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", BINDING, binding),
        policy("ValidatingWebhookConfiguration", "validatingwebhookconfigurations", WEBHOOKS, webhooks),
        Kind::new(
            "apiregistration.k8s.io",
            "v1",
            "APIService",
            "apiservices",
            Unserved { what: AGGREGATION, columns: API_SERVICE, cells: api_service },
        )
        .cluster_scoped()
        .with_status(),
    ]
    .into_iter()
    .map(|kind| kind.category("api-extensions"))
    .collect()
}

fn admission(kind: &'static str, plural: &'static str, strategy: Unserved) -> Kind {
    Kind::new("admissionregistration.k8s.io", "v1", kind, plural, strategy).cluster_scoped()
}

/// A kind of which there are no objects.
#[derive(Debug)]
struct Unserved {
    what: &'static str,
    columns: &'static [Column],
    /// Those between name and age.
    cells: fn(&Value) -> Vec<Value>,
}

// === impl Unserved ===

impl Strategy for Unserved {
    fn unserved(&self) -> Option<Cow<'static, str>> {
        Some(self.what.into())
    }

    fn columns(&self) -> &[Column] {
        self.columns
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let mut cells = vec![table::name(object)];
        cells.extend((self.cells)(object));
        cells.push(table::age(object, now).into());
        cells
    }
}

fn webhooks(object: &Value) -> Vec<Value> {
    vec![doc::list(object, "webhooks").len().into()]
}

fn validations(object: &Value) -> Vec<Value> {
    vec![doc::list(object, "spec.validations").len().into(), param_kind(object)]
}

fn mutations(object: &Value) -> Vec<Value> {
    vec![doc::list(object, "spec.mutations").len().into(), param_kind(object)]
}

fn param_kind(object: &Value) -> Value {
    match doc::at(object, "spec.paramKind") {
        Value::Null => "<unset>".into(),
        kind => format!("{}/{}", doc::text(kind, "apiVersion"), doc::text(kind, "kind")).into(),
    }
}

fn binding(object: &Value) -> Vec<Value> {
    let param = doc::at(object, "spec.paramRef");
    let place = match (doc::text(param, "namespace"), doc::text(param, "name")) {
        ("", "") if param.is_null() => "<unset>".to_owned(),
        ("", "") => "<selector>".to_owned(),
        ("", name) => name.to_owned(),
        (namespace, name) => format!("{namespace}/{name}"),
    };
    vec![doc::text(object, "spec.policyName").into(), place.into()]
}

fn api_service(object: &Value) -> Vec<Value> {
    let service = match doc::at(object, "spec.service") {
        Value::Null => "Local".to_owned(),
        service => format!("{}/{}", doc::text(service, "namespace"), doc::text(service, "name")),
    };
    let available =
        doc::list(object, "status.conditions").iter().find(|c| doc::text(c, "type") == "Available");
    vec![service.into(), available.map_or("Unknown", |c| doc::text(c, "status")).into()]
}
