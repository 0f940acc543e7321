//! The way from tasks to a thread: a bounded queue whose senders wait without blocking the runtime and whose
//! receiver takes everything there is at once.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

#[derive(Debug)]
pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    ready: Condvar,
    room: Semaphore,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    closed: bool,
}

/// What a receiver got.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken<T> {
    Items(Vec<T>),
    /// Nothing came in time.
    Nothing,
    /// Closed, and everything sent before was taken.
    Closed,
}

// === impl Queue ===

impl<T> Queue<T> {
    pub(super) fn new(capacity: usize) -> Queue<T> {
        Queue {
            state: Mutex::new(State { items: VecDeque::new(), closed: false }),
            ready: Condvar::new(),
            room: Semaphore::new(capacity),
        }
    }

    /// Waits for room, then enqueues. False when the queue is closed.
    pub(super) async fn send(&self, item: T) -> bool {
        let Ok(permit) = self.room.acquire().await else { return false };
        permit.forget();
        self.push(item)
    }

    /// Enqueues, if there is room now.
    pub(super) fn try_send(&self, item: T) -> bool {
        let Ok(permit) = self.room.try_acquire() else { return false };
        permit.forget();
        self.push(item)
    }

    /// Takes up to `max` items, waiting for the first one at most `timeout`, or for ever.
    pub(super) fn take(&self, max: usize, timeout: Option<Duration>) -> Taken<T> {
        let deadline = timeout.map(|p| Instant::now() + p);
        let mut state = self.lock();
        while state.items.is_empty() {
            if state.closed {
                return Taken::Closed;
            }
            state = match deadline {
                None => self.ready.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Taken::Nothing;
                    }
                    self.ready.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        let count = state.items.len().min(max);
        let items = state.items.drain(..count).collect();
        drop(state);
        self.room.add_permits(count);
        Taken::Items(items)
    }

    /// Refuses further items; what is queued is still handed out.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.room.close();
        self.ready.notify_all();
    }

    /// Closes and drops what is queued, so that nobody waits for an answer that cannot come.
    pub(super) fn abandon(&self) {
        self.close();
        let items = std::mem::take(&mut self.lock().items);
        drop(items);
    }

    pub(super) fn len(&self) -> usize {
        self.lock().items.len()
    }

    fn push(&self, item: T) -> bool {
        let mut state = self.lock();
        if state.closed {
            return false;
        }
        state.items.push_back(item);
        drop(state);
        self.ready.notify_one();
        true
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_queue_makes_senders_wait_and_a_closed_one_refuses() {
        let queue = Queue::new(2);
        assert!(queue.send(1).await && queue.send(2).await);
        let mut third = Box::pin(queue.send(3));
        let waker = std::task::Waker::noop();
        let mut context = std::task::Context::from_waker(waker);
        assert!(third.as_mut().poll(&mut context).is_pending());
        assert_eq!(queue.take(1, None), Taken::Items(vec![1]));
        assert!(third.await);
        queue.close();
        assert!(!queue.send(4).await);
        assert_eq!(queue.take(10, None), Taken::Items(vec![2, 3]));
        assert_eq!(queue.take(10, None), Taken::Closed);
    }

    #[test]
    fn a_receiver_waits_no_longer_than_it_wants() {
        let queue = Queue::<u8>::new(1);
        assert_eq!(queue.take(1, Some(Duration::ZERO)), Taken::Nothing);
    }
}
