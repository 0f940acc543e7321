//! Whether a kubelet may have the certificate that its own port shows: for the names and addresses of its Node, and for no
//! other's. Upstream leaves this to people.

use std::net::IpAddr;
use std::sync::Arc;

use base::rfc3339::Moment;
use base::time::Wall;
use serde_json::Value;
use x509::Request;
use x509::signers::{self, SERVING};

use super::signer;
use crate::auth::authz::Authorizer;
use crate::doc;
use crate::request::{Attributes, Resource, User, groups};

const MESSAGE: &str = "Auto approving kubelet serving certificate after comparing it with the Node.";
/// A Node says where it is a moment after its kubelet has asked.
const SOON: i64 = 120;

/// What becomes of a request without a person.
#[derive(Clone, Debug, PartialEq)]
pub enum Serving {
    Approved(Value),
    /// Its Node does not say so yet: it is looked at again.
    NotYet,
    /// Somebody else's to decide.
    Left,
}

/// Decides about one request, by all Nodes there are. `kept` are addresses of the API server: no Node gets those, whatever it
/// says of itself.
pub fn approve(
    object: &Value,
    authorizer: &Authorizer,
    nodes: &[Value],
    kept: &[IpAddr],
    now: Wall,
) -> Serving {
    let spec = &object["spec"];
    if !is_open(object) || !may(object, authorizer) {
        return Serving::Left;
    }
    let Ok(request) = super::request(object) else { return Serving::Left };
    let user = doc::text(spec, "username");
    let usages: Vec<&str> = doc::list(spec, "usages").iter().filter_map(Value::as_str).collect();
    if signers::check(SERVING, &request, &usages).is_err() || request.common_name != user {
        return Serving::Left;
    }
    let name = user.strip_prefix("system:node:").unwrap_or_default();
    if is_of(&request, name, nodes, kept) {
        return Serving::Approved(signer::approved(object, MESSAGE, now));
    }
    let created = Moment::parse_lenient(doc::text(object, "metadata.creationTimestamp"));
    match created.is_some_and(|at| now.secs() - at.secs < SOON) {
        true => Serving::NotYet,
        false => Serving::Left,
    }
}

/// Whether the request is one that nobody has answered.
pub fn is_open(object: &Value) -> bool {
    doc::text(object, "spec.signerName") == SERVING && doc::list(object, "status.conditions").is_empty()
}

/// A role allows it, as with the certificates that nodes show to us.
fn may(object: &Value, authorizer: &Authorizer) -> bool {
    let spec = &object["spec"];
    let members: Vec<String> =
        doc::list(spec, "groups").iter().filter_map(Value::as_str).map(str::to_owned).collect();
    if !members.iter().any(|group| group == groups::NODES) {
        return false;
    }
    let user = User { name: doc::text(spec, "username").to_owned(), groups: members, ..User::default() };
    let resource = Resource {
        group: "certificates.k8s.io".into(),
        version: "*".into(),
        plural: "certificatesigningrequests".into(),
        subresource: "selfnodeserver".into(),
        ..Resource::default()
    };
    let attributes = Attributes {
        user: Arc::new(user),
        verb: "create".into(),
        path: String::new(),
        resource: Some(resource),
    };
    authorizer.authorize(&attributes).is_allowed()
}

/// All names and addresses are the Node's, and no address is another's too. What a Node says of itself is no proof of a name,
/// so it is only its own; and of an address only as long as nobody else could be meant.
fn is_of(request: &Request, name: &str, nodes: &[Value], kept: &[IpAddr]) -> bool {
    let Some(node) = nodes.iter().find(|node| doc::text(node, "metadata.name") == name) else { return false };
    let has_ip =
        |node: &Value, ip: IpAddr| addresses(node).any(|(kind, text)| is_ip(kind) && text.parse() == Ok(ip));
    let is_others = |ip: IpAddr| {
        let mut others = nodes.iter().filter(|other| doc::text(other, "metadata.name") != name);
        others.any(|other| has_ip(other, ip))
    };
    let may_have = |ip: IpAddr| {
        let is_anybodys = ip.is_loopback() || ip.is_unspecified() || ip.is_multicast();
        !is_anybodys && !kept.contains(&ip) && has_ip(node, ip) && !is_others(ip)
    };
    !is_a_service(name)
        && request.names.dns.iter().all(|wanted| wanted == name)
        && request.names.ips.iter().all(|ip| may_have(*ip))
}

