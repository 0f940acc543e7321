//! The node as a cluster sees it: registration, status, heartbeat, events, outages.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, NodeCondition};
use serde_json::Value;
use testkit::cluster::{Cluster, ClusterOptions, Identity};
use testkit::harness::is_ready;
use testkit::node::{Agent, AgentOptions};

const LEASE: [&str; 4] = ["lease", "demo", "-n", "kube-node-lease"];

fn node(cluster: &Cluster) -> Option<Node> {
    cluster.object(&["node", "demo"])
}

fn condition(node: &Node, kind: &str) -> NodeCondition {
    let all = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    let found = all.and_then(|all| all.iter().find(|c| c.type_ == kind));
    found.cloned().unwrap_or_default()
}

fn wait_ready(cluster: &Cluster) -> Node {
    cluster.eventually("ready", || node(cluster).filter(|n| condition(n, "Ready").status == "True"))
}

fn events(cluster: &Cluster) -> Vec<Event> {
    let list: Option<Value> =
        cluster.object(&["events", "-n", "default", "--field-selector=involvedObject.kind=Node"]);
    let items = list.map(|l| l["items"].clone()).unwrap_or_default();
    serde_json::from_value(items).unwrap_or_default()
}

fn reasons(cluster: &Cluster) -> Vec<String> {
    events(cluster).into_iter().filter_map(|e| e.reason).collect()
}

fn said(cluster: &Cluster, words: &str) -> bool {
    std::fs::read_to_string(cluster.agent.log()).is_ok_and(|log| log.contains(words))
}

fn renewed(cluster: &Cluster) -> Option<i64> {
    let lease: Lease = cluster.object(&LEASE)?;
    Some(lease.spec?.renew_time?.0.as_microsecond())
}

#[test]
fn a_node_registers_describes_itself_and_becomes_ready() {
    let flags =
        ["--node-labels=team=blue,node.kubernetes.io/role=edge", "--register-with-taints=a=b:NoSchedule"];
    let agent = AgentOptions { flags: flags.map(String::from).into(), ..AgentOptions::default() };
    let Some(c) = Cluster::start(ClusterOptions { agent, ..ClusterOptions::default() }) else { return };
    let node = wait_ready(&c);
    let labels = node.metadata.labels.clone().unwrap_or_default();
    for (key, value) in [
        ("kubernetes.io/hostname", "demo"),
        ("kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/os", "linux"),
        ("team", "blue"),
        ("node.kubernetes.io/role", "edge"),
    ] {
        assert_eq!(labels.get(key).map(String::as_str), Some(value), "{labels:?}");
    }
    let spec = node.spec.clone().unwrap_or_default();
    assert!(spec.taints.unwrap_or_default().iter().any(|t| t.key == "a" && t.effect == "NoSchedule"));
    let status = node.status.clone().unwrap_or_default();
    let info = status.node_info.clone().unwrap_or_default();
    assert!(info.container_runtime_version.starts_with("containerd://"), "{info:?}");
    assert_eq!(info.kubelet_version, "v1.36.4");
    assert!(!info.boot_id.is_empty() && !info.os_image.is_empty(), "{info:?}");
    let (capacity, allocatable) =
        (status.capacity.unwrap_or_default(), status.allocatable.unwrap_or_default());
    for resource in ["cpu", "memory", "pods", "ephemeral-storage"] {
        assert!(capacity.contains_key(resource) && allocatable.contains_key(resource), "{resource}");
    }
    let kinds: Vec<String> = status.conditions.iter().flatten().map(|c| c.type_.clone()).collect();
    assert_eq!(kinds, ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]);
    assert_eq!(condition(&node, "Ready").message.as_deref(), Some("kubelet is posting ready status"));
    assert!(status.addresses.iter().flatten().any(|a| a.type_ == "InternalIP"));
    assert!(c.kubectl(&["get", "csinode", "demo"]).code == 0, "no CSINode");
    for wanted in ["Starting", "NodeHasSufficientMemory", "NodeReady"] {
        c.eventually(wanted, || reasons(&c).iter().any(|r| r == wanted).then_some(()));
    }
    let described = c.run(&["describe", "node", "demo"]);
    for text in ["KubeletReady", "containerd://", "Starting kubelet.", "NodeReady", "HolderIdentity:  demo"] {
        assert!(described.contains(text), "{text} is not in\n{described}");
    }
    assert!(c.run(&["get", "nodes", "-o", "wide"]).contains("Ready"));
}

