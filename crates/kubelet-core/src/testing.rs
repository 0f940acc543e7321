//! Small builders for this crate's own tests.

use base::time::Wall;
use k8s_openapi::api::core::v1::{Pod, PodSpec};

use crate::observed::{Container, ContainerState, Sandbox};

pub(crate) fn pod(spec: PodSpec) -> Pod {
    let mut pod = Pod { spec: Some(spec), ..Default::default() };
    pod.metadata.name = Some("web".into());
    pod.metadata.namespace = Some("default".into());
    pod.metadata.uid = Some("uid-1".into());
    pod
}

/// A Pod from the YAML of its spec.
pub(crate) fn pod_yaml(spec: &str) -> Pod {
    pod(from_yaml(spec))
}

pub(crate) fn from_yaml<T: serde::de::DeserializeOwned>(text: &str) -> T {
    let value = api::yaml::to_value(text.as_bytes(), api::yaml::DuplicateKeys::Reject).expect("valid YAML");
    serde_json::from_value(value).expect("fits the type")
}

/// A running instance of container `name` in sandbox `s0`, image `<name>:1`, id `<name>-0`.
pub(crate) fn instance(name: &str) -> Container {
    Container {
        id: format!("{name}-0").into(),
        sandbox: "s0".into(),
        name: name.into(),
        restart_count: 0,
        state: ContainerState::Running,
        hash: Some(api::pod::container_hash(name, &format!("{name}:1"))),
        image: format!("{name}:1"),
        image_ref: format!("registry.test/{name}@sha256:0"),
        image_id: "sha256:0".into(),
        created_at: Wall::from_secs(100),
        started_at: Some(Wall::from_secs(101)),
        finished_at: None,
        exit_code: 0,
        reason: String::new(),
        message: String::new(),
        termination_message: String::new(),
        resources: None,
        user: None,
    }
}

/// An exited instance.
pub(crate) fn exited(name: &str, exit_code: i32) -> Container {
    Container {
        state: ContainerState::Exited,
        exit_code,
        finished_at: Some(Wall::from_secs(110)),
        reason: if exit_code == 0 { "Completed" } else { "Error" }.into(),
        ..instance(name)
    }
}

pub(crate) fn sandbox(id: &str, attempt: u32, ready: bool) -> Sandbox {
    Sandbox {
        id: id.into(),
        attempt,
        ready,
        created_at: Wall::from_secs(90),
        host_network: false,
        ips: vec![std::net::IpAddr::from([10, 0, 0, 7])],
    }
}
