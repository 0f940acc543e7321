//! Every path, every method, every way of asking, as each of several users: who may not, gets nowhere.

use super::*;

const PATHS: [&str; 26] = [
    "/",
    "/pods",
    "/pods/",
    "/healthz",
    "/healthz/ping",
    "/configz",
    "/runningpods/",
    "/stats/summary",
    "/metrics",
    "/metrics/cadvisor",
    "/metrics/resource",
    "/logs/",
    "/logs/?query=kubelet",
    "/containerLogs/ns/manifest/c",
    "/exec/ns/manifest/c?command=id&output=1",
    "/exec/ns/manifest/static/c?command=id&output=1",
    "/attach/ns/manifest/c?output=1",
    "/portForward/ns/manifest?port=80",
    "/run/ns/manifest/c?cmd=id",
    "/checkpoint/ns/manifest/c",
    "/debug/pprof/heap",
    "/debug/flags/v",
    "/statusz",
    "/flagz",
    "/spec/",
    "/cri/exec/token",
];
const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
const WAYS: [&str; 4] = [
    "",
    "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n",
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n",
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: SPDY/3.1+portforward.k8s.io\r\n",
];

/// Whether one of these may, told by what the path is for. `reader` may get nodes/proxy, `monitor` all of nodes/metrics.
fn may(user: &str, method: &str, path: &str) -> bool {
    let first = path.split(['/', '?']).nth(1).unwrap_or_default();
    let of_its_own = ["stats", "metrics", "logs", "checkpoint", "statusz", "flagz"];
    let reaches_in = ["exec", "attach", "portForward", "run"];
    match user {
        "monitor" => first == "metrics",
        "reader" => method == "GET" && !of_its_own.contains(&first) && !reaches_in.contains(&first),
        _ => false,
    }
}

#[tokio::test]
async fn whatever_way_it_is_asked_nobody_gets_past_his_rights() {
    let bench = Arc::new(Bench::new(None, reviewed()).await);
    let client = Arc::new(Client::new(None));
    let mut asking = tokio::task::JoinSet::new();
    for user in ["", "stranger", "reader", "monitor"] {
        for way in WAYS {
            let (bench, client) = (bench.clone(), client.clone());
            asking.spawn(async move {
                let token =
                    if user.is_empty() { String::new() } else { format!("Authorization: Bearer {user}\r\n") };
                for path in PATHS {
                    for method in METHODS {
                        let (status, _) = bench.send(&client, method, path, &format!("{token}{way}")).await;
                        let refused = if matches!(user, "" | "stranger") { 401 } else { 403 };
                        let is_refused = status == refused;
                        assert_eq!(
                            is_refused,
                            !may(user, method, path),
                            "{method} {path} as {user:?} {way:?}: {status}"
                        );
                    }
                }
            });
        }
    }
    while let Some(done) = asking.join_next().await {
        done.unwrap();
    }
}

/// What other servers believe of a header, this one does not.
#[tokio::test]
async fn no_header_lends_a_name_a_method_or_a_path() {
    let (bench, client) = (Bench::new(None, reviewed()).await, Client::new(None));
    let exec = "/exec/ns/manifest/c?command=id&output=1";
    let names = [
        "X-Remote-User: admin\r\nX-Remote-Group: system:masters\r\n",
        "Authorization: Basic YWRtaW46YWRtaW4=\r\n",
        "Authorization: admin\r\n",
        "Authorization: Bearer\r\n",
        "Authorization: Bearer  \r\n",
        "Cookie: token=admin\r\n",
        "X-Forwarded-For: 127.0.0.1\r\nForwarded: for=127.0.0.1\r\n",
    ];
    for headers in names {
        assert_eq!(bench.send(&client, "GET", "/pods", headers).await.0, 401, "{headers}");
    }
    let more = [
        "Impersonate-User: admin\r\nImpersonate-Group: system:masters\r\n",
        "X-HTTP-Method-Override: POST\r\nX-Method-Override: POST\r\n",
        "X-Remote-User: admin\r\n",
        "Authorization: Bearer admin\r\n",
        "X-Original-URL: /healthz\r\nX-Rewrite-URL: /healthz\r\n",
    ];
    for headers in more {
        let headers = format!("Authorization: Bearer reader\r\n{headers}");
        let (status, text) = bench.send(&client, "GET", exec, &headers).await;
        assert!(matches!(status, 401 | 403), "{headers}: {status} {text}");
    }
    for path in [
        "//exec/ns/manifest/c",
        "/./exec/ns/manifest/c",
        "/pods/../exec/ns/manifest/c",
        "/%65xec/ns/manifest/c",
        "/exec%2fns%2fmanifest%2fc",
        "/EXEC/ns/manifest/c",
    ] {
        for method in ["GET", "POST"] {
            let answer = bench.ask(&client, method, &format!("{path}?command=id&output=1"), "reader").await;
            assert!(matches!(answer.0, 400 | 403 | 404), "{method} {path}: {answer:?}");
        }
    }
}
