//! Tokens of service accounts: asked for through the `token` subresource, believed while what they are bound to exists.

use base::time::Wall;
use serde_json::{Value, json};

use super::tokens::{Claims, OneOrMany, Private, Reference, TokenError, Tokens};
use crate::objects::{Objects, Place, places};
use crate::random::new_uid;
use apiserver_core::api_status::{ApiStatus, Cause, Details};
use apiserver_core::doc;
use apiserver_core::request::User;

/// How long tokens may live.
#[derive(Clone, Copy, Debug)]
pub struct Lifetimes {
    /// `--service-account-max-token-expiration`
    pub max_seconds: Option<i64>,
    /// `--service-account-extend-token-expiration`
    pub extend: bool,
}

const MIN_SECONDS: i64 = 600;
const DEFAULT_SECONDS: i64 = 3600;
/// What the ServiceAccount admission asks for; such a token of a Pod lives a year, for clients that never reload it.
pub const PROJECTED_SECONDS: i64 = 3607;
const EXTENDED_SECONDS: i64 = 365 * 24 * 3600;
/// Things deleted longer ago than this invalidate the tokens bound to them.
const DELETION_LEEWAY: i64 = 60;

/// Makes a token. `body` is a TokenRequest; the answer is the same with its status, and warnings.
pub async fn request_token(
    objects: &Objects,
    tokens: &Tokens,
    lifetimes: Lifetimes,
    (namespace, name): (&str, &str),
    mut body: Value,
    now: Wall,
) -> Result<(Value, Vec<String>), ApiStatus> {
    let account = objects.find(places::SERVICE_ACCOUNTS, namespace, name).await?;
    let account = account.ok_or_else(|| not_found(places::SERVICE_ACCOUNTS, name))?.object;
    complete(&mut body, &account, tokens)?;
    let mut private = Private {
        namespace: namespace.to_owned(),
        serviceaccount: reference(&account),
        ..Private::default()
    };
    bind(objects, &body["spec"]["boundObjectRef"], name, &mut private).await?;

    let mut warnings = Vec::new();
    let mut seconds = doc::int(&body, "spec.expirationSeconds");
    if let Some(max) = lifetimes.max_seconds.filter(|max| *max > 0 && seconds > *max) {
        warnings.push(format!("requested expiration of {seconds} seconds shortened to {max} seconds"));
        seconds = max;
        body["spec"]["expirationSeconds"] = max.into();
    }
    let audiences: Vec<String> =
        doc::list(&body, "spec.audiences").iter().filter_map(Value::as_str).map(str::to_owned).collect();
    let ours = audiences.iter().all(|a| tokens.audiences().contains(a));
    let mut life = seconds;
    if lifetimes.extend && private.pod.is_some() && seconds == PROJECTED_SECONDS && ours {
        private.warnafter = Some(now.secs() + seconds);
        life = EXTENDED_SECONDS;
    }
    let claims = Claims {
        aud: OneOrMany(audiences),
        exp: now.secs() + life,
        iat: now.secs(),
        nbf: now.secs(),
        iss: String::new(),
        jti: new_uid(),
        sub: User::service_account_name(namespace, name),
        private,
    };
    let token = tokens.sign(claims).map_err(|e| ApiStatus::internal(e.to_string()))?;
    body["metadata"]["creationTimestamp"] = timestamp(now.secs()).into();
    body["status"] = json!({"token": token, "expirationTimestamp": timestamp(now.secs() + seconds)});
    Ok((body, warnings))
}

