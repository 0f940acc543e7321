//! The channels of a WebSocket client, as SPDY streams of the runtime.
//!
//! | channel | stream | |
//! |---|---|---|
//! | 0 | stdin | from the client; ended by a message on channel 255 that names it |
//! | 1, 2 | stdout, stderr | to the client |
//! | 3 | error | to the client: how the command ended, a Status |
//! | 4 | resize | from the client: the size of its terminal |
//!
//! The two directions are two loops: a command that writes before it reads must not keep either of them.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::spdy::{self, Encoder, Frame};
use super::websocket::{self, Decoder, Message, Role};
use super::{Activity, PONGS, StreamOptions, tunnel};

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

/// The error stream is opened first.
const ERROR_STREAM: u32 = 1;
/// How long the end of an input without a byte is kept back. containerd's shim opens its end of the input as the command
/// starts; what is closed at that very moment it never sees closed, and the command waits for ever. A byte of input
/// makes containerd wait for the shim, so only empty input is in danger.
const EMPTY_INPUT: Duration = Duration::from_secs(1);
/// A Status on the error stream; longer ones are cut.
const STATUS_MAX: usize = 64 << 10;

/// The streams that were opened: channel and id.
#[derive(Clone, Debug)]
struct Opened(Vec<(u8, u32)>);

/// How far the client's input has come.
#[derive(Clone, Copy, Debug)]
enum Input {
    /// No byte so far, since then.
    Empty(Instant),
    Begun,
    /// It ended without a byte; the runtime hears of it then.
    EndsAt(Instant),
}

/// What the loop from the client has to send for the other one.
enum Reply {
    Ping(u32),
}

/// Goes on until the command has ended, or either end is gone.
pub(super) async fn run<A, B>(
    client: A,
    runtime: B,
    wants: StreamOptions,
    activity: &Activity,
    idle: Duration,
) where
    A: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (from_runtime, mut to_runtime) = tokio::io::split(runtime);
    let (streams, hello) = Opened::new(wants);
    let (reply, replies) = mpsc::channel(PONGS);
    let (pong, pongs) = mpsc::channel(PONGS);
    if let Err(error) = to_runtime.write_all(&hello).await {
        let _ = report(&mut to_client, &failure(&error.to_string())).await;
        return tunnel::close(&mut to_client, websocket::NORMAL).await;
    }
    let code = tokio::select! {
        code = inward(&mut from_client, to_runtime, &streams, pong, replies, activity) => code,
        code = outward(from_runtime, &mut to_client, &streams, reply, pongs, activity) => code,
        () = activity.cease(idle) => Ok(websocket::GOING_AWAY),
    };
    let code = code.unwrap_or_else(|error| {
        tracing::trace!(%error, "a translated stream broke");
        websocket::GOING_AWAY
    });
    tunnel::close(&mut to_client, code).await;
    super::linger(&mut from_client).await;
}

/// From the client to the runtime. Ends when the client is gone. A runtime that takes nothing more has ended the command
/// and may still be telling of it: what the client says then goes nowhere.
async fn inward<R, W>(
    from: &mut R,
    to: W,
    streams: &Opened,
    pong: mpsc::Sender<Bytes>,
    mut replies: mpsc::Receiver<Reply>,
    activity: &Activity,
) -> io::Result<u16>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let (mut decoder, mut out, mut to) = (Decoder::new(Role::Server), BytesMut::new(), Some(to));
    let mut input = Input::Empty(Instant::now());
    loop {
        loop {
            match decoder.next_message() {
                Ok(Some(Message::Binary(bytes) | Message::Text(bytes))) => {
                    activity.mark();
                    if !input.keeps_back(&bytes) {
                        streams.put(&mut out, &bytes);
                    }
                }
                // One that asks too often is answered less often.
                Ok(Some(Message::Ping(payload))) => drop(pong.try_send(payload)),
                Ok(Some(Message::Pong)) => {}
                Ok(Some(Message::Close(_))) => return Ok(websocket::NORMAL),
                Ok(None) => break,
                Err(broken) => return Ok(broken.code),
            }
            if out.len() >= spdy::PIECE {
                pass_on(&mut to, &mut out).await;
            }
        }
        pass_on(&mut to, &mut out).await;
        tokio::select! {
            n = from.read_buf(decoder.buffer()) => if n? == 0 { return Ok(websocket::NORMAL) },
            Some(Reply::Ping(id)) = replies.recv() => spdy::put_ping(&mut out, id),
            () = input.ends() => {
                input = Input::Begun;
                streams.put(&mut out, &[CLOSE, STDIN]);
            }
        }
    }
}

