//! The loop: what the daemon asks, what processes tell, what they print, how they end.

use crate::jobs::{Job, Told};
use crate::kernel::*;
use crate::logs::Pump;
use crate::wire::*;

const LISTENER: Fd = 1;
/// Pollable things of a job: pidfd, sync, two streams.
const EACH: usize = 4;
const POLLS: usize = 2 + JOBS_MAX * EACH;

struct Service {
    control: Fd,
    jobs: [Option<Job>; JOBS_MAX],
    pump: Pump,
}

static mut SERVICE: Service =
    Service { control: 0, jobs: [const { None }; JOBS_MAX], pump: Pump::new() };
static mut POLL: [PollFd; POLLS] = [PollFd { fd: 0, events: 0, revents: 0 }; POLLS];

pub fn run() -> ! {
    // SAFETY: this is the only thread, and these are the only references, made once.
    let (service, polls) = unsafe { (&mut *(&raw mut SERVICE), &mut *(&raw mut POLL)) };
    set_nonblocking(service.control);
    let mut is_busy = false;
    loop {
        let count = service.fill(polls);
        let second = Time { seconds: 1, nanos: 0 };
        let limit = if is_busy { &raw const second } else { core::ptr::null() };
        match call!(PPOLL, polls.as_mut_ptr(), count, limit, 0, 8) {
            Ok(0) => {
                service.pump.rest();
                is_busy = false;
            }
            Ok(_) => is_busy |= service.serve(&polls[..count]),
            Err(_) => {}
        }
    }
}

impl Service {
    fn fill(&self, polls: &mut [PollFd; POLLS]) -> usize {
        polls[0] = PollFd { fd: LISTENER, events: POLLIN, revents: 0 };
        polls[1] = PollFd { fd: self.control, events: POLLIN, revents: 0 };
        let mut count = 2;
        for (i, job) in self.jobs.iter().enumerate() {
            let at = 2 + i * EACH;
            // A free place must not keep the numbers of who was there before.
            let fds = job.as_ref().map_or([-1; EACH], |job| {
                count = at + EACH;
                let pidfd = if job.state == STATE_EXITED { -1 } else { job.pidfd };
                [pidfd, job.sync, job.streams[0].fd, job.streams[1].fd]
            });
            for (poll, fd) in polls[at..at + EACH].iter_mut().zip(fds) {
                *poll = PollFd { fd, events: POLLIN, revents: 0 };
            }
        }
        count
    }

    /// Whether something was read.
    fn serve(&mut self, polls: &[PollFd]) -> bool {
        let mut has_read = false;
        for (i, four) in polls[2..].chunks(EACH).enumerate() {
            if self.jobs[i].is_none() {
                continue;
            }
            if four[1].revents != 0 {
                self.hear(i);
            }
            for which in 0..2 {
                let (Some(job), true) = (&mut self.jobs[i], four[2 + which].revents != 0) else { continue };
                if job.streams[which].fd == four[2 + which].fd {
                    job.read(which, &mut self.pump);
                    has_read = true;
                }
            }
            if four[0].revents != 0 {
                self.end(i);
            }
        }
        if polls[0].revents != 0 {
            self.accept();
        } else if polls[1].revents != 0 {
            self.obey();
        }
        has_read
    }

    /// Another daemon, if it is root's. The one before it is gone, or will be.
    fn accept(&mut self) {
        let Ok(socket) = call!(ACCEPT4, LISTENER, 0, 0, O_CLOEXEC | O_NONBLOCK) else { return };
        let (mut peer, mut len) = ([u32::MAX; 3], 12u32);
        let known = call!(GETSOCKOPT, socket, 1, 17, peer.as_mut_ptr(), &raw mut len).is_ok();
        if !known || peer[1] != 0 {
            return close(socket as Fd);
        }
        close(self.control);
        self.control = socket as Fd;
    }

    fn tell(&mut self, kind: u32, request: u32, key: u32, argument: u32, payload: &[u8], fd: Option<Fd>) {
        let mut message = [0u8; HEAD + 32];
        for (at, value) in [kind, request, key, argument].into_iter().enumerate() {
            message[at * 4..at * 4 + 4].copy_from_slice(&value.to_le_bytes());
        }
        message[HEAD..HEAD + payload.len()].copy_from_slice(payload);
        if self.control < 0 {
            return;
        }
        // A daemon that does not listen must come back and ask again; logs do not wait for it.
        if send(self.control, &message[..HEAD + payload.len()], fd).is_err() {
            close(self.control);
            self.control = -1;
        }
    }

