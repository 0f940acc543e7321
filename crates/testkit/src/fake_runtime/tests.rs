#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use base::rng::Rng;
use base::time::{Mono, Now, Wall};
use futures_util::StreamExt;
use kubelet::ports::Runtime;
use proptest::prelude::*;

use super::*;

const IMAGE: &str = "busybox:1";
const S: fn(u64) -> Duration = Duration::from_secs;

/// Follows tokio's paused time.
struct TokioClock(Instant);

impl Clock for TokioClock {
    fn now(&self) -> Now {
        let mono = self.0.elapsed();
        Now { mono: Mono(mono), wall: Wall(1_700_000_000_000_000_000 + mono.as_nanos() as i64) }
    }
}

fn fake(seed: u64) -> FakeRuntime {
    let fake = FakeRuntime::new(seed, Arc::new(TokioClock(Instant::now())));
    fake.add_image(IMAGE);
    fake
}

fn sandbox_config(pod: &str, attempt: u32) -> v1::PodSandboxConfig {
    let metadata =
        v1::PodSandboxMetadata { name: pod.into(), uid: pod.into(), namespace: "default".into(), attempt };
    v1::PodSandboxConfig { metadata: Some(metadata), ..Default::default() }
}

fn container_config(name: &str, attempt: u32) -> v1::ContainerConfig {
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: name.into(), attempt }),
        image: Some(v1::ImageSpec { image: IMAGE.into(), ..Default::default() }),
        ..Default::default()
    }
}

async fn started(fake: &FakeRuntime, pod: &str, name: &str) -> String {
    let sandbox = fake.run_pod_sandbox(sandbox_config(pod, 0), "").await.unwrap();
    let id =
        fake.create_container(&sandbox, container_config(name, 0), sandbox_config(pod, 0)).await.unwrap();
    fake.start_container(&id).await.unwrap();
    id
}

async fn status(fake: &FakeRuntime, id: &str) -> v1::ContainerStatus {
    fake.container_status(id).await.unwrap().status.unwrap()
}

