//! System calls, by number and register. Every one returns what the kernel returned: below zero, an errno.
use core::arch::asm;

pub type Fd = i32;
pub type Result<T> = core::result::Result<T, i32>;

#[cfg(target_arch = "x86_64")]
mod numbers {
    pub const READ: usize = 0;
    pub const WRITE: usize = 1;
    pub const CLOSE: usize = 3;
    pub const MMAP: usize = 9;
    pub const MUNMAP: usize = 11;
    pub const RT_SIGACTION: usize = 13;
    pub const RT_SIGPROCMASK: usize = 14;
    pub const IOCTL: usize = 16;
    pub const PREAD64: usize = 17;
    pub const MADVISE: usize = 28;
    pub const GETPID: usize = 39;
    pub const SOCKET: usize = 41;
    pub const CONNECT: usize = 42;
    pub const SENDTO: usize = 44;
    pub const SENDMSG: usize = 46;
    pub const RECVMSG: usize = 47;
    pub const SOCKETPAIR: usize = 53;
    pub const GETSOCKOPT: usize = 55;
    pub const EXECVE: usize = 59;
    pub const WAIT4: usize = 61;
    pub const FCNTL: usize = 72;
    pub const GETCWD: usize = 79;
    pub const CHDIR: usize = 80;
    pub const FCHDIR: usize = 81;
    pub const FCHOWN: usize = 93;
    pub const CHROOT: usize = 161;
    pub const UMASK: usize = 95;
    pub const SETSID: usize = 112;
    pub const SETGROUPS: usize = 116;
    pub const SETRESUID: usize = 117;
    pub const SETRESGID: usize = 119;
    pub const CAPSET: usize = 126;
    pub const RT_SIGTIMEDWAIT: usize = 128;
    pub const PIVOT_ROOT: usize = 155;
    pub const PRCTL: usize = 157;
    pub const MOUNT: usize = 165;
    pub const UMOUNT2: usize = 166;
    pub const SETHOSTNAME: usize = 170;
    pub const CLOCK_GETTIME: usize = 228;
    pub const EXIT_GROUP: usize = 231;
    pub const WAITID: usize = 247;
    pub const OPENAT: usize = 257;
    pub const MKDIRAT: usize = 258;
    pub const PPOLL: usize = 271;
    pub const UNSHARE: usize = 272;
    pub const ACCEPT4: usize = 288;
    pub const DUP3: usize = 292;
    pub const PIPE2: usize = 293;
    pub const PRLIMIT64: usize = 302;
    pub const SETNS: usize = 308;
    pub const SECCOMP: usize = 317;
    pub const STATX: usize = 332;
    pub const PIDFD_SEND_SIGNAL: usize = 424;
    pub const PIDFD_OPEN: usize = 434;
    pub const OPEN_TREE: usize = 428;
    pub const MOVE_MOUNT: usize = 429;
    pub const FSOPEN: usize = 430;
    pub const FSCONFIG: usize = 431;
    pub const FSMOUNT: usize = 432;
    pub const CLONE3: usize = 435;
    pub const CLOSE_RANGE: usize = 436;
    pub const OPENAT2: usize = 437;
    pub const MOUNT_SETATTR: usize = 442;
}

