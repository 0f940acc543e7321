//! Where Pods come from, and what a node shows of them: manifests, a URL, commands; the read-only API; refusals.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use testkit::harness::{Harness, container_id, is_ready, restarts, uid};
use testkit::node::{AgentOptions, Containerd, http};

/// A Pod of one container that waits to be told to end.
fn sleeper(name: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{ name: {name} }}\nspec:\n  terminationGracePeriodSeconds: 2\n  \
         containers:\n    - name: main\n      image: localhost/demo:v1\n      args: [sleep, forever]\n{more}"
    )
}

fn version(n: u8) -> String {
    format!("      env: [{{ name: VERSION, value: '{n}' }}]\n")
}

fn env_of(pod: &Pod) -> String {
    let env = pod.spec.as_ref().and_then(|s| s.containers.first()?.env.clone()).unwrap_or_default();
    env.first().and_then(|e| e.value.clone()).unwrap_or_default()
}

/// `longshore pods problems` when there are some.
fn problems(h: &Harness) -> Option<String> {
    let (code, out, err) = h.pods(&["problems"]);
    assert_eq!(err, "");
    assert_eq!(code != 0, !out.is_empty(), "{out}");
    (!out.is_empty()).then_some(out)
}

#[test]
fn a_manifest_is_edited_broken_repaired_and_removed_and_its_neighbour_lives_on() {
    let Some(mut h) = Harness::usual() else { return };
    h.apply("calm", &sleeper("calm", ""));
    h.apply("one", &sleeper("one", &version(1)));
    let calm = container_id(&h.wait_ready("calm"), "main").to_owned();
    let first = h.wait_ready("one");
    h.apply("one", &sleeper("one", &version(2)));
    let second = h.wait("one", "edited", |p| is_ready(p) && env_of(p) == "2");
    assert_ne!(uid(&first), uid(&second), "another text is another Pod");

    h.apply("one", "apiVersion: v1\nkind: Pod\nspec: [not, a, spec");
    h.apply("bad", &sleeper("Not_A_Name", ""));
    let told = h.until("both problems told", || problems(&h).filter(|p| p.lines().count() == 2));
    assert!(told.contains("/one.yaml") && told.contains("/bad.yaml"), "{told}");
    assert!(told.contains("metadata.name"), "the field is named: {told}");
    // A file that cannot be read says nothing new about its Pod.
    assert_eq!(uid(&h.wait_ready("one")), uid(&second));
    assert_eq!(container_id(&h.wait_ready("calm"), "main"), calm);

    h.apply("one", &sleeper("one", &version(3)));
    h.wait("one", "repaired", |p| is_ready(p) && env_of(p) == "3");
    h.remove("bad");
    h.until("no problem left", || problems(&h).is_none().then_some(()));
    h.remove("one");
    h.wait_gone("one");

    // JSON is as good; hidden files and directories are none of our business.
    let json = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"json"},"spec":{"terminationGracePeriodSeconds":1,
        "containers":[{"name":"main","image":"localhost/demo:v1","args":["sleep","forever"]}]}}"#;
    fs::write(h.agent.manifests().join("json.json"), json).unwrap();
    fs::write(h.agent.manifests().join(".hidden.yaml"), sleeper("hidden", "")).unwrap();
    let json = h.wait_ready("json");
    assert!(h.get("hidden").is_none());
    // The same text is the same Pod, also for the next agent.
    h.restart_agent();
    let again = h.wait_ready("json");
    assert_eq!((uid(&again), restarts(&again, "main")), (uid(&json), 0));
    assert_eq!(container_id(&h.wait_ready("calm"), "main"), calm);
}

#[test]
fn a_manifest_that_is_deleted_and_written_again_starts_its_pod_anew() {
    let Some(h) = Harness::usual() else { return };
    h.apply("one", &sleeper("one", ""));
    let first = h.wait_ready("one");
    h.remove("one");
    h.apply("one", &sleeper("one", ""));
    let again =
        h.wait("one", "up again", |p| is_ready(p) && container_id(p, "main") != container_id(&first, "main"));
    assert_eq!((uid(&again), restarts(&again, "main")), (uid(&first), 1));
}

#[test]
fn one_file_may_be_the_whole_source() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pod.yaml");
    let config = format!("staticPodPath: {}\n", file.display());
    let options = AgentOptions { config, ..AgentOptions::default() };
    let Some(h) = Harness::start(Containerd::default(), options) else { return };
    assert!(h.list().is_empty(), "a path that is not there yet is an empty source");
    fs::write(&file, sleeper("one", &version(1))).unwrap();
    h.wait_ready("one");
    let early = dir.path().join("early");
    fs::write(&early, sleeper("one", &version(2))).unwrap();
    fs::rename(&early, &file).unwrap();
    h.wait("one", "edited", |p| is_ready(p) && env_of(p) == "2");
    fs::remove_file(&file).unwrap();
    h.wait_gone("one");
}

