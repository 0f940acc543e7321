//! Room: so much of something for all, and for each user no more than half of it.
//!
//! What a client makes the server keep in memory has its part of the room: bodies that arrive, large objects that are worked
//! on, answers that wait until they are read. Whoever sends and never ends, or asks and never reads, uses up what is his.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::sync::oneshot;

use super::answer::Answer;
use apiserver_core::api_status::ApiStatus;
use apiserver_core::request::{User, groups};

/// What needs less needs no part of the room: its number is bounded elsewhere.
pub(super) const LARGE: usize = 32 * 1024;
/// For others to make room.
pub(super) const WAIT: Duration = Duration::from_secs(10);

/// What there is of it. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Room(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    all: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    by_user: HashMap<Box<str>, usize>,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    name: Box<str>,
    is_admin: bool,
    amount: usize,
    granted: oneshot::Sender<Part>,
}

/// A part of the room; given back when dropped.
#[derive(Debug)]
pub(crate) struct Part {
    of: Room,
    name: Box<str>,
    amount: usize,
}

/// Bytes that have a part of the room until the last of them is sent.
struct Sent {
    bytes: Bytes,
    _part: Option<Part>,
}

// === impl Room ===

impl Room {
    pub(super) fn new(all: usize) -> Room {
        Room(Arc::new(Inner { all, state: Mutex::default() }))
    }

    /// Waits for room, for something that is not in memory yet. Whoever gets none in time is asked to come again.
    pub(super) async fn take(&self, user: &User, amount: usize, wait: Duration) -> Result<Part, ApiStatus> {
        match tokio::time::timeout(wait, self.ask(user, amount)).await {
            Ok(Ok(part)) => Ok(part),
            _ => Err(crowded()),
        }
    }

    /// Takes it if there is room at this moment.
    pub(super) fn try_take(&self, user: &User, amount: usize) -> Option<Part> {
        let (amount, mut state) = (amount.min(self.each()), self.state());
        if !self.fits(&state, &user.name, is_admin(user), amount) {
            return None;
        }
        state.add(&user.name, amount);
        Some(Part { of: self.clone(), name: user.name.as_str().into(), amount })
    }

    fn ask(&self, user: &User, amount: usize) -> oneshot::Receiver<Part> {
        let (granted, told) = oneshot::channel();
        let (name, amount) = (Box::from(user.name.as_str()), amount.min(self.each()));
        let mut state = self.state();
        state.waiting.push_back(Waiting { name, is_admin: is_admin(user), amount, granted });
        drop(state);
        self.grant();
        told
    }

    /// Gives room to those who wait: first to whoever has least, so that nobody stands behind another's crowd.
    fn grant(&self) {
        let mut left = Vec::new();
        let mut state = self.state();
        state.waiting.retain(|waiting| !waiting.granted.is_closed());
        while let Some(waiting) = self.next(&mut state) {
            state.add(&waiting.name, waiting.amount);
            let part = Part { of: self.clone(), name: waiting.name, amount: waiting.amount };
            left.extend(waiting.granted.send(part).err());
        }
        drop(state);
        // Those who had gone meanwhile give theirs back, which needs the lock.
        drop(left);
    }

    fn next(&self, state: &mut State) -> Option<Waiting> {
        let fitting = state.waiting.iter().enumerate();
        let fitting = fitting.filter(|(_, w)| self.fits(state, &w.name, w.is_admin, w.amount));
        let (at, _) = fitting.min_by_key(|(_, w)| state.own(&w.name))?;
        state.waiting.remove(at)
    }

    /// One user has half of it at most, and the last quarter is for administrators.
    fn fits(&self, state: &State, name: &str, is_admin: bool, amount: usize) -> bool {
        let all = self.0.all;
        let (own, most) = if is_admin { (0, all) } else { (state.own(name), all - all / 4) };
        own + amount <= self.each() && state.taken + amount <= most
    }

