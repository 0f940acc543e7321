//! What is written down of sandboxes and containers, so that the next daemon knows it: a small file each, with a checksum.
//!
//! They lie where a boot forgets them: containers do not outlive a boot, and neither need their records. So nothing is
//! synced; a record is whole or not there because it is renamed into its place.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use prost::Message;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A record of another version is not understood.
const VERSION: u32 = 1;
/// Of one record: a Pod's annotations and a container's environment are within it.
const RECORD_MAX: u64 = 32 << 20;

/// The directory of all records.
#[derive(Debug)]
pub(crate) struct Records {
    root: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sandbox,
    Container,
}

/// A message of the CRI, inside of a record.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Wire<T>(pub(crate) T);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SandboxRecord {
    pub(crate) version: u32,
    pub(crate) config: Wire<cri::v1::PodSandboxConfig>,
    pub(crate) handler: String,
    pub(crate) created_at: i64,
    pub(crate) phase: SandboxPhase,
    /// There before plugins are called, so that they are called again to undo it.
    pub(crate) network: Option<NetworkRecord>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SandboxPhase {
    /// Nobody was told of it: a daemon that finds it undoes it.
    #[default]
    Making,
    Ready,
    NotReady,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NetworkRecord {
    /// The configuration by which it was attached: by it it is detached, whatever is configured then.
    pub(crate) config: String,
    /// None before the plugins have answered.
    pub(crate) addresses: Vec<IpAddr>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ContainerRecord {
    pub(crate) version: u32,
    pub(crate) sandbox: String,
    pub(crate) config: Wire<cri::v1::ContainerConfig>,
    /// As they are since the last update.
    pub(crate) resources: Wire<cri::v1::LinuxContainerResources>,
    pub(crate) image: ImageFacts,
    /// Layers of the images that it mounts, by place in its mounts.
    pub(crate) image_mounts: BTreeMap<usize, Vec<String>>,
    pub(crate) user: UserFacts,
    /// Found when it was created: specs may be others when a command is run in it.
    #[serde(default)]
    pub(crate) cdi: runtime_core::cdi::Edits,
    pub(crate) created_at: i64,
    /// Its number with the Pod's keeper.
    pub(crate) job: u32,
    pub(crate) phase: Phase,
}

/// What of an image a container goes on needing, whatever becomes of the image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageFacts {
    pub(crate) id: String,
    /// By digest where it has one.
    pub(crate) reference: String,
    pub(crate) layers: Vec<String>,
    pub(crate) user: String,
    pub(crate) env: Vec<String>,
    pub(crate) entrypoint: Vec<String>,
    pub(crate) cmd: Vec<String>,
    pub(crate) working_dir: String,
    pub(crate) stop_signal: String,
    pub(crate) volumes: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UserFacts {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    pub(crate) home: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Phase {
    #[default]
    Created,
    /// The keeper was, or is about to be, asked.
    Starting,
    Running {
        pid: i32,
        started_at: i64,
    },
    Exited(Ended),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    /// Zero when it never ran.
    pub(crate) started_at: i64,
    pub(crate) finished_at: i64,
    pub(crate) reason: String,
    pub(crate) message: String,
}

// === impl Records ===

impl Records {
    pub(crate) fn open(root: PathBuf) -> io::Result<Records> {
        for kind in [Kind::Sandbox, Kind::Container] {
            std::fs::create_dir_all(root.join(kind.dir()))?;
        }
        Ok(Records { root })
    }

    pub(crate) fn write<T: Serialize>(&self, kind: Kind, id: &str, record: &T) -> io::Result<()> {
        let body = serde_json::to_string(record)?;
        let dir = self.root.join(kind.dir());
        let aside = dir.join(format!(".{id}"));
        std::fs::write(&aside, format!("{}\n{body}", checksum(body.as_bytes())))?;
        std::fs::rename(&aside, dir.join(id))
    }

    pub(crate) fn remove(&self, kind: Kind, id: &str) -> io::Result<()> {
        match std::fs::remove_file(self.root.join(kind.dir()).join(id)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// All that can be read. What cannot is told and removed: nothing can be made of it, and what it stood for is found as a
    /// leftover.
    pub(crate) fn read<T: DeserializeOwned>(&self, kind: Kind) -> io::Result<Vec<(String, T)>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(self.root.join(kind.dir()))? {
            let entry = entry?;
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            match read(&path) {
                _ if name.starts_with('.') => std::fs::remove_file(&path)?,
                Ok(record) => found.push((name, record)),
                Err(error) => {
                    tracing::error!(record = %path.display(), %error, "a record cannot be read and is removed");
                    std::fs::remove_file(&path)?;
                }
            }
        }
        Ok(found)
    }
}

fn read<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    io::Read::read_to_string(&mut io::Read::take(file, RECORD_MAX), &mut text)?;
    let (sum, body) = text.split_once('\n').ok_or_else(|| io::Error::other("it has no checksum"))?;
    if sum != checksum(body.as_bytes()) {
        return Err(io::Error::other("its checksum is another"));
    }
    #[derive(Deserialize)]
    struct Head {
        version: u32,
    }
    let head: Head = serde_json::from_str(body)?;
    if head.version != VERSION {
        return Err(io::Error::other(format!("it is of version {}, we read {VERSION}", head.version)));
    }
    Ok(serde_json::from_str(body)?)
}

fn checksum(body: &[u8]) -> String {
    format!("{:032x}", base::fnv::fnv1a128(body))
}

// === impl Kind ===

impl Kind {
    fn dir(self) -> &'static str {
        match self {
            Kind::Sandbox => "sandbox-records",
            Kind::Container => "container-records",
        }
    }
}

// === impl records ===

impl SandboxRecord {
    pub(crate) fn new(config: cri::v1::PodSandboxConfig, handler: &str, created_at: i64) -> Self {
        let (config, handler) = (Wire(config), handler.to_owned());
        let phase = SandboxPhase::Making;
        Self { version: VERSION, config, handler, created_at, phase, network: None }
    }
}

impl ContainerRecord {
    pub(crate) fn new(
        sandbox: &str,
        config: cri::v1::ContainerConfig,
        image: ImageFacts,
        user: UserFacts,
        created_at: i64,
        job: u32,
    ) -> Self {
        let resources = config.linux.as_ref().and_then(|linux| linux.resources.clone()).unwrap_or_default();
        Self {
            version: VERSION,
            sandbox: sandbox.to_owned(),
            config: Wire(config),
            resources: Wire(resources),
            image,
            image_mounts: BTreeMap::new(),
            user,
            cdi: runtime_core::cdi::Edits::default(),
            created_at,
            job,
            phase: Phase::Created,
        }
    }
}

impl<T: Message> Serialize for Wire<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(self.0.encode_to_vec()))
    }
}

