//! So many requests a second, and a burst: what a node may ask of its API server.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

/// A token bucket. Who waits is served in order.
#[derive(Debug)]
pub(crate) struct Limiter {
    interval: Duration,
    burst: u32,
    /// When the bucket would be full: each request moves it one interval ahead.
    full_at: Mutex<Instant>,
}

// === impl Limiter ===

impl Limiter {
    /// None limits nothing.
    pub(crate) fn new(qps: f64, burst: u32) -> Option<Limiter> {
        if qps <= 0.0 {
            return None;
        }
        let interval = Duration::from_secs_f64(1.0 / qps);
        Some(Limiter { interval, burst: burst.max(1), full_at: Mutex::new(Instant::now()) })
    }

    pub(crate) async fn wait(&self) {
        let mut full_at = self.full_at.lock().await;
        let now = Instant::now();
        let next = (*full_at).max(now) + self.interval;
        let allowed = next - self.interval * self.burst;
        // Held while sleeping: the lock's queue is the order of service.
        tokio::time::sleep_until(allowed).await;
        *full_at = next;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_and_the_rest_is_spaced() {
        let limiter = Limiter::new(10.0, 3).unwrap();
        let start = Instant::now();
        let mut at = Vec::new();
        for _ in 0..6 {
            limiter.wait().await;
            at.push(start.elapsed().as_millis());
        }
        assert_eq!(at, [0, 0, 0, 100, 200, 300]);
        tokio::time::sleep(Duration::from_secs(5)).await;
        let start = Instant::now();
        for _ in 0..4 {
            limiter.wait().await;
        }
        assert_eq!(start.elapsed().as_millis(), 100);
    }

    #[test]
    fn zero_is_no_limit() {
        assert!(Limiter::new(0.0, 1).is_none());
        assert!(Limiter::new(-1.0, 1).is_none());
    }
}
