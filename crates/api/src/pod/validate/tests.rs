#![allow(clippy::unwrap_used)]

use super::*;
use serde_json::{Value, json};

/// A good Pod, defaulted, with `patch` merged into it.
fn errors(patch: Value) -> Vec<String> {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {
            "containers": [{"name": "a", "image": "x:1"}],
            "volumes": [{"name": "v", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/tmp"}}]
        }
    });
    merge(&mut pod, patch);
    let mut pod: Pod = serde_json::from_value(pod).unwrap();
    crate::pod::set_defaults(&mut pod);
    validate(&pod).iter().map(ToString::to_string).collect()
}

/// JSON merge, where a patch `{"0": ...}` reaches into an array.
fn merge(into: &mut Value, patch: Value) {
    match (into, patch) {
        (Value::Array(items), Value::Object(patch)) => {
            for (index, value) in patch {
                merge(&mut items[index.parse::<usize>().unwrap()], value);
            }
        }
        (Value::Object(map), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(map.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, patch) => *into = patch,
    }
}

fn check(patch: Value, want: &[&str]) {
    let got = errors(patch.clone());
    assert_eq!(got.len(), want.len(), "{patch}: {got:#?}");
    for (got, want) in got.iter().zip(want) {
        assert!(got.starts_with(want), "{patch}:\n got {got}\nwant {want}");
    }
}

fn spec(patch: Value) -> Value {
    json!({ "spec": patch })
}

fn container(patch: Value) -> Value {
    spec(json!({"containers": {"0": patch}}))
}

#[test]
fn good_pods_pass() {
    check(json!({}), &[]);
    check(
        container(json!({
            "ports": [{"containerPort": 80, "name": "http"}, {"containerPort": 443, "hostPort": 443}],
            "env": [{"name": "A B", "value": "$(X)"}, {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}},
                    {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}}],
            "volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "a/b", "readOnly": true, "recursiveReadOnly": "Enabled"}],
            "livenessProbe": {"httpGet": {"port": "http"}}, "readinessProbe": {"tcpSocket": {"port": 80}, "successThreshold": 2},
            "startupProbe": {"grpc": {"port": 9}}, "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
            "resources": {"limits": {"cpu": 1, "memory": "1Gi", "hugepages-2Mi": "4Mi", "x.io/gpu": "2"}},
            "restartPolicy": "OnFailure",
            "restartPolicyRules": [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [3]}}],
            "securityContext": {"runAsUser": 1000, "capabilities": {"add": ["NET_ADMIN"]}, "seccompProfile": {"type": "RuntimeDefault"}}
        })),
        &[],
    );
    check(
        spec(json!({
            "os": {"name": "linux"}, "hostNetwork": true, "priority": 5, "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a.b"]}],
            "dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1"], "searches": ["_x.y.", "."], "options": [{"name": "ndots"}]},
            "tolerations": [{"operator": "Exists", "effect": "NoExecute"}, {"key": "a", "value": "b"}],
            "securityContext": {"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}], "fsGroupChangePolicy": "OnRootMismatch"},
            "initContainers": [{"name": "s", "image": "y", "restartPolicy": "Always", "startupProbe": {"exec": {"command": ["true"]}}}]
        })),
        &[],
    );
}

