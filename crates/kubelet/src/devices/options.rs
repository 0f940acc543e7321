//! What devices want of a container's config.

use std::collections::BTreeMap;

use kubelet_core::cri_config::{ContainerConfig, Device, Mount, Propagation};
use plugins::device::v1beta1::ContainerAllocateResponse;
use prost::Message;

/// The answers of all plugins for one container, together. Where two say different things, the first is heard.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerDevices {
    envs: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    /// By path in the container: path on the host, and whether it is read-only.
    mounts: BTreeMap<String, (String, bool)>,
    /// By path in the container: path on the host and permissions.
    devices: BTreeMap<String, (String, String)>,
    cdi: Vec<String>,
}

// === impl ContainerDevices ===

impl ContainerDevices {
    pub(super) fn from_answers<'a>(answers: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut all = Self::default();
        for answer in answers {
            match ContainerAllocateResponse::decode(answer) {
                Ok(answer) => all.add(answer),
                Err(error) => tracing::error!(%error, "a plugin's answer cannot be read again"),
            }
        }
        all
    }

    fn add(&mut self, answer: ContainerAllocateResponse) {
        for (key, value) in answer.envs {
            self.envs.entry(key).or_insert(value);
        }
        for (key, value) in answer.annotations {
            self.annotations.entry(key).or_insert(value);
        }
        for m in answer.mounts {
            self.mounts.entry(m.container_path).or_insert((m.host_path, m.read_only));
        }
        for d in answer.devices {
            self.devices.entry(d.container_path).or_insert((d.host_path, d.permissions));
        }
        for name in answer.cdi_devices.into_iter().map(|d| d.name) {
            if !self.cdi.contains(&name) {
                self.cdi.push(name);
            }
        }
    }

    /// Adds it to the config. What the Pod says itself outranks the plugins.
    pub fn apply(self, config: &mut ContainerConfig) {
        let own_env = std::mem::take(&mut config.env);
        config.env = self.envs.into_iter().chain(own_env).collect();
        for (key, value) in self.annotations {
            config.annotations.entry(key).or_insert(value);
        }
        let mount = |(container_path, (host_path, read_only))| Mount {
            container_path,
            host_path,
            read_only,
            recursive_read_only: false,
            selinux_relabel: false,
            propagation: Propagation::default(),
            image: None,
            image_sub_path: String::new(),
            uid_mappings: Vec::new(),
            gid_mappings: Vec::new(),
        };
        let own_mounts = std::mem::take(&mut config.mounts);
        config.mounts = self.mounts.into_iter().map(mount).chain(own_mounts).collect();
        let device =
            |(container_path, (host_path, permissions))| Device { container_path, host_path, permissions };
        let own_devices = std::mem::take(&mut config.devices);
        config.devices = self.devices.into_iter().map(device).chain(own_devices).collect();
        config.cdi_devices.extend(self.cdi);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use plugins::device::v1beta1::{CdiDevice, DeviceSpec, Mount};

    use super::*;

    #[test]
    fn answers_are_put_together_and_the_pod_outranks_them() {
        let answer = |host: &str| {
            ContainerAllocateResponse {
                envs: HashMap::from([("VISIBLE".to_owned(), host.to_owned())]),
                annotations: HashMap::from([("a".to_owned(), host.to_owned())]),
                mounts: vec![Mount {
                    container_path: "/lib".into(),
                    host_path: host.into(),
                    read_only: true,
                }],
                devices: vec![DeviceSpec {
                    container_path: "/dev/x".into(),
                    host_path: host.into(),
                    permissions: "rw".into(),
                }],
                cdi_devices: vec![CdiDevice { name: "vendor.com/class=x".into() }],
            }
            .encode_to_vec()
        };
        let answers = [answer("/one"), answer("/two")];
        let devices = ContainerDevices::from_answers(answers.iter().map(Vec::as_slice));
        let mut config = ContainerConfig {
            env: vec![("VISIBLE".to_owned(), "mine".to_owned())],
            annotations: [("a".to_owned(), "mine".to_owned())].into(),
            ..ContainerConfig::default()
        };
        devices.apply(&mut config);
        let env = |value: &str| ("VISIBLE".to_owned(), value.to_owned());
        assert_eq!(config.env, [env("/one"), env("mine")], "the last one counts");
        assert_eq!(config.annotations["a"], "mine");
        assert_eq!((config.mounts.len(), config.mounts[0].host_path.as_str()), (1, "/one"));
        assert_eq!((config.devices.len(), config.devices[0].host_path.as_str()), (1, "/one"));
        assert_eq!(config.cdi_devices, ["vendor.com/class=x"]);
    }
}
