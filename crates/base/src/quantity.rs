//! Kubernetes resource quantities: `250m`, `1.5Gi`, `2e3`. Exact to the nano, never floating.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const NANO: i128 = 1_000_000_000;
/// Binary quantities stop at what an i64 holds; decimal ones only where exactness would end.
const MAX_BINARY: i128 = i64::MAX as i128 * NANO;
const MAX_DECIMAL: i128 = i128::MAX / 1_000_000;

/// How a quantity was written, and so how it is written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Format {
    #[default]
    DecimalSi,
    BinarySi,
    DecimalExponent,
}

/// An amount of something. Compares and adds by value; the format only steers the text.
#[derive(Clone, Copy, Default)]
pub struct Quantity {
    nanos: i128,
    format: Format,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseQuantityError {
    #[error("quantity {0:?} is not a number with an optional suffix")]
    Form(String),
    #[error("quantity {text:?} has the unknown suffix {suffix:?}")]
    Suffix { text: String, suffix: String },
}

// === impl Quantity ===

impl Quantity {
    pub const ZERO: Self = Self { nanos: 0, format: Format::DecimalSi };

    pub const fn from_value(value: i64) -> Self {
        Self { nanos: value as i128 * NANO, format: Format::DecimalSi }
    }

    /// Whole bytes, written with binary suffixes.
    pub const fn from_bytes(bytes: i64) -> Self {
        Self { nanos: bytes as i128 * NANO, format: Format::BinarySi }
    }

    pub const fn from_milli(milli: i64) -> Self {
        Self { nanos: milli as i128 * (NANO / 1000), format: Format::DecimalSi }
    }

    pub const fn format(self) -> Format {
        self.format
    }

    pub const fn is_zero(self) -> bool {
        self.nanos == 0
    }

    pub const fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// The integer value, rounded away from zero: asking for a little gets at least that.
    pub fn value(self) -> i64 {
        self.rounded(NANO)
    }

    /// The value in thousandths, rounded away from zero.
    pub fn milli_value(self) -> i64 {
        self.rounded(NANO / 1000)
    }

    fn rounded(self, unit: i128) -> i64 {
        let whole = self.nanos / unit;
        let away = whole + (self.nanos % unit).signum();
        i64::try_from(away).unwrap_or(if away < 0 { i64::MIN } else { i64::MAX })
    }

    /// The sum; a zero takes the other's format, as upstream does.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let format = if self.is_zero() { other.format } else { self.format };
        Self { nanos: clamp(self.nanos.saturating_add(other.nanos)), format }
    }

    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.plus(Self { nanos: -other.nanos, ..other })
    }

    /// Multiplies by a fraction, rounding away from zero to the nano.
    #[must_use]
    pub fn scaled(self, numerator: i64, denominator: i64) -> Self {
        let denominator = i128::from(denominator.max(1));
        let product = clamp(self.nanos.saturating_mul(i128::from(numerator)));
        let nanos = product / denominator + (product % denominator).signum();
        Self { nanos, ..self }
    }
}

fn clamp(nanos: i128) -> i128 {
    nanos.clamp(-MAX_DECIMAL, MAX_DECIMAL)
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl std::hash::Hash for Quantity {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.nanos.hash(state);
    }
}

impl fmt::Debug for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// --- writing ---

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        // A small or fractional amount has no honest binary form.
        let small = self.nanos.abs() < 1024 * NANO;
        match self.format {
            Format::BinarySi if !small && self.nanos % NANO == 0 => write_binary(f, self.nanos / NANO),
            Format::DecimalExponent => write_decimal(f, self.nanos, true),
            _ => write_decimal(f, self.nanos, false),
        }
    }
}

fn write_binary(f: &mut fmt::Formatter<'_>, mut value: i128) -> fmt::Result {
    const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let mut step = 0;
    while step + 1 < SUFFIXES.len() && value % 1024 == 0 {
        value /= 1024;
        step += 1;
    }
    write!(f, "{value}{}", SUFFIXES[step])
}

fn write_decimal(f: &mut fmt::Formatter<'_>, mut value: i128, exponent: bool) -> fmt::Result {
    const SUFFIXES: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    let mut step = 0;
    while value % 1000 == 0 && (exponent || step + 1 < SUFFIXES.len()) {
        value /= 1000;
        step += 1;
    }
    if !exponent {
        return write!(f, "{value}{}", SUFFIXES[step]);
    }
    match step as i64 * 3 - 9 {
        0 => write!(f, "{value}"),
        e => write!(f, "{value}e{e}"),
    }
}

