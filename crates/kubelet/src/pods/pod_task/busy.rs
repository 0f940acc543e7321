//! What a task still hears while it is busy: the order to end its Pod, and what the probes say.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use k8s_openapi::api::core::v1::PodStatus;
use kubelet_core::pod::{Intent, Stage, Verdicts};

use super::PodTask;

impl PodTask {
    /// Resolves when the Pod is to end: whatever merely waits may then be dropped.
    pub(super) async fn ending(&self) {
        let mut intent = self.intent.clone();
        if intent.wait_for(|i: &Intent| i.stage > Stage::Run).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits for what may be dropped when the Pod is to end: none if that comes first.
    pub(super) fn unless_ending<T>(&self, work: impl Future<Output = T>) -> impl Future<Output = Option<T>> {
        self.with_probe_updates(async move {
            tokio::select! {
                done = work => Some(done),
                () = self.ending() => None,
            }
        })
    }

    /// Waits for the work, and shows meanwhile what the probes say: who is not ready any more is to get no more
    /// traffic, however long another container takes to start or the Pod takes to end. The next pass hears it too.
    pub(super) fn with_probe_updates<T>(&self, work: impl Future<Output = T>) -> impl Future<Output = T> {
        // Boxed: a Pod that rests is not to hold the room of all it ever waits for.
        let mut work = Box::pin(work);
        async move {
            let mut verdicts = self.verdicts.clone();
            loop {
                tokio::select! {
                    done = work.as_mut() => return done,
                    Ok(()) = verdicts.changed() => {}
                }
                // Not beside the work: a status that is being saved must not be dropped for the next one.
                let heard = verdicts.borrow_and_update().clone();
                Box::pin(self.show_readiness(&heard)).await;
            }
        }
    }

    async fn show_readiness(&self, heard: &Verdicts) {
        let intent = self.wanted();
        let before = self.shown();
        let waiting = BTreeMap::new();
        let input = self.status_input(&intent, heard, &waiting, &before);
        let status = kubelet_core::pod::readiness(&input);
        if status == before || super::is_unlisted(&intent) {
            return;
        }
        self.save(&intent.pod, &status).await;
        *self.meanwhile.lock().unwrap_or_else(PoisonError::into_inner) = Some(status.clone());
        self.show(&intent, status);
    }

    /// The status last shown.
    fn shown(&self) -> PodStatus {
        let meanwhile = self.meanwhile.lock().unwrap_or_else(PoisonError::into_inner);
        meanwhile.as_ref().unwrap_or(&self.status).clone()
    }
}
