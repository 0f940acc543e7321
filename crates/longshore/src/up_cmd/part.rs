//! A part of the node: an agent on a thread and an event loop of its own. None can starve or end another; one that ends by
//! itself is started again after a pause.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::agent_cmd;
use crate::node_here::Standing;

/// Before a part that ended is started again; doubled each time it ends soon.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
const BLOCKING_THREADS: usize = 8;
/// For file work to finish when the agent has ended.
const BLOCKED_WORK: Duration = Duration::from_secs(1);

pub(super) type Running = Pin<Box<dyn Future<Output = Result<(), String>>>>;

/// Makes the agent; called again for every start.
pub(super) type Make = Box<dyn FnMut(CancellationToken) -> Running + Send>;

/// Hears how a part is.
pub(super) type Tell = Arc<dyn Fn(&'static str, Standing) + Send + Sync>;

pub(super) struct Part {
    pub(super) name: &'static str,
    thread: JoinHandle<()>,
}

// === impl Part ===

impl Part {
    /// `tell` hears whether it runs, and why it does not.
    pub(super) fn start(
        name: &'static str,
        make: Make,
        token: &CancellationToken,
        tell: Tell,
    ) -> Result<Part, String> {
        let token = token.clone();
        let thread = thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || keep(name, make, &token, &tell));
        Ok(Part { name, thread: thread.map_err(|e| format!("start a thread for {name}: {e}"))? })
    }

    pub(super) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }
}

/// An event loop as each agent has it when it runs alone.
pub(super) fn event_loop() -> Result<Runtime, String> {
    agent_cmd::event_loop(BLOCKING_THREADS)
}

fn keep(name: &'static str, mut make: Make, token: &CancellationToken, tell: &Tell) {
    let mut pause = FIRST_PAUSE;
    while !token.is_cancelled() {
        let began = Instant::now();
        tell(name, Standing::Runs);
        let ended = catch_unwind(AssertUnwindSafe(|| run(&mut make, token)));
        if token.is_cancelled() {
            if let Ok(Err(error)) = ended {
                tracing::warn!(part = name, error, "ended with an error");
            }
            return;
        }
        let error = match ended {
            Ok(Ok(())) => "it ended by itself".to_owned(),
            Ok(Err(error)) => error,
            Err(_) => "it panicked".to_owned(),
        };
        if began.elapsed() > LONGEST_PAUSE {
            pause = FIRST_PAUSE;
        }
        tracing::error!(part = name, error, again_in = ?pause, "a part of the node failed");
        tell(name, Standing::Failed(error));
        if let Ok(runtime) = event_loop() {
            runtime.block_on(async { _ = tokio::time::timeout(pause, token.cancelled()).await });
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn run(make: &mut Make, token: &CancellationToken) -> Result<(), String> {
    let runtime = event_loop()?;
    let ended = runtime.block_on(async { make(token.child_token()).await });
    // File work that hangs holds its thread. A process that is to end does not wait for it.
    runtime.shutdown_timeout(BLOCKED_WORK);
    ended
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_part_that_fails_is_started_again_until_it_is_told_to_end() {
        let (token, (tell, told)) = (CancellationToken::new(), mpsc::channel());
        let mut count = 0;
        let make: Make = Box::new(move |end| {
            count += 1;
            let (tell, count) = (tell.clone(), count);
            Box::pin(async move {
                tell.send(count).unwrap();
                assert!(count != 1, "the first one panics");
                if count == 3 {
                    end.cancelled().await;
                }
                Err("no".to_owned())
            })
        });
        let (hear, heard) = mpsc::channel();
        let tell: Tell = Arc::new(move |name, standing| hear.send((name, standing)).unwrap());
        let part = Part::start("test", make, &token, tell).unwrap();
        assert_eq!(told.iter().take(3).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(!part.has_ended());
        let (panicked, failed) =
            (Standing::Failed("it panicked".to_owned()), Standing::Failed("no".to_owned()));
        let all = [Standing::Runs, panicked, Standing::Runs, failed, Standing::Runs];
        assert_eq!(heard.try_iter().collect::<Vec<_>>(), all.map(|standing| ("test", standing)));
        token.cancel();
        part.thread.join().unwrap();
    }
}
