//! Tokens of ServiceAccounts as Secrets: somebody makes a Secret of that type, and it is filled. No Secret is ever made unasked.

use std::sync::Arc;

use api::config::controllers::Tuning;
use base::time::Now;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::cache::Change;
use crate::controller::{Controller, Key, Retry, Row, Wakes, Watch};
use crate::object::Object;
use crate::plan::{Act, Done, Outcome, Plan, Step, Target, Why};
use crate::resource::{SECRETS, SERVICE_ACCOUNTS};
use crate::view::View;

pub(crate) const SERVICE_ACCOUNT_TOKENS: Row = Row {
    name: "serviceaccount-token-controller",
    aliases: &["serviceaccount-token"],
    identity: "service-account-controller",
    event_source: "serviceaccount-token-controller",
    queue: "serviceaccount_tokens_secret",
    workers: |tuning| tuning.syncs("serviceaccount-token", 5),
    retry: Retry::DEFAULT.gives_up_after(10),
    is_on_by_default: true,
    watches: &[
        Watch { resource: SECRETS, keys: tokens },
        Watch { resource: SERVICE_ACCOUNTS, keys: tokens_of },
    ],
    reads: &[],
    is_single: false,
    make: |tuning| Box::new(Tokens { tuning: tuning.clone() }),
};

const TYPE: &str = "kubernetes.io/service-account-token";
const NAME: &str = "kubernetes.io/service-account.name";
const UID: &str = "kubernetes.io/service-account.uid";
/// What authentication knows such tokens by.
const ISSUER: &str = "kubernetes/serviceaccount";

#[derive(Debug)]
struct Tokens {
    tuning: Tuning,
}

/// Whose token a Secret is to be.
#[derive(Debug)]
struct Whose {
    name: String,
    /// Empty: of whoever has the name.
    uid: String,
}

// === impl Tokens ===

impl Controller for Tokens {
    fn reconcile(&mut self, view: &dyn View, key: &Key, _now: Now) -> Plan {
        // Without a key there is nothing to fill them with: upstream's does not run then.
        if self.tuning.token_signer.is_none() {
            return Plan::nothing();
        }
        let Some(secret) = view.get(SECRETS, &key.namespace, &key.name) else { return forgotten(view, key) };
        let value = secret.value();
        let Some(whose) = Whose::of(&value).filter(|_| !secret.is_deleting()) else { return Plan::nothing() };
        match view.get(SERVICE_ACCOUNTS, &key.namespace, &whose.name).filter(|account| whose.is(account)) {
            Some(account) => self.fill(&secret, &value, &account),
            // The cache may be behind, and what is deleted is gone.
            None => Plan::of(Step::in_turn([Act::Get { path: whose.path(key) }])),
        }
    }

    fn settle(&mut self, view: &dyn View, key: &Key, _now: Now, done: &Done) -> Plan {
        let (Some((act, outcome)), Some(secret)) =
            (done.last().last(), view.get(SECRETS, &key.namespace, &key.name))
        else {
            return Plan::nothing();
        };
        if !matches!(act, Act::Get { .. }) {
            return Plan::nothing();
        }
        let value = secret.value();
        let Some(whose) = Whose::of(&value) else { return Plan::nothing() };
        match outcome {
            Outcome::Failed(refusal) if refusal.why != Why::NotFound => {
                Plan::failed(format!("reading ServiceAccount {}: {refusal}", whose.name))
            }
            outcome => match outcome.object(SERVICE_ACCOUNTS).filter(|account| whose.is(account)) {
                Some(account) => self.fill(&secret, &value, &account),
                None => Plan::of(Step::in_turn([Act::delete(&secret)])),
            },
        }
    }
}

impl Tokens {
    fn fill(&self, secret: &Object, value: &Value, account: &Object) -> Plan {
        let data = &value["data"];
        let ca = self.tuning.root_ca.as_ref().map(|ca| STANDARD.encode(ca));
        let ca = ca.filter(|ca| data["ca.crt"] != **ca);
        let is_missing = |key: &str| data[key].as_str().is_none_or(str::is_empty);
        if ca.is_none() && !is_missing("namespace") && !is_missing("token") {
            return Plan::nothing();
        }
        let token = match (is_missing("token"), &self.tuning.token_signer) {
            (true, Some(signer)) => match (signer.0)(&claims(secret, account)) {
                Some(token) => Some(token),
                None => return Plan::failed(format!("signing the token of Secret {}", secret.meta.name)),
            },
            _ => None,
        };
        let is_missing_namespace = is_missing("namespace");
        Plan::of(Step::in_turn([Act::update(secret, |value| {
            if !value["data"].is_object() {
                value["data"] = json!({});
            }
            if !value["metadata"]["annotations"].is_object() {
                value["metadata"]["annotations"] = json!({});
            }
            if let Some(ca) = ca {
                value["data"]["ca.crt"] = ca.into();
            }
            if is_missing_namespace {
                value["data"]["namespace"] = STANDARD.encode(&*secret.meta.namespace).into();
            }
            if let Some(token) = token {
                value["data"]["token"] = STANDARD.encode(token).into();
            }
            value["metadata"]["annotations"][NAME] = (*account.meta.name).into();
            value["metadata"]["annotations"][UID] = (*account.meta.uid).into();
        })]))
    }
}

fn claims(secret: &Object, account: &Object) -> Value {
    let (namespace, name) = (&*secret.meta.namespace, &*account.meta.name);
    json!({
        "iss": ISSUER, "sub": format!("system:serviceaccount:{namespace}:{name}"),
        "kubernetes.io/serviceaccount/namespace": namespace,
        "kubernetes.io/serviceaccount/secret.name": &*secret.meta.name,
        "kubernetes.io/serviceaccount/service-account.name": name,
        "kubernetes.io/serviceaccount/service-account.uid": &*account.meta.uid,
    })
}

