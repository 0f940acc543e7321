//! Claims on devices: who may use them for administration, and who may say which were given and what became of them.
//! Upstream checks this in its registry; it needs the namespace and the authorizer, so it is done here.

use apiserver_core::admission::{Operation, Review};
use std::collections::BTreeSet;

use api::field::{FieldErrors, Path};
use serde_json::Value;

use super::Chain;
use crate::objects::places;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::auth::authz;
use apiserver_core::doc;
use apiserver_core::kinds::device::claim::{DeviceKey, device_key};
use apiserver_core::request::{Attributes, Resource, User};

const GROUP: &str = "resource.k8s.io";
const ADMIN_LABEL: &str = "resource.kubernetes.io/admin-access";
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

pub(super) async fn validate(chain: &Chain, review: &Review<'_>, object: &Value) -> Result<(), ApiStatus> {
    if review.kind.group != GROUP {
        return Ok(());
    }
    let mut errors = FieldErrors::default();
    match (review.operation, &*review.kind.plural, review.subresource()) {
        (Operation::Create, "resourceclaims", "") => {
            let asked = in_requests(object, "spec.devices.requests");
            admin(chain, review, &mut errors, asked).await?;
        }
        (Operation::Create, "resourceclaimtemplates", "") => {
            let asked = in_requests(object, "spec.spec.devices.requests");
            admin(chain, review, &mut errors, asked).await?;
        }
        (Operation::Update, "resourceclaims", "status") => {
            let old = review.old.unwrap_or(&Value::Null);
            let asked = in_results(object).filter(|_| in_results(old).is_none());
            admin(chain, review, &mut errors, asked).await?;
            binding(chain, review, &mut errors, object, old);
            devices(chain, review, &mut errors, object, old);
        }
        _ => {}
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(ApiStatus::invalid(review.kind, review.name(object), &errors))
    }
}

fn in_requests(object: &Value, path: &str) -> Option<Path> {
    let asked = doc::list(object, path).iter().position(|r| r["exactly"]["adminAccess"] == true)?;
    Some(Path::new("spec.devices.requests").index(asked).child("adminAccess"))
}

fn in_results(object: &Value) -> Option<Path> {
    let path = "status.allocation.devices.results";
    let given = doc::list(object, path).iter().position(|r| r["adminAccess"] == true)?;
    Some(Path::new(path).index(given).child("adminAccess"))
}

async fn admin(
    chain: &Chain,
    review: &Review<'_>,
    errors: &mut FieldErrors,
    asked: Option<Path>,
) -> Result<(), ApiStatus> {
    let Some(at) = asked else { return Ok(()) };
    let found = chain.objects.find(places::NAMESPACES, "", review.namespace()).await?;
    let labelled = found.is_some_and(|ns| ns.object["metadata"]["labels"][ADMIN_LABEL] == "true");
    if !labelled {
        let message = format!(
            "admin access to devices requires the `{ADMIN_LABEL}: true` label on the containing namespace"
        );
        errors.forbidden(&at, &message);
    }
    Ok(())
}

/// Giving devices out, and taking them back, is the scheduler's right.
fn binding(chain: &Chain, review: &Review<'_>, errors: &mut FieldErrors, new: &Value, old: &Value) {
    let same = |path: &str| doc::same(doc::at(new, path), doc::at(old, path));
    if same("status.allocation") && same("status.reservedFor") {
        return;
    }
    let verb = review.attributes.verb.to_string();
    if let Err(why) = may(chain, review, &verb, ("binding", "", "")) {
        let message = format!(
            "changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\", \
             verb=\"{verb}\" permission: {why}"
        );
        errors.forbidden(&Path::new("status.allocation"), &message);
    }
}

/// What became of a device is for its driver to tell: on the node of the claim, or anywhere.
fn devices(chain: &Chain, review: &Review<'_>, errors: &mut FieldErrors, new: &Value, old: &Value) {
    if doc::at(new, "status.allocation").is_null() {
        return;
    }
    let request = &review.attributes.verb;
    let here = node_of(new).is_some_and(|node| is_on(review.user(), node));
    let prefixes: &[&str] =
        if here { &["associated-node:", "arbitrary-node:"] } else { &["arbitrary-node:"] };
    let verbs: Vec<String> = prefixes.iter().map(|prefix| format!("{prefix}{request}")).collect();
    for driver in changed_drivers(new, old) {
        let mut statuses =
            verbs.iter().map(|verb| may(chain, review, verb, ("driver", review.namespace(), driver)));
        let Some(Err(first)) = statuses.next() else { continue };
        if statuses.any(|r| r.is_ok()) {
            continue;
        }
        let message = format!(
            "changing status.devices requires resource=\"resourceclaims/driver\", verb=\"[{}]\" permission: {first}",
            verbs.join(" ")
        );
        errors.forbidden(&Path::new("status.devices"), &message);
    }
}

fn changed_drivers<'v>(new: &'v Value, old: &'v Value) -> BTreeSet<&'v str> {
    let told = |claim: &'v Value| doc::list(claim, "status.devices").iter();
    let find = |claim: &'v Value, key: DeviceKey<'v>| told(claim).find(|d| device_key(d) == key);
    let differs = |a: &'v Value, b: &'v Value| {
        told(a).filter(move |d| find(b, device_key(d)).is_none_or(|o| !doc::same(o, d)))
    };
    differs(new, old).chain(differs(old, new)).map(|d| doc::text(d, "driver")).collect()
}

