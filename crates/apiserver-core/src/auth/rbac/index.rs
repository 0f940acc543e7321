//! All roles and bindings, ready to be asked.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::rule::Rule;
use crate::request::{User, groups};

/// Namespace and name.
type Place = (Box<str>, Box<str>);

/// Roles and bindings by where they apply.
#[derive(Debug, Default)]
pub struct Index {
    cluster_roles: HashMap<Box<str>, Arc<[Rule]>>,
    roles: HashMap<Place, Arc<[Rule]>>,
    cluster_bindings: BTreeMap<Box<str>, Binding>,
    bindings: HashMap<Box<str>, BTreeMap<Box<str>, Binding>>,
}

/// One of the four kinds of rbac.authorization.k8s.io.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RbacKind {
    Role,
    ClusterRole,
    RoleBinding,
    ClusterRoleBinding,
}

#[derive(Debug)]
struct Binding {
    role: RoleRef,
    subjects: Box<[Subject]>,
}

/// What a binding points to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleRef {
    pub cluster: bool,
    pub name: Box<str>,
}

/// Whom a binding is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    User(Box<str>),
    Group(Box<str>),
    ServiceAccount { namespace: Box<str>, name: Box<str> },
}

/// Where a right comes from.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Empty for a ClusterRoleBinding.
    namespace: &'a str,
    binding: &'a str,
    role: &'a RoleRef,
    subject: &'a Subject,
}

/// A binding that points to a role that is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind}.rbac.authorization.k8s.io {name:?} not found")]
pub struct NoRole {
    kind: &'static str,
    name: Box<str>,
}

// === impl Index ===

impl Index {
    /// Takes over an object that was created or changed.
    pub fn put(&mut self, kind: RbacKind, object: &Value) {
        let meta = &object["metadata"];
        let name: Box<str> = meta["name"].as_str().unwrap_or_default().into();
        let namespace: Box<str> = meta["namespace"].as_str().unwrap_or_default().into();
        match kind {
            RbacKind::ClusterRole => drop(self.cluster_roles.insert(name, Rule::all_of(object).into())),
            RbacKind::Role => drop(self.roles.insert((namespace, name), Rule::all_of(object).into())),
            RbacKind::ClusterRoleBinding => {
                self.cluster_bindings.insert(name, Binding::from_json(object, ""));
            }
            RbacKind::RoleBinding => {
                let binding = Binding::from_json(object, &namespace);
                self.bindings.entry(namespace).or_default().insert(name, binding);
            }
        }
    }

    pub fn remove(&mut self, kind: RbacKind, namespace: &str, name: &str) {
        match kind {
            RbacKind::ClusterRole => drop(self.cluster_roles.remove(name)),
            RbacKind::Role => drop(self.roles.remove(&(namespace.into(), name.into()))),
            RbacKind::ClusterRoleBinding => drop(self.cluster_bindings.remove(name)),
            RbacKind::RoleBinding => {
                if let Some(bindings) = self.bindings.get_mut(namespace) {
                    bindings.remove(name);
                    if bindings.is_empty() {
                        self.bindings.remove(namespace);
                    }
                }
            }
        }
    }

    /// Shows every rule that applies to the user in the namespace ("" for the cluster), until `see` says stop (false).
    pub fn visit<'a>(
        &'a self,
        user: &User,
        namespace: &'a str,
        mut see: impl FnMut(Result<(Source<'a>, &'a Rule), NoRole>) -> bool,
    ) {
        let wide = self.cluster_bindings.iter().map(|(name, b)| ("", name, b));
        let local = (!namespace.is_empty()).then(|| self.bindings.get(namespace)).flatten();
        let local = local.into_iter().flatten().map(|(name, b)| (namespace, name, b));
        for (at, name, binding) in wide.chain(local) {
            let Some(subject) = binding.subjects.iter().find(|s| s.is(user)) else { continue };
            let source = Source { namespace: at, binding: name, role: &binding.role, subject };
            match self.rules(&binding.role, at) {
                Ok(rules) => {
                    for rule in rules.iter() {
                        if !see(Ok((source, rule))) {
                            return;
                        }
                    }
                }
                Err(gone) => {
                    if !see(Err(gone)) {
                        return;
                    }
                }
            }
        }
    }

    /// The rules of the role a binding in this namespace points to.
    pub fn rules(&self, role: &RoleRef, namespace: &str) -> Result<&Arc<[Rule]>, NoRole> {
        if role.cluster {
            let found = self.cluster_roles.get(&role.name);
            return found.ok_or_else(|| NoRole { kind: "clusterrole", name: role.name.clone() });
        }
        let found = self.roles.get(&(namespace.into(), role.name.clone()));
        found.ok_or_else(|| NoRole { kind: "role", name: role.name.clone() })
    }
}

