//! What happens between "you may" and "it is written": plugins that complete an object, and plugins that refuse it.
//! One file each; the order of the lines below is upstream's, and matters.

use std::sync::Arc;

use apiserver_core::admission::{Review, Warnings, certificate, node_taint, storage_protection, tolerations};
use serde_json::Value;

use crate::objects::Objects;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::auth::authz::Authorizer;
use apiserver_core::auth::escalation;
use apiserver_core::auth::rbac::RbacKind;

mod default_class;
mod device_claims;
mod limit_range;
mod namespace_lifecycle;
mod node_restriction;
mod pod_security;
mod pod_topology;
mod priority;
mod quota;
mod runtime_class;
mod service_account;
mod volume_resize;

pub use priority::system_classes;
pub use quota::{follow as follow_quotas, recount as recount_quota};

/// All plugins, with what they look at.
#[derive(Clone, Debug)]
pub struct Chain {
    objects: Objects,
    authorizer: Arc<Authorizer>,
}

// === impl Chain ===

impl Chain {
    #[must_use]
    pub fn new(objects: Objects, authorizer: Arc<Authorizer>) -> Chain {
        Chain { objects, authorizer }
    }

    /// Completes the object, or refuses it early. Runs after defaulting, before validation.
    pub async fn mutate(&self, review: &Review<'_>, object: &mut Value) -> Result<Warnings, ApiStatus> {
        namespace_lifecycle::admit(self, review, Some(object)).await?;
        limit_range::mutate(self, review, object).await?;
        service_account::mutate(self, review, object).await?;
        node_restriction::admit(self, review, Some(object)).await?;
        node_taint::mutate(review, object);
        priority::mutate(self, review, object).await?;
        tolerations::mutate(review, object);
        default_class::mutate_claim(self, review, object).await?;
        storage_protection::mutate(review, object);
        runtime_class::mutate(self, review, object).await?;
        certificate::mutate(review, object);
        default_class::mutate_ingress(self, review, object).await?;
        pod_topology::mutate(self, review, object).await?;
        Ok(Warnings::new())
    }

    /// Refuses what must not be. Runs last, on the object as it would be written.
    pub async fn validate(&self, review: &Review<'_>, object: &Value) -> Result<Warnings, ApiStatus> {
        self.confirm_rights(review, object)?;
        limit_range::validate(self, review, object).await?;
        service_account::validate(self, review, object).await?;
        let warnings = pod_security::validate(self, review, object).await?;
        priority::validate(self, review, object).await?;
        volume_resize::validate(self, review, object).await?;
        runtime_class::validate(self, review, object).await?;
        certificate::validate(&self.authorizer, review, object)?;
        device_claims::validate(self, review, object).await?;
        // Last: what is refused for another reason must not be counted.
        quota::validate(self, review, object).await?;
        Ok(warnings)
    }

    /// A write that was allowed did not come about: what was reserved for it is free again.
    pub async fn withdraw(&self, review: &Review<'_>, object: &Value) {
        quota::give_back(self, review, object).await;
    }

    /// Whether the object may be deleted.
    pub async fn delete(&self, review: &Review<'_>) -> Result<(), ApiStatus> {
        namespace_lifecycle::admit(self, review, None).await?;
        node_restriction::admit(self, review, None).await
    }

    /// Whether this may be sent to a subresource that stores nothing by itself: a token request, an eviction.
    pub async fn send(&self, review: &Review<'_>, sent: &Value) -> Result<(), ApiStatus> {
        namespace_lifecycle::admit(self, review, Some(sent)).await?;
        node_restriction::admit(self, review, Some(sent)).await
    }

    /// Whether a Pod may be bound like this; completes the Binding.
    pub async fn bind(&self, review: &Review<'_>, binding: &mut Value) -> Result<(), ApiStatus> {
        self.send(review, binding).await?;
        pod_topology::mutate_binding(self, review, binding).await
    }

    /// Nobody writes a role or a binding that gives more than they have.
    fn confirm_rights(&self, review: &Review<'_>, object: &Value) -> Result<(), ApiStatus> {
        if review.kind.group != "rbac.authorization.k8s.io" {
            return Ok(());
        }
        let Some(kind) = RbacKind::ALL.into_iter().find(|k| k.plural() == review.kind.plural) else {
            return Ok(());
        };
        escalation::confirm(&self.authorizer, review.attributes, kind, object, review.old)
            .map_err(|why| review.forbid(object, &why))
    }
}

/// Tools of the plugins' tests.
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod testing {
    use super::*;
    use crate::objects::Place;
    use crate::objects::testing::Scratch;
    use apiserver_core::admission::Operation;
    use apiserver_core::doc;
    use apiserver_core::kind::Kind;
    use apiserver_core::kinds;
    use apiserver_core::request::{Attributes, Resource, User};
    use base::time::Wall;

    pub(super) const NOW: Wall = Wall(1_800_000_000_000_000_000);

    pub(super) struct Bench {
        pub(super) chain: Chain,
        pub(super) scratch: Scratch,
    }

    /// A request on a resource, by somebody.
    pub(super) struct Ask {
        kind: Kind,
        attributes: Attributes,
        operation: Operation,
        old: Option<Value>,
    }

    impl Bench {
        pub(super) async fn with(items: &[(Place, Value)]) -> Bench {
            let scratch = Scratch::new().with(items).await;
            let chain = Chain::new(scratch.objects.clone(), Arc::new(Authorizer::default()));
            Bench { chain, scratch }
        }
    }

    impl Ask {
        pub(super) fn create(group: &str, path: &str, namespace: &str) -> Ask {
            let (plural, subresource) = path.split_once('/').unwrap_or((path, ""));
            let mut kind = kinds::all().remove(0);
            kind.group = group.to_owned().into();
            kind.plural = plural.to_owned().into();
            kind.storage =
                if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }.into();
            kind.scope = apiserver_core::kind::Scope::Namespaced;
            if namespace.is_empty() {
                kind.scope = apiserver_core::kind::Scope::Cluster;
            }
            let resource = Resource {
                group: group.into(),
                plural: plural.into(),
                subresource: subresource.into(),
                namespace: namespace.into(),
                ..Resource::default()
            };
            let user = Arc::new(User::new("jane", &["dev"]));
            let attributes =
                Attributes { user, verb: "create".into(), resource: Some(resource), ..Attributes::default() };
            Ask { kind, attributes, operation: Operation::Create, old: None }
        }

        pub(super) fn by(mut self, user: User) -> Ask {
            self.attributes.user = Arc::new(user);
            self
        }

        pub(super) fn update(mut self, old: Value) -> Ask {
            self.operation = Operation::Update;
            self.name(doc::text(&old, "metadata.name").to_owned());
            self.old = Some(old);
            self
        }

        pub(super) fn delete(mut self, old: Value) -> Ask {
            self = self.update(old);
            self.operation = Operation::Delete;
            self
        }

        pub(super) fn verb(&mut self, verb: &'static str) {
            self.attributes.verb = verb.into();
        }

        fn name(&mut self, name: String) {
            if let Some(resource) = &mut self.attributes.resource {
                resource.name = name;
            }
        }

        pub(super) fn review(&self) -> Review<'_> {
            Review {
                kind: &self.kind,
                attributes: &self.attributes,
                operation: self.operation,
                old: self.old.as_ref(),
                dry_run: false,
                now: NOW,
            }
        }
    }
}