/// From the runtime to the client. Ends when the command has, and the client was told how.
async fn outward<R, W>(
    mut from: R,
    to: &mut W,
    streams: &Opened,
    reply: mpsc::Sender<Reply>,
    mut pongs: mpsc::Receiver<Bytes>,
    activity: &Activity,
) -> io::Result<u16>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let (mut decoder, mut out) = (spdy::Decoder::default(), BytesMut::new());
    let mut story = Story::new(streams);
    loop {
        loop {
            let frame = match decoder.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(broken) => {
                    send(to, &mut out).await?;
                    report(to, &failure(&broken.to_string())).await?;
                    return Ok(websocket::NORMAL);
                }
            };
            activity.mark();
            match frame {
                Frame::Data { stream, bytes, last } => story.hear(streams, stream, &bytes, last, &mut out),
                Frame::Reply { stream, last: true } => story.end(stream),
                Frame::Reset { stream, .. } => story.end(stream),
                // Our own pings, which we do not send, would have odd ids.
                Frame::Ping { id } if id % 2 == 0 => drop(reply.try_send(Reply::Ping(id))),
                Frame::Open { .. }
                | Frame::Ping { .. }
                | Frame::Reply { .. }
                | Frame::GoAway
                | Frame::Other => {}
            }
            if out.len() >= spdy::PIECE {
                send(to, &mut out).await?;
            }
        }
        send(to, &mut out).await?;
        if story.is_told() {
            report(to, &story.status).await?;
            return Ok(websocket::NORMAL);
        }
        tokio::select! {
            n = from.read_buf(decoder.buffer()) => if n.unwrap_or(0) == 0 {
                report(to, &story.last_word()).await?;
                return Ok(websocket::NORMAL);
            },
            Some(payload) = pongs.recv() => websocket::put_pong(&mut out, None, &payload),
        }
    }
}

async fn pass_on(to: &mut Option<impl AsyncWrite + Unpin>, out: &mut BytesMut) {
    if let Some(runtime) = to
        && let Err(error) = send(runtime, out).await
    {
        tracing::trace!(%error, "the runtime takes nothing more");
        *to = None;
    }
    out.clear();
}

async fn send(to: &mut (impl AsyncWrite + Unpin), out: &mut BytesMut) -> io::Result<()> {
    if out.is_empty() {
        return Ok(());
    }
    to.write_all(out).await?;
    to.flush().await?;
    out.clear();
    Ok(())
}

async fn report(to: &mut (impl AsyncWrite + Unpin), status: &[u8]) -> io::Result<()> {
    let success = br#"{"metadata":{},"status":"Success"}"#;
    let status = if status.is_empty() { success } else { status };
    let mut out = BytesMut::new();
    websocket::put_binary(&mut out, None, &[&[ERROR], status]);
    send(to, &mut out).await
}

/// The Status of a stream that we could not keep up.
fn failure(why: &str) -> Vec<u8> {
    let message = format!("Internal error occurred: {why}");
    let status = serde_json::json!({
        "metadata": {}, "status": "Failure", "message": message, "reason": "InternalError",
        "details": {"causes": [{"message": why}]}, "code": 500,
    });
    status.to_string().into_bytes()
}

// === impl Input ===

impl Input {
    /// Learns from a message; whether the runtime is not to hear it yet.
    fn keeps_back(&mut self, message: &[u8]) -> bool {
        match (*self, message) {
            (Self::Empty(since), [CLOSE, STDIN, ..]) => *self = Self::EndsAt(since + EMPTY_INPUT),
            (Self::Empty(_), [STDIN, _, ..]) => *self = Self::Begun,
            _ => {}
        }
        // Of an input that has ended there is no more to hear.
        matches!((*self, message), (Self::EndsAt(_), [CLOSE, STDIN, ..] | [STDIN, ..]))
    }

    async fn ends(&self) {
        match self {
            Self::EndsAt(then) => tokio::time::sleep_until(*then).await,
            Self::Empty(_) | Self::Begun => std::future::pending().await,
        }
    }
}

// === impl Opened ===

impl Opened {
    /// The streams and the bytes that open them, in the order in which clients usually do.
    fn new(wants: StreamOptions) -> (Self, BytesMut) {
        let all = [
            (ERROR, "error", true),
            (STDIN, "stdin", wants.stdin),
            (STDOUT, "stdout", wants.stdout),
            (STDERR, "stderr", wants.stderr && !wants.tty),
            (RESIZE, "resize", wants.tty),
        ];
        let (mut encoder, mut hello, mut streams) = (Encoder::default(), BytesMut::new(), Vec::new());
        for (channel, name, _) in all.into_iter().filter(|(_, _, wanted)| *wanted) {
            let id = streams.len() as u32 * 2 + 1;
            encoder.open(&mut hello, id, &[("streamtype", name)]);
            streams.push((channel, id));
        }
        (Self(streams), hello)
    }

