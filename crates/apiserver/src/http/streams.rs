//! log, exec, attach, portforward and proxy: finding out where they lead.

use std::net::IpAddr;

use http::header;
use http_body_util::{BodyExt, Limited};
use hyper::upgrade::OnUpgrade;
use serde_json::Value;

use super::answer::{self, Answer};
use super::body::Body;
use super::connect::Target;
use super::outgoing::{self, Callee};
use super::verbs::Serving;
use super::websocket::{self, Handshake};
use apiserver_core::api_status::ApiStatus;
use apiserver_core::asked;
use apiserver_core::doc;
use apiserver_core::meta;
use apiserver_core::selection::{Selection, present};

/// Where kubelets listen unless their Node says otherwise.
const KUBELET_PORT: u16 = 10250;
/// Which address of a Node is called, in order. Names come later: on one machine nobody may resolve them.
const ADDRESS_TYPES: &[&str] = &["InternalIP", "Hostname", "InternalDNS", "ExternalDNS", "ExternalIP"];

/// Bytes of what a kubelet says when it refuses.
const ERROR_MAX: usize = 50_000;

const LOG_OPTIONS: &[&str] =
    &["follow", "previous", "timestamps", "sinceSeconds", "sinceTime", "tailLines", "limitBytes", "stream"];
const STREAM_OPTIONS: &[(&str, &str)] =
    &[("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")];

