//! A Deployment with a Service before it: new templates, another size.

use base::rng::Rng;
use controllers_core::resource::{DEPLOYMENTS, ENDPOINT_SLICES, NODES, PODS, REPLICA_SETS, SERVICES};
use serde_json::{Value, json};

use super::{end_deleted, equal, image, is_deleting, is_observed, is_owned_by, some, start, template};
use crate::cluster::Story;
use crate::server::{Check, Store};

#[derive(Debug)]
pub(crate) struct Rollout {
    replicas: i64,
    surge: i64,
    unavailable: i64,
    version: usize,
}

impl Rollout {
    pub(crate) fn new(rng: &mut Rng) -> Rollout {
        let surge = rng.below(3).cast_signed();
        let unavailable = if surge == 0 { 1 } else { rng.below(2).cast_signed() };
        Rollout { replicas: 1 + rng.below(8).cast_signed(), surge, unavailable, version: 0 }
    }
}

impl Story for Rollout {
    fn queues(&self) -> &'static [&'static str] {
        &["deployment", "replicaset", "endpoint_slice"]
    }

    fn check(&self) -> Check {
        Box::new(check)
    }

    fn begin(&mut self, store: &mut Store) {
        store.create(NODES, json!({"metadata": {"name": "node"}})).unwrap();
        let service = json!({"metadata": {"name": "s"}, "spec": {
            "selector": {"app": "a"}, "clusterIP": "10.0.1.1", "clusterIPs": ["10.0.1.1"], "type": "ClusterIP",
            "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack", "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}]}});
        store.create(SERVICES, service).unwrap();
        let deployment = json!({"metadata": {"name": "d"}, "spec": {
            "replicas": self.replicas, "selector": {"matchLabels": {"app": "a"}}, "revisionHistoryLimit": 2,
            "strategy": {"type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": self.surge, "maxUnavailable": self.unavailable}},
            "template": template(0)}});
        store.create(DEPLOYMENTS, deployment).unwrap();
    }

    fn change(&mut self, store: &mut Store, _: &mut Rng) {
        self.version += 1;
        let version = self.version;
        store.change(DEPLOYMENTS, "d", |object| object["spec"]["template"] = template(version));
    }

    fn live(&self, store: &mut Store, rng: &mut Rng) {
        for name in some(store, rng) {
            let pod = store.get(PODS, &name);
            match (is_deleting(pod), pod["status"]["phase"].is_null()) {
                (true, _) => end_deleted(store, &name),
                (false, true) => start(store, &name, "node"),
                _ => {}
            }
        }
    }

    fn is_as_asked(&self, store: &Store) -> Result<(), String> {
        let wanted = format!("v{}", self.version);
        let pods: Vec<&Value> = store.of(PODS).map(|(_, pod)| pod).collect();
        let right = pods.iter().filter(|pod| image(pod) == wanted).count();
        if (pods.len() as i64, right as i64) != (self.replicas, self.replicas) {
            return Err(format!("{} Pods, {right} of the last template", pods.len()));
        }
        let is_owned = |pod: &&&Value| store.of(REPLICA_SETS).any(|(_, set)| is_owned_by(pod, set));
        if pods.iter().filter(is_owned).count() != pods.len() {
            return Err("an orphan is left".to_owned());
        }
        let deployment = store.get(DEPLOYMENTS, "d");
        for what in ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"] {
            equal(what, &deployment["status"][what], self.replicas)?;
        }
        is_observed(deployment)?;
        let sets = store.of(REPLICA_SETS).count();
        if sets > 3 {
            return Err(format!("{sets} ReplicaSets, two old ones may stay"));
        }
        let mut said: Vec<&str> = store
            .of(ENDPOINT_SLICES)
            .flat_map(|(_, slice)| slice["endpoints"].as_array().into_iter().flatten())
            .filter(|endpoint| endpoint["conditions"]["ready"] == true)
            .filter_map(|endpoint| endpoint["targetRef"]["name"].as_str())
            .collect();
        said.sort_unstable();
        let names: Vec<&str> = store.of(PODS).map(|(name, _)| name.as_str()).collect();
        if said == names { Ok(()) } else { Err(format!("{said:?} stand behind the Service, not {names:?}")) }
    }
}

fn check(store: &Store) -> Vec<String> {
    let Some((_, deployment)) = store.of(DEPLOYMENTS).next() else { return Vec::new() };
    let spec = &deployment["spec"];
    let number = |value: &Value| value.as_i64().unwrap_or(0);
    let rolling = &spec["strategy"]["rollingUpdate"];
    let (replicas, surge) = (number(&spec["replicas"]), number(&rolling["maxSurge"]));
    let asked: i64 = store.of(REPLICA_SETS).map(|(_, set)| number(&set["spec"]["replicas"])).sum();
    let mut broken = Vec::new();
    if asked > replicas + surge {
        broken.push(format!("{asked} Pods are asked for, {replicas} and {surge} more are allowed"));
    }
    for (name, set) in store.of(REPLICA_SETS) {
        let own = store.of(PODS).filter(|(_, pod)| is_owned_by(pod, set));
        let active = own.filter(|(_, pod)| !is_deleting(pod)).count();
        if active as i64 > replicas {
            broken.push(format!("{name} has {active} Pods, and there may be {replicas} in all"));
        }
    }
    let is_up = |pod: &Value| !is_deleting(pod) && pod["status"]["phase"] == "Running";
    let ready = store.of(PODS).filter(|(_, pod)| is_up(pod)).count() as i64;
    let least = replicas - number(&rolling["maxUnavailable"]);
    // From the first time that all were there.
    let was_up = deployment["status"]["availableReplicas"].as_i64().is_some_and(|n| n >= least);
    if was_up && ready < least {
        broken.push(format!("{ready} Pods are available, {least} are promised"));
    }
    broken
}
