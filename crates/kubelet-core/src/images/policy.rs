//! When to pull, when to verify, how fast.

use std::time::Duration;

use base::time::Mono;

use api::image::trim;

/// `imagePullPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

/// `imagePullCredentialsVerificationPolicy`: which present images a Pod must prove access to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Verification {
    NeverVerify,
    /// Only what the kubelet itself has pulled is verified.
    #[default]
    NeverVerifyPreloadedImages,
    /// All but these; see [`Verification::allow`].
    NeverVerifyAllowlistedImages {
        exact: Vec<String>,
        /// Each ends with a slash.
        prefixes: Vec<String>,
    },
    AlwaysVerify,
}

/// A pattern in the allow list that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{pattern:?}: {why}")]
pub struct BadPattern {
    pub pattern: String,
    pub why: &'static str,
}

/// `registryPullQPS` and `registryBurst`. It refuses, it does not wait.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    per_second: f64,
    burst: f64,
    tokens: f64,
    filled: Mono,
}

// === impl PullPolicy ===

impl PullPolicy {
    /// The policy as the manifest names it, or what its absence means for this image.
    #[must_use]
    pub fn of(policy: Option<&str>, image: &str) -> Self {
        match policy.filter(|p| !p.is_empty()).unwrap_or_else(|| api::pod::default_pull_policy(image)) {
            "Always" => Self::Always,
            "Never" => Self::Never,
            _ => Self::IfNotPresent,
        }
    }
}

// === impl Verification ===

impl Verification {
    /// The allow-list policy. A pattern is an image without tag, or ends in `/*`.
    pub fn allow(patterns: &[String]) -> Result<Self, BadPattern> {
        let (mut exact, mut prefixes) = (Vec::new(), Vec::new());
        for pattern in patterns {
            let fail = |why| Err(BadPattern { pattern: pattern.clone(), why });
            let (text, wildcard) = match pattern.strip_suffix('*').filter(|p| p.ends_with('/')) {
                Some(prefix) => (prefix, true),
                None => (pattern.as_str(), false),
            };
            if text.trim() != text {
                return fail("leading and trailing spaces are not allowed");
            }
            if text.contains('*') {
                return fail("only patterns ending with /* may have a wildcard");
            }
            if wildcard && text.len() > 1 {
                prefixes.push(text.to_owned());
            } else if !wildcard && trim(text) == Ok(text) {
                exact.push(text.to_owned());
            } else {
                return fail("not an image without tag and digest");
            }
        }
        Ok(Self::NeverVerifyAllowlistedImages { exact, prefixes })
    }

    /// Whether a Pod must prove access to this image, given whether the kubelet has pulled it.
    #[must_use]
    pub fn required(&self, image: &str, pulled_by_kubelet: bool) -> bool {
        match self {
            Self::NeverVerify => false,
            Self::NeverVerifyPreloadedImages => pulled_by_kubelet,
            Self::AlwaysVerify => true,
            Self::NeverVerifyAllowlistedImages { exact, prefixes } => {
                let name = trim(image).unwrap_or(image);
                !exact.iter().any(|e| e == name) && !prefixes.iter().any(|p| name.starts_with(p.as_str()))
            }
        }
    }
}

// === impl TokenBucket ===

impl TokenBucket {
    /// A full bucket. Zero `per_second` means no limit.
    #[must_use]
    pub fn new(per_second: f64, burst: u32, now: Mono) -> Self {
        Self { per_second, burst: burst.into(), tokens: burst.into(), filled: now }
    }

    /// Takes a token if there is one.
    pub fn try_take(&mut self, now: Mono) -> bool {
        if self.per_second <= 0.0 {
            return true;
        }
        let gained: Duration = now.since(self.filled);
        self.tokens = (self.tokens + gained.as_secs_f64() * self.per_second).min(self.burst);
        self.filled = self.filled.max(now);
        let there = self.tokens >= 1.0;
        if there {
            self.tokens -= 1.0;
        }
        there
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn policies() {
        let rows = [
            (None, "a", PullPolicy::Always),
            (None, "a:1", PullPolicy::IfNotPresent),
            (Some("Never"), "a", PullPolicy::Never),
            (Some(""), "a:latest", PullPolicy::Always),
            (Some("Always"), "a:1", PullPolicy::Always),
        ];
        for (policy, image, expected) in rows {
            assert_eq!(PullPolicy::of(policy, image), expected, "{policy:?} {image}");
        }
    }

    #[test]
    fn verification() {
        let patterns = ["a.io/team/*".to_owned(), "b.io/app".to_owned()];
        let allow = Verification::allow(&patterns).unwrap();
        let rows = [
            (Verification::NeverVerify, "x", true, false),
            (Verification::NeverVerifyPreloadedImages, "x", false, false),
            (Verification::NeverVerifyPreloadedImages, "x", true, true),
            (Verification::AlwaysVerify, "x", false, true),
            (allow.clone(), "a.io/team/x:1", true, false),
            (allow.clone(), "a.io/teamwork", true, true),
            (allow.clone(), "b.io/app:2", true, false),
            (allow, "b.io/app/x", true, true),
        ];
        for (policy, image, pulled, required) in rows {
            assert_eq!(policy.required(image, pulled), required, "{policy:?} {image}");
        }
        for bad in ["", " a", "a/* ", "*", "/*", "a*/b", "a:tag", "a.*.io/*"] {
            assert!(Verification::allow(&[bad.to_owned()]).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_bucket_refuses_and_refills() {
        let at = |ms| Mono(Duration::from_millis(ms));
        let mut bucket = TokenBucket::new(2.0, 3, at(0));
        let taken: Vec<bool> = [0, 0, 0, 0, 499, 500, 500].map(|ms| bucket.try_take(at(ms))).to_vec();
        assert_eq!(taken, [true, true, true, false, false, true, false]);
        assert_eq!((0..5).filter(|_| bucket.try_take(at(60_000))).count(), 3);
        assert!((0..100).all(|_| TokenBucket::new(0.0, 0, at(0)).try_take(at(0))));
    }
}
