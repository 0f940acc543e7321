//! What the runtime really does, Pod by Pod.
//!
//! Two halves. [`Observer::look`] asks the runtime about one Pod and publishes an [`Observed`] whose
//! revision was drawn *before* the first question, so an effect that ended earlier is always in it.
//! [`watch_runtime`] is the alarm clock: it follows the runtime's event stream (or relists every second
//! where there is none) and only says *which* Pods changed; each Pod's own task then looks. A Pod whose
//! inspection hangs therefore hurts nobody else, and an idle node asks nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::ids::{ContainerId, PodUid};
use base::time::Clock;
use cri::v1;
use futures_util::StreamExt;
use futures_util::future::try_join_all;
use kubelet_core::cri_config::metadata::{POD_UID, TERMINATION_PATH, TERMINATION_POLICY};
use kubelet_core::observed::{Container, ContainerState, FoundPod, Observed, Sandbox};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::ports::{PodFiles, Runtime};
use crate::runtime::from_cri;

/// Relist period where the runtime streams events: a safety net only.
const SAFETY_RELIST: Duration = Duration::from_secs(60);
/// One relist this long after an event: the counts of what runs follow, and so does an event that got lost.
const AFTERWARDS: Duration = Duration::from_secs(1);
/// Relist period where it does not.
const POLL_RELIST: Duration = Duration::from_secs(1);
/// Pause before the event stream is opened again after it broke.
const REOPEN: Duration = Duration::from_millis(500);

/// The shared half: who watches which Pod, and how to look.
pub struct Observer {
    runtime: Arc<dyn Runtime>,
    files: Arc<dyn PodFiles>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    revision: AtomicU64,
    /// A plain lock: held for map operations only, never across an await.
    pods: Mutex<HashMap<PodUid, watch::Sender<u64>>>,
    /// Woken when the runtime holds a Pod that nobody watches.
    pub strangers: Notify,
    /// When the last relist ended, on the monotonic clock; PLEG health.
    last_relist: Mutex<Option<base::time::Mono>>,
}

/// The cheap fingerprint a relist compares: every id of a Pod with its state.
type Fingerprint = BTreeMap<String, i32>;

// === impl Observer ===

