//! Registers the node and keeps its status true.

use std::sync::Arc;
use std::time::Duration;

use api::json::ToJson;
use base::rng::Rng;
use client::{ClientError, Request};
use k8s_openapi::api::core::v1::Node as NodeObject;
use kubelet_core::node::NodeEvent;
use kubelet_core::node::conditions::is_ready;
use kubelet_core::node::patch::{has_changed, status_patch};
use kubelet_core::node::register::{self, Registration};
use kubelet_core::node::report::{Schedule, jittered};
use kubelet_core::node::status::{Fixed, REBOOTED, describe};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::Complaint;
use super::look::Look;
use crate::cluster::node_events::NodeEvents;
use crate::cluster::{Cluster, node_path};
use crate::pods::node::Node;

/// First and longest pause between attempts to register.
const REGISTER_MIN: Duration = Duration::from_millis(100);
const REGISTER_MAX: Duration = Duration::from_secs(7);
/// Attempts at one report while others write at the same moment.
const TRIES: u32 = 5;
/// First and longest pause after a report that failed.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// While the node is not ready for the first time, it looks this often, for so long.
const FAST: Duration = Duration::from_millis(100);
const FAST_FOR: Duration = Duration::from_secs(120);
/// A kubelet that starts on a node that was ready says otherwise only after this: the runtime may be slow to
/// answer, and Pods that run are not to be moved because an agent was restarted.
const SETTLE: Duration = Duration::from_secs(20);

/// What a reporter is made of.
#[derive(Clone)]
pub(super) struct ReporterDeps {
    pub(super) cluster: Arc<Cluster>,
    pub(super) node: Arc<Node>,
    /// None: somebody else registers the node.
    pub(super) registration: Option<Registration>,
    pub(super) fixed: Fixed,
    pub(super) look: Look,
    pub(super) events: NodeEvents,
    pub(super) update_frequency: Duration,
    pub(super) report_frequency: Duration,
    pub(super) boot_age: Option<Duration>,
}

#[derive(Clone)]
pub(super) struct Reporter {
    deps: ReporterDeps,
    started: Instant,
    schedule: Schedule,
    rng: Rng,
    /// The object as it was last seen or written.
    latest: Option<Arc<NodeObject>>,
    pod_cidr: String,
    unschedulable: bool,
    said_rebooted: bool,
    /// When it was created in this life of the kubelet; for how long the start took.
    registered: Option<Instant>,
    was_ready: bool,
    /// The pause after the last report, should it have failed.
    pause: Option<Duration>,
    complaint: Complaint,
    about_addresses: Complaint,
}

/// What came of a look at the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Sent,
    NotNeeded,
    /// It would say NotReady of a node that was ready before this kubelet started; see [`SETTLE`].
    Withheld,
}

// === impl Reporter ===

impl Reporter {
    pub(super) fn new(deps: ReporterDeps) -> Reporter {
        Reporter {
            schedule: Schedule::new(deps.report_frequency),
            rng: deps.node.rng_for("node status"),
            started: Instant::now(),
            latest: None,
            pod_cidr: String::new(),
            unschedulable: false,
            said_rebooted: false,
            registered: None,
            was_ready: false,
            pause: None,
            complaint: Complaint::default(),
            about_addresses: Complaint::default(),
            deps,
        }
    }

    pub(super) async fn run(mut self, token: CancellationToken) {
        // Boxed: it holds a whole Node or two across its waits.
        token.run_until_cancelled(Box::pin(self.work())).await;
    }

    async fn work(&mut self) {
        if let Some(registration) = self.deps.registration.clone() {
            self.register(&registration).await;
        }
        self.keep_reporting().await;
    }

    // --- registration ---

    async fn register(&mut self, registration: &Registration) {
        let began = Instant::now();
        let mut pause = REGISTER_MIN;
        loop {
            match self.try_register(registration).await {
                Ok(created) => {
                    self.complaint.clear("registration");
                    if created {
                        self.measure_registration(began);
                    }
                    tracing::info!(node = self.deps.fixed.name, created, "node registered");
                    return;
                }
                Err(error) => self.complaint.log(&error, "registration"),
            }
            // A fifth either way: many nodes may wait for the same server.
            sleep(pause * 4 / 5 + self.rng.up_to(pause * 2 / 5)).await;
            pause = (pause * 2).min(REGISTER_MAX);
        }
    }

