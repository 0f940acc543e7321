//! May they? Node authorizer and roles together: the first to say yes has said it; nobody to say yes is a no.

use crate::api_status::{ApiStatus, Details};
use crate::request::{Attributes, User};

use super::node::NodeRights;
use super::rbac::{Rbac, Rule, is_master};
use super::verdict::{Decision, Verdict};

/// Decides about requests. Reads memory only: a request costs no await.
#[derive(Debug, Default)]
pub struct Authorizer {
    rbac: Rbac,
    nodes: NodeRights,
}

/// What a user may do in a namespace, as far as it can be listed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rights {
    pub rules: Vec<Rule>,
    /// There is more than `rules` says.
    pub incomplete: bool,
    pub error: String,
}

// === impl Authorizer ===

impl Authorizer {
    #[must_use]
    pub fn rbac(&self) -> &Rbac {
        &self.rbac
    }

    #[must_use]
    pub fn nodes(&self) -> &NodeRights {
        &self.nodes
    }

    #[must_use]
    pub fn authorize(&self, attributes: &Attributes) -> Verdict {
        if is_master(&attributes.user) {
            return Verdict::allow(String::new());
        }
        let mut reasons = Vec::new();
        for ask in [NodeRights::authorize_in, Rbac::authorize_in] {
            let verdict = ask(self, attributes);
            match verdict.decision {
                Decision::Allow | Decision::Deny => return verdict,
                Decision::NoOpinion if verdict.reason.is_empty() => {}
                Decision::NoOpinion => reasons.push(verdict.reason),
            }
        }
        Verdict::no_opinion(reasons.join("\n"))
    }

    /// The same as a result: the error status upstream's clients know.
    pub fn check(&self, attributes: &Attributes) -> Result<(), ApiStatus> {
        let verdict = self.authorize(attributes);
        if verdict.is_allowed() { Ok(()) } else { Err(forbidden(attributes, &verdict.reason)) }
    }

    /// For SelfSubjectRulesReview and `kubectl auth can-i --list`.
    #[must_use]
    pub fn rights(&self, user: &User, namespace: &str) -> Rights {
        let (mut rules, gone) = self.rbac.rules_for(user, namespace);
        if is_master(user) {
            // The bypass allows it whether or not the cluster-admin binding still stands.
            let all = || vec![Box::from("*")];
            let resources = Rule { verbs: all(), groups: all(), resources: all(), ..Rule::default() };
            let paths = Rule { verbs: all(), paths: all(), ..Rule::default() };
            for rule in [resources, paths] {
                if !rules.contains(&rule) {
                    rules.push(rule);
                }
            }
        }
        let mut errors: Vec<String> = gone.iter().map(ToString::to_string).collect();
        let is_node = user.node_name().is_some();
        if is_node {
            errors.insert(0, "node authorizer does not support user rule resolution".to_owned());
        }
        Rights {
            rules,
            incomplete: is_node || !errors.is_empty(),
            error: super::rbac::aggregate_errors("", errors),
        }
    }
}

impl NodeRights {
    fn authorize_in(all: &Authorizer, attributes: &Attributes) -> Verdict {
        all.nodes.authorize(attributes)
    }
}

impl Rbac {
    fn authorize_in(all: &Authorizer, attributes: &Attributes) -> Verdict {
        all.rbac.authorize(attributes)
    }
}

/// `pods is forbidden: User "jane" cannot list resource "pods" in API group "" in the namespace "web"`
#[must_use]
pub fn forbidden(attributes: &Attributes, reason: &str) -> ApiStatus {
    let (user, verb) = (&attributes.user.name, &attributes.verb);
    let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    let Some(resource) = &attributes.resource else {
        let message = format!("forbidden: User {user:?} cannot {verb} path {:?}{reason}", attributes.path);
        return ApiStatus::new(403, "Forbidden", message);
    };
    let scope = match resource.namespace.as_str() {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    let what = match (resource.group.as_str(), resource.name.as_str()) {
        ("", "") => resource.plural.clone(),
        ("", name) => format!("{} {name:?}", resource.plural),
        (group, "") => format!("{}.{group}", resource.plural),
        (group, name) => format!("{}.{group} {name:?}", resource.plural),
    };
    let message = format!(
        "{what} is forbidden: User {user:?} cannot {verb} resource {:?} in API group {:?} {scope}{reason}",
        resource.with_subresource(),
        resource.group,
    );
    let mut api_status = ApiStatus::new(403, "Forbidden", message);
    api_status.details = Some(Box::new(Details {
        name: resource.name.clone(),
        group: resource.group.clone(),
        kind: resource.plural.clone(),
        ..Details::default()
    }));
    api_status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Resource, groups};
    use std::sync::Arc;

    #[test]
    fn refusals_read_as_upstream_writes_them() {
        let jane = Arc::new(User::new("jane", &[groups::AUTHENTICATED]));
        let on = |resource: Option<Resource>, verb: &'static str, path: &str| Attributes {
            user: jane.clone(),
            verb: verb.into(),
            path: path.into(),
            resource,
        };
        let pods = Resource { plural: "pods".into(), namespace: "web".into(), ..Resource::default() };
        let cases = [
            (
                on(Some(pods.clone()), "list", ""),
                "pods is forbidden: User \"jane\" cannot list resource \"pods\" in API group \"\" in the namespace \"web\"",
            ),
            (
                on(Some(Resource { subresource: "log".into(), name: "a".into(), ..pods }), "get", ""),
                "pods \"a\" is forbidden: User \"jane\" cannot get resource \"pods/log\" in API group \"\" in the namespace \"web\"",
            ),
            (
                on(
                    Some(Resource {
                        group: "apps".into(),
                        plural: "deployments".into(),
                        ..Resource::default()
                    }),
                    "list",
                    "",
                ),
                "deployments.apps is forbidden: User \"jane\" cannot list resource \"deployments\" in API group \"apps\" at the cluster scope",
            ),
            (on(None, "get", "/metrics"), "forbidden: User \"jane\" cannot get path \"/metrics\""),
        ];
        for (attributes, message) in cases {
            assert_eq!(
                Authorizer::default().check(&attributes).map_err(|r| r.message),
                Err(message.to_owned())
            );
        }
    }

    #[test]
    fn masters_need_no_role() {
        let attributes =
            Attributes { user: Arc::new(User::new("x", &[groups::MASTERS])), ..Attributes::default() };
        assert!(Authorizer::default().authorize(&attributes).is_allowed());
    }
}
