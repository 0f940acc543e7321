//! Upstream's kube-scheduler on our API server, asked the same questions as our decisions: random clusters with taints, images,
//! affinities, spreads, host ports, and volumes of every kind of binding; one Pod after the other. Which nodes fit, what each of
//! them scores, and what is said where none fits must be the same.
//!
//! `LONGSHORE_UPSTREAM_SCHEDULER` names upstream's program, and without it there is nothing to compare with: what it answered
//! is kept in `crates/scheduler-core/tests`. `LONGSHORE_SEEDS=40` asks more; `LONGSHORE_RECORD=FILE` writes the answers down.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

#[path = "../../scheduler-core/tests/answers/mod.rs"]
mod answers;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base::rng::Rng;
use client::{Client, Config, Options, Request};
use serde_json::{Value, json};
use testkit::api::Server;

const SEEDS: u64 = 4;
const PODS: u64 = 24;
const DEADLINE: Duration = Duration::from_secs(120);
const ZONE: &str = "topology.kubernetes.io/zone";
const HOST: &str = "kubernetes.io/hostname";
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn the_same_nodes_fit_with_the_same_scores_as_upstreams() {
    let (Some(upstream), Some(binary)) =
        (std::env::var_os("LONGSHORE_UPSTREAM_SCHEDULER"), std::env::var_os("LONGSHORE_BINARY"))
    else {
        eprintln!("skipped: LONGSHORE_UPSTREAM_SCHEDULER or LONGSHORE_BINARY is not set");
        return;
    };
    let seeds = std::env::var("LONGSHORE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(SEEDS);
    let (mut asked, mut wrong, mut cases) = (0, Vec::new(), Vec::new());
    for seed in 0..seeds {
        let case = ask_upstream(Path::new(&upstream), Path::new(&binary), seed).await;
        let (count, different) = answers::compare(&case);
        asked += count;
        wrong.extend(different);
        cases.push(case);
    }
    if let Some(file) = std::env::var_os("LONGSHORE_RECORD") {
        std::fs::write(file, serde_json::to_string(&cases).unwrap()).unwrap();
    }
    assert_eq!(asked as u64, seeds * PODS);
    assert!(wrong.is_empty(), "{} of {asked}: {:#?}", wrong.len(), &wrong[..wrong.len().min(6)]);
}

/// A cluster of its own for each seed.
async fn ask_upstream(upstream: &Path, binary: &Path, seed: u64) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::ours(binary, dir.path()).await.unwrap();
    let kubeconfig = dir.path().join("data/admin.kubeconfig");
    let client = Client::new(Config::load(&kubeconfig).unwrap(), Options::default()).await.unwrap();
    let mut rng = Rng::new(seed);
    let api = Api { client };
    let names: Vec<String> = (0..2 + rng.below(8)).map(|i| format!("n{i}")).collect();
    let mut nodes = Vec::new();
    for name in &names {
        nodes.push(api.node(&node(name, &mut rng)).await);
    }
    api.storage(&names, &mut rng).await;
    let log = dir.path().join("scheduler.log");
    let _scheduler = start(upstream, &kubeconfig, &log);
    let mut steps = Vec::new();
    for i in 0..PODS {
        let storage = api.look_at_storage().await;
        let pod = api.make("/api/v1/namespaces/default/pods", &pod(i, &names, &mut rng)).await;
        let answer = api.wait_for_answer(&pod, &log).await;
        steps.push(json!({"storage": storage, "pod": pod, "answer": answer}));
    }
    drop(server);
    json!({"seed": seed, "nodes": nodes, "steps": steps})
}

