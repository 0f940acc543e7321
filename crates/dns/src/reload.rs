//! The Corefile and the files it names, read again when they change. One that is wrong is told and the old one kept.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base::rng::Rng;
use client::{Client, Piece, Resource, Watcher};
use dns_core::Rtype;
use dns_core::corefile::{self, Corefile};
use dns_core::name::{self, Name};
use dns_core::objects::ConfigMap;
use supervise::Supervisor;
use tokio::sync::watch;

use crate::forward::{Means, question};
use crate::live::{self, Files, Live};
use crate::resolver::Resolver;
use crate::settings::{Error, Settings, Source};

/// Between two looks at files.
const PERIOD: Duration = Duration::from_secs(30);
/// Where a ConfigMap's keys are files in CoreDNS's Pod.
const MOUNTED: &str = "/etc/coredns/";
const KEY: &str = "Corefile";
/// For a question that went round to come back, CoreDNS's figure.
const STRAGGLERS: Duration = Duration::from_secs(30);

type News = watch::Sender<Option<Arc<Live>>>;
/// A ConfigMap's keys; none as long as nobody knows whether there is one.
type Keys = Option<BTreeMap<String, String>>;

/// Makes what is live of texts.
#[derive(Clone, Debug)]
pub(crate) struct Loader {
    source: Source,
    cluster_domain: String,
    port: u16,
    own: Vec<SocketAddr>,
    resolver: Arc<Resolver>,
}

// === impl Loader ===

impl Loader {
    pub(crate) fn new(settings: &Settings, own: Vec<SocketAddr>, resolver: Arc<Resolver>) -> Loader {
        let (source, cluster_domain) = (settings.corefile.clone(), settings.cluster_domain.clone());
        Loader { source, cluster_domain, port: settings.port, own, resolver }
    }

    /// Follows the source from now on. A file is read at once.
    pub(crate) async fn start(
        self,
        client: &Client,
        news: News,
        tasks: &Supervisor,
        rng: &mut Rng,
    ) -> Result<(), Error> {
        if let Source::File(path) = &self.source {
            let fail = |cause| Error::Read { path: path.clone(), cause };
            let text = tokio::fs::read_to_string(path).await.map_err(fail)?;
            corefile::read(&text).map_err(|cause| Error::Corefile { path: path.clone(), cause })?;
        }
        let (keys, heard) = watch::channel(None);
        if let Source::ConfigMap { namespace, name } = &self.source {
            let mut resource = Resource::new(format!("/api/v1/namespaces/{namespace}/configmaps"));
            resource.field_selector = format!("metadata.name={name}");
            let (client, rng) = (client.clone(), rng.child());
            let (keys, name) = (Arc::new(keys), name.clone());
            tasks.restart("Corefile's ConfigMap", move || {
                let watcher = Watcher::new(client.clone(), resource.clone(), rng.clone());
                follow(watcher, name.clone(), keys.clone())
            });
        }
        let news = Arc::new(news);
        tasks.restart("Corefile", move || self.clone().run(heard.clone(), news.clone()));
        Ok(())
    }

    async fn run(self, mut keys: watch::Receiver<Keys>, news: Arc<News>) {
        let mut known = None;
        let mut follows = true;
        loop {
            let now = keys.borrow_and_update().clone();
            let texts = self.read(&now).await;
            if texts.is_some() && texts != known {
                if let Some((file, files)) = &texts {
                    self.take(file, files, &news);
                }
                known = texts;
            }
            tokio::select! {
                changed = keys.changed(), if follows => follows = changed.is_ok(),
                () = tokio::time::sleep(PERIOD) => {}
            }
        }
    }

    /// The Corefile, and every file it names.
    async fn read(&self, keys: &Keys) -> Option<(Result<Corefile, corefile::Error>, Files)> {
        let text = match (&self.source, keys) {
            (Source::File(path), _) => tokio::fs::read_to_string(path).await.ok()?,
            (_, None) => return None,
            (_, Some(keys)) => match keys.get(KEY) {
                Some(text) => text.clone(),
                None => corefile::default_text(&self.cluster_domain),
            },
        };
        let file = corefile::read(&text);
        let mut files = Files::new();
        for path in file.iter().flat_map(live::files) {
            let mounted = path.strip_prefix(MOUNTED).and_then(|key| keys.as_ref()?.get(key));
            let text = match mounted {
                Some(text) => Some(text.clone()),
                None => read_file(&path).await,
            };
            files.extend(text.map(|text| (path, text)));
        }
        Some((file, files))
    }

