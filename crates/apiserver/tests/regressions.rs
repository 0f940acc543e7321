//! Holes that somebody once found, each closed: one test per hole.
#![allow(clippy::unwrap_used)]

mod server;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use apiserver::http::audit;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use server::{Answer, Server};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const JSON: &str = "Content-Type: application/json\r\n";
const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";

/// An address of this machine that is not its loopback, where it has one.
fn own_address() -> IpAddr {
    let look = || {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        socket.local_addr()
    };
    look().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |address: SocketAddr| address.ip())
}

/// A server that others reach, and `eve`, who has no rights.
async fn start() -> Server {
    Server::with("eve,eve,1\n", |settings, dir| {
        settings.bind = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        settings.advertise = Some(own_address());
        settings.audit = Some(audit::Settings { path: dir.join("audit.log"), max_bytes: 0, backups: 1 });
    })
    .await
}

/// Lets `eve` do this in the namespace default, and waits until it counts.
async fn allow(server: &Server, rules: Value, probe: &str) {
    grant(server, "/namespaces/default", "Role", rules, probe).await;
}

async fn allow_everywhere(server: &Server, rules: Value, probe: &str) {
    grant(server, "", "ClusterRole", rules, probe).await;
}

async fn grant(server: &Server, place: &str, kind: &str, rules: Value, probe: &str) {
    let make = format!("POST /apis/rbac.authorization.k8s.io/v1{place}/{}", kind.to_lowercase());
    server.make(&format!("{make}s"), &json!({"metadata": {"name": "eve"}, "rules": rules})).await;
    let binding = json!({"metadata": {"name": "eve"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": "eve"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "eve"}]});
    server.make(&format!("{make}bindings"), &binding).await;
    let deadline = Instant::now() + Duration::from_secs(30);
    while server.ask("eve", probe, "", b"").await.code == 403 {
        assert!(Instant::now() < deadline, "the binding counts");
    }
}

/// A Pod that says it is at this address.
async fn pod_at(server: &Server, name: &str, address: IpAddr) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while server.ask("root", "GET /api/v1/namespaces/default/serviceaccounts/default", "", b"").await.code
        != 200
    {
        assert!(Instant::now() < deadline, "the namespace has its service account");
    }
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    server.make(&format!("POST {pods}"), &pod).await;
    let mut pod: Value =
        serde_json::from_slice(&server.ask("root", &format!("GET {pods}/{name}"), "", b"").await.body)
            .unwrap();
    pod["status"]["podIP"] = address.to_string().into();
    pod["status"]["podIPs"] = json!([{"ip": address.to_string()}]);
    server.make(&format!("PUT {pods}/{name}/status"), &pod).await;
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.body).into_owned()
}

#[tokio::test]
async fn a_proxy_lends_nobody_our_identity() {
    let server = start().await;
    let proxies = json!([{"verbs": ["*"], "apiGroups": [""], "resources": ["services/proxy", "pods/proxy"]}]);
    let through = format!("GET /api/v1/namespaces/default/services/https:kubernetes:https/proxy{SECRETS}");
    allow(&server, proxies, &through).await;
    let answer = server.ask("eve", &through, "", b"").await;
    assert_eq!(
        answer.status()["message"],
        "no endpoints available for service \"kubernetes\"",
        "{}",
        text(&answer)
    );
    // A Pod on the host's network has the address we listen on.
    pod_at(&server, "host", own_address()).await;
    let port = server.address.port();
    let through = format!("GET /api/v1/namespaces/default/pods/https:host:{port}/proxy{SECRETS}");
    let claims = "X-Remote-User: root\r\nX-Remote-Group: system:masters\r\n";
    let answer = server.ask("eve", &through, claims, b"").await;
    let code = if own_address().is_loopback() { 400 } else { 401 };
    assert_eq!(answer.code, code, "{}", text(&answer));
}

#[tokio::test]
async fn a_node_that_gives_our_address_for_its_own_gains_nothing() {
    let server = start().await;
    let port = server.address.port();
    let node = json!({"metadata": {"name": "liar"}, "status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
    server.make("POST /api/v1/nodes", &node).await;
    let answer = server.ask("root", &format!("GET /api/v1/nodes/liar/proxy{SECRETS}"), "", b"").await;
    assert_eq!(answer.code, 401, "{}", text(&answer));
    // Nor does whoever may look at that one Node reach the others, to look or to act, as the server.
    let other = json!({"metadata": {"name": "other"}, "status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}});
    server.make("POST /api/v1/nodes", &other).await;
    let rules = json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["nodes/proxy"], "resourceNames": ["liar"]}]);
    allow_everywhere(&server, rules, "GET /api/v1/nodes/liar/proxy/version").await;
    for path in ["/pods", "/exec/ns/pod/c?command=id", "/run/ns/pod/c?cmd=id"] {
        let line = format!("GET /api/v1/nodes/liar/proxy/api/v1/nodes/other/proxy{path}");
        let answer = server.ask("eve", &line, "", b"").await;
        assert_eq!(answer.code, 401, "{line}: {}", text(&answer));
    }
    // Another port is not the kubelet, and the loopback is nobody's to reach.
    let other = server.ask("root", "GET /api/v1/nodes/https:liar:1/proxy/", "", b"").await;
    assert_eq!(other.status()["message"], "address not allowed");
}

#[tokio::test]
async fn a_watch_shows_only_what_it_was_allowed_for() {
    let server = start().await;
    let all = "/api/v1/namespaces/default/secrets";
    for name in ["mine", "other"] {
        let secret = json!({"metadata": {"name": name}, "stringData": {"a": name}});
        server.make(&format!("POST {all}"), &secret).await;
    }
    let rules = json!([{"verbs": ["get", "list", "watch", "deletecollection"], "apiGroups": [""],
        "resources": ["secrets"], "resourceNames": ["mine"]}]);
    let selecting = |name: &str| format!("fieldSelector=metadata.name%3D{name}");
    allow(&server, rules, &format!("GET {all}/mine")).await;
    let rows = [
        (format!("GET {all}/mine?watch=true&timeoutSeconds=1"), 200),
        (format!("GET {all}?watch=true&timeoutSeconds=1&{}", selecting("mine")), 200),
        ("GET /api/v1/watch/namespaces/default/secrets/mine?timeoutSeconds=1".to_owned(), 200),
        (format!("GET {all}?{}", selecting("mine")), 200),
        (format!("GET {all}/mine?watch=true&{}", selecting("other")), 400),
        (format!("GET /api/v1/watch/namespaces/default/secrets/mine?{}", selecting("other")), 400),
        (format!("GET {all}?watch=true&{}", selecting("other")), 403),
        (format!("GET {all}?{}", selecting("other")), 403),
        (format!("GET {all}/other?watch=true&{}", selecting("mine")), 403),
        (format!("GET {all}"), 403),
        // A name narrows no deletecollection, and no selector counts on the old paths; as upstream.
        (format!("DELETE {all}?{}", selecting("mine")), 403),
        (format!("GET /api/v1/watch/namespaces/default/secrets?{}", selecting("mine")), 403),
    ];
    for (line, code) in rows {
        let answer = server.ask("eve", &line, "", b"").await;
        assert_eq!(answer.code, code, "{line}: {}", text(&answer));
        assert!(!text(&answer).contains("\"name\":\"other\",\"namespace\""), "{line}: {}", text(&answer));
    }
}

#[tokio::test]
async fn a_body_may_not_mean_another_object_than_the_path() {
    let server = start().await;
    pod_at(&server, "p", IpAddr::from([10, 0, 0, 1])).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    server.make(&format!("POST {maps}"), &json!({"metadata": {"name": "m"}})).await;
    let (here, there) = (json!({"name": "q"}), json!({"name": "p", "namespace": "kube-system"}));
    let pod = "/api/v1/namespaces/default/pods/p";
    let account = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let target = json!({"kind": "Node", "name": "n"});
    let review = "/apis/authorization.k8s.io/v1/namespaces/default/localsubjectaccessreviews";
    let rows = [
        (format!("POST {maps}"), json!({"metadata": there}), 400),
        (format!("PUT {maps}/m"), json!({"metadata": here}), 400),
        (format!("PUT {maps}/m"), json!({"metadata": {"name": "m", "namespace": "kube-system"}}), 400),
        (format!("POST {pod}/binding"), json!({"metadata": here, "target": target}), 400),
        (format!("POST {pod}/binding"), json!({"metadata": there, "target": target}), 400),
        (
            "POST /api/v1/namespaces/default/bindings".to_owned(),
            json!({"metadata": there, "target": target}),
            400,
        ),
        (format!("POST {pod}/eviction"), json!({"metadata": here}), 400),
        (format!("POST {pod}/eviction"), json!({"metadata": there}), 400),
        (account.to_owned(), json!({"metadata": here}), 422),
        (account.to_owned(), json!({"metadata": there}), 400),
        (review.to_owned(), json!({"metadata": there, "spec": {"user": "eve"}}), 400),
    ];
    for (line, body, code) in rows {
        let line = if line.starts_with('/') { format!("POST {line}") } else { line };
        let answer = server.ask("root", &line, JSON, body.to_string().as_bytes()).await;
        assert_eq!(answer.code, code, "{line} {body}: {}", text(&answer));
    }
    let patch = "Content-Type: application/merge-patch+json\r\n";
    for body in [json!({"metadata": here}), json!({"metadata": {"namespace": "kube-system"}})] {
        let answer = server.ask("root", &format!("PATCH {maps}/m"), patch, body.to_string().as_bytes()).await;
        assert!(matches!(answer.code, 400 | 422), "{body}: {}", text(&answer));
    }
}

#[tokio::test]
async fn the_audit_log_tells_who_asked_and_whom_he_acted_as() {
    let server = start().await;
    let list = "GET /api/v1/namespaces/default/configmaps";
    assert_eq!(server.ask("root", list, "Impersonate-User: jane\r\n", b"").await.code, 403);
    assert_eq!(server.ask("eve", list, "Impersonate-User: root\r\n", b"").await.code, 403);
    assert_eq!(server.ask("stranger", list, "", b"").await.code, 401);
    let page = text(&server.ask("root", "GET /metrics", "", b"").await);
    assert!(page.contains("apiserver_audit_error_total{plugin=\"log\"} 0"), "{page}");
    let deadline = Instant::now() + Duration::from_secs(30);
    let seen: Vec<String> = loop {
        let log = std::fs::read_to_string(server.dir.path().join("audit.log")).unwrap_or_default();
        let whole = log.rfind('\n').map_or("", |end| &log[..end]);
        let entries = whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let told = |e: Value| {
            format!(
                "{} as {} {} {}: {}",
                e["user"]["username"],
                e["impersonatedUser"]["username"],
                e["verb"],
                e["objectRef"]["resource"],
                e["responseStatus"]["code"]
            )
        };
        let seen: Vec<String> =
            entries.filter(|e| e["objectRef"]["resource"] == "configmaps").map(told).collect();
        if seen.len() >= 3 {
            break seen;
        }
        assert!(Instant::now() < deadline, "{seen:?}");
        tokio::task::yield_now().await;
    };
    let wanted = [
        r#""root" as "jane" "list" "configmaps": 403"#,
        r#""eve" as null "list" "configmaps": 403"#,
        r#""" as null "list" "configmaps": 401"#,
    ];
    assert_eq!(seen, wanted);
}

#[tokio::test]
async fn heads_that_two_could_read_differently_are_refused() {
    let server = start().await;
    let token = "Authorization: Bearer root\r\nConnection: close\r\n";
    let rows = [
        (format!("GET /version HTTP/1.1\r\nHost: x\r\n{token}\r\n"), 200),
        (format!("GET /version HTTP/1.0\r\n{token}\r\n"), 200),
        (format!("GET /version HTTP/1.1\r\n{token}\r\n"), 400),
        (format!("GET /version HTTP/1.1\r\nHost: x\r\nHost: x\r\n{token}\r\n"), 400),
        (format!("GET /version HTTP/1.1\r\nHost: x\r\nHost: y\r\n{token}\r\n"), 400),
        (format!("GET /version HTTP/1.1\nHost: x\r\n{token}\r\n"), 400),
        (format!("GET /version HTTP/1.1\r\nHost: x\n{token}\r\n"), 400),
        (format!("GET /version HTTP/1.1\r\nHost: x\r\n{token}\n"), 400),
        // Nobody is to believe that there is a tunnel.
        (format!("CONNECT 192.0.2.1:22 HTTP/1.1\r\nHost: x\r\n{token}\r\n"), 405),
    ];
    for (head, code) in rows {
        let answer = server.raw(head.as_bytes()).await;
        assert_eq!(answer.map(|a| a.code), Some(code), "{head:?}");
    }
    // The second request on a connection is looked at like the first.
    let body = r#"{"metadata":{"name":"x"}}"#;
    let post = format!(
        "POST /api/v1/namespaces/default/configmaps?dryRun=All HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer root\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let both = format!("{post}GET /version HTTP/1.1\r\nHost: x\n{token}\r\n");
    let mut stream = server.connect().await;
    stream.write_all(both.as_bytes()).await.unwrap();
    let mut all = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut all)).await.expect("ends");
    let all = String::from_utf8_lossy(&all);
    assert!(all.starts_with("HTTP/1.1 201") && all.contains("HTTP/1.1 400"), "{all}");
}

#[tokio::test]
async fn pages_of_a_pod_lead_back_through_us() {
    let (server, own) = (start().await, own_address());
    let backend = tokio::net::TcpListener::bind((own, 0)).await.unwrap();
    let port = backend.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = backend.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let head = String::from_utf8(head).unwrap().to_lowercase();
            let (more, body) = match head.split(' ').nth(1).unwrap() {
                "/" => ("content-type: text/html\r\n", "<a href=\"/x\">x</a>".to_owned()),
                "/moved" => ("location: /there\r\n", String::new()),
                _ => ("access-control-allow-origin: *\r\n", head.clone()),
            };
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n{more}\r\n{body}", body.len());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    pod_at(&server, "web", own).await;
    let proxy = format!("/api/v1/namespaces/default/pods/web:{port}/proxy");
    let get = async |line: String, headers: &str| server.ask("root", &line, headers, b"").await;
    let root = get(format!("GET {proxy}?a=b"), "").await;
    assert_eq!(root.code, 301);
    assert!(root.head.contains(&format!("location: {proxy}/?a=b\r\n")), "{}", root.head);
    if own.is_loopback() {
        assert_eq!(get(format!("GET {proxy}/"), "").await.code, 400);
        return;
    }
    assert_eq!(text(&get(format!("GET {proxy}/"), "").await), format!("<a href=\"{proxy}/x\">x</a>"));
    let moved = get(format!("GET {proxy}/moved"), "").await;
    assert!(moved.head.contains(&format!("location: {proxy}/there")), "{}", moved.head);
    let sent = "X-Remote-User: root\r\nX-Hop: 1\r\nConnection: x-hop\r\nCookie: a=b\r\n";
    let options = get(format!("OPTIONS {proxy}/echo"), sent).await;
    let heard = text(&options);
    assert!(heard.starts_with("options /echo http/1.1\r\n") && heard.contains("cookie: a=b"), "{heard}");
    assert!(heard.contains(&format!("x-forwarded-uri: {proxy}/echo")), "{heard}");
    for secret in ["authorization", "x-remote-user", "x-hop"] {
        assert!(!heard.contains(secret), "{heard}");
    }
    assert!(!options.head.contains("access-control"), "{}", options.head);
    let log = get("DELETE /api/v1/namespaces/default/pods/web/log".to_owned(), "").await;
    assert_eq!(log.code, 405);
}

#[tokio::test]
async fn what_cannot_be_answered_as_asked_is_refused() {
    let server = start().await;
    let review = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let body = json!({"spec": {"nonResourceAttributes": {"verb": "get", "path": "/"}}}).to_string();
    let table = "Accept: application/json;as=Table;v=v1;g=meta.k8s.io\r\n";
    let answer = server.ask("root", review, &format!("{JSON}{table}"), body.as_bytes()).await;
    assert_eq!(answer.status()["reason"], "NotAcceptable");
    let either = format!("{JSON}Accept: application/json;as=Table;v=v1;g=meta.k8s.io,application/json\r\n");
    assert_eq!(server.ask("root", review, &either, body.as_bytes()).await.code, 201);
    let maps = "GET /api/v1/namespaces/default/configmaps";
    assert_eq!(server.ask("root", &format!("{maps}?timeout=32s"), "", b"").await.code, 200);
    let answer = server.ask("root", &format!("{maps}?timeout=soon"), "", b"").await;
    assert_eq!(
        answer.status()["message"],
        "invalid timeout specified in the request URL - time: invalid duration \"soon\""
    );
}

#[tokio::test]
async fn there_are_no_namespaces_in_a_namespace() {
    let server = start().await;
    // All rights in one namespace, as its owner may have them.
    let all = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]);
    allow(&server, all, "GET /api/v1/namespaces/default/pods").await;
    let body = json!({"metadata": {"name": "eves"}}).to_string();
    for line in [
        "GET /api/v1/namespaces/default/namespaces",
        "GET /api/v1/namespaces/default/namespaces?watch=true",
        "GET /api/v1/watch/namespaces/default/namespaces",
        "GET /api/v1/namespaces/default/namespaces/kube-system",
        "POST /api/v1/namespaces/default/namespaces",
        "DELETE /api/v1/namespaces/default/namespaces/kube-system",
    ] {
        let answer = server.ask("eve", line, JSON, body.as_bytes()).await;
        assert_eq!(answer.code, 404, "{line}: {}", text(&answer));
    }
    let own = server.ask("eve", "GET /api/v1/namespaces/default", "", b"").await;
    assert_eq!(own.code, 200, "a Namespace is in itself: {}", text(&own));
}

