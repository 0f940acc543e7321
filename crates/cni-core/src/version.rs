//! The versions of the contract.

/// Those that are spoken, oldest first.
pub const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
/// What a configuration without a version means.
pub const OLDEST: &str = VERSIONS[0];
pub const NEWEST: &str = VERSIONS[6];

/// Both are versions that we speak.
#[must_use]
pub fn is_at_least(version: &str, least: &str) -> bool {
    let place = |wanted: &str| VERSIONS.iter().position(|known| *known == wanted);
    place(version) >= place(least)
}