    fn take(&self, file: &Result<Corefile, corefile::Error>, files: &Files, news: &News) {
        let file = match file {
            Ok(file) => file,
            Err(error) => {
                self.resolver.metrics.reload_failures.inc([]);
                // Without any, nothing would ever be answered.
                let is_first = news.borrow().is_none();
                tracing::error!(%error, is_first, "the Corefile is refused; the one before it stays");
                if !is_first {
                    return;
                }
                match &corefile::read(&corefile::default_text(&self.cluster_domain)) {
                    Ok(file) => return self.take_good(file, files, news),
                    Err(error) => return tracing::error!(%error, "--cluster-domain is no zone"),
                }
            }
        };
        self.take_good(file, files, news);
    }

    fn take_good(&self, file: &Corefile, files: &Files, news: &News) {
        if file.port != self.port {
            tracing::warn!(port = self.port, said = file.port, "the port is --port's, not the Corefile's");
        }
        let chance = &self.resolver.chance;
        let probe =
            name::parse(&format!("{}.{}.", chance.next(), chance.next())).unwrap_or_else(|_| Name::root());
        let live = Arc::new(Live::new(file.clone(), files, &self.own, probe));
        tracing::info!(servers = file.servers.len(), "Corefile taken");
        let (probed, resolver) = (live.clone(), self.resolver.clone());
        news.send_replace(Some(live));
        self.resolver.tasks.once("loop", async move { find_loop(&probed, &resolver).await });
    }
}

/// Sends a question that nobody else knows to every group of upstreams. If it comes back to us, they ask us. Later the name
/// means nothing any more.
async fn find_loop(live: &Live, resolver: &Resolver) {
    let query = question(live.probe.clone(), Rtype::HINFO);
    let (chance, metrics, tasks) = (&resolver.chance, &resolver.metrics, &resolver.tasks);
    for (_, part) in live.parts().filter(|(server, _)| server.finds_loops) {
        for group in part.groups.iter().filter(|group| !group.is_empty()) {
            let _ = group.ask(&query, Means { chance, metrics, tasks, over_tcp: false }).await;
        }
    }
    // Upstreams have heard the name, and whoever they tell it to could end all forwarding with it.
    tokio::time::sleep(STRAGGLERS).await;
    live.end_probe();
}

/// A file that is not there is empty, as CoreDNS has it.
async fn read_file(path: &str) -> Option<String> {
    let size = tokio::fs::metadata(path).await.ok()?.len();
    if size > corefile::SIZE as u64 {
        tracing::warn!(path, size, "too large for a file of hosts or name servers");
        return None;
    }
    tokio::fs::read_to_string(Path::new(path)).await.ok()
}

async fn follow(mut watcher: Watcher, name: String, keys: Arc<watch::Sender<Keys>>) {
    let mut listed = BTreeMap::new();
    loop {
        let (raw, is_listed) = match watcher.next_piece().await {
            Piece::Begin => {
                listed = BTreeMap::new();
                continue;
            }
            Piece::End => {
                keys.send_replace(Some(std::mem::take(&mut listed)));
                continue;
            }
            Piece::Bookmark => continue,
            Piece::Deleted(_) => {
                keys.send_replace(Some(BTreeMap::new()));
                continue;
            }
            Piece::Item(raw) => (raw, true),
            Piece::Applied(raw) => (raw, false),
        };
        let Ok(object) = serde_json::from_str::<ConfigMap>(raw.get()) else { continue };
        if object.metadata.name != name {
            continue;
        }
        let data = object.data.unwrap_or_default();
        match is_listed {
            true => listed = data,
            false => _ = keys.send_replace(Some(data)),
        }
    }
}