#[cfg(target_arch = "aarch64")]
mod numbers {
    pub const READ: usize = 63;
    pub const WRITE: usize = 64;
    pub const CLOSE: usize = 57;
    pub const MMAP: usize = 222;
    pub const MUNMAP: usize = 215;
    pub const RT_SIGACTION: usize = 134;
    pub const RT_SIGPROCMASK: usize = 135;
    pub const IOCTL: usize = 29;
    pub const PREAD64: usize = 67;
    pub const MADVISE: usize = 233;
    pub const GETPID: usize = 172;
    pub const SOCKET: usize = 198;
    pub const CONNECT: usize = 203;
    pub const SENDTO: usize = 206;
    pub const SENDMSG: usize = 211;
    pub const RECVMSG: usize = 212;
    pub const SOCKETPAIR: usize = 199;
    pub const GETSOCKOPT: usize = 209;
    pub const EXECVE: usize = 221;
    pub const WAIT4: usize = 260;
    pub const FCNTL: usize = 25;
    pub const GETCWD: usize = 17;
    pub const CHDIR: usize = 49;
    pub const FCHDIR: usize = 50;
    pub const FCHOWN: usize = 55;
    pub const CHROOT: usize = 51;
    pub const UMASK: usize = 166;
    pub const SETSID: usize = 157;
    pub const SETGROUPS: usize = 159;
    pub const SETRESUID: usize = 147;
    pub const SETRESGID: usize = 149;
    pub const CAPSET: usize = 91;
    pub const RT_SIGTIMEDWAIT: usize = 137;
    pub const PIVOT_ROOT: usize = 41;
    pub const PRCTL: usize = 167;
    pub const MOUNT: usize = 40;
    pub const UMOUNT2: usize = 39;
    pub const SETHOSTNAME: usize = 161;
    pub const CLOCK_GETTIME: usize = 113;
    pub const EXIT_GROUP: usize = 94;
    pub const WAITID: usize = 95;
    pub const OPENAT: usize = 56;
    pub const MKDIRAT: usize = 34;
    pub const PPOLL: usize = 73;
    pub const UNSHARE: usize = 97;
    pub const ACCEPT4: usize = 242;
    pub const DUP3: usize = 24;
    pub const PIPE2: usize = 59;
    pub const PRLIMIT64: usize = 261;
    pub const SETNS: usize = 268;
    pub const SECCOMP: usize = 277;
    pub const STATX: usize = 291;
    pub const PIDFD_SEND_SIGNAL: usize = 424;
    pub const PIDFD_OPEN: usize = 434;
    pub const OPEN_TREE: usize = 428;
    pub const MOVE_MOUNT: usize = 429;
    pub const FSOPEN: usize = 430;
    pub const FSCONFIG: usize = 431;
    pub const FSMOUNT: usize = 432;
    pub const CLONE3: usize = 435;
    pub const CLOSE_RANGE: usize = 436;
    pub const OPENAT2: usize = 437;
    pub const MOUNT_SETATTR: usize = 442;
}
pub use numbers::*;

