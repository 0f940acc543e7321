//! downwardAPI and projected: small files the kubelet writes and keeps current. What comes from the API server is in
//! [`super::config`].

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, Volume, VolumeProjection};

use super::payload::{DEFAULT_MODE, FilesKind, files, permissions};
use super::{Context, File, Payload, Source, atomic, config, trust_bundle};
use crate::downward;

/// What files the kubelet writes into the volume, if it writes any.
pub(super) fn kind(volume: &Volume) -> Option<FilesKind> {
    let kinds = [
        (volume.config_map.is_some(), FilesKind::ConfigMap),
        (volume.secret.is_some(), FilesKind::Secret),
        (volume.projected.is_some(), FilesKind::Projected),
        (volume.downward_api.is_some(), FilesKind::DownwardApi),
    ];
    kinds.into_iter().find(|(is_it, _)| *is_it).map(|(_, kind)| kind)
}

pub(super) fn read_downward(context: &Context<'_>, volume: &Volume) -> Option<Result<Source, String>> {
    let source = volume.downward_api.as_ref()?;
    let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
    let mut payload = Payload::new();
    let collected = collect(context, source.items.iter().flatten(), mode, &mut payload);
    Some(collected.and_then(|()| files(context, volume, FilesKind::DownwardApi, payload)))
}

/// Every source is read before anything is refused, so that the user learns of all that is missing at once.
pub(super) fn read_projected(context: &Context<'_>, volume: &Volume) -> Option<Result<Source, String>> {
    let projected = volume.projected.as_ref()?;
    let mode = projected.default_mode.unwrap_or(DEFAULT_MODE);
    let mut payload = Payload::new();
    let sources = projected.sources.iter().flatten();
    let mut wrong: Vec<String> =
        sources.filter_map(|source| project(context, source, mode, &mut payload).err()).collect();
    let all = match wrong.len() {
        0 => files(context, volume, FilesKind::Projected, payload),
        1 => Err(wrong.remove(0)),
        _ => Err(format!("[{}]", wrong.join(", "))),
    };
    Some(all)
}

fn project(
    context: &Context<'_>,
    source: &VolumeProjection,
    mode: i32,
    payload: &mut Payload,
) -> Result<(), String> {
    if let Some(downward) = &source.downward_api {
        return collect(context, downward.items.iter().flatten(), mode, payload);
    }
    if !context.references.has_server {
        let name = projection_name(source);
        return Err(format!("projected source {name} needs an API server, and this node has none"));
    }
    if let Some(map) = &source.config_map {
        config::add_config_map(context, &map.name, map.optional, map.items.as_deref(), mode, payload)
    } else if let Some(secret) = &source.secret {
        config::add_secret(context, &secret.name, secret.optional, secret.items.as_deref(), mode, payload)
    } else if let Some(token) = &source.service_account_token {
        config::add_token(context, token, mode, payload)
    } else if let Some(bundle) = &source.cluster_trust_bundle {
        trust_bundle::add(context, bundle, mode, payload)
    } else {
        Err(format!("projected source {} is not supported on this node", projection_name(source)))
    }
}

fn collect<'a>(
    context: &Context<'_>,
    items: impl Iterator<Item = &'a DownwardAPIVolumeFile>,
    default_mode: i32,
    payload: &mut Payload,
) -> Result<(), String> {
    for item in items {
        let text = if let Some(field) = &item.field_ref {
            downward::field_value(context.pod, &field.field_path)
        } else if let Some(of) = &item.resource_field_ref {
            let container = of.container_name.as_deref().unwrap_or_default();
            downward::resource_value(context.pod, container, &of.resource, of.divisor.as_ref(), context.node)
        } else {
            return Err(format!("{:?} names neither a field nor a resource", item.path));
        };
        let data = text.map_err(|e| format!("{:?}: {e}", item.path))?.into_bytes();
        let mode = permissions(item.mode.unwrap_or(default_mode));
        payload.insert(atomic::clean(&item.path), File { data, mode, uid: 0 });
    }
    Ok(())
}

fn projection_name(source: &VolumeProjection) -> String {
    let json = serde_json::to_value(source).unwrap_or_default();
    json.as_object().and_then(|o| o.keys().next().cloned()).unwrap_or_else(|| "(none)".into())
}