/// The user of believed claims, if everything they are bound to is still there.
pub async fn user_of(objects: &Objects, claims: &Claims, now: Wall) -> Result<User, TokenError> {
    let private = &claims.private;
    let (namespace, account) = (private.namespace.as_str(), &private.serviceaccount);
    let gone = || TokenError::Invalidated("service account token has been invalidated".to_owned());
    still_there(objects, places::SERVICE_ACCOUNTS, namespace, account, now).await?;
    if let Some(secret) = &private.secret {
        still_there(objects, places::SECRETS, namespace, secret, now).await.map_err(|_| gone())?;
    }
    let mut user = User::service_account(namespace, &account.name, &account.uid);
    let mut extra = |key: &str, value: &str| {
        if !value.is_empty() {
            user.extra.insert(format!("authentication.kubernetes.io/{key}"), vec![value.to_owned()]);
        }
    };
    if let Some(pod) = &private.pod {
        still_there(objects, places::PODS, namespace, pod, now).await.map_err(|_| gone())?;
        extra("pod-name", &pod.name);
        extra("pod-uid", &pod.uid);
    }
    if let Some(node) = &private.node {
        // Of a Pod's token the node is only told: it may be replaced while the Pod runs on.
        if private.pod.is_none() {
            still_there(objects, places::NODES, "", node, now).await.map_err(|_| gone())?;
        }
        extra("node-name", &node.name);
        extra("node-uid", &node.uid);
    }
    if !claims.jti.is_empty() {
        extra("credential-id", &format!("JTI={}", claims.jti));
    }
    Ok(user)
}

async fn still_there(
    objects: &Objects,
    place: Place,
    namespace: &str,
    reference: &Reference,
    now: Wall,
) -> Result<(), TokenError> {
    let invalid = |why: String| Err(TokenError::Invalidated(why));
    let found = objects.find(place, namespace, &reference.name).await;
    let Ok(Some(found)) = found else {
        return invalid(format!("{} {:?} not found", place.resource, reference.name));
    };
    let uid = doc::text(&found.object, "metadata.uid");
    if uid != reference.uid {
        return invalid(format!("{} UID ({uid}) does not match claim ({})", place.resource, reference.uid));
    }
    let deleted = doc::text(&found.object, "metadata.deletionTimestamp").parse::<jiff::Timestamp>();
    match deleted {
        Ok(at) if at.as_second() < now.secs() - DELETION_LEEWAY => {
            invalid(format!("{} {} has been deleted", place.resource, reference.name))
        }
        _ => Ok(()),
    }
}

/// Fills what was left out and refuses what does not fit.
fn complete(body: &mut Value, account: &Value, tokens: &Tokens) -> Result<(), ApiStatus> {
    for (field, what) in [("name", "name"), ("namespace", "namespace")] {
        let (said, is) = (doc::text(&body["metadata"], field), doc::text(&account["metadata"], field));
        if !said.is_empty() && said != is {
            let message =
                format!("Invalid value: {said:?}: must match the service account {what} if specified");
            return Err(invalid(&format!("metadata.{field}"), &message));
        }
    }
    let (said, is) = (doc::text(body, "metadata.uid"), doc::text(account, "metadata.uid"));
    if !said.is_empty() && said != is {
        let name = doc::text(account, "metadata.name");
        return Err(conflict(
            "TokenRequest.authentication.k8s.io",
            name,
            &format!(
                "the UID in the token request ({said}) does not match the UID of the service account ({is})"
            ),
        ));
    }
    for field in ["name", "namespace", "uid"] {
        body["metadata"][field] = account["metadata"][field].clone();
    }
    if doc::list(body, "spec.audiences").is_empty() {
        body["spec"]["audiences"] = json!(tokens.audiences());
    }
    if body["spec"]["expirationSeconds"].is_null() {
        body["spec"]["expirationSeconds"] = DEFAULT_SECONDS.into();
    }
    let seconds = doc::int(body, "spec.expirationSeconds");
    let why = match seconds {
        ..MIN_SECONDS => "may not specify a duration less than 10 minutes",
        0x1_0000_0001.. => "may not specify a duration larger than 2^32 seconds",
        _ => return Ok(()),
    };
    Err(invalid("spec.expirationSeconds", &format!("Invalid value: {seconds}: {why}")))
}

