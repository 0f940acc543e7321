//! Objects that could not be read, or not all of them: who is told, and what was said of them before.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::Resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Remembered, so that an object that changes often is not told of each time.
const REMEMBERED: usize = 1024;

/// An object that was not read, or not all of it.
#[derive(Clone, Copy, Debug)]
pub struct Unreadable<'a> {
    pub api_version: &'static str,
    pub kind: &'static str,
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
    pub resource_version: &'a str,
    /// Never its content: it may be a Secret's.
    pub why: &'a str,
    /// The same was not said of it before.
    pub is_news: bool,
}

/// Is told of every object that could not be read.
#[derive(Clone)]
pub struct UnreadableHandler(Arc<dyn Fn(&Unreadable<'_>) + Send + Sync>);

/// Objects that were told of already.
#[derive(Debug, Default)]
pub(crate) struct UnreadableLog {
    handler: Option<UnreadableHandler>,
    /// By UID and reason.
    told: Mutex<BTreeSet<(String, String)>>,
}

// === impl UnreadableLog ===

impl UnreadableLog {
    pub(crate) fn new(handler: Option<UnreadableHandler>) -> Self {
        Self { handler, ..Self::default() }
    }

    pub(crate) fn add<T: Resource>(&self, meta: &ObjectMeta, why: &str) {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let (namespace, name, uid) = (text(&meta.namespace), text(&meta.name), text(&meta.uid));
        let is_news = self.is_news(&uid, why);
        if is_news {
            tracing::warn!(kind = T::KIND, namespace, name, uid, why, "an object is not understood");
        }
        let Some(handler) = &self.handler else { return };
        handler.call(&Unreadable {
            api_version: T::API_VERSION,
            kind: T::KIND,
            namespace: &namespace,
            name: &name,
            uid: &uid,
            resource_version: &text(&meta.resource_version),
            why,
            is_news,
        });
    }

    fn is_news(&self, uid: &str, why: &str) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= REMEMBERED {
            told.clear();
        }
        told.insert((uid.to_owned(), why.to_owned()))
    }
}

// === impl UnreadableHandler ===

impl UnreadableHandler {
    pub fn new(handler: impl Fn(&Unreadable<'_>) + Send + Sync + 'static) -> UnreadableHandler {
        UnreadableHandler(Arc::new(handler))
    }

    pub fn call(&self, unreadable: &Unreadable<'_>) {
        (self.0)(unreadable);
    }
}

impl std::fmt::Debug for UnreadableHandler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UnreadableHandler")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_bounded() {
        let log = UnreadableLog::default();
        for n in 0..REMEMBERED * 3 {
            assert!(log.is_news(&n.to_string(), "why"));
        }
        assert!(log.told.lock().unwrap().len() <= REMEMBERED);
    }
}
