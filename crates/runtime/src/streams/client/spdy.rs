//! A client that speaks SPDY/3.1: one stream for each thing that a command has, named by its header `streamtype`.

use std::collections::VecDeque;

use bytes::BytesMut;
use streaming::StreamOptions;
use streaming::spdy::{self, Decoder, Encoder, Frame};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{Broken, Output, Said, Sizes};
use crate::streams::outcome::Outcome;

/// Of input that comes before all streams are open.
const EARLY_MAX: usize = 1 << 20;

/// The streams that the client opened.
#[derive(Clone, Copy, Debug, Default)]
struct Ids {
    error: Option<u32>,
    stdin: Option<u32>,
    stdout: Option<u32>,
    stderr: Option<u32>,
    resize: Option<u32>,
}

#[derive(Debug)]
pub(in crate::streams) struct Incoming {
    decoder: Decoder,
    ids: Ids,
    sizes: Sizes,
    early: VecDeque<Frame>,
}

#[derive(Clone, Debug)]
pub(in crate::streams) struct Outgoing {
    ids: Ids,
    has_status: bool,
}

/// Accepts streams until all that the command has are there.
pub(super) async fn open<R, W>(
    wants: StreamOptions,
    has_status: bool,
    has_resize: bool,
    from: &mut R,
    to: &mut W,
) -> Result<(Incoming, Outgoing), Broken>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut incoming = Incoming {
        decoder: Decoder::of_server(),
        ids: Ids::default(),
        sizes: Sizes::default(),
        early: VecDeque::new(),
    };
    let (mut encoder, mut out, mut early) = (Encoder::default(), BytesMut::new(), 0);
    loop {
        while let Some(frame) = incoming.decoder.next_frame().map_err(broken)? {
            match frame {
                Frame::Open { stream, headers, .. } => {
                    let name = headers.iter().find(|(name, _)| name == "streamtype");
                    let name = name.map_or("", |(_, value)| value.as_str());
                    match incoming.ids.place(name, wants, has_resize) {
                        Some(place @ None) => {
                            *place = Some(stream);
                            encoder.accept(&mut out, stream);
                        }
                        _ => spdy::put_reset(&mut out, stream, spdy::REFUSED),
                    }
                }
                Frame::Ping { id } => spdy::put_ping(&mut out, id),
                Frame::GoAway => return Err(Broken("the client went away".into())),
                frame => {
                    early += if let Frame::Data { bytes, .. } = &frame { bytes.len() + 64 } else { 64 };
                    if early > EARLY_MAX {
                        return Err(Broken("the client says too much before its streams are open".into()));
                    }
                    incoming.early.push_back(frame);
                }
            }
        }
        if !out.is_empty() {
            to.write_all_buf(&mut out).await.map_err(broken)?;
            to.flush().await.map_err(broken)?;
        }
        if incoming.ids.are_all(wants, has_resize) {
            let outgoing = Outgoing { ids: incoming.ids, has_status };
            return Ok((incoming, outgoing));
        }
        if from.read_buf(incoming.decoder.buffer()).await.map_err(broken)? == 0 {
            return Err(Broken("the client went away".into()));
        }
    }
}

fn broken(why: impl ToString) -> Broken {
    Broken(why.to_string())
}

// === impl Ids ===

impl Ids {
    /// Where the stream of that name belongs, if the command has one.
    fn place(&mut self, name: &str, wants: StreamOptions, has_resize: bool) -> Option<&mut Option<u32>> {
        match name {
            "error" => Some(&mut self.error),
            "stdin" if wants.stdin => Some(&mut self.stdin),
            "stdout" if wants.stdout => Some(&mut self.stdout),
            "stderr" if wants.stderr => Some(&mut self.stderr),
            "resize" if wants.tty && has_resize => Some(&mut self.resize),
            _ => None,
        }
    }

    fn are_all(&self, wants: StreamOptions, has_resize: bool) -> bool {
        self.error.is_some()
            && self.stdin.is_some() == wants.stdin
            && self.stdout.is_some() == wants.stdout
            && self.stderr.is_some() == wants.stderr
            && self.resize.is_some() == (wants.tty && has_resize)
    }

    fn output(&self, which: Output) -> Option<u32> {
        match which {
            Output::Stdout => self.stdout,
            Output::Stderr => self.stderr,
        }
    }
}

// === impl Incoming ===

impl Incoming {
    pub(super) fn buffer(&mut self) -> &mut BytesMut {
        self.decoder.buffer()
    }

    pub(super) fn next_said(&mut self) -> Result<Option<Said>, Broken> {
        loop {
            let frame = match self.early.pop_front() {
                Some(frame) => frame,
                None => match self.decoder.next_frame().map_err(broken)? {
                    Some(frame) => frame,
                    None => return Ok(None),
                },
            };
            if let Some(said) = self.understand(frame) {
                return Ok(Some(said));
            }
        }
    }

    fn understand(&mut self, frame: Frame) -> Option<Said> {
        let mut out = BytesMut::new();
        match frame {
            Frame::Data { stream, bytes, last } if self.ids.stdin == Some(stream) => {
                if last && !bytes.is_empty() {
                    self.early.push_front(Frame::Data { stream, bytes: bytes::Bytes::new(), last });
                    return Some(Said::Input(bytes));
                }
                return if last { Some(Said::InputEnds) } else { Some(Said::Input(bytes)) };
            }
            Frame::Data { stream, bytes, .. } if self.ids.resize == Some(stream) => {
                return self.sizes.hear(&bytes);
            }
            Frame::Reset { stream, .. } if self.ids.stdin == Some(stream) => return Some(Said::InputEnds),
            Frame::Ping { id } => spdy::put_ping(&mut out, id),
            Frame::Open { stream, .. } => spdy::put_reset(&mut out, stream, spdy::REFUSED),
            Frame::GoAway => return Some(Said::Ends),
            _ => return None,
        }
        Some(Said::Answer(out))
    }
}

// === impl Outgoing ===

impl Outgoing {
    pub(super) fn output(&self, out: &mut BytesMut, which: Output, bytes: &[u8]) {
        if let Some(id) = self.ids.output(which) {
            spdy::put_data(out, id, bytes, false);
        }
    }

    pub(super) fn ended(&self, out: &mut BytesMut, which: Output) {
        if let Some(id) = self.ids.output(which) {
            spdy::put_data(out, id, &[], true);
        }
    }

    pub(super) fn outcome(&self, out: &mut BytesMut, outcome: &Outcome) {
        let text = if self.has_status { outcome.status() } else { outcome.text() };
        if let Some(id) = self.ids.error {
            spdy::put_data(out, id, &text, true);
        }
    }
}
