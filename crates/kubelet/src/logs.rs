//! Container logs on disk: rotation, and the safe way to reach them.

mod dir;

pub use dir::{LogDir, LogPath};
