//! Processes of this machine: finding some, and ending one for certain.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A process, as /proc shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    pub parent: i32,
    /// Ticks since the machine started. With the pid, this names a process for good.
    pub started: u64,
    pub args: Vec<String>,
}

/// All that can be read. One that ends meanwhile is left out.
pub fn list(proc: &Path) -> io::Result<Vec<Process>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(proc)? {
        let name = entry?.file_name();
        let pid = name.to_str().and_then(|n| n.parse::<i32>().ok());
        found.extend(pid.and_then(|pid| read(proc, pid)));
    }
    Ok(found)
}

/// Where it works: with ` (deleted)` behind it, if that is gone.
pub fn directory(proc: &Path, pid: i32) -> io::Result<PathBuf> {
    fs::read_link(proc.join(pid.to_string()).join("cwd"))
}

/// Whether it sees the same mounts as we do.
pub fn shares_mounts(proc: &Path, pid: i32) -> io::Result<bool> {
    let of = |who: &str| fs::read_link(proc.join(who).join("ns/mnt"));
    Ok(of(&pid.to_string())? == of("self")?)
}

/// Kills this very process; false if it is gone, even if another has its pid by now.
pub fn kill(process: &Process) -> io::Result<bool> {
    let Some(pid) = Pid::from_raw(process.pid) else { return Ok(false) };
    let handle = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return Ok(false),
        opened => opened?,
    };
    // Now that we hold it, nobody else can get its pid.
    let is_same = read(Path::new("/proc"), process.pid).is_some_and(|now| now.started == process.started);
    if !is_same {
        return Ok(false);
    }
    match pidfd_send_signal(handle, Signal::KILL) {
        Err(rustix::io::Errno::SRCH) => Ok(false),
        sent => sent.map(|()| true).map_err(io::Error::from),
    }
}

fn read(proc: &Path, pid: i32) -> Option<Process> {
    let dir = proc.join(pid.to_string());
    let stat = fs::read_to_string(dir.join("stat")).ok()?;
    // The command may itself hold spaces and brackets. Behind it, number 3 of proc(5) is at index 0.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split_ascii_whitespace().collect();
    let words = fs::read(dir.join("cmdline")).ok()?;
    let words = words.strip_suffix(b"\0").unwrap_or(&words);
    Some(Process {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        args: words.split(|b| *b == 0).map(|w| String::from_utf8_lossy(w).into_owned()).collect(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_found_told_apart_and_killed_once() {
        let proc = Path::new("/proc");
        let mut child = Command::new("sleep").arg("600").current_dir("/").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let found = list(proc).unwrap().into_iter().find(|p| p.pid == pid).unwrap();
        assert_eq!(found.parent, i32::try_from(std::process::id()).unwrap());
        assert_eq!(directory(proc, pid).unwrap(), Path::new("/"));
        assert!(shares_mounts(proc, pid).unwrap());
        let other = Process { started: found.started + 1, ..found.clone() };
        assert!(!kill(&other).unwrap(), "another with the same pid is not meant");
        assert!(kill(&found).unwrap());
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        assert!(!kill(&found).unwrap());
    }
}
