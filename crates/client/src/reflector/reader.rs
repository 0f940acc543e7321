//! How objects are read, and what is kept of them.

use std::fmt;
use std::sync::Arc;

use api::json::FromJson;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, Resource};
use serde_json::value::RawValue;

use super::raw::RawObject;
use super::store::{Identity, Key};
use crate::read::Read;
use crate::request::Client;

/// How objects are read, and what is kept of them.
pub trait Reader {
    /// What is told of an object.
    type Object;
    /// What is kept of it, and told as its old state later.
    type Kept;

    fn read(&self, raw: Box<RawValue>) -> Read<(Identity, Self::Object)>;

    fn keep(&self, object: &Self::Object) -> Self::Kept;

    /// What to make of an object of which not all could be read; none where nothing new can be said. Who is known stays as he
    /// is known.
    fn part(&self, part: Self::Object, known: Option<&Self::Kept>) -> Option<Self::Object> {
        known.is_none().then_some(part)
    }
}

/// Typed objects, and nothing kept but their names: for who has a place for them already.
pub struct Events<O> {
    client: Client,
    kind: std::marker::PhantomData<fn() -> O>,
}

/// Of each typed object `O` a `T` is told and kept: the whole of it, or what matters.
pub struct Objects<O, T = Arc<O>> {
    client: Client,
    keep: fn(O) -> T,
}

/// The JSON with a small header, see [`RawObject`].
#[derive(Clone, Copy, Debug)]
pub struct Raw;

// === impl Events ===

impl<O> Events<O> {
    #[must_use]
    pub fn new(client: Client) -> Events<O> {
        Events { client, kind: std::marker::PhantomData }
    }
}

impl<O> Reader for Events<O>
where
    O: FromJson + Resource + Metadata<Ty = ObjectMeta>,
{
    type Object = O;
    type Kept = ();

    fn read(&self, raw: Box<RawValue>) -> Read<(Identity, O)> {
        identified(self.client.read(&raw), |object| object)
    }

    fn keep(&self, _: &O) {}
}

// === impl Objects ===

impl<O> Objects<O> {
    /// All of each object.
    #[must_use]
    pub fn new(client: Client) -> Objects<O> {
        Objects { client, keep: Arc::new }
    }
}

impl<O, T> Objects<O, T> {
    /// What `keep` makes of each object.
    #[must_use]
    pub fn keeping(client: Client, keep: fn(O) -> T) -> Objects<O, T> {
        Objects { client, keep }
    }
}

impl<O, T> Reader for Objects<O, T>
where
    O: FromJson + Resource + Metadata<Ty = ObjectMeta>,
    T: Clone,
{
    type Object = T;
    type Kept = T;

    fn read(&self, raw: Box<RawValue>) -> Read<(Identity, T)> {
        identified(self.client.read(&raw), self.keep)
    }

    fn keep(&self, object: &T) -> T {
        object.clone()
    }
}

// === impl Raw ===

impl Reader for Raw {
    type Object = Arc<RawObject>;
    type Kept = Arc<RawObject>;

    fn read(&self, raw: Box<RawValue>) -> Read<(Identity, Arc<RawObject>)> {
        let identified = |object: RawObject| (object.identity(), Arc::new(object));
        match RawObject::read(raw) {
            Read::Whole(object) => Read::Whole(identified(object)),
            Read::Part(object) => Read::Part(identified(object)),
            Read::Nothing => Read::Nothing,
        }
    }

    fn keep(&self, object: &Arc<RawObject>) -> Arc<RawObject> {
        object.clone()
    }
}

fn identified<O, T>(read: Read<O>, keep: impl Fn(O) -> T) -> Read<(Identity, T)>
where
    O: Metadata<Ty = ObjectMeta>,
{
    let (is_whole, object) = match read {
        Read::Whole(object) => (true, object),
        Read::Part(object) => (false, object),
        Read::Nothing => return Read::Nothing,
    };
    let Some(identity) = Identity::of(object.metadata()) else { return Read::Nothing };
    let pair = (identity, keep(object));
    if is_whole { Read::Whole(pair) } else { Read::Part(pair) }
}

// === impl Identity ===

impl Identity {
    /// None without a name.
    #[must_use]
    pub fn of(meta: &ObjectMeta) -> Option<Identity> {
        let name = meta.name.clone().filter(|name| !name.is_empty())?;
        let key = Key { namespace: meta.namespace.clone().unwrap_or_default(), name };
        let revision = meta.resource_version.as_ref().and_then(|text| text.parse().ok());
        Some(Identity {
            key,
            uid: meta.uid.clone().unwrap_or_default(),
            revision: revision.unwrap_or_default(),
        })
    }
}

impl<O> fmt::Debug for Events<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}

impl<O, T> fmt::Debug for Objects<O, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Objects")
    }
}
