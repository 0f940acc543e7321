//! What tests of the whole workspace stand on.
//!
//! * [`fake_runtime`]: a container runtime in memory, with seeded trouble.
//! * [`sim`]: the real kubelet tasks on top of it, under paused time.
//! * [`direct`], [`twin`]: a caller of CRI that is not a kubelet, and what a kubelet would have it ask for.
//! * [`harness`], [`scripts`]: a kubelet on a private containerd, and Pods for it.
//! * [`cluster`]: the same with an API server, and kubectl at hand.
//! * [`browser`]: a browser on a node's network.
//! * [`csi`], [`claims`]: a storage driver beside it, and a volume of it.
//! * [`transcript`]: shell commands and what they must print.
//! * [`api`]: an API server, ours or upstream's, and a client.
//! * [`witness`]: a watch that writes down what anybody could have noticed.
//! * [`weight`]: what a process costs.
//! * [`node`]: a private containerd, with a janitor that leaves nothing behind.

pub mod api;
pub mod browser;
pub mod claims;
pub mod cluster;
pub mod csi;
pub mod direct;
pub mod fake_runtime;
pub mod harness;
pub mod scripts;
pub mod sim;
pub mod transcript;
pub mod twin;
pub mod weight;
pub mod witness;

/// A private containerd to run suites on.
pub use fixture as node;
