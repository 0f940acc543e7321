//! Ways out of containers that other runtimes left open, by the numbers they became known under. Each test fails where the
//! behaviour is the vulnerable one. More of the kind stand beside what they are about: `tests/keeper.rs` (masks, links as
//! targets), `images/src/unpack` (archives), `runtime-core` (users, capabilities, sysctls), `tests/packets_loopback.rs` of the
//! proxy.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use cri::Client;
use cri::v1::{self, NamespaceMode};
use support::{DEADLINE, Place, container, exited};

/// Runs it to its end; what it logged, and how it ended.
async fn run(
    place: &Place,
    client: &Client,
    pod: &str,
    one: v1::ContainerConfig,
) -> (String, v1::ContainerStatus) {
    let name = one.metadata.clone().unwrap().name;
    let config = place.sandbox(pod);
    let sandbox = client.run_pod_sandbox(config.clone(), "").await.unwrap();
    let status = in_sandbox(client, &sandbox, config, one).await;
    let log = place.log(pod, &name);
    client.remove_pod_sandbox(&sandbox).await.unwrap();
    (log, status)
}

async fn in_sandbox(
    client: &Client,
    sandbox: &str,
    config: v1::PodSandboxConfig,
    one: v1::ContainerConfig,
) -> v1::ContainerStatus {
    let id = client.create_container(sandbox, one, config).await.unwrap();
    // One that is refused ends, too.
    let _ = client.start_container(&id).await;
    exited(client, &id).await
}

fn volume(host: &Path, inside: &str) -> v1::Mount {
    v1::Mount { host_path: host.display().to_string(), container_path: inside.into(), ..Default::default() }
}

/// CVE-2019-5736: who can write the program that makes containers owns the machine.
#[tokio::test]
async fn cve_2019_5736_the_program_of_the_runtime_cannot_be_written() {
    let mut place = Place::new();
    let client = place.start();
    // With every right there is, and the machine's processes in sight.
    let mut config = place.sandbox("exe");
    let options = v1::NamespaceOption { pid: NamespaceMode::Node.into(), ..Default::default() };
    let context = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    (context.privileged, context.namespace_options) = (true, Some(options.clone()));
    let sandbox = client.run_pod_sandbox(config.clone(), "").await.unwrap();
    let script = "for p in /proc/[0-9]*; do [ \"$(cat $p/comm 2>/dev/null)\" = keeper ] || continue; \
        echo found; (echo x >> $p/exe) 2>/dev/null && echo written; done; true";
    let mut one = container("one", script);
    let context = one.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    (context.privileged, context.namespace_options) = (true, Some(options));
    in_sandbox(&client, &sandbox, config, one).await;
    let log = place.log("exe", "one");
    assert!(log.contains("found") && !log.contains("written"), "{log}");
    client.remove_pod_sandbox(&sandbox).await.unwrap();
    place.assert_clean().await;
}

/// CVE-2024-21626, and CVE-2019-19921's way of naming it: a descriptor that was left open leads to the machine.
#[tokio::test]
async fn cve_2024_21626_no_working_directory_is_outside() {
    let mut place = Place::new();
    let client = place.start();
    let config = place.sandbox("cwd");
    let sandbox = client.run_pod_sandbox(config.clone(), "").await.unwrap();
    for fd in 3..24 {
        let name = format!("c{fd}");
        let mut one = container(&name, "cat ../../../../../../../../proc/version && ls -d /work; pwd");
        one.working_dir = format!("/proc/self/fd/{fd}");
        let status = in_sandbox(&client, &sandbox, config.clone(), one).await;
        assert_eq!(status.reason, "StartError", "{fd}: {}", place.log("cwd", &name));
    }
    // And for what is run beside: the image's link is as good as the name.
    let main = container(
        "main",
        "for n in 3 4 5 6 7 8 9 10; do ln -s /proc/self/fd/$n /tmp/$n; done; exec sleep 1000",
    );
    let mut main = main;
    main.working_dir = "/tmp".into();
    let id = client.create_container(&sandbox, main, config).await.unwrap();
    client.start_container(&id).await.unwrap();
    let words = ["/bin/sh", "-c", "ls /proc/self/fd | wc -l; pwd"].map(str::to_owned).to_vec();
    let done = client.exec_sync(&id, words, DEADLINE).await.unwrap();
    // Input, output, errors, and the directory that is being listed.
    assert_eq!(String::from_utf8_lossy(&done.stdout), "4\n/tmp\n");
    client.remove_pod_sandbox(&sandbox).await.unwrap();
    place.assert_clean().await;
}

