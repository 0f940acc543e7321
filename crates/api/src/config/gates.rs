//! Feature gates: the known names, their defaults, and which may no longer be changed.

use std::collections::BTreeMap;

use super::FieldError;

/// How far along a gate's feature is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Alpha,
    Beta,
    Ga,
    Deprecated,
}

/// One known gate.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    pub name: &'static str,
    pub stage: Stage,
    pub default: bool,
    pub locked: bool,
}

/// The gates in force: the defaults with the user's choices over them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gates {
    chosen: BTreeMap<String, bool>,
}

/// The gate of that name.
pub fn find(name: &str) -> Option<&'static Gate> {
    GATES.binary_search_by(|g| g.name.cmp(name)).ok().map(|i| &GATES[i])
}

// === impl Gates ===

impl Gates {
    /// Takes the user's map; unknown gates and changed locked gates are mistakes.
    pub fn choose(map: &BTreeMap<String, bool>) -> (Self, Vec<FieldError>) {
        let mut errors = Vec::new();
        let mut chosen = BTreeMap::new();
        for (name, &on) in map {
            let path = || format!("featureGates.{name}");
            match find(name) {
                None if name == ALL_ALPHA || name == ALL_BETA => {}
                None => errors.push(FieldError::new(path(), "unrecognized feature gate")),
                Some(gate) if gate.locked && gate.default != on => {
                    let text = format!("cannot be set to {on}: locked to {}", gate.default);
                    errors.push(FieldError::new(path(), text));
                }
                Some(_) => {}
            }
            chosen.insert(name.clone(), on);
        }
        let gates = Self { chosen };
        if errors.is_empty() {
            gates.check_needs(&mut errors);
        }
        (gates, errors)
    }

    /// A gate that is on needs others to be on too.
    fn check_needs(&self, errors: &mut Vec<FieldError>) {
        for (name, needs) in NEEDS.iter().filter(|(name, _)| self.enabled(name)) {
            let off: Vec<&str> = needs.iter().copied().filter(|n| !self.enabled(n)).collect();
            if !off.is_empty() {
                let text =
                    format!("is enabled, but depends on features that are disabled: {}", off.join(", "));
                errors.push(FieldError::new(format!("featureGates.{name}"), text));
            }
        }
    }

    /// Gates the user turned the other way although nothing here asks about them.
    pub fn unheeded(&self) -> impl Iterator<Item = &str> {
        self.turned(NOT_YET)
    }

    /// The same for kube-proxy.
    pub fn unheeded_by_proxy(&self) -> impl Iterator<Item = &str> {
        self.turned(NOT_YET_OF_PROXY)
    }

    fn turned(&self, names: &'static [&'static str]) -> impl Iterator<Item = &str> {
        let turned = |name: &&str| find(name).is_some_and(|g| !g.locked && g.default != self.enabled(name));
        self.chosen.keys().map(String::as_str).filter(|n| names.contains(n)).filter(turned)
    }

    /// Whether a gate is on. A gate named by the user wins over AllAlpha and AllBeta; an unknown
    /// name is off.
    pub fn enabled(&self, name: &str) -> bool {
        let Some(gate) = find(name) else {
            return false;
        };
        if gate.locked {
            return gate.default;
        }
        if let Some(&on) = self.chosen.get(name) {
            return on;
        }
        let group = match gate.stage {
            Stage::Alpha => self.chosen.get(ALL_ALPHA),
            Stage::Beta => self.chosen.get(ALL_BETA),
            Stage::Ga | Stage::Deprecated => None,
        };
        group.copied().unwrap_or(gate.default)
    }
}

const ALL_ALPHA: &str = "AllAlpha";
const ALL_BETA: &str = "AllBeta";

const fn open(name: &'static str, stage: Stage, default: bool) -> Gate {
    Gate { name, stage, default, locked: false }
}

const fn locked(name: &'static str, stage: Stage, default: bool) -> Gate {
    Gate { name, stage, default, locked: true }
}

