//! The metrics of the kubelet, under upstream's names: dashboards and alerts hard-code them.
//!
//! One field per family. Feeding one is `metrics.started_pods_total.inc([])`; the label values come
//! in the order in which the table below names the labels.

use std::fmt::{self, Write};
use std::sync::Arc;

use base::metrics::{Counter, DEFAULT_BUCKETS, Family, Gauge, Histogram, exponential_buckets};

pub use sys::process::write_process;

/// Seconds from seeing a Pod to seeing it run.
const POD_START: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0,
    480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
const IMAGE_PULL: &[f64] = &[
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0,
    2700.0, 3600.0,
];
/// A minute, an hour, four, a day, a week, a month, three, six, a year, four.
const CERTIFICATE_AGE: &[f64] = &[
    60.0,
    3600.0,
    14_400.0,
    86_400.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
    124_416_000.0,
];
/// Milliseconds of a resize.
const RESIZE: &[f64] = &[
    10.0, 50.0, 100.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0, 30_000.0, 60_000.0, 120_000.0,
    300_000.0, 600_000.0,
];
const STATUS_SYNC: &[f64] = &[0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];

/// Seconds of a request to the API server.
const REQUEST: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

/// Seconds that volumes take.
const STORAGE: &[f64] = &[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

/// Series of a family whose labels name Pods; enough for the largest node, and bounded.
const PER_CONTAINER: usize = 16 * 1024;

/// Label values of `container_type`.
pub mod container_type {
    pub const CONTAINER: &str = "container";
    pub const INIT: &str = "init_container";
    pub const EPHEMERAL: &str = "ephemeral_container";
    pub const SANDBOX: &str = "pod_sandbox";
}

/// The value of `image_size_in_bytes` for an image of this size.
#[must_use]
pub fn image_size_label(bytes: u64) -> &'static str {
    const MB: u64 = 1024 * 1024;
    const GB: u64 = 1024 * MB;
    match bytes {
        b if b < 10 * MB => "0-10MB",
        b if b < 100 * MB => "10MB-100MB",
        b if b < 500 * MB => "100MB-500MB",
        b if b < GB => "500MB-1GB",
        b if b < 5 * GB => "1GB-5GB",
        b if b < 10 * GB => "5GB-10GB",
        b if b < 20 * GB => "10GB-20GB",
        b if b < 30 * GB => "20GB-30GB",
        b if b < 40 * GB => "30GB-40GB",
        b if b < 60 * GB => "40GB-60GB",
        b if b < 100 * GB => "60GB-100GB",
        _ => "GT100GB",
    }
}

/// Declares the families, their constructor and the order in which they are printed, once.
macro_rules! families {
    ($(#[$doc:meta])* pub struct $name:ident {
        $($field:ident : $kind:ident [$($label:literal),*] $(buckets $buckets:expr;)? $(limit $limit:expr;)? $(shown $when:ident;)?
          = $metric:literal, $help:literal;)*
    }) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            $(pub $field: $kind<{ <[&str]>::len(&[$($label),*]) }>,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $($field: $kind::new($metric, $help, [$($label),*] $(, &$buckets)?)$(.limit($limit))?$(.$when())?,)*
                }
            }
        }

        impl $name {
            /// Every family, in the order of the table.
            pub fn families(&self) -> impl Iterator<Item = &dyn Family> {
                [$(&self.$field as &dyn Family),*].into_iter()
            }
        }
    };
}

