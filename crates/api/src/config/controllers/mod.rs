//! kube-controller-manager's flags, and what they come to.

mod certificates;
mod flags;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::duration::GoDuration;
use jiff::tz::TimeZone;
use serde_json::Value;

pub use certificates::{Certificate, CertificateSigner, SignCertificate, SignerFiles};
pub use flags::FLAGS;

use super::Logging;
use super::serving::Serving;

/// Where health, metrics and configuration are served.
const PORT: u16 = 10257;

/// What a command line says of the controllers. Nothing in it was looked at on the machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Controllers {
    pub kubeconfig: Option<PathBuf>,
    /// `--master`
    pub server: Option<String>,
    /// `--controllers`
    pub chosen: Vec<String>,
    pub leader: Option<LeaderElection>,
    /// Requests a second, and at once; none unless it was said.
    pub rate: Option<(f64, u32)>,
    pub root_ca_file: Option<PathBuf>,
    pub service_account_key_file: Option<PathBuf>,
    /// `--cluster-signing-…-file`: the authority of each signer that has one.
    pub signers: BTreeMap<&'static str, SignerFiles>,
    /// `--cluster-signing-duration`: how long certificates are good for at most.
    pub signing_duration: Duration,
    /// The secure port; None: port 0.
    pub serving: Option<Serving>,
    pub tuning: Tuning,
    pub logging: Logging,
    /// Flags that were set and have no meaning here.
    pub not_honoured: Vec<String>,
}

/// `--leader-elect-…`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderElection {
    pub namespace: String,
    pub name: String,
    pub lease_duration: Duration,
    pub renew_deadline: Duration,
    pub retry_period: Duration,
}

/// What controllers are told by flags. The defaults are upstream's.
#[derive(Clone, Debug, PartialEq)]
pub struct Tuning {
    /// `--concurrent-…-syncs`, by the word in the middle: `deployment`, `gc`. What is not here has its own number.
    pub syncs: Vec<(String, usize)>,
    /// `--use-service-account-credentials`: every controller acts as its own ServiceAccount.
    pub use_service_account_credentials: bool,
    pub node_monitor_period: Duration,
    pub node_monitor_grace_period: Duration,
    pub node_startup_grace_period: Duration,
    pub node_eviction_rate: f64,
    pub secondary_node_eviction_rate: f64,
    pub unhealthy_zone_threshold: f64,
    pub large_cluster_size_threshold: i32,
    pub terminated_pod_gc_threshold: i32,
    pub allocate_node_cidrs: bool,
    pub cluster_cidr: Vec<String>,
    pub service_cluster_ip_range: Vec<String>,
    /// None: 24 for IPv4, 64 for IPv6.
    pub node_cidr_mask_size: Option<i32>,
    pub node_cidr_mask_size_ipv4: Option<i32>,
    pub node_cidr_mask_size_ipv6: Option<i32>,
    pub hpa_sync_period: Duration,
    pub hpa_downscale_stabilization: Duration,
    pub hpa_tolerance: f64,
    pub hpa_cpu_initialization_period: Duration,
    pub hpa_initial_readiness_delay: Duration,
    pub namespace_sync_period: Duration,
    pub resource_quota_sync_period: Duration,
    pub pvclaimbinder_sync_period: Duration,
    pub max_endpoints_per_slice: i32,
    pub mirroring_max_endpoints_per_subset: i32,
    pub endpoint_updates_batch_period: Duration,
    pub endpointslice_updates_batch_period: Duration,
    pub enable_hostpath_provisioner: bool,
    pub enable_dynamic_provisioning: bool,
    pub recycler: Recycler,
    /// `--disable-force-detach-on-timeout`: volumes are not taken from Nodes that do not answer.
    pub disable_force_detach_on_timeout: bool,
    pub legacy_service_account_token_clean_up_period: Duration,
    /// The zone of the process, for schedules that name none.
    pub time_zone: TimeZone,
    /// The content of `--root-ca-file`, or of the CA that the kubeconfig names.
    pub root_ca: Option<String>,
    /// Signs the tokens of ServiceAccounts, where there is a `--service-account-private-key-file`.
    pub token_signer: Option<TokenSigner>,
    /// Issues the certificates that requests ask for, where there are `--cluster-signing-…-file`s.
    pub certificate_signer: Option<CertificateSigner>,
}

