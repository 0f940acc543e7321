//! What binding asks of claims and volumes.

use std::collections::HashMap;
use std::sync::Arc;

use base::quantity::Quantity;
use serde_json::{Value, json};

use crate::object::Object;
use crate::volume::set;

pub(super) const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub(super) const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
pub(super) const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
pub(super) const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
pub(super) const BETA_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";
const DEFAULT_CLASS: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];

/// Provisioners that were part of Kubernetes once, and the CSI drivers that have taken their place.
const MIGRATED: &[(&str, &str)] = &[
    ("kubernetes.io/aws-ebs", "ebs.csi.aws.com"),
    ("kubernetes.io/azure-disk", "disk.csi.azure.com"),
    ("kubernetes.io/azure-file", "file.csi.azure.com"),
    ("kubernetes.io/cinder", "cinder.csi.openstack.org"),
    ("kubernetes.io/gce-pd", "pd.csi.storage.gke.io"),
    ("kubernetes.io/portworx-volume", "pxd.portworx.com"),
    ("kubernetes.io/vsphere-volume", "csi.vsphere.vmware.com"),
];

/// A claim or a volume, to be looked at and changed.
#[derive(Clone, Debug)]
pub(super) struct Doc {
    pub(super) object: Arc<Object>,
    pub(super) value: Value,
}

/// What a volume offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) capacity: Quantity,
    pub(super) modes: Vec<String>,
    pub(super) class: String,
    pub(super) attributes_class: String,
    pub(super) is_block: bool,
    pub(super) is_available: bool,
    pub(super) claim: Option<ClaimRef>,
}

/// Whom a volume is meant for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClaimRef {
    pub(super) namespace: String,
    pub(super) name: String,
    /// Empty: whoever has the name.
    pub(super) uid: String,
}

/// Offers of volumes, read once for each revision of them.
#[derive(Debug, Default)]
pub(super) struct Offers(HashMap<Box<str>, (u64, Arc<Offer>)>);

// === impl Doc ===

impl Doc {
    pub(super) fn new(object: Arc<Object>) -> Doc {
        let value = object.value();
        Doc { object, value }
    }

    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        self.value["metadata"]["annotations"][key].as_str()
    }

    pub(super) fn phase(&self) -> &str {
        self.value["status"]["phase"].as_str().unwrap_or_default()
    }

    /// The class by the annotation of former times, or by its field. Empty: none.
    pub(super) fn class(&self) -> &str {
        let said = self.annotation(BETA_CLASS).or_else(|| self.value["spec"]["storageClassName"].as_str());
        said.unwrap_or_default()
    }

    /// Somebody said which class, be it none.
    pub(super) fn says_class(&self) -> bool {
        self.annotation(BETA_CLASS).is_some() || self.value["spec"]["storageClassName"].is_string()
    }

    pub(super) fn volume_name(&self) -> &str {
        self.value["spec"]["volumeName"].as_str().unwrap_or_default()
    }

    pub(super) fn request(&self) -> Quantity {
        quantity(&self.value["spec"]["resources"]["requests"]["storage"]).unwrap_or(Quantity::ZERO)
    }

    pub(super) fn modes(&self) -> Vec<&str> {
        let modes = self.value["spec"]["accessModes"].as_array().into_iter().flatten();
        modes.filter_map(Value::as_str).collect()
    }

    pub(super) fn attributes_class(&self) -> &str {
        self.value["spec"]["volumeAttributesClassName"].as_str().unwrap_or_default()
    }

    pub(super) fn is_block(&self) -> bool {
        self.value["spec"]["volumeMode"] == "Block"
    }

    pub(super) fn claim_ref(&self) -> Option<ClaimRef> {
        claim_ref(&self.value["spec"]["claimRef"])
    }

    /// `namespace/name`, or the name.
    pub(super) fn name(&self) -> String {
        match &*self.object.meta.namespace {
            "" => self.object.meta.name.to_string(),
            namespace => format!("{namespace}/{}", self.object.meta.name),
        }
    }
}

// === impl Offer ===

impl Offer {
    pub(super) fn of(volume: &Doc) -> Offer {
        Offer {
            capacity: quantity(&volume.value["spec"]["capacity"]["storage"]).unwrap_or(Quantity::ZERO),
            modes: volume.modes().into_iter().map(str::to_owned).collect(),
            class: volume.class().to_owned(),
            attributes_class: volume.attributes_class().to_owned(),
            is_block: volume.is_block(),
            is_available: volume.phase() == "Available",
            claim: volume.claim_ref(),
        }
    }

    pub(super) fn has_modes(&self, wanted: &[&str]) -> bool {
        wanted.iter().all(|mode| self.modes.iter().any(|known| known == mode))
    }
}

// === impl ClaimRef ===

impl ClaimRef {
    pub(super) fn is(&self, claim: &Object) -> bool {
        let meta = &claim.meta;
        self.name == *meta.name
            && self.namespace == *meta.namespace
            && (self.uid.is_empty() || self.uid == *meta.uid)
    }
}

// === impl Offers ===

impl Offers {
    pub(super) fn of(&mut self, volume: &Arc<Object>) -> Arc<Offer> {
        let version = volume.meta.resource_version;
        match self.0.get(&volume.meta.name) {
            Some((known, offer)) if *known == version => offer.clone(),
            _ => {
                let offer = Arc::new(Offer::of(&Doc::new(volume.clone())));
                self.0.insert(volume.meta.name.clone(), (version, offer.clone()));
                offer
            }
        }
    }

    pub(super) fn forget(&mut self, volume: &str) {
        self.0.remove(volume);
    }
}

pub(super) fn claim_ref(value: &Value) -> Option<ClaimRef> {
    let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
    value.is_object().then(|| ClaimRef { namespace: text("namespace"), name: text("name"), uid: text("uid") })
}

pub(super) fn quantity(value: &Value) -> Option<Quantity> {
    serde_json::from_value(value.clone()).ok()
}

pub(super) fn annotate(value: &mut Value, key: &str, text: &str) {
    set(value, &["metadata", "annotations", key], json!(text));
}

pub(super) fn is_default(class: &Value) -> bool {
    DEFAULT_CLASS.iter().any(|key| class["metadata"]["annotations"][key] == "true")
}

/// The CSI driver in place of a provisioner of former times.
pub(in crate::volume) fn migrated(provisioner: &str) -> Option<&'static str> {
    MIGRATED.iter().find(|(old, _)| *old == provisioner).map(|(_, driver)| *driver)
}

/// What `migrated-to` has to say, if it says something else.
pub(super) fn wrong_migration(doc: &Doc, provisioner: Option<&str>) -> Option<Option<&'static str>> {
    let wanted = migrated(provisioner?);
    let said = doc.annotation(MIGRATED_TO).unwrap_or_default();
    (said != wanted.unwrap_or_default()).then_some(wanted)
}
