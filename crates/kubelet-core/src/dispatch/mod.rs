//! Which Pods have a task, and what is wanted of each: the decisions of the dispatcher, upstream's pod workers.
//!
//! [`Dispatch::on`] takes what happened and says what is to be done about it. Sources send whole sets of desired Pods;
//! each difference is merged into that Pod's intent. What runs and no source lists is ended like any other Pod, though
//! never before every source has reported once.

mod resizing;
mod turn;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use base::ids::PodUid;
use k8s_openapi::api::core::v1::Pod;

use crate::admission::{NodeOffer, Rejection};
use crate::pod::Intent;
use crate::resize::Pending;
use crate::resize::checkpoint::Entries;
use turn::Turn;

/// Reason and message of a Pod that makes way for a critical one.
pub const PREEMPTING: &str = "Preempting";
pub const PREEMPTED: &str = "Preempted in order to admit critical pod";

/// Where Pods come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceName {
    File,
    Url,
    Local,
    Api,
}

/// Everything one source wants to run.
#[derive(Clone, Debug)]
pub struct SourceUpdate {
    pub source: SourceName,
    pub pods: Vec<Arc<Pod>>,
    pub unread: Unread,
}

/// Pods that a source has and cannot read. They are neither begun nor ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unread {
    pub uids: BTreeSet<PodUid>,
    /// There is one of which nobody can say which: it may be any that runs.
    pub has_nameless: bool,
}

/// The node ends a Pod, and says why in its status.
#[derive(Clone, Debug)]
pub struct EndOrder {
    pub uid: PodUid,
    pub reason: &'static str,
    pub message: Cow<'static, str>,
    /// It is no fault of the Pod's: its status says DisruptionTarget.
    pub disrupts: bool,
    /// Seconds at most.
    pub grace: i64,
}

/// What the rest of the node may know: whose things must not be collected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    pub pods: BTreeSet<PodUid>,
    /// Every source has reported once, and what they do not list is being ended.
    pub sources_ready: bool,
}

/// A Pod that was there when this life began.
#[derive(Clone, Debug)]
pub struct Running {
    pub uid: PodUid,
    pub name: FullName,
    /// Its sandbox is ready.
    pub alive: bool,
}

/// What a search came upon.
#[derive(Clone, Debug, Default)]
pub struct Found {
    pub strangers: Vec<(PodUid, Pod)>,
    /// Every Pod the runtime holds; none if it could not be asked.
    pub runtime: Option<BTreeSet<PodUid>>,
    /// Runtime and disk both answered.
    pub complete: bool,
}

/// Namespace and name.
pub type FullName = (String, String);

/// What happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// Before anything else: what runs already, so that a changed manifest waits for its predecessor.
    Stock(Vec<Running>),
    Update(SourceUpdate),
    Order(EndOrder),
    /// The Pod's task has nothing left to do.
    Ended(PodUid),
    /// The Pod's task panicked.
    Died(PodUid),
    /// The node's object was asked for, whatever came of it.
    Asked(PodUid),
    SearchDue,
    Found(Found),
    /// Cgroups were told something else: what shrank is free now.
    Actuated,
    /// Resizes that wait are looked at again from time to time.
    RetryDue,
}

/// What is to be done, in this order.
#[derive(Clone, Debug)]
pub enum Effect {
    /// A task begins once these Pods are gone.
    Begin {
        uid: PodUid,
        intent: Intent,
        after: Vec<PodUid>,
    },
    /// The task that died begins again.
    Respawn(PodUid),
    /// Something else is wanted of the Pod.
    Intend {
        uid: PodUid,
        intent: Intent,
    },
    /// The Pod is over: whoever waits for that need not any longer.
    Over(PodUid),
    /// Nothing more is to be known of it.
    Forget(PodUid),
    /// The API server is asked for the node's object.
    Ask(PodUid),
    /// Runtime and disk are searched for Pods that are not these.
    Search(BTreeSet<PodUid>),
    Publish(Known),
    /// For people and metrics: nothing depends on them.
    Note(Note),
}

