//! The devices of the machine that a container is given.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use cri::v1;
use runtime_core::cdi;
use tonic::Status;

use crate::daemon::{failed, invalid};
use crate::open::Device;
use crate::records::UserFacts;

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

/// Those that the CRI names, those that CDI specs name for this user, and all of them for who is privileged.
pub(crate) fn given(
    config: &v1::ContainerConfig,
    (cdi, user): (&[cdi::Device], &UserFacts),
    is_privileged: bool,
) -> Result<Given, Status> {
    let mut given = Given { rules: Some(Vec::new()), ..Given::default() };
    for device in &config.devices {
        add(&mut given, device)?;
    }
    for device in cdi {
        let asked = v1::Device {
            container_path: device.path.clone(),
            host_path: device.host_path.clone(),
            permissions: device.permissions.clone(),
        };
        let before = given.devices.len();
        add(&mut given, &asked).map_err(|error| invalid(format!("CDI {}", error.message())))?;
        for node in &mut given.devices[before..] {
            node.mode = device.mode.map_or(node.mode, |mode| mode & 0o777);
            // As others do it: who is not root can use what was asked for.
            let or = |said: Option<u32>, of_user: u32, of_host: u32| {
                said.unwrap_or(if of_user > 0 { of_user } else { of_host })
            };
            node.uid = or(device.uid, user.uid, node.uid);
            node.gid = or(device.gid, user.gid, node.gid);
        }
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

    const NONE: (&[cdi::Device], &UserFacts) =
        (&[], &UserFacts { uid: 0, gid: 0, groups: vec![], home: String::new() });

    #[test]
    fn a_device_of_a_spec_is_the_containers_users_unless_it_says_otherwise() {
        let config = v1::ContainerConfig::default();
        let user = UserFacts { uid: 1000, gid: 1001, ..UserFacts::default() };
        let device = cdi::Device {
            path: "/dev/gpu0".into(),
            host_path: "/dev/zero".into(),
            permissions: "rw".into(),
            ..cdi::Device::default()
        };
        let with =
            cdi::Device { path: "/dev/gpu1".into(), mode: Some(0o100_640), uid: Some(0), ..device.clone() };
        let given = given(&config, (&[device, with], &user), false).unwrap();
        let [one, two] = &given.devices[..] else { panic!("{given:?}") };
        assert_eq!((one.name.as_str(), one.uid, one.gid, one.mode), ("gpu0", 1000, 1001, 0o666));
        assert_eq!((two.uid, two.gid, two.mode), (0, 1001, 0o640));
        assert_eq!(given.rules.unwrap(), ["c 1:5 rw", "c 1:5 rw"]);
    }

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
        let given = given(&asked("/dev/zero", "/dev/mine/zero", "rw"), NONE, false).unwrap();
        let device = &given.devices[0];
        assert_eq!((device.name.as_str(), device.major, device.minor), ("mine/zero", 1, 5));
        assert_eq!(given.rules.unwrap(), ["c 1:5 rw"]);
        let elsewhere = super::given(&asked("/dev/zero", "/data/zero", "r"), NONE, false).unwrap();
        assert_eq!(elsewhere.elsewhere, [("/data/zero".to_owned(), PathBuf::from("/dev/zero"))]);
    }

    #[test]
    fn what_is_no_device_is_refused_by_name() {
        for (host, permissions) in
            [("/etc/hosts", "rw"), ("/dev/zero", "rwx"), ("/dev/none", "r"), ("/dev/zero", "")]
        {
            let error = given(&asked(host, "/dev/x", permissions), NONE, false).unwrap_err();
            assert!(error.message().contains(host), "{error}");
        }
    }

    #[test]
    fn who_is_privileged_is_given_all_but_what_is_made_anew() {
        let given = given(&v1::ContainerConfig::default(), NONE, true).unwrap();
        assert_eq!(given.rules, None);
        assert!(given.devices.iter().all(|device| !OWN.contains(&device.name.as_str())), "{given:?}");
    }
}
