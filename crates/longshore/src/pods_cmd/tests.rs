#![allow(clippy::unwrap_used)]

use super::args::{Command, Input, Output};
use super::row::{Row, since};
use super::*;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

fn pod(spec: Value, status: Value) -> Pod {
    let meta = json!({"name": "web", "namespace": "default", "creationTimestamp": "2026-01-01T00:55:30Z"});
    serde_json::from_value(json!({"metadata": meta, "spec": spec, "status": status})).unwrap()
}

/// READY, STATUS and RESTARTS of a Pod.
fn cells(spec: Value, status: Value) -> [String; 3] {
    let row = Row::of(&pod(spec, status), now());
    [row.ready, row.status, row.restarts]
}

#[test]
fn the_status_column_speaks_like_kubectl() {
    let one = json!({"containers": [{"name": "a"}]});
    let two = json!({"containers": [{"name": "a"}, {"name": "b"}]});
    let init = json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}]});
    let c = |name: &str, ready: bool, state: Value| json!({"name": name, "ready": ready, "restartCount": 0, "image": "", "imageID": "", "state": state});
    let running = json!({"running": {"startedAt": "2026-01-01T00:56:00Z"}});
    let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
    let ended = |code: i32, reason: &str| json!({"terminated": {"exitCode": code, "reason": reason}});
    for (spec, status, want) in [
        (&one, json!({"phase": "Pending"}), ["0/1", "Pending", "0"]),
        (
            &one,
            json!({"phase": "Pending", "containerStatuses": [c("a", false, waiting("ContainerCreating"))]}),
            ["0/1", "ContainerCreating", "0"],
        ),
        (
            &one,
            json!({"phase": "Running", "containerStatuses": [c("a", true, running.clone())]}),
            ["1/1", "Running", "0"],
        ),
        (
            &one,
            json!({"phase": "Running", "containerStatuses": [c("a", false, waiting("CrashLoopBackOff"))]}),
            ["0/1", "CrashLoopBackOff", "0"],
        ),
        (
            &one,
            json!({"phase": "Succeeded", "containerStatuses": [c("a", false, ended(0, "Completed"))]}),
            ["0/1", "Completed", "0"],
        ),
        (
            &one,
            json!({"phase": "Failed", "containerStatuses": [c("a", false, ended(3, ""))]}),
            ["0/1", "ExitCode:3", "0"],
        ),
        (&one, json!({"phase": "Failed", "reason": "Evicted"}), ["0/1", "Evicted", "0"]),
        (
            &two,
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}],
            "containerStatuses": [c("a", false, ended(0, "Completed")), c("b", true, running.clone())]}),
            ["1/2", "NotReady", "0"],
        ),
        (
            &init,
            json!({"phase": "Pending", "initContainerStatuses": [c("i", false, running.clone()), c("s", false, waiting("PodInitializing"))]}),
            ["0/2", "Init:0/2", "0"],
        ),
        (
            &init,
            json!({"phase": "Pending", "initContainerStatuses": [c("i", false, ended(1, "Error"))]}),
            ["0/2", "Init:Error", "0"],
        ),
        (
            &init,
            json!({"phase": "Pending", "initContainerStatuses": [c("i", false, waiting("CrashLoopBackOff"))]}),
            ["0/2", "Init:CrashLoopBackOff", "0"],
        ),
        (
            &init,
            json!({"phase": "Running", "initContainerStatuses": [c("i", true, ended(0, "Completed")),
            {"name": "s", "ready": true, "started": true, "restartCount": 2, "image": "", "imageID": "", "state": running,
             "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:58:00Z"}}}],
            "containerStatuses": [c("a", true, running.clone())]}),
            ["2/2", "Running", "2 (2m ago)"],
        ),
    ] {
        assert_eq!(cells(spec.clone(), status.clone()), want, "{status}");
    }
    let mut leaving = pod(one, json!({"phase": "Running"}));
    leaving.metadata.deletion_timestamp = Some(Time(now()));
    assert_eq!(Row::of(&leaving, now()).status, "Terminating");
}

#[test]
fn ages() {
    for (seconds, want) in [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (275, "4m35s"),
        (3600, "60m"),
        (11_000, "3h3m"),
        (90_000, "25h"),
        (200_000, "2d7h"),
        (864_000, "10d"),
        (70_000_000, "2y80d"),
        (400_000_000, "12y"),
    ] {
        let at = Time(Timestamp::from_second(now().as_second() - seconds).unwrap());
        assert_eq!(since(&at, now()), want, "{seconds}");
    }
}

