//! The zone: Services and their ready endpoints, kept small. An endpoint costs an address, a pointer to its hostname if it
//! has one, and its place in the index by address.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use crate::name::{self, Name};
use crate::objects;

/// What is followed. A list of each must be whole before anybody may hear that a name does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Services,
    Slices,
    Namespaces,
    Pods,
}

#[derive(Debug, Default)]
pub struct Zone {
    /// By `service.namespace`.
    ids: HashMap<Box<str>, u32>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Whose each slice is, by `namespace/name`.
    slices: HashMap<Box<str>, u32>,
    cluster_ips: HashMap<IpAddr, u32>,
    endpoint_ips: HashMap<IpAddr, Owners>,
    namespaces: HashSet<Box<str>>,
    pods: HashMap<Box<str>, Box<[IpAddr]>>,
    pod_ips: HashMap<IpAddr, Vec<Box<str>>>,
    keeps_pod_names: bool,
    lists: [List; 4],
    /// Changes with the zone; the agent's clock says to what.
    serial: u32,
}

/// A Service, its slices, or both: either may come first.
#[derive(Debug, Default)]
pub struct Entry {
    pub name: Box<str>,
    pub namespace: Box<str>,
    pub service: Option<Service>,
    pub slices: Vec<Slice>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Service {
    ClusterIp {
        ips: Box<[IpAddr]>,
        ports: Box<[Port]>,
    },
    Headless,
    /// Without a name to point to, if what it names is an address or no name at all.
    External(Option<Name>),
}

#[derive(Debug, PartialEq, Eq)]
pub struct Port {
    pub name: Box<str>,
    /// In lower case.
    pub protocol: Box<str>,
    pub number: u16,
}

#[derive(Debug)]
pub struct Slice {
    name: Box<str>,
    pub ports: Box<[Port]>,
    pub endpoints: Box<[Endpoint]>,
}

/// Ready, or it would not be here.
#[derive(Debug)]
pub struct Endpoint {
    pub ip: IpAddr,
    hostname: Option<Box<str>>,
}

/// Services with an endpoint of this address: nearly always one.
#[derive(Debug)]
enum Owners {
    One(u32),
    // A vector in place would make the usual case larger: there is one of these for every endpoint.
    #[expect(clippy::box_collection)]
    Many(Box<Vec<u32>>),
}

#[derive(Debug, Default)]
struct List {
    seen: Option<HashSet<Box<str>>>,
    is_whole: bool,
}

// === impl Zone ===

impl Zone {
    #[must_use]
    pub fn serial(&self) -> u32 {
        self.serial
    }

    pub fn set_serial(&mut self, serial: u32) {
        self.serial = serial;
    }

    /// Whether endpoints without a hostname have their Pod's name (`endpoint_pod_names`). Counts from the next list on.
    pub fn keep_pod_names(&mut self, keeps: bool) {
        self.keeps_pod_names = keeps;
    }

    /// Everything that names are made of was listed once.
    #[must_use]
    pub fn has_synced(&self) -> bool {
        [Kind::Services, Kind::Slices, Kind::Namespaces].iter().all(|kind| self.has_listed(*kind))
    }

    #[must_use]
    pub fn has_listed(&self, kind: Kind) -> bool {
        self.lists[kind as usize].is_whole
    }

    /// A list begins.
    pub fn begin(&mut self, kind: Kind) {
        self.lists[kind as usize].seen = Some(HashSet::new());
    }

    /// A list has ended: what was not in it is gone.
    pub fn end(&mut self, kind: Kind) {
        let list = &mut self.lists[kind as usize];
        list.is_whole = true;
        let Some(seen) = list.seen.take() else { return };
        let gone = |key: &str| (!seen.contains(key)).then(|| key.to_owned());
        let keys: Vec<String> = match kind {
            Kind::Services => {
                let served = self.ids.values().map(|id| &self.entries[*id as usize]);
                served.filter(|e| e.service.is_some()).filter_map(|e| gone(&e.key())).collect()
            }
            Kind::Slices => self.slices.keys().filter_map(|key| gone(key)).collect(),
            Kind::Namespaces => self.namespaces.iter().filter_map(|name| gone(&format!("/{name}"))).collect(),
            Kind::Pods => self.pods.keys().filter_map(|key| gone(key)).collect(),
        };
        for key in keys {
            let (namespace, name) = key.split_once('/').unwrap_or_default();
            self.remove(kind, namespace, name);
        }
    }

    fn saw(&mut self, kind: Kind, metadata: &objects::Metadata) {
        if let Some(seen) = &mut self.lists[kind as usize].seen {
            seen.insert(metadata.key().into());
        }
    }

    pub fn put_service(&mut self, object: &objects::Service) {
        self.saw(Kind::Services, &object.metadata);
        let id = self.id(object.metadata.namespace(), &object.metadata.name);
        self.forget_addresses(id);
        let service = Service::read(&object.spec);
        if let Service::ClusterIp { ips, .. } = &service {
            self.cluster_ips.extend(ips.iter().map(|ip| (*ip, id)));
        }
        self.entries[id as usize].service = Some(service);
    }

