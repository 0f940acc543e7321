//! Who asks for what: the words in which authentication, authorization, admission and audit speak of a request.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Somebody who was recognised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

/// What somebody wants to do, and to what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    pub user: Arc<User>,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`; for a path that is no
    /// resource the HTTP method in lower case; a review may ask for any word (`approve`, `bind`, …).
    pub verb: Cow<'static, str>,
    /// The path as it was sent, without the query.
    pub path: String,
    /// None for a path that is no resource.
    pub resource: Option<Resource>,
}

/// The resource a request names. What it does not name is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resource {
    pub group: String,
    pub version: String,
    /// `pods`
    pub plural: String,
    /// `status`, `log`, …
    pub subresource: String,
    pub namespace: String,
    pub name: String,
}

// === impl User ===

impl User {
    pub const ANONYMOUS: &'static str = "system:anonymous";

    /// Nobody in particular.
    #[must_use]
    pub fn anonymous() -> User {
        User {
            name: User::ANONYMOUS.to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
            ..User::default()
        }
    }

    /// The server itself: its controllers act in this name.
    #[must_use]
    pub fn server() -> User {
        User {
            name: "system:apiserver".to_owned(),
            groups: vec!["system:masters".to_owned(), "system:authenticated".to_owned()],
            ..User::default()
        }
    }

    #[must_use]
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }
}

// === impl Resource ===

impl Resource {
    /// `pods`, `pods/log`: how roles write it.
    #[must_use]
    pub fn with_subresource(&self) -> Cow<'_, str> {
        if self.subresource.is_empty() {
            Cow::Borrowed(&self.plural)
        } else {
            Cow::Owned(format!("{}/{}", self.plural, self.subresource))
        }
    }
}
