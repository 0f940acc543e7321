//! `--stop-pods`: ends what a kubelet would leave running, and takes away what it hangs on.

use std::cmp::Reverse;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use sys::cgroup::Hierarchies;
use sys::mountinfo::Mount;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::network;

/// For a container that was told to end.
const GRACE: i64 = 10;
const TIMEOUT: Duration = Duration::from_secs(60);
/// For a runtime that was just started.
const SERVES_WITHIN: Duration = Duration::from_secs(30);
/// Where log shippers look; kubelets make a link there for each container.
const LOG_LINKS: &str = "/var/log/containers";
/// For one mount to go. That of a file server that is gone may never do so.
const UNMOUNT: Duration = Duration::from_secs(10);
/// For the kernel to let go of the cgroup of a process that has ended.
const CGROUP_WITHIN: Duration = Duration::from_secs(10);

/// Where Pods of a node have something besides the runtime.
pub(super) struct Places {
    pub(super) kubelet_root: PathBuf,
    pub(super) logs: PathBuf,
    /// Of all Pods, where it is not systemd's.
    pub(super) cgroup: Option<String>,
}

/// Ends every container and sandbox of the runtime, unmounts what Pods had mounted, and removes the names of their logs, Services'
/// rules, the bridge and the cgroup of all Pods. Says what resisted.
pub(super) async fn stop_pods(socket: &Path, places: &Places) -> Vec<String> {
    let mut left = end_containers(socket).await;
    left.extend(unmount_all(&places.kubelet_root).await);
    remove_links(Path::new(LOG_LINKS), &places.logs);
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
    if let Err(error) = overlay::clean_up() {
        left.push(format!("the ways to other nodes: {error}"));
    }
    if let Err(error) = cni::clean_up() {
        left.push(format!("rules of CNI plugins: {error}"));
    }
    if let Some(cgroup) = &places.cgroup {
        left.extend(remove_cgroup(cgroup).await);
    }
    left
}

/// Links to these logs; those of other runtimes stay.
fn remove_links(dir: &Path, logs: &Path) {
    for link in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if std::fs::read_link(link.path()).is_ok_and(|to| to.starts_with(logs)) {
            _ = std::fs::remove_file(link.path());
        }
    }
    // Only where it is empty.
    _ = std::fs::remove_dir(dir);
}

/// It is busy for a moment after its last process has ended.
async fn remove_cgroup(name: &str) -> Option<String> {
    let until = Instant::now() + CGROUP_WITHIN;
    loop {
        let removed = Hierarchies::find().and_then(|all| all.remove(name));
        match removed {
            Err(error) if Instant::now() > until => return Some(format!("the cgroup {name}: {error}")),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            Ok(()) => return None,
        }
    }
}

/// Says what resisted.
pub(super) async fn end_containers(socket: &Path) -> Vec<String> {
    let endpoint = match cri::Endpoint::parse(&format!("unix://{}", socket.display())) {
        Ok(endpoint) => endpoint,
        Err(error) => return vec![error.to_string()],
    };
    let client = cri::Client::new(endpoint, None, TIMEOUT);
    let mut left = Vec::new();
    let containers = match containers_when_it_serves(&client).await {
        Ok(containers) => containers,
        Err(error) => return vec![error.to_string()],
    };
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

/// A containerd that was just started answers before it can say anything.
async fn containers_when_it_serves(client: &cri::Client) -> cri::Result<Vec<cri::v1::Container>> {
    let until = Instant::now() + SERVES_WITHIN;
    loop {
        match client.list_containers(None).await {
            Err(error) if error.code == cri::Code::Unavailable && Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            answer => return answer,
        }
    }
}

/// What Pods had mounted, the deepest first, then the mount of the kubelet's directory onto itself. A disk that somebody mounted
/// for the kubelet or its Pods stays; nothing is deleted.
async fn unmount_all(root: &Path) -> Vec<String> {
    let points = match mount_points(root) {
        Ok(points) => points,
        Err(error) => return vec![format!("read the mounts of this machine: {error}")],
    };
    let mut left = Vec::new();
    for point in points {
        let at = point.clone();
        if let Err(error) = within(UNMOUNT, move || Ok(unmount(&at, UnmountFlags::NOFOLLOW)?)).await {
            left.push(format!("unmount {}: {error}", point.display()));
        }
    }
    left
}

fn mount_points(root: &Path) -> io::Result<Vec<PathBuf>> {
    let root = std::fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
    let mounts = sys::mountinfo::read()?;
    Ok(to_unmount(&root, &mounts).into_iter().map(Path::to_owned).collect())
}

/// On a thread of its own, which is left behind where it does not come back: the end of the process waits for nobody.
async fn within(limit: Duration, work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    let (tell, told) = oneshot::channel();
    thread::Builder::new().name("unmount".to_owned()).spawn(move || _ = tell.send(work()))?;
    match tokio::time::timeout(limit, told).await {
        Ok(done) => done.unwrap_or_else(|_| Err(io::Error::other("it panicked"))),
        Err(_) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("not done within {} s: the server behind it may be gone", limit.as_secs()),
        )),
    }
}

