//! What is remembered of placements across restarts: `cpu_manager_state` and `memory_manager_state`.

use std::fs;
use std::io;
use std::path::PathBuf;

use kubelet_core::topology::admit::Placement;
use kubelet_core::topology::cpu::CpuState;
use kubelet_core::topology::file::FileError;
use kubelet_core::topology::memory::state::MemoryState;
use kubelet_core::topology::{cpu, memory};

use crate::host::files::write_whole;

/// The files below the kubelet's root, and which policies write them.
#[derive(Clone, Debug)]
pub(super) struct Files {
    pub(super) root: PathBuf,
    pub(super) cpu_policy: String,
    pub(super) memory_policy: String,
}

/// What is to be in the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Texts {
    cpu: String,
    memory: String,
}

// === impl Files ===

impl Files {
    /// What an earlier life left. A file that cannot be gone on from stops the kubelet: what runs may be pinned by it.
    pub(super) fn read(&self) -> Result<(CpuState, MemoryState), String> {
        let cpus = self.one(cpu::checkpoint::FILE, "CPU manager", |text| {
            cpu::checkpoint::read(&self.cpu_policy, text)
        })?;
        let memory = self.one(memory::checkpoint::FILE, "memory manager", |text| {
            memory::checkpoint::read(&self.memory_policy, text)
        })?;
        Ok((cpus, memory))
    }

    fn one<T: Default>(
        &self,
        name: &str,
        manager: &str,
        read: impl FnOnce(&str) -> Result<T, FileError>,
    ) -> Result<T, String> {
        let path = self.root.join(name);
        let found = match fs::read_to_string(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(T::default()),
            Err(e) => Err(e.to_string()),
            Ok(text) => read(&text).map_err(|e| e.to_string()),
        };
        found.map_err(|why| {
            format!(
                "could not restore state from checkpoint: {why}, please drain this node and delete the {manager} \
                 checkpoint file {:?} before restarting Kubelet",
                path.display().to_string()
            )
        })
    }

    pub(super) fn texts(&self, placement: &Placement) -> Texts {
        let cpus = placement.cpus.as_ref().map(|c| &c.state);
        let memory = placement.memory.as_ref().map(|m| &m.state);
        Texts {
            cpu: cpu::checkpoint::write(&self.cpu_policy, cpus.unwrap_or(&CpuState::default())),
            memory: memory::checkpoint::write(&self.memory_policy, memory.unwrap_or(&MemoryState::default())),
        }
    }

    /// Writes what differs.
    pub(super) fn write(&self, texts: &Texts, before: &Texts) -> io::Result<()> {
        if texts.cpu != before.cpu {
            write_whole(&self.root.join(cpu::checkpoint::FILE), texts.cpu.as_bytes(), 0o600)?;
        }
        if texts.memory != before.memory {
            write_whole(&self.root.join(memory::checkpoint::FILE), texts.memory.as_bytes(), 0o600)?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    fn files(root: &Path) -> Files {
        Files { root: root.to_owned(), cpu_policy: "none".into(), memory_policy: "None".into() }
    }

    #[test]
    fn a_node_without_policies_has_the_files_that_upstream_writes() {
        let root = tempfile::tempdir().unwrap();
        let files = files(root.path());
        let texts = files.texts(&Placement::default());
        for _ in 0..2 {
            assert_eq!(files.read(), Ok(Default::default()));
            files.write(&texts, &Texts::default()).unwrap();
        }
        for (name, text) in [
            (cpu::checkpoint::FILE, r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#),
            (memory::checkpoint::FILE, r#"{"policyName":"None","machineState":{},"checksum":4236770233}"#),
        ] {
            let path = root.path().join(name);
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2);
    }

    #[test]
    fn the_state_of_another_policy_and_a_broken_one_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let files = files(root.path());
        let path = root.path().join(cpu::checkpoint::FILE);
        fs::write(&path, cpu::checkpoint::write("static", &CpuState::default())).unwrap();
        assert_eq!(
            files.read().unwrap_err(),
            format!(
                "could not restore state from checkpoint: configured policy \"none\" differs from state checkpoint \
                 policy \"static\", please drain this node and delete the CPU manager checkpoint file {:?} before \
                 restarting Kubelet",
                path.display().to_string()
            )
        );
        fs::remove_file(&path).unwrap();
        let path = root.path().join(memory::checkpoint::FILE);
        fs::write(&path, r#"{"policyName":"None","machineState":{},"checksum":1}"#).unwrap();
        let told = files.read().unwrap_err();
        assert!(
            told.contains("checkpoint is corrupted, please drain this node and delete the memory"),
            "{told}"
        );
        fs::write(&path, "{").unwrap();
        assert!(files.read().unwrap_err().starts_with("could not restore state from checkpoint: EOF"));
    }
}
