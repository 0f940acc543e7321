//! The verbs, from HTTP to the registry and back.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header;
use schema::decode::Parsed;
use schema::protobuf;
use schema::types::At;
use serde_json::{Value, json};

use super::accept::{Accepted, Format, OFFERED, PROTOBUF, Shape};
use super::answer::{self, Answer};
use super::asking::{Asking, accepted, header_text};
use super::body::Body;
use super::shape::{self, Include, View};
use super::{App, body, list_body, room, stream};
use crate::registry::patch::{self, Patch};
use crate::registry::{Outcome, Registry, Written};
use apiserver_core::api_status::ApiStatus;
use apiserver_core::asked::{self, Listing};
use apiserver_core::body::{Language, parse, read_object};
use apiserver_core::call::Call;
use apiserver_core::document::Document;
use apiserver_core::kind::Kind;
use apiserver_core::kinds::node_metrics;
use apiserver_core::meta;
use apiserver_core::options::{DeleteOptions, ListOptions, WriteOptions};
use apiserver_core::selection::{Selection, present};

/// How long a watch lasts when the client does not say: half an hour to an hour, so that they do not all end at once.
const WATCH_LEAST: u64 = 1800;

/// Serves a request for a resource that was authorized.
pub(crate) async fn serve(app: &App, asking: Asking, body: Body) -> Result<Answer, ApiStatus> {
    let Some(resource) = &asking.attributes.resource else { return Err(ApiStatus::no_resource()) };
    let kind = app.registry.kind(&resource.group, &resource.version, &resource.plural)?;
    // A namespaced path for a kind without namespaces, or the other way round, is no path at all.
    let is_namespace_itself =
        resource.group.is_empty() && resource.plural == "namespaces" && resource.name == resource.namespace;
    let placed = !resource.namespace.is_empty() && !is_namespace_itself;
    let needs_place =
        kind.is_namespaced() && (!resource.name.is_empty() || asking.attributes.verb == "create");
    let named_by_selector = matches!(&*asking.attributes.verb, "list" | "watch" | "deletecollection");
    if (placed && !kind.is_namespaced()) || (!placed && needs_place && !named_by_selector && kind.is_stored())
    {
        return Err(ApiStatus::no_resource());
    }
    if !resource.subresource.is_empty() {
        check_subresource(&kind, &asking)?;
    } else {
        check_verb(&kind, &asking)?;
    }
    if let Some(fault) = &asking.fault {
        return Err(fault.clone());
    }
    let mut serving = Serving { app, registry: &app.registry, kind, asking };
    serving.dispatch(body).await
}

fn check_verb(kind: &Kind, asking: &Asking) -> Result<(), ApiStatus> {
    let verb = &*asking.attributes.verb;
    // The old paths watch whatever the method is.
    let fits = verb != "watch" || asked::verb_of(&asking.head.method) == Some("get");
    if fits && kind.verbs.iter().any(|v| v.as_str() == verb) {
        return Ok(());
    }
    Err(ApiStatus::method_not_allowed())
}

fn check_subresource(kind: &Kind, asking: &Asking) -> Result<(), ApiStatus> {
    let resource = asking.attributes.resource.as_ref();
    let name = resource.map(|r| r.subresource.as_str()).unwrap_or_default();
    let sub = kind.subresource(name).ok_or_else(ApiStatus::no_resource)?;
    let (verb, method) = (&*asking.attributes.verb, asking.head.method.as_str());
    let fits = match sub.name {
        _ if verb == "watch" => false,
        "log" => method == "GET",
        "exec" | "attach" | "portforward" => matches!(method, "GET" | "POST"),
        "proxy" => matches!(method, "GET" | "HEAD" | "OPTIONS" | "POST" | "PUT" | "PATCH" | "DELETE"),
        _ => sub.verbs.iter().any(|v| v.as_str() == verb),
    };
    if fits { Ok(()) } else { Err(ApiStatus::method_not_allowed()) }
}

/// Reads a patch of the kind its media type says, with what is odd about its text.
pub(super) async fn read_patch(
    media_type: &str,
    body: Body,
    timeout: Duration,
) -> Result<(Patch, Vec<String>), ApiStatus> {
    let (make, language): (fn(Value) -> Patch, Language) = match media_type {
        "application/json-patch+json" => (Patch::Json, Language::Json),
        "application/merge-patch+json" => (Patch::Merge, Language::Json),
        "application/strategic-merge-patch+json" => (Patch::Strategic, Language::Json),
        "application/apply-patch+yaml" => (Patch::Apply, Language::Yaml),
        _ => return Err(ApiStatus::unsupported_media_type(patch::ACCEPTED)),
    };
    let bytes = body::read(body, timeout).await?;
    let Parsed { value, complaints } = parse(&bytes, language)?;
    Ok((make(value), complaints))
}

