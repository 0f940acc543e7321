//! How many volumes Pods shall have, and have: `volume_manager_total_volumes`.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use base::ids::PodUid;
use kubelet_core::volumes::csi::PLUGIN as CSI;
use kubelet_core::volumes::{FilesKind, Source};

use super::ready::{Ask, Outcome};
use crate::metrics::Metrics;

const DESIRED: &str = "desired_state_of_world";
const ACTUAL: &str = "actual_state_of_world";

/// The volumes of every Pod, by who makes them.
#[derive(Default)]
pub(super) struct Census {
    /// None where nobody looks.
    metrics: Option<Arc<Metrics>>,
    pods: Mutex<HashMap<PodUid, Volumes>>,
}

#[derive(Default)]
struct Volumes {
    desired: Vec<String>,
    actual: Vec<String>,
}

// === impl Census ===

impl Census {
    pub(super) fn new(metrics: Arc<Metrics>) -> Census {
        Census { metrics: Some(metrics), pods: Mutex::default() }
    }

    pub(super) fn desire(&self, uid: &PodUid, asks: &[Ask]) {
        let volume = |ask: &Ask| match ask.shall.as_ref().ok().or(ask.was.as_ref()) {
            Some(volume) => plugin(&volume.source),
            None => "N/A".to_owned(),
        };
        let desired = asks.iter().map(volume).collect();
        self.change(|pods| is_new(&mut pods.entry(uid.clone()).or_default().desired, desired));
    }

    pub(super) fn have(&self, uid: &PodUid, made: &[Outcome]) {
        let actual = made.iter().flatten().map(|ready| plugin(&ready.volume.source)).collect();
        self.change(|pods| is_new(&mut pods.entry(uid.clone()).or_default().actual, actual));
    }

    pub(super) fn forget(&self, uid: &PodUid) {
        self.change(|pods| pods.remove(uid).is_some());
    }

    /// Counts anew if the change was one: every Pod comes by at every sync, and mostly has what it had.
    fn change(&self, change: impl FnOnce(&mut HashMap<PodUid, Volumes>) -> bool) {
        let Some(metrics) = &self.metrics else { return };
        let mut pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner);
        if !change(&mut pods) {
            return;
        }
        let mut totals: BTreeMap<[&str; 2], f64> = BTreeMap::new();
        for volumes in pods.values() {
            for (state, all) in [(DESIRED, &volumes.desired), (ACTUAL, &volumes.actual)] {
                all.iter().for_each(|plugin| *totals.entry([plugin, state]).or_default() += 1.0);
            }
        }
        let gauge = &metrics.volume_manager_total_volumes;
        gauge.retain(|labels| totals.contains_key(&labels));
        totals.iter().for_each(|(labels, total)| gauge.set(*labels, *total));
    }
}

fn is_new(known: &mut Vec<String>, now: Vec<String>) -> bool {
    let is_new = *known != now;
    *known = now;
    is_new
}

/// What upstream calls the part of it that makes such volumes.
fn plugin(source: &Source) -> String {
    let name = match source {
        Source::Csi(volume) => return format!("{CSI}:{}", volume.driver),
        Source::EmptyDir(_) => "empty-dir",
        Source::HostPath { .. } => "host-path",
        Source::Files { kind: FilesKind::ConfigMap, .. } => "configmap",
        Source::Files { kind: FilesKind::DownwardApi, .. } => "downward-api",
        Source::Files { kind: FilesKind::Projected, .. } => "projected",
        Source::Files { kind: FilesKind::Secret, .. } => "secret",
        Source::Local { .. } | Source::Device { .. } => "local-volume",
        Source::Nfs { .. } => "nfs",
        Source::Image { .. } => "image",
    };
    format!("kubernetes.io/{name}")
}
