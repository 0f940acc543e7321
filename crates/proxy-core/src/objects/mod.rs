//! The compact inputs: what a proxy needs of the objects it watches, and nothing else.

mod address;
mod cluster;
mod key;
mod names;
mod node;
mod service;
mod slice;

pub use address::{Cidr, Family, parse_ip};
pub use cluster::{Changed, Cluster};
pub use key::{PortKey, Protocol, ServiceKey};
pub use node::NodeView;
pub use service::{Service, ServicePort};
pub use slice::{MergedEndpoint, NodeHint, Slice, SliceEndpoint, SlicePort, merge};
