//! Manifests in a directory are applied, and what is no more in it is deleted.
//!
//! What each file brought is remembered in a ConfigMap: it is there after a restart, and travels with a backup. It names an
//! object before that is made and until it is gone, so that nothing is forgotten half way.

mod cluster;
mod directory;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::events::About;
use base::rng::Rng;
use client::{Client, ClientError};
use serde_json::Value;
use supervise::Supervisor;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::core::manifest::{OWNER, RECORD, Record, check_name, parse, stale, union};
use crate::events::{Grade, Recorder};
use cluster::Cluster;
use directory::{Content, Directory};

/// Between attempts at what did not work; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A file that is written in pieces is read when it is whole.
const TOGETHER: Duration = Duration::from_millis(200);
/// The directory is looked at this often even where nobody tells of changes.
const LOOK: Duration = Duration::from_secs(60);

struct Deployer {
    cluster: Cluster,
    directory: Directory,
    recorder: Recorder,
    /// The text of files that are applied already.
    applied: BTreeMap<String, String>,
    /// What was said of which file: said once.
    told: BTreeMap<String, String>,
}

pub(crate) fn start((client, _): (Client, Rng), directory: PathBuf, tasks: &Supervisor) {
    let all = Deployer {
        cluster: Cluster::new(client.clone()),
        directory: Directory::new(directory),
        recorder: Recorder::new(client, OWNER),
        applied: BTreeMap::new(),
        told: BTreeMap::new(),
    };
    tasks.lasting(
        "manifest deployer",
        Arc::new(Mutex::new(all)),
        |all, token: CancellationToken| async move {
            let mut all = all.lock().await;
            token.run_until_cancelled(all.keep()).await.unwrap_or(())
        },
    );
}

// === impl Deployer ===

impl Deployer {
    async fn keep(&mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let is_whole = self.round().await;
            let wait = if is_whole { LOOK } else { pause };
            pause = if is_whole { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
            if tokio::time::timeout(wait, self.directory.changed()).await.is_ok() {
                pause = FIRST_PAUSE;
                tokio::time::sleep(TOGETHER).await;
            }
        }
    }

    /// Brings the cluster to what the directory says; true when nothing is left to do.
    async fn round(&mut self) -> bool {
        let files = match self.directory.read().await {
            Ok(files) => files,
            Err(error) => {
                // A directory that cannot be read says nothing, and nothing is deleted for it.
                self.complain("", error.to_string()).await;
                return false;
            }
        };
        if files.len() == self.applied.len()
            && files.iter().all(|(name, content)| {
                self.applied.get(name).is_some_and(|text| content.as_ref() == Ok(text))
            })
        {
            return true;
        }
        match self.bring(files).await {
            Ok(is_whole) => is_whole,
            Err(error) => {
                tracing::warn!(%error, "manifests are not applied; trying again");
                false
            }
        }
    }

    async fn bring(&mut self, files: BTreeMap<String, Content>) -> Result<bool, ClientError> {
        let before = self.cluster.record().await?;
        let (mut wanted, mut objects, mut is_whole) = (Record::new(), BTreeMap::new(), true);
        for (name, content) in files {
            let parsed = check_name(&name).and(content).and_then(|text| Ok((parse(&text)?, text)));
            let read = match parsed {
                Ok((found, text)) => self.cluster.name_all(&found).await.map(|named| (text, found, named)),
                Err(why) => Err(why),
            };
            match read {
                Ok((text, found, named)) => {
                    wanted.insert(name.clone(), named);
                    objects.insert(name, (text, found));
                }
                Err(why) => {
                    is_whole = false;
                    // What it brought stays until it can be read again.
                    if let Some(known) = before.get(&name) {
                        wanted.insert(name.clone(), known.clone());
                    }
                    self.complain(&name, why).await;
                }
            }
        }
        self.applied.retain(|name, _| objects.contains_key(name));
        let both = union(&before, &wanted);
        if both != before {
            self.cluster.remember(&both).await?;
        }
        for (name, (text, found)) in objects {
            if self.applied.get(&name) == Some(&text) {
                continue;
            }
            if !self.apply(&name, &found).await {
                is_whole = false;
                continue;
            }
            // A kind that the file itself defines is known by now, and where its objects are.
            if let Ok(named) = self.cluster.name_all(&found).await {
                wanted.insert(name.clone(), named);
            }
            self.applied.insert(name, text);
        }
        for named in stale(&both, &wanted) {
            self.cluster.delete(&named).await?;
            tracing::info!(
                kind = named.kind,
                namespace = named.namespace,
                name = named.name,
                "deleted: no manifest has it"
            );
        }
        if wanted != both {
            self.cluster.remember(&wanted).await?;
        }
        Ok(is_whole)
    }

    /// Whether all of the file is there now.
    async fn apply(&mut self, file: &str, objects: &[Value]) -> bool {
        for object in objects {
            if let Err(error) = self.cluster.apply(object).await {
                let what = format!("{} {}", text(object, "/kind"), text(object, "/metadata/name"));
                self.complain(file, format!("{what}: {error}")).await;
                return false;
            }
        }
        tracing::info!(file, objects = objects.len(), "applied");
        self.told.remove(file);
        true
    }

    async fn complain(&mut self, file: &str, why: String) {
        if self.told.get(file) == Some(&why) {
            return;
        }
        let path = self.directory.path().join(file);
        let about = About {
            kind: "ConfigMap",
            namespace: "kube-system".to_owned(),
            name: RECORD.to_owned(),
            uid: String::new(),
            resource_version: String::new(),
        };
        let message = format!("{}: {why}", path.display());
        self.recorder.tell(about, Grade::Warning, "ApplyFailed", message).await;
        self.told.insert(file.to_owned(), why);
    }
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
