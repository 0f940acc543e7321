//! A dataplane that is watched: what it did is counted, flows that lead nowhere are forgotten after it, and health checks
//! learn what it learned.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use jiff::Timestamp;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use proxy_core::flows::{Flow, is_stale};
use proxy_core::objects::{Family, PortKey, Protocol, ServiceKey};
use proxy_core::rules::{Delta, HealthCheck, NoLocalEndpoints, PortRules, RuleSet};
use sys::conntrack::{Conntrack, Entry};
use tokio::sync::{mpsc, watch};

use crate::host;
use crate::metrics::Metrics;
use crate::ports::{Dataplane, Error};
use crate::yield_flag::{Outcome, YieldFlag};

/// Changes of endpoints that wait to be told of are bounded: a metric is not worth more.
const MOST_TRIGGERS: usize = 10_000;

/// When the endpoints that are on their way to the kernel changed, as their slices say.
#[derive(Clone, Debug)]
pub struct Triggers {
    waiting: Arc<Mutex<[Vec<Timestamp>; 2]>>,
    /// A change from before our time says nothing about how fast we are.
    began: Timestamp,
}

/// Where a slice says it.
const TRIGGER: &str = "endpoints.kubernetes.io/last-change-trigger-time";

pub type HealthChecks = BTreeMap<ServiceKey, HealthCheck>;

pub struct Observed {
    inner: Box<dyn Dataplane>,
    family: Family,
    is_nftables: bool,
    metrics: Arc<Metrics>,
    triggers: Triggers,
    checks: watch::Sender<HealthChecks>,
    /// Flows have to be looked at, since a change or because the last look failed.
    is_flow_stale: bool,
    no_local: NoLocalEndpoints,
}

// === impl Triggers ===

impl Default for Triggers {
    fn default() -> Self {
        Self { waiting: Arc::default(), began: Timestamp::now() }
    }
}

impl Triggers {
    /// What a slice says, if it counts.
    pub(crate) fn read(&self, slice: &EndpointSlice) -> Option<(Family, Timestamp)> {
        let family = Family::BOTH.into_iter().find(|family| family.name() == slice.address_type)?;
        let said = slice.metadata.annotations.as_ref()?.get(TRIGGER)?;
        Some((family, said.parse().ok().filter(|at| *at > self.began)?))
    }

    pub(crate) fn note(&self, family: Family, at: Timestamp) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let of_family = &mut waiting[family as usize];
        if of_family.len() < MOST_TRIGGERS {
            of_family.push(at);
        }
    }

    fn take(&self, family: Family) -> Vec<Timestamp> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut waiting[family as usize])
    }
}

// === impl Observed ===

impl Observed {
    pub fn new(
        inner: Box<dyn Dataplane>,
        family: Family,
        is_nftables: bool,
        metrics: Arc<Metrics>,
        triggers: Triggers,
    ) -> (Self, watch::Receiver<HealthChecks>) {
        let (checks, heard) = watch::channel(HealthChecks::new());
        let observed = Self {
            inner,
            family,
            is_nftables,
            metrics,
            triggers,
            checks,
            is_flow_stale: true,
            no_local: NoLocalEndpoints::default(),
        };
        (observed, heard)
    }

    fn settle<T>(
        &mut self,
        rules: &RuleSet,
        began: Instant,
        is_full: bool,
        outcome: Result<T, Error>,
    ) -> Result<T, Error> {
        let family = self.family.name();
        self.metrics.observe_sync(family, began.elapsed(), is_full);
        let done = outcome.inspect_err(|_| {
            let failures = match self.is_nftables {
                true => &self.metrics.nftables_sync_failures,
                false => &self.metrics.iptables_restore_failures,
            };
            failures.inc([family]);
            if !is_full && !self.is_nftables {
                self.metrics.iptables_partial_restore_failures.inc([family]);
            }
        })?;
        let now = Timestamp::now();
        self.metrics.sync_at.set([family], now.as_millisecond() as f64 / 1000.0);
        for trigger in self.triggers.take(self.family) {
            let took = now.duration_since(trigger).as_secs_f64();
            self.metrics.programming.observe([family], took.max(0.0));
        }
        self.metrics.no_local_endpoints.set(["internal", family], self.no_local.internal as f64);
        self.metrics.no_local_endpoints.set(["external", family], self.no_local.external as f64);
        self.checks.send_if_modified(|known| {
            let is_new = *known != rules.health_checks;
            if is_new {
                known.clone_from(&rules.health_checks);
            }
            is_new
        });
        Ok(done)
    }

    /// How many flows were forgotten. When asked to yield the others have to wait.
    fn forget_stale(
        &self,
        rules: &RuleSet,
        flag: &YieldFlag,
    ) -> Result<Outcome<usize>, sys::conntrack::Error> {
        let (mut table, is_v6) = (Conntrack::open()?, self.family == Family::V6);
        let host = host::addresses();
        let is_wanted = |entry: &Entry| flow(entry).is_some_and(|flow| is_stale(rules, &host, &flow));
        let Some(stale) = table.list_while(is_v6, is_wanted, || !flag.is_raised())? else {
            return Ok(Outcome::Left);
        };
        let done = forget(&stale, flag, |entry| table.delete(entry));
        self.count_forgotten(done.count);
        match (done.is_left, done.failed) {
            (true, _) => Ok(Outcome::Left),
            (false, None) => Ok(Outcome::Done(done.count)),
            (false, Some(error)) => Err(error),
        }
    }

