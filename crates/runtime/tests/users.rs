//! Pods with users of their own: root inside is nobody outside.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use cri::v1::{self, NamespaceMode};
use support::{DEADLINE, Place, container, exited};

const HOST: u32 = 327_680;
const LENGTH: u32 = 65_536;

fn ids(host_id: u32) -> Vec<v1::IdMapping> {
    vec![v1::IdMapping { container_id: 0, host_id, length: LENGTH }]
}

fn options(pid: NamespaceMode, host: u32) -> v1::NamespaceOption {
    let mode = NamespaceMode::Pod.into();
    let users = v1::UserNamespace { mode, uids: ids(host), gids: ids(host) };
    v1::NamespaceOption { pid: pid.into(), userns_options: Some(users), ..Default::default() }
}

fn sandbox(place: &Place, name: &str, options: v1::NamespaceOption) -> v1::PodSandboxConfig {
    let mut config = place.sandbox(name);
    let linux = config.linux.as_mut().unwrap();
    linux.security_context.as_mut().unwrap().namespace_options = Some(options);
    linux.sysctls.insert("net.core.somaxconn".into(), "99".into());
    config
}

fn in_pod(name: &str, script: &str, options: v1::NamespaceOption) -> v1::ContainerConfig {
    let mut one = container(name, script);
    one.linux.as_mut().unwrap().security_context.as_mut().unwrap().namespace_options = Some(options);
    one
}

fn volume(path: &Path) -> v1::Mount {
    v1::Mount {
        host_path: path.display().to_string(),
        container_path: "/vol".into(),
        uid_mappings: ids(HOST),
        gid_mappings: ids(HOST),
        ..Default::default()
    }
}

