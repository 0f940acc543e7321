//! Go's duration syntax: `1h2m0.5s`. Kubernetes writes every duration this way.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

const MICRO: u64 = 1_000;
const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// Signed nanoseconds with Go's textual form. Range: about 292 years either way.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseDurationError {
    #[error("invalid duration {0:?}")]
    Invalid(String),
    #[error("missing unit in duration {0:?}")]
    MissingUnit(String),
    #[error("unknown unit {unit:?} in duration {text:?}")]
    UnknownUnit { unit: String, text: String },
}

// === impl GoDuration ===

impl GoDuration {
    pub const ZERO: Self = Self(0);

    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(MILLI as i64))
    }

    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(SECOND as i64))
    }

    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// The same length for timers; a negative one is zero.
    pub const fn to_std(self) -> Duration {
        if self.0 < 0 { Duration::ZERO } else { Duration::from_nanos(self.0 as u64) }
    }
}

impl From<Duration> for GoDuration {
    fn from(d: Duration) -> Self {
        Self(i64::try_from(d.as_nanos()).unwrap_or(i64::MAX))
    }
}

impl fmt::Debug for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.unsigned_abs();
        if self.0 < 0 {
            f.write_str("-")?;
        }
        match nanos {
            0 => f.write_str("0s"),
            n if n < MICRO => write!(f, "{n}ns"),
            n if n < MILLI => write_decimal(f, n, MICRO, "µs"),
            n if n < SECOND => write_decimal(f, n, MILLI, "ms"),
            n => {
                if n >= HOUR {
                    write!(f, "{}h", n / HOUR)?;
                }
                if n >= MINUTE {
                    write!(f, "{}m", n % HOUR / MINUTE)?;
                }
                write_decimal(f, n % MINUTE, SECOND, "s")
            }
        }
    }
}

/// Writes `n / unit` without trailing zeros.
fn write_decimal(f: &mut fmt::Formatter<'_>, n: u64, unit: u64, suffix: &str) -> fmt::Result {
    write!(f, "{}", n / unit)?;
    let fraction = n % unit;
    if fraction != 0 {
        let width = unit.ilog10() as usize;
        let digits = format!("{fraction:0width$}");
        write!(f, ".{}", digits.trim_end_matches('0'))?;
    }
    f.write_str(suffix)
}

impl FromStr for GoDuration {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = || ParseDurationError::Invalid(text.to_owned());
        let (negative, mut rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if rest == "0" {
            return Ok(Self::ZERO);
        }
        if rest.is_empty() {
            return Err(invalid());
        }
        let mut total: u64 = 0;
        while !rest.is_empty() {
            let (nanos, tail) = read_term(rest, text)?;
            total = total.checked_add(nanos).ok_or_else(invalid)?;
            // One beyond i64::MAX is allowed: its negative is the smallest duration.
            if total > 1 << 63 {
                return Err(invalid());
            }
            rest = tail;
        }
        match (negative, i64::try_from(total)) {
            (false, Ok(n)) => Ok(Self(n)),
            (true, Ok(n)) => Ok(Self(-n)),
            (true, Err(_)) => Ok(Self(i64::MIN)),
            (false, Err(_)) => Err(invalid()),
        }
    }
}

/// Reads one `digits[.digits]unit` term and returns its nanoseconds and what follows.
fn read_term<'a>(rest: &'a str, text: &str) -> Result<(u64, &'a str), ParseDurationError> {
    let invalid = || ParseDurationError::Invalid(text.to_owned());
    let (whole, rest) = split_digits(rest);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(after) => split_digits(after),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(invalid());
    }
    let end = rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len());
    let (name, rest) = rest.split_at(end);
    if name.is_empty() {
        return Err(ParseDurationError::MissingUnit(text.to_owned()));
    }
    let unit = unit(name)
        .ok_or_else(|| ParseDurationError::UnknownUnit { unit: name.to_owned(), text: text.to_owned() })?;
    let whole: u64 = match whole {
        "" => 0,
        digits => digits.parse().map_err(|_| invalid())?,
    };
    let mut nanos = whole.checked_mul(unit).ok_or_else(invalid)?;
    nanos = nanos.checked_add(fraction_nanos(fraction, unit)).ok_or_else(invalid)?;
    if nanos > 1 << 63 {
        return Err(invalid());
    }
    Ok((nanos, rest))
}

