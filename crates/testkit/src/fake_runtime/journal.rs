//! Every effect, in the order in which it happened, and what must be true of them all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// One thing that really happened in the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Since the runtime was made.
    pub at: Duration,
    pub op: Op,
    pub pod: String,
    pub pod_uid: String,
    /// Empty for a sandbox.
    pub container: String,
    pub id: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    RunSandbox,
    StopSandbox,
    RemoveSandbox,
    Create,
    CreateFailed,
    Start,
    StartFailed,
    /// StopContainer was asked for, with this grace.
    Stop {
        grace: i64,
    },
    /// TERM ran out of time.
    Killed,
    Exit {
        code: i32,
    },
    Remove {
        running: bool,
    },
    /// It runs on with other resources.
    Resize,
    Exec,
    Pull,
    RemoveImage,
}

#[derive(Clone, Debug, Default)]
pub struct Journal {
    entries: Vec<Entry>,
}

// === impl Journal ===

impl Journal {
    pub(super) fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Entries about one container of one Pod (by name).
    pub fn of<'a>(&'a self, pod: &'a str, container: &'a str) -> impl Iterator<Item = &'a Entry> {
        self.entries.iter().filter(move |e| e.pod == pod && e.container == container)
    }

    /// How often a container of a Pod was started.
    #[must_use]
    pub fn starts(&self, pod: &str, container: &str) -> usize {
        self.of(pod, container).filter(|e| e.op == Op::Start).count()
    }

    /// The graces a container was stopped with, in order.
    #[must_use]
    pub fn graces(&self, pod: &str, container: &str) -> Vec<i64> {
        let grace = |e: &Entry| if let Op::Stop { grace } = e.op { Some(grace) } else { None };
        self.of(pod, container).filter_map(grace).collect()
    }

    /// What must never happen, whatever the weather: two live instances of one container in a Pod,
    /// two live sandboxes of a Pod, an id used twice, a live container removed.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut live: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
        let mut ids = BTreeSet::new();
        for e in &self.entries {
            let instances = live.entry((&e.pod_uid, &e.container)).or_default();
            match e.op {
                Op::RunSandbox | Op::Start => {
                    instances.insert(&e.id);
                    if instances.len() > 1 {
                        wrong.push(format!("two live instances of {}/{:?}: {e:?}", e.pod, e.container));
                    }
                }
                Op::StopSandbox | Op::Exit { .. } => _ = instances.remove(e.id.as_str()),
                Op::Remove { running: true } => wrong.push(format!("removed while running: {e:?}")),
                _ => {}
            }
            if matches!(e.op, Op::RunSandbox | Op::Create) && !ids.insert(&e.id) {
                wrong.push(format!("id used twice: {e:?}"));
            }
        }
        wrong
    }
}
