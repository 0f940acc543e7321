//! An API server to measure or to try, ours or upstream's, and a small client for both.

mod client;
mod server;

pub use client::{Client, Credentials};
pub use server::{Peer, Process, Server, free_address};

/// What went wrong, in words.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
