//! Everything watched, and which Services changed since somebody last looked.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;

use super::address::{Cidr, Family};
use super::key::ServiceKey;
use super::names::Names;
use super::node::NodeView;
use super::service::Service;
use super::slice::Slice;

/// The watched objects in compact form. Each family has its own account of what changed, because each is
/// brought to the kernel on its own.
#[derive(Clone, Debug)]
pub struct Cluster {
    node_name: Arc<str>,
    node: NodeView,
    services: BTreeMap<ServiceKey, Service>,
    /// Most Services have one slice: a short list, sorted by name, is the smallest map there is.
    slices: BTreeMap<ServiceKey, Vec<(Arc<str>, Slice)>>,
    /// A slice is deleted by its own name; the label that ties it to a Service may have moved since.
    slice_owners: BTreeMap<SliceId, ServiceKey>,
    service_cidrs: BTreeMap<String, Vec<Cidr>>,
    names: Names,
    is_listed: Listed,
    /// While a list is being told: what was there before, and was not told again yet.
    untold_services: Option<BTreeSet<ServiceKey>>,
    untold_slices: Option<BTreeSet<SliceId>>,
    changed: [BTreeSet<ServiceKey>; 2],
}

/// Namespace and name.
type SliceId = (Arc<str>, Arc<str>);

/// The Services of one family whose rules have to be looked at again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed(pub BTreeSet<ServiceKey>);

#[derive(Clone, Copy, Debug, Default)]
struct Listed {
    services: bool,
    slices: bool,
}

// === impl Cluster ===

impl Cluster {
    pub fn new(node_name: &str) -> Self {
        Self {
            node_name: node_name.into(),
            node: NodeView::default(),
            services: BTreeMap::new(),
            slices: BTreeMap::new(),
            slice_owners: BTreeMap::new(),
            service_cidrs: BTreeMap::new(),
            names: Names::default(),
            is_listed: Listed::default(),
            untold_services: None,
            untold_slices: None,
            changed: Default::default(),
        }
    }

    /// A whole list: what is not in it is gone.
    pub fn replace_services(&mut self, services: &[core::Service]) {
        self.begin_services();
        for service in services {
            self.put_service(service);
        }
        self.end_services();
    }

    /// A whole list: what is not in it is gone.
    pub fn replace_slices(&mut self, slices: &[EndpointSlice]) {
        self.begin_slices();
        for slice in slices {
            self.put_slice(slice);
        }
        self.end_slices();
    }

    /// A whole list is about to be told, one by one.
    pub fn begin_services(&mut self) {
        self.untold_services = Some(self.services.keys().cloned().collect());
    }

    /// That was the list: what was not in it is gone. Says whether that matters.
    pub fn end_services(&mut self) -> bool {
        let gone = self.untold_services.take().unwrap_or_default();
        let is_first = !mem::replace(&mut self.is_listed.services, true);
        gone.iter().for_each(|key| {
            self.remove_service(key);
        });
        is_first || !gone.is_empty()
    }

    /// A whole list is about to be told, one by one.
    pub fn begin_slices(&mut self) {
        self.untold_slices = Some(self.slice_owners.keys().cloned().collect());
    }

    /// That was the list: what was not in it is gone. Says whether that matters.
    pub fn end_slices(&mut self) -> bool {
        let gone = self.untold_slices.take().unwrap_or_default();
        let is_first = !mem::replace(&mut self.is_listed.slices, true);
        for (namespace, name) in &gone {
            self.remove_slice(namespace, name);
        }
        is_first || !gone.is_empty()
    }

    /// Added or modified. Says whether anything that matters is different now.
    pub fn put_service(&mut self, service: &core::Service) -> bool {
        match Service::read(service) {
            Some((key, mut new)) => {
                let key = self.shared_key(key);
                for port in &mut new.ports {
                    self.names.share(&mut port.name);
                }
                self.set_service(key, Some(new))
            }
            None => service_key(service).is_some_and(|key| self.set_service(key, None)),
        }
    }

    /// Some of it could not be read: what is known of it stays, and where nothing is, this is better.
    pub fn keep_service(&mut self, service: &core::Service) -> bool {
        let Some(key) = service_key(service) else { return false };
        match (self.services.contains_key(&key), &mut self.untold_services) {
            (false, _) => return self.put_service(service),
            (true, Some(untold)) => _ = untold.remove(&key),
            (true, None) => {}
        }
        false
    }

    /// Something in the list could not be told from the rest: nothing is gone.
    pub fn keep_services(&mut self) {
        self.untold_services.iter_mut().for_each(BTreeSet::clear);
    }

