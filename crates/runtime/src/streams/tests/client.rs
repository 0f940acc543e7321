//! A client of the streaming server, over the wire.

use std::collections::{BTreeMap, BTreeSet};

use bytes::BytesMut;
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use streaming::dial::{self, Opened};
use streaming::spdy::{self, Encoder, Frame};
use streaming::websocket::{self, Message, Role};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const MASK: Option<[u8; 4]> = Some([9, 8, 7, 6]);

pub(super) struct Client {
    stream: TokioIo<Upgraded>,
    speech: Speech,
    heard: BTreeMap<u32, Vec<u8>>,
    ended: BTreeSet<u32>,
    refused: BTreeSet<u32>,
    next: u32,
    stdin: u32,
}

enum Speech {
    Spdy(spdy::Decoder, Encoder),
    /// SPDY in WebSocket messages.
    Wrapped(websocket::Decoder, spdy::Decoder, Encoder),
    Channels(websocket::Decoder),
}

/// All that came of a command.
pub(super) struct Heard {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    pub(super) error: Vec<u8>,
}

pub(super) struct Answered {
    pub(super) status: StatusCode,
}

fn headers(upgrade: &'static str, name: &'static str, protocol: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(upgrade));
    headers.insert(HeaderName::from_static(name), HeaderValue::from_str(protocol).unwrap());
    if upgrade == "websocket" {
        headers.insert("sec-websocket-version", HeaderValue::from_static("13"));
        headers.insert("sec-websocket-key", HeaderValue::from_static("dGhlIHNhbXBsZSBub25jZQ=="));
    }
    headers
}

// === impl Client ===

impl Client {
    pub(super) async fn ask(url: &str, protocol: &str) -> Answered {
        let headers = headers("SPDY/3.1", "x-stream-protocol-version", protocol);
        match dial::open(url, Method::POST, headers).await.unwrap() {
            Opened::Upgraded { .. } => Answered { status: StatusCode::SWITCHING_PROTOCOLS },
            Opened::Refused { status, .. } => Answered { status },
        }
    }

    async fn upgraded(url: &str, headers: HeaderMap, speech: Speech) -> Client {
        let stream = match dial::open(url, Method::POST, headers).await.unwrap() {
            Opened::Upgraded { stream, .. } => stream,
            Opened::Refused { status, text } => panic!("{status} {text:?}"),
        };
        Client {
            stream,
            speech,
            heard: BTreeMap::new(),
            ended: BTreeSet::new(),
            refused: BTreeSet::new(),
            next: 1,
            stdin: 0,
        }
    }

    /// Opens the streams as clients do: error, stdin, stdout, stderr. It says more at once, as a kubelet may.
    pub(super) async fn spdy(url: &str, protocol: &str, [stdin, stdout, stderr]: [bool; 3]) -> Client {
        let headers = headers("SPDY/3.1", "x-stream-protocol-version", protocol);
        let speech = Speech::Spdy(spdy::Decoder::default(), Encoder::default());
        let mut client = Client::upgraded(url, headers, speech).await;
        client.open(&[("streamType", "error")]).await;
        for (name, _) in
            [("stdin", stdin), ("stdout", stdout), ("stderr", stderr)].iter().filter(|(_, is)| *is)
        {
            let id = client.open(&[("streamType", name)]).await;
            if *name == "stdin" {
                client.stdin = id;
            }
        }
        client
    }

    pub(super) async fn websocket(url: &str, protocol: &str) -> Client {
        let headers = headers("websocket", "sec-websocket-protocol", protocol);
        let speech = Speech::Channels(websocket::Decoder::new(Role::Client));
        Client::upgraded(url, headers, speech).await
    }

    pub(super) async fn ports(url: &str) -> Client {
        let headers = headers("SPDY/3.1", "x-stream-protocol-version", "portforward.k8s.io");
        let speech = Speech::Spdy(spdy::Decoder::default(), Encoder::default());
        Client::upgraded(url, headers, speech).await
    }

    pub(super) async fn wrapped_ports(url: &str) -> Client {
        let headers = headers("websocket", "sec-websocket-protocol", "SPDY/3.1+portforward.k8s.io");
        let decoder = websocket::Decoder::new(Role::Client);
        let speech = Speech::Wrapped(decoder, spdy::Decoder::default(), Encoder::default());
        Client::upgraded(url, headers, speech).await
    }

