//! What the kubelet relies on in a runtime, asked of the fake, of real containerds and of our own runtime alike. What a
//! simulation finds on the fake is only worth something if the fake behaves like the real thing.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::time::{Clock, Mono, Now, Wall};
use cri::v1::{
    ContainerConfig, ContainerEventType, ContainerFilter, ContainerMetadata, ContainerState, ContainerStatus,
    ImageSpec, LinuxPodSandboxConfig, PodSandboxConfig, PodSandboxFilter, PodSandboxMetadata,
    PodSandboxState,
};
use cri::{Client, Endpoint};
use fixture::{Containerd, Node, Options, Tools};
use futures_util::StreamExt;
use kubelet::ports::Runtime;
use testkit::fake_runtime::{Behaviour, Exec, FakeRuntime, Quirks};
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

const IMAGE: &str = "localhost/demo:v1";
const UID: &str = "11111111-2222-3333-4444-555555555555";
const S: fn(u64) -> Duration = Duration::from_secs;

/// A runtime and what a Pod on it needs to know.
struct Stage {
    runtime: Arc<dyn Runtime>,
    /// Where containers log, on a runtime that has a disk.
    logs: Option<PathBuf>,
    cgroup: String,
    modern: bool,
}

/// What each container runs, and how the fake is told of it.
const PARTS: &[(&str, &[&str])] = &[
    ("sleeper", &["/demo", "sleep", "forever"]),
    ("stubborn", &["/demo", "ignore-term"]),
    ("seven", &["/demo", "exit", "7"]),
    ("zero", &["/demo", "exit", "0"]),
    ("nothing", &["/no/such/program"]),
];

#[tokio::test(start_paused = true)]
async fn the_fake_keeps_the_contract() {
    for (quirks, modern) in [(Quirks::CONTAINERD_2_1, true), (Quirks::CONTAINERD_1_6, false)] {
        let fake = FakeRuntime::new(7, Arc::new(TokioClock(Instant::now())));
        fake.set_quirks(quirks);
        fake.add_image(IMAGE);
        fake.script("p", "stubborn", [Behaviour::ignores_term()]);
        fake.script("p", "seven", [Behaviour::exits(7, Duration::ZERO)]);
        fake.script("p", "zero", [Behaviour::exits(0, Duration::ZERO)]);
        fake.script("p", "nothing", [Behaviour::fails_to_start("no such file")]);
        fake.script_exec("p", "sleeper", |command, _| match command[1].as_str() {
            "hang" => Exec::Hang,
            word => Exec::exits(i32::from(word == "false")),
        });
        let runtime = Arc::new(fake);
        check(&Stage { runtime, logs: None, cgroup: String::new(), modern }).await;
    }
}

#[tokio::test]
async fn containerd_2_keeps_the_contract() {
    on_containerd(Containerd::V2, true).await;
}

#[tokio::test]
async fn containerd_1_6_keeps_the_contract() {
    on_containerd(Containerd::V1_6, false).await;
}

#[tokio::test]
async fn the_embedded_runtime_keeps_the_contract() {
    on_containerd(Containerd::Embedded, true).await;
}

