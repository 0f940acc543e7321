//! Questions to the server: they are answered and never kept.

use crate::kind::{Kind, Strategy, Verb};

const ASK: &[Verb] = &[Verb::Create];

pub(super) fn kinds() -> Vec<Kind> {
    let cluster = [
        ("authentication.k8s.io", "SelfSubjectReview", "selfsubjectreviews"),
        ("authentication.k8s.io", "TokenReview", "tokenreviews"),
        ("authorization.k8s.io", "SelfSubjectAccessReview", "selfsubjectaccessreviews"),
        ("authorization.k8s.io", "SelfSubjectRulesReview", "selfsubjectrulesreviews"),
        ("authorization.k8s.io", "SubjectAccessReview", "subjectaccessreviews"),
    ];
    let ask = |(group, kind, plural)| Kind::new(group, "v1", kind, plural, Review).verbs(ASK).stored_as("");
    let local = ("authorization.k8s.io", "LocalSubjectAccessReview", "localsubjectaccessreviews");
    cluster.into_iter().map(|k| ask(k).cluster_scoped()).chain([ask(local)]).collect()
}

#[derive(Debug)]
struct Review;

impl Strategy for Review {}
