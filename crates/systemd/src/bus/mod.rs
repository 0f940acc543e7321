//! D-Bus, for the services of the machine that are reached over it: one connection, calls and signals on it, and
//! descriptors that come with answers.

pub mod wire;

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::Interest;
use tokio::net::UnixStream;

use wire::{Call, HEAD, Message, MessageType, size};

/// For everything that is asked.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Signals that wait to be heard, and descriptors that wait for their message.
const QUEUE: usize = 256;
const LINE_MAX: usize = 512;

const BUS: &str = "org.freedesktop.DBus";

/// Where the services of the machine are reached.
#[derive(Clone, Debug)]
pub struct Places {
    /// The socket of the system bus.
    pub bus: PathBuf,
    /// systemd's own, where no bus is.
    pub systemd: PathBuf,
    /// The directory of settings of the login manager.
    pub settings: PathBuf,
}

/// Which signals are wanted.
#[derive(Clone, Copy, Debug)]
pub struct Rule<'a> {
    pub interface: &'static str,
    pub member: &'static str,
    pub path: &'a str,
    /// Which argument has to be this text.
    pub argument: Option<(usize, &'a str)>,
}

/// A call that was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{who} says {name}: {why}")]
pub struct BusError {
    who: String,
    /// As D-Bus names errors.
    pub name: String,
    why: String,
}

/// A connection. Whoever drops it leaves the bus.
#[derive(Debug)]
pub struct Bus {
    stream: UnixStream,
    serial: u32,
    /// What was read and not understood yet.
    bytes: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
    signals: VecDeque<Message>,
    /// Interfaces and members of the signals that are kept; others are nothing to us.
    wanted: Vec<(&'static str, &'static str)>,
    /// Nobody between us and the service: every signal of its comes unasked.
    direct: bool,
}

// === impl Places ===

impl Default for Places {
    fn default() -> Self {
        Self {
            bus: "/run/dbus/system_bus_socket".into(),
            systemd: "/run/systemd/private".into(),
            settings: "/etc/systemd/logind.conf.d".into(),
        }
    }
}

// === impl Rule ===

impl Rule<'_> {
    fn text(&self) -> String {
        let Rule { interface, member, path, argument } = self;
        let mut text = format!("type='signal',interface='{interface}',member='{member}',path='{path}'");
        if let Some((at, value)) = argument {
            text.push_str(&format!(",arg{at}='{value}'"));
        }
        text
    }
}

// === impl BusError ===

impl BusError {
    /// The refusal in an error of a call, if it is one.
    pub fn of(error: &io::Error) -> Option<&BusError> {
        error.get_ref()?.downcast_ref()
    }
}

// === impl Bus ===

impl Bus {
    /// Connects to a bus and introduces itself.
    pub async fn open(socket: &Path) -> io::Result<Bus> {
        within(async {
            let mut bus = Bus::connect(socket, false).await?;
            bus.introduce("").await?;
            bus.send(b"NEGOTIATE_UNIX_FD\r\n").await?;
            bus.expect("AGREE_UNIX_FD").await?;
            bus.send(b"BEGIN\r\n").await?;
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

    /// Connects to a service itself, which asks for no name and gives none.
    pub async fn direct(socket: &Path) -> io::Result<Bus> {
        within(async {
            let mut bus = Bus::connect(socket, true).await?;
            // In one write with who we are: systemd does not look again at what it read together with a `BEGIN`, so a call
            // right behind one would wait for the next.
            bus.introduce("BEGIN\r\n").await?;
            Ok(bus)
        })
        .await
    }

    async fn connect(socket: &Path, direct: bool) -> io::Result<Bus> {
        Ok(Bus {
            stream: UnixStream::connect(socket).await?,
            serial: 0,
            bytes: Vec::new(),
            descriptors: VecDeque::new(),
            signals: VecDeque::new(),
            wanted: Vec::new(),
            direct,
        })
    }

    /// Calls a method and waits for its answer; the descriptor is the one that came with it.
    pub async fn call(&mut self, call: &Call<'_>) -> io::Result<(Message, Option<OwnedFd>)> {
        within(self.ask(call)).await
    }

    /// The next signal.
    pub async fn signal(&mut self) -> io::Result<Message> {
        loop {
            if let Some(signal) = self.signals.pop_front() {
                return Ok(signal);
            }
            if let (message, _) = self.receive().await?
                && self.wants(&message)
            {
                return Ok(message);
            }
        }
    }

    /// Asks for signals that match a rule.
    pub async fn listen(&mut self, rule: &Rule<'_>) -> io::Result<()> {
        self.wanted.push((rule.interface, rule.member));
        if self.direct {
            return Ok(());
        }
        let call = Call {
            destination: BUS,
            path: "/org/freedesktop/DBus",
            interface: BUS,
            member: "AddMatch",
            arguments: &[wire::Value::Text(&rule.text())],
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
                MessageType::Return if message.answers == serial => return Ok((message, descriptor)),
                MessageType::Error if message.answers == serial => {
                    let why = message.text().unwrap_or_default();
                    let who = call.destination.to_owned();
                    return Err(io::Error::other(BusError { who, name: message.error, why }));
                }
                MessageType::Signal if self.wants(&message) && self.signals.len() < QUEUE => {
                    self.signals.push_back(message);
                }
                _ => {}
            }
        }
    }

    fn wants(&self, message: &Message) -> bool {
        let is =
            |&(interface, member): &(&str, &str)| message.interface == interface && message.member == member;
        message.kind == MessageType::Signal && self.wanted.iter().any(is)
    }

    /// Says who we are.
    async fn introduce(&mut self, and: &str) -> io::Result<()> {
        let uid = rustix::process::geteuid().as_raw().to_string();
        let uid: String = uid.bytes().map(|b| format!("{b:02x}")).collect();
        self.send(format!("\0AUTH EXTERNAL {uid}\r\n{and}").as_bytes()).await?;
        self.expect("OK ").await
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
    tokio::time::timeout(TIMEOUT, work).await.map_err(late)?
}
