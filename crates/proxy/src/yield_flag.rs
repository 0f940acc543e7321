//! Making way: long work is left when something urgent comes.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

/// How soon the flag is seen by somebody who waits for work done elsewhere.
const POLL: Duration = Duration::from_millis(1);

/// Asks somebody who takes long to make way. A new one asks nothing.
#[derive(Clone, Debug, Default)]
pub struct YieldFlag(Arc<AtomicBool>);

/// What became of work that was to make way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    Done(T),
    /// Left when asked to yield, with nothing changed.
    Left,
}

// === impl YieldFlag ===

impl YieldFlag {
    pub fn raise(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Does something that cannot stop in the middle on a thread of its own. When asked to yield that thread is left to itself,
    /// and what it made is thrown away there.
    pub fn unless_raised<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> std::io::Result<Outcome<T>> {
        let (sender, receiver) = sync_channel(0);
        let worker = thread::Builder::new().name("comparison".into()).spawn(move || {
            // Fails when nobody waits any more; then it goes here.
            let _ = sender.send(work());
        })?;
        loop {
            match receiver.recv_timeout(POLL) {
                Ok(made) => return Ok(Outcome::Done(made)),
                Err(RecvTimeoutError::Timeout) if self.is_raised() => return Ok(Outcome::Left),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => match worker.join() {
                    Err(panic) => resume_unwind(panic),
                    Ok(()) => return Ok(Outcome::Left),
                },
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_or_left() {
        let flag = YieldFlag::default();
        assert_eq!(flag.unless_raised(|| 7).unwrap(), Outcome::Done(7));
        let (release, wait) = sync_channel::<()>(0);
        let (ended, end) = sync_channel(1);
        flag.raise();
        let left = flag.unless_raised(move || {
            let _ = wait.recv();
            ended.send(()).unwrap();
        });
        assert_eq!(left.unwrap(), Outcome::Left);
        drop(release);
        end.recv().unwrap();
    }

    #[test]
    #[should_panic(expected = "broken")]
    fn a_panic_is_not_swallowed() {
        let _ = YieldFlag::default().unless_raised(|| panic!("broken"));
    }
}
