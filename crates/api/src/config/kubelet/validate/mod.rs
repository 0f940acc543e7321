//! What a configuration may not say. Every mistake is reported, each with its field's path.

use std::net::IpAddr;

use base::duration::GoDuration;

use super::flags;
use super::types::KubeletConfiguration;
use crate::config::FieldError;
use crate::config::check::Check;
use crate::config::gates::Gates;
use crate::config::logging;

mod eviction;
mod reservations;

/// Checks everything that needs no look at the machine.
pub(super) fn validate(config: &KubeletConfiguration, gates: &Gates) -> Vec<FieldError> {
    let mut check = Check::new(flags::for_field);
    server(config, gates, &mut check);
    rates_and_limits(config, gates, &mut check);
    images(config, gates, &mut check);
    node(config, gates, &mut check);
    policies(config, &mut check);
    memory(config, gates, &mut check);
    container_logs(config, &mut check);
    shutdown(config, gates, &mut check);
    crash_loop(config, gates, &mut check);
    user_namespaces(config, &mut check);
    reservations::check(config, &mut check);
    eviction::check(config, &mut check);
    logging::check(&config.logging, gates, &mut check);
    check.into_errors()
}

/// What the start-up checks need to know about the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostFacts {
    pub cgroup_v2: bool,
    pub swap_on: bool,
    pub numa_nodes: usize,
}

/// Beyond this, trying every combination of nodes takes too long.
const MOST_NUMA_NODES: usize = 8;

/// Settings that are valid but not on this machine.
pub fn check_host(config: &KubeletConfiguration, host: HostFacts) -> Vec<FieldError> {
    let mut check = Check::new(flags::for_field);
    if config.topology_manager_policy != "none" && host.numa_nodes > MOST_NUMA_NODES {
        let text = format!("unsupported on machines with more than {MOST_NUMA_NODES} NUMA Nodes");
        check.fail("topologyManagerPolicy", text);
    }
    if config.fail_swap_on && host.swap_on {
        check.fail("failSwapOn", "swap is on; turn it off or set this to false");
    }
    if !host.cgroup_v2 {
        if config.fail_cgroup_v1 {
            check.fail("failCgroupV1", "this host uses cgroup v1; set this to false to run on it");
        }
        if config.single_process_oom_kill == Some(false) {
            check.fail("singleProcessOOMKill", "must not be false on a cgroup v1 host");
        }
    }
    check.into_errors()
}

fn server(c: &KubeletConfiguration, gates: &Gates, check: &mut Check) {
    check.range("port", c.port, 1, 65535);
    check.range("readOnlyPort", c.read_only_port, 0, 65535);
    check.range("healthzPort", c.healthz_port, 0, 65535);
    if c.address.parse::<IpAddr>().is_err() {
        check.fail("address", format!("{:?} is not an IP address", c.address));
    }
    check.one_of("authorization.mode", &c.authorization.mode, &["AlwaysAllow", "Webhook"]);
    let versions = ["", "VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"];
    check.one_of("tlsMinVersion", &c.tls_min_version, &versions);
    for (i, suite) in c.tls_cipher_suites.iter().enumerate() {
        if !CIPHER_SUITES.contains(&suite.as_str()) {
            let path = format!("tlsCipherSuites[{i}]");
            check.fail(&path, format!("cipher suite {suite:?} is not known"));
        }
    }
    for (i, curve) in c.tls_curve_preferences.iter().enumerate() {
        let path = format!("tlsCurvePreferences[{i}]");
        if !CURVES.contains(curve) {
            check.fail(&path, format!("key exchange {curve} is not known"));
        } else if c.tls_curve_preferences[..i].contains(curve) {
            check.fail(&path, format!("key exchange {curve} is named twice"));
        }
    }
    if c.server_tls_bootstrap && !gates.enabled("RotateKubeletServerCertificate") {
        check.fail("serverTLSBootstrap", "needs feature gate RotateKubeletServerCertificate");
    }
    if c.enable_system_log_query && !c.enable_system_log_handler {
        check.fail("enableSystemLogQuery", "needs enableSystemLogHandler");
    }
    if c.run_once {
        check.fail("runOnce", "run-once mode no longer exists");
    }
    if c.container_runtime_endpoint.is_empty() {
        check.fail("containerRuntimeEndpoint", "must not be empty");
    }
}

