//! `--stop-pods`: ends what a kubelet would leave running, and takes away what it hangs on.

use std::path::Path;
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};
use tokio::task::JoinSet;

use super::network;

/// For a container that was told to end.
const GRACE: i64 = 10;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Ends every container and sandbox of the runtime, unmounts what Pods had mounted, and removes Services' rules and the bridge.
/// Says what resisted.
pub(super) async fn stop_pods(socket: &Path, kubelet_root: &Path) -> Vec<String> {
    let mut left = end_containers(socket).await;
    left.extend(unmount_below(&kubelet_root.join("pods")));
    if let Err(error) = proxy::agent::clean_up() {
        left.push(format!("rules of Services: {error}"));
    }
    let removed = sys::link::Links::open().and_then(|mut links| match links.find(network::BRIDGE)? {
        Some(_) => links.remove(network::BRIDGE),
        None => Ok(()),
    });
    if let Err(error) = removed {
        left.push(format!("the bridge {}: {error}", network::BRIDGE));
    }
    left
}

async fn end_containers(socket: &Path) -> Vec<String> {
    let endpoint = match cri::Endpoint::parse(&format!("unix://{}", socket.display())) {
        Ok(endpoint) => endpoint,
        Err(error) => return vec![error.to_string()],
    };
    let client = cri::Client::new(endpoint, None, TIMEOUT);
    let mut left = Vec::new();
    let containers = client.list_containers(None).await.unwrap_or_default();
    let mut stopping = JoinSet::new();
    for container in containers {
        let client = client.clone();
        stopping.spawn(async move { client.stop_container(&container.id, GRACE).await });
    }
    // One that does not end by itself ends with its sandbox.
    while stopping.join_next().await.is_some() {}
    match client.list_pod_sandboxes(None).await {
        Ok(sandboxes) => {
            for sandbox in sandboxes {
                let ended = match client.stop_pod_sandbox(&sandbox.id).await {
                    Ok(()) => client.remove_pod_sandbox(&sandbox.id).await,
                    Err(error) => Err(error),
                };
                if let Err(error) = ended {
                    left.push(format!("sandbox {}: {error}", sandbox.id));
                }
            }
        }
        Err(error) => left.push(format!("list sandboxes: {error}")),
    }
    left
}

/// The deepest mounts first; nothing is deleted.
fn unmount_below(dir: &Path) -> Vec<String> {
    let mut mounts: Vec<_> = match sys::mountinfo::below(dir) {
        Ok(mounts) => mounts.into_iter().map(|mount| mount.mount_point).collect(),
        Err(error) => return vec![format!("read the mounts of this machine: {error}")],
    };
    mounts.sort_by_key(|point| std::cmp::Reverse(point.components().count()));
    let tried = mounts.iter().map(|point| (point, unmount(point, UnmountFlags::NOFOLLOW)));
    tried
        .filter_map(|(point, done)| done.err().map(|e| format!("unmount {}: {e}", point.display())))
        .collect()
}
