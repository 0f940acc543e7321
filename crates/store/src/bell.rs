//! Waking those who wait for changes: once for every event loop, however many sleep there.
//!
//! A wake from another thread costs a system call and a place in a queue that a loop looks at last, so that what the
//! first few do about it goes before the rest is awake. From a task on their own loop all of them are woken at once,
//! and what they have to say to one connection goes out together.

use std::collections::HashMap;

use tokio::runtime::{self, Handle};
use tokio::sync::watch;

#[derive(Debug)]
pub(super) struct Bell {
    rope: watch::Sender<()>,
    /// What the sleepers of a loop hear. One that nobody hears any more is never listened to again.
    near: HashMap<runtime::Id, watch::Sender<()>>,
}

// === impl Bell ===

impl Bell {
    pub(super) fn new() -> Bell {
        Bell { rope: watch::Sender::new(()), near: HashMap::new() }
    }

    /// What to ring it with, also when the bell itself is out of reach.
    pub(super) fn rope(&self) -> watch::Sender<()> {
        self.rope.clone()
    }

    pub(super) fn ring(&self) {
        self.rope.send_replace(());
    }

    /// For a task of the current loop, or for whoever is on none.
    pub(super) fn listen(&mut self) -> watch::Receiver<()> {
        let Ok(here) = Handle::try_current() else { return self.rope.subscribe() };
        self.near.retain(|_, near| !near.is_closed());
        if let Some(near) = self.near.get(&here.id()) {
            return near.subscribe();
        }
        let (near, ear) = watch::channel(());
        here.spawn(relay(self.rope.subscribe(), near.clone()));
        self.near.insert(here.id(), near);
        ear
    }
}

/// Passes on what the rope does until nobody on this loop hears it.
async fn relay(mut rope: watch::Receiver<()>, near: watch::Sender<()>) {
    loop {
        tokio::select! {
            () = near.closed() => return,
            pulled = rope.changed() => if pulled.is_err() { return },
        }
        near.send_replace(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_who_sleep_on_a_loop_are_woken_and_the_last_one_takes_the_relay_along() {
        let mut bell = Bell::new();
        let mut ears: Vec<_> = (0..3).map(|_| bell.listen()).collect();
        let mut elsewhere = std::thread::scope(|scope| scope.spawn(|| bell.listen()).join());
        assert_eq!(bell.rope.receiver_count(), 2, "one for the loop, one for the thread");
        bell.ring();
        for ear in ears.iter_mut().chain(&mut elsewhere) {
            assert!(ear.changed().await.is_ok());
        }
        assert!(ears.iter_mut().all(|ear| !ear.has_changed().unwrap_or(true)), "once");

        drop(ears);
        let mut later = bell.listen();
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        assert_eq!(bell.rope.receiver_count(), 2, "the first relay is gone");
        bell.ring();
        assert!(later.changed().await.is_ok());
    }
}