    fn id(&self, channel: u8) -> Option<u32> {
        self.0.iter().find(|(c, _)| *c == channel).map(|(_, id)| *id)
    }

    fn channel(&self, id: u32) -> Option<u8> {
        self.0.iter().find(|(_, i)| *i == id).map(|(c, _)| *c)
    }

    /// What a client's message is to the runtime; nothing when it concerns no stream of the client's.
    fn put(&self, out: &mut BytesMut, message: &[u8]) {
        let Some((channel, bytes)) = message.split_first() else { return };
        match (*channel, bytes) {
            (STDIN | RESIZE, bytes) => {
                if let Some(id) = self.id(*channel) {
                    spdy::put_data(out, id, bytes, false);
                }
            }
            (CLOSE, [closed @ (STDIN | RESIZE), ..]) => {
                if let Some(id) = self.id(*closed) {
                    spdy::put_data(out, id, &[], true);
                }
            }
            _ => {}
        }
    }
}

/// How far the runtime has told what happened.
struct Story {
    /// Streams that may still bring something.
    open: Vec<u32>,
    status: Vec<u8>,
    heard: bool,
}

// === impl Story ===

impl Story {
    fn new(streams: &Opened) -> Self {
        let told = [ERROR, STDOUT, STDERR];
        let open = streams.0.iter().filter(|(c, _)| told.contains(c)).map(|(_, id)| *id).collect();
        Self { open, status: Vec::new(), heard: false }
    }

    fn hear(&mut self, streams: &Opened, stream: u32, bytes: &[u8], last: bool, out: &mut BytesMut) {
        match streams.channel(stream) {
            Some(ERROR) => {
                self.heard = true;
                let room = STATUS_MAX.saturating_sub(self.status.len()).min(bytes.len());
                self.status.extend_from_slice(&bytes[..room]);
            }
            Some(channel @ (STDOUT | STDERR)) if !bytes.is_empty() => {
                websocket::put_binary(out, None, &[&[channel], bytes]);
            }
            _ => {}
        }
        if last {
            self.end(stream);
        }
    }

    fn end(&mut self, stream: u32) {
        self.open.retain(|id| *id != stream);
    }

    fn is_told(&self) -> bool {
        self.open.is_empty()
    }

    /// The connection ended: with a status that is how the command did; without, something broke, unless the error
    /// stream was closed in peace.
    fn last_word(&self) -> Vec<u8> {
        match self.heard || !self.open.contains(&ERROR_STREAM) {
            true => self.status.clone(),
            false => failure("the connection to the container runtime broke before the command ended"),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_wanted_is_opened() {
        let all = StreamOptions { stdin: true, stdout: true, stderr: true, tty: false };
        assert_eq!(Opened::new(all).0.0, [(ERROR, 1), (STDIN, 3), (STDOUT, 5), (STDERR, 7)]);
        let tty = StreamOptions { tty: true, ..all };
        assert_eq!(Opened::new(tty).0.0, [(ERROR, 1), (STDIN, 3), (STDOUT, 5), (RESIZE, 7)]);
        let one = StreamOptions { stdout: true, ..StreamOptions::default() };
        assert_eq!(Opened::new(one).0.0, [(ERROR, 1), (STDOUT, 3)]);
    }

    #[test]
    fn messages_reach_the_streams_they_mean_and_no_other() {
        let (streams, _) =
            Opened::new(StreamOptions { stdin: true, stdout: true, ..StreamOptions::default() });
        let rows: &[(&[u8], &[u8])] = &[
            (&[STDIN, b'h', b'i'], &[0, 0, 0, 3, 0, 0, 0, 2, b'h', b'i']),
            (&[CLOSE, STDIN], &[0, 0, 0, 3, 1, 0, 0, 0]),
            (&[STDOUT, b'x'], &[]),
            (&[RESIZE, b'x'], &[]),
            (&[CLOSE, STDOUT], &[]),
            (&[CLOSE], &[]),
            (&[], &[]),
            (&[9, 9], &[]),
        ];
        for (message, bytes) in rows {
            let mut out = BytesMut::new();
            streams.put(&mut out, message);
            assert_eq!(&out[..], *bytes, "{message:?}");
        }
    }
}