/// CVE-2021-30465, CVE-2023-27561, CVE-2024-45310, CVE-2025-62161: a directory becomes a link while it is mounted on.
#[tokio::test]
async fn cve_2021_30465_a_volume_that_changes_meanwhile_leads_nowhere() {
    let mut place = Place::new();
    let client = place.start();
    let (shared, other, target) = (place.path("shared"), place.path("other"), place.path("target"));
    for dir in [&shared, &other, &target, &shared.join("real")] {
        fs::create_dir(dir).unwrap();
    }
    // As seen from a root that is not the container's, this leads to a directory of the machine.
    symlink(&target, shared.join("link")).unwrap();
    let (stop, stopped) = (std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false)), shared.clone());
    let flag = stop.clone();
    let swapper = std::thread::spawn(move || {
        let dir = sys::fd::open_dir(&stopped).unwrap();
        while !flag.load(std::sync::atomic::Ordering::Relaxed) {
            let _ = rustix::fs::renameat_with(&dir, "real", &dir, "link", rustix::fs::RenameFlags::EXCHANGE);
        }
    });
    let config = place.sandbox("swap");
    let sandbox = client.run_pod_sandbox(config.clone(), "").await.unwrap();
    for at in 0..25 {
        let mut one = container(&format!("c{at}"), "echo x > /vol/real/made/proof; true");
        one.mounts = vec![volume(&shared, "/vol"), volume(&other, "/vol/real/made")];
        in_sandbox(&client, &sandbox, config.clone(), one).await;
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    swapper.join().unwrap();
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0, "something was made on the machine");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(target.to_str().unwrap()), "{mounts}");
    client.remove_pod_sandbox(&sandbox).await.unwrap();
    place.assert_clean().await;
}

/// CVE-2025-31133, CVE-2025-52565, CVE-2026-41579: what hides paths, and what terminals are made of, is not the Pod's to give.
#[tokio::test]
async fn cve_2025_31133_and_52565_devices_of_a_volume_hide_nothing_and_are_no_terminal() {
    let mut place = Place::new();
    let client = place.start();
    let (dev, victim) = (place.path("dev"), place.path("victim"));
    fs::create_dir_all(dev.join("pts")).unwrap();
    fs::write(&victim, "untouched").unwrap();
    for name in ["null", "ptmx", "pts/ptmx", "console"] {
        symlink("/victim/victim", dev.join(name)).unwrap();
    }
    let mounts = vec![volume(&dev, "/dev"), volume(place.dir.path(), "/victim")];
    let mut masked = container("masked", "cat /proc/uptime");
    masked.mounts = mounts.clone();
    masked.linux.as_mut().unwrap().security_context.as_mut().unwrap().masked_paths =
        vec!["/proc/uptime".into()];
    let (log, status) = run(&place, &client, "null", masked).await;
    assert_eq!((status.reason.as_str(), log.as_str()), ("StartError", ""), "{status:?}");
    let mut terminal = container("terminal", "true");
    (terminal.tty, terminal.mounts) = (true, mounts);
    let (_, status) = run(&place, &client, "tty", terminal).await;
    assert_eq!(status.reason, "StartError", "{status:?}");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
    assert!(fs::symlink_metadata(&victim).unwrap().is_file());
    place.assert_clean().await;
}

/// CVE-2019-16884, CVE-2025-52881: what we write below /proc goes there and not into a volume that lies over it.
#[tokio::test]
async fn cve_2025_52881_nothing_is_written_into_a_volume_over_proc() {
    let mut place = Place::new();
    let client = place.start();
    let fake = place.path("fake");
    for dir in ["self/attr/apparmor", "sys/net/core", "thread-self/attr"] {
        fs::create_dir_all(fake.join(dir)).unwrap();
    }
    let files = ["self/oom_score_adj", "self/attr/exec", "self/attr/apparmor/exec", "sys/net/core/somaxconn"];
    for file in files {
        fs::write(fake.join(file), "").unwrap();
    }
    let mut config = place.sandbox("proc");
    config.linux.as_mut().unwrap().sysctls.insert("net.core.somaxconn".into(), "77".into());
    let sandbox = client.run_pod_sandbox(config.clone(), "").await.unwrap();
    let mut one = container("one", "exit 5");
    one.mounts = vec![volume(&fake, "/proc")];
    let limits = v1::LinuxContainerResources { oom_score_adj: 345, ..Default::default() };
    one.linux.as_mut().unwrap().resources = Some(limits);
    let status = in_sandbox(&client, &sandbox, config, one).await;
    assert!(["Error", "StartError"].contains(&status.reason.as_str()), "{status:?}");
    for file in files {
        assert_eq!(fs::read_to_string(fake.join(file)).unwrap(), "", "{file}");
    }
    client.remove_pod_sandbox(&sandbox).await.unwrap();
    place.assert_clean().await;
}

/// CVE-2020-15257: sockets without a path belong to whoever shares the network.
#[tokio::test]
async fn cve_2020_15257_the_machines_network_reaches_no_socket_of_the_runtime() {
    let mut place = Place::new();
    let client = place.start();
    let mut config = place.sandbox("sockets");
    let options = v1::NamespaceOption { network: NamespaceMode::Node.into(), ..support::own_pids() };
    config.linux.as_mut().unwrap().security_context.as_mut().unwrap().namespace_options =
        Some(options.clone());
    let sandbox = client.run_pod_sandbox(config.clone(), "").await.unwrap();
    let mut one = container("one", "cat /proc/net/unix");
    one.linux.as_mut().unwrap().security_context.as_mut().unwrap().namespace_options = Some(options);
    in_sandbox(&client, &sandbox, config, one).await;
    let log = place.log("sockets", "one");
    let abstracts =
        log.lines().filter(|line| line.split_whitespace().nth(7).is_some_and(|name| name.starts_with('@')));
    let ours: Vec<&str> =
        abstracts.filter(|line| line.contains("keeper") || line.contains("longshore")).collect();
    assert!(ours.is_empty() && !log.is_empty(), "{ours:?}");
    client.remove_pod_sandbox(&sandbox).await.unwrap();
    place.assert_clean().await;
}