fn to_unmount<'a>(root: &Path, mounts: &'a [Mount]) -> Vec<&'a Path> {
    let pods = root.join("pods");
    let of_pods =
        mounts.iter().map(|m| m.mount_point.as_path()).filter(|p| p.starts_with(&pods) && *p != pods);
    let mut points: Vec<&Path> = of_pods.collect();
    points.sort_by_key(|point| Reverse(point.components().count()));
    let own = mounts.iter().filter(|m| m.mount_point == root && is_onto_itself(m, mounts));
    points.extend(own.map(|m| m.mount_point.as_path()));
    points
}

/// Whether it shows what would be there without it, as the kubelet's own does: it is for the propagation of mounts only.
fn is_onto_itself(mount: &Mount, mounts: &[Mount]) -> bool {
    let Some(under) = mounts.iter().find(|m| m.id == mount.parent) else { return false };
    let beneath = mount.mount_point.strip_prefix(&under.mount_point).map(|rest| under.root.join(rest));
    (under.major, under.minor) == (mount.major, mount.minor) && beneath.is_ok_and(|root| root == mount.root)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_links_to_our_logs_go() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("containers");
        std::fs::create_dir(&dir).unwrap();
        for (name, to) in
            [("a.log", "/ours/pod/0.log"), ("b.log", "/theirs/pod/0.log"), ("c.log", "/ourselves/0.log")]
        {
            std::os::unix::fs::symlink(to, dir.join(name)).unwrap();
        }
        std::fs::write(dir.join("d.log"), "").unwrap();
        remove_links(&dir, Path::new("/ours"));
        let mut left: Vec<_> = std::fs::read_dir(&dir).unwrap().flatten().map(|e| e.file_name()).collect();
        left.sort();
        assert_eq!(left, ["b.log", "c.log", "d.log"]);
        for name in left {
            std::fs::remove_file(dir.join(name)).unwrap();
        }
        remove_links(&dir, Path::new("/ours"));
        assert!(!dir.exists());
    }

    #[tokio::test(start_paused = true)]
    async fn a_mount_that_never_goes_holds_up_nobody() {
        let (let_go, held) = std::sync::mpsc::channel::<()>();
        let hung = within(UNMOUNT, move || held.recv().map_err(io::Error::other)).await.unwrap_err();
        assert_eq!(hung.to_string(), "not done within 10 s: the server behind it may be gone");
        drop(let_go);
    }

    #[test]
    fn a_disk_of_somebody_else_stays_mounted() {
        let line = |id: u32, parent: u32, device: &str, root: &str, point: &str| {
            format!("{id} {parent} {device} {root} {point} rw shared:1 - ext4 /dev/x rw\n")
        };
        let at_root = line(1, 0, "8:1", "/", "/");
        let rows: &[(&str, String, &[&str])] = &[
            (
                "the kubelet's own",
                line(2, 1, "8:1", "/var/lib/kubelet", "/var/lib/kubelet"),
                &["/var/lib/kubelet"],
            ),
            ("a disk", line(2, 1, "8:2", "/", "/var/lib/kubelet"), &[]),
            ("a subvolume", line(2, 1, "8:1", "/@kubelet", "/var/lib/kubelet"), &[]),
            ("a disk for Pods", line(2, 1, "8:2", "/", "/var/lib/kubelet/pods"), &[]),
            (
                "the kubelet's own on a disk, and a volume in a volume",
                line(2, 1, "8:2", "/", "/var/lib/kubelet")
                    + &line(3, 2, "8:2", "/", "/var/lib/kubelet")
                    + &line(4, 3, "0:9", "/", "/var/lib/kubelet/pods/u/v")
                    + &line(5, 4, "0:10", "/", "/var/lib/kubelet/pods/u/v/w"),
                &["/var/lib/kubelet/pods/u/v/w", "/var/lib/kubelet/pods/u/v", "/var/lib/kubelet"],
            ),
        ];
        for (what, text, want) in rows {
            let mounts = sys::mountinfo::parse((at_root.clone() + text).as_bytes()).unwrap();
            let want: Vec<&Path> = want.iter().map(Path::new).collect();
            assert_eq!(to_unmount(Path::new("/var/lib/kubelet"), &mounts), want, "{what}");
        }
    }
}