async fn on_containerd(containerd: Containerd, modern: bool) {
    let tools = match Tools::from_env() {
        Ok(tools) => tools,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let mut node = Node::start(&tools, Options { containerd, ..Options::default() }).unwrap();
    let client = Client::new(Endpoint::parse(&node.endpoint()).unwrap(), None, S(120));
    let name = if node.is_embedded() { "longshore" } else { "containerd" };
    assert_eq!(client.check_version().await.unwrap().runtime_name, name);
    let stage = Stage {
        runtime: Arc::new(client),
        logs: Some(node.dir().join("pod-logs")),
        cgroup: format!("/{}", node.cgroup()),
        modern,
    };
    check(&stage).await;
    check_restart(&stage, &mut node).await;
    node.stop().unwrap();
}

async fn check(stage: &Stage) {
    check_runtime(stage).await;
    let sandbox = check_sandbox(stage).await;
    check_life(stage, &sandbox).await;
    check_failures(stage, &sandbox).await;
    check_stops(stage, &sandbox).await;
    check_exec(stage, &sandbox).await;
    check_events(stage, &sandbox).await;
    check_end(stage, &sandbox).await;
}

async fn check_runtime(stage: &Stage) {
    let runtime = &stage.runtime;
    let status = runtime.status().await.unwrap().status.unwrap();
    for kind in ["RuntimeReady", "NetworkReady"] {
        assert!(status.conditions.iter().any(|c| c.r#type == kind && c.status), "{kind}: {status:?}");
    }
    match runtime.runtime_config().await {
        Ok(_) => assert!(stage.modern),
        Err(error) => assert!(!stage.modern && error.is_unimplemented(), "{error}"),
    }
    let spec = |image: &str| ImageSpec { image: image.into(), ..Default::default() };
    assert_eq!(runtime.image_status(spec("localhost/none:v1")).await.unwrap(), None);
    let image = runtime.image_status(spec(IMAGE)).await.unwrap().unwrap();
    assert!(image.id.starts_with("sha256:") && image.size > 0, "{image:?}");
    assert!(runtime.list_images().await.unwrap().iter().any(|i| i.id == image.id));
}

async fn check_sandbox(stage: &Stage) -> String {
    let runtime = &stage.runtime;
    let id = runtime.run_pod_sandbox(stage.sandbox(), "").await.unwrap();
    let status = runtime.pod_sandbox_status(&id).await.unwrap().status.unwrap();
    assert_eq!(status.state(), PodSandboxState::SandboxReady);
    assert!(status.network.unwrap().ip.parse::<std::net::IpAddr>().is_ok());
    assert_eq!(status.metadata, stage.sandbox().metadata);
    let filter = |value: &str| PodSandboxFilter {
        label_selector: [("io.kubernetes.pod.uid".to_owned(), value.to_owned())].into(),
        ..Default::default()
    };
    assert_eq!(runtime.list_pod_sandboxes(Some(filter(UID))).await.unwrap().len(), 1);
    assert_eq!(runtime.list_pod_sandboxes(Some(filter("other"))).await.unwrap().len(), 0);
    let error = runtime.run_pod_sandbox(stage.sandbox(), "").await.unwrap_err();
    assert!(error.code == stage.reserved() && error.message.contains("reserved"), "{error}");
    id
}

async fn check_life(stage: &Stage, sandbox: &str) {
    let runtime = &stage.runtime;
    let id = stage.create(sandbox, "sleeper", 0).await.unwrap();
    let created = stage.status(&id).await;
    assert_eq!((created.state(), created.started_at), (ContainerState::ContainerCreated, 0));
    let error = stage.create(sandbox, "sleeper", 0).await.unwrap_err();
    assert!(error.code == stage.reserved() && error.message.contains("reserved"), "{error}");
    runtime.start_container(&id).await.unwrap();
    let running = stage.status(&id).await;
    assert_eq!(running.state(), ContainerState::ContainerRunning);
    assert!(running.started_at >= running.created_at && running.finished_at == 0);
    assert!(running.log_path.ends_with("/sleeper/0.log"), "{}", running.log_path);
    assert!(!running.image_ref.is_empty());
    let error = runtime.start_container(&id).await.unwrap_err();
    assert!(error.message.contains("CONTAINER_RUNNING"), "{error}");
    let filter = ContainerFilter { pod_sandbox_id: sandbox.into(), ..Default::default() };
    assert_eq!(runtime.list_containers(Some(filter)).await.unwrap().len(), 1);

    runtime.stop_container(&id, 30).await.unwrap();
    let stopped = stage.status(&id).await;
    assert_eq!((stopped.state(), stopped.exit_code), (ContainerState::ContainerExited, 143));
    assert_eq!(stopped.reason, "Error");
    assert!(stopped.finished_at >= stopped.started_at);
    runtime.stop_container(&id, 30).await.unwrap();

    runtime.remove_container(&id).await.unwrap();
    runtime.remove_container(&id).await.unwrap();
    assert!(runtime.container_status(&id).await.unwrap_err().is_not_found());
    match runtime.stop_container(&id, 1).await {
        Ok(()) => assert!(stage.modern),
        Err(error) => assert!(!stage.modern && error.is_not_found(), "{error}"),
    }
}

async fn check_failures(stage: &Stage, sandbox: &str) {
    for (name, code, reason) in [("seven", 7, "Error"), ("zero", 0, "Completed")] {
        let id = stage.run(sandbox, name, 0).await;
        let exited = stage.exited(&id).await;
        assert_eq!((exited.exit_code, exited.reason.as_str()), (code, reason), "{name}");
    }
    let id = stage.create(sandbox, "nothing", 0).await.unwrap();
    assert!(stage.runtime.start_container(&id).await.is_err());
    let failed = stage.status(&id).await;
    assert_eq!((failed.state(), failed.exit_code), (ContainerState::ContainerExited, 128));
    assert_eq!(failed.reason, "StartError");
    assert!(!failed.message.is_empty());

    let mut config = stage.config("sleeper", 5);
    config.image = Some(ImageSpec { image: "localhost/none:v1".into(), ..Default::default() });
    let error = stage.runtime.create_container(sandbox, config, stage.sandbox()).await.unwrap_err();
    assert!(error.is_not_found(), "{error}");
    let error = stage.create("no-such-sandbox", "sleeper", 5).await.unwrap_err();
    assert!(error.is_not_found(), "{error}");
}

async fn check_stops(stage: &Stage, sandbox: &str) {
    let runtime = &stage.runtime;
    let id = stage.run(sandbox, "stubborn", 0).await;
    // A stop that is given up does not kill: whoever was cut off has to ask again.
    assert!(timeout(Duration::from_millis(500), runtime.stop_container(&id, 3)).await.is_err());
    sleep(S(4)).await;
    assert_eq!(stage.status(&id).await.state(), ContainerState::ContainerRunning);
    let begun = Instant::now();
    runtime.stop_container(&id, 1).await.unwrap();
    assert!(begun.elapsed() >= S(1) && begun.elapsed() < S(20), "{:?}", begun.elapsed());
    assert_eq!(stage.exited(&id).await.exit_code, 137);

    let id = stage.run(sandbox, "stubborn", 1).await;
    runtime.stop_container(&id, 0).await.unwrap();
    assert_eq!(stage.exited(&id).await.exit_code, 137);

    let id = stage.run(sandbox, "stubborn", 2).await;
    runtime.remove_container(&id).await.unwrap();
    assert!(runtime.container_status(&id).await.unwrap_err().is_not_found());
}

async fn check_exec(stage: &Stage, sandbox: &str) {
    let runtime = &stage.runtime;
    let id = stage.run(sandbox, "sleeper", 1).await;
    let exec = |word: &str, seconds| runtime.exec_sync(&id, vec!["/demo".into(), word.into()], S(seconds));
    assert_eq!(exec("true", 5).await.unwrap().exit_code, 0);
    assert_eq!(exec("false", 0).await.unwrap().exit_code, 1);
    let begun = Instant::now();
    let error = exec("hang", 1).await.unwrap_err();
    assert_eq!(error.code, Code::DeadlineExceeded, "{error}");
    assert!(begun.elapsed() >= S(1) && begun.elapsed() < S(20), "{:?}", begun.elapsed());
    runtime.reopen_container_log(&id).await.unwrap();
    runtime.stop_container(&id, 5).await.unwrap();
    let error = exec("true", 5).await.unwrap_err();
    assert_eq!(error.code, Code::Unknown, "{error}");
    assert!(error.message.contains("CONTAINER_EXITED"), "{error}");
    assert!(runtime.reopen_container_log(&id).await.is_err());
}

async fn check_events(stage: &Stage, sandbox: &str) {
    let mut events = match stage.runtime.events().await {
        Ok(events) => events,
        Err(error) => return assert!(!stage.modern && error.is_unimplemented(), "{error}"),
    };
    assert!(stage.modern);
    // What happened while nobody listened comes first, late as it is.
    let first = timeout(S(20), events.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(
        (first.container_id.as_str(), first.container_event_type()),
        (sandbox, ContainerEventType::ContainerCreatedEvent)
    );
    let id = stage.run(sandbox, "zero", 7).await;
    stage.exited(&id).await;
    stage.runtime.remove_container(&id).await.unwrap();
    let mut seen = Vec::new();
    while seen.last() != Some(&"CONTAINER_DELETED_EVENT") {
        let event = timeout(S(20), events.next()).await.unwrap().unwrap().unwrap();
        if event.container_id == id {
            assert_eq!(event.pod_sandbox_status.as_ref().map(|s| s.id.as_str()), Some(sandbox));
            seen.push(event.container_event_type().as_str_name());
        }
    }
    let expected = [
        "CONTAINER_CREATED_EVENT",
        "CONTAINER_STARTED_EVENT",
        "CONTAINER_STOPPED_EVENT",
        "CONTAINER_DELETED_EVENT",
    ];
    assert_eq!(seen, expected);
}

async fn check_end(stage: &Stage, sandbox: &str) {
    let runtime = &stage.runtime;
    let id = stage.run(sandbox, "stubborn", 9).await;
    runtime.stop_pod_sandbox(sandbox).await.unwrap();
    runtime.stop_pod_sandbox(sandbox).await.unwrap();
    let status = runtime.pod_sandbox_status(sandbox).await.unwrap().status.unwrap();
    assert_eq!(status.state(), PodSandboxState::SandboxNotready);
    assert_eq!(status.network.map(|n| n.ip).unwrap_or_default(), "");
    assert_eq!(stage.exited(&id).await.exit_code, 137);
    // In a dead sandbox nothing starts; some runtimes only notice then.
    match stage.create(sandbox, "sleeper", 9).await {
        Err(error) => assert!(!stage.modern, "{error}"),
        Ok(id) => {
            assert!(stage.modern);
            assert!(runtime.start_container(&id).await.is_err());
            let failed = stage.status(&id).await;
            assert_eq!((failed.state(), failed.exit_code), (ContainerState::ContainerExited, 128));
        }
    }
    runtime.remove_pod_sandbox(sandbox).await.unwrap();
    runtime.remove_pod_sandbox(sandbox).await.unwrap();
    assert!(runtime.pod_sandbox_status(sandbox).await.unwrap_err().is_not_found());
    assert!(runtime.container_status(&id).await.unwrap_err().is_not_found());
    assert!(runtime.list_containers(None).await.unwrap().is_empty());
}

/// The client finds a runtime again that was killed, and its containers have not noticed.
async fn check_restart(stage: &Stage, node: &mut Node) {
    let runtime = &stage.runtime;
    let sandbox = runtime.run_pod_sandbox(stage.sandbox(), "").await.unwrap();
    let id = stage.run(&sandbox, "sleeper", 0).await;
    let events = if stage.modern { Some(runtime.events().await.unwrap()) } else { None };
    let before = stage.status(&id).await;
    node.kill9_containerd().unwrap();
    assert_eq!(runtime.version().await.unwrap_err().code, Code::Unavailable);
    if let Some(mut events) = events {
        let broken = async { while let Some(Ok(_)) = events.next().await {} };
        timeout(S(20), broken).await.unwrap();
    }
    node.start_containerd().unwrap();
    let begun = Instant::now();
    let after = loop {
        match runtime.container_status(&id).await {
            Ok(status) => break status.status.unwrap(),
            Err(error) => assert!(begun.elapsed() < S(30), "{error}"),
        }
        sleep(Duration::from_millis(50)).await;
    };
    assert_eq!((after.state(), after.started_at), (before.state(), before.started_at));
    runtime.stop_pod_sandbox(&sandbox).await.unwrap();
    runtime.remove_pod_sandbox(&sandbox).await.unwrap();
}

// === impl Stage ===

impl Stage {
    /// How a name that is taken is refused.
    fn reserved(&self) -> Code {
        if self.modern { Code::FailedPrecondition } else { Code::Unknown }
    }

    fn labels(&self) -> BTreeMap<String, String> {
        let pairs = [("name", "p"), ("namespace", "default"), ("uid", UID)];
        pairs.into_iter().map(|(k, v)| (format!("io.kubernetes.pod.{k}"), v.to_owned())).collect()
    }

    fn sandbox(&self) -> PodSandboxConfig {
        let metadata =
            PodSandboxMetadata { name: "p".into(), uid: UID.into(), namespace: "default".into(), attempt: 0 };
        PodSandboxConfig {
            metadata: Some(metadata),
            hostname: "p".into(),
            log_directory: self.logs.as_ref().map(|l| l.display().to_string()).unwrap_or_default(),
            labels: self.labels(),
            linux: Some(LinuxPodSandboxConfig { cgroup_parent: self.cgroup.clone(), ..Default::default() }),
            ..Default::default()
        }
    }

    fn config(&self, name: &str, attempt: u32) -> ContainerConfig {
        let command = PARTS.iter().find(|(n, _)| *n == name).unwrap().1;
        ContainerConfig {
            metadata: Some(ContainerMetadata { name: name.into(), attempt }),
            image: Some(ImageSpec { image: IMAGE.into(), ..Default::default() }),
            command: command.iter().map(|&word| word.to_owned()).collect(),
            labels: self.labels(),
            log_path: format!("{name}/{attempt}.log"),
            ..Default::default()
        }
    }

    async fn create(&self, sandbox: &str, name: &str, attempt: u32) -> cri::Result<String> {
        if let Some(logs) = &self.logs {
            std::fs::create_dir_all(logs.join(name)).unwrap();
        }
        self.runtime.create_container(sandbox, self.config(name, attempt), self.sandbox()).await
    }

    async fn run(&self, sandbox: &str, name: &str, attempt: u32) -> String {
        let id = self.create(sandbox, name, attempt).await.unwrap();
        self.runtime.start_container(&id).await.unwrap();
        id
    }

    async fn status(&self, id: &str) -> ContainerStatus {
        self.runtime.container_status(id).await.unwrap().status.unwrap()
    }

    /// Its status once it has exited.
    async fn exited(&self, id: &str) -> ContainerStatus {
        let begun = Instant::now();
        loop {
            let status = self.status(id).await;
            if status.state() == ContainerState::ContainerExited {
                return status;
            }
            assert!(begun.elapsed() < S(20), "{status:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }
}

struct TokioClock(Instant);

impl Clock for TokioClock {
    fn now(&self) -> Now {
        let mono = self.0.elapsed();
        Now { mono: Mono(mono), wall: Wall(1_700_000_000_000_000_000 + mono.as_nanos() as i64) }
    }
}