    pub(super) async fn open(&mut self, headers: &[(&str, &str)]) -> u32 {
        let (id, mut out) = (self.next, BytesMut::new());
        self.next += 2;
        match &mut self.speech {
            Speech::Spdy(_, encoder) | Speech::Wrapped(_, _, encoder) => encoder.open(&mut out, id, headers),
            Speech::Channels(_) => panic!("no streams here"),
        }
        self.write(&out).await;
        id
    }

    /// The stream with bytes; that of errors is the one before.
    pub(super) async fn connect(&mut self, port: u16, request: &str) -> u32 {
        let port = port.to_string();
        let mut fields = vec![("port", port.as_str())];
        if !request.is_empty() {
            fields.push(("requestID", request));
        }
        self.open(&[&[("streamType", "error")], &fields[..]].concat()).await;
        self.open(&[&[("streamType", "data")], &fields[..]].concat()).await
    }

    pub(super) async fn send(&mut self, stream: u32, bytes: &[u8], is_last: bool) {
        let mut out = BytesMut::new();
        spdy::put_data(&mut out, stream, bytes, is_last);
        self.write(&out).await;
    }

    pub(super) async fn reset(&mut self, stream: u32) {
        let mut out = BytesMut::new();
        spdy::put_reset(&mut out, stream, spdy::CANCELLED);
        self.write(&out).await;
    }

    pub(super) async fn input(&mut self, bytes: &[u8]) {
        match self.speech {
            Speech::Channels(_) => self.say(&[b"\0", bytes].concat()).await,
            _ => self.send(self.stdin, bytes, false).await,
        }
    }

    pub(super) async fn end_input(&mut self) {
        match self.speech {
            Speech::Channels(_) => self.say(b"\xff\0").await,
            _ => self.send(self.stdin, b"", true).await,
        }
    }

    /// A message of a channel.
    pub(super) async fn say(&mut self, message: &[u8]) {
        let mut out = BytesMut::new();
        websocket::put_binary(&mut out, MASK, &[message]);
        self.stream.write_all(&out).await.unwrap();
    }

    async fn write(&mut self, bytes: &[u8]) {
        match self.speech {
            Speech::Wrapped(..) => self.say(bytes).await,
            _ => self.stream.write_all(bytes).await.unwrap(),
        }
    }

    /// Until the server has no more to say.
    pub(super) async fn hear(&mut self) -> Heard {
        while self.listen().await {}
        let mut of = |id: u32| self.heard.remove(&id).unwrap_or_default();
        match self.speech {
            Speech::Channels(_) => Heard { stdout: of(1), stderr: of(2), error: of(3) },
            _ => {
                let after = self.stdin.max(1);
                Heard { stdout: of(after + 2), stderr: of(after + 4), error: of(1) }
            }
        }
    }

    pub(super) async fn until_end(&mut self, stream: u32) -> Vec<u8> {
        while !self.ended.contains(&stream) {
            assert!(self.listen().await, "the server went away");
        }
        self.heard.remove(&stream).unwrap_or_default()
    }

    pub(super) async fn is_refused(&mut self, stream: u32) -> bool {
        while !self.refused.contains(&stream) {
            assert!(self.listen().await, "the server went away");
        }
        true
    }

    pub(super) async fn is_over(&mut self) {
        while self.listen().await {}
    }

    /// Takes what comes; false at the end.
    async fn listen(&mut self) -> bool {
        let mut bytes = BytesMut::new();
        if self.stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return false;
        }
        let frames = match &mut self.speech {
            Speech::Spdy(frames, _) => {
                frames.buffer().extend_from_slice(&bytes);
                frames
            }
            Speech::Channels(decoder) => {
                decoder.buffer().extend_from_slice(&bytes);
                while let Some(message) = decoder.next_message().unwrap() {
                    if let Message::Binary(bytes) = message {
                        self.heard.entry(u32::from(bytes[0])).or_default().extend_from_slice(&bytes[1..]);
                    }
                }
                return true;
            }
            Speech::Wrapped(decoder, frames, _) => {
                decoder.buffer().extend_from_slice(&bytes);
                while let Some(message) = decoder.next_message().unwrap() {
                    if let Message::Binary(bytes) = message {
                        frames.buffer().extend_from_slice(&bytes);
                    }
                }
                frames
            }
        };
        while let Some(frame) = frames.next_frame().unwrap() {
            match frame {
                Frame::Data { stream, bytes, last } => {
                    self.heard.entry(stream).or_default().extend_from_slice(&bytes);
                    if last {
                        self.ended.insert(stream);
                    }
                }
                Frame::Reset { stream, .. } => drop(self.refused.insert(stream)),
                _ => {}
            }
        }
        true
    }
}
