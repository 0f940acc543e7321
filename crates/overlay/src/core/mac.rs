//! Hardware addresses as text, and those that nobody was born with.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mac(pub(crate) [u8; 6]);

// === impl Mac ===

impl Mac {
    #[must_use]
    pub(crate) fn parse(text: &str) -> Option<Mac> {
        let mut octets = [0; 6];
        let mut parts = text.split([':', '-']);
        for octet in &mut octets {
            let part = parts.next().filter(|part| part.len() == 2)?;
            *octet = u8::from_str_radix(part, 16).ok()?;
        }
        parts.next().is_none().then_some(Mac(octets))
    }

    /// The same one for the same name, so that a node keeps it for its life: given by hand, of one machine.
    #[must_use]
    pub(crate) fn named(name: &str) -> Mac {
        let mut octets = [0; 6];
        octets.copy_from_slice(&base::fnv::fnv1a128(name.as_bytes()).to_be_bytes()[..6]);
        octets[0] = octets[0] & 0xfc | 0x02;
        Mac(octets)
    }

    /// Of one machine, and not of nobody.
    #[must_use]
    pub(crate) fn is_of_one(self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let mac = Mac::named("a node");
        assert_eq!(Mac::parse(&mac.to_string()), Some(mac));
        assert_eq!(Mac::parse("0A-00-27-00-00-01"), Some(Mac([10, 0, 39, 0, 0, 1])));
        assert!(mac.is_of_one() && mac.0[0] & 2 == 2 && mac != Mac::named("another"));
        for text in ["", "0a:00:27:00:00", "0a:00:27:00:00:01:02", "0a:00:27:00:00:zz", "a:0:0:0:0:1"] {
            assert_eq!(Mac::parse(text), None, "{text}");
        }
        assert!(!Mac([0; 6]).is_of_one() && !Mac([1, 0, 0, 0, 0, 1]).is_of_one());
    }
}
