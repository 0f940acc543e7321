//! Pods given by command. Each is kept in [files](records) of its own, written durably before the command is
//! answered, so what was accepted survives a crash.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use api::json::ToJson;
use api::pod::static_pod::{Origin, prepare};
use api::pod::{ManifestError, decode_pod};
use base::class::{Class, Classify};
use base::time::Wall;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

use super::{Context, SourceName, SourceSender, SourceUpdate, names};

mod records;

use records::{Found, Record};

/// Pods that may be held at once.
const PODS_MAX: usize = 1000;
/// Sets on their way to the dispatcher.
const SETS: usize = 64;

/// The Pods given by command, and the way to give more.
#[derive(Debug)]
pub struct LocalPods {
    context: Context,
    directory: PathBuf,
    /// Held across the disk write: commands are handled one after the other.
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    pods: BTreeMap<(String, String), Stored>,
    sets: mpsc::Sender<Vec<Arc<Pod>>>,
}

#[derive(Clone, Debug)]
struct Stored {
    record: Record,
    pod: Arc<Pod>,
}

/// What became of a submitted Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Created,
    /// Its text changed: the old Pod ends, a new one takes its name.
    Configured,
    Unchanged,
}

#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error("{act} {}: {error}", .path.display())]
    Disk { act: &'static str, path: PathBuf, error: io::Error },
    #[error("there are already {PODS_MAX} Pods")]
    Full,
    #[error("the kubelet is shutting down")]
    Closing,
}

/// The sets the source is to emit; given to [`run`].
#[derive(Clone, Debug)]
pub struct LocalSets(Arc<Mutex<Sets>>);

/// Locked by the task that runs: a new one goes on where the last one panicked.
#[derive(Debug)]
struct Sets {
    queue: mpsc::Receiver<Vec<Arc<Pod>>>,
    last: Option<Vec<Arc<Pod>>>,
}

impl Classify for LocalError {
    fn class(&self) -> Class {
        match self {
            LocalError::Manifest(_) | LocalError::Full => Class::Reject,
            LocalError::Disk { .. } => Class::Retry,
            LocalError::Closing => Class::Wait,
        }
    }
}

/// Emits the sets until the token is cancelled or nobody listens.
pub async fn run(
    sets: LocalSets,
    context: Context,
    tx: mpsc::Sender<SourceUpdate>,
    token: CancellationToken,
) {
    let mut sender = SourceSender::new(SourceName::Local, &context, tx, &token);
    let mut sets = sets.0.lock().await;
    loop {
        if let Some(last) = sets.last.clone()
            && !sender.emit(last).await
        {
            return;
        }
        let next = tokio::select! {
            () = token.cancelled() => return,
            next = sets.queue.recv() => next,
        };
        let Some(next) = next else { return };
        sets.last = Some(next);
    }
}

// === impl LocalPods ===

impl LocalPods {
    /// Reads back what is on disk. A record that is broken is set aside and its copy taken. Where that is no better, or
    /// the Pod is not accepted any more, it is reported; it takes no other Pod with it.
    pub async fn open(context: Context, directory: PathBuf) -> Result<(Arc<Self>, LocalSets), LocalError> {
        let read = {
            let directory = directory.clone();
            move || records::read_all(&directory)
        };
        let found = blocking(read).await.map_err(|error| LocalError::Disk {
            act: "read",
            path: directory.clone(),
            error,
        })?;
        let mut pods = BTreeMap::new();
        for Found { path, record, mended } in found {
            let place = path.display().to_string();
            if let Some(error) = mended {
                tracing::error!(
                    path = place,
                    error,
                    "took the copy of a broken record of a Pod given by command"
                );
            }
            match record.and_then(|record| revive(&context, record)) {
                Ok(stored) => {
                    let (namespace, name) = names(&stored.pod);
                    pods.insert((namespace.to_owned(), name.to_owned()), stored);
                }
                Err(error) => {
                    tracing::error!(path = place, error, "could not read back a Pod given by command");
                    context.problems.set(SourceName::Local, &place, &error);
                }
            }
        }
        let (sender, receiver) = mpsc::channel(SETS);
        let held = Held { pods, sets: sender };
        // An empty channel has room.
        let _ = held.sets.try_send(held.set());
        let local = Self { context, directory, held: Mutex::new(held) };
        let sets = Sets { queue: receiver, last: None };
        Ok((Arc::new(local), LocalSets(Arc::new(Mutex::new(sets)))))
    }

