//! What queues hold.

use std::fmt;
use std::sync::Arc;

use crate::object::Object;

/// What a queue holds: an object by its name, so that a later one of that name is found too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Empty for objects of the cluster.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

// === impl Key ===

impl Key {
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Key {
        Key { namespace: namespace.into(), name: name.into() }
    }

    #[must_use]
    pub fn of(object: &Object) -> Key {
        Key { namespace: object.meta.namespace.clone(), name: (*object.meta.name).into() }
    }

    /// The one key of a controller that looks at everything at once.
    #[must_use]
    pub fn all() -> Key {
        Key::new("", "")
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            return f.write_str(&self.name);
        }
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
