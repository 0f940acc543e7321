//! Signs the public `cluster-info` with every bootstrap token that is for that: whoever knows a token knows that it is genuine.

use std::collections::BTreeMap;

use base::time::{Now, Wall};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{SYSTEM, data, expiration, is_token};
use crate::controller::{Controller, Key, Retry, Row, Watch};
use crate::plan::{Act, Done, Plan, Step, Why};
use crate::resource::{CONFIG_MAPS, SECRETS};
use crate::view::View;

pub(crate) const BOOTSTRAP_SIGNER: Row = Row {
    name: "bootstrap-signer-controller",
    aliases: &["bootstrapsigner"],
    identity: "bootstrap-signer",
    event_source: "bootstrap-signer-controller",
    queue: "bootstrap_signer_queue",
    workers: |_| 1,
    retry: Retry::DEFAULT,
    is_on_by_default: false,
    watches: &[
        Watch {
            resource: CONFIG_MAPS,
            keys: |change, _, wakes| {
                let is_it = change.new.as_ref().is_some_and(|map| Key::of(map) == key());
                wakes.extend(is_it.then(key));
            },
        },
        Watch {
            resource: SECRETS,
            keys: |change, _, wakes| {
                let both = [change.old.as_ref(), change.new.as_ref()];
                wakes.extend(both.into_iter().flatten().any(|secret| is_token(secret)).then(key));
            },
        },
    ],
    reads: &[],
    is_single: false,
    make: |_| Box::new(Signer),
};

const PUBLIC: &str = "kube-public";
const CLUSTER_INFO: &str = "cluster-info";
const SIGNATURE: &str = "jws-kubeconfig-";
const NAME: &str = "bootstrap-token-";

#[derive(Debug)]
struct Signer;

fn key() -> Key {
    Key::new(PUBLIC, CLUSTER_INFO)
}

// === impl Signer ===

impl Controller for Signer {
    fn reconcile(&mut self, view: &dyn View, _key: &Key, now: Now) -> Plan {
        let Some(map) = view.get(CONFIG_MAPS, PUBLIC, CLUSTER_INFO) else { return Plan::nothing() };
        let value = map.value();
        let known = value["data"].as_object().cloned().unwrap_or_default();
        let Some(content) = known.get("kubeconfig").and_then(Value::as_str) else { return Plan::nothing() };
        let (tokens, next) = tokens(view, now.wall);
        let mut wanted: Map<String, Value> = known.clone();
        wanted.retain(|key, _| !key.starts_with(SIGNATURE));
        for (id, secret) in tokens {
            wanted.insert(format!("{SIGNATURE}{id}"), signature(content, &id, &secret).into());
        }
        let plan = Plan::nothing().wake(next.map(|next| next.since(now.wall)));
        if wanted == known {
            return plan;
        }
        plan.then(Step::in_turn([Act::update(&map, |value| value["data"] = Value::Object(wanted))]))
    }

    fn settle(&mut self, _view: &dyn View, _key: &Key, _now: Now, done: &Done) -> Plan {
        // Who changed it meanwhile wakes us again.
        match done.failure().filter(|refusal| !matches!(refusal.why, Why::Conflict | Why::NotFound)) {
            Some(refusal) => Plan::failed(format!("signing {PUBLIC}/{CLUSTER_INFO}: {refusal}")),
            None => Plan::nothing(),
        }
    }
}

/// Tokens that may sign, by their id, and when the first of them will not any more.
fn tokens(view: &dyn View, now: Wall) -> (BTreeMap<String, String>, Option<Wall>) {
    let (mut tokens, mut next) = (BTreeMap::new(), None);
    for secret in view.list(SECRETS, SYSTEM) {
        let value = secret.value();
        let id = secret.meta.name.strip_prefix(NAME).filter(|_| is_token(&secret)).unwrap_or_default();
        let is_id =
            id.len() == 6 && id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        let (said, token) = (data(&value, "token-id"), data(&value, "token-secret"));
        let end = expiration(&value);
        let may_sign = data(&value, "usage-bootstrap-signing") == "true" && end.is_none_or(|end| now < end);
        if !is_id || said != id || token.is_empty() || !may_sign {
            continue;
        }
        next = [next, end].into_iter().flatten().min();
        tokens.insert(said, token);
    }
    (tokens, next)
}

