//! What a source of objects says.

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use proxy_core::objects::{Cluster, ServiceKey};
use proxy_core::rules::Host;

/// One piece of news. Whole lists come first, and again after a watch was lost; nothing is written before both
/// of them have come. A list is told object by object, between its beginning and its end: a large one is never held
/// as it came.
#[derive(Clone, Debug)]
pub enum Update {
    Begin(Listed),
    End(Listed),
    /// An item of a list that nobody can name: nothing is gone.
    Nameless(Listed),
    Service(Box<Service>),
    /// Some of it could not be read: what is known of it stays.
    PartOfService(Box<Service>),
    NoService {
        namespace: String,
        name: String,
    },
    Slice(Box<EndpointSlice>),
    PartOfSlice(Box<EndpointSlice>),
    NoSlice {
        namespace: String,
        name: String,
    },
    Node(Box<Node>),
    NoNode,
    ServiceCidr(Box<ServiceCIDR>),
    PartOfServiceCidr(Box<ServiceCIDR>),
    NoServiceCidr {
        name: String,
    },
    /// The machine's own addresses.
    Host(Host),
}

/// What there are lists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    Services,
    Slices,
}

// === impl Update ===

impl Update {
    /// What kind of object changed.
    pub(crate) fn subject(&self) -> Option<Listed> {
        match self {
            Update::Service(_) | Update::PartOfService(_) | Update::NoService { .. } => {
                Some(Listed::Services)
            }
            Update::Slice(_) | Update::PartOfSlice(_) | Update::NoSlice { .. } => Some(Listed::Slices),
            _ => None,
        }
    }

    /// Says whether anything that matters is different now.
    pub(crate) fn absorb(self, cluster: &mut Cluster, host: &mut Host) -> bool {
        match self {
            Update::Begin(what) => {
                match what {
                    Listed::Services => cluster.begin_services(),
                    Listed::Slices => cluster.begin_slices(),
                }
                false
            }
            Update::End(Listed::Services) => cluster.end_services(),
            Update::End(Listed::Slices) => cluster.end_slices(),
            Update::Nameless(what) => {
                match what {
                    Listed::Services => cluster.keep_services(),
                    Listed::Slices => cluster.keep_slices(),
                }
                false
            }
            Update::Service(service) => cluster.put_service(&service),
            Update::PartOfService(service) => cluster.keep_service(&service),
            Update::NoService { namespace, name } => {
                cluster.remove_service(&ServiceKey::new(&namespace, &name))
            }
            Update::Slice(slice) => cluster.put_slice(&slice),
            Update::PartOfSlice(slice) => cluster.keep_slice(&slice),
            Update::NoSlice { namespace, name } => cluster.remove_slice(&namespace, &name),
            Update::Node(node) => cluster.put_node(&node),
            Update::NoNode => cluster.remove_node(),
            Update::ServiceCidr(range) => cluster.put_service_cidr(&range),
            Update::PartOfServiceCidr(range) => cluster.keep_service_cidr(&range),
            Update::NoServiceCidr { name } => cluster.remove_service_cidr(&name),
            Update::Host(new) => {
                let is_new = *host != new;
                *host = new;
                is_new
            }
        }
    }
}
