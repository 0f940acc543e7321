//! What a table holds.

use std::fmt;

use crate::expr::Expr;
use crate::verdict::{Family, Name, Verdict};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableId {
    pub family: Family,
    pub name: Name,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    pub name: Name,
    /// Where the kernel calls it; other chains call the rest.
    pub hook: Option<Hook>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    pub kind: ChainType,
    pub point: HookPoint,
    pub priority: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainType {
    Filter,
    Nat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookPoint {
    Prerouting,
    Input,
    Forward,
    Output,
    Postrouting,
}

/// A set, or a map if it has values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    pub name: Name,
    pub key: Vec<Field>,
    pub values: Option<Values>,
    /// Elements are ranges, field by field.
    pub is_interval: bool,
    /// Packets add elements, which go by themselves.
    pub is_dynamic: bool,
    pub size: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Values {
    Fields(Vec<Field>),
    Verdict,
}

/// One part of a key or a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Ipv4,
    Ipv6,
    Protocol,
    Port,
    /// A number in the machine's byte order; `nft` prints it in hexadecimal.
    Mark,
    /// A packet's priority, in the machine's byte order; `nft` prints it as two hexadecimal numbers.
    Priority,
    /// A device's name, zeros to sixteen bytes.
    Interface,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Element {
    /// Each field padded to four bytes.
    pub key: Box<[u8]>,
    /// The last key of the range, in a set of ranges.
    pub end: Option<Box<[u8]>>,
    pub value: Option<Value>,
    pub comment: Option<Name>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    Data(Box<[u8]>),
    Verdict(Verdict),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub exprs: Vec<Expr>,
    pub comment: Option<Name>,
}

// === impl TableId ===

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = match self.family {
            Family::Ip => "ip",
            Family::Ip6 => "ip6",
        };
        write!(f, "{family} {}", self.name)
    }
}

// === impl HookPoint ===

impl HookPoint {
    pub(crate) const ALL: [HookPoint; 5] = [
        HookPoint::Prerouting,
        HookPoint::Input,
        HookPoint::Forward,
        HookPoint::Output,
        HookPoint::Postrouting,
    ];
}

// === impl ChainType ===

impl ChainType {
    pub(crate) fn name(self) -> &'static str {
        match self {
            ChainType::Filter => "filter",
            ChainType::Nat => "nat",
        }
    }
}

// === impl Field ===

impl Field {
    const ALL: [Field; 7] = [
        Field::Ipv4,
        Field::Ipv6,
        Field::Protocol,
        Field::Port,
        Field::Mark,
        Field::Priority,
        Field::Interface,
    ];

    pub fn bytes(self) -> u32 {
        match self {
            Field::Ipv4 | Field::Mark | Field::Priority => 4,
            Field::Ipv6 | Field::Interface => 16,
            Field::Protocol => 1,
            Field::Port => 2,
        }
    }

    /// What it takes in a key or a register.
    pub fn padded(self) -> usize {
        if self.bytes() == 16 { 16 } else { 4 }
    }

    /// How `nft` numbers types. The kernel keeps the number and does not look at it.
    fn number(self) -> u32 {
        match self {
            Field::Ipv4 => 7,
            Field::Ipv6 => 8,
            Field::Protocol => 12,
            Field::Port => 13,
            Field::Mark => 19,
            Field::Priority => 23,
            Field::Interface => 41,
        }
    }

    /// `nft`'s name for a byte order; of a concatenation it is unknown.
    fn byte_order(fields: &[Field]) -> u32 {
        match fields {
            [Field::Mark | Field::Priority | Field::Protocol | Field::Interface] => 1,
            [_] => 2,
            _ => 0,
        }
    }

    pub(crate) fn type_of(fields: &[Field]) -> u32 {
        fields.iter().fold(0, |all, field| all << 6 | field.number())
    }

    pub(crate) fn of_type(number: u32) -> Option<Vec<Field>> {
        let parts = (0..6).rev().map(|i| number >> (6 * i) & 63).skip_while(|part| *part == 0);
        parts.map(|part| Field::ALL.into_iter().find(|field| field.number() == part)).collect()
    }

    pub fn len_of(fields: &[Field]) -> usize {
        fields.iter().map(|field| field.padded()).sum()
    }

    /// One field stands for itself; several are padded to the width of registers.
    pub(crate) fn wire_len(fields: &[Field]) -> u32 {
        match fields {
            [field] => field.bytes(),
            many => u32::try_from(Field::len_of(many)).unwrap_or(u32::MAX),
        }
    }
}

// === impl Set ===

impl Set {
    /// What `nft` needs to know beyond what the kernel needs: byte orders.
    pub(crate) fn user_data(&self) -> Vec<u8> {
        let mut data = Vec::with_capacity(12);
        let mut put = |kind: u8, order: u32| {
            data.extend([kind, 4]);
            data.extend(order.to_ne_bytes());
        };
        put(0, Field::byte_order(&self.key));
        if let Some(Values::Fields(fields)) = &self.values {
            put(1, Field::byte_order(fields));
        }
        data
    }
}

// === impl Element ===

impl Element {
    pub fn new(key: impl Into<Box<[u8]>>) -> Self {
        Self { key: key.into(), end: None, value: None, comment: None }
    }

    pub fn with(key: impl Into<Box<[u8]>>, value: impl Into<Box<[u8]>>) -> Self {
        Self { value: Some(Value::Data(value.into())), ..Self::new(key) }
    }
}

impl fmt::Debug for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        write!(f, "{}", hex(&self.key))?;
        if let Some(end) = &self.end {
            write!(f, "-{}", hex(end))?;
        }
        match &self.value {
            Some(Value::Data(data)) => write!(f, " : {}", hex(data)),
            Some(Value::Verdict(verdict)) => write!(f, " : {verdict:?}"),
            None => Ok(()),
        }
    }
}

// === comments ===

/// `nft` keeps comments as small tagged fields of what the kernel calls user data.
pub(crate) fn comment_data(comment: &str) -> Vec<u8> {
    let end = (0..=comment.len().min(127)).rev().find(|end| comment.is_char_boundary(*end)).unwrap_or(0);
    let text = &comment.as_bytes()[..end];
    let len = u8::try_from(text.len() + 1).unwrap_or(u8::MAX);
    [&[0, len][..], text, &[0]].concat()
}

pub(crate) fn read_comment(mut data: &[u8]) -> Option<Name> {
    while let [kind, len, rest @ ..] = data {
        let field = rest.get(..usize::from(*len))?;
        if *kind == 0 {
            let text = field.strip_suffix(&[0]).unwrap_or(field);
            return std::str::from_utf8(text).ok().map(Name::from);
        }
        data = &rest[usize::from(*len)..];
    }
    None
}
