//! Waking those who wait for changes: once for every event loop, however many sleep there.
//!
//! A wake from another thread costs a system call and a place in a queue that a loop looks at last, so that what the
//! first few do about it goes before the rest is awake. From a task on their own loop all of them are woken at once,
//! and what they have to say to one connection goes out together.

use std::collections::HashMap;

use tokio::runtime::{self, Handle};
use tokio::sync::watch;

#[derive(Debug)]
pub(super) struct Notify {
    waker: watch::Sender<()>,
    /// What the waiting tasks of a loop are notified by. One that nobody waits for any more is never subscribed to again.
    near: HashMap<runtime::Id, watch::Sender<()>>,
}

// === impl Notify ===

impl Notify {
    pub(super) fn new() -> Notify {
        Notify { waker: watch::Sender::new(()), near: HashMap::new() }
    }

    /// What to notify with, also when this itself is out of reach.
    pub(super) fn waker(&self) -> watch::Sender<()> {
        self.waker.clone()
    }

    pub(super) fn wake(&self) {
        self.waker.send_replace(());
    }

    /// For a task of the current loop, or for whoever is on none.
    pub(super) fn subscribe(&mut self) -> watch::Receiver<()> {
        let Ok(here) = Handle::try_current() else { return self.waker.subscribe() };
        self.near.retain(|_, near| !near.is_closed());
        if let Some(near) = self.near.get(&here.id()) {
            return near.subscribe();
        }
        let (near, waiter) = watch::channel(());
        here.spawn(relay(self.waker.subscribe(), near.clone()));
        self.near.insert(here.id(), near);
        waiter
    }
}

/// Passes on every notification until nobody on this loop waits for one.
async fn relay(mut waker: watch::Receiver<()>, near: watch::Sender<()>) {
    loop {
        tokio::select! {
            () = near.closed() => return,
            woken = waker.changed() => if woken.is_err() { return },
        }
        near.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_who_sleep_on_a_loop_are_woken_and_the_last_one_takes_the_relay_along() {
        let mut notify = Notify::new();
        let mut waiters: Vec<_> = (0..3).map(|_| notify.subscribe()).collect();
        let mut elsewhere = std::thread::scope(|scope| scope.spawn(|| notify.subscribe()).join());
        assert_eq!(notify.waker.receiver_count(), 2, "one for the loop, one for the thread");
        notify.wake();
        for waiter in waiters.iter_mut().chain(&mut elsewhere) {
            assert!(waiter.changed().await.is_ok());
        }
        assert!(waiters.iter_mut().all(|waiter| !waiter.has_changed().unwrap_or(true)), "once");

        drop(waiters);
        let mut later = notify.subscribe();
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        assert_eq!(notify.waker.receiver_count(), 2, "the first relay is gone");
        notify.wake();
        assert!(later.changed().await.is_ok());
    }
}
