//! What runs between clone and exec: the ops of a recipe, in order. Any refusal ends the process after its errno and
//! the number of the op were told.

use crate::kernel::*;
use crate::wire::*;

const PATH_MAX: usize = 4096;
/// The directory of the keeper's empty root where roots are attached before they become the root.
pub const STAGE: &[u8] = b"/stage\0";

pub struct Child<'a> {
    pub recipe: &'a [u8],
    pub slots: &'a [Fd],
    /// To the keeper. Closed by exec, which is how it learns that the program runs.
    pub sync: Fd,
    pub stdio: [Fd; 3],
    pub root: Fd,
    pub proc: Fd,
}

impl Child<'_> {
    pub fn run(&mut self) -> ! {
        // Nobody inside the namespaces we enter may look into this process.
        let _ = call!(PRCTL, 4, 0, 0, 0, 0);
        let _ = call!(SETSID);
        let mut at = RECIPE_HEAD;
        let mut number = 0;
        let mut failed = EINVAL;
        while let Some((code, argument, payload, next)) = op(self.recipe, at) {
            match self.step(code, argument, payload) {
                Ok(()) => {}
                Err(errno) => {
                    failed = errno;
                    break;
                }
            }
            at = next;
            number += 1;
        }
        let _ = self.tell(CHILD_FAILED, number, failed as u32, None);
        exit(255)
    }

    fn tell(&self, kind: u32, a: u32, b: u32, fd: Option<Fd>) -> Result<usize> {
        let mut message = [0; 12];
        message[..4].copy_from_slice(&kind.to_le_bytes());
        message[4..8].copy_from_slice(&a.to_le_bytes());
        message[8..].copy_from_slice(&b.to_le_bytes());
        send(self.sync, &message, fd)
    }

    fn slot(&self, argument: u64) -> Result<Fd> {
        self.slots.get(argument as u32 as usize).copied().ok_or(EINVAL)
    }

    fn step(&mut self, code: u32, argument: u64, payload: &[u8]) -> Result<()> {
        let high = (argument >> 32) as u32;
        match code {
            OP_SETNS => call!(SETNS, self.slot(argument)?, high).map(drop),
            OP_JOIN_CGROUP => write(self.slot(argument)?, b"0").map(drop),
            OP_ROOT => {
                self.root = self.slot(argument)?;
                on_stage(self.root)
            }
            OP_ROOT_HERE => {
                self.root = call!(OPENAT, AT_FDCWD, b"/\0".as_ptr(), O_PATH | O_CLOEXEC as u64, 0)? as Fd;
                Ok(())
            }
            OP_ATTACH => {
                let target = self.target(payload, high)?;
                move_mount(self.slot(argument)?, target).map(drop)
            }
            OP_FSMOUNT => self.fsmount(argument as usize, payload),
            OP_MASK => self.mask(payload),
            OP_READONLY => self.readonly(payload),
            OP_ROOT_READONLY => {
                let attr = MountAttr { set: 1, clear: 0, propagation: 0, userns: 0 };
                mount_setattr(self.root, &attr, 0).map(drop)
            }
            OP_PIVOT => {
                let here = b".\0".as_ptr();
                call!(FCHDIR, self.root)?;
                call!(PIVOT_ROOT, here, here)?;
                call!(UMOUNT2, here, 2)?;
                call!(CHDIR, b"/\0".as_ptr()).map(drop)
            }
            OP_HOSTNAME => call!(SETHOSTNAME, payload.as_ptr(), payload.len()).map(drop),
            OP_SYSCTL => self.sysctl(payload),
            OP_HOLD => {
                self.tell(CHILD_HELD, argument as u32, 0, None)?;
                self.wait()
            }
            OP_MKDIR => {
                close(self.target(payload, TARGET_DIR)?);
                Ok(())
            }
            OP_CHDIR => self.chdir(payload),
            OP_USER => self.user(argument as u32, high, payload),
            OP_BOUNDING => bounding(word(payload, 0)?),
            OP_CAPABILITIES => capabilities(payload),
            OP_NO_NEW_PRIVILEGES => call!(PRCTL, 38, 1, 0, 0, 0).map(drop),
            OP_SECCOMP => seccomp(payload, argument),
            OP_RLIMIT => call!(PRLIMIT64, 0, argument, payload.as_ptr(), 0).map(drop),
            OP_UMASK => call!(UMASK, argument).map(drop),
            OP_OOM_SCORE => self.oom_score(argument as i64),
            OP_TERMINAL => self.terminal(argument),
            OP_EXEC => self.exec(payload),
            OP_REAP => reap(),
            OP_DIAL => self.dial(argument as u16),
            OP_EXIT => exit(argument as i32),
            OP_LOOPBACK => loopback(),
            OP_VISIBLE => on_stage(self.slot(argument)?),
            _ => Err(EINVAL),
        }
    }

    /// Until the daemon lets us go on. Without a keeper there is nobody to go on for.
    fn wait(&self) -> Result<()> {
        let mut byte = [0];
        loop {
            match read(self.sync, &mut byte) {
                Err(EINTR) => {}
                Ok(1) => return Ok(()),
                _ => exit(255),
            }
        }
    }

    /// Where something is to be attached. What is missing of the path is made, inside the root: every step is resolved
    /// by the kernel as if the root were the root, so no link leads out of it.
    fn target(&self, path: &[u8], kind: u32) -> Result<Fd> {
        match open_in(self.root, path, O_PATH, 0) {
            Err(ENOENT) => {}
            other => return other,
        }
        let mut prefix = [0; PATH_MAX + 1];
        if path.len() > PATH_MAX || path.last() != Some(&0) {
            return Err(EINVAL);
        }
        prefix[..path.len()].copy_from_slice(path);
        let end = path.len() - 1;
        let mut parent = open_in(self.root, b"/\0", O_PATH, 0)?;
        let mut start = 0;
        loop {
            while start < end && path[start] == b'/' {
                start += 1;
            }
            let mut stop = start;
            while stop < end && path[stop] != b'/' {
                stop += 1;
            }
            if start == stop {
                return Ok(parent);
            }
            prefix[stop] = 0;
            let is_last = path[stop..end].iter().all(|b| *b == b'/');
            let name = prefix[start..].as_ptr();
            let found = match open_in(self.root, &prefix, O_PATH, 0) {
                Err(ENOENT) if is_last && kind == TARGET_FILE => {
                    let flags = O_CREAT | O_EXCL | O_WRONLY | O_NOFOLLOW | O_CLOEXEC as u64;
                    close(call!(OPENAT, parent, name, flags, 0o644)? as Fd);
                    open_in(self.root, &prefix, O_PATH, 0)
                }
                Err(ENOENT) => {
                    match call!(MKDIRAT, parent, name, 0o755) {
                        Ok(_) | Err(EEXIST) => {}
                        Err(errno) => return Err(errno),
                    }
                    open_in(self.root, &prefix, O_PATH, 0)
                }
                other => other,
            };
            close(parent);
            parent = found?;
            prefix[stop] = path[stop];
            start = stop;
        }
    }

    fn fsmount(&self, attributes: usize, payload: &[u8]) -> Result<()> {
        let (kind, rest) = string(payload);
        let (target, settings) = string(rest);
        let (kind, target) = (kind.ok_or(EINVAL)?, target.ok_or(EINVAL)?);
        let mount = fsmount(kind, settings, attributes)?;
        let result = self.target(target, TARGET_DIR).and_then(|at| {
            let result = move_mount(mount, at);
            close(at);
            result
        });
        close(mount);
        result.map(drop)
    }

    /// Hides what is at the path: a directory behind an empty one, anything else behind our own /dev/null.
    fn mask(&self, path: &[u8]) -> Result<()> {
        let target = match open_in(self.root, path, O_PATH, 0) {
            Err(ENOENT | ENOTDIR) => return Ok(()),
            other => other?,
        };
        let cover = if kind(target)?.0 & 0o170000 == 0o040000 {
            // rdonly, nosuid, nodev, noexec
            fsmount(b"tmpfs\0", b"size\x000\0nr_inodes\x002\0mode\x00755\0", 0xf)?
        } else {
            let null = open_in(self.root, b"/dev/null\0", O_PATH | O_NOFOLLOW, 0)?;
            // A link or a file of the image in its place would be shown instead of hiding anything.
            if kind(null)? != (0o020000 | (kind(null)?.0 & 0o7777), 1, 3) {
                return Err(EINVAL);
            }
            let cover = clone_tree(null, false)?;
            close(null);
            cover
        };
        let result = move_mount(cover, target);
        close(cover);
        close(target);
        result.map(drop)
    }

    fn readonly(&self, path: &[u8]) -> Result<()> {
        let target = match open_in(self.root, path, O_PATH, 0) {
            Err(ENOENT | ENOTDIR) => return Ok(()),
            other => other?,
        };
        let cover = clone_tree(target, true)?;
        // rdonly, nosuid, nodev, noexec
        let attr = MountAttr { set: 0xf, clear: 0, propagation: 0, userns: 0 };
        mount_setattr(cover, &attr, RECURSIVE)?;
        let result = move_mount(cover, target);
        close(cover);
        close(target);
        result.map(drop)
    }

    /// A procfs that nobody else has touched, of the PID namespace we are in.
    fn proc(&mut self) -> Result<Fd> {
        if self.proc < 0 {
            self.proc = fsmount(b"proc\0", b"", 0xe)?;
        }
        Ok(self.proc)
    }

    fn sysctl(&mut self, payload: &[u8]) -> Result<()> {
        let (path, value) = string(payload);
        let file = open_in(self.proc()?, path.ok_or(EINVAL)?, O_WRONLY, 0)?;
        let result = write(file, value);
        close(file);
        result.map(drop)
    }

    fn oom_score(&mut self, value: i64) -> Result<()> {
        let mut text = [0u8; 8];
        let (mut rest, mut start) = (value.unsigned_abs(), text.len());
        loop {
            start -= 1;
            text[start] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 || start == 1 {
                break;
            }
        }
        if value < 0 {
            start -= 1;
            text[start] = b'-';
        }
        let file = open_in(self.proc()?, b"self/oom_score_adj\0", O_WRONLY, 0)?;
        let result = write(file, &text[start..]);
        close(file);
        match result {
            Err(EACCES | EPERM) => Ok(()),
            other => other.map(drop),
        }
    }

    /// A working directory outside of the root is refused: a descriptor left open could have led there.
    fn chdir(&self, path: &[u8]) -> Result<()> {
        call!(CHDIR, path.as_ptr())?;
        let mut seen = [0u8; PATH_MAX + 1];
        call!(GETCWD, seen.as_mut_ptr(), seen.len())?;
        if seen[0] == b'/' { Ok(()) } else { Err(EPERM) }
    }

    fn user(&self, user: u32, group: u32, groups: &[u8]) -> Result<()> {
        // A program may open its own output by name.
        for fd in self.stdio {
            let is_ours = match kind(fd) {
                Ok((mode, major, _)) => mode & 0o170000 == 0o010000 || (mode & 0o170000 == 0o020000 && (136..144).contains(&major)),
                Err(_) => false,
            };
            if is_ours {
                let _ = call!(FCHOWN, fd, user, u32::MAX);
            }
        }
        call!(PRCTL, 8, 1, 0, 0, 0)?;
        call!(SETGROUPS, groups.len() / 4, groups.as_ptr())?;
        call!(SETRESGID, group, group, group)?;
        call!(SETRESUID, user, user, user).map(drop)
    }

    fn terminal(&mut self, size: u64) -> Result<()> {
        let master = open_in(self.root, b"dev/pts/ptmx\0", O_RDWR | O_NOCTTY, 0)?;
        // Whatever else the image or the container put there is not a terminal (CVE-2025-52565).
        if !matches!(kind(master)?, (mode, 5, 2) if mode & 0o170000 == 0o020000) {
            return Err(EINVAL);
        }
        let unlocked = 0i32;
        call!(IOCTL, master, 0x4004_5431, &raw const unlocked)?;
        let slave = call!(IOCTL, master, 0x5441, O_RDWR | O_NOCTTY | O_CLOEXEC as u64)? as Fd;
        if size != 0 {
            let window = [(size >> 16) as u16, size as u16, 0, 0];
            call!(IOCTL, master, 0x5414, window.as_ptr())?;
        }
        call!(IOCTL, slave, 0x540e, 0)?;
        self.tell(CHILD_TERMINAL, 0, 0, Some(master))?;
        close(master);
        self.stdio = [slave; 3];
        Ok(())
    }

    fn exec(&self, payload: &[u8]) -> Result<()> {
        let count = |at: usize| payload.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize);
        let (Some(paths), Some(arguments), Some(variables)) = (count(0), count(4), count(8)) else { return Err(EINVAL) };
        let total = arguments.checked_add(variables).filter(|n| *n < RECIPE_MAX).ok_or(EINVAL)?;
        let table = map((total + 2) * size_of::<usize>())?.cast::<usize>();
        let (mut rest, candidates) = (&payload[12..], &payload[12..]);
        for _ in 0..paths {
            rest = string(rest).1;
        }
        for i in 0..total {
            let (text, after) = string(rest);
            // The arguments end with a null pointer, and so does the environment; fresh memory is null.
            let place = if i < arguments { i } else { i + 1 };
            // SAFETY: the mapping has total + 2 places.
            unsafe { table.add(place).write(text.ok_or(EINVAL)?.as_ptr() as usize) };
            rest = after;
        }
        let null = if self.stdio.contains(&-1) { open_in(self.root, b"/dev/null\0", O_RDWR, 0)? } else { -1 };
        // Copies above the three first: a source may be one of them.
        let mut copies = [-1; 3];
        for (copy, fd) in copies.iter_mut().zip(self.stdio) {
            *copy = fcntl(if fd < 0 { null } else { fd }, 1030, 3)? as Fd;
        }
        for (to, from) in copies.iter().enumerate() {
            call!(DUP3, *from, to, 0)?;
        }
        // Whatever is open, by whose mistake ever, is not for the program.
        call!(CLOSE_RANGE, 3, u32::MAX, 4)?;
        let mut worst = ENOENT;
        let mut rest = candidates;
        for _ in 0..paths {
            let (path, after) = string(rest);
            rest = after;
            // SAFETY: within the mapping.
            let environment = unsafe { table.add(arguments + 1) };
            match call!(EXECVE, path.ok_or(EINVAL)?.as_ptr(), table, environment) {
                Err(ENOENT | ENOTDIR) => {}
                // As a shell does: what may not be run is remembered, the search goes on.
                Err(EACCES) => worst = EACCES,
                Err(errno) => return Err(errno),
                Ok(_) => {}
            }
        }
        Err(worst)
    }

    fn dial(&self, port: u16) -> Result<()> {
        let [high, low] = port.to_be_bytes();
        let mut four = [0u8; 16];
        four[0] = 2;
        four[2..8].copy_from_slice(&[high, low, 127, 0, 0, 1]);
        let mut six = [0u8; 28];
        six[0] = 10;
        (six[2], six[3], six[23]) = (high, low, 1);
        let first = connect(2, &four);
        let socket = first.or_else(|errno| connect(10, &six).map_err(|_| errno))?;
        self.tell(CHILD_HELD, 0, 0, Some(socket))?;
        exit(0)
    }
}