impl Serving<'_> {
    /// Serves a subresource that leads on.
    pub(super) async fn connect(&mut self, name: &str, body: Body) -> Result<Answer, ApiStatus> {
        self.confirm_creation(name)?;
        if name == "proxy"
            && let Some(answer) = self.root_redirect()
        {
            return Ok(answer);
        }
        let target = match (&*self.kind.plural, name) {
            ("pods", "log") => match self.log_target().await? {
                Some(target) => target,
                // Nothing runs yet, so nothing was said.
                None => return Ok(answer::text(204, "")),
            },
            ("pods", "exec" | "attach" | "portforward") => self.stream_target(name).await?,
            ("pods", "proxy") => self.pod_target().await?,
            ("services", "proxy") => self.service_target().await?,
            ("nodes", "proxy") => self.node_target().await?,
            _ => return Err(ApiStatus::no_resource()),
        };
        // How fast it is taken is a matter of the two ends.
        self.asking.peer.may_pause.notify_one();
        let mut head = http::request::Request::new(()).into_parts().0;
        std::mem::swap(&mut head, &mut self.asking.head);
        let client = self.asking.peer.address.ip();
        let body = body.into_incoming()?;
        if name != "log" {
            return self.app.connector.pass_on(&target, head, client, body).await;
        }
        // The kubelet is asked for bytes, whatever becomes of them here.
        let handshake = Handshake::asked_for(&head.headers).transpose()?;
        let waiting = head.extensions.remove::<OnUpgrade>();
        websocket::strip(&mut head.headers);
        let answer = self.app.connector.pass_on(&target, head, client, body).await?;
        if !answer.status().is_success() {
            return Err(explain(answer).await);
        }
        match (handshake, waiting) {
            (Some(handshake), Some(waiting)) => Ok(handshake.answer(waiting, answer)),
            _ => Ok(answer),
        }
    }

    /// A WebSocket begins with a GET; what it does inside is no reading. That holds too where a kubelet is asked through
    /// us: it sees our certificate, which may do everything, so that nobody but us can hold back who may not.
    fn confirm_creation(&self, name: &str) -> Result<(), ApiStatus> {
        let acts = match (&*self.kind.plural, name) {
            ("pods", "exec" | "attach" | "portforward") => true,
            ("nodes", "proxy") => {
                self.asking.head.headers.contains_key(header::UPGRADE) || is_an_act(self.path_beyond())
            }
            _ => false,
        };
        if acts && self.asking.attributes.verb != "create" {
            let mut attributes = self.asking.attributes.clone();
            attributes.verb = "create".into();
            self.app.authorizer.check(&attributes)?;
        }
        Ok(())
    }

    async fn log_target(&self) -> Result<Option<Target>, ApiStatus> {
        let pod = self.object().await?;
        let query = &self.asking.query;
        let container = choose_container(&pod, query.get("container").unwrap_or_default())?;
        let node = doc::text(&pod, "spec.nodeName");
        if node.is_empty() {
            return Ok(None);
        }
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        for option in LOG_OPTIONS {
            match query.get(option) {
                Some("false") | None => {}
                Some(value) => pairs.push((option, value)),
            }
        }
        let (namespace, name) = (meta::namespace(&pod), meta::name(&pod));
        let path = format!("/containerLogs/{namespace}/{name}/{container}{}", encode_query(&pairs));
        self.kubelet(node, path).await.map(Some)
    }

    async fn stream_target(&self, what: &str) -> Result<Target, ApiStatus> {
        let pod = self.object().await?;
        let (namespace, name) = (meta::namespace(&pod), meta::name(&pod));
        let query = &self.asking.query;
        let ports = query.all("ports").collect::<Vec<_>>().join(",");
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        let place = if what == "portforward" {
            if !ports.is_empty() {
                pairs.push(("port", &ports));
            }
            format!("/portForward/{namespace}/{name}")
        } else {
            let container = choose_container(&pod, query.get("container").unwrap_or_default())?;
            for (sent, meant) in STREAM_OPTIONS {
                if query.flag(sent) {
                    pairs.push((meant, "1"));
                }
            }
            pairs.extend(query.all("command").map(|word| ("command", word)));
            format!("/{what}/{namespace}/{name}/{container}")
        };
        let node = doc::text(&pod, "spec.nodeName");
        if node.is_empty() {
            return Err(ApiStatus::bad_request(format!("pod {name} does not have a host assigned")));
        }
        self.kubelet(node, format!("{place}{}", encode_query(&pairs))).await
    }

    async fn pod_target(&self) -> Result<Target, ApiStatus> {
        let (scheme, name, port) = split_name(self.name(), "pod")?;
        let document = self.registry.get(&self.kind, self.namespace(), name).await?;
        let pod = present(&self.kind, &document);
        let port = match port {
            "" => first_port(&pod).unwrap_or(80),
            text => text.parse().map_err(|_| ApiStatus::bad_request(format!("invalid port {text:?}")))?,
        };
        let host = doc::text(&pod, "status.podIP").to_owned();
        check_proxyable(&host)?;
        Ok(self.beyond_us(Callee::Pod, scheme == "https", host, port))
    }

    async fn service_target(&self) -> Result<Target, ApiStatus> {
        let (scheme, name, port) = split_name(self.name(), "service")?;
        let document = self.registry.get(&self.kind, self.namespace(), name).await?;
        let service = present(&self.kind, &document);
        let ports = doc::list(&service, "spec.ports");
        let wanted = ports.iter().find(|p| {
            port.is_empty() && ports.len() == 1
                || p["name"] == port && !port.is_empty()
                || port.parse() == Ok(doc::int(p, "port"))
        });
        let unavailable = || ApiStatus::unavailable(format!("no endpoints available for service {name:?}"));
        let port_name = wanted.map(|p| doc::text(p, "name").to_owned()).ok_or_else(unavailable)?;
        let (host, port) = self.endpoint(name, &port_name).await?.ok_or_else(unavailable)?;
        check_proxyable(&host)?;
        Ok(self.beyond_us(Callee::Endpoint, scheme == "https", host, port))
    }

    /// A ready endpoint of a Service. Only Pods of its namespace count, as upstream: whoever may write EndpointSlices
    /// could otherwise have us call any address we can reach.
    async fn endpoint(&self, service: &str, port_name: &str) -> Result<Option<(String, u16)>, ApiStatus> {
        let kind = self.registry.kind("discovery.k8s.io", "v1", "endpointslices")?;
        let of = format!("kubernetes.io/service-name={service}");
        let labels =
            api::selector::LabelSelector::parse(&of).map_err(|e| ApiStatus::bad_request(e.to_string()))?;
        let selection = Selection::new(kind.clone(), self.namespace(), labels, Default::default())?;
        let (documents, _) = self.registry.list_all(selection).await?;
        for document in documents {
            let slice = present(&kind, &document);
            let ports = doc::list(&slice, "ports");
            let port = ports.iter().find(|p| doc::text(p, "name") == port_name).map(|p| doc::int(p, "port"));
            let Some(port) = port.and_then(|p| u16::try_from(p).ok()) else { continue };
            for endpoint in
                doc::list(&slice, "endpoints").iter().filter(|e| e["conditions"]["ready"] != false)
            {
                if let Some(address) = self.address_of_pod(endpoint).await? {
                    return Ok(Some((address, port)));
                }
            }
        }
        Ok(None)
    }

    /// The address of an endpoint, if it is that of the Pod it names.
    async fn address_of_pod(&self, endpoint: &Value) -> Result<Option<String>, ApiStatus> {
        let reference = &endpoint["targetRef"];
        let here = [self.namespace(), ""].contains(&doc::text(reference, "namespace"));
        let Some(address) = doc::list(endpoint, "addresses").first().and_then(Value::as_str) else {
            return Ok(None);
        };
        if reference["kind"] != "Pod" || !here {
            return Ok(None);
        }
        let pods = self.registry.kind("", "v1", "pods")?;
        let pod = match self.registry.get(&pods, self.namespace(), doc::text(reference, "name")).await {
            Ok(document) => present(&pods, &document),
            Err(api_status) if api_status.code == 404 => return Ok(None),
            Err(api_status) => return Err(api_status),
        };
        let mut own = doc::list(&pod, "status.podIPs").iter().map(|ip| doc::text(ip, "ip"));
        let known = own.any(|ip| ip == address) || doc::text(&pod, "status.podIP") == address;
        Ok(known.then(|| address.to_owned()))
    }

    async fn node_target(&self) -> Result<Target, ApiStatus> {
        let (scheme, name, port) = split_name(self.name(), "node")?;
        let mut target = self.kubelet(name, self.rest_of_path()).await?;
        target.entrance = self.entrance();
        target.callee = Callee::KubeletProxy;
        if port.is_empty() || port.parse() == Ok(target.port) {
            return Ok(target);
        }
        // Whatever listens there, it is not the kubelet, and does not learn who we are.
        let port = port.parse().map_err(|_| ApiStatus::bad_request(format!("invalid port {port:?}")))?;
        let found = tokio::net::lookup_host((target.host.as_str(), port)).await;
        let found = found.map_err(|e| ApiStatus::bad_request(format!("lookup {}: {e}", target.host)))?;
        found.map(|address| address.ip()).try_for_each(check_address)?;
        Ok(Target { callee: Callee::NodePort, port, tls: scheme == "https", ..target })
    }

    /// The kubelet of a node.
    async fn kubelet(&self, node: &str, path: String) -> Result<Target, ApiStatus> {
        let kind = self.registry.kind("", "v1", "nodes")?;
        let node = present(&kind, &self.registry.get(&kind, "", node).await?);
        kubelet_of(&node, path)
    }

    /// A target that is asked for what follows `/proxy`.
    fn beyond_us(&self, callee: Callee, tls: bool, host: String, port: u16) -> Target {
        let (node, path) = (String::new(), self.rest_of_path());
        Target { callee, node, tls, host, port, path, entrance: self.entrance() }
    }

    async fn object(&self) -> Result<Value, ApiStatus> {
        let document = self.registry.get(&self.kind, self.namespace(), self.name()).await?;
        Ok(present(&self.kind, &document))
    }

    fn name(&self) -> &str {
        self.asking.attributes.resource.as_ref().map(|r| r.name.as_str()).unwrap_or_default()
    }

    fn namespace(&self) -> &str {
        self.asking.attributes.resource.as_ref().map(|r| r.namespace.as_str()).unwrap_or_default()
    }

    /// What follows `/proxy`, as it was sent; None when nothing does.
    fn beyond(&self) -> Option<&str> {
        let resource = self.asking.attributes.resource.as_ref()?;
        asked::beyond(self.asking.head.uri.path(), resource)
    }

    fn path_beyond(&self) -> &str {
        self.beyond().unwrap_or("/")
    }

    /// The path up to and with `/proxy`. More than one slash before it would name another host.
    fn entrance(&self) -> String {
        let path = self.asking.head.uri.path();
        let entrance = &path[..path.len() - self.beyond().map_or(0, str::len)];
        format!("/{}", entrance.trim_start_matches('/'))
    }

    /// A page at the root has links that only lead back to it when the path ends in a slash; as upstream.
    fn root_redirect(&self) -> Option<Answer> {
        let head = &self.asking.head;
        let reads = matches!(head.method, http::Method::GET | http::Method::HEAD);
        if !reads || self.beyond().is_some() || outgoing::upgrade(&head.headers).is_some() {
            return None;
        }
        let query = head.uri.query().map(|q| format!("?{q}")).unwrap_or_default();
        let place = format!("{}/{query}", self.entrance());
        let mut answer = answer::text(301, "");
        answer.headers_mut().insert(header::LOCATION, http::HeaderValue::from_str(&place).ok()?);
        Some(answer)
    }

    /// What follows `/proxy`, with the query.
    fn rest_of_path(&self) -> String {
        let (uri, rest) = (&self.asking.head.uri, self.path_beyond());
        match uri.query() {
            Some(query) => format!("{rest}?{query}"),
            None => rest.to_owned(),
        }
    }
}

