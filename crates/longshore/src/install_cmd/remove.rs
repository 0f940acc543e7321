//! What goes with a node, and what stays.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use api::config::up::Up;

use super::Installed;
use super::files::{RECORD, Root};
use crate::node_here::NodeHere;
use crate::{console, up_cmd};

/// The volumes of Pods, in the data directory.
const VOLUMES: &str = "storage";
/// For a node that runs to end.
const END: Duration = Duration::from_secs(60);

/// Ends the node and its Pods. Says what resisted.
pub(super) fn end_node(up: &Up) -> Result<Vec<String>, String> {
    let until = Instant::now() + END;
    while let Ok(node) = NodeHere::find(Some(&up.state_dir)) {
        if Instant::now() > until {
            return Err(format!("process {} still runs the node: end it first", node.pid));
        }
        let pid = i32::try_from(node.pid).ok().and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    console::out("stopping      the Pods\n");
    up_cmd::end_pods(up)
}

/// The files that install wrote.
pub(super) fn files(root: &Root, installed: &Installed) -> Vec<String> {
    let mut left = Vec::new();
    for path in installed.files.iter().map(PathBuf::as_path).chain([Path::new(RECORD)]) {
        let path = root.at(path);
        match fs::remove_file(&path) {
            Err(error) if path.exists() => left.push(format!("{}: {error}", path.display())),
            _ => {}
        }
    }
    // Only where it is empty.
    _ = fs::remove_dir(root.at("/etc/longshore"));
    left
}

/// The data directory; never what is mounted in it, and the volumes of Pods only if that is wanted.
pub(super) fn data(root: &Root, up: &Up, and_volumes: bool) -> Vec<String> {
    let mut left = Vec::new();
    let (data, state) = (root.at(&up.data_dir), root.at(&up.state_dir));
    for (dir, keeps) in [(&data, !and_volumes), (&state, false)] {
        let names: Vec<_> =
            fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.file_name()).collect();
        for name in names {
            if keeps && name == VOLUMES && has_any(&dir.join(VOLUMES)) {
                left.push(format!(
                    "{}: volumes of Pods; --volumes removes them",
                    dir.join(VOLUMES).display()
                ));
                continue;
            }
            if let Err(error) = remove(dir, &name) {
                left.push(format!("{}: {error}", dir.join(&name).display()));
            }
        }
        _ = fs::remove_dir(dir);
    }
    // The kubelet's, where they are not in the data directory.
    if up.data_dir == Path::new("/var/lib/longshore") && !up.disabled.contains("kubelet") {
        for (parent, name) in [("/var/lib", "kubelet"), ("/var/log", "pods")] {
            if let Err(error) = remove(&root.at(parent), OsStr::new(name)) {
                left.push(format!("{parent}/{name}: {error}"));
            }
        }
    }
    left
}

fn has_any(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some())
}

/// Stops at the first mount point and says so.
fn remove(dir: &Path, name: &OsStr) -> Result<(), String> {
    match sys::fd::open_dir(dir) {
        Ok(parent) => sys::tree::remove(parent, name).map_err(|e| e.to_string()),
        Err(_) if !dir.exists() => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}