    fn hear(&mut self, i: usize) {
        loop {
            let Some(job) = &mut self.jobs[i] else { return };
            let key = job.key;
            match job.hear() {
                Told::Nothing => return,
                Told::Started => self.tell(STARTED, 0, key, 0, &[], None),
                Told::Held(op, fd) => {
                    self.tell(HELD, 0, key, op, &[], fd);
                    close(fd.unwrap_or(-1));
                }
                Told::Terminal(master) => {
                    self.tell(TERMINAL, 0, key, 0, &[], Some(master));
                    close(master);
                }
            }
        }
    }

    fn end(&mut self, i: usize) {
        // What it said last comes before its end.
        self.hear(i);
        let Some(job) = &mut self.jobs[i] else { return };
        if job.end(&mut self.pump).is_err() {
            return;
        }
        let key = job.key;
        let (number, errno) = job.failed;
        if errno != 0 {
            job.reap();
            self.jobs[i] = None;
            return self.tell(FAILED, 0, key, errno, &number.to_le_bytes(), None);
        }
        self.tell_exit(i, 0);
        if let Some(job) = &mut self.jobs[i] {
            job.reap();
        }
    }

    fn tell_exit(&mut self, i: usize, request: u32) {
        let Some(job) = &self.jobs[i] else { return };
        let mut payload = [0u8; 24];
        payload[..8].copy_from_slice(&(job.ended.seconds as u64).to_le_bytes());
        payload[8..16].copy_from_slice(&(job.ended.nanos as u64).to_le_bytes());
        payload[16..].copy_from_slice(&job.killed_for_memory.to_le_bytes());
        let (key, status) = (job.key, job.status as u32);
        self.tell(EXITED, request, key, status, &payload, None);
    }

    fn obey(&mut self) {
        let (mut message, mut fds) = ([0u8; HEAD + PAYLOAD_MAX], [-1; 128]);
        let (n, count) = match receive(self.control, &mut message, &mut fds) {
            Err(EAGAIN | EINTR) => return,
            Ok((n, count)) if n >= HEAD => (n, count),
            // The daemon is gone. Everything goes on.
            other => {
                if let Ok((_, count)) = other {
                    fds[..count].iter().for_each(|fd| close(*fd));
                }
                close(self.control);
                self.control = -1;
                return;
            }
        };
        let word = |at: usize| u32::from_le_bytes([message[at], message[at + 1], message[at + 2], message[at + 3]]);
        let (kind, request, key, argument) = (word(0), word(4), word(8), word(12));
        let fds = &mut fds[..count];
        let result = match kind {
            LAUNCH => self.launch(request, key, argument as usize, fds),
            LIST => self.list(request),
            ADOPT => self.adopt(key, argument, word(HEAD), if n >= HEAD + 4 { fds } else { &mut [] }),
            QUIT => exit(0),
            _ => self.change(kind, request, key, argument, fds),
        };
        fds.iter().for_each(|fd| close(*fd));
        match result {
            Ok(true) => self.tell(DONE, request, key, 0, &[], None),
            Ok(false) => {}
            Err(errno) => self.tell(REFUSED, request, key, errno as u32, &[], None),
        }
    }

    /// True when all is said with DONE.
    fn launch(&mut self, request: u32, key: u32, len: usize, fds: &mut [Fd]) -> Result<bool> {
        // SHRINK and WRITE: nobody changes it under our hands.
        let sealed = |fd: Fd| fcntl(fd, 1034, 0).is_ok_and(|seals| seals & 10 == 10);
        let (recipe, slots) = fds.split_first_mut().ok_or(EINVAL)?;
        let mut stat = [0u64; 32];
        call!(STATX, *recipe, b"\0".as_ptr(), EMPTY_PATH, 0x200, stat.as_mut_ptr())?;
        if !sealed(*recipe) || len == 0 || len > RECIPE_MAX || stat[5] < len as u64 {
            return Err(EINVAL);
        }
        if self.jobs.iter().flatten().any(|job| job.key == key) {
            return Err(EEXIST);
        }
        let free = self.jobs.iter().position(Option::is_none).ok_or(ENOSPC)?;
        let at = map_file(*recipe, len)?;
        // SAFETY: mapped so long, sealed against change, and unmapped only below.
        let job = Job::launch(key, unsafe { core::slice::from_raw_parts(at, len) }, slots);
        unmap(at, len);
        let job = job?;
        let (pid, pidfd) = (job.pid, job.pidfd);
        self.jobs[free] = Some(job);
        self.tell(LAUNCHED, request, key, pid as u32, &[], Some(pidfd));
        Ok(false)
    }