/// Makes a token of claims; None: it cannot.
pub type SignClaims = dyn Fn(&Value) -> Option<String> + Send + Sync;

/// Shared by all who sign.
#[derive(Clone)]
pub struct TokenSigner(pub Arc<SignClaims>);

// === impl TokenSigner ===

impl std::fmt::Debug for TokenSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenSigner(..)")
    }
}

impl PartialEq for TokenSigner {
    fn eq(&self, other: &TokenSigner) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// `--pv-recycler-…`: how many seconds the Pod that scrubs a volume may take, at least and for each GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recycler {
    pub least_host_path: i32,
    pub each_gib_host_path: i32,
    pub least_nfs: i32,
    pub each_gib_nfs: i32,
}

// === impl Recycler ===

impl Default for Recycler {
    fn default() -> Self {
        Recycler { least_host_path: 60, each_gib_host_path: 30, least_nfs: 300, each_gib_nfs: 30 }
    }
}

// === impl Tuning ===

impl Tuning {
    /// `--concurrent-<what>-syncs`, or this many.
    #[must_use]
    pub fn syncs(&self, what: &str, default: usize) -> usize {
        self.syncs.iter().find(|(known, _)| known == what).map_or(default, |(_, number)| *number).max(1)
    }
}

impl Default for Tuning {
    fn default() -> Self {
        const S: fn(u64) -> Duration = Duration::from_secs;
        Tuning {
            syncs: Vec::new(),
            use_service_account_credentials: false,
            node_monitor_period: S(5),
            node_monitor_grace_period: S(50),
            node_startup_grace_period: S(60),
            node_eviction_rate: 0.1,
            secondary_node_eviction_rate: 0.01,
            unhealthy_zone_threshold: 0.55,
            large_cluster_size_threshold: 50,
            terminated_pod_gc_threshold: 12_500,
            allocate_node_cidrs: false,
            cluster_cidr: Vec::new(),
            service_cluster_ip_range: Vec::new(),
            node_cidr_mask_size: None,
            node_cidr_mask_size_ipv4: None,
            node_cidr_mask_size_ipv6: None,
            hpa_sync_period: S(15),
            hpa_downscale_stabilization: S(300),
            hpa_tolerance: 0.1,
            hpa_cpu_initialization_period: S(300),
            hpa_initial_readiness_delay: S(30),
            namespace_sync_period: S(300),
            resource_quota_sync_period: S(300),
            pvclaimbinder_sync_period: S(15),
            max_endpoints_per_slice: 100,
            mirroring_max_endpoints_per_subset: 1000,
            endpoint_updates_batch_period: S(0),
            endpointslice_updates_batch_period: S(0),
            enable_hostpath_provisioner: false,
            enable_dynamic_provisioning: true,
            recycler: Recycler::default(),
            disable_force_detach_on_timeout: false,
            legacy_service_account_token_clean_up_period: S(365 * 24 * 3600),
            time_zone: TimeZone::UTC,
            root_ca: None,
            token_signer: None,
            certificate_signer: None,
        }
    }
}

/// The values of a command line, by the names of their flags.
struct Values<'v>(&'v BTreeMap<&'static str, Value>);

// === impl Controllers ===

