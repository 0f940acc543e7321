//! What a container runtime decides, as data: what makes a Pod's sandbox ([`sandbox`]) and a container ([`container`]) out of
//! who it runs as ([`users`]), what it may do ([`capabilities`], [`seccomp`]) and use ([`resources`], [`device_filter`]), and its network ([`cni`]); the steps
//! ([`recipe`]); what the daemon and a keeper say to each other ([`message`]); how output becomes log records ([`framing`]).
//!
//! [`wire`] and [`framing`] are also part of the keeper's program, which executes recipes and decides nothing.

pub mod capabilities;
pub mod cdi;
pub mod cni;
pub mod container;
pub mod device_filter;
pub mod framing;
pub mod message;
pub mod recipe;
pub mod resources;
pub mod sandbox;
pub mod seccomp;
pub mod userns;
pub mod users;
pub mod wire;
