//! The ServiceAccount `default` of every namespace.

use base::time::Now;
use serde_json::json;

use crate::cache::Change;
use crate::controller::{Controller, Key, Retry, Row, Wakes, Watch};
use crate::plan::{Act, Plan, Step};
use crate::resource::{NAMESPACES, SERVICE_ACCOUNTS};
use crate::view::View;

pub(crate) const SERVICE_ACCOUNT: Row = Row {
    name: "serviceaccount-controller",
    aliases: &["serviceaccount"],
    identity: "service-account-controller",
    event_source: "serviceaccount-controller",
    queue: "serviceaccount",
    workers: |tuning| tuning.syncs("serviceaccount", 1),
    retry: Retry::DEFAULT,
    is_on_by_default: true,
    watches: &[Watch::itself(NAMESPACES), Watch { resource: SERVICE_ACCOUNTS, keys: namespace_of }],
    reads: &[],
    is_single: false,
    make: |_| Box::new(Accounts),
};

const DEFAULT: &str = "default";

#[derive(Debug)]
struct Accounts;

impl Controller for Accounts {
    fn reconcile(&mut self, view: &dyn View, key: &Key, _now: Now) -> Plan {
        let Some(namespace) = view.get(NAMESPACES, "", &key.name) else { return Plan::nothing() };
        let is_active = namespace.value()["status"]["phase"] == "Active" && !namespace.is_deleting();
        if !is_active || view.get(SERVICE_ACCOUNTS, &key.name, DEFAULT).is_some() {
            return Plan::nothing();
        }
        let account = json!({"metadata": {"name": DEFAULT, "namespace": &*key.name}});
        Plan::of(Step::in_turn([Act::create(SERVICE_ACCOUNTS, &key.name, account)]))
    }
}

/// Who deletes it gets a new one.
fn namespace_of(change: &Change, _: &dyn View, wakes: &mut Wakes) {
    if let Change { old: Some(account), new: None } = change {
        wakes.add(Key::new("", &account.meta.namespace));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{NAMESPACE, World, at, draft, said};

    #[test]
    fn every_active_namespace_has_its_default_account() {
        let account = draft(SERVICE_ACCOUNTS, DEFAULT);
        let namespace = |phase: &str| draft(NAMESPACES, NAMESPACE).phase(phase);
        for (objects, want) in [
            (vec![namespace("Active")], vec!["create serviceaccounts in ns"]),
            (
                vec![namespace("Active"), draft(SERVICE_ACCOUNTS, "other")],
                vec!["create serviceaccounts in ns"],
            ),
            (vec![namespace("Active"), account.clone()], vec![]),
            (vec![namespace("Terminating").deleting(true)], vec![]),
            (vec![], vec![]),
        ] {
            let world = World::new(objects);
            let plan = Accounts.reconcile(&world.cache, &Key::new("", NAMESPACE), at(1));
            assert_eq!(said(&plan), want);
        }
        let world = World::new([]);
        assert_eq!(world.wakes(SERVICE_ACCOUNT.watches, Some(&account), None), [NAMESPACE]);
        assert_eq!(world.wakes(SERVICE_ACCOUNT.watches, None, Some(&account)), [""; 0]);
    }
}
