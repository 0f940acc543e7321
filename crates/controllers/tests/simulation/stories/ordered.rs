//! A StatefulSet whose Pods have volumes: new templates, another size; volumes that somebody else wants too.

use std::collections::BTreeSet;

use base::rng::Rng;
use controllers_core::resource::{
    CONTROLLER_REVISIONS, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS, STATEFUL_SETS,
};
use serde_json::{Value, json};

use super::{end_deleted, equal, image, is_deleting, is_observed, is_ready, some, start, template};
use crate::cluster::Story;
use crate::server::{Check, Store};

#[derive(Debug)]
pub(crate) struct Ordered {
    replicas: i64,
    is_parallel: bool,
    version: usize,
    /// Claims of nobody's Pods.
    claims: usize,
}

impl Ordered {
    pub(crate) fn new(rng: &mut Rng) -> Ordered {
        Ordered {
            replicas: 1 + rng.below(5).cast_signed(),
            is_parallel: rng.chance(0.3),
            version: 0,
            claims: 0,
        }
    }
}

impl Story for Ordered {
    fn queues(&self) -> &'static [&'static str] {
        &["statefulset", "claims", "volumes", "pvcprotection", "pvprotection"]
    }

    fn check(&self) -> Check {
        let is_parallel = self.is_parallel;
        Box::new(move |store| check(store, is_parallel))
    }

    fn begin(&mut self, store: &mut Store) {
        let claim = json!({"metadata": {"name": "data"}, "spec": claim_spec()});
        let set = json!({"metadata": {"name": "w"}, "spec": {
            "replicas": self.replicas, "serviceName": "w", "selector": {"matchLabels": {"app": "a"}},
            "podManagementPolicy": if self.is_parallel { "Parallel" } else { "OrderedReady" },
            "revisionHistoryLimit": 2, "volumeClaimTemplates": [claim], "template": template(0),
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}}});
        store.create(STATEFUL_SETS, set).unwrap();
        // Enough for every claim there will ever be; half of them are there from the start.
        (0..6).for_each(|number| add_volume(store, number));
    }

    fn change(&mut self, store: &mut Store, rng: &mut Rng) {
        match rng.below(4) {
            0 => {
                self.replicas = 1 + rng.below(5).cast_signed();
                let replicas = self.replicas;
                store.change(STATEFUL_SETS, "w", |set| set["spec"]["replicas"] = json!(replicas));
            }
            1 => {
                self.claims += 1;
                let claim = json!({"metadata": {"name": format!("other-{}", self.claims)},
                    "spec": claim_spec(), "status": {"phase": "Pending"}});
                store.create(PERSISTENT_VOLUME_CLAIMS, claim).unwrap();
                add_volume(store, 10 + self.claims);
            }
            2 if self.claims > 0 => {
                let name = format!("other-{}", 1 + rng.below(self.claims as u64));
                store.begin_delete(PERSISTENT_VOLUME_CLAIMS, &name);
            }
            _ => {
                self.version += 1;
                let version = self.version;
                store.change(STATEFUL_SETS, "w", |set| set["spec"]["template"] = template(version));
            }
        }
    }

    fn live(&self, store: &mut Store, rng: &mut Rng) {
        for name in some(store, rng) {
            let pod = store.get(PODS, &name);
            let claim = store.get(PERSISTENT_VOLUME_CLAIMS, &format!("data-{name}"));
            let is_bound = claim["status"]["phase"] == "Bound";
            match (is_deleting(pod), pod["status"]["phase"].is_null()) {
                (true, _) => end_deleted(store, &name),
                (false, true) if is_bound => start(store, &name, "node"),
                _ => {}
            }
        }
    }

    fn is_as_asked(&self, store: &Store) -> Result<(), String> {
        let wanted: Vec<String> = (0..self.replicas).map(|ordinal| format!("w-{ordinal}")).collect();
        if store.names(PODS) != wanted {
            return Err(format!("{:?} are there", store.names(PODS)));
        }
        let version = format!("v{}", self.version);
        if let Some((name, pod)) = store.of(PODS).find(|(_, pod)| image(pod) != version || !is_ready(pod)) {
            return Err(format!("{name} is {}, not {version} and ready", image(pod)));
        }
        let set = store.get(STATEFUL_SETS, "w");
        for what in ["replicas", "readyReplicas", "availableReplicas", "currentReplicas", "updatedReplicas"] {
            equal(what, &set["status"][what], self.replicas)?;
        }
        if set["status"]["currentRevision"] != set["status"]["updateRevision"] {
            return Err("the rollout is not over".to_owned());
        }
        is_observed(set)?;
        let revisions = store.of(CONTROLLER_REVISIONS).count();
        if revisions > 3 {
            return Err(format!("{revisions} revisions, two old ones may stay"));
        }
        storage(store)
    }
}

