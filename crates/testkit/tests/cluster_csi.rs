//! CSI drivers on a node of a cluster: a real driver, real mounts, real containers.
#![allow(clippy::unwrap_used)]

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Node, NodeStatus, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::CSINode;
use serde_json::{Value, json};
use testkit::claims::{CLAIM, describe, mounting, pod, volume};
use testkit::cluster::Cluster;
use testkit::csi::CsiDriver;
use testkit::harness::{is_ready, phase};

const DRIVER: &str = env!("CARGO_BIN_EXE_csi_driver");

fn driver(c: &Cluster, words: &[&str]) -> CsiDriver {
    let driver = CsiDriver::start(DRIVER, c, "d.test", words);
    c.eventually("registered", || entry(c).map(drop));
    driver
}

/// The driver's entry in the CSINode.
fn entry(c: &Cluster) -> Option<Value> {
    let object: CSINode = c.object(&["csinode", "demo"])?;
    let found = object.spec.drivers.into_iter().find(|d| d.name == "d.test")?;
    Some(serde_json::to_value(found).unwrap())
}

fn root(c: &Cluster) -> PathBuf {
    c.agent.root().canonicalize().unwrap()
}

fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap()
}

fn mounts_below(c: &Cluster, part: &str) -> Vec<PathBuf> {
    let dir = root(c).join(part);
    sys::mountinfo::below(&dir).unwrap().into_iter().map(|m| m.mount_point).collect()
}

fn sh(c: &Cluster, pod: &str, script: &str) -> String {
    c.exec(pod, "main", &["sh", "-c", script])
}

#[test]
fn drivers_come_and_go() {
    let Some(c) = Cluster::usual() else { return };
    let mut d = driver(&c, &["max=7", "zone=east"]);
    assert_eq!(
        entry(&c).unwrap(),
        json!({"name": "d.test", "nodeID": "node-1", "topologyKeys": ["topology.test/zone"], "allocatable": {"count": 7}})
    );
    let node: Node = c.object(&["node", "demo"]).unwrap();
    assert_eq!(node.metadata.labels.unwrap()["topology.test/zone"], "east");
    assert_eq!(
        node.metadata.annotations.unwrap()["csi.volume.kubernetes.io/nodeid"],
        r#"{"d.test":"node-1"}"#
    );
    let told = || d.asked("NotifyRegistrationStatus").pop();
    c.eventually("told", || told().filter(|t| t["registered"] == true));

    // It goes in good order, and comes back.
    d.stop();
    c.eventually("gone", || entry(&c).is_none().then_some(()));
    d.restart(&c);
    c.eventually("back", || entry(&c).map(drop));

    // A version to come is refused, and the plugin learns why.
    let late = CsiDriver::start(DRIVER, &c, "late.test", &["versions=2.0.0"]);
    let refused = c.eventually("refused", || late.asked("NotifyRegistrationStatus").pop());
    assert_eq!(refused["registered"], false);
    assert!(refused["error"].as_str().unwrap().contains("None of the versions specified"), "{refused}");
}

