//! What a process weighs, asked of the kernel.

use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::time::Duration;

/// Processor time of all threads, also of those that have ended, to a tick of the clock (10 ms).
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let ticks = ticks_of(&stat).ok_or_else(|| Error::new(ErrorKind::InvalidData, "stat has no times"))?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// User and system time of a line of `/proc/PID/stat`. The name before them may hold anything, blanks and brackets too.
fn ticks_of(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split_whitespace().skip(11).map(|field| field.parse::<u64>().ok());
    Some(times.next()?? + times.next()??)
}

/// A field of smaps_rollup (`Pss:`), in MB.
pub fn memory(pid: u32, field: &str) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let kilobytes: Option<f64> = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    let missing = || Error::new(ErrorKind::InvalidData, format!("smaps_rollup has no {field}"));
    Ok(kilobytes.ok_or_else(missing)? / 1000.0 * 1.024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let line = "42 (a) b (c) S 1 42 42 0 -1 4194560 1 2 3 4 250 50 7 8 20 0 2 0 100 1 2";
        assert_eq!(ticks_of(line), Some(300));
        assert_eq!(ticks_of("42 (a) S 1"), None);
    }
}
