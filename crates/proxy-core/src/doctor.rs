//! What is wrong with a Service: from the object, over its Pods and EndpointSlices, to what the kernel does with a packet
//! to it. Facts go in, findings come out, in the order in which a packet's luck depends on them: the first that is wrong
//! is the one to look at.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;

pub use base::finding::{Finding, Grade, verdict};
use k8s_openapi::api::core::v1::{Pod, Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::objects::{Protocol, ServiceKey};
use crate::trace::Fate;

/// Everything that was found out, and nothing decided.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub service: Option<Service>,
    /// Of the Service's namespace.
    pub pods: Vec<Pod>,
    pub slices: Vec<EndpointSlice>,
    /// Whose rules are in the kernel; `None` if nobody's are.
    pub mode: Option<&'static str>,
    /// What kube-proxy says of its health; `None` if it does not answer.
    pub is_proxy_healthy: Option<bool>,
    pub frontends: Vec<Frontend>,
    /// Flows without a connection that still lead to endpoints that are gone.
    pub stale_flows: usize,
}

/// One address and port of the Service, and what happens there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frontend {
    pub address: SocketAddr,
    /// Or else one for those outside.
    pub is_cluster_ip: bool,
    pub protocol: Protocol,
    /// What the rules should do with a packet of the node.
    pub should: Treatment,
    /// What those in the kernel do.
    pub does: Treatment,
    /// How a connection went; `None` if none was tried.
    pub dial: Option<Dial>,
    /// How connections straight to the endpoints went, tried only if the other failed.
    pub endpoints: BTreeMap<SocketAddr, Dial>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Treatment {
    Sent(BTreeSet<SocketAddr>),
    Rejected,
    Dropped,
    /// As if there were no Service.
    Nothing,
}

impl From<&Fate> for Treatment {
    fn from(fate: &Fate) -> Self {
        match fate {
            Fate::Sent { targets, .. } => Treatment::Sent(targets.iter().map(|t| t.endpoint).collect()),
            Fate::Rejected => Treatment::Rejected,
            Fate::Dropped => Treatment::Dropped,
            Fate::Passed => Treatment::Nothing,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dial {
    Connected,
    Refused,
    Silence,
    Unreachable,
}

/// All findings. After something without which the rest makes no sense, there are no more.
pub fn examine(key: &ServiceKey, facts: &Facts) -> Vec<Finding> {
    let mut chart = Chart { key, findings: Vec::new() };
    let Some(service) = &facts.service else {
        chart.wrong(
            format!("there is no Service {key}"),
            "look for its name and namespace with `kubectl get services -A`",
        );
        return chart.findings;
    };
    let serving = chart.service(service);
    if serving == Serving::Nobody {
        return chart.findings;
    }
    chart.pods(service, &facts.pods);
    chart.slices(service, &facts.slices, &facts.pods);
    chart.balancer(service);
    if serving == Serving::Dns {
        return chart.findings;
    }
    chart.proxy(facts);
    for frontend in &facts.frontends {
        chart.frontend(frontend, facts.mode);
    }
    if facts.stale_flows > 0 {
        chart.wrong(
            format!("{} flows still lead to endpoints that are gone", facts.stale_flows),
            "kube-proxy forgets them after its next change; restarting it does so at once",
        );
    }
    chart.findings
}

/// Who leads clients to the endpoints of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Serving {
    KubeProxy,
    /// Headless: its name has the addresses of its endpoints.
    Dns,
    Nobody,
}

struct Chart<'a> {
    key: &'a ServiceKey,
    findings: Vec<Finding>,
}

// === impl Chart ===

impl Chart<'_> {
    fn put(&mut self, grade: Grade, text: String, advice: &str) {
        self.findings.push(Finding { grade, text, advice: advice.to_owned() });
    }

    fn good(&mut self, text: String) {
        self.put(Grade::Good, text, "");
    }

    fn note(&mut self, text: String) {
        self.put(Grade::Note, text, "");
    }

