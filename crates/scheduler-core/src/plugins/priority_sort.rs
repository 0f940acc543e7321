//! PrioritySort: the more important Pod is first, then the one that waits longer.

use std::cmp::Ordering;
use std::sync::Arc;

use api::config::scheduler::PluginArgs;

use crate::framework::Plugin;

#[derive(Debug)]
struct PrioritySort;

/// Where a Pod stands in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    pub priority: i32,
    /// Counts up: what joined the queue earlier has less.
    pub since: u64,
}

pub fn make(_: &PluginArgs) -> Arc<dyn Plugin> {
    Arc::new(PrioritySort)
}

impl Plugin for PrioritySort {}

impl Ord for Rank {
    /// What comes first is less.
    fn cmp(&self, other: &Self) -> Ordering {
        other.priority.cmp(&self.priority).then(self.since.cmp(&other.since))
    }
}

impl PartialOrd for Rank {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priority_goes_before_age() {
        let rank = |priority, since| Rank { priority, since };
        let mut all = [rank(0, 1), rank(10, 3), rank(10, 2), rank(-5, 0)];
        all.sort();
        assert_eq!(all, [rank(10, 2), rank(10, 3), rank(0, 1), rank(-5, 0)]);
    }
}