impl Observer {
    #[must_use]
    pub fn new(
        runtime: Arc<dyn Runtime>,
        files: Arc<dyn PodFiles>,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            runtime,
            files,
            clock,
            metrics,
            revision: AtomicU64::new(1),
            pods: Mutex::default(),
            strangers: Notify::new(),
            last_relist: Mutex::new(None),
        }
    }

    /// Wakes (its number grows) when something of this Pod changed in the runtime.
    pub fn subscribe(&self, uid: &PodUid) -> watch::Receiver<u64> {
        self.lock().entry(uid.clone()).or_insert_with(|| watch::channel(0).0).subscribe()
    }

    pub fn forget(&self, uid: &PodUid) {
        self.lock().remove(uid);
    }

    /// How many Pods are watched now.
    #[must_use]
    pub fn watched(&self) -> usize {
        self.lock().len()
    }

    /// When the last relist ended.
    #[must_use]
    pub fn last_relist(&self) -> Option<base::time::Mono> {
        *self.last_relist.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the runtime about one Pod. `known` is the last observation: exits are final, so their
    /// status and termination message are carried over instead of being asked for again.
    pub async fn look(&self, uid: &PodUid, known: &Observed) -> cri::Result<Observed> {
        let revision = self.revision.fetch_add(1, Ordering::Relaxed);
        let label = || [(POD_UID.to_owned(), uid.to_string())].into_iter().collect();
        let (sandboxes, containers) = tokio::try_join!(
            self.runtime.list_pod_sandboxes(Some(v1::PodSandboxFilter {
                label_selector: label(),
                ..Default::default()
            })),
            self.runtime
                .list_containers(Some(v1::ContainerFilter { label_selector: label(), ..Default::default() })),
        )?;
        let (sandboxes, containers) = tokio::try_join!(
            try_join_all(sandboxes.iter().map(|s| self.look_at_sandbox(s, known))),
            try_join_all(containers.iter().map(|c| self.look_at_container(c, known))),
        )?;
        let mut observed = Observed {
            revision,
            sandboxes: sandboxes.into_iter().flatten().collect(),
            containers: containers.into_iter().flatten().collect(),
        };
        from_cri::newest_first(&mut observed);
        Ok(observed)
    }

    /// What was known, and the sandbox that was made since. Enough to start containers in it; the next
    /// plan still wants a whole look.
    pub async fn look_at_new_sandbox(&self, id: &str, known: &Observed) -> cri::Result<Observed> {
        let revision = self.revision.fetch_add(1, Ordering::Relaxed);
        let answer = self.runtime.pod_sandbox_status(id).await?;
        let mut observed = Observed { revision, ..known.clone() };
        observed.sandboxes.retain(|s| s.id.as_str() != id);
        observed.sandboxes.extend(answer.status.as_ref().map(from_cri::sandbox));
        from_cri::newest_first(&mut observed);
        Ok(observed)
    }

    /// The addresses of a sandbox never change: while it lives, the list says all that may be new.
    async fn look_at_sandbox(&self, s: &v1::PodSandbox, known: &Observed) -> cri::Result<Option<Sandbox>> {
        let ready = s.state == v1::PodSandboxState::SandboxReady as i32;
        let before = known.sandboxes.iter().find(|k| k.id.as_str() == s.id);
        if let Some(same) = before.filter(|k| ready && k.ready && !k.ips.is_empty()) {
            return Ok(Some(same.clone()));
        }
        match self.runtime.pod_sandbox_status(&s.id).await {
            Ok(answer) => Ok(answer.status.as_ref().map(from_cri::sandbox)),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(e),
        }
    }

    async fn look_at_container(&self, c: &v1::Container, known: &Observed) -> cri::Result<Option<Container>> {
        let id = ContainerId::from(c.id.as_str());
        if let Some(old) = known.container(&id).filter(|o| o.state == ContainerState::Exited) {
            return Ok(Some(old.clone()));
        }
        let answer = match self.runtime.container_status(&c.id).await {
            Ok(answer) => answer,
            Err(e) if e.is_not_found() => return Ok(None),
            Err(e) => return Err(e),
        };
        let Some(status) = answer.status else { return Ok(None) };
        let mut seen = from_cri::container(&status, &c.pod_sandbox_id);
        if seen.state == ContainerState::Exited {
            seen.termination_message = self.termination_message(&status, seen.exit_code).await;
        }
        Ok(Some(seen))
    }

    async fn termination_message(&self, status: &v1::ContainerStatus, exit_code: i32) -> String {
        let annotation = |key: &str| status.annotations.get(key).map_or("", String::as_str);
        let path = annotation(TERMINATION_PATH);
        let file = status.mounts.iter().find(|m| !path.is_empty() && m.container_path == path);
        let mut message = match file {
            Some(m) => self.files.termination_message(&m.host_path).await.unwrap_or_default(),
            None => String::new(),
        };
        let fall_back = annotation(TERMINATION_POLICY) == "FallbackToLogsOnError";
        if message.is_empty() && fall_back && exit_code != 0 {
            message = self.files.log_tail(&status.log_path).await.unwrap_or_default();
        }
        message
    }

    /// Everything kubelet-made in the runtime, grouped by Pod, without details.
    pub async fn survey(&self) -> cri::Result<Vec<FoundPod>> {
        let (sandboxes, containers) =
            tokio::try_join!(self.runtime.list_pod_sandboxes(None), self.runtime.list_containers(None))?;
        Ok(from_cri::survey(&sandboxes, &containers))
    }

    fn wake(&self, uid: &str) {
        match self.lock().get(uid) {
            Some(wake) => wake.send_modify(|n| *n += 1),
            None => self.strangers.notify_one(),
        }
    }

    fn wake_all(&self) {
        self.lock().values().for_each(|wake| wake.send_modify(|n| *n += 1));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<PodUid, watch::Sender<u64>>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn relist(&self, last: &mut HashMap<String, Fingerprint>) -> cri::Result<()> {
        let start = self.clock.now().mono;
        let (sandboxes, containers) =
            tokio::try_join!(self.runtime.list_pod_sandboxes(None), self.runtime.list_containers(None))?;
        let mut next: HashMap<String, Fingerprint> = HashMap::new();
        let mut note = |labels: &BTreeMap<String, String>, id: &str, state: i32| {
            if let Some(uid) = labels.get(POD_UID) {
                next.entry(uid.clone()).or_default().insert(id.to_owned(), state);
            }
        };
        sandboxes.iter().for_each(|s| note(&s.labels, &s.id, s.state));
        containers.iter().for_each(|c| note(&c.labels, &c.id, c.state));
        changed(last, &next).for_each(|uid| self.wake(uid));
        self.count(&sandboxes, &containers);
        *last = next;
        self.relisted(start);
        Ok(())
    }

    fn count(&self, sandboxes: &[v1::PodSandbox], containers: &[v1::Container]) {
        let ready = sandboxes.iter().filter(|s| s.state == v1::PodSandboxState::SandboxReady as i32);
        self.metrics.running_pods.set([], ready.count() as f64);
        for (state, label) in [(0, "created"), (1, "running"), (2, "exited"), (3, "unknown")] {
            let n = containers.iter().filter(|c| c.state == state).count();
            self.metrics.running_containers.set([label], n as f64);
        }
    }

    fn relisted(&self, start: base::time::Mono) {
        let now = self.clock.now();
        let mut last = self.last_relist.lock().unwrap_or_else(PoisonError::into_inner);
        self.metrics.pleg_relist_duration_seconds.observe([], now.mono.since(start).as_secs_f64());
        if let Some(before) = *last {
            self.metrics.pleg_relist_interval_seconds.observe([], now.mono.since(before).as_secs_f64());
        }
        self.metrics.pleg_last_seen_seconds.set([], now.wall.secs() as f64);
        *last = Some(now.mono);
    }
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Observer")
    }
}

