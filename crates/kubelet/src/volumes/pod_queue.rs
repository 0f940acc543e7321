//! One queue per Pod: its volume operations run one after the other, on threads of their own.
//!
//! A call into a dead file server can hang for ever, and then neither a runtime's worker nor another
//! Pod may hang with it. The thread that hangs keeps its Pod's queue; everybody else passes by. Whoever
//! waits for it learns what it is at, on which volume, and since when.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::class::Class;
use base::ids::PodUid;
use base::time::{Clock, Mono};
use tokio::sync::{Mutex as Turn, Semaphore, oneshot};
use tokio::time::timeout;

use super::retry;
use crate::ports::{VolumeAct, VolumeError};

pub(super) struct PodQueues {
    clock: Arc<dyn Clock>,
    /// Held for map operations only.
    queues: Mutex<HashMap<PodUid, Arc<PodQueue>>>,
    /// How many may begin at once; one that is slow no longer counts.
    slots: Semaphore,
}

#[derive(Default)]
struct PodQueue {
    turn: Arc<Turn<()>>,
    busy: Mutex<Option<Step>>,
    /// Others have passed by.
    is_left: AtomicBool,
}

/// What is under way.
struct Step {
    act: VolumeAct,
    /// None: the Pod's volumes as a whole.
    volume: Option<String>,
    what: String,
    since: Mono,
}

const SLOTS: usize = 16;
/// Slots are there so that a hundred Pods do not walk the disk at once. Who takes longer than this most likely waits
/// for somebody else, and may not keep the slot: a dead file server has many Pods.
const SLOW: Duration = Duration::from_secs(1);
/// Nothing here recurses.
const STACK: usize = 512 << 10;

// === impl PodQueues ===

impl PodQueues {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, queues: Mutex::default(), slots: Semaphore::new(SLOTS) }
    }

    /// Runs `work` in the Pod's queue and waits for it, but not for ever. Work that was begun goes on
    /// when the caller gives up, and the Pod's next operation waits for it.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        act: VolumeAct,
        pod: &PodUid,
        limit: Duration,
        work: impl FnOnce() -> Result<T, VolumeError> + Send + 'static,
    ) -> Result<T, VolumeError> {
        let queue = Arc::clone(self.all().entry(pod.clone()).or_default());
        let result = self.run_in(act, pod, limit, &queue, work).await;
        drop(queue);
        // Whoever still waits holds the queue too; the last one leaves the map clean.
        self.all().retain(|_, queue| Arc::strong_count(queue) > 1);
        result
    }

    async fn run_in<T: Send + 'static>(
        &self,
        act: VolumeAct,
        pod: &PodUid,
        limit: Duration,
        queue: &Arc<PodQueue>,
        work: impl FnOnce() -> Result<T, VolumeError> + Send + 'static,
    ) -> Result<T, VolumeError> {
        let Ok(turn) = timeout(limit, queue.turn.clone().lock_owned()).await else {
            return Err(self.late(act, pod, queue));
        };
        if queue.is_left() {
            return Err(self.late(act, pod, queue));
        }
        let slot = self.slots.acquire().await;
        let (answer, mut answered) = oneshot::channel();
        let thread = std::thread::Builder::new().name("volumes".into()).stack_size(STACK);
        let (mine, clock) = (queue.clone(), self.clock.clone());
        let started = thread.spawn(move || {
            CURRENT.set(Some(Here { queue: mine.clone(), clock, act }));
            waiting_for(None, format!("{act} the Pod's volumes"));
            let result = work();
            *mine.busy() = None;
            drop((turn, mine, CURRENT.take()));
            let _ = answer.send(result);
        });
        if let Err(e) = started {
            return Err(retry(act, pod.as_str(), &e));
        }
        let soon = timeout(SLOW.min(limit), &mut answered).await;
        drop(slot);
        let answered = match soon {
            Ok(answered) => Ok(answered),
            Err(_) => timeout(limit.saturating_sub(SLOW), answered).await,
        };
        match answered {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(retry(act, pod.as_str(), &"the operation panicked")),
            Err(_) => Err(self.late(act, pod, queue)),
        }
    }

    /// Lets the Pod's next operation pass one that has been at the same step of `act` for so long. That one stays behind
    /// with the queue, and should it ever go on it learns of it: [`is_left_behind`].
    pub(super) fn pass_by(&self, act: VolumeAct, pod: &PodUid, long: Duration) -> bool {
        let now = self.clock.now().mono;
        let hangs = |step: &Step| step.act == act && now.since(step.since) >= long;
        let mut queues = self.all();
        let Some(queue) = queues.get(pod).filter(|queue| queue.busy().as_ref().is_some_and(hangs)) else {
            return false;
        };
        queue.is_left.store(true, Ordering::Release);
        queues.remove(pod);
        true
    }

    /// Nothing to retry: whoever is asked again will say the same until the operation has ended.
    fn late(&self, act: VolumeAct, pod: &PodUid, queue: &PodQueue) -> VolumeError {
        let now = self.clock.now().mono;
        let (volume, message) = match &*queue.busy() {
            Some(Step { volume, what, since, .. }) => {
                (volume.clone(), format!("still waiting after {}s for: {what}", now.since(*since).as_secs()))
            }
            None => (None, "an earlier operation on this Pod's volumes has not ended".to_owned()),
        };
        let volume = volume.unwrap_or_else(|| pod.as_str().to_owned());
        VolumeError { act, volume, message, class: Class::Wait }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<PodUid, Arc<PodQueue>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl PodQueue ===

impl PodQueue {
    fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Acquire)
    }

    fn busy(&self) -> MutexGuard<'_, Option<Step>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a thread works, at what, and the clock there.
