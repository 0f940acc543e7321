//! What is done with bytes that a stranger may have sent: a function for each parser, which may refuse and may not panic.
//!
//! `cargo xtask fuzz NAME` feeds one of them with libFuzzer; the test of this crate plays the committed seeds and small
//! changes of them, without it.

pub mod containers;
pub mod documents;
pub mod files;
pub mod wire;

/// A parser by its name.
pub type Target = (&'static str, fn(&[u8]));

/// All of them. The seeds of each are in `fuzz/seeds/NAME`, and `fuzz/fuzz_targets/NAME.rs` calls it.
pub const TARGETS: &[Target] = &[
    ("manifest", files::manifest),
    ("kubelet_config", files::kubelet_config),
    ("documents", documents::documents),
    ("protobuf", documents::protobuf),
    ("patches", documents::patches),
    ("spdy", wire::spdy),
    ("websocket", wire::websocket),
    ("dbus", wire::dbus),
    ("netlink", wire::netlink),
    ("dns", wire::dns),
    ("request", wire::request),
    ("keeper", containers::keeper),
    ("seccomp", containers::seccomp),
    ("cni", containers::cni),
    ("users", containers::users),
];
