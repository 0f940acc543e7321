//! Every way of asking, held against a simple model of who may do what.
//!
//! The model knows nothing of paths and headers: it is told what a request means by whoever made it up, and says whether
//! RBAC, or the Node authorizer, would allow that. The server is told the same by a path, a query, a body, a method, a
//! proxy or another user's name. Both must agree; writes are dry runs, so that nothing changes meanwhile.
#![allow(clippy::unwrap_used)]

#[path = "authorization/every_kind.rs"]
mod every_kind;
mod server;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use server::Server;
use tokio::net::TcpStream;

const SEED: u64 = 13;
const ASKED: usize = 3000;
const RBAC: &str = "rbac.authorization.k8s.io";

/// One who asks, by token.
#[derive(Clone, Debug)]
struct Who {
    name: &'static str,
    groups: &'static [&'static str],
}

const USERS: &[Who] = &[
    Who { name: "ann", groups: &["red"] },
    Who { name: "bob", groups: &["red", "blue"] },
    Who { name: "cat", groups: &[] },
    Who { name: "dan", groups: &["blue"] },
    Who { name: "system:node:n1", groups: &["system:nodes"] },
    Who { name: "system:node:n2", groups: &["system:nodes"] },
];

/// What a request means.
#[derive(Clone, Debug, Default)]
struct Meant {
    verb: &'static str,
    group: &'static str,
    plural: &'static str,
    sub: &'static str,
    namespace: &'static str,
    name: &'static str,
    /// `spec.nodeName` of a list of Pods.
    on_node: &'static str,
}

/// How it is put, and what comes of it when it is allowed: None for anything but an error status.
#[derive(Clone, Debug)]
struct Put {
    method: &'static str,
    path: String,
    body: Value,
    code: Option<u16>,
    /// Allowed only if this is, too.
    also: Option<Meant>,
}

#[derive(Clone, Debug)]
struct Rule {
    verbs: Vec<&'static str>,
    groups: Vec<&'static str>,
    resources: Vec<&'static str>,
    names: Vec<&'static str>,
}

#[derive(Clone, Debug)]
struct Grant {
    /// Empty: everywhere.
    namespace: &'static str,
    user: Option<&'static str>,
    group: Option<&'static str>,
    rules: Vec<Rule>,
}

/// A generator of its own: the same questions for ever.
struct Dice(u64);

// === impl Dice ===

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.roll() % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    fn some(&mut self, from: &[&'static str]) -> Vec<&'static str> {
        (0..=self.below(3)).map(|_| self.pick(from)).collect()
    }
}

// === the model ===

fn rule_allows(rule: &Rule, meant: &Meant) -> bool {
    let lists = |list: &[&str], word: &str| list.contains(&"*") || list.contains(&word);
    let resource = if meant.sub.is_empty() {
        lists(&rule.resources, meant.plural)
    } else {
        lists(&rule.resources, &format!("{}/{}", meant.plural, meant.sub))
            || rule.resources.contains(&format!("*/{}", meant.sub).as_str())
    };
    lists(&rule.verbs, meant.verb)
        && lists(&rule.groups, meant.group)
        && resource
        && (rule.names.is_empty() || rule.names.contains(&meant.name))
}

fn roles_allow(grants: &[Grant], who: &Who, meant: &Meant) -> bool {
    grants.iter().any(|grant| {
        let here = grant.namespace.is_empty() || grant.namespace == meant.namespace;
        let theirs = grant.user == Some(who.name) || grant.group.is_some_and(|g| who.groups.contains(&g));
        here && theirs && grant.rules.iter().any(|rule| rule_allows(rule, meant))
    })
}

/// What the Node authorizer says of the resources asked for here, and the role that lets every node keep the ways to Services and
/// to other Nodes. Pod `p1` is on n1 and uses secret `s1` and configmap
/// `s1`; `p2` is on n2 and uses `s2`; all in namespace `a`.
fn node_allows(who: &Who, meant: &Meant) -> bool {
    let Some(node) = who.name.strip_prefix("system:node:") else { return false };
    let own = |n: &str| n.len() > 1 && meant.namespace == "a" && n[1..] == node[1..];
    let reads = matches!(meant.verb, "get" | "list" | "watch");
    match (meant.group, meant.plural, meant.sub) {
        ("", "secrets" | "configmaps", "") => reads && own(meant.name),
        ("", "pods", "") => match meant.verb {
            "get" => own(meant.name),
            "list" | "watch" => meant.on_node == node || own(meant.name),
            "create" | "delete" => true,
            _ => false,
        },
        ("", "pods", "status") => matches!(meant.verb, "update" | "patch"),
        ("", "pods", "eviction") => meant.verb == "create",
        ("", "nodes", "") => match meant.verb {
            "create" | "update" | "patch" => true,
            _ => reads,
        },
        ("", "nodes", "status") => matches!(meant.verb, "update" | "patch"),
        ("", "services", "") => reads,
        _ => false,
    }
}

fn allows(grants: &[Grant], who: &Who, meant: &Meant) -> bool {
    node_allows(who, meant) || roles_allow(grants, who, meant)
}

// === what is asked ===

const NAMES: &[&str] = &["s1", "s2"];
const KINDS: &[(&str, &str, bool)] = &[
    ("", "secrets", true),
    ("", "configmaps", true),
    ("", "pods", true),
    ("", "services", true),
    ("apps", "deployments", true),
    ("", "nodes", false),
    (RBAC, "clusterroles", false),
];
const SUBS: &[(&str, &[&str], &[&str])] = &[
    ("pods", &["log"], &["get"]),
    ("pods", &["exec", "attach", "portforward"], &["get", "create"]),
    ("pods", &["binding", "eviction"], &["create"]),
    ("pods", &["status", "ephemeralcontainers"], &["get", "patch", "update"]),
    ("pods", &["proxy"], &["get", "create", "update", "patch", "delete", ""]),
    ("services", &["proxy"], &["get", "create", "update", "patch", "delete", ""]),
    ("services", &["status"], &["get", "patch", "update"]),
    ("nodes", &["proxy"], &["get", "create", "update", "patch", "delete", ""]),
    ("nodes", &["status"], &["get", "patch", "update"]),
    ("deployments", &["scale", "status"], &["get", "patch", "update"]),
];

fn method_of(verb: &str) -> &'static str {
    match verb {
        "get" | "list" | "watch" => "GET",
        "create" => "POST",
        "update" => "PUT",
        "patch" => "PATCH",
        "delete" | "deletecollection" => "DELETE",
        _ => "OPTIONS",
    }
}

