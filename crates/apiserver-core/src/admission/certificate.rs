//! CertificateApproval, CertificateSigning and CertificateSubjectRestriction: who may say yes to a signing request,
//! who may answer it, and what nobody may ask for.

use std::sync::Arc;

use serde_json::Value;

use super::{Operation, Review};
use crate::api_status::ApiStatus;
use crate::auth::authz::Authorizer;
use crate::auth::csr;
use crate::doc;
use crate::request::{Attributes, Resource, User, groups};

/// A request says who made it, whatever its maker wrote there.
pub fn mutate(review: &Review<'_>, object: &mut Value) {
    if !review.is_on("certificates.k8s.io", "certificatesigningrequests")
        || review.operation != Operation::Create
    {
        return;
    }
    let user = review.user().to_json();
    for (field, value) in [("uid", &user["uid"]), ("groups", &user["groups"]), ("extra", &user["extra"])] {
        match (value.is_null(), object["spec"].as_object_mut()) {
            (true, Some(spec)) => drop(spec.remove(field)),
            _ => object["spec"][field] = value.clone(),
        }
    }
    object["spec"]["username"] = user["username"].clone();
}

pub fn validate(authorizer: &Authorizer, review: &Review<'_>, object: &Value) -> Result<(), ApiStatus> {
    if review.is_on("certificates.k8s.io", "clustertrustbundles") {
        return attest(authorizer, review, object);
    }
    if !review.is_at("certificates.k8s.io", "certificatesigningrequests") {
        return Ok(());
    }
    // The signer cannot change: the one that counts is the one that is stored.
    let signer = doc::text(review.old.unwrap_or(object), "spec.signerName");
    match (review.operation, review.subresource()) {
        (Operation::Create, "") => {
            restrict_subject(signer, object).map_err(|why| review.forbid(object, &why))
        }
        (Operation::Update, "approval") => confirm(authorizer, review, object, "approve", signer),
        (Operation::Update, "status") => {
            let old = review.old.unwrap_or(&Value::Null);
            let same = |field: &str| old["status"][field] == object["status"][field];
            if same("certificate") && same("conditions") {
                return Ok(());
            }
            confirm(authorizer, review, object, "sign", signer)
        }
        _ => Ok(()),
    }
}

/// Whether the user may approve or sign for a signer, by its name or by all of its domain (`example.com/*`).
fn may(authorizer: &Authorizer, user: &Arc<User>, verb: &'static str, signer: &str) -> bool {
    let domain = signer.split('/').next().unwrap_or_default();
    [signer.to_owned(), format!("{domain}/*")].into_iter().any(|name| {
        let resource = Resource {
            group: "certificates.k8s.io".into(),
            version: "*".into(),
            plural: "signers".into(),
            name,
            ..Resource::default()
        };
        let attributes = Attributes {
            user: user.clone(),
            verb: verb.into(),
            path: String::new(),
            resource: Some(resource),
        };
        authorizer.authorize(&attributes).is_allowed()
    })
}

fn confirm(
    authorizer: &Authorizer,
    review: &Review<'_>,
    object: &Value,
    verb: &'static str,
    signer: &str,
) -> Result<(), ApiStatus> {
    if may(authorizer, &review.attributes.user, verb, signer) {
        return Ok(());
    }
    Err(review.forbid(object, &format!("user not permitted to {verb} requests with signerName {signer:?}")))
}

/// Whoever speaks for a signer has to be its man. What only concerns its owners and finalizers says nothing for it.
fn attest(authorizer: &Authorizer, review: &Review<'_>, object: &Value) -> Result<(), ApiStatus> {
    let signer = doc::text(object, "spec.signerName");
    let writes = matches!(review.operation, Operation::Create | Operation::Update);
    let said = ["spec", "metadata.labels", "metadata.annotations"];
    let says_the_same =
        review.old.is_some_and(|old| said.iter().all(|field| doc::at(old, field) == doc::at(object, field)));
    if signer.is_empty() || !writes || says_the_same {
        return Ok(());
    }
    if may(authorizer, &review.attributes.user, "attest", signer) {
        return Ok(());
    }
    Err(review.forbid(object, &format!("user not permitted to attest for signerName {signer:?}")))
}

