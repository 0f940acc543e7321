//! DefaultStorageClass and DefaultIngressClass: the class of what names none.

use apiserver_core::admission::{Operation, Review};
use serde_json::Value;

use super::Chain;
use crate::objects::{Place, places};
use apiserver_core::api_status::ApiStatus;
use apiserver_core::doc;

const STORAGE: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
const INGRESS: [&str; 1] = ["ingressclass.kubernetes.io/is-default-class"];

pub(super) async fn mutate_claim(
    chain: &Chain,
    review: &Review<'_>,
    claim: &mut Value,
) -> Result<(), ApiStatus> {
    let named = !claim["spec"]["storageClassName"].is_null()
        || claim["metadata"]["annotations"].get("volume.beta.kubernetes.io/storage-class").is_some();
    if !review.is_on("", "persistentvolumeclaims") || review.operation != Operation::Create || named {
        return Ok(());
    }
    if let Some(name) = newest(chain, places::STORAGE_CLASSES, &STORAGE).await? {
        doc::set(claim, "spec.storageClassName", name);
    }
    Ok(())
}

pub(super) async fn mutate_ingress(
    chain: &Chain,
    review: &Review<'_>,
    ingress: &mut Value,
) -> Result<(), ApiStatus> {
    let named = !ingress["spec"]["ingressClassName"].is_null()
        || ingress["metadata"]["annotations"].get("kubernetes.io/ingress.class").is_some();
    if !review.is_on("networking.k8s.io", "ingresses") || review.operation != Operation::Create || named {
        return Ok(());
    }
    if let Some(name) = newest(chain, places::INGRESS_CLASSES, &INGRESS).await? {
        doc::set(ingress, "spec.ingressClassName", name);
    }
    Ok(())
}

/// The default; of several the one made last, of those made together the first by name.
async fn newest(chain: &Chain, place: Place, marks: &[&str]) -> Result<Option<String>, ApiStatus> {
    let all = chain.objects.list(place, "").await?;
    let marked = all.iter().map(|s| &*s.object).filter(|class| {
        let annotations = &class["metadata"]["annotations"];
        marks.iter().any(|mark| annotations[mark] == "true")
    });
    let made = |class: &&Value| doc::text(class, "metadata.creationTimestamp").to_owned();
    let best = marked.min_by_key(|c| (std::cmp::Reverse(made(c)), doc::text(c, "metadata.name").to_owned()));
    Ok(best.map(|class| doc::text(class, "metadata.name").to_owned()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::{Ask, Bench};
    use super::*;
    use serde_json::json;

    #[tokio::test]
    async fn the_newest_default_is_taken_where_none_is_named() {
        let class = |name: &str, made: &str, default: &str| {
            (
                places::STORAGE_CLASSES,
                json!({"metadata": {"name": name, "creationTimestamp": made,
                "annotations": {STORAGE[0]: default}}}),
            )
        };
        let bench = Bench::with(&[
            class("old", "2026-01-01T00:00:00Z", "true"),
            class("new", "2026-02-01T00:00:00Z", "true"),
            class("other", "2026-03-01T00:00:00Z", "false"),
        ])
        .await;
        for (given, expected) in
            [(json!(null), json!("new")), (json!(""), json!("")), (json!("x"), json!("x"))]
        {
            let mut claim = json!({"spec": {"storageClassName": given}});
            let ask = Ask::create("", "persistentvolumeclaims", "web");
            mutate_claim(&bench.chain, &ask.review(), &mut claim).await.unwrap();
            assert_eq!(claim["spec"]["storageClassName"], expected);
        }
    }
}
