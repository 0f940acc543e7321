//! The cgroup of a container: made with its limits, changed, emptied, removed.

use std::time::Duration;

use runtime_core::device_filter;
use runtime_core::resources::{self, Resources, Setting};
use sys::cgroup::{Hierarchies, Version};
use tonic::Status;

use crate::daemon::{failed, invalid};

/// A killed process leaves its cgroup a moment later.
const LEAVING: Duration = Duration::from_millis(3);
const LEAVING_LOOKS: usize = 1000;

/// Makes it, with its limits. `devices` are allowed besides those that every container has; none allows all.
pub(crate) fn make(
    hierarchies: &Hierarchies,
    name: &str,
    limits: &Resources,
    devices: Option<&[String]>,
) -> Result<(), Status> {
    hierarchies.make(name).map_err(failed(format!("make cgroup {name}")))?;
    let mut all = settings(hierarchies, limits)?;
    match (hierarchies.version(), devices) {
        (_, None) => {}
        (Version::V1, Some(rules)) => all.extend(resources::devices(rules)),
        (Version::V2, Some(rules)) => filter_devices(hierarchies, name, rules)?,
    }
    write(hierarchies, name, all)
}

fn filter_devices(hierarchies: &Hierarchies, name: &str, rules: &[String]) -> Result<(), Status> {
    let program = device_filter::compile(&resources::device_rules(rules)).map_err(invalid)?;
    let attach = || {
        let dirs = hierarchies.directories(name);
        dirs.iter().try_for_each(|(_, dir)| sys::device_filter::attach(sys::fd::open_dir(dir)?, &program))
    };
    attach().map_err(failed(format!("filter the devices of cgroup {name}")))
}

pub(crate) fn update(hierarchies: &Hierarchies, name: &str, limits: &Resources) -> Result<(), Status> {
    write(hierarchies, name, settings(hierarchies, limits)?)
}

fn settings(hierarchies: &Hierarchies, limits: &Resources) -> Result<Vec<Setting>, Status> {
    let version = match hierarchies.version() {
        Version::V1 => resources::Version::V1,
        Version::V2 => resources::Version::V2,
    };
    resources::settings(limits, version).map_err(invalid)
}

/// One limit may be refused until another is written, which comes later: memory and memory with swap, quota and period.
fn write(hierarchies: &Hierarchies, name: &str, mut left: Vec<Setting>) -> Result<(), Status> {
    loop {
        let (before, mut refused, mut last) = (left.len(), Vec::new(), None);
        for setting in left {
            match hierarchies.write(name, &setting.controller, &setting.file, &setting.value) {
                Ok(true) => {}
                Ok(false) if setting.is_optional || setting.controller == "devices" => {}
                Ok(false) => {
                    return Err(failed(format!("limit cgroup {name}"))(format!(
                        "this machine has no {}",
                        setting.file
                    )));
                }
                Err(error) => {
                    last = Some(error);
                    refused.push(setting);
                }
            }
        }
        match last {
            None => return Ok(()),
            Some(error) if refused.len() == before => {
                return Err(failed(format!("limit cgroup {name}"))(error));
            }
            Some(_) => left = refused,
        }
    }
}

/// Ends whatever is in it, and takes it away.
pub(crate) fn remove(hierarchies: &Hierarchies, name: &str) -> Result<(), Status> {
    let mut refused = None;
    for look in 0..LEAVING_LOOKS {
        if !hierarchies.is_anywhere(name) {
            return Ok(());
        }
        // Removing first: mostly nobody is in it any more.
        match hierarchies.remove(name) {
            Ok(()) => return Ok(()),
            Err(error) => refused = Some(error),
        }
        if look % 50 == 0 {
            hierarchies.kill(name).map_err(failed(format!("end what is in cgroup {name}")))?;
        }
        std::thread::sleep(LEAVING);
    }
    Err(failed(format!("remove cgroup {name}"))(refused.map(|e| e.to_string()).unwrap_or_default()))
}