    fn wrong(&mut self, text: String, advice: &str) {
        self.put(Grade::Wrong, text, advice);
    }

    fn service(&mut self, service: &Service) -> Serving {
        let spec = service.spec.clone().unwrap_or_default();
        let kind = spec.type_.as_deref().unwrap_or("ClusterIP");
        let labels = service.metadata.labels.clone().unwrap_or_default();
        if let Some(other) = labels.get("service.kubernetes.io/service-proxy-name") {
            self.wrong(
                format!("Service {} is given to another proxy, {other:?}", self.key),
                "remove the label service.kubernetes.io/service-proxy-name, or look at that proxy",
            );
            return Serving::Nobody;
        }
        match spec.cluster_ip.as_deref() {
            _ if kind == "ExternalName" => {
                let name = spec.external_name.unwrap_or_default();
                self.note(format!(
                    "Service {} is a DNS alias of {name:?}: no packet of it is ours",
                    self.key
                ));
                Serving::Nobody
            }
            Some("None") => {
                self.note(format!(
                    "Service {} is headless: its name leads to Pods directly, no packet of it is ours",
                    self.key
                ));
                Serving::Dns
            }
            None | Some("") => {
                self.wrong(
                    format!("Service {} has no address yet", self.key),
                    "the API server gives it one; look at its events with `kubectl describe service`",
                );
                Serving::Nobody
            }
            Some(_) => {
                let ports: Vec<String> = spec.ports.iter().flatten().map(show_port).collect();
                let ips = spec.cluster_ips.unwrap_or_default().join(" and ");
                self.good(format!("Service {} is a {kind} at {ips}, {}", self.key, ports.join(", ")));
                Serving::KubeProxy
            }
        }
    }

    fn pods(&mut self, service: &Service, pods: &[Pod]) {
        let selector = service.spec.as_ref().and_then(|spec| spec.selector.clone()).unwrap_or_default();
        if selector.is_empty() {
            self.note("it selects no Pods: somebody else makes its EndpointSlices".to_owned());
            return;
        }
        let told = selector.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(",");
        let selected: Vec<&Pod> = pods.iter().filter(|pod| is_selected(&selector, pod)).collect();
        if selected.is_empty() {
            let near = nearly_selected(&selector, pods).map(|near| format!("; {near}")).unwrap_or_default();
            let (namespace, name) = (&self.key.namespace, &self.key.name);
            self.wrong(
                format!("no Pod has the labels that it selects, {told}{near}"),
                &format!(
                    "compare `kubectl get pods -n {namespace} --show-labels` with `kubectl get service -n {namespace} {name} \
                     -o wide`"
                ),
            );
            return;
        }
        let (ready, others): (Vec<&Pod>, Vec<&Pod>) = selected.iter().partition(|pod| is_ready(pod));
        let reasons: Vec<String> = others.iter().map(|pod| why_not_ready(pod)).collect();
        let wants_unready = service.spec.as_ref().and_then(|s| s.publish_not_ready_addresses) == Some(true);
        let text = format!("{} of {} Pods that it selects are ready", ready.len(), selected.len());
        match (ready.is_empty() && !wants_unready, reasons.is_empty()) {
            (true, _) => self.wrong(
                format!("{text}: {}", reasons.join("; ")),
                &format!(
                    "traffic goes to ready Pods only; look at `longshore doctor pod -n {} {}`",
                    self.key.namespace,
                    others.first().and_then(|pod| pod.metadata.name.as_deref()).unwrap_or_default()
                ),
            ),
            (false, true) => self.good(text),
            (false, false) => self.note(format!("{text}; not ready: {}", reasons.join("; "))),
        }
    }

