//! Keeps the node's CSINode, without which it is not ready: a scheduler that does not find it would place Pods
//! whose volumes cannot be mounted. Drivers that register are entered in it, and in the Node itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::json::ToJson;
use base::rng::Rng;
use client::{ClientError, Request};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use kubelet_core::node::csi_node::{
    DriverInfo, Step, node_with_driver, node_without_driver, step, with_driver, without_driver,
};
use kubelet_core::node::patch::status_patch;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::cluster::csi_orders::Order;
use crate::cluster::{Cluster, node_path};

const ALL: &str = "/apis/storage.k8s.io/v1/csinodes";
const PAUSE_MIN: Duration = Duration::from_millis(30);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Attempts before a driver is told that it could not be entered.
const TRIES: u32 = 5;

#[derive(Clone)]
pub(super) struct Task {
    cluster: Arc<Cluster>,
    rng: Rng,
    trouble: watch::Sender<Option<String>>,
    /// Locked by the task that runs: a new one goes on where the last one panicked.
    work: Arc<Mutex<Work>>,
}

/// What is to be done.
struct Work {
    orders: Option<mpsc::Receiver<Order>>,
    /// Drivers to be entered, or taken out, that are not yet.
    owed: BTreeMap<String, Option<DriverInfo>>,
}

/// The task, and what keeps the node from being ready until it is done.
pub(super) fn task(cluster: Arc<Cluster>, rng: Rng) -> (Task, watch::Receiver<Option<String>>) {
    let (trouble, receiver) = watch::channel(Some("CSINode is not yet initialized".to_owned()));
    let work = Work { orders: cluster.take_csi_orders(), owed: BTreeMap::new() };
    (Task { cluster, rng, trouble, work: Arc::new(Mutex::new(work)) }, receiver)
}

/// Why an entry was not made.
enum Refused {
    /// The server does not answer: later.
    Away(ClientError),
    /// It will not get better by itself.
    Final(String),
}

// === impl Task ===

impl Task {
    /// Somebody who deletes the object gets a new one at the next start, or with the next driver, as upstream has it.
    pub(super) async fn run(mut self, token: CancellationToken) {
        let work = self.work.clone();
        let mut work = work.lock().await;
        if token.run_until_cancelled(self.initialize()).await.is_none() {
            return;
        }
        let Work { orders, owed } = &mut *work;
        match orders {
            Some(orders) => drop(token.run_until_cancelled(Box::pin(self.serve(orders, owed))).await),
            // The reporter listens for as long as the node runs.
            None => token.cancelled().await,
        }
    }

    async fn initialize(&mut self) {
        let mut pause = PAUSE_MIN;
        loop {
            let uid = self.node_uid().await;
            match self.advance(&uid).await {
                Ok(true) => {
                    self.trouble.send_replace(None);
                    return;
                }
                Ok(false) => pause = PAUSE_MIN,
                Err(error) => {
                    // The server being away says nothing about storage.
                    if error.code().is_some() {
                        self.trouble.send_replace(Some(format!("failed to initialize CSINode: {error}")));
                    }
                    tracing::debug!(%error, "CSINode not initialized yet");
                }
            }
            sleep(pause + self.rng.up_to(pause / 10)).await;
            pause = (pause * 4).min(PAUSE_MAX);
        }
    }

