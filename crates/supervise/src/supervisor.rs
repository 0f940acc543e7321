//! The tasks of one agent.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::panics::report;

/// First and longest pause before a task is started again.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// A task that ran this long was healthy: its next panic begins with a short pause again.
const HEALTHY: Duration = Duration::from_secs(60);

/// Starts the long-lived tasks of one agent and keeps an eye on them. They end when the agent's token is cancelled, and are
/// aborted when the last clone of this is dropped or [`Supervisor::stop`] has waited long enough.
#[derive(Clone)]
pub struct Supervisor(Arc<Inner>);

/// Why the agent has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Going on without this task would be unsafe.
    Panicked(&'static str),
    /// It may not end before the agent does, and did.
    Ended(&'static str),
}

struct Inner {
    token: CancellationToken,
    tasks: Mutex<JoinSet<()>>,
    /// Tasks that panicked and wait to be started again.
    down: Mutex<BTreeSet<&'static str>>,
    failure: watch::Sender<Option<Failure>>,
}

// === impl Supervisor ===

impl Supervisor {
    /// `token` is the agent's: cancelled from outside it ends all tasks, and the failure of an essential one cancels it.
    #[must_use]
    pub fn new(token: CancellationToken) -> Supervisor {
        let (tasks, down) = (Mutex::default(), Mutex::default());
        Supervisor(Arc::new(Inner { token, tasks, down, failure: watch::Sender::new(None) }))
    }

    /// A task that is made and started again after a panic. When it returns it has done its work.
    pub fn restart<M, F>(&self, name: &'static str, mut make: M)
    where
        M: FnMut() -> F + Send + 'static,
        F: Future<Output = ()> + Send,
    {
        let (inner, token) = (Arc::downgrade(&self.0), self.0.token.clone());
        self.add(async move {
            let mut pause = PAUSE_MIN;
            loop {
                let started = Instant::now();
                // `make` itself may panic.
                if report(name, async { make().await }).await.is_some() {
                    return;
                }
                if started.elapsed() >= HEALTHY {
                    pause = PAUSE_MIN;
                }
                inner.upgrade().inspect(|inner| _ = inner.down().insert(name));
                let waited = token.run_until_cancelled(tokio::time::sleep(pause)).await;
                inner.upgrade().inspect(|inner| _ = inner.down().remove(name));
                if waited.is_none() {
                    return;
                }
                tracing::warn!(task = name, "A task is started again");
                pause = (pause * 2).min(PAUSE_MAX);
            }
        });
    }

    /// A task without which the agent may not go on: when it panics or returns early, the agent's token is cancelled.
    pub fn essential(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let (failure, token) = (self.0.failure.clone(), self.0.token.clone());
        self.add(async move {
            let ended = report(name, task).await;
            if token.is_cancelled() {
                return;
            }
            let why = if ended.is_some() { Failure::Ended(name) } else { Failure::Panicked(name) };
            tracing::error!(task = name, "The agent ends: it may not go on without this task");
            // The first failure is the cause of the others.
            failure.send_if_modified(|known| known.is_none() && known.replace(why).is_none());
            token.cancel();
        });
    }

    /// A task that is not started again: its panic is logged and counted.
    pub fn once(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.add(async move { _ = report(name, task).await });
    }

    /// Names of the tasks that panicked and do not run at the moment.
    #[must_use]
    pub fn down(&self) -> Vec<&'static str> {
        self.0.down().iter().copied().collect()
    }

    /// Why the agent has to end, if it has to.
    #[must_use]
    pub fn failure(&self) -> Option<Failure> {
        *self.0.failure.borrow()
    }

    /// Cancels the token, gives the tasks `grace` to end, then aborts those that are left.
    pub async fn stop(&self, grace: Duration) {
        self.0.token.cancel();
        let mut tasks = std::mem::take(&mut *self.0.tasks());
        let all = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(grace, all).await.is_err() {
            tasks.shutdown().await;
        }
    }

    fn add(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.0.tasks();
        // What has ended is forgotten, so that the set holds no more than what runs.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }
}

impl fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Supervisor")
            .field("tasks", &self.0.tasks().len())
            .field("down", &self.down())
            .finish()
    }
}

// === impl Inner ===

impl Inner {
    fn tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn down(&self) -> MutexGuard<'_, BTreeSet<&'static str>> {
        self.down.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Failure ===

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Panicked(name) => write!(f, "task {name} panicked"),
            Failure::Ended(name) => write!(f, "task {name} ended early"),
        }
    }
}

impl std::error::Error for Failure {}