    /// A Service of type LoadBalancer that nobody gave an address.
    fn balancer(&mut self, service: &Service) {
        let spec = service.spec.clone().unwrap_or_default();
        let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
        let has_any = status.and_then(|status| status.ingress.as_ref()).is_some_and(|all| !all.is_empty());
        if spec.type_.as_deref() != Some("LoadBalancer") || has_any {
            return;
        }
        let (namespace, name) = (&self.key.namespace, &self.key.name);
        match spec.load_balancer_class {
            Some(class) => self.wrong(
                "it waits for an address from outside".to_owned(),
                &format!("a controller of the class {class:?} gives it one; is it running?"),
            ),
            None => self.wrong(
                "it waits for an address from outside".to_owned(),
                &format!(
                    "`kubectl describe service -n {namespace} {name}` says who has its port; where no event is, nobody gives \
                     addresses: `longshore up` does"
                ),
            ),
        }
    }

    fn slices(&mut self, service: &Service, slices: &[EndpointSlice], pods: &[Pod]) {
        let ports: Vec<ServicePort> = service.spec.clone().and_then(|spec| spec.ports).unwrap_or_default();
        let selector = service.spec.as_ref().and_then(|spec| spec.selector.clone()).unwrap_or_default();
        if slices.is_empty() && selector.is_empty() {
            let (namespace, name) = (&self.key.namespace, &self.key.name);
            self.wrong(
                "it selects no Pods, and nobody made an EndpointSlice for it".to_owned(),
                &format!(
                    "give it the labels of its Pods, `kubectl set selector -n {namespace} service {name} app=…`, or make an \
                     EndpointSlice with the label kubernetes.io/service-name={name}"
                ),
            );
            return;
        }
        if slices.is_empty() {
            self.wrong(
                "no EndpointSlice belongs to it".to_owned(),
                "the endpoint slice controller makes them; is it running? Slices made by hand need the label \
                 kubernetes.io/service-name",
            );
            return;
        }
        let endpoints: Vec<&Endpoint> =
            slices.iter().flat_map(|slice| slice.endpoints.iter().flatten()).collect();
        let usable = endpoints.iter().filter(|endpoint| is_usable(endpoint)).count();
        if usable == 0 {
            self.wrong(
                format!("its EndpointSlices name {} endpoints and none is ready", endpoints.len()),
                "Pods become endpoints when they are ready",
            );
            return;
        }
        self.good(format!("its EndpointSlices name {usable} usable endpoints of {}", endpoints.len()));
        for port in &ports {
            let name = port.name.as_deref().unwrap_or_default();
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let is_named = slices.iter().flat_map(|s| s.ports.iter().flatten()).any(|p| {
                p.name.as_deref().unwrap_or_default() == name
                    && p.protocol.as_deref().unwrap_or("TCP") == protocol
                    && p.port.is_some_and(|n| n != 0)
            });
            if !is_named {
                let there = port_names(&selector, pods);
                let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
                let advice = match &port.target_port {
                    Some(IntOrString::String(wanted)) => {
                        format!("its targetPort is {wanted:?}, and the names of its Pods' ports are: {there}")
                    }
                    _ => format!(
                        "its EndpointSlices have no such port; the names of its Pods' ports are: {there}"
                    ),
                };
                let text =
                    format!("no EndpointSlice says where port {name:?} ({}/{protocol}) leads", port.port);
                self.wrong(text, &advice);
            }
        }
    }

    fn proxy(&mut self, facts: &Facts) {
        let is_served = facts.frontends.iter().any(|frontend| frontend.dial == Some(Dial::Connected));
        match (facts.mode, facts.is_proxy_healthy) {
            (None, _) if is_served => self.note(
                "somebody serves it, but not with rules that can be read here: those of iptables need its programs, and \
                 other proxies have ways of their own"
                    .to_owned(),
            ),
            (None, None) => self.wrong(
                "no rules of a kube-proxy are in this machine's kernel, and none answers on port 10256".to_owned(),
                "start `longshore kube-proxy`, and run this where its network is",
            ),
            (None, Some(_)) => self.wrong(
                "kube-proxy answers, but no rules of it are in this kernel".to_owned(),
                "its log says why; it writes nothing before it has read all Services and EndpointSlices",
            ),
            (Some(mode), Some(true)) => self.good(format!("kube-proxy is well, its rules are {mode}")),
            (Some(mode), Some(false)) => self.wrong(
                format!("kube-proxy cannot bring its {mode} rules to the kernel"),
                "its log says what the kernel refuses",
            ),
            (Some(mode), None) => self.note(format!(
                "rules of {mode} are in the kernel, but no kube-proxy answers on port 10256: nothing will change them"
            )),
        }
    }