    /// Nothing is counted as well: the metric is there from the first look on.
    fn count_forgotten(&self, count: usize) {
        self.metrics.conntrack_deleted.add([self.family.name()], count as f64);
    }
}

/// What came of forgetting flows.
struct Forgotten<E> {
    count: usize,
    /// The first failure.
    failed: Option<E>,
    is_left: bool,
}

/// One flow that stays keeps no other.
fn forget<T, E>(
    stale: &[T],
    flag: &YieldFlag,
    mut delete: impl FnMut(&T) -> Result<bool, E>,
) -> Forgotten<E> {
    let mut done = Forgotten { count: 0, failed: None, is_left: false };
    for entry in stale {
        if flag.is_raised() {
            done.is_left = true;
            break;
        }
        match delete(entry) {
            Ok(was_there) => done.count += usize::from(was_there),
            Err(error) => drop(done.failed.get_or_insert(error)),
        }
    }
    done
}

impl std::fmt::Debug for Observed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Observed").field("family", &self.family).finish_non_exhaustive()
    }
}

impl Dataplane for Observed {
    fn verify(&mut self, rules: &RuleSet, flag: &YieldFlag) -> Result<Outcome<Vec<String>>, Error> {
        let began = Instant::now();
        let outcome = self.inner.verify(rules, flag);
        if matches!(outcome, Ok(Outcome::Left)) {
            return outcome;
        }
        let ports = rules.ports.values().map(|port| port.lacks_local());
        self.no_local = ports.fold(NoLocalEndpoints::default(), |sum, port| NoLocalEndpoints {
            internal: sum.internal + port.internal,
            external: sum.external + port.external,
        });
        self.is_flow_stale = true;
        self.settle(rules, began, true, outcome)
    }

    fn apply(&mut self, rules: &RuleSet, delta: &Delta) -> Result<(), Error> {
        let began = Instant::now();
        let outcome = self.inner.apply(rules, delta);
        for change in &delta.ports {
            let lacks =
                |port: &Option<Arc<PortRules>>| port.as_ref().map(|p| p.lacks_local()).unwrap_or_default();
            let (old, new) = (lacks(&change.old), lacks(&change.new));
            self.no_local.internal = (self.no_local.internal + new.internal).saturating_sub(old.internal);
            self.no_local.external = (self.no_local.external + new.external).saturating_sub(old.external);
        }
        self.is_flow_stale |= delta.ports.iter().any(|change| is_flow(&change.key));
        self.settle(rules, began, delta.node.is_some(), outcome)
    }

    /// Level-triggered: a look that failed is made up for after the next sync.
    fn tidy(&mut self, rules: &RuleSet, flag: &YieldFlag) -> Outcome<()> {
        if !self.is_flow_stale || !has_flows(rules) {
            self.is_flow_stale = false;
            return Outcome::Done(());
        }
        let (began, family) = (Instant::now(), self.family.name());
        match self.forget_stale(rules, flag) {
            Ok(Outcome::Left) => return Outcome::Left,
            Ok(Outcome::Done(count)) => {
                self.is_flow_stale = false;
                if count > 0 {
                    tracing::info!(family, count, "forgot flows to endpoints that are gone");
                }
            }
            Err(error) => {
                tracing::warn!(family, %error, "flows to endpoints that are gone were not forgotten")
            }
        }
        self.metrics.conntrack_duration.observe_duration([family], began.elapsed());
        Outcome::Done(())
    }

    fn listen(&mut self) -> Result<mpsc::Receiver<()>, Error> {
        self.inner.listen()
    }

    fn last_to_touch(&self) -> Option<String> {
        self.inner.last_to_touch()
    }

    fn hears_the_past(&self) -> bool {
        self.inner.hears_the_past()
    }

    fn is_worth_a_look(&self, rules: &RuleSet) -> bool {
        self.inner.is_worth_a_look(rules)
    }
}

fn is_flow(key: &PortKey) -> bool {
    key.protocol != Protocol::Tcp
}

fn has_flows(rules: &RuleSet) -> bool {
    rules.ports.keys().any(is_flow)
}

pub(crate) fn flow(entry: &Entry) -> Option<Flow> {
    let protocol = [Protocol::Udp, Protocol::Sctp].into_iter().find(|p| p.number() == entry.protocol)?;
    let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    let destination = canonical(entry.destination);
    Some(Flow {
        protocol,
        destination: destination.ip(),
        port: destination.port(),
        answers_from: canonical(entry.answers_from),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_that_stays_keeps_no_other() {
        let flag = YieldFlag::default();
        let delete = |number: &u32| match number {
            1 | 3 => Err(*number),
            number => Ok(*number != 2),
        };
        let done = forget(&[0, 1, 2, 3, 4], &flag, delete);
        assert_eq!((done.count, done.failed, done.is_left), (2, Some(1), false));
        flag.raise();
        let done = forget(&[0, 1], &flag, delete);
        assert_eq!((done.count, done.failed, done.is_left), (0, None, true));
    }
}