async fn lines(place: &Place, pod: &str, name: &str, count: usize) -> Vec<String> {
    let until = Instant::now() + DEADLINE;
    loop {
        let log = place.log(pod, name);
        if log.lines().count() >= count || Instant::now() > until {
            return log.lines().map(str::to_owned).collect();
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// Whoever reads these scripts: `stat` in the container sees owners as the container knows them.
#[tokio::test]
async fn root_of_a_pod_is_nobody_of_the_machine() {
    let mut place = Place::new();
    // A daemon that was killed while it tried what the kernel can do.
    fs::create_dir_all(place.path("state/trial")).unwrap();
    fs::write(place.path("state/trial/keeper"), "").unwrap();
    let client = place.start();
    let features = client.status().await.unwrap().runtime_handlers[0].features.unwrap();
    assert!(features.user_namespaces);
    let dir = place.path("volume");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("file"), "x").unwrap();
    for pid in [NamespaceMode::Container, NamespaceMode::Pod] {
        let pod = pid.as_str_name().to_lowercase();
        let config = sandbox(&place, &pod, options(pid, HOST));
        let sandbox = client.run_pod_sandbox(config.clone(), "").await.unwrap();
        let script = "cat /proc/self/uid_map; id -u; stat -c %u / /bin /vol /vol/file /dev /dev/null /etc/hosts /dev/shm; \
            echo x > /vol/new && echo x > /own && echo x > /dev/shm/x && stat -c %u /vol/new /own; \
            echo by name > /dev/stdout; hostname; cat /proc/sys/net/core/somaxconn /proc/sys/net/ipv4/ip_unprivileged_port_start; \
            ls /sys/class/net; grep -c . /proc/self/mountinfo > /dev/null; grep CapEff /proc/self/status; exec sleep 1000";
        let mut main = in_pod("main", script, options(pid, HOST));
        main.mounts = vec![volume(&dir)];
        let id = client.create_container(&sandbox, main, config.clone()).await.unwrap();
        client.start_container(&id).await.unwrap();
        let seen = lines(&place, &pod, "main", 18).await;
        let map: Vec<&str> = seen[0].split_whitespace().collect();
        assert_eq!(map, ["0", "327680", "65536"], "{seen:?}");
        assert!(seen[1..12].iter().all(|line| line == "0"), "{seen:?}");
        assert_eq!(seen[12..17], ["by name", pod.as_str(), "99", "0", "lo"], "{seen:?}");

        let hierarchies = sys::cgroup::Hierarchies::find().unwrap();
        let all = hierarchies.processes(&format!("{}/{pod}/{id}", place.cgroup)).unwrap();
        let proc = format!("/proc/{}", all.first().unwrap());
        assert_eq!(fs::metadata(&proc).unwrap().uid(), HOST, "its root is nobody of the machine");
        assert_ne!(
            fs::read_link(format!("{proc}/ns/user")).unwrap(),
            fs::read_link("/proc/self/ns/user").unwrap()
        );
        // What it writes into a volume is root's there, as without a user namespace; what it writes elsewhere is its own.
        assert_eq!(fs::metadata(dir.join("new")).unwrap().uid(), 0);
        let upper = place.path("root/containers").join(&id).join("fs/own");
        assert_eq!(fs::metadata(upper).unwrap().uid(), HOST);
        assert_no_mount_of_the_machine(&proc);

        let words = |script: &str| ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        let script = "id -u; cat /proc/self/uid_map; echo by name > /dev/stdout; readlink /proc/self/ns/user /proc/1/ns/user | sort -u | wc -l";
        let done = client.exec_sync(&id, words(script), DEADLINE).await.unwrap();
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        let told: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(told[..6], ["0", "0", "327680", "65536", "by", "name"], "{text} {done:?}");

        let mut web = in_pod(
            "web",
            "id -u; echo x > /vol/of-web; echo y > /dev/stdout; exec sleep 1000",
            options(pid, HOST),
        );
        web.linux.as_mut().unwrap().security_context.as_mut().unwrap().run_as_username = "web".into();
        fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        web.mounts = vec![volume(&dir)];
        let web = client.create_container(&sandbox, web, config.clone()).await.unwrap();
        client.start_container(&web).await.unwrap();
        assert_eq!(lines(&place, &pod, "web", 2).await, ["1000", "y"]);
        assert_eq!(fs::metadata(dir.join("of-web")).unwrap().uid(), 1000);
        fs::remove_file(dir.join("of-web")).unwrap();
        fs::remove_file(dir.join("new")).unwrap();
        client.remove_pod_sandbox(&sandbox).await.unwrap();
    }
    place.assert_clean().await;
}

/// To show it /proc and /sys, whole ones are mounted for a moment; nothing of them may stay.
fn assert_no_mount_of_the_machine(proc: &str) {
    let mounts = fs::read_to_string(format!("{proc}/mountinfo")).unwrap();
    let of = |kind: &str| mounts.lines().filter(|line| line.contains(&format!(" - {kind} "))).count();
    // The container's own, and those of its paths that are read-only or hidden.
    let points: Vec<&str> = mounts.lines().filter_map(|line| line.split(' ').nth(4)).collect();
    assert_eq!((of("sysfs"), points.iter().filter(|point| **point == "/proc").count()), (1, 1), "{mounts}");
    assert!(points.iter().all(|point| !point.contains("stage")), "{mounts}");
}

#[tokio::test]
async fn a_container_may_mount_where_its_namespace_lets_it() {
    let mut place = Place::new();
    let client = place.start();
    let pid = NamespaceMode::Container;
    let config = sandbox(&place, "mounts", options(pid, HOST));
    let sandbox = client.run_pod_sandbox(config.clone(), "").await.unwrap();
    let script = "mount -t tmpfs none /tmp && echo mounted; \
        (echo 1 > /proc/sys/kernel/panic) 2>/dev/null || echo refused; \
        (echo x > /proc/sysrq-trigger) 2>/dev/null || echo refused";
    let mut one = in_pod("one", script, options(pid, HOST));
    let context = one.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    context.capabilities =
        Some(v1::Capability { add_capabilities: vec!["SYS_ADMIN".into()], ..Default::default() });
    context.readonly_paths = vec!["/proc/sys".into()];
    let id = client.create_container(&sandbox, one, config).await.unwrap();
    client.start_container(&id).await.unwrap();
    exited(&client, &id).await;
    let log = place.log("mounts", "one");
    assert_eq!(log, "mounted\nrefused\nrefused");
    client.remove_pod_sandbox(&sandbox).await.unwrap();
    place.assert_clean().await;
}

#[tokio::test]
async fn what_cannot_be_mapped_is_refused_by_name() {
    let mut place = Place::new();
    let client = place.start();
    let two = v1::UserNamespace {
        mode: NamespaceMode::Pod.into(),
        uids: [ids(HOST), ids(HOST + LENGTH)].concat(),
        gids: ids(HOST),
    };
    let host_network =
        v1::NamespaceOption { network: NamespaceMode::Node.into(), ..options(NamespaceMode::Pod, HOST) };
    let rows = [
        (v1::NamespaceOption { userns_options: Some(two), ..Default::default() }, "uids has 2 ranges"),
        (options(NamespaceMode::Pod, 0), "uids maps the machine's root"),
        (options(NamespaceMode::Node, HOST), "PID namespace"),
        (host_network, "network namespace"),
    ];
    for (options, want) in rows {
        let error = client.run_pod_sandbox(sandbox(&place, "bad", options), "").await.unwrap_err();
        assert!(error.message.contains(want), "{error}");
    }
    let config = sandbox(&place, "good", options(NamespaceMode::Container, HOST));
    let pod = client.run_pod_sandbox(config.clone(), "").await.unwrap();
    let dir = place.path("volume");
    let other =
        v1::Mount { uid_mappings: ids(HOST + LENGTH), gid_mappings: ids(HOST + LENGTH), ..volume(&dir) };
    let mut one = in_pod("one", "true", options(NamespaceMode::Container, HOST));
    one.mounts = vec![other];
    let error = client.create_container(&pod, one, config).await.unwrap_err();
    assert!(error.message.contains("/vol") && error.message.contains("not those of the Pod"), "{error}");
    client.remove_pod_sandbox(&pod).await.unwrap();
    place.assert_clean().await;
}
