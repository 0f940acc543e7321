//! One queue per volume: its operations follow each other, and whoever waits learns what for.
//!
//! Work that was begun goes on when nobody waits for it any more: a call to a driver that is dropped in the middle
//! leaves a driver that may still be at it.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::class::Class;
use base::time::{Clock, Mono};
use tokio::sync::{Mutex as Turn, oneshot};
use tokio::time::timeout;

use super::named;
use crate::ports::{VolumeAct, VolumeError};

/// How long a Pod that is to start waits before it says what for.
pub(super) const MOUNT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a Pod that is to go waits before it names its blocker.
pub(super) const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(10);

/// Nothing here recurses.
const STACK: usize = 512 << 10;

pub(super) struct VolumeQueues {
    clock: Arc<dyn Clock>,
    /// Held for map operations only.
    queues: Mutex<HashMap<String, Arc<VolumeQueue>>>,
}

#[derive(Default)]
struct VolumeQueue {
    turn: Arc<Turn<()>>,
    /// What is under way, and since when.
    busy: Mutex<Option<(String, Mono)>>,
}

/// What is to be done, on which volume.
pub(super) struct VolumeOperation {
    pub(super) act: VolumeAct,
    /// As people call it.
    pub(super) volume: String,
    /// As queues call it.
    pub(super) key: String,
}

// === impl VolumeQueues ===

impl VolumeQueues {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, queues: Mutex::default() }
    }

    /// Runs `work` in its volume's queue and waits for it, but not for ever.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        operation: VolumeOperation,
        limit: Duration,
        work: impl Future<Output = Result<T, VolumeError>> + Send + 'static,
    ) -> Result<T, VolumeError> {
        let queue = self.all().entry(operation.key.clone()).or_default().clone();
        let result = self.run_in(&queue, &operation, limit, work).await;
        drop(queue);
        // Whoever still works or waits holds the queue too; the last one leaves the map clean.
        self.all().retain(|_, queue| Arc::strong_count(queue) > 1);
        result
    }

    async fn run_in<T: Send + 'static>(
        &self,
        queue: &Arc<VolumeQueue>,
        operation: &VolumeOperation,
        limit: Duration,
        work: impl Future<Output = Result<T, VolumeError>> + Send + 'static,
    ) -> Result<T, VolumeError> {
        // Nothing to retry: whoever is asked again will say the same until the driver has answered.
        let late = || VolumeError {
            class: Class::Wait,
            ..named(operation.act, &operation.volume, self.describe(queue))
        };
        let Ok(turn) = timeout(limit, queue.turn.clone().lock_owned()).await else { return Err(late()) };
        queue.begin(format!("{} it", operation.act), self.clock.now().mono);
        let mine = queue.clone();
        let task = supervise::spawn("csi_operation", async move {
            let result = STEP.scope(mine.clone(), work).await;
            *mine.busy() = None;
            drop(turn);
            result
        });
        match timeout(limit, task).await {
            Ok(Ok(Some(result))) => result,
            Ok(_) => Err(named(operation.act, &operation.volume, "the operation panicked")),
            Err(_) => Err(late()),
        }
    }

    fn describe(&self, queue: &VolumeQueue) -> String {
        let now = self.clock.now().mono;
        match &*queue.busy() {
            Some((what, since)) => {
                format!("still waiting after {}s for {what}", now.since(*since).as_secs())
            }
            None => "an earlier operation on this volume has not ended".to_owned(),
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<VolumeQueue>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl VolumeQueue ===

impl VolumeQueue {
    fn begin(&self, what: String, now: Mono) {
        *self.busy() = Some((what, now));
    }

    fn busy(&self) -> MutexGuard<'_, Option<(String, Mono)>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

tokio::task_local! {
    /// The queue that the current work runs in.
    static STEP: Arc<VolumeQueue>;
}

/// Runs what may take for ever on a thread of its own: those of the runtime are few, and others need them.
pub(super) async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (answer, answered) = oneshot::channel();
    let thread = std::thread::Builder::new().name("csi-volume".into()).stack_size(STACK);
    thread.spawn(move || drop(answer.send(work())))?;
    answered.await.unwrap_or_else(|_| Err(io::Error::other("the operation panicked")))
}

/// Says what the current work waits for from now on.
pub(super) fn waiting_for(what: String, now: Mono) {
    let _ = STEP.try_with(|queue| queue.begin(what, now));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::host::clock::SystemClock;

    fn operation(key: &str) -> VolumeOperation {
        VolumeOperation { act: VolumeAct::SetUp, volume: "v".into(), key: key.into() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_hung_volume_hurts_itself_only_and_is_named() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let queues = VolumeQueues::new(clock.clone());
        let (release, hang) = tokio::sync::oneshot::channel::<()>();
        let now = clock.now().mono;
        let work = async move {
            waiting_for("driver d to answer NodePublishVolume".into(), now);
            let _ = hang.await;
            Ok(1)
        };
        let late = queues.run(operation("a"), MOUNT_TIMEOUT, work).await.unwrap_err();
        assert!(late.message.contains("driver d to answer NodePublishVolume"), "{late}");
        assert_eq!(queues.run(operation("b"), MOUNT_TIMEOUT, async { Ok(2) }).await.unwrap(), 2);
        let late = queues.run(operation("a"), UNMOUNT_TIMEOUT, async { Ok(3) }).await.unwrap_err();
        assert!(late.message.contains("NodePublishVolume"), "{late}");
        release.send(()).unwrap();
        assert_eq!(queues.run(operation("a"), UNMOUNT_TIMEOUT, async { Ok(4) }).await.unwrap(), 4);
        assert!(queues.all().is_empty());
    }

    #[test]
    fn long_work_takes_none_of_the_runtimes_threads() {
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let (release, hang) = std::sync::mpsc::channel::<()>();
            let long = tokio::spawn(on_thread(move || hang.recv().map_err(io::Error::other)));
            tokio::task::yield_now().await;
            // The only thread of the runtime is free while the other waits.
            tokio::task::spawn_blocking(move || release.send(())).await.unwrap().unwrap();
            long.await.unwrap().unwrap();
            let panicked = on_thread(|| -> io::Result<()> { panic!("on purpose") }).await;
            assert_eq!(panicked.unwrap_err().to_string(), "the operation panicked");
        });
    }
}
