//! Volumes as containers see them, and nothing of them afterwards.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use testkit::harness::{Harness, container_id, listing, phase, waiting_reason};
use testkit::node::{AgentOptions, Containerd};

const FOREVER: &str = "image: localhost/busybox:v1, imagePullPolicy: Never, command: [sleep, '10000']";

fn pod(name: &str, spec: &str) -> String {
    labelled(name, "", "one", spec)
}

fn labelled(name: &str, uid: &str, label: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, {uid} labels: {{app: {label}}}}}, \
         spec: {{terminationGracePeriodSeconds: 1, {spec}}}}}"
    )
}

fn sh(h: &Harness, pod: &str, container: &str, script: &str) -> String {
    h.exec(pod, container, &["sh", "-c", script])
}

fn host(command: &str, args: &[&str]) {
    let out = Command::new(command).args(args).output().unwrap();
    assert!(out.status.success(), "{command} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
}

fn events(h: &Harness, pod: &str) -> String {
    h.pods(&["get", &format!("{pod}-demo"), "-o", "wide"]).1
}

/// Removes the Pods and waits until the machine is as it was and no Pod has a directory.
fn all_gone(h: &Harness, before: &testkit::node::Census, pods: &[&str]) {
    pods.iter().for_each(|name| h.remove(name));
    pods.iter().for_each(|name| h.wait_gone(name));
    h.until("without Pod directories", || listing(&h.agent.root().join("pods")).is_empty().then_some(()));
    let left = || h.node.census().since(before);
    h.until("clean", || {
        let left = left();
        (left.mounts.is_empty() && left.processes.is_empty()).then_some(())
    });
}

#[test]
fn directories_of_the_pod_and_their_group() {
    let Some(h) = Harness::usual() else { return };
    let before = h.node.census();
    let mounts = "volumeMounts: [{name: disk, mountPath: /disk}, {name: mem, mountPath: /mem}, {name: info, mountPath: /info}]";
    let spec = format!(
        "securityContext: {{fsGroup: 4000, runAsUser: 1000}},
         volumes: [{{name: disk, emptyDir: {{}}}}, {{name: mem, emptyDir: {{medium: Memory, sizeLimit: 4Mi}}}},
          {{name: info, downwardAPI: {{items: [{{path: l, fieldRef: {{fieldPath: metadata.labels}}}}]}}}}],
         containers: [{{name: a, {FOREVER}, {mounts}}}, {{name: b, {FOREVER}, {mounts}}}]"
    );
    h.apply("dirs", &pod("dirs", &spec));
    let seen = h.wait_ready("dirs");
    let _ = sh(&h, "dirs", "a", "echo of a > /disk/f && echo in memory > /mem/f");
    assert_eq!(sh(&h, "dirs", "b", "cat /disk/f /mem/f"), "of a\nin memory\n");
    assert_eq!(
        sh(&h, "dirs", "b", "stat -c '%g %a' /disk /mem; stat -c %g /disk/f /mem/f /info/l"),
        "4000 2777\n4000 3777\n4000\n4000\n4000\n"
    );
    let full = sh(
        &h,
        "dirs",
        "a",
        "grep ' /mem ' /proc/mounts; dd if=/dev/zero of=/mem/big bs=1M count=8 2>&1; true",
    );
    assert!(
        full.contains("tmpfs") && full.contains("size=4096k") && full.contains("No space left"),
        "{full}"
    );
    let dir = h.pod_dir(&seen);
    assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o7777, 0o750);
    let place = dir.join("volumes/kubernetes.io~empty-dir/disk");
    assert_eq!(fs::read_to_string(place.join("f")).unwrap(), "of a\n");
    assert_eq!(fs::metadata(place.join("f")).unwrap().uid(), 1000);
    all_gone(&h, &before, &["dirs"]);
}

