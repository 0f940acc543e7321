//! `kube-root-ca.crt`: every namespace says by which certificate the API server is to be believed.

use base::time::Now;
use serde_json::{Value, json};

use crate::cache::Change;
use crate::controller::{Controller, Key, Retry, Row, Wakes, Watch};
use crate::plan::{Act, Done, Plan, Step, Why};
use crate::resource::{CONFIG_MAPS, NAMESPACES};
use crate::view::View;

pub(crate) const ROOT_CA_PUBLISHER: Row = Row {
    name: "root-ca-certificate-publisher-controller",
    aliases: &["root-ca-cert-publisher"],
    identity: "root-ca-cert-publisher",
    event_source: "root-ca-certificate-publisher-controller",
    queue: "root_ca_cert_publisher",
    workers: |_| 1,
    retry: Retry::DEFAULT,
    is_on_by_default: true,
    watches: &[
        Watch { resource: NAMESPACES, keys: living },
        Watch { resource: CONFIG_MAPS, keys: published },
    ],
    reads: &[],
    is_single: false,
    make: |tuning| Box::new(Publisher { ca: tuning.root_ca.clone() }),
};

const NAME: &str = "kube-root-ca.crt";
const DESCRIPTION: &str = "kubernetes.io/description";
const ABOUT: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal \
                     endpoints such as the internal service IP or kubernetes.default.svc. No other usage is \
                     guaranteed across distributions of Kubernetes clusters.";

struct Publisher {
    /// None: nobody said which, and nothing is published.
    ca: Option<String>,
}

// === impl Publisher ===

impl Controller for Publisher {
    fn reconcile(&mut self, view: &dyn View, key: &Key, _now: Now) -> Plan {
        let (Some(ca), Some(namespace)) = (&self.ca, view.get(NAMESPACES, "", &key.name)) else {
            return Plan::nothing();
        };
        let data = json!({ "ca.crt": ca });
        let Some(map) = view.get(CONFIG_MAPS, &key.name, NAME) else {
            if namespace.is_deleting() || namespace.value()["status"]["phase"] == "Terminating" {
                return Plan::nothing();
            }
            let metadata =
                json!({"name": NAME, "namespace": &*key.name, "annotations": {DESCRIPTION: ABOUT}});
            let map = json!({"metadata": metadata, "data": data});
            return Plan::of(Step::in_turn([Act::create(CONFIG_MAPS, &key.name, map)]));
        };
        let value = map.value();
        let is_described =
            value["metadata"]["annotations"][DESCRIPTION].as_str().is_some_and(|text| !text.is_empty());
        if value["data"] == data && is_described {
            return Plan::nothing();
        }
        let put_right = |value: &mut Value| {
            value["data"] = data;
            if !value["metadata"]["annotations"].is_object() {
                value["metadata"]["annotations"] = json!({});
            }
            value["metadata"]["annotations"][DESCRIPTION] = ABOUT.into();
        };
        Plan::of(Step::in_turn([Act::update(&map, put_right)]))
    }

    fn settle(&mut self, _view: &dyn View, key: &Key, _now: Now, done: &Done) -> Plan {
        // The API server publishes too, if it is ours: who was first does not matter.
        if let Some(refusal) = done.failure().filter(|refusal| refusal.why != Why::AlreadyExists) {
            return Plan::failed(format!("publishing the root certificate in {key}: {refusal}"));
        }
        Plan::nothing()
    }
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher").finish_non_exhaustive()
    }
}

fn living(change: &Change, _: &dyn View, wakes: &mut Wakes) {
    let is_living = |namespace: &Value| change.old.is_none() || namespace["status"]["phase"] == "Active";
    wakes.extend(
        change.new.as_ref().filter(|namespace| is_living(&namespace.value())).map(|one| Key::of(one)),
    );
}

/// Whoever changes or deletes it gets it back.
fn published(change: &Change, _: &dyn View, wakes: &mut Wakes) {
    if let Some(map) = change.object().filter(|map| &*map.meta.name == NAME && change.old.is_some()) {
        wakes.add(Key::new("", &map.meta.namespace));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Draft, World, at, draft, said};

    fn planned(objects: Vec<Draft>) -> Plan {
        let world = World::new(objects);
        let mut publisher = Publisher { ca: Some("CA".into()) };
        publisher.reconcile(&world.cache, &Key::new("", "ns"), at(1))
    }

    fn namespace() -> Draft {
        draft(NAMESPACES, "ns").phase("Active")
    }

    fn map() -> Draft {
        draft(CONFIG_MAPS, NAME).annotation(DESCRIPTION, "x").set("/data", json!({"ca.crt": "CA"}))
    }

    #[test]
    fn every_namespace_has_it_and_gets_it_back() {
        for (row, objects, want) in [
            ("missing", vec![namespace()], &["create configmaps in ns"][..]),
            ("there", vec![namespace(), map()], &[]),
            (
                "edited",
                vec![namespace(), map().set("/data", json!({"ca.crt": "evil"}))],
                &["update configmaps ns/kube-root-ca.crt"],
            ),
            (
                "more in it",
                vec![namespace(), map().set("/data/x", json!("y"))],
                &["update configmaps ns/kube-root-ca.crt"],
            ),
            (
                "not described",
                vec![namespace(), map().set("/metadata/annotations", json!({}))],
                &["update configmaps ns/kube-root-ca.crt"],
            ),
            ("ending", vec![namespace().deleting(true)], &[]),
            ("no namespace", vec![map()], &[]),
        ] {
            assert_eq!(said(&planned(objects)), want, "{row}");
        }
        let body = planned(vec![namespace(), map().set("/data/x", json!("y"))]).steps[0].acts[0].body();
        assert_eq!(body["data"], json!({"ca.crt": "CA"}));
        let unsaid =
            Publisher { ca: None }.reconcile(&World::new(namespace()).cache, &Key::new("", "ns"), at(1));
        assert_eq!(unsaid, Plan::nothing());
    }

    #[test]
    fn who_touches_it_wakes_the_publisher() {
        let world = World::new([]);
        let wakes = |old: Option<&Draft>, new: Option<&Draft>| {
            world.wakes(ROOT_CA_PUBLISHER.watches, old, new).concat()
        };
        assert_eq!(wakes(Some(&map()), None), "ns");
        assert_eq!(wakes(Some(&map()), Some(&map().set("/data", json!({})))), "ns");
        assert_eq!(wakes(Some(&draft(CONFIG_MAPS, "other")), None), "");
        assert_eq!(wakes(None, Some(&namespace())), "ns");
    }
}
