//! Word of what others do to nf_tables.

use nft::wire::Messages;
use nft::{Author, Notice, TableId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::socket::Socket;
use super::{Error, socket_error};

/// `NFNLGRP_NFTABLES` is group seven.
const GROUPS: u32 = 1 << 6;

/// What others may do before we look without our losing count. When we do, we look at everything.
const ROOM: usize = 4 << 20;

/// Readings at one go; the rest waits for the next.
const MOST_AT_ONCE: usize = 4096;

/// Listens to the changes of one network namespace: the one the calling thread is in when it opens it.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
    buffer: Box<[u8]>,
    /// Who last spoke of the table, by number; and by name, which the kernel tells at the end of a transaction.
    speaker: Option<u32>,
    author: Option<Author>,
}

/// What was heard about one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sighting {
    Nothing,
    /// Somebody other than us changed it.
    Touched,
    /// We could not follow: anything may have happened.
    Lost,
}

// === impl Monitor ===

impl Monitor {
    pub fn open() -> Result<Self, Error> {
        let socket = Socket::open(GROUPS)?;
        socket.widen(ROOM)?;
        Ok(Self { socket, buffer: vec![0; 1 << 16].into(), speaker: None, author: None })
    }

    /// Waits until there is something to hear, but not longer than so many milliseconds. Says whether there is.
    pub fn wait(&self, milliseconds: u32) -> Result<bool, Error> {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        let limit = Timespec {
            tv_sec: i64::from(milliseconds / 1000),
            tv_nsec: i64::from(milliseconds % 1000) * 1_000_000,
        };
        match poll(&mut fds, Some(&limit)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(e) => Err(socket_error("waiting", e)),
        }
    }

    /// Who made the last change of the table that somebody else made, as far as was heard.
    pub fn author(&self) -> Option<&Author> {
        self.author.as_ref()
    }

    /// Hears what there is to hear, without waiting. `own` is the number of the one whose changes are ours.
    /// The second of the pair says whether there may be more.
    pub fn read(&mut self, table: &TableId, own: u32) -> Result<(Sighting, bool), Error> {
        let mut seen = Sighting::Nothing;
        for _ in 0..MOST_AT_ONCE {
            let len = match self.socket.receive_now(&mut self.buffer) {
                Ok(Some(len)) => len,
                Ok(None) => return Ok((seen, false)),
                Err(Errno::NOBUFS) => {
                    seen = Sighting::Lost;
                    continue;
                }
                Err(e) => return Err(socket_error("listening", e)),
            };
            for (header, body) in Messages(&self.buffer[..len]).filter(|(header, _)| header.port != own) {
                if Notice::is_about(header, body, table) {
                    self.speaker = Some(header.port);
                    if seen == Sighting::Nothing {
                        seen = Sighting::Touched;
                    }
                } else if self.speaker == Some(header.port)
                    && let Some(author) = Author::read(header, body)
                {
                    (self.speaker, self.author) = (None, Some(author));
                }
            }
        }
        Ok((seen, true))
    }
}