fn path_of(meant: &Meant, named: bool, watch_prefix: bool) -> String {
    let mut path = match meant.group {
        "" => "/api/v1".to_owned(),
        group => format!("/apis/{group}/v1"),
    };
    path.push_str(if watch_prefix { "/watch" } else { "" });
    if !meant.namespace.is_empty() {
        path.push_str(&format!("/namespaces/{}", meant.namespace));
    }
    path.push_str(&format!("/{}", meant.plural));
    if named {
        path.push_str(&format!("/{}", meant.name));
    }
    if !meant.sub.is_empty() {
        path.push_str(&format!("/{}", meant.sub));
    }
    path
}

/// A question, and one way to put it.
fn question(dice: &mut Dice) -> (Meant, Put) {
    if dice.one_in(3) {
        return about_a_subresource(dice);
    }
    let (group, plural, namespaced) = dice.pick(KINDS);
    let namespace = if namespaced { dice.pick(&["a", "b"]) } else { "" };
    let pod_or_node = |name: &'static str| match (plural, name) {
        ("pods", "s1") => "p1",
        ("pods", _) => "p2",
        ("nodes", "s1") => "n1",
        ("nodes", _) => "n2",
        (_, name) => name,
    };
    let name = pod_or_node(dice.pick(NAMES));
    let meant = Meant { group, plural, namespace, name, ..Meant::default() };
    let body = json!({"metadata": {"name": name}});
    let put = |verb: &'static str, path: String| Put {
        method: method_of(verb),
        path,
        body: body.clone(),
        code: None,
        also: None,
    };
    let selector = format!("fieldSelector=metadata.name%3D{name}");
    match dice.below(12) {
        // By the path.
        0..=3 => {
            let meant = Meant { verb: dice.pick(&["get", "update", "patch", "delete"]), ..meant };
            let put = put(meant.verb, format!("{}?dryRun=All", path_of(&meant, true, false)));
            (meant, put)
        }
        4 | 5 => {
            let meant = Meant { verb: dice.pick(&["list", "deletecollection", "watch"]), name: "", ..meant };
            let put = put(
                meant.verb,
                format!("{}?dryRun=All&watch={}", path_of(&meant, false, false), meant.verb == "watch"),
            );
            (meant, put)
        }
        // By the body: a name there is none to authorization.
        6 => {
            let meant = Meant { verb: "create", name: "", ..meant };
            let mut put = put("create", format!("{}?dryRun=All", path_of(&meant, false, false)));
            if dice.one_in(2) && namespaced {
                put.body["metadata"]["namespace"] = "elsewhere".into();
                put.code = Some(400);
            }
            (meant, put)
        }
        // By the query.
        7 | 8 => {
            let meant = Meant { verb: dice.pick(&["list", "watch"]), ..meant };
            let put = put(
                meant.verb,
                format!("{}?watch={}&{selector}", path_of(&meant, false, false), meant.verb == "watch"),
            );
            (meant, put)
        }
        9 => {
            let on_node = dice.pick(&["n1", "n2"]);
            let meant = Meant {
                verb: dice.pick(&["list", "watch"]),
                plural: "pods",
                group: "",
                name: "",
                namespace: dice.pick(&["", "a"]),
                on_node,
                ..meant
            };
            let put = put(
                meant.verb,
                format!(
                    "{}?watch={}&fieldSelector=spec.nodeName%3D{on_node}",
                    path_of(&meant, false, false),
                    meant.verb == "watch"
                ),
            );
            (meant, put)
        }
        // By a path and a query that do not agree.
        10 => {
            let meant = Meant { verb: "watch", ..meant };
            let old = dice.one_in(2);
            let path =
                format!("{}?watch=true&fieldSelector=metadata.name%3Dother", path_of(&meant, true, old));
            (meant, Put { code: Some(400), ..put("watch", path) })
        }
        // By the old paths.
        _ => {
            let named = dice.one_in(2);
            let meant = Meant { verb: "watch", name: if named { name } else { "" }, ..meant };
            let path = path_of(&meant, named, true);
            // A selector narrows what is shown there, and not what is asked for.
            let put = put("watch", if named { path } else { format!("{path}?{selector}") });
            (meant, put)
        }
    }
}

