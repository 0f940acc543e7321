//! Devices of a real plugin, as containers on a real containerd see them.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use plugins::pod_resources::pod_resources_lister_client::PodResourcesListerClient;
use plugins::pod_resources::{
    AllocatableResourcesRequest, GetPodResourcesRequest, ListPodResourcesRequest, PodResources,
};
use testkit::harness::{Harness, container, container_id, phase};

const RESOURCE: &str = "test.example.com/device";

/// A running plugin with its directory. It dies with this.
struct Plugin {
    dir: PathBuf,
    words: Vec<String>,
    process: Child,
}

impl Plugin {
    fn start(h: &Harness, devices: &str, words: &[&str]) -> Plugin {
        let dir = h.node.dir().join("device-plugin");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("devices"), devices).unwrap();
        let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
        let process = spawn(h, &dir, &words);
        Plugin { dir, words, process }
    }

    fn calls(&self) -> String {
        fs::read_to_string(self.dir.join("calls")).unwrap_or_default()
    }

    fn say(&self, devices: &str) {
        let next = self.dir.join(".devices");
        fs::write(&next, devices).unwrap();
        fs::rename(next, self.dir.join("devices")).unwrap();
    }

    fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    fn restart(&mut self, h: &Harness) {
        self.kill();
        self.process = spawn(h, &self.dir, &self.words);
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(h: &Harness, dir: &Path, words: &[String]) -> Child {
    let mut command = h.node.command(Path::new(env!("CARGO_BIN_EXE_device_plugin")));
    command.arg(dir).arg(RESOURCE).arg(sockets(h)).args(words).stdin(Stdio::null());
    command.spawn().unwrap()
}

fn sockets(h: &Harness) -> PathBuf {
    h.agent.root().join("device-plugins")
}

fn checkpoint(h: &Harness) -> String {
    fs::read_to_string(sockets(h).join("kubelet_internal_checkpoint")).unwrap_or_default()
}

fn pod(name: &str, count: u32) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{terminationGracePeriodSeconds: 1, \
         containers: [{{name: main, image: localhost/busybox:v1, imagePullPolicy: Never, command: [sleep, '10000'], \
         resources: {{limits: {{{RESOURCE}: {count}}}}}}}]}}}}"
    )
}

/// What the pod-resources API says: Pods, and ids of devices that work.
fn resources(h: &Harness) -> (Vec<PodResources>, Vec<String>) {
    let socket = h.agent.root().join("pod-resources/kubelet.sock");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel = plugins::call::connect(&socket).await.unwrap();
        let mut kubelet = PodResourcesListerClient::new(channel);
        let pods = kubelet.list(ListPodResourcesRequest {}).await.unwrap().into_inner().pod_resources;
        let free =
            kubelet.get_allocatable_resources(AllocatableResourcesRequest {}).await.unwrap().into_inner();
        if let Some(first) = pods.first() {
            let (pod_name, pod_namespace) = (first.name.clone(), first.namespace.clone());
            let got = kubelet.get(GetPodResourcesRequest { pod_name, pod_namespace }).await.unwrap();
            assert_eq!(got.into_inner().pod_resources.as_ref(), Some(first));
        }
        let missing =
            kubelet.get(GetPodResourcesRequest { pod_name: "none".into(), pod_namespace: "x".into() }).await;
        assert_eq!(missing.unwrap_err().message(), "pod none in namespace x not found");
        (pods, free.devices.into_iter().flat_map(|d| d.device_ids).collect())
    })
}

/// Waits until these devices work, as far as the node knows.
fn working(h: &Harness, ids: &[&str]) {
    h.until("devices", || (resources(h).1 == ids).then_some(()));
}

/// Waits until the plugin has registered so often.
fn registered(h: &Harness, plugin: &Plugin, times: usize) {
    h.until("registration", || (plugin.calls().matches("registered\n").count() >= times).then_some(()));
}

