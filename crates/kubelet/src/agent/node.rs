//! The node as its Pods see it, built from the configuration and the machine.

use std::sync::Arc;

use api::config::gates::{GATES, Stage};
use api::config::kubelet::Loaded;
use base::rng::Rng;
use kubelet_core::admission::NodeOffer;
use kubelet_core::cri_config;
use kubelet_core::node::addresses::Sources;
use kubelet_core::sysctl::Allowlist;
use plugins::{Handlers, PluginType};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Builder, StartError, settings};
use crate::cluster::objects::ApiObjects;
use crate::cluster::own_node::OwnNodeView;
use crate::devices::RegistrationService;
use crate::events::{EventType, Recorder};
use crate::host::facts::go_arch;
use crate::host::net::SocketNet;
use crate::host::userns::{self, StoreError, UsernsStore};
use crate::pods::host_ips::{self, HostIps};
use crate::pods::node::{Node, NodeFacts};
use crate::pods::pod_files::DiskPodFiles;
use crate::pods::prober::{Hands, Prober};
use crate::pods::records::ResourceRecords;
use crate::ports::{Accounts, NoObjects, NoStorage, Objects, Storage};
use crate::runtime::health::RuntimeHealth;
use crate::runtime::observer::Observer;
use crate::volumes::drivers::Measured;
use crate::volumes::drivers::registration::Registrar;
use crate::volumes::{CsiDeps, NodeVolumes};

/// What Pods and volumes refer to beyond their own object.
struct References {
    objects: Arc<dyn Objects>,
    storage: Arc<dyn Storage>,
    accounts: Option<Arc<dyn Accounts>>,
}

