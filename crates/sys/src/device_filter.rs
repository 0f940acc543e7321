//! The program that the kernel asks which devices the processes of a cgroup may use (version 2 of cgroups).

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

const LOAD: libc::c_long = 5;
const ATTACH: libc::c_long = 8;
const OF_CGROUP_DEVICES: u32 = 15;
const TO_CGROUP_DEVICES: u32 = 6;
/// Beside those of others, systemd's for instance: each of them has to allow.
const ALLOW_MULTI: u32 = 2;

/// The part of the kernel's union that loading reads; the rest is zero.
#[repr(C)]
#[derive(Default)]
struct Load {
    kind: u32,
    count: u32,
    steps: u64,
    license: u64,
    rest: [u64; 8],
}

#[repr(C)]
#[derive(Default)]
struct Attach {
    target: u32,
    program: u32,
    kind: u32,
    flags: u32,
    rest: [u64; 8],
}

/// From now on `program`, eight bytes an instruction, decides for this cgroup and those below it, as long as it is there.
pub fn attach(cgroup: impl AsFd, program: &[u64]) -> io::Result<()> {
    let load = Load {
        kind: OF_CGROUP_DEVICES,
        count: u32::try_from(program.len()).map_err(io::Error::other)?,
        steps: program.as_ptr() as u64,
        // It calls nothing of the kernel's, so it needs no license of a certain kind.
        license: c"Apache".as_ptr() as u64,
        ..Load::default()
    };
    let loaded = call(LOAD, &load)?;
    let fd = i32::try_from(loaded).map_err(io::Error::other)?;
    // SAFETY: the kernel has just given us this descriptor, and nobody else knows it.
    #[allow(unsafe_code)]
    let loaded = unsafe { OwnedFd::from_raw_fd(fd) };
    // BPF descriptors are close-on-exec from birth.
    let attach = Attach {
        target: cgroup.as_fd().as_raw_fd().cast_unsigned(),
        program: loaded.as_raw_fd().cast_unsigned(),
        kind: TO_CGROUP_DEVICES,
        flags: ALLOW_MULTI,
        ..Attach::default()
    };
    call(ATTACH, &attach).map(drop)
}

fn call<T>(what: libc::c_long, attributes: &T) -> io::Result<libc::c_long> {
    // SAFETY: the structure is the kernel's up to its zeroes, and what it points to lives until the call returns.
    #[allow(unsafe_code)]
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, what, std::ptr::from_ref(attributes), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;

    /// Beside the old hierarchies a machine mostly has the new one, too.
    fn new_hierarchy() -> Option<PathBuf> {
        let mounts = crate::mountinfo::read().ok()?;
        mounts.into_iter().find(|mount| mount.fs_type == "cgroup2").map(|mount| mount.mount_point)
    }

    #[test]
    fn a_cgroup_can_use_what_the_program_allows_and_nothing_else() {
        let Some(root) = new_hierarchy() else { return };
        let dir = root.join(format!("longshore-test-devices-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let can_open = |device: &str| {
            let script = format!("echo 0 > {}/cgroup.procs; : < {device}", dir.display());
            Command::new("/bin/sh").arg("-c").arg(script).status().unwrap().success()
        };
        let filter = |program: &[u64]| {
            attach(crate::fd::open_dir(&dir).unwrap(), program).unwrap();
            [can_open("/dev/null"), can_open("/dev/zero")]
        };
        // r0 = 1; exit. Then beside it, as both have to allow: r0 = (minor == 3); exit.
        let all = [0x0000_0001_0000_00b7, 0x95];
        let before = filter(&all);
        let null_only = [
            0x0000_0000_0008_1261,
            0x0000_0000_0000_00b7,
            0x0000_0003_0001_0255,
            0x0000_0001_0000_00b7,
            0x95,
        ];
        let after = filter(&null_only);
        fs::remove_dir(&dir).unwrap();
        assert_eq!((before, after), ([true, true], [true, false]));
    }
}