/// Attaches a mount where roots are attached.
fn on_stage(mount: Fd) -> Result<()> {
    // By name: a descriptor of the keeper's would lie in its mount namespace, not in ours.
    let stage = call!(OPENAT, AT_FDCWD, STAGE.as_ptr(), O_PATH | O_CLOEXEC as u64, 0)? as Fd;
    let result = move_mount(mount, stage);
    close(stage);
    result.map(drop)
}

fn connect(family: usize, address: &[u8]) -> Result<Fd> {
    let socket = call!(SOCKET, family, 1 | O_CLOEXEC, 0)? as Fd;
    match call!(CONNECT, socket, address.as_ptr(), address.len()) {
        Ok(_) => Ok(socket),
        Err(errno) => {
            close(socket);
            Err(errno)
        }
    }
}

/// The op at `at`: its code, argument and payload, and where the next one is.
pub fn op(recipe: &[u8], at: usize) -> Option<(u32, u64, &[u8], usize)> {
    let head = recipe.get(at..at.checked_add(OP_HEAD)?)?;
    let code = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
    let argument = u64::from_le_bytes([head[8], head[9], head[10], head[11], head[12], head[13], head[14], head[15]]);
    let start = at + OP_HEAD;
    let payload = recipe.get(start..start.checked_add(len)?)?;
    Some((code, argument, payload, start + len.div_ceil(8) * 8))
}