/// A Secret that is gone is named by no account.
fn forgotten(view: &dyn View, key: &Key) -> Plan {
    let accounts = view.list(SERVICE_ACCOUNTS, &key.namespace);
    let names = |account: &Arc<Object>| {
        let value = account.value();
        value["secrets"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == *key.name))
    };
    let drop = |account: &Arc<Object>| {
        Act::update(account, |value| {
            if let Some(all) = value["secrets"].as_array_mut() {
                all.retain(|one| one["name"] != *key.name);
            }
        })
    };
    Plan::nothing().then(Step::at_once(accounts.iter().filter(|account| names(account)).map(drop)))
}

// === impl Whose ===

impl Whose {
    /// None: no such Secret.
    fn of(secret: &Value) -> Option<Whose> {
        let annotation =
            |key: &str| secret["metadata"]["annotations"][key].as_str().unwrap_or_default().to_owned();
        let (name, uid) = (annotation(NAME), annotation(UID));
        (secret["type"] == TYPE && !name.is_empty()).then_some(Whose { name, uid })
    }

    fn is(&self, account: &Object) -> bool {
        self.uid.is_empty() || self.uid == *account.meta.uid
    }

    fn path(&self, secret: &Key) -> String {
        let (namespace, name) = (secret.namespace.to_string(), self.name.clone());
        Target { resource: SERVICE_ACCOUNTS, namespace, name, subresource: "" }.path()
    }
}

fn tokens(change: &Change, _: &dyn View, wakes: &mut Wakes) {
    let both = [change.old.as_ref(), change.new.as_ref()].into_iter().flatten();
    let tokens = both.filter(|secret| Whose::of(&secret.value()).is_some());
    wakes.extend(tokens.map(|secret| Key::of(secret)));
}

/// An account that comes or goes: the Secrets that are its tokens.
fn tokens_of(change: &Change, view: &dyn View, wakes: &mut Wakes) {
    if change.old.is_some() && change.new.is_some() {
        return;
    }
    let Some(account) = change.object() else { return };
    let secrets = view.list(SECRETS, &account.meta.namespace);
    let is_its = |secret: &&Arc<Object>| {
        Whose::of(&secret.value()).is_some_and(|whose| *whose.name == *account.meta.name)
    };
    wakes.extend(secrets.iter().filter(is_its).map(|secret| Key::of(secret)));
}

#[cfg(test)]
mod tests {
    use api::config::controllers::TokenSigner;

    use super::*;
    use crate::testing::{Draft, World, at, draft};

    fn controller() -> Tokens {
        let signer = TokenSigner(Arc::new(|claims| Some(format!("signed:{}", claims["sub"].as_str()?))));
        Tokens {
            tuning: Tuning { token_signer: Some(signer), root_ca: Some("CA".into()), ..Tuning::default() },
        }
    }

    fn token() -> Draft {
        draft(SECRETS, "t").set("/type", json!(TYPE)).annotation(NAME, "a")
    }

    fn account() -> Draft {
        draft(SERVICE_ACCOUNTS, "a")
    }

    fn text(value: &Value) -> String {
        STANDARD
            .decode(value.as_str().unwrap_or_default())
            .map(|b| String::from_utf8_lossy(&b).into_owned())
            .unwrap_or_default()
    }

    #[test]
    fn a_secret_of_that_type_is_filled_once() {
        let mut world = World::new([token(), account()]);
        assert_eq!(world.sync(&mut controller(), "t", at(1)).said, ["update secrets ns/t"]);
        let made = world.get(SECRETS, "t").value();
        let data = &made["data"];
        assert_eq!(
            [&data["token"], &data["namespace"], &data["ca.crt"]].map(text),
            ["signed:system:serviceaccount:ns:a", "ns", "CA"]
        );
        assert_eq!(made["metadata"]["annotations"][UID], "u-a");
        assert!(world.sync(&mut controller(), "t", at(2)).said.is_empty());
        let old = STANDARD.encode("old CA");
        world.put(token().set("/data", json!({"token": "dA==", "namespace": "bnM=", "ca.crt": old})));
        world.sync(&mut controller(), "t", at(3));
        let data = world.get(SECRETS, "t").value()["data"].take();
        assert_eq!((text(&data["token"]), text(&data["ca.crt"])), ("t".into(), "CA".into()), "a token stays");
    }

    #[test]
    fn a_token_of_nobody_goes_and_a_secret_that_is_gone_is_forgotten() {
        for (row, objects, want) in [
            ("no account", vec![token()], "delete secrets ns/t"),
            ("another of its name", vec![token().annotation(UID, "u-old"), account()], "delete secrets ns/t"),
            ("another type", vec![token().set("/type", json!("Opaque"))], ""),
            ("no name", vec![draft(SECRETS, "t").set("/type", json!(TYPE))], ""),
            (
                "gone",
                vec![account().set("/secrets", json!([{"name": "t"}, {"name": "other"}]))],
                "update serviceaccounts ns/a",
            ),
        ] {
            let mut world = World::new(objects);
            let said = world.sync(&mut controller(), "t", at(1)).said;
            let written = said.into_iter().find(|line| !line.starts_with("get")).unwrap_or_default();
            assert_eq!(written, want, "{row}");
        }
        let mut world = World::new([token(), account()]);
        let mut without = Tokens { tuning: Tuning::default() };
        assert!(world.sync(&mut without, "t", at(1)).said.is_empty(), "without a key nothing is touched");
    }
}
