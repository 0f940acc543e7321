//! The `process_*` families, read from /proc at the moment of the scrape.

use std::fmt::{self, Write};
use std::fs;

use base::metrics::{MetricType, Text};

/// Unix time of the start of this process, in seconds.
pub fn started() -> Option<f64> {
    Stat::read().map(|stat| stat.start_time)
}

/// How this process was started: words with a zero byte between them, as the kernel has it. Empty where it cannot be read.
#[must_use]
pub fn command_line() -> String {
    let line = fs::read("/proc/self/cmdline").unwrap_or_default();
    String::from_utf8_lossy(line.strip_suffix(b"\0").unwrap_or(&line)).into_owned()
}

/// Prints what the kernel says about this process. What cannot be read is left out.
pub fn write_process(out: &mut dyn Write) -> fmt::Result {
    let mut text = Text::new(out);
    if let Some(stat) = Stat::read() {
        let rows = [
            (
                "process_cpu_seconds_total",
                MetricType::Counter,
                "CPU seconds used, user and system.",
                stat.cpu_seconds,
            ),
            (
                "process_resident_memory_bytes",
                MetricType::Gauge,
                "Resident memory in bytes.",
                stat.resident_bytes,
            ),
            (
                "process_start_time_seconds",
                MetricType::Gauge,
                "Unix time of the start of this process.",
                stat.start_time,
            ),
            (
                "process_virtual_memory_bytes",
                MetricType::Gauge,
                "Virtual memory in bytes.",
                stat.virtual_bytes,
            ),
        ];
        for (name, kind, help, value) in rows {
            text.header(name, kind, help)?;
            text.sample(name, &[], value, None)?;
        }
    }
    if let Ok(dir) = fs::read_dir("/proc/self/fd") {
        text.header("process_open_fds", MetricType::Gauge, "Open file descriptors.")?;
        // One of them is the directory being read.
        text.sample("process_open_fds", &[], dir.count().saturating_sub(1) as f64, None)?;
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    text.header("process_max_fds", MetricType::Gauge, "File descriptors this process may open.")?;
    text.sample("process_max_fds", &[], limit.map_or(f64::INFINITY, |n| n as f64), None)
}

struct Stat {
    cpu_seconds: f64,
    virtual_bytes: f64,
    resident_bytes: f64,
    start_time: f64,
}

// === impl Stat ===

impl Stat {
    fn read() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        let boot = fs::read_to_string("/proc/stat").ok()?;
        let boot: f64 = boot.lines().find_map(|l| l.strip_prefix("btime "))?.trim().parse().ok()?;
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        Self::parse(&stat, boot, ticks, rustix::param::page_size() as f64)
    }

    /// The fields behind the command, which may itself hold spaces and brackets.
    fn parse(stat: &str, boot: f64, ticks: f64, page: f64) -> Option<Self> {
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split_ascii_whitespace().collect();
        // proc(5) counts from 1 with the command as number 2; here number 3 is at index 0.
        let field = |n: usize| fields.get(n - 3)?.parse::<f64>().ok();
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) / ticks,
            virtual_bytes: field(23)?,
            resident_bytes: field(24)? * page,
            start_time: boot + field(22)? / ticks,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_that_of_this_process() {
        let words: Vec<String> = std::env::args().collect();
        assert_eq!(command_line(), words.join("\0"));
    }

    #[test]
    fn a_command_with_brackets_does_not_shift_the_fields() {
        let line = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 1 0 300 8192 2 1";
        let stat = Stat::parse(line, 1000.0, 100.0, 4096.0).unwrap();
        assert_eq!((stat.cpu_seconds, stat.start_time), (2.0, 1003.0));
        assert_eq!((stat.virtual_bytes, stat.resident_bytes), (8192.0, 8192.0));
    }
}
