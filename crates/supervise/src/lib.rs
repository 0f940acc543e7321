//! A hand for tasks: none of them dies unseen.
//!
//! Every task of the product is started here, under a name. A panic is logged with that name and counted in
//! `longshore_task_panics_total`. What happens next is said at the start of the task: it is started again after a back-off
//! ([`Supervisor::restart`]), it ends the agent ([`Supervisor::essential`]), or nothing ([`spawn`], [`Supervisor::once`]).
//! clippy's `disallowed-methods` keeps `tokio::spawn` out of every other crate.

mod panics;
mod supervisor;

pub use panics::{PANICS, Panics, write_metrics};
pub use supervisor::{Failure, Supervisor};

use std::future::Future;

use tokio::task::JoinHandle;

/// Starts a task that ends by itself, for instance one answer to one client. A panic is logged and counted; who waits for
/// the handle learns of it too.
#[allow(clippy::disallowed_methods, reason = "the one place where tasks are started")]
pub fn spawn<F>(name: &'static str, task: F) -> JoinHandle<Option<F::Output>>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    tokio::spawn(panics::report(name, task))
}
