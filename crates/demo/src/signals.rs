//! The few signal calls that std lacks. This program is the first process of its container, for which the kernel
//! ignores TERM unless somebody asks for it, and which inherits every orphan.
//!
//! The only file outside `sys` with unsafe code: the image's program depends on nothing, not even on us.
#![allow(unsafe_code)]

pub(crate) const INT: i32 = 2;
pub(crate) const TERM: i32 = 15;
pub(crate) const CHLD: i32 = 17;

const WNOHANG: i32 = 1;
const SIG_BLOCK: i32 = 0;

/// A set of signals that are held back from this thread and the threads it starts later.
#[derive(Debug)]
pub(crate) struct Held(SigSet);

/// The C library's sigset_t on Linux: 1024 bits.
#[repr(C, align(8))]
#[derive(Debug)]
struct SigSet([u8; 128]);

unsafe extern "C" {
    fn sigemptyset(set: *mut SigSet) -> i32;
    fn sigaddset(set: *mut SigSet, signal: i32) -> i32;
    fn pthread_sigmask(how: i32, set: *const SigSet, old: *mut SigSet) -> i32;
    fn sigwait(set: *const SigSet, signal: *mut i32) -> i32;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
}

// === impl Held ===

impl Held {
    /// Call it before starting threads: a thread that does not hold the signal would die of it.
    pub(crate) fn hold(signals: &[i32]) -> Self {
        let mut set = SigSet([0; 128]);
        // SAFETY: `set` is as large as sigset_t, lives through the calls, and a null `old` is allowed.
        unsafe {
            sigemptyset(&raw mut set);
            for signal in signals {
                sigaddset(&raw mut set, *signal);
            }
            pthread_sigmask(SIG_BLOCK, &raw const set, std::ptr::null_mut());
        }
        Held(set)
    }

    /// Sleeps until one of the held signals comes.
    pub(crate) fn wait(&self) -> i32 {
        let mut signal = 0;
        // SAFETY: both pointers are to live values of the right type.
        unsafe { sigwait(&raw const self.0, &raw mut signal) };
        signal
    }
}

/// Buries every child that is dead by now.
pub(crate) fn reap() {
    let mut status = 0;
    // SAFETY: `status` is a live integer; with WNOHANG the call does not block.
    while unsafe { waitpid(-1, &raw mut status, WNOHANG) } > 0 {}
}