    fn each(&self) -> usize {
        self.0.all / 2
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_admin(user: &User) -> bool {
    user.is_in(groups::MASTERS)
}

fn crowded() -> ApiStatus {
    let message = "The server has received too many requests and has asked us to try again later";
    ApiStatus::too_many_requests(message, 1)
}

// === impl State ===

impl State {
    fn own(&self, name: &str) -> usize {
        self.by_user.get(name).copied().unwrap_or_default()
    }

    fn add(&mut self, name: &str, amount: usize) {
        self.taken += amount;
        *self.by_user.entry(name.into()).or_default() += amount;
    }

    fn subtract(&mut self, name: &str, amount: usize) {
        self.taken = self.taken.saturating_sub(amount);
        if let Some(own) = self.by_user.get_mut(name) {
            *own = own.saturating_sub(amount);
            if *own == 0 {
                self.by_user.remove(name);
            }
        }
    }
}

// === impl Part ===

impl Part {
    /// From here on it is this much, whether there is room or not: it is in memory already.
    pub(super) fn set(&mut self, amount: usize) {
        let mut state = self.of.state();
        state.subtract(&self.name, self.amount);
        state.add(&self.name, amount);
        self.amount = amount;
        drop(state);
        self.of.grant();
    }

    /// Bytes that keep it until the last of them is sent.
    pub(super) fn keep(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Sent { bytes, _part: Some(self) })
    }

    /// An answer that keeps it until it is sent.
    pub(super) fn keep_answer(mut self, answer: Answer) -> Answer {
        use hyper::body::Body as _;
        let size = usize::try_from(answer.body().size_hint().lower()).unwrap_or(usize::MAX);
        if size < LARGE {
            return answer;
        }
        self.set(size);
        let mut part = Some(self);
        let mut keep = move |bytes| match part.take() {
            Some(part) => part.keep(bytes),
            None => bytes,
        };
        answer.map(|body| body.map_frame(move |frame| frame.map_data(&mut keep)).boxed_unsync())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.of.state().subtract(&self.name, self.amount);
        self.of.grant();
    }
}

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::http::answer;
    use futures_util::FutureExt;

    const NONE: Duration = Duration::ZERO;

    #[tokio::test(start_paused = true)]
    async fn one_user_has_half_and_the_last_quarter_is_for_administrators() {
        let room = Room::new(80);
        let [loud, quiet, admin] = ["loud", "quiet", "admin"].map(|n| User::new(n, &[]));
        let admin = User { groups: vec![groups::MASTERS.to_owned()], ..admin };
        let mut held: Vec<_> = (0..4).map(|_| room.try_take(&loud, 10).unwrap()).collect();
        assert_eq!(room.take(&loud, 1, WAIT).await.unwrap_err().code, 429);
        held.extend((0..2).map(|_| room.try_take(&quiet, 10).unwrap()));
        assert!(room.try_take(&quiet, 1).is_none());
        // What is more than anybody may have is as much as anybody may have.
        assert!(room.try_take(&admin, 20).is_some() && room.take(&admin, 900, NONE).await.is_err());
        held.clear();
        drop(room.take(&loud, 900, NONE).await.unwrap());
        let state = room.state();
        assert!(state.taken == 0 && state.by_user.is_empty() && state.waiting.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_has_least_goes_first_and_who_has_gone_takes_nothing() {
        let room = Room::new(4);
        let [loud, other, quiet] = ["loud", "other", "quiet"].map(|n| User::new(n, &[]));
        let mut held = vec![room.try_take(&loud, 1).unwrap(), room.try_take(&loud, 1).unwrap()];
        held.push(room.try_take(&other, 1).unwrap());
        let mut crowd: Vec<_> = (0..50).map(|_| Box::pin(room.take(&other, 1, WAIT))).collect();
        assert!(crowd.iter_mut().all(|one| one.now_or_never().is_none()));
        let mut last = Box::pin(room.take(&quiet, 1, WAIT));
        assert!(last.as_mut().now_or_never().is_none());
        held.remove(0);
        let last = last.now_or_never().unwrap().unwrap();
        drop((crowd, held));
        assert_eq!(room.state().taken, 1);
        drop(last);
        assert_eq!(room.state().taken, 0);
    }

    #[tokio::test]
    async fn an_answer_keeps_its_part_until_the_last_byte_of_it_is_gone() {
        let (room, user) = (Room::new(8 * LARGE), User::new("one", &[]));
        let part = || room.try_take(&user, LARGE).unwrap();
        let answer = part().keep_answer(answer::whole(200, "text/plain", vec![0; 2 * LARGE].into()));
        assert_eq!(room.state().taken, 2 * LARGE);
        let mut sent = answer.into_body().collect().await.unwrap().to_bytes();
        let last = sent.split_off(2 * LARGE - 1);
        drop(sent);
        assert_eq!(room.state().taken, 2 * LARGE);
        drop(last);
        assert_eq!(room.state().taken, 0);
        drop(part().keep_answer(answer::whole(200, "text/plain", vec![0; 2 * LARGE].into())));
        let _small = part().keep_answer(answer::whole(200, "text/plain", Bytes::new()));
        assert_eq!(room.state().taken, 0);
    }
}
