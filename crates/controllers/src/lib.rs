//! kube-controller-manager: the loops that carry out what `controllers-core` decides.
//!
//! * [`certificates`]: the authorities that sign for the cluster.
//! * [`port`]: what the loops need of an API server; [`http`] is the real one.
//! * [`account`]: the same with the rights of one controller's ServiceAccount.
//! * [`resource_informer`]: list and watch of each resource, once, into the shared cache; tells every controller what changed.
//! * [`everything`]: the same of the metadata of all kinds, for the garbage collector.
//! * [`control_loop`]: the queue and the workers of one controller; [`executor`] carries out its plans.
//! * [`barrier`]: why no key is looked at before the caches have seen what was written for it.
//! * [`recorder`]: events, correlated.
//! * [`seen`]: what can be seen of them from outside.
//! * [`agent`]: all of it together.

pub mod account;
pub mod agent;
pub mod barrier;
pub mod certificates;
pub mod control_loop;
mod everything;
pub mod executor;
mod families;
pub mod http;
pub mod metrics;
pub mod port;
mod queue;
pub mod recorder;
pub mod resource_informer;
pub mod seen;
