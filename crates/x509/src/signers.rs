//! The four signers of Kubernetes: what each of them lets pass, in upstream's words, and what it issues.

use std::collections::BTreeSet;

use base::time::Wall;

use crate::leaf::{BACKDATE, Leaf, Usage, backdated};
use crate::request::Request;

pub const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
pub const CLIENT_KUBELET: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub const SERVING: &str = "kubernetes.io/kubelet-serving";
pub const LEGACY: &str = "kubernetes.io/legacy-unknown";

pub const ALL: [&str; 4] = [CLIENT, CLIENT_KUBELET, SERVING, LEGACY];

/// Who must be allowed what for a request to be approved without a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Approval {
    /// Whoever asks may create `certificatesigningrequests/<this>` of `certificates.k8s.io`.
    pub subresource: &'static str,
    /// What the condition says then.
    pub message: &'static str,
}

/// `Failed` has this reason.
pub const VALIDATION_FAILURE: &str = "SignerValidationFailure";
/// `Approved` has this reason where no person approved.
pub const AUTO_APPROVED: &str = "AutoApproved";

const NODES: &str = "system:nodes";
const MASTERS: &str = "system:masters";
const SELF: Approval = Approval {
    subresource: "selfnodeclient",
    message: "Auto approving self kubelet client certificate after SubjectAccessReview.",
};
const FIRST: Approval = Approval {
    subresource: "nodeclient",
    message: "Auto approving kubelet client certificate after SubjectAccessReview.",
};
const SHORTEST: i64 = 600;
/// A certificate that is good for less than this gets its whole time from now on.
const SHORT: i64 = 8 * 3600;

/// The rights that would approve a request of this user, in the order they are asked about. None: a person has to decide.
#[must_use]
pub fn approvals(signer: &str, user: &str, request: &Request, usages: &[&str]) -> Vec<Approval> {
    if signer != CLIENT_KUBELET || check(CLIENT_KUBELET, request, usages).is_err() {
        return Vec::new();
    }
    let own = (user == request.common_name).then_some(SELF);
    own.into_iter().chain([FIRST]).collect()
}

/// Whether the signer lets the request pass; what the condition says where it does not.
pub fn check(signer: &str, request: &Request, usages: &[&str]) -> Result<(), String> {
    match signer {
        CLIENT_KUBELET => kubelet_client(request, usages),
        SERVING => kubelet_serving(request, usages),
        CLIENT => client(request, usages),
        _ => Ok(()),
    }
}

/// The certificate for a request that passed. Err: usages that nobody knows.
pub fn leaf(
    request: Request,
    usages: &[&str],
    seconds: Option<i64>,
    longest: i64,
    now: Wall,
) -> Result<Leaf, String> {
    let known: Vec<Usage> = usages.iter().filter_map(|name| Usage::from_name(name)).collect();
    if known.len() != usages.len() {
        let unknown = usages.iter().filter(|name| Usage::from_name(name).is_none());
        let unknown: Vec<String> = unknown.map(|name| format!("{name:?}")).collect();
        return Err(format!("unrecognized usage values: [{}]", unknown.join(" ")));
    }
    let life = match seconds {
        None => longest,
        Some(seconds) if seconds > longest => longest,
        Some(seconds) => seconds.max(SHORTEST),
    };
    let end = if life < SHORT { life } else { life - BACKDATE };
    Ok(Leaf {
        subject: request.subject,
        public_key: request.public_key,
        names: request.names,
        usages: known,
        not_before: backdated(now),
        not_after: Wall::from_secs(now.secs().saturating_add(end)),
    })
}

fn kubelet_client(request: &Request, usages: &[&str]) -> Result<(), String> {
    is_of_nodes(request)?;
    let names = &request.names;
    let kinds = [
        ("DNS", names.dns.is_empty()),
        ("Email", names.emails.is_empty()),
        ("IP", names.ips.is_empty()),
        ("URI", names.uris.is_empty()),
    ];
    if let Some((kind, _)) = kinds.iter().find(|(_, is_empty)| !is_empty) {
        return Err(not_allowed(kind));
    }
    is_named_node(request)?;
    are_these(usages, "client auth")
}

