//! The kubelet's root directory: what has to be in it, and what may not.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use api::config::kubelet::KubeletConfiguration;
use serde_json::Value;

use super::StartError;
use crate::pods::pod_files::PodDirs;
use crate::{plugin_watcher, volumes};

/// Directories below the root that others look for, and who may enter them.
const DIRS: [(&str, u32); 4] =
    [("plugins", 0o750), (plugin_watcher::DIR, 0o750), ("pod-resources", 0o750), ("checkpoints", 0o700)];

/// What a manager of processors or memory remembers across restarts. The policy that gives nobody anything of his own
/// has nothing to remember, but another policy may have been here before.
struct StateFile {
    name: &'static str,
    manager: &'static str,
    policy: &'static str,
    /// The state of that policy, checksum included, as upstream writes it.
    blank: &'static str,
}

const CPU: StateFile = StateFile {
    name: "cpu_manager_state",
    manager: "CPU manager",
    policy: "none",
    blank: r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#,
};
const MEMORY: StateFile = StateFile {
    name: "memory_manager_state",
    manager: "memory manager",
    policy: "None",
    blank: r#"{"policyName":"None","machineState":{},"checksum":4236770233}"#,
};

/// Makes the directories the kubelet works in, and lets mounts travel below its root.
pub(super) fn prepare(dirs: &PodDirs) -> Result<(), StartError> {
    make_dirs(dirs)?;
    if let Err(error) = volumes::share_root(&dirs.root) {
        tracing::warn!(root = %dirs.root.display(), %error, "root directory not made rshared: mount propagation will not work");
    }
    Ok(())
}

pub(super) fn make_dirs(dirs: &PodDirs) -> Result<(), StartError> {
    let make = |what: &str, dir: &Path, mode| {
        let made = DirBuilder::new().recursive(true).mode(mode).create(dir);
        made.map_err(|e| StartError::new(format!("make {what} {}: {e}", dir.display())))
    };
    make("root-dir", &dirs.root, 0o750)?;
    make("podLogsDir", &dirs.pod_logs, 0o755)?;
    make("log links", &dirs.container_logs, 0o755)?;
    for (name, mode) in DIRS {
        make(name, &dirs.root.join(name), mode)?;
    }
    Ok(())
}

/// Refuses a root whose Pods were given processors or memory of their own by a policy that is not in force any more.
pub(super) fn check_managers(root: &Path, config: &KubeletConfiguration) -> Result<(), StartError> {
    for (file, policy) in [(&CPU, &config.cpu_manager_policy), (&MEMORY, &config.memory_manager_policy)] {
        // A policy that is not acted on keeps no state either.
        if policy == file.policy {
            file.restore(root)?;
        }
    }
    Ok(())
}

// === impl StateFile ===

impl StateFile {
    fn restore(&self, root: &Path) -> Result<(), StartError> {
        let path = root.join(self.name);
        let found = match fs::read(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return self
                    .write(&path)
                    .map_err(|e| StartError::new(format!("write {}: {e}", path.display())));
            }
            Err(e) => Err(e.to_string()),
            Ok(bytes) => self.check(&bytes),
        };
        found.map_err(|why| {
            let text = "could not restore state from checkpoint";
            StartError::new(format!(
                "{text}: {why}, please drain this node and delete the {} checkpoint file {:?} before restarting Kubelet",
                self.manager,
                path.display().to_string(),
            ))
        })
    }

    fn check(&self, bytes: &[u8]) -> Result<(), String> {
        let state: Value = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        let policy = state["policyName"].as_str().unwrap_or_default();
        if policy != self.policy {
            return Err(format!(
                "configured policy {:?} differs from state checkpoint policy {policy:?}",
                self.policy
            ));
        }
        match serde_json::from_str::<Value>(self.blank) {
            Ok(blank) if blank["checksum"] == state["checksum"] => Ok(()),
            _ => Err("checkpoint is corrupted".to_owned()),
        }
    }

    /// Whole or not at all.
    fn write(&self, path: &Path) -> io::Result<()> {
        let early = path.with_extension("new");
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&early)?;
        file.write_all(self.blank.as_bytes())?;
        fs::rename(&early, path)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn error(root: &Path) -> String {
        check_managers(root, &KubeletConfiguration::default()).unwrap_err().to_string()
    }

    #[test]
    fn blank_states_are_written_and_taken_back() {
        let root = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            check_managers(root.path(), &KubeletConfiguration::default()).unwrap();
        }
        for file in [CPU, MEMORY] {
            let path = root.path().join(file.name);
            assert_eq!(fs::read_to_string(&path).unwrap(), file.blank);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2);
    }

    #[test]
    fn the_state_of_another_policy_and_a_broken_one_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let (cpu, memory) = (root.path().join(CPU.name), root.path().join(MEMORY.name));
        fs::write(&cpu, r#"{"policyName":"static","defaultCpuSet":"0-3","checksum":14413152}"#).unwrap();
        assert_eq!(
            error(root.path()),
            format!(
                "could not restore state from checkpoint: configured policy \"none\" differs from state checkpoint \
                 policy \"static\", please drain this node and delete the CPU manager checkpoint file {:?} before \
                 restarting Kubelet",
                cpu.display().to_string()
            )
        );
        fs::remove_file(&cpu).unwrap();
        fs::write(&memory, r#"{"policyName":"None","machineState":{},"checksum":1}"#).unwrap();
        assert!(
            error(root.path())
                .contains("checkpoint is corrupted, please drain this node and delete the memory")
        );
        fs::write(&memory, "{").unwrap();
        assert!(error(root.path()).starts_with("could not restore state from checkpoint: EOF"));
    }

    #[test]
    fn the_root_has_upstreams_directories_and_modes() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        let dirs = PodDirs {
            root: at("kubelet"),
            pod_logs: at("logs"),
            container_logs: at("links"),
            node_hosts: "/etc/hosts".into(),
            resolv_conf: None,
        };
        make_dirs(&dirs).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dirs.root), mode(&dirs.pod_logs)), (0o750, 0o755));
        for (name, wanted) in DIRS {
            assert_eq!(mode(&dirs.root.join(name)), wanted, "{name}");
        }
    }
}
