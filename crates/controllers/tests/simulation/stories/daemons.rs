//! A DaemonSet on Nodes that come and go, with new templates.

use base::rng::Rng;
use controllers_core::resource::{CONTROLLER_REVISIONS, DAEMON_SETS, NODES, PODS};
use serde_json::{Value, json};

use super::{end_deleted, equal, image, is_deleting, is_observed, is_ready, some, start, template};
use crate::cluster::Story;
use crate::server::{Check, Store};

#[derive(Debug)]
pub(crate) struct Daemons {
    surges: bool,
    most: i64,
    version: usize,
    nodes: u64,
}

impl Daemons {
    pub(crate) fn new(rng: &mut Rng) -> Daemons {
        Daemons {
            surges: rng.chance(0.3),
            most: 1 + rng.below(2).cast_signed(),
            version: 0,
            nodes: 2 + rng.below(4),
        }
    }
}

impl Story for Daemons {
    fn queues(&self) -> &'static [&'static str] {
        &["daemonset"]
    }

    fn check(&self) -> Check {
        let surges = self.surges;
        Box::new(move |store| check(store, surges))
    }

    fn begin(&mut self, store: &mut Store) {
        (0..self.nodes).for_each(|number| add_node(store, number));
        let (surge, unavailable) = if self.surges { (self.most, 0) } else { (0, self.most) };
        let set = json!({"metadata": {"name": "d"}, "spec": {
            "selector": {"matchLabels": {"app": "a"}}, "template": template(0), "revisionHistoryLimit": 2,
            "updateStrategy": {"type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}}});
        store.create(DAEMON_SETS, set).unwrap();
    }

    fn change(&mut self, store: &mut Store, rng: &mut Rng) {
        match rng.below(3) {
            0 => {
                add_node(store, self.nodes);
                self.nodes += 1;
            }
            1 => {
                let node = format!("node{}", rng.below(self.nodes));
                let taint = json!([{"key": "out", "effect": "NoExecute"}]);
                let is_out = store.get(NODES, &node)["spec"]["taints"].is_array();
                store.change(NODES, &node, |node| {
                    node["spec"]["taints"] = if is_out { Value::Null } else { taint };
                });
            }
            _ => {
                self.version += 1;
                let version = self.version;
                store.change(DAEMON_SETS, "d", |set| set["spec"]["template"] = template(version));
            }
        }
    }

    fn live(&self, store: &mut Store, rng: &mut Rng) {
        for name in some(store, rng) {
            let pod = store.get(PODS, &name);
            let node = node_of(pod);
            match (is_deleting(pod), pod["status"]["phase"].is_null()) {
                (true, _) => end_deleted(store, &name),
                (false, true) => start(store, &name, &node),
                _ => {}
            }
        }
    }

    fn is_as_asked(&self, store: &Store) -> Result<(), String> {
        let mut wanted: Vec<String> = store
            .of(NODES)
            .filter(|(_, node)| !node["spec"]["taints"].is_array())
            .map(|(name, _)| name.clone())
            .collect();
        let mut found: Vec<String> = store.of(PODS).map(|(_, pod)| node_of(pod)).collect();
        found.sort();
        wanted.sort();
        if found != wanted {
            return Err(format!("Pods on {found:?}, not on {wanted:?}"));
        }
        let version = format!("v{}", self.version);
        if let Some((name, pod)) = store.of(PODS).find(|(_, pod)| image(pod) != version || !is_ready(pod)) {
            return Err(format!("{name} is {}, not {version} and ready", image(pod)));
        }
        let set = store.get(DAEMON_SETS, "d");
        let fields = [
            "desiredNumberScheduled",
            "currentNumberScheduled",
            "numberReady",
            "numberAvailable",
            "updatedNumberScheduled",
        ];
        for what in fields {
            equal(what, &set["status"][what], wanted.len() as i64)?;
        }
        equal("numberMisscheduled", &set["status"]["numberMisscheduled"], 0)?;
        is_observed(set)?;
        let revisions = store.of(CONTROLLER_REVISIONS).count();
        if revisions > 3 { Err(format!("{revisions} revisions, two old ones may stay")) } else { Ok(()) }
    }
}

fn add_node(store: &mut Store, number: u64) {
    let node = json!({"metadata": {"name": format!("node{number}"), "labels": {}}, "spec": {},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    store.create(NODES, node).unwrap();
}

/// Where it runs, or where it is to run.
fn node_of(pod: &Value) -> String {
    let terms =
        "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0";
    let pinned = pod.pointer(terms).map(|term| term["matchFields"][0]["values"][0].clone());
    pinned.and_then(|node| node.as_str().map(str::to_owned)).unwrap_or_default()
}

fn check(store: &Store, surges: bool) -> Vec<String> {
    let mut broken = Vec::new();
    for (node, _) in store.of(NODES) {
        let on =
            |pod: &&Value| node_of(pod) == *node && !is_deleting(pod) && pod["status"]["phase"] != "Failed";
        let count = store.of(PODS).map(|(_, pod)| pod).filter(on).count();
        if count > 1 + usize::from(surges) {
            broken.push(format!("{count} Pods for {node}"));
        }
    }
    broken
}