/// # Safety
/// The arguments must be what the call expects; pointers among them must live until it returns.
#[cfg(target_arch = "x86_64")]
pub unsafe fn raw(n: usize, a: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: the kernel clobbers rcx and r11 and nothing else; memory is what the caller vouches for.
    unsafe {
        asm!("syscall", inlateout("rax") n as isize => ret, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    ret
}

/// # Safety
/// The arguments must be what the call expects; pointers among them must live until it returns.
#[cfg(target_arch = "aarch64")]
pub unsafe fn raw(n: usize, a: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: the kernel clobbers x0 and nothing else; memory is what the caller vouches for.
    unsafe {
        asm!("svc 0", in("x8") n, inlateout("x0") a[0] as isize => ret, in("x1") a[1], in("x2") a[2],
            in("x3") a[3], in("x4") a[4], in("x5") a[5], options(nostack));
    }
    ret
}

/// A call whose pointers, if any, come from references that live for its duration. An errno is the error.
macro_rules! call {
    ($n:expr $(, $a:expr)* $(,)?) => {{
        let given = [$($a as usize),*];
        let mut all = [0usize; 6];
        all[..given.len()].copy_from_slice(&given);
        // SAFETY: every caller passes numbers, or pointers to values on its stack or in static memory.
        let ret = unsafe { $crate::kernel::raw($n, all) };
        if ret < 0 { Err(-ret as i32) } else { Ok(ret as usize) }
    }};
}
pub(crate) use call;

pub const EINTR: i32 = 4;
pub const ECHILD: i32 = 10;
pub const EAGAIN: i32 = 11;
pub const ENOENT: i32 = 2;
pub const EACCES: i32 = 13;
pub const EPERM: i32 = 1;
pub const EEXIST: i32 = 17;
pub const ENOTDIR: i32 = 20;
pub const EINVAL: i32 = 22;
pub const ENOSPC: i32 = 28;
pub const AT_FDCWD: Fd = -100;
pub const O_CLOEXEC: usize = 0o2000000;
pub const O_PATH: u64 = 0o10000000;
#[cfg(target_arch = "x86_64")]
pub const O_NOFOLLOW: u64 = 0o400000;
#[cfg(target_arch = "aarch64")]
pub const O_NOFOLLOW: u64 = 0o100000;
pub const O_CREAT: u64 = 0o100;
pub const O_EXCL: u64 = 0o200;
pub const O_WRONLY: u64 = 1;
pub const O_RDWR: u64 = 2;
pub const O_NOCTTY: u64 = 0o400;
pub const O_NONBLOCK: usize = 0o4000;

pub fn close(fd: Fd) {
    if fd >= 0 {
        let _ = call!(CLOSE, fd);
    }
}

pub fn read(fd: Fd, into: &mut [u8]) -> Result<usize> {
    call!(READ, fd, into.as_mut_ptr(), into.len())
}

pub fn write(fd: Fd, from: &[u8]) -> Result<usize> {
    call!(WRITE, fd, from.as_ptr(), from.len())
}

pub fn exit(code: i32) -> ! {
    loop {
        let _ = call!(EXIT_GROUP, code);
    }
}

#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

pub const IN_ROOT: u64 = 0x10 | 0x02;

/// Opens `path`, a string that ends with NUL, as if `root` were the root.
pub fn open_in(root: Fd, path: &[u8], flags: u64, mode: u64) -> Result<Fd> {
    let how = OpenHow { flags: flags | O_CLOEXEC as u64, mode, resolve: IN_ROOT };
    loop {
        // A rename somewhere on the machine may make the kernel ask for another try.
        match call!(OPENAT2, root, path.as_ptr(), &raw const how, size_of::<OpenHow>()) {
            Err(EAGAIN) => {}
            other => return other.map(|fd| fd as Fd),
        }
    }
}

pub fn fcntl(fd: Fd, command: usize, argument: usize) -> Result<usize> {
    call!(FCNTL, fd, command, argument)
}

pub fn set_nonblocking(fd: Fd) {
    let _ = fcntl(fd, 4, O_NONBLOCK);
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct PollFd {
    pub fd: Fd,
    pub events: i16,
    pub revents: i16,
}
pub const POLLIN: i16 = 1;

#[repr(C)]
#[derive(Default)]
pub struct Time {
    pub seconds: i64,
    pub nanos: i64,
}

pub fn now() -> Time {
    let mut time = Time::default();
    let _ = call!(CLOCK_GETTIME, 0, &raw mut time);
    time
}

#[repr(C)]
struct IoVec {
    base: *const u8,
    len: usize,
}

#[repr(C)]
struct MsgHdr {
    name: usize,
    name_len: u32,
    iov: *const IoVec,
    iov_len: usize,
    control: *const u8,
    control_len: usize,
    flags: i32,
}

#[repr(C, align(8))]
struct Control<const N: usize> {
    len: usize,
    level: i32,
    kind: i32,
    fds: [Fd; N],
}

/// Sends one message, with one descriptor if there is one.
pub fn send(socket: Fd, bytes: &[u8], fd: Option<Fd>) -> Result<usize> {
    let iov = IoVec { base: bytes.as_ptr(), len: bytes.len() };
    let control = Control::<2> { len: 20, level: 1, kind: 1, fds: [fd.unwrap_or(0), 0] };
    let (pointer, len) = if fd.is_some() { ((&raw const control).cast(), 24) } else { (core::ptr::null(), 0) };
    let head = MsgHdr { name: 0, name_len: 0, iov: &iov, iov_len: 1, control: pointer, control_len: len, flags: 0 };
    // Not to be killed by a reader that is gone.
    call!(SENDMSG, socket, &raw const head, 0x4000)
}

/// One message, and the descriptors it brought. What was cut short is an error, and its descriptors are closed.
pub fn receive(socket: Fd, bytes: &mut [u8], fds: &mut [Fd; 128]) -> Result<(usize, usize)> {
    let iov = IoVec { base: bytes.as_mut_ptr(), len: bytes.len() };
    let mut control = Control::<128> { len: 0, level: 0, kind: 0, fds: [-1; 128] };
    let mut head = MsgHdr {
        name: 0,
        name_len: 0,
        iov: &iov,
        iov_len: 1,
        control: (&raw mut control).cast(),
        control_len: size_of::<Control<128>>(),
        flags: 0,
    };
    // CMSG_CLOEXEC
    let n = call!(RECVMSG, socket, &raw mut head, 0x4000_0000)?;
    let mut count = 0;
    if head.control_len >= 16 && control.level == 1 && control.kind == 1 {
        count = (control.len.saturating_sub(16) / 4).min(128);
        fds[..count].copy_from_slice(&control.fds[..count]);
    }
    if head.flags & (0x20 | 0x8) != 0 {
        fds[..count].iter().for_each(|fd| close(*fd));
        return Err(EINVAL);
    }
    Ok((n, count))
}

/// A pair of sockets that keep messages apart.
pub fn pair() -> Result<(Fd, Fd)> {
    let mut fds = [0 as Fd; 2];
    call!(SOCKETPAIR, 1, 5 | O_CLOEXEC, 0, fds.as_mut_ptr())?;
    Ok((fds[0], fds[1]))
}

pub fn pipe() -> Result<(Fd, Fd)> {
    let mut fds = [0 as Fd; 2];
    call!(PIPE2, fds.as_mut_ptr(), O_CLOEXEC)?;
    Ok((fds[0], fds[1]))
}

#[repr(C)]
#[derive(Default)]
pub struct CloneArgs {
    pub flags: u64,
    pub pidfd: u64,
    pub child_tid: u64,
    pub parent_tid: u64,
    pub exit_signal: u64,
    pub stack: u64,
    pub stack_size: u64,
    pub tls: u64,
    pub set_tid: u64,
    pub set_tid_size: u64,
    pub cgroup: u64,
}

/// A copy of this process; zero in the copy. The descriptor is the copy's pidfd.
pub fn clone(flags: u64, cgroup: Option<Fd>) -> Result<(i32, Fd)> {
    const CHILD_SIGNAL: u64 = 17;
    clone_with(flags, CHILD_SIGNAL, cgroup)
}

/// As [`clone`], but the child of our own parent.
pub fn clone_sibling(flags: u64, cgroup: Option<Fd>) -> Result<(i32, Fd)> {
    const PARENT: u64 = 0x8000;
    clone_with(flags | PARENT, 0, cgroup)
}

fn clone_with(flags: u64, exit_signal: u64, cgroup: Option<Fd>) -> Result<(i32, Fd)> {
    const PIDFD: u64 = 0x1000;
    const INTO_CGROUP: u64 = 0x2_0000_0000;
    let mut pidfd: Fd = -1;
    let args = CloneArgs {
        flags: flags | PIDFD | if cgroup.is_some() { INTO_CGROUP } else { 0 },
        pidfd: (&raw mut pidfd) as u64,
        exit_signal,
        cgroup: cgroup.unwrap_or(0) as u64,
        ..CloneArgs::default()
    };
    let pid = call!(CLONE3, &raw const args, size_of::<CloneArgs>())?;
    Ok((pid as i32, pidfd))
}

#[repr(C)]
pub struct MountAttr {
    pub set: u64,
    pub clear: u64,
    pub propagation: u64,
    pub userns: u64,
}
pub const EMPTY_PATH: usize = 0x1000;
pub const RECURSIVE: usize = 0x8000;
const NUL: &[u8] = b"\0";

pub fn mount_setattr(mount: Fd, attr: &MountAttr, flags: usize) -> Result<usize> {
    call!(MOUNT_SETATTR, mount, NUL.as_ptr(), flags | EMPTY_PATH, core::ptr::from_ref(attr), size_of::<MountAttr>())
}

pub fn move_mount(mount: Fd, target: Fd) -> Result<usize> {
    call!(MOVE_MOUNT, mount, NUL.as_ptr(), target, NUL.as_ptr(), 0x4 | 0x40)
}

pub fn clone_tree(of: Fd, recursive: bool) -> Result<Fd> {
    let flags = 1 | O_CLOEXEC | EMPTY_PATH | if recursive { RECURSIVE } else { 0 };
    call!(OPEN_TREE, of, NUL.as_ptr(), flags).map(|fd| fd as Fd)
}

/// A new file system, as a mount that is nowhere yet. All strings end with NUL; `settings` are keys and values.
pub fn fsmount(kind: &[u8], settings: &[u8], attributes: usize) -> Result<Fd> {
    let context = call!(FSOPEN, kind.as_ptr(), 1)? as Fd;
    let mut rest = settings;
    while let (Some(key), after) = string(rest) {
        let (value, after) = string(after);
        let value = value.ok_or(EINVAL)?;
        rest = after;
        // A key without a value is a flag.
        if value.len() == 1 {
            call!(FSCONFIG, context, 0, key.as_ptr(), 0, 0)?;
        } else {
            call!(FSCONFIG, context, 1, key.as_ptr(), value.as_ptr(), 0)?;
        }
    }
    call!(FSCONFIG, context, 6, 0, 0, 0)?;
    let mount = call!(FSMOUNT, context, 1, attributes);
    close(context);
    mount.map(|fd| fd as Fd)
}

/// The first string of `bytes`, its NUL included, and what follows.
pub fn string(bytes: &[u8]) -> (Option<&[u8]>, &[u8]) {
    match bytes.iter().position(|b| *b == 0) {
        Some(end) => (Some(&bytes[..=end]), &bytes[end + 1..]),
        None => (None, bytes),
    }
}

/// Writable memory of its own pages.
pub fn map(len: usize) -> Result<*mut u8> {
    call!(MMAP, 0, len, 3, 0x22, usize::MAX, 0).map(|at| at as *mut u8)
}

/// A file, to be read.
pub fn map_file(fd: Fd, len: usize) -> Result<*const u8> {
    call!(MMAP, 0, len, 1, 2, fd, 0).map(|at| at as *const u8)
}

pub fn unmap(at: *const u8, len: usize) {
    let _ = call!(MUNMAP, at, len);
}
