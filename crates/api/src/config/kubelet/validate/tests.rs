use super::*;
use crate::config::doc;
use crate::config::kubelet::{defaults, types::KubeletConfiguration};
use serde_json::{Value, json};

fn problems(changes: Value) -> Vec<String> {
    let Value::Object(mut document) = changes else {
        panic!("not an object");
    };
    defaults::fill(&mut document);
    assert!(doc::check(crate::config::kubelet::fields::FIELDS, &document).errors.is_empty());
    let config = KubeletConfiguration::from_doc(document).unwrap_or_else(|e| panic!("{e}"));
    let (gates, _) = Gates::choose(&config.feature_gates);
    let errors = validate(&config, &gates);
    errors.into_iter().map(|e| e.path).collect()
}

#[test]
fn the_defaults_are_valid() {
    assert_eq!(problems(json!({})), Vec::<String>::new());
}

/// Each row: what to set, and the paths that must be reported.
#[test]
fn ranges_enumerations_and_dependencies() {
    let none: &[&str] = &[];
    let rows: Vec<(Value, &[&str])> = vec![
        (json!({"port": 65536}), &["port"]),
        (json!({"port": -1}), &["port"]),
        (json!({"readOnlyPort": 65536}), &["readOnlyPort"]),
        (json!({"healthzPort": -1}), &["healthzPort"]),
        (json!({"healthzPort": 0}), none),
        (json!({"address": "here"}), &["address"]),
        (json!({"address": "::"}), none),
        (json!({"authorization": {"mode": "RBAC"}}), &["authorization.mode"]),
        (json!({"tlsMinVersion": "1.2"}), &["tlsMinVersion"]),
        (json!({"tlsCipherSuites": ["TLS_AES_128_GCM_SHA256", "NULL"]}), &["tlsCipherSuites[1]"]),
        (json!({"enableSystemLogQuery": true, "enableSystemLogHandler": false}), &["enableSystemLogQuery"]),
        (json!({"runOnce": true}), &["runOnce"]),
        (json!({"eventBurst": -1, "eventRecordQPS": -1}), &["eventBurst", "eventRecordQPS"]),
        (json!({"kubeAPIBurst": -1, "kubeAPIQPS": -1}), &["kubeAPIBurst", "kubeAPIQPS"]),
        (json!({"maxPods": -1, "podsPerCore": -1}), &["maxPods", "podsPerCore"]),
        (json!({"registryBurst": -1, "registryPullQPS": -1}), &["registryBurst", "registryPullQPS"]),
        (json!({"maxOpenFiles": -1}), &["maxOpenFiles"]),
        (json!({"oomScoreAdj": -1001}), &["oomScoreAdj"]),
        (json!({"oomScoreAdj": 1000}), none),
        (
            json!({"iptablesDropBit": 32, "iptablesMasqueradeBit": -1}),
            &["iptablesDropBit", "iptablesMasqueradeBit"],
        ),
        (json!({"cpuCFSQuotaPeriod": "999us"}), &["cpuCFSQuotaPeriod"]),
        (json!({"cpuCFSQuotaPeriod": "1s"}), none),
        (json!({"cpuCFSQuotaPeriod": "1001ms"}), &["cpuCFSQuotaPeriod"]),
        (json!({"imageGCHighThresholdPercent": 101}), &["imageGCHighThresholdPercent"]),
        (json!({"imageGCHighThresholdPercent": 80}), &["imageGCLowThresholdPercent"]),
        (json!({"imageMaximumGCAge": "2m"}), &["imageMaximumGCAge"]),
        (json!({"imageMaximumGCAge": "3m"}), none),
        (json!({"imageMinimumGCAge": "-1s"}), &["imageMinimumGCAge"]),
        (json!({"maxParallelImagePulls": 0}), &["maxParallelImagePulls"]),
        (json!({"maxParallelImagePulls": 2, "serializeImagePulls": true}), &["maxParallelImagePulls"]),
        (
            json!({"imagePullCredentialsVerificationPolicy": "Sometimes"}),
            &["imagePullCredentialsVerificationPolicy"],
        ),
        (json!({"preloadedImagesVerificationAllowlist": ["a/b"]}), &["preloadedImagesVerificationAllowlist"]),
        (
            json!({"imagePullCredentialsVerificationPolicy": "NeverVerifyAllowlistedImages", "preloadedImagesVerificationAllowlist": ["r.io/a/*", "r.io:5000/*", "a*b", "nginx:1"]}),
            &["preloadedImagesVerificationAllowlist[2]", "preloadedImagesVerificationAllowlist[3]"],
        ),
        (json!({"nodeLeaseDurationSeconds": -1}), &["nodeLeaseDurationSeconds"]),
        (json!({"nodeStatusMaxImages": -2}), &["nodeStatusMaxImages"]),
        (json!({"systemCgroups": "/s"}), &["systemCgroups"]),
        (json!({"systemCgroups": "/s", "cgroupRoot": "/"}), none),
        (
            json!({"registerWithTaints": [{"key": "a", "effect": "NoSchedule", "timeAdded": "2020-01-01T00:00:00Z"}, {"key": "-", "effect": "x"}]}),
            &["registerWithTaints[0]", "registerWithTaints[1]", "registerWithTaints[1]"],
        ),
        (json!({"showHiddenMetricsForVersion": "1.34"}), &["showHiddenMetricsForVersion"]),
        (json!({"showHiddenMetricsForVersion": "1.35"}), none),
        (json!({"tracing": {"samplingRatePerMillion": 1000001}}), &["tracing.samplingRatePerMillion"]),
        (
            json!({"topologyManagerPolicy": "x", "topologyManagerScope": "x"}),
            &["topologyManagerPolicy", "topologyManagerScope"],
        ),
        (json!({"hairpinMode": "x"}), &["hairpinMode"]),
        (json!({"cgroupDriver": "x"}), &["cgroupDriver"]),
        (
            json!({"configMapAndSecretChangeDetectionStrategy": "x"}),
            &["configMapAndSecretChangeDetectionStrategy"],
        ),
        (json!({"memorySwap": {"swapBehavior": "UnlimitedSwap"}}), &["memorySwap.swapBehavior"]),
        (json!({"memoryThrottlingFactor": 0.0}), &["memoryThrottlingFactor"]),
        (json!({"memoryThrottlingFactor": 1.0}), none),
        (json!({"memoryReservationPolicy": "x"}), &["memoryReservationPolicy"]),
        (json!({"memoryReservationPolicy": "TieredReservation"}), &["memoryReservationPolicy"]),
        (json!({"memoryReservationPolicy": "TieredReservation", "featureGates": {"MemoryQoS": true}}), none),
        (json!({"containerLogMaxSize": "big"}), &["containerLogMaxSize"]),
        (
            json!({"containerLogMaxFiles": 1, "containerLogMaxWorkers": 0, "containerLogMonitorInterval": "2s"}),
            &["containerLogMaxFiles", "containerLogMaxWorkers", "containerLogMonitorInterval"],
        ),
        (json!({"podLogsDir": "logs"}), &["podLogsDir"]),
        (json!({"podLogsDir": "/var//log/"}), &["podLogsDir"]),
        (json!({"podLogsDir": "/var/lög"}), &["podLogsDir"]),
        (json!({"shutdownGracePeriod": "500ms"}), &["shutdownGracePeriod"]),
        (json!({"shutdownGracePeriodCriticalPods": "10s"}), &["shutdownGracePeriodCriticalPods"]),
        (json!({"shutdownGracePeriod": "30s", "shutdownGracePeriodCriticalPods": "10s"}), none),
        (
            json!({"shutdownGracePeriod": "30s", "shutdownGracePeriodByPodPriority": [{"priority": 1, "shutdownGracePeriodSeconds": 1}]}),
            &["shutdownGracePeriodByPodPriority"],
        ),
        (
            json!({"shutdownGracePeriod": "30s", "featureGates": {"GracefulNodeShutdown": false}}),
            &["shutdownGracePeriod"],
        ),
        (
            json!({"crashLoopBackOff": {"maxContainerRestartPeriod": "301s"}}),
            &["crashLoopBackOff.maxContainerRestartPeriod"],
        ),
        (json!({"crashLoopBackOff": {"maxContainerRestartPeriod": "1s"}}), none),
        (
            json!({"crashLoopBackOff": {"maxContainerRestartPeriod": "1s"}, "featureGates": {"KubeletCrashLoopBackOffMax": false}}),
            &["crashLoopBackOff.maxContainerRestartPeriod"],
        ),
        (json!({"featureGates": {"KubeletCrashLoopBackOffMax": false}}), none),
        (json!({"userNamespaces": {"idsPerPod": 65537}}), &["userNamespaces.idsPerPod"]),
        (json!({"userNamespaces": {"idsPerPod": 131072}}), none),
        (json!({"enforceNodeAllocatable": ["none", "pods"]}), &["enforceNodeAllocatable"]),
        (
            json!({"enforceNodeAllocatable": ["pods", "pods", "x"]}),
            &["enforceNodeAllocatable", "enforceNodeAllocatable"],
        ),
        (json!({"enforceNodeAllocatable": ["kube-reserved"]}), &["kubeReservedCgroup"]),
        (
            json!({"enforceNodeAllocatable": ["pods", "system-reserved"], "systemReservedCgroup": "/s", "cgroupsPerQOS": false}),
            &["cgroupsPerQOS", "cgroupsPerQOS"],
        ),
        (
            json!({"enforceNodeAllocatable": ["system-reserved", "system-reserved-compressible"], "systemReservedCgroup": "/s"}),
            &["enforceNodeAllocatable"],
        ),
        (
            json!({"kubeReserved": {"cpu": "x", "gpu": "1", "memory": "-1"}}),
            &["kubeReserved[cpu]", "kubeReserved[gpu]", "kubeReserved[memory]"],
        ),
        (json!({"qosReserved": {"memory": "101%"}}), &["qosReserved[memory]"]),
        (json!({"reservedSystemCPUs": "0-1,4"}), none),
        (json!({"reservedSystemCPUs": "3-1"}), &["reservedSystemCPUs"]),
        (json!({"reservedSystemCPUs": "0", "kubeReservedCgroup": "/k"}), &["reservedSystemCPUs"]),
        (json!({"cpuManagerPolicy": "static"}), &["cpuManagerPolicy"]),
        (json!({"cpuManagerPolicy": "static", "kubeReserved": {"cpu": "100m"}}), none),
        (
            json!({"reservedMemory": [{"numaNode": 0, "limits": {"cpu": "1"}}, {"numaNode": 1, "limits": {"memory": "0"}}, {"numaNode": 1, "limits": {"memory": "1Gi"}}]}),
            &[
                "reservedMemory[0].limits[cpu]",
                "reservedMemory[1].limits[memory]",
                "reservedMemory[2].limits[memory]",
            ],
        ),
        (
            json!({"memoryManagerPolicy": "Static", "kubeReserved": {"memory": "1Gi"}, "evictionHard": {"memory.available": "100Mi"}, "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1124Mi"}}]}),
            none,
        ),
        (
            json!({"memoryManagerPolicy": "Static", "kubeReserved": {"memory": "1Gi"}, "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Mi"}}]}),
            &["reservedMemory"],
        ),
        (
            json!({"evictionHard": {"memory.free": "1", "nodefs.available": "101%", "pid.available": "0"}}),
            &["evictionHard[memory.free]", "evictionHard[nodefs.available]", "evictionHard[pid.available]"],
        ),
        (json!({"evictionSoft": {"memory.available": "1Gi"}}), &["evictionSoft[memory.available]"]),
        (
            json!({"evictionSoftGracePeriod": {"memory.available": "x"}}),
            &["evictionSoftGracePeriod[memory.available]"],
        ),
        (
            json!({"evictionMinimumReclaim": {"memory.available": "-1"}}),
            &["evictionMinimumReclaim[memory.available]"],
        ),
        (json!({"logging": {"format": "xml"}}), &["logging.format"]),
        (
            json!({"logging": {"format": "json", "vmodule": [{"filePattern": "a", "verbosity": 1}]}}),
            &["logging.vmodule"],
        ),
        (
            json!({"logging": {"options": {"text": {"splitStream": true}}}}),
            &["logging.options.text.splitStream"],
        ),
        (
            json!({"logging": {"options": {"text": {"splitStream": true}}}, "featureGates": {"LoggingAlphaOptions": true}}),
            none,
        ),
    ];
    for (changes, want) in rows {
        assert_eq!(problems(changes.clone()), want, "{changes}");
    }
}

#[test]
fn some_machines_are_refused() {
    let config = KubeletConfiguration::default();
    let paths = |config: &KubeletConfiguration, host| -> Vec<String> {
        check_host(config, host).into_iter().map(|e| e.path).collect()
    };
    let good = HostFacts { cgroup_v2: true, swap_on: false, numa_nodes: 8 };
    let bad = HostFacts { cgroup_v2: false, swap_on: true, numa_nodes: 1 };
    assert!(paths(&config, good).is_empty());
    let aligned = KubeletConfiguration {
        topology_manager_policy: "restricted".into(),
        ..KubeletConfiguration::default()
    };
    assert!(paths(&aligned, good).is_empty());
    assert_eq!(paths(&aligned, HostFacts { numa_nodes: 9, ..good }), ["topologyManagerPolicy"]);
    assert_eq!(paths(&config, bad), ["failSwapOn", "failCgroupV1"]);
    let lax = KubeletConfiguration {
        fail_swap_on: false,
        fail_cgroup_v1: false,
        single_process_oom_kill: Some(false),
        ..config
    };
    assert_eq!(paths(&lax, bad), ["singleProcessOOMKill"]);
}