/// The place of a manifest is part of the UID, so an agent that reads another directory stands for a kubelet that reckons
/// otherwise.
#[test]
fn pods_of_a_kubelet_with_other_uids_run_on_unless_their_manifest_was_touched() {
    let dir = tempfile::tempdir().unwrap();
    let (theirs, ours) = (dir.path().join("theirs"), dir.path().join("ours"));
    for place in [&theirs, &ours] {
        fs::create_dir(place).unwrap();
        fs::write(place.join("calm.yaml"), sleeper("calm", "")).unwrap();
        fs::write(place.join("edited.yaml"), sleeper("edited", &version(1))).unwrap();
    }
    let reading = |place: &Path| {
        let config = format!("staticPodPath: {}\n", place.display());
        AgentOptions { config, ..AgentOptions::default() }
    };
    let Some(mut h) = Harness::start(Containerd::default(), reading(&theirs)) else { return };
    let (calm, edited) = (h.wait_ready("calm"), h.wait_ready("edited"));
    let unmoved = |h: &Harness, what: &str| {
        let now = h.wait_ready("calm");
        let same = (uid(&now), container_id(&now, "main"), restarts(&now, "main"));
        assert_eq!(same, (uid(&calm), container_id(&calm, "main"), 0), "{what}");
    };

    fs::write(ours.join("edited.yaml"), sleeper("edited", &version(2))).unwrap();
    h.reconfigure_agent(reading(&ours));
    let anew = h.wait("edited", "what was edited meanwhile", |p| is_ready(p) && env_of(p) == "2");
    assert_ne!(uid(&anew), uid(&edited));
    unmoved(&h, "taken over");

    // The same text at a later time: from now on a note tells whose it is.
    fs::write(ours.join("calm.yaml"), sleeper("calm", "")).unwrap();
    h.restart_agent();
    unmoved(&h, "taken over again");
    fs::write(ours.join("calm.yaml"), sleeper("calm", &version(3))).unwrap();
    let changed = h.wait("calm", "edited at last", |p| is_ready(p) && env_of(p) == "3");
    assert_ne!(uid(&changed), uid(&calm));
    h.until("the former is gone", || (!h.pod_dir(&calm).exists()).then_some(()));
}

/// A web server of one page, inside the node's network.
#[derive(Clone, Debug)]
struct Page {
    answer: Arc<Mutex<(u16, String)>>,
    last_request: Arc<Mutex<String>>,
}

impl Page {
    const PORT: u16 = 8099;

    fn serve(h: &Harness) -> Self {
        let listener = h.node.inside(|| TcpListener::bind(("127.0.0.1", Self::PORT)).unwrap()).unwrap();
        let page = Self { answer: Arc::new(Mutex::new((404, String::new()))), last_request: Arc::default() };
        let served = page.clone();
        thread::spawn(move || listener.incoming().flatten().for_each(|s| served.answer_one(s)));
        page
    }

    fn answer_one(&self, mut stream: TcpStream) {
        let mut request = Vec::new();
        let mut piece = [0; 1024];
        while !request.windows(4).any(|w| w == b"\r\n\r\n") {
            match stream.read(&mut piece) {
                Ok(n) if n > 0 => request.extend_from_slice(&piece[..n]),
                _ => return,
            }
        }
        *self.last_request.lock().unwrap() = String::from_utf8_lossy(&request).into_owned();
        let (code, body) = self.answer.lock().unwrap().clone();
        let length = body.len();
        let _ = write!(
            stream,
            "HTTP/1.1 {code} Such\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
        );
    }

    fn say(&self, code: u16, body: impl Into<String>) {
        *self.answer.lock().unwrap() = (code, body.into());
    }
}

fn pod_list(pods: &[(&str, u8)]) -> String {
    let pod = |(name, version): &(&str, u8)| {
        serde_json::json!({"metadata": {"name": name}, "spec": {"terminationGracePeriodSeconds": 1, "containers": [
            {"name": "main", "image": "localhost/demo:v1", "args": ["sleep", "forever"],
             "env": [{"name": "VERSION", "value": version.to_string()}]}]}})
    };
    let items: Vec<_> = pods.iter().map(pod).collect();
    serde_json::json!({"apiVersion": "v1", "kind": "PodList", "items": items}).to_string()
}

