//! A hand for tasks: none of them dies unseen.
//!
//! Every task of the product is started here, under a name. A panic is logged with that name and counted in
//! `longshore_task_panics_total`. What happens next is said at the start of the task: it is started again after a back-off
//! ([`Supervisor::restart`], [`Supervisor::lasting`], [`spawn_restarting`]), it ends the agent ([`Supervisor::essential`]), or
//! nothing ([`spawn`], [`Supervisor::once`]).
//! `cargo xtask tidy` keeps `tokio::spawn` out of every other crate.

mod panics;
mod restart;
mod supervisor;

pub use panics::{PANICS, Panics, write_metrics};
pub use supervisor::{Failure, OnStart, Supervisor};

use std::future::Future;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Starts a task that ends by itself, for instance one answer to one client. A panic is logged and counted; who waits for
/// the handle learns of it too.
pub fn spawn<F>(name: &'static str, task: F) -> JoinHandle<Option<F::Output>>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    tokio::spawn(panics::report(name, task))
}

/// Starts a task that belongs to no agent's table, for instance the watch of one object. It is made and started again after
/// a panic, until it returns or the token is cancelled.
pub fn spawn_restarting<M, F>(name: &'static str, token: CancellationToken, mut make: M) -> JoinHandle<()>
where
    M: FnMut() -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    tokio::spawn(async move {
        let task = restart::restarting(name, &mut make, token.clone(), |_| ());
        _ = token.run_until_cancelled(task).await;
    })
}
