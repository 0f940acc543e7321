//! ServiceAccount: who a Pod is towards the API.

use base::time::Wall;
use serde_json::Value;

use crate::kind::{Column, Kind, Strategy, Subresource, Verb};
use crate::table;

const COLUMNS: &[Column] = &[Column::NAME, Column::AGE];

pub(super) fn kind() -> Kind {
    let token =
        Subresource::new("token", "TokenRequest", &[Verb::Create]).of_group("authentication.k8s.io", "v1");
    Kind::core("ServiceAccount", "serviceaccounts", ServiceAccount).short(&["sa"]).with(token)
}

#[derive(Debug)]
struct ServiceAccount;

impl Strategy for ServiceAccount {
    fn returns_deleted(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        vec![table::name(object), table::age(object, now).into()]
    }
}
