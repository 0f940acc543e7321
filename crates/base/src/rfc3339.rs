//! Times as Kubernetes writes them, of any year.
//!
//! The calendar library of the types ends on 9999-12-30 and takes nine digits of a fraction at most. An API server does
//! neither: whoever may write a status can put a later time there, and it must not cost the object.

use std::fmt;

/// A moment: seconds since the Unix epoch, and what is left of the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment {
    pub secs: i64,
    pub nanos: u32,
}

/// Years longer than this are a joke, and would not fit.
const YEAR_DIGITS: usize = 9;
const DAY: i64 = 86_400;

// === impl Moment ===

impl Moment {
    /// 0000-01-01T00:00:00Z and 9999-12-31T23:59:59Z: a year has four digits.
    pub const FIRST: i64 = -62_167_219_200;
    pub const LAST: i64 = 253_402_300_799;

    /// Reads what upstream's decoder reads: four digits of a year, capital letters, a fraction of any length. What is finer
    /// than a nanosecond is cut off.
    #[must_use]
    pub fn parse(text: &str) -> Option<Moment> {
        let strict = text.len() >= 20 && text.as_bytes()[4] == b'-' && text.as_bytes()[10] == b'T';
        let tail = text.as_bytes().last().is_some_and(|b| *b != b'z');
        if strict && tail { read(text, 59) } else { None }
    }

    /// Reads whatever can be meant: also a leap second, years of more digits and before the first, small letters. These
    /// come from servers that moved a time to UTC across the end of the calendar.
    #[must_use]
    pub fn parse_lenient(text: &str) -> Option<Moment> {
        read(text.trim(), 60)
    }

    /// Whether its year has the digits that a time is written with.
    #[must_use]
    pub fn is_written(self) -> bool {
        (Self::FIRST..=Self::LAST).contains(&self.secs)
    }

    /// `2026-01-01T00:00:00Z`
    #[must_use]
    pub fn to_seconds(self) -> String {
        let (date, [hour, minute, second]) = self.civil();
        format!("{date}T{hour:02}:{minute:02}:{second:02}Z")
    }

    /// `2026-01-01T00:00:00.000000Z`
    #[must_use]
    pub fn to_micros(self) -> String {
        let (date, [hour, minute, second]) = self.civil();
        format!("{date}T{hour:02}:{minute:02}:{second:02}.{:06}Z", self.nanos / 1000)
    }

    fn civil(self) -> (Date, [i64; 3]) {
        let rest = self.secs.rem_euclid(DAY);
        (Date::of(self.secs.div_euclid(DAY)), [rest / 3600, rest / 60 % 60, rest % 60])
    }
}

/// A day of the proleptic Gregorian calendar.
struct Date {
    year: i64,
    month: i64,
    day: i64,
}

// === impl Date ===

impl Date {
    /// Howard Hinnant's algorithm: eras of 400 years that begin in March.
    fn of(days: i64) -> Date {
        let shifted = days + 719_468;
        let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        Date { year: year_of_era + era * 400 + i64::from(month <= 2), month, day }
    }

    /// Days since the Unix epoch.
    fn days(&self) -> i64 {
        let year = self.year - i64::from(self.month <= 2);
        let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
        let of_year = (153 * ((self.month + 9) % 12) + 2) / 5 + self.day - 1;
        era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year - 719_468
    }

    fn exists(&self) -> bool {
        let is_leap = self.year % 4 == 0 && (self.year % 100 != 0 || self.year % 400 == 0);
        let last = match self.month {
            2 => 28 + i64::from(is_leap),
            4 | 6 | 9 | 11 => 30,
            1..=12 => 31,
            _ => return false,
        };
        (1..=last).contains(&self.day)
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.year < 0 { "-" } else { "" };
        write!(f, "{sign}{:04}-{:02}-{:02}", self.year.abs(), self.month, self.day)
    }
}

fn read(text: &str, last_second: i64) -> Option<Moment> {
    let (sign, rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let mut rest = Rest(rest.as_bytes());
    let year = rest.digits(4, YEAR_DIGITS)?;
    let month = rest.one_of(b"-").and_then(|_| rest.digits(2, 2))?;
    let day = rest.one_of(b"-").and_then(|_| rest.digits(2, 2))?;
    let hour = rest.one_of(b"Tt ").and_then(|_| rest.digits(2, 2))?;
    let minute = rest.one_of(b":").and_then(|_| rest.digits(2, 2))?;
    let second = rest.one_of(b":").and_then(|_| rest.digits(2, 2))?;
    let nanos = if rest.one_of(b".,").is_some() { rest.fraction()? } else { 0 };
    let offset = rest.offset()?;
    let date = Date { year: sign * year, month, day };
    if !rest.0.is_empty() || !date.exists() || hour > 23 || minute > 59 || second > last_second {
        return None;
    }
    let of_day = hour * 3600 + minute * 60 + second.min(59);
    Some(Moment { secs: date.days() * DAY + of_day - offset, nanos })
}

struct Rest<'a>(&'a [u8]);