#[test]
fn a_table_and_a_page() {
    let mut p = pod(
        json!({"containers": [{"name": "a"}], "nodeName": "n1"}),
        json!({"phase": "Running", "podIP": "10.0.0.5",
            "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "containers with unready status: [a]"}],
            "containerStatuses": [{"name": "a", "ready": false, "restartCount": 3, "image": "busybox:1", "imageID": "",
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
                "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": "2026-01-01T00:59:30Z"}}}]}),
    );
    p.metadata.annotations = Some([("kubernetes.io/config.source".to_owned(), "file".to_owned())].into());
    assert_eq!(
        table::render(std::slice::from_ref(&p), false, now()),
        "NAMESPACE   NAME   READY   STATUS             RESTARTS      AGE     IP\n\
         default     web    0/1     CrashLoopBackOff   3 (30s ago)   4m30s   10.0.0.5\n"
    );
    let events = [EventLine {
        kind: "Warning".to_owned(),
        reason: "BackOff".to_owned(),
        message: "Back-off restarting".to_owned(),
        field_path: "spec.containers{a}".to_owned(),
        count: 4,
        first_seconds: 0,
        last_seconds: now().as_second() - 10,
    }];
    assert_eq!(
        details::wide(&p, &events, now()).lines().skip(2).collect::<Vec<_>>().join("\n"),
        "\nConditions:\n  Ready                       False   ContainersNotReady: containers with unready status: [a]\n\
         \nContainers:\n  a  image busybox:1, ready false, restarts 3\n    waiting: CrashLoopBackOff: back-off 40s\n    \
         last terminated with exit code 1 30s ago: Error\n\
         \nEvents:\n  10s (x4)     Warning  BackOff                spec.containers{a}  Back-off restarting"
    );
    let yaml = details::yaml(&p, &events, now());
    assert!(yaml.contains("kind: Pod") && yaml.contains("# events:"), "{yaml}");
    api::pod::decode(yaml.as_bytes(), &mut |_| {}).unwrap();
}

#[test]
fn a_watch_prints_only_what_changed() {
    let mut watched = table::Watched::new(false);
    let mut p = pod(json!({"containers": [{"name": "a"}]}), json!({"phase": "Pending"}));
    p.metadata.uid = Some("u".to_owned());
    assert_eq!(watched.news(std::slice::from_ref(&p), now()).lines().count(), 2);
    assert_eq!(
        watched.news(std::slice::from_ref(&p), "2026-01-01T02:00:00Z".parse().unwrap()),
        "",
        "age alone is no news"
    );
    p.status.as_mut().unwrap().phase = Some("Running".to_owned());
    let news = watched.news(&[p], now());
    assert!(news.starts_with("default") && news.contains("Running"), "{news}");
}

#[test]
fn command_lines() {
    let parse = |line: &str| {
        let args: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
        args::parse(&args)
    };
    let command = |line: &str| parse(line).unwrap().unwrap().command;
    assert_eq!(command("apply -f -"), Command::Apply { input: Input::Stdin });
    assert_eq!(command("get"), Command::Get { name: None, output: Output::Table, watch: false });
    assert_eq!(
        command("get web -o wide -w"),
        Command::Get { name: Some("web".into()), output: Output::Wide, watch: true }
    );
    assert_eq!(
        command("delete pod/web --grace-period=0 --no-wait"),
        Command::Delete { name: Some("web".into()), input: None, grace: Some(0), wait: false }
    );
    assert_eq!(
        command("logs web -c a/b -f --tail 5 -p"),
        Command::Logs {
            name: "web".into(),
            query: "follow=true&previous=true&timestamps=false&container=a%2Fb&tailLines=5".into()
        }
    );
    assert_eq!(
        command("exec web -c x -- ls -l --color"),
        Command::Exec {
            name: "web".into(),
            container: Some("x".into()),
            command: vec!["ls".into(), "-l".into(), "--color".into()],
            stdin: false,
            tty: false,
        }
    );
    assert_eq!(
        command("exec -it web -- sh -i"),
        Command::Exec {
            name: "web".into(),
            container: None,
            command: vec!["sh".into(), "-i".into()],
            stdin: true,
            tty: true,
        }
    );
    assert_eq!(parse("get -n kube --socket /s").unwrap().unwrap().namespace(), "kube");
    assert!(parse("--help").unwrap().is_none() && parse("get -h").unwrap().is_none());
    for bad in [
        "",
        "fly",
        "apply",
        "delete",
        "logs",
        "exec web",
        "get -o xml",
        "get a b",
        "get --nope",
        "logs a --tail x",
    ] {
        assert!(parse(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn documents_are_split() {
    assert_eq!(split("a: 1\n---\n# nothing\n---\nb: 2\n"), ["a: 1\n", "b: 2\n"]);
    assert_eq!(split("---\na: 1\n"), ["a: 1\n"]);
    assert!(split("# only words\n").is_empty());
}

#[tokio::test]
async fn without_a_kubelet_the_error_says_so() {
    let client = Client::new("/nonexistent/pods.sock".into());
    let error = client.json::<Value>("GET", "/v1/pods", None).await.unwrap_err().to_string();
    assert_eq!(error, "nobody listens on /nonexistent/pods.sock: is the kubelet running on this machine?");
}
