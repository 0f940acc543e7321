//! What a controller is, and its row in the table.

use std::fmt;
use std::time::Duration;

use api::config::controllers::Tuning;
use base::time::Now;

use crate::cache::Change;
pub use crate::key::Key;
use crate::ownership::Graph;
use crate::plan::{Done, Plan};
use crate::resource::Resource;
use crate::view::View;

/// Decides for one key at a time. What it remembers is lost when the process ends, so it must be no more than a convenience.
pub trait Controller: Send {
    /// What to do, from what is there. Never does anything itself.
    fn reconcile(&mut self, view: &dyn View, key: &Key, now: Now) -> Plan;

    /// What follows from what became of the steps, failures included. Called after each plan that has acts, until a plan
    /// has none. A request that failed makes the key be tried again, whatever is answered here.
    fn settle(&mut self, _view: &dyn View, _key: &Key, _now: Now, _done: &Done) -> Plan {
        Plan::nothing()
    }

    /// Sees every change of what it watches, before the keys it wakes: for what only changes tell, such as when a Node was
    /// last heard of. Most need nothing of it.
    fn observe(&mut self, _change: &Change, _now: Now) {}

    /// What it keeps of all objects of all kinds, and has to be told of. Most need nothing of it.
    fn graph(&mut self) -> Option<&mut Graph> {
        None
    }
}

/// One controller.
#[derive(Clone, Copy)]
pub struct Row {
    /// Its name for `--controllers`, in health checks and metrics.
    pub name: &'static str,
    /// Former names that `--controllers` still takes.
    pub aliases: &'static [&'static str],
    /// Its ServiceAccount in kube-system.
    pub identity: &'static str,
    /// `source.component` of its events.
    pub event_source: &'static str,
    /// The label `name` of its queue's metrics.
    pub queue: &'static str,
    pub workers: fn(&Tuning) -> usize,
    pub retry: Retry,
    pub is_on_by_default: bool,
    /// Whose changes wake which keys.
    pub watches: &'static [Watch],
    /// What else it looks at.
    pub reads: &'static [Resource],
    /// It looks at everything at once under [`Key::all`], from the start and whenever it asked to be woken.
    pub is_single: bool,
    pub make: fn(&Tuning) -> Box<dyn Controller>,
}

/// How long a key waits after a failure, and when it is given up until something happens to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    pub first: Duration,
    pub last: Duration,
    pub gives_up_after: Option<u32>,
}

/// What of a resource wakes whom.
#[derive(Clone, Copy)]
pub struct Watch {
    pub resource: Resource,
    pub keys: fn(&Change, &dyn View, &mut Wakes),
}

/// The keys that a change wakes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wakes(pub Vec<(Key, Duration)>);

// === impl Retry ===

impl Retry {
    /// What most controllers have.
    pub const DEFAULT: Retry =
        Retry { first: Duration::from_millis(5), last: Duration::from_secs(1000), gives_up_after: None };

    #[must_use]
    pub const fn gives_up_after(self, failures: u32) -> Retry {
        Retry { gives_up_after: Some(failures), ..self }
    }
}

// === impl Watch ===

impl Watch {
    /// Every change of an object wakes that object.
    #[must_use]
    pub const fn itself(resource: Resource) -> Watch {
        Watch {
            resource,
            keys: |change, _, wakes| wakes.extend(change.object().map(|object| Key::of(object))),
        }
    }
}

// === impl Wakes ===

impl Wakes {
    pub fn add(&mut self, key: Key) {
        self.0.push((key, Duration::ZERO));
    }

    /// Later, or earlier if it was to be woken earlier.
    pub fn add_after(&mut self, key: Key, after: Duration) {
        self.0.push((key, after));
    }

    pub fn extend(&mut self, keys: impl IntoIterator<Item = Key>) {
        self.0.extend(keys.into_iter().map(|key| (key, Duration::ZERO)));
    }
}

// === impl Row ===

impl Row {
    /// Everything that has to be cached for it.
    pub fn resources(&self) -> impl Iterator<Item = Resource> + '_ {
        self.watches.iter().map(|watch| watch.resource).chain(self.reads.iter().copied())
    }

    #[must_use]
    pub fn answers_to(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Row").field("name", &self.name).field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Watch").field(&self.resource).finish()
    }
}