families! {
    /// What `/metrics` shows.
    pub struct Metrics {
        active_pods: Gauge["static"]
            = "kubelet_active_pods", "Pods that count when a new one asks for admission.";
        admission_rejections_total: Counter["reason"]
            = "kubelet_admission_rejections_total", "Pods turned away, by reason.";
        certificate_manager_client_expiration_renew_errors: Counter[]
            = "kubelet_certificate_manager_client_expiration_renew_errors", "Failed attempts to renew the client certificate.";
        certificate_manager_client_ttl_seconds: Gauge[] shown when_set;
            = "kubelet_certificate_manager_client_ttl_seconds", "Seconds until the client certificate expires; negative once it has, +Inf without one.";
        certificate_manager_server_rotation_seconds: Histogram[] buckets CERTIFICATE_AGE;
            = "kubelet_certificate_manager_server_rotation_seconds", "Age in seconds at which serving certificates were replaced.";
        certificate_manager_server_ttl_seconds: Gauge[] shown when_set;
            = "kubelet_certificate_manager_server_ttl_seconds", "Seconds until the serving certificate expires; negative once it has, +Inf without one.";
        cgroup_manager_duration_seconds: Histogram["operation_type"] buckets DEFAULT_BUCKETS;
            = "kubelet_cgroup_manager_duration_seconds", "Seconds taken to make or remove a Pod's cgroup.";
        cgroup_version: Gauge[]
            = "kubelet_cgroup_version", "The cgroup version of the host: 1 or 2.";
        container_log_filesystem_used_bytes: Gauge["uid", "namespace", "pod", "container"] limit PER_CONTAINER;
            = "kubelet_container_log_filesystem_used_bytes", "Bytes that a container's logs occupy on disk.";
        container_aligned_compute_resources_count: Counter["scope", "boundary"]
            = "kubelet_container_aligned_compute_resources_count", "Allocations to containers that are aligned, by what to.";
        container_aligned_compute_resources_failure_count: Counter["scope", "boundary"]
            = "kubelet_container_aligned_compute_resources_failure_count", "Allocations to containers that could not be aligned, by what to.";
        container_requested_resizes_total: Counter["resource", "requirement", "operation"]
            = "kubelet_container_requested_resizes_total", "Resizes that were asked for, each resource of each container for itself.";
        containers_per_pod_count: Histogram[] buckets exponential_buckets(1.0, 2.0, 5);
            = "kubelet_containers_per_pod_count", "Containers in each Pod.";
        cpu_manager_allocation_per_numa: Gauge["numa_node"]
            = "kubelet_cpu_manager_allocation_per_numa", "CPUs that containers have for themselves, by NUMA node.";
        cpu_manager_exclusive_cpu_allocation_count: Gauge[]
            = "kubelet_cpu_manager_exclusive_cpu_allocation_count", "CPUs that containers have for themselves.";
        cpu_manager_pinning_errors_total: Counter[]
            = "kubelet_cpu_manager_pinning_errors_total", "Containers that should have got CPUs of their own and did not.";
        cpu_manager_pinning_requests_total: Counter[]
            = "kubelet_cpu_manager_pinning_requests_total", "Containers that asked for CPUs of their own.";
        cpu_manager_shared_pool_size_millicores: Gauge[]
            = "kubelet_cpu_manager_shared_pool_size_millicores", "CPUs that anybody may still get for himself, in thousandths.";
        csi_operations_seconds: Histogram["driver_name", "method_name", "grpc_status_code", "migrated"] buckets STORAGE;
            = "csi_operations_seconds", "Seconds that calls to CSI drivers took.";
        desired_pods: Gauge["static"]
            = "kubelet_desired_pods", "Pods the kubelet is told to run.";
        evented_pleg_connection_error_count: Counter[]
            = "kubelet_evented_pleg_connection_error_count", "Failed attempts to open the runtime's event stream.";
        evented_pleg_connection_latency_seconds: Histogram[] buckets DEFAULT_BUCKETS;
            = "kubelet_evented_pleg_connection_latency_seconds", "Age of runtime events when they arrive.";
        evented_pleg_connection_success_count: Counter[]
            = "kubelet_evented_pleg_connection_success_count", "Event streams opened on the runtime.";
        graceful_shutdown_end_time_seconds: Gauge[]
            = "kubelet_graceful_shutdown_end_time_seconds", "Unix time at which the last graceful shutdown had ended the Pods.";
        graceful_shutdown_start_time_seconds: Gauge[]
            = "kubelet_graceful_shutdown_start_time_seconds", "Unix time at which the last graceful shutdown began.";
        http_inflight_requests: Gauge["method", "path", "server_type", "long_running"]
            = "kubelet_http_inflight_requests", "HTTP requests being served now.";
        http_requests_duration_seconds: Histogram["method", "path", "server_type", "long_running"] buckets DEFAULT_BUCKETS;
            = "kubelet_http_requests_duration_seconds", "Seconds taken to serve an HTTP request.";
        http_requests_total: Counter["method", "path", "server_type", "long_running"]
            = "kubelet_http_requests_total", "HTTP requests received.";
        device_plugin_alloc_duration_seconds: Histogram["resource_name"] buckets DEFAULT_BUCKETS;
            = "kubelet_device_plugin_alloc_duration_seconds", "Seconds that device plugins took to answer Allocate, by resource.";
        device_plugin_registration_total: Counter["resource_name"]
            = "kubelet_device_plugin_registration_total", "Registrations of device plugins, by resource.";
        eviction_stats_age_seconds: Histogram["eviction_signal"] buckets DEFAULT_BUCKETS;
            = "kubelet_eviction_stats_age_seconds", "Seconds between a measurement and the eviction that it led to, by signal.";
        evictions: Counter["eviction_signal"]
            = "kubelet_evictions", "Pods that the node ended to defend itself, by signal.";
        image_garbage_collected_total: Counter["reason"]
            = "kubelet_image_garbage_collected_total", "Images removed because nobody used them, by reason.";
        image_pull_duration_seconds: Histogram["image_size_in_bytes"] buckets IMAGE_PULL;
            = "kubelet_image_pull_duration_seconds", "Seconds taken by an image pull, by image size.";
        image_volume_mounted_errors_total: Counter[]
            = "kubelet_image_volume_mounted_errors_total", "Image volumes that could not be mounted.";
        image_volume_mounted_succeed_total: Counter[]
            = "kubelet_image_volume_mounted_succeed_total", "Image volumes mounted.";
        image_volume_requested_total: Counter[]
            = "kubelet_image_volume_requested_total", "Image volumes that Pods asked for.";
        lifecycle_handler_http_fallbacks_total: Counter[]
            = "kubelet_lifecycle_handler_http_fallbacks_total", "HTTPS hooks that were answered over plain HTTP.";
        lifecycle_handler_sleep_terminated_total: Counter[]
            = "kubelet_sleep_action_terminated_early_total", "Sleep hooks cut short by the end of their container.";
        managed_ephemeral_containers: Gauge[]
            = "kubelet_managed_ephemeral_containers", "Ephemeral containers in the Pods of this node.";
        memory_manager_pinning_errors_total: Counter[]
            = "kubelet_memory_manager_pinning_errors_total", "Containers that should have got memory of their own and did not.";
        memory_manager_pinning_requests_total: Counter[]
            = "kubelet_memory_manager_pinning_requests_total", "Containers that asked for memory of their own.";
        memory_qos_node_memory_low_bytes: Gauge[] shown when_set;
            = "kubelet_memory_qos_node_memory_low_bytes", "Memory that Burstable Pods keep as long as others have any left.";
        memory_qos_node_memory_min_bytes: Gauge[] shown when_set;
            = "kubelet_memory_qos_node_memory_min_bytes", "Memory that Guaranteed Pods keep whatever happens.";
        mirror_pods: Gauge[]
            = "kubelet_mirror_pods", "Mirror Pods of this node that the API server has.";
        node_name: Gauge["node"]
            = "kubelet_node_name", "Always 1; the label is the node's name.";
        node_startup_duration_seconds: Gauge[]
            = "kubelet_node_startup_duration_seconds", "Seconds from the machine's boot until the node was ready for the first time.";
        node_startup_post_registration_duration_seconds: Gauge[]
            = "kubelet_node_startup_post_registration_duration_seconds", "Seconds from registration until the node was ready.";
        node_startup_pre_kubelet_duration_seconds: Gauge[]
            = "kubelet_node_startup_pre_kubelet_duration_seconds", "Seconds from the machine's boot until the kubelet started.";
        node_startup_pre_registration_duration_seconds: Gauge[]
            = "kubelet_node_startup_pre_registration_duration_seconds", "Seconds from the kubelet's start until it tried to register.";
        node_startup_registration_duration_seconds: Gauge[]
            = "kubelet_node_startup_registration_duration_seconds", "Seconds taken to register.";
        orphaned_runtime_pods_total: Counter[]
            = "kubelet_orphaned_runtime_pods_total", "Pods found in the runtime that nobody here had started.";
        pleg_discard_events: Counter[]
            = "kubelet_pleg_discard_events", "Container events thrown away because a reader was slow.";
        pleg_last_seen_seconds: Gauge[]
            = "kubelet_pleg_last_seen_seconds", "Unix time of the last completed look at the runtime.";
        pleg_relist_duration_seconds: Histogram[] buckets DEFAULT_BUCKETS;
            = "kubelet_pleg_relist_duration_seconds", "Seconds taken to list the runtime's Pods.";
        pleg_relist_interval_seconds: Histogram[] buckets DEFAULT_BUCKETS;
            = "kubelet_pleg_relist_interval_seconds", "Seconds between two lists of the runtime's Pods.";
        pod_resources_endpoint_errors_get: Counter["server_api_version"]
            = "kubelet_pod_resources_endpoint_errors_get", "Calls of Get on the pod-resources API that failed.";
        pod_resources_endpoint_requests_get: Counter["server_api_version"]
            = "kubelet_pod_resources_endpoint_requests_get", "Calls of Get on the pod-resources API.";
        pod_resources_endpoint_requests_get_allocatable: Counter["server_api_version"]
            = "kubelet_pod_resources_endpoint_requests_get_allocatable", "Calls of GetAllocatableResources on the pod-resources API.";
        pod_resources_endpoint_requests_list: Counter["server_api_version"]
            = "kubelet_pod_resources_endpoint_requests_list", "Calls of List on the pod-resources API.";
        pod_resources_endpoint_requests_total: Counter["server_api_version"]
            = "kubelet_pod_resources_endpoint_requests_total", "Calls of the pod-resources API.";
        pod_deferred_accepted_resizes_total: Counter["retry_trigger"]
            = "kubelet_pod_deferred_accepted_resizes_total", "Resizes that were granted after they had to wait, by what made room.";
        pod_in_progress_resizes: Gauge[]
            = "kubelet_pod_in_progress_resizes", "Pods with a resize that was granted and is not in force yet.";
        pod_infeasible_resizes_total: Counter["reason_detail"]
            = "kubelet_pod_infeasible_resizes_total", "Resizes that this node never makes.";
        pod_pending_resizes: Gauge["reason"]
            = "kubelet_pod_pending_resizes", "Pods with a resize that was not granted, by reason.";
        pod_resize_duration_milliseconds: Histogram["success"] buckets RESIZE;
            = "kubelet_pod_resize_duration_milliseconds", "Milliseconds taken to bring a resize into force.";
        pod_start_duration_seconds: Histogram[] buckets POD_START;
            = "kubelet_pod_start_duration_seconds", "Seconds from the first sight of a Pod until it runs.";
        pod_start_sli_duration_seconds: Histogram[] buckets POD_START;
            = "kubelet_pod_start_sli_duration_seconds", "Seconds from a Pod's creation until all its containers started, less image pulls and init containers.";
        pod_start_total_duration_seconds: Histogram[] buckets POD_START;
            = "kubelet_pod_start_total_duration_seconds", "Seconds from a Pod's creation until all its containers started.";
        pod_status_sync_duration_seconds: Histogram[] buckets STATUS_SYNC;
            = "kubelet_pod_status_sync_duration_seconds", "Seconds from a change of a Pod's status until it is published.";
        pod_worker_duration_seconds: Histogram["operation_type"] buckets DEFAULT_BUCKETS;
            = "kubelet_pod_worker_duration_seconds", "Seconds taken by one step of a Pod, by kind: create, update, sync, kill or terminated.";
        pod_worker_start_duration_seconds: Histogram[] buckets DEFAULT_BUCKETS;
            = "kubelet_pod_worker_start_duration_seconds", "Seconds from the first sight of a Pod until its task begins.";
        preemptions: Counter["preemption_signal"]
            = "kubelet_preemptions", "Pods ended to make room for a critical one, by what there was too little of.";
        restarted_pods_total: Counter["static"]
            = "kubelet_restarted_pods_total", "Pods that ended and came back under the same UID.";
        run_podsandbox_duration_seconds: Histogram["runtime_handler"] buckets DEFAULT_BUCKETS;
            = "kubelet_run_podsandbox_duration_seconds", "Seconds taken to create a sandbox, by runtime handler.";
        run_podsandbox_errors_total: Counter["runtime_handler"]
            = "kubelet_run_podsandbox_errors_total", "Sandboxes that could not be created, by runtime handler.";
        running_containers: Gauge["container_state"]
            = "kubelet_running_containers", "Containers in the runtime, by state.";
        running_pods: Gauge[]
            = "kubelet_running_pods", "Pods with a running sandbox.";
        runtime_operations_duration_seconds: Histogram["operation_type"] buckets exponential_buckets(0.005, 2.5, 14);
            = "kubelet_runtime_operations_duration_seconds", "Seconds taken by calls to the runtime, by operation.";
        runtime_operations_errors_total: Counter["operation_type"]
            = "kubelet_runtime_operations_errors_total", "Failed calls to the runtime, by operation.";
        runtime_operations_total: Counter["operation_type"]
            = "kubelet_runtime_operations_total", "Calls to the runtime, by operation.";
        server_expiration_renew_errors: Counter[]
            = "kubelet_server_expiration_renew_errors", "Failed attempts to renew the serving certificate.";
        started_containers_errors_total: Counter["container_type", "code"]
            = "kubelet_started_containers_errors_total", "Containers that could not be started.";
        started_containers_total: Counter["container_type"]
            = "kubelet_started_containers_total", "Containers started.";
        started_pods_errors_total: Counter[]
            = "kubelet_started_pods_errors_total", "Pods that could not be started.";
        started_pods_total: Counter[]
            = "kubelet_started_pods_total", "Pods started.";
        started_user_namespaced_pods_errors_total: Counter[]
            = "kubelet_started_user_namespaced_pods_errors_total", "Pods with a user namespace that could not be started.";
        started_user_namespaced_pods_total: Counter[]
            = "kubelet_started_user_namespaced_pods_total", "Pods with a user namespace started.";
        storage_operation_duration_seconds: Histogram["volume_plugin", "operation_name", "status", "migrated"] buckets STORAGE;
            = "storage_operation_duration_seconds", "Seconds that it took to have a volume, or to be rid of it.";
        terminated_containers_total: Counter["container_type", "exit_code", "reason"]
            = "kubelet_terminated_containers_total", "Containers that ended, by exit code and reason.";
        resource_manager_allocation_errors_total: Counter["resource_name", "source"]
            = "resource_manager_allocation_errors_total", "Exclusive allocations that failed, by resource.";
        resource_manager_allocations_total: Counter["resource_name", "source"]
            = "resource_manager_allocations_total", "Exclusive allocations, by resource.";
        resource_manager_container_assignments: Counter["resource_name", "assignment_type"]
            = "resource_manager_container_assignments", "Containers with resources of their own, by resource.";
        topology_manager_admission_duration_ms: Histogram[] buckets exponential_buckets(0.05, 2.0, 15);
            = "kubelet_topology_manager_admission_duration_ms", "Milliseconds taken to find a Pod a place.";
        topology_manager_admission_errors_total: Counter[]
            = "kubelet_topology_manager_admission_errors_total", "Pods turned away because no place was found for them.";
        topology_manager_admission_requests_total: Counter[]
            = "kubelet_topology_manager_admission_requests_total", "Pods that a place was looked for.";
        volume_manager_total_volumes: Gauge["plugin_name", "state"]
            = "volume_manager_total_volumes", "Volumes that Pods shall have, and those that they have, by who makes them.";
        volume_stats_available_bytes: Gauge["namespace", "persistentvolumeclaim"]
            = "kubelet_volume_stats_available_bytes", "Bytes free on a volume, by its claim.";
        volume_stats_capacity_bytes: Gauge["namespace", "persistentvolumeclaim"]
            = "kubelet_volume_stats_capacity_bytes", "Bytes a volume has, by its claim.";
        volume_stats_inodes: Gauge["namespace", "persistentvolumeclaim"]
            = "kubelet_volume_stats_inodes", "Inodes a volume has, by its claim.";
        volume_stats_inodes_free: Gauge["namespace", "persistentvolumeclaim"]
            = "kubelet_volume_stats_inodes_free", "Inodes free on a volume, by its claim.";
        volume_stats_inodes_used: Gauge["namespace", "persistentvolumeclaim"]
            = "kubelet_volume_stats_inodes_used", "Inodes used on a volume, by its claim.";
        volume_stats_used_bytes: Gauge["namespace", "persistentvolumeclaim"]
            = "kubelet_volume_stats_used_bytes", "Bytes used on a volume, by its claim.";
        disk_usage_files_total: Counter[]
            = "longshore_disk_usage_files_total", "Files looked at to know what Pods have on the node's disk.";
        disk_usage_seconds: Histogram[] buckets DEFAULT_BUCKETS;
            = "longshore_disk_usage_seconds", "Seconds taken by one look at what Pods have on the node's disk.";
        working_pods: Gauge["lifecycle", "config", "static"]
            = "kubelet_working_pods", "Pods being worked on, by stage, by whether they are still wanted, and by source.";
        rest_client_request_duration_seconds: Histogram["verb", "host"] buckets REQUEST;
            = "rest_client_request_duration_seconds", "Seconds until the API server began to answer, by verb.";
        rest_client_requests_total: Counter["code", "method", "host"]
            = "rest_client_requests_total", "Requests to the API server, by the code of its answer.";
        unreadable_objects_total: Counter["kind"]
            = "longshore_unreadable_objects_total", "Objects of the API server that could not be read, or not all of them.";
        kubernetes_build_info: Gauge["major", "minor", "git_version", "git_commit", "git_tree_state", "build_date", "go_version", "compiler", "platform"]
            = "kubernetes_build_info", "Always 1; the labels say what was built, from what and how.";
        kubernetes_feature_enabled: Gauge["name", "stage"]
            = "kubernetes_feature_enabled", "Whether a feature gate is on (1) or off (0), and its stage.";
    }
}

