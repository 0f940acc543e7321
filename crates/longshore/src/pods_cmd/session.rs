//! `longshore pods exec -it`: a command with the caller's keyboard and screen.

use std::io::{BufRead, Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use bytes::{Bytes, BytesMut};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use kubelet::server::local_api::ErrorBody;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Deserialize;
use streaming::CHANNELS;
use streaming::websocket::{self, Decoder, Message, Role};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::PodsError;
use super::client::ClientError;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;
/// Bytes read from the keyboard, or the pipe that stands for it, at a time.
const PIECE: usize = 32 << 10;
/// On a socket of this machine nobody is fooled by what a mask is for.
const MASK: Option<[u8; 4]> = Some([0; 4]);

/// What is sent to the container.
enum Sent {
    Input(Vec<u8>),
    EndOfInput,
    Size(u16, u16),
}

/// How the command ended, as the kubelet tells it.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    status: String,
    message: String,
    details: Details,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Details {
    causes: Vec<Cause>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Cause {
    reason: String,
    message: String,
}

/// Whether the command gets a terminal. As with kubectl, only one whose input is a terminal has one to lend: a runtime
/// hangs up the terminal of a command whose input ends, and what was not read of its output by then is lost. The error
/// is what the user is told.
pub(super) fn lends_terminal(stdin: bool, tty: bool, is_terminal: bool) -> Result<bool, &'static str> {
    match (stdin && tty, is_terminal) {
        (true, false) => Err("Unable to use a TTY - input is not a terminal or the right kind of file"),
        (lent, _) => Ok(lent),
    }
}

/// Whether input has ended before it began, as that of `</dev/null` has. Such a command gets no input at all, which is the
/// same to it: containerd's shim can lose the end of an input that ends just as the command starts, and the command
/// then waits for it for ever.
pub(super) fn is_spent<I: AsFd + BufRead>(input: &mut I) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN)], Some(&now));
    // What is read here stays in the buffer, for whoever reads next.
    ready.is_ok_and(|n| n > 0) && input.fill_buf().is_ok_and(<[u8]>::is_empty)
}

/// Runs it to its end. With `stdin` our input is the command's; with `tty` so is our terminal.
pub(super) async fn run(socket: &Path, path: &str, stdin: bool, tty: bool) -> Result<ExitCode, PodsError> {
    let stream = connect(socket, path).await?;
    let (from, to) = tokio::io::split(stream);
    let terminal = std::io::stdin();
    let raw = match tty {
        true => {
            let own = terminal.as_fd().try_clone_to_owned();
            Some(
                own.and_then(sys::terminal::Raw::new)
                    .map_err(|e| PodsError::Exec(format!("set up the terminal: {e}")))?,
            )
        }
        false => None,
    };
    let (sender, receiver) = mpsc::channel(4);
    if stdin {
        read_input(sender.clone());
    }
    if raw.is_some() {
        supervise::spawn("size of the terminal", watch_size(sender.clone()));
    }
    let writing = supervise::spawn("input", send(to, receiver));
    let ended = receive(from).await;
    writing.abort();
    drop(raw);
    ended
}

async fn connect(socket: &Path, path: &str) -> Result<TokioIo<Upgraded>, PodsError> {
    let broken = |e: &dyn std::fmt::Display| PodsError::Client(ClientError::Broken(e.to_string()));
    let stream = UnixStream::connect(socket).await.map_err(|e| super::client::explain(socket, e))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| broken(&e))?;
    supervise::spawn("connection", connection.with_upgrades());
    let request = Request::builder()
        .uri(path)
        .header("host", "localhost")
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "bG9uZ3Nob3JlIHBvZHM=")
        .header("sec-websocket-protocol", CHANNELS)
        .body(Empty::<Bytes>::new())
        .map_err(|e| broken(&e))?;
    let mut response = sender.send_request(request).await.map_err(|e| broken(&e))?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let upgraded = hyper::upgrade::on(&mut response).await.map_err(|e| broken(&e))?;
        return Ok(TokioIo::new(upgraded));
    }
    let text = response.into_body().collect().await.map_err(|e| broken(&e))?.to_bytes();
    let message = match serde_json::from_slice::<ErrorBody>(&text) {
        Ok(body) => body.message,
        Err(_) => String::from_utf8_lossy(&text).trim_end().to_owned(),
    };
    Err(PodsError::Exec(message))
}

/// On a thread of its own: a keyboard cannot be asked to give up.
fn read_input(sender: mpsc::Sender<Sent>) {
    std::thread::spawn(move || {
        let mut buffer = vec![0; PIECE];
        let mut input = std::io::stdin();
        loop {
            let sent = match input.read(&mut buffer) {
                Ok(0) | Err(_) => Sent::EndOfInput,
                Ok(n) => Sent::Input(buffer[..n].to_vec()),
            };
            let last = matches!(sent, Sent::EndOfInput);
            if sender.blocking_send(sent).is_err() || last {
                return;
            }
        }
    });
}

async fn watch_size(sender: mpsc::Sender<Sent>) {
    let Ok(mut changes) = signal(SignalKind::window_change()) else { return };
    loop {
        if let Some((rows, columns)) = sys::terminal::size(&std::io::stdin())
            && sender.send(Sent::Size(rows, columns)).await.is_err()
        {
            return;
        }
        if changes.recv().await.is_none() {
            return;
        }
    }
}