#[test]
fn paths_of_the_host() {
    let Some(h) = Harness::usual() else { return };
    let before = h.node.census();
    let root = h.node.dir().join("data");
    fs::create_dir_all(root.join("dir")).unwrap();
    fs::write(root.join("file"), "kept\n").unwrap();
    let at = |name: &str, kind: &str| format!("hostPath: {{path: {}/{name}, type: {kind}}}", root.display());
    let good = format!(
        "volumes: [{{name: a, {}}}, {{name: b, {}}}, {{name: c, {}}}, {{name: d, {}}}, {{name: e, hostPath: {{path: /dev/null, type: CharDevice}}}}, {{name: f, hostPath: {{path: {}, type: Socket}}}}],
         containers: [{{name: main, {FOREVER}, volumeMounts: [{{name: a, mountPath: /a}}, {{name: b, mountPath: /b}}, {{name: c, mountPath: /c}}, {{name: d, mountPath: /d, readOnly: true}}, {{name: e, mountPath: /e}}, {{name: f, mountPath: /f}}]}}]",
        at("dir", "Directory"), at("new/deep", "DirectoryOrCreate"), at("newfile", "FileOrCreate"), at("file", "File"), h.node.socket().display()
    );
    h.apply("good", &pod("good", &good));
    let one = |volume: String| {
        format!(
            "volumes: [{{name: a, {volume}}}], containers: [{{name: main, {FOREVER}, volumeMounts: [{{name: a, mountPath: /a}}]}}]"
        )
    };
    let bad = [
        ("nodir", at("none", "Directory"), format!("{}/none is not a directory", root.display())),
        ("isfile", at("file", "Directory"), format!("{}/file is not a directory", root.display())),
        ("nosock", at("file", "Socket"), "is not a socket file".to_owned()),
        ("noblock", at("file", "BlockDevice"), "is not a block device".to_owned()),
    ];
    bad.iter().for_each(|(name, volume, _)| h.apply(name, &pod(name, &one(volume.clone()))));
    h.wait_ready("good");
    let _ =
        sh(&h, "good", "main", "echo x > /a/from-pod; echo y > /b/y; echo z > /c; test -c /e; test -S /f");
    assert_eq!(fs::read_to_string(root.join("dir/from-pod")).unwrap(), "x\n");
    assert_eq!(fs::read_to_string(root.join("new/deep/y")).unwrap(), "y\n");
    assert_eq!(fs::read_to_string(root.join("newfile")).unwrap(), "z\n");
    assert!(sh(&h, "good", "main", "cat /d; echo no > /d 2>&1; true").starts_with("kept\n"));
    for (name, _, why) in &bad {
        let told = h.until("told", || Some(events(&h, name)).filter(|t| t.contains("FailedMount")));
        assert!(
            told.contains("MountVolume.SetUp failed for volume \"a\" : hostPath type check failed: "),
            "{told}"
        );
        assert!(told.contains(why), "{told}");
        let seen = h.get(name).unwrap();
        assert_eq!((phase(&seen), waiting_reason(&seen, "main")), ("Pending", "ContainerCreating"));
    }
    // What was missing appears, and the Pod comes up without being touched.
    fs::create_dir(root.join("none")).unwrap();
    h.wait_ready("nodir");
    all_gone(&h, &before, &["good", "nodir", "isfile", "nosock", "noblock"]);
    assert_eq!(fs::read_to_string(root.join("dir/from-pod")).unwrap(), "x\n", "the host's data stays");
    assert_eq!(fs::read_to_string(root.join("file")).unwrap(), "kept\n");
}

