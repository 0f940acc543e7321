//! The daemon as a kubelet sees it: over its socket, with real containers.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::{Duration, Instant};

use cri::Code;
use cri::v1::{self, ContainerState};
use futures_util::StreamExt;
use support::{DEADLINE, Place, container, exited};

#[tokio::test]
async fn a_pod_lives_from_its_sandbox_to_its_removal() {
    let mut place = Place::new();
    let client = place.start();
    let config = place.sandbox("web");
    let sandbox = client.run_pod_sandbox(config.clone(), "").await.unwrap();
    let status = client.pod_sandbox_status(&sandbox).await.unwrap().status.unwrap();
    assert_eq!(status.network.clone().unwrap().ip, "10.1.2.3");
    let mut events = client.events().await.unwrap();

    let script = "hostname; cat /proc/self/cgroup | grep -c :; id -u; id -G; echo $OF_IMAGE $HOME; echo x > /dev/shm/x && echo shared; \
        [ -t 0 ] || echo no terminal; cat /etc/hostname; exec sleep 1000";
    let mut main = container("main", script);
    let context = main.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    context.run_as_username = "web".into();
    let id = client.create_container(&sandbox, main, config.clone()).await.unwrap();
    client.start_container(&id).await.unwrap();
    let running = client.container_status(&id).await.unwrap().status.unwrap();
    assert_eq!(running.state(), ContainerState::ContainerRunning);
    assert_eq!(running.user.unwrap().linux.unwrap().uid, 1000);
    let until = Instant::now() + DEADLINE;
    while place.log("web", "main").lines().count() < 8 && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let log = place.log("web", "main");
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(
        (lines[0], &lines[2..]),
        ("web", &["1000", "1001 50000", "yes /home/web", "shared", "no terminal", "web"][..]),
        "{log}"
    );

    let words = |script: &str| ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    let done = client.exec_sync(&id, words("echo out; echo err >&2; id -u; exit 3"), DEADLINE).await.unwrap();
    assert_eq!((done.exit_code, &done.stdout[..], &done.stderr[..]), (3, &b"out\n1000\n"[..], &b"err\n"[..]));

    client.stop_container(&id, 0).await.unwrap();
    let ended = exited(&client, &id).await;
    assert_eq!((ended.exit_code, ended.reason.as_str()), (137, "Error"));
    client.stop_pod_sandbox(&sandbox).await.unwrap();
    client.remove_pod_sandbox(&sandbox).await.unwrap();
    assert!(client.container_status(&id).await.unwrap_err().is_not_found());
    let mut seen = Vec::new();
    while let Ok(Some(event)) = tokio::time::timeout(Duration::from_millis(200), events.next()).await {
        let event = event.unwrap();
        let who = if event.container_id == sandbox { "sandbox" } else { "container" };
        seen.push(format!("{who} {}", event.container_event_type().as_str_name()));
    }
    let kinds = |who: &str, kinds: &[&str]| {
        kinds.iter().map(|k| format!("{who} CONTAINER_{k}_EVENT")).collect::<Vec<_>>()
    };
    let mut want = kinds("sandbox", &["CREATED", "STARTED"]);
    want.extend(kinds("container", &["CREATED", "STARTED", "STOPPED"]));
    want.extend(kinds("sandbox", &["STOPPED"]));
    want.extend(kinds("container", &["DELETED"]));
    want.extend(kinds("sandbox", &["DELETED"]));
    assert_eq!(seen, want);
    place.assert_clean().await;
}

#[tokio::test]
async fn every_end_is_told_as_it_was() {
    let mut place = Place::new();
    let client = place.start();
    let config = place.sandbox("ends");
    let sandbox = client.run_pod_sandbox(config.clone(), "").await.unwrap();
    let rows = [
        ("exit 0", 0, "Completed"),
        ("exit 7", 7, "Error"),
        ("kill -9 $$", 137, "Error"),
        ("kill -15 $$", 143, "Error"),
        ("tail /dev/zero", 137, "OOMKilled"),
    ];
    for (at, (script, code, reason)) in rows.into_iter().enumerate() {
        // The first process of a PID namespace is only killed from outside: a child of it ends as it says.
        let script = if script.starts_with("kill") {
            format!("/bin/sh -c '{script}'; exit $?")
        } else {
            script.to_owned()
        };
        let mut one = container(&format!("c{at}"), &script);
        if reason == "OOMKilled" {
            let limit = 30 << 20;
            let limits = v1::LinuxContainerResources {
                memory_limit_in_bytes: limit,
                memory_swap_limit_in_bytes: limit,
                ..Default::default()
            };
            one.linux.as_mut().unwrap().resources = Some(limits);
        }
        let id = client.create_container(&sandbox, one, config.clone()).await.unwrap();
        client.start_container(&id).await.unwrap();
        let ended = exited(&client, &id).await;
        assert_eq!((ended.exit_code, ended.reason.as_str()), (code, reason), "{script}");
        assert!(ended.finished_at >= ended.started_at && ended.started_at >= ended.created_at);
    }
    let mut none = container("none", "");
    none.command = vec!["/no/such/program".into()];
    let id = client.create_container(&sandbox, none, config.clone()).await.unwrap();
    let error = client.start_container(&id).await.unwrap_err();
    assert!(error.message.contains("/no/such/program"), "{error}");
    let ended = exited(&client, &id).await;
    assert_eq!((ended.exit_code, ended.reason.as_str()), (128, "StartError"));
    client.remove_pod_sandbox(&sandbox).await.unwrap();
    place.assert_clean().await;
}

