//! Random Pods, and what their containers do.

use std::sync::Arc;
use std::time::Duration;

use base::rng::Rng;
use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, ExecAction, Lifecycle, LifecycleHandler, Pod, PodSpec, Probe,
    SleepAction, Volume,
};

use crate::fake_runtime::{Behaviour, Exec, FakeRuntime};

/// The image every simulated container runs.
pub const IMAGE: &str = "sim/app:v1";

/// A Pod as a source would send it. `version` changes the UID, as an edited manifest does.
#[must_use]
pub fn pod(name: &str, version: u32, spec: PodSpec) -> Arc<Pod> {
    let mut pod = Pod { spec: Some(spec), ..Default::default() };
    let uid = format!("{name}-{version}");
    pod.metadata.name = Some(name.to_owned());
    pod.metadata.namespace = Some("default".into());
    pod.metadata.uid = Some(uid.clone());
    pod.metadata.annotations = Some(
        [("kubernetes.io/config.source", "file"), ("kubernetes.io/config.hash", uid.as_str())]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into(),
    );
    api::pod::set_defaults(&mut pod);

    Arc::new(pod)
}

/// A container of the usual image.
#[must_use]
pub fn container(name: &str) -> Container {
    Container { name: name.to_owned(), image: Some(IMAGE.into()), ..Default::default() }
}

/// A random Pod whose containers' behaviour is written into the runtime's script.
pub fn random_pod(rng: &mut Rng, runtime: &FakeRuntime, name: &str, version: u32) -> Arc<Pod> {
    let policy = ["Always", "OnFailure", "Never"][pick(rng, 3)];
    let regular = (0..=rng.below(2)).map(|i| regular(rng, runtime, name, &format!("c{i}"))).collect();
    let init = (0..rng.below(3)).map(|i| init(rng, runtime, name, &format!("i{i}"))).collect::<Vec<_>>();
    let volumes = rng.chance(0.5).then(|| {
        vec![Volume {
            name: "data".into(),
            empty_dir: Some(EmptyDirVolumeSource::default()),
            ..Default::default()
        }]
    });
    pod(
        name,
        version,
        PodSpec {
            containers: regular,
            init_containers: (!init.is_empty()).then_some(init),
            restart_policy: Some(policy.into()),
            termination_grace_period_seconds: Some(i64::try_from(rng.below(30)).unwrap_or(0)),
            active_deadline_seconds: rng.chance(0.05).then_some(60),
            volumes,
            ..Default::default()
        },
    )
}

fn regular(rng: &mut Rng, runtime: &FakeRuntime, pod: &str, name: &str) -> Container {
    runtime.script(pod, name, (0..=rng.below(3)).map(|_| behaviour(rng)).collect::<Vec<_>>());
    let mut c = container(name);
    if rng.chance(0.4) {
        c.readiness_probe = Some(probe(rng));
        let flips_at = Duration::from_secs(rng.below(60));
        let bad = i32::from(rng.chance(0.3));
        runtime.script_exec(pod, name, move |_, age| Exec::exits(if age > flips_at { bad } else { 0 }));
    }
    if rng.chance(0.2) {
        c.liveness_probe = Some(probe(rng));
    }
    if rng.chance(0.2) {
        c.startup_probe = Some(probe(rng));
    }
    if rng.chance(0.2) {
        c.lifecycle = Some(Lifecycle {
            pre_stop: Some(LifecycleHandler {
                sleep: Some(SleepAction { seconds: i64::try_from(rng.below(5)).unwrap_or(0) }),
                ..Default::default()
            }),
            ..Default::default()
        });
    }
    c
}

fn init(rng: &mut Rng, runtime: &FakeRuntime, pod: &str, name: &str) -> Container {
    let mut c = container(name);
    if rng.chance(0.3) {
        c.restart_policy = Some("Always".into());
        runtime.script(pod, name, [behaviour(rng), Behaviour::forever()]);
    } else {
        let after = rng.up_to(Duration::from_secs(5));
        let mut lives = vec![Behaviour::exits(0, after)];
        if rng.chance(0.3) {
            lives.insert(0, Behaviour::exits(1, after));
        }
        runtime.script(pod, name, lives);
    }
    c
}

fn behaviour(rng: &mut Rng) -> Behaviour {
    let after = rng.up_to(Duration::from_secs(90));
    match rng.below(10) {
        0 => Behaviour::exits(0, after),
        1 => Behaviour::exits(1, after),
        2 => Behaviour::exits(2, Duration::ZERO),
        3 => Behaviour::ignores_term(),
        4 => Behaviour::slow_to_stop(0, after / 9),
        5 => Behaviour::fails_to_start("simulated: no such file"),
        6 => Behaviour::fails_to_create("simulated: create refused"),
        _ => Behaviour::forever(),
    }
}

fn probe(rng: &mut Rng) -> Probe {
    Probe {
        exec: Some(ExecAction { command: Some(vec!["check".into()]) }),
        period_seconds: Some(1 + i32::try_from(rng.below(10)).unwrap_or(0)),
        failure_threshold: Some(1 + i32::try_from(rng.below(3)).unwrap_or(0)),
        initial_delay_seconds: Some(i32::try_from(rng.below(5)).unwrap_or(0)),
        timeout_seconds: Some(1),
        success_threshold: Some(1),
        ..Default::default()
    }
}

fn pick(rng: &mut Rng, n: u64) -> usize {
    usize::try_from(rng.below(n)).unwrap_or(0)
}
