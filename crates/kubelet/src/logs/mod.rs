//! Container logs on disk: rotation, and the safe way to reach them.

mod dir;
pub mod reader;
mod rotate;

pub use dir::{LogDir, LogPath};
pub use rotate::{Policy, Rotator};
