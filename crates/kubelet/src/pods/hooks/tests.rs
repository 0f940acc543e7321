#![allow(clippy::unwrap_used)]

use k8s_openapi::api::core::v1::{ExecAction, HTTPHeader, SleepAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use cri::v1::ExecSyncResponse;

use super::*;
use crate::testing::{ScriptedNet, ScriptedRuntime, exit, status};

struct Case {
    pod: Pod,
    id: ContainerId,
    runtime: ScriptedRuntime,
    net: ScriptedNet,
}

impl Case {
    fn new() -> Self {
        let mut pod = Pod::default();
        pod.metadata.name = Some("p".into());
        pod.metadata.namespace = Some("ns".into());
        pod.metadata.uid = Some("u".into());
        Self { pod, id: "c1".into(), runtime: ScriptedRuntime::default(), net: ScriptedNet::default() }
    }

    async fn run(&self, hook: &LifecycleHandler) -> Result<Done, HookError> {
        let (pod, id, runtime, net) = (&self.pod, &self.id, &self.runtime, &self.net);
        run(hook, &Call { pod, container: "c", id, pod_ip: Some("10.0.0.1"), runtime, net }).await
    }
}

fn http(scheme: &str) -> LifecycleHandler {
    let header = HTTPHeader { name: "authorization".into(), value: "secret".into() };
    let action = HTTPGetAction {
        port: IntOrString::Int(80),
        path: Some("/stop".into()),
        scheme: Some(scheme.into()),
        http_headers: Some(vec![header]),
        host: None,
    };
    LifecycleHandler { http_get: Some(action), ..Default::default() }
}

fn exec(words: &[&str]) -> LifecycleHandler {
    let command = Some(words.iter().map(|w| (*w).to_owned()).collect());
    LifecycleHandler { exec: Some(ExecAction { command }), ..Default::default() }
}

#[tokio::test(start_paused = true)]
async fn any_http_answer_is_a_success() {
    let case = Case::new();
    case.net.answers.lock().unwrap().push_back(status(500));
    assert_eq!(case.run(&http("HTTP")).await, Ok(Done::default()));
    let sent = case.net.requests.lock().unwrap()[0].clone();
    assert_eq!((sent.host.as_str(), sent.port, sent.timeout), ("10.0.0.1", 80, Duration::ZERO));
    assert!(sent.headers.contains(&("User-Agent".to_owned(), "kube-lifecycle/1.36".to_owned())));
}

#[tokio::test(start_paused = true)]
async fn https_falls_back_to_http_without_credentials() {
    let case = Case::new();
    let refused = Err(NetError(format!("Get \"x\": http: {PLAIN_HTTP_ANSWER}")));
    case.net.answers.lock().unwrap().extend([refused, status(404)]);
    let done = case.run(&http("HTTPS")).await.unwrap();
    assert_eq!(done.fell_back.as_deref(), Some("10.0.0.1:80"));
    let sent = case.net.requests.lock().unwrap().clone();
    assert!(sent[0].tls && !sent[1].tls);
    assert!(sent[1].headers.iter().all(|(name, _)| name != "authorization"));
    let error = case.run(&http("HTTPS")).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "HTTP lifecycle hook (/stop) for Container \"c\" in Pod \"p_ns(u)\" failed - error: nobody there"
    );
}

#[tokio::test(start_paused = true)]
async fn a_failing_command_shows_its_output() {
    let mut case = Case::new();
    case.runtime.exec = Some(Box::new(|_, words| match words[0].as_str() {
        "true" => exit(0, ""),
        _ => exit(3, "so far\n").map(|said| ExecSyncResponse { stderr: b"no!".to_vec(), ..said }),
    }));
    case.run(&exec(&["true"])).await.unwrap();
    let error = case.run(&exec(&["sh", "-c"])).await.unwrap_err().to_string();
    let text = "Exec lifecycle hook ([sh -c]) for Container \"c\" in Pod \"p_ns(u)\" failed - error: \
                command 'sh -c' exited with 3: no!, message: \"so far\\nno!\"";
    assert_eq!(error, text);
    assert!(case.runtime.execs.lock().unwrap().iter().all(|(id, _, t)| id == "c1" && t.is_zero()));
}

#[tokio::test(start_paused = true)]
async fn sleep_sleeps_and_a_hung_command_can_be_dropped() {
    let case = Case::new();
    let begun = tokio::time::Instant::now();
    let sleep = LifecycleHandler { sleep: Some(SleepAction { seconds: 7 }), ..Default::default() };
    case.run(&sleep).await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 7);
    let hung = exec(&["sleep"]);
    assert!(tokio::time::timeout(Duration::from_secs(30), case.run(&hung)).await.is_err());
    assert_eq!(case.run(&LifecycleHandler::default()).await, Err(HookError::Invalid));
}
