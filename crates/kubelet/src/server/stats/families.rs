//! The families of `/metrics/cadvisor`, under cAdvisor's names: dashboards and alerts hard-code them.

use base::metrics::MetricType::{self, Counter, Gauge};
use base::metrics::escape_label;
use kubelet_core::stats::cgroup::{CgroupMemory, DeviceIo};
use kubelet_core::stats::proc::{DiskWork, Traffic};
use kubelet_core::stats::{Disk, Stalls};

use super::rows::Row;
use super::{Device, Look};

/// Takes more labels, written as in the text, and a value.
pub(super) type Take<'a> = &'a mut dyn FnMut(&str, f64);

/// Name, kind, what it is, and what a row says of it.
pub(super) struct Family(
    pub(super) &'static str,
    pub(super) MetricType,
    pub(super) &'static str,
    pub(super) fn(&Row<'_>, &Look, Take<'_>),
);

/// Those without a timestamp: what was set, not what was measured.
pub(super) const SPEC: &[Family] = &[
    Family(
        "container_start_time_seconds",
        Gauge,
        "When the container began, in seconds since the epoch.",
        |r, _, t| {
            one(t, r.started.map(|s| s as f64));
        },
    ),
    Family("container_spec_cpu_period", Gauge, "Microseconds of a period of the processor.", |r, _, t| {
        one(t, number(r.stats.period));
    }),
    Family("container_spec_cpu_quota", Gauge, "Microseconds of the processor in a period.", |r, _, t| {
        one(t, r.stats.quota.map(|(quota, _)| quota as f64));
    }),
    Family(
        "container_spec_cpu_shares",
        Gauge,
        "The part of the processor when others want it too.",
        |r, _, t| {
            one(t, number(r.stats.shares));
        },
    ),
    Family(
        "container_spec_memory_limit_bytes",
        Gauge,
        "The most memory it may have; 0 without a limit.",
        |r, _, t| {
            memory(r, t, |m| Some(m.limit.unwrap_or(0)));
        },
    ),
    Family(
        "container_spec_memory_reservation_limit_bytes",
        Gauge,
        "Memory that is kept for it.",
        |r, _, t| {
            memory(r, t, |m| Some(m.reservation.unwrap_or(0)));
        },
    ),
    Family(
        "container_spec_memory_swap_limit_bytes",
        Gauge,
        "The most swap it may have; 0 without a limit.",
        |r, _, t| {
            memory(r, t, |m| Some(m.swap_limit.unwrap_or(0)));
        },
    ),
];

