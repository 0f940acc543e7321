//! User namespaces of Pods: which ids they map.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use cri::v1::{self, NamespaceMode};
use runtime_core::userns::{Mapping, Range};
use tonic::Status;

/// In a sandbox's directory.
pub(crate) const NAME: &str = "user";

/// What the CRI asks for. None where a Pod is to live with the users of the machine.
pub(crate) fn mapping(options: &v1::NamespaceOption) -> Result<Option<Mapping>, Status> {
    let Some(users) = &options.userns_options else { return Ok(None) };
    let ranges = |all: &[v1::IdMapping]| {
        let range = |one: &v1::IdMapping| Range {
            inside: one.container_id,
            outside: one.host_id,
            length: one.length,
        };
        all.iter().map(range).collect::<Vec<_>>()
    };
    match users.mode() {
        NamespaceMode::Node => Ok(None),
        NamespaceMode::Pod => {
            let mapping = Mapping::new(&ranges(&users.uids), &ranges(&users.gids));
            mapping.map(Some).map_err(|error| invalid(format!("userns_options: {error}")))
        }
        other => Err(invalid(format!(
            "userns_options: mode {} is not supported for user namespaces",
            other.as_str_name()
        ))),
    }
}

/// A mount of a container may be mapped as its Pod is, not otherwise.
pub(crate) fn is_mapped(own: Option<Mapping>, mount: &v1::Mount) -> Result<bool, Status> {
    if mount.uid_mappings.is_empty() && mount.gid_mappings.is_empty() {
        return Ok(false);
    }
    let options = v1::NamespaceOption {
        userns_options: Some(v1::UserNamespace {
            mode: NamespaceMode::Pod.into(),
            uids: mount.uid_mappings.clone(),
            gids: mount.gid_mappings.clone(),
        }),
        ..Default::default()
    };
    let path = &mount.container_path;
    let asked = mapping(&options).map_err(|e| invalid(format!("mount {path}: {}", e.message())))?;
    match asked == own {
        true => Ok(true),
        false => Err(invalid(format!("mount {path}: its id mappings are not those of the Pod"))),
    }
}

/// Tells the kernel who is who in the namespace that this process was born in.
pub(crate) fn write(pid: i32, mapping: Mapping) -> io::Result<()> {
    fs::write(format!("/proc/{pid}/uid_map"), mapping.line())?;
    fs::write(format!("/proc/{pid}/gid_map"), mapping.line())
}

/// Of the Pod whose directory it is.
pub(crate) fn open(dir: &Path) -> io::Result<OwnedFd> {
    File::open(dir.join(NAME)).map(Into::into)
}

fn invalid(what: String) -> Status {
    Status::invalid_argument(what)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn asked(mode: NamespaceMode, host: u32) -> v1::NamespaceOption {
        let ids = vec![v1::IdMapping { container_id: 0, host_id: host, length: 65_536 }];
        let users = v1::UserNamespace { mode: mode.into(), uids: ids.clone(), gids: ids };
        v1::NamespaceOption { userns_options: Some(users), ..Default::default() }
    }

    #[test]
    fn a_pod_has_users_of_its_own_or_the_machines_and_nothing_between() {
        assert_eq!(mapping(&v1::NamespaceOption::default()).unwrap(), None);
        assert_eq!(mapping(&asked(NamespaceMode::Node, 1)).unwrap(), None);
        let own = mapping(&asked(NamespaceMode::Pod, 65_536)).unwrap();
        assert_eq!(own, Some(Mapping { host: 65_536, length: 65_536 }));
        for mode in [NamespaceMode::Container, NamespaceMode::Target] {
            let error = mapping(&asked(mode, 65_536)).unwrap_err();
            assert!(error.message().contains(mode.as_str_name()), "{error}");
        }
    }
}
