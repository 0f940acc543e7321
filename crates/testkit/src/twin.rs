//! The twin of a Pod: the sandbox and the container a kubelet would ask for, to be asked for by somebody else.
//!
//! Mounts, masked paths, cgroup values and the rest cost the runtime time. Whoever wants to know what the
//! kubelet adds has to give the runtime the same work without it.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use api::pod::Manifest;
use api::pod::static_pod::{Origin, prepare};
use base::time::Wall;
use cri::v1;
use k8s_openapi::api::core::v1::Pod;
use kubelet::host::facts;
use kubelet::runtime::to_cri;
use kubelet_core::cri_config::{self, ContainerInput, CriSettings, HandlerFeatures, ImageUser, SandboxInput};
use kubelet_core::pod::ContainerKind;

use crate::direct::Order;
use crate::node::Node;

/// Makes orders for twins.
#[derive(Debug)]
pub struct Twins {
    facts: cri_config::NodeFacts,
    config: CriSettings,
    /// Where the files are that a kubelet would write before a start.
    files: PathBuf,
}

type Outcome<T> = Result<T, Box<dyn Error>>;

// === impl Twins ===

impl Twins {
    /// Twins on this machine, with their files below `dir`.
    pub fn new(node: &Node, dir: &Path) -> Outcome<Self> {
        fs::create_dir_all(dir)?;
        let machine = facts::read_machine(dir)?;
        let resolver = fs::read_to_string("/etc/resolv.conf")?;
        let facts = cri_config::NodeFacts {
            name: "demo".into(),
            host_ips: vec![node.address().parse()?],
            memory_capacity: machine.memory.total,
            swap_capacity: machine.memory.swap,
            swap_controller: machine.swap_controller,
            cgroup_v2: machine.cgroup_v2,
            hugepage_sizes: machine.hugepage_sizes,
            selinux: machine.selinux,
            resolv_conf: Some(cri_config::parse_resolv_conf(&resolver).map_err(|e| e.to_string())?),
            thermal_paths: machine.thermal_paths,
            ..cri_config::NodeFacts::default()
        };
        let config = CriSettings { pod_logs_dir: dir.join("logs"), ..CriSettings::default() };
        Ok(Self { facts, config, files: dir.to_owned() })
    }

    /// What to ask the runtime for in place of the Pod of a manifest, and the files it needs.
    pub fn order(&self, manifest: &str) -> Outcome<Order> {
        let Manifest::Pod(pod) = api::pod::decode(manifest.as_bytes(), &mut |_| {})? else {
            return Err("the manifest is a list".into());
        };
        let pod = prepare(*pod, Origin::File("twin"), &self.facts.name, Wall::from_secs(0))?;
        let sandbox = cri_config::sandbox(&SandboxInput {
            groups: &[],
            pod: &pod,
            attempt: 0,
            node: &self.facts,
            config: &self.config,
            cgroup_parent: "",
            userns: None,
            handler: HandlerFeatures::default(),
        })?;
        let mut order = Order { sandbox: to_cri::sandbox(&sandbox), container: self.container(&pod)? };
        // The labels by which a kubelet would take it for its own.
        order.sandbox.labels.clear();
        order.container.labels.clear();
        Ok(order)
    }

    fn container(&self, pod: &Pod) -> Outcome<v1::ContainerConfig> {
        let spec = pod.spec.as_ref().and_then(|s| s.containers.first()).ok_or("the Pod has no container")?;
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let (hosts, message) = (self.file(name, "hosts")?, self.file(name, "message")?);
        let cri_config = cri_config::container(&ContainerInput {
            groups: &[],
            pod,
            name: &spec.name,
            kind: ContainerKind::Regular,
            restart_count: 0,
            image_ref: spec.image.as_deref().unwrap_or_default(),
            image_user: &ImageUser::default(),
            volumes: &BTreeMap::new(),
            sub_paths: &BTreeMap::new(),
            env_files: &BTreeMap::new(),
            // Which one does not matter, but a Pod without an address is given no hosts file.
            pod_ips: &self.facts.host_ips,
            node: &self.facts,
            config: &self.config,
            references: &Default::default(),
            service_env: &BTreeMap::new(),
            hosts_file: Some(&hosts),
            termination_file: Some(&message),
            userns: None,
            handler: HandlerFeatures::default(),
            target: None,
        })?;
        let logs = cri_config::metadata::log_directory(&self.config.pod_logs_dir, pod).join(&spec.name);
        fs::create_dir_all(logs)?;
        Ok(to_cri::container(&cri_config))
    }

    fn file(&self, pod: &str, name: &str) -> Outcome<PathBuf> {
        let path = self.files.join(format!("{pod}-{name}"));
        fs::write(&path, "127.0.0.1\tlocalhost\n")?;
        Ok(path)
    }
}
