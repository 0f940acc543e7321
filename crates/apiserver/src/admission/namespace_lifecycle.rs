//! NamespaceLifecycle: nothing new in a namespace that ends or is not there; some namespaces never end.

use apiserver_core::admission::{Operation, Review};
use serde_json::Value;

use super::Chain;
use crate::objects::places;
use apiserver_core::api_status::{ApiStatus, Cause, Details};
use apiserver_core::doc;

const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

pub(super) async fn admit(
    chain: &Chain,
    review: &Review<'_>,
    object: Option<&Value>,
) -> Result<(), ApiStatus> {
    let nothing = Value::Null;
    let object = object.or(review.old).unwrap_or(&nothing);
    if review.is_at("", "namespaces") {
        let name = review.name(object);
        if review.operation == Operation::Delete && IMMORTAL.contains(&name) {
            return Err(ApiStatus::forbidden(review.kind, name, "this namespace may not be deleted"));
        }
        return Ok(());
    }
    let namespace = review.namespace();
    let exempt = namespace.is_empty()
        || review.operation == Operation::Delete
        // To say that the namespace is not there would tell the asker something about it.
        || review.is_at("authorization.k8s.io", "localsubjectaccessreviews");
    if exempt {
        return Ok(());
    }
    let Some(found) = chain.objects.find(places::NAMESPACES, "", namespace).await? else {
        return Err(no_namespace(namespace));
    };
    if review.operation != Operation::Create || doc::text(&found.object, "status.phase") != "Terminating" {
        return Ok(());
    }
    let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
    Err(review.forbid(object, &why).with_causes(vec![Cause {
        reason: "NamespaceTerminating".to_owned(),
        message: format!("namespace {namespace} is being terminated"),
        field: "metadata.namespace".to_owned(),
    }]))
}

fn no_namespace(name: &str) -> ApiStatus {
    let mut api_status = places::NAMESPACES.not_found(name);
    let details = Details { name: name.to_owned(), kind: "namespaces".to_owned(), ..Details::default() };
    api_status.details = Some(Box::new(details));
    api_status
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::{Ask, Bench};
    use super::*;
    use serde_json::json;

    #[tokio::test]
    async fn only_living_namespaces_take_new_objects() {
        let ns = |name: &str, phase: &str| {
            (places::NAMESPACES, json!({"metadata": {"name": name}, "status": {"phase": phase}}))
        };
        let bench = Bench::with(&[ns("web", "Active"), ns("old", "Terminating")]).await;
        let pod = json!({"metadata": {"name": "p"}});
        let create = |ns: &str| Ask::create("", "configmaps", ns);
        let code = async |ask: Ask| {
            admit(&bench.chain, &ask.review(), Some(&pod)).await.map_err(|r| (r.code, r.message))
        };
        assert_eq!(code(create("web")).await, Ok(()));
        assert_eq!(code(create("none")).await, Err((404, "namespaces \"none\" not found".to_owned())));
        let (status, message) = code(create("old")).await.unwrap_err();
        assert_eq!(status, 403);
        assert_eq!(
            message,
            "configmaps \"p\" is forbidden: unable to create new content in namespace old because it is being terminated"
        );
        assert_eq!(code(create("old").update(pod.clone())).await, Ok(()));
        assert_eq!(code(create("none").delete(pod.clone())).await, Ok(()));
    }

    #[tokio::test]
    async fn some_namespaces_never_end() {
        let bench = Bench::with(&[]).await;
        for (name, code) in [("default", Some(403)), ("kube-system", Some(403)), ("web", None)] {
            let ask = Ask::create("", "namespaces", "").delete(json!({"metadata": {"name": name}}));
            let outcome = bench.chain.delete(&ask.review()).await;
            assert_eq!(outcome.err().map(|r| r.code), code, "{name}");
        }
    }
}
