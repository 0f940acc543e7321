//! When a CronJob is due, and what it missed.

use std::time::Duration;

use jiff::Timestamp;

use super::*;

pub(super) const TOO_MANY: &str =
    "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";

/// More would be no accident.
const MANY: i64 = 100;

/// A schedule and the zone it goes by.
#[derive(Debug)]
pub(super) struct Clock {
    schedule: Schedule,
    zone: TimeZone,
}

/// What was due since the last time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Missed {
    /// Where counting began.
    since: Wall,
    pub(super) latest: Option<Wall>,
    /// About how many; zero: at most one.
    count: i64,
}

pub(super) fn unsupported(schedule: &str) -> String {
    format!(
        "CRON_TZ or TZ used in schedule {schedule:?} is not officially supported, see \
         https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
    )
}

pub(super) fn last(status: &Value) -> Option<Wall> {
    status["lastScheduleTime"].as_str().and_then(wall)
}

/// `Wed, 18 Nov 2026 12:00:00 +0000`
pub(super) fn mail_date(time: Wall) -> String {
    let time = Timestamp::from_second(time.secs()).unwrap_or_default();
    time.strftime("%a, %d %b %Y %H:%M:%S +0000").to_string()
}

/// RFC 3339 in a zone.
pub(super) fn local_time(time: Wall, zone: &TimeZone) -> String {
    let time = Timestamp::from_second(time.secs()).unwrap_or_default().to_zoned(zone.clone());
    let format = if time.offset().is_zero() { "%Y-%m-%dT%H:%M:%SZ" } else { "%Y-%m-%dT%H:%M:%S%:z" };
    time.strftime(format).to_string()
}

// === impl Clock ===

impl Clock {
    /// Err: reason and message of the event that says why there is none.
    pub(super) fn of(cron: &CronJob, local: &TimeZone) -> Result<Clock, (&'static str, String)> {
        let named = cron.zone.as_deref().map(|name| (name, time_zone(name)));
        if let Some((name, None)) = &named {
            let message = format!("invalid timeZone: {name:?}: unknown time zone {name}");
            return Err(("UnknownTimeZone", message));
        }
        let unparseable = |why: String| {
            ("UnparseableSchedule", format!("unparseable schedule: {:?} : {why}", cron.schedule))
        };
        let schedule = Schedule::parse(&cron.schedule).map_err(unparseable)?;
        let zone = match &schedule.zone {
            Some(name) => time_zone(name).ok_or_else(|| {
                unparseable(format!("provided bad location {name}: unknown time zone {name}"))
            })?,
            None => named.and_then(|(_, zone)| zone).unwrap_or_else(|| local.clone()),
        };
        Ok(Clock { schedule, zone })
    }

    pub(super) fn after(&self, time: Wall) -> Option<Wall> {
        self.schedule.next(time, &self.zone)
    }

    /// What was due up to now. With a deadline, what is older than that does not count.
    pub(super) fn missed(
        &self,
        cron: &CronJob,
        status: &Value,
        now: Now,
        deadline: Option<i64>,
    ) -> Result<Missed, &'static str> {
        let now = now.wall;
        let since = last(status).or(cron.object.meta.created).unwrap_or(now);
        let oldest =
            deadline.map(|seconds| Wall(now.0.saturating_sub(seconds.saturating_mul(1_000_000_000))));
        let since = oldest.map_or(since, |oldest| since.max(oldest));
        let never = "time difference between two schedules is less than 1 second";
        let first = self.after(since).ok_or(never)?;
        if now < first {
            return Ok(Missed { since, ..Missed::default() });
        }
        let second = self.after(first);
        if second.is_some_and(|second| now < second) {
            return Ok(Missed { since, latest: Some(first), count: 0 });
        }
        let between = second.map_or(0, |second| second.secs() - first.secs());
        if between < 1 {
            return Err(never);
        }
        // A guess by the first pause; the last ones are then looked up, as pauses differ.
        let count = (now.secs() - first.secs()) / between + 1;
        let mut time = Wall::from_secs(first.secs().saturating_add((count - 2).saturating_mul(between)));
        let mut latest = None;
        while let Some(next) = self.after(time).filter(|next| *next <= now) {
            (time, latest) = (next, Some(next));
        }
        Ok(Missed { since, latest, count })
    }

    /// How long until the next time.
    pub(super) fn wake(&self, cron: &CronJob, status: &Value, now: Now) -> Option<Duration> {
        let from = match self.missed(cron, status, now, None) {
            Ok(missed) => missed.latest.unwrap_or(if missed.count == 0 { missed.since } else { now.wall }),
            Err(_) => now.wall,
        };
        Some(self.after(from)?.since(now.wall) + DELTA)
    }
}

// === impl Missed ===

impl Missed {
    pub(super) fn is_too_many(&self) -> bool {
        self.count > MANY
    }
}