    pub fn remove_service(&mut self, key: &ServiceKey) -> bool {
        self.set_service(key.clone(), None)
    }

    /// Added or modified. Says whether anything that matters is different now.
    pub fn put_slice(&mut self, slice: &EndpointSlice) -> bool {
        let Some(mut id) = slice_key(slice) else { return false };
        if let Some(untold) = &mut self.untold_slices {
            untold.remove(&id);
        }
        self.names.share(&mut id.0);
        let read = Slice::read(slice, &self.node_name);
        let is_moved = match (self.slice_owners.get(&id), &read) {
            (Some(owner), Some((service, _))) => owner != service,
            (Some(_), None) => true,
            (None, _) => false,
        };
        let was_removed = is_moved && self.remove_slice(&id.0, &id.1);
        let Some((service, mut new)) = read else { return was_removed };
        let service = self.shared_key(service);
        self.share_names(&mut new);
        let family = new.family;
        let of_service = self.slices.entry(service.clone()).or_insert_with(|| Vec::with_capacity(1));
        let old = match of_service.binary_search_by(|(name, _)| name.cmp(&id.1)) {
            Ok(at) if of_service[at].1 == new => return was_removed,
            Ok(at) => Some(mem::replace(&mut of_service[at].1, new)),
            Err(at) => {
                of_service.insert(at, (id.1.clone(), new));
                self.slice_owners.insert(id, service.clone());
                None
            }
        };
        for family in [Some(family), old.map(|old| old.family)].into_iter().flatten() {
            self.changed[family as usize].insert(service.clone());
        }
        true
    }

    /// As [`Cluster::keep_service`].
    pub fn keep_slice(&mut self, slice: &EndpointSlice) -> bool {
        let Some(id) = slice_key(slice) else { return false };
        match (self.slice_owners.contains_key(&id), &mut self.untold_slices) {
            (false, _) => return self.put_slice(slice),
            (true, Some(untold)) => _ = untold.remove(&id),
            (true, None) => {}
        }
        false
    }

    /// As [`Cluster::keep_services`].
    pub fn keep_slices(&mut self) {
        self.untold_slices.iter_mut().for_each(BTreeSet::clear);
    }

    pub fn remove_slice(&mut self, namespace: &str, name: &str) -> bool {
        let Some(service) = self.slice_owners.remove(&(namespace.into(), name.into())) else { return false };
        let Some(of_service) = self.slices.get_mut(&service) else { return false };
        let Some(at) = of_service.iter().position(|(known, _)| **known == *name) else { return false };
        let (_, removed) = of_service.remove(at);
        if of_service.is_empty() {
            self.slices.remove(&service);
        }
        self.changed[removed.family as usize].insert(service);
        true
    }

    /// Says whether anything that matters is different now. A Node of another name is somebody else's.
    pub fn put_node(&mut self, node: &core::Node) -> bool {
        if node.metadata.name.as_deref() != Some(&*self.node_name) {
            return false;
        }
        self.set_node(NodeView::read(node))
    }

    /// What is known of this node from elsewhere. An address that it was said to have is not lost when nothing is said of
    /// it any more: where none is known, node ports would be open on all.
    pub fn set_node(&mut self, new: NodeView) -> bool {
        let new = new.keeping_addresses_of(&self.node);
        let is_new = new != self.node;
        self.node = new;
        is_new
    }

    /// The machine is still here, with its addresses and its place in the topology. As upstream, which only tells of it,
    /// nothing changes.
    pub fn remove_node(&self) -> bool {
        false
    }

    pub fn put_service_cidr(&mut self, range: &ServiceCIDR) -> bool {
        let Some(name) = range.metadata.name.clone() else { return false };
        let cidrs = range.spec.iter().filter_map(|spec| spec.cidrs.as_ref()).flatten();
        let new: Vec<Cidr> = cidrs.filter_map(|cidr| Cidr::parse(cidr)).collect();
        self.service_cidrs.insert(name, new.clone()) != Some(new)
    }

    /// As [`Cluster::keep_service`].
    pub fn keep_service_cidr(&mut self, range: &ServiceCIDR) -> bool {
        let is_known = range.metadata.name.as_ref().is_some_and(|name| self.service_cidrs.contains_key(name));
        !is_known && self.put_service_cidr(range)
    }

    pub fn remove_service_cidr(&mut self, name: &str) -> bool {
        self.service_cidrs.remove(name).is_some()
    }

    /// What changed since the last call. `None` until Services and slices have both been listed: rules made
    /// from half a cluster would cut live traffic.
    pub fn take_changes(&mut self, family: Family) -> Option<Changed> {
        self.is_complete().then(|| Changed(mem::take(&mut self.changed[family as usize])))
    }

