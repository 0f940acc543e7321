//! All of it together: from a client and the settings to running controllers.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use api::config::controllers::Tuning;
use base::class::{Class, Classify};
use base::rng::Rng;
use base::time::{Clock, Mono, Now, Wall};
use client::leader_election::{LeaderElection, Terms};
use client::{Client, Options, Watcher};
use controllers_core::cache::Cache;
use controllers_core::controller::Row;
use controllers_core::resource::Resource;
use controllers_core::table::CONTROLLERS;
use supervise::Supervisor;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::account::{Account, WithToken};
use crate::control_loop::{ControlLoop, Shared};
use crate::everything;
use crate::http::Http;
use crate::metrics::Metrics;
use crate::port::Api;
use crate::recorder::Recorder;
use crate::resource_informer::ResourceInformer;
use crate::seen::Seen;

/// What the controllers of a process need.
#[derive(Debug)]
pub struct Start {
    pub client: Client,
    pub tuning: Tuning,
    /// `--controllers`
    pub chosen: Vec<String>,
    pub seed: u64,
    pub metrics: Metrics,
    /// Where the API server runs in this process: the client of each controller's account. None: tokens, or the manager's.
    pub accounts: Option<Accounts>,
    pub seen: Seen,
}

/// Makes the client of a ServiceAccount of kube-system, by its name.
#[derive(Clone)]
pub struct Accounts(pub Arc<dyn Fn(&str) -> Client + Send + Sync>);

/// For what is under way when the agent ends.
const GRACE: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("leader election lost")]
    LeaseLost,
    #[error(transparent)]
    Task(supervise::Failure),
}

impl Classify for Error {
    fn class(&self) -> Class {
        Class::Fault
    }
}

/// The running controllers.
#[derive(Debug)]
pub struct Controllers {
    pub loops: Vec<Arc<ControlLoop>>,
}

/// The clock of the machine; tokio's for what is measured, so that a paused one is obeyed.
#[derive(Debug)]
pub struct SystemClock {
    origin: Instant,
}

/// The rows that `--controllers` chooses: `*` for those that are on by default, `name` for one more, `-name` for one less.
#[must_use]
pub fn chosen(said: &[String]) -> Vec<&'static Row> {
    let has = |row: &Row, sign: &str| {
        said.iter().any(|word| word.strip_prefix(sign).is_some_and(|name| row.answers_to(name)))
    };
    let star = said.is_empty() || said.iter().any(|word| word == "*");
    let is_on = |row: &&Row| !has(row, "-") && (has(row, "") || (star && row.is_on_by_default));
    CONTROLLERS.iter().filter(is_on).collect()
}

/// Names of `--controllers` that nobody has.
#[must_use]
pub fn unknown(said: &[String]) -> Vec<String> {
    let names = said.iter().filter(|word| *word != "*");
    let is_known = |word: &&String| {
        let name = word.strip_prefix('-').unwrap_or(word);
        CONTROLLERS.iter().any(|row| row.answers_to(name))
    };
    names.filter(|word| !is_known(word)).cloned().collect()
}

/// The whole agent: holds the Lease where there is one, runs the controllers, and ends when it is cancelled or the Lease is lost.
pub async fn run(start_with: Start, leader: Option<Terms>, token: CancellationToken) -> Result<(), Error> {
    let guard = token.child_token();
    let supervisor = Supervisor::new(guard.clone());
    let clock: Arc<dyn Clock> = Arc::new(SystemClock { origin: Instant::now() });
    let mut election = leader.map(|terms| {
        let rng = Rng::new(start_with.seed).child();
        // Its own connections: a busy controller must not cost the Lease.
        let client =
            start_with.client.again(Options { user_agent: "leader-election".into(), ..Options::default() });
        LeaderElection::new(client, terms, clock, rng)
    });
    if let Some(election) = &mut election
        && token.run_until_cancelled(election.acquire()).await.is_none()
    {
        return Ok(());
    }
    let metrics = start_with.metrics.clone();
    metrics.leader.set(["kube-controller-manager"], 1.0);
    let controllers = start(start_with, &supervisor, &guard);
    tracing::info!(controllers = controllers.loops.len(), "Controllers started");
    let lost = async {
        match &mut election {
            Some(election) => election.hold().await,
            None => std::future::pending().await,
        }
    };
    let is_lost = tokio::select! {
        () = lost => true,
        () = guard.cancelled() => false,
    };
    metrics.leader.set(["kube-controller-manager"], 0.0);
    supervisor.stop(GRACE).await;
    if is_lost {
        return Err(Error::LeaseLost);
    }
    if let Some(election) = &mut election {
        election.release().await;
    }
    supervisor.failure().map_or(Ok(()), |failure| Err(Error::Task(failure)))
}

