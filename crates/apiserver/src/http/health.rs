//! /livez, /readyz and /healthz.

use std::time::Duration;

use super::App;
use super::answer::{self, Answer};
use apiserver_core::api_status::ApiStatus;
use apiserver_core::asked::Query;
use store::Health;

/// A thing that can be wrong.
struct Check {
    name: &'static str,
    /// Only readiness depends on it.
    readiness: bool,
    test: fn(&State<'_>) -> Result<(), String>,
}

/// What the tests are about, looked at once for all of them.
struct State<'a> {
    app: &'a App,
    store: Health,
    read: Result<(), String>,
}

/// For the store to answer a small read; upstream's `--etcd-healthcheck-timeout`.
const READ_TIME: Duration = Duration::from_secs(2);

/// Upstream's names. A full disk is no matter of life: another process would find it as full.
const CHECKS: &[Check] = &[
    Check { name: "ping", readiness: false, test: |_| Ok(()) },
    Check { name: "etcd", readiness: false, test: |state| state.lives() },
    Check { name: "etcd-readiness", readiness: true, test: |state| state.takes_writes() },
    Check {
        name: "shutdown",
        readiness: true,
        test: |state| match state.app.stopping.is_cancelled() {
            true => Err("the server is stopping".to_owned()),
            false => Ok(()),
        },
    },
];

// === impl State ===

impl<'a> State<'a> {
    async fn of(app: &'a App) -> State<'a> {
        let store = app.registry.store();
        let read = match tokio::time::timeout(READ_TIME, store.try_read()).await {
            Ok(read) => read.map_err(|error| error.to_string()),
            Err(_) => Err("the store does not answer".to_owned()),
        };
        State { app, store: store.health(), read }
    }

    fn lives(&self) -> Result<(), String> {
        match &self.store {
            Health::Closed => Err("the store is closed".to_owned()),
            Health::Failing { cause } => Err(cause.to_string()),
            Health::Good | Health::Full => self.read.clone(),
        }
    }

    fn takes_writes(&self) -> Result<(), String> {
        match &self.store {
            Health::Full => Err("the disk is full".to_owned()),
            _ => self.lives(),
        }
    }
}

/// Answers `/livez[/check]` and its siblings.
pub(crate) async fn serve(app: &App, path: &[&str], query: &Query) -> Result<Answer, ApiStatus> {
    let (root, named) = match path {
        [root] => (*root, None),
        [root, name] => (*root, Some(*name)),
        _ => return Err(ApiStatus::no_resource()),
    };
    let excluded: Vec<&str> = query.all("exclude").collect();
    let wanted: Vec<&Check> = CHECKS
        .iter()
        .filter(|c| named.map_or(!c.readiness || root == "readyz", |name| c.name == name))
        .collect();
    if wanted.is_empty() {
        return Err(ApiStatus::no_resource());
    }
    let state = State::of(app).await;
    let (mut lines, mut failed) = (String::new(), Vec::new());
    for check in wanted {
        if excluded.contains(&check.name) {
            lines.push_str(&format!("[+]{} excluded: ok\n", check.name));
            continue;
        }
        let result = (check.test)(&state);
        if named.is_none() {
            app.metrics.checked(check.name, root, result.is_ok());
        }
        match result {
            Ok(()) => lines.push_str(&format!("[+]{} ok\n", check.name)),
            Err(why) => {
                tracing::warn!(check = check.name, why, "health check failed");
                lines.push_str(&format!("[-]{} failed: reason withheld\n", check.name));
                failed.push(check.name);
            }
        }
    }
    // A task that panicked and waits for its restart is named.
    for task in app.tasks.down().into_iter().filter(|_| root == "readyz" && named.is_none()) {
        lines.push_str(&format!("[-]task/{task} failed: panicked, waits to be started again\n"));
        failed.push(task);
    }
    if !failed.is_empty() {
        return Ok(answer::text(500, format!("{lines}{root} check failed\n")));
    }
    let verbose = query.get("verbose").is_some();
    Ok(answer::text(200, if verbose { format!("{lines}{root} check passed\n") } else { "ok".to_owned() }))
}