#[test]
fn an_inline_volume_lives_with_its_pod() {
    let Some(c) = Cluster::usual() else { return };
    describe(
        &c,
        "attachRequired: false, podInfoOnMount: true, volumeLifecycleModes: [Ephemeral], fsGroupPolicy: File, \
         tokenRequests: [{ audience: vault, expirationSeconds: 600 }]",
    );
    c.create("apiVersion: v1\nkind: Secret\nmetadata: { name: key }\nstringData: { word: sesame }\n");
    let mut d = driver(&c, &["stage"]);
    let source =
        "csi: { driver: d.test, volumeAttributes: { size: small }, nodePublishSecretRef: { name: key } }";
    c.create(
        &mounting("one", source)
            .replace("  containers:", "  securityContext: { fsGroup: 4321 }\n  containers:"),
    );
    let one = c.wait_pod("one", "ready", is_ready);
    assert_eq!(sh(&c, "one", "echo hi > /v/file; cat /v/file; stat -c %g /v"), "hi\n4321\n");
    assert!(d.asked("NodeStageVolume").is_empty(), "such a volume is never staged");
    let asked = d.asked("NodePublishVolume").pop().unwrap();
    assert_eq!(asked["secrets"], json!({"word": "sesame"}));
    let context = &asked["context"];
    assert_eq!(context["csi.storage.k8s.io/pod.name"], "one");
    assert_eq!(context["csi.storage.k8s.io/ephemeral"], "true");
    assert_eq!(context["size"], "small");
    let tokens: Value =
        serde_json::from_str(context["csi.storage.k8s.io/serviceAccount.tokens"].as_str().unwrap()).unwrap();
    assert!(tokens["vault"]["token"].as_str().unwrap().split('.').count() == 3, "{tokens}");
    assert!(tokens["vault"]["expirationTimestamp"].as_str().unwrap().ends_with('Z'), "{tokens}");

    // The books are upstream's.
    let dir = root(&c).join("pods").join(uid(&one)).join("volumes/kubernetes.io~csi/v");
    let data: Value =
        serde_json::from_str(&std::fs::read_to_string(dir.join("vol_data.json")).unwrap()).unwrap();
    assert_eq!(data["driverName"], "d.test");
    assert_eq!(data["specVolID"], "v");
    assert_eq!(data["volumeLifecycleMode"], "Ephemeral");
    assert_eq!(data["volumeHandle"], asked["volume"]);
    assert_eq!(asked["target"], dir.join("mount").display().to_string());

    // A driver that restarts is found again; the Pod's end is told to it.
    d.restart(&c);
    c.run(&["delete", "pod", "one", "--wait=false"]);
    c.wait_pod_gone("one");
    assert_eq!(d.asked("NodeUnpublishVolume").pop().unwrap()["target"], asked["target"]);
    assert!(mounts_below(&c, "pods").iter().all(|m| !m.starts_with(&dir)));
    let metrics = String::from_utf8(c.agent.get(&c.node, "/metrics").unwrap()).unwrap();
    assert!(metrics.contains(r#"csi_operations_seconds_count{driver_name="d.test",method_name="/csi.v1.Node/NodePublishVolume",grpc_status_code="OK""#), "{metrics}");
}

#[test]
fn a_claim_is_staged_once_and_unstaged_after_its_last_pod() {
    let Some(mut c) = Cluster::usual() else { return };
    describe(&c, "attachRequired: true, fsGroupPolicy: ReadWriteOnceWithFSType");
    let d = driver(&c, &["stage", "writers", "expand"]);
    c.create("apiVersion: v1\nkind: Secret\nmetadata: { name: key }\nstringData: { word: sesame }\n");
    volume(
        &c,
        "mountOptions: [noatime]",
        "fsType: ext4, nodeStageSecretRef: { name: key, namespace: default }",
    );
    c.create(&mounting("one", CLAIM));

    // It waits until somebody has attached the volume, which it says it will use.
    let unique = "kubernetes.io/csi/d.test^vol-1";
    c.eventually("in use", || status(&c).volumes_in_use.filter(|v| v == &[unique]));
    assert!(d.asked("NodeStageVolume").is_empty());
    attach(&c, unique);
    let one = c.wait_pod("one", "ready", is_ready);
    sh(&c, "one", "echo kept > /v/file");
    let staged = d.asked("NodeStageVolume").pop().unwrap();
    assert_eq!(staged["secrets"], json!({"word": "sesame"}));
    assert_eq!(staged["publish"], json!({"device": "xvdb"}));
    assert_eq!(
        staged["capability"],
        json!({"mode": "SINGLE_NODE_MULTI_WRITER", "fsType": "ext4", "flags": ["noatime"], "group": ""})
    );
    let global = root(&c).join("plugins/kubernetes.io/csi/d.test");
    let staging = PathBuf::from(staged["staging"].as_str().unwrap());
    assert!(staging.starts_with(&global) && staging.ends_with("globalmount"), "{}", staging.display());
    assert!(staging.with_file_name("vol_data.json").exists());

    // A second Pod shares what is staged.
    c.create(&mounting("two", CLAIM));
    c.wait_pod("two", "ready", is_ready);
    assert_eq!(sh(&c, "two", "cat /v/file"), "kept\n");
    assert_eq!(d.asked("NodeStageVolume").len(), 1);
    let published = d.asked("NodePublishVolume").len();

    // An agent that is killed asks nobody for what is there.
    c.restart_agent();
    c.eventually("registered again", || (d.asked("GetInfo").len() >= 2).then_some(()));
    c.create(&mounting("three", CLAIM));
    c.wait_pod("three", "ready", is_ready);
    assert_eq!(d.asked("NodePublishVolume").len(), published + 1, "only the new Pod's");
    assert_eq!(sh(&c, "one", "cat /v/file"), "kept\n");
    assert!(is_ready(&c.pod("one").unwrap()) && uid(&c.pod("one").unwrap()) == uid(&one));

    // It grows under the Pods' feet.
    c.run(&["patch", "pv", "pv-1", "-p", r#"{"spec":{"capacity":{"storage":"2Gi"}}}"#]);
    c.run(&["annotate", "pod", "one", "look=again"]);
    let grown = c.eventually("grown", || d.asked("NodeExpandVolume").pop());
    assert_eq!(grown["size"], 2i64 << 30);
    let size = |p: PersistentVolumeClaim| Some(p.status?.capacity?.get("storage")?.0.clone());
    c.eventually("claim grown", || size(c.object(&["pvc", "data"])?).filter(|s| s == "2Gi"));

    // The last one puts out the light.
    c.run(&["delete", "pod", "one", "two", "--wait=false"]);
    c.wait_pod_gone("one");
    c.wait_pod_gone("two");
    assert!(d.asked("NodeUnstageVolume").is_empty());
    c.run(&["delete", "pod", "three", "--wait=false"]);
    c.wait_pod_gone("three");
    let unstaged = c.eventually("unstaged", || d.asked("NodeUnstageVolume").pop());
    assert_eq!(unstaged["staging"], staged["staging"]);
    c.eventually("not in use", || status(&c).volumes_in_use.is_none_or(|v| v.is_empty()).then_some(()));
    c.eventually("clean", || std::fs::read_dir(&global).unwrap().next().is_none().then_some(()));
    assert_eq!(std::fs::read_to_string(d.volume("vol-1").join("file")).unwrap(), "kept\n");
}

/// What a resizer and a user make of the claim.
fn patch_claim(c: &Cluster, status: &str) {
    c.run(&[
        "patch",
        "pvc",
        "data",
        "--subresource=status",
        "--type=merge",
        "-p",
        &format!(r#"{{"status":{status}}}"#),
    ]);
}

fn events_of(c: &Cluster, kind: &str, reason: &str) -> Vec<String> {
    let fields = format!("--field-selector=involvedObject.kind={kind},reason={reason}");
    let all = c.run(&["get", "events", &fields, "-o", r#"jsonpath={range .items[*]}{.message}{"\n"}{end}"#]);
    all.lines().map(str::to_owned).collect()
}

#[test]
fn a_volume_grows_when_its_claim_says_that_it_is_the_nodes_turn() {
    let Some(c) = Cluster::with_config("syncFrequency: 1s\n") else { return };
    describe(&c, "attachRequired: false, fsGroupPolicy: None");
    let d = driver(&c, &["stage", "expand"]);
    volume(&c, "", "fsType: ext4");
    c.create(&mounting("one", CLAIM));
    c.wait_pod("one", "ready", is_ready);
    let published = d.asked("NodePublishVolume").len();
    let claim = || c.object::<PersistentVolumeClaim>(&["pvc", "data"]).unwrap().status.unwrap();
    let state = || claim().allocated_resource_statuses.and_then(|s| s.get("storage").cloned());
    let size = || claim().capacity.unwrap()["storage"].0.clone();

    // The controller is still at it.
    let controller = "ControllerResizeInProgress";
    let books = |state: &str, size: &str| {
        let (state, size) = (json!({"storage": state}), json!({"storage": size}));
        patch_claim(&c, &json!({"allocatedResources": size, "allocatedResourceStatuses": state}).to_string());
    };
    books(controller, "2Gi");
    c.run(&["patch", "pv", "pv-1", "-p", r#"{"spec":{"capacity":{"storage":"2Gi"}}}"#]);
    let looks = |c: &Cluster| {
        c.run(&["annotate", "pod", "one", "--overwrite", &format!("look={}", std::process::id())]);
        std::thread::sleep(std::time::Duration::from_secs(3));
    };
    looks(&c);
    assert!(d.asked("NodeExpandVolume").is_empty());

    // The driver can not do it, ever: that is written down, and it is not asked again.
    d.fail("NodeExpandVolume", 3);
    books("NodeResizePending", "2Gi");
    c.eventually("infeasible", || state().filter(|s| s == "NodeResizeInfeasible"));
    let condition = claim().conditions.unwrap().into_iter().find(|c| c.type_ == "NodeResizeError").unwrap();
    assert!(condition.message.unwrap().contains("code = InvalidArgument desc = told to fail"));
    let asked = d.asked("NodeExpandVolume").len();
    d.heal("NodeExpandVolume");
    looks(&c);
    assert_eq!(d.asked("NodeExpandVolume").len(), asked);
    assert_eq!(size(), "1Gi");

    // The next attempt is for what the books say.
    books("NodeResizePending", "1536Mi");
    c.eventually("grown", || (size() == "1536Mi").then_some(()));
    assert_eq!(d.asked("NodeExpandVolume").pop().unwrap()["size"], 1536i64 << 20);
    assert_eq!(state(), None);
    assert!(claim().conditions.is_none_or(|c| c.is_empty()));
    c.eventually("told of the Pod", || events_of(&c, "Pod", "FileSystemResizeSuccessful").pop());
    c.eventually("and of the claim", || {
        events_of(&c, "PersistentVolumeClaim", "FileSystemResizeSuccessful").pop()
    });
    assert_eq!(d.asked("NodePublishVolume").len(), published, "it was in place all the time");
}

#[test]
fn a_driver_that_expands_nothing_on_nodes_leaves_the_claim_to_its_controller() {
    let Some(c) = Cluster::with_config("syncFrequency: 1s\n") else { return };
    describe(&c, "attachRequired: false, fsGroupPolicy: None");
    let _d = driver(&c, &["stage"]);
    volume(&c, "", "fsType: ext4");
    c.create(&mounting("one", CLAIM));
    c.wait_pod("one", "ready", is_ready);
    c.run(&["patch", "pv", "pv-1", "-p", r#"{"spec":{"capacity":{"storage":"2Gi"}}}"#]);
    c.run(&["annotate", "pod", "one", "look=again"]);
    std::thread::sleep(std::time::Duration::from_secs(3));
    let size = c.run(&["get", "pvc", "data", "-o", "jsonpath={.status.capacity.storage}"]);
    assert_eq!(size, "1Gi");

    // One that reads only does not grow, and it is told why.
    let reader = mounting("reader", "persistentVolumeClaim: { claimName: data, readOnly: true }");
    c.run(&["delete", "pod", "one", "--wait=false"]);
    c.wait_pod_gone("one");
    c.create(&reader);
    c.wait_pod("reader", "ready", is_ready);
    let words = "MountVolume.NodeExpandVolume failed for volume \"pv-1\" requested read-only file system";
    for kind in ["Pod", "PersistentVolumeClaim"] {
        let told = c.eventually("told", || events_of(&c, kind, "FileSystemResizeFailed").pop());
        assert_eq!(told, words, "{kind}");
    }
}

fn status(c: &Cluster) -> NodeStatus {
    c.object::<Node>(&["node", "demo"]).unwrap().status.unwrap()
}

/// What an attach-detach controller and a driver's attacher do.
fn attach(c: &Cluster, unique: &str) {
    let name = kubelet_core::volumes::csi::attachment_name("vol-1", "d.test", "demo");
    c.create(&format!(
        "apiVersion: storage.k8s.io/v1\nkind: VolumeAttachment\nmetadata: {{ name: {name} }}\n\
         spec: {{ attacher: d.test, nodeName: demo, source: {{ persistentVolumeName: pv-1 }} }}\n"
    ));
    let status = r#"{"status":{"attached":true,"attachmentMetadata":{"device":"xvdb"}}}"#;
    c.run(&["patch", "volumeattachment", &name, "--subresource=status", "--type=merge", "-p", status]);
    let status = json!({"status": {"volumesAttached": [{"name": unique, "devicePath": ""}]}}).to_string();
    c.run(&["patch", "node", "demo", "--subresource=status", "--type=merge", "-p", &status]);
}

#[test]
fn a_hung_driver_hurts_its_own_pod_only_and_is_named() {
    let Some(c) = Cluster::usual() else { return };
    describe(&c, "attachRequired: false, volumeLifecycleModes: [Ephemeral], fsGroupPolicy: None");
    let d = driver(&c, &[]);
    c.create(&mounting("stuck", "csi: { driver: d.test }"));
    c.wait_pod("stuck", "ready", is_ready);
    d.hang("NodeUnpublishVolume");
    c.run(&["delete", "pod", "stuck", "--wait=false"]);
    c.eventually("asked", || d.asked("NodeUnpublishVolume").pop());

    // Everybody else lives on, with the same driver too.
    c.create(&mounting("other", "csi: { driver: d.test }"));
    c.wait_pod("other", "ready", is_ready);

    let blocker = "CSI driver d.test to answer NodeUnpublishVolume";
    c.eventually("named in the status", || {
        let message = c.pod("stuck")?.status?.message?;
        message.contains(blocker).then_some(())
    });
    c.eventually("named in an event", || {
        let events = c.run(&["get", "events", "-o", "jsonpath={.items[*].message}"]);
        (events.contains("error killing pod") && events.contains(blocker)).then_some(())
    });
    d.heal("NodeUnpublishVolume");
    c.wait_pod_gone("stuck");

    // One that refuses is heard out, and tried again.
    d.fail("NodePublishVolume", 13);
    c.create(&mounting("refused", "csi: { driver: d.test }"));
    let words = "MountVolume.SetUp failed for volume \"v\" : rpc error: code = Internal desc = told to fail";
    c.eventually("told why", || c.run(&["describe", "pod", "refused"]).contains(words).then_some(()));
    d.heal("NodePublishVolume");
    c.wait_pod("refused", "ready", is_ready);
}

/// A file system whose server never answers; whoever looks at it waits, until this is dropped.
fn hung_file_system(at: &Path) -> std::fs::File {
    let server = std::fs::File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
    let data = std::ffi::CString::new(data).unwrap();
    rustix::mount::mount("dead", at, "fuse", rustix::mount::MountFlags::empty(), &*data).unwrap();
    server
}

#[test]
fn a_staged_file_system_that_hangs_holds_up_nobody_and_is_unstaged() {
    let Some(mut c) = Cluster::usual() else { return };
    if !Path::new("/dev/fuse").exists() {
        return;
    }
    describe(&c, "attachRequired: false, fsGroupPolicy: None");
    let d = driver(&c, &["stage"]);
    volume(&c, "", "fsType: ext4");
    c.create(&mounting("one", CLAIM));
    c.wait_pod("one", "ready", is_ready);
    let staging = PathBuf::from(d.asked("NodeStageVolume")[0]["staging"].as_str().unwrap());
    let server = hung_file_system(&staging);

    // Another life asks for it to be staged again, and looks at nothing.
    d.fail("NodePublishVolume", 13);
    c.restart_agent();
    c.create(&mounting("two", CLAIM));
    c.eventually("staged again", || (d.asked("NodeStageVolume").len() > 1).then_some(()));
    c.create(&pod("other", "", ""));
    c.wait_pod("other", "ready", is_ready);

    c.run(&["delete", "pod", "one", "two", "--wait=false"]);
    c.wait_pod_gone("one");
    c.wait_pod_gone("two");
    c.eventually("unstaged", || d.asked("NodeUnstageVolume").pop());
    c.eventually("clean", || (!staging.with_file_name("vol_data.json").exists()).then_some(()));
    drop(server);
}

#[test]
fn a_volume_for_one_pod_waits_for_the_first_to_go() {
    let Some(c) = Cluster::usual() else { return };
    describe(&c, "attachRequired: false, fsGroupPolicy: None");
    let d = driver(&c, &["stage"]);
    volume(&c, "", "fsType: ext4");
    c.run(&["patch", "pv", "pv-1", "-p", r#"{"spec":{"accessModes":["ReadWriteOncePod"]}}"#]);
    c.create(&mounting("one", CLAIM));
    c.wait_pod("one", "ready", is_ready);
    c.create(&mounting("two", CLAIM));
    let told = c.eventually("told", || events_of(&c, "Pod", "FailedMount").pop());
    assert_eq!(
        told,
        "MountVolume.SetUp failed for volume \"pv-1\" : volume uses the ReadWriteOncePod access mode and is already \
         in use by another pod"
    );
    assert_eq!(d.asked("NodePublishVolume").len(), 1);
    c.run(&["delete", "pod", "one", "--wait=false"]);
    c.wait_pod("two", "ready", is_ready);
}

#[test]
fn a_driver_is_told_the_root_as_the_operator_calls_it() {
    let Some(mut c) = Cluster::usual() else { return };
    c.agent.stop().unwrap();
    let named = c.agent.root();
    let real = named.with_file_name("moved");
    // It became a mount of its own, unless it lay on one that is shared.
    let _ = rustix::mount::unmount(&named, rustix::mount::UnmountFlags::DETACH);
    std::fs::rename(&named, &real).unwrap();
    std::os::unix::fs::symlink(&real, &named).unwrap();
    c.start_agent();
    describe(&c, "attachRequired: false, fsGroupPolicy: None");
    let d = driver(&c, &["stage"]);
    volume(&c, "", "fsType: ext4");
    c.create(&mounting("one", CLAIM));
    c.wait_pod("one", "ready", is_ready);
    let published = d.asked("NodePublishVolume").pop().unwrap();
    for path in [&published["staging"], &published["target"]] {
        assert!(Path::new(path.as_str().unwrap()).starts_with(&named), "{path}");
    }
    sh(&c, "one", "echo kept > /v/file");

    // It is found where it is, and nobody is asked again.
    c.restart_agent();
    c.eventually("registered again", || (d.asked("GetInfo").len() >= 2).then_some(()));
    c.run(&["annotate", "pod", "one", "look=again"]);
    c.create(&pod("other", "", ""));
    c.wait_pod("other", "ready", is_ready);
    assert_eq!(d.asked("NodePublishVolume").len(), 1);
    c.run(&["delete", "pod", "one", "--wait=false"]);
    c.wait_pod_gone("one");
    c.eventually("unstaged", || d.asked("NodeUnstageVolume").pop());
    c.eventually("clean", || {
        let left = mounts_below(&c, "plugins").len()
            + mounts_below(&c, "pods").iter().filter(|m| m.ends_with("mount")).count();
        (left == 0).then_some(())
    });
    assert_eq!(std::fs::read_to_string(d.volume("vol-1").join("file")).unwrap(), "kept\n");
}

#[test]
fn a_pod_that_leaves_while_its_driver_stages_is_never_published_for() {
    let Some(c) = Cluster::usual() else { return };
    describe(&c, "attachRequired: false, fsGroupPolicy: None");
    let d = driver(&c, &["stage"]);
    volume(&c, "", "fsType: ext4");
    d.hang("NodeStageVolume");
    c.create(&mounting("hasty", CLAIM));
    c.eventually("staging", || d.asked("NodeStageVolume").pop());
    let hasty = uid(&c.pod("hasty").unwrap());
    c.run(&["delete", "pod", "hasty", "--wait=false"]);
    let blocker = "CSI driver d.test to answer NodeStageVolume";
    c.eventually("named in the status", || {
        c.pod("hasty")?.status?.message.filter(|message| message.contains(blocker))
    });
    d.heal("NodeStageVolume");
    c.wait_pod_gone("hasty");
    c.eventually("unstaged", || d.asked("NodeUnstageVolume").pop());
    assert!(d.asked("NodePublishVolume").is_empty(), "there was nobody to publish for");
    c.eventually("no directory", || (!root(&c).join("pods").join(&hasty).exists()).then_some(()));
    assert!(mounts_below(&c, "").iter().all(|m| !m.ends_with("globalmount")));
}

#[test]
fn a_corrupt_record_takes_no_volume_from_its_pod() {
    let Some(mut c) = Cluster::usual() else { return };
    describe(&c, "attachRequired: false, fsGroupPolicy: None");
    let d = driver(&c, &["stage"]);
    volume(&c, "", "fsType: ext4");
    c.create(&mounting("one", CLAIM));
    let one = c.wait_pod("one", "ready", is_ready);
    sh(&c, "one", "echo kept > /v/file");
    let record = root(&c).join("pods").join(uid(&one)).join("volumes/kubernetes.io~csi/pv-1/vol_data.json");

    // Nobody says that the Pod is wanted while its objects cannot be read.
    c.agent.kill9();
    c.stop_server();
    std::fs::write(&record, "").unwrap();
    let before = d.asked("GetInfo").len();
    c.start_agent();
    let aside = record.with_extension("json.corrupt");
    c.until("registered again", || (d.asked("GetInfo").len() > before).then_some(()));
    c.until("set aside", || aside.exists().then_some(()));
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert!(d.asked("NodeUnstageVolume").is_empty());
    c.start_server();
    c.eventually("written anew", || std::fs::read_to_string(&record).ok().filter(|t| t.contains("vol-1")));
    c.create(&mounting("two", CLAIM));
    c.wait_pod("two", "ready", is_ready);
    assert_eq!(std::fs::read_to_string(aside).unwrap(), "");
    assert!(d.asked("NodeUnstageVolume").is_empty());
    assert_eq!(sh(&c, "one", "cat /v/file"), "kept\n");

    // What is set aside is in nobody's way, and the driver is told of the end.
    c.run(&["delete", "pod", "one", "two", "--wait=false"]);
    c.wait_pod_gone("one");
    c.wait_pod_gone("two");
    assert_eq!(d.asked("NodeUnpublishVolume").len(), 2);
    c.eventually("unstaged", || d.asked("NodeUnstageVolume").pop());
}

#[test]
fn a_mount_that_nobody_can_name_is_left_alone_and_told_of() {
    let Some(mut c) = Cluster::usual() else { return };
    describe(&c, "attachRequired: false, fsGroupPolicy: None");
    let d = driver(&c, &["stage"]);
    volume(&c, "", "fsType: ext4");
    c.create(&mounting("lost", CLAIM));
    let lost = c.wait_pod("lost", "ready", is_ready);
    let dir = root(&c).join("pods").join(uid(&lost)).join("volumes/kubernetes.io~csi/pv-1");

    // The Pod goes while nobody looks, and its record with it.
    c.agent.kill9();
    std::fs::write(dir.join("vol_data.json"), "{").unwrap();
    c.run(&["delete", "pod", "lost", "--wait=false"]);
    c.start_agent();
    let words = "is corrupt, so its driver cannot be asked";
    c.eventually("named", || c.pod("lost")?.status?.message.filter(|message| message.contains(words)));
    assert!(mounts_below(&c, "pods").contains(&dir.join("mount")));
    assert!(d.asked("NodeUnstageVolume").is_empty());

    // A person who unmounts it ends it.
    rustix::mount::unmount(dir.join("mount"), rustix::mount::UnmountFlags::empty()).unwrap();
    c.wait_pod_gone("lost");
    c.eventually("unstaged", || d.asked("NodeUnstageVolume").pop());
}

#[test]
fn a_crash_in_the_middle_leaves_nothing_behind() {
    let Some(mut c) = Cluster::usual() else { return };
    describe(&c, "attachRequired: false, fsGroupPolicy: None");
    let d = driver(&c, &["stage"]);
    volume(&c, "", "fsType: ext4");

    // Killed while the driver publishes: the next life asks again.
    d.hang("NodePublishVolume");
    c.create(&mounting("one", CLAIM));
    c.eventually("publishing", || d.asked("NodePublishVolume").pop());
    c.agent.kill9();
    d.heal("NodePublishVolume");
    c.start_agent();
    c.wait_pod("one", "ready", is_ready);
    c.run(&["delete", "pod", "one", "--wait=false"]);
    c.wait_pod_gone("one");
    c.eventually("unstaged", || d.asked("NodeUnstageVolume").pop());

    // Killed while the driver stages, and the Pod is deleted before the next life: it is unstaged all the same.
    d.hang("NodeStageVolume");
    let before = d.asked("NodeStageVolume").len();
    c.create(&mounting("two", CLAIM));
    c.eventually("staging", || (d.asked("NodeStageVolume").len() > before).then_some(()));
    c.agent.kill9();
    c.run(&["delete", "pod", "two", "--force", "--grace-period=0", "--wait=false"]);
    d.heal("NodeStageVolume");
    c.start_agent();
    c.eventually("unstaged again", || (d.asked("NodeUnstageVolume").len() >= 2).then_some(()));
    let global = root(&c).join("plugins/kubernetes.io/csi/d.test");
    c.eventually("clean", || std::fs::read_dir(&global).unwrap().next().is_none().then_some(()));
    assert!(mounts_below(&c, "plugins").is_empty());
}

#[test]
fn what_is_on_a_volume_is_told() {
    let Some(c) = Cluster::with_config("volumeStatsAggPeriod: 1s\n") else { return };
    describe(&c, "attachRequired: false, fsGroupPolicy: None, volumeLifecycleModes: [Persistent, Ephemeral]");
    let d = driver(&c, &["stage", "stats"]);
    volume(&c, "", "fsType: ext4");
    let volumes = format!("volumes: [{{ name: v, {CLAIM} }}, {{ name: own, csi: {{ driver: d.test }} }}]");
    let mounts = "volumeMounts: [{ name: v, mountPath: /v }, { name: own, mountPath: /own }]";
    c.create(&pod("full", &volumes, mounts));
    c.wait_pod("full", "ready", is_ready);
    let told = || {
        let text = c.run(&["get", "--raw", "/api/v1/nodes/demo/proxy/stats/summary"]);
        let summary: Value = serde_json::from_str(&text).unwrap();
        let pods = summary["pods"].as_array().cloned().unwrap_or_default();
        let pod = pods.into_iter().find(|p| p["podRef"]["name"] == "full");
        let mut volumes = pod.and_then(|p| p["volume"].as_array().cloned()).unwrap_or_default();
        // The volume of its token is the kubelet's own, and counted without a driver.
        volumes.retain(|v| !v["name"].as_str().unwrap().starts_with("kube-api-access-"));
        volumes
    };
    let shown = c.eventually("measured", || Some(told()).filter(|v| v.len() == 2));
    let mut first = shown[0].clone();
    assert!(first.as_object_mut().unwrap().remove("time").unwrap().as_str().unwrap().ends_with('Z'));
    let figures = json!({
        "name": "own", "availableBytes": 600, "capacityBytes": 1000, "usedBytes": 400, "inodes": 100,
        "inodesFree": 90, "inodesUsed": 10,
    });
    assert_eq!(first, figures, "a volume of the Pod's own has no claim");
    assert_eq!(shown[1]["pvcRef"], json!({"name": "data", "namespace": "default"}));
    let metric = |name: &str| {
        let text = String::from_utf8(c.agent.get(&c.node, "/metrics").unwrap()).unwrap();
        let label = r#"{namespace="default",persistentvolumeclaim="data"} "#;
        let start = format!("kubelet_volume_stats_{name}{label}");
        text.lines().find_map(|l| l.strip_prefix(&start)?.parse::<f64>().ok())
    };
    let all = [
        ("capacity_bytes", 1000.0),
        ("available_bytes", 600.0),
        ("used_bytes", 400.0),
        ("inodes", 100.0),
        ("inodes_free", 90.0),
        ("inodes_used", 10.0),
    ];
    for (name, value) in all {
        assert_eq!(metric(name), Some(value), "{name}");
    }
    // Where the volume is, is where the driver was asked to count.
    let published: Vec<_> = d.asked("NodePublishVolume").into_iter().map(|r| r["target"].clone()).collect();
    assert!(d.asked("NodeGetVolumeStats").iter().all(|r| published.contains(&r["path"])));

    // What nobody can count any more is not told, and comes back.
    d.fail("NodeGetVolumeStats", 13);
    c.eventually("unknown", || (told().is_empty() && metric("used_bytes").is_none()).then_some(()));
    d.heal("NodeGetVolumeStats");
    c.eventually("known again", || metric("used_bytes").filter(|_| told().len() == 2));
    c.run(&["delete", "pod", "full", "--wait=false"]);
    c.wait_pod_gone("full");
    c.eventually("forgotten", || metric("used_bytes").is_none().then_some(()));
}

#[test]
fn a_driver_that_asks_for_it_publishes_again_and_again() {
    let Some(mut c) = Cluster::with_config("syncFrequency: 1s\n") else { return };
    describe(
        &c,
        "attachRequired: false, fsGroupPolicy: None, volumeLifecycleModes: [Ephemeral], requiresRepublish: true, \
         tokenRequests: [{ audience: vault, expirationSeconds: 600 }]",
    );
    let d = driver(&c, &[]);
    c.create(&mounting("kept", "csi: { driver: d.test }"));
    let kept = c.wait_pod("kept", "ready", is_ready);
    sh(&c, "kept", "echo here > /v/file");
    let published = || d.asked("NodePublishVolume");
    let more = |c: &Cluster, than: usize| {
        c.eventually("published again", || (published().len() > than + 1).then_some(()));
    };
    more(&c, published().len());
    let all = published();
    let token = |r: &Value| r["context"]["csi.storage.k8s.io/serviceAccount.tokens"].is_string();
    assert!(all.iter().all(|r| r["target"] == all[0]["target"] && token(r)), "{all:?}");

    // One that refuses once it is published takes nothing away from the Pod that runs on it.
    d.fail("NodePublishVolume", 13);
    more(&c, published().len());
    let now = c.pod("kept").unwrap();
    assert!(is_ready(&now) && uid(&now) == uid(&kept));
    assert_eq!(sh(&c, "kept", "cat /v/file"), "here\n");
    d.heal("NodePublishVolume");

    // Nor does the end of an agent; the next one goes on.
    c.restart_agent();
    more(&c, published().len());
    assert_eq!(sh(&c, "kept", "cat /v/file"), "here\n");
    let status = c.pod("kept").unwrap().status.unwrap();
    assert_eq!(status.container_statuses.unwrap()[0].restart_count, 0);
    c.run(&["delete", "pod", "kept", "--wait=false"]);
    c.wait_pod_gone("kept");
    assert!(mounts_below(&c, "pods").is_empty());
}

#[test]
fn a_driver_that_can_gives_the_volume_to_the_group_itself() {
    let Some(c) = Cluster::usual() else { return };
    describe(&c, "attachRequired: false, fsGroupPolicy: File");
    let d = driver(&c, &["stage", "group"]);
    volume(&c, "", "fsType: ext4");
    let group = "  securityContext: { fsGroup: 4321 }\n  containers:";
    c.create(&mounting("one", CLAIM).replace("  containers:", group));
    c.wait_pod("one", "ready", is_ready);
    for call in ["NodeStageVolume", "NodePublishVolume"] {
        assert_eq!(d.asked(call).pop().unwrap()["capability"]["group"], "4321", "{call}");
    }
    // It was told, and nobody else meddles. The Pod's processes are in the group all the same.
    assert_eq!(sh(&c, "one", "stat -c %g /v; id -G"), "0\n0 4321\n");
}

#[test]
fn a_device_is_passed_into_the_container() {
    let Some(c) = Cluster::usual() else { return };
    if !std::path::Path::new("/dev/loop-control").exists() {
        return;
    }
    describe(&c, "attachRequired: false, fsGroupPolicy: None");
    let d = driver(&c, &["stage"]);
    volume(&c, "volumeMode: Block", "");
    let volumes = format!("volumes: [{{ name: v, {CLAIM} }}]");
    c.create(&pod("raw", &volumes, "volumeDevices: [{ name: v, devicePath: /dev/xvda }]"));
    let raw = c.wait_pod("raw", "ready", is_ready);
    let script = "test -b /dev/xvda && echo data > /dev/xvda && head -c 4 /dev/xvda";
    assert_eq!(sh(&c, "raw", script), "data");
    let asked = d.asked("NodePublishVolume").pop().unwrap();
    assert_eq!(asked["capability"], json!({"mode": "SINGLE_NODE_WRITER", "block": true}));
    let devices = root(&c).join("plugins/kubernetes.io/csi/volumeDevices");
    assert_eq!(asked["target"], devices.join("publish/pv-1").join(uid(&raw)).display().to_string());
    assert_eq!(asked["staging"], devices.join("staging/pv-1").display().to_string());
    assert!(devices.join("pv-1/data/vol_data.json").exists());
    c.run(&["delete", "pod", "raw", "--wait=false"]);
    c.wait_pod_gone("raw");
    c.eventually("unstaged", || d.asked("NodeUnstageVolume").pop());
    c.eventually("clean", || (!devices.join("pv-1").exists()).then_some(()));

    // Mounted as a directory it is refused.
    c.create(&mounting("wrong", CLAIM));
    let words = "volume v has volumeMode Block, but is specified in volumeMounts";
    c.eventually("refused", || c.run(&["describe", "pod", "wrong"]).contains(words).then_some(()));
}

#[test]
fn a_driver_that_does_not_stage_devices_learns_where_it_could() {
    let Some(c) = Cluster::usual() else { return };
    if !std::path::Path::new("/dev/loop-control").exists() {
        return;
    }
    describe(&c, "attachRequired: false, fsGroupPolicy: None");
    let d = driver(&c, &[]);
    volume(&c, "volumeMode: Block", "");
    let volumes = format!("volumes: [{{ name: v, {CLAIM} }}]");
    c.create(&pod("raw", &volumes, "volumeDevices: [{ name: v, devicePath: /dev/xvda }]"));
    c.wait_pod("raw", "ready", is_ready);
    let asked = d.asked("NodePublishVolume").pop().unwrap();
    let staging = root(&c).join("plugins/kubernetes.io/csi/volumeDevices/staging/pv-1");
    assert_eq!(asked["staging"], staging.display().to_string());
    assert!(d.asked("NodeStageVolume").is_empty());
    c.run(&["delete", "pod", "raw", "--wait=false"]);
    c.wait_pod_gone("raw");
}

#[test]
fn a_driver_is_asked_anew_how_many_volumes_it_can_have() {
    let Some(c) = Cluster::usual() else { return };
    describe(&c, "attachRequired: true, fsGroupPolicy: None, nodeAllocatableUpdatePeriodSeconds: 3600");
    let d = driver(&c, &["max=7"]);
    let count = || entry(&c)?["allocatable"]["count"].as_i64();
    assert_eq!(count(), Some(7));

    // Its attacher says that there is no room: that is news, whenever the next time would be.
    volume(&c, "", "fsType: ext4");
    d.set_max(1);
    let name = kubelet_core::volumes::csi::attachment_name("vol-1", "d.test", "demo");
    c.create(&format!(
        "apiVersion: storage.k8s.io/v1\nkind: VolumeAttachment\nmetadata: {{ name: {name} }}\n\
         spec: {{ attacher: d.test, nodeName: demo, source: {{ persistentVolumeName: pv-1 }} }}\n"
    ));
    let status = r#"{"status":{"attached":false,"attachError":{"message":"full","errorCode":8}}}"#;
    c.run(&["patch", "volumeattachment", &name, "--subresource=status", "--type=merge", "-p", status]);
    c.create(&mounting("one", CLAIM));
    c.eventually("no room", || count().filter(|n| *n == 1));
    // Its owner makes another one, elsewhere.
    let one = c.wait_pod("one", "given up", |p| phase(p) == "Failed").status.unwrap();
    assert_eq!(one.reason.as_deref(), Some("VolumeAttachmentLimitExceeded"));
    let words = "Pod was rejected: Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[v], unattached volumes=[v]";
    assert!(one.message.clone().unwrap_or_default().starts_with(words), "{one:?}");

    // And as often as the driver wants.
    d.set_max(5);
    let often = r#"{"spec":{"nodeAllocatableUpdatePeriodSeconds":10}}"#;
    c.run(&["patch", "csidriver", "d.test", "--type=merge", "-p", often]);
    c.eventually("room again", || count().filter(|n| *n == 5));
}
