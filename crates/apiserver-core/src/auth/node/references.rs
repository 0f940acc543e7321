//! The objects a Pod or a PersistentVolume names, and with them the node it is on may see.

use std::collections::BTreeSet;

use serde_json::Value;

/// Names in the Pod's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    pub service_account: String,
    pub secrets: BTreeSet<String>,
    pub config_maps: BTreeSet<String>,
    pub claims: BTreeSet<String>,
    pub resource_claims: BTreeSet<String>,
}

/// Volume sources whose `secretRef.name` is a secret beside the Pod.
const WITH_SECRET_REF: [&str; 7] = ["cephfs", "cinder", "flexVolume", "rbd", "scaleIO", "iscsi", "storageos"];

/// Everything a Pod refers to.
#[must_use]
pub fn of_pod(pod: &Value) -> References {
    let spec = &pod["spec"];
    let mut out =
        References { service_account: text(&spec["serviceAccountName"]).to_owned(), ..References::default() };
    for secret in items(&spec["imagePullSecrets"]) {
        note(&mut out.secrets, &secret["name"]);
    }
    for field in ["initContainers", "containers", "ephemeralContainers"] {
        for container in items(&spec[field]) {
            of_container(container, &mut out);
        }
    }
    for volume in items(&spec["volumes"]) {
        of_volume(volume, text(&pod["metadata"]["name"]), &mut out);
    }
    for claim in items(&spec["resourceClaims"]) {
        note(&mut out.resource_claims, &claim["resourceClaimName"]);
    }
    for made in items(&pod["status"]["resourceClaimStatuses"]) {
        note(&mut out.resource_claims, &made["resourceClaimName"]);
    }
    note(&mut out.resource_claims, &pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"]);
    out
}

/// Namespace and name of the secrets a kubelet needs to mount the volume.
#[must_use]
pub fn secrets_of_volume(volume: &Value) -> Vec<(String, String)> {
    let spec = &volume["spec"];
    let claim_namespace = text(&spec["claimRef"]["namespace"]);
    let mut out = Vec::new();
    let mut add = |namespace: &Value, name: &Value| {
        if let Some(name) = name.as_str().filter(|n| !n.is_empty()) {
            let namespace = namespace.as_str().filter(|n| !n.is_empty()).unwrap_or(claim_namespace);
            out.push((namespace.to_owned(), name.to_owned()));
        }
    };
    add(&spec["azureFile"]["secretNamespace"], &spec["azureFile"]["secretName"]);
    for source in WITH_SECRET_REF {
        let secret = &spec[source]["secretRef"];
        add(&secret["namespace"], &secret["name"]);
    }
    for field in ["nodePublishSecretRef", "nodeStageSecretRef", "nodeExpandSecretRef"] {
        let secret = &spec["csi"][field];
        add(&secret["namespace"], &secret["name"]);
    }
    out
}

fn of_container(container: &Value, out: &mut References) {
    for env in items(&container["env"]) {
        note(&mut out.secrets, &env["valueFrom"]["secretKeyRef"]["name"]);
        note(&mut out.config_maps, &env["valueFrom"]["configMapKeyRef"]["name"]);
    }
    for source in items(&container["envFrom"]) {
        note(&mut out.secrets, &source["secretRef"]["name"]);
        note(&mut out.config_maps, &source["configMapRef"]["name"]);
    }
}

fn of_volume(volume: &Value, pod: &str, out: &mut References) {
    note(&mut out.secrets, &volume["secret"]["secretName"]);
    note(&mut out.secrets, &volume["azureFile"]["secretName"]);
    note(&mut out.secrets, &volume["csi"]["nodePublishSecretRef"]["name"]);
    note(&mut out.config_maps, &volume["configMap"]["name"]);
    note(&mut out.claims, &volume["persistentVolumeClaim"]["claimName"]);
    for source in WITH_SECRET_REF {
        note(&mut out.secrets, &volume[source]["secretRef"]["name"]);
    }
    for source in items(&volume["projected"]["sources"]) {
        note(&mut out.secrets, &source["secret"]["name"]);
        note(&mut out.config_maps, &source["configMap"]["name"]);
    }
    if volume["ephemeral"].is_object() {
        out.claims.insert(format!("{pod}-{}", text(&volume["name"])));
    }
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn note(set: &mut BTreeSet<String>, name: &Value) {
    if let Some(name) = name.as_str().filter(|n| !n.is_empty()) {
        set.insert(name.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_way_to_name_an_object_is_found() {
        let pod = json!({"metadata": {"name": "p"}, "spec": {
            "serviceAccountName": "sa", "imagePullSecrets": [{"name": "pull"}, {}],
            "initContainers": [{"env": [{"valueFrom": {"secretKeyRef": {"name": "s1"}}}]}],
            "containers": [{"env": [{"valueFrom": {"configMapKeyRef": {"name": "c1"}}}],
                "envFrom": [{"secretRef": {"name": "s2"}}, {"configMapRef": {"name": "c2"}}]}],
            "ephemeralContainers": [{"envFrom": [{"secretRef": {"name": "s3"}}]}],
            "volumes": [{"name": "v", "ephemeral": {}}, {"persistentVolumeClaim": {"claimName": "data"}},
                {"secret": {"secretName": "s4"}}, {"configMap": {"name": "c3"}}, {"iscsi": {"secretRef": {"name": "s5"}}},
                {"csi": {"nodePublishSecretRef": {"name": "s6"}}},
                {"projected": {"sources": [{"secret": {"name": "s7"}}, {"configMap": {"name": "c4"}}]}}],
            "resourceClaims": [{"name": "x", "resourceClaimName": "r1"}]},
            "status": {"resourceClaimStatuses": [{"name": "y", "resourceClaimName": "r2"}]}});
        let set = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(
            of_pod(&pod),
            References {
                service_account: "sa".into(),
                secrets: set(&["pull", "s1", "s2", "s3", "s4", "s5", "s6", "s7"]),
                config_maps: set(&["c1", "c2", "c3", "c4"]),
                claims: set(&["data", "p-v"]),
                resource_claims: set(&["r1", "r2"]),
            }
        );
    }

    #[test]
    fn a_volume_names_secrets_beside_its_claim_unless_it_says_where() {
        let volume = json!({"spec": {"claimRef": {"namespace": "ns"}, "rbd": {"secretRef": {"name": "a"}},
            "csi": {"nodeStageSecretRef": {"name": "b", "namespace": "csi"}, "controllerPublishSecretRef": {"name": "c"}}}});
        let expected = [("ns", "a"), ("csi", "b")].map(|(n, s)| (n.to_owned(), s.to_owned()));
        assert_eq!(secrets_of_volume(&volume), expected);
    }
}
