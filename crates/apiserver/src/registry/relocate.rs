//! Objects of custom kinds in stores of earlier releases: there they lay among those of the server's own kinds.

use serde_json::Value;

use super::{Registry, from_entry};
use crate::store_errors;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::custom;
use apiserver_core::kind::Kind;
use apiserver_core::kinds::custom_resource_definition as definition;
use apiserver_core::meta;
use store::{Entry, Expect, ListOptions, Write};

/// Objects moved in one transaction.
const AT_ONCE: usize = 100;

/// Moves the objects of a definition to their own place. Where a kind of the server has the same name, objects of that
/// kind stay: they cannot be told from those the definition's authors may have made, and are not lost.
pub(crate) async fn relocate(registry: &Registry, object: &Value) -> Result<(), ApiStatus> {
    let Some(kind) = custom::stored_kind(object) else { return Ok(()) };
    let from = format!("{}{}/", Kind::ROOTS[0], kind.storage);
    let catalog = registry.catalog();
    let own: Vec<(String, &str)> = catalog
        .kinds()
        .filter(|k| !k.is_custom() && k.storage == kind.storage)
        .map(|k| (k.api_version(), &*k.kind))
        .collect();
    let (mut moved, mut kept, mut after) = (0, 0, None);
    loop {
        let options =
            ListOptions { prefix: from.as_str().into(), after, limit: AT_ONCE, ..ListOptions::default() };
        let page = registry.store().list(options).await.map_err(|e| store_errors::of_read(&e))?;
        let mut writes = Vec::new();
        after = page.entries.last().map(|entry| entry.key.clone());
        for entry in page.entries {
            let value = from_entry(entry.clone()).to_value();
            if own.iter().any(|(version, kind)| value["apiVersion"] == **version && value["kind"] == *kind) {
                kept += 1;
                continue;
            }
            moved += 1;
            let rest = entry.key.strip_prefix(&from).unwrap_or_default();
            let to = format!("{}{rest}", kind.place());
            writes.extend(step(registry, &to, entry).await?);
        }
        if !writes.is_empty() {
            registry.store().transact(writes).await.map_err(|e| store_errors::of_write(&e))?;
        }
        if !page.more {
            break;
        }
    }
    let name = meta::name(object);
    if moved > 0 {
        tracing::info!(definition = name, objects = moved, "objects moved to their own place");
    }
    if kept > 0 && definition::is_established(object) {
        tracing::error!(
            definition = name,
            objects = kept,
            "a definition had the name of one of the server's own kinds: whoever made it may have made some of \
             that kind's objects, look at them"
        );
    }
    Ok(())
}

/// The writes that move one object.
async fn step(registry: &Registry, to: &str, entry: Entry) -> Result<Vec<Write>, ApiStatus> {
    let there = registry.store().get(to).await.map_err(|e| store_errors::of_read(&e))?;
    let expect = there.as_ref().map_or(Expect::Absent, |there| Expect::Rev(there.rev));
    let mut writes = vec![Write::delete(&entry.key, Expect::Rev(entry.rev))];
    // Both are there when an earlier release was started in between: the later write counts.
    if there.is_none_or(|there| there.rev < entry.rev) {
        writes.push(Write::put(to, entry.value, expect));
    }
    Ok(writes)
}
