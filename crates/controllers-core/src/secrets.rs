//! Which Secrets a Pod names.

use serde_json::Value;

/// By volumes, variables, image pull secrets and the drivers of volumes.
pub(crate) fn named(pod: &Value) -> Vec<String> {
    let spec = &pod["spec"];
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut names: Vec<Value> = Vec::new();
    names.extend(list(&spec["imagePullSecrets"]).iter().map(|one| one["name"].clone()));
    for kind in ["containers", "initContainers", "ephemeralContainers"] {
        for container in list(&spec[kind]) {
            names.extend(list(&container["envFrom"]).iter().map(|from| from["secretRef"]["name"].clone()));
            let env = list(&container["env"]);
            names.extend(env.iter().map(|env| env["valueFrom"]["secretKeyRef"]["name"].clone()));
        }
    }
    for volume in list(&spec["volumes"]) {
        names.push(volume["secret"]["secretName"].clone());
        names.push(volume["azureFile"]["secretName"].clone());
        names.push(volume["csi"]["nodePublishSecretRef"]["name"].clone());
        for driver in ["cephfs", "cinder", "flexVolume", "rbd", "scaleIO", "iscsi", "storageos"] {
            names.push(volume[driver]["secretRef"]["name"].clone());
        }
        names.extend(
            list(&volume["projected"]["sources"]).iter().map(|source| source["secret"]["name"].clone()),
        );
    }
    names
        .into_iter()
        .filter_map(|name| name.as_str().filter(|name| !name.is_empty()).map(str::to_owned))
        .collect()
}
