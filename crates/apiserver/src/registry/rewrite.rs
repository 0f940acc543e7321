//! Changes the server itself makes to objects: compare and swap, without the ceremony of a request.

use serde_json::Value;

use super::{Registry, from_entry};
use crate::store_errors;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::deletion::is_over;
use apiserver_core::kind::Kind;
use apiserver_core::selection::{self, present};
use store::{Expect, WriteError};

/// How often somebody else may be quicker.
const TRIES: usize = 16;

impl Registry {
    /// Changes an object in place; `change` says whether there is anything to write. None when the object is gone:
    /// a change that takes away the last thing that held a deleted object ends it, as every other write does.
    pub async fn rewrite(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        mut change: impl FnMut(&mut Value) -> Result<bool, ApiStatus>,
    ) -> Result<Option<Value>, ApiStatus> {
        for _ in 0..TRIES {
            let Some(document) = self.find(kind, namespace, name).await? else { return Ok(None) };
            let mut object = present(kind, &document);
            if !change(&mut object)? {
                return Ok(Some(object));
            }
            let written = if is_over(kind, &object) {
                self.end(kind, &document, &object).await.map(|()| None)
            } else {
                let put = self.write_version(kind, &document, &object).await;
                put.map(|entry| Some(present(kind, &from_entry(entry))))
            };
            match written {
                Ok(left) => return Ok(left),
                Err(WriteError::Conflict { .. }) => {}
                Err(error) => return Err(store_errors::of_write(&error)),
            }
        }
        Err(ApiStatus::modified(kind, name))
    }

    /// Removes an object for good, if it is still the one with this uid. Says whether it was there.
    pub async fn remove(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        rev: u64,
    ) -> Result<bool, ApiStatus> {
        let key = selection::key(kind, namespace, name);
        match self.store().delete(&key, Expect::Rev(rev)).await {
            Ok(_) => Ok(true),
            Err(WriteError::Conflict { .. }) => Ok(false),
            Err(error) => Err(store_errors::of_write(&error)),
        }
    }
}
