//! A client that speaks WebSocket: each message begins with the number of its channel.
//!
//! | channel | | |
//! |---|---|---|
//! | 0 | stdin | from the client; ended by a message on channel 255 that names it |
//! | 1, 2 | stdout, stderr | to the client |
//! | 3 | error | to the client: how the command ended, a Status |
//! | 4 | resize | from the client: the size of its terminal |

use bytes::{Buf, BytesMut};
use streaming::StreamOptions;
use streaming::websocket::{self, Decoder, Message, Role};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::{Broken, Output, Said, Sizes};
use crate::streams::outcome::Outcome;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;

#[derive(Debug)]
pub(in crate::streams) struct Incoming {
    decoder: Decoder,
    wants: StreamOptions,
    sizes: Sizes,
}

/// An empty message on the lowest channel to the client: some clients take the connection for made only then.
pub(super) async fn greet(wants: StreamOptions, to: &mut (impl AsyncWrite + Unpin)) -> Result<(), Broken> {
    let channel = match wants {
        StreamOptions { stdout: true, .. } => STDOUT,
        StreamOptions { stderr: true, .. } => STDERR,
        _ => ERROR,
    };
    let mut out = BytesMut::new();
    websocket::put_binary(&mut out, None, &[&[channel]]);
    let greeted = async {
        to.write_all_buf(&mut out).await?;
        to.flush().await
    };
    greeted.await.map_err(|error| Broken(error.to_string()))
}

pub(super) fn output(out: &mut BytesMut, which: Output, bytes: &[u8]) {
    let channel = match which {
        Output::Stdout => STDOUT,
        Output::Stderr => STDERR,
    };
    websocket::put_binary(out, None, &[&[channel], bytes]);
}

pub(super) fn outcome(out: &mut BytesMut, outcome: &Outcome) {
    websocket::put_binary(out, None, &[&[ERROR], &outcome.status()]);
    websocket::put_close(out, None, websocket::NORMAL);
}

// === impl Incoming ===

impl Incoming {
    pub(super) fn new(wants: StreamOptions) -> Incoming {
        Incoming { decoder: Decoder::new(Role::Server), wants, sizes: Sizes::default() }
    }

    pub(super) fn buffer(&mut self) -> &mut BytesMut {
        self.decoder.buffer()
    }

    pub(super) fn next_said(&mut self) -> Result<Option<Said>, Broken> {
        loop {
            let message = self.decoder.next_message().map_err(|broken| Broken(broken.to_string()))?;
            let mut bytes = match message {
                None => return Ok(None),
                Some(Message::Binary(bytes) | Message::Text(bytes)) => bytes,
                Some(Message::Ping(payload)) => {
                    let mut out = BytesMut::new();
                    websocket::put_pong(&mut out, None, &payload);
                    return Ok(Some(Said::Answer(out)));
                }
                Some(Message::Pong) => continue,
                Some(Message::Close(_)) => return Ok(Some(Said::Ends)),
            };
            let said = match bytes.first() {
                Some(&STDIN) if self.wants.stdin && bytes.len() > 1 => {
                    bytes.advance(1);
                    Some(Said::Input(bytes))
                }
                Some(&RESIZE) if self.wants.tty => self.sizes.hear(&bytes[1..]),
                Some(&CLOSE) if bytes.get(1) == Some(&STDIN) => Some(Said::InputEnds),
                _ => None,
            };
            if said.is_some() {
                return Ok(said);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn messages_mean_what_their_channel_says() {
        let wants = StreamOptions { stdin: true, stdout: true, tty: true, ..StreamOptions::default() };
        let mut incoming = Incoming::new(wants);
        let mask = Some([1, 2, 3, 4]);
        for message in [
            &b"\0hello"[..],
            b"\0",
            b"\x01mine",
            b"",
            b"\x04{\"Width\":80,\"Height\":24}",
            b"\xff\x00",
            b"\xff\x01",
        ] {
            websocket::put_binary(incoming.buffer(), mask, &[message]);
        }
        websocket::put_close(incoming.buffer(), mask, websocket::NORMAL);
        let want = [
            Said::Input(Bytes::from_static(b"hello")),
            Said::Size { columns: 80, rows: 24 },
            Said::InputEnds,
            Said::Ends,
        ];
        for want in want {
            assert_eq!(incoming.next_said().unwrap(), Some(want));
        }
        assert_eq!(incoming.next_said().unwrap(), None);
        incoming.buffer().extend_from_slice(&[0x82, 1, 0]);
        assert!(incoming.next_said().is_err());
    }
}
