//! kube-scheduler: watches the cluster, asks `scheduler_core` where each Pod goes, and tells the API server.
//!
//! * [`agent`]: the process: configuration, tasks.
//! * [`informers`]: watched objects become records and are handed to the loop.
//! * [`state`]: what the loop knows, and how news change it.
//! * [`turn`]: one Pod's turn, from the queue to a node or back.
//! * [`bind`]: what is done for a Pod that has a node: volumes, binding.
//! * [`evict`]: Pods are told to make way.
//! * [`status`]: what a Pod's status says of its scheduling.
//! * [`doctor`]: what there is to know about a Pod that does not run.
//! * [`extenders`]: programs of others that have a say.
//! * [`events`]: what users are told.
//! * [`metrics`]: upstream's names.
//! * [`seen`]: what the pages of the secure port show.

pub mod agent;
mod bind;
pub mod doctor;
mod events;
mod evict;
mod extenders;
mod informers;
pub mod metrics;
pub mod seen;
mod state;
mod status;
mod turn;
