//! The language of nf_tables: tables, chains, sets, rules and expressions as data, and their netlink form.
//!
//! Pure: a core writes it, a hand in `sys` brings it to the kernel and back. What the kernel tells is read into
//! the same types, so that what is there and what should be there can be compared, and walked by the same tracer.
//!
//! * [`object`]: chains, sets, elements, rules.
//! * [`verdict`]: what becomes of a packet.
//! * [`expr`]: what a rule is made of.
//! * [`message`]: one step of a transaction, and what the kernel tells.
//! * [`wire`]: netlink attributes and headers.

pub mod expr;
pub mod message;
pub mod object;
pub mod verdict;
pub mod wire;

pub use expr::{Address, Cmp, Ct, Dynset, Expr, Meta, Reg};
pub use message::{Author, Batch, Generation, Message, Notice, Question, What};
pub use object::{Chain, ChainType, Element, Field, Hook, HookPoint, Rule, Set, TableId, Value, Values};
pub use verdict::{Family, Name, Verdict};
