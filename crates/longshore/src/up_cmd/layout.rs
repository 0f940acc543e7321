//! Where the files of the node are.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use api::config::up::Up;

/// The data directory of a machine whose only node this is: the kubelet's files are then where CSI drivers and log shippers
/// look for them.
const USUAL: &str = "/var/lib/longshore";

#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) data: PathBuf,
    pub(super) state: PathBuf,
}

// === impl Layout ===

impl Layout {
    /// Makes the directories, or says which one cannot be made and what to do.
    pub(super) fn prepare(up: &Up) -> Result<Layout, String> {
        let layout = Layout { data: absolute(&up.data_dir)?, state: absolute(&up.state_dir)? };
        for (flag, dir) in [
            ("--data-dir", layout.data.clone()),
            ("--data-dir", layout.manifests()),
            ("--data-dir", layout.deploy()),
            ("--data-dir", layout.images()),
            ("--data-dir", layout.cni_config()),
            ("--data-dir", layout.containerd_root()),
            ("--state-dir", layout.state.clone()),
        ] {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
            made.map_err(|e| {
                format!("make {}: {e}; run as root, or choose another with {flag}", dir.display())
            })?;
        }
        Ok(layout)
    }

    pub(super) fn is_usual(&self) -> bool {
        self.data == Path::new(USUAL)
    }

    pub(super) fn ca(&self) -> PathBuf {
        self.data.join("pki/ca.crt")
    }

    pub(super) fn manifests(&self) -> PathBuf {
        self.data.join("manifests")
    }

    /// What is in it is applied to the API server.
    pub(super) fn deploy(&self) -> PathBuf {
        self.data.join("deploy")
    }

    /// Archives of images that the runtime gets.
    pub(super) fn images(&self) -> PathBuf {
        self.data.join("images")
    }

    /// The volumes of the class `local-path`.
    pub(super) fn storage(&self) -> PathBuf {
        self.data.join("storage")
    }

    pub(super) fn kubelet_root(&self) -> PathBuf {
        if self.is_usual() { "/var/lib/kubelet".into() } else { self.data.join("kubelet") }
    }

    pub(super) fn pod_logs(&self) -> PathBuf {
        if self.is_usual() { "/var/log/pods".into() } else { self.data.join("pod-logs") }
    }

    pub(super) fn cni_config(&self) -> PathBuf {
        self.data.join("cni")
    }

    pub(super) fn cni_plugins(&self) -> PathBuf {
        self.data.join("cni-plugins")
    }

    /// A list of leases is of no use after a reboot.
    pub(super) fn cni_leases(&self) -> PathBuf {
        self.state.join("cni")
    }

    pub(super) fn containerd_root(&self) -> PathBuf {
        self.data.join("containerd")
    }
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|e| format!("{}: {e}", path.display()))
}
