//! The configuration, cut into the piece each part of the agent needs.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::config::gates::Gates;
use api::config::kubelet::{KubeletConfiguration, KubeletFlags, Loaded};
use base::quantity::Quantity;
use kubelet_core::cri_config::{CriSettings, MemoryQos, SwapBehavior};
use kubelet_core::downward::Allocatable;
use kubelet_core::gc::GcPolicy;
use kubelet_core::images::{ImagePolicy, Verification};
use kubelet_core::node::capacity::{self, PodLimit, Reserved};

use super::StartError;
use crate::cluster::objects::Strategy;
use crate::host::facts::Machine;
use crate::images;
use crate::logs;
use crate::pods::class_memory::ClassMemory;
use crate::pods::gc::GcSettings;
use crate::pods::node::PodSettings;
use crate::pods::pod_files::PodDirs;
use crate::pods::sources::file::FileConfig;
use crate::pods::sources::url::UrlConfig;

/// Where symlinks to container logs gather; upstream does not let anyone change it.
const CONTAINER_LOGS: &str = "/var/log/containers";

pub(super) fn dirs(config: &KubeletConfiguration, flags: &KubeletFlags) -> PodDirs {
    let pod_logs = PathBuf::from(&config.pod_logs_dir);
    // A node with its own log directory keeps the links beside it, so that two nodes on one machine
    // do not collect each other's.
    let container_logs = match pod_logs == Path::new("/var/log/pods") {
        true => CONTAINER_LOGS.into(),
        false => pod_logs.with_file_name("containers"),
    };
    PodDirs {
        root: PathBuf::from(&flags.root_dir),
        pod_logs,
        container_logs,
        node_hosts: "/etc/hosts".into(),
        resolv_conf: Some(&config.resolv_conf).filter(|f| !f.is_empty()).map(PathBuf::from),
    }
}

/// What the machine has, less what is kept back from Pods.
pub(super) fn allocatable(
    config: &KubeletConfiguration,
    flags: &KubeletFlags,
    machine: &Machine,
) -> Result<Allocatable, StartError> {
    let limit = PodLimit { max: i64::from(config.max_pods), per_core: i64::from(config.pods_per_core) };
    let all = capacity::capacity(&machine.numbers(config.local_storage_capacity_isolation), limit);
    let reserved = Reserved::new(config, flags.experimental_allocatable_ignore_eviction);
    reserved.check(&all).map_err(|e| StartError::new(e.to_string()))?;
    let usable = capacity::allocatable(&all, &reserved);
    let value = |name: &str| usable.get(name).map_or(0, |q| q.value());
    Ok(Allocatable {
        milli_cpu: usable.get(capacity::CPU).map_or(0, |q| q.milli_value()),
        memory: value(capacity::MEMORY),
        ephemeral_storage: value(capacity::EPHEMERAL_STORAGE),
        pods: value(capacity::PODS),
        hugepages: usable
            .iter()
            .filter(|(name, _)| capacity::is_huge_page(name))
            .map(|(name, q)| (name.clone(), q.value()))
            .collect(),
    })
}

pub(super) fn pods(loaded: &Loaded, seed: u64) -> PodSettings {
    let Loaded { config, flags, gates, .. } = loaded;
    PodSettings {
        cri_config: CriSettings {
            seccomp_default: config.seccomp_default || flags.seccomp_default,
            seccomp_root: Path::new(&flags.root_dir).join("seccomp"),
            pod_logs_dir: PathBuf::from(&config.pod_logs_dir),
            cpu_cfs_quota: config.cpu_cfs_quota,
            cpu_cfs_quota_period: config.cpu_cfs_quota_period.to_std(),
            swap: match config.memory_swap.swap_behavior.as_str() {
                "LimitedSwap" => SwapBehavior::LimitedSwap,
                _ => SwapBehavior::NoSwap,
            },
            single_process_oom_kill: config.single_process_oom_kill.unwrap_or(false),
            memory_qos: gates.enabled("MemoryQoS").then(|| MemoryQos {
                throttling: config.memory_throttling_factor,
                reserves: reserves_memory(config, gates),
            }),
        },
        sync_frequency: config.sync_frequency.to_std(),
        restart_period: restart_period(config, gates),
        seed,
    }
}

