//! One watch and one cache of a resource for all who want to hear of it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use base::rng::Rng;
use supervise::Supervisor;

use super::cache::Cache;
use super::raw::RawObject;
use super::reader::Raw;
use super::store::Index;
use super::{Change, Reflector};
use crate::request::Client;
use crate::watch::Resource;

type Handler = Box<dyn Fn(&Change<Arc<RawObject>>) + Send + Sync>;

/// One watch and one cache of a resource, with any number of handlers.
pub struct Informer {
    name: &'static str,
    client: Client,
    resource: Resource,
    rng: Rng,
    cache: Cache<Arc<RawObject>>,
    handlers: Vec<Handler>,
}

/// The informers of one agent: one for each resource, however many ask for it.
#[derive(Debug)]
pub struct Informers {
    client: Client,
    rng: Rng,
    by_resource: BTreeMap<Resource, Informer>,
}

// === impl Informer ===

impl Informer {
    /// `name` is the task's.
    #[must_use]
    pub fn new(name: &'static str, client: Client, resource: Resource, rng: Rng) -> Informer {
        Informer { name, client, resource, rng, cache: Cache::new(Vec::new()), handlers: Vec::new() }
    }

    /// Objects can be found by this too.
    pub fn index(&mut self, index: Index<Arc<RawObject>>) -> &mut Informer {
        self.cache.add_index(index);
        self
    }

    /// `handler` is called with each change, when the cache has it already. It runs in the informer's task: it puts a key into
    /// a work queue and returns.
    pub fn on_change(
        &mut self,
        handler: impl Fn(&Change<Arc<RawObject>>) + Send + Sync + 'static,
    ) -> &mut Informer {
        self.handlers.push(Box::new(handler));
        self
    }

    /// What is known; also before it is started.
    #[must_use]
    pub fn cache(&self) -> Cache<Arc<RawObject>> {
        self.cache.clone()
    }

    /// Follows the resource from now on. After a panic, of a handler for instance, it begins with a list and tells everything
    /// again.
    pub fn start(self, tasks: &Supervisor) {
        let Informer { name, client, resource, mut rng, cache, handlers } = self;
        let handlers: Arc<[Handler]> = handlers.into();
        tasks.restart(name, move || {
            let (client, resource, cache) = (client.clone(), resource.clone(), cache.clone());
            let mut reflector = Reflector::with_cache(client, resource, rng.child(), Raw, cache);
            let handlers = handlers.clone();
            async move {
                loop {
                    let change = reflector.next().await;
                    handlers.iter().for_each(|handler| handler(&change));
                }
            }
        });
    }
}

impl fmt::Debug for Informer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Informer({}, {} handlers)", self.resource.path, self.handlers.len())
    }
}

// === impl Informers ===

impl Informers {
    #[must_use]
    pub fn new(client: Client, rng: Rng) -> Informers {
        Informers { client, rng, by_resource: BTreeMap::new() }
    }

    /// The informer of a resource, made at the first question. `name` is that of its task.
    pub fn of(&mut self, name: &'static str, resource: Resource) -> &mut Informer {
        let (client, rng) = (&self.client, &mut self.rng);
        let make = |resource: &Resource| Informer::new(name, client.clone(), resource.clone(), rng.child());
        self.by_resource.entry(resource).or_insert_with_key(make)
    }

    /// Starts all of them, after everybody has said what he wants to hear.
    pub fn start(self, tasks: &Supervisor) {
        self.by_resource.into_values().for_each(|informer| informer.start(tasks));
    }
}
