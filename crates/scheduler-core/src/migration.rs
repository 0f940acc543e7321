//! Volumes of old in-tree kinds whose work CSI drivers do now: which driver, and what it calls the volume.

use k8s_openapi::api::core::v1 as core;

use crate::Name;

/// A driver and its name of a volume.
pub type Handle = (Name, Name);

const AWS: &str = "ebs.csi.aws.com";
const AZURE_DISK: &str = "disk.csi.azure.com";
const CINDER: &str = "cinder.csi.openstack.org";
const GCE: &str = "pd.csi.storage.gke.io";
const PORTWORX: &str = "pxd.portworx.com";
const ZONES: [&str; 2] = ["failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"];

/// Who makes the volumes of a class, as a volume that is made will say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provisioner<'a> {
    Driver(&'a str),
    /// Of an old kind that is not counted per node.
    Uncounted,
}

fn handle(driver: &str, volume: &str) -> Option<Handle> {
    Some((driver.into(), volume.into()))
}

/// The driver behind a class's provisioner.
#[must_use]
pub fn of_provisioner(name: &str) -> Provisioner<'_> {
    match name {
        "kubernetes.io/aws-ebs" => Provisioner::Driver(AWS),
        "kubernetes.io/azure-disk" => Provisioner::Driver(AZURE_DISK),
        "kubernetes.io/cinder" => Provisioner::Driver(CINDER),
        "kubernetes.io/gce-pd" => Provisioner::Driver(GCE),
        "kubernetes.io/portworx-volume" => Provisioner::Driver(PORTWORX),
        "kubernetes.io/azure-file" | "kubernetes.io/vsphere-volume" => Provisioner::Uncounted,
        other => Provisioner::Driver(other),
    }
}

/// A volume that a Pod describes itself. Disks of which other rules want to know more are kept apart: see
/// [`of_gce_disk`] and [`of_aws_disk`].
#[must_use]
pub fn of_inline(volume: &core::Volume) -> Option<Handle> {
    if let Some(azure) = &volume.azure_disk {
        return handle(AZURE_DISK, &azure.disk_uri);
    }
    if let Some(cinder) = &volume.cinder {
        return handle(CINDER, &cinder.volume_id);
    }
    handle(PORTWORX, &volume.portworx_volume.as_ref()?.volume_id)
}

/// A disk that a Pod names: its zone is not known.
#[must_use]
pub fn of_gce_disk(disk: &str) -> Option<Handle> {
    handle(GCE, &format!("projects/UNSPECIFIED/zones/UNSPECIFIED/disks/{disk}"))
}

/// The id may be written as an address: `aws://zone/vol-1`. None for one that is neither.
#[must_use]
pub fn of_aws_disk(id: &str) -> Option<Handle> {
    let Some(address) = id.strip_prefix("aws://") else { return handle(AWS, id) };
    let (_, path) = address.split_once('/')?;
    let name = path.trim_matches('/');
    (name.starts_with("vol-") && !name.contains('/')).then(|| handle(AWS, name)).flatten()
}

/// A PersistentVolume.
#[must_use]
pub fn of_persistent(volume: &core::PersistentVolume) -> Option<Handle> {
    let spec = volume.spec.as_ref()?;
    if let Some(gce) = &spec.gce_persistent_disk {
        let labels = volume.metadata.labels.as_ref();
        let find = |key: &&str| labels.and_then(|all| all.get(*key)).filter(|value| !value.is_empty());
        let zones: Vec<&str> = ZONES.iter().find_map(find).map_or(Vec::new(), |z| z.split("__").collect());
        return handle(GCE, &format!("projects/UNSPECIFIED/{}/disks/{}", gce_place(&zones)?, gce.pd_name));
    }
    if let Some(aws) = &spec.aws_elastic_block_store {
        return of_aws_disk(&aws.volume_id);
    }
    if let Some(azure) = &spec.azure_disk {
        return handle(AZURE_DISK, &azure.disk_uri);
    }
    if let Some(cinder) = &spec.cinder {
        return handle(CINDER, &cinder.volume_id);
    }
    handle(PORTWORX, &spec.portworx_volume.as_ref()?.volume_id)
}

/// One zone, or the region that all of several zones are in: `us-east1` of `us-east1-b`.
fn gce_place(zones: &[&str]) -> Option<String> {
    match zones {
        [] => Some("zones/UNSPECIFIED".to_owned()),
        [zone] => Some(format!("zones/{zone}")),
        [first, others @ ..] => {
            let region = |zone: &str| zone.rsplit_once('-').map(|(region, _)| region.to_owned());
            let all = region(first)?;
            others.iter().all(|zone| region(zone).as_ref() == Some(&all)).then(|| format!("regions/{all}"))
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn drivers_know_old_volumes_by_these_names() {
        let zone = "topology.kubernetes.io/zone";
        for (source, labels, expected) in [
            (
                json!({"gcePersistentDisk": {"pdName": "d"}}),
                json!({}),
                Some("projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d"),
            ),
            (
                json!({"gcePersistentDisk": {"pdName": "d"}}),
                json!({zone: "us-east1-b"}),
                Some("projects/UNSPECIFIED/zones/us-east1-b/disks/d"),
            ),
            (
                json!({"gcePersistentDisk": {"pdName": "d"}}),
                json!({zone: "us-east1-b__us-east1-c"}),
                Some("projects/UNSPECIFIED/regions/us-east1/disks/d"),
            ),
            (json!({"gcePersistentDisk": {"pdName": "d"}}), json!({zone: "us-east1-b__us-west1-c"}), None),
            (json!({"awsElasticBlockStore": {"volumeID": "vol-1"}}), json!({}), Some("vol-1")),
            (
                json!({"awsElasticBlockStore": {"volumeID": "aws://us-east-1a/vol-1"}}),
                json!({}),
                Some("vol-1"),
            ),
            (json!({"awsElasticBlockStore": {"volumeID": "aws:///vol-1"}}), json!({}), Some("vol-1")),
            (json!({"awsElasticBlockStore": {"volumeID": "aws://zone/disk-1"}}), json!({}), None),
            (json!({"azureDisk": {"diskName": "n", "diskURI": "/uri"}}), json!({}), Some("/uri")),
            (json!({"cinder": {"volumeID": "c"}}), json!({}), Some("c")),
            (json!({"portworxVolume": {"volumeID": "p"}}), json!({}), Some("p")),
            (json!({"nfs": {"server": "s", "path": "/"}}), json!({}), None),
        ] {
            let object: Value = json!({"metadata": {"name": "v", "labels": labels}, "spec": source});
            let volume = serde_json::from_value(object.clone()).unwrap();
            assert_eq!(of_persistent(&volume).as_ref().map(|(_, h)| &**h), expected, "{object}");
        }
    }

    #[test]
    fn classes_of_old_provisioners_make_volumes_of_their_drivers() {
        for (name, expected) in [
            ("kubernetes.io/gce-pd", Provisioner::Driver(GCE)),
            ("kubernetes.io/vsphere-volume", Provisioner::Uncounted),
            ("csi.example.com", Provisioner::Driver("csi.example.com")),
        ] {
            assert_eq!(of_provisioner(name), expected);
        }
    }
}
