//! Is the runtime there, and is its network? Asked every few seconds, told to every Pod task.

use std::sync::Arc;
use std::time::Duration;

use cri::v1;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::ports::Runtime;

/// Period of the runtime's status probe.
const PERIOD: Duration = Duration::from_secs(5);

/// What CRI Status said last. Optimistic until the runtime says otherwise: a Pod that tries too early
/// gets the runtime's own error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeHealth {
    pub runtime_ready: bool,
    pub network_ready: bool,
    pub network_message: String,
}

impl Default for RuntimeHealth {
    fn default() -> Self {
        Self { runtime_ready: true, network_ready: true, network_message: String::new() }
    }
}

/// Asks until cancelled; while the network is not ready it asks every second.
pub async fn watch_health(
    runtime: Arc<dyn Runtime>,
    health: watch::Sender<RuntimeHealth>,
    token: CancellationToken,
) {
    loop {
        let next = ask(&*runtime).await;
        health.send_if_modified(|old| {
            let changed = *old != next;
            if changed {
                tracing::info!(
                    runtime_ready = next.runtime_ready,
                    network_ready = next.network_ready,
                    message = next.network_message,
                    "runtime health changed"
                );
                *old = next.clone();
            }
            changed
        });
        let good = next.runtime_ready && next.network_ready;
        tokio::select! {
            () = token.cancelled() => return,
            () = tokio::time::sleep(if good { PERIOD } else { Duration::from_secs(1) }) => {}
        }
    }
}

async fn ask(runtime: &dyn Runtime) -> RuntimeHealth {
    let conditions = match runtime.status().await {
        Ok(answer) => answer.status.map(|s| s.conditions).unwrap_or_default(),
        // Silence is not a verdict about the network.
        Err(_) => return RuntimeHealth { runtime_ready: false, ..Default::default() },
    };
    let find = |kind: &str| conditions.iter().find(|c| c.r#type == kind);
    let network = find("NetworkReady");
    RuntimeHealth {
        runtime_ready: find("RuntimeReady").is_none_or(|c| c.status),
        network_ready: network.is_none_or(|c| c.status),
        network_message: network.filter(|c| !c.status).map(network_text).unwrap_or_default(),
    }
}

/// The words of events and of the node's condition, which people search for.
fn network_text(c: &v1::RuntimeCondition) -> String {
    format!(
        "container runtime network not ready: NetworkReady={} reason:{} message:{}",
        c.status, c.reason, c.message
    )
}
