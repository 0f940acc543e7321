//! Calling somebody to see what happens, over each of the three protocols.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use proxy_core::doctor::Dial;
use proxy_core::objects::Protocol;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, ipproto, socket_with, sockopt};
use tokio::net::{TcpStream, UdpSocket};

const TIMEOUT: Duration = Duration::from_secs(2);

/// A question that every name server answers: who serves the root? Others are sent an empty datagram, which none can
/// mistake for an order.
const NAME_PORT: u16 = 53;
const NAME_QUESTION: [u8; 17] = [0x10, 0x5e, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1];

/// `None` where this kernel does not speak the protocol.
pub(crate) async fn dial(protocol: Protocol, address: SocketAddr, port: u16) -> Option<Dial> {
    match protocol {
        Protocol::Tcp => Some(judge(tokio::time::timeout(TIMEOUT, TcpStream::connect(address)).await)),
        Protocol::Udp => Some(judge(tokio::time::timeout(TIMEOUT, ask(address, port)).await)),
        Protocol::Sctp => tokio::task::spawn_blocking(move || associate(address)).await.ok().flatten(),
    }
}

fn judge<T, E>(outcome: Result<io::Result<T>, E>) -> Dial {
    match outcome {
        Ok(Ok(_)) => Dial::Connected,
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => Dial::Refused,
        Ok(Err(error)) if error.kind() == ErrorKind::TimedOut => Dial::Silence,
        Ok(Err(_)) => Dial::Unreachable,
        Err(_) => Dial::Silence,
    }
}

/// Sends a datagram and waits for one, or for word that nobody takes it. `port` says what the Service is for.
async fn ask(address: SocketAddr, port: u16) -> io::Result<usize> {
    let own: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(own).await?;
    socket.connect(address).await?;
    let question: &[u8] = if port == NAME_PORT { &NAME_QUESTION } else { &[] };
    socket.send(question).await?;
    socket.recv(&mut [0; 512]).await
}

/// Blocks.
fn associate(address: SocketAddr) -> Option<Dial> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = match socket_with(family, SocketType::STREAM, flags, Some(ipproto::SCTP)) {
        Ok(fd) => fd,
        Err(_) => return None,
    };
    let begun = match connect(&fd, &address) {
        Err(Errno::INPROGRESS) => wait(&fd),
        other => Ok(other.map_err(io::Error::from)),
    };
    Some(judge(begun))
}

/// `Err` if nothing happened in time.
fn wait(fd: &OwnedFd) -> Result<io::Result<()>, ()> {
    let limit = Timespec { tv_sec: TIMEOUT.as_secs().cast_signed(), tv_nsec: 0 };
    match poll(&mut [PollFd::new(fd, PollFlags::OUT)], Some(&limit)) {
        Ok(0) => Err(()),
        Ok(_) => match sockopt::socket_error(fd) {
            Ok(outcome) => Ok(outcome.map_err(io::Error::from)),
            Err(errno) => Ok(Err(errno.into())),
        },
        Err(errno) => Ok(Err(errno.into())),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_a_refusal_and_silence_are_told_apart() {
        let answers = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = answers.local_addr().unwrap();
        let serve = async {
            let mut buffer = [0; 512];
            let (len, from) = answers.recv_from(&mut buffer).await.unwrap();
            assert_eq!(buffer[..len], NAME_QUESTION);
            answers.send_to(b"!", from).await.unwrap();
        };
        let (dialled, ()) = tokio::join!(dial(Protocol::Udp, address, NAME_PORT), serve);
        assert_eq!(dialled, Some(Dial::Connected));
        // Nobody reads it now, and nobody says so.
        assert_eq!(dial(Protocol::Udp, address, 9).await, Some(Dial::Silence));
        drop(answers);
        assert_eq!(dial(Protocol::Udp, address, 9).await, Some(Dial::Refused));
        assert_eq!(dial(Protocol::Tcp, address, 9).await, Some(Dial::Refused));
        let sctp = dial(Protocol::Sctp, address, 9).await;
        assert!(matches!(sctp, None | Some(Dial::Refused)), "{sctp:?}");
    }
}
