//! What upstream's own specs ask of an API server, in small.
#![allow(clippy::unwrap_used)]

mod server;

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use server::Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

const LINES: &str = "container is alive\n";

/// A kubelet that has these lines of every container, and tells how it was asked.
async fn kubelet() -> (u16, mpsc::Receiver<String>) {
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(made.cert.pem().as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(made.signing_key.serialize_pem().as_bytes()).unwrap(),
        )
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tell, told) = mpsc::channel(8);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut stream = acceptor.accept(stream).await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let answer = if head.starts_with(b"GET /containerLogs/default/p/missing ") {
                "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone".to_owned()
            } else {
                format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{LINES}",
                    LINES.len()
                )
            };
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            tell.send(String::from_utf8(head).unwrap()).await.unwrap();
        }
    });
    (port, told)
}

/// A server with a Pod on a node whose kubelet this is.
async fn with_a_pod(port: u16) -> Server {
    let server = Server::with("", |_, _| {}).await;
    let node = json!({"metadata": {"name": "n"}, "status": {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
    server.make("POST /api/v1/nodes", &node).await;
    server
        .make("POST /api/v1/namespaces/default/serviceaccounts", &json!({"metadata": {"name": "mine"}}))
        .await;
    let containers = json!([{"name": "main", "image": "i"}, {"name": "missing", "image": "i"}]);
    let pod = json!({"metadata": {"name": "p"}, "spec": {
        "nodeName": "n", "serviceAccountName": "mine", "automountServiceAccountToken": false, "containers": containers}});
    server.make("POST /api/v1/namespaces/default/pods", &pod).await;
    server
}

/// Opens a WebSocket for a log; the head of the answer, and what came after it.
async fn websocket(server: &Server, container: &str, protocol: Option<&str>) -> (String, Vec<u8>) {
    let mut stream = server.connect().await;
    let protocol = protocol.map(|p| format!("Sec-WebSocket-Protocol: {p}\r\n")).unwrap_or_default();
    let request = format!(
        "GET /api/v1/namespaces/default/pods/p/log?container={container} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer root\r\n\
         Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: http://x\r\n{protocol}\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut all = Vec::new();
    while !all.windows(4).any(|w| w == b"\r\n\r\n") {
        all.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(std::mem::take(&mut all)).unwrap();
    if head.starts_with("HTTP/1.1 101") {
        // Until the other side has nothing more to say; how it hangs up is its own matter.
        let _ = stream.read_to_end(&mut all).await;
    }
    (head, all)
}

/// Frames of a server that are short.
fn frames(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut out = Vec::new();
    while let [kind, length @ 0..126, rest @ ..] = bytes {
        let (payload, rest) = rest.split_at(usize::from(*length));
        out.push((*kind, payload.to_vec()));
        bytes = rest;
    }
    assert!(bytes.is_empty(), "{bytes:?}");
    out
}

#[tokio::test]
async fn logs_come_over_a_websocket_in_each_protocol_and_the_kubelet_is_asked_plainly() {
    let (port, mut told) = kubelet().await;
    let server = with_a_pod(port).await;
    let normal = (0x88, 1000_u16.to_be_bytes().to_vec());
    let plain = LINES.as_bytes().to_vec();
    let coded = STANDARD.encode(LINES).into_bytes();
    for (protocol, kind, payload) in [
        (Some("binary.k8s.io"), 0x82, &plain),
        (Some("base64.binary.k8s.io"), 0x81, &coded),
        (None, 0x82, &plain),
    ] {
        let (head, sent) = websocket(&server, "main", protocol).await;
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        assert!(head.to_lowercase().contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="), "{head}");
        let named = head
            .to_lowercase()
            .lines()
            .find_map(|l| l.strip_prefix("sec-websocket-protocol: ").map(str::to_owned));
        assert_eq!(named.as_deref(), protocol);
        // An empty message comes first, as upstream's.
        assert_eq!(frames(&sent), [(kind, Vec::new()), (kind, payload.clone()), normal.clone()]);
        let asked = told.recv().await.unwrap().to_lowercase();
        assert!(asked.starts_with("get /containerlogs/default/p/main "), "{asked}");
        assert!(!asked.contains("websocket") && !asked.contains("upgrade"), "{asked}");
    }
    // What the kubelet refuses, and protocols nobody speaks, are plain answers.
    assert!(websocket(&server, "missing", None).await.0.starts_with("HTTP/1.1 404"));
    assert!(websocket(&server, "main", Some("channel.k8s.io")).await.0.starts_with("HTTP/1.1 403"));
}

#[tokio::test]
async fn what_is_not_enforced_is_listed_and_never_kept() {
    let server = Server::with("", |_, _| {}).await;
    let get = async |path: &str, accept: &str| {
        server.ask("root", &format!("GET {path}"), &format!("Accept: {accept}\r\n"), b"").await
    };
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let groups = get("/apis", aggregated).await.body;
    let groups: Value = serde_json::from_slice(&groups).unwrap();
    let admission = "admissionregistration.k8s.io";
    for (group, plural, kind) in [
        (admission, "mutatingadmissionpolicies", "MutatingAdmissionPolicy"),
        (admission, "mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding"),
        (admission, "mutatingwebhookconfigurations", "MutatingWebhookConfiguration"),
        (admission, "validatingadmissionpolicies", "ValidatingAdmissionPolicy"),
        (admission, "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding"),
        (admission, "validatingwebhookconfigurations", "ValidatingWebhookConfiguration"),
        ("apiregistration.k8s.io", "apiservices", "APIService"),
    ] {
        let found =
            groups["items"].as_array().unwrap().iter().find(|g| g["metadata"]["name"] == group).unwrap();
        let resources = found["versions"][0]["resources"].as_array().unwrap();
        assert!(resources.iter().any(|r| r["resource"] == plural), "{plural}");
        let path = format!("/apis/{group}/v1/{plural}");
        let list = get(&path, "application/json").await;
        let list: Value = serde_json::from_slice(&list.body).unwrap();
        assert_eq!((&list["kind"], &list["items"]), (&json!(format!("{kind}List")), &json!([])), "{list}");
        let packed = get(&path, "application/vnd.kubernetes.protobuf").await;
        assert!(packed.code == 200 && packed.body.starts_with(b"k8s\0"), "{plural}");
        // An informer's watch: begins, and ends when its time is up.
        let watch =
            get(&format!("{path}?watch=true&timeoutSeconds=1&resourceVersion=1"), "application/json").await;
        assert_eq!(watch.code, 200, "{plural}");
        let object =
            json!({"apiVersion": format!("{group}/v1"), "kind": kind, "metadata": {"name": "x"}}).to_string();
        let json_type = "Content-Type: application/json\r\n";
        let apply = "Content-Type: application/apply-patch+yaml\r\n";
        for (line, headers) in [
            (format!("POST {path}"), json_type),
            (format!("PUT {path}/x"), json_type),
            (format!("PATCH {path}/x?fieldManager=m&force=true"), apply),
        ] {
            let refused = server.ask("root", &line, headers, object.as_bytes()).await;
            let message = refused.status()["message"].to_string();
            assert!(refused.code == 405 && message.contains(kind), "{line}: {} {message}", refused.code);
            assert!(message.contains("not served by this API server yet"), "{message}");
        }
    }
}

#[tokio::test]
async fn a_list_says_once_what_its_items_are_unless_a_definition_brought_them() {
    let server = Server::with("", |_, _| {}).await;
    let ask = async |line: &str, body: Value| {
        let headers = "Content-Type: application/json\r\nAccept: application/json\r\n";
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = server.ask("root", line, headers, body.as_bytes()).await;
        assert!(answer.code < 300, "{line}: {}", String::from_utf8_lossy(&answer.body));
        serde_json::from_slice::<Value>(&answer.body).unwrap()
    };
    // Texts that look like what is left out.
    let trap = r#"},"apiVersion":"v1","kind":"Secret""#;
    // The owner is there: the garbage collector deletes what names one that is not.
    let owner = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "o", "labels": {"x": ""}}});
    let owner = ask("POST /api/v1/namespaces/default/secrets", owner).await;
    let owner = json!({"apiVersion": "v1", "kind": "Secret", "name": "o", "uid": owner["metadata"]["uid"]});
    let made = ask(
        "POST /api/v1/namespaces/default/secrets",
        json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"a": trap},
            "metadata": {"name": "s", "annotations": {"a": trap}, "ownerReferences": [owner]}}),
    )
    .await;
    let mut expected = made.clone();
    expected.as_object_mut().unwrap().retain(|key, _| !matches!(key.as_str(), "apiVersion" | "kind"));
    let list = ask("GET /api/v1/namespaces/default/secrets?labelSelector=!x", Value::Null).await;
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("SecretList"), &json!("v1")));
    assert_eq!(list["items"], json!([expected]));
    let roles = ask("GET /apis/rbac.authorization.k8s.io/v1/clusterroles", Value::Null).await;
    assert!(roles["items"].as_array().unwrap().iter().all(|role| role["kind"].is_null()), "{roles}");
    let gone = ask("DELETE /api/v1/namespaces/default/secrets", Value::Null).await;
    assert!(gone["items"][0]["kind"].is_null(), "{gone}");

    let names = json!({"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"});
    let schema = json!({"openAPIV3Schema": {"type": "object"}});
    let versions = json!([{"name": "v1", "served": true, "storage": true, "schema": schema}]);
    ask(
        "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "things.example.com"},
            "spec": {"group": "example.com", "scope": "Namespaced", "names": names, "versions": versions}}),
    )
    .await;
    let path = "/apis/example.com/v1/namespaces/default/things";
    let thing = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t"}});
    let mut served = server.ask("root", &format!("GET {path}"), "", b"").await.code;
    while served == 404 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        served = server.ask("root", &format!("GET {path}"), "", b"").await.code;
    }
    ask(&format!("POST {path}"), thing).await;
    let list = ask(&format!("GET {path}"), Value::Null).await;
    assert_eq!(list["items"][0]["kind"], "Thing");
}

#[tokio::test]
async fn health_checks_are_told_as_indicators() {
    let server = Server::with("", |_, _| {}).await;
    let get = async |path: &str| server.ask("root", &format!("GET {path}"), "", b"").await;
    assert_eq!(get("/metrics/slis").await.code, 200);
    for path in ["/livez", "/livez", "/livez?exclude=etcd", "/readyz", "/livez/ping"] {
        assert_eq!(get(path).await.code, 200, "{path}");
    }
    let page = String::from_utf8(get("/metrics/slis").await.body).unwrap();
    for line in [
        "kubernetes_healthcheck{name=\"etcd\",type=\"livez\"} 1\n",
        "kubernetes_healthcheck{name=\"etcd-readiness\",type=\"readyz\"} 1\n",
        "kubernetes_healthchecks_total{name=\"ping\",type=\"livez\",status=\"success\"} 3\n",
        "kubernetes_healthchecks_total{name=\"etcd\",type=\"livez\",status=\"success\"} 2\n",
    ] {
        assert!(page.contains(line), "{line}{page}");
    }
}
