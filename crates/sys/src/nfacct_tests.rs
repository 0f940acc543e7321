#![allow(clippy::unwrap_used, clippy::print_stderr)]

use super::*;

#[allow(unsafe_code)]
fn enter_new_namespace() -> bool {
    // SAFETY: CLONE_NEWNET moves this thread alone, and its file descriptors stay what they were.
    unsafe { libc::unshare(libc::CLONE_NEWNET) == 0 }
}

/// In a network namespace of a thread's own, which goes with the thread.
#[test]
fn an_account_begins_at_nothing_and_is_made_once() {
    std::thread::spawn(|| {
        if !enter_new_namespace() {
            eprintln!("skipped: no right to make a network namespace");
            return;
        }
        let mut accounts = Accounts::open().unwrap();
        if let Err(error) = accounts.packets("none") {
            eprintln!("skipped: {error}");
            return;
        }
        assert_eq!(accounts.packets("ours").unwrap(), None);
        accounts.ensure("ours").unwrap();
        accounts.ensure("ours").unwrap();
        assert_eq!(accounts.packets("ours").unwrap(), Some(0));
    })
    .join()
    .unwrap();
}
