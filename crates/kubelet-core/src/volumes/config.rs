//! configMap, secret, and what a projected volume takes from the API server.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{KeyToPath, Pod, ServiceAccountTokenProjection, Volume};

use super::payload::{DEFAULT_MODE, FilesKind, files, permissions, private_file};
use super::{Context, File, Payload, Source, atomic};
use crate::references::TokenWant;

pub(super) fn read_config_map(context: &Context<'_>, volume: &Volume) -> Option<Result<Source, String>> {
    let source = volume.config_map.as_ref()?;
    let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
    let mut payload = Payload::new();
    let added =
        add_config_map(context, &source.name, source.optional, source.items.as_deref(), mode, &mut payload);
    Some(added.and_then(|()| files(context, volume, FilesKind::ConfigMap, payload)))
}

pub(super) fn read_secret(context: &Context<'_>, volume: &Volume) -> Option<Result<Source, String>> {
    let source = volume.secret.as_ref()?;
    let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
    let name = source.secret_name.as_deref().unwrap_or_default();
    let mut payload = Payload::new();
    let added = add_secret(context, name, source.optional, source.items.as_deref(), mode, &mut payload);
    Some(added.and_then(|()| files(context, volume, FilesKind::Secret, payload)))
}

pub(super) fn add_config_map(
    context: &Context<'_>,
    name: &str,
    optional: Option<bool>,
    items: Option<&[KeyToPath]>,
    mode: i32,
    payload: &mut Payload,
) -> Result<(), String> {
    let Some(map) = context.references.config_map(namespace(context.pod), name, optional)? else {
        return Ok(());
    };
    let text = map.data.iter().flatten().map(|(k, v)| (k.as_str(), v.as_bytes()));
    let binary = map.binary_data.iter().flatten().map(|(k, v)| (k.as_str(), v.0.as_slice()));
    add_keys(&binary.chain(text).collect(), items, mode, optional, payload)
        .map_err(|key| format!("configmap references non-existent config key: {key}"))
}

pub(super) fn add_secret(
    context: &Context<'_>,
    name: &str,
    optional: Option<bool>,
    items: Option<&[KeyToPath]>,
    mode: i32,
    payload: &mut Payload,
) -> Result<(), String> {
    let Some(secret) = context.references.secret(namespace(context.pod), name, optional)? else {
        return Ok(());
    };
    let data = secret.data.iter().flatten().map(|(k, v)| (k.as_str(), v.0.as_slice()));
    add_keys(&data.collect(), items, mode, optional, payload)
        .map_err(|key| format!("references non-existent secret key: {key}"))
}

/// A token is nobody's business but the Pod's: where one user or group can be named, only they may read it.
pub(super) fn add_token(
    context: &Context<'_>,
    source: &ServiceAccountTokenProjection,
    mode: i32,
    payload: &mut Payload,
) -> Result<(), String> {
    let token = context.references.token(&TokenWant::of(source))?;
    let file = private_file(context.pod, token.as_bytes().to_vec(), mode);
    payload.insert(atomic::clean(&source.path), file);
    Ok(())
}

/// All keys, or those that are named; the first that is named and missing is the error.
fn add_keys(
    data: &BTreeMap<&str, &[u8]>,
    items: Option<&[KeyToPath]>,
    mode: i32,
    optional: Option<bool>,
    payload: &mut Payload,
) -> Result<(), String> {
    let file = |data: &[u8], mode: i32| File { data: data.to_vec(), mode: permissions(mode), uid: 0 };
    let items = items.unwrap_or_default();
    if items.is_empty() {
        payload.extend(data.iter().map(|(key, data)| ((*key).to_owned(), file(data, mode))));
    }
    for item in items {
        match data.get(item.key.as_str()) {
            Some(data) => {
                payload.insert(atomic::clean(&item.path), file(data, item.mode.unwrap_or(mode)));
            }
            None if optional == Some(true) => {}
            None => return Err(item.key.clone()),
        }
    }
    Ok(())
}

fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}
