//! What is done to a control plane, and how long it takes.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use testkit::api::{Client, Outcome};

use crate::side::Side;
use crate::{BEHIND, REPLICAS};

/// Kinds of Pods that upstream measures itself with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Basic,
    AntiAffinity,
    Spread,
}

pub(crate) const CLASSES: [Class; 3] = [Class::Basic, Class::AntiAffinity, Class::Spread];

/// Nothing may take longer.
const TIMEOUT: Duration = Duration::from_mins(15);
const AT_ONCE: usize = 32;

/// Lines of a watch.
struct Watch {
    body: hyper::body::Incoming,
    rest: Vec<u8>,
}

// === impl Watch ===

impl Watch {
    async fn open(client: &Client, path: &str) -> Outcome<Watch> {
        let answer = client.send(Method::GET, path, Bytes::new()).await?;
        if !answer.status().is_success() {
            return Err(format!("watching {path}: {}", answer.status()).into());
        }
        Ok(Watch { body: answer.into_body(), rest: Vec::new() })
    }

    /// Events that came together; waits for some.
    async fn next(&mut self) -> Outcome<Vec<Value>> {
        loop {
            let frame = self.body.frame().await.ok_or("a watch ended early")??;
            self.rest.extend_from_slice(frame.data_ref().ok_or("a watch ended early")?);
            let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else { continue };
            let lines: Vec<u8> = self.rest.drain(..=end).collect();
            let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            return Ok(lines.map(serde_json::from_slice).collect::<Result<Vec<Value>, _>>()?);
        }
    }
}

/// Many requests, some at once; each must succeed.
async fn all(side: &Side, requests: Vec<(Method, String, Value)>) -> Outcome<()> {
    let requests = Rc::new(RefCell::new(requests.into_iter()));
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let client = side.client().await?;
        for _ in 0..AT_ONCE / 4 {
            let (client, requests) = (client.clone(), requests.clone());
            tasks.push(tokio::task::spawn_local(async move {
                loop {
                    let Some((method, path, body)) = requests.borrow_mut().next() else {
                        return Outcome::Ok(());
                    };
                    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
                    let (status, answer) = client.call(method, &path, body).await?;
                    if !status.is_success() {
                        return Err(format!("{path}: {status} {}", String::from_utf8_lossy(&answer)).into());
                    }
                }
            }));
        }
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}

fn post(path: &str, body: Value) -> (Method, String, Value) {
    (Method::POST, path.to_owned(), body)
}

