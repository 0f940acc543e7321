//! One process that the keeper made, from its clone until the daemon has heard how it ended.

use crate::child::{Child, op};
use crate::kernel::*;
use crate::logs::{Pump, Stream};
use crate::wire::*;

/// The output of a dead process that a living one still adds to is not read for ever.
const DRAIN: usize = 4 << 20;

pub struct Job {
    pub key: u32,
    pub state: u32,
    pub pid: i32,
    pub pidfd: Fd,
    /// To the process, while it is not yet the program.
    pub sync: Fd,
    pub streams: [Stream; 2],
    pub input: Fd,
    pub log: Fd,
    pub memory_events: Fd,
    /// Of each stream.
    pub tees: [[Fd; TEES_MAX]; 2],
    pub flags: u32,
    /// Number of the op and errno; zero when none was refused.
    pub failed: (u32, u32),
    pub status: i32,
    pub ended: Time,
    pub killed_for_memory: u64,
    /// Not zero if a keeper that is gone made it: somebody else is its parent. No `bool`: one of its spare values would mean
    /// an empty place, and a table of empty places would be 170 kB of the program instead of zeros that cost nothing.
    adopted: u8,
}

/// What a process told while it was being set up.
pub enum Told {
    Nothing,
    Started,
    Held(u32, Option<Fd>),
    Terminal(Fd),
}

const NAMES: [&[u8; 6]; 2] = [b"stdout", b"stderr"];

impl Job {
    /// Makes the process. The descriptors are the recipe's slots; those that the job keeps are marked as taken.
    pub fn launch(key: u32, recipe: &[u8], slots: &mut [Fd]) -> Result<Job> {
        let word = |at: usize| u32::from_le_bytes([recipe[at], recipe[at + 1], recipe[at + 2], recipe[at + 3]]);
        if recipe.len() < RECIPE_HEAD || word(0) != MAGIC || word(4) != VERSION || word(8) as usize != recipe.len() {
            return Err(EINVAL);
        }
        let flags = word(AT_FLAGS);
        let clone_flags = u64::from(word(AT_CLONE)) | u64::from(word(AT_CLONE + 4)) << 32;
        let of = |at: usize| match word(at) {
            NONE => Ok(-1),
            slot => slots.get(slot as usize).copied().ok_or(EINVAL),
        };
        check(recipe)?;
        let (log, memory_events, pid_namespace, cgroup) = (of(AT_LOG)?, of(AT_MEMORY_EVENTS)?, of(AT_PID_NAMESPACE)?, of(AT_CGROUP)?);
        let mut stdio = [of(AT_STDIN)?, of(AT_STDOUT)?, of(AT_STDERR)?];
        let (mut ours, mut input) = ([-1; 2], -1);
        let mut made = [-1; 3];
        if flags & FLAG_TERMINAL == 0 {
            if flags & FLAG_INPUT != 0 {
                (stdio[0], input) = pipe()?;
                made[0] = stdio[0];
            }
            if flags & FLAG_LOG != 0 {
                for i in 0..2 {
                    (ours[i], stdio[i + 1]) = pipe()?;
                    made[i + 1] = stdio[i + 1];
                }
            }
        }
        let mut streams = [Stream::closed(), Stream::closed()];
        for (stream, fd) in streams.iter_mut().zip(ours).filter(|(_, fd)| *fd >= 0) {
            *stream = Stream::open(fd)?;
        }
        let (sync, theirs) = pair()?;
        let cgroup = (cgroup >= 0).then_some(cgroup);
        let result = if flags & FLAG_USER == 0 {
            clone_in(pid_namespace, clone_flags, cgroup)
        } else {
            let (user, root) = (of(AT_USER_NAMESPACE)?, word(AT_USER_ROOT));
            clone_under(user, pid_namespace, clone_flags, cgroup, || {
                made.iter().filter(|fd| **fd >= 0).try_for_each(|fd| call!(FCHOWN, *fd, root, root).map(drop))
            })
        };
        if let Ok((0, _)) = result {
            Child { recipe, slots, sync: theirs, stdio, root: -1, proc: -1 }.run();
        }
        close(theirs);
        made.iter().for_each(|fd| close(*fd));
        let (pid, pidfd) = match result {
            Ok(both) => both,
            Err(errno) => {
                streams.iter_mut().for_each(Stream::close);
                [sync, input].iter().for_each(|fd| close(*fd));
                return Err(errno);
            }
        };
        for slot in slots.iter_mut().filter(|slot| **slot == log || **slot == memory_events) {
            *slot = -1;
        }
        set_nonblocking(sync);
        Ok(Job {
            key,
            state: STATE_SETUP,
            pid,
            pidfd,
            sync,
            streams,
            input,
            log,
            memory_events,
            tees: [[-1; TEES_MAX]; 2],
            flags,
            failed: (0, 0),
            status: 0,
            ended: Time::default(),
            killed_for_memory: 0,
            adopted: 0,
        })
    }

