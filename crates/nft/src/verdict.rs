//! What becomes of a packet, and what both expressions and the objects that hold them say.

use std::sync::Arc;

use crate::wire::{Attributes, Writer};

pub type Name = Arc<str>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    Ip,
    Ip6,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    Accept,
    Drop,
    Continue,
    Return,
    Jump(Name),
    Goto(Name),
}

// === impl Family ===

impl Family {
    pub fn number(self) -> u8 {
        match self {
            Family::Ip => 2,
            Family::Ip6 => 10,
        }
    }

    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            2 => Some(Family::Ip),
            10 => Some(Family::Ip6),
            _ => None,
        }
    }
}

// === impl Verdict ===

impl Verdict {
    fn code(&self) -> i32 {
        match self {
            Verdict::Drop => 0,
            Verdict::Accept => 1,
            Verdict::Continue => -1,
            Verdict::Jump(_) => -3,
            Verdict::Goto(_) => -4,
            Verdict::Return => -5,
        }
    }

    pub(crate) fn write(&self, out: &mut Writer, kind: u16) {
        let data = out.nest(kind);
        let verdict = out.nest(2);
        out.bytes(1, &self.code().to_be_bytes());
        if let Verdict::Jump(chain) | Verdict::Goto(chain) = self {
            out.text(2, chain);
        }
        out.close(verdict);
        out.close(data);
    }

    /// Reads what is inside a data attribute.
    pub(crate) fn read(data: Attributes<'_>) -> Option<Self> {
        let verdict = data.get(2)?.nested();
        let chain = || verdict.get(2)?.text().map(Name::from);
        match verdict.get(1)?.u32()? as i32 {
            0 => Some(Verdict::Drop),
            1 => Some(Verdict::Accept),
            -1 => Some(Verdict::Continue),
            -3 => chain().map(Verdict::Jump),
            -4 => chain().map(Verdict::Goto),
            -5 => Some(Verdict::Return),
            _ => None,
        }
    }
}