fn claim_spec() -> Value {
    json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}})
}

fn add_volume(store: &mut Store, number: usize) {
    let volume = json!({"metadata": {"name": format!("v{number:02}")}, "status": {"phase": "Pending"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"},
        "persistentVolumeReclaimPolicy": "Retain"}});
    store.create(PERSISTENT_VOLUMES, volume).unwrap();
}

/// Every claim and its volume point at each other, and whatever points at nobody says so.
fn storage(store: &Store) -> Result<(), String> {
    for (name, claim) in store.of(PERSISTENT_VOLUME_CLAIMS) {
        let volume = store.get(PERSISTENT_VOLUMES, claim["spec"]["volumeName"].as_str().unwrap_or_default());
        if claim["status"]["phase"] != "Bound" || volume["status"]["phase"] != "Bound" {
            return Err(format!("{name} is {}", claim["status"]["phase"]));
        }
        if is_deleting(claim) {
            return Err(format!("{name} does not go"));
        }
        if volume["spec"]["claimRef"]["uid"] != claim["metadata"]["uid"] {
            return Err(format!("the volume of {name} is meant for another"));
        }
    }
    for (name, volume) in store.of(PERSISTENT_VOLUMES) {
        let meant = &volume["spec"]["claimRef"];
        let claim = store.get(PERSISTENT_VOLUME_CLAIMS, meant["name"].as_str().unwrap_or_default());
        let want = match (meant.is_null(), claim["metadata"]["uid"] == meant["uid"]) {
            (true, _) => "Available",
            (false, true) => "Bound",
            (false, false) => "Released",
        };
        if volume["status"]["phase"] != want {
            return Err(format!("{name} is {}, not {want}", volume["status"]["phase"]));
        }
    }
    Ok(())
}

fn check(store: &Store, is_parallel: bool) -> Vec<String> {
    let mut broken = Vec::new();
    let mut taken = BTreeSet::new();
    for (name, claim) in store.of(PERSISTENT_VOLUME_CLAIMS) {
        let volume = claim["spec"]["volumeName"].as_str().unwrap_or_default();
        if !volume.is_empty() && !taken.insert(volume.to_owned()) {
            broken.push(format!("{volume} belongs to {name} and to another claim"));
        }
        if claim["status"]["phase"] == "Lost" {
            broken.push(format!("{name} has lost its volume"));
        }
    }
    for (name, volume) in store.of(PERSISTENT_VOLUMES) {
        let meant = &volume["spec"]["claimRef"];
        let claim = store.get(PERSISTENT_VOLUME_CLAIMS, meant["name"].as_str().unwrap_or_default());
        let is_alive = claim["metadata"]["uid"] == meant["uid"] && !meant.is_null();
        if is_alive && volume["status"]["phase"] == "Released" {
            broken.push(format!("{name} is released under its claim"));
        }
    }
    let unready: Vec<&String> =
        store.of(PODS).filter(|(_, pod)| !is_ready(pod) || is_deleting(pod)).map(|(name, _)| name).collect();
    if !is_parallel && unready.len() > 1 {
        broken.push(format!("{unready:?} are not ready at once"));
    }
    broken
}
