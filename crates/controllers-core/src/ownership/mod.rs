//! Who owns whom, of all objects of all kinds: what the garbage collector hears of them, and what it keeps.

mod graph;
mod served;

pub(crate) use self::graph::{FOREGROUND, Node, ORPHAN};
pub use self::graph::{Graph, Known, News, Reference};
pub use self::served::{Served, collectable, served};
