//! The container runtime: reached, asked for its cgroup driver, told the Pod network.

use std::sync::Arc;
use std::time::Duration;

use api::config::kubelet::KubeletConfiguration;
use kubelet_core::cgroup::Driver;

use super::StartError;
use crate::metrics::Metrics;
use crate::ports::Runtime;
use crate::runtime::Metered;

/// How long the runtime may take to answer for the first time.
const RUNTIME_TIMEOUT: Duration = Duration::from_secs(20);

/// Reaches the runtime, or says that it cannot be reached.
pub(super) async fn connect(
    config: &KubeletConfiguration,
    metrics: Arc<Metrics>,
    closing: cri::Closing,
) -> Result<Arc<dyn Runtime>, StartError> {
    let endpoint = |text: &str| cri::Endpoint::parse(text).map_err(|e| StartError::new(e.to_string()));
    let runtime = endpoint(&config.container_runtime_endpoint)?;
    let images = match config.image_service_endpoint.as_str() {
        "" => None,
        text => Some(endpoint(text)?),
    };
    let client = cri::Client::new(runtime, images, config.runtime_request_timeout.to_std());
    let client = client.with_closing(closing);
    let deadline = tokio::time::Instant::now() + RUNTIME_TIMEOUT;
    loop {
        match client.check_version().await {
            Ok(version) => {
                tracing::info!(
                    runtime = version.runtime_name,
                    version = version.runtime_version,
                    "runtime found"
                );
                return Ok(Arc::new(Metered::new(client, metrics)));
            }
            Err(error) if tokio::time::Instant::now() >= deadline => {
                return Err(StartError::new(error.to_string()));
            }
            Err(error) => {
                tracing::warn!(%error, "waiting for the runtime");
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
    }
}

/// Asks the runtime for its cgroup driver, which outranks ours, and tells it the Pod network.
pub(super) async fn configure_runtime(
    config: &KubeletConfiguration,
    runtime: &dyn Runtime,
) -> Result<Driver, StartError> {
    let mut tries = 0;
    let driver = loop {
        match runtime.runtime_config().await {
            Ok(answer) => {
                let driver = answer.linux.map(|l| l.cgroup_driver());
                break if driver == Some(cri::v1::CgroupDriver::Cgroupfs) { "cgroupfs" } else { "systemd" };
            }
            Err(e) if e.is_unimplemented() => break config.cgroup_driver.as_str(),
            Err(e) if tries >= 2 => return Err(StartError::new(e.to_string())),
            Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
        }
        tries += 1;
    };
    tracing::info!(driver, configured = config.cgroup_driver, "cgroup driver");
    if !config.pod_cidr.is_empty() {
        let told = runtime.update_runtime_config(&config.pod_cidr).await;
        told.map_err(|e| StartError::new(format!("podCIDR {}: {e}", config.pod_cidr)))?;
    }
    Ok(if driver == "systemd" { Driver::Systemd } else { Driver::Cgroupfs })
}
