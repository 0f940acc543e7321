//! What a process weighs, asked of the kernel.

use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::time::Duration;

/// Processor time of all threads, to the nanosecond.
pub fn cpu_time(pid: u32) -> Result<Duration> {
    let mut total = Duration::ZERO;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let stat = fs::read_to_string(thread?.path().join("schedstat"))?;
        let nanos = stat.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or_default();
        total += Duration::from_nanos(nanos);
    }
    Ok(total)
}

/// A field of smaps_rollup (`Pss:`), in MB.
pub fn memory(pid: u32, field: &str) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let kilobytes: Option<f64> = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
    let missing = || Error::new(ErrorKind::InvalidData, format!("smaps_rollup has no {field}"));
    Ok(kilobytes.ok_or_else(missing)? / 1000.0 * 1.024)
}
