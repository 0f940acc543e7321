//! The client of a command, whatever it speaks: what it says, and how it is told something.

mod channels;
mod spdy;

use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use streaming::StreamOptions;
use tokio::io::{AsyncRead, AsyncWrite};

use super::outcome::Outcome;
use super::speech::Speech;

/// Of all sizes that have not yet been understood.
const SIZES_MAX: usize = 4 << 10;

/// What a client says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    Input(Bytes),
    InputEnds,
    Size {
        columns: u16,
        rows: u16,
    },
    /// Nothing for the command; this is to be answered, as it is.
    Answer(BytesMut),
    /// It says goodbye.
    Ends,
}

/// Where the command's output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    Stdout,
    Stderr,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct Broken(pub(super) String);

/// Meaning out of a client's bytes.
#[derive(Debug)]
pub(super) enum Incoming {
    Spdy(spdy::Incoming),
    Channels(channels::Incoming),
}

/// Bytes for a client.
#[derive(Clone, Debug)]
pub(super) enum Outgoing {
    Spdy(spdy::Outgoing),
    Channels,
}

/// Sizes of a terminal, as JSON, however the bytes were cut.
#[derive(Debug, Default)]
struct Sizes(Vec<u8>);

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Size {
    width: u16,
    height: u16,
}

/// Waits until the client has opened what the command needs.
pub(super) async fn open<R, W>(
    speech: Speech,
    wants: StreamOptions,
    from: &mut R,
    to: &mut W,
) -> Result<(Incoming, Outgoing), Broken>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    match speech {
        Speech::Streams { has_status, has_resize } => {
            let (incoming, outgoing) = spdy::open(wants, has_status, has_resize, from, to).await?;
            Ok((Incoming::Spdy(incoming), Outgoing::Spdy(outgoing)))
        }
        Speech::Channels => {
            channels::greet(wants, to).await?;
            Ok((Incoming::Channels(channels::Incoming::new(wants)), Outgoing::Channels))
        }
        Speech::Ports { .. } => Err(Broken("these are no streams of a command".into())),
    }
}

// === impl Incoming ===

impl Incoming {
    /// Where the next bytes go.
    pub(super) fn buffer(&mut self) -> &mut BytesMut {
        match self {
            Incoming::Spdy(incoming) => incoming.buffer(),
            Incoming::Channels(incoming) => incoming.buffer(),
        }
    }

    /// The next thing it said, if it has arrived.
    pub(super) fn next_said(&mut self) -> Result<Option<Said>, Broken> {
        match self {
            Incoming::Spdy(incoming) => incoming.next_said(),
            Incoming::Channels(incoming) => incoming.next_said(),
        }
    }
}

// === impl Outgoing ===

impl Outgoing {
    pub(super) fn output(&self, out: &mut BytesMut, which: Output, bytes: &[u8]) {
        match self {
            Outgoing::Spdy(outgoing) => outgoing.output(out, which, bytes),
            Outgoing::Channels => channels::output(out, which, bytes),
        }
    }

    /// There will be no more of this output.
    pub(super) fn ended(&self, out: &mut BytesMut, which: Output) {
        match self {
            Outgoing::Spdy(outgoing) => outgoing.ended(out, which),
            // Nobody would understand.
            Outgoing::Channels => {}
        }
    }

    /// The last thing that is told.
    pub(super) fn outcome(&self, out: &mut BytesMut, outcome: &Outcome) {
        match self {
            Outgoing::Spdy(outgoing) => outgoing.outcome(out, outcome),
            Outgoing::Channels => channels::outcome(out, outcome),
        }
    }
}

// === impl Sizes ===

impl Sizes {
    /// The last of the sizes that are whole now.
    fn hear(&mut self, bytes: &[u8]) -> Option<Said> {
        self.0.extend_from_slice(bytes);
        let mut all = serde_json::Deserializer::from_slice(&self.0).into_iter::<Size>();
        let (mut last, mut is_torn) = (None, false);
        for size in all.by_ref() {
            match size {
                Ok(size) => last = Some(size),
                Err(error) => {
                    is_torn = error.is_eof();
                    break;
                }
            }
        }
        let used = all.byte_offset();
        // What is no size is forgotten, with what stands behind it.
        if is_torn && self.0.len() - used <= SIZES_MAX {
            self.0.drain(..used);
        } else {
            self.0.clear();
        }
        last.map(|size| Said::Size { columns: size.width, rows: size.height })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_understood_however_they_are_cut() {
        let mut sizes = Sizes::default();
        let size = |columns, rows| Some(Said::Size { columns, rows });
        assert_eq!(sizes.hear(b"{\"Width\":80,\"Height\":24}\n{\"Width\":81,\"Hei"), size(81 - 1, 24));
        assert_eq!(sizes.hear(b"ght\":25}"), size(81, 25));
        assert_eq!(sizes.hear(b"{\"Width\":1,\"Height\":2}{\"Width\":3,\"Height\":4}"), size(3, 4));
        assert_eq!(sizes.hear(b"rubbish"), None);
        assert_eq!(sizes.hear(b"{\"Width\":5,\"Height\":6}"), size(5, 6));
        assert_eq!(sizes.hear(&[b' '; 5000]), None);
        assert!(sizes.0.len() <= SIZES_MAX);
    }
}
