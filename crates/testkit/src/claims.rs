//! A claim on a volume of the CSI driver `d.test`, and Pods that use it.

use crate::cluster::Cluster;

const STAY: &str = "trap exit TERM; while :; do sleep 0.1; done";

/// The object that describes the driver.
pub fn describe(c: &Cluster, spec: &str) {
    c.create(&format!(
        "apiVersion: storage.k8s.io/v1\nkind: CSIDriver\nmetadata: {{ name: d.test }}\nspec: {{ {spec} }}\n"
    ));
}

/// A Pod that stays until it is told to go.
#[must_use]
pub fn pod(name: &str, more: &str, container: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{ name: {name} }}\nspec:\n  nodeName: demo\n  \
         terminationGracePeriodSeconds: 1\n  containers: [{{ name: main, image: localhost/busybox:v1, \
         command: [sh, -c, {STAY:?}], {container} }}]\n  {more}\n"
    )
}

/// The same with one volume at `/v`.
#[must_use]
pub fn mounting(name: &str, volume: &str) -> String {
    pod(name, &format!("volumes: [{{ name: v, {volume} }}]"), "volumeMounts: [{ name: v, mountPath: /v }]")
}

/// A PersistentVolume of the driver and the claim that is bound to it.
pub fn volume(c: &Cluster, spec: &str, csi: &str) {
    c.create(&format!(
        "
apiVersion: v1
kind: PersistentVolume
metadata: {{ name: pv-1 }}
spec:
  capacity: {{ storage: 1Gi }}
  accessModes: [ReadWriteOnce]
  storageClassName: \"\"
  claimRef: {{ namespace: default, name: data }}
  csi: {{ driver: d.test, volumeHandle: vol-1, {csi} }}
  {spec}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{ name: data }}
spec: {{ accessModes: [ReadWriteOnce], storageClassName: \"\", volumeName: pv-1, {spec_of_claim} resources: {{ requests: {{ storage: 1Gi }} }} }}
",
        spec_of_claim = if spec.contains("Block") { "volumeMode: Block," } else { "" },
    ));
    // Nobody binds claims here.
    let uid = c.run(&["get", "pvc", "data", "-o", "jsonpath={.metadata.uid}"]);
    c.run(&["patch", "pv", "pv-1", "-p", &format!(r#"{{"spec":{{"claimRef":{{"uid":"{uid}"}}}}}}"#)]);
    let status = r#"{"status":{"phase":"Bound","capacity":{"storage":"1Gi"}}}"#;
    c.run(&["patch", "pvc", "data", "--subresource=status", "-p", status]);
}

/// The claim as the source of a Pod's volume.
pub const CLAIM: &str = "persistentVolumeClaim: { claimName: data }";