/// A client certificate for the group that may do everything would be a way around every role.
fn restrict_subject(signer: &str, object: &Value) -> Result<(), String> {
    if signer != csr::CLIENT {
        return Ok(());
    }
    let request = csr::request(object).map_err(|e| format!("failed to parse CSR: {e}"))?;
    if request.organizations.iter().any(|o| o == groups::MASTERS) {
        return Err(format!("use of {signer} signer with {} group is not allowed", groups::MASTERS));
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::Ask;
    use super::*;
    use crate::auth::rbac::RbacKind;
    use serde_json::json;

    #[test]
    fn approving_and_signing_are_rights_on_the_signer() {
        let authorizer = Authorizer::default();
        let rbac = authorizer.rbac();
        let rule = |verb: &str, name: &str| json!({"verbs": [verb], "apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "resourceNames": [name]});
        rbac.put(
            RbacKind::ClusterRole,
            &json!({"metadata": {"name": "r"}, "rules": [rule("approve", "example.com/a"), rule("sign", "example.com/*")]}),
        );
        rbac.put(
            RbacKind::ClusterRoleBinding,
            &json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "r"},
                "subjects": [{"kind": "User", "name": "jane"}]}),
        );
        let object = |signer: &str, certificate: &str| json!({"metadata": {"name": "c"}, "spec": {"signerName": signer}, "status": {"certificate": certificate}});
        let allowed = |sub: &str, signer: &str| {
            let path = format!("certificatesigningrequests/{sub}");
            let ask = Ask::create("certificates.k8s.io", &path, "").update(object(signer, ""));
            validate(&authorizer, &ask.review(), &object(signer, "x")).map_err(|r| r.message)
        };
        assert_eq!(allowed("approval", "example.com/a"), Ok(()));
        assert_eq!(allowed("status", "example.com/b"), Ok(()));
        assert_eq!(
            allowed("approval", "example.com/b").unwrap_err(),
            "certificatesigningrequests.certificates.k8s.io \"c\" is forbidden: user not permitted to approve \
             requests with signerName \"example.com/b\""
        );
        assert!(allowed("status", "other.com/b").is_err());
    }

    #[test]
    fn to_speak_for_a_signer_is_a_right() {
        let authorizer = Authorizer::default();
        let rbac = authorizer.rbac();
        let rule = json!({"verbs": ["attest"], "apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "resourceNames": ["example.com/a"]});
        rbac.put(RbacKind::ClusterRole, &json!({"metadata": {"name": "r"}, "rules": [rule]}));
        rbac.put(
            RbacKind::ClusterRoleBinding,
            &json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "r"},
                "subjects": [{"kind": "User", "name": "jane"}]}),
        );
        let bundle = |signer: &str, text: &str| json!({"metadata": {"name": "c"}, "spec": {"signerName": signer, "trustBundle": text}});
        let ask = Ask::create("certificates.k8s.io", "clustertrustbundles", "");
        let made = |signer: &str| validate(&authorizer, &ask.review(), &bundle(signer, "x"));
        assert!(made("example.com/a").is_ok() && made("").is_ok());
        assert!(
            made("example.com/b")
                .unwrap_err()
                .message
                .ends_with("user not permitted to attest for signerName \"example.com/b\"")
        );
        let ask = Ask::create("certificates.k8s.io", "clustertrustbundles", "")
            .update(bundle("example.com/b", "x"));
        assert!(validate(&authorizer, &ask.review(), &bundle("example.com/b", "x")).is_ok(), "nothing new");
        assert!(validate(&authorizer, &ask.review(), &bundle("example.com/b", "y")).is_err());
    }

    #[test]
    fn a_request_names_its_real_maker() {
        let ask = Ask::create("certificates.k8s.io", "certificatesigningrequests", "");
        let mut object = json!({"spec": {"username": "root", "groups": ["system:masters"], "uid": "0"}});
        mutate(&ask.review(), &mut object);
        assert_eq!(object["spec"], json!({"username": "jane", "groups": ["dev"]}));
    }
}
