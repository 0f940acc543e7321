//! Where the files of the node are.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use api::config::up::Up;

/// The data directory of a machine whose only node this is: the kubelet's files are then where CSI drivers and log shippers
/// look for them.
const USUAL: &str = "/var/lib/longshore";

/// Where containerds of others look for networks, and DaemonSets put them.
pub(super) const MACHINE_CNI: &str = "/etc/cni/net.d";

#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) data: PathBuf,
    pub(super) state: PathBuf,
    /// Pods hang on what is in the machine's places for networks: DaemonSets put it there.
    is_network_of_machine: bool,
}

// === impl Layout ===

impl Layout {
    /// Makes nothing.
    pub(super) fn of(up: &Up) -> Result<Layout, String> {
        Ok(Layout::below(absolute(&up.data_dir)?, absolute(&up.state_dir)?))
    }

    pub(super) fn below(data: PathBuf, state: PathBuf) -> Layout {
        Layout { data, state, is_network_of_machine: false }
    }

    /// Makes the directories, or says which one cannot be made and what to do.
    pub(super) fn prepare(up: &Up) -> Result<Layout, String> {
        let layout = Layout::of(up)?;
        for (flag, dir) in [
            ("--data-dir", layout.data.clone()),
            ("--data-dir", layout.manifests()),
            ("--data-dir", layout.deploy()),
            ("--data-dir", layout.images()),
            ("--data-dir", layout.cni_config()),
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

    pub(super) fn with_the_machine_s_network(self) -> Layout {
        Layout { is_network_of_machine: true, ..self }
    }

    pub(super) fn cni_config(&self) -> PathBuf {
        if self.is_network_of_machine { MACHINE_CNI.into() } else { self.data.join("cni") }
    }

    /// Where others put plugins, where what they configure is used.
    pub(super) fn other_plugins(&self) -> Option<PathBuf> {
        self.is_network_of_machine.then(|| "/opt/cni/bin".into())
    }

    pub(super) fn cni_plugins(&self) -> PathBuf {
        self.data.join("cni-plugins")
    }

    /// A list of leases is of no use after a reboot.
    pub(super) fn cni_leases(&self) -> PathBuf {
        self.state.join("cni")
    }

    /// The images of the runtime in this program, and what containers write.
    pub(super) fn runtime_root(&self) -> PathBuf {
        self.data.join("runtime")
    }

    pub(super) fn runtime_socket(&self) -> PathBuf {
        self.state.join("runtime.sock")
    }

    /// Gone after a boot, as its containers are.
    pub(super) fn runtime_state(&self) -> PathBuf {
        self.state.join("runtime")
    }

    /// Mirrors and authorities of registries.
    pub(super) fn registries(&self) -> PathBuf {
        self.data.join("registries")
    }

    /// What the node was started on.
    pub(super) fn chosen_runtime(&self) -> PathBuf {
        self.data.join("container-runtime.json")
    }

    pub(super) fn containerd_root(&self) -> PathBuf {
        self.data.join("containerd")
    }

    pub(super) fn containerd_state(&self) -> PathBuf {
        self.state.join("containerd")
    }

    pub(super) fn containerd_socket(&self) -> PathBuf {
        self.state.join("containerd.sock")
    }
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|e| format!("{}: {e}", path.display()))
}
