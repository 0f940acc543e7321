//! Paths below an object that are something else than the object, and questions that are answered and not kept.

use api::field::{FieldErrors, Path};
use schema::decode;
use schema::types::At;
use serde_json::{Value, json};
use store::Health;

use super::answer::{self, Answer};
use super::asking::accepted_whole;
use super::body::{self, Body};
use super::verbs::{Serving, read_patch};
use crate::auth::review::{self, Access};
use crate::auth::service_account;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::body::parse;
use apiserver_core::kinds::component_status;
use apiserver_core::meta;
use apiserver_core::options::WriteOptions;

impl Serving<'_> {
    /// Serves one of them. Those that lead on to a node are elsewhere.
    pub(super) async fn subresource(&self, name: &str, body: Body) -> Result<Answer, ApiStatus> {
        let verb = &*self.asking.attributes.verb;
        if name != "scale" {
            // Before anything is done: who cannot read the answer does not get the act either.
            accepted_whole(&self.asking.head.headers)?;
        }
        match (name, verb) {
            ("scale", "get") => {
                let scale = self.registry.get_scale(&self.call(WriteOptions::default())).await?;
                let (accepted, _) = self.view()?;
                Ok(answer::document(200, &scale, accepted.format))
            }
            ("scale", "update") => {
                let mut call = self.call(self.write_options()?);
                let wanted = self.read_typed(body, "autoscaling", "v1", "Scale").await?;
                let written = self.registry.update_scale(&mut call, &wanted).await;
                self.written(&call, written)
            }
            ("scale", "patch") => {
                let mut call = self.call(self.write_options()?);
                let media_type = body::media_type(&self.asking.head.headers).to_owned();
                let (patch, _) = read_patch(&media_type, body, self.app.timeouts.body).await?;
                let written = self.registry.patch_scale(&mut call, &patch).await;
                self.written(&call, written)
            }
            ("binding", "create") => {
                let mut binding = self.read_typed(body, "", "v1", "Binding").await?;
                let call = self.call(self.write_options()?);
                self.registry.admit_binding(&call, &mut binding).await?;
                self.registry.bind(&call, &binding).await?;
                self.plain(201, &success())
            }
            ("eviction", "create") => {
                let eviction = self.read_typed(body, "policy", "v1", "Eviction").await?;
                let call = self.call(self.write_options()?);
                self.registry.admit_sent(&call, &eviction).await?;
                self.registry.evict(&call, &eviction).await?;
                self.plain(201, &success())
            }
            ("token", "create") => self.token(body).await,
            _ => Err(ApiStatus::no_resource()),
        }
    }

    /// A review kind, or the old way to bind.
    pub(super) async fn answer_question(&self, body: Body) -> Result<Answer, ApiStatus> {
        accepted_whole(&self.asking.head.headers)?;
        if self.kind.plural == "bindings" {
            let mut binding = self.read_typed(body, "", "v1", "Binding").await?;
            let mut call = self.call(self.write_options()?);
            self.registry.admit_binding(&call, &mut binding).await?;
            if let Some(resource) = &mut call.attributes.resource {
                meta::name(&binding).clone_into(&mut resource.name);
            }
            self.registry.bind(&call, &binding).await?;
            return self.plain(201, &success());
        }
        let sent = self.read_typed(body, &self.kind.group, &self.kind.version, &self.kind.kind).await?;
        let (user, authorizer) = (&self.asking.attributes.user, &*self.app.authorizer);
        let namespace = self.asking.attributes.resource.as_ref().map(|r| r.namespace.as_str());
        let namespace = namespace.unwrap_or_default();
        let access = |which, sent| review::access(&self.kind, sent, (which, namespace), user, authorizer);
        let answered = match &*self.kind.plural {
            "selfsubjectreviews" => review::own_user(sent, user),
            "tokenreviews" => review::token(sent, &self.app.authenticator).await?,
            "selfsubjectaccessreviews" => access(Access::Own, sent)?,
            "subjectaccessreviews" => access(Access::Anybody, sent)?,
            "localsubjectaccessreviews" => access(Access::Local, sent)?,
            "selfsubjectrulesreviews" => review::own_rules(sent, user, authorizer)?,
            _ => return Err(ApiStatus::no_resource()),
        };
        self.plain(201, &answered)
    }

    /// How the store does: told, not kept.
    pub(super) fn component_statuses(&self) -> Result<Answer, ApiStatus> {
        let store = component_status::store(ailment(&self.registry.store().health()));
        let call = self.call(WriteOptions::default());
        let mut answer = match (call.name(), self.wants_table()?) {
            ("", false) => {
                let list = json!({
                    "kind": self.kind.list_kind, "apiVersion": self.kind.api_version(), "metadata": {}, "items": [store],
                });
                self.document(200, &list)?
            }
            ("" | component_status::STORE, _) => self.document(200, &store)?,
            (other, _) => return Err(ApiStatus::not_found(&self.kind, other)),
        };
        answer::warn(&mut answer, &[component_status::DEPRECATED.to_owned()]);
        Ok(answer)
    }

    async fn token(&self, body: Body) -> Result<Answer, ApiStatus> {
        let mut sent = self.read_typed(body, "authentication.k8s.io", "v1", "TokenRequest").await?;
        let call = self.call(self.write_options()?);
        let said = meta::name(&sent);
        if !said.is_empty() && said != call.name() {
            let mut errors = FieldErrors::default();
            let at = Path::new("metadata").child("name");
            errors.invalid(&at, said, "must match the service account name if specified");
            return Err(ApiStatus::invalid(&self.kind, call.name(), &errors));
        }
        for (field, value) in [("name", call.name()), ("namespace", call.namespace())] {
            meta::metadata_mut(&mut sent).insert(field.to_owned(), value.into());
        }
        self.registry.admit_sent(&call, &sent).await?;
        let (answered, warnings) = service_account::request_token(
            &self.app.objects,
            &self.app.tokens,
            self.app.token_lifetimes,
            (call.namespace(), call.name()),
            sent,
            self.registry.now(),
        )
        .await?;
        let mut answer = self.plain(201, &answered)?;
        answer::warn(&mut answer, &warnings);
        Ok(answer)
    }

    /// Reads a body that is not of the path's own kind.
    async fn read_typed(
        &self,
        body: Body,
        group: &str,
        version: &str,
        kind: &str,
    ) -> Result<Value, ApiStatus> {
        let language = body::language(&self.asking.head.headers)?;
        let bytes = body::read(body, self.app.timeouts.body).await?;
        let mut value = parse(&bytes, language)?.value;
        let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        let said = value["kind"].as_str().unwrap_or(kind);
        if !value.is_object() || said != kind {
            return Err(ApiStatus::bad_request(format!(
                "{said} in version {:?} cannot be handled as a {kind}",
                value["apiVersion"].as_str().unwrap_or(version)
            )));
        }
        if let Some(at) = At::kind(group, version, kind) {
            decode::conform(&mut value, at).map_err(|e| {
                ApiStatus::bad_request(format!(
                    "{kind} in version {version:?} cannot be handled as a {kind}: {e}"
                ))
            })?;
        }
        value["apiVersion"] = api_version.into();
        value["kind"] = kind.into();
        self.check_place(&value)?;
        Ok(value)
    }

    /// What was allowed is in the namespace of the path: a body may not name another.
    fn check_place(&self, body: &Value) -> Result<(), ApiStatus> {
        let resource = self.asking.attributes.resource.as_ref();
        let namespace = resource.map(|r| r.namespace.as_str()).unwrap_or_default();
        let said = meta::namespace(body);
        if namespace.is_empty() || said.is_empty() || said == namespace {
            return Ok(());
        }
        Err(ApiStatus::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ))
    }

    fn plain(&self, code: u16, value: &Value) -> Result<Answer, ApiStatus> {
        Ok(answer::document(code, value, accepted_whole(&self.asking.head.headers)?))
    }
}

fn success() -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
}

/// What is wrong with the store; empty when nothing is.
fn ailment(health: &Health) -> &'static str {
    match health {
        Health::Good => "",
        Health::Full => "the disk is full",
        Health::Failing { .. } => "the store takes no writes",
        Health::Closed => "the store is closed",
    }
}