/// The one node whose devices were given.
fn node_of(claim: &Value) -> Option<&str> {
    let [term] = doc::list(claim, "status.allocation.nodeSelector.nodeSelectorTerms") else { return None };
    let [field] = doc::list(term, "matchFields") else { return None };
    let [name] = doc::list(field, "values") else { return None };
    let plain = doc::list(term, "matchExpressions").is_empty();
    (plain && field["key"] == "metadata.name" && field["operator"] == "In").then(|| name.as_str())?
}

/// Whether a user is a service account whose token is bound to the node.
fn is_on(user: &User, node: &str) -> bool {
    let bound = user.extra.get(NODE_NAME).map(Vec::as_slice);
    user.name.starts_with("system:serviceaccount:") && matches!(bound, Some([name]) if name == node)
}

fn may(
    chain: &Chain,
    review: &Review<'_>,
    verb: &str,
    (subresource, namespace, name): (&str, &str, &str),
) -> Result<(), String> {
    let resource = Resource {
        group: GROUP.into(),
        version: review.kind.version.to_string(),
        plural: "resourceclaims".into(),
        subresource: subresource.into(),
        namespace: namespace.into(),
        name: name.into(),
        ..Resource::default()
    };
    let attributes = Attributes {
        user: review.attributes.user.clone(),
        verb: verb.to_owned().into(),
        path: String::new(),
        resource: Some(resource),
    };
    if chain.authorizer.authorize(&attributes).is_allowed() {
        return Ok(());
    }
    Err(authz::forbidden(&attributes, "").message)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::{Ask, Bench};
    use super::*;
    use apiserver_core::auth::rbac::RbacKind;
    use serde_json::json;

    async fn bench() -> Bench {
        let namespace =
            |name: &str, value: &str| json!({"metadata": {"name": name, "labels": {ADMIN_LABEL: value}}});
        Bench::with(&[
            (places::NAMESPACES, namespace("admin", "true")),
            (places::NAMESPACES, namespace("web", "false")),
        ])
        .await
    }

    #[tokio::test]
    async fn devices_are_administered_from_a_labelled_namespace_only() {
        let bench = bench().await;
        let claim = json!({"metadata": {"name": "c"}, "spec": {"devices": {"requests": [
            {"name": "a", "exactly": {}}, {"name": "b", "exactly": {"adminAccess": true}}]}}});
        let template = json!({"metadata": {"name": "t"}, "spec": {"spec": claim["spec"]}});
        for (plural, object) in [("resourceclaims", &claim), ("resourceclaimtemplates", &template)] {
            let ask = Ask::create(GROUP, plural, "admin");
            validate(&bench.chain, &ask.review(), object).await.unwrap();
            let ask = Ask::create(GROUP, plural, "web");
            let api_status = validate(&bench.chain, &ask.review(), object).await.unwrap_err();
            assert!(
                api_status
                    .message
                    .contains("spec.devices.requests[1].adminAccess: Forbidden: admin access to devices"),
                "{}",
                api_status.message
            );
        }
    }

    #[tokio::test]
    async fn a_claims_status_is_written_part_by_part_by_those_who_may() {
        let bench = bench().await;
        let rbac = bench.chain.authorizer.rbac();
        let rule = |verbs: &[&str], resource: &str| json!({"verbs": verbs, "apiGroups": [GROUP], "resources": [resource]});
        let roles = [
            ("scheduler", rule(&["update"], "resourceclaims/binding"), "jane"),
            (
                "driver",
                rule(&["associated-node:update"], "resourceclaims/driver"),
                "system:serviceaccount:web:driver",
            ),
        ];
        for (name, rule, user) in roles {
            rbac.put(RbacKind::ClusterRole, &json!({"metadata": {"name": name}, "rules": [rule]}));
            rbac.put(
                RbacKind::ClusterRoleBinding,
                &json!({"metadata": {"name": name}, "roleRef": {"kind": "ClusterRole", "name": name},
                    "subjects": [{"kind": "User", "name": user}]}),
            );
        }
        let free = json!({"metadata": {"name": "c"}, "status": {}});
        let mut given = free.clone();
        let fields = json!([{"key": "metadata.name", "operator": "In", "values": ["n1"]}]);
        given["status"]["allocation"] = json!({
            "devices": {"results": [{"request": "a", "driver": "d", "pool": "p", "device": "x"}]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
        });
        let mut told = given.clone();
        told["status"]["devices"] = json!([{"driver": "d", "pool": "p", "device": "x"}]);
        let on = |node: &str| {
            let mut user = User::new("system:serviceaccount:web:driver", &[]);
            user.extra.insert(NODE_NAME.to_owned(), vec![node.to_owned()]);
            user
        };
        let write = async |user: User, new: &Value, old: &Value| {
            let mut ask = Ask::create(GROUP, "resourceclaims/status", "web").update(old.clone()).by(user);
            ask.verb("update");
            validate(&bench.chain, &ask.review(), new).await.map_err(|r| r.message)
        };
        let jane = || User::new("jane", &[]);
        write(jane(), &given, &free).await.unwrap();
        let refused = write(on("n1"), &given, &free).await.unwrap_err();
        assert!(
            refused.contains("requires resource=\"resourceclaims/binding\", verb=\"update\" permission"),
            "{refused}"
        );
        write(on("n1"), &told, &given).await.unwrap();
        let refused = write(on("n2"), &told, &given).await.unwrap_err();
        assert!(
            refused.contains("changing status.devices requires resource=\"resourceclaims/driver\""),
            "{refused}"
        );
        assert!(write(jane(), &told, &given).await.is_err());
        write(jane(), &told, &told).await.unwrap();
    }
}