pub(super) const MEASURED: &[Family] = &[
    Family("container_blkio_device_usage_total", Counter, "Bytes read from and written to a device.", blkio),
    Family(
        "container_cpu_cfs_burst_periods_total",
        Counter,
        "Periods in which more than the quota was used.",
        |r, _, t| {
            throttling(r, t, |x| x.bursts as f64);
        },
    ),
    Family("container_cpu_cfs_burst_seconds_total", Counter, "Time beyond the quota.", |r, _, t| {
        throttling(r, t, |x| seconds(x.burst_nanos));
    }),
    Family("container_cpu_cfs_periods_total", Counter, "Periods of the quota that passed.", |r, _, t| {
        throttling(r, t, |x| x.periods as f64);
    }),
    Family(
        "container_cpu_cfs_throttled_periods_total",
        Counter,
        "Periods in which it was held up.",
        |r, _, t| {
            throttling(r, t, |x| x.throttled as f64);
        },
    ),
    Family("container_cpu_cfs_throttled_seconds_total", Counter, "How long it was held up.", |r, _, t| {
        throttling(r, t, |x| seconds(x.throttled_nanos));
    }),
    Family("container_cpu_system_seconds_total", Counter, "Time of the kernel for it.", |r, _, t| {
        one(t, r.stats.system_nanos.map(seconds));
    }),
    Family("container_cpu_usage_seconds_total", Counter, "Time of all processors.", |r, _, t| {
        if let Some(nanos) = r.stats.cpu_nanos {
            t("cpu=\"total\"", seconds(nanos));
        }
    }),
    Family("container_cpu_user_seconds_total", Counter, "Time of its own programs.", |r, _, t| {
        one(t, r.stats.user_nanos.map(seconds));
    }),
    Family("container_file_descriptors", Gauge, "What its processes have open.", |r, _, t| {
        one(t, r.processes.map(|p| p.descriptors as f64));
    }),
    Family("container_fs_inodes_free", Gauge, "Inodes that are free.", |r, l, t| {
        disks(r, l, t, |d, _| d.inodes_free, true);
    }),
    Family("container_fs_inodes_total", Gauge, "Inodes that there are.", |r, l, t| {
        disks(r, l, t, |d, _| d.inodes, true);
    }),
    Family("container_fs_io_current", Gauge, "Requests under way.", |r, l, t| {
        work(r, l, t, |w| w.now as f64)
    }),
    Family("container_fs_io_time_seconds_total", Counter, "Time with a request under way.", |r, l, t| {
        work(r, l, t, |w| w.millis as f64 / 1e3);
    }),
    Family(
        "container_fs_io_time_weighted_seconds_total",
        Counter,
        "Time of all requests together.",
        |r, l, t| {
            work(r, l, t, |w| w.weighted_millis as f64 / 1e3);
        },
    ),
    Family("container_fs_limit_bytes", Gauge, "Size of the file system.", |r, l, t| {
        disks(r, l, t, |d, _| d.capacity, false)
    }),
    Family("container_fs_read_seconds_total", Counter, "Time spent reading.", |r, l, t| {
        work(r, l, t, |w| w.read.millis as f64 / 1e3);
    }),
    Family("container_fs_reads_bytes_total", Counter, "Bytes read.", |r, l, t| {
        io(r, l, t, |d| d.read_bytes, None)
    }),
    Family("container_fs_reads_merged_total", Counter, "Reads that were joined to others.", |r, l, t| {
        work(r, l, t, |w| w.read.merged as f64);
    }),
    Family("container_fs_reads_total", Counter, "Reads.", |r, l, t| {
        io(r, l, t, |d| d.reads, Some(|w| w.read.done))
    }),
    Family("container_fs_sector_reads_total", Counter, "Sectors read.", |r, l, t| {
        work(r, l, t, |w| w.read.sectors as f64)
    }),
    Family("container_fs_sector_writes_total", Counter, "Sectors written.", |r, l, t| {
        work(r, l, t, |w| w.written.sectors as f64);
    }),
    Family("container_fs_usage_bytes", Gauge, "Bytes of the file system that are its own.", |r, l, t| {
        disks(r, l, t, |_, used| used, false);
    }),
    Family("container_fs_write_seconds_total", Counter, "Time spent writing.", |r, l, t| {
        work(r, l, t, |w| w.written.millis as f64 / 1e3);
    }),
    Family("container_fs_writes_bytes_total", Counter, "Bytes written.", |r, l, t| {
        io(r, l, t, |d| d.write_bytes, None)
    }),
    Family("container_fs_writes_merged_total", Counter, "Writes that were joined to others.", |r, l, t| {
        work(r, l, t, |w| w.written.merged as f64);
    }),
    Family("container_fs_writes_total", Counter, "Writes.", |r, l, t| {
        io(r, l, t, |d| d.writes, Some(|w| w.written.done))
    }),
    Family(
        "container_last_seen",
        Gauge,
        "When it was last looked at, in seconds since the epoch.",
        |r, _, t| {
            one(t, Some((r.at / 1000) as f64));
        },
    ),
    Family("container_memory_cache", Gauge, "Bytes of files in memory.", |r, _, t| {
        memory(r, t, |m| Some(m.cache))
    }),
    Family("container_memory_failcnt", Counter, "How often it came to its limit.", |r, _, t| {
        memory(r, t, |m| m.fail_count)
    }),
    Family("container_memory_failures_total", Counter, "Page faults.", failures),
    Family("container_memory_kernel_usage", Gauge, "Bytes of the kernel for it.", |r, _, t| {
        memory(r, t, |m| m.kernel)
    }),
    Family("container_memory_mapped_file", Gauge, "Bytes of files that are mapped.", |r, _, t| {
        memory(r, t, |m| Some(m.mapped_file));
    }),
    Family("container_memory_max_usage_bytes", Gauge, "The most memory it ever had.", |r, _, t| {
        memory(r, t, |m| m.most)
    }),
    Family("container_memory_rss", Gauge, "Bytes that are no file's.", |r, _, t| {
        memory(r, t, |m| Some(m.rss))
    }),
    Family("container_memory_swap", Gauge, "Bytes in swap.", |r, _, t| memory(r, t, |m| m.swap)),
    Family(
        "container_memory_total_active_file_bytes",
        Gauge,
        "Bytes of files that were used lately.",
        |r, _, t| {
            memory(r, t, |m| Some(m.active_file));
        },
    ),
    Family(
        "container_memory_total_inactive_file_bytes",
        Gauge,
        "Bytes of files that were not.",
        |r, _, t| {
            memory(r, t, |m| Some(m.inactive_file));
        },
    ),
    Family("container_memory_usage_bytes", Gauge, "Memory, with all that could go.", |r, _, t| {
        memory(r, t, |m| Some(m.usage))
    }),
    Family(
        "container_memory_working_set_bytes",
        Gauge,
        "Memory, without files that were not used lately.",
        |r, _, t| {
            memory(r, t, |m| Some(m.working_set));
        },
    ),
    Family("container_network_receive_bytes_total", Counter, "Bytes received.", |r, _, t| {
        net(r, t, false, |n| n.bytes)
    }),
    Family("container_network_receive_errors_total", Counter, "Errors while receiving.", |r, _, t| {
        net(r, t, false, |n| n.errors)
    }),
    Family(
        "container_network_receive_packets_dropped_total",
        Counter,
        "Packets dropped while receiving.",
        |r, _, t| {
            net(r, t, false, |n| n.dropped);
        },
    ),
    Family("container_network_receive_packets_total", Counter, "Packets received.", |r, _, t| {
        net(r, t, false, |n| n.packets)
    }),
    Family("container_network_transmit_bytes_total", Counter, "Bytes sent.", |r, _, t| {
        net(r, t, true, |n| n.bytes)
    }),
    Family("container_network_transmit_errors_total", Counter, "Errors while sending.", |r, _, t| {
        net(r, t, true, |n| n.errors)
    }),
    Family(
        "container_network_transmit_packets_dropped_total",
        Counter,
        "Packets dropped while sending.",
        |r, _, t| {
            net(r, t, true, |n| n.dropped);
        },
    ),
    Family("container_network_transmit_packets_total", Counter, "Packets sent.", |r, _, t| {
        net(r, t, true, |n| n.packets)
    }),
    Family("container_oom_events_total", Counter, "Processes killed for want of memory.", |r, _, t| {
        memory(r, t, |m| m.oom_kills)
    }),
    Family(
        "container_pressure_cpu_stalled_seconds_total",
        Counter,
        "Time in which nobody had a processor.",
        |r, _, t| {
            stalled(t, r.stats.cpu_stalls, |s| s.full.total);
        },
    ),
    Family(
        "container_pressure_cpu_waiting_seconds_total",
        Counter,
        "Time in which somebody waited for a processor.",
        |r, _, t| {
            stalled(t, r.stats.cpu_stalls, |s| s.some.total);
        },
    ),
    Family(
        "container_pressure_io_stalled_seconds_total",
        Counter,
        "Time in which everybody waited for disks.",
        |r, _, t| {
            stalled(t, r.stats.io_stalls, |s| s.full.total);
        },
    ),
    Family(
        "container_pressure_io_waiting_seconds_total",
        Counter,
        "Time in which somebody waited for disks.",
        |r, _, t| {
            stalled(t, r.stats.io_stalls, |s| s.some.total);
        },
    ),
    Family(
        "container_pressure_memory_stalled_seconds_total",
        Counter,
        "Time in which everybody waited for memory.",
        |r, _, t| {
            stalled(t, r.stats.memory_stalls, |s| s.full.total);
        },
    ),
    Family(
        "container_pressure_memory_waiting_seconds_total",
        Counter,
        "Time in which somebody waited for memory.",
        |r, _, t| {
            stalled(t, r.stats.memory_stalls, |s| s.some.total);
        },
    ),
    Family("container_processes", Gauge, "Its processes.", |r, _, t| {
        one(t, r.processes.map(|p| p.count as f64))
    }),
    Family("container_sockets", Gauge, "Its sockets.", |r, _, t| {
        one(t, r.processes.map(|p| p.sockets as f64))
    }),
    Family("container_threads", Gauge, "Its threads.", |r, _, t| one(t, number(r.stats.processes))),
    Family("container_threads_max", Gauge, "How many threads it may have; 0 without a limit.", |r, _, t| {
        one(t, r.stats.processes.map(|_| r.stats.most_processes.unwrap_or(0) as f64));
    }),
    Family(
        "container_ulimits_soft",
        Gauge,
        "What its first process may have; -1 without a limit.",
        |r, _, t| {
            if let Some(limit) = r.processes.and_then(|p| p.open_files) {
                t("ulimit=\"max_open_files\"", limit as f64);
            }
        },
    ),
];

