//! Listening ports that no stranger can lock (docs/decisions/014.md).
//!
//! [`run`] accepts for as long as it is told to. [`Places`] decides who may stay when there is no more room, and is pure.
//! [`Connections`] is what the listeners of a port share: the places, the clock and what is counted. A handler gets a
//! [`Stream`], which gives its place back when it is dropped, and a [`Connection`] to say what becomes of it: that
//! something is asked, that it was answered, that the other end is known.

mod connection;
mod connections;
mod descriptors;
mod http1;
mod idle_timeout;
mod listener;
mod metrics;
mod places;
mod request;

pub use connection::{Connection, Stream};
pub use connections::{Connections, Peer};
pub use descriptors::{Budget, raise_open_files};
pub use http1::{Http1, converse};
pub use idle_timeout::{IdleTimeoutStream, Limit};
pub use listener::{Accept, Plan, run};
pub use metrics::Metrics;
pub use places::{Entered, Id, Limits, Places, Pool, Proof, Refused, Source, Times, Verdict, Why, network};
pub use request::{Held, Late, OpenRequest, Within};