/// Ties the token to a Pod, a Secret or a Node.
async fn bind(
    objects: &Objects,
    bound: &Value,
    account: &str,
    private: &mut Private,
) -> Result<(), ApiStatus> {
    if !bound.is_object() {
        return Ok(());
    }
    let (kind, version) = (doc::text(bound, "kind"), doc::text(bound, "apiVersion"));
    let (name, wanted) = (doc::text(bound, "name"), doc::text(bound, "uid"));
    let namespace = private.namespace.clone();
    let place = match (version, kind) {
        ("v1", "Pod") => places::PODS,
        ("v1", "Secret") => places::SECRETS,
        ("v1", "Node") => places::NODES,
        _ => {
            let (group, version) = version.split_once('/').unwrap_or(("", version));
            let message = format!("cannot bind token to object of type {group}/{version}, Kind={kind}");
            return Err(ApiStatus::bad_request(message));
        }
    };
    let found = objects.find(place, &namespace, name).await?.ok_or_else(|| not_found(place, name))?.object;
    let to = reference(&found);
    if kind == "Pod" && doc::text(&found, "spec.serviceAccountName") != account {
        return Err(ApiStatus::bad_request(format!(
            "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
        )));
    }
    if !wanted.is_empty() && wanted != to.uid {
        let why = format!(
            "the UID in the bound object reference ({wanted}) does not match the UID in record. The object might \
             have been deleted and then recreated"
        );
        return Err(conflict(kind, name, &why));
    }
    match kind {
        "Pod" => {
            let node = doc::text(&found, "spec.nodeName");
            if !node.is_empty() {
                let object = objects.find(places::NODES, "", node).await?;
                let fallback = || Reference { name: node.to_owned(), ..Reference::default() };
                private.node = Some(object.map_or_else(fallback, |n| reference(&n.object)));
            }
            private.pod = Some(to);
        }
        "Secret" => private.secret = Some(to),
        _ => private.node = Some(to),
    }
    Ok(())
}

fn reference(object: &Value) -> Reference {
    Reference {
        name: doc::text(object, "metadata.name").to_owned(),
        uid: doc::text(object, "metadata.uid").to_owned(),
    }
}

fn not_found(place: Place, name: &str) -> ApiStatus {
    let mut api_status = place.not_found(name);
    let details = Details { name: name.to_owned(), kind: place.resource.to_owned(), ..Details::default() };
    api_status.details = Some(Box::new(details));
    api_status
}

fn conflict(resource: &str, name: &str, why: &str) -> ApiStatus {
    ApiStatus::new(409, "Conflict", format!("Operation cannot be fulfilled on {resource} {name:?}: {why}"))
}

fn invalid(field: &str, message: &str) -> ApiStatus {
    let text = format!("TokenRequest.authentication.k8s.io \"\" is invalid: {field}: {message}");
    let cause = Cause {
        reason: "FieldValueInvalid".to_owned(),
        message: message.to_owned(),
        field: field.to_owned(),
    };
    let mut api_status = ApiStatus::new(422, "Invalid", text).with_causes(vec![cause]);
    if let Some(details) = &mut api_status.details {
        "authentication.k8s.io".clone_into(&mut details.group);
        "TokenRequest".clone_into(&mut details.kind);
    }
    api_status
}

