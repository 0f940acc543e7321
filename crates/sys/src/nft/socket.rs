//! A netlink socket to netfilter.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, getsockname, recv, sendto,
    socket_with,
};

use super::{Error, socket_error};

/// What we may have to send at once: a table of fifty thousand Services.
const MOST: usize = 256 << 20;

/// Dumps come while we read, so a lost answer would mean a broken kernel; still nobody waits for ever.
const TIMEOUT_SECONDS: i64 = 30;

#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    port: u32,
    room: usize,
}

// === impl Socket ===

impl Socket {
    /// `groups` are the multicast groups to listen to, one bit each.
    pub(super) fn open(groups: u32) -> Result<Self, Error> {
        let flags = SocketFlags::CLOEXEC;
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::NETFILTER))
            .map_err(|e| socket_error("opening a socket", e))?;
        bind(&fd, &SocketAddrNetlink::new(0, groups)).map_err(|e| socket_error("binding", e))?;
        let name = getsockname(&fd).map_err(|e| socket_error("asking for our number", e))?;
        let name = SocketAddrNetlink::try_from(name).map_err(|e| socket_error("asking for our number", e))?;
        let timeout = libc::timeval { tv_sec: TIMEOUT_SECONDS, tv_usec: 0 };
        set(&fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &timeout)?;
        // Errors with their reason, and without the message that caused them.
        set(&fd, libc::SOL_NETLINK, libc::NETLINK_EXT_ACK, &1_i32)?;
        set(&fd, libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, &1_i32)?;
        Ok(Self { fd, port: name.pid(), room: 0 })
    }

    pub(super) fn port(&self) -> u32 {
        self.port
    }

    /// Room for what others may do at once before we look.
    pub(super) fn widen(&self, bytes: usize) -> Result<(), Error> {
        set(&self.fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &(bytes.min(MOST) as i32))
    }

    /// One datagram, however long: a transaction cannot be cut.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() > MOST {
            return Err(socket_error("sending", Errno::MSGSIZE));
        }
        let needed = bytes.len() + (64 << 10);
        if needed > self.room {
            set(&self.fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &(needed as i32))?;
            self.room = needed;
        }
        let kernel = SocketAddrNetlink::new(0, 0);
        loop {
            match sendto(&self.fd, bytes, SendFlags::empty(), &kernel) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(socket_error("sending", e)),
            }
        }
    }

    pub(super) fn receive(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        loop {
            match recv(&self.fd, &mut *buffer, RecvFlags::empty()) {
                Ok((len, _)) => return Ok(len),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// What is already there.
    pub(super) fn receive_now(&self, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
        loop {
            match recv(&self.fd, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((len, _)) => return Ok(Some(len)),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[allow(unsafe_code)]
fn set<T: Copy>(fd: &OwnedFd, level: i32, option: i32, value: &T) -> Result<(), Error> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel reads `len` bytes of `value`, which has that many.
    let done =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), len) };
    if done == 0 {
        return Ok(());
    }
    Err(Error::Socket { act: "setting a socket option", cause: std::io::Error::last_os_error() })
}