#[test]
fn metadata_and_spec() {
    check(
        json!({"metadata": {"name": "A_"}}),
        &["metadata.name: Invalid value: \"A_\": a lowercase RFC 1123 subdomain"],
    );
    check(
        json!({"metadata": {"name": "", "namespace": "x.y"}}),
        &[
            "metadata.name: Required value",
            "metadata.namespace: Invalid value: \"x.y\": must not contain dots",
        ],
    );
    check(
        json!({"metadata": {"labels": {"-": "b c"}}}),
        &["metadata.labels: Invalid value: \"-\"", "metadata.labels[-]: Invalid value: \"b c\""],
    );
    check(
        json!({"metadata": {"annotations": {"a": "x".repeat(300_000)}}}),
        &["metadata.annotations: Too long"],
    );
    for (patch, want) in [
        (json!({"containers": []}), "spec.containers: Required value"),
        (
            json!({"restartPolicy": "Sometimes"}),
            "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
        ),
        (json!({"dnsPolicy": "x"}), "spec.dnsPolicy: Unsupported value"),
        (json!({"dnsPolicy": "None"}), "spec.dnsConfig: Required value: must provide `dnsConfig`"),
        (
            json!({"dnsConfig": {"nameservers": ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"]}}),
            "spec.dnsConfig.nameservers: Invalid value",
        ),
        (
            json!({"dnsConfig": {"nameservers": ["one"]}}),
            "spec.dnsConfig.nameservers[0]: Invalid value: \"one\": must be a valid IP",
        ),
        (json!({"dnsConfig": {"searches": vec!["a"; 33]}}), "spec.dnsConfig.searches: Invalid value"),
        (json!({"dnsConfig": {"searches": ["A"]}}), "spec.dnsConfig.searches[0]: Invalid value"),
        (json!({"dnsConfig": {"options": [{"value": "1"}]}}), "spec.dnsConfig.options[0]: Required value"),
        (
            json!({"activeDeadlineSeconds": 0}),
            "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
        ),
        (json!({"hostname": "a.b"}), "spec.hostname: Invalid value: \"a.b\": must not contain dots"),
        (json!({"hostAliases": [{"ip": "x", "hostnames": []}]}), "spec.hostAliases[0].ip: Invalid value"),
        (
            json!({"hostUsers": false, "hostNetwork": true}),
            "spec.hostNetwork: Forbidden: when `hostUsers` is false",
        ),
        (json!({"hostUsers": false, "hostPID": true}), "spec.hostPID: Forbidden"),
        (json!({"hostUsers": false, "hostIPC": true}), "spec.hostIPC: Forbidden"),
        (
            json!({"hostPID": true, "shareProcessNamespace": true}),
            "spec.securityContext.shareProcessNamespace: Invalid value: true",
        ),
        (json!({"hostNetwork": true, "hostnameOverride": "a"}), "spec.hostnameOverride: Forbidden"),
        (
            json!({"ephemeralContainers": [{"name": "e", "image": "x"}]}),
            "spec.ephemeralContainers: Forbidden: cannot be set on create",
        ),
        (json!({"os": {"name": "plan9"}}), "spec.os: Unsupported value: \"plan9\""),
        (
            json!({"securityContext": {"sysctls": [{"name": "A", "value": "1"}]}}),
            "spec.securityContext.sysctls[0].name: Invalid value",
        ),
        (
            json!({"hostNetwork": true, "securityContext": {"sysctls": [{"name": "net.core.somaxconn", "value": "1"}]}}),
            "spec.securityContext.sysctls[0].name: Invalid value: \"net.core.somaxconn\": may not be specified when 'hostNetwork' is true",
        ),
        (json!({"securityContext": {"runAsUser": -1}}), "spec.securityContext.runAsUser: Invalid value: -1"),
        (
            json!({"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "../x"}}}),
            "spec.securityContext.seccompProfile.localhostProfile: Invalid value",
        ),
        (
            json!({"securityContext": {"fsGroupChangePolicy": "x"}}),
            "spec.securityContext.fsGroupChangePolicy: Unsupported value",
        ),
        (
            json!({"tolerations": [{"operator": "Equal"}]}),
            "spec.tolerations[0].operator: Invalid value: \"Equal\": operator must be Exists",
        ),
        (
            json!({"tolerations": [{"key": "a", "effect": "Nope"}]}),
            "spec.tolerations[0].effect: Unsupported value",
        ),
        (
            json!({"tolerations": [{"key": "a", "tolerationSeconds": 1}]}),
            "spec.tolerations[0].effect: Invalid value: \"\": effect must be 'NoExecute'",
        ),
        (
            json!({"topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}]}),
            "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0",
        ),
        (
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}}),
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required value",
        ),
        (
            json!({"resources": {"limits": {"x.io/y": "1"}}}),
            "spec.resources.limits[x.io/y]: Unsupported value",
        ),
    ] {
        check(spec(patch), &[want]);
    }
}

#[test]
fn containers() {
    for (patch, want) in [
        (json!({"name": ""}), "spec.containers[0].name: Required value"),
        (json!({"name": "A"}), "spec.containers[0].name: Invalid value: \"A\": a lowercase RFC 1123 label"),
        (json!({"image": ""}), "spec.containers[0].image: Required value"),
        (json!({"image": " x"}), "spec.containers[0].image: Invalid value: \" x\": must not have leading"),
        (json!({"imagePullPolicy": "No"}), "spec.containers[0].imagePullPolicy: Unsupported value"),
        (
            json!({"terminationMessagePolicy": "No"}),
            "spec.containers[0].terminationMessagePolicy: Unsupported value",
        ),
        (
            json!({"ports": [{"containerPort": 0}]}),
            "spec.containers[0].ports[0].containerPort: Required value",
        ),
        (
            json!({"ports": [{"containerPort": 70000}]}),
            "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
        ),
        (
            json!({"ports": [{"containerPort": 1, "protocol": "ICMP"}]}),
            "spec.containers[0].ports[0].protocol: Unsupported value",
        ),
        (
            json!({"ports": [{"containerPort": 1, "name": "a"}, {"containerPort": 2, "name": "a"}]}),
            "spec.containers[0].ports[1].name: Duplicate value: \"a\"",
        ),
        (
            json!({"ports": [{"containerPort": 1, "hostPort": 9}, {"containerPort": 2, "hostPort": 9}]}),
            "spec.containers[0].ports[1].hostPort: Duplicate value: \"TCP//9\"",
        ),
        (json!({"env": [{"name": ""}]}), "spec.containers[0].env[0].name: Required value"),
        (json!({"env": [{"name": "a=b"}]}), "spec.containers[0].env[0].name: Invalid value: \"a=b\""),
        (
            json!({"env": [{"name": "a", "valueFrom": {}}]}),
            "spec.containers[0].env[0].valueFrom: Invalid value: \"\": must specify one of",
        ),
        (
            json!({"env": [{"name": "a", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}),
            "spec.containers[0].env[0].valueFrom: Invalid value: \"\": may not be specified when `value`",
        ),
        (
            json!({"env": [{"name": "a", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels"}}}]}),
            "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Unsupported value",
        ),
        (
            json!({"env": [{"name": "a", "valueFrom": {"fieldRef": {"fieldPath": "spec.secret"}}}]}),
            "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Invalid value: \"spec.secret\": error converting fieldPath",
        ),
        (
            json!({"env": [{"name": "a", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1Ki"}}}]}),
            "spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor: Invalid value",
        ),
        (
            json!({"env": [{"name": "a", "valueFrom": {"fileKeyRef": {"volumeName": "h", "path": "x", "key": "K"}}}]}),
            "spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName: Invalid value: \"h\": referenced volume must be of type emptyDir",
        ),
        (json!({"envFrom": [{}]}), "spec.containers[0].envFrom[0]: Invalid value: \"\": must specify one of"),
        (
            json!({"volumeMounts": [{"name": "x", "mountPath": "/x"}]}),
            "spec.containers[0].volumeMounts[0].name: Not found: \"x\"",
        ),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": ""}]}),
            "spec.containers[0].volumeMounts[0].mountPath: Required value",
        ),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/a"}, {"name": "h", "mountPath": "/a"}]}),
            "spec.containers[0].volumeMounts[1].mountPath: Invalid value: \"/a\": must be unique",
        ),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/a", "subPath": "/x"}]}),
            "spec.containers[0].volumeMounts[0].subPath: Invalid value: \"/x\": must be a relative path",
        ),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/a", "subPath": "x/../y"}]}),
            "spec.containers[0].volumeMounts[0].subPath: Invalid value: \"x/../y\": must not contain '..'",
        ),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/a", "subPath": "x", "subPathExpr": "y"}]}),
            "spec.containers[0].volumeMounts[0].subPathExpr: Invalid value",
        ),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/a", "mountPropagation": "Bidirectional"}]}),
            "spec.containers[0].volumeMounts[0].mountPropagation: Forbidden: Bidirectional",
        ),
        (
            json!({"volumeMounts": [{"name": "v", "mountPath": "/a", "recursiveReadOnly": "Enabled"}]}),
            "spec.containers[0].volumeMounts[0].recursiveReadOnly: Forbidden: may only be specified when readOnly is true",
        ),
        (
            json!({"volumeDevices": [{"name": "v", "devicePath": "/d"}]}),
            "spec.containers[0].volumeDevices[0].name: Invalid value: \"v\": can only use",
        ),
        (
            json!({"livenessProbe": {}}),
            "spec.containers[0].livenessProbe: Required value: must specify a handler type",
        ),
        (
            json!({"livenessProbe": {"exec": {"command": []}}}),
            "spec.containers[0].livenessProbe.exec.command: Required value",
        ),
        (
            json!({"livenessProbe": {"tcpSocket": {"port": 1}, "exec": {"command": ["a"]}}}),
            "spec.containers[0].livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type",
        ),
        (
            json!({"livenessProbe": {"tcpSocket": {"port": 1}, "successThreshold": 2}}),
            "spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1",
        ),
        (
            json!({"livenessProbe": {"tcpSocket": {"port": 1}, "initialDelaySeconds": -1}}),
            "spec.containers[0].livenessProbe.initialDelaySeconds: Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            json!({"readinessProbe": {"tcpSocket": {"port": 1}, "terminationGracePeriodSeconds": 3}}),
            "spec.containers[0].readinessProbe.terminationGracePeriodSeconds: Invalid value: 3: must not be set",
        ),
        (
            json!({"readinessProbe": {"httpGet": {"port": "x--y"}}}),
            "spec.containers[0].readinessProbe.httpGet.port: Invalid value: \"x--y\": must not contain consecutive hyphens",
        ),
        (
            json!({"lifecycle": {"preStop": {"sleep": {"seconds": 31}}}}),
            "spec.containers[0].lifecycle.preStop.sleep: Invalid value: 31",
        ),
        (
            json!({"lifecycle": {"stopSignal": "SIGUSR1"}}),
            "spec.containers[0].lifecycle.stopSignal: Forbidden",
        ),
        (
            json!({"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}}),
            "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
        ),
        (
            json!({"resources": {"limits": {"cpu": "1", "x.io/gpu": "1"}, "requests": {"x.io/gpu": "0"}}}),
            "spec.containers[0].resources.requests: Invalid value: \"0\": must be equal to x.io/gpu limit of 1",
        ),
        (
            json!({"resources": {"requests": {"cpu": "-1"}}}),
            "spec.containers[0].resources.requests[cpu]: Invalid value: \"-1\": must be greater than or equal to 0",
        ),
        (
            json!({"resources": {"requests": {"cpu": "lots"}}}),
            "spec.containers[0].resources.requests[cpu]: Invalid value: \"lots\": quantities must match",
        ),
        (
            json!({"resources": {"requests": {"bananas": "1"}}}),
            "spec.containers[0].resources.requests[bananas]: Invalid value: \"bananas\": must be a standard resource type or fully qualified",
        ),
        (
            json!({"resources": {"requests": {"hugepages-2Mi": "3Mi", "cpu": "1"}, "limits": {"hugepages-2Mi": "3Mi"}}}),
            "spec.containers[0].resources.limits[hugepages-2Mi]: Invalid value",
        ),
        (json!({"restartPolicy": "Maybe"}), "spec.containers[0].restartPolicy: Unsupported value"),
        (
            json!({"restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In"}}]}),
            "spec.containers[0].restartPolicy: Required value",
        ),
        (
            json!({"restartPolicy": "Never", "restartPolicyRules": [{"action": "Restart"}]}),
            "spec.containers[0].restartPolicyRules[0].exitCodes: Required value: must be specified",
        ),
        (
            json!({"securityContext": {"allowPrivilegeEscalation": false, "privileged": true}}),
            "spec.containers[0].securityContext: Invalid value: {\"allowPrivilegeEscalation\":false,\"privileged\":true}: cannot set",
        ),
        (
            json!({"securityContext": {"procMount": "Unmasked"}}),
            "spec.containers[0].securityContext.procMount: Invalid value",
        ),
    ] {
        let got = errors(container(patch.clone()));
        assert!(got.first().is_some_and(|g| g.starts_with(want)), "{patch}:\n got {got:#?}\nwant {want}");
    }
}

#[test]
fn init_containers_and_names() {
    let init = |patch: Value| {
        let mut c = json!({"name": "i", "image": "y"});
        merge(&mut c, patch);
        spec(json!({ "initContainers": [c] }))
    };
    check(init(json!({"name": "a"})), &["spec.initContainers[0].name: Duplicate value: \"a\""]);
    check(
        init(json!({"livenessProbe": {"tcpSocket": {"port": 1}}})),
        &[
            "spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always",
        ],
    );
    check(
        init(json!({"restartPolicy": "Always", "lifecycle": {"postStart": {}}})),
        &["spec.initContainers[0].lifecycle.postStart: Required value"],
    );
}

#[test]
fn volumes() {
    for (volume, want) in [
        (json!({"name": ""}), "spec.volumes[0].name: Required value"),
        (
            json!({"name": "x", "emptyDir": {}, "hostPath": {"path": "/"}}),
            "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type",
        ),
        (json!({"name": "x", "hostPath": {"path": ""}}), "spec.volumes[0].hostPath.path: Required value"),
        (
            json!({"name": "x", "hostPath": {"path": "/a/../b"}}),
            "spec.volumes[0].hostPath.path: Invalid value: \"/a/../b\": must not contain '..'",
        ),
        (
            json!({"name": "x", "hostPath": {"path": "/", "type": "Gate"}}),
            "spec.volumes[0].hostPath.type: Unsupported value: \"Gate\"",
        ),
        (
            json!({"name": "x", "emptyDir": {"sizeLimit": "-1"}}),
            "spec.volumes[0].emptyDir.sizeLimit: Forbidden",
        ),
        (json!({"name": "x", "image": {}}), "spec.volumes[0].image.reference: Required value"),
        (
            json!({"name": "x", "downwardAPI": {"items": [{"path": "../a", "fieldRef": {"fieldPath": "metadata.name"}}]}}),
            "spec.volumes[0].downwardAPI.items[0].path: Invalid value",
        ),
        (
            json!({"name": "x", "downwardAPI": {"items": [{"path": "..a", "fieldRef": {"fieldPath": "metadata.name"}}]}}),
            "spec.volumes[0].downwardAPI.items[0].path: Invalid value: \"..a\": must not start with '..'",
        ),
        (
            json!({"name": "x", "downwardAPI": {"items": [{"path": "a"}]}}),
            "spec.volumes[0].downwardAPI.items[0]: Required value",
        ),
        (
            json!({"name": "x", "downwardAPI": {"defaultMode": 1000}}),
            "spec.volumes[0].downwardAPI.defaultMode: Invalid value: 1000",
        ),
        (
            json!({"name": "x", "downwardAPI": {"items": [{"path": "a", "resourceFieldRef": {"resource": "limits.cpu"}}]}}),
            "spec.volumes[0].downwardAPI.items[0].resourceFieldRef.containerName: Required value",
        ),
        (
            json!({"name": "x", "projected": {"sources": [{"downwardAPI": {}, "secret": {"name": "s"}}]}}),
            "spec.volumes[0].projected.sources[0]: Forbidden",
        ),
    ] {
        check(spec(json!({ "volumes": [volume] })), &[want]);
    }
    check(
        spec(json!({"volumes": [{"name": "x"}, {"name": "x"}]})),
        &["spec.volumes[1].name: Duplicate value: \"x\""],
    );
}

#[test]
fn all_mistakes_come_together() {
    let got = errors(json!({
        "metadata": {"name": "A"},
        "spec": {"restartPolicy": "x", "containers": [{"name": "a"}, {"name": "a", "image": "y"}]}
    }));
    assert_eq!(got.len(), 4, "{got:#?}");
}