/// Starts everything; it ends with the supervisor's token.
pub fn start(start: Start, supervisor: &Supervisor, token: &CancellationToken) -> Controllers {
    let Start { client, tuning, chosen: said, seed, metrics, accounts, seen } = start;
    let rows = chosen(&said);
    let resources: BTreeSet<Resource> = rows.iter().flat_map(|row| row.resources()).collect();
    let cache = Arc::new(Cache::new(resources.iter().copied()));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock { origin: Instant::now() });
    let api = Arc::new(Http(client.clone()));
    let (recorder, mut teller) = Recorder::new(api.clone(), clock.clone());
    let identities =
        identities(&client, api, clock.clone(), tuning.use_service_account_credentials, accounts);
    let shared = Shared { cache: cache.clone(), clock, metrics, recorder, tuning: Arc::new(tuning) };
    let run = |row: &&'static Row| Arc::new(ControlLoop::new(row, shared.clone(), identities(row)));
    let loops: Vec<Arc<ControlLoop>> = rows.iter().map(run).collect();
    let events = token.clone();
    supervisor.once("event recorder", async move { _ = events.run_until_cancelled(teller.run()).await });
    let mut rng = Rng::new(seed);
    for resource in resources {
        watch(resource, &client, &cache, &loops, rng.child(), supervisor, token);
    }
    for one in loops.iter().filter(|one| one.hears_everything()) {
        everything::watch(one, &client, rng.child(), supervisor, token);
    }
    for one in &loops {
        work(one, &shared.tuning, supervisor, token);
    }
    seen.show(&loops);
    Controllers { loops }
}

/// As whom each controller writes: as its own account, or all as the manager.
fn identities(
    client: &Client,
    manager: Arc<Http>,
    clock: Arc<dyn Clock>,
    own_accounts: bool,
    given: Option<Accounts>,
) -> impl Fn(&'static Row) -> Arc<dyn Api> {
    let client = client.clone();
    let with_token: Arc<WithToken> = Arc::new(move |token| Arc::new(Http(client.with_token(token))));
    move |row| match (&given, own_accounts) {
        (Some(accounts), _) => Arc::new(Http((accounts.0)(row.identity))),
        (None, true) => {
            Arc::new(Account::new(row.identity, manager.clone(), with_token.clone(), clock.clone()))
        }
        (None, false) => manager.clone(),
    }
}

/// The task that lists and watches a resource. After a panic it begins with a list.
fn watch(
    resource: Resource,
    client: &Client,
    cache: &Arc<Cache>,
    loops: &[Arc<ControlLoop>],
    rng: Rng,
    supervisor: &Supervisor,
    token: &CancellationToken,
) {
    let (client, cache, loops, token) = (client.clone(), cache.clone(), loops.to_vec(), token.clone());
    supervisor.restart("watch of a resource", move || {
        let path = client::Resource::new(resource.path(""));
        let mut watcher = Watcher::new(client.clone(), path, rng.clone()).from_store();
        let mut informer = ResourceInformer::new(resource, cache.clone(), &loops);
        let token = token.clone();
        async move {
            let all = async {
                loop {
                    let piece = watcher.next_piece().await;
                    let revision = watcher.revision().and_then(|text| text.parse().ok()).unwrap_or(0);
                    if !informer.take(piece, revision) {
                        watcher.list_again();
                    }
                }
            };
            token.run_until_cancelled(all).await.unwrap_or(());
        }
    });
}

fn work(one: &Arc<ControlLoop>, tuning: &Tuning, supervisor: &Supervisor, token: &CancellationToken) {
    for _ in 0..(one.row().workers)(tuning) {
        let (one, token) = (one.clone(), token.clone());
        supervisor.restart(one.row().name, move || {
            let (one, token) = (one.clone(), token.clone());
            async move {
                let all = async {
                    one.begin().await;
                    one.work().await;
                };
                token.run_until_cancelled(all).await.unwrap_or(());
            }
        });
    }
}

// === impl Accounts ===

impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Accounts(..)")
    }
}

// === impl SystemClock ===

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock { origin: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let wall = Wall(i64::try_from(wall.as_nanos()).unwrap_or(i64::MAX));
        Now { mono: Mono(self.origin.elapsed()), wall }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_are_chosen_as_upstream_reads_it() {
        let names = |said: &[&str]| {
            let said: Vec<String> = said.iter().map(|word| (*word).to_owned()).collect();
            chosen(&said).iter().map(|row| row.name).collect::<Vec<_>>()
        };
        let all = names(&[]);
        assert_eq!(names(&["*"]), all);
        assert_eq!(names(&["replicaset"]), ["replicaset-controller"]);
        assert!(!names(&["*", "-replicaset-controller"]).contains(&"replicaset-controller"));
        assert!(names(&["-replicaset"]).is_empty());
        assert_eq!(unknown(&["*".into(), "-replicaset".into(), "nobody".into()]), ["nobody"]);
    }
}
