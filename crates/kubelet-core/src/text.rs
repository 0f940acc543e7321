//! Texts that people and tools compare with upstream's.

use std::time::Duration;

/// A duration the way Go prints it, to the millisecond: `1.5s`, `40s`, `2m40s`, `5m0s`, `1h0m0s`.
#[must_use]
pub fn go_duration(d: Duration) -> String {
    let (all, millis) = (d.as_secs(), d.subsec_millis());
    if all == 0 && millis > 0 {
        return format!("{millis}ms");
    }
    let fraction = if millis == 0 { String::new() } else { format!(".{millis:03}") };
    let seconds = format!("{}{}s", all % 60, fraction.trim_end_matches('0'));
    match (all / 3600, all / 60 % 60) {
        (0, 0) => seconds,
        (0, m) => format!("{m}m{seconds}"),
        (h, m) => format!("{h}h{m}m{seconds}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_go_prints_them() {
        for (millis, text) in [
            (0, "0s"),
            (250, "250ms"),
            (1500, "1.5s"),
            (10_000, "10s"),
            (80_000, "1m20s"),
            (300_000, "5m0s"),
            (3_600_000, "1h0m0s"),
        ] {
            assert_eq!(go_duration(Duration::from_millis(millis)), text);
        }
    }
}