/// A machine may be called anything; one that is called like the API server, or like any Service, would be taken for it.
fn is_a_service(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["kubernetes", "localhost", "kubernetes.default"].contains(&name.as_str())
        || name.ends_with(".svc")
        || name.contains(".svc.")
}

fn addresses(node: &Value) -> impl Iterator<Item = (&str, &str)> {
    let all = doc::list(node, "status.addresses").iter();
    all.map(|address| (doc::text(address, "type"), doc::text(address, "address")))
}

fn is_ip(kind: &str) -> bool {
    matches!(kind, "InternalIP" | "ExternalIP")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::signer::tests::encoded;
    use super::*;
    use crate::auth::rbac::policy;
    use serde_json::json;

    const NOW: Wall = Wall(1_800_000_000_000_000_000);

    fn authorizer() -> Authorizer {
        let authorizer = Authorizer::default();
        policy::defaults().iter().for_each(|(kind, object)| authorizer.rbac().put(*kind, object));
        authorizer
    }

    fn request(user: (&str, &str), subject: &str, dns: &[&str]) -> Value {
        json!({"metadata": {"name": "r", "creationTimestamp": "2027-01-15T07:59:50Z"}, "spec": {
            "signerName": SERVING, "username": user.0, "groups": [user.1, "system:authenticated"],
            "usages": ["digital signature", "server auth"],
            "request": encoded(subject, "system:nodes", dns)}})
    }

    fn node(name: &str, host: &str, ip: &str) -> Value {
        json!({"metadata": {"name": name}, "status": {"addresses": [
            {"type": "Hostname", "address": host}, {"type": "InternalIP", "address": ip}]}})
    }

    #[test]
    fn a_node_gets_a_certificate_for_itself_and_for_nobody_else() {
        let nodes = [node("n1", "one", "192.0.2.1"), node("n2", "two", "192.0.2.2")];
        let n1 = ("system:node:n1", "system:nodes");
        for (object, want) in [
            (request(n1, "system:node:n1", &["n1"]), "approved"),
            (request(n1, "system:node:n1", &["one"]), "not yet"),
            (request(n1, "system:node:n1", &["n1", "two"]), "not yet"),
            (request(n1, "system:node:n2", &["two"]), "left"),
            (request(("jane", "dev"), "system:node:n1", &["n1"]), "left"),
            (request(("system:node:n1", "dev"), "system:node:n1", &["n1"]), "left"),
            (request(("system:node:n3", "system:nodes"), "system:node:n3", &["n3"]), "not yet"),
        ] {
            let told = match approve(&object, &authorizer(), &nodes, &[], NOW) {
                Serving::Approved(next) => {
                    assert_eq!(next["status"]["conditions"][0]["type"], "Approved");
                    assert!(!is_open(&next));
                    "approved"
                }
                Serving::NotYet => "not yet",
                Serving::Left => "left",
            };
            assert_eq!(told, want, "{}", object["spec"]["username"]);
        }
        let late = Wall::from_secs(NOW.secs() + 1000);
        let stranger = request(n1, "system:node:n1", &["two"]);
        assert_eq!(approve(&stranger, &authorizer(), &nodes, &[], late), Serving::Left);
    }

    #[test]
    fn a_node_gets_no_certificate_for_what_it_only_claims_to_be() {
        let text = encoded("system:node:n1", "system:nodes", &["n1"]);
        let mut request = Request::from_spec(&text).unwrap();
        let mut may = |ip: &str, nodes: &[Value], kept: &str| {
            request.names.ips = vec![ip.parse().unwrap()];
            is_of(&request, "n1", nodes, &[kept.parse().unwrap()])
        };
        let (one, two) = (node("n1", "one", "192.0.2.1"), node("n2", "two", "192.0.2.2"));
        assert!(may("192.0.2.1", &[one.clone(), two.clone()], "10.96.0.1"));
        assert!(!may("192.0.2.3", &[one.clone(), two], "10.96.0.1"));
        assert!(!may("192.0.2.1", &[one.clone(), node("n2", "two", "192.0.2.1")], "10.96.0.1"));
        assert!(!may("192.0.2.1", &[one], "192.0.2.1"), "the API server's");
        assert!(!may("127.0.0.1", &[node("n1", "one", "127.0.0.1")], "10.96.0.1"));
        for name in ["kubernetes", "kubernetes.default.svc", "web.default.svc.cluster.local", "LOCALHOST"] {
            assert!(is_a_service(name), "{name}");
        }
        assert!(!is_a_service("svc") && !is_a_service("node.example.com"));
    }
}