#[tokio::test]
async fn no_patch_nests_an_object_deeper_than_it_can_be_read() {
    let server = start().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    server.make(&format!("POST {maps}"), &json!({"metadata": {"name": "deep"}})).await;
    let levels = (0..49).fold(json!({}), |below, _| json!({ "f:a": below }));
    let at = "/metadata/managedFields/0/fieldsV1";
    let inside = at.to_owned() + &"/f:a".repeat(49);
    let mut operations = vec![json!({"op": "add", "path": at, "value": levels})];
    operations.extend((0..9).map(|_| json!({"op": "copy", "from": at, "path": inside})));
    let body = Value::Array(operations).to_string();
    let kind = "Content-Type: application/json-patch+json\r\n";
    let answer = server.ask("root", &format!("PATCH {maps}/deep"), kind, body.as_bytes()).await;
    assert_eq!(answer.code, 422, "{}", text(&answer));
    assert_eq!(server.ask("root", "GET /livez", "", b"").await.code, 200);
}

/// Earlier releases let such objects pass. Its finalizers still count, it can be deleted, and everybody else is served.
#[tokio::test]
async fn a_store_with_an_object_that_is_too_deep_is_served() {
    let deep = format!("{}1{}", "{\"a\":".repeat(300), "}".repeat(300));
    let object = format!(
        r#"{{"metadata":{{"name":"doom","namespace":"default","uid":"u","finalizers":["example.com/x"]}},"apiVersion":"v1","kind":"ConfigMap","deep":{deep}}}"#
    );
    let server = Server::with("", |settings, _| {
        let dir = settings.data_dir.clone();
        let writing = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let store = store::Store::open(&dir, store::Options::default()).unwrap();
                let key = "/registry/configmaps/default/doom";
                store.put(key, object.into(), store::Expect::Absent).await.unwrap();
                store.close().await;
            });
        };
        std::thread::spawn(writing).join().unwrap();
    })
    .await;
    let doom = "/api/v1/namespaces/default/configmaps/doom";
    let listed = server.ask("root", "GET /api/v1/configmaps", "", b"").await;
    assert_eq!(listed.code, 200, "{}", text(&listed));
    let deleted = server.ask("root", &format!("DELETE {doom}"), "", b"").await;
    assert_eq!(deleted.code, 200, "{}", text(&deleted));
    assert!(text(&deleted).contains("deletionTimestamp"), "its finalizer counts: {}", text(&deleted));
    let body = json!({"metadata": {"finalizers": null}}).to_string();
    let kind = "Content-Type: application/merge-patch+json\r\n";
    let patched = server.ask("root", &format!("PATCH {doom}"), kind, body.as_bytes()).await;
    assert_eq!(patched.code, 200, "{}", text(&patched));
    assert_eq!(server.ask("root", &format!("GET {doom}"), "", b"").await.code, 404);
}

