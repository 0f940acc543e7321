//! What the disk tells of the volumes of drivers, and what is written there.
//!
//! Everything here blocks. It runs on a thread of its own, never on the loop: see [`CsiVolumes::on_disk`].

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::ids::PodUid;
use kubelet_core::volumes::CsiVolume;
use kubelet_core::volumes::csi::{PLUGIN_DIR, key};

use super::block::{Places, is_device};
use super::books::{self, Entry, Kept};
use super::{CsiVolumes, Job, named, volume_queue};
use crate::ports::{MountedVolume, VolumeAct, VolumeError};

/// Marks a volume whose set-up came to its end, in the place where other kinds have theirs.
const READY: &str = "ready";

#[derive(Clone, Debug)]
pub(super) struct Disk {
    /// The kubelet's root, as the operator calls it and drivers know it.
    root: Arc<Path>,
}

/// A staged volume.
#[derive(Clone, Debug)]
pub(super) struct Staged {
    pub(super) entry: Entry,
    /// As people call it.
    pub(super) name: String,
    pub(super) place: Place,
}

#[derive(Clone, Debug)]
pub(super) enum Place {
    /// The directory that holds `globalmount`.
    Mount(PathBuf),
    Device,
}

/// A volume of a Pod whose record tells nothing.
struct Corrupt {
    /// The directory's name.
    name: String,
    /// Where the record is.
    dir: PathBuf,
    /// Where the volume is.
    target: PathBuf,
}

/// What a Pod has of drivers.
pub(super) struct OfPod {
    pub(super) mounts: Vec<Kept>,
    pub(super) devices: Vec<Kept>,
}

impl CsiVolumes {
    /// Looks at the disk, or writes there, on a thread of its own. Fails where there is no thread to be had.
    pub(super) async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Disk) -> T + Send + 'static,
    ) -> io::Result<T> {
        let disk = self.disk.clone();
        volume_queue::on_thread(move || Ok(work(&disk))).await
    }

    /// The same for work that may fail itself.
    pub(super) async fn try_on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Disk) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let disk = self.disk.clone();
        volume_queue::on_thread(move || work(&disk)).await
    }
}

// === impl Disk: places, which need no look ===

impl Disk {
    pub(super) fn new(root: &Path) -> Disk {
        Disk { root: root.into() }
    }

    /// The directory of the volume's books in the Pod's.
    pub(super) fn target(&self, uid: &str, name: &str) -> PathBuf {
        books::of_pod(&self.root, uid).join(name)
    }

    pub(super) fn device(&self, uid: &str, name: &str) -> PathBuf {
        self.device_places(name).publish_dir.join(uid)
    }

    pub(super) fn device_places(&self, name: &str) -> Places {
        Places::new(&self.root, name)
    }

    /// Where volumes are staged.
    pub(super) fn staging(&self) -> PathBuf {
        books::staging(&self.root)
    }

    fn mark(&self, uid: &str, name: &str) -> PathBuf {
        self.root.join("pods").join(uid).join("plugins").join(PLUGIN_DIR).join(name)
    }
}

// === impl Disk: one volume ===

impl Disk {
    /// Where the volume is, if it was set up to the end and nobody took it away.
    pub(super) fn standing(&self, uid: &str, volume: &CsiVolume) -> Option<MountedVolume> {
        let (name, read_only) = (&volume.spec_name, volume.read_only);
        if !self.has_mark(uid, name) {
            return None;
        }
        if volume.block {
            let path = self.device(uid, name);
            return is_device(&path).then_some(MountedVolume::Device { path, read_only });
        }
        let path = self.target(uid, name).join(books::MOUNT);
        books::is_mounted(&path).then_some(MountedVolume::Host { path, read_only })
    }

    /// The same for a Pod that wants it. A volume that is in place although its record is not gets one: whoever takes it
    /// away will need it.
    pub(super) fn found(&self, job: &Job, node: &str) -> io::Result<Option<MountedVolume>> {
        let found = self.standing(job.uid.as_str(), &job.volume);
        let dir = match job.volume.block {
            true => self.device_places(&job.volume.spec_name).data(),
            false => self.target(job.uid.as_str(), &job.volume.spec_name),
        };
        if found.is_some() && books::read(&dir).is_none() {
            books::write(&dir, &job.volume.data(node))?;
        }
        Ok(found)
    }

    pub(super) fn has_mark(&self, uid: &str, name: &str) -> bool {
        self.mark(uid, name).join(READY).exists()
    }

    pub(super) fn set_mark(&self, uid: &str, name: &str) -> io::Result<()> {
        let dir = self.mark(uid, name);
        books::make_dir(&dir)?;
        std::fs::write(dir.join(READY), "")
    }

    fn drop_mark(&self, uid: &str, name: &str) -> io::Result<()> {
        let dir = self.mark(uid, name);
        books::remove_empty(&dir.join(READY))?;
        books::remove_empty(&dir)
    }

    /// The Pod's record of a device.
    pub(super) fn link(&self, uid: &str, name: &str) -> io::Result<()> {
        let device = self.device(uid, name);
        let dir = books::devices_of_pod(&self.root, uid);
        books::make_dir(&dir)?;
        let link = dir.join(name);
        match std::fs::read_link(&link) {
            Ok(there) if there == device => return Ok(()),
            Ok(_) => std::fs::remove_file(&link)?,
            Err(_) => {}
        }
        symlink(device, link)
    }

    /// The driver has unpublished the volume: nothing of it is left in the Pod's directory.
    pub(super) fn close_mount(&self, uid: &str, kept: &Kept) -> io::Result<()> {
        self.drop_mark(uid, &kept.name)?;
        books::close(&kept.dir, books::MOUNT).map_err(|e| {
            let target = kept.dir.join(books::MOUNT);
            io::Error::other(format!("failed to clean mount dir [{}]: {e}", target.display()))
        })
    }

