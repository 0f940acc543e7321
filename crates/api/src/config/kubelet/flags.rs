//! Every kubelet flag: what it is, what it says in `--help`, and the field it sets.

use FlagType::{
    Bool, BoolMap, Duration, Headers, Int32, Int64, Ip, Labels, List, Map, MapUnsplit, Quantity, Raw, Text,
    Thresholds, Uint32,
};
use base::flags::{Flag, FlagType};

use crate::config::doc::Standing;
// A field's flag that stays: logging and identity.
use crate::config::flag::field as kept;
use crate::config::flag::{self, FlagRow, old, own, short};
use Standing::{Honoured as YES, InPart, Inert as INERT, NotYet as NO};

/// The rows as the parser takes them.
pub fn table() -> Vec<Flag> {
    FLAGS.iter().map(|row| row.flag).collect()
}

/// The flag that sets a field, if any.
pub fn for_field(path: &str) -> Option<&'static str> {
    flag::for_field(FLAGS, path)
}

const ASKED: Standing =
    InPart("there is nothing to keep house for: figures are read when somebody asks for them");
const FOUND: Standing = InPart("containers are found by their cgroups and through CRI, without it");
const USE_FILE: &str = "set this in the file named by --config instead.";
const CADVISOR: &str = "it belongs to the resource monitor and was registered by mistake.";
const USE_EVICTION: &str = "use --eviction-hard or --eviction-soft instead.";

/// A field's flag, for which there is the file.
const fn field(
    name: &'static str,
    path: &'static str,
    kind: FlagType,
    default: &'static str,
    help: &'static str,
) -> FlagRow {
    let row = kept(name, path, kind, default, help);
    FlagRow { flag: row.flag.deprecated(USE_FILE), target: row.target }
}

