//! One family: what the kernel is told next, and what it is trusted to hold.

use std::time::Duration;

use proxy_core::objects::Family;
use proxy_core::rules::{Delta, Rulebook, Settings};
use tokio::sync::mpsc;
use tokio::task::JoinError;
use tokio::time::Instant;

use crate::ports::{Dataplane, Error};
use crate::yield_flag::{Outcome, YieldFlag};

use super::contest::Contest;
use super::{FamilyReport, Gap, Inbox, Periods};

/// The first wait after a failure; it doubles from there.
const FIRST_RETRY: Duration = Duration::from_millis(100);

/// A look that made way for news is tried again after this long, then after twice as long, and so on, and does not make
/// way more often than this. Where news never ends, the looks that it ends must not be all that is done.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const MOST_TIMES_LEFT: u32 = 10;

/// Where nobody asked for a gap, changes may take one part in so many of the time.
const PACE: u32 = 20;

/// But so much at once: a change that follows a large one is told without delay.
const FREE: Duration = Duration::from_millis(200);

/// After others touched our rules, changes come first for so long; then everything is compared, whatever else there is.
const HEAL_WITHIN: Duration = Duration::from_millis(300);

pub(super) struct Plane {
    book: Rulebook,
    dataplane: Box<dyn Dataplane>,
    /// What the last comparison or change left us believing.
    trust: Trust,
    /// There is something in the cluster that the book does not know.
    pub(super) has_news: bool,
    /// When to compare everything, though nothing seems wrong; `None` before the first time.
    pub(super) look_at: Option<Instant>,
    /// When to compare everything at the earliest, unless there is news.
    rested_at: Instant,
    /// It was not possible; not before this either.
    unseeing_until: Instant,
    /// How often that made way for news since it was last done.
    times_left: u32,
    wants_tidying: bool,
    times_untidied: u32,
    pub(super) retry: Option<(Instant, Duration)>,
    contest: Contest,
    spending: Spending,
    pub(super) notifications: Option<mpsc::Receiver<()>>,
    /// Compared, and not listening yet.
    wants_monitor: bool,
    pub(super) report: FamilyReport,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    /// The kernel has not been looked at.
    None,
    /// It was as we left it, as far as we know.
    Full,
    /// Somebody touched it then. Most of it is still as we left it.
    Touched(Instant),
    /// A change failed.
    Lost,
}

/// What came of an attempt.
enum Deed {
    Changed,
    /// With what was wrong, and is right now.
    Compared(Vec<String>),
    /// A comparison made way for news.
    Left,
    /// A comparison was not possible. What there was to change is changed.
    Unread {
        has_changed: bool,
    },
}

/// How much time changes took of late.
#[derive(Clone, Copy, Debug)]
struct Spending {
    spent: Duration,
    at: Instant,
}

/// What a comparison of everything needed, and the code that only ran for it.
fn give_memory_back() {
    if let Err(error) = sys::memory::release() {
        tracing::debug!(%error, "memory not given back");
    }
}

// === impl Gap ===

impl Gap {
    /// After everything was compared.
    fn after_look(self, took: Duration) -> Duration {
        match self {
            Gap::Said(gap) => gap,
            Gap::AtMost(most) => took.saturating_mul(PACE).min(most),
        }
    }

    fn after_change(self, spending: Spending) -> Duration {
        match self {
            Gap::Said(gap) => gap,
            Gap::AtMost(most) => spending.spent.saturating_sub(FREE).saturating_mul(PACE).min(most),
        }
    }

    /// After everything was compared and put right, which is rare enough by itself.
    fn after_repair(self) -> Option<Duration> {
        match self {
            Gap::Said(gap) => Some(gap),
            Gap::AtMost(_) => None,
        }
    }
}

// === impl Deed ===

impl From<Outcome<Vec<String>>> for Deed {
    fn from(outcome: Outcome<Vec<String>>) -> Self {
        match outcome {
            Outcome::Done(faults) => Deed::Compared(faults),
            Outcome::Left => Deed::Left,
        }
    }
}

// === impl Spending ===

impl Spending {
    fn new() -> Self {
        Self { spent: Duration::ZERO, at: Instant::now() }
    }

    /// What was spent is forgotten as fast as it may be spent.
    fn note(&mut self, took: Duration, now: Instant) {
        let forgotten = now.saturating_duration_since(self.at) / PACE;
        *self = Self { spent: self.spent.saturating_sub(forgotten) + took, at: now };
    }
}