families! {
    /// What `/metrics/probes` shows.
    pub struct ProbeMetrics {
        duration_seconds: Histogram["probe_type", "container", "pod", "namespace"] buckets DEFAULT_BUCKETS; limit PER_CONTAINER;
            = "prober_probe_duration_seconds", "Seconds until a probe was answered.";
        total: Counter["probe_type", "result", "container", "pod", "namespace", "pod_uid"] limit PER_CONTAINER;
            = "prober_probe_total", "Probes made, by kind and result.";
    }
}

// === impl Metrics ===

impl Metrics {
    /// Counts what clients of the API server ask, and how it goes.
    #[must_use]
    pub fn of_requests(self: &Arc<Self>) -> client::Meter {
        let metrics = self.clone();
        client::Meter::new(move |asked| {
            let code = asked.code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
            metrics.rest_client_requests_total.inc([&code, asked.method, asked.host]);
            metrics
                .rest_client_request_duration_seconds
                .observe_duration([asked.method, asked.host], asked.took);
        })
    }

    /// The whole of `/metrics`, this process included.
    pub fn write(&self, out: &mut dyn Write) -> fmt::Result {
        self.families().try_for_each(|f| f.write(out))?;
        supervise::write_metrics(out)?;
        write_process(out)
    }
}

// === impl ProbeMetrics ===

