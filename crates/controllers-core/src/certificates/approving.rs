//! Client certificates of kubelets: approved where whoever asks is allowed to have one made.

use base::time::Now;
use bytes::Bytes;
use serde_json::{Value, json};
use x509::Request;
use x509::signers::{self, AUTO_APPROVED, Approval};

use super::{Asked, RETRY};
use crate::controller::{Controller, Key, Row, Watch};
use crate::plan::{Act, Done, Outcome, Plan, Step, Target};
use crate::resource::CERTIFICATE_SIGNING_REQUESTS;
use crate::view::View;

pub(crate) const APPROVING: Row = Row {
    name: "certificatesigningrequest-approving-controller",
    aliases: &["csrapproving"],
    identity: "certificate-controller",
    event_source: "certificatesigningrequest-approving-controller",
    // Upstream calls this queue and that of the signers `certificate`, both.
    queue: "certificate_approving",
    workers: |_| 5,
    retry: RETRY,
    is_on_by_default: true,
    watches: &[Watch::itself(CERTIFICATE_SIGNING_REQUESTS)],
    reads: &[],
    is_single: false,
    make: |_| Box::new(Approving),
};

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

#[derive(Debug)]
struct Approving;

impl Controller for Approving {
    fn reconcile(&mut self, view: &dyn View, key: &Key, _now: Now) -> Plan {
        match rights(view, key) {
            Ok((asked, rights)) => rights.first().map_or_else(Plan::nothing, |right| review(&asked, right)),
            Err(plan) => plan,
        }
    }

    /// One right after the other is asked about, until one is there.
    fn settle(&mut self, view: &dyn View, key: &Key, _now: Now, done: &Done) -> Plan {
        let Some((Act::Post { .. }, Outcome::Done(answer))) = done.last().last() else {
            return Plan::nothing();
        };
        let (asked, rights) = match rights(view, key) {
            Ok(found) => found,
            Err(plan) => return plan,
        };
        let answer: Value = serde_json::from_slice(answer).unwrap_or_default();
        let tried = done.acts.iter().filter(|(act, _)| matches!(act, Act::Post { .. })).count();
        match (rights.get(tried.saturating_sub(1)), rights.get(tried)) {
            (Some(right), _) if answer["status"]["allowed"] == true => approve(view, key, &asked, right),
            (Some(_), Some(next)) => review(&asked, next),
            _ => {
                let names: Vec<&str> = rights.iter().map(|right| right.subresource).collect();
                Plan::failed(format!(
                    "recognized csr {:?} as [{}] but subject access review was not approved",
                    key.name,
                    names.join(" ")
                ))
            }
        }
    }
}

/// The request and the rights that would approve it. Err: there is nothing to ask.
fn rights(view: &dyn View, key: &Key) -> Result<(Asked, Vec<Approval>), Plan> {
    let request = view.get(CERTIFICATE_SIGNING_REQUESTS, "", &key.name).ok_or_else(Plan::nothing)?;
    let asked = Asked::open(&request).ok_or_else(Plan::nothing)?;
    // Cheap first: most requests are not a kubelet's.
    if asked.has("Approved") || asked.has("Denied") || asked.text("signerName") != signers::CLIENT_KUBELET {
        return Err(Plan::nothing());
    }
    // The signer says what is wrong with it.
    let Ok(wanted) = Request::from_spec(asked.text("request")) else { return Err(Plan::nothing()) };
    let rights =
        signers::approvals(asked.text("signerName"), asked.text("username"), &wanted, &asked.usages());
    Ok((asked, rights))
}

fn review(asked: &Asked, right: &Approval) -> Plan {
    let spec = &asked.value["spec"];
    let mut review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
        "user": asked.text("username"),
        "resourceAttributes": {"group": "certificates.k8s.io", "resource": "certificatesigningrequests",
            "verb": "create", "subresource": right.subresource, "version": "*"},
    }});
    for field in ["uid", "groups", "extra"] {
        if !spec[field].is_null() {
            review["spec"][field] = spec[field].clone();
        }
    }
    let body = Bytes::from(review.to_string());
    Plan::of(Step::in_turn([Act::Post { path: REVIEWS.to_owned(), body }]))
}