impl Builder<'_> {
    pub(super) async fn node(
        &self,
        health: watch::Receiver<RuntimeHealth>,
        token: &CancellationToken,
    ) -> Result<(Node, Arc<NodeVolumes>), StartError> {
        let wall = self.clock.now().wall.0;
        let mut rng = Rng::new(wall.unsigned_abs());
        let facts = self.facts().await?;
        let io = |what: &'static str| move |e: std::io::Error| StartError::new(format!("{what}: {e}"));
        let sink = self.cluster.as_ref().map(|c| c.event_sink());
        let recorder = Recorder::new(self.clock.clone()).with_sink(sink);
        let files = Arc::new(DiskPodFiles::new(self.dirs.clone(), rng.child()));
        let records = ResourceRecords::open(files.clone()).await;
        let records = Arc::new(records.map_err(|e| StartError::new(e.to_string()))?);
        let References { objects, storage, accounts } = self.references(&mut rng, token);
        let volumes = NodeVolumes::open(
            &self.dirs.root,
            facts.cri_config.allocatable.clone(),
            self.clock.clone(),
            rng.child(),
        )
        .map_err(io("open the directory of Pods"))?
        .with_objects(objects.clone())
        .with_metrics(self.metrics.clone())
        .with_csi(CsiDeps {
            drivers: self.drivers.clone(),
            registrar: self.registrar(),
            storage,
            measured: self.measured(),
            recorder: recorder.clone(),
            figures: self.figures.clone(),
        });
        let volumes = Arc::new(volumes);
        let observer =
            Observer::new(self.runtime.clone(), files.clone(), self.clock.clone(), self.metrics.clone());
        let net = Arc::new(SocketNet);
        let host_ips = HostIps::new(self.own_node(), self.host_ips.subscribe());
        let prober = Prober::new(Hands {
            runtime: self.runtime.clone(),
            net: net.clone(),
            clock: self.clock.clone(),
            recorder: recorder.clone(),
            metrics: self.probe_metrics.clone(),
            host_ips: host_ips.clone(),
            seed: rng.next_u64(),
            started: self.clock.now(),
        });
        let node = Node {
            images: Arc::new(self.images(&recorder, accounts).await?),
            prober: Arc::new(prober),
            userns: self.userns()?,
            board: Arc::default(),
            offer: self.offer(&facts)?,
            own: self.own_node(),
            host_ips,
            shutting_down: watch::Sender::default(),
            pressures: watch::Sender::default(),
            places: self.places(token)?,
            settings: settings::pods(&self.start.loaded, rng.next_u64()),
            facts,
            health,
            observer: Arc::new(observer),
            runtime: self.runtime.clone(),
            volumes: volumes.clone(),
            objects,
            files,
            cgroups: self.cgroups(&recorder, token).await?,
            records,
            net,
            clock: self.clock.clone(),
            recorder,
            metrics: self.metrics.clone(),
        };
        Ok((node, volumes))
    }

    /// What Pods and volumes refer to, if there is an API server to have it.
    fn references(&self, rng: &mut Rng, token: &CancellationToken) -> References {
        let Some(cluster) = &self.cluster else {
            return References { objects: Arc::new(NoObjects), storage: Arc::new(NoStorage), accounts: None };
        };
        let strategy = settings::strategy(&self.start.loaded.config);
        let clock = self.clock.clone();
        let mut objects = ApiObjects::new(cluster.clone(), strategy, clock, rng.child(), token.clone());
        if self.start.loaded.gates.enabled("ClusterTrustBundleProjection") {
            objects = objects.with_trust_bundles(rng.child());
        }
        let storage = objects.storage();
        let objects = Arc::new(objects);
        References { objects: objects.clone(), storage, accounts: Some(objects) }
    }

    pub(super) async fn facts(&self) -> Result<NodeFacts, StartError> {
        let Loaded { config, flags, .. } = &self.start.loaded;
        let name = flags.node_name(&self.machine.hostname);
        self.find_host_ips();
        let version = self.runtime.version().await.map_err(|e| StartError::new(e.to_string()))?;
        let status = self.runtime.status().await.map_err(|e| StartError::new(e.to_string()))?;
        Ok(NodeFacts {
            runtime_name: version.runtime_name,
            handlers: status.runtime_handlers,
            strict_groups: status.features.is_some_and(|f| f.supplemental_groups_policy),
            cri_config: cri_config::NodeFacts {
                name,
                // Asked anew for every CRI config, as the resolver below: the machine's network may change.
                host_ips: Vec::new(),
                allocatable: settings::allocatable(config, flags, &self.machine)?,
                memory_capacity: self.machine.memory.total,
                swap_capacity: self.machine.memory.swap,
                swap_controller: self.machine.swap_controller,
                cgroup_v2: self.machine.cgroup_v2,
                hugepage_sizes: self.machine.hugepage_sizes.clone(),
                selinux: self.machine.selinux,
                cluster_dns: settings::cluster_dns(config),
                cluster_domain: config.cluster_domain.clone(),
                resolv_conf: None,
                thermal_paths: self.machine.thermal_paths.clone(),
            },
        })
    }

    pub(super) fn own_node(&self) -> Option<OwnNodeView> {
        self.cluster.as_ref().map(|c| c.own_node_view())
    }

    /// Where the machine's own addresses may come from.
    pub(super) fn address_sources(&self) -> Sources {
        let flags = &self.start.loaded.flags;
        Sources {
            given: flags.node_ips(),
            hostname: flags.node_name(&self.machine.hostname),
            external_cloud: flags.cloud_provider == "external",
            ..Sources::default()
        }
    }

    /// A machine without an address may get one later.
    pub(super) fn find_host_ips(&self) {
        match host_ips::find(&self.address_sources()) {
            Ok(ips) => _ = self.host_ips.send_replace(ips),
            Err(error) => tracing::warn!(%error, "the node's addresses are not known"),
        }
    }

    pub(super) fn offer(&self, facts: &NodeFacts) -> Result<NodeOffer, StartError> {
        let config = &self.start.loaded.config;
        let sysctls = Allowlist::new(&self.machine.kernel, &config.allowed_unsafe_sysctls);
        let name = &facts.cri_config.name;
        let labels = [("hostname", name.as_str()), ("os", "linux"), ("arch", go_arch())];
        let labels = labels.iter().map(|(k, v)| (format!("kubernetes.io/{k}"), (*v).to_owned()));
        Ok(NodeOffer {
            name: name.clone(),
            labels: labels.chain(self.start.loaded.flags.node_labels.clone()).collect(),
            taints: Vec::new(),
            allocatable: facts.cri_config.allocatable.clone(),
            extended: std::collections::BTreeMap::new(),
            sysctls: sysctls.map_err(|e| StartError::new(format!("allowedUnsafeSysctls: {e}")))?,
            app_armor: self.machine.app_armor,
            strict_groups: facts.strict_groups,
            no_pod_resources: !self.start.loaded.gates.enabled("PodLevelResources"),
            no_pod_resize: !self.start.loaded.gates.enabled("InPlacePodLevelResourcesVerticalScaling"),
            limited_swap: facts.cri_config.cgroup_v2
                && facts.cri_config.swap_controller
                && config.memory_swap.swap_behavior == "LimitedSwap",
            static_cpus: config.cpu_manager_policy == "static",
            static_memory: config.memory_manager_policy == "Static",
            declared: crate::node::declared_features(&self.start.loaded.gates),
            shutting_down: false,
            pressures: Default::default(),
        })
    }

    /// Id ranges for user namespaces; a node without them runs all other Pods. A record that contradicts the
    /// configuration is another matter: the Pod it speaks of may run.
    pub(super) fn userns(&self) -> Result<Option<Arc<UsernsStore>>, StartError> {
        let config = &self.start.loaded.config;
        let per_pod = config.user_namespaces.ids_per_pod.and_then(|n| u32::try_from(n).ok()).unwrap_or(65536);
        let max_pods = u32::try_from(config.max_pods).unwrap_or(110);
        match userns::grant(per_pod, max_pods).and_then(|g| UsernsStore::open(&self.dirs.root, g)) {
            Ok(store) => Ok(Some(Arc::new(store))),
            Err(error @ StoreError::Unfit { .. }) => Err(StartError::new(error.to_string())),
            Err(error) => {
                tracing::warn!(%error, "no id ranges for user namespaces");
                Ok(None)
            }
        }
    }

    /// Who takes plugins of which type: one line each.
    pub(super) fn plugin_handlers(&self, node: &Node) -> Handlers {
        let handlers = Handlers::default().with(PluginType::Csi, Arc::new(self.registrar()));
        match node.places.devices() {
            Some(devices) => {
                handlers.with(PluginType::Device, Arc::new(RegistrationService(devices.clone())))
            }
            None => handlers,
        }
    }

    /// Who lets CSI drivers in.
    pub(super) fn registrar(&self) -> Registrar {
        let csi_node = self.cluster.as_ref().map(|c| c.csi_node());
        Registrar { drivers: self.drivers.clone(), csi_node, measured: self.measured() }
    }

    pub(super) fn measured(&self) -> Measured {
        Measured { metrics: self.metrics.clone(), clock: self.clock.clone() }
    }

    /// A resolver file that Pods cannot inherit whole is told once, on the node: it is no single Pod's matter.
    pub(super) async fn check_resolver(&self, node: &Node) {
        let Some(path) = &self.dirs.resolv_conf else { return };
        let domain = &node.facts.cri_config.cluster_domain;
        let told = match node.files.node_resolver().await {
            Ok(text) => {
                cri_config::check_resolver(&path.display().to_string(), &text.unwrap_or_default(), domain)
            }
            Err(error) => Err(error.to_string()),
        };
        if let Err(message) = told {
            let name = &node.facts.cri_config.name;
            node.recorder.node(name, EventType::Warning, "CheckLimitsForResolvConf", message);
        }
    }

    /// The metrics that never change.
    pub(super) fn describe(&self, node: &Node) {
        let metrics = &self.metrics;
        metrics.node_name.set([&node.facts.cri_config.name], 1.0);
        metrics.cgroup_version.set([], if self.machine.cgroup_v2 { 2.0 } else { 1.0 });
        for gate in GATES {
            let stage = match gate.stage {
                Stage::Alpha => "ALPHA",
                Stage::Beta => "BETA",
                Stage::Ga => "",
                Stage::Deprecated => "DEPRECATED",
            };
            let on = self.start.loaded.gates.enabled(gate.name);
            metrics.kubernetes_feature_enabled.set([gate.name, stage], f64::from(u8::from(on)));
        }
        let version = self.start.version.as_str();
        let mut numbers = version.trim_start_matches('v').split('.');
        let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
        let platform = format!("{}/{}", std::env::consts::OS, go_arch());
        let labels = [major, minor, version, "", "", "", "", "rustc", &platform];
        metrics.kubernetes_build_info.set(labels, 1.0);
    }
}