/// Pods whose fingerprint differs between two relists, whichever side they are on.
fn changed<'a>(
    last: &'a HashMap<String, Fingerprint>,
    next: &'a HashMap<String, Fingerprint>,
) -> impl Iterator<Item = &'a str> {
    let fresh = next.iter().filter(|(uid, now)| last.get(*uid) != Some(now));
    let gone = last.iter().filter(|(uid, _)| !next.contains_key(*uid));
    fresh.chain(gone).map(|(uid, _)| uid.as_str())
}

/// Wakes Pods until cancelled. Follows the event stream; polls where there is none.
pub async fn watch_runtime(observer: Arc<Observer>, token: CancellationToken) {
    let mut last = HashMap::new();
    let forever = async {
        loop {
            match follow(&observer, &mut last).await {
                Ended::Broken => tokio::time::sleep(REOPEN).await,
                Ended::NoStream => poll(&observer, &mut last).await,
            }
        }
    };
    tokio::select! {
        () = token.cancelled() => {}
        () = forever => {}
    }
}

/// Why a stream came to its end.
enum Ended {
    Broken,
    /// The runtime has no event stream (containerd 1.6).
    NoStream,
}

/// One life of the event stream, with the slow relist beside it.
async fn follow(observer: &Observer, last: &mut HashMap<String, Fingerprint>) -> Ended {
    let opened = observer.runtime.events().await;
    // The stream is open before the relist: what happens in between is in one of the two.
    if let Err(error) = observer.relist(last).await {
        tracing::warn!(%error, "runtime could not be listed");
        return Ended::Broken;
    }
    let mut stream = match opened {
        Ok(stream) => stream,
        Err(error) if error.is_unimplemented() => return Ended::NoStream,
        Err(error) => {
            observer.metrics.evented_pleg_connection_error_count.inc([]);
            tracing::warn!(%error, "runtime events could not be streamed");
            return Ended::Broken;
        }
    };
    observer.metrics.evented_pleg_connection_success_count.inc([]);
    let mut next = Instant::now() + SAFETY_RELIST;
    loop {
        let heard_something = tokio::select! {
            event = stream.next() => event,
            () = tokio::time::sleep_until(next) => match observer.relist(last).await {
                Ok(()) => {
                    next = Instant::now() + SAFETY_RELIST;
                    continue;
                }
                Err(error) => Some(Err(error)),
            },
        };
        match heard_something {
            Some(Ok(event)) => {
                heard(observer, &event);
                next = next.min(Instant::now() + AFTERWARDS);
            }
            Some(Err(error)) if error.is_unimplemented() => return Ended::NoStream,
            Some(Err(error)) => {
                observer.metrics.evented_pleg_connection_error_count.inc([]);
                tracing::warn!(%error, "runtime event stream broke");
                return Ended::Broken;
            }
            None => return Ended::Broken,
        }
    }
}

/// Relists every second for a while; then the stream is tried again, in case the runtime was upgraded.
async fn poll(observer: &Observer, last: &mut HashMap<String, Fingerprint>) {
    for _ in 0..300 {
        tokio::time::sleep(POLL_RELIST).await;
        if let Err(error) = observer.relist(last).await {
            tracing::warn!(%error, "runtime could not be listed");
        }
    }
}

fn heard(observer: &Observer, event: &v1::ContainerEventResponse) {
    // By two wall clocks of one machine; one that was set meanwhile gives no negative age.
    let age = observer.clock.now().wall.since(base::time::Wall(event.created_at));
    observer.metrics.evented_pleg_connection_latency_seconds.observe([], age.as_secs_f64());
    let sandbox = event.pod_sandbox_status.as_ref();
    let uid = sandbox.and_then(|s| s.metadata.as_ref()).map(|m| m.uid.as_str());
    match uid {
        Some(uid) if !uid.is_empty() => observer.wake(uid),
        // Events about removed sandboxes may carry no status: rather look once too often.
        _ => observer.wake_all(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relist_names_new_changed_and_vanished_pods_only() {
        let print = |pairs: &[(&str, i32)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect();
        let last = HashMap::from([
            ("same".to_owned(), print(&[("a", 1)])),
            ("changed".to_owned(), print(&[("b", 1)])),
            ("gone".to_owned(), print(&[("c", 1)])),
        ]);
        let next = HashMap::from([
            ("same".to_owned(), print(&[("a", 1)])),
            ("changed".to_owned(), print(&[("b", 2)])),
            ("new".to_owned(), print(&[("d", 0)])),
        ]);
        let mut names: Vec<&str> = changed(&last, &next).collect();
        names.sort_unstable();
        assert_eq!(names, ["changed", "gone", "new"]);
    }
}
