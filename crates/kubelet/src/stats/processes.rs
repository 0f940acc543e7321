//! What processes have open.

use std::ffi::CStr;
use std::fs;

use kubelet_core::stats::{Processes, proc};
use rustix::fs::{CWD, Dir, Mode, OFlags, openat, readlinkat_raw};

/// Descriptors that are looked at for one cgroup. A Pod decides how many it has.
const DESCRIPTORS_MAX: u64 = 10_000;
/// Processes that are looked at for one cgroup; all of them are counted.
const LOOKED_AT_MAX: usize = 256;

/// Of a cgroup with these processes. Those that end meanwhile have nothing open.
pub(super) fn of(pids: &[i32]) -> Processes {
    let mut found = Processes { count: pids.len() as u64, ..Processes::default() };
    if let Some(first) = pids.first() {
        let limits = fs::read_to_string(format!("/proc/{first}/limits")).unwrap_or_default();
        found.open_files = proc::open_files(&limits);
    }
    for pid in pids.iter().take(LOOKED_AT_MAX) {
        count(*pid, &mut found);
    }
    found
}

fn count(pid: i32, found: &mut Processes) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(dir) = openat(CWD, format!("/proc/{pid}/fd"), flags, Mode::empty()) else { return };
    let Ok(entries) = Dir::read_from(&dir) else { return };
    for entry in entries.flatten() {
        if found.descriptors >= DESCRIPTORS_MAX {
            return;
        }
        let name = entry.file_name();
        if name.to_bytes().first() == Some(&b'.') {
            continue;
        }
        found.descriptors += 1;
        found.sockets += u64::from(is_socket(&dir, name));
    }
}

/// The kernel names what is open: `socket:[123]`.
fn is_socket(dir: impl std::os::fd::AsFd, name: &CStr) -> bool {
    let mut buffer = [std::mem::MaybeUninit::<u8>::uninit(); 16];
    readlinkat_raw(dir, name, &mut buffer).is_ok_and(|(read, _)| read.starts_with(b"socket:"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_this_process_has_open_is_counted() {
        let own = i32::try_from(std::process::id()).unwrap();
        let before = of(&[own]);
        assert!(before.count == 1 && before.descriptors > 2 && before.open_files.unwrap() > 0, "{before:?}");
        let many: Vec<_> = (0..50).map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        // Other tests open and close theirs meanwhile.
        let after = of(&[own]);
        assert!(after.sockets >= many.len() as u64, "{after:?}");
        assert_eq!(of(&[-1]), Processes { count: 1, ..Processes::default() }, "who is gone has nothing open");
        assert_eq!(of(&[]), Processes::default());
    }
}