/// A request on its way through a verb.
pub(super) struct Serving<'a> {
    pub(super) app: &'a App,
    pub(super) registry: &'a Registry,
    pub(super) kind: Arc<Kind>,
    pub(super) asking: Asking,
}

// === impl Serving ===

impl Serving<'_> {
    async fn dispatch(&mut self, body: Body) -> Result<Answer, ApiStatus> {
        let subresource = self.asking.attributes.resource.as_ref().map(|r| r.subresource.clone());
        match subresource.as_deref().unwrap_or_default() {
            "" if self.kind.group == node_metrics::GROUP => return self.node_metrics().await,
            "" if self.kind.plural == "componentstatuses" => return self.component_statuses(),
            "" if !self.kind.is_stored() => return self.answer_question(body).await,
            // These are the object itself, of which less may change.
            "" | "status" | "ephemeralcontainers" | "resize" | "approval" | "finalize" => {}
            name @ ("log" | "exec" | "attach" | "portforward" | "proxy") => {
                return self.connect(name, body).await;
            }
            other => return self.subresource(other, body).await,
        }
        self.check_served()?;
        match &*self.asking.attributes.verb.clone() {
            "get" => self.get().await,
            "list" => self.list().await,
            "watch" => self.watch().await,
            "create" => self.create(body).await,
            "update" => self.update(body).await,
            "patch" => self.patch(body).await,
            "delete" => self.delete(body).await,
            "deletecollection" => self.delete_collection(body).await,
            _ => Err(ApiStatus::method_not_allowed()),
        }
    }

    /// What would be kept and not be enforced is not taken.
    fn check_served(&self) -> Result<(), ApiStatus> {
        let writes = matches!(&*self.asking.attributes.verb, "create" | "update" | "patch");
        let Some(why) = self.kind.strategy.unserved().filter(|_| writes) else { return Ok(()) };
        let name = self.asking.attributes.resource.as_ref().map(|r| r.name.as_str()).unwrap_or_default();
        let message = format!("{} cannot be written: {why}", self.kind.kind);
        Err(ApiStatus::new(405, "MethodNotAllowed", message).about(&self.kind, name))
    }

    async fn get(&self) -> Result<Answer, ApiStatus> {
        let (accepted, view) = self.view()?;
        let call = self.call(WriteOptions::default());
        if let Some(version) = asked::version(&self.asking.query)?.filter(|v| *v > 0) {
            self.registry.reach(version)?;
        }
        let mut document = self.registry.get(&self.kind, call.namespace(), call.name()).await?;
        let (room, user) = (&self.app.large.room, &self.asking.attributes.user);
        let mut part = None;
        if document.size() >= room::LARGE {
            part = room.try_take(user, document.size());
            if part.is_none() {
                // Who waits for room has nothing in memory.
                let size = document.size();
                drop(document);
                part = Some(room.take(user, size, room::WAIT).await?);
                document = self.registry.get(&self.kind, call.namespace(), call.name()).await?;
            }
        }
        let answer = self.shown(&document, accepted, view);
        Ok(match part {
            Some(part) => part.keep_answer(answer),
            None => answer,
        })
    }

    fn shown(&self, document: &Document, accepted: Accepted, view: View) -> Answer {
        if accepted.format == Format::Json && view == View::WHOLE && !self.kind.strategy.converts() {
            return self.json(document.to_json());
        }
        let object = present(&self.kind, document);
        let object = view.object(&self.kind, &object, self.registry.now(), true);
        answer::document(200, &object, accepted.format)
    }

    /// JSON at hand, compressed where that is worth it.
    fn json(&self, bytes: Bytes) -> Answer {
        let kind = Format::Json.content_type();
        if bytes.len() > answer::WORTH_GZIP
            && self.takes_gzip()
            && let Some(packed) = answer::gzip(&bytes)
        {
            let mut answer = answer::whole(200, kind, packed);
            let gzip = http::HeaderValue::from_static("gzip");
            answer.headers_mut().insert(header::CONTENT_ENCODING, gzip);
            return answer;
        }
        answer::whole(200, kind, bytes)
    }

    async fn list(&self) -> Result<Answer, ApiStatus> {
        let (accepted, view) = self.view()?;
        let options = self.listing()?;
        let lister = self.registry.list(self.selection(options)?, options).await?;
        let (registry, kind) = (self.registry.clone(), self.kind.clone());
        list_body::list(registry, kind, lister, view, accepted.format, self.takes_gzip()).await
    }

    async fn watch(&self) -> Result<Answer, ApiStatus> {
        let (accepted, view) = self.view()?;
        if accepted.format == Format::Yaml {
            return Err(ApiStatus::not_acceptable(&["application/json", PROTOBUF]));
        }
        let options = self.listing()?;
        let watcher = self.registry.watch(self.selection(options)?, options).await?;
        let spread = u64::from(self.asking.peer.address.port()) * WATCH_LEAST / 65536;
        let seconds = options.timeout_seconds.unwrap_or(WATCH_LEAST + spread).min(24 * 3600);
        let stopping = self.app.stopping.clone();
        let timeout = Duration::from_secs(seconds);
        let form = stream::WatchForm { view, format: accepted.format, bookmarks: options.bookmarks };
        Ok(stream::watch(self.registry.clone(), watcher, form, timeout, stopping))
    }

    async fn create(&self, body: Body) -> Result<Answer, ApiStatus> {
        let mut call = self.call(self.write_options()?);
        let language = body::language(&self.asking.head.headers)?;
        let bytes = body::read(body, self.app.timeouts.body).await?;
        let outcome = match read_object(&mut call, &bytes, language) {
            Ok(object) => self.registry.create(&mut call, object).await,
            Err(api_status) => Err(api_status),
        };
        self.written(&call, outcome)
    }

    async fn update(&self, body: Body) -> Result<Answer, ApiStatus> {
        let mut call = self.call(self.write_options()?);
        let language = body::language(&self.asking.head.headers)?;
        let bytes = body::read(body, self.app.timeouts.body).await?;
        let outcome = match read_object(&mut call, &bytes, language) {
            Ok(object) => self.registry.update(&mut call, object).await,
            Err(api_status) => Err(api_status),
        };
        self.written(&call, outcome)
    }

    async fn patch(&self, body: Body) -> Result<Answer, ApiStatus> {
        let mut options = self.write_options()?;
        let media_type = body::media_type(&self.asking.head.headers).to_owned();
        let applies = media_type == "application/apply-patch+yaml";
        if applies {
            let said = self.asking.query.get("fieldManager").unwrap_or_default();
            if said.is_empty() {
                return Err(ApiStatus::bad_request(
                    "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
                ));
            }
        } else if options.force {
            let why = "PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch";
            return Err(ApiStatus::new(422, "Invalid", why));
        } else {
            options.force = false;
        }
        let (patch, complaints) = read_patch(&media_type, body, self.app.timeouts.body).await?;
        let mut call = self.call(options);
        call.complaints = complaints;
        let outcome = self.registry.patch(&mut call, &patch).await;
        self.written(&call, outcome)
    }

    async fn delete(&self, body: Body) -> Result<Answer, ApiStatus> {
        let options = self.delete_options(body).await?;
        let mut call = self.call(WriteOptions { dry_run: options.dry_run, ..WriteOptions::default() });
        let deletion = self.registry.delete(&mut call, &options).await?;
        let kind = &self.kind;
        let body = if deletion.done && !kind.strategy.returns_deleted() {
            json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                "details": {
                    "name": meta::name(&deletion.object), "group": kind.group, "kind": kind.plural,
                    "uid": meta::uid(&deletion.object),
                },
            })
        } else {
            deletion.object
        };
        let mut answer = self.document(200, &body)?;
        answer::warn(&mut answer, &call.warnings);
        Ok(answer)
    }

    async fn delete_collection(&self, body: Body) -> Result<Answer, ApiStatus> {
        let options = self.delete_options(body).await?;
        let list = self.listing()?;
        let selection = self.selection(list)?;
        let mut call = self.call(WriteOptions { dry_run: options.dry_run, ..WriteOptions::default() });
        let items = self.registry.delete_collection(&mut call, selection, list, &options).await?;
        let items: Vec<Value> = items.into_iter().map(|item| shape::untyped(&self.kind, item)).collect();
        let body = json!({
            "kind": self.kind.list_kind, "apiVersion": self.kind.api_version(),
            "metadata": {"resourceVersion": self.registry.store().revision().to_string()}, "items": items,
        });
        self.document(200, &body)
    }

    async fn delete_options(&self, body: Body) -> Result<DeleteOptions, ApiStatus> {
        let bytes = body::read(body, self.app.timeouts.body).await?;
        let options = if bytes.is_empty() {
            DeleteOptions::default()
        } else {
            let parsed = parse(&bytes, body::language(&self.asking.head.headers)?)?;
            DeleteOptions::from_body(&parsed.value)?
        };
        self.asking.query.delete_options(options)
    }

    /// The answer to a write, with its warnings.
    pub(super) fn written(
        &self,
        call: &Call,
        outcome: Result<Written, ApiStatus>,
    ) -> Result<Answer, ApiStatus> {
        let mut answer = match outcome {
            Ok(written) => {
                let code = if written.outcome == Outcome::Created { 201 } else { 200 };
                self.show(code, &written)?
            }
            Err(api_status) => answer::refuse(&api_status),
        };
        answer::warn(&mut answer, &call.warnings);
        Ok(answer)
    }

    /// What was written, in the form and shape the client wants.
    fn show(&self, code: u16, written: &Written) -> Result<Answer, ApiStatus> {
        let (accepted, view) = self.view()?;
        match &written.document {
            Some(document) if accepted.format == Format::Json && view == View::WHOLE => {
                Ok(answer::whole(code, Format::Json.content_type(), document.to_json()))
            }
            _ => self.document(code, &written.object),
        }
    }

    /// An object in the form and shape the client wants.
    pub(super) fn document(&self, code: u16, object: &Value) -> Result<Answer, ApiStatus> {
        let (accepted, view) = self.view()?;
        if view == View::WHOLE || object["kind"] != *self.kind.kind {
            return Ok(answer::document(code, object, accepted.format));
        }
        let shaped = view.object(&self.kind, object, self.registry.now(), true);
        Ok(answer::document(code, &shaped, accepted.format))
    }

    pub(super) fn view(&self) -> Result<(Accepted, View), ApiStatus> {
        let accepted = accepted(&self.asking.head.headers, self.offered())?;
        let include = match accepted.shape {
            Shape::Table => Include::parse(self.asking.query.get("includeObject"))?,
            _ => Include::Metadata,
        };
        Ok((accepted, View { shape: accepted.shape, include }))
    }

    pub(super) fn wants_table(&self) -> Result<bool, ApiStatus> {
        Ok(self.view()?.1.shape == Shape::Table)
    }

    /// The forms there are of this kind.
    fn offered(&self) -> &'static [&'static str] {
        let known = self.kind.type_name.as_deref().and_then(At::named).is_some_and(protobuf::is_known);
        if known { OFFERED } else { &OFFERED[..2] }
    }

    fn takes_gzip(&self) -> bool {
        let text = header_text(&self.asking.head.headers, header::ACCEPT_ENCODING);
        super::accept::takes_gzip(text)
    }

    pub(super) fn write_options(&self) -> Result<WriteOptions, ApiStatus> {
        let agent = header_text(&self.asking.head.headers, header::USER_AGENT);
        self.asking.query.write_options(agent)
    }

    /// What the request was allowed to be about.
    pub(super) fn listing(&self) -> Result<&ListOptions, ApiStatus> {
        let listing = self.asking.listing.as_ref().map(Listing::options);
        listing.ok_or_else(|| ApiStatus::internal(format!("a {} of no objects", self.asking.attributes.verb)))
    }

    pub(super) fn selection(&self, options: &ListOptions) -> Result<Selection, ApiStatus> {
        let namespace = self.asking.attributes.resource.as_ref().map(|r| r.namespace.as_str());
        let namespace = namespace.filter(|_| self.kind.is_namespaced()).unwrap_or_default();
        Selection::new(self.kind.clone(), namespace, options.labels.clone(), options.fields.clone())
    }

    /// A PUT or an apply may find nothing and create: only for those who may create.
    fn create_refusal(&self) -> Option<Box<ApiStatus>> {
        if !matches!(&*self.asking.attributes.verb, "update" | "patch") {
            return None;
        }
        let mut attributes = self.asking.attributes.clone();
        attributes.verb = "create".into();
        self.app.authorizer.check(&attributes).err().map(Box::new)
    }

    pub(super) fn call(&self, options: WriteOptions) -> Call {
        Call {
            kind: self.kind.clone(),
            attributes: self.asking.attributes.clone(),
            options,
            create_refused: self.create_refusal(),
            complaints: Vec::new(),
            applied: false,
            warnings: Vec::new(),
        }
    }
}