/// The fraction's nanoseconds, cut towards zero. Go keeps the digits that fit 63 bits and does the
/// division in floating point; the same arithmetic is used here so that results agree to the last.
fn fraction_nanos(digits: &str, unit: u64) -> u64 {
    let (mut value, mut scale) = (0u64, 1f64);
    for digit in digits.bytes().map(|b| u64::from(b - b'0')) {
        if value > ((1 << 63) - 1) / 10 {
            break;
        }
        let next = value * 10 + digit;
        if next > 1 << 63 {
            break;
        }
        value = next;
        scale *= 10.0;
    }
    if value == 0 {
        return 0;
    }
    (value as f64 * (unit as f64 / scale)) as u64
}

fn split_digits(s: &str) -> (&str, &str) {
    let end = s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len());
    s.split_at(end)
}

fn unit(name: &str) -> Option<u64> {
    Some(match name {
        "ns" => 1,
        "us" | "µs" | "μs" => MICRO,
        "ms" => MILLI,
        "s" => SECOND,
        "m" => MINUTE,
        "h" => HOUR,
        _ => return None,
    })
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_and_writes_as_go_does() {
        let rows = [
            ("0", "0s"),
            ("-0", "0s"),
            ("5s", "5s"),
            ("+5s", "5s"),
            ("-5s", "-5s"),
            ("60s", "1m0s"),
            ("1m", "1m0s"),
            ("4h", "4h0m0s"),
            ("100ms", "100ms"),
            ("1.5s", "1.5s"),
            (".5s", "500ms"),
            ("1.s", "1s"),
            ("1h15m30.918273645s", "1h15m30.918273645s"),
            ("1us", "1µs"),
            ("1.5us", "1.5µs"),
            ("1500ns", "1.5µs"),
            ("2µs", "2µs"),
            ("2μs", "2µs"),
            ("3m1h", "1h3m0s"),
            ("0.100000000000000000000h", "6m0s"),
            ("0.3333333333333333333h", "20m0s"),
            ("9007199254.740993ms", "2501h59m59.254740993s"),
            ("9223372036854775807ns", "2562047h47m16.854775807s"),
            ("-9223372036854775808ns", "-2562047h47m16.854775808s"),
            ("-2562047h47m16.854775808s", "-2562047h47m16.854775808s"),
        ];
        for (text, want) in rows {
            let got: GoDuration = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(got.to_string(), want, "{text}");
        }
    }

    #[test]
    fn refuses_what_go_refuses() {
        for text in [
            "",
            "-",
            "+",
            "s",
            ".",
            "-.",
            ".s",
            "+.s",
            "1d",
            "3000000h",
            "9223372036854775808ns",
            "9223372036854775.808us",
            "1 s",
            "1h ",
            "--1s",
            "1.1.1s",
            "infs",
            "١s",
        ] {
            assert!(text.parse::<GoDuration>().is_err(), "{text:?}");
        }
        let e = "3".parse::<GoDuration>().unwrap_err();
        assert_eq!(e.to_string(), "missing unit in duration \"3\"");
        let e = "1d".parse::<GoDuration>().unwrap_err();
        assert_eq!(e.to_string(), "unknown unit \"d\" in duration \"1d\"");
    }

    #[test]
    fn json_takes_strings_only() {
        let d: GoDuration = serde_json::from_str("\"90s\"").unwrap();
        assert_eq!(serde_json::to_string(&d).unwrap(), "\"1m30s\"");
        assert!(serde_json::from_str::<GoDuration>("90").is_err());
        assert_eq!(GoDuration::from_secs(-3).to_std(), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn text_round_trips(nanos in any::<i64>()) {
            let d = GoDuration::from_nanos(nanos);
            prop_assert_eq!(d.to_string().parse(), Ok(d));
        }

        #[test]
        fn any_text_is_handled(text in ".{0,20}") {
            let _ = text.parse::<GoDuration>();
        }

        #[test]
        fn near_valid_text_is_handled(text in "[-+]?[0-9.]{0,22}(ns|us|ms|s|m|h|x|)[0-9.]{0,3}(s|h)?") {
            let _ = text.parse::<GoDuration>();
        }
    }
}
