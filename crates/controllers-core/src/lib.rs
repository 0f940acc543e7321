//! The controllers' decisions, as pure functions: what is there, and what to write.
//!
//! # How to write a controller
//!
//! One file (or directory) here and one line in [`table::CONTROLLERS`]. [`replica_set`](crate::table) is the example to read.
//!
//! 1. **The row** ([`controller::Row`]): upstream's names, identity, queue label, workers and retry rule (`facts` section 10),
//!    what is watched and what else is read. Whatever a controller looks at must be in `watches` or `reads`, or the view is empty.
//!    A controller with two queues is two rows with one name.
//! 2. **Watches** ([`controller::Watch`]): a change comes in, keys go out. `old` or `new` is missing when an object comes or
//!    goes; an object that was replaced by another of its name comes as two changes. At the start every object comes as an
//!    addition, so a controller never needs to list by itself.
//! 3. **`reconcile`**: reads the [`view::View`], returns a [`plan::Plan`]. It is level-triggered: it must come to the right
//!    thing from any state, also half way through what it did before. It never waits and never asks anybody. An object is read
//!    with [`object::Object::decode`] (typed) or [`object::Object::value`] (JSON: fields nobody knows survive a write); one that
//!    cannot be read becomes [`plan::Plan::unreadable`].
//! 4. **Acts** ([`plan::Act`]) are grouped in steps: in turn, at once, or in slow start. A step that had a failure is the last
//!    one of its plan. What is not in the cache is asked for with `Act::Get`, and read in `settle`.
//! 5. **`settle`**: called with what became of the acts ([`plan::Done`]); returns a further plan: the status with a
//!    failure in it, events that name what was made. Called again after each plan that has acts.
//! 6. **What the agent does for you**: a key is not looked at again before the caches have seen everything that was
//!    written for it (so there are no expectations to keep: count what the view shows); a failed request or
//!    [`plan::Plan::failed`] is tried again after the row's pause; `wake` comes back after a time, `again` as soon as the cache
//!    is up to date, `others` names further keys; nobody is called before the first lists of all it watches and reads are complete.
//! 7. Compare before you write: a status that does not change is not written ([`plan::Act::update_status`] does not look).
//! 8. **Tests**: tables with `testing::World`: drafts or YAML in, [`plan::Plan`] as short text out.
//!
//! # Rooms
//!
//! * [`resource`], [`object`], [`view`], [`cache`]: what is there.
//! * [`ownership`]: who owns whom, of all objects of all kinds.
//! * [`plan`], [`key`], [`controller`], [`table`]: what is done, and who does it.
//! * [`measure`]: what is counted of all that, under upstream's names.
//! * [`terms`], [`conditions`], [`claim`], [`names`], [`template`], [`rank`], [`disruption`]: words and rules that controllers share.

mod bootstrap;
pub mod cache;
mod certificates;
pub mod claim;
mod cluster_role_aggregation;
pub mod conditions;
pub mod controller;
mod cron_job;
mod csr_cleaner;
mod daemon_set;
mod deployment;
pub mod disruption;
mod endpoints;
mod garbage;
mod horizontal_pod_autoscaler;
mod job;
pub mod key;
mod kinds;
mod legacy_token_cleaner;
pub mod measure;
pub mod names;
mod namespace;
mod node;
#[cfg(test)]
mod nonsense_tests;
pub mod object;
mod owned;
pub mod ownership;
pub mod plan;
mod pod_disruption_budget;
mod pod_gc;
pub mod rank;
mod replica_set;
pub mod resource;
mod resource_quota;
mod revision;
mod root_ca_publisher;
mod secrets;
mod service_account;
mod service_account_tokens;
mod service_cidr;
mod stateful_set;
pub mod table;
mod taint_eviction;
pub mod template;
pub mod terms;
#[cfg(test)]
#[allow(dead_code)] // Words for tables: not every one is used at every moment.
mod testing;
mod ttl_after_finished;
pub mod view;
mod volume;
mod volume_attributes_class_protection;