#[test]
fn the_lease_belongs_to_the_node_and_is_renewed() {
    let Some(c) = Cluster::with_config("nodeLeaseDurationSeconds: 2\n") else { return };
    let node = wait_ready(&c);
    let first = c.eventually("leased", || renewed(&c));
    let lease: Lease = c.object(&LEASE).unwrap_or_default();
    let owner = lease.metadata.owner_references.unwrap_or_default().remove(0);
    assert_eq!((owner.kind.as_str(), Some(owner.uid)), ("Node", node.metadata.uid));
    let spec = lease.spec.unwrap_or_default();
    assert_eq!(spec.holder_identity.as_deref(), Some("demo"));
    assert_eq!(spec.lease_duration_seconds, Some(2));
    c.eventually("renewed", || renewed(&c).filter(|at| *at > first));
    // Somebody deletes it: it comes back.
    c.run(&["delete", "lease", "demo", "-n", "kube-node-lease"]);
    c.eventually("leased again", || renewed(&c));
}

#[test]
fn an_object_that_was_there_keeps_its_own_labels_and_taints() {
    let agent = AgentOptions { flags: vec!["--node-labels=team=blue".into()], ..AgentOptions::default() };
    let Some(mut c) = Cluster::start(ClusterOptions { agent, ..ClusterOptions::default() }) else { return };
    wait_ready(&c);
    c.run(&["label", "node", "demo", "team=red", "kubernetes.io/os=plan9", "mine=1", "--overwrite"]);
    c.run(&["taint", "node", "demo", "x=y:NoSchedule"]);
    c.restart_agent();
    let node = c.eventually("put right", || {
        node(&c).filter(|n| n.metadata.labels.as_ref().is_some_and(|l| l["kubernetes.io/os"] == "linux"))
    });
    let labels = node.metadata.labels.unwrap_or_default();
    assert_eq!((labels["team"].as_str(), labels["mine"].as_str()), ("red", "1"));
    assert!(node.spec.unwrap_or_default().taints.unwrap_or_default().iter().any(|t| t.key == "x"));
}

#[test]
fn a_restarted_kubelet_is_never_seen_unready() {
    let Some(mut c) = Cluster::usual() else { return };
    let before = condition(&wait_ready(&c), "Ready").last_transition_time;
    for _ in 0..3 {
        let at = renewed(&c);
        c.restart_agent();
        c.eventually("renewed", || renewed(&c).filter(|now| Some(*now) > at));
    }
    let after = condition(&wait_ready(&c), "Ready").last_transition_time;
    assert_eq!(before, after);
    assert!(!reasons(&c).iter().any(|r| r == "NodeNotReady"));
}

#[test]
fn an_api_server_that_was_away_is_caught_up_with() {
    let Some(mut c) = Cluster::with_config("nodeLeaseDurationSeconds: 2\nnodeStatusUpdateFrequency: 1s\n")
    else {
        return;
    };
    wait_ready(&c);
    let before = c.eventually("leased", || renewed(&c));
    c.stop_server();
    std::thread::sleep(Duration::from_secs(3));
    c.start_server();
    c.eventually("renewed", || renewed(&c).filter(|at| *at > before + 2_000_000));
    let node = wait_ready(&c);
    assert_eq!(condition(&node, "Ready").status, "True");
}

#[test]
fn cordoning_and_a_pod_network_reach_the_node() {
    let Some(c) = Cluster::usual() else { return };
    wait_ready(&c);
    c.run(&["cordon", "demo"]);
    c.eventually("cordoned", || reasons(&c).iter().any(|r| r == "NodeNotSchedulable").then_some(()));
    c.run(&["uncordon", "demo"]);
    c.eventually("uncordoned", || reasons(&c).iter().any(|r| r == "NodeSchedulable").then_some(()));
    c.run(&[
        "patch",
        "node",
        "demo",
        "--type=merge",
        "-p",
        r#"{"spec":{"podCIDR":"10.9.0.0/24","podCIDRs":["10.9.0.0/24"]}}"#,
    ]);
    c.eventually("told", || said(&c, "the runtime was told the Pod network").then_some(()));
}