impl Controllers {
    /// Reads the values of parsed flags; says what is wrong with the first that is.
    pub fn read(values: &BTreeMap<&'static str, Value>) -> Result<Controllers, String> {
        let said = Values(values);
        let verbosity = values.get("v").and_then(Value::as_u64).and_then(|v| u32::try_from(v).ok());
        let format = said.text("logging-format").unwrap_or("text").into();
        let not_honoured = values.keys().filter(|name| flags::NOT_HONOURED.contains(*name));
        Ok(Controllers {
            kubeconfig: said.text("kubeconfig").map(PathBuf::from),
            server: said.text("master").map(str::to_owned),
            chosen: said.chosen(),
            leader: said.leader()?,
            rate: said.rate(),
            root_ca_file: said.text("root-ca-file").map(PathBuf::from),
            service_account_key_file: said.text("service-account-private-key-file").map(PathBuf::from),
            signers: certificates::signers(|name| said.text(name))?,
            signing_duration: said.duration("cluster-signing-duration", certificates::DURATION)?,
            serving: Serving::read(values, PORT)?,
            tuning: said.tuning()?,
            logging: Logging { format, verbosity: verbosity.unwrap_or_default(), ..Logging::default() },
            not_honoured: not_honoured.map(|name| format!("--{name}")).collect(),
        })
    }
}

// === impl Values ===

