//! Connections to ports of a Pod, many in one SPDY connection. Each has two streams, one for its bytes and one for what goes
//! wrong; the header `requestid` says which belong together.

mod forward;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use streaming::Activity;
use streaming::spdy::{self, Decoder, Encoder, Frame};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::IDLE;
use super::processes::Processes;

/// Connections of one client at once, those included that are not yet whole.
const CONNECTIONS: usize = 512;
/// For the second stream of a connection to come, as upstream.
const CREATION: Duration = Duration::from_secs(30);
/// A connection that takes nothing for so long is given up: the others wait behind it.
const STUCK: Duration = Duration::from_secs(30);
/// Pieces that may wait for one connection; frames that may wait for the client.
const WAITING: usize = 32;

/// A client's connections.
struct Ports {
    sandbox: String,
    processes: Arc<dyn Processes>,
    encoder: Encoder,
    frames: mpsc::Sender<BytesMut>,
    /// Of which only one stream is there, by request.
    halves: HashMap<String, Half>,
    /// By the stream with bytes.
    open: HashMap<u32, Open>,
    connections: JoinSet<u32>,
}

/// A connection that is under way.
struct Open {
    /// Into it, until the client has no more.
    input: Option<mpsc::Sender<Bytes>>,
    /// The client wants nothing more of it.
    gone: CancellationToken,
}

/// A connection of which one stream is there.
struct Half {
    is_data: bool,
    stream: u32,
    port: u16,
    since: Instant,
}

/// The numbers of a connection's streams, and where it leads.
#[derive(Clone, Copy, Debug)]
struct Pair {
    data: u32,
    error: u32,
    port: u16,
}