    fn frontend(&mut self, frontend: &Frontend, mode: Option<&str>) {
        let at = format!("{}/{}", frontend.address, frontend.protocol);
        if mode.is_some() && frontend.does != frontend.should {
            self.wrong(
                format!("the kernel {}, but should {}", does(&frontend.does, &at), should(&frontend.should)),
                "kube-proxy is behind or somebody else changes its rules; its log tells",
            );
        } else if mode.is_some() {
            match &frontend.does {
                Treatment::Sent(_) => self.good(format!("the kernel {}", does(&frontend.does, &at))),
                _ => self.note(format!("the kernel {}", does(&frontend.does, &at))),
            }
        }
        match (frontend.dial, frontend.protocol) {
            (Some(Dial::Connected), Protocol::Udp) => self.good(format!("a datagram to {at} was answered")),
            (Some(Dial::Connected), _) => self.good(format!("a connection to {at} was made")),
            // Most programs say nothing to what they do not understand.
            (Some(Dial::Silence), Protocol::Udp) if matches!(frontend.does, Treatment::Sent(_)) => {
                self.note(format!("a datagram to {at} was not refused, and not answered either"));
            }
            (Some(dial), _) => self.failed_dial(&at, dial, frontend),
            (None, _) => {
                self.note(format!("no connection was tried to {at}: this kernel has no such sockets"))
            }
        }
    }

    fn dropped(&mut self, at: &str, dial: Dial, is_cluster_ip: bool) {
        match is_cluster_ip {
            true => self.wrong(
                format!("a connection to {at} {dial}: its policy keeps traffic on the node, and no endpoint is here"),
                "set internalTrafficPolicy to Cluster, or run a Pod of it on every node",
            ),
            false => self.note(format!(
                "a connection to {at} {dial}, as it should: this node is not among its source ranges, or its policy is \
                 Local and no endpoint is here"
            )),
        }
    }

    fn failed_dial(&mut self, at: &str, dial: Dial, frontend: &Frontend) {
        match frontend.does {
            Treatment::Sent(_) => {}
            Treatment::Dropped => {
                self.dropped(at, dial, frontend.is_cluster_ip);
                return;
            }
            Treatment::Rejected | Treatment::Nothing => {
                self.wrong(format!("a connection to {at} {dial}"), "there is no endpoint to send it to");
                return;
            }
        }
        if dial == Dial::Unreachable {
            self.wrong(
                format!("a connection to {at} {dial}"),
                "the kernel looks for a route before it looks at rules: the node needs a default route, or one to the \
                 range of Services",
            );
            return;
        }
        let dead: Vec<String> = frontend
            .endpoints
            .iter()
            .filter(|(_, dial)| **dial != Dial::Connected)
            .map(|(endpoint, dial)| format!("{endpoint} {dial}"))
            .collect();
        match dead.is_empty() {
            false => self.wrong(
                format!("a connection to {at} {dial}; called directly, {}", dead.join(", ")),
                "where one refuses, does the Pod listen on that port, on all addresses? Where one is silent, look at \
                 network policies and routes between nodes",
            ),
            true => self.wrong(
                format!("a connection to {at} {dial}, although its endpoints answer when called directly"),
                "look for rules of others that drop or translate it, and at `sysctl net.ipv4.ip_forward`",
            ),
        }
    }
}

fn show_port(port: &ServicePort) -> String {
    let protocol = port.protocol.as_deref().unwrap_or("TCP");
    match port.node_port.filter(|n| *n != 0) {
        Some(node_port) => format!("port {}/{protocol} (node port {node_port})", port.port),
        None => format!("port {}/{protocol}", port.port),
    }
}

