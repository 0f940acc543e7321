//! Who is told what happens to which job of a keeper.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use crate::keeper::Happened;

/// More than ever happens to one job.
const EVENTS: usize = 8;
/// Below are the Pod's own.
const FIRST: u32 = 16;

/// Job that makes the namespaces; the first process of a shared PID namespace.
pub(crate) const NAMESPACES: u32 = 1;
pub(crate) const INIT: u32 = 2;

#[derive(Debug)]
pub(crate) struct Jobs {
    routes: Mutex<HashMap<u32, mpsc::Sender<Happened>>>,
    next: AtomicU32,
}

// === impl Jobs ===

impl Default for Jobs {
    fn default() -> Jobs {
        Jobs { routes: Mutex::default(), next: AtomicU32::new(FIRST) }
    }
}

impl Jobs {
    /// A number that was never used before, as far as [`Jobs::skip`] was told.
    pub(crate) fn number(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// An earlier daemon has used this number.
    pub(crate) fn skip(&self, used: u32) {
        self.next.fetch_max(used.saturating_add(1), Ordering::Relaxed);
    }

    /// What happens to the job from now on. The end of it: the keeper is gone.
    pub(crate) fn expect(&self, job: u32) -> mpsc::Receiver<Happened> {
        let (sender, receiver) = mpsc::channel(EVENTS);
        self.routes().insert(job, sender);
        receiver
    }

    pub(crate) fn forget(&self, job: u32) {
        self.routes().remove(&job);
    }

    /// False when nobody waits for it.
    pub(crate) fn tell(&self, job: u32, what: Happened) -> bool {
        let route = self.routes().get(&job).cloned();
        route.is_some_and(|route| route.try_send(what).is_ok())
    }

    /// The keeper is gone.
    pub(crate) fn end(&self) {
        self.routes().clear();
    }

    /// The keeper is gone; another looks after these.
    pub(crate) fn end_others(&self, adopted: &BTreeSet<u32>) {
        self.routes().retain(|job, _| adopted.contains(job));
    }

    fn routes(&self) -> MutexGuard<'_, HashMap<u32, mpsc::Sender<Happened>>> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_job_hears_its_own_and_the_end() {
        let jobs = Jobs::default();
        jobs.skip(40);
        assert_eq!(jobs.number(), 41);
        let (mut first, mut second) = (jobs.expect(1), jobs.expect(2));
        assert!(jobs.tell(2, Happened::Started) && !jobs.tell(3, Happened::Started));
        assert!(first.try_recv().is_err() && matches!(second.try_recv(), Ok(Happened::Started)));
        jobs.forget(2);
        assert!(!jobs.tell(2, Happened::Started));
        jobs.end();
        assert_eq!(first.try_recv().unwrap_err(), mpsc::error::TryRecvError::Disconnected);
    }
}
