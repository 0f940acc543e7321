//! What happens to containers, for whoever streams it. While nobody does, the latest wait.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cri::v1::ContainerEventResponse;
use tokio::sync::broadcast;

use crate::ids;

/// So many wait for who comes late; and so many for who reads slowly.
const WAITING: usize = 1000;
/// What is older, nobody wants to know: who comes lists everything anyhow.
const OLD: i64 = 5 * 60 * 1_000_000_000;

#[derive(Debug)]
pub(crate) struct Events {
    waiting: Mutex<VecDeque<ContainerEventResponse>>,
    live: broadcast::Sender<ContainerEventResponse>,
}

impl Default for Events {
    fn default() -> Events {
        Events { waiting: Mutex::default(), live: broadcast::Sender::new(WAITING) }
    }
}

impl Events {
    pub(crate) fn publish(&self, event: ContainerEventResponse) {
        let mut waiting = self.waiting();
        if let Err(unheard) = self.live.send(event) {
            if waiting.len() == WAITING {
                waiting.pop_front();
            }
            waiting.push_back(unheard.0);
        }
    }

    /// What waited, and what comes.
    pub(crate) fn subscribe(
        &self,
    ) -> (Vec<ContainerEventResponse>, broadcast::Receiver<ContainerEventResponse>) {
        let mut waiting = self.waiting();
        let oldest = ids::now() - OLD;
        let late = waiting.drain(..).filter(|event| event.created_at > oldest).collect();
        (late, self.live.subscribe())
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<ContainerEventResponse>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn event(id: &str) -> ContainerEventResponse {
        ContainerEventResponse { container_id: id.into(), created_at: ids::now(), ..Default::default() }
    }

    #[test]
    fn what_nobody_heard_comes_first_and_only_the_latest_of_it() {
        let events = Events::default();
        for number in 0..WAITING + 5 {
            events.publish(event(&number.to_string()));
        }
        events.publish(ContainerEventResponse { created_at: 1, ..event("old") });
        let (late, mut live) = events.subscribe();
        assert_eq!((late.len(), late[0].container_id.as_str()), (WAITING - 1, "6"));
        events.publish(event("new"));
        assert_eq!(live.try_recv().unwrap().container_id, "new");
        assert!(events.subscribe().0.is_empty());
    }
}