/// Scores are logged by one file of upstream's at a high verbosity.
fn start(upstream: &Path, kubeconfig: &Path, log: &Path) -> Process {
    let file = std::fs::File::create(log).unwrap();
    let kubeconfig = kubeconfig.display();
    let child = Command::new(upstream)
        .args([
            format!("--kubeconfig={kubeconfig}"),
            format!("--authentication-kubeconfig={kubeconfig}"),
            format!("--authorization-kubeconfig={kubeconfig}"),
        ])
        .args(["--leader-elect=false", "--secure-port=0", "-v=2", "--vmodule=schedule_one=10"])
        .args(["--kube-api-qps=1000", "--kube-api-burst=1000"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file)
        .spawn()
        .unwrap();
    Process(child)
}

struct Api {
    client: Client,
}

impl Api {
    /// What the server makes of an object. It takes none of some kinds before it has finished its start.
    async fn make(&self, path: &str, object: &Value) -> Value {
        let begun = Instant::now();
        loop {
            match self.client.ask(Request::post(path, object.to_string())).await {
                Ok(made) => return made,
                Err(error) if begun.elapsed() > DEADLINE => panic!("{path}: {error}: {object}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// Without the taint of a node whose kubelet has not spoken yet: nobody is here to take it away.
    async fn node(&self, object: &Value) -> Value {
        let mut made = self.make("/api/v1/nodes", object).await;
        let path = format!("/api/v1/nodes/{}", made["metadata"]["name"].as_str().unwrap());
        if let Some(taints) = made["spec"]["taints"].as_array_mut() {
            taints.retain(|taint| taint["key"] != "node.kubernetes.io/not-ready");
        }
        self.client.ask(Request::put(path, made.to_string())).await.unwrap()
    }

    async fn put(&self, path: &str, object: &Value) {
        self.client.ask_bytes(Request::put(path, object.to_string())).await.unwrap();
    }

    async fn items(&self, path: &str) -> Vec<Value> {
        let list: Value = self.client.ask(Request::get(path)).await.unwrap();
        let mut items = list["items"].as_array().cloned().unwrap_or_default();
        for item in &mut items {
            item["metadata"].as_object_mut().unwrap().remove("managedFields");
        }
        items
    }

    /// Classes, limits of drivers, and claims that are bound, wait for a Pod, or wait in vain.
    async fn storage(&self, nodes: &[String], rng: &mut Rng) {
        for (name, mode) in [("later", "WaitForFirstConsumer"), ("now", "Immediate")] {
            let class = json!({"metadata": {"name": name}, "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": mode});
            self.make("/apis/storage.k8s.io/v1/storageclasses", &class).await;
        }
        for name in nodes {
            let driver =
                json!({"name": "d.example.com", "nodeID": name, "allocatable": {"count": 1 + rng.below(2)}});
            let object = json!({"metadata": {"name": name}, "spec": {"drivers": [driver]}});
            self.make("/apis/storage.k8s.io/v1/csinodes", &object).await;
        }
        for i in 0..4 {
            let (volume, claim) = (format!("csi-{i}"), format!("csi-{i}"));
            let source = json!({"csi": {"driver": "d.example.com", "volumeHandle": volume}});
            let mode = if i == 3 { "ReadWriteOncePod" } else { "ReadWriteMany" };
            let labels = if i == 2 { json!({ZONE: "x"}) } else { json!({}) };
            self.volume(&volume, "now", source, labels, None, mode).await;
            self.claim(&claim, "now", mode, "1Gi").await;
            self.bind(&volume, &claim).await;
        }
        for i in 0..4 {
            let node = &nodes[rng.below(nodes.len() as u64) as usize];
            let source = json!({"local": {"path": format!("/mnt/{i}")}});
            self.volume(&format!("local-{i}"), "later", source, json!({}), Some(node), "ReadWriteOnce").await;
        }
        for i in 0..5 {
            let size = if i == 4 { "9Gi" } else { "1Gi" };
            self.claim(&format!("local-{i}"), "later", "ReadWriteOnce", size).await;
        }
        self.claim("never", "now", "ReadWriteOnce", "1Gi").await;
    }

    async fn volume(
        &self,
        name: &str,
        class: &str,
        source: Value,
        labels: Value,
        node: Option<&String>,
        mode: &str,
    ) {
        let mut spec = source;
        spec["capacity"] = json!({"storage": "2Gi"});
        spec["accessModes"] = json!([mode]);
        spec["storageClassName"] = json!(class);
        if let Some(node) = node {
            let expression = json!({"key": HOST, "operator": "In", "values": [node]});
            spec["nodeAffinity"] =
                json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}});
        }
        let object = json!({"metadata": {"name": name, "labels": labels}, "spec": spec});
        let mut made = self.make("/api/v1/persistentvolumes", &object).await;
        made["status"] = json!({"phase": "Available"});
        self.put(&format!("/api/v1/persistentvolumes/{name}/status"), &made).await;
    }

    async fn claim(&self, name: &str, class: &str, mode: &str, size: &str) {
        let spec = json!({"storageClassName": class, "accessModes": [mode], "resources": {"requests": {"storage": size}}});
        let object = json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec});
        self.make("/api/v1/namespaces/default/persistentvolumeclaims", &object).await;
    }

    /// What the volume controller does for a claim and a volume.
    async fn bind(&self, volume: &str, claim: &str) {
        let path = format!("/api/v1/namespaces/default/persistentvolumeclaims/{claim}");
        let mut object: Value = self.client.ask(Request::get(path.clone())).await.unwrap();
        object["spec"]["volumeName"] = json!(volume);
        object["metadata"]["annotations"] = json!({BIND_COMPLETED: "yes"});
        self.put(&path, &object).await;
        let path = format!("/api/v1/persistentvolumes/{volume}");
        let mut known: Value = self.client.ask(Request::get(path.clone())).await.unwrap();
        known["spec"]["claimRef"] =
            json!({"namespace": "default", "name": claim, "uid": object["metadata"]["uid"]});
        self.put(&path, &known).await;
    }

    async fn look_at_storage(&self) -> Value {
        json!({
            "classes": self.items("/apis/storage.k8s.io/v1/storageclasses").await,
            "csinodes": self.items("/apis/storage.k8s.io/v1/csinodes").await,
            "volumes": self.items("/api/v1/persistentvolumes").await,
            "claims": self.items("/api/v1/namespaces/default/persistentvolumeclaims").await,
        })
    }

    /// Binds claims for which the scheduler has chosen a volume.
    async fn help_with_volumes(&self) {
        let claims = self.items("/api/v1/namespaces/default/persistentvolumeclaims").await;
        let is_unbound = |name: &Value| {
            claims.iter().any(|c| c["metadata"]["name"] == *name && c["spec"]["volumeName"].is_null())
        };
        for volume in self.items("/api/v1/persistentvolumes").await {
            let claim = &volume["spec"]["claimRef"]["name"];
            if is_unbound(claim) {
                self.bind(volume["metadata"]["name"].as_str().unwrap(), claim.as_str().unwrap()).await;
            }
        }
    }

    /// A node, or why there is none. A Pod without one is taken away, so that nothing wakes it later.
    async fn wait_for_answer(&self, pod: &Value, log: &Path) -> Value {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let path = format!("/api/v1/namespaces/default/pods/{name}");
        let begun = Instant::now();
        loop {
            let now: Value = self.client.ask(Request::get(path.clone())).await.unwrap();
            if let Some(node) = now["spec"]["nodeName"].as_str() {
                let scores = scores(log, name);
                return match scores.is_empty() {
                    true => json!({"node": node}),
                    false => json!({"node": node, "scores": scores}),
                };
            }
            let conditions = now["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let refused = conditions.iter().find(|c| c["type"] == "PodScheduled" && c["status"] == "False");
            if let Some(refused) = refused {
                let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
                self.client.ask_bytes(Request::delete(path, options.to_string())).await.unwrap();
                return json!({"message": refused["message"]});
            }
            assert!(begun.elapsed() < DEADLINE, "no answer about {name}: {}", log.display());
            self.help_with_volumes().await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Final scores by node, as upstream has logged them.
fn scores(log: &Path, pod: &str) -> BTreeMap<String, i64> {
    let text = std::fs::read_to_string(log).unwrap();
    let field = |line: &str, name: &str| -> Option<String> {
        let (_, rest) = line.split_once(&format!(" {name}="))?;
        Some(rest.split(' ').next()?.trim_matches('"').to_owned())
    };
    let lines = text.lines().filter(|line| line.contains("\"Calculated node's final score for pod\""));
    let own = lines.filter(|line| line.contains(&format!("pod=\"default/{pod}\"")));
    own.filter_map(|line| Some((field(line, "node")?, field(line, "score")?.parse().ok()?))).collect()
}

fn pick<'a, T>(rng: &mut Rng, all: &'a [T]) -> &'a T {
    &all[rng.below(all.len() as u64) as usize]
}

fn node(name: &str, rng: &mut Rng) -> Value {
    let mut labels = json!({HOST: name, "disk": pick(rng, &["ssd", "hdd"])});
    if rng.chance(0.85) {
        labels[ZONE] = json!(pick(rng, &["x", "y", "z"]));
    }
    let mut taints = Vec::new();
    for (chance, effect) in [(0.15, "NoSchedule"), (0.3, "PreferNoSchedule"), (0.2, "PreferNoSchedule")] {
        if rng.chance(chance) {
            let key = format!("t{}-{effect}", rng.below(2));
            if !taints.iter().any(|t: &Value| t["key"] == *key) {
                taints.push(json!({"key": key, "effect": effect}));
            }
        }
    }
    let images: Vec<Value> = ["a:1", "b:latest", "c:1"]
        .iter()
        .filter(|_| rng.chance(0.5))
        .map(|image| json!({"names": [image], "sizeBytes": 200_000_000}))
        .collect();
    let allocatable = json!({"cpu": format!("{}m", 1000 + rng.below(7000)), "memory": format!("{}Mi", 1000 + rng.below(7000)),
        "pods": (3 + rng.below(20)).to_string(), "example.com/gpu": rng.below(3).to_string()});
    json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints, "unschedulable": rng.chance(0.1)},
        "status": {"allocatable": allocatable, "capacity": allocatable, "images": images},
    })
}

