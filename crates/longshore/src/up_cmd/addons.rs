//! What people expect beside the agents: addresses for load balancers, volumes, and manifests from a directory.

use std::sync::Arc;
use std::time::Duration;

use addons::{Archives, Start, Storage};
use apiserver_core::request::User;

use super::agents::Agents;
use super::containerd;
use super::part::Make;
use crate::agent_cmd;

/// For the images in the directory to be imported, before manifests are applied without them.
const IMAGES: Duration = Duration::from_secs(30);

// === impl Agents ===

impl Agents {
    pub(super) fn service_lb(&self) -> Make {
        let all = self.clone();
        Box::new(move |token| {
            let (start, own) = (all.addon("longshore:service-lb", &[]), all.node_ip);
            Box::pin(
                async move { addons::service_lb(start, vec![own], token).await.map_err(|e| e.to_string()) },
            )
        })
    }

    pub(super) fn local_storage(&self) -> Make {
        let all = self.clone();
        Box::new(move |token| {
            let start = all.addon("longshore:local-storage", &[]);
            let storage = Storage { node: all.node_name.clone(), base: all.layout.storage() };
            Box::pin(
                async move { addons::local_storage(start, storage, token).await.map_err(|e| e.to_string()) },
            )
        })
    }

    pub(super) fn deploy(&self) -> Make {
        let all = self.clone();
        Box::new(move |token| {
            // Whoever may write the directory is root, and may apply anything.
            let start = all.addon("longshore:deploy", &["system:masters"]);
            let directory = all.layout.deploy();
            let mut has_images = all.has_images.subscribe();
            let waits = !["images", "kubelet"].iter().any(|part| all.up.disabled.contains(*part));
            Box::pin(async move {
                // A Pod whose image comes a moment later would be tried again much later.
                if waits {
                    let there = tokio::time::timeout(IMAGES, has_images.wait_for(|looked| *looked));
                    _ = token.run_until_cancelled(there).await;
                }
                addons::deploy(start, directory, token).await.map_err(|e| e.to_string())
            })
        })
    }

    pub(super) fn images(&self) -> Make {
        let all = self.clone();
        Box::new(move |token| {
            let (socket, importer) = (all.socket.clone(), all.importer.clone());
            let archives = Archives {
                directory: all.layout.images(),
                record: importer.record(&all.layout),
                import: Arc::new(move |path| importer.import(&socket, path)),
                has_looked: all.has_images.clone(),
            };
            let socket = all.socket.clone();
            Box::pin(async move {
                containerd::wait_for(&socket, &token).await;
                addons::image_files(archives, token).await.map_err(|e| e.to_string())
            })
        })
    }

    fn addon(&self, user: &str, groups: &[&str]) -> Start {
        Start { client: self.client(User::new(user, groups), user), seed: agent_cmd::seed() }
    }
}
