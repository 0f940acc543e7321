//! What cluster DNS says: the zone of Services, EndpointSlices and Pods, and the answers from it.
//!
//! [`query::read`] takes bytes apart, [`lookup::answer`] finds what the zone has to say, [`message::Answer::write`] makes bytes
//! of it that are never more than the client takes. [`corefile`] reads CoreDNS's configuration. Data in, data out: who
//! asks, when, and what an upstream says is for the agent.

pub mod cache;
pub mod corefile;
pub mod hosts;
pub mod lookup;
pub mod message;
pub mod name;
pub mod objects;
pub mod query;
pub mod resolv;
pub mod reverse;
pub mod route;
pub mod zone;

pub use domain::base::Rtype;
pub use domain::base::iana::{Class, Rcode};