/// Key exchanges by their numbers in TLS: P-256, P-384, P-521, X25519, and three that are joined with ML-KEM.
const CURVES: [i32; 7] = [23, 24, 25, 29, 4587, 4588, 4589];

/// Names as upstream's TLS library spells them.
const CIPHER_SUITES: [&str; 26] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
];

fn rates_and_limits(c: &KubeletConfiguration, gates: &Gates, check: &mut Check) {
    let counts = [
        ("eventBurst", c.event_burst),
        ("eventRecordQPS", c.event_record_qps),
        ("kubeAPIBurst", c.kube_api_burst),
        ("kubeAPIQPS", c.kube_api_qps),
        ("maxPods", c.max_pods),
        ("podsPerCore", c.pods_per_core),
        ("registryBurst", c.registry_burst),
        ("registryPullQPS", c.registry_pull_qps),
    ];
    for (path, value) in counts {
        check.at_least(path, value, 0);
    }
    check.at_least("maxOpenFiles", c.max_open_files, 0);
    check.range("oomScoreAdj", c.oom_score_adj, -1000, 1000);
    check.range("iptablesDropBit", c.iptables_drop_bit, 0, 31);
    check.range("iptablesMasqueradeBit", c.iptables_masquerade_bit, 0, 31);
    let (ms, second) = (GoDuration::from_millis(1), GoDuration::from_secs(1));
    check.range("cpuCFSQuotaPeriod", c.cpu_cfs_quota_period, ms, second);
    if !gates.enabled("CustomCPUCFSQuotaPeriod") && c.cpu_cfs_quota_period != GoDuration::from_millis(100) {
        check.fail("cpuCFSQuotaPeriod", "another than 100ms needs feature gate CustomCPUCFSQuotaPeriod");
    }
}

fn images(c: &KubeletConfiguration, gates: &Gates, check: &mut Check) {
    let (low, high) = (c.image_gc_low_threshold_percent, c.image_gc_high_threshold_percent);
    check.range("imageGCHighThresholdPercent", high, 0, 100);
    check.range("imageGCLowThresholdPercent", low, 0, 100);
    if low >= high {
        let text = format!("{low} must be less than imageGCHighThresholdPercent {high}");
        check.fail("imageGCLowThresholdPercent", text);
    }
    let (min, max) = (c.image_minimum_gc_age, c.image_maximum_gc_age);
    check.at_least("imageMinimumGCAge", min, GoDuration::ZERO);
    check.at_least("imageMaximumGCAge", max, GoDuration::ZERO);
    if max > GoDuration::ZERO && max <= min {
        let text = format!("{max} must be greater than imageMinimumGCAge {min}");
        check.fail("imageMaximumGCAge", text);
    }
    if let Some(parallel) = c.max_parallel_image_pulls {
        check.at_least("maxParallelImagePulls", parallel, 1);
        if parallel > 1 && c.serialize_image_pulls {
            check.fail("maxParallelImagePulls", "more than 1 needs serializeImagePulls: false");
        }
    }
    let policy = "imagePullCredentialsVerificationPolicy";
    let list = "preloadedImagesVerificationAllowlist";
    let chosen = c.image_pull_credentials_verification_policy.as_str();
    if !gates.enabled("KubeletEnsureSecretPulledImages") {
        let text = "must not be set without feature gate KubeletEnsureSecretPulledImages";
        if !chosen.is_empty() {
            check.fail(policy, text);
        }
        if !c.preloaded_images_verification_allowlist.is_empty() {
            check.fail(list, text);
        }
        return;
    }
    let known = ["NeverVerify", "NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages", "AlwaysVerify"];
    check.one_of(policy, chosen, &known);
    if !c.preloaded_images_verification_allowlist.is_empty() && chosen != known[2] {
        check.fail(list, format!("needs {policy}: {}", known[2]));
    }
    for (i, pattern) in c.preloaded_images_verification_allowlist.iter().enumerate() {
        if let Err(why) = check_image_pattern(pattern) {
            check.fail(&format!("{list}[{i}]"), why);
        }
    }
}

