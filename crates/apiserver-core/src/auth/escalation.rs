//! Nobody gives away rights they do not have.

use serde_json::Value;

use super::authz::Authorizer;
use super::rbac::{Rbac, RbacKind, RoleRef, Rule, describe, is_master, missing, quoted};
use crate::request::{Attributes, Resource, User};

/// Checks a write to a role or binding: the writer holds all it grants, or may `escalate` the role or `bind` it.
/// The error is what a Forbidden says after the object's name.
pub fn confirm(
    authorizer: &Authorizer,
    request: &Attributes,
    kind: RbacKind,
    new: &Value,
    old: Option<&Value>,
) -> Result<(), String> {
    let user = &request.user;
    if is_master(user) {
        return Ok(());
    }
    let namespace = request.resource.as_ref().map_or("", |r| r.namespace.as_str());
    match kind {
        RbacKind::Role | RbacKind::ClusterRole => {
            let same = |field: &str| old.is_some_and(|old| old[field] == new[field]);
            if same("rules") && same("aggregationRule") {
                return Ok(());
            }
            let name = new["metadata"]["name"].as_str().unwrap_or_default();
            if may(authorizer, request, "escalate", kind.plural(), namespace, name) {
                return Ok(());
            }
            confirm_held(authorizer.rbac(), user, namespace, &Rule::all_of(new))?;
            if kind == RbacKind::ClusterRole && new["aggregationRule"].is_object() && !same("aggregationRule")
            {
                return confirm_held(authorizer.rbac(), user, "", &everything())
                    .map_err(|_| "must have cluster-admin privileges to use an aggregationRule".to_owned());
            }
            Ok(())
        }
        RbacKind::RoleBinding | RbacKind::ClusterRoleBinding => {
            let role = RoleRef::from_json(&new["roleRef"]);
            let same = |field: &str| old.is_some_and(|old| old[field] == new[field]);
            if same("roleRef") && same("subjects") {
                return Ok(());
            }
            let plural = if role.cluster { "clusterroles" } else { "roles" };
            if may(authorizer, request, "bind", plural, namespace, &role.name) {
                return Ok(());
            }
            let rules = authorizer.rbac().rules_of(&role, namespace).map_err(|e| e.to_string())?;
            confirm_held(authorizer.rbac(), user, namespace, &rules)
        }
    }
}

fn may(
    authorizer: &Authorizer,
    request: &Attributes,
    verb: &'static str,
    plural: &str,
    namespace: &str,
    name: &str,
) -> bool {
    let attributes = Attributes {
        user: request.user.clone(),
        verb: verb.into(),
        path: String::new(),
        resource: Some(Resource {
            group: "rbac.authorization.k8s.io".into(),
            version: "*".into(),
            plural: plural.into(),
            namespace: namespace.into(),
            name: name.into(),
            ..Resource::default()
        }),
    };
    authorizer.authorize(&attributes).is_allowed()
}

fn confirm_held(rbac: &Rbac, user: &User, namespace: &str, wanted: &[Rule]) -> Result<(), String> {
    let (held, gone) = rbac.rules_for(user, namespace);
    let lacking = missing(&held, wanted);
    if lacking.is_empty() {
        return Ok(());
    }
    let mut message = format!(
        "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
        user.name,
        quoted(&user.groups),
        describe(lacking)
    );
    if !gone.is_empty() {
        let gone: Vec<String> = gone.iter().map(ToString::to_string).collect();
        message.push_str(&format!("; resolution errors: [{}]", gone.join(", ")));
    }
    Err(message)
}

fn everything() -> Vec<Rule> {
    let all = || vec![Box::from("*")];
    vec![
        Rule { verbs: all(), groups: all(), resources: all(), ..Rule::default() },
        Rule { verbs: all(), paths: all(), ..Rule::default() },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::rbac::policy;
    use serde_json::json;
    use std::sync::Arc;

    fn authorizer() -> Authorizer {
        let authorizer = Authorizer::default();
        policy::defaults().iter().for_each(|(kind, object)| authorizer.rbac().put(*kind, object));
        authorizer.rbac().put(
            RbacKind::RoleBinding,
            &json!({"metadata": {"name": "a", "namespace": "web"}, "roleRef": {"kind": "ClusterRole", "name": "admin"},
                "subjects": [{"kind": "User", "name": "jane"}]}),
        );
        authorizer
    }

    fn write(user: User, namespace: &str) -> Attributes {
        let resource = Some(Resource { namespace: namespace.into(), ..Resource::default() });
        Attributes { user: Arc::new(user), resource, ..Attributes::default() }
    }

    #[test]
    fn rights_are_passed_on_only_by_those_who_hold_them() {
        let authorizer = authorizer();
        let jane = write(User::new("jane", &["dev"]), "web");
        let role = |rules: Value| json!({"metadata": {"name": "r", "namespace": "web"}, "rules": rules});
        let pods = role(json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]));
        let nodes = role(json!([{"verbs": ["get"], "apiGroups": [""], "resources": ["nodes"]}]));
        assert_eq!(confirm(&authorizer, &jane, RbacKind::Role, &pods, None), Ok(()));
        assert_eq!(
            confirm(&authorizer, &jane, RbacKind::Role, &nodes, None),
            Err("user \"jane\" (groups=[\"dev\"]) is attempting to grant RBAC permissions not currently held:\n\
                 {APIGroups:[\"\"], Resources:[\"nodes\"], Verbs:[\"get\"]}"
                .to_owned())
        );
        assert_eq!(confirm(&authorizer, &jane, RbacKind::Role, &nodes, Some(&nodes)), Ok(()));
        let root = write(User::new("root", &["system:masters"]), "web");
        assert_eq!(confirm(&authorizer, &root, RbacKind::Role, &nodes, None), Ok(()));
        let to =
            |role: &str| json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": role}});
        assert_eq!(confirm(&authorizer, &jane, RbacKind::RoleBinding, &to("view"), None), Ok(()));
        assert!(confirm(&authorizer, &jane, RbacKind::RoleBinding, &to("cluster-admin"), None).is_err());
        assert_eq!(
            confirm(&authorizer, &jane, RbacKind::RoleBinding, &to("lost"), None),
            Err("clusterrole.rbac.authorization.k8s.io \"lost\" not found".to_owned())
        );
    }

    #[test]
    fn bind_and_escalate_are_rights_of_their_own() {
        let authorizer = authorizer();
        authorizer.rbac().put(
            RbacKind::ClusterRole,
            &json!({"metadata": {"name": "binder"}, "rules": [
                {"verbs": ["bind"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"],
                 "resourceNames": ["cluster-admin"]},
                {"verbs": ["escalate"], "apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"]}]}),
        );
        authorizer.rbac().put(
            RbacKind::ClusterRoleBinding,
            &json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "binder"},
                "subjects": [{"kind": "User", "name": "bo"}]}),
        );
        let bo = write(User::new("bo", &[]), "");
        let to =
            |role: &str| json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": role}});
        assert_eq!(
            confirm(&authorizer, &bo, RbacKind::ClusterRoleBinding, &to("cluster-admin"), None),
            Ok(())
        );
        assert!(confirm(&authorizer, &bo, RbacKind::ClusterRoleBinding, &to("admin"), None).is_err());
        let any = json!({"metadata": {"name": "x"}, "rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]});
        assert_eq!(confirm(&authorizer, &bo, RbacKind::ClusterRole, &any, None), Ok(()));
    }
}