    /// Creates the Pod, or replaces the one of the same name if the manifest differs.
    pub async fn apply(&self, mut manifest: Pod) -> Result<(Arc<Pod>, Outcome), LocalError> {
        // The identity is ours to give.
        manifest.metadata.uid = None;
        let now = self.context.clock.now().wall;
        let pod = prepare(manifest.clone(), Origin::Local(now), &self.context.node, now)?;
        let key = { (names(&pod).0.to_owned(), names(&pod).1.to_owned()) };
        let manifest = manifest.to_value();
        let mut held = self.held.lock().await;
        let outcome = match held.pods.get(&key) {
            Some(old) if old.record.manifest == manifest => return Ok((old.pod.clone(), Outcome::Unchanged)),
            Some(_) => Outcome::Configured,
            None if held.pods.len() >= PODS_MAX => return Err(LocalError::Full),
            None => Outcome::Created,
        };
        let record = Record { submitted_at_nanos: now.0, manifest };
        let path = self.path(&key);
        let (written, kept) = (path.clone(), record.clone());
        blocking(move || records::write(&written, &kept)).await.map_err(|error| LocalError::Disk {
            act: "write",
            path,
            error,
        })?;
        let pod = Arc::new(pod);
        held.pods.insert(key, Stored { record, pod: pod.clone() });
        held.emit(held.set()).await?;
        Ok((pod, outcome))
    }

    /// Ends a Pod, with `grace` seconds instead of its own grace period. `None` if there is none.
    pub async fn delete(
        &self,
        namespace: &str,
        name: &str,
        grace: Option<i64>,
    ) -> Result<Option<Arc<Pod>>, LocalError> {
        let mut held = self.held.lock().await;
        let key = (namespace.to_owned(), name.to_owned());
        let Some(stored) = held.pods.get(&key).cloned() else { return Ok(None) };
        let path = self.path(&key);
        let gone = path.clone();
        blocking(move || records::remove(&gone)).await.map_err(|error| LocalError::Disk {
            act: "remove",
            path,
            error,
        })?;
        // First the order with its grace, then the absence: a Pod that is merely absent would end
        // with its own grace period.
        let mut deleted = (*stored.pod).clone();
        let now = self.context.clock.now().wall;
        let own = deleted.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
        deleted.metadata.deletion_timestamp =
            jiff::Timestamp::from_nanosecond(i128::from(now.0)).ok().map(Time);
        deleted.metadata.deletion_grace_period_seconds = grace.or(own);
        let deleted = Arc::new(deleted);
        held.pods.insert(key.clone(), Stored { pod: deleted.clone(), ..stored });
        let marked = held.set();
        held.pods.remove(&key);
        held.emit(marked).await?;
        held.emit(held.set()).await?;
        Ok(Some(deleted))
    }

    /// Gives a Pod that is already on its way out less time, never more. `None` if its name was taken by
    /// another meanwhile.
    pub async fn hasten(&self, mut ending: Pod, grace: i64) -> Result<Option<Arc<Pod>>, LocalError> {
        let held = self.held.lock().await;
        let (namespace, name) = names(&ending);
        if held.pods.contains_key(&(namespace.to_owned(), name.to_owned())) {
            return Ok(None);
        }
        let left = &mut ending.metadata.deletion_grace_period_seconds;
        *left = Some(left.map_or(grace, |left| left.min(grace)));
        let ending = Arc::new(ending);
        let mut marked = held.set();
        marked.push(ending.clone());
        held.emit(marked).await?;
        held.emit(held.set()).await?;
        Ok(Some(ending))
    }

    /// The Pod as it was given.
    pub async fn get(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let held = self.held.lock().await;
        held.pods.get(&(namespace.to_owned(), name.to_owned())).map(|s| s.pod.clone())
    }

    pub async fn list(&self) -> Vec<Arc<Pod>> {
        self.held.lock().await.set()
    }

    fn path(&self, (namespace, name): &(String, String)) -> PathBuf {
        let mut file = format!("{namespace}_{name}");
        if file.len() > 200 {
            let hash = base::fnv::fnv1a128(file.as_bytes());
            // Names are ASCII by now, so any cut is a character boundary.
            file.truncate(160);
            file.push_str(&format!("_{hash:032x}"));
        }
        self.directory.join(file + ".json")
    }
}

// === impl Held ===

impl Held {
    fn set(&self) -> Vec<Arc<Pod>> {
        self.pods.values().map(|s| s.pod.clone()).collect()
    }

    async fn emit(&self, set: Vec<Arc<Pod>>) -> Result<(), LocalError> {
        self.sets.send(set).await.map_err(|_| LocalError::Closing)
    }
}

fn revive(context: &Context, record: Record) -> Result<Stored, String> {
    let manifest = decode_pod(record.manifest.clone(), &mut |_| {}).map_err(|e| e.to_string())?;
    let at = Wall(record.submitted_at_nanos);
    let pod = prepare(manifest, Origin::Local(at), &context.node, context.clock.now().wall);
    Ok(Stored { record, pod: Arc::new(pod.map_err(|e| e.to_string())?) })
}

async fn blocking<T: Send + 'static>(f: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(f).await.unwrap_or_else(|e| Err(io::Error::other(e)))
}

#[cfg(test)]
mod tests;
