//! The review kinds: questions about users and rights, answered in the `status` of what was sent. Nothing is stored.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::field::{FieldErrors, Path};
use api::selector::{FieldSelector, LabelSelector};
use serde_json::{Value, json};

use super::authn::Authenticator;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::auth::authz::Authorizer;
use apiserver_core::auth::verdict::Decision;
use apiserver_core::doc;
use apiserver_core::kind::Kind;
use apiserver_core::request::{Attributes, Resource, User};

/// Whose rights a SubjectAccessReview is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// SubjectAccessReview: anybody's, anywhere.
    Anybody,
    /// LocalSubjectAccessReview: anybody's, in the namespace of the request.
    Local,
    /// SelfSubjectAccessReview: the asker's.
    Own,
}

/// SelfSubjectReview: `kubectl auth whoami`.
#[must_use]
pub fn own_user(mut body: Value, user: &User) -> Value {
    body["status"] = json!({"userInfo": user.to_json()});
    body
}

/// TokenReview.
pub async fn token(mut body: Value, authenticator: &Authenticator) -> Result<Value, ApiStatus> {
    let text = doc::text(&body, "spec.token").to_owned();
    if text.is_empty() {
        return Err(ApiStatus::bad_request("token is required for TokenReview in authentication"));
    }
    let asked: Vec<String> =
        doc::list(&body, "spec.audiences").iter().filter_map(Value::as_str).map(str::to_owned).collect();
    let audiences = if asked.is_empty() { authenticator.audiences().to_vec() } else { asked.clone() };
    body["status"] = match authenticator.by_token(&text, &audiences).await {
        Some(found) => {
            let user = found.user.authenticated().to_json();
            json!({"authenticated": true, "user": user, "audiences": found.audiences})
        }
        None => json!({"user": {}, "error": "invalid bearer token"}),
    };
    Ok(body)
}

/// SubjectAccessReview, LocalSubjectAccessReview and SelfSubjectAccessReview.
pub fn access(
    kind: &Kind,
    mut body: Value,
    (which, namespace): (Access, &str),
    asker: &Arc<User>,
    authorizer: &Authorizer,
) -> Result<Value, ApiStatus> {
    let mut errors = FieldErrors::default();
    let user = match which {
        Access::Own => asker.clone(),
        Access::Anybody | Access::Local => Arc::new(subject(&body["spec"], &mut errors)),
    };
    let attributes = attributes(&body["spec"], user, &mut errors);
    if which == Access::Local {
        let at = Path::new("spec").child("resourceAttributes").child("namespace");
        let said = doc::text(&body, "spec.resourceAttributes.namespace");
        if said != namespace {
            errors.invalid(&at, said, "must match metadata.namespace");
        }
    }
    let attributes = match attributes {
        Some(attributes) if errors.is_empty() => attributes,
        _ => return Err(ApiStatus::invalid(kind, "", &errors)),
    };
    let verdict = authorizer.authorize(&attributes);
    let mut status = json!({"allowed": verdict.is_allowed()});
    if verdict.decision == Decision::Deny {
        status["denied"] = true.into();
    }
    if !verdict.reason.is_empty() {
        status["reason"] = verdict.reason.into();
    }
    body["status"] = status;
    Ok(body)
}

/// SelfSubjectRulesReview: `kubectl auth can-i --list`.
pub fn own_rules(mut body: Value, asker: &User, authorizer: &Authorizer) -> Result<Value, ApiStatus> {
    let namespace = doc::text(&body, "spec.namespace");
    if namespace.is_empty() {
        return Err(ApiStatus::bad_request("no namespace on request"));
    }
    let rights = authorizer.rights(asker, namespace);
    let (mut resources, mut paths) = (Vec::new(), Vec::new());
    for rule in &rights.rules {
        if !rule.resources.is_empty() {
            let mut shown = rule.clone();
            shown.paths.clear();
            resources.push(shown.to_json());
        }
        if !rule.paths.is_empty() {
            paths.push(json!({"verbs": rule.to_json()["verbs"], "nonResourceURLs": rule.to_json()["nonResourceURLs"]}));
        }
    }
    let mut status =
        json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": rights.incomplete});
    if !rights.error.is_empty() {
        status["evaluationError"] = rights.error.into();
    }
    body["status"] = status;
    Ok(body)
}