#[test]
fn a_machine_that_was_booted_again_says_so_once() {
    let Some(mut c) = Cluster::usual() else { return };
    let real = wait_ready(&c).status.and_then(|s| s.node_info).map(|i| i.boot_id);
    c.agent.stop().unwrap_or_else(|e| panic!("{e}"));
    let earlier = r#"{"status":{"nodeInfo":{"bootID":"earlier"}}}"#;
    c.run(&["patch", "node", "demo", "--subresource=status", "-p", earlier]);
    c.start_agent();
    let rebooted = |c: &Cluster| {
        let all = events(c).into_iter().filter(|e| e.reason.as_deref() == Some("Rebooted"));
        all.map(|e| (e.type_.unwrap_or_default(), e.message.unwrap_or_default())).collect::<Vec<_>>()
    };
    let told = c.eventually("said", || Some(rebooted(&c)).filter(|all| !all.is_empty()));
    let words = format!("Node demo has been rebooted, boot id: {}", real.clone().unwrap_or_default());
    assert_eq!(told, [("Warning".to_owned(), words)]);
    let now = wait_ready(&c).status.and_then(|s| s.node_info).map(|i| i.boot_id);
    assert_eq!(now, real);
    c.restart_agent();
    let at = renewed(&c);
    c.eventually("renewed", || renewed(&c).filter(|now| Some(*now) > at));
    assert_eq!(rebooted(&c).len(), 1);
}

#[test]
fn a_node_that_others_register_waits_for_its_object() {
    let quick = "registerNode: false\nnodeLeaseDurationSeconds: 2\nnodeStatusUpdateFrequency: 1s\n";
    let Some(c) = Cluster::with_config(quick) else { return };
    let node = wait_ready(&c);
    let labels = node.metadata.labels.unwrap_or_default();
    assert!(!labels.contains_key("beta.kubernetes.io/arch"), "it registered itself: {labels:?}");
    c.create(
        "apiVersion: v1\nkind: Pod\nmetadata: { name: p }\nspec: { nodeName: demo, containers: [{ name: main, \
         image: localhost/busybox:v1, command: [sleep, '1000'] }] }\n",
    );
    c.wait_pod("p", "ready", is_ready);
    // Whoever made it may take it away, with its lease; nobody else brings it back.
    c.run(&["delete", "node", "demo"]);
    c.eventually("missed", || said(&c, "what=\"lease\"").then_some(()));
    assert!(self::node(&c).is_none(), "it registered itself");
    c.create("apiVersion: v1\nkind: Node\nmetadata: { name: demo }\n");
    wait_ready(&c);
    c.eventually("leased again", || renewed(&c));
    assert!(c.pod("p").is_some_and(|p| is_ready(&p)));
}

