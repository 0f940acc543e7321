//! Endpoints and EndpointSlice: which Pods stand behind a Service. What both controllers read is here.

mod fill;
mod legacy;
mod mirror;
mod slices;
mod topology;
mod trigger;

pub(crate) use legacy::ENDPOINTS_CONTROLLER;
pub(crate) use mirror::ENDPOINT_SLICE_MIRRORING;
pub(crate) use slices::ENDPOINT_SLICE_CONTROLLER;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use api::selector::LabelSelector;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cache::Change;
use crate::controller::{Key, Wakes};
use crate::object::{Object, Unreadable};
use crate::resource::{PODS, SERVICES};
use crate::view::View;

/// On objects of Services without an address, so that proxies need not look at them.
const HEADLESS: &str = "service.kubernetes.io/headless";

/// The zone of a Node.
const ZONE: &str = "topology.kubernetes.io/zone";

/// A Service as far as it decides who stands behind it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ServiceDoc {
    spec: ServiceSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ServiceSpec {
    r#type: Option<String>,
    selector: Option<BTreeMap<String, String>>,
    #[serde(rename = "clusterIP")]
    cluster_ip: Option<String>,
    ip_families: Option<Vec<Family>>,
    ports: Option<Vec<ServicePort>>,
    publish_not_ready_addresses: Option<bool>,
    traffic_distribution: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ServicePort {
    name: Option<String>,
    protocol: Option<String>,
    app_protocol: Option<String>,
    port: i32,
    target_port: Option<Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
enum Family {
    #[serde(rename = "IPv4")]
    V4,
    #[serde(rename = "IPv6")]
    V6,
}

/// A Service that Pods are chosen for.
#[derive(Debug)]
struct Service {
    object: Arc<Object>,
    spec: ServiceSpec,
    selector: LabelSelector,
}

/// A Pod as far as endpoints tell of it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct PodDoc {
    spec: PodSpec,
    status: PodStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec {
    hostname: Option<String>,
    subdomain: Option<String>,
    containers: Option<Vec<Container>>,
    init_containers: Option<Vec<Container>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Container {
    restart_policy: Option<String>,
    ports: Option<Vec<ContainerPort>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ContainerPort {
    name: Option<String>,
    protocol: Option<String>,
    container_port: i32,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodStatus {
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pod_ips: Option<Vec<PodIp>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct PodIp {
    ip: String,
}

/// A Pod behind a Service.
#[derive(Debug)]
struct Behind {
    object: Arc<Object>,
    doc: PodDoc,
    is_ready: bool,
    is_terminating: bool,
}

/// A port that a Pod really has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Port {
    name: String,
    protocol: String,
    number: i32,
    app_protocol: Option<String>,
}

// === impl Service ===

impl Service {
    /// None: nobody chooses its Pods, so whatever stands behind it is somebody else's to say.
    fn read(object: Arc<Object>) -> Result<Option<Service>, Unreadable> {
        let ServiceDoc { spec } = object.part()?;
        let Some(labels) = spec.selector.as_ref().filter(|labels| !labels.is_empty()) else {
            return Ok(None);
        };
        if spec.r#type.as_deref() == Some("ExternalName") {
            return Ok(None);
        }
        let selector = LabelSelector::from_object(&json!({ "matchLabels": labels }));
        Ok(Some(Service { object, spec, selector }))
    }

    fn is_headless(&self) -> bool {
        self.spec.cluster_ip.as_deref() == Some("None")
    }

    fn publishes_not_ready(&self) -> bool {
        self.spec.publish_not_ready_addresses == Some(true)
    }

    /// In the order in which the Service names them. An old object without them: as its address, headless ones both.
    fn families(&self) -> Vec<Family> {
        match (&self.spec.ip_families, self.spec.cluster_ip.as_deref().unwrap_or_default()) {
            (Some(families), _) if !families.is_empty() => families.clone(),
            (_, "None") => vec![Family::V4, Family::V6],
            (_, address) => vec![if address.contains(':') { Family::V6 } else { Family::V4 }],
        }
    }

    /// Its Pods that have an address and have not ended, by name.
    fn pods(&self, view: &dyn View) -> Vec<Behind> {
        let all = view.selected(PODS, &self.object.meta.namespace, &self.selector);
        all.into_iter().filter_map(Behind::read).collect()
    }

    /// Its ports as the Pod has them. What the Pod does not have is left out.
    fn ports_of(&self, pod: &PodDoc) -> Vec<Port> {
        let ports = self.spec.ports.iter().flatten();
        ports.filter_map(|port| port.of(pod)).collect()
    }

    /// The labels of what is written for it: the Service's, but for those in `own`, which are set or taken off here.
    fn labels(&self, own: &[(&str, Option<&str>)]) -> BTreeMap<String, String> {
        let labels = self.object.meta.labels.iter();
        let mut labels: BTreeMap<String, String> =
            labels.map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let headless = (HEADLESS, self.is_headless().then_some(""));
        for (key, value) in own.iter().copied().chain([headless]) {
            match value {
                Some(value) => _ = labels.insert(key.to_owned(), value.to_owned()),
                None => _ = labels.remove(key),
            }
        }
        labels
    }
}

// === impl ServicePort ===

impl ServicePort {
    fn of(&self, pod: &PodDoc) -> Option<Port> {
        let protocol = self.protocol.as_deref().unwrap_or("TCP");
        let number = match &self.target_port {
            Some(Value::String(name)) => pod.port_named(name, protocol)?,
            Some(Value::Number(number)) => {
                i32::try_from(number.as_i64()?).ok().filter(|n| *n != 0).unwrap_or(self.port)
            }
            _ => self.port,
        };
        Some(Port {
            name: self.name.clone().unwrap_or_default(),
            protocol: protocol.to_owned(),
            number,
            app_protocol: self.app_protocol.clone(),
        })
    }
}

// === impl PodDoc ===

impl PodDoc {
    /// Regular containers first, then sidecars.
    fn port_named(&self, name: &str, protocol: &str) -> Option<i32> {
        let sidecars = self.spec.init_containers.iter().flatten();
        let sidecars = sidecars.filter(|c| c.restart_policy.as_deref() == Some("Always"));
        let containers = self.spec.containers.iter().flatten().chain(sidecars);
        let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
        let is_it = |port: &&ContainerPort| {
            port.name.as_deref() == Some(name) && port.protocol.as_deref().unwrap_or("TCP") == protocol
        };
        ports.find(is_it).map(|port| port.container_port)
    }

    fn addresses(&self) -> Vec<&str> {
        match &self.status.pod_ips {
            Some(ips) if !ips.is_empty() => {
                ips.iter().map(|ip| ip.ip.as_str()).filter(|ip| !ip.is_empty()).collect()
            }
            _ => self.status.pod_ip.iter().map(String::as_str).filter(|ip| !ip.is_empty()).collect(),
        }
    }
}

// === impl Behind ===

impl Behind {
    fn read(object: Arc<Object>) -> Option<Behind> {
        let terms = object.pod()?;
        if terms.is_terminal() {
            return None;
        }
        let (is_ready, is_terminating) = (terms.is_ready(), terms.is_deleting);
        let doc: PodDoc = object.part().ok()?;
        (!doc.addresses().is_empty()).then_some(Behind { object, doc, is_ready, is_terminating })
    }

    fn addresses(&self, family: Family) -> Vec<String> {
        let all = self.doc.addresses().into_iter();
        all.filter(|ip| Family::of(ip) == Some(family)).map(str::to_owned).collect()
    }

    /// The name under which DNS knows it, if its Pod asked for one in this Service's domain.
    fn hostname(&self, service: &Service) -> Option<&str> {
        let PodSpec { hostname, subdomain, .. } = &self.doc.spec;
        let hostname = hostname.as_deref().filter(|name| !name.is_empty())?;
        (subdomain.as_deref() == Some(&*service.object.meta.name)).then_some(hostname)
    }

    fn reference(&self) -> Value {
        let meta = &self.object.meta;
        json!({"kind": "Pod", "namespace": &*meta.namespace, "name": meta.name, "uid": meta.uid})
    }
}

// === impl Port ===

impl Port {
    fn json(&self) -> Value {
        let mut port = json!({"name": self.name, "port": self.number, "protocol": self.protocol});
        if let Some(protocol) = &self.app_protocol {
            port["appProtocol"] = json!(protocol);
        }
        port
    }

    fn read(port: &Value) -> Port {
        let text = |key: &str| port[key].as_str().unwrap_or_default();
        let protocol = Some(text("protocol")).filter(|p| !p.is_empty()).unwrap_or("TCP");
        Port {
            name: text("name").to_owned(),
            protocol: protocol.to_owned(),
            number: port["port"].as_i64().and_then(|n| i32::try_from(n).ok()).unwrap_or(0),
            app_protocol: port["appProtocol"].as_str().map(str::to_owned),
        }
    }
}

// === impl Family ===

impl Family {
    fn of(address: &str) -> Option<Family> {
        match address.parse::<IpAddr>().ok()? {
            IpAddr::V4(_) => Some(Family::V4),
            IpAddr::V6(_) => Some(Family::V6),
        }
    }

    fn text(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }
}

/// The Services whose endpoints a change of a Pod may change.
fn services_of(change: &Change, view: &dyn View, wakes: &mut Wakes) {
    let (old, new) = (change.old.as_deref(), change.new.as_deref());
    if let (Some(old), Some(new)) = (old, new)
        && old.meta.labels == new.meta.labels
        && old.meta.node == new.meta.node
        && old.is_deleting() == new.is_deleting()
        && old.pod() == new.pod()
        && old.part::<PodDoc>() == new.part::<PodDoc>()
    {
        return;
    }
    let Some(object) = change.object() else { return };
    for service in view.list(SERVICES, &object.meta.namespace) {
        let Ok(Some(service)) = Service::read(service) else { continue };
        if [old, new].into_iter().flatten().any(|pod| pod.is_selected(&service.selector)) {
            wakes.add(Key::of(&service.object));
        }
    }
}

#[cfg(test)]
mod tests;