/// Gates of a node that upstream's kubelet asks about and nothing here does.
const NOT_YET: &[&str] = &[
    "AllowDNSOnlyNodeCSR",
    "CRIListStreaming",
    "CSIVolumeHealth",
    "ChangeContainerStatusOnKubeletRestart",
    "ContainerRestartRules",
    "ContainerStopSignals",
    "DRAExtendedResource",
    "DisableCPUQuotaWithExclusiveCPUs",
    "EnvFiles",
    "EventedPLEG",
    "ExtendWebSocketsToKubelet",
    "HostnameOverride",
    "ImageVolumeWithDigest",
    "InPlacePodVerticalScalingExclusiveCPUs",
    "InPlacePodVerticalScalingExclusiveMemory",
    "InPlacePodVerticalScalingInitContainers",
    "KubeletInUserNamespace",
    "KubeletPodResourcesListUseActivePods",
    "KubeletRegistrationGetOnExistsOnly",
    "KubeletSeparateDiskGC",
    "LocalStorageCapacityIsolationFSQuotaMonitoring",
    "PLEGOnDemandRelist",
    "PodAndContainerStatsFromCRI",
    "PodCertificateRequest",
    "PodLevelResourceManagers",
    "PodReadyToStartContainersCondition",
    "PodsAPI",
    "PreventStaticPodAPIReferences",
    "ReloadKubeletClientCAFile",
    "ReloadKubeletServerCertificateFile",
    "ResourceHealthStatus",
    "ResourceHealthStatusMessage",
    "RestartAllContainersOnContainerExits",
    "SELinuxMount",
    "TaintTolerationComparisonOperators",
    "TopologyManagerPolicyAlphaOptions",
    "TopologyManagerPolicyBetaOptions",
];

/// Gates that upstream's kube-proxy asks about and nothing here does.
const NOT_YET_OF_PROXY: &[&str] = &["ComponentFlagz", "ComponentStatusz"];

/// What a gate needs besides itself; of gates that can be turned.
const NEEDS: &[(&str, &[&str])] = &[
    ("ClusterTrustBundleProjection", &["ClusterTrustBundle"]),
    ("DRADeviceBindingConditions", &["DRAResourceClaimDeviceStatus"]),
    ("DRADeviceTaintRules", &["DRADeviceTaints"]),
    ("DRAResourceClaimGranularStatusAuthorization", &["DRAResourceClaimDeviceStatus"]),
    ("DRAWorkloadResourceClaims", &["GenericWorkload"]),
    ("ExtendWebSocketsToKubelet", &["NodeDeclaredFeatures"]),
    ("GangScheduling", &["GenericWorkload"]),
    ("GracefulNodeShutdownBasedOnPodPriority", &["GracefulNodeShutdown"]),
    ("InPlacePodLevelResourcesVerticalScaling", &["PodLevelResources", "NodeDeclaredFeatures"]),
    ("InPlacePodVerticalScalingInitContainers", &["NodeDeclaredFeatures"]),
    ("PodLevelResourceManagers", &["PodLevelResources"]),
    ("ResourceHealthStatusMessage", &["ResourceHealthStatus"]),
    ("RestartAllContainersOnContainerExits", &["ContainerRestartRules", "NodeDeclaredFeatures"]),
    ("StorageVersionAPI", &["APIServerIdentity"]),
    ("TopologyAwareWorkloadScheduling", &["GenericWorkload"]),
    ("UnknownVersionInteroperabilityProxy", &["APIServerIdentity"]),
    ("UserNamespacesHostNetworkSupport", &["NodeDeclaredFeatures"]),
    ("WindowsGracefulNodeShutdown", &["GracefulNodeShutdown"]),
    ("WorkloadAwarePreemption", &["GangScheduling"]),
    ("WorkloadWithJob", &["GenericWorkload"]),
];

use Stage::{Alpha, Beta, Deprecated, Ga};

