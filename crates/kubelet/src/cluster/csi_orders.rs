//! CSI drivers that come and go, on their way into the node's CSINode.

use kubelet_core::node::csi_node::DriverInfo;
use tokio::sync::{mpsc, oneshot};

const QUEUE: usize = 64;

/// Where drivers that come and go are told of.
#[derive(Clone, Debug)]
pub struct CsiNodeOrders(mpsc::Sender<Order>);

/// A driver that came, and who wants to know what became of it; or one that is gone.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) driver: String,
    pub(crate) info: Option<DriverInfo>,
    pub(crate) answer: Option<oneshot::Sender<Result<(), String>>>,
}

/// A place for orders and where they come out.
#[must_use]
pub(crate) fn orders() -> (CsiNodeOrders, mpsc::Receiver<Order>) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    (CsiNodeOrders(sender), receiver)
}

// === impl CsiNodeOrders ===

impl CsiNodeOrders {
    /// Enters a driver. A server that is out of reach is no reason to refuse it: it is entered later.
    pub async fn install(&self, info: DriverInfo) -> Result<(), String> {
        let (answer, answered) = oneshot::channel();
        let order = Order { driver: info.name.clone(), info: Some(info), answer: Some(answer) };
        // Nobody listens once the node is shutting down.
        let _ = self.0.send(order).await;
        answered.await.unwrap_or(Ok(()))
    }

    pub fn uninstall(&self, driver: &str) {
        let order = Order { driver: driver.to_owned(), info: None, answer: None };
        if self.0.try_send(order).is_err() {
            tracing::warn!(driver, "driver stays in the CSINode until it registers again");
        }
    }
}
