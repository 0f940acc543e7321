//! Amounts of resources, as the text of a Pod states them.

use std::fmt;

use base::quantity::Quantity;

/// A quantity, compared, added and rounded as the API does it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(Quantity);

/// The text is no quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAQuantity;

// === impl Amount ===

impl Amount {
    pub const ZERO: Amount = Amount(Quantity::ZERO);

    pub fn parse(text: &str) -> Result<Amount, NotAQuantity> {
        text.parse().map(Amount).map_err(|_| NotAQuantity)
    }

    #[must_use]
    pub fn is_zero(self) -> bool {
        self.0.is_zero()
    }

    #[must_use]
    pub fn is_negative(self) -> bool {
        self.0.is_negative()
    }

    /// Whether the amount is a whole number of units.
    #[must_use]
    pub fn is_whole(self) -> bool {
        Quantity::from_value(self.value()) == self.0 || self.value() == i64::MAX
    }

    /// Whole units, rounded away from zero.
    #[must_use]
    pub fn value(self) -> i64 {
        self.0.value()
    }

    /// Thousandths, rounded away from zero.
    #[must_use]
    pub fn milli(self) -> i64 {
        self.0.milli_value()
    }

    /// The same amount rounded up to thousandths, the finest the API keeps.
    #[must_use]
    pub fn round_up_to_milli(self) -> Amount {
        // Beyond this range nothing is finer than a thousandth.
        if self.milli() == i64::MAX { self } else { Amount(Quantity::from_milli(self.milli())) }
    }
}

impl std::ops::Add for Amount {
    type Output = Amount;
    fn add(self, other: Amount) -> Amount {
        Amount(self.0.plus(other.0))
    }
}

impl std::iter::Sum for Amount {
    fn sum<I: Iterator<Item = Amount>>(iter: I) -> Amount {
        iter.fold(Amount::ZERO, |a, b| a + b)
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for NotAQuantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        )
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