/// Nodes in ten zones; waits until the controllers have taken their first taint away.
pub(crate) async fn nodes(side: &Side, numbers: Range<usize>) -> Outcome<()> {
    let last = numbers.end;
    let time = "2026-01-01T00:00:00Z";
    let node = |number: usize| {
        let capacity = json!({"cpu": "64", "memory": "256Gi", "pods": "500"});
        json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": format!("node-{number}"), "labels": {
                "kubernetes.io/hostname": format!("node-{number}"),
                "topology.kubernetes.io/zone": format!("zone-{}", number % 10)}},
            "status": {"capacity": capacity, "allocatable": capacity, "conditions": [
                {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
                 "lastHeartbeatTime": time, "lastTransitionTime": time}]}})
    };
    all(side, numbers.map(|number| post("/api/v1/nodes", node(number))).collect()).await?;
    let client = side.client().await?;
    let until = Instant::now() + TIMEOUT;
    loop {
        let (_, list) = client.call(Method::GET, "/api/v1/nodes", Bytes::new()).await?;
        let list: Value = serde_json::from_slice(&list)?;
        let ready =
            list["items"].as_array().into_iter().flatten().filter(|node| node["spec"]["taints"].is_null());
        if ready.count() == last {
            return Ok(());
        }
        if Instant::now() > until {
            return Err("Nodes keep their taint".into());
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn namespace(side: &Side, name: &str) -> Outcome<()> {
    let client = side.client().await?;
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    client.make("/api/v1/namespaces", &object).await?;
    // Pods are refused until the account is there.
    let account = format!("/api/v1/namespaces/{name}/serviceaccounts/default");
    let until = Instant::now() + TIMEOUT;
    while !client.call(Method::GET, &account, Bytes::new()).await?.0.is_success() {
        if Instant::now() > until {
            return Err(format!("{name} has no ServiceAccount").into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

async fn clear(side: &Side, namespace: &str) -> Outcome<()> {
    let client = side.client().await?;
    for what in ["apis/apps/v1/namespaces/NS/deployments", "api/v1/namespaces/NS/pods"] {
        let path =
            format!("/{}?gracePeriodSeconds=0&propagationPolicy=Background", what.replace("NS", namespace));
        client.call(Method::DELETE, &path, Bytes::new()).await?;
    }
    let pods = format!("/api/v1/namespaces/{namespace}/pods?limit=1");
    let until = Instant::now() + TIMEOUT;
    loop {
        let (_, list) = client.call(Method::GET, &pods, Bytes::new()).await?;
        let list: Value = serde_json::from_slice(&list)?;
        if list["items"].as_array().is_none_or(Vec::is_empty) {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(format!("Pods of {namespace} do not go").into());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Until so many Pods of a namespace have a Node. `begin` is done once the watch stands.
async fn until_bound(
    side: &Side,
    namespace: &str,
    count: usize,
    begin: impl AsyncFnOnce() -> Outcome<()>,
) -> Outcome<Duration> {
    let client = side.client().await?;
    let mut watch = Watch::open(&client, &format!("/api/v1/namespaces/{namespace}/pods?watch=true")).await?;
    let begun = Instant::now();
    begin().await?;
    let mut bound: HashSet<String> = HashSet::new();
    let all = async {
        while bound.len() < count {
            for event in watch.next().await? {
                let pod = &event["object"];
                if pod["spec"]["nodeName"].is_string() {
                    bound.extend(pod["metadata"]["name"].as_str().map(str::to_owned));
                }
            }
        }
        Outcome::Ok(())
    };
    match tokio::time::timeout(TIMEOUT, all).await {
        Ok(done) => done.map(|()| begun.elapsed()),
        Err(_) => Err(format!("{} of {count} Pods of {namespace} are bound", bound.len()).into()),
    }
}

/// From the request to the last Pod bound.
pub(crate) async fn deployment(side: &Side, round: usize) -> Outcome<Duration> {
    let namespace_name = format!("deployment-{round}");
    namespace(side, &namespace_name).await?;
    let client = side.client().await?;
    let path = format!("/apis/apps/v1/namespaces/{namespace_name}/deployments");
    let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
        "replicas": REPLICAS, "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": spec()}}});
    let taken =
        until_bound(side, &namespace_name, REPLICAS, async || client.make(&path, &object).await).await?;
    clear(side, &namespace_name).await?;
    Ok(taken)
}

fn spec() -> Value {
    json!({"containers": [{"name": "c", "image": "example.com/web:1",
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}}]})
}

/// Pods a second, from the moment the scheduler may begin.
pub(crate) async fn schedule(side: &Side, class: Class, count: usize, round: usize) -> Outcome<f64> {
    let name = format!("{class:?}-{round}").to_lowercase();
    namespace(side, &name).await?;
    side.hold_scheduler()?;
    let path = format!("/api/v1/namespaces/{name}/pods");
    let pod = |number: usize| {
        let mut spec = spec();
        let selector = json!({"matchLabels": {"app": name}});
        match class {
            Class::Basic => {}
            Class::AntiAffinity => {
                spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] =
                    json!([{"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}]);
            }
            Class::Spread => {
                spec["topologySpreadConstraints"] = json!([{"maxSkew": 5, "labelSelector": selector,
                    "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}]);
            }
        }
        json!({"apiVersion": "v1", "kind": "Pod", "spec": spec,
            "metadata": {"name": format!("p{number}"), "labels": {"app": name}}})
    };
    let made = all(side, (0..count).map(|number| post(&path, pod(number))).collect()).await;
    let taken = until_bound(side, &name, count, async || side.let_scheduler_go()).await;
    made?;
    clear(side, &name).await?;
    Ok(count as f64 / taken?.as_secs_f64())
}

/// From the moment a Pod says that it is ready to the EndpointSlice that says so, for one Pod of each Service; sorted.
pub(crate) async fn services(side: &Side, count: usize) -> Outcome<Vec<Duration>> {
    let ns = "services";
    namespace(side, ns).await?;
    let (pods, path) = (format!("/api/v1/namespaces/{ns}/pods"), format!("/api/v1/namespaces/{ns}/services"));
    let service = |number: usize| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("s{number}")}, "spec": {
            "selector": {"app": format!("s{number}")}, "ports": [{"port": 80}]}})
    };
    all(side, (0..count).map(|number| post(&path, service(number))).collect()).await?;
    let name = |number: usize, pod: usize| format!("s{number}-{pod}");
    let pod = |number: usize, pod: usize| {
        let mut spec = spec();
        spec["nodeName"] = json!(format!("node-{}", (number * BEHIND + pod) % 100));
        json!({"apiVersion": "v1", "kind": "Pod", "spec": spec,
            "metadata": {"name": name(number, pod), "labels": {"app": format!("s{number}")}}})
    };
    let each = |number: usize| (0..BEHIND).map(move |pod| (number, pod));
    let every = || (0..count).flat_map(each);
    all(side, every().map(|(number, one)| post(&pods, pod(number, one))).collect()).await?;
    let ready = |number: usize, pod: usize| {
        let index = number * BEHIND + pod;
        let address = format!("10.{}.{}.{}", 128 + index / 62_500, index / 250 % 250, 1 + index % 250);
        let status = json!({"phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}]});
        let path = format!("{pods}/{}/status", name(number, pod));
        let body = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name(number, pod)},
            "spec": spec(), "status": status});
        (path, body)
    };
    let client = side.client().await?;
    // All but the first of each Service, before anything is measured.
    for (number, one) in every().filter(|(_, one)| *one > 0) {
        set_status(&client, &ready(number, one)).await?;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let slices = format!("/apis/discovery.k8s.io/v1/namespaces/{ns}/endpointslices?watch=true");
    let mut watch = Watch::open(&client, &slices).await?;
    let sent: Rc<RefCell<HashMap<String, Instant>>> = Rc::default();
    let mut taken: HashMap<String, Duration> = HashMap::new();
    let send = async {
        for number in 0..count {
            sent.borrow_mut().insert(name(number, 0), Instant::now());
            set_status(&client, &ready(number, 0)).await?;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Outcome::Ok(())
    };
    let see = async {
        while taken.len() < count {
            for event in watch.next().await? {
                let endpoints = event["object"]["endpoints"].as_array().into_iter().flatten();
                for endpoint in endpoints.filter(|one| one["conditions"]["ready"] == true) {
                    let pod = endpoint["targetRef"]["name"].as_str().unwrap_or_default();
                    if let Some(at) = sent.borrow().get(pod) {
                        taken.entry(pod.to_owned()).or_insert_with(|| at.elapsed());
                    }
                }
            }
        }
        Outcome::Ok(())
    };
    let both = async { tokio::try_join!(send, see) };
    tokio::time::timeout(TIMEOUT, both).await.map_err(|_| "EndpointSlices are not written")??;
    let mut taken: Vec<Duration> = taken.into_values().collect();
    taken.sort_unstable();
    Ok(taken)
}

async fn set_status(client: &Client, (path, body): &(String, Value)) -> Outcome<()> {
    let (status, answer) = client.call(Method::PUT, path, body.to_string().into()).await?;
    match status.is_success() {
        true => Ok(()),
        false => Err(format!("{path}: {status} {}", String::from_utf8_lossy(&answer)).into()),
    }
}