fn approve(view: &dyn View, key: &Key, asked: &Asked, right: &Approval) -> Plan {
    let Some(request) = view.get(CERTIFICATE_SIGNING_REQUESTS, "", &key.name) else { return Plan::nothing() };
    let mut whole = asked.value.clone();
    whole["status"] = asked.with(json!({
        "type": "Approved", "status": "True", "reason": AUTO_APPROVED, "message": right.message,
    }));
    let target = Target::at(&request, "approval");
    Plan::of(Step::in_turn([Act::Update { target, body: whole.to_string().into() }]))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{decided, request};
    use super::*;
    use crate::testing::{World, at};

    const NODE: (&str, &str) = ("system:node:n1", "system:nodes");
    const KUBELET: &[&str] = &["digital signature", "client auth"];

    /// Answers reviews one after the other.
    fn outcome(world: &World, allowed: &[bool]) -> (Vec<Value>, Plan) {
        let (mut done, mut asked) = (Done::default(), Vec::new());
        let key = Key::new("", "r");
        let mut plan = Approving.reconcile(&world.cache, &key, at(1));
        for allowed in allowed {
            let Some(act) = plan.acts().next().cloned() else { break };
            let Act::Post { path, .. } = &act else { break };
            assert_eq!(path, REVIEWS);
            asked.push(act.body()["spec"].clone());
            done.last = done.acts.len();
            done.rounds += 1;
            let answer = json!({"status": {"allowed": allowed}}).to_string();
            done.acts.push((act, Outcome::Done(answer.into())));
            plan = Approving.settle(&world.cache, &key, at(1), &done);
        }
        (asked, plan)
    }

    #[test]
    fn who_may_have_a_certificate_made_gets_it_approved() {
        let own = World::new([request(signers::CLIENT_KUBELET, NODE.0, NODE, &[], KUBELET)]);
        let first = World::new([request(signers::CLIENT_KUBELET, "system:bootstrap:a", NODE, &[], KUBELET)]);
        for (world, answers, asked, message) in [
            (
                &own,
                &[true][..],
                &["selfnodeclient"][..],
                "Auto approving self kubelet client certificate after SubjectAccessReview.",
            ),
            (
                &own,
                &[false, true],
                &["selfnodeclient", "nodeclient"],
                "Auto approving kubelet client certificate after SubjectAccessReview.",
            ),
            (
                &first,
                &[true],
                &["nodeclient"],
                "Auto approving kubelet client certificate after SubjectAccessReview.",
            ),
        ] {
            let (reviews, plan) = outcome(world, answers);
            let subresources: Vec<&Value> =
                reviews.iter().map(|spec| &spec["resourceAttributes"]["subresource"]).collect();
            assert_eq!(subresources, asked);
            let act = plan.acts().next().expect("an approval");
            assert_eq!(act.name(), "update certificatesigningrequests.certificates.k8s.io/approval r");
            assert_eq!(
                act.body()["status"]["conditions"],
                json!([{"type": "Approved", "status": "True", "reason": "AutoApproved", "message": message}])
            );
        }
        let (reviews, _) = outcome(&first, &[true]);
        assert_eq!(
            reviews[0],
            json!({"user": "system:bootstrap:a", "uid": "7", "groups": ["g"], "extra": {"k": ["v"]},
                "resourceAttributes": {"group": "certificates.k8s.io", "version": "*", "verb": "create",
                    "resource": "certificatesigningrequests", "subresource": "nodeclient"}})
        );
    }

    #[test]
    fn who_may_not_is_asked_about_again_later() {
        let world = World::new([request(signers::CLIENT_KUBELET, NODE.0, NODE, &[], KUBELET)]);
        let (_, plan) = outcome(&world, &[false, false]);
        assert_eq!(
            plan.failure.as_deref(),
            Some(
                "recognized csr \"r\" as [selfnodeclient nodeclient] but subject access review was not approved"
            )
        );
        assert!(!plan.has_acts());
    }

    #[test]
    fn what_needs_a_person_or_is_decided_is_left_alone() {
        let kubelet = || request(signers::CLIENT_KUBELET, NODE.0, NODE, &[], KUBELET);
        for (row, object) in [
            (
                "serving",
                request(signers::SERVING, NODE.0, NODE, &["n1"], &["digital signature", "server auth"]),
            ),
            ("a person's", request(signers::CLIENT, "jane", ("jane", "dev"), &[], &["client auth"])),
            ("names", request(signers::CLIENT_KUBELET, NODE.0, NODE, &["n1"], KUBELET)),
            ("usages", request(signers::CLIENT_KUBELET, NODE.0, NODE, &[], &["client auth"])),
            ("approved", decided(kubelet(), &["Approved"])),
            ("denied", decided(kubelet(), &["Denied"])),
            ("issued", kubelet().set("/status/certificate", json!("x"))),
            ("nonsense", kubelet().set("/spec/request", json!("bm9uc2Vuc2U="))),
        ] {
            let (asked, plan) = outcome(&World::new([object]), &[true]);
            assert!(asked.is_empty() && plan == Plan::nothing(), "{row}");
        }
        assert_eq!(outcome(&World::new([]), &[true]).1, Plan::nothing());
    }
}
