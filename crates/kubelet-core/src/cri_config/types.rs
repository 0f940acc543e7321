//! The vocabulary of CRI configs: everything the runtime is told, in words that are not CRI's.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::class::{Class, Classify};
use k8s_openapi::api::core::v1::Pod;

use crate::container_spec::ContainerKind;
use crate::downward::Allocatable;
use crate::references::ReferencedObjects;

// --- what goes in ---

/// What [`super::sandbox`] looks at.
#[derive(Clone, Copy, Debug)]
pub struct SandboxInput<'a> {
    pub pod: &'a Pod,
    /// Groups that the Pod's volumes say their users are in.
    pub groups: &'a [i64],
    pub attempt: u32,
    pub node: &'a NodeFacts,
    pub config: &'a CriSettings,
    /// From the `Cgroups` port; empty lets the runtime decide.
    pub cgroup_parent: &'a str,
    /// The id ranges of a Pod with hostUsers=false.
    pub userns: Option<&'a UserNamespace>,
    pub handler: HandlerFeatures,
}

/// What [`super::container`] looks at.
#[derive(Clone, Copy, Debug)]
pub struct ContainerInput<'a> {
    pub pod: &'a Pod,
    /// Groups that the Pod's volumes say their users are in.
    pub groups: &'a [i64],
    pub name: &'a str,
    pub kind: ContainerKind,
    pub restart_count: u32,
    /// The image as the runtime resolved it.
    pub image_ref: &'a str,
    pub image_user: &'a ImageUser,
    /// Where each volume of the Pod is, by volume name.
    pub volumes: &'a BTreeMap<String, ResolvedVolume>,
    /// Host paths of prepared subPaths, by position in the container's volumeMounts.
    pub sub_paths: &'a BTreeMap<usize, PathBuf>,
    /// Contents of the files [`super::env_files`] asked for, by volume name and path.
    pub env_files: &'a BTreeMap<(String, String), String>,
    pub pod_ips: &'a [IpAddr],
    pub node: &'a NodeFacts,
    pub config: &'a CriSettings,
    /// Objects of the API server that its environment refers to.
    pub references: &'a ReferencedObjects,
    /// Variables of services the Pod may see.
    pub service_env: &'a BTreeMap<String, String>,
    /// The Pod's hosts file, if one was written for this container.
    pub hosts_file: Option<&'a Path>,
    /// The fresh termination-message file, if one was made.
    pub termination_file: Option<&'a Path>,
    pub userns: Option<&'a UserNamespace>,
    pub handler: HandlerFeatures,
    /// The running container whose PID namespace an ephemeral container joins.
    pub target: Option<&'a str>,
}

/// What the node is and offers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFacts {
    pub name: String,
    /// The node's addresses, primary family first.
    pub host_ips: Vec<IpAddr>,
    pub allocatable: Allocatable,
    /// Bytes of RAM.
    pub memory_capacity: i64,
    pub swap_capacity: i64,
    /// The kernel can limit swap per cgroup.
    pub swap_controller: bool,
    pub cgroup_v2: bool,
    /// Page sizes in the kernel's notation: `2MB`, `1GB`.
    pub hugepage_sizes: Vec<String>,
    pub selinux: bool,
    pub cluster_dns: Vec<IpAddr>,
    pub cluster_domain: String,
    /// The parsed resolver file; none when resolvConf is the empty string.
    pub resolv_conf: Option<Dns>,
    /// `/sys/devices/system/cpu/cpu*/thermal_throttle` directories that exist: masked like the rest.
    pub thermal_paths: Vec<String>,
}

/// The part of the configuration that shapes CRI configs.
#[derive(Clone, Debug, PartialEq)]
pub struct CriSettings {
    pub seccomp_default: bool,
    /// `<root>/seccomp`.
    pub seccomp_root: PathBuf,
    pub pod_logs_dir: PathBuf,
    pub cpu_cfs_quota: bool,
    pub cpu_cfs_quota_period: Duration,
    pub swap: SwapBehavior,
    /// On cgroup v2: the kernel's OOM killer takes one process, not the whole container.
    pub single_process_oom_kill: bool,
    /// On cgroup v2: how memory is shared out before it runs out (MemoryQoS).
    pub memory_qos: Option<MemoryQos>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryQos {
    /// From what part of the way between request and limit on a container is slowed down.
    pub throttling: f64,
    /// Containers keep what they asked for.
    pub reserves: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SwapBehavior {
    #[default]
    NoSwap,
    LimitedSwap,
}

/// What the Pod's runtime handler can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandlerFeatures {
    pub recursive_read_only: bool,
    pub user_namespaces: bool,
}

/// Whom the image wants to run as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImageUser {
    Uid(i64),
    Name(String),
}

/// A volume made ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResolvedVolume {
    Host {
        path: PathBuf,
        read_only: bool,
    },
    Image {
        reference: String,
    },
    /// A device on the host.
    Device {
        path: PathBuf,
        read_only: bool,
    },
}

// --- what comes out ---

/// Everything the runtime needs to make a sandbox.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SandboxConfig {
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub attempt: u32,
    pub hostname: String,
    pub log_directory: String,
    pub dns: Dns,
    pub ports: Vec<PortMapping>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub cgroup_parent: String,
    pub sysctls: BTreeMap<String, String>,
    pub security: SandboxSecurity,
    pub resources: LinuxResources,
    pub overhead: LinuxResources,
    /// Warnings to record as events of the Pod.
    pub warnings: Vec<Warning>,
}

