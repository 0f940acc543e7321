//! metrics.k8s.io: what nodes and Pods use, from what their kubelets tell.
//!
//! Nobody is asked before somebody wants to know. The first question costs two looks a second apart; whoever goes on asking,
//! as autoscalers do, has one look every fifteen seconds for everybody.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use apiserver_core::api_status::ApiStatus;
use apiserver_core::meta;
use apiserver_core::node_metrics::{Look, Looks, of_node, of_pod};
use apiserver_core::options::{ListOptions, WriteOptions};
use base::metrics::{Counter, Family};
use base::time::Wall;
use futures_util::StreamExt;
use futures_util::stream;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::App;
use super::answer::{self, Answer};
use super::streams::kubelet_of;
use super::verbs::Serving;
use crate::objects::{Stored, places};

/// How long figures are good for.
const RESOLUTION: Duration = Duration::from_secs(15);
/// A look that is older says nothing about now: two new ones are needed.
const STALE: Duration = Duration::from_secs(60);
/// Between two looks that somebody waits for.
const APART: Duration = Duration::from_secs(1);
/// A kubelet that takes longer is told of as if it were away.
const TIMEOUT: Duration = Duration::from_secs(5);
const AT_ONCE: usize = 16;
/// Bytes that a kubelet may say.
const PAGE_MAX: usize = 16 << 20;

/// What is known of the nodes, for as long as anybody asks.
#[derive(Debug)]
pub struct NodeMetrics {
    known: Mutex<BTreeMap<String, Known>>,
    looks: Counter<1>,
}

#[derive(Clone, Debug)]
struct Known {
    /// When it was last asked, answer or not.
    asked: Instant,
    looks: Option<Arc<Looks>>,
}

// === impl NodeMetrics ===

impl Default for NodeMetrics {
    fn default() -> NodeMetrics {
        let help = "Looks at kubelets for metrics.k8s.io, by how they ended.";
        NodeMetrics {
            known: Mutex::default(),
            looks: Counter::new("longshore_node_metrics_looks_total", help, ["result"]),
        }
    }
}

impl NodeMetrics {
    pub(crate) fn family(&self) -> &dyn Family {
        &self.looks
    }

    /// What is known of each of these nodes now. Whoever asks meanwhile waits, and finds it known.
    async fn of(&self, app: &App, nodes: &[Stored]) -> BTreeMap<String, Arc<Looks>> {
        let mut known = self.known.lock().await;
        let names: Vec<&str> = nodes.iter().map(|n| meta::name(&n.object)).collect();
        known.retain(|name, _| names.contains(&name.as_str()));
        self.look(app, nodes, &mut known, |k| k.is_none_or(|k| k.asked.elapsed() >= RESOLUTION)).await;
        let single = |k: &Known| k.looks.as_ref().is_some_and(|looks| !looks.are_two());
        if known.values().any(single) {
            tokio::time::sleep(APART).await;
            self.look(app, nodes, &mut known, |k| k.is_some_and(single)).await;
        }
        known.iter().filter_map(|(name, k)| Some((name.clone(), k.looks.clone()?))).collect()
    }

    /// Asks the kubelets of those nodes.
    async fn look(
        &self,
        app: &App,
        nodes: &[Stored],
        known: &mut BTreeMap<String, Known>,
        is_due: impl Fn(Option<&Known>) -> bool,
    ) {
        let due = nodes.iter().filter(|n| is_due(known.get(meta::name(&n.object))));
        let asks: Vec<_> = due.map(|node| ask(app, node)).collect();
        let answers: Vec<_> = stream::iter(asks).buffer_unordered(AT_ONCE).collect().await;
        for (name, answer) in answers {
            let before = known.remove(&name).filter(|k| k.asked.elapsed() < STALE).and_then(|k| k.looks);
            let looks = match answer {
                Ok(look) => {
                    self.looks.inc(["ok"]);
                    let mut looks = before.map_or_else(|| Looks::begin(look.clone()), |l| l.as_ref().clone());
                    if looks.last() != &look {
                        looks.note(look);
                    }
                    Some(Arc::new(looks))
                }
                Err(error) => {
                    self.looks.inc(["error"]);
                    tracing::warn!(node = name, error = %error.message, "the kubelet did not tell what is in use");
                    None
                }
            };
            known.insert(name, Known { asked: Instant::now(), looks });
        }
    }
}

