//! What tests of the whole house stand on.
//!
//! * [`fake_runtime`]: a container runtime in memory, with seeded trouble.

pub mod fake_runtime;
