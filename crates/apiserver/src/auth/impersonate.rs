//! Acting as somebody else: `kubectl --as`.

use std::borrow::Cow;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};

use apiserver_core::api_status::ApiStatus;
use apiserver_core::auth::authz::Authorizer;
use apiserver_core::request::{Attributes, Resource, User, groups};

const USER: &str = "impersonate-user";
const UID: &str = "impersonate-uid";
const GROUP: &str = "impersonate-group";
const EXTRA: &str = "impersonate-extra-";

/// The user the request is to be carried out as; None when it asks for nobody else. Every name, group, uid and extra
/// value asked for must be allowed on its own.
pub fn impersonate(
    authorizer: &Authorizer,
    real: &Arc<User>,
    headers: &HeaderMap,
) -> Result<Option<User>, ApiStatus> {
    let Some(asked) = asked(headers)? else { return Ok(None) };
    for (plural, subresource, group, namespace, name) in checks(&asked) {
        let attributes = Attributes {
            user: real.clone(),
            verb: "impersonate".into(),
            path: String::new(),
            resource: Some(Resource {
                group: group.into(),
                version: "v1".into(),
                plural: plural.into(),
                subresource: subresource.to_string(),
                namespace: namespace.into(),
                name: name.into(),
                ..Resource::default()
            }),
        };
        authorizer.check(&attributes)?;
    }
    Ok(Some(complete(asked)))
}

/// Drops the headers, so that nothing behind us acts on them again.
pub fn strip(headers: &mut HeaderMap) {
    let ours: Vec<HeaderName> =
        headers.keys().filter(|k| k.as_str().starts_with("impersonate-")).cloned().collect();
    for name in ours {
        headers.remove(name);
    }
}

fn asked(headers: &HeaderMap) -> Result<Option<User>, ApiStatus> {
    let text = |value: &HeaderValue| {
        String::from_utf8(value.as_bytes().to_vec())
            .map_err(|_| ApiStatus::bad_request("an impersonation header is not valid UTF-8"))
    };
    let one = |name: &str| headers.get(name).map(text).transpose().map(Option::unwrap_or_default);
    let mut user = User { name: one(USER)?, uid: one(UID)?, ..User::default() };
    user.groups = headers.get_all(GROUP).into_iter().map(text).collect::<Result<_, _>>()?;
    for (name, value) in headers {
        if let Some(key) = name.as_str().strip_prefix(EXTRA) {
            user.extra.entry(unescape(key)).or_default().push(text(value)?);
        }
    }
    if user == User::default() {
        return Ok(None);
    }
    if user.name.is_empty() {
        return Err(ApiStatus::internal(format!("requested {user:?} without impersonating a user")));
    }
    Ok(Some(user))
}

type Check<'u> = (&'static str, Cow<'u, str>, &'static str, &'u str, &'u str);

/// What must be allowed: resource, subresource, API group, namespace, name.
fn checks(user: &User) -> Vec<Check<'_>> {
    const REVIEWS: &str = "authentication.k8s.io";
    let mut out: Vec<Check<'_>> = vec![match user.as_service_account() {
        Some((namespace, name)) => ("serviceaccounts", "".into(), "", namespace, name),
        None => ("users", "".into(), "", "", &user.name),
    }];
    out.extend(user.groups.iter().map(|g| ("groups", "".into(), "", "", g.as_str())));
    for (key, values) in &user.extra {
        out.extend(values.iter().map(|v| ("userextras", key.as_str().into(), REVIEWS, "", v.as_str())));
    }
    if !user.uid.is_empty() {
        out.push(("uids", "".into(), REVIEWS, "", &user.uid));
    }
    out
}

/// The groups everybody of that name has.
fn complete(mut user: User) -> User {
    if user.groups.is_empty()
        && let Some((namespace, name)) = user.as_service_account()
    {
        user.groups = User::service_account(namespace, name, "").groups;
    }
    if user.name == User::ANONYMOUS {
        if !user.is_in(groups::UNAUTHENTICATED) {
            user.groups.push(groups::UNAUTHENTICATED.to_owned());
        }
        return user;
    }
    user.authenticated()
}
/// `%2f` in the name of a header: keys may hold what header names may not.
fn unescape(key: &str) -> String {
    let bytes = key.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = (bytes[at] == b'%').then(|| key.get(at + 1..at + 3)).flatten();
        match hex.and_then(|h| u8::from_str_radix(h, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| key.to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use apiserver_core::auth::rbac::RbacKind;
    use serde_json::json;

    fn headers(list: &[(&str, &str)]) -> HeaderMap {
        list.iter()
            .map(|(k, v)| (k.parse::<HeaderName>().unwrap(), v.parse::<HeaderValue>().unwrap()))
            .collect()
    }

    #[test]
    fn everything_asked_for_must_be_allowed() {
        let authorizer = Authorizer::default();
        authorizer.rbac().put(
            RbacKind::ClusterRole,
            &json!({"metadata": {"name": "actor"}, "rules": [
                {"verbs": ["impersonate"], "apiGroups": [""], "resources": ["users", "groups"], "resourceNames": ["jane", "dev"]},
                {"verbs": ["impersonate"], "apiGroups": [""], "resources": ["serviceaccounts"]},
                {"verbs": ["impersonate"], "apiGroups": ["authentication.k8s.io"], "resources": ["userextras/example.com/team"]}]}),
        );
        authorizer.rbac().put(
            RbacKind::ClusterRoleBinding,
            &json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "actor"},
                "subjects": [{"kind": "User", "name": "bo"}]}),
        );
        let bo = Arc::new(User::new("bo", &[]));
        let act = |list: &[(&str, &str)]| impersonate(&authorizer, &bo, &headers(list));
        assert_eq!(act(&[]).unwrap(), None);
        let jane = act(&[("Impersonate-User", "jane"), ("Impersonate-Group", "dev")]).unwrap().unwrap();
        assert_eq!(jane.groups, ["dev", "system:authenticated"]);
        let extra = act(&[("Impersonate-User", "jane"), ("Impersonate-Extra-example.com%2fteam", "x")]);
        assert_eq!(extra.unwrap().unwrap().extra["example.com/team"], ["x"]);
        let bot = act(&[("Impersonate-User", "system:serviceaccount:ns:bot")]).unwrap().unwrap();
        assert_eq!(
            bot.groups,
            ["system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"]
        );
        for list in [
            &[("Impersonate-User", "root")][..],
            &[("Impersonate-User", "jane"), ("Impersonate-Group", "system:masters")],
            &[("Impersonate-User", "jane"), ("Impersonate-Uid", "1")],
        ] {
            assert_eq!(act(list).unwrap_err().code, 403, "{list:?}");
        }
        assert_eq!(act(&[("Impersonate-Group", "dev")]).unwrap_err().code, 500);
    }

    #[test]
    fn the_headers_do_not_travel_on() {
        let mut all = headers(&[("Impersonate-User", "a"), ("Impersonate-Extra-x", "b"), ("Accept", "c")]);
        strip(&mut all);
        assert_eq!(all.len(), 1);
    }
}