/// Whether Pods keep the memory that they asked for when others want it.
pub(super) fn reserves_memory(config: &KubeletConfiguration, gates: &Gates) -> bool {
    gates.enabled("MemoryQoS") && config.memory_reservation_policy == "TieredReservation"
}

/// What the classes of Pods are held to; none where nothing is to be done about it.
pub(super) fn class_memory(loaded: &Loaded, allocatable: i64, cgroup_v2: bool) -> Option<ClassMemory> {
    let Loaded { config, gates, .. } = loaded;
    let percent = config.qos_reserved.get("memory").and_then(|t| t.strip_suffix('%')?.parse().ok());
    let percent = percent.filter(|_| gates.enabled("QOSReserved"));
    // With the gate alone, what an earlier setting kept is taken away.
    let reserves = (gates.enabled("MemoryQoS") && cgroup_v2).then(|| reserves_memory(config, gates));
    (config.cgroups_per_qos && (percent.is_some() || reserves.is_some())).then_some(ClassMemory {
        percent,
        reserves,
        allocatable,
    })
}

/// The first wait of a container that keeps ending, and the longest. What the operator says counts most.
fn restart_period(config: &KubeletConfiguration, gates: &Gates) -> (Duration, Duration) {
    let (first, longest) = match gates.enabled("ReduceDefaultCrashLoopBackOffDecay") {
        true => (Duration::from_secs(1), Duration::from_secs(60)),
        false => (Duration::from_secs(10), Duration::from_secs(300)),
    };
    let said = config.crash_loop_back_off.max_container_restart_period;
    (first, said.map_or(longest, |d| d.to_std()))
}

pub(super) fn gc(config: &KubeletConfiguration, flags: &KubeletFlags, dirs: &PodDirs) -> GcSettings {
    let limit = |n: i32| usize::try_from(n).ok();
    GcSettings {
        policy: GcPolicy {
            min_age: flags.minimum_container_ttl_duration.to_std(),
            max_per_container: limit(flags.maximum_dead_containers_per_container),
            max_total: limit(flags.maximum_dead_containers),
        },
        pod_logs: dirs.pod_logs.clone(),
        container_logs: dirs.container_logs.clone(),
        runtime: config.container_runtime_endpoint.trim_start_matches("unix://").into(),
    }
}

/// When images that nobody uses go.
pub(super) fn image_collection(config: &KubeletConfiguration) -> ImagePolicy {
    let percent = |n: i32| u64::try_from(n).unwrap_or(0);
    ImagePolicy {
        high_percent: percent(config.image_gc_high_threshold_percent),
        low_percent: percent(config.image_gc_low_threshold_percent),
        min_age: config.image_minimum_gc_age.to_std(),
        max_age: Some(config.image_maximum_gc_age.to_std()).filter(|age| !age.is_zero()),
    }
}

/// Where Pods are given by command: the usual place for the usual node, below the root for any other.
pub(super) fn socket(root: &Path) -> PathBuf {
    match root == Path::new("/var/lib/kubelet") {
        true => crate::server::local_api::DEFAULT_SOCKET.into(),
        false => root.join("pods.sock"),
    }
}

/// An address to listen on; none when the port is zero.
pub(super) fn listen(address: &str, port: i32) -> Result<Option<SocketAddr>, StartError> {
    let port = u16::try_from(port).map_err(|_| StartError::new(format!("port {port} is out of range")))?;
    let ip: IpAddr =
        address.parse().map_err(|_| StartError::new(format!("{address:?} is not an IP address")))?;
    Ok((port != 0).then(|| SocketAddr::new(ip, port)))
}

