//! Lists that are made while they are sent, page by page, in each of their forms.
//!
//! Nothing is made before the client took what was made before it: a slow reader costs one page.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::stream;
use http::{HeaderValue, header};
use schema::protobuf;
use schema::types::At;
use serde_json::{Map, Value, json};

use super::accept::{Format, Shape};
use super::answer::{self, Answer, Broken, Gzip};
use super::shape::View;
use crate::registry::Registry;
use crate::registry::list::Lister;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::document::Document;
use apiserver_core::kind::Kind;
use apiserver_core::selection::present;

/// Bytes put into one frame.
const CHUNK: usize = 64 * 1024;

/// A list as an answer.
pub(crate) async fn list(
    registry: Registry,
    kind: Arc<Kind>,
    mut lister: Lister,
    view: View,
    format: Format,
    takes_gzip: bool,
) -> Result<Answer, ApiStatus> {
    // The first page is at hand; with it we know whether the whole is small.
    let mut first = lister.next_page().await?.unwrap_or_default();
    let size: usize = first.iter().map(Document::size).sum();
    let compress = takes_gzip && format == Format::Json && (lister.has_more() || size > answer::WORTH_GZIP);
    let (head, form, length) = match format {
        Format::Json => {
            let (head, close) = view.list_frame(&kind);
            (head.into_bytes(), Form::Json { close }, None)
        }
        Format::Yaml => {
            let (head, form) = yaml(&kind, view, &lister).await?;
            (head.into_bytes(), form, None)
        }
        Format::Protobuf => {
            let measured = protobuf(&kind, view, lister.clone(), std::mem::take(&mut first)).await?;
            first = measured.first;
            (measured.head, measured.form, Some(measured.length))
        }
    };
    let mut writer = ListWriter {
        registry,
        kind,
        lister,
        view,
        page: first.into_iter(),
        out: BytesMut::with_capacity(size.min(CHUNK) + head.len() + 64),
        form,
        first: true,
        gzip: compress.then(Gzip::new),
        over: false,
    };
    writer.out.put_slice(&head);
    let chunks = stream::unfold(writer, async |mut writer| {
        let chunk = writer.next_chunk().await?;
        Some((chunk, writer))
    });
    let mut answer = answer::stream(format.content_type(), chunks);
    if compress {
        answer.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    if let Some(length) = length {
        answer.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    Ok(answer)
}

/// How items are written, and what stands after them.
enum Form {
    Json {
        close: &'static str,
    },
    Yaml {
        /// Members after the items, without the metadata where it stands before them.
        close: Map<String, Value>,
        says_metadata: bool,
    },
    Protobuf {
        form: protobuf::Form<'static>,
        /// Bytes of items that were announced and are not written yet.
        left: usize,
    },
}

/// Members stand in the order of their names, so those of a Table need its metadata before its rows: what it says at its end is
/// looked up first.
async fn yaml(kind: &Kind, view: View, lister: &Lister) -> Result<(String, Form), ApiStatus> {
    let (head, close) = view.list_frame(kind);
    let mut close: Map<String, Value> =
        serde_json::from_str(&format!("{head}{close}}}")).map_err(|e| ApiStatus::internal(e.to_string()))?;
    let items = if close.remove("items").is_some() { "items" } else { "rows" };
    close.remove("rows");
    let says_metadata = "metadata" > items;
    if !says_metadata {
        let mut ahead = lister.clone();
        while ahead.next_page().await?.is_some() {}
        close.insert("metadata".to_owned(), list_metadata(&ahead));
    }
    let mut head = Map::new();
    for name in close.keys().filter(|name| name.as_str() < items).cloned().collect::<Vec<_>>() {
        head.extend(close.remove_entry(&name));
    }
    let head = format!("{}{items}:", api::yaml::from_value_to_yaml(&head.into()));
    Ok((head, Form::Yaml { close, says_metadata }))
}

/// A list in protobuf before it is sent.
struct Measured {
    head: Vec<u8>,
    /// Of the first page, what is not in the head.
    first: Vec<Document>,
    form: Form,
    length: usize,
}

/// The length of a message stands before it. So what is more than a page is written twice: once to learn how long it is.
async fn protobuf(
    kind: &Kind,
    view: View,
    mut ahead: Lister,
    mut first: Vec<Document>,
) -> Result<Measured, ApiStatus> {
    let form = match (view.shape, kind.type_name.as_deref().and_then(At::named)) {
        (Shape::Whole, Some(at)) => protobuf::Form::Whole(at),
        _ => protobuf::Form::Metadata,
    };
    let write = |out: &mut Vec<u8>, documents: &[Document]| {
        let mut write = |document| protobuf::write_item(out, &present(kind, document), form);
        documents.iter().try_for_each(&mut write).map_err(unwritable)
    };
    let mut items = Vec::new();
    write(&mut items, &first)?;
    let mut left = items.len();
    while let Some(page) = ahead.next_page().await? {
        // What does not fit into a page is forgotten.
        items = Vec::new();
        for document in &page {
            let mut item = Vec::new();
            write(&mut item, std::slice::from_ref(document))?;
            left += item.len();
        }
    }
    let (version, name) = match form {
        protobuf::Form::Whole(_) => (kind.api_version(), kind.list_kind.to_string()),
        protobuf::Form::Metadata => ("meta.k8s.io/v1".to_owned(), "PartialObjectMetadataList".to_owned()),
    };
    let mut head = protobuf::list_head(&version, &name, &list_metadata(&ahead), left).map_err(unwritable)?;
    let length = head.len() + left + protobuf::LIST_TAIL.len();
    if items.len() == left {
        head.extend_from_slice(&items);
        (first, left) = (Vec::new(), 0);
    }
    Ok(Measured { head, first, form: Form::Protobuf { form, left }, length })
}

fn unwritable(error: protobuf::ProtobufError) -> ApiStatus {
    ApiStatus::internal(error.to_string())
}

/// What a list that is over says of itself.
fn list_metadata(lister: &Lister) -> Value {
    let end = lister.end();
    let mut metadata = json!({"resourceVersion": lister.revision.to_string()});
    if let Some(token) = end.continue_token {
        metadata["continue"] = token.into();
    }
    if let Some(remaining) = end.remaining.filter(|n| *n > 0) {
        metadata["remainingItemCount"] = remaining.into();
    }
    metadata
}

struct ListWriter {
    registry: Registry,
    kind: Arc<Kind>,
    lister: Lister,
    view: View,
    page: std::vec::IntoIter<Document>,
    out: BytesMut,
    form: Form,
    first: bool,
    gzip: Option<Gzip>,
    over: bool,
}

// === impl ListWriter ===

impl ListWriter {
    async fn next_chunk(&mut self) -> Option<Result<Bytes, Broken>> {
        while !self.over {
            if let Err(api_status) = self.fill().await {
                self.over = true;
                return Some(Err(Broken(api_status.message)));
            }
            let chunk = self.out.split().freeze();
            let Some(gzip) = &mut self.gzip else { return Some(Ok(chunk)) };
            let Some(mut packed) = gzip.push(&chunk) else { return Some(Err(Broken("gzip".to_owned()))) };
            if self.over
                && let Some(tail) = self.gzip.take().and_then(Gzip::finish)
            {
                packed = [packed, tail].concat().into();
            }
            if !packed.is_empty() {
                return Some(Ok(packed));
            }
        }
        None
    }

    /// Writes until there is a chunk's worth, or everything.
    async fn fill(&mut self) -> Result<(), ApiStatus> {
        while self.out.len() < CHUNK {
            if let Some(document) = self.page.next() {
                self.write_item(&document)?;
                continue;
            }
            match self.lister.next_page().await? {
                Some(page) => self.page = page.into_iter(),
                None => return self.write_end(),
            }
        }
        Ok(())
    }

    fn write_item(&mut self, document: &Document) -> Result<(), ApiStatus> {
        let (now, is_first) = (self.registry.now(), std::mem::take(&mut self.first));
        match &mut self.form {
            Form::Json { .. } => {
                if !is_first {
                    self.out.put_u8(b',');
                }
                self.view.write_item(&self.kind, document, now, &mut self.out);
            }
            Form::Yaml { .. } => {
                if is_first {
                    self.out.put_u8(b'\n');
                }
                let mut item = BytesMut::with_capacity(document.size());
                self.view.write_item(&self.kind, document, now, &mut item);
                let item: Value = serde_json::from_slice(&item).unwrap_or_default();
                self.out.put_slice(api::yaml::from_value_to_yaml(&vec![item].into()).as_bytes());
            }
            Form::Protobuf { form, left } => {
                let mut item = Vec::new();
                protobuf::write_item(&mut item, &present(&self.kind, document), *form).map_err(unwritable)?;
                *left = left.checked_sub(item.len()).ok_or_else(not_as_announced)?;
                self.out.put_slice(&item);
            }
        }
        Ok(())
    }

    fn write_end(&mut self) -> Result<(), ApiStatus> {
        let metadata = list_metadata(&self.lister);
        match &mut self.form {
            Form::Json { close } => {
                self.out.put_slice(format!("{close},\"metadata\":{metadata}}}\n").as_bytes());
            }
            Form::Yaml { close, says_metadata } => {
                if self.first {
                    self.out.put_slice(b" []\n");
                }
                if *says_metadata {
                    close.insert("metadata".to_owned(), metadata);
                }
                if !close.is_empty() {
                    let close = Value::Object(std::mem::take(close));
                    self.out.put_slice(api::yaml::from_value_to_yaml(&close).as_bytes());
                }
            }
            Form::Protobuf { left: 0, .. } => self.out.put_slice(protobuf::LIST_TAIL),
            Form::Protobuf { .. } => return Err(not_as_announced()),
        }
        self.over = true;
        Ok(())
    }
}

/// One revision reads the same twice. Should it not, the client must not take this for a list.
fn not_as_announced() -> ApiStatus {
    ApiStatus::internal("the list is not as long as it was when it was measured")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use base::time::{Clock, Mono, Now, Wall};
    use http_body_util::BodyExt;

    use super::super::shape::Include;
    use super::*;
    use crate::registry::addresses::{Addresses, Ranges};
    use apiserver_core::call::Call;
    use apiserver_core::catalog::Catalog;
    use apiserver_core::kinds;
    use apiserver_core::options::ListOptions;
    use apiserver_core::selection::Selection;
    use store::Store;

    /// A table tells ages: the forms are made one after the other, and all of them at one time.
    #[derive(Debug)]
    struct StandingClock;

    impl Clock for StandingClock {
        fn now(&self) -> Now {
            Now { mono: Mono(Duration::ZERO), wall: Wall::from_secs(1_800_000_000) }
        }
    }

    struct Bench {
        registry: Registry,
        kind: Arc<Kind>,
        _dir: tempfile::TempDir,
    }

    impl Bench {
        async fn new(objects: usize) -> Bench {
            let dir = tempfile::tempdir().unwrap();
            let store = Store::open(dir.path(), store::Options::default()).unwrap();
            let catalog = Catalog::new(kinds::all().into_iter().map(Arc::new));
            let clock = Arc::new(StandingClock);
            let registry = Registry::new(store, catalog, clock, None, Addresses::new(Ranges::default()));
            let kind = registry.kind("", "v1", "configmaps").unwrap();
            for i in 0..objects {
                let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m-{i:04}")},
                    "data": {"text": "x: \n".repeat(i * 40), "n": "7", "b": "true"}});
                let mut call = Call::internal(kind.clone(), "create", "ns", "");
                registry.create(&mut call, object).await.unwrap();
            }
            Bench { registry, kind, _dir: dir }
        }

        async fn list(&self, limit: Option<usize>, view: View, format: Format) -> (usize, Vec<u8>) {
            let options = ListOptions { limit, ..ListOptions::default() };
            let lister = self.registry.list(Selection::all(self.kind.clone()), &options).await.unwrap();
            let answer =
                list(self.registry.clone(), self.kind.clone(), lister, view, format, false).await.unwrap();
            let length =
                answer.headers().get(header::CONTENT_LENGTH).map(|v| v.to_str().unwrap().parse().unwrap());
            let mut body = answer.into_body();
            let (mut all, mut largest) = (Vec::new(), 0);
            while let Some(frame) = body.frame().await {
                let data = frame.unwrap().into_data().unwrap();
                largest = largest.max(data.len());
                all.extend_from_slice(&data);
            }
            assert_eq!(length, (format == Format::Protobuf).then_some(all.len()));
            (largest, all)
        }
    }

    /// As it is when it is made at once: from the same list in JSON.
    #[tokio::test]
    async fn piece_by_piece_every_form_is_what_it_is_at_once() {
        let table = View { shape: Shape::Table, include: Include::Metadata };
        let metadata = View { shape: Shape::Metadata, include: Include::Metadata };
        for objects in [0, 3, 250] {
            let bench = Bench::new(objects).await;
            for limit in [None, Some(1), Some(240)] {
                for view in [View::WHOLE, metadata, table] {
                    let (_, json) = bench.list(limit, view, Format::Json).await;
                    let value: Value = serde_json::from_slice(&json).unwrap();
                    let (largest, yaml) = bench.list(limit, view, Format::Yaml).await;
                    let case = format!("{objects} objects, {limit:?}, {view:?}");
                    assert_eq!(
                        String::from_utf8(yaml).unwrap(),
                        api::yaml::from_value_to_yaml(&value),
                        "{case}"
                    );
                    assert!(largest < 2 * CHUNK, "{case}: {largest}");
                    if view == table {
                        continue;
                    }
                    let (largest, packed) = bench.list(limit, view, Format::Protobuf).await;
                    let whole = whole(&bench.kind, view, &value);
                    assert!(packed == whole, "{case}: {} of {}", packed.len(), whole.len());
                    assert!(largest < (1 << 20) + 2 * CHUNK, "{case}: {largest}");
                }
            }
        }
    }

    fn whole(kind: &Kind, view: View, list: &Value) -> Vec<u8> {
        let form = match view.shape {
            Shape::Whole => protobuf::Form::Whole(kind.type_name.as_deref().and_then(At::named).unwrap()),
            _ => protobuf::Form::Metadata,
        };
        let mut items = Vec::new();
        for item in list["items"].as_array().unwrap() {
            protobuf::write_item(&mut items, item, form).unwrap();
        }
        let said = |name: &str| list[name].as_str().unwrap();
        let head = protobuf::list_head(said("apiVersion"), said("kind"), &list["metadata"], items.len());
        [&*head.unwrap(), &*items, protobuf::LIST_TAIL].concat()
    }
}
