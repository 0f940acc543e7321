//! Who asks for what: the words in which authentication, authorization, admission and audit speak of a request.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use api::selector::{FieldSelector, LabelSelector};
use serde_json::{Value, json};

/// Groups the server itself knows.
pub mod groups {
    pub const AUTHENTICATED: &str = "system:authenticated";
    pub const UNAUTHENTICATED: &str = "system:unauthenticated";
    pub const MASTERS: &str = "system:masters";
    pub const NODES: &str = "system:nodes";
    pub const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
    pub const BOOTSTRAPPERS: &str = "system:bootstrappers";
}

const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";
/// What stands before the name of a node in that of its user.
pub const NODE_PREFIX: &str = "system:node:";

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
    /// What a list or watch asks for, where it says so: a node may see the Pods on it, and no others.
    pub field_selector: FieldSelector,
    pub label_selector: LabelSelector,
}

// === impl User ===

impl User {
    pub const ANONYMOUS: &'static str = "system:anonymous";
    /// Who the server is to kubelets.
    pub const KUBELET_CLIENT: &'static str = "kube-apiserver-kubelet-client";

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
    pub fn new(name: &str, groups: &[&str]) -> User {
        let groups = groups.iter().map(|g| (*g).to_owned()).collect();
        User { name: name.to_owned(), groups, ..User::default() }
    }

    /// A service account, with the groups every one of them has.
    #[must_use]
    pub fn service_account(namespace: &str, name: &str, uid: &str) -> User {
        let own = format!("{}:{namespace}", groups::SERVICE_ACCOUNTS);
        let mut user =
            User::new(&User::service_account_name(namespace, name), &[groups::SERVICE_ACCOUNTS, &own]);
        uid.clone_into(&mut user.uid);
        user
    }

    /// `system:serviceaccount:<namespace>:<name>`
    #[must_use]
    pub fn service_account_name(namespace: &str, name: &str) -> String {
        format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}")
    }

    /// Adds the group of everybody who proved who they are.
    #[must_use]
    pub fn authenticated(mut self) -> User {
        if !self.is_in(groups::AUTHENTICATED) && !self.is_in(groups::UNAUTHENTICATED) {
            self.groups.push(groups::AUTHENTICATED.to_owned());
        }
        self
    }

    /// The node this user is, if it is one that can be named.
    #[must_use]
    pub fn node_name(&self) -> Option<&str> {
        let name = self.name.strip_prefix(NODE_PREFIX)?;
        (self.is_in(groups::NODES) && !name.is_empty()).then_some(name)
    }

    /// Namespace and name of the service account this user is.
    #[must_use]
    pub fn as_service_account(&self) -> Option<(&str, &str)> {
        let (namespace, name) = self.name.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.split_once(':')?;
        let named = api::names::dns_label(namespace).is_empty() && api::names::dns_subdomain(name).is_empty();
        named.then_some((namespace, name))
    }

    /// The user as the review kinds show it (`UserInfo` of authentication.k8s.io/v1).
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut out = json!({"username": self.name});
        if !self.uid.is_empty() {
            out["uid"] = self.uid.as_str().into();
        }
        if !self.groups.is_empty() {
            out["groups"] = json!(self.groups);
        }
        if !self.extra.is_empty() {
            out["extra"] = json!(self.extra);
        }
        out
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_and_service_accounts_are_read_from_names() {
        assert_eq!(User::new("system:node:n1", &[groups::NODES]).node_name(), Some("n1"));
        assert_eq!(User::new("system:node:n1", &[]).node_name(), None);
        assert_eq!(User::new("system:node:", &[groups::NODES]).node_name(), None);
        let sa = User::service_account("ns", "bot", "1");
        assert_eq!(sa.as_service_account(), Some(("ns", "bot")));
        assert_eq!(sa.groups, ["system:serviceaccounts", "system:serviceaccounts:ns"]);
        assert_eq!(User::new("system:serviceaccount:a:b:c", &[]).as_service_account(), None);
    }
}