#[test]
fn pods_behind_a_url_follow_it_and_survive_its_bad_days() {
    let url = format!("http://127.0.0.1:{}/pods", Page::PORT);
    let config = format!(
        "staticPodURL: {url}\nstaticPodURLHeader: {{ X-Harbour: [north, south] }}\nhttpCheckFrequency: 200ms\n"
    );
    let Some(h) = Harness::start(Containerd::default(), AgentOptions { config, ..AgentOptions::default() })
    else {
        return;
    };
    h.until("nobody answers yet", || problems(&h).filter(|p| p.contains(&url)));
    let page = Page::serve(&h);
    page.say(200, pod_list(&[("one", 1), ("two", 1)]));
    let one = h.wait_ready("one");
    let two = h.wait_ready("two");
    let request = page.last_request.lock().unwrap().to_lowercase();
    assert!(request.starts_with("get /pods http/1.1\r\n"), "{request}");
    assert!(
        request.contains("x-harbour: north\r\n") && request.contains("x-harbour: south\r\n"),
        "{request}"
    );

    for (code, body) in
        [(500, "no"), (200, "{\"apiVersion\": \"v1\", \"kind\": \"PodList\", \"items\": [{}]}"), (200, "#")]
    {
        page.say(code, body);
        h.until("told", || problems(&h).filter(|p| p.contains(&url)));
        assert_eq!(container_id(&h.wait_ready("one"), "main"), container_id(&one, "main"));
        page.say(200, pod_list(&[("one", 1), ("two", 1)]));
        h.until("forgotten", || problems(&h).is_none().then_some(()));
    }
    page.say(200, pod_list(&[("two", 1), ("one", 2)]));
    h.wait("one", "edited", |p| is_ready(p) && env_of(p) == "2");
    assert_eq!(container_id(&h.wait_ready("two"), "main"), container_id(&two, "main"));
    page.say(200, pod_list(&[]));
    h.wait_gone("one");
    h.wait_gone("two");
}

#[test]
fn pods_given_by_command_live_through_a_crash_and_tell_about_themselves() {
    let Some(mut h) = Harness::usual() else { return };
    let before = h.node.census();
    let file = h.node.dir().join("given.yaml");
    let talker = sleeper("given", &version(1)).replace("[sleep, forever]", "[print, '3', '0']");
    let two =
        format!("{}---\n{}", talker.replace("spec:", "spec:\n  restartPolicy: Never"), sleeper("mate", ""));
    fs::write(&file, two).unwrap();
    let path = file.to_str().unwrap();
    let (code, out, err) = h.pods(&["apply", "-f", path]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "pod/given created\npod/mate created\n", ""));
    let (_, out, _) = h.pods(&["apply", "-f", path]);
    assert_eq!(out, "pod/given unchanged\npod/mate unchanged\n");
    let given = h.wait("given", "done", |p| testkit::harness::phase(p) == "Succeeded");
    let mate = h.wait_ready("mate");

    let (_, table, _) = h.pods(&["get"]);
    assert!(table.lines().any(|l| l.contains("given") && l.contains("Completed")), "{table}");
    assert!(table.lines().any(|l| l.contains("mate") && l.contains("Running")), "{table}");
    for output in ["wide", "yaml"] {
        let (code, text, err) = h.pods(&["get", "mate", "-o", output]);
        assert_eq!((code, err.as_str()), (0, ""));
        for word in ["Pulled", "Created", "Started", "mate", "ContainersReady"] {
            assert!(text.contains(word), "no {word} in {text}");
        }
    }
    assert_eq!(h.pods(&["logs", "given"]).1, "line 1\nline 2\nline 3\n");
    assert_eq!(h.pods(&["logs", "given", "--tail", "1"]).1, "line 3\n");
    let (code, out, _) = h.pods(&["exec", "mate", "--", "/demo", "exit", "7"]);
    assert_eq!((code, out.as_str()), (7, ""));
    assert!(h.exec("mate", "main", &["/demo", "env"]).contains("PATH="));

    h.restart_agent();
    let again = h.wait_ready("mate");
    assert_eq!((uid(&again), restarts(&again, "main")), (uid(&mate), 0));
    assert_eq!(container_id(&again, "main"), container_id(&mate, "main"));
    let done = h.wait("given", "still done", |p| testkit::harness::phase(p) == "Succeeded");
    assert_eq!(container_id(&done, "main"), container_id(&given, "main"), "a finished Pod is not run again");

    fs::write(&file, sleeper("mate", &version(2))).unwrap();
    assert_eq!(h.pods(&["apply", "-f", path]).1, "pod/mate configured\n");
    h.wait("mate", "replaced", |p| is_ready(p) && env_of(p) == "2");
    h.apply("filed", &sleeper("filed", ""));
    h.wait_ready("filed");
    refusals_of_commands(&h, &file);
    let (code, out, err) = h.pods(&["delete", "-f", path]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "pod/mate deleted\n", ""));
    assert!(h.get("mate").is_none(), "delete waits");
    // The order is kept even if the agent dies at once.
    let (code, _, err) = h.pods(&["delete", "given", "--no-wait"]);
    assert_eq!((code, err.as_str()), (0, ""));
    h.restart_agent();
    h.wait_gone("given");
    h.remove("filed");
    h.wait_gone("filed");
    h.wait_clean(&before);
}