/// An image without tag or digest, or a prefix that ends in `/*`.
fn check_image_pattern(pattern: &str) -> Result<(), String> {
    let group = pattern.strip_suffix("/*");
    let name = group.unwrap_or(pattern);
    let last = name.rsplit('/').next().unwrap_or(name);
    if name.is_empty() || name.trim() != name {
        return Err(format!("pattern {pattern:?} is empty or padded"));
    }
    if name.contains('*') {
        return Err(format!("pattern {pattern:?} may have a wildcard only as its last segment"));
    }
    if group.is_none() && (name.contains('@') || last.contains(':')) {
        return Err(format!("pattern {pattern:?} must not have a tag or digest"));
    }
    Ok(())
}

fn node(c: &KubeletConfiguration, _gates: &Gates, check: &mut Check) {
    check.at_least("nodeLeaseDurationSeconds", c.node_lease_duration_seconds, 1);
    check.at_least("nodeStatusMaxImages", c.node_status_max_images, -1);
    if !c.system_cgroups.is_empty() && c.cgroup_root.is_empty() {
        check.fail("systemCgroups", "needs cgroupRoot");
    }
    for (i, taint) in c.register_with_taints.iter().enumerate() {
        let path = format!("registerWithTaints[{i}]");
        if let Err(why) = super::settings::check_label_key(&taint.key) {
            check.fail(&path, why);
        }
        if let Err(why) = super::settings::check_label_value(&taint.value) {
            check.fail(&path, why);
        }
        let effects = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        check.one_of(&path, &taint.effect, &effects);
        if taint.time_added.is_some() {
            check.fail(&path, "timeAdded must not be set");
        }
    }
    check.hidden_metrics(&c.show_hidden_metrics_for_version);
    if let Some(rate) = c.tracing.sampling_rate_per_million {
        check.range("tracing.samplingRatePerMillion", rate, 0, 1_000_000);
    }
    if c.tracing.endpoint.as_deref().is_some_and(|e| e.contains(char::is_whitespace)) {
        check.fail("tracing.endpoint", "must not contain white space");
    }
}

fn policies(c: &KubeletConfiguration, check: &mut Check) {
    let topology = ["none", "best-effort", "restricted", "single-numa-node"];
    check.one_of("topologyManagerPolicy", &c.topology_manager_policy, &topology);
    check.one_of("topologyManagerScope", &c.topology_manager_scope, &["container", "pod"]);
    check.one_of("cpuManagerPolicy", &c.cpu_manager_policy, &["none", "static"]);
    check.one_of("memoryManagerPolicy", &c.memory_manager_policy, &["None", "Static"]);
    check.one_of("cgroupDriver", &c.cgroup_driver, &["cgroupfs", "systemd"]);
    let hairpin = ["none", "hairpin-veth", "promiscuous-bridge"];
    check.one_of("hairpinMode", &c.hairpin_mode, &hairpin);
    check.one_of(
        "configMapAndSecretChangeDetectionStrategy",
        &c.config_map_and_secret_change_detection_strategy,
        &["Watch", "Cache", "Get"],
    );
}