// === impl Plane ===

impl Plane {
    pub(super) fn new(family: Family, settings: Settings, dataplane: Box<dyn Dataplane>) -> Self {
        let report = FamilyReport {
            family,
            pending_since: None,
            synced_at: None,
            syncs: 0,
            failures: 0,
            repairs: 0,
            contested_by: None,
        };
        Self {
            book: Rulebook::new(family, settings),
            dataplane,
            trust: Trust::None,
            has_news: false,
            look_at: None,
            rested_at: Instant::now(),
            unseeing_until: Instant::now(),
            times_left: 0,
            wants_tidying: false,
            times_untidied: 0,
            retry: None,
            contest: Contest::default(),
            spending: Spending::new(),
            notifications: None,
            wants_monitor: false,
            report,
        }
    }

    pub(super) fn note_news(&mut self) {
        self.has_news = true;
        self.report.pending_since.get_or_insert_with(Instant::now);
    }

    /// Others touched the rules in the kernel. Whoever was to compare everything anyway still is.
    pub(super) fn note_touch(&mut self) {
        if self.trust == Trust::Full {
            self.trust = Trust::Touched(Instant::now());
        }
    }

    /// Whether a change comes before a comparison of everything, and interrupts one.
    fn makes_way(&self, now: Instant) -> bool {
        match self.trust {
            Trust::Full => self.times_left < MOST_TIMES_LEFT,
            Trust::Touched(at) => now < self.heals_from() || now.saturating_duration_since(at) < HEAL_WITHIN,
            Trust::None | Trust::Lost => false,
        }
    }

    /// What others did is put right no sooner.
    fn heals_from(&self) -> Instant {
        self.contest.until().map_or(self.unseeing_until, |until| until.max(self.unseeing_until))
    }

    /// When there is something to do. To tidy up need not wait until others have had their peace.
    pub(super) fn due_at(&self, now: Instant, quiet_until: Instant) -> Instant {
        if self.wants_tidying { now } else { self.sync_at(now).max(quiet_until) }
    }

    /// When the kernel has to be told or looked at.
    fn sync_at(&self, now: Instant) -> Instant {
        match (self.retry, self.look_at) {
            (Some((at, _)), _) => at,
            (None, Some(look_at)) if self.trust == Trust::Full && !self.has_news => look_at,
            (None, Some(_)) if !self.has_news => self.rested_at.max(self.heals_from()),
            _ => now,
        }
    }

    /// Says for how long others are left in peace then, if the kernel was told something.
    pub(super) async fn serve(
        self,
        inbox: &mut Inbox,
        periods: Periods,
        quiet_until: Instant,
    ) -> Result<(Self, Option<Duration>), JoinError> {
        let now = Instant::now();
        match self.sync_at(now).max(quiet_until) <= now {
            true => self.sync(inbox, periods).await,
            false => Ok((self.tidy(inbox, quiet_until).await?, None)),
        }
    }

    async fn sync(
        mut self,
        inbox: &mut Inbox,
        periods: Periods,
    ) -> Result<(Self, Option<Duration>), JoinError> {
        let now = Instant::now();
        let changed = inbox.cluster.take_changes(self.report.family).unwrap_or_default();
        let delta = self.book.update(&inbox.cluster, &inbox.host, changed);
        self.has_news = false;
        // A look for its own sake waits until there is nothing more urgent, unless it has waited often.
        let makes_way = self.makes_way(now);
        let is_late = self.is_late(now, periods);
        let must_verify = match self.trust {
            Trust::None | Trust::Lost => true,
            Trust::Touched(_) => delta.is_empty() || !makes_way,
            Trust::Full => is_late && (delta.is_empty() || !makes_way),
        };
        if delta.is_empty() && !must_verify {
            self.report.pending_since = None;
            self.resume_tidying();
            return Ok((self, None));
        }
        let has_news = !delta.is_empty() || self.retry.is_some();
        let flag = YieldFlag::default();
        let flag_of_job = flag.clone();
        let job = tokio::task::spawn_blocking(move || {
            let deed = self.act(delta, must_verify, &flag_of_job);
            (self, deed)
        });
        let (mut plane, deed) = match must_verify && makes_way {
            true => inbox.attend(job, &flag, now).await?,
            false => job.await?,
        };
        match deed {
            Ok(Deed::Changed) => {
                plane.succeed(periods, None);
                let gap = plane.rest(false, now.elapsed(), periods.gap);
                Ok((plane, Some(gap)))
            }
            Ok(Deed::Compared(faults)) => {
                plane.succeed(periods, Some((has_news, &faults)));
                plane.rest(true, now.elapsed(), periods.gap);
                // A look that found everything right is nothing that others have to recover from.
                let quiet = if faults.is_empty() { None } else { periods.gap.after_repair() };
                Ok((plane, quiet))
            }
            Ok(Deed::Left) => {
                // After others touched it, it is left more often, and tried again at once.
                plane.look_later(periods);
                plane.resume_tidying();
                Ok((plane, None))
            }
            Ok(Deed::Unread { has_changed }) => {
                plane.unseeing_until = plane.look_later(periods);
                match has_changed {
                    true => plane.succeed(periods, None),
                    false => plane.resume_tidying(),
                }
                Ok((plane, has_changed.then(|| periods.gap.after_look(now.elapsed()))))
            }
            Err(error) => {
                plane.fail(&error, periods);
                Ok((plane, Some(periods.gap.after_look(now.elapsed()))))
            }
        }
    }