    /// Whether Services and slices have both been listed.
    pub fn is_complete(&self) -> bool {
        self.is_listed.services && self.is_listed.slices
    }

    pub fn node_name(&self) -> &str {
        &self.node_name
    }

    pub fn node(&self) -> &NodeView {
        &self.node
    }

    pub fn services(&self) -> impl Iterator<Item = (&ServiceKey, &Service)> {
        self.services.iter()
    }

    pub fn service(&self, key: &ServiceKey) -> Option<&Service> {
        self.services.get(key)
    }

    pub fn slices(&self, key: &ServiceKey) -> impl Iterator<Item = &Slice> {
        self.slices.get(key).into_iter().flatten().map(|(_, slice)| slice)
    }

    /// Where Service addresses come from, in one family, sorted.
    pub fn service_cidrs(&self, family: Family) -> BTreeSet<Cidr> {
        self.service_cidrs.values().flatten().copied().filter(|cidr| cidr.family() == family).collect()
    }

    /// The same key, in the memory that is already held for it.
    fn shared_key(&mut self, mut key: ServiceKey) -> ServiceKey {
        let of_service = self.services.get_key_value(&key).map(|(known, _)| known);
        let known = of_service.or_else(|| self.slices.get_key_value(&key).map(|(known, _)| known));
        if let Some(known) = known {
            return known.clone();
        }
        self.names.share(&mut key.namespace);
        key
    }

    fn share_names(&mut self, slice: &mut Slice) {
        for port in &mut slice.ports {
            self.names.share(&mut port.name);
        }
        for zone in slice.endpoints.iter_mut().flat_map(|endpoint| &mut endpoint.zone_hints) {
            self.names.share(zone);
        }
    }

    fn set_service(&mut self, key: ServiceKey, new: Option<Service>) -> bool {
        if let Some(untold) = &mut self.untold_services {
            untold.remove(&key);
        }
        if self.services.get(&key) == new.as_ref() {
            return false;
        }
        let has = |service: &Option<Service>, family| {
            service.as_ref().is_some_and(|service| service.cluster_ip(family).is_some())
        };
        let old = self.services.remove(&key);
        for family in Family::BOTH {
            if has(&old, family) || has(&new, family) {
                self.changed[family as usize].insert(key.clone());
            }
        }
        if let Some(new) = new {
            self.services.insert(key, new);
        }
        true
    }
}

fn service_key(service: &core::Service) -> Option<ServiceKey> {
    Some(ServiceKey::new(service.metadata.namespace.as_deref()?, service.metadata.name.as_deref()?))
}

fn slice_key(slice: &EndpointSlice) -> Option<SliceId> {
    Some((slice.metadata.namespace.as_deref()?.into(), slice.metadata.name.as_deref()?.into()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(name: &str, port: i32) -> core::Service {
        serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": name},
            "spec": {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ports": [{"port": port}]},
        }))
        .unwrap()
    }

    fn slice(name: &str) -> EndpointSlice {
        serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": name, "labels": {"kubernetes.io/service-name": "a"}},
            "addressType": "IPv4", "ports": [{"port": 1}], "endpoints": [{"addresses": ["10.1.0.1"]}],
        }))
        .unwrap()
    }

    #[test]
    fn what_could_not_be_read_stays_as_it_was_known() {
        let mut cluster = Cluster::new("here");
        cluster.replace_services(&[service("a", 80), service("b", 80)]);
        cluster.replace_slices(&[slice("a-1"), slice("a-2")]);
        let key = |name: &str| ServiceKey::new("n", name);
        let port = |cluster: &Cluster, name: &str| cluster.service(&key(name)).map(|s| s.ports[0].port);

        cluster.begin_services();
        assert!(!cluster.keep_service(&service("a", 81)), "known, and so left alone");
        assert!(cluster.keep_service(&service("c", 81)), "half of it is better than nothing");
        cluster.end_services();
        assert_eq!(["a", "b", "c"].map(|name| port(&cluster, name)), [Some(80), None, Some(81)]);
        cluster.begin_slices();
        assert!(!cluster.keep_slice(&slice("a-1")));
        cluster.end_slices();
        assert_eq!(cluster.slices(&key("a")).count(), 1);

        // An item that nobody can name may be any of them.
        cluster.begin_services();
        cluster.keep_services();
        assert!(!cluster.end_services());
        cluster.begin_slices();
        cluster.keep_slices();
        assert!(!cluster.end_slices());
        assert_eq!(["a", "c"].map(|name| port(&cluster, name)), [Some(80), Some(81)]);
        assert_eq!(cluster.slices(&key("a")).count(), 1);
    }
}