// --- reading ---

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = || ParseQuantityError::Form(text.to_owned());
        let (negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let (whole, rest) = split_digits(rest);
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(after) => split_digits(after),
            None => ("", rest),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(form());
        }
        let unit = Suffix::read(suffix)
            .ok_or_else(|| ParseQuantityError::Suffix { text: text.to_owned(), suffix: suffix.to_owned() })?;
        let mut format = unit.format();
        let mut nanos = match unit {
            Suffix::Binary(shift) => scale(whole, fraction, (1i128 << shift) * NANO).min(MAX_BINARY),
            Suffix::Decimal(e) | Suffix::Exponent(e) => scale_decimal(whole, fraction, e),
        };
        if format == Format::BinarySi && nanos > 0 && nanos < NANO {
            format = Format::DecimalSi;
        }
        if negative {
            nanos = -nanos;
        }
        Ok(Self { nanos, format })
    }
}

enum Suffix {
    Decimal(i32),
    Binary(u32),
    Exponent(i32),
}

impl Suffix {
    fn read(suffix: &str) -> Option<Self> {
        Some(match suffix {
            "n" => Self::Decimal(-9),
            "u" => Self::Decimal(-6),
            "m" => Self::Decimal(-3),
            "" => Self::Decimal(0),
            "k" => Self::Decimal(3),
            "M" => Self::Decimal(6),
            "G" => Self::Decimal(9),
            "T" => Self::Decimal(12),
            "P" => Self::Decimal(15),
            "E" => Self::Decimal(18),
            "Ki" => Self::Binary(10),
            "Mi" => Self::Binary(20),
            "Gi" => Self::Binary(30),
            "Ti" => Self::Binary(40),
            "Pi" => Self::Binary(50),
            "Ei" => Self::Binary(60),
            other => Self::Exponent(other.strip_prefix(['e', 'E'])?.parse().ok()?),
        })
    }

    fn format(&self) -> Format {
        match self {
            Self::Decimal(_) => Format::DecimalSi,
            Self::Binary(_) => Format::BinarySi,
            Self::Exponent(_) => Format::DecimalExponent,
        }
    }
}

/// `whole.fraction * unit`, rounded up, exact however many digits are given.
fn scale(whole: &str, fraction: &str, unit: i128) -> i128 {
    let mut value: i128 = 0;
    for digit in whole.bytes().map(|b| i128::from(b - b'0')) {
        value = clamp(value.saturating_mul(10).saturating_add(digit));
    }
    value = clamp(value.saturating_mul(unit));
    // From the last digit to the first: floor(floor(x) / 10) loses nothing but the remainder,
    // and the remainder only decides whether to round up.
    let (mut part, mut inexact) = (0i128, false);
    for digit in fraction.bytes().rev().map(|b| i128::from(b - b'0')) {
        let sum = digit * unit + part;
        inexact |= sum % 10 != 0;
        part = sum / 10;
    }
    clamp(value.saturating_add(part).saturating_add(i128::from(inexact)))
}

/// Moves the decimal point by `exponent` in the text, then scales to nanos.
fn scale_decimal(whole: &str, fraction: &str, exponent: i32) -> i128 {
    // Beyond this every digit is either saturated or rounds up to one nano.
    const FAR: usize = 64;
    let shift = (exponent.unsigned_abs() as usize).min(FAR + whole.len() + fraction.len());
    if exponent >= 0 {
        let mut fraction = fraction.to_owned();
        while fraction.len() < shift {
            fraction.push('0');
        }
        let (moved, kept) = fraction.split_at(shift);
        scale(&format!("{whole}{moved}"), kept, NANO)
    } else {
        let padded = format!("{whole:0>shift$}");
        let (kept, moved) = padded.split_at(padded.len() - shift);
        scale(kept, &format!("{moved}{fraction}"), NANO)
    }
}

fn split_digits(s: &str) -> (&str, &str) {
    let end = s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len());
    s.split_at(end)
}

