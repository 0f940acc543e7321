//! What a machine that joins finds in the cluster: where it is and whom to trust, how its kubelets are, and its network.
//!
//! Names are kubeadm's where it has the same thing; the rights to read them are the API server's from its first second. The
//! controllers that sign with tokens and clean up after them would hold a copy of all Secrets and ConfigMaps for it; here
//! only tokens are looked at.

use std::collections::BTreeMap;
use std::time::Duration;

use api::config::join::Token as Pair;
use base::rng::Rng;
use client::reflector::{Objects, Reflector};
use client::{Client, Request, Resource};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};

use super::agents::Agents;
use super::kubelet_config;
use crate::agent_cmd;
use crate::discovery::{CLUSTER_INFO, cluster_info, signature};

pub(super) const NETWORK: &str = "/api/v1/namespaces/kube-system/configmaps/longshore-network";
pub(super) const KUBELET_CONFIG: &str = "/api/v1/namespaces/kube-system/configmaps/kubelet-config";

const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
const AGAIN: Duration = Duration::from_secs(5);
/// Changes that come together are looked at together.
const TOGETHER: Duration = Duration::from_millis(20);
/// Between two looks at the clock where no token is about to end.
const LOOK: Duration = Duration::from_secs(3600);

/// What lets machines in.
#[derive(Clone, Debug, PartialEq)]
struct Token {
    name: String,
    /// None: it does not sign.
    signs: Option<Pair>,
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Never,
    At(Timestamp),
    /// One that nobody can read is over.
    Over,
}

/// Keeps it written down, signed with the tokens that there are.
pub(super) async fn tell(admin: Client, agents: Agents, server: String) {
    for (path, object) in constants(&agents) {
        write(&admin, path, &object).await;
    }
    let resource = Resource {
        field_selector: "type=bootstrap.kubernetes.io/token".to_owned(),
        ..Resource::new(SECRETS)
    };
    let objects = Objects::keeping(admin.clone(), Token::of);
    let mut tokens = Reflector::new(admin.clone(), resource, Rng::new(agent_cmd::seed()), objects);
    let content = cluster_info(&server, &agents.ca);
    let mut written = Value::Null;
    loop {
        let mut pause = LOOK;
        if tokens.cache().has_synced() {
            let now = Timestamp::now();
            let (object, next) = signed(&content, &tokens.cache().all(), now);
            if object != written {
                write(&admin, CLUSTER_INFO, &object).await;
                written = object;
            }
            clean_up(&admin, &tokens.cache().all(), now).await;
            pause = next.unwrap_or(LOOK).min(LOOK);
        }
        _ = tokio::time::timeout(pause, tokens.next()).await;
        while tokio::time::timeout(TOGETHER, tokens.next()).await.is_ok() {}
    }
}

/// As often as it takes.
async fn write(admin: &Client, path: &str, object: &Value) {
    let path = format!("{path}?fieldManager=longshore-up&force=true");
    let apply = || Request::patch(path.clone(), "application/apply-patch+yaml", object.to_string());
    while let Err(error) = admin.ask_bytes(apply()).await {
        tracing::warn!(%error, "what machines that join need is not written; trying again");
        tokio::time::sleep(AGAIN).await;
    }
}

/// Tokens that are over go.
async fn clean_up(admin: &Client, tokens: &[Token], now: Timestamp) {
    for token in tokens.iter().filter(|token| token.left(now).is_none()) {
        let gone = admin.ask_bytes(Request::delete(format!("{SECRETS}/{}", token.name), "")).await;
        if let Err(error) = gone.map(drop).or_else(|e| if e.is_not_found() { Ok(()) } else { Err(e) }) {
            tracing::warn!(%error, secret = token.name, "a token whose time is over is still there");
        }
    }
}

/// The public words, a signature for each token, and when that will be another.
fn signed(content: &str, tokens: &[Token], now: Timestamp) -> (Value, Option<Duration>) {
    let mut data = BTreeMap::from([("kubeconfig".to_owned(), content.to_owned())]);
    let mut next: Option<Duration> = None;
    for token in tokens {
        let Some(left) = token.left(now) else { continue };
        if token.end != End::Never {
            next = Some(next.map_or(left, |next| next.min(left)));
        }
        if let Some(pair) = &token.signs {
            data.insert(format!("jws-kubeconfig-{}", pair.id), signature(content, pair));
        }
    }
    (map("kube-public", "cluster-info", json!(data)), next)
}

