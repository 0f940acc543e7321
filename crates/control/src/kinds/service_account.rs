//! ServiceAccount: who a Pod is towards the API.

use crate::kind::{Kind, Strategy, Subresource, Verb};

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
}