fn about_a_subresource(dice: &mut Dice) -> (Meant, Put) {
    let (plural, subs, verbs) = dice.pick(SUBS);
    let (sub, verb) = (dice.pick(subs), dice.pick(verbs));
    let first = dice.one_in(2);
    let name = match (plural, first) {
        ("pods", true) => "p1",
        ("pods", false) => "p2",
        ("nodes", true) => "n1",
        ("nodes", false) => "n2",
        (_, true) => "s1",
        (_, false) => "s2",
    };
    let namespace = if plural == "nodes" { "" } else { dice.pick(&["a", "b"]) };
    let group = if plural == "deployments" { "apps" } else { "" };
    let meant = Meant { verb, group, plural, sub, namespace, name, on_node: "" };
    let mut path = format!("{}?dryRun=All", path_of(&meant, true, false));
    let mut also = None;
    if matches!(sub, "exec" | "attach" | "portforward") {
        // Who may look may not yet act.
        also = Some(Meant { verb: "create", ..meant.clone() });
    }
    if sub == "proxy" {
        let acts = plural == "nodes" && dice.one_in(2);
        path = format!("{}{}", path_of(&meant, true, false), if acts { "/exec/a/p1/c" } else { "/x" });
        also = acts.then(|| Meant { verb: "create", ..meant.clone() });
    }
    let body = json!({"metadata": {"name": name}, "target": {"name": "n1"}});
    (meant, Put { method: method_of(verb), path, body, code: None, also })
}

fn grants(dice: &mut Dice) -> Vec<Grant> {
    let verbs = [
        "get",
        "list",
        "watch",
        "create",
        "update",
        "patch",
        "delete",
        "deletecollection",
        "impersonate",
        "*",
    ];
    let groups = ["", "", "apps", RBAC, "*"];
    let resources = [
        "secrets",
        "configmaps",
        "pods",
        "pods/log",
        "pods/exec",
        "pods/proxy",
        "pods/*",
        "services",
        "services/proxy",
        "*/status",
        "*/proxy",
        "nodes",
        "nodes/proxy",
        "deployments",
        "deployments/scale",
        "users",
        "groups",
        "*",
    ];
    let names = ["s1", "s2", "p1", "n1", "ann", "cat", "red"];
    let mut all: Vec<Grant> = (0..24)
        .map(|i| {
            let mut rule = || Rule {
                verbs: dice.some(&verbs),
                groups: dice.some(&groups),
                resources: dice.some(&resources),
                names: if dice.one_in(3) { dice.some(&names) } else { Vec::new() },
            };
            let rules = vec![rule(), rule()];
            let to_group = dice.one_in(3);
            Grant {
                namespace: dice.pick(&["", "a", "b"]),
                user: (!to_group).then(|| USERS[i % USERS.len()].name),
                group: to_group.then(|| dice.pick(&["red", "blue"])),
                rules,
            }
        })
        .collect();
    // Chance alone lets too few act as others.
    for (user, names) in [("ann", vec!["cat", "red"]), ("bob", Vec::new()), ("system:node:n1", vec!["dan"])] {
        let (verbs, groups, resources) = (vec!["impersonate"], vec![""], vec!["users", "groups"]);
        let rules = vec![Rule { verbs, groups, resources, names }];
        all.push(Grant { namespace: "", user: Some(user), group: None, rules });
    }
    all
}

