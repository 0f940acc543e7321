//! The backends: one file each, and its hand in `sys`.

pub mod iptables;
pub mod ipvs;
pub mod nft;