fn kubelet_serving(request: &Request, usages: &[&str]) -> Result<(), String> {
    is_of_nodes(request)?;
    let names = &request.names;
    if names.dns.is_empty() && names.ips.is_empty() {
        return Err("DNS or IP subjectAltName is required".to_owned());
    }
    if !names.emails.is_empty() {
        return Err(not_allowed("Email"));
    }
    if !names.uris.is_empty() {
        return Err(not_allowed("URI"));
    }
    are_these(usages, "server auth")?;
    is_named_node(request)
}

fn client(request: &Request, usages: &[&str]) -> Result<(), String> {
    // Upstream leaves this to an admission plugin, which may be switched off.
    if request.organizations.iter().any(|o| o == MASTERS) {
        return Err(format!("use of {CLIENT} signer with {MASTERS} group is not allowed"));
    }
    let known = ["digital signature", "key encipherment", "client auth"];
    if let Some(other) = usages.iter().find(|usage| !known.contains(usage)) {
        return Err(format!("invalid usage for client certificate: {other}"));
    }
    match usages.contains(&"client auth") {
        true => Ok(()),
        false => Err("missing required usage for client certificate: client auth".to_owned()),
    }
}

fn is_of_nodes(request: &Request) -> Result<(), String> {
    match request.organizations == [NODES] {
        true => Ok(()),
        false => Err("subject organization is not system:nodes".to_owned()),
    }
}

fn is_named_node(request: &Request) -> Result<(), String> {
    match request.common_name.starts_with("system:node:") {
        true => Ok(()),
        false => Err("subject common name does not begin with system:node:".to_owned()),
    }
}

fn not_allowed(kind: &str) -> String {
    format!("{kind} subjectAltNames are not allowed")
}

