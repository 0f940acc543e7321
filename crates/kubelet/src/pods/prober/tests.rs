#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicI32, Ordering};

use base::ids::ContainerId;
use base::time::Wall;
use k8s_openapi::api::core::v1::{
    ContainerPort, EnvVar, ExecAction, GRPCAction, HTTPGetAction, PodStatus, Probe,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kubelet_core::observed::{self, Sandbox};
use kubelet_core::pod::Verdict;
use tokio::time::Instant;

use super::*;
use crate::testing::{ScriptedNet, ScriptedRuntime, clock, exit, status};

struct World {
    prober: Prober,
    runtime: Arc<ScriptedRuntime>,
    net: Arc<ScriptedNet>,
    clock: Arc<dyn Clock>,
    recorder: Recorder,
    metrics: Arc<ProbeMetrics>,
    pod: Pod,
    observed: Observed,
    verdicts: watch::Receiver<Verdicts>,
}

impl World {
    fn new(runtime: ScriptedRuntime, containers: Vec<Container>) -> Self {
        let (runtime, net) = (Arc::new(runtime), Arc::new(ScriptedNet::default()));
        let clock: Arc<dyn Clock> = clock();
        let recorder = Recorder::new(clock.clone());
        let metrics = Arc::new(ProbeMetrics::default());
        let prober = Prober::new(Hands {
            runtime: runtime.clone(),
            net: net.clone(),
            clock: clock.clone(),
            recorder: recorder.clone(),
            metrics: metrics.clone(),
            host_ips: HostIps::fixed(vec![[192, 0, 2, 1].into()]),
            seed: 1,
            // Long ago: no spread, except where a test wants it.
            started: Now { mono: Mono::default(), wall: Wall::from_secs(1_000_000) },
        });
        let mut pod = Pod::default();
        pod.metadata.name = Some("p".into());
        pod.metadata.namespace = Some("ns".into());
        pod.metadata.uid = Some("u".into());
        pod.spec = Some(PodSpec { containers, ..PodSpec::default() });
        let verdicts = prober.subscribe(&"u".into());
        Self { prober, runtime, net, clock, recorder, metrics, pod, observed: Observed::default(), verdicts }
    }

    /// A new instance of the container is seen running.
    fn runs(&mut self, name: &str, id: &str) {
        if self.observed.sandboxes.is_empty() {
            self.observed.sandboxes.push(Sandbox {
                id: "s".into(),
                attempt: 0,
                ready: true,
                created_at: Wall(0),
                host_network: false,
                ips: vec!["10.0.0.9".parse().unwrap()],
            });
        }
        let now = self.clock.now().wall;
        self.observed.containers.insert(
            0,
            observed::Container {
                id: id.into(),
                sandbox: "s".into(),
                name: name.into(),
                restart_count: 0,
                state: ContainerState::Running,
                hash: None,
                image: String::new(),
                image_ref: String::new(),
                image_id: String::new(),
                created_at: now,
                started_at: Some(now),
                finished_at: None,
                exit_code: 0,
                reason: String::new(),
                message: String::new(),
                termination_message: String::new(),
                resources: None,
                user: None,
            },
        );
        self.sync();
    }

    fn stops(&mut self, id: &str) {
        let container = self.observed.containers.iter_mut().find(|c| c.id.as_str() == id).unwrap();
        container.state = ContainerState::Exited;
        self.sync();
    }

    fn sync(&mut self) {
        self.observed.revision += 1;
        self.prober.sync(&self.pod, &self.observed);
    }

    fn verdict(&self, id: &str) -> Verdict {
        self.verdicts.borrow().get(&ContainerId::from(id)).copied().unwrap_or_default()
    }

    fn events(&self) -> Vec<(String, String, u32)> {
        self.recorder.of("u").into_iter().map(|e| (e.reason, e.message, e.count)).collect()
    }

    fn execs(&self) -> usize {
        self.runtime.execs.lock().unwrap().len()
    }
}

fn exec(word: &str) -> Probe {
    Probe { exec: Some(ExecAction { command: Some(vec![word.into()]) }), ..Default::default() }
}

fn container(name: &str) -> Container {
    Container { name: name.into(), ..Default::default() }
}

async fn after(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// An exec that exits with what the returned cell says.
fn switch() -> (ScriptedRuntime, Arc<AtomicI32>) {
    let code = Arc::new(AtomicI32::new(0));
    let shared = code.clone();
    let exec = move |_: &str, _: &[String]| exit(shared.load(Ordering::Relaxed), "out");
    (ScriptedRuntime { exec: Some(Box::new(exec)), ..Default::default() }, code)
}

#[tokio::test(start_paused = true)]
async fn three_failures_in_a_row_kill_once_and_a_new_instance_starts_clean() {
    let (runtime, code) = switch();
    let mut w = World::new(runtime, vec![Container { liveness_probe: Some(exec("x")), ..container("c") }]);
    after(60).await;
    w.runs("c", "1");
    code.store(1, Ordering::Relaxed);
    after(25).await;
    assert_eq!(w.verdict("1").liveness, Some(false));
    assert_eq!(w.events(), [("Unhealthy".into(), "Liveness probe failed: out".into(), 3)]);
    let made = w.execs();
    after(100).await;
    assert_eq!(w.execs(), made, "a condemned instance is probed no more");
    w.stops("1");
    code.store(0, Ordering::Relaxed);
    w.runs("c", "2");
    after(1).await;
    assert_eq!(w.verdict("2").liveness, Some(true));
    assert_eq!(w.metrics.total.get(["Liveness", "failed", "c", "p", "ns", "u"]), 3.0);
    assert_eq!(w.metrics.duration_seconds.count(["Liveness", "c", "p", "ns"]), 1);
    w.prober.remove(&"u".into());
    assert_eq!(w.metrics.total.get(["Liveness", "failed", "c", "p", "ns", "u"]), 0.0);
}

#[tokio::test(start_paused = true)]
async fn startup_gates_the_others_and_opens_the_gate_at_once() {
    let (runtime, code) = switch();
    code.store(1, Ordering::Relaxed);
    let startup = Probe { failure_threshold: Some(30), ..exec("startup") };
    let c =
        Container { startup_probe: Some(startup), readiness_probe: Some(exec("ready")), ..container("c") };
    let mut w = World::new(runtime, vec![c]);
    after(60).await;
    w.runs("c", "1");
    after(45).await;
    let commands =
        || w.runtime.execs.lock().unwrap().iter().map(|(_, c, _)| c[0].clone()).collect::<Vec<_>>();
    assert!(commands().iter().all(|c| c == "startup"));
    code.store(0, Ordering::Relaxed);
    after(10).await;
    assert_eq!(w.verdict("1"), Verdict { liveness: None, readiness: Some(true), startup: Some(true) });
    let startups = commands().iter().filter(|c| *c == "startup").count();
    after(60).await;
    assert_eq!(commands().iter().filter(|c| *c == "startup").count(), startups);
}

#[tokio::test(start_paused = true)]
async fn what_an_earlier_agent_saw_start_has_started_and_is_not_asked_again() {
    let (runtime, code) = switch();
    code.store(1, Ordering::Relaxed);
    let sidecar = Container {
        restart_policy: Some("Always".into()),
        startup_probe: Some(exec("startup")),
        liveness_probe: Some(exec("live")),
        ..container("c")
    };
    let mut w = World::new(runtime, Vec::new());
    w.pod.spec.as_mut().unwrap().init_containers = Some(vec![sidecar]);
    after(60).await;
    w.runs("c", "1");
    w.observed.containers[0].started_at = Some(Wall::from_secs(999_000));
    w.prober.remove(&"u".into());
    w.verdicts = w.prober.subscribe(&"u".into());
    // Another instance than the one the status tells of must prove itself.
    for (told, startup) in [("fake://0", None), ("fake://1", Some(true))] {
        let status = ContainerStatus {
            name: "c".into(),
            started: Some(true),
            container_id: Some(told.into()),
            ..Default::default()
        };
        w.pod.status = Some(PodStatus { init_container_statuses: Some(vec![status]), ..Default::default() });
        w.sync();
        assert_eq!(w.verdict("1").startup, startup, "{told}");
    }
    let before = w.execs();
    after(25).await;
    assert_eq!(w.verdict("1").liveness, Some(false), "the probes behind the gate speak");
    let commands: Vec<String> =
        w.runtime.execs.lock().unwrap()[before..].iter().map(|(_, c, _)| c[0].clone()).collect();
    assert!(commands.iter().all(|c| c == "live"), "{commands:?}");
}

#[tokio::test(start_paused = true)]
async fn errors_are_tried_three_times_and_change_nothing() {
    let fail = |id: &str, _: &[String]| {
        Err(cri::Error::new("exec in container", id, tonic::Code::Unavailable, "gone"))
    };
    let runtime = ScriptedRuntime { exec: Some(Box::new(fail)), ..Default::default() };
    let mut w = World::new(runtime, vec![Container { liveness_probe: Some(exec("x")), ..container("c") }]);
    after(60).await;
    w.runs("c", "1");
    after(95).await;
    assert_eq!((w.execs(), w.verdict("1").liveness), (30, None));
    let (_, message, count) = &w.events()[0];
    assert!(message.starts_with("Liveness probe errored and resulted in unknown state: "), "{message}");
    assert_eq!(*count, 10);
}

#[tokio::test(start_paused = true)]
async fn a_hundred_hung_probes_hold_up_nobody() {
    let mut containers: Vec<Container> = (0..100)
        .map(|i| Container {
            liveness_probe: Some(Probe { timeout_seconds: Some(3600), ..exec("hang") }),
            ..container(&format!("c{i}"))
        })
        .collect();
    let http = HTTPGetAction { port: IntOrString::Int(80), ..Default::default() };
    let readiness = Probe { http_get: Some(http), ..Default::default() };
    containers.push(Container { readiness_probe: Some(readiness), ..container("web") });
    let mut w = World::new(ScriptedRuntime::default(), containers);
    w.net.answers.lock().unwrap().push_back(status(200));
    after(60).await;
    for i in 0..100 {
        w.runs(&format!("c{i}"), &format!("id{i}"));
    }
    w.runs("web", "web");
    let begun = Instant::now();
    w.verdicts.wait_for(|v| v.contains_key("web")).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert_eq!(w.execs(), 100);
    // A stopped container takes its hung probe along; a new instance is probed at once.
    w.stops("id7");
    w.runs("c7", "new");
    after(1).await;
    assert!(w.runtime.execs.lock().unwrap().iter().any(|(id, _, _)| id == "new"));
}

#[tokio::test(start_paused = true)]
async fn a_timeout_is_a_failure_with_upstreams_words() {
    let probe = Probe { failure_threshold: Some(1), timeout_seconds: Some(2), ..exec("$(CMD)") };
    let env = EnvVar { name: "CMD".into(), value: Some("sleep 9".into()), value_from: None };
    let c = Container { readiness_probe: Some(probe), env: Some(vec![env]), ..container("c") };
    let mut w = World::new(ScriptedRuntime::default(), vec![c]);
    after(60).await;
    w.runs("c", "1");
    after(3).await;
    let text = "Readiness probe failed: command timed out: \"sleep 9\" timed out after 2s";
    assert_eq!(w.events()[0].1, text);
    assert_eq!(w.verdict("1").readiness, Some(false));
}

#[tokio::test(start_paused = true)]
async fn a_command_that_grows_without_end_is_an_error_that_names_the_word() {
    // A word of a hundred thousand references to a value of half a megabyte is 50 GB.
    let probe = exec(&"$(BIG)".repeat(100_000));
    let env = EnvVar { name: "BIG".into(), value: Some("x".repeat(500_000)), value_from: None };
    let c = Container { liveness_probe: Some(probe), env: Some(vec![env]), ..container("c") };
    let mut w = World::new(ScriptedRuntime::default(), vec![c]);
    after(60).await;
    w.runs("c", "1");
    after(1).await;
    let text = &w.events()[0].1;
    let begin = "Liveness probe errored and resulted in unknown state: command[0] is too long: ";
    assert!(text.starts_with(begin) && text.len() < 300, "{text}");
    assert_eq!((w.execs(), w.verdict("1").liveness), (0, None));
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_is_called_off_before_its_first_turn_asks_nobody() {
    let (runtime, _code) = switch();
    let c = Container {
        liveness_probe: Some(exec("live")),
        readiness_probe: Some(exec("ready")),
        ..container("c")
    };
    let mut w = World::new(runtime, vec![c]);
    after(60).await;
    // Often enough that a coin would have fallen on its other side.
    for turn in 0..50 {
        w.runs("c", &format!("id{turn}"));
        w.prober.remove(&"u".into());
        after(1).await;
    }
    assert_eq!(w.execs(), 0);
}

#[tokio::test(start_paused = true)]
async fn http_probes_go_to_the_pod_and_redirects_only_warn() {
    let port = ContainerPort { name: Some("web".into()), container_port: 8080, ..Default::default() };
    let http = HTTPGetAction { port: IntOrString::String("web".into()), ..Default::default() };
    let probe = Probe { http_get: Some(http), ..Default::default() };
    let c = Container { readiness_probe: Some(probe), ports: Some(vec![port]), ..container("c") };
    let mut w = World::new(ScriptedRuntime::default(), vec![c]);
    w.net.answers.lock().unwrap().extend([status(302), status(503)]);
    after(60).await;
    w.runs("c", "1");
    after(11).await;
    let sent = w.net.requests.lock().unwrap()[0].clone();
    assert_eq!((sent.host.as_str(), sent.port, sent.timeout.as_secs()), ("10.0.0.9", 8080, 1));
    assert_eq!(w.verdict("1").readiness, Some(true));
    let texts: Vec<String> = w.events().into_iter().map(|e| format!("{}: {}", e.0, e.1)).collect();
    assert_eq!(
        texts,
        [
            "ProbeWarning: Readiness probe warning: Probe terminated redirects, Response body: body",
            "Unhealthy: Readiness probe failed: HTTP probe failed with statuscode: 503",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn readiness_goes_on_in_termination_and_liveness_does_not() {
    let (runtime, code) = switch();
    let c = Container {
        liveness_probe: Some(exec("live")),
        readiness_probe: Some(exec("ready")),
        ..container("c")
    };
    let mut w = World::new(runtime, vec![c]);
    after(60).await;
    w.runs("c", "1");
    after(1).await;
    assert_eq!(w.verdict("1"), Verdict { liveness: Some(true), readiness: Some(true), startup: None });
    w.prober.terminating(&"u".into());
    code.store(1, Ordering::Relaxed);
    after(40).await;
    assert_eq!(w.verdict("1"), Verdict { liveness: Some(true), readiness: Some(false), startup: None });
    w.stops("1");
    let made = w.execs();
    after(40).await;
    assert_eq!(w.execs(), made, "what does not run is not probed");
    w.prober.remove(&"u".into());
}

#[tokio::test(start_paused = true)]
async fn an_unready_container_is_asked_again_when_its_pod_is_looked_at() {
    let (runtime, code) = switch();
    code.store(1, Ordering::Relaxed);
    let slow = Probe { period_seconds: Some(300), ..exec("ready") };
    let mut w = World::new(runtime, vec![Container { readiness_probe: Some(slow), ..container("c") }]);
    after(600).await;
    w.runs("c", "1");
    after(1).await;
    code.store(0, Ordering::Relaxed);
    assert_eq!((w.execs(), w.verdict("1").readiness), (1, None));
    w.sync();
    after(1).await;
    assert_eq!((w.execs(), w.verdict("1").readiness), (2, Some(true)));
    w.sync();
    after(1).await;
    assert_eq!(w.execs(), 2, "a ready one keeps its period");
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_names_no_known_port_or_has_no_address_is_an_error() {
    let http = HTTPGetAction { port: IntOrString::String("nope".into()), ..Default::default() };
    let bad = Probe { http_get: Some(http), ..Default::default() };
    let grpc = Probe { grpc: Some(GRPCAction { port: 50, service: None }), ..Default::default() };
    let c = Container { readiness_probe: Some(bad), liveness_probe: Some(grpc), ..container("c") };
    let mut w = World::new(ScriptedRuntime::default(), vec![c]);
    after(60).await;
    w.runs("c", "1");
    after(1).await;
    let texts: Vec<String> = w.events().into_iter().map(|e| e.1).collect();
    assert!(
        texts.iter().any(|t| t.ends_with("couldn't find port: \"nope\" in container \"c\"")),
        "{texts:?}"
    );
    let unhealthy = "Liveness probe failed: service unhealthy (responded with \"NOT_SERVING\")";
    assert!(texts.iter().any(|t| t == unhealthy), "{texts:?}");
    assert_eq!(w.verdict("1"), Verdict::default());
}

#[tokio::test(start_paused = true)]
async fn first_ticks_are_spread_right_after_the_agents_start() {
    let (runtime, _code) = switch();
    let containers = (0..20)
        .map(|i| Container { liveness_probe: Some(exec("x")), ..container(&format!("c{i}")) })
        .collect();
    let mut w = World::new(runtime, containers);
    for i in 0..20 {
        w.runs(&format!("c{i}"), &format!("id{i}"));
    }
    after(1).await;
    let early = w.execs();
    after(9).await;
    assert!(early < 10 && w.execs() >= 20, "{early} then {}", w.execs());
}
