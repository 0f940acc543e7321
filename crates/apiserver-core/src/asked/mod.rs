//! What a request asks for: its method, path and query read once, into one value that authorization and execution both go by.

mod listing;
mod path;
mod percent;
mod query;

pub use listing::{Listing, version};
pub use path::{Asked, beyond, read, verb_of};
pub use percent::decode;
pub use query::Query;