#[test]
fn a_cloud_controller_finds_what_it_needs() {
    let agent = AgentOptions {
        flags: vec!["--cloud-provider=external".into()],
        config: "nodeStatusUpdateFrequency: 1s\nnodeStatusReportFrequency: 1s\n".into(),
        ..AgentOptions::default()
    };
    let Some(c) = Cluster::start(ClusterOptions { agent, ..ClusterOptions::default() }) else { return };
    let node = wait_ready(&c);
    let taints = node.spec.unwrap_or_default().taints.unwrap_or_default();
    let taints: Vec<_> =
        taints.iter().map(|t| (t.key.as_str(), t.value.as_deref(), t.effect.as_str())).collect();
    let waits = ("node.cloudprovider.kubernetes.io/uninitialized", Some("true"), "NoSchedule");
    assert!(taints.contains(&waits), "{taints:?}");
    let asked = node.metadata.annotations.unwrap_or_default();
    let address = c.node.address();
    assert_eq!(asked.get("alpha.kubernetes.io/provided-node-ip"), Some(&address), "{asked:?}");
    // What the controller says of the machine is not taken back.
    c.run(&["patch", "node", "demo", "-p", r#"{"spec":{"providerID":"cloud://7"}}"#]);
    c.run(&["taint", "node", "demo", "node.cloudprovider.kubernetes.io/uninitialized-"]);
    let given = format!(
        r#"{{"status":{{"addresses":[{{"type":"InternalIP","address":"{address}"}},{{"type":"ExternalIP","address":"198.51.100.7"}}]}}}}"#
    );
    c.run(&["patch", "node", "demo", "--subresource=status", "--type=merge", "-p", &given]);
    let beat = || condition(&self::node(&c).unwrap_or_default(), "Ready").last_heartbeat_time;
    let before = beat();
    c.eventually("reported again", || (beat() > before).then_some(()));
    let node = self::node(&c).unwrap_or_default();
    let addresses = node.status.unwrap_or_default().addresses.unwrap_or_default();
    assert!(addresses.iter().any(|a| a.type_ == "ExternalIP"), "{addresses:?}");
    let spec = node.spec.unwrap_or_default();
    assert_eq!(spec.provider_id.as_deref(), Some("cloud://7"));
    assert!(!spec.taints.unwrap_or_default().iter().any(|t| t.key == waits.0));
}

fn with_identity(identity: Identity, config: &str) -> Option<Cluster> {
    let agent = AgentOptions { config: config.to_owned(), ..AgentOptions::default() };
    Cluster::start(ClusterOptions { agent, identity, ..ClusterOptions::default() })
}

/// The client certificates this node has had.
fn certificates(cluster: &Cluster, prefix: &str) -> Vec<String> {
    let entries = std::fs::read_dir(Agent::certificates_of(&cluster.node)).into_iter().flatten().flatten();
    let names = entries.map(|e| e.file_name().to_string_lossy().into_owned());
    names.filter(|n| n.starts_with(prefix) && n.ends_with(".pem")).collect()
}

#[test]
fn a_token_becomes_a_node() {
    let Some(mut c) = with_identity(Identity::Token, "rotateCertificates: true\n") else { return };
    wait_ready(&c);
    let kubeconfig = std::fs::read_to_string(c.node.dir().join("node.kubeconfig")).unwrap_or_default();
    for text in ["default-auth", "default-cluster", "kubelet-client-current.pem"] {
        assert!(kubeconfig.contains(text), "{text} is not in\n{kubeconfig}");
    }
    assert!(!kubeconfig.contains("abcdef"), "the token is not the node's to keep");
    let dir = Agent::certificates_of(&c.node);
    assert!(dir.join("kubelet-client-current.pem").is_symlink());
    assert!(!dir.join("kubelet-client.key.tmp").exists(), "the key has its certificate");
    assert_eq!(certificates(&c, "kubelet-client-2").len(), 1);
    let requests = c.run(&["get", "csr"]);
    assert!(requests.contains("node-csr-") && requests.contains("Approved,Issued"), "{requests}");
    // A restarted kubelet needs neither the token nor a new certificate.
    c.run(&["delete", "secret", "bootstrap-token-abcdef", "-n", "kube-system"]);
    let at = renewed(&c);
    c.restart_agent();
    c.eventually("renewed", || renewed(&c).filter(|now| Some(*now) > at));
    assert_eq!(certificates(&c, "kubelet-client-2").len(), 1);
}

#[test]
fn a_certificate_near_its_end_is_renewed_without_a_restart() {
    let Some(c) = with_identity(Identity::OldCertificate, "rotateCertificates: true\n") else { return };
    wait_ready(&c);
    // The one from the kubeconfig, and its successor.
    c.eventually("renewed", || (certificates(&c, "kubelet-client-2").len() == 2).then_some(()));
    let at = renewed(&c);
    c.eventually("used", || renewed(&c).filter(|now| Some(*now) > at));
    assert!(said(&c, "certificate renewed"));
    let metrics = c.agent.get(&c.node, "/metrics").unwrap_or_default();
    let metrics = String::from_utf8_lossy(&metrics);
    assert!(metrics.contains("kubelet_certificate_manager_client_ttl_seconds"), "{metrics}");
    // Without serverTLSBootstrap the cluster signs none.
    assert!(!metrics.contains("kubelet_certificate_manager_server_ttl_seconds"), "{metrics}");
}

#[test]
fn a_serving_certificate_carries_the_nodes_addresses() {
    let Some(c) = Cluster::with_config("serverTLSBootstrap: true\n") else { return };
    wait_ready(&c);
    let name = c.eventually("asked", || {
        let names = c.run(&[
            "get",
            "csr",
            "-o",
            "name",
            "--field-selector=spec.signerName=kubernetes.io/kubelet-serving",
        ]);
        names.lines().next().map(str::to_owned)
    });
    c.run(&[
        "certificate",
        "approve",
        name.trim_start_matches("certificatesigningrequest.certificates.k8s.io/"),
    ]);
    let current = Agent::certificates_of(&c.node).join("kubelet-server-current.pem");
    let pem = c.eventually("signed", || std::fs::read(&current).ok());
    let text = String::from_utf8_lossy(&pem);
    assert!(text.contains("BEGIN CERTIFICATE") && text.contains("PRIVATE KEY"));
}