fn subject(spec: &Value, errors: &mut FieldErrors) -> User {
    let words = |list: &Value| -> Vec<String> {
        list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let extra: BTreeMap<String, Vec<String>> = doc::entries(spec, "extra")
        // Header names carry no case, so the keys of a review carry none either.
        .map(|(key, values)| (key.to_lowercase(), words(values)))
        .collect();
    let user = User {
        name: doc::text(spec, "user").to_owned(),
        uid: doc::text(spec, "uid").to_owned(),
        groups: words(&spec["groups"]),
        extra,
    };
    if user.name.is_empty() && user.groups.is_empty() {
        let at = Path::new("spec").child("user");
        errors.invalid(&at, "", "at least one of user or group must be specified");
    }
    user
}

fn attributes(spec: &Value, user: Arc<User>, errors: &mut FieldErrors) -> Option<Attributes> {
    let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let at = Path::new("spec").child("resourceAttributes");
    let text = |value: &Value, field: &str| doc::text(value, field).to_owned();
    match (resource.is_object(), path.is_object()) {
        (true, true) => {
            let at = Path::new("spec").child("nonResourceAttributes");
            errors.invalid(&at, path.clone(), "cannot be specified in combination with resourceAttributes");
            None
        }
        (false, false) => {
            let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            errors.invalid(&at, Value::Null, why);
            None
        }
        (false, true) => Some(Attributes {
            user,
            verb: text(path, "verb").into(),
            path: text(path, "path"),
            resource: None,
        }),
        (true, false) => Some(Attributes {
            user,
            verb: text(resource, "verb").into(),
            path: String::new(),
            resource: Some(Resource {
                group: text(resource, "group"),
                version: text(resource, "version"),
                plural: text(resource, "resource"),
                subresource: text(resource, "subresource"),
                namespace: text(resource, "namespace"),
                name: text(resource, "name"),
                field_selector: field_selector(&resource["fieldSelector"]),
                label_selector: LabelSelector::parse(doc::text(resource, "labelSelector.rawSelector"))
                    .unwrap_or_default(),
            }),
        }),
    }
}

/// What cannot be read narrows nothing: the question is then about everything, which is the careful answer.
fn field_selector(selector: &Value) -> FieldSelector {
    let mut terms: Vec<String> = Vec::new();
    if let Some(raw) = selector["rawSelector"].as_str().filter(|r| !r.is_empty()) {
        terms.push(raw.to_owned());
    }
    for requirement in doc::list(selector, "requirements") {
        let key = doc::text(requirement, "key");
        let values = doc::list(requirement, "values");
        match (doc::text(requirement, "operator"), values) {
            ("In", [one]) => terms.push(format!("{key}={}", one.as_str().unwrap_or_default())),
            ("NotIn", many) => {
                terms.extend(many.iter().map(|v| format!("{key}!={}", v.as_str().unwrap_or_default())));
            }
            _ => {}
        }
    }
    FieldSelector::parse(&terms.join(",")).unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use apiserver_core::auth::rbac::{RbacKind, policy};
    use apiserver_core::kinds;

    fn authorizer() -> Authorizer {
        let authorizer = Authorizer::default();
        policy::defaults().iter().for_each(|(kind, object)| authorizer.rbac().put(*kind, object));
        authorizer.rbac().put(
            RbacKind::RoleBinding,
            &json!({"metadata": {"name": "b", "namespace": "web"}, "roleRef": {"kind": "ClusterRole", "name": "view"},
                "subjects": [{"kind": "User", "name": "jane"}]}),
        );
        authorizer
    }

    fn any_kind() -> Arc<Kind> {
        Arc::new(kinds::all().into_iter().next().unwrap())
    }

    #[test]
    fn access_reviews_answer_about_the_right_user() {
        let (authorizer, kind) = (authorizer(), any_kind());
        let jane = Arc::new(User::new("jane", &[]));
        let ask = |spec: Value, which: Access, asker: &Arc<User>| {
            access(&kind, json!({"spec": spec}), (which, "web"), asker, &authorizer)
        };
        let list = json!({"verb": "list", "resource": "pods", "namespace": "web"});
        let own = ask(json!({"resourceAttributes": list}), Access::Own, &jane).unwrap();
        assert_eq!(own["status"]["allowed"], true);
        assert!(own["status"]["reason"].as_str().unwrap().starts_with("RBAC: allowed by RoleBinding"));
        let root = Arc::new(User::new("root", &["system:masters"]));
        let other = ask(json!({"user": "bob", "resourceAttributes": list}), Access::Anybody, &root).unwrap();
        assert_eq!(other["status"], json!({"allowed": false}));
        let path = json!({"groups": ["system:unauthenticated"], "nonResourceAttributes": {"verb": "get", "path": "/version"}});
        assert_eq!(ask(path, Access::Anybody, &root).unwrap()["status"]["allowed"], true);
        for (spec, which) in [
            (json!({"user": "bob"}), Access::Anybody),
            (json!({"resourceAttributes": list}), Access::Anybody),
            (
                json!({"user": "bob", "resourceAttributes": {"verb": "get", "namespace": "other"}}),
                Access::Local,
            ),
            (json!({"resourceAttributes": list, "nonResourceAttributes": {}}), Access::Own),
        ] {
            assert_eq!(ask(spec.clone(), which, &root).unwrap_err().code, 422, "{spec}");
        }
    }

    #[test]
    fn rules_are_listed_for_a_namespace() {
        let authorizer = authorizer();
        let body = |ns: &str| json!({"spec": {"namespace": ns}});
        let jane = User::new("jane", &["system:authenticated"]);
        let here = own_rules(body("web"), &jane, &authorizer).unwrap();
        let there = own_rules(body("other"), &jane, &authorizer).unwrap();
        let count = |v: &Value| v["status"]["resourceRules"].as_array().unwrap().len();
        assert!(count(&here) > count(&there));
        assert_eq!(here["status"]["incomplete"], false);
        assert!(!here["status"]["nonResourceRules"].as_array().unwrap().is_empty());
        assert_eq!(own_rules(json!({"spec": {}}), &jane, &authorizer).unwrap_err().code, 400);
        let root = own_rules(body("web"), &User::new("root", &["system:masters"]), &authorizer).unwrap();
        assert_eq!(count(&root), 1);
        let node = User::new("system:node:n1", &["system:nodes"]);
        assert_eq!(own_rules(body("web"), &node, &authorizer).unwrap()["status"]["incomplete"], true);
    }

    #[test]
    fn selectors_of_a_review_are_understood() {
        let selector = field_selector(
            &json!({"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["n1"]}]}),
        );
        assert_eq!(selector.exact("spec.nodeName"), Some("n1"));
        assert!(
            field_selector(&json!({"requirements": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}))
                .is_empty()
        );
    }
}
