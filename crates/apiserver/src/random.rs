//! Names and uids nobody can guess.

use apiserver_core::meta;

/// A fresh uid.
#[must_use]
pub(crate) fn new_uid() -> String {
    meta::uid_from(random())
}

/// A name made from `generateName`.
#[must_use]
pub(crate) fn generated_name(base: &str) -> String {
    meta::generated_name(base, random::<{ meta::SUFFIX }>())
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // The kernel's generator does not fail once it is seeded, which it is before any service runs; a clash of
    // names or uids is refused by the store all the same.
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_are_alike() {
        assert_ne!(new_uid(), new_uid());
        assert_eq!(generated_name("web-").len(), 9);
    }
}
