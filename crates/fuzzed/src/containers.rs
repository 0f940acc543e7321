//! What a container runtime reads: of its own keepers, of users' profiles, of images, of network plugins.

use runtime_core::cni::{self, Attachment, Verb};
use runtime_core::seccomp::{self, Arch};
use runtime_core::users::{self, Wanted};
use runtime_core::{message, recipe};

/// A keeper's message, and a recipe.
pub fn keeper(bytes: &[u8]) {
    let _ = message::decode(bytes);
    if let Ok(codes) = recipe::codes(bytes) {
        assert!(codes.len() <= bytes.len() / runtime_core::wire::OP_HEAD);
    }
}

/// A seccomp profile in a user's file. What is taken becomes a program that the kernel takes, or is said to be too long.
pub fn seccomp(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for native in [Arch::X86_64, Arch::Aarch64] {
        if let Ok(Ok(program)) = seccomp::parse(text, native).map(|profile| seccomp::compile(&profile)) {
            assert!(program.len() <= 4096);
        }
    }
}

/// A network's configuration, or what a plugin answered. No program is called by anything but a plain name.
pub fn cni(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(network) = cni::network(&text) {
        for at in network.order(Verb::Add) {
            let call = network.call(at, Verb::Add, &Attachment::default(), None, "/opt/cni/bin");
            assert!(!call.program.contains('/') && call.program.chars().any(|c| c != '.'));
        }
    }
    for is_success in [true, false] {
        if let Ok(Some(result)) = cni::answer("plugin", is_success, bytes, bytes) {
            let _ = cni::attached("plugin", result);
        }
    }
}

/// An image's passwd file, then NUL, its group file, NUL, and whom it wants to be. Nobody becomes an id that means nobody.
pub fn users(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut parts = text.splitn(3, '\0');
    let mut next = || parts.next().unwrap_or_default();
    let (passwd, group) = (next(), next());
    let wanted = Wanted { image: next().to_owned(), ..Wanted::default() };
    if let Ok(user) = users::resolve(&wanted, passwd, group) {
        assert!(user.groups.contains(&user.gid));
    }
}