    /// True if the object was made, false if it was there.
    async fn try_register(&mut self, registration: &Registration) -> Result<bool, ClientError> {
        let now = self.deps.node.now().wall;
        let moment = self.deps.look.take().await;
        let first = register::first(registration, &self.deps.fixed, moment, now);
        if let Some(problem) = first.problem {
            tracing::warn!(problem, "the node's addresses are not known");
        }
        let client = &self.deps.cluster.client;
        let made: Result<NodeObject, _> =
            client.ask(Request::post("/api/v1/nodes", first.node.to_json())).await;
        match made {
            Ok(node) => {
                self.tell(first.events);
                self.latest = Some(Arc::new(node));
                Ok(true)
            }
            // Who may not create may still find the node there.
            Err(e) if e.is_already_exists() || e.code() == Some(403) => {
                let existing: Result<NodeObject, _> = client.ask(Request::get(self.path())).await;
                let existing = match existing {
                    Err(gone) if gone.is_not_found() => return Err(e),
                    other => other?,
                };
                if let Some(wanted) = register::reconcile(registration, &first.node, &existing) {
                    self.latest = Some(Arc::new(self.patch(&existing, &wanted).await?));
                } else {
                    self.latest = Some(Arc::new(existing));
                }
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }

    fn measure_registration(&mut self, began: Instant) {
        let metrics = &self.deps.node.metrics;
        self.registered = Some(Instant::now());
        if let Some(age) = self.deps.boot_age {
            metrics.node_startup_pre_kubelet_duration_seconds.set([], age.as_secs_f64());
        }
        let before = began.duration_since(self.started);
        metrics.node_startup_pre_registration_duration_seconds.set([], before.as_secs_f64());
        metrics.node_startup_registration_duration_seconds.set([], began.elapsed().as_secs_f64());
    }

    // --- status ---

    async fn keep_reporting(&mut self) {
        let mut own = self.deps.cluster.own_node();
        let mut health = self.deps.node.health.clone();
        let mut due = Instant::now();
        // Not before then: the server failed, or asked for it.
        let mut not_before = due;
        loop {
            let hurry = !self.was_ready && self.latest.is_some() && self.started.elapsed() < FAST_FOR;
            let next = if hurry { due.min(Instant::now() + FAST) } else { due };
            tokio::select! {
                () = sleep_until(next.max(not_before)) => {}
                () = self.deps.look.changed(&mut health), if Instant::now() >= not_before => due = Instant::now(),
                Ok(()) = own.changed() => {
                    let object = own.borrow_and_update().object.clone();
                    if self.latest.is_none() && object.is_some() {
                        // What there was nobody to tell about.
                        due = Instant::now();
                        not_before = due;
                    }
                    self.notice(object).await;
                    continue;
                }
            }
            if Instant::now() < due && !self.would_be_ready().await {
                continue;
            }
            let period = match self.report().await {
                Ok(outcome) => {
                    self.complaint.clear("node status");
                    self.pause = None;
                    let usual = jittered(self.deps.update_frequency, &mut self.rng);
                    // What was withheld is said as soon as it may be.
                    let until_settled = SETTLE.saturating_sub(self.started.elapsed());
                    if outcome == Outcome::Withheld { usual.min(until_settled) } else { usual }
                }
                Err(error) => {
                    self.complaint.log(&error, "node status");
                    let period = self.back_off(&error);
                    not_before = Instant::now() + period;
                    period
                }
            };
            due = Instant::now() + period;
        }
    }

    /// Whether the next report would say that the node is ready, for the first time: that is worth one before its time.
    async fn would_be_ready(&mut self) -> bool {
        let Some(original) = self.latest.clone() else { return false };
        let now = self.deps.node.now().wall;
        let moment = self.deps.look.take().await;
        ready(&describe(&original, &self.deps.fixed, moment, now).node)
    }

    /// How long to leave the server alone.
    fn back_off(&mut self, error: &ClientError) -> Duration {
        let pause = self.pause.map_or(RETRY_MIN, |p| (p * 2).min(RETRY_MAX));
        self.pause = Some(pause);
        error.retry_after().unwrap_or_default().max(pause / 2) + self.rng.up_to(pause / 2)
    }

    /// The object changed on the server: what it asks of the node is done at once.
    async fn notice(&mut self, object: Option<Arc<NodeObject>>) {
        self.latest = object;
        let Some(node) = self.latest.clone() else { return };
        let spec = node.spec.clone().unwrap_or_default();
        let unschedulable = spec.unschedulable.unwrap_or(false);
        if unschedulable != self.unschedulable {
            self.unschedulable = unschedulable;
            let reason = if unschedulable { "NodeNotSchedulable" } else { "NodeSchedulable" };
            self.deps.events.tell(NodeEvent::status(&self.deps.fixed.name, reason));
        }
        self.tell_pod_cidr(&spec.pod_cidrs.unwrap_or_default()).await;
    }

    /// Tells the runtime which addresses are for Pods. A failure is tried again at the next report.
    async fn tell_pod_cidr(&mut self, cidrs: &[String]) {
        let cidr = cidrs.join(",");
        if cidr.is_empty() || cidr == self.pod_cidr {
            return;
        }
        match self.deps.node.runtime.update_runtime_config(&cidr).await {
            Ok(()) => {
                tracing::info!(cidr, "the runtime was told the Pod network");
                self.pod_cidr = cidr;
            }
            Err(error) => tracing::warn!(%error, cidr, "the runtime was not told the Pod network"),
        }
    }

    async fn report(&mut self) -> Result<Outcome, ClientError> {
        let mut last = None;
        for attempt in 0..TRIES {
            match self.try_report(attempt).await {
                Ok(outcome) => return Ok(outcome),
                Err(e) if e.is_conflict() => last = Some(e),
                // Out of reach is out of reach, and gone is gone: five attempts at once find nothing new.
                Err(e) => return Err(e),
            }
        }
        Err(last.unwrap_or_else(|| ClientError::Credentials("no attempt was made".to_owned())))
    }

    async fn try_report(&mut self, attempt: u32) -> Result<Outcome, ClientError> {
        let original = match self.latest.clone().filter(|_| attempt == 0) {
            Some(node) => node,
            None => Arc::new(self.deps.cluster.heartbeats.ask(Request::get(self.path())).await?),
        };
        let now = self.deps.node.now();
        if let Some(cidrs) = original.spec.as_ref().and_then(|s| s.pod_cidrs.clone()) {
            self.tell_pod_cidr(&cidrs).await;
        }
        let moment = self.deps.look.take().await;
        let described = describe(&original, &self.deps.fixed, moment, now.wall);
        if let Some(problem) = &described.problem {
            self.about_addresses.log(problem, "addresses");
        } else {
            self.about_addresses.clear("addresses");
        }
        let (was, is) = (ready(&original), ready(&described.node));
        if was && !is && !self.was_ready && self.started.elapsed() < SETTLE {
            return Ok(Outcome::Withheld);
        }
        let changed = has_changed(&original, &described.node);
        if !self.schedule.is_due(changed, now.mono) {
            self.was_ready |= is;
            return Ok(Outcome::NotNeeded);
        }
        let updated = self.patch(&original, &described.node).await?;
        self.schedule.sent(changed, now.mono, &mut self.rng);
        self.latest = Some(Arc::new(updated));
        if is && !self.was_ready {
            self.was_ready = true;
            self.measure_ready();
        }
        self.tell(described.events);
        Ok(Outcome::Sent)
    }

    fn measure_ready(&self) {
        let Some(registered) = self.registered else { return };
        let metrics = &self.deps.node.metrics;
        metrics.node_startup_post_registration_duration_seconds.set([], registered.elapsed().as_secs_f64());
        if let Some(age) = self.deps.boot_age {
            let whole = age + self.started.elapsed();
            metrics.node_startup_duration_seconds.set([], whole.as_secs_f64());
        }
    }

    async fn patch(&self, old: &NodeObject, new: &NodeObject) -> Result<NodeObject, ClientError> {
        let patch = status_patch(old, new);
        let path = format!("{}/status", self.path());
        self.deps.cluster.heartbeats.ask(Request::strategic_patch(path, patch.to_string())).await
    }

    fn tell(&mut self, events: Vec<NodeEvent>) {
        for event in events {
            let reboot = event.reason == REBOOTED;
            if !(reboot && self.said_rebooted) {
                self.said_rebooted |= reboot;
                self.deps.events.tell(event);
            }
        }
    }

    fn path(&self) -> String {
        node_path(&self.deps.cluster.node_name)
    }
}

fn ready(node: &NodeObject) -> bool {
    let status: Option<&k8s_openapi::api::core::v1::NodeStatus> = node.status.as_ref();
    status.and_then(|s| s.conditions.as_deref()).is_some_and(is_ready)
}
