//! Clients inside the process: they are who the process says they are, and are judged like everybody.
#![allow(clippy::unwrap_used)]

mod server;

use apiserver::http::InProcess;
use apiserver_core::request::User;
use client::{Client, ClientError, Options, Request, Resource, Watcher};
use serde_json::{Value, json};
use server::Server;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn options() -> Options {
    Options { user_agent: "test".to_owned(), ..Options::default() }
}

async fn ask(client: &Client, request: Request) -> Result<Value, u16> {
    match client.ask_bytes(request).await {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes).unwrap()),
        Err(ClientError::Api { answer, .. }) => Err(answer.code),
        Err(other) => panic!("{other}"),
    }
}

async fn who_am_i(client: &Client) -> (String, Vec<String>) {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let told = ask(client, Request::post(path, review.to_string())).await.unwrap();
    let user = &told["status"]["userInfo"];
    let groups = user["groups"].as_array().into_iter().flatten().map(|g| g.as_str().unwrap().to_owned());
    (user["username"].as_str().unwrap().to_owned(), groups.collect())
}

#[tokio::test]
async fn a_client_in_the_process_is_who_the_process_says_and_may_do_what_he_may() {
    let within = InProcess::new();
    let audit = tempfile::tempdir().unwrap();
    let path = audit.path().join("audit.log");
    let (given, log) = (within.clone(), path.clone());
    // Connections made before the server runs wait for it.
    let masters = Client::over(within.dial(User::new("controllers", &["system:masters"])), options());
    let nobody = Client::over(within.dial(User::new("nobody", &[])), options());
    let early = tokio::spawn({
        let masters = masters.clone();
        async move { who_am_i(&masters).await }
    });
    let server = Server::with("", move |settings, _| {
        settings.in_process = Some(given);
        settings.audit = Some(apiserver::http::audit::Settings { path: log, max_bytes: 1 << 20, backups: 1 });
    })
    .await;
    let (name, groups) = early.await.unwrap();
    assert_eq!(name, "controllers");
    assert_eq!(groups, ["system:masters", "system:authenticated"]);

    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}});
    assert_eq!(ask(&nobody, Request::post(MAPS, map.to_string())).await, Err(403));
    assert!(ask(&masters, Request::post(MAPS, map.to_string())).await.is_ok());
    // What others see is the same server.
    assert_eq!(server.ask("root", &format!("GET {MAPS}/one"), "", b"").await.code, 200);

    // Each controller acts as its own service account, and may do what that may.
    let account = "system:serviceaccount:kube-system:replicaset-controller";
    let controller = masters.acting_as(account, options());
    let (name, groups) = who_am_i(&controller).await;
    assert_eq!(name, account);
    assert!(groups.contains(&"system:serviceaccounts:kube-system".to_owned()), "{groups:?}");
    assert!(!groups.contains(&"system:masters".to_owned()), "{groups:?}");
    assert_eq!(ask(&controller, Request::delete(format!("{MAPS}/one"), "{}")).await, Err(403));
    // Whoever may not impersonate is refused here, too.
    let disguised = nobody.acting_as("somebody", options());
    assert_eq!(ask(&disguised, Request::get(MAPS)).await, Err(403));

    // A watch, for which a connection is its own.
    let mut watcher = Watcher::new(masters.clone(), Resource::new(MAPS), base::rng::Rng::new(1));
    let event = watcher.next().await;
    assert!(format!("{event:?}").contains("one"), "{event:?}");
    drop(watcher);
    server.stop().await;
    let told = std::fs::read_to_string(path).unwrap();
    assert!(told.contains("\"username\":\"controllers\"") && told.contains(account), "{told}");
    assert!(masters.ask_bytes(Request::get("/version")).await.is_err(), "a server that has ended refuses");
}

/// No header and no token makes somebody else of who the process says he is.
#[tokio::test]
async fn nothing_that_is_sent_changes_who_is_asking() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let within = InProcess::new();
    let given = within.clone();
    let server = Server::with("", move |settings, _| settings.in_process = Some(given)).await;
    let dial = within.dial(User::new("nobody", &[]));
    for header in
        ["Authorization: Bearer root", "X-Remote-User: root", "X-Remote-Group: system:masters", "A: b"]
    {
        let mut pipe = dial().unwrap();
        let request =
            format!("GET /api/v1/secrets HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}\r\n\r\n");
        pipe.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        pipe.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 403"), "{header}: {answer}");
        assert!(answer.contains("\\\"nobody\\\""), "{header}: {answer}");
    }
    server.stop().await;
}
