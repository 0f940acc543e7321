//! A Pod, a node and an input to write tables with.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::Pod;

use super::*;
use crate::downward::Allocatable;
use crate::pod::ContainerKind;
use crate::references::ReferencedObjects;

/// Pod `web` in namespace `shop` with uid `u-1` and this spec in YAML.
pub(crate) fn pod(spec: &str) -> Pod {
    Pod {
        metadata: serde_json::from_value(
            serde_json::json!({"name": "web", "namespace": "shop", "uid": "u-1"}),
        )
        .unwrap(),
        spec: Some(serde_saphyr::from_str(spec).unwrap()),
        status: None,
    }
}

/// A node with 8 GiB, two address families, a resolver and cluster DNS.
pub(crate) fn node() -> NodeFacts {
    let ip = |s: &str| s.parse::<IpAddr>().unwrap();
    NodeFacts {
        name: "n1".into(),
        host_ips: vec![ip("192.0.2.10"), ip("2001:db8::10")],
        allocatable: Allocatable {
            milli_cpu: 3500,
            memory: 4 << 30,
            ephemeral_storage: 10 << 30,
            pods: 110,
            hugepages: BTreeMap::new(),
        },
        memory_capacity: 8 << 30,
        cgroup_v2: true,
        hugepage_sizes: vec!["2MB".into(), "1GB".into()],
        cluster_dns: vec![ip("10.96.0.10")],
        cluster_domain: "cluster.local".into(),
        resolv_conf: parse_resolv_conf("nameserver 192.0.2.53\nsearch lan.example\noptions timeout:2\n").ok(),
        ..NodeFacts::default()
    }
}

/// Everything a [`ContainerInput`] borrows.
pub(crate) struct Bench {
    pub pod: Pod,
    pub node: NodeFacts,
    pub config: CriSettings,
    pub image_user: ImageUser,
    pub volumes: BTreeMap<String, ResolvedVolume>,
    pub sub_paths: BTreeMap<usize, PathBuf>,
    pub env_files: BTreeMap<(String, String), String>,
    pub pod_ips: Vec<IpAddr>,
    pub references: ReferencedObjects,
    pub service_env: BTreeMap<String, String>,
    pub userns: Option<UserNamespace>,
    pub handler: HandlerFeatures,
    pub target: Option<String>,
    pub hosts_file: PathBuf,
    pub termination_file: PathBuf,
}

impl Bench {
    pub(crate) fn new(pod: Pod) -> Self {
        let data = ResolvedVolume::Host { path: "/vol/data".into(), read_only: false };
        Self {
            pod,
            node: node(),
            config: CriSettings::default(),
            image_user: ImageUser::Uid(0),
            volumes: BTreeMap::from([("data".to_owned(), data)]),
            sub_paths: BTreeMap::new(),
            env_files: BTreeMap::new(),
            pod_ips: vec!["10.1.0.5".parse().unwrap(), "fd00::5".parse().unwrap()],
            references: ReferencedObjects::default(),
            service_env: BTreeMap::new(),
            userns: None,
            handler: HandlerFeatures { recursive_read_only: true, user_namespaces: true },
            target: None,
            hosts_file: "/root/pods/u-1/etc-hosts".into(),
            termination_file: "/root/pods/u-1/containers/main/0a1b2c3d".into(),
        }
    }

    pub(crate) fn input<'a>(&'a self, name: &'a str) -> ContainerInput<'a> {
        ContainerInput {
            groups: &[],
            pod: &self.pod,
            name,
            kind: ContainerKind::Regular,
            restart_count: 3,
            image_ref: "sha256:feed",
            image_user: &self.image_user,
            volumes: &self.volumes,
            sub_paths: &self.sub_paths,
            env_files: &self.env_files,
            pod_ips: &self.pod_ips,
            node: &self.node,
            config: &self.config,
            references: &self.references,
            service_env: &self.service_env,
            hosts_file: Some(&self.hosts_file),
            termination_file: Some(&self.termination_file),
            userns: self.userns.as_ref(),
            handler: self.handler,
            target: self.target.as_deref(),
        }
    }

    pub(crate) fn sandbox_input(&self) -> SandboxInput<'_> {
        SandboxInput {
            groups: &[],
            pod: &self.pod,
            attempt: 1,
            node: &self.node,
            config: &self.config,
            cgroup_parent: "",
            userns: self.userns.as_ref(),
            handler: self.handler,
        }
    }
}
