#![allow(clippy::unwrap_used)]

use super::*;
use crate::cri_config::testing::pod;

fn volume(yaml: &str) -> CsiVolume {
    let object: PersistentVolume = serde_saphyr::from_str(yaml).unwrap_or_else(|e| panic!("{e}"));
    let source = object.spec.clone().and_then(|s| s.csi).unwrap_or_default();
    match persistent(&object, &source, false, false) {
        Ok(Source::Csi(volume)) => *volume,
        other => panic!("{other:?}"),
    }
}

fn driver(spec: &str) -> CSIDriver {
    serde_saphyr::from_str(&format!("{{metadata: {{name: d}}, spec: {{{spec}}}}}"))
        .unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn names_are_upstreams() {
    // sha256 of the parts one after the other, as upstream's kubelet computes them.
    let name = attachment_name("vol-1", "hostpath.csi.k8s.io", "demo");
    assert_eq!(name, format!("csi-{}", sha256(&["vol-1hostpath.csi.k8s.iodemo"])));
    assert_eq!(staging_name("abc"), sha256(&["a", "bc"]));
    assert_eq!(sha256(&["a", "bc"]), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_eq!(unique_name("d", "h"), "kubernetes.io/csi/d^h");
}

#[test]
fn a_persistent_volume_becomes_a_request() {
    let v = volume(
        "
metadata: {name: pv-1}
spec:
  accessModes: [ReadWriteMany]
  capacity: {storage: 1Ki}
  mountOptions: [noatime]
  csi:
    driver: d
    volumeHandle: h
    fsType: ext4
    volumeAttributes: {a: b}
    nodeStageSecretRef: {name: s, namespace: n}",
    );
    assert_eq!((v.spec_name.as_str(), v.access_mode(), v.capacity), ("pv-1", "ReadWriteMany", Some(1024)));
    assert_eq!(v.stage_secret, Some(SecretRef { namespace: "n".into(), name: "s".into() }));
    let data = v.data("demo");
    assert_eq!(data["specVolID"], "pv-1");
    assert_eq!(data["volumeLifecycleMode"], "Persistent");
    assert_eq!(data["attachmentID"], attachment_name("h", "d", "demo"));
    assert_eq!(v.staged_data().len(), 2);
}

#[test]
fn one_mode_alone_keeps_other_pods_away() {
    for (modes, want) in [
        ("[ReadWriteOncePod]", true),
        ("[ReadWriteOncePod, ReadOnlyMany]", false),
        ("[ReadWriteOnce]", false),
        ("[]", false),
    ] {
        let v = volume(&format!(
            "{{metadata: {{name: p}}, spec: {{accessModes: {modes}, csi: {{driver: d, volumeHandle: h}}}}}}"
        ));
        assert_eq!(v.is_exclusive(), want, "{modes}");
    }
}

#[test]
fn who_gives_the_volume_to_the_group() {
    let rwo = volume(
        "{metadata: {name: p}, spec: {accessModes: [ReadWriteOnce], csi: {driver: d, volumeHandle: h, fsType: ext4}}}",
    );
    let rwx = CsiVolume { access_modes: vec!["ReadWriteMany".into()], ..rwo.clone() };
    let pod_only = CsiVolume { access_modes: vec!["ReadWriteOncePod".into()], ..rwo.clone() };
    let plain = CsiVolume { fs_type: String::new(), ..rwo.clone() };
    let inline = CsiVolume { lifecycle: Lifecycle::Ephemeral, access_modes: Vec::new(), ..rwo.clone() };
    let reader = CsiVolume { read_only: true, ..rwo.clone() };
    let once = GroupPolicy::ReadWriteOnceWithFsType;
    for (v, file, with_type) in [
        (&rwo, true, true),
        (&rwx, true, false),
        (&pod_only, true, true),
        (&plain, true, false),
        (&inline, true, true),
        (&reader, false, false),
    ] {
        assert_eq!(v.takes_group(GroupPolicy::File), file, "{v:?}");
        assert_eq!(v.takes_group(once), with_type, "{v:?}");
        assert!(!v.takes_group(GroupPolicy::Nobody));
    }
    assert_eq!(group_policy(None), Ok(once));
    assert_eq!(group_policy(Some(&driver("fsGroupPolicy: File"))), Ok(GroupPolicy::File));
    assert!(group_policy(Some(&driver(""))).is_err());
}

#[test]
fn a_driver_serves_what_its_object_says() {
    let ok = |d: Option<&CSIDriver>, l| check_lifecycle(d, "d", l);
    assert_eq!(ok(None, Lifecycle::Persistent), Ok(()));
    assert_eq!(
        ok(None, Lifecycle::Ephemeral).unwrap_err(),
        "volume mode \"Ephemeral\" not supported by driver d (no CSIDriver object)"
    );
    let both = driver("volumeLifecycleModes: [Persistent, Ephemeral]");
    assert_eq!(ok(Some(&both), Lifecycle::Ephemeral), Ok(()));
    let one = driver("volumeLifecycleModes: [Persistent]");
    assert_eq!(
        ok(Some(&one), Lifecycle::Ephemeral).unwrap_err(),
        "volume mode \"Ephemeral\" not supported by driver d (only supports [\"Persistent\"])"
    );
    assert!(needs_attach(None) && needs_attach(Some(&driver(""))));
    assert!(!needs_attach(Some(&driver("attachRequired: false"))));
}

#[test]
fn pods_are_told_apart() {
    let mut p = pod("{containers: [], serviceAccountName: bot}");
    p.metadata.uid = Some("u".into());
    let attributes = pod_attributes(&p, Lifecycle::Ephemeral);
    assert_eq!(attributes["csi.storage.k8s.io/pod.uid"], "u");
    assert_eq!(attributes["csi.storage.k8s.io/serviceAccount.name"], "bot");
    assert_eq!(attributes["csi.storage.k8s.io/ephemeral"], "true");
    assert_ne!(inline_handle("u", "a"), inline_handle("u", "b"));
}

#[test]
fn versions_of_this_generation_count() {
    let highest = |all: &[&str]| highest_version(&all.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>());
    assert_eq!(highest(&["1.0.0"]), Ok(vec![1, 0, 0]));
    assert_eq!(highest(&["v1.2.0", "1.10.1", "2.0.0"]), Ok(vec![1, 10, 1]));
    assert!(highest(&["2.0.0"]).is_err() && highest(&[]).is_err() && highest(&["x"]).is_err());
}