#[tokio::test(start_paused = true)]
async fn stops_follow_the_grace() {
    let fake = fake(1);
    let rows = [
        // behaviour, grace, seconds it takes, exit code
        (Behaviour::forever(), 30, 0, 143),
        (Behaviour::slow_to_stop(0, S(5)), 30, 5, 0),
        (Behaviour::slow_to_stop(0, S(5)), 2, 2, 137),
        (Behaviour::ignores_term(), 7, 7, 137),
        (Behaviour::ignores_term(), 0, 0, 137),
        (Behaviour::exits(3, S(4)), 0, 0, 137),
    ];
    for (n, (behaviour, grace, seconds, code)) in rows.into_iter().enumerate() {
        let pod = format!("p{n}");
        fake.script(&pod, "c", [behaviour]);
        let id = started(&fake, &pod, "c").await;
        let begun = Instant::now();
        fake.stop_container(&id, grace).await.unwrap();
        let status = status(&fake, &id).await;
        assert_eq!((begun.elapsed().as_secs(), status.exit_code), (seconds, code), "row {n}");
        assert_eq!(fake.journal().graces(&pod, "c"), [grace]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_stop_kills_nobody_and_a_shorter_one_wins() {
    let fake = fake(1);
    fake.script("p", "c", [Behaviour::ignores_term()]);
    let id = started(&fake, "p", "c").await;
    assert!(tokio::time::timeout(S(1), fake.stop_container(&id, 5)).await.is_err());
    tokio::time::sleep(S(100)).await;
    assert!(fake.is_running("p", "c"));

    let long = tokio::spawn({
        let (fake, id) = (fake.clone(), id.clone());
        async move { fake.stop_container(&id, 1000).await }
    });
    tokio::time::sleep(S(1)).await;
    let begun = Instant::now();
    fake.stop_container(&id, 3).await.unwrap();
    long.await.unwrap().unwrap();
    assert_eq!(begun.elapsed(), S(3));
}

#[tokio::test(start_paused = true)]
async fn scripts_name_what_each_instance_does() {
    let fake = fake(1);
    let script = [
        Behaviour::fails_to_create("no space"),
        Behaviour::fails_to_start("no such file"),
        Behaviour::exits(7, S(3)),
        Behaviour::forever(),
    ];
    fake.script("p", "c", script);
    let sandbox = fake.run_pod_sandbox(sandbox_config("p", 0), "").await.unwrap();
    let create = |n| fake.create_container(&sandbox, container_config("c", n), sandbox_config("p", 0));
    assert_eq!(create(0).await.unwrap_err().message, "no space");

    let id = create(0).await.unwrap();
    assert_eq!(status(&fake, &id).await.state(), v1::ContainerState::ContainerCreated);
    assert_eq!(fake.start_container(&id).await.unwrap_err().message, "no such file");
    let failed = status(&fake, &id).await;
    assert_eq!((failed.exit_code, failed.reason.as_str()), (128, "StartError"));

    let id = create(1).await.unwrap();
    fake.start_container(&id).await.unwrap();
    tokio::time::sleep(S(60)).await;
    let exited = status(&fake, &id).await;
    assert_eq!((exited.exit_code, exited.finished_at - exited.started_at), (7, 3_000_000_000));

    // The name of an attempt is taken until the container is removed.
    assert!(create(1).await.unwrap_err().message.contains("reserved"));
    fake.remove_container(&id).await.unwrap();
    fake.start_container(&create(1).await.unwrap()).await.unwrap();
    assert!(fake.is_running("p", "c"));
    assert_eq!(fake.journal().starts("p", "c"), 2);

    fake.stop_pod_sandbox(&sandbox).await.unwrap();
    assert!(!fake.is_running("p", "c"));
    fake.remove_pod_sandbox(&sandbox).await.unwrap();
    assert!(fake.is_empty() && fake.violations().is_empty());
}

#[tokio::test(start_paused = true)]
async fn execs_exit_hang_and_die_with_their_container() {
    let fake = fake(1);
    fake.script("p", "c", [Behaviour::exits(0, S(100))]);
    fake.script_exec("p", "c", |command, age| match command[0].as_str() {
        "hang" => Exec::Hang,
        _ => Exec::exits(i32::from(age < S(5))),
    });
    let id = started(&fake, "p", "c").await;
    let exec = |what: &str, timeout| fake.exec_sync(&id, vec![what.to_owned()], timeout);
    assert_eq!(exec("ready", S(1)).await.unwrap().exit_code, 1);
    tokio::time::sleep(S(5)).await;
    assert_eq!(exec("ready", S(1)).await.unwrap().exit_code, 0);
    assert_eq!(exec("hang", S(2)).await.unwrap_err().code, Code::DeadlineExceeded);
    assert_eq!(exec("hang", Duration::ZERO).await.unwrap().exit_code, 137);
    assert_eq!(exec("ready", S(1)).await.unwrap_err().code, Code::Unknown);
}

#[tokio::test(start_paused = true)]
async fn events_tell_the_whole_pod_in_time() {
    let fake = fake(1);
    fake.script("p", "c", [Behaviour::exits(0, S(3))]);
    let mut events = fake.events().await.unwrap();
    let id = started(&fake, "p", "c").await;
    let mut kinds = Vec::new();
    let begun = Instant::now();
    for _ in 0..5 {
        let event = events.next().await.unwrap().unwrap();
        kinds.push((event.container_id == id, event.container_event_type().as_str_name()));
    }
    assert_eq!(begun.elapsed(), S(3));
    let expected = [
        (false, "CONTAINER_CREATED_EVENT"),
        (false, "CONTAINER_STARTED_EVENT"),
        (true, "CONTAINER_CREATED_EVENT"),
        (true, "CONTAINER_STARTED_EVENT"),
        (true, "CONTAINER_STOPPED_EVENT"),
    ];
    assert_eq!(kinds, expected);
    fake.restart(S(2));
    assert_eq!(events.next().await.unwrap().unwrap_err().code, Code::Unavailable);
    assert!(events.next().await.is_none());
    assert_eq!(fake.events().await.err().unwrap().code, Code::Unavailable);
    fake.set_quirks(Quirks::CONTAINERD_1_6);
    tokio::time::sleep(S(2)).await;
    assert!(fake.events().await.err().unwrap().is_unimplemented());
}

#[tokio::test(start_paused = true)]
async fn a_restart_breaks_calls_but_not_containers() {
    let fake = fake(1);
    fake.script("p", "c", [Behaviour::ignores_term()]);
    let id = started(&fake, "p", "c").await;
    let stop = tokio::spawn({
        let (fake, id) = (fake.clone(), id.clone());
        async move { fake.stop_container(&id, 10).await }
    });
    tokio::time::sleep(S(1)).await;
    fake.restart(S(5));
    assert_eq!(stop.await.unwrap().unwrap_err().code, Code::Unavailable);
    assert_eq!(fake.version().await.unwrap_err().code, Code::Unavailable);
    tokio::time::sleep(S(60)).await;
    assert!(fake.version().await.is_ok() && fake.is_running("p", "c"));

    fake.reboot(S(1));
    tokio::time::sleep(S(1)).await;
    let dead = status(&fake, &id).await;
    assert_eq!((dead.exit_code, dead.reason.as_str()), (255, "Unknown"));
    fake.forget_dead();
    assert!(fake.containers().is_empty() && !fake.is_empty());
}

#[tokio::test(start_paused = true)]
async fn images_are_pulled_or_refused() {
    let fake = fake(1);
    let spec = |image: &str| v1::ImageSpec { image: image.into(), ..Default::default() };
    fake.script_pull("slow", Pull::takes(S(9)));
    fake.script_pull("gone", Pull::fails(Code::NotFound, "no such manifest"));
    fake.script_pull("secret", Pull::needs("me", "pw"));
    assert_eq!(fake.image_status(spec("slow")).await.unwrap(), None);
    let begun = Instant::now();
    let reference = fake.pull_image(spec("slow"), None, None).await.unwrap();
    assert_eq!(begun.elapsed(), S(9));
    assert_eq!(fake.image_status(spec(&reference)).await.unwrap().unwrap().repo_tags, ["slow"]);
    assert_eq!(fake.pull_image(spec("gone"), None, None).await.unwrap_err().code, Code::NotFound);
    assert!(fake.pull_image(spec("secret"), None, None).await.is_err());
    let auth = v1::AuthConfig { username: "me".into(), password: "pw".into(), ..Default::default() };
    assert!(fake.pull_image(spec("secret"), Some(auth), None).await.is_ok());
    fake.remove_image(spec("slow")).await.unwrap();
    assert_eq!(fake.image_status(spec("slow")).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_has_its_effect_and_an_error_has_none() {
    let fake = fake(1);
    fake.set_faults(Faults { lost_reply: 1.0, ..Faults::default() });
    let error = fake.run_pod_sandbox(sandbox_config("p", 0), "").await.unwrap_err();
    assert_eq!((error.code, fake.sandboxes().len()), (Code::Unavailable, 1));
    fake.set_faults(Faults { error: 1.0, ..Faults::default() });
    assert!(fake.run_pod_sandbox(sandbox_config("q", 0), "").await.is_err());
    assert_eq!(fake.sandboxes().len(), 1);
    fake.set_faults(Faults { hang: 1.0, ..Faults::default() });
    let begun = Instant::now();
    assert_eq!(fake.version().await.unwrap_err().code, Code::DeadlineExceeded);
    assert_eq!(begun.elapsed(), S(120));
}

/// A careless user in a storm: whatever happens, the runtime itself stays sane.
async fn storm(seed: u64, steps: usize) -> (FakeRuntime, Vec<String>) {
    let fake = fake(seed);
    fake.set_faults(Faults::stormy());
    let mut rng = Rng::new(seed ^ 0xbad);
    let mut seen = Vec::new();
    for step in 0..steps {
        let pod = format!("p{}", rng.below(3));
        let sandboxes = fake.sandboxes();
        let containers = fake.containers();
        let sandbox = sandboxes.get(rng.below(sandboxes.len() as u64) as usize).map(|s| s.id.clone());
        let container = containers.get(rng.below(containers.len() as u64) as usize).map(|c| c.id.clone());
        let (sandbox, container) = (sandbox.unwrap_or_default(), container.unwrap_or_default());
        let attempt = rng.below(4) as u32;
        let outcome = match rng.below(9) {
            0 => fake.run_pod_sandbox(sandbox_config(&pod, attempt), "").await.map(|id| seen.push(id)),
            1 => fake
                .create_container(&sandbox, container_config("c", attempt), sandbox_config(&pod, 0))
                .await
                .map(|id| seen.push(id)),
            2 | 3 => fake.start_container(&container).await,
            4 => fake.stop_container(&container, rng.below(5) as i64).await,
            5 => fake.remove_container(&container).await,
            6 if rng.chance(0.3) => fake.remove_pod_sandbox(&sandbox).await,
            7 if rng.chance(0.1) => {
                fake.restart(rng.up_to(S(3)));
                Ok(())
            }
            _ => fake.list_containers(None).await.map(drop),
        };
        seen.push(format!("{step}: {}", outcome.is_ok()));
    }
    (fake, seen)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_runtime_stays_sane_and_one_seed_is_one_story(seed: u64) {
        let tokio = || tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let (fake, story) = tokio().block_on(storm(seed, 120));
        let (_, again) = tokio().block_on(storm(seed, 120));
        prop_assert_eq!(&story, &again);

        let journal = fake.journal();
        let made = |e: &&Entry| matches!(e.op, Op::RunSandbox | Op::Create);
        let ids: Vec<&str> = journal.entries().iter().filter(made).map(|e| e.id.as_str()).collect();
        prop_assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
        prop_assert!(ids.iter().all(|id| id.len() == 64));
        let exits = |id: &str| journal.entries().iter().filter(|e| e.id == id && matches!(e.op, Op::Exit { .. })).count();
        prop_assert!(ids.iter().all(|id| exits(id) <= 1), "nobody dies twice");
    }
}