// === impl Rest ===

impl Rest<'_> {
    fn one_of(&mut self, wanted: &[u8]) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        wanted.contains(first).then(|| self.0 = rest)?;
        Some(*first)
    }

    fn digits(&mut self, least: usize, most: usize) -> Option<i64> {
        let count = self.0.iter().take(most).take_while(|b| b.is_ascii_digit()).count();
        if count < least {
            return None;
        }
        let (digits, rest) = self.0.split_at(count);
        self.0 = rest;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    fn fraction(&mut self) -> Option<u32> {
        let count = self.0.iter().take_while(|b| b.is_ascii_digit()).count();
        let (digits, rest) = self.0.split_at(count);
        self.0 = rest;
        let padded = digits.iter().copied().chain(std::iter::repeat(b'0')).take(9);
        (count > 0).then(|| padded.fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0')))
    }

    /// Seconds east of UTC.
    fn offset(&mut self) -> Option<i64> {
        let sign = match self.one_of(b"Zz+-")? {
            b'+' => 1,
            b'-' => -1,
            _ => return Some(0),
        };
        let hours = self.digits(2, 2)?;
        let minutes = self.one_of(b":").and_then(|_| self.digits(2, 2))?;
        (hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_upstream_takes_is_written_back() {
        for (given, seconds, micros) in [
            ("2024-02-29T04:05:06Z", "2024-02-29T04:05:06Z", "2024-02-29T04:05:06.000000Z"),
            ("2024-02-03T04:05:06.123456789+02:00", "2024-02-03T02:05:06Z", "2024-02-03T02:05:06.123456Z"),
            ("2024-02-03T04:05:06,5-00:30", "2024-02-03T04:35:06Z", "2024-02-03T04:35:06.500000Z"),
            ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59.000000Z"),
            ("9999-12-31T23:59:59-01:00", "10000-01-01T00:59:59Z", "10000-01-01T00:59:59.000000Z"),
            ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000000Z"),
            ("0000-01-01T00:00:00+01:00", "-0001-12-31T23:00:00Z", "-0001-12-31T23:00:00.000000Z"),
            ("1969-12-31T23:59:59.123456789012345Z", "1969-12-31T23:59:59Z", "1969-12-31T23:59:59.123456Z"),
        ] {
            let read = Moment::parse(given);
            assert_eq!(read.map(Moment::to_seconds).as_deref(), Some(seconds), "{given}");
            assert_eq!(read.map(Moment::to_micros).as_deref(), Some(micros), "{given}");
            // And what was written is read, wherever it went.
            let has_four = seconds.len() == 20;
            assert_eq!(read.map(Moment::is_written), Some(has_four), "{given}");
            assert_eq!(read.map(|m| m.secs), Moment::parse_lenient(seconds).map(|m| m.secs), "{given}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        let never = [
            "",
            "now",
            "2024-02-03",
            "2024-13-03T04:05:06Z",
            "2023-02-29T04:05:06Z",
            "2024-02-03T24:05:06Z",
            "2024-02-03T04:60:06Z",
            "2024-02-03T04:05:61Z",
            "2024-02-03T04:05:06",
            "2024-02-03T04:05:06.Z",
            "2024-02-03T04:05:06+24:00",
            "2024-02-03T04:05:06Zx",
            "99999999999999999999-01-01T00:00:00Z",
            "é024-02-03T04:05:06Z",
        ];
        for text in never {
            assert_eq!((Moment::parse(text), Moment::parse_lenient(text)), (None, None), "{text}");
        }
        for text in
            ["2024-02-03 04:05:06Z", "2024-02-03T04:05:60Z", "2024-02-03t04:05:06z", "10000-01-01T00:00:00Z"]
        {
            assert!(Moment::parse(text).is_none() && Moment::parse_lenient(text).is_some(), "{text}");
        }
    }

    #[test]
    fn days_and_dates_are_one() {
        for days in (-800_000_i64..3_700_000).step_by(37) {
            let date = Date::of(days);
            assert!(date.exists() && date.days() == days, "{days}: {date}");
        }
    }
}