    /// Carries out orders; what could not be done because the server was away is done when it is back.
    async fn serve(
        &mut self,
        orders: &mut mpsc::Receiver<Order>,
        owed: &mut BTreeMap<String, Option<DriverInfo>>,
    ) {
        let mut pause = PAUSE_MIN;
        loop {
            let retry = sleep(pause + self.rng.up_to(pause / 10));
            tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => self.obey(order, owed).await,
                    None => return std::future::pending().await,
                },
                () = retry, if !owed.is_empty() => {
                    pause = (pause * 4).min(PAUSE_MAX);
                    for (driver, info) in owed.clone() {
                        match self.enter(&driver, info.as_ref()).await {
                            Ok(()) => drop(owed.remove(&driver)),
                            Err(Refused::Away(error)) => tracing::debug!(%error, driver, "CSINode still not updated"),
                            Err(Refused::Final(error)) => {
                                tracing::warn!(%error, driver, "CSINode not updated");
                                owed.remove(&driver);
                            }
                        }
                    }
                    if owed.is_empty() {
                        pause = PAUSE_MIN;
                    }
                }
            }
        }
    }

    async fn obey(&mut self, order: Order, owed: &mut BTreeMap<String, Option<DriverInfo>>) {
        // Before it is tried: should this task panic, the next one knows of it.
        owed.insert(order.driver.clone(), order.info.clone());
        let entered = self.enter(&order.driver, order.info.as_ref()).await;
        if let Err(Refused::Away(error)) = &entered {
            tracing::warn!(%error, driver = order.driver, "CSINode not updated yet");
        } else {
            owed.remove(&order.driver);
        }
        if let Some(answer) = order.answer {
            let _ = answer.send(match entered {
                Err(Refused::Final(why)) => Err(why),
                _ => Ok(()),
            });
        }
    }

    /// The entries of one driver: in the Node first, as upstream has it, and out of it last.
    async fn enter(&mut self, driver: &str, info: Option<&DriverInfo>) -> Result<(), Refused> {
        let mut last = None;
        for attempt in 0..TRIES {
            if attempt > 0 {
                sleep(PAUSE_MIN * 2u32.pow(attempt) + self.rng.up_to(PAUSE_MIN)).await;
            }
            let done = async {
                if let Some(info) = info {
                    self.update_node(|node| node_with_driver(node, info)).await?;
                    self.update_csi_node(|object| with_driver(object, info)).await
                } else {
                    self.update_csi_node(|object| without_driver(object, driver)).await?;
                    self.update_node(|node| node_without_driver(node, driver)).await
                }
            };
            match done.await {
                Err(Refused::Away(e)) if e.code().is_some() => last = Some(e),
                other => return other,
            }
        }
        Err(Refused::Final(format!(
            "error updating CSINode object with CSI driver node info: {}",
            last.map(|e| e.to_string()).unwrap_or_default()
        )))
    }

    async fn update_node(
        &self,
        change: impl Fn(&Node) -> Result<Option<Node>, String>,
    ) -> Result<(), Refused> {
        let (client, path) = (&self.cluster.client, node_path(&self.cluster.node_name));
        let node: Node = client.ask(Request::get(path.clone())).await.map_err(Refused::Away)?;
        let changed = change(&node).map_err(|e| {
            Refused::Final(format!("error updating Node object with CSI driver node info: {e}"))
        })?;
        let Some(changed) = changed else { return Ok(()) };
        let patch = status_patch(&node, &changed).to_string();
        let request = Request::strategic_patch(format!("{path}/status"), patch);
        client.ask_bytes(request).await.map(drop).map_err(Refused::Away)
    }

    async fn update_csi_node(&self, change: impl Fn(&CSINode) -> Option<CSINode>) -> Result<(), Refused> {
        let uid = self.node_uid().await;
        // Somebody may have deleted it, or the node may be a new one of the same name.
        while !self.advance(&uid).await.map_err(Refused::Away)? {}
        let (client, path) = (&self.cluster.client, format!("{ALL}/{}", self.cluster.node_name));
        let object: CSINode = client.ask(Request::get(path.clone())).await.map_err(Refused::Away)?;
        let Some(changed) = change(&object) else { return Ok(()) };
        let drivers = |o: &CSINode| o.spec.drivers.iter().map(|d| d.name.clone()).collect::<Vec<_>>();
        tracing::info!(before = ?drivers(&object), after = ?drivers(&changed), "CSINode changes");
        client.ask_bytes(Request::put(path, changed.to_json())).await.map(drop).map_err(Refused::Away)
    }

    /// Waits until the node is registered.
    async fn node_uid(&self) -> String {
        let mut own = self.cluster.own_node();
        loop {
            let uid = own.borrow_and_update().object.as_ref().and_then(|n| n.metadata.uid.clone());
            match uid {
                Some(uid) => return uid,
                None if own.changed().await.is_err() => std::future::pending::<()>().await,
                None => {}
            }
        }
    }

    /// One step; true when there is none left.
    async fn advance(&self, uid: &str) -> Result<bool, ClientError> {
        let (client, name) = (&self.cluster.client, &self.cluster.node_name);
        let path = format!("{ALL}/{name}");
        let existing: Option<CSINode> = match client.ask(Request::get(path.clone())).await {
            Ok(found) => Some(found),
            Err(e) if e.is_not_found() => None,
            Err(e) => return Err(e),
        };
        match step(existing.as_ref(), name, uid) {
            Step::Nothing => return Ok(true),
            Step::Create(object) => drop(client.ask_bytes(Request::post(ALL, object.to_json())).await?),
            Step::Update(object) => drop(client.ask_bytes(Request::put(path, object.to_json())).await?),
            Step::Delete => {
                drop(client.ask_bytes(Request::delete(path, "{}")).await?);
                return Ok(false);
            }
        }
        Ok(true)
    }
}
