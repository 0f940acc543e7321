//! Amounts of resources: the Kubernetes quantity syntax, exact down to a billionth.

use std::fmt;

/// A quantity in billionths of its unit. Values beyond the wire's range are capped, finer ones
/// rounded away from zero, both as upstream does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount {
    nanos: i128,
}

/// The text is no quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAQuantity;

const NANO: i128 = 1_000_000_000;
const CAP: i128 = i64::MAX as i128 * NANO;

// === impl Amount ===

impl Amount {
    pub const ZERO: Amount = Amount { nanos: 0 };

    pub fn parse(text: &str) -> Result<Amount, NotAQuantity> {
        let (negative, rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(NotAQuantity);
        }
        let scale = Scale::parse(suffix).ok_or(NotAQuantity)?;
        let nanos = scale.apply(whole, fraction).min(CAP);
        Ok(Amount { nanos: if negative { -nanos } else { nanos } })
    }

    #[must_use]
    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    #[must_use]
    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// Whether the amount is a whole number of units.
    #[must_use]
    pub fn is_whole(self) -> bool {
        self.nanos % NANO == 0
    }

    /// Whole units, rounded up.
    #[must_use]
    pub fn value(self) -> i64 {
        i64::try_from(ceil(self.nanos, NANO)).unwrap_or(i64::MAX)
    }

    /// The same amount rounded up to thousandths, the finest the API keeps.
    #[must_use]
    pub fn round_up_to_milli(self) -> Amount {
        Amount { nanos: ceil(self.nanos, 1_000_000) * 1_000_000 }
    }

    /// Thousandths, rounded up.
    #[must_use]
    pub fn milli(self) -> i64 {
        i64::try_from(ceil(self.nanos, 1_000_000)).unwrap_or(i64::MAX)
    }
}

impl std::ops::Add for Amount {
    type Output = Amount;
    fn add(self, other: Amount) -> Amount {
        Amount { nanos: (self.nanos + other.nanos).clamp(-CAP, CAP) }
    }
}

impl std::iter::Sum for Amount {
    fn sum<I: Iterator<Item = Amount>>(iter: I) -> Amount {
        iter.fold(Amount::ZERO, |a, b| a + b)
    }
}

/// Whole units where possible, else thousandths, else billionths.
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_whole() {
            write!(f, "{}", self.nanos / NANO)
        } else if self.nanos % 1_000_000 == 0 {
            write!(f, "{}m", self.nanos / 1_000_000)
        } else {
            write!(f, "{}n", self.nanos)
        }
    }
}

impl fmt::Display for NotAQuantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        )
    }
}

fn ceil(n: i128, unit: i128) -> i128 {
    n.div_euclid(unit) + i128::from(n.rem_euclid(unit) != 0)
}

/// What the suffix multiplies by: a power of ten, or a power of 1024.
enum Scale {
    Ten(i32),
    Kibi(u32),
}

impl Scale {
    fn parse(suffix: &str) -> Option<Scale> {
        Some(match suffix {
            "n" => Scale::Ten(-9),
            "u" => Scale::Ten(-6),
            "m" => Scale::Ten(-3),
            "" => Scale::Ten(0),
            "k" => Scale::Ten(3),
            "M" => Scale::Ten(6),
            "G" => Scale::Ten(9),
            "T" => Scale::Ten(12),
            "P" => Scale::Ten(15),
            "E" => Scale::Ten(18),
            "Ki" => Scale::Kibi(1),
            "Mi" => Scale::Kibi(2),
            "Gi" => Scale::Kibi(3),
            "Ti" => Scale::Kibi(4),
            "Pi" => Scale::Kibi(5),
            "Ei" => Scale::Kibi(6),
            exponent => {
                let digits = exponent.strip_prefix(['e', 'E'])?;
                Scale::Ten(digits.parse::<i32>().ok()?.clamp(-1000, 1000))
            }
        })
    }

    /// The number times the scale in billionths, rounded up; `i128::MAX` when it does not fit.
    fn apply(&self, whole: &str, fraction: &str) -> i128 {
        let fraction = fraction.trim_end_matches('0');
        let mut digits = format!("{whole}{fraction}");
        digits.drain(..digits.len() - digits.trim_start_matches('0').len());
        if digits.is_empty() {
            return 0;
        }
        let (ten, binary) = match self {
            Scale::Ten(e) => (*e, 1),
            Scale::Kibi(e) => (0, 1024i128.pow(*e)),
        };
        // digits * binary * 10^shift billionths
        let shift = ten + 9 - i32::try_from(fraction.len()).unwrap_or(i32::MAX - 2000);
        let keep = if shift < 0 { digits.len().min(38) } else { digits.len() };
        let cut = i32::try_from(digits.len() - keep).unwrap_or(0);
        let Ok(number) = digits[..keep].parse::<i128>() else { return i128::MAX };
        let lost = digits[keep..].bytes().any(|b| b != b'0');
        let shift = shift + cut;
        if shift >= 0 {
            return u32::try_from(shift)
                .ok()
                .and_then(|s| 10i128.checked_pow(s))
                .and_then(|p| number.checked_mul(p))
                .and_then(|n| n.checked_mul(binary))
                .map_or(i128::MAX, |n| n + i128::from(lost));
        }
        let Some(product) = number.checked_mul(binary) else { return i128::MAX };
        match 10i128.checked_pow(shift.unsigned_abs()) {
            Some(p) => ceil(product, p).max(1) + i128::from(lost && product % p == 0),
            None => 1,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_quantity_syntax() {
        for (text, milli) in [
            ("0", 0),
            ("1", 1000),
            ("100m", 100),
            ("1.5", 1500),
            (".5", 500),
            ("1.", 1000),
            ("2k", 2_000_000),
            ("1Ki", 1_024_000),
            ("1e3", 1_000_000),
            ("1E-3", 1),
            ("-1", -1000),
            ("+3", 3000),
            ("1n", 1),
            ("0.5Gi", 536_870_912_000),
            ("0.0001", 1),
        ] {
            assert_eq!(Amount::parse(text).unwrap().milli(), milli, "{text}");
        }
        assert_eq!(Amount::parse("8Ei").unwrap().value(), i64::MAX);
        assert_eq!(Amount::parse("1e999").unwrap().value(), i64::MAX);
        assert_eq!(Amount::parse(&"9".repeat(4000)).unwrap().value(), i64::MAX);
        let tiny = format!("0.{}1", "0".repeat(4000));
        assert_eq!(Amount::parse(&tiny).unwrap(), Amount::parse("1n").unwrap());
        assert_eq!(Amount::parse("1000m").unwrap(), Amount::parse("1").unwrap());
        for bad in ["", "-", "1..2", "x", "1 ", "1KI", "1e", "--1", "1kk", "é", "1é", "."] {
            assert_eq!(Amount::parse(bad), Err(NotAQuantity), "{bad}");
        }
    }
}