impl Values<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(Value::as_str).filter(|text| !text.is_empty())
    }

    fn list(&self, name: &str) -> Vec<String> {
        let items = self.0.get(name).and_then(Value::as_array).into_iter().flatten();
        items.filter_map(|item| item.as_str().map(str::to_owned)).filter(|item| !item.is_empty()).collect()
    }

    fn switch(&self, name: &str, default: bool) -> bool {
        self.0.get(name).and_then(Value::as_bool).unwrap_or(default)
    }

    fn float(&self, name: &str, default: f64) -> f64 {
        self.0.get(name).and_then(Value::as_f64).unwrap_or(default)
    }

    fn int(&self, name: &str, default: i32) -> i32 {
        self.0.get(name).and_then(Value::as_i64).and_then(|n| i32::try_from(n).ok()).unwrap_or(default)
    }

    fn duration(&self, name: &str, default: Duration) -> Result<Duration, String> {
        let Some(text) = self.text(name) else { return Ok(default) };
        let nanos = text.parse::<GoDuration>().ok().and_then(|d| u64::try_from(d.as_nanos()).ok());
        nanos.map(Duration::from_nanos).ok_or_else(|| format!("--{name}: {text:?} is no duration"))
    }

    /// `--controllers`, without the one that `--enable-garbage-collector=false` switches off.
    fn chosen(&self) -> Vec<String> {
        let mut chosen = self.list("controllers");
        if !self.switch("enable-garbage-collector", true) {
            if chosen.is_empty() {
                chosen.push("*".to_owned());
            }
            chosen.push("-garbage-collector-controller".to_owned());
        }
        chosen
    }

    fn leader(&self) -> Result<Option<LeaderElection>, String> {
        if !self.switch("leader-elect", true) {
            return Ok(None);
        }
        let leader = LeaderElection {
            namespace: self.text("leader-elect-resource-namespace").unwrap_or("kube-system").to_owned(),
            name: self.text("leader-elect-resource-name").unwrap_or("kube-controller-manager").to_owned(),
            lease_duration: self.duration("leader-elect-lease-duration", Duration::from_secs(15))?,
            renew_deadline: self.duration("leader-elect-renew-deadline", Duration::from_secs(10))?,
            retry_period: self.duration("leader-elect-retry-period", Duration::from_secs(2))?,
        };
        if leader.lease_duration <= leader.renew_deadline {
            return Err(
                "--leader-elect-lease-duration must be greater than --leader-elect-renew-deadline".into()
            );
        }
        if leader.renew_deadline <= leader.retry_period.mul_f64(1.2) {
            return Err(
                "--leader-elect-renew-deadline must be greater than --leader-elect-retry-period*1.2".into()
            );
        }
        Ok(Some(leader))
    }

    fn rate(&self) -> Option<(f64, u32)> {
        let is_said = self.0.contains_key("kube-api-qps") || self.0.contains_key("kube-api-burst");
        let burst = u32::try_from(self.int("kube-api-burst", 30)).unwrap_or(0);
        is_said.then(|| (self.float("kube-api-qps", 20.0), burst))
    }

    fn syncs(&self) -> Vec<(String, usize)> {
        let number = |(name, value): (&&str, &Value)| {
            let what = name.strip_prefix("concurrent-")?.strip_suffix("-syncs")?;
            Some((what.to_owned(), usize::try_from(value.as_i64()?).ok()?))
        };
        self.0.iter().filter_map(number).collect()
    }

    fn tuning(&self) -> Result<Tuning, String> {
        let usual = Tuning::default();
        let mask = |name| self.0.contains_key(name).then(|| self.int(name, 0)).filter(|size| *size > 0);
        Ok(Tuning {
            syncs: self.syncs(),
            use_service_account_credentials: self.switch("use-service-account-credentials", false),
            node_monitor_period: self.duration("node-monitor-period", usual.node_monitor_period)?,
            node_monitor_grace_period: self
                .duration("node-monitor-grace-period", usual.node_monitor_grace_period)?,
            node_startup_grace_period: self
                .duration("node-startup-grace-period", usual.node_startup_grace_period)?,
            node_eviction_rate: self.float("node-eviction-rate", usual.node_eviction_rate),
            secondary_node_eviction_rate: self
                .float("secondary-node-eviction-rate", usual.secondary_node_eviction_rate),
            unhealthy_zone_threshold: self.float("unhealthy-zone-threshold", usual.unhealthy_zone_threshold),
            large_cluster_size_threshold: self
                .int("large-cluster-size-threshold", usual.large_cluster_size_threshold),
            terminated_pod_gc_threshold: self
                .int("terminated-pod-gc-threshold", usual.terminated_pod_gc_threshold),
            allocate_node_cidrs: self.switch("allocate-node-cidrs", false),
            cluster_cidr: self.list("cluster-cidr"),
            service_cluster_ip_range: self.list("service-cluster-ip-range"),
            node_cidr_mask_size: mask("node-cidr-mask-size"),
            node_cidr_mask_size_ipv4: mask("node-cidr-mask-size-ipv4"),
            node_cidr_mask_size_ipv6: mask("node-cidr-mask-size-ipv6"),
            hpa_sync_period: self.duration("horizontal-pod-autoscaler-sync-period", usual.hpa_sync_period)?,
            hpa_downscale_stabilization: self.duration(
                "horizontal-pod-autoscaler-downscale-stabilization",
                usual.hpa_downscale_stabilization,
            )?,
            hpa_tolerance: self.float("horizontal-pod-autoscaler-tolerance", usual.hpa_tolerance),
            hpa_cpu_initialization_period: self.duration(
                "horizontal-pod-autoscaler-cpu-initialization-period",
                usual.hpa_cpu_initialization_period,
            )?,
            hpa_initial_readiness_delay: self.duration(
                "horizontal-pod-autoscaler-initial-readiness-delay",
                usual.hpa_initial_readiness_delay,
            )?,
            namespace_sync_period: self.duration("namespace-sync-period", usual.namespace_sync_period)?,
            resource_quota_sync_period: self
                .duration("resource-quota-sync-period", usual.resource_quota_sync_period)?,
            pvclaimbinder_sync_period: self
                .duration("pvclaimbinder-sync-period", usual.pvclaimbinder_sync_period)?,
            max_endpoints_per_slice: self.int("max-endpoints-per-slice", usual.max_endpoints_per_slice),
            mirroring_max_endpoints_per_subset: self
                .int("mirroring-max-endpoints-per-subset", usual.mirroring_max_endpoints_per_subset),
            endpoint_updates_batch_period: self
                .duration("endpoint-updates-batch-period", usual.endpoint_updates_batch_period)?,
            endpointslice_updates_batch_period: self
                .duration("endpointslice-updates-batch-period", usual.endpointslice_updates_batch_period)?,
            enable_hostpath_provisioner: self.switch("enable-hostpath-provisioner", false),
            enable_dynamic_provisioning: self.switch("enable-dynamic-provisioning", true),
            disable_force_detach_on_timeout: self.switch("disable-force-detach-on-timeout", false),
            recycler: Recycler {
                least_host_path: self
                    .int("pv-recycler-minimum-timeout-hostpath", usual.recycler.least_host_path),
                each_gib_host_path: self
                    .int("pv-recycler-timeout-increment-hostpath", usual.recycler.each_gib_host_path),
                least_nfs: self.int("pv-recycler-minimum-timeout-nfs", usual.recycler.least_nfs),
                each_gib_nfs: self.int("pv-recycler-increment-timeout-nfs", usual.recycler.each_gib_nfs),
            },
            legacy_service_account_token_clean_up_period: self.duration(
                "legacy-service-account-token-clean-up-period",
                usual.legacy_service_account_token_clean_up_period,
            )?,
            time_zone: TimeZone::UTC,
            root_ca: None,
            token_signer: None,
            certificate_signer: None,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(args: &[&str]) -> Result<Controllers, String> {
        let parsed =
            base::flags::parse(FLAGS, args.iter().map(|a| (*a).into())).map_err(|e| format!("{e:?}"))?;
        Controllers::read(&parsed.values)
    }

    #[test]
    fn what_is_not_said_is_upstreams_default() {
        let config = read(&[]).unwrap();
        assert_eq!((config.tuning, config.rate), (Tuning::default(), None));
        assert!(config.chosen.is_empty() && config.not_honoured.is_empty());
        assert_eq!(config.leader.unwrap().lease_duration, Duration::from_secs(15));
    }

    #[test]
    fn what_kubeadm_writes_is_taken() {
        let config = read(&[
            "--authentication-kubeconfig=/a",
            "--bind-address=127.0.0.1",
            "--cluster-signing-cert-file=/a",
            "--cluster-signing-key-file=/b",
            "--controllers=*,bootstrapsigner,tokencleaner",
            "--kubeconfig=/etc/kubernetes/controller-manager.conf",
            "--leader-elect=true",
            "--requestheader-client-ca-file=/a",
            "--root-ca-file=/etc/kubernetes/pki/ca.crt",
            "--service-account-private-key-file=/etc/kubernetes/pki/sa.key",
            "--use-service-account-credentials=true",
            "--concurrent-deployment-syncs=9",
            "--node-monitor-grace-period=1m",
        ])
        .unwrap();
        assert_eq!(config.chosen, ["*", "bootstrapsigner", "tokencleaner"]);
        assert_eq!(config.tuning.syncs("deployment", 5), 9);
        assert!(config.tuning.use_service_account_credentials);
        assert_eq!(config.tuning.node_monitor_grace_period, Duration::from_mins(1));
        assert_eq!(config.not_honoured, ["--requestheader-client-ca-file"]);
        let files = &config.signers["kubernetes.io/kubelet-serving"];
        assert_eq!((config.signers.len(), files.certificate.to_str()), (4, Some("/a")));
        assert_eq!(config.signing_duration, Duration::from_hours(8760));
        let serving = config.serving.unwrap();
        assert_eq!(serving.address.to_string(), "127.0.0.1:10257");
        assert_eq!(serving.authentication, Some(PathBuf::from("/a")));
        assert!(config.kubeconfig.is_some() && config.root_ca_file.is_some());
    }

    #[test]
    fn the_garbage_collector_can_be_switched_off() {
        for (args, chosen) in [
            (&["--enable-garbage-collector=false"][..], &["*", "-garbage-collector-controller"][..]),
            (
                &["--enable-garbage-collector=false", "--controllers=job"],
                &["job", "-garbage-collector-controller"],
            ),
            (&["--enable-garbage-collector=true"], &[]),
        ] {
            let config = read(args).unwrap();
            assert_eq!(config.chosen, chosen, "{args:?}");
            assert!(config.not_honoured.is_empty());
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for args in [
            &["--leader-elect-lease-duration=5s"][..],
            &["--leader-elect-renew-deadline=2s"],
            &["--node-monitor-period=often"],
            &["--no-such-flag=1"],
        ] {
            assert!(read(args).is_err(), "{args:?}");
        }
    }
}
