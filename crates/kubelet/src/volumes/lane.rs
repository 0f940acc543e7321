//! One lane per Pod: its volume operations run one after the other, on threads of their own.
//!
//! A call into a dead file server can hang for ever, and then neither a runtime's worker nor another
//! Pod may hang with it. The thread that hangs keeps its Pod's lane; everybody else passes by.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::ids::PodUid;
use tokio::sync::{Mutex as Lane, Semaphore, oneshot};
use tokio::time::timeout;

use super::retry;
use crate::ports::VolumeError;

#[derive(Debug)]
pub(super) struct Lanes {
    deadline: Duration,
    lanes: Mutex<HashMap<PodUid, Arc<Lane<()>>>>,
    /// How many may run at once; one that is given up on no longer counts.
    slots: Semaphore,
}

const SLOTS: usize = 16;
/// Nothing here recurses.
const STACK: usize = 512 << 10;

// === impl Lanes ===

impl Lanes {
    pub(super) fn new(deadline: Duration) -> Self {
        Self { deadline, lanes: Mutex::default(), slots: Semaphore::new(SLOTS) }
    }

    /// Runs `work` in the Pod's lane and waits for it, but not for ever. Work that was begun goes on
    /// when the caller gives up, and the Pod's next operation waits for it.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        act: &'static str,
        pod: &PodUid,
        work: impl FnOnce() -> Result<T, VolumeError> + Send + 'static,
    ) -> Result<T, VolumeError> {
        let lane = Arc::clone(self.all().entry(pod.clone()).or_default());
        let result = self.run_in(act, pod, lane, work).await;
        // Whoever still waits holds the lane too; the last one leaves the map clean.
        self.all().retain(|_, lane| Arc::strong_count(lane) > 1);
        result
    }

    async fn run_in<T: Send + 'static>(
        &self,
        act: &'static str,
        pod: &PodUid,
        lane: Arc<Lane<()>>,
        work: impl FnOnce() -> Result<T, VolumeError> + Send + 'static,
    ) -> Result<T, VolumeError> {
        let Ok(turn) = timeout(self.deadline, lane.lock_owned()).await else {
            return Err(retry(act, pod.as_str(), &"an earlier operation on this Pod's volumes still hangs"));
        };
        let _slot = self.slots.acquire().await;
        let (answer, answered) = oneshot::channel();
        let thread = std::thread::Builder::new().name("volumes".into()).stack_size(STACK);
        let started = thread.spawn(move || {
            let result = work();
            drop(turn);
            let _ = answer.send(result);
        });
        if let Err(e) = started {
            return Err(retry(act, pod.as_str(), &e));
        }
        match timeout(self.deadline, answered).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(retry(act, pod.as_str(), &"the operation panicked")),
            Err(_) => {
                let message = format!("no answer within {:?}; a file system may hang", self.deadline);
                Err(retry(act, pod.as_str(), &message))
            }
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<PodUid, Arc<Lane<()>>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    #[test]
    fn a_hung_pod_hurts_itself_only() {
        block_on(async {
            let lanes = Lanes::new(Duration::from_millis(100));
            let (release, hang) = mpsc::channel::<()>();
            let (a, b) = (PodUid::from("a"), PodUid::from("b"));
            let error = lanes.run("set up", &a, move || {
                let _ = hang.recv();
                Ok(())
            });
            assert!(error.await.unwrap_err().message.contains("no answer within"));
            assert_eq!(lanes.run("set up", &b, || Ok(7)).await.unwrap(), 7);
            let error = lanes.run("unmount", &a, || Ok(())).await.unwrap_err();
            assert!(error.message.contains("still hangs"), "{error}");
            release.send(()).unwrap();
            assert_eq!(lanes.run("unmount", &a, || Ok(8)).await.unwrap(), 8);
            assert!(lanes.all().is_empty());
        });
    }

    #[test]
    fn more_hung_pods_than_slots() {
        block_on(async {
            let lanes = Lanes::new(Duration::from_millis(20));
            let mut release = Vec::new();
            for n in 0..SLOTS + 4 {
                let (tx, hang) = mpsc::channel::<()>();
                release.push(tx);
                let pod = PodUid::from(n.to_string());
                let hung = lanes.run("set up", &pod, move || {
                    let _ = hang.recv();
                    Ok(())
                });
                assert!(hung.await.is_err());
            }
            assert_eq!(lanes.run("set up", &PodUid::from("ok"), || Ok(1)).await.unwrap(), 1);
        });
    }

    #[test]
    fn a_panic_is_an_error() {
        block_on(async {
            let lanes = Lanes::new(Duration::from_secs(5));
            let error = lanes.run::<()>("set up", &PodUid::from("a"), || panic!("on purpose")).await;
            assert!(error.unwrap_err().message.contains("panicked"));
            assert_eq!(lanes.run("set up", &PodUid::from("a"), || Ok(1)).await.unwrap(), 1);
        });
    }
}