fn is_selected(selector: &BTreeMap<String, String>, pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    selector.iter().all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
}

/// A Pod that lacks one label only: most likely it is the one that was meant.
fn nearly_selected(selector: &BTreeMap<String, String>, pods: &[Pod]) -> Option<String> {
    pods.iter().find_map(|pod| {
        let labels = pod.metadata.labels.clone().unwrap_or_default();
        let differ: Vec<&String> =
            selector.iter().filter(|(k, v)| labels.get(*k) != Some(*v)).map(|(k, _)| k).collect();
        let [key] = differ[..] else { return None };
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        match labels.get(key) {
            Some(has) => Some(format!("Pod {name} has {key}={has}")),
            // Where there is one label in all, any Pod lacks only one.
            None => (selector.len() > 1).then(|| format!("Pod {name} lacks only {key}")),
        }
    })
}

/// The names that containers of the selected Pods give their ports.
fn port_names(selector: &BTreeMap<String, String>, pods: &[Pod]) -> Vec<String> {
    let selected = pods.iter().filter(|pod| !selector.is_empty() && is_selected(selector, pod));
    let containers = selected.flat_map(|pod| pod.spec.iter().flat_map(|spec| &spec.containers));
    let names = containers
        .flat_map(|container| container.ports.iter().flatten())
        .filter_map(|port| port.name.clone());
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

fn why_not_ready(pod: &Pod) -> String {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let status = pod.status.clone().unwrap_or_default();
    if pod.metadata.deletion_timestamp.is_some() {
        return format!("{name} is ending");
    }
    for container in status.container_statuses.iter().flatten() {
        let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
        if let Some(reason) = waiting.and_then(|waiting| waiting.reason.as_ref()) {
            return format!("{name}: container {} waits, {reason}", container.name);
        }
    }
    let unready: Vec<&str> =
        status.container_statuses.iter().flatten().filter(|c| !c.ready).map(|c| c.name.as_str()).collect();
    match (status.phase.as_deref(), unready.is_empty()) {
        (Some("Running"), false) => {
            format!("{name}: container {} runs and is not ready", unready.join(" and "))
        }
        (phase, _) => format!("{name} is {}", phase.unwrap_or("unknown")),
    }
}

fn is_usable(endpoint: &Endpoint) -> bool {
    let conditions = endpoint.conditions.clone().unwrap_or_default();
    let is_ready = conditions.ready.unwrap_or(true);
    is_ready || (conditions.terminating == Some(true) && conditions.serving.unwrap_or(true))
}

fn list(endpoints: &BTreeSet<SocketAddr>) -> String {
    const SHOWN: usize = 5;
    let mut shown: Vec<String> = endpoints.iter().take(SHOWN).map(SocketAddr::to_string).collect();
    if endpoints.len() > SHOWN {
        shown.push(format!("{} more", endpoints.len() - SHOWN));
    }
    shown.join(", ")
}

fn does(treatment: &Treatment, at: &str) -> String {
    match treatment {
        Treatment::Sent(endpoints) => format!("sends packets for {at} to {}", list(endpoints)),
        Treatment::Rejected => format!("rejects packets for {at}"),
        Treatment::Dropped => format!("drops packets for {at}"),
        Treatment::Nothing => format!("does nothing with packets for {at}"),
    }
}

fn should(treatment: &Treatment) -> String {
    match treatment {
        Treatment::Sent(endpoints) => format!("send them to {}", list(endpoints)),
        Treatment::Rejected => "reject them: there is no endpoint".into(),
        Treatment::Dropped => "drop them: there is no endpoint on this node".into(),
        Treatment::Nothing => "leave them alone".into(),
    }
}

impl fmt::Display for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dial::Connected => "was made",
            Dial::Refused => "was refused",
            Dial::Silence => "met silence",
            Dial::Unreachable => "found no way",
        })
    }
}