/// The kubelet of a Node.
pub(super) fn kubelet_of(node: &Value, path: String) -> Result<Target, ApiStatus> {
    let addresses = doc::list(node, "status.addresses");
    let host = ADDRESS_TYPES.iter().find_map(|wanted| addresses.iter().find(|a| a["type"] == *wanted));
    let host = host.map(|a| doc::text(a, "address").to_owned()).filter(|a| !a.is_empty());
    let host = host.ok_or_else(|| {
        ApiStatus::internal(format!("no preferred addresses found; known addresses: {addresses:?}"))
    })?;
    let port =
        u16::try_from(doc::int(node, "status.daemonEndpoints.kubeletEndpoint.Port")).unwrap_or_default();
    let port = if port == 0 { KUBELET_PORT } else { port };
    // A name is the administrator's word: only addresses that nodes report of themselves are judged.
    host.parse().map_or(Ok(()), check_kubelet_address)?;
    let name = meta::name(node).to_owned();
    Ok(Target { callee: Callee::Kubelet, node: name, tls: true, host, port, path, entrance: String::new() })
}

/// Whether a kubelet that is asked for this path does something. A path that it might read in another way than we do
/// counts as such.
fn is_an_act(path: &str) -> bool {
    let Some(decoded) = asked::decode(path) else { return true };
    let mut segments = decoded.split('/').filter(|s| !s.is_empty() && *s != ".").peekable();
    let first = segments.peek().copied().unwrap_or_default();
    ["exec", "attach", "portForward", "run"].iter().any(|act| act.eq_ignore_ascii_case(first))
        || segments.any(|s| s == "..")
}