#[test]
fn a_container_gets_devices_and_keeps_them() {
    let Some(mut h) = Harness::usual() else { return };
    let mut plugin = Plugin::start(&h, "a Healthy 0\nb Healthy 0\nc Unhealthy\n", &["prefer", "pre-start"]);
    working(&h, &["a", "b"]);
    h.apply("one", &pod("one", 1));
    let one = h.wait_running("one");
    let name = one.metadata.name.clone().unwrap();
    let id = container_id(&one, "main").to_owned();
    let script = "echo $TEST_DEVICES; ls /dev/test-*; ls /test-devices/devices";
    assert_eq!(h.exec("one", "main", &["sh", "-c", script]), "b\n/dev/test-b\n/test-devices/devices\n");
    let calls = plugin.calls();
    assert!(calls.contains("allocate b\n") && calls.contains("pre-start b\n"), "{calls}");

    // Whoever asks is told.
    let (listed, free) = resources(&h);
    let one_of: Vec<_> = listed.iter().filter(|p| p.name == name).collect();
    assert_eq!(one_of.len(), 1, "{listed:?}");
    let device = &one_of[0].containers[0].devices[0];
    assert_eq!(
        (device.resource_name.as_str(), device.device_ids.as_slice()),
        (RESOURCE, &["b".to_owned()][..])
    );
    assert_eq!(device.topology.as_ref().map(|t| t.nodes[0].id), Some(0));
    assert_eq!(free, ["a", "b"], "what works, whoever has it");

    // More than there are. Devices are given out before the node's room is looked at, as upstream.
    h.apply("two", &pod("two", 2));
    let two = h.wait("two", "refused", |p| phase(p) == "Failed");
    assert_eq!(two.status.unwrap().reason.as_deref(), Some("UnexpectedAdmissionError"));

    // Its health is told.
    let health = |h: &Harness| {
        let pod = h.get("one")?;
        let status = container(&pod, "main")?.allocated_resources_status.clone()?;
        let device = status.first()?.resources.clone()?.first()?.clone();
        Some((status.first()?.name.clone(), device.resource_id, device.health?))
    };
    let told = |h: &Harness, health_is: &str| {
        h.until("health", || health(h).filter(|(_, _, told)| told == health_is))
    };
    assert_eq!(told(&h, "Healthy"), (RESOURCE.to_owned(), "b".to_owned(), "Healthy".to_owned()));
    plugin.say("a Healthy 0\nb Unhealthy 0\n");
    told(&h, "Unhealthy");

    // Neither the agent's end nor the plugin's touches who has what.
    plugin.say("a Healthy 0\nb Healthy 0\n");
    told(&h, "Healthy");
    h.restart_agent();
    registered(&h, &plugin, 2);
    working(&h, &["a", "b"]);
    plugin.restart(&h);
    registered(&h, &plugin, 3);
    working(&h, &["a", "b"]);
    let same = h.wait_running("one");
    assert_eq!(container_id(&same, "main"), id);
    h.apply("three", &pod("three", 1));
    h.wait_running("three");
    assert_eq!(h.exec("three", "main", &["sh", "-c", "echo $TEST_DEVICES"]), "a\n", "b is taken");

    // What is released can be had again.
    h.remove("one");
    h.wait_gone("one");
    h.until("b to be free", || (checkpoint(&h).matches("PodUID").count() == 1).then_some(()));
}

#[test]
fn a_plugin_is_found_by_its_registration_socket_and_may_refuse() {
    let Some(h) = Harness::usual() else { return };
    let registry = format!("registry={}", h.agent.root().join("plugins_registry").display());
    let plugin = Plugin::start(&h, "x Healthy\n", &[&registry]);
    working(&h, &["x"]);
    fs::write(plugin.dir.join("fail-allocate"), "").unwrap();
    h.apply("refused", &pod("refused", 1));
    let refused = h.wait("refused", "refused", |p| phase(p) == "Failed");
    let status = refused.status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("UnexpectedAdmissionError"));
    let message = status.message.unwrap();
    assert!(
        message.starts_with("Pod was rejected: Allocate failed due to ") && message.contains("told to fail"),
        "{message}"
    );
    fs::remove_file(plugin.dir.join("fail-allocate")).unwrap();
    h.apply("given", &pod("given", 1));
    h.wait_running("given");
    assert_eq!(h.exec("given", "main", &["sh", "-c", "echo $TEST_DEVICES"]), "x\n");
}