fn refusals_of_commands(h: &Harness, file: &Path) {
    let bad = file.with_file_name("bad.yaml");
    fs::write(&bad, sleeper("bad", "").replace("name: main", "name: Main_")).unwrap();
    for (args, words) in [
        (vec!["apply", "-f", bad.to_str().unwrap()], "spec.containers[0].name"),
        (vec!["get", "nobody"], "not found"),
        (vec!["delete", "nobody"], "not found"),
        (vec!["delete", "filed"], "file source"),
        (vec!["exec", "mate", "-c", "nobody", "--", "/demo", "true"], "nobody"),
        (vec!["logs", "mate", "-c", "nobody"], "nobody"),
    ] {
        let (code, out, err) = h.pods(&args);
        assert_eq!((code, out.as_str()), (1, ""), "{args:?}: {err}");
        assert!(err.contains(words), "{args:?}: {err}");
    }
}

#[test]
fn the_read_only_servers_show_what_was_done() {
    let Some(h) = Harness::usual() else { return };
    let probe = "      readinessProbe: { exec: { command: [/demo, 'true'] }, periodSeconds: 1 }\n";
    h.apply("one", &sleeper("one", probe));
    h.apply("done", &sleeper("done", "  restartPolicy: Never\n").replace("[sleep, forever]", "[exit, '3']"));
    h.wait_ready("one");
    h.wait("done", "failed", |p| testkit::harness::phase(p) == "Failed");
    let get = |port: u16, path: &str| {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let body = h.node.inside(|| http::get(address, path)).unwrap();
        body.map(|b| String::from_utf8(b).unwrap())
    };
    assert_eq!(get(10248, "/healthz").unwrap(), "ok");
    assert_eq!(get(10255, "/healthz").unwrap(), "ok");
    let list: serde_json::Value = serde_json::from_str(&get(10255, "/pods").unwrap()).unwrap();
    assert_eq!((&list["kind"], &list["apiVersion"]), (&"PodList".into(), &"v1".into()));
    assert!(get(10255, "/exec/default/one-demo/main").is_err(), "only reading is allowed");
    assert!(get(10255, "/nothing").is_err());
    let wanted = [
        "kubelet_running_pods ",
        "kubelet_running_containers{container_state=\"running\"} ",
        "kubelet_desired_pods{static=\"true\"} 2",
        "kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"} 2",
        "kubelet_runtime_operations_total{operation_type=\"create_container\"} 2",
        "kubelet_runtime_operations_total{operation_type=\"start_container\"} 2",
        "kubelet_runtime_operations_duration_seconds_count{operation_type=\"version\"}",
        "kubelet_started_containers_total{container_type=\"container\"} 2",
        "kubelet_started_pods_total 2",
        "kubelet_pleg_relist_duration_seconds_count",
        "kubelet_pleg_last_seen_seconds",
        "kubelet_pod_worker_duration_seconds_count{operation_type=",
        "kubelet_pod_start_duration_seconds_count ",
        "kubelet_node_name{node=\"demo\"} 1",
        "kubelet_cgroup_version ",
        "kubelet_http_requests_total{",
        "process_resident_memory_bytes ",
    ];
    h.until("every metric is there", || {
        let text = get(10255, "/metrics").unwrap();
        let missing = wanted.iter().find(|w| !text.contains(**w));
        fs::write(h.node.dir().join("missing-metric"), format!("{missing:?}")).unwrap();
        missing.is_none().then_some(())
    });
    h.until("the probe is counted", || {
        let text = get(10255, "/metrics/probes").unwrap();
        text.contains("prober_probe_total{probe_type=\"Readiness\",result=\"successful\",container=\"main\",pod=\"one-demo\"").then_some(())
    });
}

