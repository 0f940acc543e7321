//! Every KubeletConfiguration field: its kind, its default, and whether this build acts on it.
//!
//! This table is the source of truth for decoding, defaulting, `/configz` and the compatibility
//! page. A new field is a row here and a line in `types.rs`; a test keeps the two equal.

use crate::config::doc::{Default as D, Field, FieldType, Shape, Standing};
use FieldType::{
    Bool, BoolMap, Duration, DurationOrNanos, Float, Int32, Int32List, Int64, ObjectList, Quantity, Text,
    TextList, TextListMap, TextMap, Uint32,
};
use Standing::{Honoured as YES, InPart, Inert as INERT, NotYet as NO};

/// What eviction settings do as long as nothing evicts.
const ALARM: Standing = InPart("the kernel is asked to say when memory runs out whether it is set or not");

/// A field whose zero means unset.
const fn plain(path: &'static str, kind: FieldType, default: D, standing: Standing) -> Field {
    Field { path, kind, default, shape: Shape::Plain, standing }
}

/// A field whose explicit zero counts.
const fn pointer(path: &'static str, kind: FieldType, default: D, standing: Standing) -> Field {
    Field { path, kind, default, shape: Shape::Pointer, standing }
}

/// A field without default.
const fn empty(path: &'static str, kind: FieldType, standing: Standing) -> Field {
    plain(path, kind, D::Absent, standing)
}

