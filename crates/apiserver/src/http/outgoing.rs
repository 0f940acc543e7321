//! Who is called on behalf of a client, as whom, and what goes along of what the client said.
//!
//! Everything we dial stands in one table: a connection cannot show a credential that its row does not name. What a
//! client proves to us, or claims to be, is ours to judge and goes to nobody.

use std::net::IpAddr;

use api::bearer;
use http::{HeaderMap, HeaderName, HeaderValue, header};

/// Somebody a request is passed on to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callee {
    /// The kubelet of a Node, with a path of ours: log, exec, attach, portforward.
    Kubelet,
    /// The kubelet of a Node, with a path of the client's: nodes/proxy.
    KubeletProxy,
    /// Another port of a Node: nodes/proxy with a port.
    NodePort,
    /// pods/proxy.
    Pod,
    /// services/proxy.
    Endpoint,
}

/// What we show of ourselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Credential {
    Nothing,
    /// The certificate kubelets know us by.
    KubeletClient,
}

/// The name we call somebody by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostHeader {
    /// The address that is dialled.
    Dialled,
    /// The one the client called us by, as upstream: pages make links of it.
    Clients,
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Manner {
    pub(crate) credential: Credential,
    pub(crate) host: HostHeader,
    /// Whether the client's cookies go along.
    pub(crate) cookies: bool,
    /// Whether the other end may answer with pages: it is told where it appears, and its links are made to lead back.
    pub(crate) pages: bool,
}

/// What a request that is passed on is about, besides its headers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Onward<'r> {
    pub(crate) callee: Callee,
    /// `host:port` that is dialled.
    pub(crate) authority: &'r str,
    /// The name the client called us by.
    pub(crate) client_host: Option<&'r HeaderValue>,
    pub(crate) client: IpAddr,
    /// The path as the client sees it.
    pub(crate) seen_as: &'r str,
}

/// Between two neighbours only; RFC 9110 and what Go's proxy knows besides.
const HOP: &[&str] = &[
    "connection",
    "proxy-connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
];
/// Made anew for every connection.
const OWN: &[&str] = &["host", "content-length"];
/// Who the client is, or wants to be. Some programs believe `x-remote-*` of whoever calls them.
const IDENTITY: &[&str] = &["impersonate-", "x-remote-"];
/// What a page may ask for at our address is not for the other end to say; as upstream.
const CORS: &[&str] = &[
    "access-control-allow-credentials",
    "access-control-allow-headers",
    "access-control-allow-methods",
    "access-control-allow-origin",
];

// === impl Callee ===

impl Callee {
    #[cfg(test)]
    pub(crate) const ALL: [Callee; 5] =
        [Callee::Kubelet, Callee::KubeletProxy, Callee::NodePort, Callee::Pod, Callee::Endpoint];

    /// The table.
    pub(crate) const fn manner(self) -> Manner {
        use {Credential as C, HostHeader as H};
        match self {
            //                             shown             called           cookies  pages
            Callee::Kubelet => Manner::row(C::KubeletClient, H::Dialled, false, false),
            Callee::KubeletProxy => Manner::row(C::KubeletClient, H::Dialled, false, true),
            Callee::NodePort => Manner::row(C::Nothing, H::Clients, true, true),
            Callee::Pod => Manner::row(C::Nothing, H::Clients, true, true),
            Callee::Endpoint => Manner::row(C::Nothing, H::Clients, true, true),
        }
    }
}

// === impl Manner ===

impl Manner {
    const fn row(credential: Credential, host: HostHeader, cookies: bool, pages: bool) -> Manner {
        Manner { credential, host, cookies, pages }
    }
}

/// The protocol the client wants to change to. Both headers have to say so.
pub(crate) fn upgrade(headers: &HeaderMap) -> Option<&HeaderValue> {
    named_in_connection(headers).iter().any(|name| name == "upgrade").then(|| headers.get(header::UPGRADE))?
}

