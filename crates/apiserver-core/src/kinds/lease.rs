//! Lease: a heartbeat and a lock.

use api::field::FieldErrors;
use base::time::Wall;
use serde_json::Value;

use super::check;
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, Strategy};
use crate::table;

const COLUMNS: &[Column] = &[Column::NAME, Column::text("Holder", "Who holds the lease"), Column::AGE];

pub(super) fn kind() -> Kind {
    Kind::new("coordination.k8s.io", "v1", "Lease", "leases", Lease)
}

#[derive(Debug)]
struct Lease;

// === impl Lease ===

impl Strategy for Lease {
    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let spec = Field::root(object).get("spec");
        check::positive(errors, &spec.get("leaseDurationSeconds"));
        check::non_negative(errors, &spec.get("leaseTransitions"));
        let strategy = spec.get("strategy");
        check::one_of_if_set(errors, &strategy, &["OldestEmulationVersion"]);
        if strategy.is_empty() && !spec.get("preferredHolder").is_empty() {
            errors.forbidden(
                &spec.at.child("preferredHolder"),
                "may only be specified if `strategy` is defined",
            );
        }
    }

    fn creates_on_update(&self) -> bool {
        true
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let holder = doc::text(object, "spec.holderIdentity");
        vec![table::name(object), holder.into(), table::age(object, now).into()]
    }
}