fn memory(c: &KubeletConfiguration, gates: &Gates, check: &mut Check) {
    let swap = ["", "NoSwap", "LimitedSwap"];
    check.one_of("memorySwap.swapBehavior", &c.memory_swap.swap_behavior, &swap);
    let factor = c.memory_throttling_factor;
    if factor.is_nan() || factor <= 0.0 || factor > 1.0 {
        let text = format!("{factor} must be greater than 0 and at most 1");
        check.fail("memoryThrottlingFactor", text);
    }
    let policy = "memoryReservationPolicy";
    check.one_of(policy, &c.memory_reservation_policy, &["None", "TieredReservation"]);
    if c.memory_reservation_policy == "TieredReservation" && !gates.enabled("MemoryQoS") {
        check.fail(policy, "TieredReservation needs feature gate MemoryQoS");
    }
}

fn container_logs(c: &KubeletConfiguration, check: &mut Check) {
    check.quantity("containerLogMaxSize", &c.container_log_max_size);
    check.at_least("containerLogMaxFiles", c.container_log_max_files, 2);
    check.at_least("containerLogMaxWorkers", c.container_log_max_workers, 1);
    let interval = c.container_log_monitor_interval;
    check.at_least("containerLogMonitorInterval", interval, GoDuration::from_secs(3));
    let dir = c.pod_logs_dir.as_str();
    let path = std::path::Path::new(dir);
    if !path.is_absolute() {
        check.fail("podLogsDir", format!("{dir:?} must be an absolute path"));
    } else if crate::config::file::clean(path).to_string_lossy() != dir {
        check.fail("podLogsDir", format!("{dir:?} must be a clean path without '.', '..' or '//'"));
    }
    if !dir.is_ascii() {
        check.fail("podLogsDir", format!("{dir:?} must be ASCII, because metrics carry it"));
    }
}

fn shutdown(c: &KubeletConfiguration, gates: &Gates, check: &mut Check) {
    let (total, critical) = (c.shutdown_grace_period, c.shutdown_grace_period_critical_pods);
    let timed = total > GoDuration::ZERO || critical > GoDuration::ZERO;
    if gates.enabled("GracefulNodeShutdown") {
        if critical > total {
            let text = format!("{critical} must be at most shutdownGracePeriod {total}");
            check.fail("shutdownGracePeriodCriticalPods", text);
        }
        let second = GoDuration::from_secs(1);
        for (path, period) in [("shutdownGracePeriod", total), ("shutdownGracePeriodCriticalPods", critical)]
        {
            if !period.is_zero() && period < second {
                check.fail(path, format!("{period} must be zero or at least 1s"));
            }
        }
    } else if timed {
        check.fail("shutdownGracePeriod", "needs feature gate GracefulNodeShutdown");
    }
    if c.shutdown_grace_period_by_pod_priority.is_empty() {
        return;
    }
    let path = "shutdownGracePeriodByPodPriority";
    if !gates.enabled("GracefulNodeShutdownBasedOnPodPriority") {
        check.fail(path, "needs feature gate GracefulNodeShutdownBasedOnPodPriority");
    } else if timed {
        check.fail(path, "must not be set together with shutdownGracePeriod");
    }
}

fn crash_loop(c: &KubeletConfiguration, gates: &Gates, check: &mut Check) {
    let path = "crashLoopBackOff.maxContainerRestartPeriod";
    let period = c.crash_loop_back_off.max_container_restart_period;
    match (period, gates.enabled("KubeletCrashLoopBackOffMax")) {
        (Some(p), true) => {
            check.range(path, p, GoDuration::from_secs(1), GoDuration::from_secs(300));
        }
        (Some(_), false) => check.fail(path, "needs feature gate KubeletCrashLoopBackOffMax"),
        (None, true) => check.fail(path, "must be set"),
        (None, false) => {}
    }
}

fn user_namespaces(c: &KubeletConfiguration, check: &mut Check) {
    const UNIT: i64 = 65536;
    let path = "userNamespaces.idsPerPod";
    if let Some(ids) = c.user_namespaces.ids_per_pod {
        check.range(path, ids, UNIT, u32::MAX.into());
        if ids % UNIT != 0 {
            check.fail(path, format!("{ids} must be a multiple of {UNIT}"));
        }
    }
}

#[cfg(test)]
mod tests;