/// The headers of a request as they go on.
pub(crate) fn request_headers(sent: &HeaderMap, onward: &Onward<'_>) -> HeaderMap {
    let manner = onward.callee.manner();
    let named = named_in_connection(sent);
    let mut out = HeaderMap::with_capacity(sent.len() + 4);
    for (name, value) in sent {
        let text = name.as_str();
        let kept_back = HOP.contains(&text)
            || OWN.contains(&text)
            || IDENTITY.iter().any(|prefix| text.starts_with(prefix))
            || (!manner.cookies && name == header::COOKIE)
            || named.iter().any(|n| n == text);
        if !kept_back {
            out.append(name.clone(), value.clone());
        }
    }
    bearer::strip(&mut out);
    match upgrade(sent) {
        Some(protocol) => {
            out.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
            out.insert(header::UPGRADE, protocol.clone());
        }
        None if takes_trailers(sent) => {
            out.insert(header::TE, HeaderValue::from_static("trailers"));
        }
        None => {}
    }
    let own_name = HeaderValue::from_str(onward.authority).ok();
    let host = match manner.host {
        HostHeader::Dialled => own_name,
        HostHeader::Clients => onward.client_host.cloned().or(own_name),
    };
    out.extend(host.map(|host| (header::HOST, host)));
    say_where_from(&mut out, onward, manner.pages && upgrade(sent).is_none());
    out
}

/// Takes out of an answer what was meant for us.
pub(crate) fn clean_answer(headers: &mut HeaderMap, callee: Callee) {
    let named = named_in_connection(headers);
    let cors = if callee.manner().pages { CORS } else { &[] };
    for name in HOP.iter().chain(cors).copied().chain(named.iter().map(String::as_str)) {
        headers.remove(name);
    }
}

/// `X-Forwarded-*`, as upstream's proxy says it.
fn say_where_from(headers: &mut HeaderMap, onward: &Onward<'_>, is_page: bool) {
    const FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
    const URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
    let before = headers.get_all(FOR).iter().filter_map(|v| v.to_str().ok());
    let mut chain: Vec<String> = before.map(str::to_owned).collect();
    chain.push(onward.client.to_canonical().to_string());
    if let Ok(value) = HeaderValue::from_str(&chain.join(", ")) {
        headers.insert(FOR, value);
    }
    if is_page && let Ok(value) = HeaderValue::from_str(onward.seen_as) {
        headers.insert(URI, value);
    }
}

/// The headers that `Connection` declares to be between neighbours, in lower case.
fn named_in_connection(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(header::CONNECTION).iter();
    let names = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    names
        .map(|name| String::from_utf8_lossy(name).trim().to_ascii_lowercase())
        .filter(|n| !n.is_empty())
        .collect()
}