    /// Puts off the comparison of everything, longer each time. Says until when.
    fn look_later(&mut self, periods: Periods) -> Instant {
        let times = self.times_left.min(MOST_TIMES_LEFT);
        let at = Instant::now() + LOOK_AGAIN.saturating_mul(1 << times).min(periods.verify);
        self.look_at = Some(at);
        self.times_left += 1;
        at
    }

    /// Whether everything should have been compared by now. What is not worth it is put off.
    fn is_late(&mut self, now: Instant, periods: Periods) -> bool {
        let Some(at) = self.look_at else { return true };
        if at <= now && !self.dataplane.is_worth_a_look(self.book.rules()) {
            self.look_at = Some(now + periods.verify);
            return false;
        }
        at <= now
    }

    /// For how long to rest after something that took so long.
    fn rest(&mut self, did_verify: bool, took: Duration, gap: Gap) -> Duration {
        let now = Instant::now();
        let gap = match did_verify {
            true => gap.after_look(took),
            false => {
                self.spending.note(took, now);
                gap.after_change(self.spending)
            }
        };
        self.rested_at = now + gap;
        gap
    }

    /// Makes a change, or compares everything. Blocks.
    fn act(&mut self, delta: Delta, must_verify: bool, flag: &YieldFlag) -> Result<Deed, Error> {
        if !must_verify {
            return match self.dataplane.apply(self.book.rules(), &delta) {
                // What others did is in the way: it has to be found out first after all.
                Err(_) if matches!(self.trust, Trust::Touched(_)) => {
                    Ok(self.dataplane.verify(self.book.rules(), &YieldFlag::default())?.into())
                }
                done => done.map(|()| Deed::Changed),
            };
        }
        // Who compares everything does not need to know what changed, and the first time that is everything.
        let knows = matches!(self.trust, Trust::Full | Trust::Touched(_));
        let delta = knows.then_some(delta);
        let outcome = match (self.dataplane.verify(self.book.rules(), flag), delta) {
            (Err(error @ Error::Unread(_)), Some(delta)) => return self.act_unseeing(&error, &delta),
            (outcome, _) => outcome?,
        };
        // Whoever has written everything leaves as much memory behind. While it is given back nobody can
        // allocate: better now than when the next change is on its way.
        let is_first = self.trust == Trust::None;
        if is_first || matches!(&outcome, Outcome::Done(faults) if !faults.is_empty()) {
            give_memory_back();
        }
        Ok(outcome.into())
    }

    /// The kernel could not be looked at, which is no reason to think that it is not as we left it.
    fn act_unseeing(&mut self, error: &Error, delta: &Delta) -> Result<Deed, Error> {
        tracing::info!(family = self.report.family.name(), %error, "looking again later");
        let has_changed = !delta.is_empty();
        if has_changed {
            self.dataplane.apply(self.book.rules(), delta)?;
        }
        Ok(Deed::Unread { has_changed })
    }

