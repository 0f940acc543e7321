//! How other commands find a node that runs on this machine: each `up` writes down where things are, for as long as it runs.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The place of whoever says none.
pub(crate) const STATE: &str = "/run/longshore";
/// Where each `up` is noted under its process, wherever its own state is.
const NODES: &str = "/run/longshore/nodes";
const FILE: &str = "up.json";

/// A running `up`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeHere {
    pub(crate) pid: u32,
    /// When the process was started, in the kernel's count: numbers are given again.
    pub(crate) started: u64,
    pub(crate) version: String,
    pub(crate) node_name: String,
    pub(crate) node_ip: String,
    pub(crate) server: String,
    pub(crate) data_dir: PathBuf,
    pub(crate) state_dir: PathBuf,
    /// Where Pods are given and shown without an API server.
    pub(crate) pods_socket: PathBuf,
    /// Which container runtime it has, in words.
    #[serde(default)]
    pub(crate) runtime: String,
    /// The container runtime's.
    pub(crate) runtime_socket: PathBuf,
    /// Where it can be looked at in a browser.
    #[serde(default)]
    pub(crate) node_page: Option<String>,
    pub(crate) parts: BTreeMap<String, Standing>,
}

/// How a part of the node is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Standing {
    Runs,
    /// It ended by itself and is started again after a pause.
    Failed(String),
}

// === impl NodeHere ===

impl NodeHere {
    /// This process, with nothing said of its parts.
    pub(crate) fn ours() -> NodeHere {
        let pid = std::process::id();
        NodeHere {
            pid,
            started: started(pid).unwrap_or_default(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node_name: String::new(),
            node_ip: String::new(),
            server: String::new(),
            data_dir: PathBuf::new(),
            state_dir: PathBuf::new(),
            pods_socket: PathBuf::new(),
            runtime: String::new(),
            runtime_socket: PathBuf::new(),
            node_page: None,
            parts: BTreeMap::new(),
        }
    }

    /// Writes it down for others.
    pub(crate) fn tell(&self) -> io::Result<()> {
        write(&self.state_dir.join(FILE), &serde_json::to_vec_pretty(self)?)?;
        fs::create_dir_all(NODES)?;
        write(&self.note(), self.state_dir.as_os_str().as_encoded_bytes())
    }

    /// Nobody shall look for it any more.
    pub(crate) fn forget(&self) {
        _ = fs::remove_file(self.note());
        _ = fs::remove_file(self.state_dir.join(FILE));
        sweep(Path::new(NODES));
    }

    fn note(&self) -> PathBuf {
        Path::new(NODES).join(self.pid.to_string())
    }

    /// The node whose state is there; else the one in the usual place; else the only one there is.
    pub(crate) fn find(state_dir: Option<&Path>) -> Result<NodeHere, String> {
        if let Some(dir) = state_dir {
            return NodeHere::read(dir).ok_or_else(|| {
                format!("no node runs with --state-dir {}: start one with `longshore up`", dir.display())
            });
        }
        if let Some(usual) = NodeHere::read(Path::new(STATE)) {
            return Ok(usual);
        }
        let notes = fs::read_dir(NODES).into_iter().flatten().flatten();
        let others = notes.filter_map(|note| fs::read_to_string(note.path()).ok());
        let mut found: Vec<NodeHere> = others.filter_map(|dir| NodeHere::read(Path::new(&dir))).collect();
        match (found.pop(), found.is_empty()) {
            (Some(only), true) => Ok(only),
            (Some(one), false) => {
                let all = found.iter().chain([&one]).map(|node| node.state_dir.display().to_string());
                let all: Vec<String> = all.collect();
                Err(format!("several nodes run here: choose one with --state-dir, of {}", all.join(", ")))
            }
            (None, _) => {
                Err("no node runs on this machine: start one with `longshore up`, as root".to_owned())
            }
        }
    }

    /// None where nobody is, or nobody any more.
    fn read(state_dir: &Path) -> Option<NodeHere> {
        let node: NodeHere = serde_json::from_slice(&fs::read(state_dir.join(FILE)).ok()?).ok()?;
        (started(node.pid) == Some(node.started)).then_some(node)
    }

    /// The administrator's, or the Node's own where the control plane is elsewhere.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        let (admin, node) = (self.data_dir.join("admin.kubeconfig"), self.data_dir.join("node.kubeconfig"));
        if !admin.exists() && node.exists() { node } else { admin }
    }
}

/// Takes away the notes of those that were killed, and the directory of the last one.
fn sweep(nodes: &Path) {
    for note in fs::read_dir(nodes).into_iter().flatten().flatten() {
        let pid = note.file_name().to_str().and_then(|name| name.parse().ok());
        if pid.is_some_and(|pid| started(pid).is_none()) {
            _ = fs::remove_file(note.path());
        }
    }
    // Only where they are empty.
    _ = fs::remove_dir(nodes);
    _ = nodes.parent().map(fs::remove_dir);
}

/// Whole or not at all: others read at any time.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let half = path.with_extension("half");
    fs::write(&half, bytes)?;
    fs::rename(&half, path)
}

/// When a process was started, in ticks after the machine was.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold spaces and parentheses; what follows the last of them does not.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_last_one_takes_what_killed_ones_left() {
        let scratch = tempfile::tempdir().unwrap();
        let nodes = scratch.path().join("run/nodes");
        fs::create_dir_all(&nodes).unwrap();
        // No process has number 0, nor a larger one than the kernel gives.
        for name in ["0", "4194305", &std::process::id().to_string()] {
            fs::write(nodes.join(name), "/run/x").unwrap();
        }
        sweep(&nodes);
        let left: Vec<_> = fs::read_dir(&nodes).unwrap().flatten().map(|e| e.file_name()).collect();
        assert_eq!(left, [std::process::id().to_string().as_str()]);
        fs::remove_file(nodes.join(&left[0])).unwrap();
        sweep(&nodes);
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_node_is_found_as_long_as_its_process_is_there() {
        let scratch = tempfile::tempdir().unwrap();
        let node = NodeHere { state_dir: scratch.path().to_owned(), ..NodeHere::ours() };
        write(&scratch.path().join(FILE), &serde_json::to_vec(&node).unwrap()).unwrap();
        assert_eq!(NodeHere::find(Some(scratch.path())).unwrap(), node);
        // Another process has the number now.
        let gone = NodeHere { started: node.started + 1, ..node };
        write(&scratch.path().join(FILE), &serde_json::to_vec(&gone).unwrap()).unwrap();
        let told = NodeHere::find(Some(scratch.path())).unwrap_err();
        assert!(
            told.starts_with("no node runs with --state-dir") && told.ends_with("`longshore up`"),
            "{told}"
        );
    }
}
