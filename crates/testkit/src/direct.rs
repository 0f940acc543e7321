//! Drives a runtime directly over CRI: what benchmarks compare the kubelet with.

use std::path::PathBuf;

use cri::{Client, v1};

/// A caller of CRI that is not a kubelet.
#[derive(Debug)]
pub struct Direct {
    client: Client,
    logs: PathBuf,
}

/// A sandbox with one running container.
#[derive(Clone, Debug)]
pub struct DirectPod {
    pub sandbox: String,
    pub container: String,
}

/// A sandbox and the container in it.
#[derive(Clone, Debug)]
pub struct Order {
    pub sandbox: v1::PodSandboxConfig,
    pub container: v1::ContainerConfig,
}

// === impl Direct ===

impl Direct {
    pub fn new(client: Client, logs: impl Into<PathBuf>) -> Self {
        Self { client, logs: logs.into() }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The least a Pod needs.
    pub async fn run(&self, name: &str, image: &str, args: &[&str]) -> cri::Result<DirectPod> {
        let container = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: "main".into(), attempt: 0 }),
            image: Some(v1::ImageSpec { image: image.into(), ..v1::ImageSpec::default() }),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            log_path: "main.log".into(),
            ..v1::ContainerConfig::default()
        };
        self.carry_out(Order { sandbox: self.sandbox(name), container }).await
    }

    /// Sandbox, container, start: returns when the container runs.
    pub async fn carry_out(&self, order: Order) -> cri::Result<DirectPod> {
        let sandbox = self.client.run_pod_sandbox(order.sandbox.clone(), "").await?;
        let container = self.client.create_container(&sandbox, order.container, order.sandbox).await?;
        self.client.start_container(&container).await?;
        Ok(DirectPod { sandbox, container })
    }

    /// Stops and removes both.
    pub async fn remove(&self, pod: &DirectPod, grace: i64) -> cri::Result<()> {
        self.client.stop_container(&pod.container, grace).await?;
        self.client.remove_container(&pod.container).await?;
        self.client.stop_pod_sandbox(&pod.sandbox).await?;
        self.client.remove_pod_sandbox(&pod.sandbox).await
    }

    /// The address the network gave the sandbox.
    pub async fn address(&self, pod: &DirectPod) -> cri::Result<String> {
        let answer = self.client.pod_sandbox_status(&pod.sandbox).await?;
        Ok(answer.status.and_then(|status| status.network).map(|network| network.ip).unwrap_or_default())
    }

    /// What the least Pod asks for.
    #[must_use]
    pub fn sandbox(&self, name: &str) -> v1::PodSandboxConfig {
        v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: name.into(),
                uid: format!("uid-{name}"),
                namespace: "direct".into(),
                attempt: 0,
            }),
            hostname: name.into(),
            log_directory: self.logs.join(name).display().to_string(),
            linux: Some(v1::LinuxPodSandboxConfig::default()),
            ..v1::PodSandboxConfig::default()
        }
    }
}
