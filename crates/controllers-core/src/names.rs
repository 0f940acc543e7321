//! Names and hashes as controllers make them.

/// The letters of generated names: no vowels and nothing that looks like one.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// What the API server adds five letters to. A Pod's name stays a DNS label.
#[must_use]
pub fn generate_name(owner: &str) -> String {
    let dashed = format!("{owner}-");
    // A name that is no prefix of a valid one goes without the dash, as upstream has it.
    if api::names::dns_subdomain(dashed.trim_end_matches('-')).is_empty() { dashed } else { owner.to_owned() }
}

/// A number as letters: the form of `pod-template-hash`.
#[must_use]
pub fn letters(hash: u32) -> String {
    hash.to_string().bytes().map(|digit| char::from(LETTERS[usize::from(digit) % LETTERS.len()])).collect()
}

/// 32-bit FNV-1 (not 1a): the hash of StatefulSet revisions.
#[must_use]
pub fn fnv1_32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash: u32, byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(*byte))
}

/// The hash of a revision: of its data, and of how often its name was taken.
#[must_use]
pub fn revision_hash(data: &[u8], collisions: i32) -> String {
    let mut all = data.to_vec();
    all.extend_from_slice(collisions.to_string().as_bytes());
    letters(fnv1_32(&all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_read_as_upstream_writes_them() {
        assert_eq!(letters(1_234_567_890), "56789bcdf4");
        assert_eq!(revision_hash(b"{}", 0), "cccc864bc");
    }

    #[test]
    fn names_end_in_a_dash_if_they_may() {
        assert_eq!((generate_name("web"), generate_name("UPPER")), ("web-".into(), "UPPER".into()));
    }
}