fn timestamp(secs: i64) -> String {
    jiff::Timestamp::from_second(secs).unwrap_or_default().to_string()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::auth::tokens::tests::{ISSUER, tokens};
    use crate::objects::testing::Scratch;
    use store::Expect;

    const NOW: Wall = Wall(1_800_000_000_000_000_000);
    const USUAL: Lifetimes = Lifetimes { max_seconds: None, extend: true };

    async fn cluster() -> Scratch {
        let account = json!({"metadata": {"name": "bot", "namespace": "ns", "uid": "sa-1"}});
        let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "pod-1"},
            "spec": {"serviceAccountName": "bot", "nodeName": "n1"}});
        let node = json!({"metadata": {"name": "n1", "uid": "node-1"}});
        Scratch::new()
            .with(&[(places::SERVICE_ACCOUNTS, account), (places::PODS, pod), (places::NODES, node)])
            .await
    }

    async fn ask(cluster: &Scratch, tokens: &Tokens, spec: Value) -> Result<(Value, Vec<String>), ApiStatus> {
        let body = json!({"metadata": {}, "spec": spec});
        request_token(&cluster.objects, tokens, USUAL, ("ns", "bot"), body, NOW).await
    }

    #[tokio::test]
    async fn a_plain_token_lives_an_hour_for_this_server() {
        let (cluster, tokens) = (cluster().await, tokens());
        let (made, _) = ask(&cluster, &tokens, json!({})).await.unwrap();
        assert_eq!(made["spec"]["audiences"], json!([ISSUER]));
        assert_eq!(made["status"]["expirationTimestamp"], "2027-01-15T09:00:00Z");
        let claims = tokens.verify(doc::text(&made, "status.token"), NOW).unwrap();
        let user = user_of(&cluster.objects, &claims, NOW).await.unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("system:serviceaccount:ns:bot", "sa-1"));
    }

    #[tokio::test]
    async fn a_token_ends_with_the_pod_it_is_bound_to() {
        let (cluster, tokens) = (cluster().await, tokens());
        let spec = json!({"expirationSeconds": 3607,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pod-1"}});
        let (made, _) = ask(&cluster, &tokens, spec).await.unwrap();
        let claims = tokens.verify(doc::text(&made, "status.token"), NOW).unwrap();
        assert_eq!(claims.exp - claims.iat, EXTENDED_SECONDS);
        assert_eq!(claims.private.warnafter, Some(NOW.secs() + 3607));
        let user = user_of(&cluster.objects, &claims, NOW).await.unwrap();
        assert_eq!(user.extra["authentication.kubernetes.io/pod-name"], ["p"]);
        assert_eq!(user.extra["authentication.kubernetes.io/node-uid"], ["node-1"]);
        cluster.objects.delete(places::NODES, "", "n1", Expect::Any).await.unwrap();
        assert!(user_of(&cluster.objects, &claims, NOW).await.is_ok());
        let other = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "pod-2"}});
        cluster.objects.put(places::PODS, &other, Expect::Any).await.unwrap();
        assert!(user_of(&cluster.objects, &claims, NOW).await.is_err());
        let leaving = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "pod-1",
            "deletionTimestamp": "2027-01-15T08:00:00Z"}});
        cluster.objects.put(places::PODS, &leaving, Expect::Any).await.unwrap();
        assert!(user_of(&cluster.objects, &claims, NOW).await.is_ok());
        let later = Wall::from_secs(NOW.secs() + 61);
        assert!(user_of(&cluster.objects, &claims, later).await.is_err());
    }

    #[tokio::test]
    async fn what_cannot_be_bound_or_lives_too_short_is_refused() {
        let (cluster, tokens) = (cluster().await, tokens());
        let bound = |kind: &str, name: &str, uid: &str| json!({"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name, "uid": uid}});
        for (spec, code) in [
            (json!({"expirationSeconds": 599}), 422),
            (json!({"expirationSeconds": 1i64 << 33}), 422),
            (bound("Pod", "q", ""), 404),
            (bound("Pod", "p", "pod-9"), 409),
            (bound("ConfigMap", "c", ""), 400),
        ] {
            let api_status = ask(&cluster, &tokens, spec.clone()).await.unwrap_err();
            assert_eq!(api_status.code, code, "{spec}: {}", api_status.message);
        }
        let body = json!({"metadata": {"name": "other"}, "spec": {}});
        let api_status =
            request_token(&cluster.objects, &tokens, USUAL, ("ns", "bot"), body, NOW).await.unwrap_err();
        assert_eq!(api_status.code, 422);
        let strict = Lifetimes { max_seconds: Some(900), extend: false };
        let body = json!({"spec": {}});
        let made = request_token(&cluster.objects, &tokens, strict, ("ns", "bot"), body, NOW).await.unwrap();
        assert_eq!(made.1, ["requested expiration of 3600 seconds shortened to 900 seconds"]);
    }
}