/// CVE-2024-25621, GO-2025-4100: programs that lend root's rights lie in images and in roots of containers.
#[tokio::test]
async fn cve_2024_25621_nobody_else_reads_the_runtimes_directories() {
    let mut place = Place::new();
    let _client = place.start();
    for dir in ["root/containers", "root/images", "state/sandboxes"] {
        let mode = fs::metadata(place.path(dir)).unwrap().permissions().mode();
        assert_eq!(mode & 0o066, 0, "{dir}: {mode:o}");
    }
    let socket = fs::metadata(place.path("runtime.sock")).unwrap().permissions().mode();
    assert_eq!(socket & 0o007, 0, "{socket:o}");
    place.assert_clean().await;
}

/// CVE-2026-53489 and its older brothers: a link in the place of a log leads to a file of the machine.
#[tokio::test]
async fn cve_2026_53489_a_link_in_the_place_of_a_log_is_not_followed() {
    let mut place = Place::new();
    let client = place.start();
    let config = place.sandbox("logs");
    let sandbox = client.run_pod_sandbox(config.clone(), "").await.unwrap();
    let (dir, victim) = (place.path("logs/logs"), place.path("victim"));
    fs::create_dir_all(&dir).unwrap();
    fs::write(&victim, "untouched").unwrap();
    symlink(&victim, dir.join("one.log")).unwrap();
    let status = in_sandbox(&client, &sandbox, config.clone(), container("one", "echo spoilt")).await;
    assert_eq!(status.reason, "StartError");
    let id = client.create_container(&sandbox, container("two", "exec sleep 1000"), config).await.unwrap();
    client.start_container(&id).await.unwrap();
    fs::remove_file(dir.join("two.log")).unwrap();
    symlink(&victim, dir.join("two.log")).unwrap();
    assert!(client.reopen_container_log(&id).await.is_err());
    assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
    client.remove_pod_sandbox(&sandbox).await.unwrap();
    place.assert_clean().await;
}

/// CVE-2022-1708, CVE-2022-31030, GO-2022-0482: a command prints until the memory of the machine is full.
#[tokio::test]
async fn cve_2022_31030_what_a_command_prints_is_kept_up_to_a_bound() {
    let mut place = Place::new();
    let client = place.start();
    let config = place.sandbox("much");
    let sandbox = client.run_pod_sandbox(config.clone(), "").await.unwrap();
    let id = client.create_container(&sandbox, container("one", "exec sleep 1000"), config).await.unwrap();
    client.start_container(&id).await.unwrap();
    let words = ["/bin/sh", "-c", "head -c 20000000 /dev/zero; exit 3"].map(str::to_owned).to_vec();
    // Below the bound of a message of the CRI, or refused by it: never all of it.
    match client.exec_sync(&id, words, DEADLINE).await {
        Ok(done) => assert!(done.stdout.len() <= 16 << 20 && done.exit_code == 3),
        Err(error) => assert!(error.message.contains("larger") || error.message.contains("limit"), "{error}"),
    }
    client.remove_pod_sandbox(&sandbox).await.unwrap();
    place.assert_clean().await;
}

/// CVE-2022-23648, CVE-2024-40635: what an image or a request calls its own is looked for inside.
#[tokio::test]
async fn cve_2022_23648_a_part_of_an_image_is_inside_of_it() {
    let mut place = Place::new();
    let client = place.start();
    let config = place.sandbox("parts");
    let sandbox = client.run_pod_sandbox(config.clone(), "").await.unwrap();
    for (at, part) in ["../../../../../../etc", "bin/../../../../../etc", "/../etc"].into_iter().enumerate() {
        let mut one = container(&format!("c{at}"), "ls /part");
        one.mounts = vec![v1::Mount {
            container_path: "/part".into(),
            image: Some(v1::ImageSpec { image: support::IMAGE.into(), ..Default::default() }),
            image_sub_path: part.into(),
            readonly: true,
            ..Default::default()
        }];
        let status = in_sandbox(&client, &sandbox, config.clone(), one).await;
        let log = place.log("parts", &format!("c{at}"));
        // The image's own has two files; the machine's has many more.
        assert!(
            status.reason == "StartError" || log.lines().all(|line| ["group", "passwd"].contains(&line)),
            "{part}: {log}"
        );
    }
    client.remove_pod_sandbox(&sandbox).await.unwrap();
    place.assert_clean().await;
}
