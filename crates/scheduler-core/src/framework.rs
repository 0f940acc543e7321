//! What a plugin is: its extension points, all of which it may leave as they are.

use std::any::Any;
use std::fmt;

use crate::Name;
use crate::cluster::Cluster;
use crate::event::{Action, Event, Resource};
use crate::node::NodeInfo;
use crate::pod::Pod;
use crate::status::Rejection;

/// The best a node can score, before the plugin's weight.
pub const MAX_SCORE: i64 = 100;

/// Whether a node may be used.
pub type Verdict = Result<(), Rejection>;

/// What a plugin found out about a Pod before it looked at nodes.
#[derive(Debug)]
pub enum PreFilter {
    /// It has nothing to say about this Pod: its `filter` is not asked.
    Skip,
    Pass(State),
    /// Only these nodes can fit.
    Only(State, Vec<Name>),
    /// No node fits.
    Reject(Rejection),
    /// Nobody can say.
    Error(String),
}

/// The same before nodes are scored.
#[derive(Debug)]
pub enum PreScore {
    Skip,
    Pass(State),
    Error(String),
}

/// What a plugin remembers of a Pod for the length of a cycle.
#[derive(Default)]
pub struct State(Option<Box<dyn Data>>);

/// Anything that can be copied for a trial.
trait Data: Send + Sync {
    fn copy(&self) -> Box<dyn Data>;
    fn any(&self) -> &dyn Any;
    fn any_mut(&mut self) -> &mut dyn Any;
}

/// A plugin. Where and whether its points are called is the profile's business.
pub trait Plugin: fmt::Debug + Send + Sync {
    /// Whether a Pod may wait for its turn at all.
    fn pre_enqueue(&self, _pod: &Pod) -> Verdict {
        Ok(())
    }

    fn pre_filter(&self, _cluster: &Cluster, _pod: &Pod) -> PreFilter {
        PreFilter::Pass(State::default())
    }

    fn filter(&self, _cluster: &Cluster, _pod: &Pod, _state: &State, _info: &NodeInfo) -> Verdict {
        Ok(())
    }

    /// `other` comes to the node (`by` is 1) or goes from it (-1): what `pre_filter` found out is kept true.
    fn update(
        &self,
        _cluster: &Cluster,
        _pod: &Pod,
        _state: &mut State,
        _other: &Pod,
        _info: &NodeInfo,
        _by: i64,
    ) {
    }

    /// `filtered` is what `pre_filter` has left.
    fn pre_score(&self, _cluster: &Cluster, _pod: &Pod, _filtered: &State, _nodes: &[&NodeInfo]) -> PreScore {
        PreScore::Pass(State::default())
    }

    /// Writes a score for each node.
    fn score(
        &self,
        _cluster: &Cluster,
        _pod: &Pod,
        _state: &State,
        _nodes: &[&NodeInfo],
        _scores: &mut [i64],
    ) {
    }

    /// Brings the scores between 0 and [`MAX_SCORE`].
    fn normalise(&self, _state: &State, _scores: &mut [i64]) {}

    /// What may make a Pod fit that this plugin refused.
    fn interests(&self) -> &'static [(Resource, Action)] {
        &[]
    }

    /// Whether this very event may.
    fn wakes(&self, _cluster: &Cluster, _pod: &Pod, _event: &Event) -> bool {
        true
    }
}

// === impl State ===

impl State {
    pub fn new<T: Any + Clone + Send + Sync>(data: T) -> State {
        State(Some(Box::new(data)))
    }

    #[must_use]
    pub fn get<T: Any>(&self) -> Option<&T> {
        self.0.as_ref().and_then(|data| (**data).any().downcast_ref())
    }

    pub fn get_mut<T: Any>(&mut self) -> Option<&mut T> {
        self.0.as_mut().and_then(|data| (**data).any_mut().downcast_mut())
    }
}

impl Clone for State {
    fn clone(&self) -> Self {
        State(self.0.as_ref().map(|data| (**data).copy()))
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "State" } else { "State(none)" })
    }
}

impl<T: Any + Clone + Send + Sync> Data for T {
    fn copy(&self) -> Box<dyn Data> {
        Box::new(self.clone())
    }

    fn any(&self) -> &dyn Any {
        self
    }

    fn any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// The usual way: the best gets [`MAX_SCORE`], the others in proportion; or the other way round.
pub fn normalise_by_most(scores: &mut [i64], is_reversed: bool) {
    let most = scores.iter().copied().max().unwrap_or(0);
    for score in scores {
        *score = match (most, is_reversed) {
            (0, true) => MAX_SCORE,
            (0, false) => *score,
            (most, false) => MAX_SCORE * *score / most,
            (most, true) => MAX_SCORE - MAX_SCORE * *score / most,
        };
    }
}
