//! The system bus: one connection, calls and signals on it, and descriptors that come with answers.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::Interest;
use tokio::net::UnixStream;

use super::wire::{Call, HEAD, Kind, Message, size};

/// For everything that is asked.
const PATIENCE: Duration = Duration::from_secs(10);
/// Signals that wait to be heard, and descriptors that wait for their message.
const QUEUE: usize = 64;
const LINE_MAX: usize = 512;

const BUS: &str = "org.freedesktop.DBus";

/// A connection. Whoever drops it leaves the bus.
#[derive(Debug)]
pub(super) struct Bus {
    stream: UnixStream,
    serial: u32,
    /// What was read and not understood yet.
    bytes: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
    signals: VecDeque<Message>,
}

// === impl Bus ===

impl Bus {
    /// Connects and introduces itself.
    pub(super) async fn open(socket: &Path) -> io::Result<Bus> {
        within(async {
            let stream = UnixStream::connect(socket).await?;
            let mut bus = Bus {
                stream,
                serial: 0,
                bytes: Vec::new(),
                descriptors: VecDeque::new(),
                signals: VecDeque::new(),
            };
            bus.introduce().await?;
            bus.ask(&Call {
                destination: BUS,
                path: "/org/freedesktop/DBus",
                interface: BUS,
                member: "Hello",
                arguments: &[],
            })
            .await?;
            Ok(bus)
        })
        .await
    }

    /// Calls a method and waits for its answer; the descriptor is the one that came with it.
    pub(super) async fn call(&mut self, call: &Call<'_>) -> io::Result<(Message, Option<OwnedFd>)> {
        within(self.ask(call)).await
    }

    /// The next signal.
    pub(super) async fn signal(&mut self) -> io::Result<Message> {
        loop {
            if let Some(signal) = self.signals.pop_front() {
                return Ok(signal);
            }
            if let (message, _) = self.receive().await?
                && message.kind == Kind::Signal
            {
                return Ok(message);
            }
        }
    }

    /// Asks for signals that match a rule.
    pub(super) async fn listen(&mut self, rule: &str) -> io::Result<()> {
        let call = Call {
            destination: BUS,
            path: "/org/freedesktop/DBus",
            interface: BUS,
            member: "AddMatch",
            arguments: &[super::wire::Value::Text(rule)],
        };
        self.call(&call).await.map(|_| ())
    }

    async fn ask(&mut self, call: &Call<'_>) -> io::Result<(Message, Option<OwnedFd>)> {
        self.serial = self.serial.wrapping_add(1).max(1);
        let serial = self.serial;
        self.send(&call.write(serial)).await?;
        loop {
            let (message, descriptor) = self.receive().await?;
            match message.kind {
                Kind::Return if message.answers == serial => return Ok((message, descriptor)),
                Kind::Error if message.answers == serial => {
                    let why = message.text().unwrap_or_default();
                    return Err(io::Error::other(format!(
                        "{} says {}: {why}",
                        call.destination, message.error
                    )));
                }
                Kind::Signal if self.signals.len() < QUEUE => self.signals.push_back(message),
                _ => {}
            }
        }
    }

    /// Says who we are, and that descriptors may be passed.
    async fn introduce(&mut self) -> io::Result<()> {
        let uid = rustix::process::geteuid().as_raw().to_string();
        let uid: String = uid.bytes().map(|b| format!("{b:02x}")).collect();
        self.send(format!("\0AUTH EXTERNAL {uid}\r\n").as_bytes()).await?;
        self.expect("OK ").await?;
        self.send(b"NEGOTIATE_UNIX_FD\r\n").await?;
        self.expect("AGREE_UNIX_FD").await?;
        self.send(b"BEGIN\r\n").await
    }

    async fn expect(&mut self, word: &str) -> io::Result<()> {
        loop {
            if let Some(end) = self.bytes.windows(2).position(|w| w == b"\r\n") {
                let line: Vec<u8> = self.bytes.drain(..end + 2).collect();
                let line = String::from_utf8_lossy(&line);
                return match line.starts_with(word) {
                    true => Ok(()),
                    false => Err(io::Error::other(format!("the bus does not let us in: {}", line.trim()))),
                };
            }
            if self.bytes.len() > LINE_MAX {
                return Err(io::Error::other("the bus talks nonsense"));
            }
            self.read().await?;
        }
    }

    async fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.writable().await?;
            match self.stream.try_write(bytes) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The next message, and the descriptor that came with it. Cancel-safe: what was read stays read.
    async fn receive(&mut self) -> io::Result<(Message, Option<OwnedFd>)> {
        loop {
            if let Some(head) = self.bytes.first_chunk::<HEAD>() {
                let nonsense = || io::Error::other("the bus talks nonsense");
                let size = size(head).ok_or_else(nonsense)?;
                if self.bytes.len() >= size {
                    let bytes: Vec<u8> = self.bytes.drain(..size).collect();
                    let message = Message::read(&bytes).ok_or_else(nonsense)?;
                    // Only one of our calls is answered with one.
                    let descriptor = message.signature.contains('h').then(|| self.descriptors.pop_front());
                    return Ok((message, descriptor.flatten()));
                }
            }
            self.read().await?;
        }
    }

    async fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        let (count, came) = self
            .stream
            .async_io(Interest::READABLE, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
                let mut control = RecvAncillaryBuffer::new(&mut space);
                let mut parts = [IoSliceMut::new(&mut buffer)];
                let got = recvmsg(&self.stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
                let mut came = Vec::new();
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                        came.extend(descriptors);
                    }
                }
                Ok((got.bytes, came))
            })
            .await?;
        if count == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the bus is gone"));
        }
        self.bytes.extend_from_slice(&buffer[..count]);
        self.descriptors.extend(came);
        self.descriptors.truncate(QUEUE);
        Ok(())
    }
}

async fn within<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the bus does not answer");
    tokio::time::timeout(PATIENCE, work).await.map_err(late)?
}
