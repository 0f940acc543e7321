//! Hardware addresses.

use std::fmt;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

// === impl Mac ===

impl Mac {
    /// Of random bytes: one that no factory gave out, of one device alone.
    #[must_use]
    pub fn local(mut bytes: [u8; 6]) -> Self {
        bytes[0] = bytes[0] & 0xfe | 0x02;
        Self(bytes)
    }
}

impl FromStr for Mac {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut bytes = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2).ok_or(())?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| ())?;
        }
        // What is sent to all or to a group is nobody's own.
        let is_own = bytes[0] & 1 == 0 && bytes != [0; 6];
        if parts.next().is_none() && is_own { Ok(Self(bytes)) } else { Err(()) }
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}
