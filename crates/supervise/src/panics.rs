//! What is known of panics: a log line and a count by the name of the task.

use std::any::Any;
use std::fmt::{self, Write};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::LazyLock;

use base::metrics::{Counter, Family};
use futures_util::FutureExt;

/// One for the whole process: a panic is the process's, whichever agent's task it was.
pub static PANICS: LazyLock<Panics> = LazyLock::new(|| {
    Panics(Counter::new(
        "longshore_task_panics_total",
        "Panics of tasks, by the name of the task. Every one of them is a bug.",
        ["task"],
    ))
});

#[derive(Debug)]
pub struct Panics(Counter<1>);

// === impl Panics ===

impl Panics {
    #[must_use]
    pub fn of(&self, task: &str) -> u64 {
        self.0.get([task]) as u64
    }
}

/// The Prometheus text, for every agent's `/metrics`.
pub fn write_metrics(out: &mut dyn Write) -> fmt::Result {
    PANICS.0.write(out)
}

/// Runs the task. None when it panicked, which is told.
pub(crate) async fn report<F: Future>(name: &'static str, task: F) -> Option<F::Output> {
    // Nothing of the task is looked at after its panic, so nothing half done can be seen.
    match AssertUnwindSafe(task).catch_unwind().await {
        Ok(output) => Some(output),
        Err(payload) => {
            PANICS.0.inc([name]);
            tracing::error!(task = name, panic = message(&*payload), "A task panicked");
            None
        }
    }
}

fn message(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