/// `[scheme:]name[:port]`
fn split_name<'t>(text: &'t str, what: &str) -> Result<(&'t str, &'t str, &'t str), ApiStatus> {
    let parts = match *text.split(':').collect::<Vec<_>>() {
        [name] => ("", name, ""),
        [name, port] => ("", name, port),
        [scheme @ ("" | "http" | "https"), name, port] => (scheme, name, port),
        _ => ("", "", ""),
    };
    if parts.1.is_empty() {
        return Err(ApiStatus::bad_request(format!("invalid {what} request {text:?}")));
    }
    Ok(parts)
}

fn first_port(pod: &Value) -> Option<u16> {
    let containers = doc::list(pod, "spec.containers").iter();
    let port = containers.flat_map(|c| doc::list(c, "ports")).map(|p| doc::int(p, "containerPort")).next()?;
    u16::try_from(port).ok()
}

/// Where a Pod says it is.
fn check_proxyable(host: &str) -> Result<(), ApiStatus> {
    host.parse().map_err(|_| not_allowed()).and_then(check_address)
}

/// The server's own neighbourhood is not to be reached through it.
fn check_address(address: IpAddr) -> Result<(), ApiStatus> {
    if address.to_canonical().is_loopback() { Err(not_allowed()) } else { check_kubelet_address(address) }
}

/// A kubelet may be on this machine. It is not where clouds hand out credentials, nor everywhere.
fn check_kubelet_address(address: IpAddr) -> Result<(), ApiStatus> {
    let fine = match address.to_canonical() {
        IpAddr::V4(ip) => {
            !(ip.is_link_local() || ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast())
        }
        IpAddr::V6(ip) => !(ip.is_unicast_link_local() || ip.is_unspecified() || ip.is_multicast()),
    };
    if fine { Ok(()) } else { Err(not_allowed()) }
}

fn not_allowed() -> ApiStatus {
    ApiStatus::bad_request("address not allowed")
}