/// Mode and device number.
fn kind(fd: Fd) -> Result<(u16, u32, u32)> {
    let mut stat = [0u64; 32];
    call!(STATX, fd, b"\0".as_ptr(), EMPTY_PATH, 0x3, stat.as_mut_ptr())?;
    Ok(((stat[3] >> 32) as u16, stat[16] as u32, (stat[16] >> 32) as u32))
}

fn word(bytes: &[u8], at: usize) -> Result<u64> {
    let bytes = bytes.get(at..at + 8).ok_or(EINVAL)?;
    Ok(u64::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]]))
}

fn bounding(keep: u64) -> Result<()> {
    for capability in 0..64u32 {
        if keep & 1 << capability == 0 {
            match call!(PRCTL, 24, capability, 0, 0, 0) {
                // Beyond the last that this kernel knows.
                Err(EINVAL) => break,
                other => other?,
            };
        }
    }
    Ok(())
}

fn capabilities(payload: &[u8]) -> Result<()> {
    let (effective, permitted, inheritable, ambient) =
        (word(payload, 0)?, word(payload, 8)?, word(payload, 16)?, word(payload, 24)?);
    let head = [0x2008_0522u32, 0];
    let low = |v: u64| v as u32;
    let high = |v: u64| (v >> 32) as u32;
    let data = [low(effective), low(permitted), low(inheritable), high(effective), high(permitted), high(inheritable)];
    call!(CAPSET, head.as_ptr(), data.as_ptr())?;
    for capability in 0..64u32 {
        if ambient & 1 << capability != 0 {
            call!(PRCTL, 47, 2, capability, 0, 0)?;
        }
    }
    Ok(())
}

