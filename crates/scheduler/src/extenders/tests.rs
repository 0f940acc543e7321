#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use scheduler_core::node::Node;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

/// A server that gives each question the next answer, and keeps what it was asked.
struct Server {
    url: String,
    asked: tokio::sync::mpsc::Receiver<(String, Value)>,
}

async fn serve(answers: Vec<(u16, Value)>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/scheduler/", listener.local_addr().unwrap());
    let (sender, asked) = tokio::sync::mpsc::channel(16);
    supervise::spawn("extender of a test", async move {
        for (code, answer) in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
            let question = loop {
                let read = stream.read(&mut buffer).await.unwrap();
                bytes.extend_from_slice(&buffer[..read]);
                let text = String::from_utf8_lossy(&bytes).into_owned();
                if let Some((head, body)) = text.split_once("\r\n\r\n")
                    && let Ok(body) = serde_json::from_str(body)
                {
                    break (head.lines().next().unwrap_or_default().to_owned(), body);
                }
            };
            sender.send(question).await.unwrap();
            let body = answer.to_string();
            let head =
                format!("HTTP/1.1 {code} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        }
    });
    Server { url, asked }
}

fn cluster() -> Cluster {
    let mut cluster = Cluster::default();
    for name in ["a", "b"] {
        let object =
            json!({"metadata": {"name": name}, "status": {"allocatable": {"cpu": "1", "pods": "9"}}});
        cluster.set_node(Node::read(&serde_json::from_value(object).unwrap()));
    }
    cluster
}

fn pod() -> Arc<Pod> {
    let object = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": []}});
    Arc::new(Pod::read(&serde_json::from_value(object).unwrap()))
}

async fn extenders(url: &str, change: impl Fn(&mut Extender)) -> Extenders {
    let mut extender = Extender {
        url_prefix: url.to_owned(),
        filter_verb: "filter".into(),
        prioritize_verb: "prioritize".into(),
        bind_verb: "bind".into(),
        weight: 2,
        node_cache_capable: true,
        ..Extender::default()
    };
    change(&mut extender);
    Extenders::connect(&[extender], "v1").await.unwrap()
}

#[tokio::test]
async fn an_extender_filters_scores_and_binds() {
    let mut server = serve(vec![
        (200, json!({"NodeNames": ["b"], "FailedNodes": {"a": "too old"}})),
        (200, json!([{"Host": "b", "Score": 7}])),
        (200, json!({})),
    ])
    .await;
    let (extenders, cluster, objects) = (extenders(&server.url, |_| {}).await, cluster(), Objects::default());
    let mut diagnosis = Diagnosis { nodes: 2, ..Diagnosis::default() };
    let left = extenders.filter(&objects, &cluster, &pod(), vec![0, 1], &mut diagnosis).await;
    assert_eq!(left, Ok(vec![1]));
    assert_eq!(diagnosis.message(), "0/2 nodes are available: 1 too old.");
    let extra = extenders.prioritize(&objects, &cluster, &pod(), &[1]).await;
    assert_eq!(extra, HashMap::from([(1, 140)]));
    assert_eq!(extenders.bind(&pod(), "b").await, Ok(true));
    let mut lines = Vec::new();
    while let Some((line, body)) = server.asked.recv().await {
        lines.push((line, body));
    }
    let paths: Vec<&str> = lines.iter().map(|(line, _)| line.as_str()).collect();
    assert_eq!(
        paths,
        [
            "POST /scheduler/filter HTTP/1.1",
            "POST /scheduler/prioritize HTTP/1.1",
            "POST /scheduler/bind HTTP/1.1"
        ]
    );
    assert_eq!(lines[0].1, json!({"Pod": null, "Nodes": null, "NodeNames": ["a", "b"]}));
    assert_eq!(lines[2].1, json!({"PodName": "p", "PodNamespace": "n", "PodUID": "u", "Node": "b"}));
}

#[tokio::test]
async fn one_that_fails_ends_the_attempt_unless_it_may_be_left_out() {
    for (ignorable, expected) in [(false, Err(())), (true, Ok(vec![0, 1]))] {
        let server = serve(vec![(500, json!({}))]).await;
        let extenders = extenders(&server.url, |e| e.ignorable = ignorable).await;
        let mut diagnosis = Diagnosis::default();
        let left =
            extenders.filter(&Objects::default(), &cluster(), &pod(), vec![0, 1], &mut diagnosis).await;
        if let Err(error) = &left {
            let url = server.url.trim_end_matches('/');
            assert_eq!(*error, format!("failed filter with extender at URL {url}/filter, code 500"));
        }
        assert_eq!(left.map_err(|_| ()), expected);
    }
}

#[test]
fn https_without_an_authority_trusts_any_as_upstream_does() {
    let extender = |https: bool, tls: Option<ExtenderTls>| Extender {
        url_prefix: "https://x/".into(),
        enable_https: https,
        tls_config: tls,
        ..Extender::default()
    };
    let named = ExtenderTls { server_name: "y".into(), ca_data: "Y2E=".into(), ..ExtenderTls::default() };
    assert!(access(&extender(true, None)).unwrap().insecure);
    assert!(!access(&extender(false, None)).unwrap().insecure);
    let config = access(&extender(true, Some(named))).unwrap();
    assert!(!config.insecure && config.ca == Some(Source::Inline(b"ca".to_vec())));
    assert_eq!((config.tls_server_name.as_deref(), config.server.as_str()), (Some("y"), "https://x"));
}
