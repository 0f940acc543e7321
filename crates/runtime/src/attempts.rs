//! Names that are taken, and attempts to make what has them. Who asks again for what is being made waits for that attempt.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tonic::Status;

type Outcome = Result<String, Status>;

#[derive(Debug, Default)]
pub(crate) struct Attempts(Mutex<HashMap<String, Arc<Attempt>>>);

/// One attempt to make something.
#[derive(Debug)]
pub(crate) struct Attempt {
    name: String,
    id: String,
    outcome: watch::Sender<Option<Outcome>>,
    /// Somebody was told how it went.
    is_told: AtomicBool,
}

#[derive(Debug)]
pub(crate) enum Entered {
    /// The caller makes it.
    First(Arc<Attempt>),
    /// It is being made, or was while nobody waited.
    Joined(Arc<Attempt>),
}

// === impl Attempts ===

impl Attempts {
    /// Takes the name for what will be `id`.
    pub(crate) fn enter(&self, name: &str, id: &str) -> Result<Entered, Status> {
        let mut all = self.all();
        if let Some(attempt) = all.get(name) {
            let is_old = attempt.is_told.load(Ordering::Acquire) && attempt.outcome.borrow().is_some();
            return match is_old {
                false => Ok(Entered::Joined(attempt.clone())),
                true => Err(Status::failed_precondition(format!(
                    "name {name:?} is reserved for {:?}",
                    attempt.id
                ))),
            };
        }
        let attempt = Attempt::new(name, id, None);
        all.insert(name.to_owned(), attempt.clone());
        Ok(Entered::First(attempt))
    }

    /// An earlier daemon has made it.
    pub(crate) fn remember(&self, name: &str, id: &str) {
        let attempt = Attempt::new(name, id, Some(Ok(id.to_owned())));
        attempt.is_told.store(true, Ordering::Release);
        self.all().insert(name.to_owned(), attempt);
    }

    /// Tells all who wait. What failed has no name any more.
    pub(crate) fn finish(&self, attempt: &Attempt, outcome: Outcome) {
        if outcome.is_err() {
            self.leave(&attempt.name, &attempt.id);
        }
        attempt.outcome.send_replace(Some(outcome));
    }

    /// The name is free again, if it is this one's.
    pub(crate) fn leave(&self, name: &str, id: &str) {
        let mut all = self.all();
        if all.get(name).is_some_and(|attempt| attempt.id == id) {
            all.remove(name);
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<Attempt>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Attempt ===

impl Attempt {
    fn new(name: &str, id: &str, outcome: Option<Outcome>) -> Arc<Attempt> {
        let outcome = watch::Sender::new(outcome);
        Arc::new(Attempt {
            name: name.to_owned(),
            id: id.to_owned(),
            outcome,
            is_told: AtomicBool::new(false),
        })
    }

    pub(crate) async fn wait(&self) -> Outcome {
        let mut outcome = self.outcome.subscribe();
        let told = outcome.wait_for(Option::is_some).await.ok().and_then(|told| told.clone());
        self.is_told.store(true, Ordering::Release);
        told.unwrap_or_else(|| Err(Status::internal("the attempt was given up")))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_asks_again_joins_and_who_comes_after_the_answer_is_refused() {
        let attempts = Attempts::default();
        let Entered::First(first) = attempts.enter("web_0", "a").unwrap() else { panic!() };
        let Entered::Joined(again) = attempts.enter("web_0", "b").unwrap() else { panic!() };
        attempts.finish(&first, Ok("a".into()));
        // Nobody was told yet: whoever asked is gone, and asks again.
        assert!(matches!(attempts.enter("web_0", "c").unwrap(), Entered::Joined(_)));
        assert_eq!(again.wait().await.unwrap(), "a");
        let refused = attempts.enter("web_0", "d").unwrap_err();
        assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
        assert!(refused.message().contains("is reserved for \"a\""));
        attempts.leave("web_0", "other");
        assert!(attempts.enter("web_0", "d").is_err());
        attempts.leave("web_0", "a");
        assert!(matches!(attempts.enter("web_0", "d").unwrap(), Entered::First(_)));
    }

    #[tokio::test]
    async fn what_failed_can_be_tried_again() {
        let attempts = Attempts::default();
        let Entered::First(first) = attempts.enter("web_0", "a").unwrap() else { panic!() };
        attempts.finish(&first, Err(Status::internal("no room")));
        assert_eq!(first.wait().await.unwrap_err().message(), "no room");
        assert!(matches!(attempts.enter("web_0", "b").unwrap(), Entered::First(_)));
    }
}
