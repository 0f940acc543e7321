//! Watches: the changes of a selection, in order, none lost and none twice.

use super::Registry;
use super::list::Lister;
use crate::store_errors;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::document::Document;
use apiserver_core::options::{ListOptions, VersionMatch};
use apiserver_core::selection::Selection;
use store::{Change, ChangeKind, Compacted, Watch, WatchError};

/// What a watcher is told.
#[derive(Clone, Debug)]
pub enum Event {
    Added(Document),
    Modified(Document),
    /// The object as it last was, at the revision of its end.
    Deleted(Document),
    /// Everything up to this revision was told.
    Bookmark {
        rev: u64,
        initial_events_end: bool,
    },
    /// The watch ends with this.
    Failed(ApiStatus),
}

/// A watch in progress. It holds no events: a slow reader finds them in the store when it comes back.
#[derive(Debug)]
pub struct Watcher {
    selection: Selection,
    prefix: String,
    phase: Phase,
    /// Told, up to here.
    rev: u64,
    /// Whether the end of the initial events is to be marked.
    marks_start: bool,
    registry: Registry,
}

#[derive(Debug)]
enum Phase {
    /// The objects that are there already.
    Initial {
        lister: Box<Lister>,
        page: std::vec::IntoIter<Document>,
    },
    Live(Watch),
    /// The revision asked for is gone.
    Failed(Compacted),
    Over,
}

impl Registry {
    /// Starts a watch. What is wrong with the request is refused; what is wrong with the revision is told as an event,
    /// as clients expect it.
    pub async fn watch(&self, selection: Selection, options: &ListOptions) -> Result<Watcher, ApiStatus> {
        check(options)?;
        let prefix = selection.key().unwrap_or_else(|| selection.prefix());
        let mut watcher = Watcher {
            prefix,
            phase: Phase::Over,
            rev: 0,
            marks_start: options.send_initial_events == Some(true),
            registry: self.clone(),
            selection,
        };
        let from = options.version.filter(|v| *v > 0);
        let initial = match options.send_initial_events {
            Some(wanted) => wanted,
            None => from.is_none(),
        };
        if initial {
            if let Some(version) = from {
                self.reach(version)?;
            }
            let lister = self.list_for_watch(watcher.selection.clone()).await?;
            watcher.rev = lister.revision;
            watcher.phase = Phase::Initial { lister: Box::new(lister), page: Vec::new().into_iter() };
        } else {
            watcher.rev = from.unwrap_or_else(|| self.store().revision());
            watcher.go_live();
        }
        Ok(watcher)
    }
}

fn check(options: &ListOptions) -> Result<(), ApiStatus> {
    let invalid = |why: &str| {
        Err(ApiStatus::new(422, "Invalid", format!("ListOptions.meta.k8s.io \"\" is invalid: {why}")))
    };
    match (options.send_initial_events, options.version_match) {
        (Some(_), Some(VersionMatch::NotOlderThan)) | (None, None) => Ok(()),
        (Some(_), _) => invalid(
            "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ),
        (None, Some(_)) => invalid(
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ),
    }
}

// === impl Watcher ===

impl Watcher {
    /// The next event. None when the watch is over. Cancelling loses nothing.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            match &mut self.phase {
                Phase::Over => return None,
                Phase::Initial { lister, page } => {
                    if let Some(document) = page.next() {
                        return Some(Event::Added(document));
                    }
                    match lister.next_page().await {
                        Ok(Some(documents)) => *page = documents.into_iter(),
                        Ok(None) => {
                            self.go_live();
                            if self.marks_start {
                                return Some(Event::Bookmark { rev: self.rev, initial_events_end: true });
                            }
                        }
                        Err(api_status) => return Some(self.fail(api_status)),
                    }
                }
                Phase::Live(watch) => match watch.next().await {
                    Err(WatchError::Compacted(gone)) => return Some(self.fail(too_old(gone))),
                    Err(error) => return Some(self.fail(store_errors::of_watch(&error))),
                    Ok(change) => {
                        if let Some(event) = judge(&self.selection, &self.prefix, &change) {
                            return Some(event);
                        }
                    }
                },
                Phase::Failed(gone) => {
                    let api_status = too_old(*gone);
                    return Some(self.fail(api_status));
                }
            }
        }
    }

    /// An event that is at hand without waiting: for a writer that puts several into one frame.
    pub fn try_next(&mut self) -> Option<Event> {
        match &mut self.phase {
            Phase::Initial { page, .. } => page.next().map(Event::Added),
            Phase::Live(watch) => loop {
                let change = watch.try_next()?;
                if let Some(event) = judge(&self.selection, &self.prefix, &change) {
                    return Some(event);
                }
            },
            Phase::Failed(_) | Phase::Over => None,
        }
    }

    /// A mark for a client that wants one; none while there is more to tell.
    pub fn bookmark(&mut self) -> Option<Event> {
        let Phase::Live(watch) = &mut self.phase else { return None };
        watch.progress().map(|rev| Event::Bookmark { rev, initial_events_end: false })
    }

    /// Bytes that are kept for this watch alone, until they are asked for.
    #[cfg(test)]
    pub(crate) fn held_bytes(&self) -> usize {
        match &self.phase {
            Phase::Initial { lister, page } => {
                lister.held_bytes() + page.as_slice().iter().map(Document::size).sum::<usize>()
            }
            Phase::Live(watch) => watch.held_bytes(),
            Phase::Failed(_) | Phase::Over => 0,
        }
    }

    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    fn go_live(&mut self) {
        self.phase = match self.registry.store().watch(&self.prefix, self.rev) {
            Ok(watch) => Phase::Live(watch),
            // Told by the next call.
            Err(gone) => Phase::Failed(gone),
        };
    }

    fn fail(&mut self, api_status: ApiStatus) -> Event {
        self.phase = Phase::Over;
        Event::Failed(api_status)
    }
}

/// A change of the store, as a selection sees it: what begins to match is added, what ceases to is deleted.
fn judge(selection: &Selection, prefix: &str, change: &Change) -> Option<Event> {
    let one_key = !prefix.ends_with('/');
    if one_key && *change.key != *prefix {
        return None;
    }
    let document = |stored| Document::new(change.key.clone(), change.rev, stored);
    let before = change.previous.clone().map(document);
    let filtering = selection.is_filtering();
    let was = before.as_ref().is_some_and(|d| !filtering || selection.takes(d));
    if change.kind == ChangeKind::Deleted {
        return before.filter(|_| was).map(Event::Deleted);
    }
    let after = document(change.value.clone());
    let is = !filtering || selection.takes(&after);
    match (was, is) {
        (false, true) => Some(Event::Added(after)),
        (true, true) => Some(Event::Modified(after)),
        (true, false) => before.map(Event::Deleted),
        (false, false) => None,
    }
}

fn too_old(gone: Compacted) -> ApiStatus {
    ApiStatus::expired(format!("too old resource version: {} ({})", gone.requested, gone.compacted))
}