/// Keys that are not RSA need no encipherment.
fn are_these(usages: &[&str], auth: &str) -> Result<(), String> {
    let said: BTreeSet<&str> = usages.iter().copied().collect();
    let all: BTreeSet<&str> = ["digital signature", "key encipherment", auth].into();
    let without: BTreeSet<&str> = ["digital signature", auth].into();
    if said == all || said == without {
        return Ok(());
    }
    let all: Vec<&str> = all.into_iter().collect();
    Err(format!("usages did not match [{}]", all.join(" ")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::names::AlternativeNames;
    use crate::request::tests::asked;

    const NOW: Wall = Wall::from_secs(1_800_000_000);

    fn request(common_name: &str, organization: &str, names: AlternativeNames) -> Request {
        Request::from_pem(&asked(common_name, &[organization], &names)).unwrap()
    }

    fn names(kind: &str) -> AlternativeNames {
        let mut names = AlternativeNames::default();
        match kind {
            "dns" => names.dns.push("n1".into()),
            "ip" => names.ips.push([10, 0, 0, 1].into()),
            "email" => names.emails.push("a@b".into()),
            "uri" => names.uris.push("spiffe://x".into()),
            _ => {}
        }
        names
    }

    #[test]
    fn each_signer_lets_pass_what_upstreams_does() {
        const KUBELET: &[&str] = &["digital signature", "client auth"];
        const RSA: &[&str] = &["key encipherment", "digital signature", "client auth"];
        const SERVER: &[&str] = &["digital signature", "server auth"];
        let (node, nodes) = ("system:node:n1", "system:nodes");
        for (signer, common_name, organization, kind, usages, says) in [
            (CLIENT_KUBELET, node, nodes, "", KUBELET, ""),
            (CLIENT_KUBELET, node, nodes, "", RSA, ""),
            (CLIENT_KUBELET, node, "dev", "", KUBELET, "subject organization is not system:nodes"),
            (
                CLIENT_KUBELET,
                "n1",
                nodes,
                "",
                KUBELET,
                "subject common name does not begin with system:node:",
            ),
            (CLIENT_KUBELET, node, nodes, "dns", KUBELET, "DNS subjectAltNames are not allowed"),
            (CLIENT_KUBELET, node, nodes, "email", KUBELET, "Email subjectAltNames are not allowed"),
            (CLIENT_KUBELET, node, nodes, "ip", KUBELET, "IP subjectAltNames are not allowed"),
            (CLIENT_KUBELET, node, nodes, "uri", KUBELET, "URI subjectAltNames are not allowed"),
            (
                CLIENT_KUBELET,
                node,
                nodes,
                "",
                SERVER,
                "usages did not match [client auth digital signature key encipherment]",
            ),
            (SERVING, node, nodes, "ip", SERVER, ""),
            (SERVING, node, nodes, "", SERVER, "DNS or IP subjectAltName is required"),
            (
                SERVING,
                node,
                nodes,
                "dns",
                KUBELET,
                "usages did not match [digital signature key encipherment server auth]",
            ),
            (SERVING, "n1", nodes, "dns", SERVER, "subject common name does not begin with system:node:"),
            (CLIENT, "jane", "dev", "", &["client auth"], ""),
            (
                CLIENT,
                "jane",
                "dev",
                "",
                &["key encipherment"],
                "missing required usage for client certificate: client auth",
            ),
            (CLIENT, "jane", "dev", "", SERVER, "invalid usage for client certificate: server auth"),
            (
                CLIENT,
                "jane",
                "system:masters",
                "",
                &["client auth"],
                "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed",
            ),
            (LEGACY, "x", "y", "uri", &["code signing"], ""),
        ] {
            let request = request(common_name, organization, names(kind));
            let said = check(signer, &request, usages).err().unwrap_or_default();
            assert_eq!(said, says, "{signer} {common_name} {organization} {kind} {usages:?}");
        }
    }

    #[test]
    fn who_asks_for_itself_is_asked_about_first() {
        let request = request("system:node:n1", "system:nodes", names(""));
        let usages = ["digital signature", "client auth"];
        let subresources = |signer: &str, user: &str| {
            let all = approvals(signer, user, &request, &usages);
            all.iter().map(|approval| approval.subresource).collect::<Vec<_>>()
        };
        assert_eq!(subresources(CLIENT_KUBELET, "system:node:n1"), ["selfnodeclient", "nodeclient"]);
        assert_eq!(subresources(CLIENT_KUBELET, "system:bootstrap:abcdef"), ["nodeclient"]);
        assert!(subresources(SERVING, "system:node:n1").is_empty());
        assert!(approvals(CLIENT_KUBELET, "x", &request, &["client auth"]).is_empty());
    }

    #[test]
    fn a_certificate_lives_as_long_as_was_asked_within_bounds() {
        const YEAR: i64 = 365 * 24 * 3600;
        // What was asked, and the ends counted from now.
        for (seconds, end) in [
            (None, YEAR - 300),
            (Some(3600), 3600),
            (Some(1), 600),
            (Some(8 * 3600), 8 * 3600 - 300),
            (Some(10 * YEAR), YEAR - 300),
        ] {
            let made =
                leaf(request("x", "y", names("")), &["client auth", "any"], seconds, YEAR, NOW).unwrap();
            assert_eq!(made.not_after.secs() - NOW.secs(), end, "{seconds:?}");
            assert_eq!(NOW.secs() - made.not_before.secs(), 300);
            assert_eq!(made.usages, [Usage::ClientAuth, Usage::Any]);
        }
        let refused = leaf(request("x", "y", names("")), &["tea", "any"], None, YEAR, NOW);
        assert_eq!(refused.unwrap_err(), "unrecognized usage values: [\"tea\"]");
    }
}
