//! CRI configs in CRI's words. Nothing is decided here.

use cri::v1;
use kubelet_core::cri_config::{
    ContainerConfig, ContainerSecurity, GroupsPolicy, IdMapping, LinuxResources, Mount, NamespaceMode,
    Namespaces, Profile, Propagation, Protocol, SandboxConfig, SandboxSecurity, SeLinux, UserMode,
};

/// What RunPodSandbox gets, and every CreateContainer after it.
#[must_use]
pub fn sandbox(cri_config: &SandboxConfig) -> v1::PodSandboxConfig {
    v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: cri_config.name.clone(),
            namespace: cri_config.namespace.clone(),
            uid: cri_config.uid.clone(),
            attempt: cri_config.attempt,
        }),
        hostname: cri_config.hostname.clone(),
        log_directory: cri_config.log_directory.clone(),
        dns_config: Some(v1::DnsConfig {
            servers: cri_config.dns.servers.clone(),
            searches: cri_config.dns.searches.clone(),
            options: cri_config.dns.options.clone(),
        }),
        port_mappings: cri_config
            .ports
            .iter()
            .map(|p| v1::PortMapping {
                protocol: protocol(p.protocol).into(),
                container_port: p.container_port,
                host_port: p.host_port,
                host_ip: p.host_ip.clone(),
            })
            .collect(),
        labels: cri_config.labels.clone(),
        annotations: cri_config.annotations.clone(),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: cri_config.cgroup_parent.clone(),
            security_context: Some(sandbox_security(&cri_config.security)),
            sysctls: cri_config.sysctls.clone(),
            overhead: Some(resources(&cri_config.overhead)),
            resources: Some(resources(&cri_config.resources)),
        }),
    }
}

/// What CreateContainer gets.
#[must_use]
pub fn container(cri_config: &ContainerConfig) -> v1::ContainerConfig {
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: cri_config.name.clone(), attempt: cri_config.attempt }),
        image: Some(v1::ImageSpec {
            image: cri_config.image_ref.clone(),
            user_specified_image: cri_config.image.clone(),
            ..v1::ImageSpec::default()
        }),
        command: cri_config.command.clone(),
        args: cri_config.args.clone(),
        working_dir: cri_config.working_dir.clone(),
        envs: cri_config
            .env
            .iter()
            .map(|(key, value)| v1::KeyValue { key: key.clone(), value: value.clone().into_bytes() })
            .collect(),
        mounts: cri_config.mounts.iter().map(mount).collect(),
        devices: cri_config
            .devices
            .iter()
            .map(|d| v1::Device {
                container_path: d.container_path.clone(),
                host_path: d.host_path.clone(),
                permissions: d.permissions.clone(),
            })
            .collect(),
        labels: cri_config.labels.clone(),
        annotations: cri_config.annotations.clone(),
        log_path: cri_config.log_path.clone(),
        stdin: cri_config.stdin,
        stdin_once: cri_config.stdin_once,
        tty: cri_config.tty,
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(resources(&cri_config.resources)),
            security_context: Some(container_security(&cri_config.security)),
        }),
        cdi_devices: cri_config.cdi_devices.iter().map(|name| v1::CdiDevice { name: name.clone() }).collect(),
        stop_signal: cri_config.stop_signal.as_deref().map_or(v1::Signal::RuntimeDefault, signal).into(),
    }
}

/// Resources alone, as UpdateContainerResources wants them.
#[must_use]
pub fn resources(r: &LinuxResources) -> v1::LinuxContainerResources {
    v1::LinuxContainerResources {
        cpu_period: r.cpu_period,
        cpu_quota: r.cpu_quota,
        cpu_shares: r.cpu_shares,
        memory_limit_in_bytes: r.memory_limit,
        oom_score_adj: r.oom_score_adj,
        hugepage_limits: r
            .hugepages
            .iter()
            .map(|(page_size, limit)| v1::HugepageLimit { page_size: page_size.clone(), limit: *limit })
            .collect(),
        unified: r.unified.clone(),
        memory_swap_limit_in_bytes: r.memory_swap_limit,
        cpuset_cpus: r.cpuset_cpus.clone(),
        cpuset_mems: r.cpuset_mems.clone(),
    }
}

fn sandbox_security(s: &SandboxSecurity) -> v1::LinuxSandboxSecurityContext {
    v1::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(&s.namespaces)),
        selinux_options: s.selinux.as_ref().map(selinux),
        run_as_user: s.run_as_user.map(int64),
        run_as_group: s.run_as_group.map(int64),
        supplemental_groups: s.supplemental_groups.clone(),
        supplemental_groups_policy: groups_policy(s.groups_policy).into(),
        privileged: s.privileged,
        seccomp: Some(profile(&s.seccomp)),
        ..v1::LinuxSandboxSecurityContext::default()
    }
}