    /// Takes over a process whose keeper is gone. The descriptors are taken.
    pub fn adopt(key: u32, pid: i32, fds: [Fd; ADOPT_FDS]) -> Result<Job> {
        let stream = |fd: Fd| if fd < 0 { Ok(Stream::closed()) } else { Stream::open(fd) };
        Ok(Job {
            key,
            state: STATE_RUNNING,
            pid,
            pidfd: fds[ADOPT_PIDFD],
            sync: -1,
            streams: [stream(fds[ADOPT_STDOUT])?, stream(fds[ADOPT_STDERR])?],
            input: fds[ADOPT_INPUT],
            log: fds[ADOPT_LOG],
            memory_events: fds[ADOPT_MEMORY],
            tees: [[-1; TEES_MAX]; 2],
            flags: FLAG_LOG,
            failed: (0, 0),
            status: 0,
            ended: Time::default(),
            killed_for_memory: 0,
            adopted: 1,
        })
    }

    /// What the process says, one thing at a time.
    pub fn hear(&mut self) -> Told {
        let (mut message, mut fds) = ([0u8; 12], [-1; 128]);
        if self.sync < 0 {
            return Told::Nothing;
        }
        let (n, count) = match receive(self.sync, &mut message, &mut fds) {
            Err(EAGAIN | EINTR) => return Told::Nothing,
            Ok(both) => both,
            Err(_) => (0, 0),
        };
        let word = |at: usize| u32::from_le_bytes([message[at], message[at + 1], message[at + 2], message[at + 3]]);
        let fd = (count > 0).then_some(fds[0]);
        if n == 12 {
            match (word(0), fd) {
                (CHILD_FAILED, _) => self.failed = (word(4), word(8).max(1)),
                (CHILD_HELD, fd) => return Told::Held(word(4), fd),
                (CHILD_TERMINAL, Some(master)) if self.flags & FLAG_LOG != 0 => {
                    if let Ok(stream) = Stream::open(master) {
                        self.streams[0] = stream;
                    }
                    self.input = fcntl(master, 1030, 3).map_or(-1, |fd| fd as Fd);
                }
                (CHILD_TERMINAL, Some(master)) => return Told::Terminal(master),
                _ => {}
            }
            return self.hear();
        }
        // Its end is closed: it became the program, or it is gone.
        close(self.sync);
        self.sync = -1;
        if self.failed.1 != 0 {
            return Told::Nothing;
        }
        self.state = STATE_RUNNING;
        Told::Started
    }

    pub fn read(&mut self, which: usize, pump: &mut Pump) {
        let _ = pump.read(&mut self.streams[which], NAMES[which], self.log, &mut self.tees[which]);
        if self.streams[which].fd < 0 {
            self.close_tees(which);
        }
    }

    /// The process has ended, but is not yet reaped: its cgroup may still be asked, its output is all there.
    pub fn end(&mut self, pump: &mut Pump) -> Result<()> {
        self.status = if self.adopted != 0 { self.told_status()? } else { self.own_status()? };
        self.ended = now();
        self.killed_for_memory = killed_for_memory(self.memory_events);
        for which in 0..2 {
            let mut left = DRAIN;
            while self.streams[which].fd >= 0 && left > 0 {
                match pump.read(&mut self.streams[which], NAMES[which], self.log, &mut self.tees[which]) {
                    Ok(n @ 1..) => left = left.saturating_sub(n),
                    _ => break,
                }
            }
            pump.end(&mut self.streams[which], NAMES[which], self.log);
            self.close_tees(which);
        }
        self.state = STATE_EXITED;
        Ok(())
    }

    fn own_status(&self) -> Result<i32> {
        let mut info = [0u32; 32];
        // P_PIDFD, WEXITED | WNOWAIT | WNOHANG
        call!(WAITID, 3, self.pidfd, info.as_mut_ptr(), 4 | 0x0100_0000 | 1, 0)?;
        if info[4] == 0 {
            return Err(EAGAIN);
        }
        // CLD_EXITED
        Ok(if info[2] == 1 { info[6] as i32 } else { 128 + info[6] as i32 })
    }

    /// Of somebody else's child the kernel tells it to who held the pidfd all along, once its parent has taken it. A kernel
    /// that does not (before 6.15) leaves it unknown: 255.
    fn told_status(&self) -> Result<i32> {
        const UNKNOWN: i32 = 255;
        const INFO: usize = 64;
        let mut info = [0u64; INFO / 8];
        // PIDFD_INFO_EXIT
        info[0] = 8;
        // PIDFD_GET_INFO
        let told = call!(IOCTL, self.pidfd, 0xc000_ff0busize | INFO << 16, info.as_mut_ptr());
        if told.is_ok() && info[0] & 8 != 0 {
            let status = (info[7] >> 32) as i32;
            return Ok(if status & 0x7f == 0 { status >> 8 & 0xff } else { 128 + (status & 0x7f) });
        }
        let mut poll = PollFd { fd: self.pidfd, events: POLLIN, revents: 0 };
        let none = Time { seconds: 0, nanos: 0 };
        call!(PPOLL, &raw mut poll, 1, &raw const none, 0, 8)?;
        // POLLHUP: its parent has taken it, and the kernel told nothing.
        if poll.revents & 0x10 != 0 {
            return Ok(UNKNOWN);
        }
        // It has ended, and its parent has not looked yet.
        let moment = Time { seconds: 0, nanos: 1_000_000 };
        let _ = call!(PPOLL, 0, 0, &raw const moment, 0, 8);
        Err(EAGAIN)
    }