/// The cluster's resolvers; entries that are no addresses are told and passed over, as upstream does.
pub(super) fn cluster_dns(config: &KubeletConfiguration) -> Vec<IpAddr> {
    let read = |text: &String| {
        let ip = text.parse().ok();
        if ip.is_none() {
            tracing::warn!(entry = text, "an entry of clusterDNS is no IP address and is ignored");
        }
        ip
    };
    config.cluster_dns.iter().filter_map(read).collect()
}

pub(super) fn images(loaded: &Loaded) -> Result<images::Settings, StartError> {
    let Loaded { config, gates, .. } = loaded;
    let verification = match config.image_pull_credentials_verification_policy.as_str() {
        _ if !gates.enabled("KubeletEnsureSecretPulledImages") => Verification::NeverVerify,
        "NeverVerify" => Verification::NeverVerify,
        "AlwaysVerify" => Verification::AlwaysVerify,
        "NeverVerifyAllowlistedImages" => {
            Verification::allow(&config.preloaded_images_verification_allowlist)
                .map_err(|e| StartError::new(format!("preloadedImagesVerificationAllowlist: {e}")))?
        }
        _ => Verification::NeverVerifyPreloadedImages,
    };
    Ok(images::Settings {
        serialize: config.serialize_image_pulls,
        max_parallel: config.max_parallel_image_pulls.and_then(|n| u32::try_from(n).ok()),
        qps: f64::from(config.registry_pull_qps),
        burst: u32::try_from(config.registry_burst).unwrap_or(0),
        verification,
        ..Default::default()
    })
}

/// How changes of ConfigMaps and Secrets are noticed.
pub(super) fn strategy(config: &KubeletConfiguration) -> Strategy {
    match config.config_map_and_secret_change_detection_strategy.as_str() {
        "Get" => Strategy::Get,
        "Cache" => Strategy::Cache,
        _ => Strategy::Watch,
    }
}

pub(super) fn rotation(config: &KubeletConfiguration) -> Result<logs::Policy, StartError> {
    let size: Quantity = config.container_log_max_size.parse().map_err(|e| {
        StartError::new(format!("containerLogMaxSize {:?}: {e}", config.container_log_max_size))
    })?;
    Ok(logs::Policy {
        root: PathBuf::from(&config.pod_logs_dir),
        max_size: size.value(),
        max_files: usize::try_from(config.container_log_max_files).unwrap_or(2),
        workers: usize::try_from(config.container_log_max_workers).unwrap_or(1),
        interval: config.container_log_monitor_interval.to_std(),
    })
}

pub(super) fn file_source(config: &KubeletConfiguration) -> Option<FileConfig> {
    let path = PathBuf::from(&config.static_pod_path);
    (!config.static_pod_path.is_empty())
        .then(|| FileConfig { path, period: config.file_check_frequency.to_std() })
}

pub(super) fn url_source(config: &KubeletConfiguration) -> Option<UrlConfig> {
    let headers = config.static_pod_url_header.iter();
    let headers =
        headers.flat_map(|(name, values)| values.iter().map(|v| (name.clone(), v.clone()))).collect();
    (!config.static_pod_url.is_empty()).then(|| UrlConfig {
        url: config.static_pod_url.clone(),
        headers,
        period: config.http_check_frequency.to_std(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn without_isolation_of_storage_nobody_may_ask_for_any() {
        let machine = Machine { disk: 100 << 30, ..Machine::default() };
        let of = |isolated| {
            let mut config = KubeletConfiguration::default();
            config.eviction_hard.clear();
            config.local_storage_capacity_isolation = isolated;
            allocatable(&config, &KubeletFlags::default(), &machine).unwrap().ephemeral_storage
        };
        assert_eq!([true, false].map(of), [100 << 30, 0]);
    }
}
