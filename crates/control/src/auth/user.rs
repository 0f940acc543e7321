//! Somebody who asks.

use std::collections::BTreeMap;

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

/// A user as authentication found it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

const SERVICE_ACCOUNT_PREFIX: &str = "system:serviceaccount:";
const NODE_PREFIX: &str = "system:node:";

/// `system:serviceaccount:<namespace>:<name>`
#[must_use]
pub fn service_account_name(namespace: &str, name: &str) -> String {
    format!("{SERVICE_ACCOUNT_PREFIX}{namespace}:{name}")
}

// === impl User ===

impl User {
    #[must_use]
    pub fn new(name: &str, groups: &[&str]) -> User {
        User {
            name: name.to_owned(),
            groups: groups.iter().map(|g| (*g).to_owned()).collect(),
            ..User::default()
        }
    }

    #[must_use]
    pub fn anonymous() -> User {
        User::new("system:anonymous", &[groups::UNAUTHENTICATED])
    }

    /// A service account, with the groups every one of them has.
    #[must_use]
    pub fn service_account(namespace: &str, name: &str, uid: &str) -> User {
        let mut user = User::new(&service_account_name(namespace, name), &[groups::SERVICE_ACCOUNTS]);
        user.groups.push(format!("{}:{namespace}", groups::SERVICE_ACCOUNTS));
        uid.clone_into(&mut user.uid);
        user
    }

    #[must_use]
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
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

    /// The user as the review kinds show it (`authentication.k8s.io/v1 UserInfo`).
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

    /// Adds the group of everybody who proved who they are.
    #[must_use]
    pub(super) fn authenticated(mut self) -> User {
        if !self.is_in(groups::AUTHENTICATED) && !self.is_in(groups::UNAUTHENTICATED) {
            self.groups.push(groups::AUTHENTICATED.to_owned());
        }
        self
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
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
