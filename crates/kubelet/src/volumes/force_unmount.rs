//! Unmounting what a server holds that may be dead.
//!
//! The call itself may hang, so it is made on a thread of its own. After a while the kernel is told to give up what it
//! asked the server for, as upstream does; and if that does not help either, the mount leaves the tree and the kernel
//! keeps the rest to itself. The data is the server's: nothing of it is lost that the server had.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use sys::mount::Busy;

use super::timeouts::Timeouts;

/// Nothing here recurses.
const STACK: usize = 64 << 10;

/// File systems of servers that we mount ourselves.
pub(super) fn is_remote(fs_type: &str) -> bool {
    matches!(fs_type, "nfs" | "nfs4")
}

/// Unmounts, at first as one does, at last by letting go. A mount that is merely in use is never forced: others may
/// share its server, and that one answers.
pub(super) fn unmount(
    timeouts: &Timeouts,
    unmount: impl Fn(Busy) -> io::Result<()> + Send + Sync + 'static,
    is_gone: impl Fn() -> bool,
) -> io::Result<()> {
    let unmount: Call = Arc::new(unmount);
    let until = Instant::now() + timeouts.gently;
    let hangs = loop {
        let left = until.saturating_duration_since(Instant::now());
        // A call that was begun late does not hang yet.
        match attempt(&unmount, Busy::Refuse, left.max(timeouts.by_force))? {
            None => break true,
            Some(Err(e)) if e.raw_os_error() == Some(libc::EBUSY) => {}
            Some(done) => return done,
        }
        if Instant::now() >= until {
            break false;
        }
        thread::sleep(timeouts.pause.min(left));
    };
    // The call may be at what the kernel still has to write; the tree is free of it then.
    if is_gone() {
        return Ok(());
    }
    if hangs && matches!(attempt(&unmount, Busy::Force, timeouts.by_force)?, Some(Ok(()))) {
        return Ok(());
    }
    match attempt(&unmount, Busy::Detach, timeouts.by_force)? {
        Some(Ok(())) => Ok(()),
        _ if is_gone() => Ok(()),
        Some(Err(error)) => Err(error),
        None => Err(io::Error::other("the kernel does not let go of it")),
    }
}

type Call = Arc<dyn Fn(Busy) -> io::Result<()> + Send + Sync>;

/// What came of one call; none if it has not come back by then. The outer error: there is no thread to call on.
fn attempt(unmount: &Call, busy: Busy, wait: Duration) -> io::Result<Option<io::Result<()>>> {
    let (answer, answered) = mpsc::channel();
    let unmount = unmount.clone();
    let thread = thread::Builder::new().name("unmount".into()).stack_size(STACK);
    thread.spawn(move || {
        let _ = answer.send(unmount(busy));
    })?;
    Ok(answered.recv_timeout(wait).ok())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::sync::Mutex;

    use sys::mount::{self, Memory};
    use sys::{mountinfo, scratch};

    use super::*;
    use crate::volumes::host_path;

    fn short() -> Timeouts {
        Timeouts {
            gently: Duration::from_millis(200),
            by_force: Duration::from_secs(4),
            pause: Duration::from_millis(20),
            ..Timeouts::default()
        }
    }

    /// The ways that were tried when the call answers so.
    fn tried(answer: impl Fn(Busy) -> io::Result<()> + Send + Sync + 'static) -> (Vec<Busy>, io::Result<()>) {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let noted = calls.clone();
        let call = move |busy| {
            let mut calls = noted.lock().unwrap();
            if calls.last() != Some(&busy) {
                calls.push(busy);
            }
            drop(calls);
            answer(busy)
        };
        let done = unmount(&short(), call, || false);
        let calls = calls.lock().unwrap().clone();
        (calls, done)
    }

    fn hang() -> io::Result<()> {
        thread::sleep(Duration::from_secs(3600));
        Ok(())
    }

    fn busy() -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }

    #[test]
    fn one_that_hangs_is_forced_and_then_let_go() {
        use Busy::{Detach, Force, Refuse};
        let (calls, done) = tried(|_| Ok(()));
        assert_eq!((calls, done.is_ok()), (vec![Refuse], true));
        let (calls, done) = tried(|b| if b == Refuse { hang() } else { Ok(()) });
        assert_eq!((calls, done.is_ok()), (vec![Refuse, Force], true));
        let (calls, done) = tried(|b| match b {
            Refuse => hang(),
            Force => busy(),
            Detach => Ok(()),
        });
        assert_eq!((calls, done.is_ok()), (vec![Refuse, Force, Detach], true));
        // A server that answers is not to lose what others asked it for.
        let (calls, done) = tried(|b| if b == Detach { Ok(()) } else { busy() });
        assert_eq!((calls, done.is_ok()), (vec![Refuse, Detach], true));
        let (calls, done) = tried(|_| Err(io::Error::from_raw_os_error(libc::EINVAL)));
        assert_eq!((calls, done.unwrap_err().raw_os_error()), (vec![Refuse], Some(libc::EINVAL)));
    }

    #[test]
    fn a_real_mount_in_use_leaves_the_tree() {
        scratch::run(|dir| {
            let at = dir.join("m");
            fs::create_dir(&at).unwrap();
            let tmpfs = Memory::Tmpfs { size: None, inodes: None, mode: 0o755, noswap: false };
            mount::memory(host_path::open(&at).unwrap(), &tmpfs).unwrap();
            let file = fs::File::create(at.join("held")).unwrap();
            let parent = host_path::open(dir).unwrap();
            let is_gone = || mountinfo::below(&at).unwrap().is_empty();
            assert!(!is_gone());
            unmount(&short(), move |busy| mount::unmount(&parent, OsStr::new("m"), busy), is_gone).unwrap();
            assert!(is_gone());
            drop(file);
        });
    }
}