    async fn tidy(mut self, inbox: &mut Inbox, quiet_until: Instant) -> Result<Self, JoinError> {
        let makes_way = self.times_untidied < MOST_TIMES_LEFT;
        let flag = YieldFlag::default();
        let flag_of_job = flag.clone();
        let job = tokio::task::spawn_blocking(move || {
            let outcome = self.dataplane.tidy(self.book.rules(), &flag_of_job);
            (self, outcome)
        });
        let (mut plane, outcome) = match makes_way {
            true => inbox.attend(job, &flag, quiet_until).await?,
            false => job.await?,
        };
        // What was left is done after whatever it made way for.
        plane.wants_tidying = false;
        plane.times_untidied = if outcome == Outcome::Left { plane.times_untidied + 1 } else { 0 };
        Ok(plane)
    }

    /// What tidying made way for may have come to nothing; then no sync asks for it again.
    fn resume_tidying(&mut self) {
        self.wants_tidying |= self.times_untidied > 0;
    }

    /// After a comparison with what it found, and whether there was news: then what it found to differ is mostly that.
    fn succeed(&mut self, periods: Periods, compared: Option<(bool, &[String])>) {
        let now = Instant::now();
        let family = self.report.family.name();
        if let Some((has_news, faults)) = compared {
            if self.trust == Trust::None {
                tracing::info!(family, found = faults.len(), "the kernel has our rules");
            } else if !faults.is_empty() && !has_news {
                tracing::warn!(family, faults = faults.join(", "), "put right what was changed in our rules");
                self.report.repairs += 1;
                self.contend(now);
            } else if faults.is_empty() && self.contest.until().is_some_and(|until| until < now) {
                // It was left as it is since.
                self.report.contested_by = None;
            }
            self.trust = Trust::Full;
            self.look_at = Some(now + periods.verify);
            self.times_left = 0;
        }
        self.wants_tidying = true;
        self.retry = None;
        self.report.pending_since = None;
        self.report.synced_at = Some(now);
        self.report.syncs += 1;
        self.wants_monitor |= compared.is_some() && self.notifications.is_none();
    }

    /// Others may change our rules again and again: a second kube-proxy does.
    fn contend(&mut self, now: Instant) {
        let Some(wait) = self.contest.repaired(now) else {
            self.report.contested_by = None;
            return;
        };
        let by = self.dataplane.last_to_touch().unwrap_or_else(|| "an unknown process".to_owned());
        tracing::warn!(
            family = self.report.family.name(),
            by,
            wait_s = wait.as_secs(),
            "our rules are changed again each time they are put right: is there a second kube-proxy?"
        );
        self.report.contested_by = Some(by);
    }

    pub(super) fn listen(&mut self) {
        if !std::mem::take(&mut self.wants_monitor) {
            return;
        }
        match self.dataplane.listen() {
            Ok(notifications) => {
                self.notifications = Some(notifications);
                // What happened between the comparison and now went unheard.
                if !self.dataplane.hears_the_past() {
                    self.look_at = Some(Instant::now());
                }
            }
            Err(cause) => {
                let family = self.report.family.name();
                tracing::warn!(family, %cause, "not notified when others change our rules");
            }
        }
    }

    /// What was to be changed is not lost: the next try compares everything.
    fn fail(&mut self, error: &Error, periods: Periods) {
        let wait = self.retry.map_or(FIRST_RETRY, |(_, wait)| wait * 2).min(periods.retry);
        self.retry = Some((Instant::now() + wait, wait));
        if self.trust != Trust::None {
            self.trust = Trust::Lost;
        }
        self.report.failures += 1;
        let family = self.report.family.name();
        tracing::warn!(family, %error, retry_in_ms = wait.as_millis() as u64, "telling the kernel failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_changed_little_of_late_need_not_wait() {
        let (most, ms) = (Duration::from_secs(1), Duration::from_millis);
        let start = Instant::now();
        let mut spending = Spending::new();
        // When, how long it took, and how long to wait then.
        let rows = [
            (ms(0), ms(2), ms(0)),
            (ms(10), ms(50), ms(0)),
            (ms(20), ms(140), ms(0)),
            // Now it is enough for a while.
            (ms(30), ms(20), ms(210)),
            (ms(230), ms(500), most),
            // A quiet minute later all is forgotten.
            (ms(60_000), ms(150), ms(0)),
        ];
        for (at, took, wait) in rows {
            spending.note(took, start + at);
            let said = Gap::AtMost(most).after_change(spending);
            assert!(said.abs_diff(wait) < ms(10), "{at:?}: {said:?}");
            assert_eq!(Gap::Said(ms(7)).after_change(spending), ms(7));
        }
    }
}
