//! IPAddress objects: what `kubectl get ipaddresses` tells of the addresses Services have.
//!
//! The Services say who has what; these objects follow them, and are put right at every start.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::create::stored_form;
use super::{Registry, addresses};
use crate::random::new_uid;
use crate::store_errors;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::doc;
use apiserver_core::meta;
use apiserver_core::selection::{self, Selection, present};
use store::{Expect, WriteError};

const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
/// Upstream's name for who looks after them.
const ALLOCATOR: &str = "ipallocator.k8s.io";

impl Registry {
    /// Follows a Service from what it was to what it is: nothing before it is made, nothing after it is gone.
    pub(super) async fn follow_addresses(&self, old: Option<&Value>, new: Option<&Value>) {
        let ips = |service: Option<&Value>| -> Vec<String> {
            service.map(|s| addresses::ips_of(s).map(|ip| ip.to_string()).collect()).unwrap_or_default()
        };
        let (before, after) = (ips(old), ips(new));
        let owner = new.or(old).map(reference).unwrap_or_default();
        for ip in &after {
            if !before.contains(ip) {
                self.tell(ip, self.make_address(ip, &owner).await);
            }
        }
        for ip in &before {
            if !after.contains(ip) {
                self.tell(ip, self.drop_address(ip, &owner).await);
            }
        }
    }

    /// Makes the objects what the Services say.
    pub(crate) async fn settle_address_objects(&self, services: &[Value]) -> Result<(), ApiStatus> {
        let kind = self.kind("networking.k8s.io", "v1", "ipaddresses")?;
        let mut wanted: HashMap<String, Value> = HashMap::new();
        for service in services {
            wanted.extend(addresses::ips_of(service).map(|ip| (ip.to_string(), reference(service))));
        }
        let (documents, _) = self.list_all(Selection::all(kind.clone())).await?;
        for document in documents {
            let object = present(&kind, &document);
            let (name, parent) = (meta::name(&object), doc::at(&object, "spec.parentRef"));
            match wanted.get(name) {
                Some(owner) if parent == owner => drop(wanted.remove(name)),
                _ if object["metadata"]["labels"][MANAGED_BY] == ALLOCATOR => {
                    self.remove(&kind, "", name, document.rev).await?;
                }
                _ => {}
            }
        }
        for (ip, owner) in wanted {
            self.make_address(&ip, &owner).await?;
        }
        Ok(())
    }

    async fn make_address(&self, ip: &str, owner: &Value) -> Result<(), ApiStatus> {
        let kind = self.kind("networking.k8s.io", "v1", "ipaddresses")?;
        let family = if ip.contains(':') { "IPv6" } else { "IPv4" };
        let mut object = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
            "metadata": {"name": ip, "labels": {"ipaddress.kubernetes.io/ip-family": family, MANAGED_BY: ALLOCATOR}},
            "spec": {"parentRef": owner},
        });
        meta::stamp(&mut object, new_uid(), self.now(), kind.strategy.counts_generation());
        let key = selection::key(&kind, "", ip);
        match self.store().put(&key, stored_form(&kind, &object), Expect::Absent).await {
            Ok(_) | Err(WriteError::Conflict { .. }) => Ok(()),
            Err(error) => Err(store_errors::of_write(&error)),
        }
    }

    /// Only what is its own: the address may be another's by now.
    async fn drop_address(&self, ip: &str, owner: &Value) -> Result<(), ApiStatus> {
        let kind = self.kind("networking.k8s.io", "v1", "ipaddresses")?;
        let Some(document) = self.find(&kind, "", ip).await? else { return Ok(()) };
        if doc::at(&document.to_value(), "spec.parentRef") == owner {
            self.remove(&kind, "", ip, document.rev).await?;
        }
        Ok(())
    }

    fn tell(&self, ip: &str, outcome: Result<(), ApiStatus>) {
        if let Err(api_status) = outcome {
            // The Service has its address all the same; the next start puts the object right.
            tracing::warn!(ip, error = %api_status.message, "IPAddress not kept up");
        }
    }
}

fn reference(service: &Value) -> Value {
    json!({"resource": "services", "namespace": meta::namespace(service), "name": meta::name(service)})
}