/// Runs the agent where it must refuse to; without a node when `h` is none.
fn refused(h: Option<&Harness>, dir: &Path, config: &str, flags: &[&str]) -> Option<(i32, String)> {
    let binary = PathBuf::from(std::env::var_os("LONGSHORE_BINARY")?);
    let file = dir.join("config.yaml");
    fs::write(
        &file,
        format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{config}"),
    )
    .unwrap();
    let mut command = match h {
        Some(h) => h.node.command(&binary),
        None => Command::new(&binary),
    };
    let out: Output = command
        .args(["kubelet", "--config"])
        .arg(&file)
        .arg("--root-dir")
        .arg(dir.join("root"))
        .args(flags)
        .output()
        .unwrap();
    Some((out.status.code().unwrap_or(-1), String::from_utf8_lossy(&out.stderr).into_owned()))
}

/// What an agent of its own directories needs to be told on this machine.
fn private(dir: &Path) -> String {
    let manifests = dir.join("manifests");
    let logs = dir.join("logs");
    let v1 =
        if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() { "" } else { "failCgroupV1: false\n" };
    format!(
        "staticPodPath: {}\npodLogsDir: {}\nfailSwapOn: false\ncgroupDriver: cgroupfs\n\
         authentication: {{ webhook: {{ enabled: false }} }}\nauthorization: {{ mode: AlwaysAllow }}\n{v1}",
        manifests.display(),
        logs.display()
    )
}

#[test]
fn every_mistake_of_a_configuration_is_told_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let config =
        "maxPods: -1\nhealthzPort: 70000\nfileCheckFrequency: soon\nimageGCHighThresholdPercent: 300\n";
    let Some((code, err)) = refused(None, dir.path(), config, &[]) else { return };
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("fileCheckFrequency"), "{err}");
    let config = "maxPods: -1\nhealthzPort: 70000\nimageGCHighThresholdPercent: 300\n";
    let (code, err) = refused(None, dir.path(), config, &[]).unwrap();
    assert_eq!(code, 1);
    for field in ["maxPods", "healthzPort", "imageGCHighThresholdPercent"] {
        assert_eq!(err.matches(field).count(), 1, "{field} in {err}");
    }
    let (code, err) = refused(None, dir.path(), "", &["--no-such-flag"]).unwrap();
    assert!(code == 1 && err.contains("no-such-flag"), "{err}");
}

#[test]
fn a_cgroup_v1_host_is_refused_unless_wanted() {
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let config = private(dir.path()).replace("failCgroupV1: false", "failCgroupV1: true");
    let Some((code, err)) =
        refused(None, dir.path(), &config, &["--container-runtime-endpoint=unix:///nowhere.sock"])
    else {
        return;
    };
    assert_eq!(code, 1);
    assert!(err.contains("failCgroupV1") && err.contains("cgroup v1"), "{err}");
}

#[test]
fn a_missing_runtime_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("nobody.sock");
    let endpoint = format!("--container-runtime-endpoint=unix://{}", socket.display());
    let Some((code, err)) = refused(None, dir.path(), &private(dir.path()), &[&endpoint]) else { return };
    assert_eq!(code, 1);
    let last = err.lines().last().unwrap_or_default();
    assert!(last.starts_with("Error: ") && last.contains(socket.to_str().unwrap()), "{err}");
}

#[test]
fn a_second_agent_finds_its_port_taken_and_touches_nothing() {
    let Some(h) = Harness::usual() else { return };
    h.apply("one", &sleeper("one", ""));
    let one = h.wait_ready("one");
    let dir = tempfile::tempdir().unwrap();
    let endpoint = format!("--container-runtime-endpoint={}", h.node.endpoint());
    let ip = format!("--node-ip={}", h.node.address());
    let flags = [endpoint.as_str(), "--hostname-override=demo", &ip];
    for (more, words) in [
        ("healthzPort: 0\naddress: 127.0.0.1\nreadOnlyPort: 10255\n", "127.0.0.1:10255 for read-only API"),
        ("readOnlyPort: 0\n", "127.0.0.1:10248 for healthz"),
    ] {
        // The same cgroups as the first one's: they go with the node.
        let config = format!("{}cgroupRoot: /{}\n{more}", private(dir.path()), h.node.cgroup());
        let (code, err) = refused(Some(&h), dir.path(), &config, &flags).unwrap();
        assert_eq!(code, 1, "{err}");
        assert!(err.lines().last().unwrap_or_default().contains(words), "{err}");
    }
    thread::sleep(Duration::from_millis(200));
    let again = h.wait_ready("one");
    assert_eq!((container_id(&again, "main"), restarts(&again, "main")), (container_id(&one, "main"), 0));
}