    /// The same for a device.
    pub(super) fn close_device(&self, uid: &str, name: &str) -> io::Result<()> {
        let device = self.device(uid, name);
        if books::is_mounted(&device) {
            return Err(io::Error::other(format!("{} is still mounted", device.display())));
        }
        let link = books::devices_of_pod(&self.root, uid).join(name);
        let all = [books::remove_empty(&device), self.drop_mark(uid, name), books::remove_empty(&link)];
        all.into_iter().collect()
    }
}

// === impl Disk: all volumes ===

impl Disk {
    /// Whether the Pod has a directory for volumes of drivers.
    pub(super) fn knows(&self, uid: &str) -> bool {
        let dirs = [books::of_pod(&self.root, uid), books::devices_of_pod(&self.root, uid)];
        dirs.iter().any(|dir| dir.exists())
    }

    /// Everything that is staged for the node.
    pub(super) fn staged(&self) -> Vec<Staged> {
        let mut all = Vec::new();
        for (driver, dir) in books::names(&self.staging()) {
            if driver == books::DEVICES {
                let spec_names = books::names(&dir).into_iter().map(|(name, _)| name);
                let devices = spec_names.filter(|n| n != "staging" && n != "publish").filter_map(|name| {
                    let entry = books::read(&self.device_places(&name).data())?;
                    Some(Staged { entry, name, place: Place::Device })
                });
                all.extend(devices);
            } else {
                all.extend(books::list(&dir).into_iter().map(|Kept { dir, entry, .. }| Staged {
                    name: entry.handle.clone(),
                    entry,
                    place: Place::Mount(dir),
                }));
            }
        }
        all
    }

    /// Every volume that some Pod's directory tells of.
    pub(super) fn published(&self) -> Vec<Entry> {
        self.pods().flat_map(|uid| self.entries_of(&uid)).collect()
    }

    /// Whether another Pod's directory tells of the volume.
    pub(super) fn has_another(&self, unique: &str, uid: &str) -> bool {
        let others = self.pods().filter(|other| other != uid);
        others.flat_map(|other| self.entries_of(&other)).any(|entry| entry.unique_name() == unique)
    }

    /// The records of Pods' volumes that tell nothing: any staged volume may be theirs.
    pub(super) fn corrupt(&self) -> Vec<PathBuf> {
        self.pods().flat_map(|uid| self.corrupt_of(&uid)).map(|corrupt| corrupt.dir).collect()
    }

    /// The volumes of a Pod that is to go. `known` says whose the published ones are, by their paths. A mount whose record
    /// is corrupt, and that is not among them, belongs to a driver that nobody can name, so nobody can ask it.
    pub(super) fn of_pod(
        &self,
        uid: &PodUid,
        known: &BTreeMap<PathBuf, (String, String)>,
    ) -> Result<OfPod, VolumeError> {
        let uid = uid.as_str();
        for Corrupt { name, dir, target } in self.corrupt_of(uid) {
            let failed = |e: io::Error| named(VolumeAct::Unmount, &name, e.to_string());
            if let Some((driver, handle)) = known.get(&target) {
                let data = [(key::DRIVER, driver), (key::HANDLE, handle)];
                let data = data.into_iter().map(|(k, v)| (k.to_owned(), v.clone())).collect();
                books::write(&dir, &data).map_err(failed)?;
            } else if books::is_mounted(&target) {
                let (dir, target) = (dir.display(), target.display());
                let why = format!(
                    "its record in {dir} is corrupt, so its driver cannot be asked: unmount {target} by hand"
                );
                return Err(named(VolumeAct::Unmount, &name, why));
            } else {
                self.drop_mark(uid, &name).map_err(failed)?;
            }
        }
        Ok(OfPod { mounts: books::list(&books::of_pod(&self.root, uid)), devices: self.devices_of(uid) })
    }

    /// What the Pod has although its record tells nothing.
    fn corrupt_of(&self, uid: &str) -> Vec<Corrupt> {
        let mounts = books::names(&books::of_pod(&self.root, uid)).into_iter().map(|(name, dir)| Corrupt {
            target: dir.join(books::MOUNT),
            name,
            dir,
        });
        let devices = self.links_of(uid).into_iter().map(|name| {
            let places = self.device_places(&name);
            Corrupt { dir: places.data(), target: places.publish_dir.join(uid), name }
        });
        mounts.chain(devices).filter(|c| books::is_corrupt(&c.dir)).collect()
    }

    /// The devices of a Pod, by the links that lead to them.
    fn devices_of(&self, uid: &str) -> Vec<Kept> {
        let kept = |name: String| {
            let data: PathBuf = self.device_places(&name).data();
            Some(Kept { entry: books::read(&data)?, name, dir: data })
        };
        self.links_of(uid).into_iter().filter_map(kept).collect()
    }

    fn links_of(&self, uid: &str) -> Vec<String> {
        let dir = books::devices_of_pod(&self.root, uid);
        let names = std::fs::read_dir(dir).into_iter().flatten().flatten();
        names.filter_map(|e| e.file_name().into_string().ok()).collect()
    }

    fn entries_of(&self, uid: &str) -> impl Iterator<Item = Entry> + use<> {
        let mounts = books::list(&books::of_pod(&self.root, uid));
        mounts.into_iter().chain(self.devices_of(uid)).map(|kept| kept.entry)
    }

    fn pods(&self) -> impl Iterator<Item = String> + use<> {
        books::names(&self.root.join("pods")).into_iter().map(|(uid, _)| uid)
    }
}