#[rustfmt::skip]
pub const FLAGS: &[FlagRow] = &[
    // Settings that only flags have
    short(own("help", Bool, "false", YES, "Print this text and exit."), 'h'),
    own("version", Bool, "false", YES, "Print the version and exit."),
    own("config", Text, "", YES, "Read the configuration from this YAML or JSON file. Flags win over the file."),
    own("config-dir", Text, "", YES, "Merge the *.conf files under this directory, in lexical order, over the configuration."),
    own("kubeconfig", Text, "", YES, "How to reach the API server. Without it the node is standalone."),
    own("bootstrap-kubeconfig", Text, "", YES, "Used to ask for a client certificate when the kubeconfig is missing or its certificate has expired."),
    own("hostname-override", Text, "", YES, "Name the node this instead of the machine's host name."),
    own("node-ip", Text, "", YES, "The node's address, or two of different families separated by a comma. 0.0.0.0 or :: only chooses the family."),
    own("root-dir", Text, "/var/lib/kubelet", YES, "Where the kubelet keeps Pod directories, volumes and its own state."),
    own("cert-dir", Text, "/var/lib/kubelet/pki", YES, "Where generated certificates are kept."),
    own("cloud-provider", Text, "", YES, "Empty, or \"external\" when a cloud controller manages the node."),
    own("node-labels", Labels, "", YES, "Labels the node registers with. Keys under kubernetes.io and k8s.io must be ones a node may set."),
    own("seccomp-default", Bool, "false", YES, "Use the runtime's default seccomp profile for every container that names none."),
    own("image-credential-provider-config", Text, "", YES, "Configuration of credential provider plugins: a file, or a directory of files."),
    own("image-credential-provider-bin-dir", Text, "", YES, "Where the credential provider plugins are."),
    own("runtime-cgroups", Text, "", YES, "The container runtime's cgroup, for accounting."),
    own("lock-file", Text, "", YES, "Hold a lock on this file while running."),
    own("exit-on-lock-contention", Bool, "false", YES, "Exit when another process wants the lock file."),
    own("node-page", Text, "", YES, "Show the node in a browser here: a port of 127.0.0.1 such as 4194, or an address and a port. Empty for no page."),
    own("housekeeping-interval", Duration, "10s", ASKED, "How often container statistics are collected."),
    old("minimum-container-ttl-duration", Duration, "0s", USE_EVICTION, YES, "A dead container is kept at least this long."),
    old("maximum-dead-containers-per-container", Int32, "1", USE_EVICTION, YES, "Dead instances kept of each container."),
    old("maximum-dead-containers", Int32, "-1", USE_EVICTION, YES, "Dead containers kept in all; negative for no limit."),
    old("experimental-allocatable-ignore-eviction", Bool, "false", "it will be removed.", YES, "Leave hard eviction thresholds out of Node Allocatable."),
    old("experimental-mounter-path", Text, "", "it will be removed.", NO, "A program to mount with instead of mount(8)."),
    // The resource monitor's
    old("application-metrics-count-limit", Int32, "100", CADVISOR, INERT, "Application metrics stored per container."),
    old("boot-id-file", Text, "/proc/sys/kernel/random/boot_id", CADVISOR, NO, "Files that may hold the boot id."),
    old("container-hints", Text, "/etc/cadvisor/container_hints.json", CADVISOR, FOUND, "The container hints file."),
    old("containerd", Text, "/run/containerd/containerd.sock", CADVISOR, FOUND, "containerd's socket."),
    old("containerd-namespace", Text, "k8s.io", CADVISOR, FOUND, "containerd's namespace."),
    old("enable-load-reader", Bool, "false", CADVISOR, INERT, "Read CPU load."),
    old("event-storage-age-limit", Text, "default=0", CADVISOR, INERT, "How long events are stored, per type."),
    old("event-storage-event-limit", Text, "default=0", CADVISOR, INERT, "How many events are stored, per type."),
    old("global-housekeeping-interval", Duration, "1m0s", CADVISOR, ASKED, "How often global housekeeping runs."),
    old("log-cadvisor-usage", Bool, "false", CADVISOR, INERT, "Log the monitor's own usage."),
    old("machine-id-file", Text, "/etc/machine-id,/var/lib/dbus/machine-id", CADVISOR, NO, "Files that may hold the machine id."),
    old("storage-driver-user", Text, "root", CADVISOR, INERT, "Database user."),
    old("storage-driver-password", Text, "root", CADVISOR, INERT, "Database password."),
    old("storage-driver-host", Text, "localhost:8086", CADVISOR, INERT, "Database host and port."),
    old("storage-driver-db", Text, "cadvisor", CADVISOR, INERT, "Database name."),
    old("storage-driver-table", Text, "stats", CADVISOR, INERT, "Database table."),
    old("storage-driver-secure", Bool, "false", CADVISOR, INERT, "Use a secure connection to the database."),
    old("storage-driver-buffer-duration", Duration, "1m0s", CADVISOR, INERT, "How long writes to the database are buffered."),
    // Server
    field("enable-server", "enableServer", Bool, "true", "Serve the kubelet's API."),
    field("address", "address", Ip, "0.0.0.0", "The address to serve on; 0.0.0.0 or :: for all."),
    field("port", "port", Int32, "10250", "The port of the authenticated API."),
    field("read-only-port", "readOnlyPort", Int32, "10255", "The port of the unauthenticated read-only API; 0 disables it."),
    field("healthz-port", "healthzPort", Int32, "10248", "The port of the health endpoint; 0 disables it."),
    field("healthz-bind-address", "healthzBindAddress", Ip, "127.0.0.1", "The address of the health endpoint."),
    field("enable-debugging-handlers", "enableDebuggingHandlers", Bool, "true", "Serve logs, exec, attach and port-forward."),
    field("contention-profiling", "enableContentionProfiling", Bool, "false", "Profile lock contention."),
    field("streaming-connection-idle-timeout", "streamingConnectionIdleTimeout", Duration, "4h0m0s", "Close a stream that is idle this long."),
    // TLS
    field("tls-cert-file", "tlsCertFile", Text, "", "The serving certificate."),
    field("tls-private-key-file", "tlsPrivateKeyFile", Text, "", "The key of the serving certificate."),
    field("tls-cipher-suites", "tlsCipherSuites", List, "", "Cipher suites to offer."),
    field("tls-min-version", "tlsMinVersion", Text, "", "The oldest TLS version to accept: VersionTLS10 to VersionTLS13."),
    field("rotate-certificates", "rotateCertificates", Bool, "false", "Renew the client certificate before it expires."),
    field("rotate-server-certificates", "serverTLSBootstrap", Bool, "false", "Ask the API server for the serving certificate and renew it."),
    // Who may call
    field("client-ca-file", "authentication.x509.clientCAFile", Text, "", "Authenticate client certificates signed by these authorities."),
    field("authentication-token-webhook", "authentication.webhook.enabled", Bool, "false", "Authenticate bearer tokens by TokenReview."),
    field("authentication-token-webhook-cache-ttl", "authentication.webhook.cacheTTL", Duration, "2m0s", "How long a TokenReview's answer is kept."),
    field("anonymous-auth", "authentication.anonymous.enabled", Bool, "true", "Accept callers who show no credentials, as system:anonymous."),
    field("authorization-mode", "authorization.mode", Text, "AlwaysAllow", "AlwaysAllow, or Webhook to ask by SubjectAccessReview."),
    field("authorization-webhook-cache-authorized-ttl", "authorization.webhook.cacheAuthorizedTTL", Duration, "5m0s", "How long a positive answer is kept."),
    field("authorization-webhook-cache-unauthorized-ttl", "authorization.webhook.cacheUnauthorizedTTL", Duration, "30s", "How long a negative answer is kept."),
    // Pod sources
    field("pod-manifest-path", "staticPodPath", Text, "", "A Pod manifest, or a directory of them. Names that start with a dot are skipped."),
    field("manifest-url", "staticPodURL", Text, "", "A URL that serves Pod manifests."),
    field("manifest-url-header", "staticPodURLHeader", Headers, "", "HTTP headers for --manifest-url as name:value, comma separated; repeatable."),
    field("sync-frequency", "syncFrequency", Duration, "1m0s", "The longest time between two looks at a Pod."),
    field("file-check-frequency", "fileCheckFrequency", Duration, "20s", "How often manifests are listed again."),
    field("http-check-frequency", "httpCheckFrequency", Duration, "20s", "How often the manifest URL is polled."),
    // API client
    field("kube-api-qps", "kubeAPIQPS", Int32, "50", "Requests per second to the API server."),
    field("kube-api-burst", "kubeAPIBurst", Int32, "100", "Burst of requests to the API server."),
    field("event-qps", "eventRecordQPS", Int32, "50", "Events per second; 0 for no limit."),
    field("event-burst", "eventBurst", Int32, "100", "Burst of events."),
    field("kube-api-content-type", "contentType", Text, "application/vnd.kubernetes.protobuf", "Content type of requests to the API server."),
    // Node status
    field("register-node", "registerNode", Bool, "true", "Create the Node object."),
    field("register-with-taints", "registerWithTaints", Raw("taints"), "", "Taints the node registers with, as key=value:effect, comma separated."),
    field("node-status-update-frequency", "nodeStatusUpdateFrequency", Duration, "10s", "How often the node's status is computed."),
    field("node-status-max-images", "nodeStatusMaxImages", Int32, "50", "Images listed in the node's status; -1 for all."),
    kept("provider-id", "providerID", Text, "", "The machine's identifier at its provider."),
    // Runtime
    field("container-runtime-endpoint", "containerRuntimeEndpoint", Text, "unix:///run/containerd/containerd.sock", "The container runtime's socket."),
    field("image-service-endpoint", "imageServiceEndpoint", Text, "", "The image service's socket; empty for the runtime's."),
    field("runtime-request-timeout", "runtimeRequestTimeout", Duration, "2m0s", "Deadline of runtime requests other than pull, logs, exec and attach."),
    field("cgroup-driver", "cgroupDriver", Text, "cgroupfs", "cgroupfs or systemd; what the runtime reports wins."),
    field("cgroup-root", "cgroupRoot", Text, "", "The cgroup under which Pods live."),
    field("cgroups-per-qos", "cgroupsPerQOS", Bool, "true", "Make a cgroup per quality-of-service class and per Pod."),
    field("kubelet-cgroups", "kubeletCgroups", Text, "", "The kubelet's own cgroup."),
    field("system-cgroups", "systemCgroups", Text, "", "The cgroup for processes that are in none."),
    // Images
    field("registry-qps", "registryPullQPS", Int32, "5", "Image pulls per second; 0 for no limit."),
    field("registry-burst", "registryBurst", Int32, "10", "Burst of image pulls."),
    field("serialize-image-pulls", "serializeImagePulls", Bool, "true", "Pull one image at a time."),
    field("minimum-image-ttl-duration", "imageMinimumGCAge", Duration, "2m0s", "An unused image is kept at least this long."),
    field("image-gc-high-threshold", "imageGCHighThresholdPercent", Int32, "85", "Percent of disk use at which unused images are removed."),
    field("image-gc-low-threshold", "imageGCLowThresholdPercent", Int32, "80", "Percent of disk use down to which unused images are removed."),
    // DNS and network
    field("cluster-domain", "clusterDomain", Text, "", "The cluster's DNS domain."),
    field("cluster-dns", "clusterDNS", List, "", "DNS servers for Pods with the ClusterFirst policy."),
    field("resolv-conf", "resolvConf", Text, "/etc/resolv.conf", "The resolver configuration Pods inherit; empty for none."),
    field("pod-cidr", "podCIDR", Text, "", "Addresses for Pods, in standalone mode only."),
    field("hairpin-mode", "hairpinMode", Text, "promiscuous-bridge", "promiscuous-bridge, hairpin-veth or none. Without effect."),
    field("make-iptables-util-chains", "makeIPTablesUtilChains", Bool, "true", "Keep the iptables chains other components look for."),
    // Limits
    field("max-pods", "maxPods", Int32, "110", "Pods this node may run."),
    field("pods-per-core", "podsPerCore", Int32, "0", "Pods per core; 0 for no such limit. --max-pods still holds."),
    field("pod-max-pids", "podPidsLimit", Int64, "-1", "Processes per Pod; -1 for what the node allows."),
    field("max-open-files", "maxOpenFiles", Int64, "1000000", "Files the kubelet may open."),
    field("cpu-cfs-quota", "cpuCFSQuota", Bool, "true", "Enforce CPU limits."),
    field("cpu-cfs-quota-period", "cpuCFSQuotaPeriod", Duration, "100ms", "The period over which CPU limits are enforced, 1ms to 1s."),
    field("oom-score-adj", "oomScoreAdj", Int32, "-999", "The kubelet's own OOM score adjustment, -1000 to 1000."),
    // Reservations
    field("kube-reserved", "kubeReserved", Map, "", "Resources for Kubernetes components: cpu, memory, ephemeral-storage, pid."),
    field("system-reserved", "systemReserved", Map, "", "Resources for the rest of the system: cpu, memory, ephemeral-storage, pid."),
    field("reserved-cpus", "reservedSystemCPUs", Text, "", "CPUs for system and Kubernetes components, such as 0-1,4."),
    field("kube-reserved-cgroup", "kubeReservedCgroup", Text, "", "The cgroup of Kubernetes components."),
    field("system-reserved-cgroup", "systemReservedCgroup", Text, "", "The cgroup of the rest of the system."),
    field("enforce-node-allocatable", "enforceNodeAllocatable", List, "pods", "What to enforce: none, pods, system-reserved[-compressible], kube-reserved[-compressible]."),
    field("qos-reserved", "qosReserved", Map, "", "Percent of requests reserved per quality-of-service class; memory only."),
    // Eviction
    field("eviction-hard", "evictionHard", Thresholds, "", "Evict at once below these, such as memory.available<1Gi."),
    field("eviction-soft", "evictionSoft", Thresholds, "", "Evict below these after a grace period."),
    field("eviction-soft-grace-period", "evictionSoftGracePeriod", Map, "", "How long a soft threshold must be met, such as memory.available=1m30s."),
    field("eviction-minimum-reclaim", "evictionMinimumReclaim", Map, "", "How much to reclaim beyond a threshold, such as imagefs.available=2Gi."),
    field("eviction-pressure-transition-period", "evictionPressureTransitionPeriod", Duration, "5m0s", "How long a pressure condition lasts after the pressure."),
    field("eviction-max-pod-grace-period", "evictionMaxPodGracePeriod", Int32, "0", "Seconds a Pod gets in a soft eviction; negative for the Pod's own."),
    field("kernel-memcg-notification", "kernelMemcgNotification", Bool, "false", "Let the kernel say when a memory threshold is crossed."),
    // CPU and NUMA
    field("cpu-manager-policy", "cpuManagerPolicy", Text, "none", "none or static."),
    field("cpu-manager-policy-options", "cpuManagerPolicyOptions", MapUnsplit, "", "One key=value option of the CPU policy; repeatable."),
    field("cpu-manager-reconcile-period", "cpuManagerReconcilePeriod", Duration, "10s", "How often CPU assignments are written again."),
    field("memory-manager-policy", "memoryManagerPolicy", Text, "None", "None or Static."),
    field("reserved-memory", "reservedMemory", Raw("reservations"), "", "Memory kept back on a NUMA node, such as 0:memory=1Gi,hugepages-2Mi=512Mi; repeatable."),
    field("topology-manager-policy", "topologyManagerPolicy", Text, "none", "none, best-effort, restricted or single-numa-node."),
    field("topology-manager-scope", "topologyManagerScope", Text, "container", "container or pod."),
    field("topology-manager-policy-options", "topologyManagerPolicyOptions", Map, "", "Options of the topology policy."),
    // Memory
    field("fail-swap-on", "failSwapOn", Bool, "true", "Refuse to start with swap on."),
    kept("fail-cgroupv1", "failCgroupV1", Bool, "true", "Refuse to start on a cgroup v1 host."),
    // Logs
    field("container-log-max-size", "containerLogMaxSize", Text, "10Mi", "Size at which a container's log is rotated."),
    field("container-log-max-files", "containerLogMaxFiles", Int32, "5", "Log files kept per container, at least 2."),
    field("logging-format", "logging.format", Text, "text", "text or json."),
    kept("log-flush-frequency", "logging.flushFrequency", Duration, "5s", "The longest time a log line may be buffered."),
    short(kept("v", "logging.verbosity", Uint32, "0", "How much to log; 0 to 10."), 'v'),
    kept("vmodule", "logging.vmodule", Raw("pattern=N,..."), "", "Verbosity per source file, text format only."),
    field("log-text-split-stream", "logging.options.text.splitStream", Bool, "false", "In text format, errors to stderr and the rest to stdout."),
    field("log-text-info-buffer-size", "logging.options.text.infoBufferSize", Quantity, "0", "Buffer of the info stream in text format."),
    field("log-json-split-stream", "logging.options.json.splitStream", Bool, "false", "In JSON format, errors to stderr and the rest to stdout."),
    field("log-json-info-buffer-size", "logging.options.json.infoBufferSize", Quantity, "0", "Buffer of the info stream in JSON format."),
    // Volumes
    field("volume-plugin-dir", "volumePluginDir", Text, "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/", "Where exec volume plugins are."),
    field("volume-stats-agg-period", "volumeStatsAggPeriod", Duration, "1m0s", "How often volume use is measured; negative for never."),
    field("enable-controller-attach-detach", "enableControllerAttachDetach", Bool, "true", "Let the cluster's controller attach and detach volumes."),
    field("local-storage-capacity-isolation", "localStorageCapacityIsolation", Bool, "true", "Count local ephemeral storage."),
    // Security and the rest
    field("allowed-unsafe-sysctls", "allowedUnsafeSysctls", List, "", "Sysctls Pods may set although unsafe; a trailing * matches a group."),
    field("protect-kernel-defaults", "protectKernelDefaults", Bool, "false", "Refuse to start when a kernel setting differs from what the kubelet wants."),
    field("feature-gates", "featureGates", BoolMap, "", "Gates as name=true, comma separated."),
    field("runonce", "runOnce", Bool, "false", "No longer possible; setting it is an error."),
];

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::config::doc;
    use crate::config::flag::Target;
    use crate::config::kubelet::{defaults, fields};
    use std::collections::BTreeSet;

    #[test]
    fn names_and_targets_are_unique_and_known() {
        let names: BTreeSet<&str> = FLAGS.iter().map(|r| r.flag.name).collect();
        assert_eq!(names.len(), FLAGS.len());
        let mut paths = BTreeSet::new();
        for row in FLAGS {
            assert!(!row.flag.name.contains('_') && row.flag.help.ends_with('.'), "{row:?}");
            if let Target::Field(path) = row.target {
                assert!(fields::find(path).is_some(), "{path}");
                assert!(paths.insert(path), "{path} has two flags");
            }
        }
    }

    /// Help shows the baseline without a file; the text must be that baseline's value.
    #[test]
    fn default_texts_are_the_legacy_baseline() {
        let base = defaults::legacy();
        for row in FLAGS {
            let Target::Field(path) = row.target else {
                continue;
            };
            let field = fields::find(path).unwrap();
            let value = doc::get(&base, path).cloned().unwrap_or_else(|| field.zero());
            let text = match value {
                serde_json::Value::String(s) => s,
                serde_json::Value::Array(items) => {
                    let items: Vec<&str> = items.iter().filter_map(|i| i.as_str()).collect();
                    items.join(",")
                }
                serde_json::Value::Object(_) => String::new(),
                other => other.to_string(),
            };
            assert_eq!(row.flag.default, text, "--{}", row.flag.name);
        }
    }
}