/// Until the client is gone.
pub(super) async fn run(client: impl AsyncRead + AsyncWrite, sandbox: String, processes: Arc<dyn Processes>) {
    let (mut from, mut to) = tokio::io::split(client);
    let (frames, mut their_frames) = mpsc::channel::<BytesMut>(WAITING);
    let activity = Activity::new();
    let ports = Ports {
        sandbox,
        processes,
        encoder: Encoder::default(),
        frames,
        halves: HashMap::new(),
        open: HashMap::new(),
        connections: JoinSet::new(),
    };
    let write = async {
        while let Some(frame) = their_frames.recv().await {
            activity.mark();
            if to.write_all(&frame).await.is_err() || to.flush().await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = ports.hear(&mut from, &activity) => {}
        () = write => {}
        () = activity.cease(IDLE) => {}
    }
}

// === impl Ports ===

impl Ports {
    async fn hear(mut self, from: &mut (impl AsyncRead + Unpin), activity: &Activity) {
        let mut decoder = Decoder::of_server();
        let mut ticks = tokio::time::interval(CREATION / 4);
        loop {
            loop {
                match decoder.next_frame() {
                    Ok(Some(Frame::GoAway)) => return,
                    Ok(Some(frame)) => self.obey(frame).await,
                    Ok(None) => break,
                    Err(why) => return tracing::debug!(%why, "a client broke the protocol"),
                }
            }
            tokio::select! {
                read = from.read_buf(decoder.buffer()) => match read {
                    Ok(1..) => activity.mark(),
                    _ => return,
                },
                Some(ended) = self.connections.join_next() => drop(ended.map(|stream| self.open.remove(&stream))),
                now = ticks.tick() => self.give_up(now).await,
            }
        }
    }

    async fn obey(&mut self, frame: Frame) {
        let mut out = BytesMut::new();
        match frame {
            Frame::Open { stream, headers, .. } => return self.open(stream, &headers).await,
            Frame::Data { stream, bytes, last } => {
                if !bytes.is_empty() {
                    self.pass_on(stream, bytes).await;
                }
                if last && let Some(open) = self.open.get_mut(&stream) {
                    // The connection hears that there is no more.
                    open.input = None;
                }
            }
            Frame::Reset { stream, .. } => {
                if let Some(open) = self.open.get(&stream) {
                    open.gone.cancel();
                }
            }
            Frame::Ping { id } => spdy::put_ping(&mut out, id),
            _ => {}
        }
        self.tell(out).await;
    }

    async fn pass_on(&mut self, stream: u32, bytes: Bytes) {
        let Some(open) = self.open.get_mut(&stream) else { return };
        let Some(input) = &open.input else { return };
        match tokio::time::timeout(STUCK, input.send(bytes)).await {
            Ok(Ok(())) => {}
            // It takes no more, and may still have something to say.
            Ok(Err(_)) => open.input = None,
            Err(_) => {
                open.gone.cancel();
                let mut out = BytesMut::new();
                spdy::put_reset(&mut out, stream, spdy::CANCELLED);
                self.tell(out).await;
            }
        }
    }

    async fn open(&mut self, stream: u32, headers: &[(String, String)]) {
        let mut out = BytesMut::new();
        match self.accept(stream, headers) {
            Ok(None) => self.encoder.accept(&mut out, stream),
            Ok(Some(pair)) => {
                self.encoder.accept(&mut out, stream);
                // It is accepted before anything is said on it.
                self.tell(std::mem::take(&mut out)).await;
                self.begin(pair);
            }
            Err(why) => {
                tracing::debug!(why, "a stream of a port is refused");
                spdy::put_reset(&mut out, stream, spdy::REFUSED);
            }
        }
        self.tell(out).await;
    }

    /// The connection that is whole with this stream.
    fn accept(&mut self, stream: u32, headers: &[(String, String)]) -> Result<Option<Pair>, &'static str> {
        let header = |name: &str| headers.iter().find(|(n, _)| n == name).map_or("", |(_, v)| v.as_str());
        let is_data = match header("streamtype") {
            "data" => true,
            "error" => false,
            _ => return Err("its type is neither data nor error"),
        };
        let port = header("port").parse::<u16>().ok().filter(|port| *port > 0);
        let port = port.ok_or("its port is none from 1 to 65535")?;
        // Very old clients give no number; their stream of errors comes just before the one with bytes.
        let request = match header("requestid") {
            "" if is_data => format!("stream {}", stream.saturating_sub(2)),
            "" => format!("stream {stream}"),
            id => id.to_owned(),
        };
        if let Some(half) = self.halves.remove(&request) {
            if half.is_data == is_data || half.port != port {
                return Err("its number is another's");
            }
            let (data, error) = if is_data { (stream, half.stream) } else { (half.stream, stream) };
            return Ok(Some(Pair { data, error, port }));
        }
        if self.halves.len() + self.connections.len() >= CONNECTIONS {
            return Err("there are too many connections");
        }
        self.halves.insert(request, Half { is_data, stream, port, since: Instant::now() });
        Ok(None)
    }

    fn begin(&mut self, pair: Pair) {
        let ((input, inputs), gone) = (mpsc::channel(WAITING), CancellationToken::new());
        self.open.insert(pair.data, Open { input: Some(input), gone: gone.clone() });
        let (sandbox, processes, frames) =
            (self.sandbox.clone(), self.processes.clone(), self.frames.clone());
        self.connections.spawn(async move {
            forward::run(&sandbox, pair, &*processes, inputs, &frames, &gone).await;
            pair.data
        });
    }

    /// Streams whose other half does not come.
    async fn give_up(&mut self, now: Instant) {
        let mut out = BytesMut::new();
        self.halves.retain(|_, half| {
            let stays = now < half.since + CREATION;
            if !stays {
                spdy::put_reset(&mut out, half.stream, spdy::CANCELLED);
            }
            stays
        });
        self.tell(out).await;
    }

    async fn tell(&self, out: BytesMut) {
        if !out.is_empty() {
            // The loop that writes ends with its client, and so does this one.
            let _ = self.frames.send(out).await;
        }
    }
}
