//! The ground floor: ids, time, randomness, back-off, error classes and Go's small syntaxes.
//!
//! Nothing here performs I/O, reads a clock or knows Kubernetes. Everything may use it.

pub mod backoff;
mod causes;
pub mod class;
pub mod duration;
pub mod finding;
pub mod flags;
pub mod fnv;
pub mod ids;
pub mod metrics;
pub mod nearest;
pub mod quantity;
pub mod rfc3339;
pub mod rng;
pub mod time;
pub mod verbosity;

pub use causes::causes;
