//! The kernel says when memory runs out, so that nobody has to wait for the next look.
//!
//! On version 1 of cgroups a threshold on the use of a cgroup's memory, as upstream has it; elsewhere pressure stall
//! information, where the kernel has it. Either may be missing: the look every ten seconds does not depend on it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use kubelet_core::eviction::Signal;
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use sys::cgroup::Version;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use crate::stats::{Sampler, Signals};

/// How long a threshold stands before it is set anew: what is cached changes, and the threshold with it.
const FRESH: Duration = Duration::from_secs(10);
/// Somebody waited for memory for 150 ms of a second.
const STALLED: &[u8] = b"some 150000 1000000\0";

/// What wakes eviction.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    thresholds: Vec<AsyncFd<OwnedFd>>,
    stalls: Option<Stalls>,
    set_at: Option<Instant>,
}

#[derive(Debug)]
struct Stalls {
    set: AsyncFd<OwnedFd>,
    _file: File,
}

// === impl Alarm ===

impl Alarm {
    /// Asks the kernel to say when so much is in use. What it does not take is left out.
    pub(super) async fn set(&mut self, limits: &[(Signal, i64)], signals: &Signals, sampler: &Sampler) {
        if limits.is_empty() || self.set_at.is_some_and(|at| at.elapsed() < FRESH) {
            return;
        }
        let is_first = self.set_at.is_none();
        self.set_at = Some(Instant::now());
        if is_first {
            self.stalls = stalls().inspect_err(|error| tracing::debug!(%error, "no word of stalls")).ok();
        }
        let Some(cgroups) = sampler.cgroups().filter(|c| c.hand.version() == Version::V1) else { return };
        self.thresholds.clear();
        for (signal, limit) in limits {
            let (path, cached) = match signal {
                Signal::AllocatableMemoryAvailable => {
                    let memory = signals.pods.as_ref().and_then(|p| p.memory).unwrap_or_default();
                    (cgroups.path(&cgroups.all), memory.usage.saturating_sub(memory.working_set))
                }
                _ => {
                    let memory = signals.machine.memory.unwrap_or_default();
                    (String::new(), memory.usage.saturating_sub(memory.working_set))
                }
            };
            // The kernel counts what is cached as used.
            let at = u64::try_from(*limit).unwrap_or(0).saturating_add(cached);
            let Some(dir) = cgroups.hand.directory(&path, "memory") else { continue };
            match threshold(&dir, at) {
                Ok(fd) => self.thresholds.push(fd),
                Err(error) => tracing::debug!(%error, path, "no threshold on memory"),
            }
        }
    }

    /// Waits until the kernel says something. Cancel-safe.
    pub(super) async fn raised(&mut self) {
        let stalled = async {
            match &self.stalls {
                Some(stalls) => stalled(stalls).await,
                None => std::future::pending().await,
            }
        };
        let crossed = async {
            if self.thresholds.is_empty() {
                std::future::pending::<()>().await;
            }
            let all = self.thresholds.iter().map(|fd| Box::pin(crossed(fd)));
            futures_util::future::select_all(all).await;
        };
        tokio::select! {
            () = stalled => {}
            () = crossed => {}
        }
    }
}

async fn crossed(fd: &AsyncFd<OwnedFd>) {
    let Ok(mut ready) = fd.readable().await else { return std::future::pending().await };
    let mut count = [0; 8];
    let _ = rustix::io::read(fd.get_ref(), &mut count);
    ready.clear_ready();
}

/// An eventfd that is written when the cgroup's use of memory crosses that amount.
fn threshold(dir: &Path, bytes: u64) -> io::Result<AsyncFd<OwnedFd>> {
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let usage = File::open(dir.join("memory.usage_in_bytes"))?;
    let order = format!("{} {} {bytes}", event.as_raw_fd(), usage.as_raw_fd());
    File::options().write(true).open(dir.join("cgroup.event_control"))?.write_all(order.as_bytes())?;
    // Ours alone, and open for as long as it is registered.
    #[allow(deprecated)]
    let registered = AsyncFd::new(event)?;
    Ok(registered)
}

fn stalls() -> io::Result<Stalls> {
    let mut file = File::options().read(true).write(true).open("/proc/pressure/memory")?;
    file.write_all(STALLED)?;
    // Only a set of descriptors can be asked for the kind of event that this one has.
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&set, &file, epoll::EventData::new_u64(0), epoll::EventFlags::PRI | epoll::EventFlags::ET)?;
    // Ours alone, and open for as long as it is registered.
    #[allow(deprecated)]
    let set = AsyncFd::new(set)?;
    Ok(Stalls { set, _file: file })
}

async fn stalled(stalls: &Stalls) {
    let Ok(mut ready) = stalls.set.readable().await else { return std::future::pending().await };
    let mut events = Vec::with_capacity(1);
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let _ = epoll::wait(stalls.set.get_ref(), spare_capacity(&mut events), Some(&now));
    ready.clear_ready();
}
