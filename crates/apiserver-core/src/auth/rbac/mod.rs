//! Role-based access control: roles say what may be done, bindings say by whom.

mod index;
pub mod policy;
mod rule;

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use serde_json::Value;

pub use index::{Index, NoRole, RbacKind, RoleRef, Source, Subject, is_master};
pub use rule::{Rule, describe, missing, quoted};

use super::verdict::Verdict;
use crate::request::{Attributes, User};

/// The roles and bindings of the cluster, kept up to date by a watch.
#[derive(Debug, Default)]
pub struct Rbac(RwLock<Index>);

// === impl Rbac ===

impl Rbac {
    pub fn put(&self, kind: RbacKind, object: &Value) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).put(kind, object);
    }

    pub fn remove(&self, kind: RbacKind, namespace: &str, name: &str) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(kind, namespace, name);
    }

    /// Forgets everything: the watch starts anew.
    pub fn replace(&self, index: Index) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = index;
    }

    #[must_use]
    pub fn authorize(&self, attributes: &Attributes) -> Verdict {
        let index = self.read();
        let namespace = attributes.resource.as_ref().map_or("", |r| &r.namespace);
        let mut allowed = None;
        let mut gone = Vec::new();
        index.visit(&attributes.user, namespace, |seen| match seen {
            Ok((source, rule)) if rule.allows(attributes) => {
                allowed = Some(format!("RBAC: allowed by {source}"));
                false
            }
            Ok(_) => true,
            Err(no_role) => {
                gone.push(no_role.to_string());
                true
            }
        });
        match allowed {
            Some(reason) => Verdict::allow(reason),
            None => Verdict::no_opinion(aggregate_errors("RBAC: ", gone)),
        }
    }

    /// All rules of a user in a namespace, and what could not be found out.
    #[must_use]
    pub fn rules_for(&self, user: &User, namespace: &str) -> (Vec<Rule>, Vec<NoRole>) {
        let (mut rules, mut gone) = (Vec::new(), Vec::new());
        self.read().visit(user, namespace, |seen| {
            match seen {
                Ok((_, rule)) => rules.push(rule.clone()),
                Err(no_role) => gone.push(no_role),
            }
            true
        });
        (rules, gone)
    }

    /// The rules of the role a binding in this namespace would point to.
    pub fn rules_of(&self, role: &RoleRef, namespace: &str) -> Result<Vec<Rule>, NoRole> {
        self.read().rules(role, namespace).map(|rules| rules.to_vec())
    }

    fn read(&self) -> RwLockReadGuard<'_, Index> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Several errors in one text, as Go joins them.
pub(super) fn aggregate_errors(prefix: &str, mut errors: Vec<String>) -> String {
    let mut seen = std::collections::BTreeSet::new();
    errors.retain(|e| seen.insert(e.clone()));
    match errors.as_slice() {
        [] => String::new(),
        [one] => format!("{prefix}{one}"),
        many => format!("{prefix}[{}]", many.join(", ")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::request::{Resource, groups};
    use serde_json::json;
    use std::sync::Arc;

    fn ask(user: &User, verb: &str, resource: &str, namespace: &str) -> Attributes {
        Attributes {
            user: Arc::new(user.clone()),
            verb: verb.to_owned().into(),
            resource: Some(Resource {
                plural: resource.into(),
                namespace: namespace.into(),
                ..Resource::default()
            }),
            ..Attributes::default()
        }
    }

    fn with_defaults() -> Rbac {
        let rbac = Rbac::default();
        policy::defaults().iter().for_each(|(kind, object)| rbac.put(*kind, object));
        rbac
    }

    #[test]
    fn bindings_reach_users_groups_and_accounts_where_they_apply() {
        let rbac = with_defaults();
        rbac.put(
            RbacKind::RoleBinding,
            &json!({"metadata": {"name": "viewers", "namespace": "web"},
            "roleRef": {"kind": "ClusterRole", "name": "view"},
            "subjects": [{"kind": "User", "name": "jane"}, {"kind": "Group", "name": "qa"},
                {"kind": "ServiceAccount", "name": "bot"}, {"kind": "ServiceAccount", "name": "bot", "namespace": "ci"}]}),
        );
        let jane = User::new("jane", &[]);
        let cases = [
            (&jane, "list", "pods", "web", true),
            (&jane, "list", "pods", "other", false),
            (&jane, "list", "pods", "", false),
            (&jane, "delete", "pods", "web", false),
            (&jane, "get", "secrets", "web", false),
            (&User::new("x", &["qa"]), "get", "services", "web", true),
            (&User::service_account("web", "bot", ""), "get", "pods", "web", true),
            (&User::service_account("ci", "bot", ""), "get", "pods", "web", true),
            (&User::service_account("web", "bot2", ""), "get", "pods", "web", false),
            (&User::service_account("we", "b:bot", ""), "get", "pods", "web", false),
            (&User::new("root", &[groups::MASTERS]), "delete", "nodes", "", true),
        ];
        for (user, verb, resource, namespace, allowed) in cases {
            let verdict = rbac.authorize(&ask(user, verb, resource, namespace));
            assert_eq!(verdict.is_allowed(), allowed, "{user:?} {verb} {resource} in {namespace}");
        }
        let verdict = rbac.authorize(&ask(&jane, "list", "pods", "web"));
        assert_eq!(
            verdict.reason,
            "RBAC: allowed by RoleBinding \"viewers/web\" of ClusterRole \"view\" to User \"jane\""
        );
        rbac.remove(RbacKind::RoleBinding, "web", "viewers");
        assert!(!rbac.authorize(&ask(&jane, "list", "pods", "web")).is_allowed());
    }

    #[test]
    fn a_binding_to_nothing_is_named_in_the_reason() {
        let rbac = Rbac::default();
        for (name, kind, role) in [("a", "Role", "gone"), ("b", "ClusterRole", "lost")] {
            rbac.put(
                RbacKind::RoleBinding,
                &json!({"metadata": {"name": name, "namespace": "web"}, "roleRef": {"kind": kind, "name": role},
                    "subjects": [{"kind": "User", "name": "jane"}]}),
            );
        }
        let verdict = rbac.authorize(&ask(&User::new("jane", &[]), "list", "pods", "web"));
        assert_eq!(
            verdict.reason,
            "RBAC: [role.rbac.authorization.k8s.io \"gone\" not found, \
             clusterrole.rbac.authorization.k8s.io \"lost\" not found]"
        );
    }
}