    fn adopt(&mut self, key: u32, sent: u32, pid: u32, fds: &mut [Fd]) -> Result<bool> {
        if self.jobs.iter().flatten().any(|job| job.key == key) {
            return Err(EEXIST);
        }
        let free = self.jobs.iter().position(Option::is_none).ok_or(ENOSPC)?;
        let (mut all, mut next) = ([-1; ADOPT_FDS], 0);
        for (at, place) in all.iter_mut().enumerate().filter(|(at, _)| sent & 1 << at != 0) {
            let _ = at;
            *place = take(fds, next).unwrap_or(-1);
            next += 1;
        }
        if all[ADOPT_PIDFD] < 0 {
            all.iter().for_each(|fd| close(*fd));
            return Err(EINVAL);
        }
        self.jobs[free] = Some(Job::adopt(key, pid as i32, all)?);
        Ok(true)
    }

    fn list(&mut self, request: u32) -> Result<bool> {
        for i in 0..JOBS_MAX {
            let Some(job) = &self.jobs[i] else { continue };
            let (key, pid, state, pidfd) = (job.key, job.pid, job.state, job.pidfd);
            self.tell(JOB, request, key, pid as u32, &state.to_le_bytes(), (pidfd >= 0).then_some(pidfd));
            if state == STATE_EXITED {
                self.tell_exit(i, request);
            }
        }
        Ok(true)
    }

    fn change(&mut self, kind: u32, request: u32, key: u32, argument: u32, fds: &mut [Fd]) -> Result<bool> {
        let i = self.jobs.iter().position(|job| job.as_ref().is_some_and(|job| job.key == key)).ok_or(ENOENT)?;
        let Some(job) = &mut self.jobs[i] else { return Err(ENOENT) };
        match kind {
            RELEASE => write(job.sync, b".").map(|_| true),
            SIGNAL => call!(PIDFD_SEND_SIGNAL, job.pidfd, argument, 0, 0).map(|_| true),
            LOG => {
                let fd = take(fds, 0).ok_or(EINVAL)?;
                close(job.log);
                job.log = fd;
                Ok(true)
            }
            TEE => {
                for which in 0..2 {
                    let Some(fd) = take(fds, which) else { continue };
                    // A stream that has ended is told so at once: the socket closes.
                    let place = job.tees[which].iter_mut().find(|tee| **tee < 0);
                    match place {
                        Some(place) if job.streams[which].fd >= 0 => *place = fd,
                        Some(_) => close(fd),
                        None => {
                            close(fd);
                            return Err(ENOSPC);
                        }
                    }
                }
                Ok(true)
            }
            STREAM => {
                let fd = job.streams.get(argument as usize).ok_or(EINVAL)?.fd;
                if fd < 0 {
                    return Err(ENOENT);
                }
                self.tell(DONE, request, key, 0, &[], Some(fd));
                Ok(false)
            }
            INPUT => {
                let input = job.input;
                if input < 0 {
                    return Err(ENOENT);
                }
                self.tell(DONE, request, key, 0, &[], Some(input));
                Ok(false)
            }
            CLOSE_INPUT => {
                close(job.input);
                job.input = -1;
                Ok(true)
            }
            ACK if job.state == STATE_EXITED => {
                self.jobs[i] = None;
                Ok(true)
            }
            _ => Err(EINVAL),
        }
    }
}

/// The descriptor is ours from here on.
fn take(fds: &mut [Fd], at: usize) -> Option<Fd> {
    let fd = fds.get_mut(at).filter(|fd| **fd >= 0)?;
    Some(core::mem::replace(fd, -1))
}
