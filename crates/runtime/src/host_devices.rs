//! The devices of the machine that a container is given.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use cri::v1;
use tonic::Status;

use crate::daemon::{failed, invalid};
use crate::open::Device;

/// Made anew for every container, or not the machine's to give.
const OWN: [&str; 17] = [
    "null", "zero", "full", "random", "urandom", "tty", "console", "fd", "stdin", "stdout", "stderr", "ptmx",
    "pts", "shm", "mqueue", "log", "initctl",
];
/// Deeper than any driver makes them.
const DEPTH_MAX: usize = 8;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Given {
    /// Below /dev.
    pub(crate) devices: Vec<Device>,
    /// For whom the place is another: path, source.
    pub(crate) elsewhere: Vec<(String, PathBuf)>,
    /// What the cgroup allows besides; none when it allows everything.
    pub(crate) rules: Option<Vec<String>>,
}

pub(crate) fn given(config: &v1::ContainerConfig, is_privileged: bool) -> Result<Given, Status> {
    let mut given = Given { rules: Some(Vec::new()), ..Given::default() };
    for device in &config.devices {
        add(&mut given, device)?;
    }
    if let Some(first) = config.cdi_devices.first() {
        return Err(invalid(format!("CDI device {:?}: CDI is not supported", first.name)));
    }
    if is_privileged {
        walk(Path::new("/dev"), DEPTH_MAX, &mut |path, metadata| {
            let name = path.strip_prefix("/dev").unwrap_or(path).to_string_lossy().into_owned();
            if !given.devices.iter().any(|device| device.name == name) {
                given.devices.push(node(name, metadata));
            }
        })
        .map_err(failed("list the devices of this machine"))?;
        given.rules = None;
    }
    Ok(given)
}

fn add(given: &mut Given, device: &v1::Device) -> Result<(), Status> {
    let host = Path::new(&device.host_path);
    let what = || format!("device {}", device.host_path);
    let letters = device.permissions.chars().all(|c| "rwm".contains(c)) && !device.permissions.is_empty();
    if !letters {
        return Err(invalid(format!("{}: {:?} are no permissions", what(), device.permissions)));
    }
    let mut found = Vec::new();
    let metadata = fs::metadata(host).map_err(failed(what()))?;
    let inside = |path: &Path| match path.strip_prefix(host) {
        Ok(rest) if rest != Path::new("") => Path::new(&device.container_path).join(rest),
        _ => PathBuf::from(&device.container_path),
    };
    if metadata.is_dir() {
        walk(host, DEPTH_MAX, &mut |path, metadata| found.push((path.to_owned(), metadata.clone())))
            .map_err(failed(what()))?;
    } else if is_device(&metadata) {
        found.push((host.to_owned(), metadata));
    } else {
        return Err(invalid(format!("{}: it is no device", what())));
    }
    for (path, metadata) in found {
        let kind = if metadata.file_type().is_block_device() { 'b' } else { 'c' };
        let (major, minor) = numbers(&metadata);
        if let Some(rules) = &mut given.rules {
            rules.push(format!("{kind} {major}:{minor} {}", device.permissions));
        }
        let place = inside(&path);
        match place.strip_prefix("/dev") {
            Ok(name) if OWN.iter().any(|own| Path::new(own) == name) => {}
            Ok(name) => given.devices.push(node(name.to_string_lossy().into_owned(), &metadata)),
            Err(_) => given.elsewhere.push((place.to_string_lossy().into_owned(), path)),
        }
    }
    Ok(())
}

fn walk(dir: &Path, depth: usize, found: &mut dyn FnMut(&Path, &fs::Metadata)) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let is_own = dir == Path::new("/dev") && OWN.iter().any(|own| path.ends_with(own));
        // One that goes while we look is left out; a link is its target's business.
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        if is_own || metadata.is_symlink() {
            continue;
        }
        if metadata.is_dir() && depth > 0 {
            walk(&path, depth - 1, found)?;
        } else if is_device(&metadata) {
            found(&path, &metadata);
        }
    }
    Ok(())
}

fn is_device(metadata: &fs::Metadata) -> bool {
    metadata.file_type().is_block_device() || metadata.file_type().is_char_device()
}

fn numbers(metadata: &fs::Metadata) -> (u32, u32) {
    (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()))
}

fn node(name: String, metadata: &fs::Metadata) -> Device {
    let (major, minor) = numbers(metadata);
    Device {
        name,
        is_block: metadata.file_type().is_block_device(),
        major,
        minor,
        mode: metadata.mode() & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn asked(host: &str, container: &str, permissions: &str) -> v1::ContainerConfig {
        let device = v1::Device {
            host_path: host.into(),
            container_path: container.into(),
            permissions: permissions.into(),
        };
        v1::ContainerConfig { devices: vec![device], ..Default::default() }
    }

    #[test]
    fn a_device_is_given_under_its_new_name_with_its_own_numbers() {
        let given = given(&asked("/dev/zero", "/dev/mine/zero", "rw"), false).unwrap();
        let device = &given.devices[0];
        assert_eq!((device.name.as_str(), device.major, device.minor), ("mine/zero", 1, 5));
        assert_eq!(given.rules.unwrap(), ["c 1:5 rw"]);
        let elsewhere = super::given(&asked("/dev/zero", "/data/zero", "r"), false).unwrap();
        assert_eq!(elsewhere.elsewhere, [("/data/zero".to_owned(), PathBuf::from("/dev/zero"))]);
    }

    #[test]
    fn what_is_no_device_is_refused_by_name() {
        for (host, permissions) in
            [("/etc/hosts", "rw"), ("/dev/zero", "rwx"), ("/dev/none", "r"), ("/dev/zero", "")]
        {
            let error = given(&asked(host, "/dev/x", permissions), false).unwrap_err();
            assert!(error.message().contains(host), "{error}");
        }
    }

    #[test]
    fn who_is_privileged_is_given_all_but_what_is_made_anew() {
        let given = given(&v1::ContainerConfig::default(), true).unwrap();
        assert_eq!(given.rules, None);
        assert!(given.devices.iter().all(|device| !OWN.contains(&device.name.as_str())), "{given:?}");
    }
}
