//! Every kind there is with all of its subresources, in every way that a path, a method and a query have of asking.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::json;

use super::server::Server;
use super::{Dice, Put, RBAC, ask, connect, is_refused};

const VERBS: &[&str] = &["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
const WATCH: &str = "?watch=true";
const BY_NAME: &str = "?fieldSelector=metadata.name%3Dx";

/// One who may do one thing with everything.
#[derive(Clone, Copy, Debug)]
struct Holder {
    verb: &'static str,
    /// In all namespaces, or in `default` alone.
    everywhere: bool,
}

/// A way to ask, and what it means.
struct Way {
    put: Put,
    verb: &'static str,
    namespace: &'static str,
    /// Who looks into a container has to have the right to act in it, too; nobody here has two.
    acts: bool,
}

// === impl Holder ===

impl Holder {
    fn all() -> Vec<Holder> {
        let both = |verb: &'static str| [true, false].map(|everywhere| Holder { verb, everywhere });
        VERBS.iter().flat_map(|verb| both(verb)).collect()
    }

    fn name(self) -> String {
        format!("{}-{}", self.verb, if self.everywhere { "everywhere" } else { "default" })
    }

    fn may(self, way: &Way) -> bool {
        let here = self.everywhere || way.namespace == "default";
        here && self.verb == way.verb && !way.acts
    }
}

/// All ways to ask for what a kind has.
fn ways() -> Vec<Way> {
    let mut ways = Vec::new();
    for kind in apiserver_core::kinds::all() {
        // Questions about oneself are everybody's.
        if kind.plural.starts_with("selfsubject") {
            continue;
        }
        let version = match &*kind.group {
            "" => format!("/api/{}", kind.version),
            group => format!("/apis/{group}/{}", kind.version),
        };
        let places: &[&str] = if kind.is_namespaced() { &["default", "other", ""] } else { &[""] };
        let subs = kind.subresources.iter().map(|sub| sub.name);
        let below: Vec<Option<&str>> = [None, Some("")].into_iter().chain(subs.map(Some)).collect();
        for (place, below) in places.iter().flat_map(|place| below.iter().map(move |below| (*place, *below)))
        {
            let within = if place.is_empty() { String::new() } else { format!("/namespaces/{place}") };
            let end = match below {
                None => String::new(),
                Some("") => "/x".to_owned(),
                Some(sub) => format!("/x/{sub}"),
            };
            // A Namespace is its own namespace.
            let is_namespace = kind.group.is_empty() && kind.plural == "namespaces" && below.is_some();
            let namespace = if is_namespace { "x" } else { place };
            let streams = matches!(below, Some("exec" | "attach" | "portforward"));
            for (method, prefix, query) in forms() {
                // There are no Pods outside of namespaces: told to whoever may ask, before anybody could act.
                let acts = streams && method == "GET" && prefix.is_empty() && !place.is_empty();
                let path = format!("{version}{prefix}{within}/{}{end}{query}", kind.plural);
                let put = Put { method, path, body: json!([]), code: None, also: None };
                ways.push(Way { put, verb: verb(method, prefix, query, below), namespace, acts });
            }
        }
    }
    ways
}

/// Method, what stands before the place, and the query. Only of reading does a query tell more than one thing.
fn forms() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let reads = ["", WATCH, BY_NAME].into_iter().map(|query| ("GET", "", query));
    let deletes =
        ["?dryRun=All", "?dryRun=All&fieldSelector=metadata.name%3Dx"].map(|query| ("DELETE", "", query));
    let writes = ["POST", "PUT", "PATCH", "OPTIONS"].map(|method| (method, "", "?dryRun=All"));
    let old = ["GET", "POST", "DELETE"].map(|method| (method, "/watch", ""));
    reads.chain(deletes).chain(writes).chain(old)
}

/// What upstream calls it.
fn verb(method: &str, prefix: &str, query: &str, below: Option<&str>) -> &'static str {
    match (method, below) {
        _ if !prefix.is_empty() => "watch",
        ("GET", None | Some("")) if query == WATCH => "watch",
        ("GET", None) => "list",
        ("GET", _) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", None) => "deletecollection",
        ("DELETE", _) => "delete",
        _ => "",
    }
}

