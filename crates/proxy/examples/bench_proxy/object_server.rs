//! An API server that only lists and watches, and does not care who asks.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use fixture::Netns;
use futures_util::stream::{self, StreamExt};
use serde_json::json;
use tokio::sync::broadcast;

pub(crate) const SERVICES: &str = "/api/v1/services";
pub(crate) const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
pub(crate) const NODES: &str = "/api/v1/nodes";

/// Objects of a kind, as JSON without their kind.
pub(crate) struct Objects {
    pub(crate) version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) items: Vec<String>,
}

#[derive(Clone)]
struct Shared {
    objects: Arc<BTreeMap<&'static str, Objects>>,
    news: broadcast::Sender<(&'static str, Bytes)>,
}

pub(crate) struct ObjectServer {
    pub(crate) address: SocketAddr,
    shared: Shared,
}

impl ObjectServer {
    /// Serves inside the namespace until the process ends.
    pub(crate) fn start(ns: &Netns, objects: BTreeMap<&'static str, Objects>) -> Self {
        let listener = ns.within(|| std::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Shared { objects: Arc::new(objects), news: broadcast::channel(64).0 };
        let router = Router::new().fallback(answer).with_state(shared.clone());
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                axum::serve(listener, router).await
            })
        });
        Self { address, shared }
    }

    /// Tells all watchers of a changed object.
    pub(crate) fn tell(&self, path: &'static str, object: &str) {
        let line = self.shared.objects[path].event("MODIFIED", object);
        let _ = self.shared.news.send((path, line.into()));
    }
}

impl Objects {
    fn typed(&self, object: &str) -> String {
        let rest = object.strip_prefix('{').unwrap();
        format!(r#"{{"apiVersion":"{}","kind":"{}",{rest}"#, self.version, self.kind)
    }

    fn event(&self, what: &str, object: &str) -> String {
        format!("{{\"type\":\"{what}\",\"object\":{}}}\n", self.typed(object))
    }

    fn list(&self) -> String {
        let (version, kind) = (self.version, self.kind);
        let items = self.items.join(",");
        format!(
            r#"{{"apiVersion":"{version}","kind":"{kind}List","metadata":{{"resourceVersion":"1"}},"items":[{items}]}}"#
        )
    }

    /// The sign that all there was has been told.
    fn bookmark(&self) -> String {
        let metadata = json!({"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}});
        let object = json!({"apiVersion": self.version, "kind": self.kind, "metadata": metadata});
        format!("{}\n", json!({"type": "BOOKMARK", "object": object}))
    }
}

async fn answer(State(shared): State<Shared>, method: http::Method, uri: http::Uri) -> Response {
    let (path, query) = (uri.path().to_owned(), uri.query().unwrap_or_default().to_owned());
    let json = [(http::header::CONTENT_TYPE, "application/json")];
    let Some((path, objects)) = shared.objects.get_key_value(path.as_str()) else {
        // Events are taken; what else there may be is not there.
        let code = if method == http::Method::POST { 201 } else { 404 };
        return (http::StatusCode::from_u16(code).unwrap(), json, "{}").into_response();
    };
    if !query.contains("watch=") || query.contains("watch=false") || query.contains("watch=0") {
        return (json, objects.list()).into_response();
    }
    let news = shared.news.subscribe();
    let mut first: Vec<Bytes> = Vec::new();
    if query.contains("sendInitialEvents=true") {
        first.extend(objects.items.iter().map(|item| objects.event("ADDED", item).into()));
        first.push(objects.bookmark().into());
    }
    let path = *path;
    let later = stream::unfold(news, move |mut news| async move {
        loop {
            match news.recv().await {
                Ok((to, line)) if to == path => return Some((line, news)),
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    });
    let lines = stream::iter(first).chain(later).map(Ok::<_, io::Error>);
    (json, Body::from_stream(lines)).into_response()
}
