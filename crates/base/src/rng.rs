//! Seeded randomness. A parent hands each task a child, so one seed replays a whole node.

use std::time::Duration;

/// SplitMix64: tiny, fast, good enough for jitter and simulation; never for secrets.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// An independent generator; the parent moves on by one step.
    pub fn child(&mut self) -> Self {
        Self(self.next_u64() ^ 0xa076_1d64_78bd_642f)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0..n`; zero when `n` is zero.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64 }
    }

    /// True with probability `p` (0.0 to 1.0).
    pub fn chance(&mut self, p: f64) -> bool {
        ((self.next_u64() >> 11) as f64) < p * (1u64 << 53) as f64
    }

    /// A duration uniform in `0..max`.
    pub fn up_to(&mut self, max: Duration) -> Duration {
        Duration::from_nanos(self.below(u64::try_from(max.as_nanos()).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_story() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        let (mut ca, mut cb) = (a.child(), b.child());
        assert!((0..100).all(|_| ca.below(10) == cb.below(10) && a.next_u64() == b.next_u64()));
    }

    #[test]
    fn below_stays_below() {
        let mut r = Rng::new(1);
        assert!((0..1000).all(|_| r.below(3) < 3));
        assert_eq!(r.below(0), 0);
    }
}
