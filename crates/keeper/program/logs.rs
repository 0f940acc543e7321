//! Output into the log, and to whoever is attached.

use crate::framing::{Framer, LINE_MAX, STAMP, Sink, stamp};
use crate::kernel::*;

/// What is read at once. As much as a pipe holds.
const READ: usize = 64 << 10;
const OUT: usize = 64 << 10;
/// Stamp and stream, each followed by a space.
const PREFIX: usize = STAMP + 8;
/// A stream that writes line by line, this often, is left alone for a moment: one read for many lines.
const OFTEN: i64 = 1_000_000;
const MOMENT: i64 = 500_000;
const FEW: usize = 8 << 10;

/// One stream of one job.
pub struct Stream {
    pub fd: Fd,
    framer: Framer,
    /// [`LINE_MAX`] bytes for a line without its end; pages come only when there is one.
    buffer: *mut u8,
    last: i64,
}

/// Memory that all streams use in turn.
pub struct Pump {
    input: [u8; READ],
    out: Out,
}

struct Out {
    bytes: [u8; OUT],
    filled: usize,
    log: Fd,
}

// === impl Stream ===

impl Stream {
    pub const fn closed() -> Stream {
        Stream { fd: -1, framer: Framer::new(), buffer: core::ptr::null_mut(), last: 0 }
    }

    pub fn open(fd: Fd) -> Result<Stream> {
        set_nonblocking(fd);
        Ok(Stream { fd, framer: Framer::new(), buffer: map(LINE_MAX)?, last: 0 })
    }

    pub fn close(&mut self) {
        close(self.fd);
        self.fd = -1;
        if !self.buffer.is_null() {
            unmap(self.buffer, LINE_MAX);
            self.buffer = core::ptr::null_mut();
        }
    }
}

// === impl Pump ===

impl Pump {
    pub const fn new() -> Pump {
        Pump { input: [0; READ], out: Out { bytes: [0; OUT], filled: 0, log: 0 } }
    }

    /// Reads once: how much, nothing when there is nothing now. An error when the stream has ended.
    pub fn read(&mut self, stream: &mut Stream, name: &[u8; 6], log: Fd, tees: &mut [Fd]) -> Result<usize> {
        let n = match read(stream.fd, &mut self.input) {
            Err(EINTR | EAGAIN) => return Ok(0),
            // A terminal whose last user is gone says EIO.
            Ok(0) | Err(_) => {
                self.end(stream, name, log);
                return Err(0);
            }
            Ok(n) => n,
        };
        let input = &self.input[..n];
        for tee in tees.iter_mut().filter(|tee| **tee >= 0) {
            // MSG_DONTWAIT | MSG_NOSIGNAL: who reads too slowly loses.
            match call!(SENDTO, *tee, input.as_ptr(), n, 0x40 | 0x4000, 0, 0) {
                Ok(_) | Err(EAGAIN | EINTR) => {}
                Err(_) => {
                    close(*tee);
                    *tee = -1;
                }
            }
        }
        let time = now();
        let prefix = prefix(&time, name);
        self.out.log = log;
        // SAFETY: the mapping of `open`; nobody else knows it, and the stream is borrowed here.
        let buffer = unsafe { core::slice::from_raw_parts_mut(stream.buffer, LINE_MAX) };
        let waited = stream.framer.waiting();
        stream.framer.put(buffer, input, &prefix, &mut self.out);
        self.out.flush();
        if waited > 4096 && stream.framer.waiting() == 0 {
            // MADV_DONTNEED
            let _ = call!(MADVISE, stream.buffer, LINE_MAX, 4);
        }
        let at = time.seconds * 1_000_000_000 + time.nanos;
        if n < FEW && at - stream.last < OFTEN {
            let moment = Time { seconds: 0, nanos: MOMENT };
            let _ = call!(PPOLL, 0, 0, &raw const moment, 0, 8);
        }
        stream.last = at;
        Ok(n)
    }

    /// What is left without an end of line is the last line.
    pub fn end(&mut self, stream: &mut Stream, name: &[u8; 6], log: Fd) {
        if stream.fd >= 0 && stream.framer.waiting() > 0 {
            let prefix = prefix(&now(), name);
            self.out.log = log;
            // SAFETY: as above.
            let buffer = unsafe { core::slice::from_raw_parts(stream.buffer, LINE_MAX) };
            stream.framer.finish(buffer, &prefix, &mut self.out);
            self.out.flush();
        }
        stream.close();
    }

    /// Pages that were written by a burst go back when it is over.
    pub fn rest(&mut self) {
        let page = |at: usize| at.div_ceil(4096) * 4096;
        let start = page(self.input.as_ptr() as usize);
        let end = (self.out.bytes.as_ptr() as usize + OUT) & !4095;
        if end > start {
            let _ = call!(MADVISE, start, end - start, 4);
        }
    }
}

fn prefix(time: &Time, name: &[u8; 6]) -> [u8; PREFIX] {
    let mut text = [b' '; PREFIX];
    let mut digits = [0; STAMP];
    stamp(time.seconds as u64, time.nanos as u32, &mut digits);
    text[..STAMP].copy_from_slice(&digits);
    text[STAMP + 1..STAMP + 7].copy_from_slice(name);
    text
}

// === impl Out ===

impl Out {
    fn flush(&mut self) {
        let mut at = 0;
        while at < self.filled {
            match write(self.log, &self.bytes[at..self.filled]) {
                Ok(n) => at += n,
                Err(EINTR) => {}
                // A full disk costs the records, never the container.
                Err(_) => break,
            }
        }
        self.filled = 0;
    }
}

impl Sink for Out {
    fn record(&mut self, pieces: &[&[u8]]) {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        if self.filled + len > OUT {
            self.flush();
        }
        for piece in pieces {
            self.bytes[self.filled..self.filled + piece.len()].copy_from_slice(piece);
            self.filled += piece.len();
        }
    }
}