/// The old textual AppArmor field is filled too: containerd before 1.7 reads only that one.
#[allow(deprecated)]
fn container_security(s: &ContainerSecurity) -> v1::LinuxContainerSecurityContext {
    let capabilities =
        (!s.add_capabilities.is_empty() || !s.drop_capabilities.is_empty()).then(|| v1::Capability {
            add_capabilities: s.add_capabilities.clone(),
            drop_capabilities: s.drop_capabilities.clone(),
            ..v1::Capability::default()
        });
    v1::LinuxContainerSecurityContext {
        capabilities,
        privileged: s.privileged,
        namespace_options: Some(namespaces(&s.namespaces)),
        selinux_options: s.selinux.as_ref().map(selinux),
        run_as_user: s.run_as_user.map(int64),
        run_as_username: s.run_as_username.clone(),
        run_as_group: s.run_as_group.map(int64),
        readonly_rootfs: s.read_only_rootfs,
        supplemental_groups: s.supplemental_groups.clone(),
        supplemental_groups_policy: groups_policy(s.groups_policy).into(),
        apparmor_profile: match &s.apparmor {
            None => String::new(),
            Some(Profile::RuntimeDefault) => "runtime/default".into(),
            Some(Profile::Unconfined) => "unconfined".into(),
            Some(Profile::Localhost(name)) => format!("localhost/{name}"),
        },
        apparmor: s.apparmor.as_ref().map(profile),
        seccomp: Some(profile(&s.seccomp)),
        no_new_privs: s.no_new_privs,
        masked_paths: s.masked_paths.clone(),
        readonly_paths: s.readonly_paths.clone(),
        ..v1::LinuxContainerSecurityContext::default()
    }
}

fn mount(m: &Mount) -> v1::Mount {
    v1::Mount {
        container_path: m.container_path.clone(),
        host_path: m.host_path.clone(),
        readonly: m.read_only,
        selinux_relabel: m.selinux_relabel,
        propagation: match m.propagation {
            Propagation::Private => v1::MountPropagation::PropagationPrivate,
            Propagation::HostToContainer => v1::MountPropagation::PropagationHostToContainer,
            Propagation::Bidirectional => v1::MountPropagation::PropagationBidirectional,
        }
        .into(),
        uid_mappings: m.uid_mappings.iter().map(id_mapping).collect(),
        gid_mappings: m.gid_mappings.iter().map(id_mapping).collect(),
        recursive_read_only: m.recursive_read_only,
        image: m
            .image
            .as_ref()
            .map(|image| v1::ImageSpec { image: image.clone(), ..v1::ImageSpec::default() }),
        image_sub_path: m.image_sub_path.clone(),
    }
}

fn namespaces(n: &Namespaces) -> v1::NamespaceOption {
    v1::NamespaceOption {
        network: mode(n.network).into(),
        pid: mode(n.pid).into(),
        ipc: mode(n.ipc).into(),
        target_id: n.target_id.clone(),
        userns_options: Some(match &n.user {
            UserMode::Node => {
                v1::UserNamespace { mode: v1::NamespaceMode::Node.into(), ..v1::UserNamespace::default() }
            }
            UserMode::Pod(ids) => v1::UserNamespace {
                mode: v1::NamespaceMode::Pod.into(),
                uids: ids.uids.iter().map(id_mapping).collect(),
                gids: ids.gids.iter().map(id_mapping).collect(),
            },
        }),
    }
}

fn mode(mode: NamespaceMode) -> v1::NamespaceMode {
    match mode {
        NamespaceMode::Pod => v1::NamespaceMode::Pod,
        NamespaceMode::Container => v1::NamespaceMode::Container,
        NamespaceMode::Node => v1::NamespaceMode::Node,
        NamespaceMode::Target => v1::NamespaceMode::Target,
    }
}

fn id_mapping(m: &IdMapping) -> v1::IdMapping {
    v1::IdMapping { host_id: m.host_id, container_id: m.container_id, length: m.length }
}

fn profile(p: &Profile) -> v1::SecurityProfile {
    use v1::security_profile::ProfileType;
    let (kind, localhost_ref) = match p {
        Profile::RuntimeDefault => (ProfileType::RuntimeDefault, String::new()),
        Profile::Unconfined => (ProfileType::Unconfined, String::new()),
        Profile::Localhost(name) => (ProfileType::Localhost, name.clone()),
    };
    v1::SecurityProfile { profile_type: kind.into(), localhost_ref }
}

fn selinux(s: &SeLinux) -> v1::SeLinuxOption {
    v1::SeLinuxOption {
        user: s.user.clone(),
        role: s.role.clone(),
        r#type: s.kind.clone(),
        level: s.level.clone(),
    }
}

fn groups_policy(p: GroupsPolicy) -> v1::SupplementalGroupsPolicy {
    match p {
        GroupsPolicy::Merge => v1::SupplementalGroupsPolicy::Merge,
        GroupsPolicy::Strict => v1::SupplementalGroupsPolicy::Strict,
    }
}