#[rustfmt::skip]
pub const FIELDS: &[Field] = &[
    // Server
    pointer("enableServer", Bool, D::Bool(true), YES),
    plain("address", Text, D::Text("0.0.0.0"), YES),
    plain("port", Int32, D::Int(10250), YES),
    empty("readOnlyPort", Int32, YES),
    pointer("healthzPort", Int32, D::Int(10248), YES),
    plain("healthzBindAddress", Text, D::Text("127.0.0.1"), YES),
    pointer("enableDebuggingHandlers", Bool, D::Bool(true), YES),
    pointer("enableSystemLogHandler", Bool, D::Bool(true), YES),
    pointer("enableSystemLogQuery", Bool, D::Bool(false), YES),
    pointer("enableProfilingHandler", Bool, D::Bool(true), YES),
    pointer("enableDebugFlagsHandler", Bool, D::Bool(true), YES),
    empty("enableContentionProfiling", Bool, INERT),
    plain("streamingConnectionIdleTimeout", Duration, D::Text("4h0m0s"), YES),
    // TLS
    empty("tlsCertFile", Text, YES),
    empty("tlsPrivateKeyFile", Text, YES),
    empty("tlsCipherSuites", TextList, YES),
    empty("tlsMinVersion", Text, YES),
    empty("tlsCurvePreferences", Int32List, YES),
    empty("rotateCertificates", Bool, YES),
    empty("serverTLSBootstrap", Bool, YES),
    // Who may call
    empty("authentication.x509.clientCAFile", Text, YES),
    pointer("authentication.webhook.enabled", Bool, D::Bool(true), YES),
    plain("authentication.webhook.cacheTTL", Duration, D::Text("2m0s"), YES),
    pointer("authentication.anonymous.enabled", Bool, D::Bool(false), YES),
    plain("authorization.mode", Text, D::Text("Webhook"), YES),
    plain("authorization.webhook.cacheAuthorizedTTL", Duration, D::Text("5m0s"), YES),
    plain("authorization.webhook.cacheUnauthorizedTTL", Duration, D::Text("30s"), YES),
    // Pod sources
    empty("staticPodPath", Text, YES),
    empty("staticPodURL", Text, YES),
    empty("staticPodURLHeader", TextListMap, YES),
    plain("syncFrequency", Duration, D::Text("1m0s"), YES),
    plain("fileCheckFrequency", Duration, D::Text("20s"), YES),
    plain("httpCheckFrequency", Duration, D::Text("20s"), YES),
    plain("podLogsDir", Text, D::Text("/var/log/pods"), YES),
    // API client
    pointer("kubeAPIQPS", Int32, D::Int(50), YES),
    plain("kubeAPIBurst", Int32, D::Int(100), YES),
    pointer("eventRecordQPS", Int32, D::Int(50), YES),
    plain("eventBurst", Int32, D::Int(100), YES),
    plain("contentType", Text, D::Text("application/vnd.kubernetes.protobuf"), NO),
    plain("configMapAndSecretChangeDetectionStrategy", Text, D::Text("Watch"), YES),
    // Node status
    pointer("registerNode", Bool, D::Bool(true), YES),
    empty("registerWithTaints", ObjectList, YES),
    plain("nodeStatusUpdateFrequency", Duration, D::Text("10s"), YES),
    plain("nodeStatusReportFrequency", Duration, D::Text("5m0s"), YES),
    plain("nodeLeaseDurationSeconds", Int32, D::Int(40), YES),
    pointer("nodeStatusMaxImages", Int32, D::Int(50), YES),
    empty("providerID", Text, YES),
    // Runtime
    plain("containerRuntimeEndpoint", Text, D::Text("unix:///run/containerd/containerd.sock"), YES),
    empty("imageServiceEndpoint", Text, YES),
    plain("runtimeRequestTimeout", Duration, D::Text("2m0s"), YES),
    plain("cgroupDriver", Text, D::Text("cgroupfs"), YES),
    empty("cgroupRoot", Text, YES),
    pointer("cgroupsPerQOS", Bool, D::Bool(true), YES),
    empty("kubeletCgroups", Text, YES),
    empty("systemCgroups", Text, YES),
    // Images
    pointer("registryPullQPS", Int32, D::Int(5), YES),
    plain("registryBurst", Int32, D::Int(10), YES),
    pointer("serializeImagePulls", Bool, D::Bool(true), YES),
    pointer("maxParallelImagePulls", Int32, D::Absent, YES),
    plain("imageMinimumGCAge", Duration, D::Text("2m0s"), YES),
    empty("imageMaximumGCAge", Duration, YES),
    pointer("imageGCHighThresholdPercent", Int32, D::Int(85), YES),
    pointer("imageGCLowThresholdPercent", Int32, D::Int(80), YES),
    plain("imagePullCredentialsVerificationPolicy", Text, D::Text("NeverVerifyPreloadedImages"), YES),
    empty("preloadedImagesVerificationAllowlist", TextList, YES),
    // DNS and network
    empty("clusterDomain", Text, YES),
    empty("clusterDNS", TextList, YES),
    pointer("resolvConf", Text, D::Text("/etc/resolv.conf"), YES),
    empty("podCIDR", Text, YES),
    plain("hairpinMode", Text, D::Text("promiscuous-bridge"), INERT),
    pointer("makeIPTablesUtilChains", Bool, D::Bool(true), YES),
    pointer("iptablesMasqueradeBit", Int32, D::Int(14), INERT),
    pointer("iptablesDropBit", Int32, D::Int(15), INERT),
    // Limits
    plain("maxPods", Int32, D::Int(110), YES),
    empty("podsPerCore", Int32, YES),
    pointer("podPidsLimit", Int64, D::Int(-1), YES),
    plain("maxOpenFiles", Int64, D::Int(1_000_000), YES),
    pointer("cpuCFSQuota", Bool, D::Bool(true), YES),
    pointer("cpuCFSQuotaPeriod", Duration, D::Text("100ms"), YES),
    pointer("oomScoreAdj", Int32, D::Int(-999), YES),
    pointer("singleProcessOOMKill", Bool, D::Absent, YES),
    // Reservations
    empty("kubeReserved", TextMap, YES),
    empty("systemReserved", TextMap, YES),
    empty("reservedSystemCPUs", Text, YES),
    empty("kubeReservedCgroup", Text, YES),
    empty("systemReservedCgroup", Text, YES),
    pointer("enforceNodeAllocatable", TextList, D::List(&["pods"]), YES),
    empty("qosReserved", TextMap, YES),
    // Eviction
    empty("evictionHard", TextMap, YES),
    empty("evictionSoft", TextMap, YES),
    empty("evictionSoftGracePeriod", TextMap, YES),
    empty("evictionMinimumReclaim", TextMap, YES),
    plain("evictionPressureTransitionPeriod", Duration, D::Text("5m0s"), YES),
    empty("evictionMaxPodGracePeriod", Int32, YES),
    pointer("mergeDefaultEvictionSettings", Bool, D::Bool(false), YES),
    empty("kernelMemcgNotification", Bool, ALARM),
    // CPU and NUMA
    plain("cpuManagerPolicy", Text, D::Text("none"), YES),
    empty("cpuManagerPolicyOptions", TextMap, YES),
    plain("cpuManagerReconcilePeriod", Duration, D::Text("10s"), YES),
    plain("memoryManagerPolicy", Text, D::Text("None"), YES),
    empty("reservedMemory", ObjectList, YES),
    plain("topologyManagerPolicy", Text, D::Text("none"), YES),
    plain("topologyManagerScope", Text, D::Text("container"), YES),
    empty("topologyManagerPolicyOptions", TextMap, YES),
    // Memory
    pointer("failSwapOn", Bool, D::Bool(true), YES),
    empty("memorySwap.swapBehavior", Text, YES),
    pointer("memoryThrottlingFactor", Float, D::Float(0.9), YES),
    plain("memoryReservationPolicy", Text, D::Text("None"), YES),
    pointer("failCgroupV1", Bool, D::Bool(true), YES),
    // Logs
    plain("containerLogMaxSize", Text, D::Text("10Mi"), YES),
    pointer("containerLogMaxFiles", Int32, D::Int(5), YES),
    pointer("containerLogMaxWorkers", Int32, D::Int(1), YES),
    pointer("containerLogMonitorInterval", Duration, D::Text("10s"), YES),
    plain("logging.format", Text, D::Text("text"), YES),
    plain("logging.flushFrequency", DurationOrNanos, D::Text("5s"), NO),
    pointer("logging.verbosity", Uint32, D::Int(0), YES),
    empty("logging.vmodule", ObjectList, YES),
    empty("logging.options.text.splitStream", Bool, NO),
    pointer("logging.options.text.infoBufferSize", Quantity, D::Text("0"), NO),
    empty("logging.options.json.splitStream", Bool, NO),
    pointer("logging.options.json.infoBufferSize", Quantity, D::Text("0"), NO),
    // Volumes
    plain("volumePluginDir", Text, D::Text("/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"), NO),
    plain("volumeStatsAggPeriod", Duration, D::Text("1m0s"), YES),
    pointer("enableControllerAttachDetach", Bool, D::Bool(true), YES),
    pointer("localStorageCapacityIsolation", Bool, D::Bool(true), YES),
    // Shutdown
    empty("shutdownGracePeriod", Duration, YES),
    empty("shutdownGracePeriodCriticalPods", Duration, YES),
    empty("shutdownGracePeriodByPodPriority", ObjectList, YES),
    // Security
    pointer("seccompDefault", Bool, D::Bool(false), YES),
    empty("allowedUnsafeSysctls", TextList, YES),
    empty("protectKernelDefaults", Bool, YES),
    pointer("userNamespaces.idsPerPod", Int64, D::Absent, YES),
    // Restart
    pointer("crashLoopBackOff.maxContainerRestartPeriod", Duration, D::Text("5m0s"), YES),
    // The rest
    empty("featureGates", BoolMap, YES),
    empty("showHiddenMetricsForVersion", Text, NO),
    pointer("tracing.endpoint", Text, D::Absent, NO),
    pointer("tracing.samplingRatePerMillion", Int32, D::Absent, NO),
    empty("runOnce", Bool, YES),
];

/// The field at that path.
pub fn find(path: &str) -> Option<&'static Field> {
    FIELDS.iter().find(|f| f.path == path)
}