// === the server's side ===

type Sender = hyper::client::conn::http2::SendRequest<Full<bytes::Bytes>>;

async fn connect(server: &Server) -> Sender {
    let ca = std::fs::read_to_string(server.dir.path().join("data/pki/ca.crt")).unwrap();
    let ca = <rustls::pki_types::CertificateDer<'_> as rustls::pki_types::pem::PemObject>::from_pem_slice(
        ca.as_bytes(),
    );
    let mut roots = rustls::RootCertStore::empty();
    roots.add(ca.unwrap()).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let stream = TcpStream::connect(server.address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let name = ServerName::from(server.address.ip());
    let stream = connector.connect(name, stream).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Code and, of an error status, the message. The body of anything else may be without end, and is not waited for.
async fn ask(sender: &mut Sender, token: &str, acts_as: Option<(&str, &str)>, put: &Put) -> (u16, String) {
    let kind = if put.method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let mut request = http::Request::builder()
        .method(put.method)
        .uri(format!("https://server{}", put.path))
        .header("authorization", format!("Bearer {token}"))
        .header("content-type", kind);
    if let Some((header, value)) = acts_as {
        request =
            request.header("impersonate-user", if header == "impersonate-user" { value } else { "cat" });
        if header != "impersonate-user" {
            request = request.header(header, value);
        }
    }
    let body =
        if matches!(put.method, "GET" | "DELETE" | "OPTIONS") { String::new() } else { put.body.to_string() };
    let request = request.body(Full::new(body.into())).unwrap();
    sender.ready().await.unwrap();
    let answer = sender.send_request(request).await.unwrap();
    let code = answer.status().as_u16();
    if code < 400 {
        return (code, String::new());
    }
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let status: Value = serde_json::from_slice(&body).unwrap_or_default();
    (code, status["message"].as_str().unwrap_or_default().to_owned())
}

/// Whether the authorizer refused, rather than admission or validation.
fn is_refused((code, message): &(u16, String)) -> bool {
    *code == 403 && message.contains("User \"") && message.contains(" cannot ")
}

async fn furnish(server: &Server, grants: &[Grant]) {
    for namespace in ["a", "b"] {
        server.make("POST /api/v1/namespaces", &json!({"metadata": {"name": namespace}})).await;
    }
    for node in ["n1", "n2"] {
        server.make("POST /api/v1/nodes", &json!({"metadata": {"name": node}})).await;
    }
    for role in NAMES {
        let role = json!({"metadata": {"name": role}});
        server.make(&format!("POST /apis/{RBAC}/v1/clusterroles"), &role).await;
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    for namespace in ["a", "b"] {
        let account = format!("GET /api/v1/namespaces/{namespace}/serviceaccounts/default");
        while server.ask("root", &account, "", b"").await.code != 200 {
            assert!(Instant::now() < deadline, "{namespace} has its service account");
        }
        for i in ["1", "2"] {
            let at = |plural: &str| format!("POST /api/v1/namespaces/{namespace}/{plural}");
            server.make(&at("secrets"), &json!({"metadata": {"name": format!("s{i}")}})).await;
            server.make(&at("configmaps"), &json!({"metadata": {"name": format!("s{i}")}})).await;
            // What is there is not created by an update.
            let service = json!({"metadata": {"name": format!("s{i}")}, "spec": {"ports": [{"port": 80}]}});
            server.make(&at("services"), &service).await;
            let mut pod = json!({"metadata": {"name": format!("p{i}")},
                "spec": {"containers": [{"name": "c", "image": "i"}]}});
            if namespace == "a" {
                pod["spec"]["nodeName"] = format!("n{i}").into();
                pod["spec"]["volumes"] = json!([
                    {"name": "s", "secret": {"secretName": format!("s{i}")}},
                    {"name": "c", "configMap": {"name": format!("s{i}")}}]);
            }
            server.make(&at("pods"), &pod).await;
        }
    }
    for (i, grant) in grants.iter().enumerate() {
        let mut rules: Vec<Value> = grant.rules.iter().map(|rule| {
            json!({"verbs": rule.verbs, "apiGroups": rule.groups, "resources": rule.resources, "resourceNames": rule.names})
        }).collect();
        // By this we see that the grant counts.
        rules.push(json!({"verbs": ["mark"], "apiGroups": [""], "resources": [format!("mark{i}")]}));
        let name = format!("grant{i}");
        server
            .make(
                &format!("POST /apis/{RBAC}/v1/clusterroles"),
                &json!({"metadata": {"name": name}, "rules": rules}),
            )
            .await;
        let subject = match (grant.user, grant.group) {
            (Some(user), _) => json!({"apiGroup": RBAC, "kind": "User", "name": user}),
            (_, group) => json!({"apiGroup": RBAC, "kind": "Group", "name": group}),
        };
        let binding = json!({"metadata": {"name": name}, "subjects": [subject],
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}});
        let place = match grant.namespace {
            "" => format!("POST /apis/{RBAC}/v1/clusterrolebindings"),
            namespace => format!("POST /apis/{RBAC}/v1/namespaces/{namespace}/rolebindings"),
        };
        server.make(&place, &binding).await;
    }
    let mut waits: Vec<Value> = grants.iter().enumerate().map(|(i, grant)| {
        json!({"user": grant.user.unwrap_or("nobody"), "groups": grant.group.map(|g| vec![g]).unwrap_or_default(),
            "resourceAttributes": {"verb": "mark", "resource": format!("mark{i}"), "namespace": grant.namespace}})
    }).collect();
    for i in ["1", "2"] {
        for plural in ["secrets", "configmaps"] {
            waits.push(json!({"user": format!("system:node:n{i}"), "groups": ["system:nodes"],
                "resourceAttributes": {"verb": "get", "resource": plural, "namespace": "a", "name": format!("s{i}")}}));
        }
    }
    let review = "POST /apis/authorization.k8s.io/v1/subjectaccessreviews";
    for spec in waits {
        while server.make(review, &json!({"spec": spec})).await["status"]["allowed"] != true {
            assert!(Instant::now() < deadline, "{spec} counts");
        }
    }
}

fn tokens() -> String {
    let line = |(i, who): (usize, &Who)| format!("token{i},{},{i},\"{}\"\n", who.name, who.groups.join(","));
    USERS.iter().enumerate().map(line).collect()
}

#[tokio::test]
async fn whatever_way_it_is_asked_only_what_is_allowed_is_done() {
    let mut dice = Dice(SEED);
    let grants = grants(&mut dice);
    let server = Server::with(&tokens(), |_, _| {}).await;
    furnish(&server, &grants).await;
    let mut sender = connect(&server).await;
    let mut seen: BTreeMap<(bool, bool), usize> = BTreeMap::new();
    for _ in 0..ASKED {
        let at = dice.below(USERS.len());
        let real = &USERS[at];
        let (meant, put) = question(&mut dice);
        let (mut who, mut may, mut acts_as) = (real.clone(), true, None);
        if dice.one_in(5) {
            let impersonate = |plural, name| Meant { verb: "impersonate", plural, name, ..Meant::default() };
            if dice.one_in(2) {
                let other = dice.pick(&USERS[..4]);
                // The groups of a user one acts as are those one names.
                who = Who { name: other.name, groups: &[] };
                may = allows(&grants, real, &impersonate("users", other.name));
                acts_as = Some(("impersonate-user", other.name));
            } else {
                let group = dice.pick(&["red", "blue"]);
                who = Who { name: "cat", groups: if group == "red" { &["red"] } else { &["blue"] } };
                may = allows(&grants, real, &impersonate("users", "cat"))
                    && allows(&grants, real, &impersonate("groups", group));
                acts_as = Some(("impersonate-group", group));
            }
        }
        may = may && allows(&grants, &who, &meant);
        let also = put.also.as_ref().is_none_or(|also| allows(&grants, &who, also));
        let answer = ask(&mut sender, &format!("token{at}"), acts_as, &put).await;
        let story = || format!("{} as {acts_as:?} wants {meant:?} by {put:?}: {answer:?}", real.name);
        assert_eq!(is_refused(&answer), !(may && also), "{}", story());
        if let Some(code) = put.code.filter(|_| may && also) {
            assert_eq!(answer.0, code, "{}", story());
        }
        *seen.entry((may && also, acts_as.is_some())).or_default() += 1;
    }
    // Both answers were given often enough to mean something, with and without another's name.
    assert!(seen.len() == 4 && seen.values().all(|n| *n >= 20), "{seen:?}");
}
