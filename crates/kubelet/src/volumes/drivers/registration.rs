//! A driver registers: its name, its versions, and what it says of this node.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use kubelet_core::node::csi_node::DriverInfo;
use kubelet_core::volumes::csi::{PLUGIN, highest_version, is_driver_name};
use plugins::Handler;
use plugins::registration::PluginInfo;

use super::{DEADLINE, Drivers, Measured, Registered};
use crate::cluster::csi_orders::CsiNodeOrders;

/// Lets CSI drivers in and out.
#[derive(Clone, Debug)]
pub struct Registrar {
    pub drivers: Arc<Drivers>,
    /// None on a standalone node.
    pub csi_node: Option<CsiNodeOrders>,
    pub measured: Measured,
}

// === impl Registrar ===

impl Registrar {
    fn version(&self, info: &PluginInfo, socket: &Path) -> Result<Vec<u64>, String> {
        let (name, versions) = (&info.name, &info.supported_versions);
        if name.is_empty() {
            return Err("driver name is empty".to_owned());
        }
        // It becomes the name of a directory. Upstream leaves it to the API server, which a node may be without.
        if !is_driver_name(name) {
            return Err(format!(
                "driver name {name:?} is none: it must be a domain name of at most 63 bytes"
            ));
        }
        let head = format!("{PLUGIN}: ValidatePlugin for CSI driver {name:?} failed.");
        if versions.is_empty() {
            return Err(format!("{head} Plugin returned an empty list for supported versions"));
        }
        let version = highest_version(versions).map_err(|e| {
            let all: Vec<String> = versions.iter().map(|v| format!("{v:?}")).collect();
            format!("{head} None of the versions specified [{}] are supported. err={e}", all.join(" "))
        })?;
        if let Some(other) = self.drivers.get(name).filter(|d| d.socket != socket && d.version >= version) {
            let text: Vec<String> = other.version.iter().map(ToString::to_string).collect();
            return Err(format!(
                "{head} Another driver with the same name is already registered with a higher supported version: {:?}",
                text.join(".")
            ));
        }
        Ok(version)
    }

    /// Asks a driver anew what it says of this node.
    pub async fn refresh(&self, name: &str) -> Result<(), String> {
        let missing = || format!("driver name {name} not found in the list of registered CSI drivers");
        let driver = self.drivers.get(name).ok_or_else(missing)?;
        self.install(name, &driver.endpoint).await
    }

    async fn install(&self, name: &str, endpoint: &Path) -> Result<(), String> {
        let client = csi::Driver::new(endpoint, DEADLINE);
        let said = self.measured.call(name, "NodeGetInfo", client.info()).await.map_err(|e| e.to_string())?;
        if said.node_id.is_empty() {
            return Err("error adding CSI driver node info: driverNodeID must not be empty".to_owned());
        }
        let Some(orders) = &self.csi_node else { return Ok(()) };
        orders
            .install(DriverInfo {
                name: name.to_owned(),
                node_id: said.node_id,
                max_volumes: said.max_volumes_per_node,
                topology: said.accessible_topology.unwrap_or_default().segments,
            })
            .await
    }
}

#[async_trait]
impl Handler for Registrar {
    fn validate(&self, info: &PluginInfo, socket: &Path) -> Result<(), String> {
        let endpoint = endpoint_of(info, socket);
        self.version(info, socket).map(drop).map_err(|e| {
            format!("validation failed for CSI Driver {} at endpoint {}: {e}", info.name, endpoint.display())
        })
    }

    /// Makes the driver known here and, where there is an API server, in the node's CSINode.
    async fn register(&self, info: &PluginInfo, socket: &Path) -> Result<(), String> {
        let (version, endpoint) = (self.version(info, socket)?, endpoint_of(info, socket));
        let driver = Registered { endpoint: endpoint.clone(), socket: socket.to_owned(), version };
        self.drivers.set(&info.name, driver);
        let installed = self.install(&info.name, &endpoint).await;
        if installed.is_err() {
            self.deregister(&info.name, socket);
        }
        installed
    }

    fn deregister(&self, name: &str, socket: &Path) {
        if self.drivers.remove(name, socket)
            && let Some(orders) = &self.csi_node
        {
            orders.uninstall(name);
        }
    }
}

fn endpoint_of(info: &PluginInfo, socket: &Path) -> PathBuf {
    match info.endpoint.as_str() {
        "" => socket.to_owned(),
        endpoint => PathBuf::from(endpoint.strip_prefix("unix://").unwrap_or(endpoint)),
    }
}