// --- serde ---

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    /// Strings, and bare numbers as Kubernetes also takes them.
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct AnyForm;
        impl Visitor<'_> for AnyForm {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity such as \"500Mi\"")
            }

            fn visit_str<E: de::Error>(self, v: &str) -> Result<Quantity, E> {
                v.trim().parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Quantity, E> {
                Ok(Quantity::from_value(v))
            }

            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Quantity, E> {
                v.to_string().parse().map_err(E::custom)
            }

            fn visit_f64<E: de::Error>(self, v: f64) -> Result<Quantity, E> {
                format!("{v}").parse().map_err(E::custom)
            }
        }
        d.deserialize_any(AnyForm)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn q(text: &str) -> Quantity {
        text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn canonical_text() {
        let rows = [
            ("0", "0"),
            ("0Ki", "0"),
            ("-0", "0"),
            ("1024Mi", "1Gi"),
            ("307200Ki", "300Mi"),
            ("1025024Mi", "1001Gi"),
            ("1Ki", "1Ki"),
            ("0.5Ki", "512"),
            ("1.5Ki", "1536"),
            ("1.5Gi", "1536Mi"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("0.5", "500m"),
            ("1.08", "1080m"),
            ("1000M", "1G"),
            ("0.001T", "1G"),
            ("100.035k", "100035"),
            (".001e12", "1e9"),
            ("0.001e0", "1e-3"),
            ("1E-3", "1e-3"),
            ("1.3E+6", "1300e3"),
            ("80e-3", "80e-3"),
            ("3.001n", "4n"),
            ("0.0000000001", "1n"),
            ("0.00000012345", "124n"),
            ("-3.001n", "-4n"),
            ("0.000000000001Ki", "2n"),
            ("100.035Ki", "102435840m"),
            ("9Ei", "9223372036854775807"),
            ("9223372036854775807Ki", "9223372036854775807"),
            ("12E", "12E"),
            ("1.", "1"),
            (".001", "1m"),
            ("+7", "7"),
            ("007", "7"),
            ("-100Mi", "-100Mi"),
            ("2500000000000000000000", "2500E"),
        ];
        for (text, want) in rows {
            assert_eq!(q(text).to_string(), want, "{text}");
        }
    }

    #[test]
    fn refused_text() {
        for text in [
            "", "-", ".", "+.", " 1", "1 ", "1i", ".5i", "-3.01i", "1.1.M", "1+1.0M", "0.1mi", "0.1am",
            "aoeu", "1e", "-3.01e-", "1.2e3.4", "1kk", "1KiB", "0x10", "10%", "١",
        ] {
            assert!(text.parse::<Quantity>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn integers_round_away_from_zero() {
        let rows = [
            ("1", 1, 1000),
            ("1.1", 2, 1100),
            ("100m", 1, 100),
            ("1n", 1, 1),
            ("-1n", -1, -1),
            ("1Gi", 1 << 30, 1000 << 30),
            ("100E", i64::MAX, i64::MAX),
            ("-100E", i64::MIN, i64::MIN),
        ];
        for (text, value, milli) in rows {
            assert_eq!((q(text).value(), q(text).milli_value()), (value, milli), "{text}");
        }
    }

    #[test]
    fn arithmetic_and_order() {
        assert_eq!(q("1Gi").plus(q("512Mi")).to_string(), "1536Mi");
        assert_eq!(Quantity::ZERO.plus(q("1Gi")).to_string(), "1Gi");
        assert_eq!(q("1").minus(q("1500m")).to_string(), "-500m");
        assert_eq!(q("100Mi").scaled(1, 10).value(), 10 << 20);
        assert_eq!(q("1").scaled(1, 3).to_string(), "333333334n");
        assert!(q("1Gi") > q("1G") && q("1000m") == q("1"));
        assert_eq!(q("1e2147483647").plus(q("1e2147483647")).value(), i64::MAX);
        assert_eq!(q("1e-2147483647").to_string(), "1e-9");
    }

    #[test]
    fn json_takes_strings_and_numbers() {
        for (text, want) in [("\"1Gi\"", "1Gi"), ("2", "2"), ("0.5", "500m"), ("\" 1 \"", "1")] {
            let got: Quantity = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&got).unwrap(), format!("\"{want}\""));
        }
        assert!(serde_json::from_str::<Quantity>("true").is_err());
    }

    proptest! {
        #[test]
        fn text_round_trips(digits in "[0-9]{1,15}(\\.[0-9]{0,12})?", sign in "[-+]?",
                            suffix in "(n|u|m|k|M|G|T|Ki|Mi|Gi|Ti|e3|e-6|E2|)") {
            let a = q(&format!("{sign}{digits}{suffix}"));
            let b = q(&a.to_string());
            prop_assert_eq!(a, b);
            prop_assert_eq!(a.to_string(), b.to_string());
        }

        #[test]
        fn sums_are_exact(a in any::<i32>(), b in any::<i32>()) {
            let (x, y) = (Quantity::from_milli(a.into()), Quantity::from_milli(b.into()));
            prop_assert_eq!(x.plus(y).milli_value(), i64::from(a) + i64::from(b));
            prop_assert_eq!(x.plus(y).minus(y), x);
            prop_assert_eq!(x.cmp(&y), a.cmp(&b));
        }

        #[test]
        fn any_text_is_handled(text in ".{0,20}", near in "[-+]?[0-9.]{0,60}[a-zA-Z]{0,2}[-+0-9]{0,12}") {
            let _ = text.parse::<Quantity>();
            let _ = near.parse::<Quantity>();
        }
    }
}
