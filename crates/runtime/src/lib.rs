//! A container runtime: Pods and containers made by a small program beside each Pod, the keeper.
//!
//! The daemon decides, keeps the books and never forks; it opens what a container needs and sends it to the Pod's keeper as
//! descriptors, with a recipe of what to do with them (`runtime_core::recipe`). [`keeper`] is that conversation; [`open`] is where a
//! plan's descriptors come from, [`network`] what attaches a Pod to its network.

mod devices;
mod image_service;
pub mod keeper;
pub mod network;
pub mod open;
mod streams;
