//! The kubelet's root directory: what has to be in it, and what may not.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use super::StartError;
use crate::pods::pod_files::PodDirs;
use crate::{plugin_watcher, volumes};

/// Directories below the root that others look for, and who may enter them.
const DIRS: [(&str, u32); 4] =
    [("plugins", 0o750), (plugin_watcher::DIR, 0o750), ("pod-resources", 0o750), ("checkpoints", 0o700)];

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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

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