fn pod(i: u64, nodes: &[String], rng: &mut Rng) -> Value {
    let app = *pick(rng, &["web", "db", "cache"]);
    let mut requests = json!({});
    if rng.chance(0.8) {
        requests["cpu"] = json!(format!("{}m", 50 + rng.below(900)));
    }
    if rng.chance(0.7) {
        requests["memory"] = json!(format!("{}Mi", 50 + rng.below(900)));
    }
    let mut limits = json!({});
    if rng.chance(0.1) {
        limits["example.com/gpu"] = json!("1");
        requests["example.com/gpu"] = json!("1");
    }
    let mut container = json!({"name": "c", "image": pick(rng, &["a:1", "b", "c:1", "d"]), "resources": {"requests": requests, "limits": limits}});
    if rng.chance(0.15) {
        container["ports"] = json!([{"containerPort": 80, "hostPort": 8000 + rng.below(2)}]);
    }
    let mut spec = json!({"containers": [container], "automountServiceAccountToken": false, "tolerations": [], "affinity": {}});
    if rng.chance(0.3) {
        spec["tolerations"] = json!([{"key": "t0-NoSchedule", "operator": "Exists"}, {"key": "t1-PreferNoSchedule", "operator": "Exists"}]);
    }
    if rng.chance(0.15) {
        spec["nodeSelector"] = json!({"disk": pick(rng, &["ssd", "hdd"])});
    }
    let zone = json!({"key": ZONE, "operator": "In", "values": [pick(rng, &["x", "y", "z"])]});
    match rng.below(6) {
        0 => {
            spec["affinity"]["nodeAffinity"] = json!({"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchExpressions": [zone]}, {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [pick(rng, nodes)]}]}]}});
        }
        1 => {
            spec["affinity"]["nodeAffinity"] = json!({"preferredDuringSchedulingIgnoredDuringExecution":
                [{"weight": 1 + rng.below(99), "preference": {"matchExpressions": [zone]}}]});
        }
        _ => {}
    }
    let term = json!({"labelSelector": {"matchLabels": {"app": pick(rng, &["web", "db", "cache"])}}, "topologyKey": pick(rng, &[ZONE, HOST])});
    let weighted = json!([{"weight": 1 + rng.below(99), "podAffinityTerm": term}]);
    match rng.below(9) {
        0 => {
            spec["affinity"]["podAffinity"] =
                json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]})
        }
        1 => {
            spec["affinity"]["podAntiAffinity"] =
                json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]})
        }
        2 => {
            spec["affinity"]["podAffinity"] =
                json!({"preferredDuringSchedulingIgnoredDuringExecution": weighted})
        }
        3 => {
            spec["affinity"]["podAntiAffinity"] =
                json!({"preferredDuringSchedulingIgnoredDuringExecution": weighted})
        }
        _ => {}
    }
    if rng.chance(0.25) {
        let when = *pick(rng, &["DoNotSchedule", "ScheduleAnyway"]);
        spec["topologySpreadConstraints"] = json!([{"maxSkew": 1 + rng.below(2), "topologyKey": pick(rng, &[ZONE, HOST]),
            "whenUnsatisfiable": when, "labelSelector": {"matchLabels": {"app": app}}}]);
    }
    if rng.chance(0.35) {
        let claims = [
            "csi-0", "csi-1", "csi-2", "csi-3", "local-0", "local-1", "local-2", "local-3", "local-4",
            "never", "none",
        ];
        spec["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": pick(rng, &claims)}}]);
    }
    json!({"metadata": {"name": format!("p{i}"), "namespace": "default", "labels": {"app": app}}, "spec": spec})
}