fn seccomp(payload: &[u8], flags: u64) -> Result<()> {
    #[repr(C)]
    struct Program {
        len: u16,
        at: *const u8,
    }
    let program = Program { len: u16::try_from(payload.len() / 8).map_err(|_| EINVAL)?, at: payload.as_ptr() };
    call!(SECCOMP, 1, flags, &raw const program).map(drop)
}

/// Raises the loopback device of the network namespace we are in.
fn loopback() -> Result<()> {
    let socket = call!(SOCKET, 2, 2 | O_CLOEXEC, 0)? as Fd;
    let mut request = [0u8; 40];
    request[..2].copy_from_slice(b"lo");
    request[16] = 1;
    let result = call!(IOCTL, socket, 0x8914, request.as_ptr());
    close(socket);
    result.map(drop)
}

/// The first process of a shared PID namespace. It has no descriptor and nothing to lose.
fn reap() -> ! {
    let child_signal = 1u64 << 16;
    let _ = call!(RT_SIGPROCMASK, 0, &raw const child_signal, 0, 8);
    let _ = call!(CLOSE_RANGE, 0, u32::MAX, 0);
    loop {
        while matches!(call!(WAIT4, -1isize, 0, 1, 0), Ok(1..)) {}
        let _ = call!(RT_SIGTIMEDWAIT, &raw const child_signal, 0, 0, 8);
    }
}