/// The node's name, and what its kubelet told.
async fn ask(app: &App, node: &Stored) -> (String, Result<Look, ApiStatus>) {
    (meta::name(&node.object).to_owned(), look_at(app, &node.object).await)
}

async fn look_at(app: &App, node: &Value) -> Result<Look, ApiStatus> {
    let target = kubelet_of(node, "/metrics/resource".to_owned())?;
    let page = timeout(TIMEOUT, app.connector.fetch(&target, PAGE_MAX)).await;
    let page = page.map_err(|_| ApiStatus::unavailable("no answer in time"))??;
    Ok(Look::read(&String::from_utf8_lossy(&page), app.registry.now()))
}

impl Serving<'_> {
    pub(super) async fn node_metrics(&self) -> Result<Answer, ApiStatus> {
        // Before anything is done: what cannot be answered is not looked for.
        let (accepted, view) = self.view()?;
        let call = self.call(WriteOptions::default());
        let (namespace, name) = (call.namespace(), call.name());
        let now = self.registry.now();
        if name.is_empty() {
            let options = self.listing()?;
            let found = self.told(namespace, options, now).await?;
            let list = view.list(&self.kind, &found, now);
            return Ok(answer::document(200, &list, accepted.format));
        }
        let objects = &self.app.objects;
        let source = match self.is_of_nodes() {
            true => objects.find(places::NODES, "", name).await?,
            false => objects.find(places::PODS, namespace, name).await?,
        };
        let told = match source {
            Some(source) => self.tell(vec![source], now).await?.pop(),
            None => None,
        };
        let told = told.ok_or_else(|| ApiStatus::not_found(&self.kind, name))?;
        Ok(answer::document(200, &view.object(&self.kind, &told, now, true), accepted.format))
    }

    fn is_of_nodes(&self) -> bool {
        self.kind.kind == "NodeMetrics"
    }

    async fn told(&self, namespace: &str, options: &ListOptions, now: Wall) -> Result<Vec<Value>, ApiStatus> {
        // Refuses what cannot be selected by.
        self.selection(options)?;
        let objects = &self.app.objects;
        let mut sources = match self.is_of_nodes() {
            true => objects.list(places::NODES, "").await?,
            false => objects.list(places::PODS, namespace).await?,
        };
        sources.retain(|source| is_selected(options, &source.object));
        self.tell(sources, now).await
    }

    /// The objects of those whose figures are known.
    async fn tell(&self, sources: Vec<Stored>, now: Wall) -> Result<Vec<Value>, ApiStatus> {
        if sources.is_empty() {
            return Ok(Vec::new());
        }
        let nodes = self.app.objects.list(places::NODES, "").await?;
        let known = self.app.node_metrics.of(self.app, &nodes).await;
        let tell = |source: &Stored| {
            let object = &*source.object;
            if self.is_of_nodes() {
                return Some(of_node(object, known.get(meta::name(object))?.node()?, now));
            }
            let node = object["spec"]["nodeName"].as_str()?;
            let used = known.get(node)?.pod(meta::namespace(object), meta::name(object))?;
            Some(of_pod(object, &used, now))
        };
        Ok(sources.iter().filter_map(tell).collect())
    }
}

fn is_selected(options: &ListOptions, object: &Value) -> bool {
    let label = |key: &str| object["metadata"]["labels"][key].as_str();
    options.labels.requirements().iter().all(|r| r.holds(label(&r.key)))
        && options.fields.matches(|field| match field {
            "metadata.name" => meta::name(object).to_owned(),
            _ => meta::namespace(object).to_owned(),
        })
}
