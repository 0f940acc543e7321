//! Container logs on disk: rotation, and the safe way to reach them.

mod dir;
mod rotate;

pub use dir::{LogDir, LogPath};
pub use rotate::{Policy, Rotator};