// === impl Token ===

impl Token {
    fn of(secret: Secret) -> Token {
        let data = secret.data.unwrap_or_default();
        let text = |key: &str| {
            let bytes = data.get(key).map(|bytes| bytes.0.clone()).unwrap_or_default();
            String::from_utf8(bytes).unwrap_or_default()
        };
        let name = secret.metadata.name.unwrap_or_default();
        let pair = Pair::parse(&format!("{}.{}", text("token-id"), text("token-secret"))).ok();
        let is_named = |pair: &Pair| name == format!("bootstrap-token-{}", pair.id);
        let signs = pair.filter(is_named).filter(|_| text("usage-bootstrap-signing") == "true");
        let end = match text("expiration") {
            never if never.is_empty() => End::Never,
            at => at.parse().map_or(End::Over, End::At),
        };
        Token { name, signs, end }
    }

    /// How long it lets machines in; None: not any more.
    fn left(&self, now: Timestamp) -> Option<Duration> {
        match self.end {
            End::Never => Some(Duration::MAX),
            End::Over => None,
            End::At(end) => Duration::try_from(end.duration_since(now)).ok().filter(|left| !left.is_zero()),
        }
    }
}

fn constants(agents: &Agents) -> Vec<(&'static str, Value)> {
    let mut kubelet = kubelet_config::of_the_cluster(&agents.up.cluster_domain, agents.dns_ip());
    // The API server signs what its port shows, for the addresses of its Node.
    kubelet["serverTLSBootstrap"] = json!(true);
    kubelet["rotateCertificates"] = json!(true);
    let kubelet = api::yaml::from_value_to_yaml(&kubelet);
    let network = json!({
        "net-conf.json": agents.net_conf(),
        "cluster-cidr": agents.up.cluster_cidr.to_string(),
        "service-cidr": agents.up.service_cidr.to_string(),
    });
    vec![
        (KUBELET_CONFIG, map("kube-system", "kubelet-config", json!({"kubelet": kubelet}))),
        (NETWORK, map("kube-system", "longshore-network", network)),
    ]
}

fn map(namespace: &str, name: &str, data: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": namespace, "name": name},
        "data": data,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::discovery::verified;

    fn secret(id: &str, more: Value) -> Secret {
        let mut data =
            json!({"token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-signing": "true"});
        super::super::documents::merge(&mut data, &more);
        let name = format!("bootstrap-token-{id}");
        let text = json!({"metadata": {"name": name}, "stringData": {}, "data": {}});
        let mut secret: Secret = serde_json::from_value(text).unwrap();
        let data = data.as_object().unwrap().iter();
        let bytes = |text: &Value| k8s_openapi::ByteString(text.as_str().unwrap().as_bytes().to_vec());
        secret.data = Some(data.map(|(key, text)| (key.clone(), bytes(text))).collect());
        secret
    }

    #[test]
    fn each_token_that_lives_signs_and_the_first_end_is_known() {
        let now: Timestamp = "2030-01-01T00:00:00Z".parse().unwrap();
        let tokens: Vec<Token> = [
            secret("aaaaaa", json!({})),
            secret("bbbbbb", json!({"expiration": "2030-01-01T01:00:00Z"})),
            secret("cccccc", json!({"expiration": "2029-01-01T01:00:00Z"})),
            secret("dddddd", json!({"expiration": "soon"})),
            secret("eeeeee", json!({"usage-bootstrap-signing": "false"})),
            secret("ffffff", json!({"token-id": "aaaaab"})),
        ]
        .into_iter()
        .map(Token::of)
        .collect();
        let (map, next) = signed("content", &tokens, now);
        let keys: Vec<&str> = map["data"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["jws-kubeconfig-aaaaaa", "jws-kubeconfig-bbbbbb", "kubeconfig"]);
        assert_eq!(next, Some(Duration::from_secs(3600)));
        let pair = Pair::parse("bbbbbb.0123456789abcdef").unwrap();
        assert_eq!(verified(&map, &pair).unwrap(), "content");
        let over: Vec<&str> = tokens
            .iter()
            .filter(|token| token.left(now).is_none())
            .map(|token| token.name.as_str())
            .collect();
        assert_eq!(over, ["bootstrap-token-cccccc", "bootstrap-token-dddddd"]);
    }
}