// === impl RbacKind ===

impl RbacKind {
    pub const ALL: [RbacKind; 4] =
        [RbacKind::Role, RbacKind::ClusterRole, RbacKind::RoleBinding, RbacKind::ClusterRoleBinding];

    #[must_use]
    pub fn plural(self) -> &'static str {
        match self {
            RbacKind::Role => "roles",
            RbacKind::ClusterRole => "clusterroles",
            RbacKind::RoleBinding => "rolebindings",
            RbacKind::ClusterRoleBinding => "clusterrolebindings",
        }
    }
}

// === impl Binding ===

impl Binding {
    fn from_json(binding: &Value, namespace: &str) -> Binding {
        let subjects = binding["subjects"].as_array().map(Vec::as_slice).unwrap_or_default();
        Binding {
            role: RoleRef::from_json(&binding["roleRef"]),
            subjects: subjects.iter().filter_map(|s| Subject::from_json(s, namespace)).collect(),
        }
    }
}

// === impl RoleRef ===

impl RoleRef {
    #[must_use]
    pub fn from_json(role: &Value) -> RoleRef {
        RoleRef {
            cluster: role["kind"] == "ClusterRole",
            name: role["name"].as_str().unwrap_or_default().into(),
        }
    }
}

// === impl Subject ===

impl Subject {
    fn from_json(subject: &Value, namespace: &str) -> Option<Subject> {
        let name = subject["name"].as_str()?.into();
        match subject["kind"].as_str()? {
            "User" => Some(Subject::User(name)),
            "Group" => Some(Subject::Group(name)),
            "ServiceAccount" => {
                let namespace = subject["namespace"].as_str().filter(|n| !n.is_empty()).unwrap_or(namespace);
                // An account without a namespace is nobody.
                (!namespace.is_empty()).then(|| Subject::ServiceAccount { namespace: namespace.into(), name })
            }
            _ => None,
        }
    }

    fn is(&self, user: &User) -> bool {
        match self {
            Subject::User(name) => *user.name == **name,
            Subject::Group(group) => user.is_in(group),
            Subject::ServiceAccount { namespace, name } => {
                let rest = user.name.strip_prefix("system:serviceaccount:");
                rest.and_then(|r| r.strip_prefix(&**namespace)?.strip_prefix(':')) == Some(name)
            }
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::User(name) => write!(f, "User {name:?}"),
            Subject::Group(name) => write!(f, "Group {name:?}"),
            Subject::ServiceAccount { namespace, name } => {
                write!(f, "ServiceAccount {:?}", format!("{name}/{namespace}"))
            }
        }
    }
}

// === impl Source ===

impl fmt::Display for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = if self.role.cluster { "ClusterRole" } else { "Role" };
        let (kind, name) = if self.namespace.is_empty() {
            ("ClusterRoleBinding", self.binding.to_owned())
        } else {
            ("RoleBinding", format!("{}/{}", self.binding, self.namespace))
        };
        write!(f, "{kind} {name:?} of {role} {:?} to {}", self.role.name, self.subject)
    }
}

/// Whether the user may do everything, whatever the roles say.
#[must_use]
pub fn is_master(user: &User) -> bool {
    user.is_in(groups::MASTERS)
}