/// Sorted by name. State of Kubernetes 1.36.
pub const GATES: &[Gate] = &[
    open("APIResponseCompression", Beta, true),
    open("APIServerIdentity", Beta, true),
    locked("APIServerTracing", Ga, true),
    open("APIServingWithRoutine", Alpha, false),
    locked("AggregatedDiscoveryRemoveBetaType", Deprecated, true),
    open("AllowDNSOnlyNodeCSR", Deprecated, false),
    open("AllowInsecureKubeletCertificateSigningRequests", Deprecated, false),
    locked("AllowOverwriteTerminationGracePeriodSeconds", Deprecated, false),
    open("AllowParsingUserUIDFromCertAuth", Beta, true),
    open("AllowServiceExternalIPs", Ga, true),
    open("AllowUnsafeMalformedObjectDeletion", Alpha, false),
    locked("AnonymousAuthConfigurableEndpoints", Ga, true),
    locked("AnyVolumeDataSource", Ga, true),
    open("AtomicFIFO", Beta, true),
    locked("AuthorizeNodeWithSelectors", Ga, true),
    open("AuthorizePodWebsocketUpgradeCreatePermission", Beta, true),
    locked("AuthorizeWithSelectors", Ga, true),
    locked("BtreeWatchCache", Ga, true),
    open("CBORServingAndStorage", Alpha, false),
    open("CPUManagerPolicyAlphaOptions", Alpha, false),
    open("CPUManagerPolicyBetaOptions", Beta, true),
    locked("CPUManagerPolicyOptions", Ga, true),
    open("CRDObservedGenerationTracking", Beta, true),
    locked("CRDValidationRatcheting", Ga, true),
    open("CRIListStreaming", Alpha, false),
    locked("CSIServiceAccountTokenSecrets", Ga, true),
    open("CSIVolumeHealth", Alpha, false),
    open("ChangeContainerStatusOnKubeletRestart", Deprecated, false),
    open("ClearingNominatedNodeNameAfterBinding", Beta, true),
    open("ClientsAllowCARotation", Beta, true),
    open("ClientsAllowCBOR", Alpha, false),
    open("ClientsAllowTLSCacheGC", Beta, true),
    open("ClientsPreferCBOR", Alpha, false),
    open("ClusterTrustBundle", Beta, false),
    open("ClusterTrustBundleProjection", Beta, false),
    open("ComponentFlagz", Beta, true),
    open("ComponentStatusz", Beta, true),
    open("ConcurrentWatchObjectDecode", Beta, false),
    locked("ConsistentListFromCache", Ga, true),
    open("ConstrainedImpersonation", Beta, true),
    open("ContainerCheckpoint", Beta, true),
    open("ContainerRestartRules", Beta, true),
    open("ContainerStopSignals", Alpha, false),
    open("ContextualLogging", Beta, true),
    open("CoordinatedLeaderElection", Beta, false),
    open("CrossNamespaceVolumeDataSource", Alpha, false),
    open("CustomCPUCFSQuotaPeriod", Ga, true),
    locked("CustomResourceFieldSelectors", Ga, true),
    locked("DRAAdminAccess", Ga, true),
    open("DRAConsumableCapacity", Beta, true),
    open("DRADeviceBindingConditions", Beta, true),
    open("DRADeviceTaintRules", Beta, false),
    open("DRADeviceTaints", Beta, true),
    open("DRAExtendedResource", Beta, true),
    open("DRAListTypeAttributes", Alpha, false),
    open("DRANodeAllocatableResources", Alpha, false),
    open("DRAPartitionableDevices", Beta, true),
    open("DRAPrioritizedList", Ga, true),
    open("DRAResourceClaimDeviceStatus", Beta, true),
    open("DRAResourceClaimGranularStatusAuthorization", Beta, true),
    open("DRAResourcePoolStatus", Alpha, false),
    open("DRASchedulerFilterTimeout", Beta, true),
    open("DRAWorkloadResourceClaims", Alpha, false),
    locked("DeclarativeValidation", Ga, true),
    open("DeclarativeValidationBeta", Beta, true),
    open("DeclarativeValidationTakeover", Deprecated, false),
    open("DeploymentReplicaSetTerminatingReplicas", Beta, true),
    open("DetectCacheInconsistency", Beta, true),
    locked("DisableAllocatorDualWrite", Ga, true),
    open("DisableCPUQuotaWithExclusiveCPUs", Deprecated, true),
    locked("DisableNodeKubeProxyVersion", Deprecated, true),
    locked("DynamicResourceAllocation", Ga, true),
    open("EnvFiles", Beta, true),
    open("EventedPLEG", Alpha, false),
    locked("ExecProbeTimeout", Ga, true),
    open("ExtendWebSocketsToKubelet", Beta, true),
    locked("ExternalServiceAccountTokenSigner", Ga, true),
    open("GangScheduling", Alpha, false),
    open("GenericWorkload", Alpha, false),
    locked("GitRepoVolumeDriver", Deprecated, false),
    open("GracefulNodeShutdown", Beta, true),
    open("GracefulNodeShutdownBasedOnPodPriority", Beta, true),
    open("HPAConfigurableTolerance", Beta, true),
    open("HPAScaleToZero", Alpha, false),
    open("HostnameOverride", Beta, true),
    locked("ImageMaximumGCAge", Ga, true),
    locked("ImageVolume", Ga, true),
    open("ImageVolumeWithDigest", Alpha, false),
    locked("InOrderInformers", Ga, true),
    open("InOrderInformersBatchProcess", Beta, true),
    open("InPlacePodLevelResourcesVerticalScaling", Beta, true),
    locked("InPlacePodVerticalScaling", Ga, true),
    open("InPlacePodVerticalScalingExclusiveCPUs", Alpha, false),
    open("InPlacePodVerticalScalingExclusiveMemory", Alpha, false),
    open("InPlacePodVerticalScalingInitContainers", Beta, true),
    open("InformerResourceVersion", Ga, true),
    locked("JobBackoffLimitPerIndex", Ga, true),
    locked("JobManagedBy", Ga, true),
    locked("JobPodReplacementPolicy", Ga, true),
    locked("JobSuccessPolicy", Ga, true),
    open("KMSv1", Deprecated, false),
    locked("KubeletCgroupDriverFromCRI", Ga, true),
    open("KubeletCrashLoopBackOffMax", Beta, true),
    open("KubeletEnsureSecretPulledImages", Beta, true),
    locked("KubeletFineGrainedAuthz", Ga, true),
    open("KubeletInUserNamespace", Alpha, false),
    locked("KubeletPSI", Ga, true),
    locked("KubeletPodResourcesDynamicResources", Ga, true),
    locked("KubeletPodResourcesGet", Ga, true),
    open("KubeletPodResourcesListUseActivePods", Deprecated, true),
    open("KubeletRegistrationGetOnExistsOnly", Deprecated, false),
    open("KubeletSeparateDiskGC", Beta, true),
    open("KubeletServiceAccountTokenForCredentialProviders", Beta, true),
    locked("KubeletTracing", Ga, true),
    open("ListFromCacheSnapshot", Beta, true),
    open("LocalStorageCapacityIsolationFSQuotaMonitoring", Beta, false),
    locked("LogarithmicScaleDown", Ga, true),
    open("LoggingAlphaOptions", Alpha, false),
    open("LoggingBetaOptions", Beta, true),
    open("ManifestBasedAdmissionControlConfig", Alpha, false),
    locked("MatchLabelKeysInPodAffinity", Ga, true),
    open("MatchLabelKeysInPodTopologySpread", Beta, true),
    open("MatchLabelKeysInPodTopologySpreadSelectorMerge", Beta, true),
    open("MaxUnavailableStatefulSet", Beta, false),
    open("MemoryQoS", Alpha, false),
    locked("MultiCIDRServiceAllocator", Ga, true),
    locked("MutableCSINodeAllocatableCount", Ga, true),
    open("MutablePVNodeAffinity", Alpha, false),
    open("MutablePodResourcesForSuspendedJobs", Beta, true),
    open("MutableSchedulingDirectivesForSuspendedJobs", Beta, true),
    open("MutatingAdmissionPolicy", Ga, true),
    locked("NFTablesProxyMode", Ga, true),
    open("NativeHistograms", Alpha, false),
    open("NodeDeclaredFeatures", Beta, true),
    locked("NodeInclusionPolicyInPodTopologySpread", Ga, true),
    locked("NodeLogQuery", Ga, true),
    locked("NodeSwap", Ga, true),
    open("NominatedNodeNameForExpectation", Beta, true),
    open("OpenAPIEnums", Beta, true),
    open("OpportunisticBatching", Beta, true),
    locked("OrderedNamespaceDeletion", Ga, true),
    open("PLEGOnDemandRelist", Beta, true),
    open("PersistentVolumeClaimUnusedSinceTime", Alpha, false),
    open("PodAndContainerStatsFromCRI", Alpha, false),
    open("PodCertificateRequest", Beta, false),
    open("PodDeletionCost", Beta, true),
    open("PodLevelResourceManagers", Alpha, false),
    open("PodLevelResources", Beta, true),
    locked("PodLifecycleSleepAction", Ga, true),
    locked("PodLifecycleSleepActionAllowZero", Ga, true),
    open("PodLogsQuerySplitStreams", Alpha, false),
    locked("PodObservedGenerationTracking", Ga, true),
    open("PodReadyToStartContainersCondition", Beta, true),
    locked("PodSchedulingReadiness", Ga, true),
    open("PodTopologyLabelsAdmission", Beta, true),
    open("PodsAPI", Alpha, false),
    open("PortForwardWebsockets", Beta, true),
    locked("PreferSameTrafficDistribution", Ga, true),
    open("PreventStaticPodAPIReferences", Beta, true),
    locked("ProcMountType", Ga, true),
    open("QOSReserved", Alpha, false),
    locked("RecoverVolumeExpansionFailure", Ga, true),
    locked("RecursiveReadOnlyMounts", Ga, true),
    open("ReduceDefaultCrashLoopBackOffDecay", Alpha, false),
    locked("RelaxedDNSSearchValidation", Ga, true),
    locked("RelaxedEnvironmentVariableValidation", Ga, true),
    open("RelaxedServiceNameValidation", Beta, true),
    open("ReloadKubeletClientCAFile", Beta, true),
    open("ReloadKubeletServerCertificateFile", Beta, true),
    open("RemoteRequestHeaderUID", Beta, true),
    locked("ResilientWatchCacheInitialization", Ga, true),
    open("ResourceHealthStatus", Beta, true),
    open("ResourceHealthStatusMessage", Beta, true),
    open("RestartAllContainersOnContainerExits", Beta, true),
    locked("RetryGenerateName", Ga, true),
    open("RotateKubeletServerCertificate", Beta, true),
    open("RuntimeClassInImageCriApi", Alpha, false),
    locked("SELinuxChangePolicy", Ga, true),
    open("SELinuxMount", Beta, false),
    locked("SELinuxMountReadWriteOncePod", Ga, true),
    open("SchedulerAsyncAPICalls", Beta, false),
    open("SchedulerAsyncPreemption", Beta, true),
    open("SchedulerPopFromBackoffQ", Beta, true),
    locked("SchedulerQueueingHints", Ga, true),
    locked("SeparateCacheWatchRPC", Deprecated, false),
    locked("SeparateTaintEvictionController", Ga, true),
    open("ServiceAccountNodeAudienceRestriction", Beta, true),
    locked("ServiceAccountTokenJTI", Ga, true),
    locked("ServiceAccountTokenNodeBinding", Ga, true),
    locked("ServiceAccountTokenNodeBindingValidation", Ga, true),
    locked("ServiceAccountTokenPodNodeInfo", Ga, true),
    open("ServiceCIDRStatusFieldWiping", Deprecated, true),
    open("ShardedListAndWatch", Alpha, false),
    locked("SidecarContainers", Ga, true),
    open("SizeBasedListCostEstimate", Beta, true),
    open("StaleControllerConsistencyDaemonSet", Beta, true),
    open("StaleControllerConsistencyJob", Beta, true),
    open("StaleControllerConsistencyReplicaSet", Beta, true),
    open("StaleControllerConsistencyStatefulSet", Beta, true),
    open("StatefulSetSemanticRevisionComparison", Beta, true),
    open("StorageCapacityScoring", Alpha, false),
    open("StorageNamespaceIndex", Deprecated, true),
    open("StorageVersionAPI", Alpha, false),
    open("StorageVersionHash", Beta, true),
    open("StorageVersionMigrator", Beta, false),
    locked("StreamingCollectionEncodingToJSON", Ga, true),
    locked("StreamingCollectionEncodingToProtobuf", Ga, true),
    open("StrictIPCIDRValidation", Beta, true),
    locked("StructuredAuthenticationConfiguration", Ga, true),
    open("StructuredAuthenticationConfigurationEgressSelector", Beta, true),
    open("StructuredAuthenticationConfigurationJWKSMetrics", Beta, true),
    locked("SupplementalGroupsPolicy", Ga, true),
    locked("SystemdWatchdog", Ga, true),
    open("TaintTolerationComparisonOperators", Alpha, false),
    open("TokenRequestServiceAccountUIDValidation", Beta, true),
    open("TopologyAwareWorkloadScheduling", Alpha, false),
    open("TopologyManagerPolicyAlphaOptions", Alpha, false),
    open("TopologyManagerPolicyBetaOptions", Beta, true),
    locked("TopologyManagerPolicyOptions", Ga, true),
    open("TranslateStreamCloseWebsocketRequests", Beta, true),
    open("UnauthenticatedHTTP2DOSMitigation", Beta, true),
    open("UnknownVersionInteroperabilityProxy", Beta, true),
    open("UnlockWhileProcessingFIFO", Beta, true),
    open("UserNamespacesHostNetworkSupport", Alpha, false),
    locked("UserNamespacesSupport", Ga, true),
    locked("VolumeAttributesClass", Ga, true),
    open("VolumeLimitScaling", Alpha, false),
    open("WatchCacheInitializationPostStartHook", Beta, true),
    open("WatchList", Beta, true),
    open("WatchListClient", Beta, true),
    locked("WinDSR", Ga, true),
    locked("WinOverlay", Ga, true),
    open("WindowsCPUAndMemoryAffinity", Alpha, false),
    open("WindowsGracefulNodeShutdown", Beta, true),
    open("WindowsHostNetwork", Deprecated, false),
    open("WorkloadAwarePreemption", Alpha, false),
    open("WorkloadWithJob", Alpha, false),
];

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, bool)]) -> BTreeMap<String, bool> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect()
    }

    #[test]
    fn the_table_is_sorted_without_repeats() {
        assert!(GATES.windows(2).all(|w| w[0].name < w[1].name));
    }

    #[test]
    fn the_contract_holds() {
        for name in [
            "SidecarContainers",
            "InPlacePodVerticalScaling",
            "ImageVolume",
            "UserNamespacesSupport",
            "NodeSwap",
            "RecursiveReadOnlyMounts",
            "SupplementalGroupsPolicy",
            "DynamicResourceAllocation",
            "KubeletFineGrainedAuthz",
            "KubeletCgroupDriverFromCRI",
            "KubeletPSI",
            "NodeLogQuery",
            "ProcMountType",
            "PodLifecycleSleepAction",
            "PodObservedGenerationTracking",
            "ExecProbeTimeout",
            "KubeletPodResourcesGet",
        ] {
            let gate = find(name).unwrap_or_else(|| panic!("{name}"));
            assert!(gate.locked && gate.default && gate.stage == Ga, "{name}");
        }
        let gates = Gates::default();
        for name in [
            "PodReadyToStartContainersCondition",
            "ContainerRestartRules",
            "RestartAllContainersOnContainerExits",
            "PodLevelResources",
            "KubeletCrashLoopBackOffMax",
            "KubeletEnsureSecretPulledImages",
            "GracefulNodeShutdown",
            "GracefulNodeShutdownBasedOnPodPriority",
            "ContainerCheckpoint",
            "EnvFiles",
            "HostnameOverride",
            "PreventStaticPodAPIReferences",
            "NodeDeclaredFeatures",
            "ResourceHealthStatus",
            "ExtendWebSocketsToKubelet",
            "ReloadKubeletClientCAFile",
            "RotateKubeletServerCertificate",
            "ComponentStatusz",
            "ComponentFlagz",
            "InPlacePodLevelResourcesVerticalScaling",
            "InPlacePodVerticalScalingInitContainers",
        ] {
            assert!(gates.enabled(name) && !find(name).unwrap().locked, "{name}");
        }
        for name in [
            "MemoryQoS",
            "EventedPLEG",
            "PodAndContainerStatsFromCRI",
            "ClusterTrustBundleProjection",
            "PodCertificateRequest",
            "ContainerStopSignals",
            "SELinuxMount",
            "PodsAPI",
            "CRIListStreaming",
            "LocalStorageCapacityIsolationFSQuotaMonitoring",
            "ReduceDefaultCrashLoopBackOffDecay",
            "PodLogsQuerySplitStreams",
        ] {
            assert!(!gates.enabled(name) && find(name).is_some(), "{name}");
        }
    }

    #[test]
    fn choices_and_groups() {
        let (gates, errors) = Gates::choose(&map(&[("AllAlpha", true), ("EventedPLEG", false)]));
        assert_eq!(errors, []);
        assert!(gates.enabled("MemoryQoS") && !gates.enabled("EventedPLEG"));
        let (gates, errors) = Gates::choose(&map(&[("AllBeta", false), ("EnvFiles", true)]));
        assert_eq!(errors, []);
        assert!(!gates.enabled("HostnameOverride") && gates.enabled("EnvFiles"));
        assert!(gates.enabled("SidecarContainers"));
    }

    #[test]
    fn unknown_and_locked_gates_are_mistakes() {
        let (gates, errors) =
            Gates::choose(&map(&[("Nope", true), ("NodeSwap", false), ("ImageVolume", true)]));
        let text: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            text,
            [
                "featureGates.NodeSwap: cannot be set to false: locked to true",
                "featureGates.Nope: unrecognized feature gate",
            ]
        );
        assert!(gates.enabled("NodeSwap"));
    }

    #[test]
    fn a_gate_needs_what_it_builds_on() {
        let (_, errors) = Gates::choose(&map(&[("GracefulNodeShutdown", false)]));
        let text: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let want = |name| {
            format!(
                "featureGates.{name}: is enabled, but depends on features that are disabled: GracefulNodeShutdown"
            )
        };
        let built_on_it = ["GracefulNodeShutdownBasedOnPodPriority", "WindowsGracefulNodeShutdown"];
        assert_eq!(text, built_on_it.map(want));
        let all_off = [("GracefulNodeShutdown", false), (built_on_it[0], false), (built_on_it[1], false)];
        assert!(Gates::choose(&map(&all_off)).1.is_empty());
        assert!(Gates::choose(&map(&[])).1.is_empty());
        let known = |name: &str| find(name).is_some_and(|g| !g.locked);
        for (name, needs) in NEEDS {
            assert!(known(name) && needs.iter().all(|n| known(n)), "{name}");
        }
    }

    #[test]
    fn gates_that_nothing_asks_about_are_told_when_they_are_turned() {
        let gates = |pairs| Gates::choose(&map(pairs)).0;
        let turned = gates(&[("PodsAPI", true), ("EnvFiles", true), ("ContainerCheckpoint", false)]);
        assert_eq!(turned.unheeded().collect::<Vec<_>>(), ["PodsAPI"]);
        let turned = gates(&[("ComponentFlagz", false), ("AllowServiceExternalIPs", false)]);
        assert_eq!(turned.unheeded_by_proxy().collect::<Vec<_>>(), ["ComponentFlagz"]);
    }

    /// The list is compared with what the rooms of the node really ask.
    #[test]
    fn the_list_of_what_nothing_asks_about_is_true() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut asked = String::new();
        for room in ["kubelet/src", "kubelet-core/src", "longshore/src"] {
            gather(&root.join(room), &mut asked);
        }
        let mut asked_by_proxy = String::new();
        gather(&root.join("proxy/src"), &mut asked_by_proxy);
        for (names, asked) in [(NOT_YET, asked), (NOT_YET_OF_PROXY, asked_by_proxy)] {
            for name in names {
                assert!(find(name).is_some_and(|g| !g.locked), "{name}");
                assert!(!asked.contains(&format!("enabled(\"{name}\")")), "{name} is asked about");
            }
        }
    }

    fn gather(dir: &std::path::Path, out: &mut String) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                gather(&path, out);
            } else {
                out.push_str(&std::fs::read_to_string(path).unwrap_or_default());
            }
        }
    }
}