impl ProbeMetrics {
    pub fn write(&self, out: &mut dyn Write) -> fmt::Result {
        self.families().try_for_each(|f| f.write(out))
    }

    /// Forgets a Pod that is gone.
    pub fn forget(&self, uid: &str, namespace: &str, pod: &str) {
        self.total.retain(|[.., u]| u != uid);
        // Durations carry no UID: a successor of the same name starts again from zero.
        self.duration_seconds.retain(|[_, _, p, n]| p != pod || n != namespace);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_every_line_is_well_formed() {
        let metrics = Metrics::default();
        metrics.working_pods.set(["sync", "desired", "true"], 3.0);
        metrics.pod_worker_duration_seconds.observe(["sync"], 0.1);
        let mut out = String::new();
        metrics.write(&mut out).unwrap();
        let mut names = BTreeSet::new();
        for line in out.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                assert!(names.insert(rest.split(' ').next().unwrap().to_owned()), "twice: {rest}");
            } else if !line.starts_with('#') {
                let (series, value) = line.rsplit_once(' ').unwrap();
                assert!(value.parse::<f64>().is_ok(), "{line}");
                assert!(names.iter().any(|n| series.starts_with(n.as_str())), "{line}");
            }
        }
        assert!(
            out.contains("kubelet_working_pods{lifecycle=\"sync\",config=\"desired\",static=\"true\"} 3\n")
        );
        for name in
            ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_start_time_seconds"]
        {
            assert!(names.contains(name), "{name}");
        }
    }

    #[test]
    fn a_removed_pod_takes_its_probe_series_along() {
        let m = ProbeMetrics::default();
        for (pod, uid) in [("a", "1"), ("b", "2")] {
            m.total.inc(["Liveness", "successful", "c", pod, "ns", uid]);
            m.duration_seconds.observe(["Liveness", "c", pod, "ns"], 0.1);
        }
        m.forget("1", "ns", "a");
        let mut out = String::new();
        m.write(&mut out).unwrap();
        assert!(!out.contains("pod=\"a\"") && out.contains("pod=\"b\""));
    }

    #[test]
    fn image_sizes_fall_into_upstreams_classes() {
        assert_eq!(image_size_label(0), "0-10MB");
        assert_eq!(image_size_label(10 << 20), "10MB-100MB");
        assert_eq!(image_size_label((1 << 30) - 1), "500MB-1GB");
        assert_eq!(image_size_label(u64::MAX), "GT100GB");
    }
}
