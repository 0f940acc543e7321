//! hostPath: a file or directory of the node itself.

use k8s_openapi::api::core::v1::{HostPathVolumeSource, Volume};

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
    Some(source(volume.host_path.as_ref()?))
}

pub(super) fn source(host: &HostPathVolumeSource) -> Result<Source, String> {
    let path = host.path.clone();
    if path.is_empty() || path.contains('\0') {
        return Err("hostPath needs a path".into());
    }
    if path.split('/').any(|part| part == "..") {
        return Err(format!("invalid HostPath `{path}`: must not contain '..'"));
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
        other => return Err(format!("{other} is an invalid volume type")),
    };
    Ok(Source::HostPath { path, kind })
}
