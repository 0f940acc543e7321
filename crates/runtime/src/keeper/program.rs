//! The keeper's program, put once into memory that nobody can change, and started from there.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sys::{fd, message, sealed};
use tokio::io::unix::AsyncFd;

/// Sealed once per daemon. It is the only program of ours that a container's processes ever descend from, and what they
/// find behind /proc/PID/exe cannot be written (CVE-2019-5736).
#[derive(Debug)]
pub struct Program(OwnedFd);

impl Program {
    pub fn seal() -> io::Result<Self> {
        sealed::file("keeper", keeper::PROGRAM, sealed::Use::Program).map(Self)
    }

    /// Starts it, listening as `name` in `dir`. Returned is our end of its first connection.
    pub(super) fn start(&self, dir: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
        let listener = message::listen(dir, name)?;
        let (ours, theirs) = message::pair()?;
        let mut child = Command::new(fd::proc_path(&self.0))
            .env_clear()
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::from(listener))
            .stderr(Stdio::null())
            .spawn()?;
        // It ends when its Pod does, or after us: somebody has to take its exit code from the kernel then.
        let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
        // Its replacement is unsafe code. What it warns of is a type whose descriptor changes; an OwnedFd's does not.
        #[allow(deprecated)]
        let ended = AsyncFd::new(pidfd_open(id, PidfdFlags::NONBLOCK)?)?;
        supervise::spawn("keeper_reaper", async move {
            if ended.readable().await.is_ok() {
                // Outside of the log's words, which are only put together when somebody reads them.
                let status = child.try_wait();
                tracing::debug!(?status, "a keeper has ended");
            }
        });
        Ok(ours)
    }
}