    pub fn put_slice(&mut self, object: &objects::EndpointSlice) {
        self.saw(Kind::Slices, &object.metadata);
        let (namespace, name) = (object.metadata.namespace(), &object.metadata.name);
        self.remove(Kind::Slices, namespace, name);
        let Some(service) = object.metadata.labels.as_ref().and_then(|l| l.service_name.as_deref()) else {
            return;
        };
        let slice = Slice::read(object, self.keeps_pod_names);
        let id = self.id(namespace, service);
        for endpoint in &slice.endpoints {
            match self.endpoint_ips.get_mut(&endpoint.ip) {
                Some(owners) => owners.add(id),
                None => _ = self.endpoint_ips.insert(endpoint.ip, Owners::One(id)),
            }
        }
        self.entries[id as usize].slices.push(slice);
        self.slices.insert(object.metadata.key().into(), id);
    }

    pub fn put_namespace(&mut self, metadata: &objects::Metadata) {
        self.saw(Kind::Namespaces, metadata);
        self.namespaces.insert(metadata.name.as_str().into());
    }

    pub fn put_pod(&mut self, pod: &objects::Pod) {
        self.saw(Kind::Pods, &pod.metadata);
        self.remove(Kind::Pods, pod.metadata.namespace(), &pod.metadata.name);
        // Whose Pod has ended gave its address back.
        if matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed")) {
            return;
        }
        let ips = pod.status.pod_ips.iter().flatten().filter_map(|ip| ip.ip.parse().ok());
        let ips: Box<[IpAddr]> = ips.collect();
        for ip in &ips {
            self.pod_ips.entry(*ip).or_default().push(pod.metadata.namespace().into());
        }
        self.pods.insert(pod.metadata.key().into(), ips);
    }

    pub fn remove(&mut self, kind: Kind, namespace: &str, name: &str) {
        match kind {
            Kind::Services => {
                let Some(id) = self.find_id(name, namespace) else { return };
                self.forget_addresses(id);
                self.entries[id as usize].service = None;
                self.sweep(id);
            }
            Kind::Slices => self.remove_slice(namespace, name),
            Kind::Namespaces => _ = self.namespaces.remove(name),
            Kind::Pods => {
                let Some(ips) = self.pods.remove(format!("{namespace}/{name}").as_str()) else { return };
                for ip in ips {
                    let Some(owners) = self.pod_ips.get_mut(&ip) else { continue };
                    if let Some(at) = owners.iter().position(|owner| **owner == *namespace) {
                        owners.swap_remove(at);
                    }
                    if owners.is_empty() {
                        self.pod_ips.remove(&ip);
                    }
                }
            }
        }
    }

    fn remove_slice(&mut self, namespace: &str, name: &str) {
        let Some(id) = self.slices.remove(format!("{namespace}/{name}").as_str()) else { return };
        let slices = &mut self.entries[id as usize].slices;
        let gone: Vec<Slice> = slices.extract_if(.., |slice| *slice.name == *name).collect();
        for endpoint in gone.iter().flat_map(|slice| &slice.endpoints) {
            if self.endpoint_ips.get_mut(&endpoint.ip).is_some_and(|owners| owners.remove(id)) {
                self.endpoint_ips.remove(&endpoint.ip);
            }
        }
        self.sweep(id);
    }

    #[must_use]
    pub fn service(&self, name: &str, namespace: &str) -> Option<&Entry> {
        self.find_id(name, namespace).map(|id| &self.entries[id as usize])
    }

    #[must_use]
    pub fn has_namespace(&self, name: &str) -> bool {
        self.namespaces.contains(name)
    }

    #[must_use]
    pub fn has_pod(&self, ip: IpAddr, namespace: &str) -> bool {
        self.pod_ips.get(&ip).is_some_and(|owners| owners.iter().any(|owner| **owner == *namespace))
    }

    /// The Service that has this cluster IP.
    #[must_use]
    pub fn by_cluster_ip(&self, ip: IpAddr) -> Option<&Entry> {
        self.cluster_ips.get(&ip).map(|id| &self.entries[*id as usize])
    }

    /// The Services that have an endpoint of this address.
    pub fn by_endpoint_ip(&self, ip: IpAddr) -> impl Iterator<Item = &Entry> {
        let ids: &[u32] = match self.endpoint_ips.get(&ip) {
            None => &[],
            Some(Owners::One(id)) => std::slice::from_ref(id),
            Some(Owners::Many(ids)) => ids,
        };
        let unique = ids.iter().enumerate().filter(|(at, id)| !ids[..*at].contains(id));
        unique.map(|(_, id)| &self.entries[*id as usize])
    }

    fn find_id(&self, name: &str, namespace: &str) -> Option<u32> {
        self.ids.get(format!("{name}.{namespace}").as_str()).copied()
    }