#[tokio::test]
async fn containers_do_not_notice_that_the_daemon_is_another() {
    let mut place = Place::new();
    let client = place.start();
    let config = place.sandbox("stay");
    let sandbox = client.run_pod_sandbox(config.clone(), "").await.unwrap();
    let create = |name: &'static str, script: &'static str| {
        let (client, sandbox, config) = (client.clone(), sandbox.clone(), config.clone());
        async move { client.create_container(&sandbox, container(name, script), config).await.unwrap() }
    };
    let stays =
        create("stays", "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done; exec sleep 1000")
            .await;
    let ends =
        create("ends", "cat /go >/dev/null 2>&1; while [ ! -e /dev/shm/go ]; do sleep 0.01; done; exit 9")
            .await;
    let created = create("created", "exit 4").await;
    for id in [&stays, &ends] {
        client.start_container(id).await.unwrap();
    }
    let before = client.container_status(&stays).await.unwrap().status.unwrap();
    place.stop().await;
    // While nobody looks, one of them ends.
    let shm = place.path("state/sandboxes").join(&sandbox).join("shm/go");
    std::fs::write(shm, "").unwrap();
    let client = place.start();
    let after = client.container_status(&stays).await.unwrap().status.unwrap();
    assert_eq!((after.state(), after.started_at), (before.state(), before.started_at));
    let ended = exited(&client, &ends).await;
    assert_eq!((ended.exit_code, ended.reason.as_str()), (9, "Error"));
    assert!(ended.started_at > 0 && ended.finished_at >= ended.started_at);
    let until = Instant::now() + DEADLINE;
    while place.log("stay", "stays").lines().count() < 3000 && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(place.log("stay", "stays").lines().last(), Some("line 2999"), "no line is lost");
    client.start_container(&created).await.unwrap();
    assert_eq!(exited(&client, &created).await.exit_code, 4);
    let done =
        client.exec_sync(&stays, vec!["/bin/cat".into(), "/proc/1/comm".into()], DEADLINE).await.unwrap();
    assert_eq!(done.stdout, b"sleep\n");
    let taken = client.run_pod_sandbox(config.clone(), "").await.unwrap_err();
    assert_eq!(taken.code, Code::FailedPrecondition, "{taken}");
    client.remove_pod_sandbox(&sandbox).await.unwrap();
    place.assert_clean().await;
}

#[tokio::test]
async fn a_shared_pid_namespace_is_shared_and_ends_as_one() {
    let mut place = Place::new();
    let client = place.start();
    let mut config = place.sandbox("shared");
    let context = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    context.namespace_options = Some(v1::NamespaceOption::default());
    let sandbox = client.run_pod_sandbox(config.clone(), "").await.unwrap();
    let mut ids = Vec::new();
    for name in ["one", "two"] {
        let mut one = container(name, "sleep 1000 & exec sleep 1000");
        one.linux.as_mut().unwrap().security_context.as_mut().unwrap().namespace_options =
            Some(v1::NamespaceOption::default());
        let id = client.create_container(&sandbox, one, config.clone()).await.unwrap();
        client.start_container(&id).await.unwrap();
        ids.push(id);
    }
    let count = vec!["/bin/sh".into(), "-c".into(), "cat /proc/[0-9]*/comm | grep -c sleep".into()];
    let until = Instant::now() + DEADLINE;
    loop {
        let seen = client.exec_sync(&ids[0], count.clone(), DEADLINE).await.unwrap().stdout;
        if seen == b"4\n" {
            break;
        }
        assert!(Instant::now() < until, "{}", String::from_utf8_lossy(&seen));
    }
    client.stop_container(&ids[0], 0).await.unwrap();
    let left = client.exec_sync(&ids[1], count, DEADLINE).await.unwrap().stdout;
    assert_eq!(left, b"2\n", "what it left in the shared namespace has ended with it");
    client.remove_pod_sandbox(&sandbox).await.unwrap();
    place.assert_clean().await;
}