fn protocol(p: Protocol) -> v1::Protocol {
    match p {
        Protocol::Tcp => v1::Protocol::Tcp,
        Protocol::Udp => v1::Protocol::Udp,
        Protocol::Sctp => v1::Protocol::Sctp,
    }
}

fn int64(value: i64) -> v1::Int64Value {
    v1::Int64Value { value }
}

/// `SIGRTMIN+3` is spelled `SIGNAL_SIGRTMINPLUS3` on the wire.
fn signal(name: &str) -> v1::Signal {
    let wire = format!("SIGNAL_{}", name.replace('+', "PLUS").replace('-', "MINUS"));
    v1::Signal::from_str_name(&wire).unwrap_or(v1::Signal::RuntimeDefault)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::api::core::v1::Pod;
    use kubelet_core::cri_config::{
        self, ContainerInput, CriSettings, HandlerFeatures, ImageUser, NodeFacts, ResolvedVolume,
        SandboxInput, UserNamespace,
    };
    use kubelet_core::pod::ContainerKind;

    use super::*;

    fn rich() -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "u-1", "labels": {"app": "web"}},
            "spec": {
                "hostUsers": false,
                "shareProcessNamespace": true,
                "securityContext": {
                    "runAsUser": 1000, "runAsGroup": 2000, "fsGroup": 3000, "supplementalGroups": [4000],
                    "supplementalGroupsPolicy": "Strict",
                    "seLinuxOptions": {"level": "s0:c1"},
                    "sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}],
                },
                "containers": [{
                    "name": "main", "image": "img:v1", "command": ["run"], "args": ["$(A)"], "tty": true,
                    "env": [{"name": "A", "value": "a"}],
                    "ports": [{"containerPort": 53, "hostPort": 5353, "protocol": "UDP"}],
                    "lifecycle": {"stopSignal": "SIGRTMIN+3"},
                    "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1", "memory": "64Mi"}},
                    "volumeMounts": [
                        {"name": "data", "mountPath": "/data", "mountPropagation": "HostToContainer"},
                        {"name": "img", "mountPath": "/img", "subPath": "x"},
                    ],
                    "securityContext": {
                        "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]},
                        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                        "seccompProfile": {"type": "Localhost", "localhostProfile": "p.json"},
                        "appArmorProfile": {"type": "Localhost", "localhostProfile": "aa"},
                    },
                }],
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_rich_pod_reaches_the_wire() {
        let pod = rich();
        let ids = [IdMapping { host_id: 65536, container_id: 0, length: 65536 }];
        let userns = UserNamespace { uids: ids.to_vec(), gids: ids.to_vec() };
        let handler = HandlerFeatures { recursive_read_only: true, user_namespaces: true };
        let node = NodeFacts {
            cgroup_v2: true,
            memory_capacity: 8 << 30,
            hugepage_sizes: vec!["2MB".into()],
            ..NodeFacts::default()
        };
        let config = CriSettings::default();
        let cri_config = cri_config::sandbox(&SandboxInput {
            groups: &[],
            pod: &pod,
            attempt: 2,
            node: &node,
            config: &config,
            cgroup_parent: "/kubepods",
            userns: Some(&userns),
            handler,
        });
        insta::assert_debug_snapshot!("sandbox", sandbox(&cri_config.unwrap()));
        let volumes = BTreeMap::from([
            ("data".to_owned(), ResolvedVolume::Host { path: "/vol/data".into(), read_only: true }),
            ("img".to_owned(), ResolvedVolume::Image { reference: "sha256:beef".into() }),
        ]);
        let cri_config = cri_config::container(&ContainerInput {
            groups: &[],
            pod: &pod,
            name: "main",
            kind: ContainerKind::Regular,
            restart_count: 1,
            image_ref: "sha256:feed",
            image_user: &ImageUser::default(),
            volumes: &volumes,
            sub_paths: &BTreeMap::new(),
            env_files: &BTreeMap::new(),
            pod_ips: &["10.0.0.2".parse().unwrap()],
            node: &node,
            config: &config,
            references: &Default::default(),
            service_env: &BTreeMap::new(),
            hosts_file: Some("/root/pods/u-1/etc-hosts".as_ref()),
            termination_file: None,
            userns: Some(&userns),
            handler,
            target: None,
        });
        insta::assert_debug_snapshot!("container", container(&cri_config.unwrap()));
    }

    #[test]
    fn signals() {
        for (name, want) in [
            ("SIGTERM", v1::Signal::Sigterm),
            ("SIGRTMIN+3", v1::Signal::Sigrtminplus3),
            ("SIGRTMAX-14", v1::Signal::Sigrtmaxminus14),
            ("SIGNONSENSE", v1::Signal::RuntimeDefault),
        ] {
            assert_eq!(signal(name), want, "{name}");
        }
    }
}
