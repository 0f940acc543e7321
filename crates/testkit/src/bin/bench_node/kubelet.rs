//! One kubelet's turn on the node.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use testkit::api::{Client, Outcome};
use testkit::node::{Agent, AgentOptions, Node};
use testkit::weight::{cpu_time, memory};

use crate::Effort;
use crate::figures::Figures;
use crate::server::{NAMESPACE, Place};

const LIMIT: Duration = Duration::from_secs(180);

/// Room for the crowd and for those that are on their way out, and no eviction: the disk is not what is measured.
const CONFIG: &str = "maxPods: 250\nfailCgroupV1: false\nimageGCHighThresholdPercent: 100\n\
    evictionHard: {nodefs.available: 0%, imagefs.available: 0%, nodefs.inodesFree: 0%}\n";

/// What starting a crowd leaves to do is not idleness.
const REST: Duration = Duration::from_secs(10);

/// A kubelet at work, and the watch it is judged by.
pub(crate) struct Bench<'a> {
    place: &'a Place,
    who: &'static str,
    agent: Agent,
    effort: Effort,
    watch: PodWatch,
}

/// The namespace's Pods as a watch tells of them: name, and whether it is Ready.
struct PodWatch {
    body: Incoming,
    line: Vec<u8>,
    pods: BTreeMap<String, bool>,
}

// === impl Bench ===

impl<'a> Bench<'a> {
    pub(crate) async fn start(
        node: &Node,
        place: &'a Place,
        who: &'static str,
        binary: &Path,
        effort: Effort,
    ) -> Outcome<Bench<'a>> {
        let flags = vec![format!("--kubeconfig={}", place.kubeconfig.display())];
        let mut agent = Agent::start(
            node,
            binary,
            &AgentOptions { config: CONFIG.into(), flags, ..AgentOptions::default() },
        )?;
        agent.wait_until_up(node, Duration::from_secs(60))?;
        let watch = PodWatch::open(&place.client).await?;
        Ok(Bench { place, who, agent, effort, watch })
    }

    pub(crate) async fn run(mut self, turn: usize, rests: bool, figures: &mut Figures) -> Outcome<()> {
        let ran = self.all(turn, rests, figures).await;
        let words = if ran.is_err() { self.agent.last_words() } else { String::new() };
        let stopped = self.agent.stop();
        ran.map_err(|error| format!("{error}\n{words}"))?;
        Ok(stopped?)
    }

    async fn all(&mut self, turn: usize, rests: bool, figures: &mut Figures) -> Outcome<()> {
        // The first Pod warms what is cold.
        self.live(&format!("warm-{turn}")).await?;
        let before = self.place.requests().await?;
        for round in 0..self.effort.rounds {
            let (started, removed) = self.live(&format!("single-{turn}-{round}")).await?;
            figures.starts.push(started);
            figures.removals.push(removed);
        }
        // The last events of the last Pod are on their way.
        tokio::time::sleep(Duration::from_secs(2)).await;
        figures.requests = self.place.requests().await?.per_pod(&before, self.effort.rounds);
        self.tell(turn, &format!("{} Pods came and went", self.effort.rounds));
        self.crowd(turn, rests, figures).await
    }

    /// A run takes minutes: whoever waits for it sees what it is at.
    fn tell(&self, turn: usize, what: &str) {
        eprintln!("{}, turn {} of {}: {what}", self.who, turn + 1, self.effort.turns);
    }

    /// From POST to Ready, and from DELETE to gone.
    async fn live(&mut self, name: &str) -> Outcome<(Duration, Duration)> {
        let begun = Instant::now();
        self.post(name).await?;
        self.watch.wait(|pods| pods.get(name) == Some(&true)).await?;
        let started = begun.elapsed();
        let begun = Instant::now();
        self.delete(name).await?;
        self.watch.wait(|pods| !pods.contains_key(name)).await?;
        Ok((started, begun.elapsed()))
    }

    async fn crowd(&mut self, turn: usize, rests: bool, figures: &mut Figures) -> Outcome<()> {
        let names: Vec<String> = (0..self.effort.crowd).map(|n| format!("crowd-{turn}-{n}")).collect();
        let begun = Instant::now();
        for name in &names {
            self.post(name).await?;
        }
        self.watch.wait(|pods| names.iter().all(|name| pods.get(name) == Some(&true))).await?;
        figures.crowds.push(begun.elapsed());
        self.tell(turn, &format!("{} at once, Ready after {:.1} s", names.len(), seconds(begun)));
        if rests {
            self.rest(figures).await?;
            self.tell(turn, "watched at rest");
        }
        let begun = Instant::now();
        for name in &names {
            self.delete(name).await?;
        }
        self.watch.wait(BTreeMap::is_empty).await?;
        figures.crowd_removals.push(begun.elapsed());
        self.tell(turn, &format!("{} at once, gone after {:.1} s", names.len(), seconds(begun)));
        Ok(())
    }

    async fn rest(&mut self, figures: &mut Figures) -> Outcome<()> {
        tokio::time::sleep(REST.min(self.effort.idle)).await;
        let pid = self.agent.pid();
        let (cpu, begun) = (cpu_time(pid)?, Instant::now());
        tokio::time::sleep(self.effort.idle).await;
        let used = cpu_time(pid)?.saturating_sub(cpu);
        figures.cpu = 100.0 * used.as_secs_f64() / begun.elapsed().as_secs_f64();
        figures.memory = memory(pid, "Pss:")?;
        Ok(())
    }

    async fn post(&self, name: &str) -> Outcome<()> {
        self.place.client.make(&format!("{NAMESPACE}/pods"), &pod(name)).await
    }

    async fn delete(&self, name: &str) -> Outcome<()> {
        let path = format!("{NAMESPACE}/pods/{name}");
        let (status, body) = self.place.client.call(Method::DELETE, &path, Bytes::new()).await?;
        if status.is_success() {
            return Ok(());
        }
        Err(format!("deleting {name}: {status} {}", String::from_utf8_lossy(&body)).into())
    }
}

