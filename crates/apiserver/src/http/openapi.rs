//! OpenAPI documents, made when they are asked for.

use std::sync::Arc;

use bytes::Bytes;
use http::header;
use schema::openapi::{self, Resource, Source, Sub};
use schema::types::At;

use super::answer::{self, Answer};
use super::asking::{Asking, header_text};
use super::{App, accept};
use apiserver_core::api_status::ApiStatus;
use apiserver_core::catalog::Catalog;
use apiserver_core::kind::{Kind, Verb};

/// What the names of the OpenAPI 2 protobuf have in common; the older one goes on with `@v1.0`.
const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2";

/// `/openapi/v2`, `/openapi/v3`, `/openapi/v3/{api/v1 | apis/group/version}`.
pub(crate) async fn serve(app: &App, asking: &Asking, parts: &[&str]) -> Result<Answer, ApiStatus> {
    let catalog = app.registry.catalog();
    let mut media_type = "application/json";
    let document = match parts {
        // kubectl validates a List by this document, and takes it as protobuf only.
        ["v2"] if header_text(&asking.head.headers, header::ACCEPT).contains(PROTOBUF) => {
            media_type = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
            write(catalog, |_| true, openapi::v2_protobuf).await?
        }
        ["v2"] => write(catalog, |_| true, openapi::v2).await?,
        ["v3"] => {
            let value = index(&catalog);
            return Ok(answer::document(200, &value, accept::Format::Json));
        }
        ["v3", "api", version] => one(catalog, "", version).await?,
        ["v3", "apis", group, version] => one(catalog, group, version).await?,
        _ => return Err(ApiStatus::no_resource()),
    };
    let packed = accept::takes_gzip(header_text(&asking.head.headers, header::ACCEPT_ENCODING))
        .then(|| answer::gzip(&document))
        .flatten();
    let mut answer = match packed {
        Some(packed) => {
            let mut answer = answer::whole(200, media_type, packed);
            let gzip = http::HeaderValue::from_static("gzip");
            answer.headers_mut().insert(header::CONTENT_ENCODING, gzip);
            answer
        }
        None => answer::whole(200, media_type, document),
    };
    if asking.query.get("hash").is_some() {
        // The address changes when the document does.
        let forever = http::HeaderValue::from_static("public, immutable");
        answer.headers_mut().insert(header::CACHE_CONTROL, forever);
    }
    Ok(answer)
}

async fn one(catalog: Arc<Catalog>, group: &str, version: &str) -> Result<Bytes, ApiStatus> {
    if catalog.of_version(group, version).next().is_none() {
        return Err(ApiStatus::no_resource());
    }
    let (group, version) = (group.to_owned(), version.to_owned());
    write(catalog, move |kind| kind.group == group && kind.version == version, openapi::v3).await
}

/// Writing a document takes a while: not on the runtime's thread.
async fn write(
    catalog: Arc<Catalog>,
    wanted: impl Fn(&Kind) -> bool + Send + 'static,
    write: fn(&[Resource<'_>]) -> Vec<u8>,
) -> Result<Bytes, ApiStatus> {
    let work = tokio::task::spawn_blocking(move || {
        let kinds: Vec<&Kind> = catalog.kinds().map(|k| &**k).filter(|kind| wanted(kind)).collect();
        let resources: Vec<Resource<'_>> = kinds.iter().map(|kind| describe(kind)).collect();
        Bytes::from(write(&resources))
    });
    work.await.map_err(|_| ApiStatus::internal("writing the OpenAPI document was cut short"))
}

fn index(catalog: &Catalog) -> serde_json::Value {
    let mut documents = Vec::new();
    for group in catalog.groups() {
        for version in &group.versions {
            let resources: Vec<Resource<'_>> =
                catalog.of_version(group.name, version).map(|kind| describe(kind)).collect();
            let path = match group.name {
                "" => format!("api/{version}"),
                name => format!("apis/{name}/{version}"),
            };
            documents.push((path, openapi::digest(&resources)));
        }
    }
    openapi::v3_index(documents.iter().map(|(path, digest)| (path.as_str(), digest.clone())))
}

fn describe(kind: &Kind) -> Resource<'_> {
    let words = |verbs: &'static [Verb]| verbs.iter().map(|v| v.as_str()).collect();
    let subresources = kind.subresources.iter().map(|sub| {
        let (group, version) = sub.group_version.unwrap_or((&kind.group, &kind.version));
        Sub { name: sub.name, kind: (group, version, &sub.kind), verbs: words(sub.verbs) }
    });
    let schema = match &kind.type_name {
        Some(name) if At::named(name).is_some() => Source::Builtin(name),
        // One of our own that upstream's own server does not have.
        _ => Source::Custom(kind.strategy.openapi()),
    };
    Resource {
        group: &kind.group,
        version: &kind.version,
        kind: &kind.kind,
        plural: &kind.plural,
        is_namespaced: kind.is_namespaced(),
        verbs: words(kind.verbs),
        subresources: subresources.collect(),
        schema,
    }
}