struct Here {
    queue: Arc<PodQueue>,
    clock: Arc<dyn Clock>,
    act: VolumeAct,
}

thread_local! {
    /// The queue that the work of this thread runs in.
    static CURRENT: RefCell<Option<Here>> = const { RefCell::new(None) };
}

/// Says what the work of this thread is at from now on.
pub(super) fn waiting_for(volume: Option<&str>, what: String) {
    CURRENT.with_borrow(|current| {
        let Some(Here { queue, clock, act }) = current else { return };
        let step = Step { act: *act, volume: volume.map(str::to_owned), what, since: clock.now().mono };
        *queue.busy() = Some(step);
    });
}

/// Whether nobody waits any more for the work of this thread, and others do theirs.
pub(super) fn is_left_behind() -> bool {
    CURRENT.with_borrow(|current| current.as_ref().is_some_and(|here| here.queue.is_left()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc;

    use futures_util::future::join_all;

    use super::*;
    use crate::host::clock::SystemClock;

    /// For what shall not end, and for what shall: on a busy machine a thread may begin late.
    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(60);

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    fn queues() -> PodQueues {
        PodQueues::new(Arc::new(SystemClock::new()))
    }

    #[test]
    fn a_hung_pod_hurts_itself_only_and_is_named() {
        block_on(async {
            let queues = queues();
            let (release, hang) = mpsc::channel::<()>();
            let (begun, has_begun) = oneshot::channel();
            let (a, b) = (PodUid::from("a"), PodUid::from("b"));
            let hung = queues.run(VolumeAct::SetUp, &a, SHORT, move || {
                waiting_for(Some("v"), "mount server:/share".into());
                let _ = begun.send(());
                let _ = hang.recv();
                Ok(())
            });
            assert_eq!(hung.await.unwrap_err().class, Class::Wait);
            has_begun.await.unwrap();
            assert_eq!(queues.run(VolumeAct::SetUp, &b, LONG, || Ok(7)).await.unwrap(), 7);
            let late = queues.run(VolumeAct::Unmount, &a, SHORT, || Ok(())).await.unwrap_err();
            assert_eq!((late.volume.as_str(), late.class), ("v", Class::Wait));
            assert!(late.message.starts_with("still waiting after "), "{late}");
            assert!(late.message.ends_with("s for: mount server:/share"), "{late}");
            release.send(()).unwrap();
            assert_eq!(queues.run(VolumeAct::Unmount, &a, LONG, || Ok(8)).await.unwrap(), 8);
            assert!(queues.all().is_empty());
        });
    }

    #[test]
    fn many_hung_pods_hurt_nobody_else() {
        block_on(async {
            let queues = queues();
            let mut release = Vec::new();
            let pods: Vec<PodUid> = (0..2 * SLOTS).map(|n| PodUid::from(n.to_string())).collect();
            let hung = join_all(pods.iter().map(|pod| {
                let (tx, hang) = mpsc::channel::<()>();
                release.push(tx);
                queues.run(VolumeAct::SetUp, pod, LONG, move || {
                    let _ = hang.recv();
                    Ok(())
                })
            }));
            let ok = PodUid::from("ok");
            let other = async {
                let answer = queues.run(VolumeAct::SetUp, &ok, LONG, || Ok(1)).await;
                // Long before anybody gives up on the others.
                drop(release);
                answer
            };
            let begun = std::time::Instant::now();
            let (_, answer) = tokio::join!(hung, other);
            assert_eq!(answer.unwrap(), 1);
            assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
        });
    }

    #[test]
    fn who_hangs_may_be_passed_by() {
        block_on(async {
            let queues = queues();
            let (release, hang) = mpsc::channel::<()>();
            let (begun, has_begun) = oneshot::channel();
            let (tell, told) = oneshot::channel();
            let a = PodUid::from("a");
            let hung = queues.run(VolumeAct::SubPath, &a, SHORT, move || {
                waiting_for(Some("v"), "look into server:/share".into());
                let _ = begun.send(is_left_behind());
                let _ = hang.recv();
                let _ = tell.send(is_left_behind());
                Ok(())
            });
            assert!(hung.await.is_err());
            assert!(!has_begun.await.unwrap());
            assert!(!queues.pass_by(VolumeAct::SubPath, &a, LONG));
            assert!(!queues.pass_by(VolumeAct::SetUp, &a, Duration::ZERO));
            assert!(!queues.pass_by(VolumeAct::SubPath, &PodUid::from("b"), Duration::ZERO));
            assert!(queues.run(VolumeAct::Unmount, &a, SHORT, || Ok(())).await.is_err());
            let mut behind = pin!(queues.run(VolumeAct::SetUp, &a, LONG, || Ok(())));
            assert!(timeout(SHORT, &mut behind).await.is_err());
            assert!(queues.pass_by(VolumeAct::SubPath, &a, Duration::ZERO));
            assert!(!queues.run(VolumeAct::Unmount, &a, LONG, || Ok(is_left_behind())).await.unwrap());
            assert!(queues.all().is_empty());
            release.send(()).unwrap();
            assert!(told.await.unwrap());
            // Who waited for the one that hung has nothing to do there any more.
            assert!(behind.await.is_err());
        });
    }

    #[test]
    fn a_panic_is_an_error() {
        block_on(async {
            let queues = queues();
            let error =
                queues.run::<()>(VolumeAct::SetUp, &PodUid::from("a"), LONG, || panic!("on purpose")).await;
            assert!(error.unwrap_err().message.contains("panicked"));
            assert_eq!(queues.run(VolumeAct::SetUp, &PodUid::from("a"), LONG, || Ok(1)).await.unwrap(), 1);
        });
    }
}
