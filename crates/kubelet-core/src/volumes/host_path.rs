//! hostPath: a file or directory of the node itself.

use k8s_openapi::api::core::v1::Volume;

use super::{Context, Source};

/// What must be there, or is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostPathKind {
    /// Nothing is checked.
    Unset,
    DirectoryOrCreate,
    Directory,
    FileOrCreate,
    File,
    Socket,
    CharDevice,
    BlockDevice,
}

pub(super) fn read(_: &Context<'_>, volume: &Volume) -> Option<Result<Source, String>> {
    let host = volume.host_path.as_ref()?;
    let path = host.path.clone();
    if path.is_empty() || path.contains('\0') {
        return Some(Err("hostPath needs a path".into()));
    }
    if path.split('/').any(|part| part == "..") {
        return Some(Err(format!("invalid HostPath `{path}`: must not contain '..'")));
    }
    let kind = match host.type_.as_deref().unwrap_or_default() {
        "" => HostPathKind::Unset,
        "DirectoryOrCreate" => HostPathKind::DirectoryOrCreate,
        "Directory" => HostPathKind::Directory,
        "FileOrCreate" => HostPathKind::FileOrCreate,
        "File" => HostPathKind::File,
        "Socket" => HostPathKind::Socket,
        "CharDevice" => HostPathKind::CharDevice,
        "BlockDevice" => HostPathKind::BlockDevice,
        other => return Some(Err(format!("{other} is an invalid volume type"))),
    };
    Some(Ok(Source::HostPath { path, kind }))
}
