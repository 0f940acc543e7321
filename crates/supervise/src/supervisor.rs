//! The tasks of one agent.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::panics::report;
use crate::restart::restarting;

/// Told the name of a task whenever it starts; a test may let it panic there.
pub type OnStart = Arc<dyn Fn(&'static str) + Send + Sync>;

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
    on_start: OnStart,
}

// === impl Supervisor ===

impl Supervisor {
    /// `token` is the agent's: cancelled from outside it ends all tasks, and the failure of an essential one cancels it.
    #[must_use]
    pub fn new(token: CancellationToken) -> Supervisor {
        Supervisor::watched(token, Arc::new(|_| ()))
    }

    /// The same, and `on_start` is told of every start.
    #[must_use]
    pub fn watched(token: CancellationToken, on_start: OnStart) -> Supervisor {
        let (tasks, down) = (Mutex::default(), Mutex::default());
        Supervisor(Arc::new(Inner { token, tasks, down, failure: watch::Sender::new(None), on_start }))
    }

    /// A task that is made and started again after a panic. When it returns it has done its work.
    pub fn restart<M, F>(&self, name: &'static str, make: M)
    where
        M: FnMut() -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        self.add(self.restarted(name, make));
    }

    /// A task that runs until the agent's token, which it is given, is cancelled. It is made of a copy of its parts, and made
    /// and started again after a panic; when it returns early, the token is cancelled.
    pub fn lasting<P, M, F>(&self, name: &'static str, parts: P, mut make: M)
    where
        P: Clone + Send + 'static,
        M: FnMut(P, CancellationToken) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let token = self.0.token.clone();
        let (task, end) = (self.restarted(name, move || make(parts.clone(), token.clone())), self.end());
        self.add(async move {
            task.await;
            end.because(Failure::Ended(name));
        });
    }

    /// A task without which the agent may not go on: when it panics or returns early, the agent's token is cancelled.
    pub fn essential(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let (end, on_start) = (self.end(), self.0.on_start.clone());
        self.add(async move {
            let ended = report(name, async {
                on_start(name);
                task.await;
            });
            let is_whole = ended.await.is_some();
            end.because(if is_whole { Failure::Ended(name) } else { Failure::Panicked(name) });
        });
    }

    /// A task that is not started again: its panic is logged and counted.
    pub fn once(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.add(async move { _ = report(name, task).await });
    }

    /// The agent's.
    #[must_use]
    pub fn token(&self) -> &CancellationToken {
        &self.0.token
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

    /// Cancels the token, gives the tasks `grace` to end, then aborts those that are left. Says how many those were.
    pub async fn stop(&self, grace: Duration) -> usize {
        self.0.token.cancel();
        let mut tasks = std::mem::take(&mut *self.0.tasks());
        let all = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(grace, all).await.is_ok() {
            return 0;
        }
        let left = tasks.len();
        tasks.shutdown().await;
        left
    }

    /// The task with all its restarts; it ends by itself, or with the agent.
    fn restarted<M, F>(&self, name: &'static str, mut make: M) -> impl Future<Output = ()> + Send + 'static
    where
        M: FnMut() -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let (inner, on_start) = (Arc::downgrade(&self.0), self.0.on_start.clone());
        let make = move || {
            on_start(name);
            make()
        };
        let is_down = move |is_down: bool| {
            if let Some(inner) = inner.upgrade() {
                let mut down = inner.down();
                _ = if is_down { down.insert(name) } else { down.remove(name) };
            }
        };
        restarting(name, make, self.0.token.clone(), is_down)
    }

    fn end(&self) -> End {
        End { failure: self.0.failure.clone(), token: self.0.token.clone() }
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

/// Ends the agent.
struct End {
    failure: watch::Sender<Option<Failure>>,
    token: CancellationToken,
}

// === impl End ===

impl End {
    /// Nothing to do where the agent ends already.
    fn because(&self, why: Failure) {
        if self.token.is_cancelled() {
            return;
        }
        tracing::error!(%why, "The agent ends: it may not go on without this task");
        // The first failure is the cause of the others.
        self.failure.send_if_modified(|known| known.is_none() && known.replace(why).is_none());
        self.token.cancel();
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
