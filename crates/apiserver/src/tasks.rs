//! The long-lived tasks of the server, each under the name that logs, metrics and `/readyz` know it by.

use std::future::Future;
use std::sync::Arc;

use supervise::Supervisor;

/// Told the name of a task whenever it starts; a test may let it panic there.
pub(crate) type OnStart = Arc<dyn Fn(&'static str) + Send + Sync>;

/// Where tasks are started.
#[derive(Clone)]
pub(crate) struct Tasks {
    supervisor: Supervisor,
    on_start: OnStart,
}

// === impl Tasks ===

impl Tasks {
    pub(crate) fn new(supervisor: Supervisor, on_start: OnStart) -> Tasks {
        Tasks { supervisor, on_start }
    }

    /// A task that is started again after a panic.
    pub(crate) fn restart<F>(&self, name: &'static str, mut make: impl FnMut() -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let on_start = self.on_start.clone();
        self.supervisor.restart(name, move || {
            on_start(name);
            make()
        });
    }

    /// A task without which the server may not go on.
    pub(crate) fn essential(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let on_start = self.on_start.clone();
        self.supervisor.essential(name, async move {
            on_start(name);
            task.await;
        });
    }
}
