//! A conversation with a part of the kernel that speaks netlink: orders, one by one or many at once, and lists.

use std::io;
use std::os::fd::OwnedFd;

use nft::wire::{FLAG_INTERRUPTED, Header, Messages};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto, socket_with,
};

/// The kernel answers each order, and the answers wait in a buffer that has room for some hundreds.
const ORDERS_AT_ONCE: usize = 64;

/// With the part of one network namespace: the one the calling thread is in when it opens it.
#[derive(Debug)]
pub(crate) struct Netlink {
    fd: OwnedFd,
    sequence: u32,
    buffer: Box<[u8]>,
}

#[derive(Debug, thiserror::Error)]
#[error("{act}: {cause}")]
pub struct SocketError {
    act: &'static str,
    cause: io::Error,
}

/// What the kernel would not do of many things that it was told at once, and why: their places. The others are done.
#[must_use]
#[derive(Debug)]
pub struct Failures<E>(pub Vec<(usize, E)>);

/// How a list ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listed {
    Whole,
    /// What is listed changed meanwhile, or we were too slow.
    Disturbed,
    Refused(Errno),
}

// === impl Netlink ===

impl Netlink {
    /// `None` is the routing part, which has the number zero.
    pub(crate) fn open(protocol: Option<Protocol>) -> Result<Self, SocketError> {
        let kind = SocketType::RAW;
        let fd = socket_with(AddressFamily::NETLINK, kind, SocketFlags::CLOEXEC, protocol)
            .map_err(|e| failed("opening a socket", e))?;
        bind(&fd, &SocketAddrNetlink::new(0, 0)).map_err(|e| failed("binding", e))?;
        Ok(Self { fd, sequence: 1, buffer: vec![0; 1 << 17].into() })
    }

    /// The number of the next message.
    pub(crate) fn next_sequence(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    /// One message that asks for an acknowledgement, and what became of it.
    pub(crate) fn order(&mut self, bytes: &[u8], sequence: u32) -> Result<Result<(), Errno>, SocketError> {
        self.send(bytes)?;
        loop {
            let len = self.receive().map_err(|e| failed("receiving", e))?;
            let mut answers = Messages(&self.buffer[..len]).filter(|(h, _)| h.sequence == sequence);
            if let Some(outcome) = answers.find_map(|(header, body)| outcome(header, body)) {
                return Ok(outcome);
            }
        }
    }

    /// Messages that each ask for an acknowledgement, in order; each is done whatever became of the others. Says what
    /// became of each.
    pub(crate) fn orders(
        &mut self,
        orders: &[(u32, Vec<u8>)],
    ) -> Result<Vec<Result<(), Errno>>, SocketError> {
        let mut outcomes = vec![Ok(()); orders.len()];
        for (chunk, some) in orders.chunks(ORDERS_AT_ONCE).enumerate() {
            let bytes: Vec<u8> = some.iter().flat_map(|(_, bytes)| bytes).copied().collect();
            self.send(&bytes)?;
            let mut unanswered = some.len();
            while unanswered > 0 {
                let len = self.receive().map_err(|e| failed("receiving", e))?;
                for (header, body) in Messages(&self.buffer[..len]) {
                    let place = some.iter().position(|(sequence, _)| *sequence == header.sequence);
                    if let (Some(place), Some(outcome)) = (place, outcome(header, body)) {
                        outcomes[chunk * ORDERS_AT_ONCE + place] = outcome;
                        unanswered -= 1;
                    }
                }
            }
        }
        Ok(outcomes)
    }

    /// A question, and the body of each message of the answer.
    pub(crate) fn list(
        &mut self,
        bytes: &[u8],
        sequence: u32,
        mut hear: impl FnMut(&[u8]),
    ) -> Result<Listed, SocketError> {
        let listed = self.list_while(bytes, sequence, |body| {
            hear(body);
            true
        })?;
        Ok(listed.unwrap_or(Listed::Disturbed))
    }

    /// The same, until `hear` answers false: `None`. The kernel will still tell the rest, so that is the end of this
    /// conversation.
    pub(crate) fn list_while(
        &mut self,
        bytes: &[u8],
        sequence: u32,
        mut hear: impl FnMut(&[u8]) -> bool,
    ) -> Result<Option<Listed>, SocketError> {
        self.send(bytes)?;
        let mut is_whole = true;
        loop {
            let len = match self.receive() {
                Ok(len) => len,
                Err(Errno::NOBUFS) => {
                    is_whole = false;
                    continue;
                }
                Err(e) => return Err(failed("receiving", e)),
            };
            for (header, body) in Messages(&self.buffer[..len]).filter(|(h, _)| h.sequence == sequence) {
                is_whole &= header.flags & FLAG_INTERRUPTED == 0;
                match outcome(header, body) {
                    None if hear(body) => {}
                    None => return Ok(None),
                    Some(Ok(())) if is_whole => return Ok(Some(Listed::Whole)),
                    Some(Ok(()) | Err(Errno::INTR)) => return Ok(Some(Listed::Disturbed)),
                    Some(Err(cause)) => return Ok(Some(Listed::Refused(cause))),
                }
            }
        }
    }

    fn send(&self, bytes: &[u8]) -> Result<(), SocketError> {
        let kernel = SocketAddrNetlink::new(0, 0);
        loop {
            match sendto(&self.fd, bytes, SendFlags::empty(), &kernel) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(failed("sending", e)),
            }
        }
    }

    fn receive(&mut self) -> Result<usize, Errno> {
        loop {
            match recv(&self.fd, &mut *self.buffer, RecvFlags::empty()) {
                Ok((len, _)) => return Ok(len),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
    }
}

// === impl Failures ===

impl<E> Failures<E> {
    /// For those to whom one that is refused is a failure.
    pub fn none(self) -> Result<(), E> {
        self.0.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
    }
}

fn failed(act: &'static str, cause: Errno) -> SocketError {
    SocketError { act, cause: cause.into() }
}

/// Some parts of the kernel have error numbers of their own beyond those that an [`Errno`] can be. They are kept where nobody
/// has any.
const OWN: std::ops::Range<i32> = 4096..5120;
const KEPT: i32 = 3072;

fn errno(code: i32) -> Errno {
    match code {
        1..4096 => Errno::from_raw_os_error(code),
        own if OWN.contains(&own) => Errno::from_raw_os_error(own - OWN.start + KEPT),
        _ => Errno::IO,
    }
}

/// The number that the kernel said.
pub(crate) fn code(errno: Errno) -> i32 {
    match errno.raw_os_error() {
        kept if kept >= KEPT => kept - KEPT + OWN.start,
        code => code,
    }
}

/// `None` for a message that is no end.
fn outcome(header: Header, body: &[u8]) -> Option<Result<(), Errno>> {
    const ERROR: u16 = 2;
    const DONE: u16 = 3;
    let code = body.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
    match header.kind {
        ERROR | DONE if code < 0 => Some(Err(errno(code.saturating_neg()))),
        ERROR | DONE => Some(Ok(())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_error_number_is_lost() {
        for number in [1, 22, 95, 133, 4097, 4100, 4352, 4360] {
            assert_eq!(code(errno(number)), number);
        }
        assert_eq!(errno(22), Errno::INVAL);
        assert_eq!([errno(0), errno(-1), errno(9999), errno(i32::MAX)], [Errno::IO; 4]);
    }
}