/// A kubelet refuses in plain words; clients look for them in a Status.
async fn explain(answer: Answer) -> ApiStatus {
    let code = answer.status().as_u16();
    let text = Limited::new(answer.into_body(), ERROR_MAX).collect().await;
    let text = text.map(|t| t.to_bytes()).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    match code {
        400 => ApiStatus::bad_request(text),
        404 => ApiStatus::new(404, "NotFound", text),
        422 => ApiStatus::new(422, "Invalid", text),
        429 => ApiStatus::too_many_requests(text, 1),
        _ => ApiStatus::internal(text),
    }
}

/// The container somebody means.
fn choose_container<'p>(pod: &'p Value, asked: &'p str) -> Result<&'p str, ApiStatus> {
    let names = |field: &str| -> Vec<&'p str> {
        doc::list(pod, field).iter().filter_map(|c| c["name"].as_str()).collect()
    };
    let name = meta::name(pod);
    let (own, init) = (names("spec.containers"), names("spec.initContainers"));
    if !asked.is_empty() {
        let known = own.contains(&asked)
            || init.contains(&asked)
            || names("spec.ephemeralContainers").contains(&asked);
        return if known {
            Ok(asked)
        } else {
            Err(ApiStatus::bad_request(format!("container {asked} is not valid for pod {name}")))
        };
    }
    if let Some(preferred) =
        pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"].as_str()
        && own.contains(&preferred)
    {
        return Ok(preferred);
    }
    match &*own {
        [only] if init.is_empty() => Ok(only),
        [] => Err(ApiStatus::bad_request(format!("a container name must be specified for pod {name}"))),
        several => {
            let init = if init.is_empty() {
                String::new()
            } else {
                format!(" or one of the init containers: [{}]", init.join(" "))
            };
            Err(ApiStatus::bad_request(format!(
                "a container name must be specified for pod {name}, choose one of: [{}]{init}",
                several.join(" ")
            )))
        }
    }
}

fn encode_query(pairs: &[(&str, &str)]) -> String {
    let mut out = String::new();
    for (i, (name, value)) in pairs.iter().enumerate() {
        out.push(if i == 0 { '?' } else { '&' });
        out.push_str(name);
        out.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
                out.push(char::from(byte));
            } else {
                out.push_str(&format!("%{byte:02X}"));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_container_is_found_or_asked_for() {
        let one = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}]}});
        let two = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}, {"name": "b"}]}});
        assert_eq!(choose_container(&one, "").ok(), Some("a"));
        assert_eq!(choose_container(&two, "b").ok(), Some("b"));
        let told = choose_container(&two, "").map_err(|r| r.message);
        assert_eq!(
            told,
            Err("a container name must be specified for pod p, choose one of: [a b]".to_owned())
        );
        assert!(choose_container(&two, "c").is_err());
    }

    #[test]
    fn names_and_queries() {
        let split = |text| split_name(text, "pod").ok();
        assert_eq!(split("https:web:8443"), Some(("https", "web", "8443")));
        assert_eq!(split("web:http"), Some(("", "web", "http")));
        assert_eq!(split("web"), Some(("", "web", "")));
        for text in ["", ":80", "ftp:web:80", "a:b:c:d"] {
            assert_eq!(split(text), None, "{text}");
        }
        assert_eq!(encode_query(&[("command", "sh -c"), ("tty", "1")]), "?command=sh%20-c&tty=1");
        assert!(check_proxyable("10.1.2.3").is_ok() && check_proxyable("fd00::1").is_ok());
        for host in
            ["127.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "fe80::1", "0.0.0.0", "localhost", ""]
        {
            assert!(check_proxyable(host).is_err(), "{host}");
        }
    }

    #[test]
    fn what_a_kubelet_does_is_told_from_what_it_tells() {
        for path in [
            "/exec/ns/p/c",
            "//exec/ns/p/c",
            "/./exec/ns/p/c",
            "/%65xec/ns/p/c",
            "/%2Fexec/ns/p/c",
            "/EXEC/ns/p/c",
            "/attach/ns/p/c",
            "/portForward/ns/p",
            "/run/ns/p/c",
            "/exec",
            "/pods/../exec/ns/p/c",
            "/pods/%2e%2e/exec/ns/p/c",
            "/%zz",
        ] {
            assert!(is_an_act(path), "{path}");
        }
        for path in
            ["/", "/pods", "/containerLogs/exec/run/attach", "/logs/run/x..log", "/runningpods/", "/execs"]
        {
            assert!(!is_an_act(path), "{path}");
        }
    }
}