#[tokio::test]
async fn what_is_wrong_with_a_request_is_named_and_leaves_nothing() {
    let mut place = Place::new();
    let client = place.start();
    let config = place.sandbox("bad");
    let mut sysctl = config.clone();
    sysctl.linux.as_mut().unwrap().sysctls = [("kernel.core_pattern".to_owned(), "x".to_owned())].into();
    let error = client.run_pod_sandbox(sysctl, "").await.unwrap_err();
    assert!(error.code == Code::InvalidArgument && error.message.contains("kernel.core_pattern"), "{error}");
    let error = client.run_pod_sandbox(config.clone(), "gvisor").await.unwrap_err();
    assert!(error.message.contains("no runtime for \"gvisor\" is configured"), "{error}");
    let sandbox = client.run_pod_sandbox(config.clone(), "runc").await.unwrap();
    let with = |change: fn(&mut v1::LinuxContainerSecurityContext)| {
        let mut one = container("x", "true");
        change(one.linux.as_mut().unwrap().security_context.as_mut().unwrap());
        one
    };
    let mut no_image = container("x", "true");
    no_image.image = Some(v1::ImageSpec { image: "localhost/none:v1".into(), ..Default::default() });
    let rows = [
        (no_image, "localhost/none:v1"),
        (with(|c| c.privileged = true), "no privileged container allowed in sandbox"),
        (with(|c| c.run_as_username = "nobody-known".into()), "nobody-known"),
        (with(|c| c.run_as_group = Some(v1::Int64Value { value: 5 })), "runAsGroup"),
        (
            with(|c| {
                c.capabilities =
                    Some(v1::Capability { add_capabilities: vec!["FLY".into()], ..Default::default() })
            }),
            "FLY",
        ),
    ];
    for (config_of, told) in rows {
        let error = client.create_container(&sandbox, config_of, config.clone()).await.unwrap_err();
        assert!(error.message.contains(told), "{told}: {error}");
    }
    assert!(client.list_containers(None).await.unwrap().is_empty());
    let error = client.create_container("nothing", container("x", "true"), config.clone()).await.unwrap_err();
    assert!(error.is_not_found(), "{error}");
    client.remove_pod_sandbox(&sandbox).await.unwrap();
    place.assert_clean().await;
}

#[tokio::test]
async fn containers_do_not_notice_that_their_keeper_is_another() {
    let mut place = Place::new();
    let client = place.start();
    let config = place.sandbox("kept");
    let sandbox = client.run_pod_sandbox(config.clone(), "").await.unwrap();
    let script =
        "i=0; while [ ! -e /dev/shm/go ]; do echo line $i; i=$((i+1)); sleep 0.01; done; echo last; exit 9";
    let id = client.create_container(&sandbox, container("main", script), config.clone()).await.unwrap();
    client.start_container(&id).await.unwrap();
    for _ in 0..2 {
        support::kill_keeper(&place);
        // Afterwards: to look for it takes a moment, in which it goes on writing.
        let before = place.log("kept", "main").lines().count();
        let until = Instant::now() + DEADLINE;
        while place.log("kept", "main").lines().count() < before + 5 {
            assert!(Instant::now() < until, "nobody reads what it prints");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    let done = client.exec_sync(&id, vec!["/bin/cat".into(), "/proc/1/comm".into()], DEADLINE).await.unwrap();
    assert_eq!(done.stdout, b"sh\n");
    std::fs::write(place.path("state/sandboxes").join(&sandbox).join("shm/go"), "").unwrap();
    let ended = exited(&client, &id).await;
    assert_eq!((ended.exit_code, ended.reason.as_str()), (9, "Error"), "{ended:?}");
    let log = place.log("kept", "main");
    let lines: Vec<&str> = log.lines().collect();
    let numbers: Vec<u32> =
        lines.iter().filter_map(|line| line.strip_prefix("line ")?.parse().ok()).collect();
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "no line is lost or doubled");
    assert_eq!(lines.last(), Some(&"last"));
    client.remove_pod_sandbox(&sandbox).await.unwrap();
    place.assert_clean().await;
}
