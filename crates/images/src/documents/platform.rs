//! Which of an index's images is for this machine.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Platform {
    pub os: String,
    pub architecture: String,
    pub variant: String,
}

// === impl Platform ===

impl Platform {
    /// What this program was built for.
    #[must_use]
    pub fn of_this_machine() -> Platform {
        let (architecture, variant) = match std::env::consts::ARCH {
            "x86_64" => ("amd64", ""),
            "x86" => ("386", ""),
            "aarch64" => ("arm64", "v8"),
            "arm" => ("arm", "v7"),
            other => (other, ""),
        };
        Platform { os: "linux".into(), architecture: architecture.into(), variant: variant.into() }
    }

    /// How well `theirs` runs here; none if it does not. The larger the better.
    #[must_use]
    pub fn fit(&self, theirs: &Platform) -> Option<u8> {
        if theirs.os != self.os {
            return None;
        }
        match (self.architecture.as_str(), theirs.architecture.as_str()) {
            (ours, same) if ours == same => self.fit_variant(&theirs.variant),
            // The processor still knows the old instructions.
            ("amd64", "386") => Some(1),
            ("arm64", "arm") => Some(u8::from(theirs.variant != "v6" && theirs.variant != "v5")),
            _ => None,
        }
    }

    fn fit_variant(&self, theirs: &str) -> Option<u8> {
        let number = |variant: &str| variant.strip_prefix('v').and_then(|n| n.parse::<u8>().ok());
        if theirs == self.variant || theirs.is_empty() {
            return Some(100);
        }
        match (self.architecture.as_str(), number(&self.variant), number(theirs)) {
            ("arm", Some(ours), Some(theirs)) if theirs <= ours => Some(10 + theirs),
            // v2 and later of amd64 need instructions that not every machine has.
            ("amd64", _, Some(1)) => Some(99),
            ("arm64", _, _) => Some(50),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(os: &str, architecture: &str, variant: &str) -> Platform {
        Platform { os: os.into(), architecture: architecture.into(), variant: variant.into() }
    }

    #[test]
    fn what_runs_here_fits_and_the_closest_fits_best() {
        let amd64 = platform("linux", "amd64", "");
        let arm = platform("linux", "arm", "v7");
        let arm64 = platform("linux", "arm64", "v8");
        let rows = [
            (&amd64, platform("linux", "amd64", ""), true),
            (&amd64, platform("linux", "amd64", "v3"), false),
            (&amd64, platform("linux", "386", ""), true),
            (&amd64, platform("windows", "amd64", ""), false),
            (&amd64, platform("linux", "arm64", ""), false),
            (&amd64, platform("unknown", "unknown", ""), false),
            (&arm, platform("linux", "arm", "v6"), true),
            (&arm, platform("linux", "arm", "v8"), false),
            (&arm64, platform("linux", "arm64", ""), true),
            (&arm64, platform("linux", "arm", "v7"), true),
        ];
        for (here, there, runs) in rows {
            assert_eq!(here.fit(&there).is_some(), runs, "{there:?} on {here:?}");
        }
        assert!(arm.fit(&platform("linux", "arm", "v7")) > arm.fit(&platform("linux", "arm", "v6")));
        assert!(amd64.fit(&amd64) > amd64.fit(&platform("linux", "386", "")));
    }
}
