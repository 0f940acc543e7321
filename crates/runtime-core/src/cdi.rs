//! The Container Device Interface: what vendors say a container needs to use a device, and which of it a container gets.
//!
//! Specs are decoded here; who reads their files is the agent. What a spec asks for that we cannot do is refused by name: a
//! container that only seems to have its device fails later, and worse.

mod spec;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use spec::Spec;

/// All devices that are known, by qualified name.
#[derive(Clone, Debug, Default)]
pub struct Devices {
    by_name: BTreeMap<String, Place>,
    specs: Vec<Spec>,
    /// Files that cannot be used, and why.
    bad: Vec<(String, String)>,
}

#[derive(Clone, Debug)]
struct Place {
    priority: usize,
    file: String,
    /// In [`Devices::specs`], and among the devices of it.
    at: (usize, usize),
    /// Another file of the same directory that has it too.
    rival: Option<String>,
}

/// What changes for a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edits {
    pub env: Vec<(String, String)>,
    pub devices: Vec<Device>,
    pub mounts: Vec<Mount>,
    pub groups: Vec<u32>,
}

/// What is not said is as the machine's device has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    pub path: String,
    pub host_path: String,
    pub permissions: String,
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    pub host_path: String,
    pub container_path: String,
    pub is_read_only: bool,
    /// `MOUNT_ATTR_…`
    pub flags: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDevice {
    #[error("CDI device {0:?}: it is not of the form vendor/class=name")]
    Name(String),
    #[error("CDI device {0:?}: no spec has it{1}")]
    Missing(String, String),
    #[error("CDI device {0:?}: both {1} and {2} have it")]
    Twice(String, String, String),
    #[error("CDI device {0:?}: {1}: {2}")]
    Unsupported(String, String, String),
}

// === impl Devices ===

impl Devices {
    /// A file's content as JSON. A higher priority wins.
    pub fn add(&mut self, file: &str, priority: usize, text: &str) {
        let spec = match Spec::decode(text) {
            Ok(spec) => spec,
            Err(why) => return self.cannot_use(file, why),
        };
        let at = self.specs.len();
        for (number, name) in spec.names().enumerate() {
            let place = Place { priority, file: file.to_owned(), at: (at, number), rival: None };
            match self.by_name.get_mut(&name) {
                Some(known) if known.priority > priority => {}
                Some(known) if known.priority == priority => known.rival = Some(file.to_owned()),
                _ => drop(self.by_name.insert(name, place)),
            }
        }
        self.specs.push(spec);
    }

    /// A file that cannot be read, or says what nobody understands: told where a device is missed.
    pub fn cannot_use(&mut self, file: &str, why: String) {
        self.bad.push((file.to_owned(), why));
    }

    /// What these devices change. What a spec says of all its devices comes first, and once.
    pub fn edits<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<Edits, BadDevice> {
        let (mut edits, mut specs, mut seen) = (Edits::default(), BTreeSet::new(), BTreeSet::new());
        for name in names {
            if !is_qualified(name) {
                return Err(BadDevice::Name(name.to_owned()));
            }
            if !seen.insert(name) {
                continue;
            }
            let place = self.by_name.get(name).ok_or_else(|| self.missing(name))?;
            if let Some(rival) = &place.rival {
                return Err(BadDevice::Twice(name.into(), place.file.clone(), rival.clone()));
            }
            let bad = |why| BadDevice::Unsupported(name.into(), place.file.clone(), why);
            let spec = &self.specs[place.at.0];
            if specs.insert(place.at.0) {
                spec.edits.add_to(&mut edits).map_err(bad)?;
            }
            spec.devices[place.at.1].edits.add_to(&mut edits).map_err(bad)?;
        }
        Ok(edits)
    }

    fn missing(&self, name: &str) -> BadDevice {
        let bad: Vec<String> = self.bad.iter().map(|(file, why)| format!("{file}: {why}")).collect();
        let bad = if bad.is_empty() { String::new() } else { format!(" ({})", bad.join("; ")) };
        BadDevice::Missing(name.to_owned(), bad)
    }
}

/// `vendor.example/class=name`.
fn is_qualified(name: &str) -> bool {
    name.split_once('=').is_some_and(|(kind, device)| spec::is_kind(kind) && spec::is_name(device))
}

