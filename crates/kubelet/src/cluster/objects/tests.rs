//! What Pods refer to, from an API server in memory that counts who watches, under paused time.
#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use client::Client;
use futures_util::stream;
use http::{Method, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use kubelet_core::references::{Referenced, TokenWant};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::*;
use crate::ports::Accounts;
use crate::testing::{TokioClock, client_of, clock};

type Body = UnsyncBoxBody<Bytes, Infallible>;

struct Server {
    clock: Arc<TokioClock>,
    state: Mutex<State>,
    /// Watches that are open now, apart from that of Services, which every node has.
    watches: Arc<AtomicUsize>,
}

#[derive(Default)]
struct State {
    away: bool,
    /// Objects by the path of their collection.
    objects: Vec<(&'static str, Value)>,
    /// Tokens that were given out, and what the last one was asked for.
    tokens: usize,
    /// How long it thinks about each answer.
    slow: Duration,
    asked: Value,
}

/// Counts itself for as long as it lives.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Server {
    fn new() -> Arc<Server> {
        Arc::new(Server { clock: clock(), state: Mutex::default(), watches: Arc::default() })
    }

    fn put(&self, collection: &'static str, object: Value) {
        self.state.lock().unwrap().objects.push((collection, object));
    }

    fn set_away(&self, away: bool) {
        self.state.lock().unwrap().away = away;
    }

    fn watches(&self) -> usize {
        self.watches.load(Ordering::Relaxed)
    }

    fn client(self: &Arc<Self>) -> Client {
        let this = self.clone();
        client_of(move |request| this.clone().answer(request))
    }

    fn objects(self: &Arc<Self>) -> ApiObjects {
        let cluster = Arc::new(Cluster::reached_by(self.client(), "n1"));
        ApiObjects::new(cluster, Strategy::Watch, self.clock.clone(), Rng::new(1), CancellationToken::new())
    }

    fn tokens(self: &Arc<Self>) -> Tokens {
        Tokens::new(self.client(), self.clock.clone(), Rng::new(1))
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> hyper::Result<Response<Body>> {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let body = request.into_body().collect().await?.to_bytes();
        let query = uri.query().unwrap_or_default();
        let away = self.state.lock().unwrap().away;
        let slow = self.state.lock().unwrap().slow;
        if !slow.is_zero() {
            sleep(slow).await;
        }
        let say = |code: u16, body: Value| {
            let body = Full::new(Bytes::from(body.to_string())).boxed_unsync();
            Response::builder().status(code).body(body).unwrap()
        };
        Ok(if away {
            say(500, json!({"kind": "Status", "code": 500, "reason": "InternalError", "message": "away"}))
        } else if method == Method::POST {
            say(201, self.token(&serde_json::from_slice(&body).unwrap()))
        } else if query.contains("watch=true") {
            Response::new(self.watch(uri.path()))
        } else if let Some(object) = self.one(uri.path()) {
            say(200, object)
        } else {
            say(200, json!({"metadata": {"resourceVersion": "1"}, "items": self.list(uri.path(), query)}))
        })
    }

    /// A stream on which nothing happens.
    fn watch(&self, path: &str) -> Body {
        let counted = (path != "/api/v1/services").then(|| {
            self.watches.fetch_add(1, Ordering::Relaxed);
            Counted(self.watches.clone())
        });
        let nothing = stream::unfold(counted, |counted| async move {
            std::future::pending::<()>().await;
            Some((Ok::<_, Infallible>(Frame::data(Bytes::new())), counted))
        });
        StreamBody::new(nothing).boxed_unsync()
    }

    fn list(&self, path: &str, query: &str) -> Vec<Value> {
        let named = |object: &Value| {
            let name = object["metadata"]["name"].as_str().unwrap();
            !query.contains("fieldSelector") || query.contains(&format!("metadata.name%3D{name}"))
        };
        let state = self.state.lock().unwrap();
        state.objects.iter().filter(|(at, o)| *at == path && named(o)).map(|(_, o)| o.clone()).collect()
    }

    /// The object a path names, if it names one.
    fn one(&self, path: &str) -> Option<Value> {
        let (collection, name) = path.rsplit_once('/')?;
        let state = self.state.lock().unwrap();
        let named = |(at, o): &&(&'static str, Value)| *at == collection && o["metadata"]["name"] == name;
        state.objects.iter().find(named).map(|(_, o)| o.clone())
    }

    fn token(&self, asked: &Value) -> Value {
        let mut state = self.state.lock().unwrap();
        state.tokens += 1;
        state.asked = asked.clone();
        let seconds = asked["spec"]["expirationSeconds"].as_i64().unwrap();
        let ends = jiff::Timestamp::from_second(self.clock.now().wall.secs() + seconds).unwrap();
        let status = json!({"token": format!("t{}", state.tokens), "expirationTimestamp": ends.to_string()});
        json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
               "spec": {"audiences": [], "expirationSeconds": seconds}, "status": status})
    }
}

fn pod(uid: &str, spec: Value) -> Pod {
    let mut spec = spec;
    spec["containers"] = json!([]);
    serde_json::from_value(json!({"metadata": {"name": uid, "namespace": "web", "uid": uid}, "spec": spec}))
        .unwrap()
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn want(seconds: i64) -> TokenWant {
    TokenWant { audience: "vault".into(), seconds }
}

#[tokio::test(start_paused = true)]
async fn a_token_is_renewed_after_four_fifths_of_its_life_or_a_day() {
    let server = Server::new();
    let (tokens, pod) = (server.tokens(), pod("u", json!({})));
    let (hour, month) = (want(3600), want(30 * 24 * 3600));
    assert_eq!(tokens.get(&pod, &hour).await.unwrap(), "t1");
    sleep(secs(2860)).await;
    assert_eq!(tokens.get(&pod, &hour).await.unwrap(), "t1", "it is good for more than a fifth of its life");
    sleep(secs(21)).await;
    assert_eq!(tokens.get(&pod, &hour).await.unwrap(), "t2");
    assert_eq!(tokens.get(&pod, &hour).await.unwrap(), "t2");

    assert_eq!(tokens.get(&pod, &month).await.unwrap(), "t3");
    sleep(secs(24 * 3600 - 20)).await;
    assert_eq!(tokens.get(&pod, &month).await.unwrap(), "t3");
    sleep(secs(21)).await;
    assert_eq!(tokens.get(&pod, &month).await.unwrap(), "t4");
}

#[tokio::test(start_paused = true)]
async fn a_token_that_cannot_be_renewed_serves_until_its_end() {
    let server = Server::new();
    let (tokens, pod) = (server.tokens(), pod("u", json!({})));
    let hour = want(3600);
    assert_eq!(tokens.get(&pod, &hour).await.unwrap(), "t1");
    server.set_away(true);
    sleep(secs(3000)).await;
    assert_eq!(tokens.get(&pod, &hour).await.unwrap(), "t1");
    sleep(secs(601)).await;
    let gone = tokens.get(&pod, &hour).await.unwrap_err();
    assert!(gone.starts_with("failed to fetch token: "), "{gone}");
    server.set_away(false);
    assert_eq!(tokens.get(&pod, &hour).await.unwrap(), "t2");
}

#[tokio::test(start_paused = true)]
async fn tokens_go_with_their_pod_and_those_that_come_too_late_when_they_end() {
    let server = Server::new();
    let tokens = server.tokens();
    let (gone, here) = (pod("gone", json!({})), pod("here", json!({})));
    tokens.get(&gone, &want(3600)).await.unwrap();
    tokens.forget(&PodUid::from("gone"));
    assert_eq!(tokens.len(), 0);
    // A driver's set-up that was under way asked for one after that.
    tokens.get(&gone, &want(3600)).await.unwrap();
    sleep(secs(3601)).await;
    tokens.get(&here, &want(3600)).await.unwrap();
    assert_eq!(tokens.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn claims_and_tokens_are_asked_for_side_by_side() {
    let server = Server::new();
    let objects = server.objects();
    server.state.lock().unwrap().slow = secs(1);
    let (claims, tokens) = (["a", "b", "c"].map(String::from), [600, 700, 800].map(want));
    let wants = References { claims: claims.into(), tokens: tokens.into(), ..References::default() };
    let began = tokio::time::Instant::now();
    let references = objects.supply(&pod("u", json!({})), &wants).await;
    assert!(began.elapsed() < secs(2), "{:?}", began.elapsed());
    assert_eq!((references.claims.len(), references.tokens.len()), (3, 3));
    assert!(references.tokens.values().all(Result::is_ok), "{:?}", references.tokens);
}

#[tokio::test(start_paused = true)]
async fn what_is_immutable_is_read_and_not_watched() {
    let server = Server::new();
    let maps = "/api/v1/namespaces/web/configmaps";
    let secrets = "/api/v1/namespaces/web/secrets";
    server.put(maps, json!({"metadata": {"name": "fixed"}, "immutable": true, "data": {"a": "1"}}));
    server.put(maps, json!({"metadata": {"name": "loose"}, "data": {"a": "2"}}));
    server.put(secrets, json!({"metadata": {"name": "sealed"}, "immutable": true, "data": {"a": "MQ=="}}));
    let objects = server.objects();
    let volumes = json!([
        {"name": "a", "configMap": {"name": "fixed"}},
        {"name": "b", "configMap": {"name": "loose"}},
        {"name": "c", "secret": {"secretName": "sealed"}},
    ]);
    let pod = pod("u", json!({"volumes": volumes}));
    objects.follow(&pod);
    let references = objects.supply(&pod, &References::of_pod(&pod)).await;
    assert!(references.config_maps.values().all(|s| matches!(s, Referenced::Found(_))), "{references:?}");
    assert!(matches!(references.secrets["sealed"], Referenced::Found(_)));
    sleep(secs(10)).await;
    assert_eq!(server.watches(), 1, "of the one that can change");

    // It is there for as long as the Pod is, also when nobody can be asked.
    server.set_away(true);
    let references = objects.supply(&pod, &References::of_pod(&pod)).await;
    assert!(matches!(references.config_maps["fixed"], Referenced::Found(_)));
    objects.forget(&PodUid::from("u"));
    sleep(secs(10)).await;
    assert_eq!(server.watches(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_class_is_known_while_the_server_is_away() {
    let server = Server::new();
    let classes = "/apis/node.k8s.io/v1/runtimeclasses";
    server.put(classes, json!({"metadata": {"name": "vm"}, "handler": "kata"}));
    let objects = server.objects();
    sleep(secs(10)).await;
    assert_eq!(server.watches(), 0, "nobody has asked for one");
    server.set_away(true);
    let early = objects.runtime_handler("vm").await.unwrap_err();
    assert_eq!(early, "RuntimeClasses have not yet been read");
    server.set_away(false);
    sleep(secs(60)).await;
    assert_eq!(objects.runtime_handler("vm").await.unwrap(), "kata");
    server.set_away(true);
    sleep(secs(3600)).await;
    assert_eq!(objects.runtime_handler("vm").await.unwrap(), "kata");
    assert_eq!(objects.runtime_handler("other").await.unwrap_err(), "RuntimeClass \"other\" not found");
    assert_eq!(objects.runtime_handler("").await.unwrap(), "");
}

#[tokio::test(start_paused = true)]
async fn pull_secrets_are_read_by_their_type() {
    use base64::Engine;
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let server = Server::new();
    let login = r#"{"registry.test": {"username": "ann", "password": "s3cret"}}"#;
    let secret = |name: &str, kind: &str, key: &str, text: &str| {
        let metadata = json!({"name": name, "namespace": "web", "uid": format!("uid-{name}")});
        json!({"metadata": metadata, "type": kind, "data": {key: encode(text)}})
    };
    let (new, old) = ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg");
    let all = [
        secret("new", new, ".dockerconfigjson", &format!(r#"{{"auths": {login}}}"#)),
        secret("old", old, ".dockercfg", login),
        secret("broken", new, ".dockerconfigjson", "{"),
        secret("opaque", "Opaque", ".dockerconfigjson", "{}"),
    ];
    all.into_iter().for_each(|s| server.put("/api/v1/namespaces/web/secrets", s));
    let objects = server.objects();
    let names = ["new", "old", "broken", "opaque", "absent"].map(|name| json!({"name": name}));
    let pod = pod("u", json!({"imagePullSecrets": names}));
    objects.follow(&pod);
    let (found, missing) = pull_secrets(&pod, &objects.supply(&pod, &References::of_pod(&pod)).await);
    let read =
        found.iter().map(|s| (s.name.as_str(), s.uid.as_str(), s.logins.as_ref().ok().map(BTreeMap::len)));
    let read: Vec<_> = read.collect();
    assert_eq!(
        read,
        [("new", "uid-new", Some(1)), ("old", "uid-old", Some(1)), ("broken", "uid-broken", None)]
    );
    assert_eq!(missing, ["absent"]);
}

#[tokio::test(start_paused = true)]
async fn a_service_account_is_read_anew_and_its_token_is_bound_to_the_pod() {
    let server = Server::new();
    let account = |uid: &str| json!({"metadata": {"name": "robot", "namespace": "web", "uid": uid, "annotations": {"a": "1"}}});
    let accounts = "/api/v1/namespaces/web/serviceaccounts";
    server.put(accounts, account("u1"));
    let objects = server.objects();
    let pod = pod("p", json!({"serviceAccountName": "robot"}));
    let found = objects.account(&pod).await.unwrap();
    assert_eq!((found.uid.as_str(), found.annotations["a"].as_str()), ("u1", "1"));
    assert_eq!(objects.token(&pod, "u1", "registry").await.unwrap(), "t1");
    let asked = server.state.lock().unwrap().asked.clone();
    assert_eq!(asked["metadata"]["uid"], "u1");
    assert_eq!(asked["spec"]["audiences"], json!(["registry"]));
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "p"});
    assert_eq!(asked["spec"]["boundObjectRef"], bound);
    assert_eq!(objects.token(&pod, "u1", "registry").await.unwrap(), "t1");

    // Made anew under the same name, it is another account: nothing of the first one counts.
    server.state.lock().unwrap().objects.clear();
    server.put(accounts, account("u2"));
    assert_eq!(objects.account(&pod).await.unwrap().uid, "u2");
    assert_eq!(objects.token(&pod, "u2", "registry").await.unwrap(), "t2");
}