#[test]
fn files_about_the_pod_follow_its_labels() {
    let options = AgentOptions { config: "syncFrequency: 1s\n".into(), ..AgentOptions::default() };
    let Some(h) = Harness::start(Containerd::default(), options) else { return };
    let before = h.node.census();
    let spec = format!(
        "volumes: [
          {{name: info, downwardAPI: {{defaultMode: 0440, items: [
            {{path: labels, fieldRef: {{fieldPath: metadata.labels}}}},
            {{path: deep/cpu, resourceFieldRef: {{containerName: main, resource: limits.cpu, divisor: 1m}}}}]}}}},
          {{name: all, projected: {{sources: [
            {{downwardAPI: {{items: [{{path: name, fieldRef: {{fieldPath: metadata.name}}}}]}}}},
            {{downwardAPI: {{items: [{{path: sub/uid, mode: 0400, fieldRef: {{fieldPath: metadata.uid}}}}]}}}}]}}}}],
         containers: [{{name: main, {FOREVER}, resources: {{limits: {{cpu: 300m}}}},
          volumeMounts: [{{name: info, mountPath: /info}}, {{name: all, mountPath: /all}}, {{name: info, mountPath: /one, subPath: labels}}]}}]"
    );
    let uid = "uid: 11111111-2222-3333-4444-555555555555,";
    h.apply("info", &labelled("info", uid, "one", &spec));
    let first = h.wait_ready("info");
    let id = container_id(&first, "main").to_owned();
    assert_eq!(sh(&h, "info", "main", "cat /info/labels /info/deep/cpu"), "app=\"one\"300");
    assert_eq!(
        sh(
            &h,
            "info",
            "main",
            "cat /all/name; echo; cat /all/sub/uid; stat -Lc ' %a' /all/name /all/sub/uid /info/labels"
        ),
        "info-demo\n11111111-2222-3333-4444-555555555555 644\n 400\n 440\n"
    );
    let links = sh(
        &h,
        "info",
        "main",
        "readlink /info/labels; readlink /info/..data; readlink /info/deep; ls -a /info | wc -l",
    );
    let lines: Vec<&str> = links.lines().collect();
    assert_eq!((lines[0], lines[2], lines[3]), ("..data/labels", "..data/deep", "6"), "{links}");
    assert!(lines[1].starts_with(".."), "{links}");

    h.apply("info", &labelled("info", uid, "two", &spec));
    h.until("followed", || (sh(&h, "info", "main", "cat /info/labels") == "app=\"two\"").then_some(()));
    assert_eq!(sh(&h, "info", "main", "cat /one"), "app=\"one\"", "a subPath is what it was at the start");
    assert_eq!(sh(&h, "info", "main", "ls -a /info | wc -l").trim(), "6", "nothing of the old files is left");
    let seen = h.get("info").unwrap();
    assert_eq!(container_id(&seen, "main"), id, "the container was not restarted");
    all_gone(&h, &before, &["info"]);
}

#[test]
fn volumes_lie_inside_volumes_of_files() {
    let options = AgentOptions { config: "syncFrequency: 1s\n".into(), ..AgentOptions::default() };
    let Some(h) = Harness::start(Containerd::default(), options) else { return };
    let before = h.node.census();
    let spec = format!(
        "volumes: [
          {{name: info, downwardAPI: {{items: [{{path: labels, fieldRef: {{fieldPath: metadata.labels}}}}]}}}},
          {{name: disk, emptyDir: {{}}}}, {{name: mem, emptyDir: {{medium: Memory}}}}],
         containers: [{{name: main, {FOREVER}, volumeMounts: [{{name: info, mountPath: /info}},
          {{name: disk, mountPath: /info/disk}}, {{name: mem, mountPath: /info/a/mem}}]}}]"
    );
    let uid = "uid: 11111111-2222-3333-4444-666666666666,";
    h.apply("nest", &labelled("nest", uid, "one", &spec));
    h.wait_ready("nest");
    let _ = sh(&h, "nest", "main", "echo on disk > /info/disk/f; echo in memory > /info/a/mem/f");
    h.apply("nest", &labelled("nest", uid, "two", &spec));
    h.until("followed", || (sh(&h, "nest", "main", "cat /info/labels") == "app=\"two\"").then_some(()));
    assert_eq!(sh(&h, "nest", "main", "cat /info/disk/f /info/a/mem/f"), "on disk\nin memory\n");
    all_gone(&h, &before, &["nest"]);
}