#[tokio::test]
async fn a_profile_that_confines_a_pod_is_not_taken_off_later() {
    let server = start().await;
    pod_at(&server, "confined", own_address()).await;
    let key = "container.apparmor.security.beta.kubernetes.io/c";
    let body = json!({"metadata": {"annotations": {key: "unconfined"}}}).to_string();
    let kind = "Content-Type: application/merge-patch+json\r\n";
    let pod = "/api/v1/namespaces/default/pods/confined";
    for path in [pod.to_owned(), format!("{pod}/status"), format!("{pod}/ephemeralcontainers")] {
        let answer = server.ask("root", &format!("PATCH {path}"), kind, body.as_bytes()).await;
        assert_eq!(answer.code, 422, "{path}: {}", text(&answer));
        assert!(text(&answer).contains("may not add AppArmor annotations"), "{}", text(&answer));
    }
}

#[tokio::test]
async fn a_node_cannot_send_us_where_credentials_are_handed_out() {
    let server = start().await;
    for (name, address) in [("cloud", "169.254.169.254"), ("all", "0.0.0.0"), ("six", "fe80::1")] {
        let node = json!({"metadata": {"name": name},
            "status": {"addresses": [{"type": "InternalIP", "address": address}]}});
        server.make("POST /api/v1/nodes", &node).await;
        let answer = server.ask("root", &format!("GET /api/v1/nodes/{name}/proxy/"), "", b"").await;
        assert_eq!(answer.status()["message"], "address not allowed", "{name}");
    }
}

