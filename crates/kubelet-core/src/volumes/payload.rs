//! The files that the kubelet writes into a volume: of which kind, for whom, with which rights.

use k8s_openapi::api::core::v1::{Container, Pod, Volume};

use super::empty_dir::memory_size;
use super::{Context, File, Payload, Source, atomic, nested};

pub(super) const DEFAULT_MODE: i32 = 0o644;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilesKind {
    ConfigMap,
    DownwardApi,
    Projected,
    Secret,
}

pub(super) fn files(
    context: &Context<'_>,
    volume: &Volume,
    kind: FilesKind,
    payload: Payload,
) -> Result<Source, String> {
    atomic::validate(&payload)?;
    let nested = nested::nested(context.pod, &volume.name)?;
    Ok(Source::Files { kind, payload, size: memory_size(context.pod, context.node, None), nested })
}

/// A file for the Pod's one user or group alone, where there is one.
pub(super) fn private_file(pod: &Pod, data: Vec<u8>, mode: i32) -> File {
    let user = only_user(pod);
    let security = pod.spec.as_ref().and_then(|s| s.security_context.as_ref());
    let private = user.is_some() || security.is_some_and(|s| s.fs_group.is_some());
    File { data, mode: if private { 0o600 } else { permissions(mode) }, uid: user.unwrap_or(0) }
}

pub(super) fn permissions(mode: i32) -> u32 {
    u32::try_from(mode).unwrap_or(0) & 0o777
}

/// The user all containers run as, if the Pod says so for every one of them.
fn only_user(pod: &Pod) -> Option<u32> {
    let spec = pod.spec.as_ref()?;
    let of_pod = spec.security_context.as_ref().and_then(|s| s.run_as_user);
    let user = |c: &Container| c.security_context.as_ref().and_then(|s| s.run_as_user).or(of_pod);
    let own = spec.init_containers.iter().flatten().chain(&spec.containers).map(user);
    // One that joins to look around shares the files too.
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let of_ephemeral = ephemeral.map(|c| c.security_context.as_ref().and_then(|s| s.run_as_user).or(of_pod));
    let mut users = own.chain(of_ephemeral);
    let first = users.next()??;
    users.all(|u| u == Some(first)).then(|| u32::try_from(first).ok())?
}