// === impl PodWatch ===

impl PodWatch {
    async fn open(client: &Client) -> Outcome<PodWatch> {
        let path = format!("{NAMESPACE}/pods?watch=true");
        let answer = client.send(Method::GET, &path, Bytes::new()).await?;
        if !answer.status().is_success() {
            return Err(format!("watching the Pods: {}", answer.status()).into());
        }
        Ok(PodWatch { body: answer.into_body(), line: Vec::new(), pods: BTreeMap::new() })
    }

    async fn wait(&mut self, is_over: impl Fn(&BTreeMap<String, bool>) -> bool) -> Outcome<()> {
        let end = Instant::now() + LIMIT;
        while !is_over(&self.pods) {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(read) = tokio::time::timeout(left, self.read()).await else {
                return Err(format!("in vain: the watch shows {:?}", self.pods).into());
            };
            read?;
        }
        Ok(())
    }

    async fn read(&mut self) -> Outcome<()> {
        let frame = self.body.frame().await.ok_or("the watch ended")??;
        let data = frame.data_ref().ok_or("the watch ended")?;
        for part in data.split_inclusive(|b| *b == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let event: Value = serde_json::from_slice(&self.line)?;
                self.line.clear();
                self.take(&event);
            }
        }
        Ok(())
    }

    fn take(&mut self, event: &Value) {
        let pod = &event["object"];
        let name = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if event["type"] == "DELETED" {
            self.pods.remove(&name);
            return;
        }
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let mut ready = conditions.filter(|c| c["type"] == "Ready");
        self.pods.insert(name, ready.any(|c| c["status"] == "True"));
    }
}

fn seconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64()
}

/// As a user makes it: with the default service account's token.
fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "nodeName": "demo",
            "terminationGracePeriodSeconds": 5,
            "containers": [{
                "name": "main", "image": "localhost/demo:v1", "imagePullPolicy": "Never",
                "args": ["sleep", "forever"],
            }],
        },
    })
}
