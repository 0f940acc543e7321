//! A place for tests: a thread in its own mount namespace with an empty tmpfs to play in. When the
//! thread ends, every mount made there is gone.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::mount::{self, Memory};

/// Runs `test` in a private mount namespace; `None` when we may not make one (not root).
pub fn run<T: Send>(test: impl FnOnce(&Path) -> T + Send) -> Option<T> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("longshore-{}-{number}", std::process::id()));
    let result = std::thread::scope(|scope| scope.spawn(|| run_here(&dir, test)).join());
    // Empty: what was in it went with the namespace.
    let _ = std::fs::remove_dir(&dir);
    match result {
        Ok(outcome) => outcome,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn run_here<T>(dir: &PathBuf, test: impl FnOnce(&Path) -> T) -> Option<T> {
    std::fs::create_dir_all(dir).ok()?;
    mount::enter_private_namespace().ok()?;
    let dir = dir.canonicalize().ok()?;
    let target = crate::fd::open_dir(&dir).ok()?;
    let tmpfs = Memory::Tmpfs { size: Some(256 << 20), inodes: None, mode: 0o755, noswap: false };
    mount::memory(&target, &tmpfs).ok()?;
    Some(test(&dir))
}