#[test]
fn sub_paths_stay_inside_their_volume() {
    let Some(h) = Harness::usual() else { return };
    let before = h.node.census();
    let mount = |path: &str, sub: &str| format!("{{name: v, mountPath: {path}, {sub}}}");
    let spec = format!(
        "volumes: [{{name: v, emptyDir: {{}}}}],
         containers: [{{name: main, {FOREVER}, env: [{{name: WHO, valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}}}],
           volumeMounts: [{}, {}, {}]}}]",
        mount("/all", "readOnly: false"), mount("/sub", "subPath: a/b"), mount("/expr", "subPathExpr: 'logs/$(WHO)'"),
    );
    h.apply("sub", &pod("sub", &spec));
    h.wait_ready("sub");
    let _ = sh(&h, "sub", "main", "echo 1 > /sub/f; echo 2 > /expr/f");
    assert_eq!(sh(&h, "sub", "main", "cat /all/a/b/f /all/logs/sub-demo/f"), "1\n2\n");

    // The first container plants a link to the host; the second asks for what is behind it.
    let attack = format!(
        "restartPolicy: Never, volumes: [{{name: v, emptyDir: {{}}}}],
         initContainers: [{{name: plant, image: 'localhost/busybox:v1', imagePullPolicy: Never, command: [sh, -c, 'ln -s / /v/out; ln -s ../../../../../.. /v/up; mkdir /v/in; ln -s in /v/fine'], volumeMounts: [{{name: v, mountPath: /v}}]}}],
         containers: [{{name: out, {FOREVER}, volumeMounts: [{{name: v, mountPath: /x, subPath: out}}]}},
                      {{name: up, {FOREVER}, volumeMounts: [{{name: v, mountPath: /x, subPath: up/etc}}]}},
                      {{name: through, {FOREVER}, volumeMounts: [{{name: v, mountPath: /x, subPath: out/etc/made}}]}},
                      {{name: fine, {FOREVER}, volumeMounts: [{{name: v, mountPath: /x, subPath: fine}}]}}]"
    );
    h.apply("attack", &pod("attack", &attack));
    let seen = h.wait("attack", "refused", |p| {
        let started = testkit::harness::container(p, "fine").and_then(|c| c.started) == Some(true);
        started && waiting_reason(p, "through") == "CreateContainerConfigError"
    });
    for name in ["out", "up", "through"] {
        assert_eq!(waiting_reason(&seen, name), "CreateContainerConfigError");
    }
    assert!(!Path::new("/etc/made").exists());
    let told = events(&h, "attack");
    assert!(told.contains("failed to prepare subPath for volumeMount \"v\" of container \"out\""), "{told}");
    assert!(told.contains("leads out of the volume"), "{told}");
    all_gone(&h, &before, &["sub", "attack"]);
}

#[test]
fn mounts_travel_only_as_asked() {
    let Some(h) = Harness::usual() else { return };
    let before = h.node.census();
    // Below the agent's root, which it made shared.
    let shared = h.agent.root().join("shared");
    fs::create_dir_all(shared.join("early")).unwrap();
    fs::create_dir_all(shared.join("late")).unwrap();
    host("mount", &["-t", "tmpfs", "early", shared.join("early").to_str().unwrap()]);
    let mount = |name: &str, volume: &str, more: &str| {
        format!("{{name: {name}, {FOREVER}, volumeMounts: [{{name: {volume}, mountPath: /v, {more}}}]}}")
    };
    let gives = mount("gives", "e", "mountPropagation: Bidirectional")
        .replace("volumeMounts:", "securityContext: {privileged: true}, volumeMounts:");
    let spec = format!(
        "volumes: [{{name: h, hostPath: {{path: {}}}}}, {{name: e, emptyDir: {{}}}}],
         containers: [{}, {}, {}, {}, {}, {}]",
        shared.display(),
        mount("follows", "h", "mountPropagation: HostToContainer"),
        mount("alone", "h", "mountPropagation: None"),
        mount("shallow", "h", "readOnly: true"),
        mount("strict", "h", "readOnly: true, recursiveReadOnly: Enabled"),
        gives,
        mount("takes", "e", "mountPropagation: HostToContainer"),
    );
    h.apply("travel", &pod("travel", &spec));
    h.wait_ready("travel");
    host("mount", &["-t", "tmpfs", "late", shared.join("late").to_str().unwrap()]);
    let count = |name: &str, what: &str| {
        sh(&h, "travel", name, &format!("grep -c '^{what} ' /proc/mounts; true")).trim().to_owned()
    };
    assert_eq!((count("follows", "late"), count("alone", "late")), ("1".into(), "0".into()));
    assert_eq!(count("alone", "early"), "1");
    assert_eq!(
        sh(&h, "travel", "shallow", "touch /v/x 2>/dev/null || echo no; touch /v/early/x && echo yes"),
        "no\nyes\n"
    );
    assert_eq!(
        sh(
            &h,
            "travel",
            "strict",
            "touch /v/x 2>/dev/null || echo no; touch /v/early/y 2>/dev/null || echo no"
        ),
        "no\nno\n"
    );

    let _ = sh(&h, "travel", "gives", "mkdir /v/m && mount -t tmpfs gift /v/m && echo gift > /v/m/f");
    assert_eq!(sh(&h, "travel", "takes", "cat /v/m/f"), "gift\n");
    host("umount", &[shared.join("late").to_str().unwrap()]);
    h.until("unmounted there too", || (count("follows", "late") == "0").then_some(()));
    h.remove("travel");
    h.wait_gone("travel");
    assert!(shared.join("early/x").exists(), "what the host mounted is left alone");
    host("umount", &[shared.join("early").to_str().unwrap()]);
    h.apply("last", &pod("last", &format!("containers: [{{name: main, {FOREVER}}}]")));
    h.wait_ready("last");
    all_gone(&h, &before, &["last"]);
}