/// Everything the runtime needs to make a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerConfig {
    pub name: String,
    pub attempt: u32,
    pub image_ref: String,
    /// The image as the user wrote it.
    pub image: String,
    pub command: Vec<String>,
    pub args: Vec<String>,
    pub working_dir: String,
    pub env: Vec<(String, String)>,
    pub mounts: Vec<Mount>,
    pub devices: Vec<Device>,
    /// Names of devices that the runtime knows by the Container Device Interface: `vendor.com/class=name`.
    pub cdi_devices: Vec<String>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Relative to the sandbox's log directory.
    pub log_path: String,
    pub stdin: bool,
    pub stdin_once: bool,
    pub tty: bool,
    /// `SIGTERM` and the like; the image's own signal when absent.
    pub stop_signal: Option<String>,
    pub resources: LinuxResources,
    pub security: ContainerSecurity,
}

/// An event with reason and message, type Warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    pub reason: &'static str,
    pub message: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dns {
    pub servers: Vec<String>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    #[default]
    Tcp,
    Udp,
    Sctp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortMapping {
    pub protocol: Protocol,
    pub container_port: i32,
    pub host_port: i32,
    pub host_ip: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinuxResources {
    pub cpu_period: i64,
    pub cpu_quota: i64,
    pub cpu_shares: i64,
    pub memory_limit: i64,
    pub oom_score_adj: i64,
    /// Page size and bytes.
    pub hugepages: Vec<(String, u64)>,
    pub unified: BTreeMap<String, String>,
    pub memory_swap_limit: i64,
    /// CPUs and NUMA nodes, as the kernel lists them. Empty: all, or as they were.
    pub cpuset_cpus: String,
    pub cpuset_mems: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub container_path: String,
    /// Empty for an image mount.
    pub host_path: String,
    pub read_only: bool,
    pub recursive_read_only: bool,
    pub selinux_relabel: bool,
    pub propagation: Propagation,
    /// An OCI image in place of a host path.
    pub image: Option<String>,
    pub image_sub_path: String,
    pub uid_mappings: Vec<IdMapping>,
    pub gid_mappings: Vec<IdMapping>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Propagation {
    #[default]
    Private,
    HostToContainer,
    Bidirectional,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub container_path: String,
    pub host_path: String,
    pub permissions: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdMapping {
    pub host_id: u32,
    pub container_id: u32,
    pub length: u32,
}

/// The id ranges of one Pod's user namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserNamespace {
    pub uids: Vec<IdMapping>,
    pub gids: Vec<IdMapping>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NamespaceMode {
    #[default]
    Pod,
    Container,
    Node,
    Target,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespaces {
    pub network: NamespaceMode,
    pub pid: NamespaceMode,
    pub ipc: NamespaceMode,
    /// The container whose PID namespace is joined, with `pid` = Target.
    pub target_id: String,
    pub user: UserMode,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum UserMode {
    /// hostUsers is true, or not set.
    #[default]
    Node,
    /// hostUsers is false.
    Pod(UserNamespace),
}

/// A seccomp or AppArmor profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    #[default]
    RuntimeDefault,
    Unconfined,
    /// A path (seccomp) or a name (AppArmor).
    Localhost(String),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeLinux {
    pub user: String,
    pub role: String,
    pub kind: String,
    pub level: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupsPolicy {
    #[default]
    Merge,
    Strict,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxSecurity {
    pub namespaces: Namespaces,
    pub privileged: bool,
    pub run_as_user: Option<i64>,
    pub run_as_group: Option<i64>,
    pub supplemental_groups: Vec<i64>,
    pub groups_policy: GroupsPolicy,
    pub selinux: Option<SeLinux>,
    pub seccomp: Profile,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerSecurity {
    pub namespaces: Namespaces,
    pub privileged: bool,
    pub run_as_user: Option<i64>,
    /// Set when the image names its user instead of numbering it.
    pub run_as_username: String,
    pub run_as_group: Option<i64>,
    pub supplemental_groups: Vec<i64>,
    pub groups_policy: GroupsPolicy,
    pub selinux: Option<SeLinux>,
    pub seccomp: Profile,
    pub apparmor: Option<Profile>,
    pub add_capabilities: Vec<String>,
    pub drop_capabilities: Vec<String>,
    pub no_new_privs: bool,
    pub read_only_rootfs: bool,
    pub masked_paths: Vec<String>,
    pub readonly_paths: Vec<String>,
}

/// A CRI config that cannot be written: `reason` and `message` become the container's waiting state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CriConfigError {
    pub reason: CriConfigReason,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CriConfigReason {
    CreateContainerConfigError,
    CreatePodSandboxError,
}

// === impl CriSettings ===

impl Default for CriSettings {
    fn default() -> Self {
        Self {
            seccomp_default: false,
            seccomp_root: "/var/lib/kubelet/seccomp".into(),
            pod_logs_dir: "/var/log/pods".into(),
            cpu_cfs_quota: true,
            cpu_cfs_quota_period: Duration::from_millis(100),
            swap: SwapBehavior::NoSwap,
            single_process_oom_kill: false,
            memory_qos: None,
        }
    }
}

// === impl ImageUser ===

impl Default for ImageUser {
    /// An image that says nothing runs as root.
    fn default() -> Self {
        Self::Uid(0)
    }
}

// === impl CriConfigError ===

impl CriConfigError {
    /// The container cannot be configured.
    pub fn config(message: impl Into<String>) -> Self {
        Self { reason: CriConfigReason::CreateContainerConfigError, message: message.into() }
    }

    /// The sandbox cannot be configured.
    pub fn sandbox(message: impl Into<String>) -> Self {
        Self { reason: CriConfigReason::CreatePodSandboxError, message: message.into() }
    }
}

impl Classify for CriConfigError {
    fn class(&self) -> Class {
        Class::Reject
    }
}

// === impl CriConfigReason ===

impl CriConfigReason {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::CreateContainerConfigError => "CreateContainerConfigError",
            Self::CreatePodSandboxError => "CreatePodSandboxError",
        }
    }
}
