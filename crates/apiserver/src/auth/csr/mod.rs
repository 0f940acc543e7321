//! Certificate signing requests: how nodes get their first certificate and the next ones.

mod controller;

pub use controller::{run, sweep};