#[test]
fn images_as_volumes() {
    let Some(h) = Harness::usual() else { return };
    let before = h.node.census();
    let spec = |reference: &str, more: &str| {
        format!(
            "volumes: [{{name: i, image: {{reference: '{reference}', pullPolicy: Never}}}}],
         containers: [{{name: main, {FOREVER}, volumeMounts: [{{name: i, mountPath: /i{more}}}]}}]"
        )
    };
    h.apply("image", &pod("image", &spec("localhost/busybox:v1", "")));
    h.apply("part", &pod("part", &spec("localhost/busybox:v1", ", subPath: bin")));
    h.apply("none", &pod("none", &spec("localhost/none:v1", "")));
    h.wait_ready("image");
    let seen = sh(&h, "image", "main", "ls /i/bin/busybox; touch /i/x 2>&1; true");
    assert!(seen.starts_with("/i/bin/busybox\n") && seen.contains("Read-only"), "{seen}");
    let seen = h.wait("none", "refused", |p| waiting_reason(p, "main") == "ErrImageNeverPull");
    assert_eq!(phase(&seen), "Pending");
    assert!(
        events(&h, "none")
            .contains("Container image \"localhost/none:v1\" is not present with pull policy of Never")
    );
    h.wait_ready("part");
    // A runtime whose CRI does not know the field mounts the whole image.
    let _ = sh(&h, "part", "main", "test -f /i/busybox || test -f /i/bin/busybox");
    all_gone(&h, &before, &["image", "part", "none"]);
}

#[test]
fn a_killed_agent_leaves_no_volume_behind() {
    let Some(mut h) = Harness::usual() else { return };
    let before = h.node.census();
    let spec = format!(
        "volumes: [{{name: a, emptyDir: {{}}}}, {{name: b, emptyDir: {{medium: Memory}}}}, {{name: c, downwardAPI: {{items: [{{path: name, fieldRef: {{fieldPath: metadata.name}}}}]}}}}],
         containers: [{{name: main, {FOREVER}, volumeMounts: [{{name: a, mountPath: /a, subPath: x}}, {{name: b, mountPath: /b, subPath: q}}, {{name: c, mountPath: /c}}]}}]"
    );
    let names = ["k0", "k1", "k2", "k3", "k4", "k5"];
    let memory = |h: &Harness| h.node.census().mounts.iter().filter(|m| m.contains("empty-dir")).count();
    // In the middle of setting up.
    names.iter().for_each(|name| h.apply(name, &pod(name, &spec)));
    h.until("mounting", || (memory(&h) >= 1).then_some(()));
    h.restart_agent();
    names.iter().for_each(|name| drop(h.wait_ready(name)));
    assert_eq!(sh(&h, "k0", "main", "cat /c/name"), "k0-demo");
    // In the middle of taking down.
    names.iter().for_each(|name| h.remove(name));
    h.until("unmounting", || (memory(&h) < names.len()).then_some(()));
    h.restart_agent();
    h.until("without Pod directories", || listing(&h.agent.root().join("pods")).is_empty().then_some(()));
    h.until("clean", || {
        let left = h.node.census().since(&before);
        let only_agent = left.processes.iter().all(|p| p.contains("longshore"));
        (left.mounts.is_empty() && only_agent && left.cgroups.is_empty()).then_some(())
    });
}
