//! The language of nf_tables: tables, chains, sets, rules and expressions as data, and their netlink form.
//!
//! Pure: a core writes it, a hand in `sys` brings it to the kernel and back. What the kernel tells is read into
//! the same types, so that what is there and what should be there can be compared, and walked by the same tracer.
//!
//! * [`object`]: chains, sets, elements, rules.
//! * [`expr`]: what a rule is made of.
//! * [`message`]: one step of a transaction, and what the kernel tells.
//! * [`wire`]: netlink attributes and headers.

pub mod expr;
pub mod message;
pub mod object;
pub mod wire;

pub use expr::{Address, Cmp, Ct, Dynset, Expr, Meta, Reg};
pub use message::{Author, Batch, Generation, Message, Notice, Question, What};
pub use object::{
    Chain, Element, Family, Field, Hook, HookPoint, Kind, Name, Rule, Set, TableId, Value, Values, Verdict,
};