#[derive(Clone, Debug)]
pub enum Note {
    /// It is about to be admitted, or not.
    Considered(Arc<Pod>),
    Rejected {
        pod: Arc<Pod>,
        rejection: Rejection,
    },
    /// This one makes way, for want of that resource.
    Preempted {
        pod: Arc<Pod>,
        shortage: String,
    },
    /// It waits for an earlier one of the same name.
    Parked(Arc<Pod>),
    /// It begins a second life under the same UID.
    Restarted(Arc<Pod>),
    /// No source lists it: it is ended.
    Orphaned(Arc<Pod>),
    /// No source lists it, but one that nobody can read may be this one.
    Spared(Arc<Pod>),
    /// Other resources are asked for: resource, requirement, operation.
    ResizeAsked(Vec<[&'static str; 3]>),
    /// They were not granted, for this reason or for this version of the Pod for the first time.
    ResizePending {
        pod: Arc<Pod>,
        pending: Pending,
    },
    /// This node will never grant them; the label says why.
    ResizeInfeasible(&'static str),
    /// What was deferred was granted after all.
    ResizeAccepted(Trigger),
}

/// What made the node look at resizes that wait; a label of `pod_deferred_accepted_resizes_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    PodsAdded,
    PodUpdated,
    PodsRemoved,
    Terminated,
    Resized,
    Periodic,
}

/// The world at this moment, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    pub offer: &'a NodeOffer,
    /// What the cgroups of Pods were last told.
    pub actuated: &'a Entries,
    /// There is an API server that can be asked for the node's labels.
    pub can_ask: bool,
}

/// The state. One task owns it.
#[derive(Clone, Debug, Default)]
pub struct Dispatch {
    /// Sources that have not reported yet. Nothing is ended for want of an owner while any is left.
    silent: BTreeSet<SourceName>,
    /// What each source wants.
    wanted: BTreeMap<SourceName, BTreeMap<PodUid, Arc<Pod>>>,
    /// What each source has and cannot read: nobody's to end.
    unread: BTreeMap<SourceName, Unread>,
    tasks: BTreeMap<PodUid, Task>,
    /// A search has ended since every source reported: what is not known now belongs to nobody.
    searched: bool,
    /// At most one search at a time.
    searching: bool,
    /// Found in the runtime at start and not claimed by a source yet.
    unclaimed: BTreeMap<PodUid, FullName>,
    /// Ran when this life began. An earlier one let them in, and nobody asks again whether they may run here.
    settled: BTreeSet<PodUid>,
    /// Static Pods that wait for another of the same name to be gone.
    parked: Vec<(SourceName, Arc<Pod>)>,
    /// Pods that the node's labels speak against as far as they are known here; the API server is asked for them.
    asking: BTreeSet<PodUid>,
    /// What an earlier life granted to Pods that no source has listed yet.
    granted: Entries,
    /// How many resizes have begun to wait.
    waited: u64,
}

/// A Pod that has a task.
#[derive(Clone, Debug)]
pub struct Task {
    pub intent: Intent,
    pub finished: bool,
    name: FullName,
    /// It was let in and holds its place until it has ended. Rejected Pods and orphans hold none.
    admitted: bool,
    /// The same UID was wanted again while this one was ending.
    again: Option<(SourceName, Arc<Pod>)>,
    /// When its resize began to wait, among all others.
    waits: Option<u64>,
}

// === impl Trigger ===

impl Trigger {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PodsAdded => "pods_added",
            Self::PodUpdated => "pod_updated",
            Self::PodsRemoved => "pods_removed",
            Self::Terminated => "pod_terminated",
            Self::Resized => "pod_resized",
            Self::Periodic => "periodic_retry",
        }
    }
}

// === impl SourceName ===

impl SourceName {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            SourceName::File => "file",
            SourceName::Url => "http",
            SourceName::Local => "local",
            SourceName::Api => "api",
        }
    }
}

impl fmt::Display for SourceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl Dispatch ===

impl Dispatch {
    /// `sources` are all that will ever report.
    #[must_use]
    pub fn new(sources: impl IntoIterator<Item = SourceName>) -> Self {
        Self { silent: sources.into_iter().collect(), ..Self::default() }
    }

    /// With what an earlier life of the agent granted.
    #[must_use]
    pub fn with_granted(self, granted: Entries) -> Self {
        Self { granted, ..self }
    }

    /// How many Pods wait for other resources, by reason.
    #[must_use]
    pub fn pending_resizes(&self) -> BTreeMap<&'static str, u32> {
        let mut counts = BTreeMap::new();
        for pending in self.tasks.values().filter_map(|t| t.intent.pending.as_ref()) {
            *counts.entry(pending.reason.as_str()).or_default() += 1;
        }
        counts
    }

    /// Takes what happened; says what is to be done.
    pub fn on(&mut self, event: Event, around: Surroundings<'_>) -> Vec<Effect> {
        let mut turn = Turn::new(self, around);
        turn.take(event);
        turn.effects
    }

    /// Every Pod that a source wants.
    pub fn wanted(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.wanted.values().flat_map(BTreeMap::values)
    }

    pub fn tasks(&self) -> impl Iterator<Item = (&PodUid, &Task)> {
        self.tasks.iter()
    }

    /// A source lists it, or has something unreadable under this UID.
    #[must_use]
    pub fn is_wanted(&self, uid: &PodUid) -> bool {
        self.wanted.values().any(|w| w.contains_key(uid))
            || self.unread.values().any(|unread| unread.uids.contains(uid))
    }

    /// The Pods that have a task or an owner.
    fn known(&self) -> BTreeSet<PodUid> {
        let listed = self.wanted.values().flat_map(BTreeMap::keys);
        let unread = self.unread.values().flat_map(|unread| &unread.uids);
        self.tasks.keys().chain(listed).chain(unread).cloned().collect()
    }
}

/// Namespace and name of a Pod.
#[must_use]
pub fn full_name(pod: &Pod) -> FullName {
    let m = &pod.metadata;
    (m.namespace.clone().unwrap_or_default(), m.name.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests;