    /// The process leaves the table of the kernel; what is known of it stays.
    pub fn reap(&mut self) {
        let mut info = [0u32; 32];
        // WEXITED | WNOHANG: one that is adopted is not ours to take.
        let _ = call!(WAITID, 3, self.pidfd, info.as_mut_ptr(), 4 | 1, 0);
        for fd in [&mut self.pidfd, &mut self.sync, &mut self.input, &mut self.log, &mut self.memory_events] {
            close(*fd);
            *fd = -1;
        }
    }

    fn close_tees(&mut self, which: usize) {
        for tee in &mut self.tees[which] {
            close(*tee);
            *tee = -1;
        }
    }
}

/// Every op whole, before anything runs.
fn check(recipe: &[u8]) -> Result<()> {
    let mut at = RECIPE_HEAD;
    while at < recipe.len() {
        at = op(recipe, at).ok_or(EINVAL)?.3;
    }
    Ok(())
}

/// A clone whose PID namespace may be another's: only our children are born there.
fn clone_in(namespace: Fd, flags: u64, cgroup: Option<Fd>) -> Result<(i32, Fd)> {
    const NEWPID: usize = 0x2000_0000;
    if namespace < 0 {
        return clone(flags, cgroup);
    }
    let own = call!(PIDFD_OPEN, call!(GETPID)?, 0)? as Fd;
    if let Err(errno) = call!(SETNS, namespace, NEWPID) {
        close(own);
        return Err(errno);
    }
    let result = clone(flags, cgroup);
    if !matches!(result, Ok((0, _))) {
        let _ = call!(SETNS, own, NEWPID);
    }
    close(own);
    result
}

/// A clone that is born in a user namespace, so that what namespaces are made with it belong to that one. Who enters one
/// cannot come back, so a process in between does, and ends. `before` is done while it still has the machine's rights.
fn clone_under(
    user: Fd,
    namespace: Fd,
    flags: u64,
    cgroup: Option<Fd>,
    before: impl FnOnce() -> Result<()>,
) -> Result<(i32, Fd)> {
    const NEWUSER: usize = 0x1000_0000;
    const NEWPID: usize = 0x2000_0000;
    let (ours, theirs) = pair()?;
    let between = match clone(0, None) {
        Ok((0, _)) => {
            let enter = || {
                before()?;
                // In this order: the first process of a Pod is looked at by the machine's rights.
                if namespace >= 0 {
                    call!(SETNS, namespace, NEWPID)?;
                }
                call!(SETNS, user, NEWUSER)?;
                clone_sibling(flags, cgroup)
            };
            let mut told = [0u8; 8];
            let pidfd = match enter() {
                Ok((0, _)) => {
                    close(ours);
                    close(theirs);
                    return Ok((0, -1));
                }
                Ok((pid, pidfd)) => {
                    told[..4].copy_from_slice(&pid.to_le_bytes());
                    Some(pidfd)
                }
                Err(errno) => {
                    told[4..].copy_from_slice(&errno.to_le_bytes());
                    None
                }
            };
            let _ = send(theirs, &told, pidfd);
            exit(0)
        }
        other => other.map(|(_, pidfd)| pidfd),
    };
    close(theirs);
    let (mut told, mut fds) = ([0u8; 8], [-1; 128]);
    let heard = between.and_then(|pidfd| {
        let heard = receive(ours, &mut told, &mut fds);
        let mut info = [0u32; 32];
        // P_PIDFD, WEXITED
        let _ = call!(WAITID, 3, pidfd, info.as_mut_ptr(), 4, 0);
        close(pidfd);
        heard
    });
    close(ours);
    let word = |at: usize| i32::from_le_bytes([told[at], told[at + 1], told[at + 2], told[at + 3]]);
    match heard? {
        (8, 1) => Ok((word(0), fds[0])),
        (8, _) => Err(word(4)),
        _ => Err(ECHILD),
    }
}

/// The count that the kernel keeps in the file, under `oom_kill`.
fn killed_for_memory(file: Fd) -> u64 {
    let mut text = [0u8; 512];
    let Ok(n) = call!(PREAD64, file, text.as_mut_ptr(), text.len(), 0) else { return 0 };
    for line in text[..n].split(|b| *b == b'\n') {
        if let Some(digits) = line.strip_prefix(b"oom_kill ") {
            return digits.iter().take_while(|b| b.is_ascii_digit()).fold(0, |sum, b| sum * 10 + u64::from(b - b'0'));
        }
    }
    0
}