impl<'de, T: Message + Default> Deserialize<'de> for Wire<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let bytes = STANDARD.decode(text).map_err(D::Error::custom)?;
        T::decode(bytes.as_slice()).map(Wire).map_err(D::Error::custom)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn record(name: &str) -> SandboxRecord {
        let metadata = cri::v1::PodSandboxMetadata { name: name.into(), ..Default::default() };
        let config = cri::v1::PodSandboxConfig { metadata: Some(metadata), ..Default::default() };
        SandboxRecord::new(config, "", 7)
    }

    #[test]
    fn what_was_written_is_read_and_what_is_broken_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path().to_owned()).unwrap();
        records.write(Kind::Sandbox, "a", &record("web")).unwrap();
        records.write(Kind::Sandbox, "b", &record("db")).unwrap();
        let place = dir.path().join("sandbox-records");
        let torn = std::fs::read_to_string(place.join("b")).unwrap();
        std::fs::write(place.join("b"), &torn[..torn.len() - 3]).unwrap();
        std::fs::write(place.join(".c"), "half").unwrap();
        let other = torn.replacen("\"version\":1", "\"version\":9", 1);
        let body = other.split_once('\n').unwrap().1;
        std::fs::write(place.join("d"), format!("{}\n{body}", checksum(body.as_bytes()))).unwrap();
        let read: Vec<(String, SandboxRecord)> = records.read(Kind::Sandbox).unwrap();
        assert_eq!(read.len(), 1);
        assert_eq!((read[0].0.as_str(), &read[0].1.config), ("a", &record("web").config));
        assert_eq!(std::fs::read_dir(&place).unwrap().count(), 1);
        records.remove(Kind::Sandbox, "a").unwrap();
        records.remove(Kind::Sandbox, "a").unwrap();
        assert!(records.read::<SandboxRecord>(Kind::Sandbox).unwrap().is_empty());
    }
}
