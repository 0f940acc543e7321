//! A node for tests.

use std::collections::BTreeMap;
use std::time::Duration;

use super::addresses::Sources;
use super::capacity::{Machine, PodLimit};
use super::conditions::Health;
use super::status::{Fixed, Handler, Identity, Image, Moment, Runtime};

pub(crate) fn fixed() -> Fixed {
    Fixed {
        name: "n1".into(),
        identity: Identity {
            machine_id: "m1".into(),
            system_uuid: "u1".into(),
            boot_id: "b1".into(),
            kernel: "6.12.0".into(),
            os_image: "Debian GNU/Linux 13 (trixie)".into(),
            arch: "amd64".into(),
            kubelet_version: "v1.36.4".into(),
            swap: 0,
        },
        pods: Some(PodLimit { max: 110, per_core: 0 }),
        port: 10250,
        max_images: Some(50),
        declared: vec!["RestartAllContainersOnContainerExits".into()],
        counts_storage: true,
        ..Fixed::default()
    }
}

pub(crate) fn moment() -> Moment {
    let ip = |text: &str| text.parse().ok();
    Moment {
        machine: Machine {
            cpus: 4,
            memory: 16 << 30,
            ephemeral_storage: Some(100 << 30),
            huge_pages: BTreeMap::from([(2 << 20, 0)]),
        },
        addresses: Sources {
            hostname: "n1".into(),
            default_v4: ip("10.0.0.9"),
            local: ip("10.0.0.9").into_iter().collect(),
            ..Sources::default()
        },
        runtime: Runtime {
            name: "containerd".into(),
            version: Some("2.1.4".into()),
            handlers: ["runc", ""]
                .map(|name| Handler {
                    name: name.into(),
                    recursive_read_only: true,
                    user_namespaces: name.is_empty(),
                })
                .into(),
            groups_policy: Some(true),
        },
        images: vec![Image {
            id: "i1".into(),
            digests: vec!["r/a@sha256:1".into()],
            tags: vec!["r/a:1".into()],
            size: 7,
        }],
        health: Health {
            runtime_seen: Some(Duration::ZERO),
            relisted: Some(Duration::ZERO),
            ..Health::default()
        },
        ..Moment::default()
    }
}