#[tokio::test]
async fn no_object_grows_without_end() {
    let server = start().await;
    let kind = "Content-Type: application/merge-patch+json\r\n";
    // What a custom kind keeps of such a patch is up to its author.
    let definition = json!({"metadata": {"name": "blobs.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "blobs", "kind": "Blob"}, "versions": [{"name": "v1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    server.make("POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition).await;
    let blobs = "/apis/example.com/v1/namespaces/default/blobs";
    let deadline = Instant::now() + Duration::from_secs(30);
    let blob = json!({"apiVersion": "example.com/v1", "kind": "Blob", "metadata": {"name": "b"}}).to_string();
    while server.ask("root", &format!("POST {blobs}"), JSON, blob.as_bytes()).await.code == 404 {
        assert!(Instant::now() < deadline, "the kind is served");
    }
    let mut codes = Vec::new();
    for part in ["a", "b"] {
        let body = json!({part: "x".repeat(2_000_000)}).to_string();
        codes.push(server.ask("root", &format!("PATCH {blobs}/b"), kind, body.as_bytes()).await.code);
    }
    assert_eq!(codes, [200, 413]);
}

/// A certificate for this machine, with its key, by an authority that is not the server's own; their files.
fn foreign_certificate(dir: &Path) -> (PathBuf, PathBuf, PathBuf) {
    let mut about = CertificateParams::new(Vec::new()).unwrap();
    about.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    about.distinguished_name.push(DnType::CommonName, "cluster");
    let key = KeyPair::generate().unwrap();
    let authority = about.self_signed(&key).unwrap().pem();
    let shown = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec![Ipv4Addr::LOCALHOST.to_string()]).unwrap();
    let leaf = leaf.signed_by(&shown, &Issuer::new(about, key)).unwrap().pem();
    let write = |name: &str, text: &str| {
        std::fs::write(dir.join(name), text).unwrap();
        dir.join(name)
    };
    (write("cluster.crt", &authority), write("shown.crt", &leaf), write("shown.key", &shown.serialize_pem()))
}

#[tokio::test]
async fn pods_and_the_administrator_are_told_who_vouches_for_a_certificate_that_is_not_ours() {
    let mut server = Server::with("", |settings, dir| {
        let (authority, certificate, key) = foreign_certificate(dir);
        settings.client_ca_file = Some(authority);
        settings.tls_files = Some((certificate, key));
    })
    .await;
    let authority = server.dir.path().join("cluster.crt");
    server.connector = server::connector(&authority);
    let map = "GET /api/v1/namespaces/default/configmaps/kube-root-ca.crt";
    let answer = server.ask("root", map, "", b"").await;
    let map: Value = serde_json::from_slice(&answer.body).unwrap();
    let der = |pem: &[u8]| CertificateDer::from_pem_slice(pem).unwrap();
    let expected = der(&std::fs::read(&authority).unwrap());
    assert_eq!(der(map["data"]["ca.crt"].as_str().unwrap().as_bytes()), expected);
    let kubeconfig = std::fs::read_to_string(server.dir.path().join("data/admin.kubeconfig")).unwrap();
    let (_, encoded) = kubeconfig.split_once("certificate-authority-data: ").unwrap();
    let told = STANDARD.decode(encoded.lines().next().unwrap()).unwrap();
    assert_eq!(der(&told), expected);
    server.stop().await;
}