async fn furnish(server: &Server, holders: &[Holder]) {
    server.make("POST /api/v1/namespaces", &json!({"metadata": {"name": "other"}})).await;
    let rule = |verb: &str, resource: &str| json!({"verbs": [verb], "apiGroups": ["*"], "resources": [resource], "resourceNames": []});
    let roles = format!("POST /apis/{RBAC}/v1/clusterroles");
    for verb in VERBS {
        server.make(&roles, &json!({"metadata": {"name": verb}, "rules": [rule(verb, "*")]})).await;
    }
    let actor = json!({"metadata": {"name": "actor"}, "rules": [rule("impersonate", "users")]});
    server.make(&roles, &actor).await;
    let bind = async |user: &str, role: &str, everywhere: bool| {
        let place = match everywhere {
            true => format!("POST /apis/{RBAC}/v1/clusterrolebindings"),
            false => format!("POST /apis/{RBAC}/v1/namespaces/default/rolebindings"),
        };
        let subject = json!({"apiGroup": RBAC, "kind": "User", "name": user});
        let role = json!({"apiGroup": RBAC, "kind": "ClusterRole", "name": role});
        let binding = json!({"metadata": {"name": user}, "subjects": [subject], "roleRef": role});
        server.make(&place, &binding).await;
    };
    bind("actor", "actor", true).await;
    let mut waits = vec![json!({"user": "actor",
        "resourceAttributes": {"verb": "impersonate", "resource": "users", "name": "x"}})];
    for holder in holders {
        bind(&holder.name(), holder.verb, holder.everywhere).await;
        waits.push(json!({"user": holder.name(),
            "resourceAttributes": {"verb": holder.verb, "resource": "mark", "namespace": "default"}}));
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    let review = "POST /apis/authorization.k8s.io/v1/subjectaccessreviews";
    for spec in waits {
        while server.make(review, &json!({"spec": spec})).await["status"]["allowed"] != true {
            assert!(Instant::now() < deadline, "{spec} counts");
        }
    }
}

/// Verb x kind x subresource x way of asking: whoever may do one thing may do that one, where he may, and nothing else.
#[tokio::test]
async fn one_verb_on_everything_is_that_verb_however_it_is_asked_for() {
    let (holders, mut dice) = (Holder::all(), Dice(super::SEED));
    let line = |(i, holder): (usize, &Holder)| format!("token{i},{},{i}\n", holder.name());
    let tokens = holders.iter().enumerate().map(line).collect::<String>() + "actor,actor,98\n";
    let server = Server::with(&tokens, |_, _| {}).await;
    furnish(&server, &holders).await;
    let mut sender = connect(&server).await;
    let mut seen: BTreeMap<(&str, bool), usize> = BTreeMap::new();
    for way in ways() {
        // Who may by this verb, if anybody; and anybody.
        let near: Vec<usize> = (0..holders.len()).filter(|at| holders[*at].verb == way.verb).collect();
        let first = if near.is_empty() { dice.below(holders.len()) } else { dice.pick(&near) };
        for at in [first, dice.below(holders.len())] {
            let (holder, name) = (holders[at], holders[at].name());
            let as_other = dice.one_in(3);
            let (token, acts_as) = match as_other {
                true => ("actor".to_owned(), Some(("impersonate-user", name.as_str()))),
                false => (format!("token{at}"), None),
            };
            let answer = ask(&mut sender, &token, acts_as, &way.put).await;
            let may = holder.may(&way);
            assert_eq!(is_refused(&answer), !may, "{name} by {token}: {:?}: {answer:?}", way.put);
            *seen.entry((way.verb, may)).or_default() += 1;
        }
    }
    for verb in VERBS {
        let often = |may: bool| seen.get(&(*verb, may)).copied().unwrap_or(0);
        assert!(often(true) >= 50 && often(false) >= 50, "{seen:?}");
    }
}

#[tokio::test]
async fn whoever_has_no_rights_is_refused_everything_there_is() {
    let server = Server::with("nobody,nobody,99\n", |_, _| {}).await;
    let mut sender = connect(&server).await;
    let ways = ways();
    assert!(ways.len() > 1000, "{}", ways.len());
    for way in ways {
        let answer = ask(&mut sender, "nobody", None, &way.put).await;
        assert!(is_refused(&answer), "{:?}: {answer:?}", way.put);
    }
}
