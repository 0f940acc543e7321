//! The event stream: each subscriber has a queue, filled when things happen and read when due.

use std::time::Duration;

use cri::v1::{ContainerEventResponse, ContainerEventType};
use tokio::time::Instant;

use super::state::{Container, State, Subscriber};

/// A real runtime drops events for a reader this far behind.
const QUEUE: usize = 1000;
/// What happens while nobody listens is kept this long for the next one who does, as containerd 2 does.
const KEPT: Duration = Duration::from_secs(300);

// === impl State ===

impl State {
    pub(super) fn subscribe(&mut self) -> u64 {
        self.serial += 1;
        let now = Instant::now();
        let mut queue = std::mem::take(&mut self.backlog);
        queue.retain(|(at, _)| *at + KEPT > now);
        self.subscribers.insert(self.serial, Subscriber { queue });
        self.serial
    }

    /// The next event that is due for a subscriber, or the moment when there will be one.
    pub(super) fn next_event(
        &mut self,
        subscriber: u64,
        now: Instant,
    ) -> Result<ContainerEventResponse, Option<Instant>> {
        let Some(subscriber) = self.subscribers.get_mut(&subscriber) else { return Err(None) };
        match subscriber.queue.front() {
            Some((due, _)) if *due <= now => subscriber.queue.pop_front().map(|(_, e)| e).ok_or(None),
            Some((due, _)) => Err(Some(*due)),
            None => Err(None),
        }
    }

    pub(super) fn container_event(&mut self, id: &str, kind: ContainerEventType, now: Instant) {
        if let Some(sandbox) = self.containers.get(id).map(|c| c.sandbox.clone()) {
            self.event(id, &sandbox, kind, now);
        }
    }

    pub(super) fn sandbox_event(&mut self, id: &str, kind: ContainerEventType, now: Instant) {
        self.event(id, id, kind, now);
    }

    /// Of a container that is no longer there to be asked for its sandbox.
    pub(super) fn deleted_event(&mut self, id: &str, sandbox: &str, now: Instant) {
        self.event(id, sandbox, ContainerEventType::ContainerDeletedEvent, now);
    }

    fn event(&mut self, id: &str, sandbox: &str, kind: ContainerEventType, now: Instant) {
        self.version += 1;
        // Like a real runtime, the event carries the whole Pod as it is at this moment.
        let in_sandbox = |c: &&Container| c.sandbox == sandbox;
        let event = ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: kind.into(),
            created_at: self.clock.now().wall.0,
            pod_sandbox_status: self.sandboxes.get(sandbox).map(|s| s.status()),
            containers_statuses: self.containers.values().filter(in_sandbox).map(Container::status).collect(),
        };
        if self.subscribers.is_empty() {
            self.backlog.push_back((now, event));
            if self.backlog.len() > QUEUE {
                self.backlog.pop_front();
            }
            return;
        }
        for subscriber in self.subscribers.values_mut() {
            for delay in self.faults.deliveries(&mut self.rng) {
                if subscriber.queue.len() >= QUEUE {
                    continue;
                }
                let due = now + delay;
                let place = subscriber.queue.partition_point(|(at, _)| *at <= due);
                subscriber.queue.insert(place, (due, event.clone()));
            }
        }
    }
}