    /// Finds the entry, or makes one.
    fn id(&mut self, namespace: &str, name: &str) -> u32 {
        if let Some(id) = self.find_id(name, namespace) {
            return id;
        }
        let entry = Entry { name: name.into(), namespace: namespace.into(), ..Entry::default() };
        let id = match self.free.pop() {
            Some(id) => {
                self.entries[id as usize] = entry;
                id
            }
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)
            }
        };
        self.ids.insert(format!("{name}.{namespace}").into(), id);
        id
    }

    /// An entry that nothing is known of any more makes room.
    fn sweep(&mut self, id: u32) {
        let entry = &mut self.entries[id as usize];
        if entry.service.is_none() && entry.slices.is_empty() {
            let entry = std::mem::take(entry);
            self.ids.remove(format!("{}.{}", entry.name, entry.namespace).as_str());
            self.free.push(id);
        }
    }

    fn forget_addresses(&mut self, id: u32) {
        if let Some(Service::ClusterIp { ips, .. }) = &self.entries[id as usize].service {
            for ip in ips {
                if self.cluster_ips.get(ip) == Some(&id) {
                    self.cluster_ips.remove(ip);
                }
            }
        }
    }
}

// === impl Entry ===

impl Entry {
    fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    pub fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.slices.iter().flat_map(|slice| &slice.endpoints)
    }
}

// === impl Service ===

impl Service {
    fn read(spec: &objects::ServiceSpec) -> Service {
        if spec.kind.as_deref() == Some("ExternalName") {
            let text = spec.external_name.as_deref().unwrap_or_default();
            let is_name = !text.is_empty() && text.parse::<IpAddr>().is_err();
            return Service::External(name::parse(text).ok().filter(|_| is_name));
        }
        let ips = spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip);
        if ips.clone().any(|ip| ip == "None") {
            return Service::Headless;
        }
        let mut found: Vec<IpAddr> = Vec::new();
        for ip in ips.filter_map(|ip| ip.parse().ok()) {
            if !found.contains(&ip) {
                found.push(ip);
            }
        }
        Service::ClusterIp { ips: found.into(), ports: ports(spec.ports.as_deref()) }
    }
}

fn ports(ports: Option<&[objects::Port]>) -> Box<[Port]> {
    let read = |port: &objects::Port| {
        Some(Port {
            name: port.name.as_deref().unwrap_or_default().into(),
            protocol: port.protocol.as_deref().unwrap_or("TCP").to_ascii_lowercase().into(),
            number: u16::try_from(port.port?).ok()?,
        })
    };
    ports.unwrap_or_default().iter().filter_map(read).collect()
}

// === impl Slice ===

impl Slice {
    fn read(object: &objects::EndpointSlice, keeps_pod_names: bool) -> Slice {
        // Nothing said is ready: upstream's rule for consumers.
        let is_ready = |e: &&objects::Endpoint| e.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true);
        let read = |endpoint: &objects::Endpoint| {
            let said = endpoint.hostname.clone().filter(|hostname| !hostname.is_empty());
            let pod = || endpoint.target_ref.as_ref().and_then(|target| target.name.clone());
            let hostname = said.or_else(|| if keeps_pod_names { pod() } else { None });
            let hostname: Option<Box<str>> = hostname.map(|name| name.to_ascii_lowercase().into());
            let ips = endpoint.addresses.iter().flatten().filter_map(|ip| ip.parse::<IpAddr>().ok());
            ips.map(|ip| Endpoint { ip, hostname: hostname.clone() }).collect::<Vec<_>>()
        };
        let endpoints = object.endpoints.iter().flatten().filter(is_ready).flat_map(read).collect();
        Slice { name: object.metadata.name.as_str().into(), ports: ports(object.ports.as_deref()), endpoints }
    }
}

// === impl Endpoint ===

impl Endpoint {
    /// The label it is known by below its Service.
    #[must_use]
    pub fn label(&self) -> String {
        match &self.hostname {
            Some(hostname) => hostname.to_string(),
            None => dashed(self.ip),
        }
    }

    #[must_use]
    pub fn is_called(&self, label: &str) -> bool {
        match &self.hostname {
            Some(hostname) => **hostname == *label,
            None => dashed(self.ip) == label,
        }
    }
}

/// `10-42-0-7`; a label may not end in a dash, so `fd00::` has a zero at its end.
#[must_use]
pub fn dashed(ip: IpAddr) -> String {
    let mut text = ip.to_string().replace(['.', ':'], "-");
    if text.ends_with('-') {
        text.push('0');
    }
    text
}

// === impl Owners ===

impl Owners {
    fn add(&mut self, id: u32) {
        match self {
            Owners::One(one) => *self = Owners::Many(Box::new(vec![*one, id])),
            Owners::Many(ids) => ids.push(id),
        }
    }

    /// Takes one of its places away; true if that was the last.
    fn remove(&mut self, id: u32) -> bool {
        match self {
            Owners::One(one) => *one == id,
            Owners::Many(ids) => {
                if let Some(at) = ids.iter().position(|one| *one == id) {
                    ids.swap_remove(at);
                }
                ids.is_empty()
            }
        }
    }
}
