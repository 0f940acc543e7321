//! nfs: a directory of a file server.

use k8s_openapi::api::core::v1::{NFSVolumeSource, Volume};

use super::{Context, Source};

pub(super) fn read(_: &Context<'_>, volume: &Volume) -> Option<Result<Source, String>> {
    volume.nfs.as_ref().map(|nfs| source(nfs, &[]))
}

/// `options` are the mount options of a PersistentVolume.
pub(super) fn source(nfs: &NFSVolumeSource, options: &[String]) -> Result<Source, String> {
    let server = match nfs.server.contains(':') {
        true => format!("[{}]", nfs.server.trim_matches(['[', ']'])),
        false => nfs.server.clone(),
    };
    let bad = |text: &str| text.is_empty() || text.starts_with('-') || text.contains(['\0', '\n']);
    if bad(&server) || !nfs.path.starts_with('/') || bad(&nfs.path) {
        return Err(format!("invalid NFS share {server}:{}", nfs.path));
    }
    let read_only = (nfs.read_only == Some(true)).then(|| "ro".to_owned());
    let options = read_only.into_iter().chain(options.iter().cloned()).collect();
    Ok(Source::Nfs { share: format!("{server}:{}", nfs.path), options })
}
