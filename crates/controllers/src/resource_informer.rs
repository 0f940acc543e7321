//! List and watch of one resource into the shared cache, and on to the controllers that look at it.

use std::sync::Arc;

use client::Piece;
use controllers_core::cache::{Cache, Change};
use controllers_core::object::Object;
use controllers_core::resource::Resource;

use crate::control_loop::ControlLoop;

/// Owned by the task that watches.
#[derive(Debug)]
pub struct ResourceInformer {
    resource: Resource,
    cache: Arc<Cache>,
    /// Those who watch or read it.
    loops: Vec<Arc<ControlLoop>>,
    listing: Vec<Object>,
    /// An item of the list under way could not be named, so nobody knows what is gone.
    has_unnamed: bool,
}

// === impl ResourceInformer ===

impl ResourceInformer {
    #[must_use]
    pub fn new(resource: Resource, cache: Arc<Cache>, loops: &[Arc<ControlLoop>]) -> ResourceInformer {
        let looks = |one: &&Arc<ControlLoop>| one.row().resources().any(|known| known == resource);
        let loops = loops.iter().filter(looks).cloned().collect();
        ResourceInformer { resource, cache, loops, listing: Vec::new(), has_unnamed: false }
    }

    /// Takes what was received, which is everything up to `revision`. False: something could not be named, list again.
    pub fn take(&mut self, piece: Piece, revision: u64) -> bool {
        let mut is_known = true;
        match piece {
            Piece::Begin => {
                self.listing.clear();
                self.has_unnamed = false;
            }
            Piece::Item(raw) => match Object::new(self.resource, raw.get().as_bytes()) {
                Some(object) => self.listing.push(object),
                None => (self.has_unnamed, is_known) = (true, false),
            },
            Piece::End => self.end(revision),
            Piece::Applied(raw) => match Object::new(self.resource, raw.get().as_bytes()) {
                Some(object) => {
                    let change = self.cache.apply(object);
                    self.tell(change);
                }
                None => is_known = false,
            },
            Piece::Deleted(raw) => match Object::new(self.resource, raw.get().as_bytes()) {
                Some(object) => {
                    let change = self.cache.remove(&object);
                    self.tell(change);
                }
                None => is_known = false,
            },
            Piece::Bookmark => self.cache.saw(self.resource, revision),
        }
        self.loops.iter().for_each(|one| one.progressed());
        is_known
    }

    fn end(&mut self, revision: u64) {
        let objects = std::mem::take(&mut self.listing);
        if !self.has_unnamed {
            let changes = self.cache.replace(self.resource, objects, revision);
            return self.tell(changes);
        }
        for object in objects {
            let change = self.cache.apply(object);
            self.tell(change);
        }
    }

    fn tell(&self, changes: impl IntoIterator<Item = Change>) {
        for change in changes.into_iter().flat_map(Change::split) {
            self.loops.iter().for_each(|one| one.changed(self.resource, &change));
        }
    }
}