/// A JSON web signature without its content: HS256, the id of the token as the key's name.
fn signature(content: &str, id: &str, secret: &str) -> String {
    let header = URL_SAFE_NO_PAD.encode(json!({"alg": "HS256", "kid": id}).to_string());
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(hmac(secret.as_bytes(), signed.as_bytes())))
}

/// HMAC with SHA-256, RFC 2104.
fn hmac(key: &[u8], text: &[u8]) -> [u8; 32] {
    let mut block = [0u8; 64];
    if key.len() > block.len() {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner = Sha256::new().chain_update(block.map(|byte| byte ^ 0x36)).chain_update(text).finalize();
    Sha256::new().chain_update(block.map(|byte| byte ^ 0x5c)).chain_update(inner).finalize().into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base64::engine::general_purpose::STANDARD;

    use super::*;
    use crate::testing::{Draft, World, at, draft};

    fn token(id: &str) -> Draft {
        let data = |text: &str| json!(STANDARD.encode(text));
        draft(SECRETS, &format!("{NAME}{id}")).set("/metadata/namespace", json!(SYSTEM)).set("/type", json!("bootstrap.kubernetes.io/token"))
            .set("/data", json!({"token-id": data(id), "token-secret": data("0123456789abcdef"), "usage-bootstrap-signing": data("true")}))
    }

    fn cluster_info(data: Value) -> Draft {
        draft(CONFIG_MAPS, CLUSTER_INFO).set("/metadata/namespace", json!(PUBLIC)).set("/data", data)
    }

    /// The keys that are there after a look, with the plan.
    fn signed(objects: Vec<Draft>) -> (Vec<String>, Plan) {
        let plan = Signer.reconcile(&World::new(objects).cache, &key(), at(1000));
        let keys = plan.acts().flat_map(|act| act.body()["data"].as_object().cloned().unwrap_or_default());
        (keys.map(|(key, _)| key).collect(), plan)
    }

    /// What upstream's test of the same has.
    #[test]
    fn a_signature_is_upstreams() {
        let content = "Hello from the other side. I must have called a thousand times.";
        assert_eq!(
            signature(content, "joshua", "my voice is my passcode"),
            "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8"
        );
    }

    #[test]
    fn every_token_that_may_sign_does_and_no_other() {
        let info = || cluster_info(json!({"kubeconfig": "x", "other": "y"}));
        let end = |text: &str| token("abcdef").set("/data/expiration", json!(STANDARD.encode(text)));
        for (row, secret, want) in [
            ("good", token("abcdef"), true),
            ("not yet over", end("1970-01-01T00:20:00Z"), true),
            ("over", end("1970-01-01T00:10:00Z"), false),
            (
                "not for signing",
                token("abcdef").set("/data/usage-bootstrap-signing", json!("ZmFsc2U=")),
                false,
            ),
            ("another id", token("abcdef").set("/data/token-id", json!(STANDARD.encode("ghijkl"))), false),
            ("no secret", token("abcdef").set("/data/token-secret", json!("")), false),
            ("a name that is none", token("ABC"), false),
        ] {
            let (keys, plan) = signed(vec![info(), secret]);
            assert_eq!(keys.iter().any(|key| key.starts_with(SIGNATURE)), want, "{row}");
            let wake = (row == "not yet over").then_some(Duration::from_secs(200));
            assert_eq!(plan.wake, wake, "{row}: signatures go when their token does");
        }
    }

    #[test]
    fn signatures_of_tokens_that_are_gone_go() {
        let right = signature("x", "abcdef", "0123456789abcdef");
        let data = json!({"kubeconfig": "x", "jws-kubeconfig-abcdef": right, "jws-kubeconfig-ghijkl": "old"});
        let (keys, _) = signed(vec![cluster_info(data), token("abcdef")]);
        assert_eq!(keys, ["jws-kubeconfig-abcdef", "kubeconfig"]);
        let data = json!({"kubeconfig": "x", "jws-kubeconfig-abcdef": right});
        assert!(!signed(vec![cluster_info(data), token("abcdef")]).1.has_acts());
        assert!(!signed(vec![cluster_info(json!({"other": "y"})), token("abcdef")]).1.has_acts());
    }
}