fn one(take: Take<'_>, value: Option<f64>) {
    if let Some(value) = value {
        take("", value);
    }
}

fn number(value: Option<u64>) -> Option<f64> {
    value.map(|n| n as f64)
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

fn memory(row: &Row<'_>, take: Take<'_>, of: fn(&CgroupMemory) -> Option<u64>) {
    one(take, number(row.stats.memory.as_ref().and_then(of)));
}

/// Only who has a quota is ever held up.
fn throttling(row: &Row<'_>, take: Take<'_>, of: fn(&kubelet_core::stats::cgroup::Throttling) -> f64) {
    one(take, row.stats.throttling.filter(|_| row.stats.quota.is_some()).map(|x| of(&x)));
}

fn failures(row: &Row<'_>, _: &Look, take: Take<'_>) {
    let Some(memory) = &row.stats.memory else { return };
    let (own, all) = (memory.own_faults, (memory.faults, memory.major_faults));
    take("failure_type=\"pgfault\",scope=\"container\"", own.0 as f64);
    take("failure_type=\"pgfault\",scope=\"hierarchy\"", all.0 as f64);
    take("failure_type=\"pgmajfault\",scope=\"container\"", own.1 as f64);
    take("failure_type=\"pgmajfault\",scope=\"hierarchy\"", all.1 as f64);
}

/// Microseconds in, seconds out.
fn stalled(take: Take<'_>, stalls: Option<Stalls>, of: fn(&Stalls) -> u64) {
    one(take, stalls.map(|s| of(&s) as f64 / 1e6));
}

fn net(row: &Row<'_>, take: Take<'_>, sent: bool, of: fn(&Traffic) -> u64) {
    for interface in row.interfaces {
        let traffic = if sent { &interface.sent } else { &interface.received };
        // A Pod that may do so gives its interfaces any name.
        take(&format!("interface=\"{}\"", escape_label(&interface.name)), of(traffic) as f64);
    }
}

fn blkio(row: &Row<'_>, look: &Look, take: Take<'_>) {
    for io in &row.stats.io {
        let DeviceIo { major, minor, .. } = io;
        let name = look.devices.get(&(*major, *minor)).map_or("", |d| d.name.as_str());
        for (operation, bytes) in [("Read", io.read_bytes), ("Write", io.write_bytes)] {
            let labels =
                format!("device=\"{name}\",major=\"{major}\",minor=\"{minor}\",operation=\"{operation}\"");
            take(&labels, bytes as f64);
        }
    }
}

/// Of what its cgroup did; the machine as a whole also of what is below its file systems.
fn io(
    row: &Row<'_>,
    look: &Look,
    take: Take<'_>,
    of: fn(&DeviceIo) -> u64,
    whole: Option<fn(&DiskWork) -> u64>,
) {
    let mut told = Vec::new();
    for io in &row.stats.io {
        let name = look.devices.get(&(io.major, io.minor)).map_or("", |d| d.name.as_str());
        // Devices that went leave their numbers behind, and no name: one of them has to do.
        if !told.contains(&name) {
            told.push(name);
            take(&device(name), of(io) as f64);
        }
    }
    let Some(whole) = whole else { return };
    for below in row.is_root.then_some(row).iter().flat_map(|r| r.disks.iter()) {
        if let Some(d) = below_disk(look, &below.0).filter(|d| !told.contains(&d.name.as_str())) {
            take(&device(&d.name), whole(&d.work) as f64);
        }
    }
}

/// Of the devices below the machine's file systems; the kernel does not count these for each cgroup.
fn work(row: &Row<'_>, look: &Look, take: Take<'_>, of: fn(&DiskWork) -> f64) {
    for (disk, _) in row.disks.iter().filter(|_| row.is_root) {
        if let Some(d) = below_disk(look, disk) {
            take(&device(&d.name), of(&d.work));
        }
    }
}

fn disks(row: &Row<'_>, look: &Look, take: Take<'_>, of: fn(&Disk, u64) -> u64, only_root: bool) {
    for (disk, used) in row.disks.iter().filter(|_| row.is_root || !only_root) {
        let name = below_disk(look, disk).map_or("", |d| d.name.as_str());
        take(&device(name), of(disk, *used) as f64);
    }
}

fn below_disk<'a>(look: &'a Look, disk: &Disk) -> Option<&'a Device> {
    let numbers = (rustix::fs::major(disk.device), rustix::fs::minor(disk.device));
    look.devices.get(&numbers)
}

fn device(name: &str) -> String {
    format!("device=\"{name}\"")
}