/// Names in the annotations of a container, by which older kubelets and plugins ask for devices.
pub fn of_annotations<'a>(
    annotations: impl IntoIterator<Item = (&'a String, &'a String)>,
) -> impl Iterator<Item = &'a str> {
    let ours = annotations.into_iter().filter(|(key, _)| key.starts_with("cdi.k8s.io/"));
    ours.flat_map(|(_, value)| value.split(','))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const GPU: &str = r#"{"cdiVersion": "0.6.0", "kind": "vendor.example/gpu",
        "containerEdits": {"env": ["DRIVER=1"], "mounts": [{"hostPath": "/lib/driver", "containerPath": "/driver", "options": ["ro", "nosuid", "bind"]}]},
        "devices": [
            {"name": "0", "containerEdits": {"env": ["GPU0=yes"], "deviceNodes": [{"path": "/dev/gpu0", "permissions": "rw", "uid": 5}]}},
            {"name": "1", "containerEdits": {"deviceNodes": [{"path": "/dev/gpu1", "hostPath": "/dev/real1", "fileMode": 432}], "additionalGids": [44]}}]}"#;

    fn devices(files: &[(&str, usize, &str)]) -> Devices {
        let mut devices = Devices::default();
        files.iter().for_each(|(file, priority, text)| devices.add(file, *priority, text));
        devices
    }

    #[test]
    fn a_container_gets_what_its_devices_need_and_the_specs_own_once() {
        let known = devices(&[("gpu.json", 0, GPU)]);
        let edits =
            known.edits(["vendor.example/gpu=1", "vendor.example/gpu=0", "vendor.example/gpu=1"]).unwrap();
        let env: Vec<&str> = edits.env.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(env, ["DRIVER", "GPU0"]);
        assert_eq!(edits.mounts.len(), 1);
        assert!(edits.mounts[0].is_read_only && edits.mounts[0].flags == 2);
        let [first, second] = &edits.devices[..] else { panic!("{edits:?}") };
        assert_eq!((first.path.as_str(), first.host_path.as_str()), ("/dev/gpu1", "/dev/real1"));
        assert_eq!((first.permissions.as_str(), first.mode), ("rwm", Some(0o660)));
        assert_eq!(
            (second.host_path.as_str(), second.permissions.as_str(), second.uid),
            ("/dev/gpu0", "rw", Some(5))
        );
        assert_eq!(edits.groups, [44]);
    }

    #[test]
    fn a_later_directory_wins_and_two_of_one_are_told() {
        let other = GPU.replace("GPU0=yes", "GPU0=other");
        let known = devices(&[("run.json", 1, &other), ("etc.json", 0, GPU)]);
        let edits = known.edits(["vendor.example/gpu=0"]).unwrap();
        assert_eq!(edits.env[1], ("GPU0".to_owned(), "other".to_owned()));
        let error = devices(&[("a.json", 0, GPU), ("b.json", 0, GPU)]).edits(["vendor.example/gpu=0"]);
        assert_eq!(
            error.unwrap_err().to_string(),
            "CDI device \"vendor.example/gpu=0\": both a.json and b.json have it"
        );
    }

    #[test]
    fn what_is_missing_or_cannot_be_done_is_named() {
        let hook = r#"{"hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook"}]}"#;
        let of = |edits: &str| {
            format!(
                r#"{{"cdiVersion": "0.7.0", "kind": "v.example/c", "devices": [{{"name": "d", "containerEdits": {edits}}}]}}"#
            )
        };
        let rows = [
            (hook, "hook createContainer of /usr/bin/nvidia-cdi-hook is not supported"),
            (
                r#"{"netDevices": [{"hostInterfaceName": "eth1", "name": "eth1"}]}"#,
                "netDevices are not supported",
            ),
            (r#"{"intelRdt": {"closID": "x"}}"#, "intelRdt is not supported"),
            (r#"{"env": ["NOTHING"]}"#, "env \"NOTHING\" is not NAME=VALUE"),
            (
                r#"{"mounts": [{"hostPath": "/a", "containerPath": "/b", "type": "tmpfs"}]}"#,
                "mount /b: type \"tmpfs\" is not supported",
            ),
            (
                r#"{"mounts": [{"hostPath": "/a", "containerPath": "/b", "options": ["strange"]}]}"#,
                "mount /b: option \"strange\" is not supported",
            ),
            (
                r#"{"mounts": [{"hostPath": "a", "containerPath": "/b"}]}"#,
                "mount /b: \"a\" is not an absolute path",
            ),
            (
                r#"{"deviceNodes": [{"path": "/dev/x", "type": "p"}]}"#,
                "device /dev/x: type \"p\" is not supported",
            ),
            (
                r#"{"deviceNodes": [{"path": "/dev/x", "permissions": "rx"}]}"#,
                "device /dev/x: \"rx\" are no permissions",
            ),
        ];
        for (edits, want) in rows {
            let known = devices(&[("f.json", 0, &of(edits))]);
            let error = known.edits(["v.example/c=d"]).unwrap_err().to_string();
            assert_eq!(error, format!("CDI device \"v.example/c=d\": f.json: {want}"));
        }
        let none = devices(&[("broken.json", 0, "{"), ("odd.json", 0, &of(r#"{"strange": 1}"#))]);
        let error = none.edits(["v.example/c=d"]).unwrap_err().to_string();
        assert!(
            error.contains("no spec has it (broken.json: ") && error.contains("unknown field `strange`"),
            "{error}"
        );
        for name in
            ["gpu", "vendor=0", "vendor/class", "vendor/class=", "/class=a", "vendor/cl ass=0", "v/c=../x"]
        {
            assert_eq!(none.edits([name]), Err(BadDevice::Name(name.into())));
        }
    }

    #[test]
    fn annotations_of_older_kubelets_are_read() {
        let all = BTreeMap::from([
            ("cdi.k8s.io/plugin_1".to_owned(), "v.example/c=a,v.example/c=b".to_owned()),
            ("other".to_owned(), "v.example/c=z".to_owned()),
        ]);
        assert_eq!(of_annotations(&all).collect::<Vec<_>>(), ["v.example/c=a", "v.example/c=b"]);
    }
}
