//! Calls that outlive their caller.
//!
//! Who drops a call orders the runtime to give up. A start cut in the middle can leave a process that no later call
//! reaches: containerd kills the program that starts a sandbox's shim and forgets the shim. So a call that starts
//! something goes on by itself, up to its deadline, when nobody waits for it any more; what it made is found in the
//! runtime's lists and ended as anything that nobody wants. And once the end of the program has been ordered, so does
//! every call that changes something, and whoever exits waits for the last of them.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Calls that may go on by themselves while the program does; more than these are given up when they are dropped.
const LEFT_ALONE_MAX: usize = 1024;

/// The end of a program that has calls under way; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Closing {
    ordered: CancellationToken,
    calls: TaskTracker,
}

/// A call that is finished even when it is dropped, if it has begun and either starts something or the end was ordered.
pub(crate) struct Kept<T: Send + 'static> {
    call: Pin<Box<dyn Future<Output = T> + Send>>,
    state: State,
    starts: bool,
    closing: Closing,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    Begun,
    Over,
}

// === impl Closing ===

impl Closing {
    /// The end is ordered by cancelling the token; until then a dropped call is given up as usual.
    #[must_use]
    pub fn when(ordered: CancellationToken) -> Self {
        Self { ordered, calls: TaskTracker::new() }
    }

    /// Calls that go on by themselves now.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.calls.len()
    }

    /// Returns when the last call that was left alone has ended. Meant for one who dropped them all.
    pub async fn finished(&self) {
        self.calls.close();
        self.calls.wait().await;
    }

    pub(crate) fn keep<T: Send + 'static>(&self, call: impl Future<Output = T> + Send + 'static) -> Kept<T> {
        Kept { call: Box::pin(call), state: State::New, starts: false, closing: self.clone() }
    }

    /// A call that starts something, and has an end of its own.
    pub(crate) fn see_through<T: Send + 'static>(
        &self,
        call: impl Future<Output = T> + Send + 'static,
    ) -> Kept<T> {
        let mut kept = self.keep(call);
        kept.starts = true;
        kept
    }

    fn takes(&self, starts: bool) -> bool {
        self.ordered.is_cancelled() || (starts && self.calls.len() < LEFT_ALONE_MAX)
    }
}

// === impl Kept ===

impl<T: Send + 'static> Future for Kept<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.state = State::Begun;
        let answer = self.call.as_mut().poll(cx);
        if answer.is_ready() {
            self.state = State::Over;
        }
        answer
    }
}

impl<T: Send + 'static> Drop for Kept<T> {
    fn drop(&mut self) {
        if self.state != State::Begun || !self.closing.takes(self.starts) {
            return;
        }
        // Outside a runtime nothing can go on.
        if let Ok(runtime) = Handle::try_current() {
            let call = std::mem::replace(&mut self.call, Box::pin(std::future::pending()));
            self.closing.calls.spawn_on(async move { drop(call.await) }, &runtime);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures_util::FutureExt;
    use tokio::sync::Notify;

    use super::*;

    /// A call that ends when it is told to, and a mark that it did.
    fn call(closing: &Closing) -> (Kept<()>, Arc<Notify>, Arc<AtomicBool>) {
        let (answer, done) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let (answered, mark) = (answer.clone(), done.clone());
        let call = closing.keep(async move {
            answered.notified().await;
            mark.store(true, Ordering::Relaxed);
        });
        (call, answer, done)
    }

    #[tokio::test]
    async fn a_call_begun_before_the_end_is_finished_after_it() {
        let token = CancellationToken::new();
        let closing = Closing::when(token.clone());
        let (mut begun, answer, done) = call(&closing);
        assert!((&mut begun).now_or_never().is_none());
        token.cancel();
        drop(begun);
        assert_eq!(closing.unfinished(), 1);
        let mut finished = Box::pin(closing.finished());
        assert!((&mut finished).now_or_never().is_none(), "it is still waited for");
        answer.notify_one();
        finished.await;
        assert!(done.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn a_start_that_nobody_waits_for_goes_on_unless_there_are_too_many() {
        let closing = Closing::when(CancellationToken::new());
        let done = Arc::new(AtomicBool::new(false));
        let (answer, mark) = (Arc::new(Notify::new()), done.clone());
        let begin = |call: Pin<Box<dyn Future<Output = ()> + Send>>| {
            let mut begun = closing.see_through(call);
            assert!((&mut begun).now_or_never().is_none());
        };
        let answered = answer.clone();
        begin(Box::pin(async move {
            answered.notified().await;
            mark.store(true, Ordering::Relaxed);
        }));
        for _ in 0..2 * LEFT_ALONE_MAX {
            begin(Box::pin(std::future::pending()));
        }
        assert_eq!(closing.unfinished(), LEFT_ALONE_MAX);
        answer.notify_one();
        while !done.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn what_was_given_up_earlier_or_never_begun_is_not_waited_for() {
        let token = CancellationToken::new();
        let closing = Closing::when(token.clone());
        let (mut given_up, ..) = call(&closing);
        assert!((&mut given_up).now_or_never().is_none());
        drop(given_up);
        let (never_begun, ..) = call(&closing);
        token.cancel();
        drop(never_begun);
        let (over, answer, done) = call(&closing);
        answer.notify_one();
        over.await;
        assert!(done.load(Ordering::Relaxed));
        assert_eq!(closing.unfinished(), 0);
        closing.finished().await;
    }
}