async fn send(mut to: WriteHalf<TokioIo<Upgraded>>, mut receiver: mpsc::Receiver<Sent>) {
    let mut out = BytesMut::new();
    while let Some(sent) = receiver.recv().await {
        match sent {
            Sent::Input(bytes) => websocket::put_binary(&mut out, MASK, &[&[STDIN], &bytes]),
            Sent::EndOfInput => websocket::put_binary(&mut out, MASK, &[&[CLOSE, STDIN]]),
            Sent::Size(rows, columns) => {
                let size = format!(r#"{{"Width":{columns},"Height":{rows}}}"#);
                websocket::put_binary(&mut out, MASK, &[&[RESIZE], size.as_bytes()]);
            }
        }
        if to.write_all(&out).await.is_err() || to.flush().await.is_err() {
            return;
        }
        out.clear();
    }
    // Nothing more to say, but the command goes on: the connection stays.
    std::future::pending().await
}

/// Shows what the command writes until it has ended.
async fn receive(mut from: ReadHalf<TokioIo<Upgraded>>) -> Result<ExitCode, PodsError> {
    let mut decoder = Decoder::new(Role::Client);
    loop {
        while let Some(message) = decoder.next_message().map_err(|e| PodsError::Nonsense(e.to_string()))? {
            let (Message::Binary(bytes) | Message::Text(bytes)) = message else {
                if matches!(message, Message::Close(_)) {
                    return Err(PodsError::Exec("the kubelet closed the connection".to_owned()));
                }
                continue;
            };
            let Some((channel, bytes)) = bytes.split_first() else { continue };
            match *channel {
                STDOUT => show(&mut std::io::stdout().lock(), bytes),
                STDERR => show(&mut std::io::stderr().lock(), bytes),
                STATUS => return conclude(bytes),
                _ => {}
            }
        }
        let n = from.read_buf(decoder.buffer()).await.map_err(|e| ClientError::Broken(e.to_string()))?;
        if n == 0 {
            return Err(PodsError::Exec("the connection to the kubelet broke".to_owned()));
        }
    }
}

/// A screen that is gone does not end the command.
fn show(out: &mut impl Write, bytes: &[u8]) {
    let _ = out.write_all(bytes).and_then(|()| out.flush());
}

fn conclude(bytes: &[u8]) -> Result<ExitCode, PodsError> {
    let status: Status = serde_json::from_slice(bytes).map_err(|e| PodsError::Nonsense(e.to_string()))?;
    if status.status == "Success" {
        return Ok(ExitCode::SUCCESS);
    }
    let code = status
        .details
        .causes
        .iter()
        .find(|c| c.reason == "ExitCode")
        .and_then(|c| c.message.parse::<u8>().ok());
    code.map(ExitCode::from).ok_or(PodsError::Exec(status.message))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::BufReader;
    use std::os::fd::BorrowedFd;

    use super::*;

    #[test]
    fn only_a_terminal_is_lent_and_only_with_input() {
        let told = "Unable to use a TTY - input is not a terminal or the right kind of file";
        for (stdin, tty, is_terminal, want) in [
            (true, true, true, Ok(true)),
            (true, true, false, Err(told)),
            (true, false, true, Ok(false)),
            (true, false, false, Ok(false)),
            (false, true, true, Ok(false)),
            (false, true, false, Ok(false)),
        ] {
            assert_eq!(lends_terminal(stdin, tty, is_terminal), want, "{stdin} {tty} {is_terminal}");
        }
    }

    #[test]
    fn input_that_has_ended_is_told_from_input_that_has_not_begun() {
        struct Input(BufReader<std::io::PipeReader>);
        impl AsFd for Input {
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.0.get_ref().as_fd()
            }
        }
        impl Read for Input {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                self.0.read(buffer)
            }
        }
        impl BufRead for Input {
            fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
                self.0.fill_buf()
            }
            fn consume(&mut self, n: usize) {
                self.0.consume(n);
            }
        }
        let (from, mut to) = std::io::pipe().unwrap();
        let mut input = Input(BufReader::new(from));
        assert!(!is_spent(&mut input), "somebody may still write");
        to.write_all(b"word").unwrap();
        assert!(!is_spent(&mut input));
        drop(to);
        let mut text = String::new();
        input.read_to_string(&mut text).unwrap();
        assert_eq!(text, "word", "nothing is lost by looking");
        assert!(is_spent(&mut input));
    }

    #[test]
    fn the_exit_code_is_found() {
        let failed = br#"{"status":"Failure","reason":"NonZeroExitCode","message":"x","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#;
        assert_eq!(conclude(failed).ok(), Some(ExitCode::from(7)));
        assert_eq!(conclude(br#"{"metadata":{},"status":"Success"}"#).ok(), Some(ExitCode::SUCCESS));
        let error =
            conclude(br#"{"status":"Failure","message":"no such thing"}"#).err().map(|e| e.to_string());
        assert_eq!(error.as_deref(), Some("no such thing"));
        assert!(conclude(b"nonsense").is_err());
    }
}