fn takes_trailers(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(header::TE).iter().filter_map(|v| v.to_str().ok());
    values.any(|v| v.split(',').any(|word| word.trim().eq_ignore_ascii_case("trailers")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        list.iter().map(pair).collect()
    }

    fn pass(callee: Callee, list: &[(&'static str, &str)]) -> HeaderMap {
        let client_host = HeaderValue::from_static("api.example:6443");
        let onward = Onward {
            callee,
            authority: "10.0.0.1:10250",
            client_host: Some(&client_host),
            client: IpAddr::from([192, 0, 2, 7]),
            seen_as: "/api/v1/namespaces/a/pods/p/proxy/x",
        };
        request_headers(&headers(list), &onward)
    }

    #[test]
    fn nobody_but_a_kubelet_is_shown_a_credential() {
        let rows: Vec<String> =
            Callee::ALL.iter().map(|callee| format!("{callee:?}: {:?}", callee.manner())).collect();
        let told = [
            "Kubelet: Manner { credential: KubeletClient, host: Dialled, cookies: false, pages: false }",
            "KubeletProxy: Manner { credential: KubeletClient, host: Dialled, cookies: false, pages: true }",
            "NodePort: Manner { credential: Nothing, host: Clients, cookies: true, pages: true }",
            "Pod: Manner { credential: Nothing, host: Clients, cookies: true, pages: true }",
            "Endpoint: Manner { credential: Nothing, host: Clients, cookies: true, pages: true }",
        ];
        assert_eq!(rows, told);
    }

    #[test]
    fn what_a_client_proves_or_claims_goes_to_nobody() {
        // "secret", as a browser encodes it.
        let protocols = "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0";
        let sent = [
            ("authorization", "Bearer secret"),
            ("proxy-authorization", "Basic secret"),
            ("impersonate-user", "secret"),
            ("impersonate-extra-a", "secret"),
            ("x-remote-user", "secret"),
            ("x-remote-group", "secret"),
            ("x-remote-extra-scopes", "secret"),
            ("x-private", "secret"),
            ("keep-alive", "timeout=secret"),
            ("trailer", "x-secret"),
            ("transfer-encoding", "chunked, secret"),
            ("content-length", "5"),
            ("connection", "Upgrade, X-Private"),
            ("upgrade", "websocket"),
            ("sec-websocket-protocol", protocols),
            ("accept", "text/plain"),
        ];
        for callee in Callee::ALL {
            let passed = pass(callee, &sent);
            let text = format!("{passed:?}");
            assert!(!text.contains("secret") && !text.contains("c2VjcmV0"), "{callee:?}: {text}");
            assert_eq!(passed["sec-websocket-protocol"], "v4.channel.k8s.io");
            assert_eq!(
                (&passed["upgrade"], &passed["connection"]),
                (&"websocket".parse().unwrap(), &"Upgrade".parse().unwrap())
            );
            assert_eq!(passed["accept"], "text/plain");
            assert!(!passed.contains_key("content-length"));
        }
    }

    #[test]
    fn a_pod_hears_of_cookies_and_names_and_a_kubelet_does_not() {
        let sent = [("cookie", "a=b"), ("x-forwarded-for", "198.51.100.1"), ("te", "trailers, deflate")];
        let pod = pass(Callee::Pod, &sent);
        assert_eq!(
            (&pod["cookie"], &pod["host"]),
            (&"a=b".parse().unwrap(), &"api.example:6443".parse().unwrap())
        );
        assert_eq!(pod["x-forwarded-for"], "198.51.100.1, 192.0.2.7");
        assert_eq!(pod["x-forwarded-uri"], "/api/v1/namespaces/a/pods/p/proxy/x");
        assert_eq!(pod["te"], "trailers");
        let kubelet = pass(Callee::Kubelet, &sent);
        assert_eq!(kubelet["host"], "10.0.0.1:10250");
        assert!(!kubelet.contains_key("cookie") && !kubelet.contains_key("x-forwarded-uri"));
    }

    #[test]
    fn a_change_of_protocol_is_asked_for_in_both_headers() {
        let rows = [
            (&[("connection", "keep-alive, Upgrade"), ("upgrade", "SPDY/3.1")][..], true),
            (&[("upgrade", "SPDY/3.1")], false),
            (&[("connection", "Upgrade")], false),
            (&[("connection", "Upgraded"), ("upgrade", "SPDY/3.1")], false),
        ];
        for (sent, wanted) in rows {
            assert_eq!(upgrade(&headers(sent)).is_some(), wanted, "{sent:?}");
            assert_eq!(pass(Callee::Pod, sent).contains_key("upgrade"), wanted, "{sent:?}");
        }
    }

    #[test]
    fn an_answer_loses_what_was_between_us() {
        let sent = [
            ("connection", "close, x-hop"),
            ("x-hop", "1"),
            ("keep-alive", "5"),
            ("access-control-allow-origin", "*"),
            ("content-type", "text/plain"),
        ];
        let mut answer = headers(&sent);
        clean_answer(&mut answer, Callee::Pod);
        assert_eq!(answer.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["content-type"]);
    }
}
