//! Others who change our rules again each time they were put right.

use std::time::Duration;

use tokio::time::Instant;

/// So many repairs in a row may be somebody who tries things out. A second proxy makes as many in ten seconds.
const FREE_REPAIRS: u32 = 50;

/// What is put right within this time after it could be is one more in a row.
const IN_A_ROW: Duration = Duration::from_secs(10);

/// Upstream's kube-proxy puts its rules right this often; a second proxy that we yield to gets no more than that.
const LONGEST: Duration = Duration::from_secs(30);

/// Two that put the same table right at every sight of the other's work write for ever. Each waits longer from time to time,
/// so that the machine is left alone and one of them has its way for a while.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Contest {
    repairs: u32,
    /// Until then nothing is put right.
    until: Option<Instant>,
}

// === impl Contest ===

impl Contest {
    /// Something was put right. Says for how long others have their way now; `None` while it may be chance.
    pub(super) fn repaired(&mut self, now: Instant) -> Option<Duration> {
        let is_in_a_row = self.until.is_some_and(|until| now.saturating_duration_since(until) < IN_A_ROW);
        self.repairs = if is_in_a_row { self.repairs + 1 } else { 1 };
        let times = self.repairs.checked_sub(FREE_REPAIRS);
        let wait = times.map(|n| Duration::from_secs(1).saturating_mul(1 << n.min(10)).min(LONGEST));
        self.until = Some(now + wait.unwrap_or_default());
        wait
    }

    pub(super) fn until(&self) -> Option<Instant> {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_repairs_again_and_again_waits_longer_each_time_and_is_patient_again_after_a_rest() {
        let mut contest = Contest::default();
        let mut now = Instant::now();
        let seconds = |n| Some(Duration::from_secs(n));
        let growing = [1, 2, 4, 8, 16, 30].map(seconds);
        for wait in [None; FREE_REPAIRS as usize - 1].into_iter().chain(growing) {
            let said = contest.repaired(now);
            assert_eq!(said, wait);
            now += said.unwrap_or_default() + Duration::from_millis(200);
        }
        assert_eq!(contest.repaired(now), seconds(30), "no longer than upstream");
        now += LONGEST + IN_A_ROW;
        assert_eq!(contest.repaired(now), None, "that was long ago");
    }
}
