//! Sockets between processes of one machine that keep messages apart and carry descriptors.

use std::ffi::OsStr;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::fd;

/// Descriptors in one message. The kernel takes 253.
pub const FDS_MAX: usize = 128;
/// Connections that may wait to be accepted.
const WAITING: i32 = 4;

/// Two ends of one connection.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Listens as `name` in `dir`, by descriptor: the path may be longer than an address can be.
pub fn listen(dir: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    net::bind(&socket, &SocketAddrUnix::new(fd::proc_path(&dir).join(name))?)?;
    net::listen(&socket, WAITING)?;
    Ok(socket)
}

/// Connects to who listens as `name` in `dir`.
pub fn connect(dir: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    net::connect(&socket, &SocketAddrUnix::new(fd::proc_path(&dir).join(name))?)?;
    Ok(socket)
}

/// Sends one message whole or not at all.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one message"));
    }
    net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Takes one message and what it carries. Zero bytes: the other side is gone. One that does not fit is an error.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
    }
    Ok((got.bytes, fds))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn messages_stay_apart_and_carry_descriptors() {
        let (a, b) = pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        send(&a, b"one", &[writer.as_fd()]).unwrap();
        send(&a, b"two", &[]).unwrap();
        drop((a, writer));
        let mut buffer = [0; 16];
        let (n, mut fds) = receive(&b, &mut buffer).unwrap();
        assert_eq!((&buffer[..n], fds.len()), (&b"one"[..], 1));
        File::from(fds.remove(0)).write_all(b"through").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
        let (n, fds) = receive(&b, &mut buffer).unwrap();
        assert_eq!((&buffer[..n], fds.len()), (&b"two"[..], 0));
        assert_eq!(receive(&b, &mut buffer).unwrap().0, 0);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (a, b) = pair().unwrap();
        send(&a, b"longer than that", &[]).unwrap();
        assert!(receive(&b, &mut [0; 4]).is_err());
    }

    #[test]
    fn a_listener_is_found_however_long_its_path_is() {
        let met = crate::scratch::run(|scratch| {
            let deep = scratch.join("d".repeat(100)).join("e".repeat(100));
            std::fs::create_dir_all(&deep).unwrap();
            let dir = fd::open_dir(&deep).unwrap();
            let listener = listen(&dir, OsStr::new("sock")).unwrap();
            let client = connect(&dir, OsStr::new("sock")).unwrap();
            let server = net::accept(&listener).unwrap();
            send(&client, b"hello", &[]).unwrap();
            let mut buffer = [0; 16];
            assert_eq!(receive(&server, &mut buffer).unwrap().0, 5);
        });
        assert!(met.is_some(), "needs root");
    }
}
