#![allow(clippy::unwrap_used)]

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio::net::{TcpListener, TcpStream};

use super::websocket::{Decoder, Message, Role};
use super::*;

const MASK: Option<[u8; 4]> = Some([1, 2, 3, 4]);
const ALL: StreamOptions = StreamOptions { stdin: true, stdout: true, stderr: true, tty: false };
const ERROR: u32 = 1;
const STDIN: u32 = 3;
const STDOUT: u32 = 5;
const STDERR: u32 = 7;

/// Both ends of a translated stream: a WebSocket client and a SPDY server.
struct Bench {
    client: DuplexStream,
    decoder: Decoder,
    runtime: DuplexStream,
    frames: spdy::Decoder,
}

impl Bench {
    fn new(wants: StreamOptions, idle: Duration) -> Self {
        let (client, near) = duplex(64 << 10);
        let (runtime, far) = duplex(64 << 10);
        tokio::spawn(async move { translate::run(near, far, wants, &Activity::new(), idle).await });
        Self { client, decoder: Decoder::new(Role::Client), runtime, frames: spdy::Decoder::default() }
    }

    async fn say(&mut self, message: &[u8]) {
        let mut out = BytesMut::new();
        websocket::put_binary(&mut out, MASK, &[message]);
        self.client.write_all(&out).await.unwrap();
    }

    async fn hear(&mut self) -> Message {
        loop {
            if let Some(message) = self.decoder.next_message().unwrap() {
                return message;
            }
            assert!(self.client.read_buf(self.decoder.buffer()).await.unwrap() > 0, "the client is cut off");
        }
    }

    /// Skips the frames that open streams, which a client's decoder does not take.
    async fn accept(&mut self, streams: usize) {
        for _ in 0..streams {
            let mut head = [0; 8];
            self.runtime.read_exact(&mut head).await.unwrap();
            assert_eq!(head[..4], [0x80, 3, 0, 1]);
            let mut rest = vec![0; u32::from_be_bytes([0, head[5], head[6], head[7]]) as usize];
            self.runtime.read_exact(&mut rest).await.unwrap();
        }
    }

    async fn receive(&mut self) -> spdy::Frame {
        loop {
            if let Some(frame) = self.frames.next_frame().unwrap() {
                return frame;
            }
            assert!(self.runtime.read_buf(self.frames.buffer()).await.unwrap() > 0, "the runtime is cut off");
        }
    }

    async fn send(&mut self, stream: u32, bytes: &[u8], last: bool) {
        let mut out = BytesMut::new();
        spdy::put_data(&mut out, stream, bytes, last);
        self.runtime.write_all(&out).await.unwrap();
    }
}

#[tokio::test]
async fn a_command_is_translated_from_its_first_byte_to_its_end() {
    let mut b = Bench::new(ALL, Duration::ZERO);
    b.accept(4).await;
    b.say(&[0, b'h', b'i']).await;
    b.say(&[255, 0]).await;
    assert_eq!(b.receive().await, spdy::Frame::Data { stream: STDIN, bytes: "hi".into(), last: false });
    assert_eq!(b.receive().await, spdy::Frame::Data { stream: STDIN, bytes: "".into(), last: true });
    b.send(STDOUT, b"out", true).await;
    b.send(STDERR, b"err", true).await;
    b.send(ERROR, br#"{"status":"Success"}"#, true).await;
    assert_eq!(b.hear().await, Message::Binary("\u{1}out".into()));
    assert_eq!(b.hear().await, Message::Binary("\u{2}err".into()));
    assert_eq!(b.hear().await, Message::Binary("\u{3}{\"status\":\"Success\"}".into()));
    assert_eq!(b.hear().await, Message::Close(Some(websocket::NORMAL)));
}

/// A shim that is just starting the command would never see it.
#[tokio::test(start_paused = true)]
async fn the_end_of_empty_input_waits_until_the_command_has_started() {
    let end = spdy::Frame::Data { stream: STDIN, bytes: "".into(), last: true };
    for (messages, waits) in [
        (&[&[255, 0][..]][..], true),
        (&[&[0][..], &[255, 0]], true),
        (&[&[255, 0][..], &[0, b'x'], &[255, 0]], true),
        (&[&[0, b'x'][..], &[255, 0]], false),
    ] {
        let mut b = Bench::new(ALL, Duration::ZERO);
        b.accept(4).await;
        let begun = Instant::now();
        for message in messages {
            b.say(message).await;
        }
        while b.receive().await != end {
            assert!(!waits, "{messages:?}: the end comes first");
        }
        assert_eq!(begun.elapsed() >= Duration::from_secs(1), waits, "{messages:?}");
        // What is open so long has started: nothing is kept back.
        let mut late = Bench::new(ALL, Duration::ZERO);
        late.accept(4).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let begun = Instant::now();
        late.say(&[255, 0]).await;
        assert_eq!((late.receive().await, begun.elapsed()), (end.clone(), Duration::ZERO));
    }
}

#[tokio::test]
async fn pings_are_answered_on_both_sides() {
    let mut b = Bench::new(ALL, Duration::ZERO);
    b.accept(4).await;
    let mut ping = BytesMut::new();
    spdy::put_ping(&mut ping, 2);
    b.runtime.write_all(&ping).await.unwrap();
    assert_eq!(b.receive().await, spdy::Frame::Ping { id: 2 });
    ping.clear();
    websocket::put_ping(&mut ping, MASK);
    b.client.write_all(&ping).await.unwrap();
    assert_eq!(b.hear().await, Message::Pong);
}

#[tokio::test]
async fn output_that_nobody_reads_does_not_keep_input_back() {
    let mut b = Bench::new(ALL, Duration::ZERO);
    b.accept(4).await;
    // More than all buffers hold, and nobody takes it.
    let (mut runtime, _) = {
        let (other, unused) = duplex(1);
        (std::mem::replace(&mut b.runtime, other), unused)
    };
    let (mut from, mut to) = tokio::io::split(&mut runtime);
    let mut flood = BytesMut::new();
    spdy::put_data(&mut flood, STDOUT, &[0; 1 << 20], false);
    let writing = to.write_all(&flood);
    let typing = async {
        let mut out = BytesMut::new();
        websocket::put_binary(&mut out, MASK, &[&[0], b"still here"]);
        b.client.write_all(&out).await.unwrap();
        let mut frame = [0; 18];
        from.read_exact(&mut frame).await.unwrap();
        frame
    };
    let frame = tokio::select! {
        _ = writing => panic!("the flood went somewhere"),
        frame = typing => frame,
    };
    assert_eq!(&frame[8..], b"still here");
}

#[tokio::test]
async fn a_runtime_that_vanishes_is_told_as_a_failure() {
    let mut b = Bench::new(ALL, Duration::ZERO);
    b.accept(4).await;
    b.runtime.shutdown().await.unwrap();
    let Message::Binary(status) = b.hear().await else { panic!("no status") };
    let text = String::from_utf8_lossy(&status[1..]).into_owned();
    assert!(status[0] == 3 && text.contains("\"Failure\"") && text.contains("broke before"), "{text}");
    assert_eq!(b.hear().await, Message::Close(Some(websocket::NORMAL)));
}

/// An end that takes nothing more, and still has something to say.
struct Deaf(DuplexStream);

impl AsyncRead for Deaf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Deaf {
    /// The hello is heard.
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        match buf.starts_with(&[0x80]) {
            true => Poll::Ready(Ok(buf.len())),
            false => Poll::Ready(Err(std::io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn input_that_nobody_takes_does_not_cost_the_end_of_the_story() {
    let (runtime, far) = duplex(64 << 10);
    let (client, near) = duplex(64 << 10);
    tokio::spawn(async move { translate::run(near, Deaf(far), ALL, &Activity::new(), Duration::ZERO).await });
    let mut b =
        Bench { client, decoder: Decoder::new(Role::Client), runtime, frames: spdy::Decoder::default() };
    for _ in 0..3 {
        b.say(&[0, b'x']).await;
        tokio::task::yield_now().await;
    }
    b.send(STDOUT, b"out", true).await;
    b.send(STDERR, b"", true).await;
    b.send(ERROR, br#"{"status":"Failure"}"#, true).await;
    assert_eq!(b.hear().await, Message::Binary("\u{1}out".into()));
    assert_eq!(b.hear().await, Message::Binary("\u{3}{\"status\":\"Failure\"}".into()));
    assert_eq!(b.hear().await, Message::Close(Some(websocket::NORMAL)));
    // The same for those who speak the runtime's language.
    let (mut runtime, far) = duplex(64 << 10);
    let (mut client, near) = duplex(64 << 10);
    tokio::spawn(async move { join::run(near, Deaf(far), &Activity::new(), Duration::ZERO).await });
    client.write_all(b"input").await.unwrap();
    tokio::task::yield_now().await;
    runtime.write_all(b"the end").await.unwrap();
    drop(runtime);
    let mut heard = String::new();
    client.read_to_string(&mut heard).await.unwrap();
    assert_eq!(heard, "the end");
}

#[tokio::test]
async fn a_client_that_breaks_the_rules_is_told_which() {
    let mut b = Bench::new(ALL, Duration::ZERO);
    b.accept(4).await;
    b.client.write_all(&[0x82, 0x01, 0x00]).await.unwrap();
    assert_eq!(b.hear().await, Message::Close(Some(websocket::PROTOCOL_ERROR)));
}

#[tokio::test(start_paused = true)]
async fn what_does_not_move_is_cut_off() {
    let mut b = Bench::new(ALL, Duration::from_secs(60));
    b.accept(4).await;
    tokio::time::sleep(Duration::from_secs(50)).await;
    b.say(&[0, b'x']).await;
    let begun = Instant::now();
    assert_eq!(b.hear().await, Message::Close(Some(websocket::GOING_AWAY)));
    assert!(begun.elapsed() >= Duration::from_secs(59), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn what_is_inside_a_tunnel_comes_out_unchanged() {
    let (mut client, near) = duplex(1 << 10);
    let (mut runtime, far) = duplex(1 << 10);
    tokio::spawn(async move { tunnel::run(near, far, &Activity::new(), Duration::ZERO).await });
    let mut out = BytesMut::new();
    websocket::put_binary(&mut out, MASK, &[b"to the "]);
    websocket::put_binary(&mut out, MASK, &[b"runtime"]);
    client.write_all(&out).await.unwrap();
    let mut got = [0; 14];
    runtime.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"to the runtime");
    runtime.write_all(b"to the client").await.unwrap();
    runtime.shutdown().await.unwrap();
    let mut decoder = Decoder::new(Role::Client);
    let (mut text, mut closed) = (Vec::new(), None);
    while closed.is_none() {
        assert!(client.read_buf(decoder.buffer()).await.unwrap() > 0);
        while let Some(message) = decoder.next_message().unwrap() {
            match message {
                Message::Binary(bytes) => text.extend_from_slice(&bytes),
                Message::Close(code) => closed = code,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!((text.as_slice(), closed), (b"to the client".as_slice(), Some(websocket::NORMAL)));
}

#[test]
fn protocols_are_told_apart() {
    let headers = |upgrade: &'static str, protocol: &'static str| {
        let mut headers = HeaderMap::new();
        headers.insert(UPGRADE, HeaderValue::from_static(upgrade));
        headers.insert(WS_PROTOCOL, HeaderValue::from_static(protocol));
        headers
    };
    let command = What::Command(ALL);
    let rows = [
        (command, "SPDY/3.1", "", Speech::Runtime),
        (command, "websocket", "v5.channel.k8s.io", Speech::Channels),
        (command, "WebSocket", "v4.channel.k8s.io, v5.channel.k8s.io", Speech::Channels),
        (command, "websocket", "v4.channel.k8s.io", Speech::Runtime),
        (command, "websocket", "SPDY/3.1+portforward.k8s.io", Speech::Runtime),
        (
            What::Ports,
            "websocket",
            "SPDY/3.1+portforward.k8s.io",
            Speech::Tunnel(vec!["portforward.k8s.io".into()]),
        ),
        (What::Ports, "websocket", "SPDY/3.1+evil", Speech::Runtime),
        (What::Ports, "websocket", "v5.channel.k8s.io", Speech::Runtime),
    ];
    for (what, upgrade, protocol, expected) in rows {
        assert_eq!(speech(what, &headers(upgrade, protocol)), expected, "{upgrade} {protocol}");
    }
}

#[test]
fn secrets_of_the_client_do_not_reach_the_runtime() {
    let request = Request::builder()
        .header("authorization", "Bearer secret")
        .header("cookie", "secret")
        .header("upgrade", "SPDY/3.1")
        .header("connection", "Upgrade")
        .header("x-stream-protocol-version", "v4.channel.k8s.io");
    let (method, headers) = ask(&Speech::Runtime, What::Ports, &request.body(Body::empty()).unwrap());
    assert_eq!(method, Method::GET);
    assert!(!format!("{headers:?}").contains("secret"));
    assert_eq!(headers.get(STREAM_PROTOCOL).unwrap(), "v4.channel.k8s.io");
    // A browser has no other place for its token than the list of protocols.
    let request = Request::builder().header("upgrade", "websocket").header("connection", "Upgrade").header(
        "sec-websocket-protocol",
        "base64url.bearer.authorization.k8s.io.c2VjcmV0, v4.channel.k8s.io",
    );
    let (_, headers) = ask(&Speech::Runtime, What::Ports, &request.body(Body::empty()).unwrap());
    assert!(!format!("{headers:?}").contains("c2VjcmV0"), "{headers:?}");
    assert_eq!(headers.get(WS_PROTOCOL).unwrap(), "v4.channel.k8s.io");
}

/// A runtime that upgrades whoever comes and then waits for them to go.
async fn runtime() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/stream", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                head(&mut stream).await;
                let answer =
                    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
                stream.write_all(answer.as_bytes()).await.unwrap();
                let _ = stream.read_to_end(&mut Vec::new()).await;
            });
        }
    });
    url
}

async fn head(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let is_whole = |text: &[u8]| text.windows(4).any(|four| four == b"\r\n\r\n");
    while !is_whole(&text) && stream.read_buf(&mut text).await.unwrap() > 0 {}
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn when_all_places_are_taken_the_next_is_told_and_a_place_that_is_left_is_given_again() {
    const PLACES: usize = 3;
    let (url, streams) = (runtime().await, Streams::new(Duration::ZERO));
    streams.places.forget_permits(STREAMS - PLACES);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connect = move |request| async move { streams.connect(What::Ports, &url, request).await };
    let router = axum::Router::new().fallback(connect);
    tokio::spawn(axum::serve(listener, router).into_future());
    let ask = || async {
        let mut client = TcpStream::connect(address).await.unwrap();
        let request = "POST / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
        client.write_all(request.as_bytes()).await.unwrap();
        let answer = head(&mut client).await;
        (client, answer.split(' ').nth(1).unwrap().to_owned())
    };
    let mut held = Vec::new();
    for _ in 0..PLACES {
        let (client, code) = ask().await;
        assert_eq!(code, "101");
        held.push(client);
    }
    for _ in 0..100 {
        assert_eq!(ask().await.1, "503");
    }
    held.pop();
    while ask().await.1 != "101" {
        tokio::task::yield_now().await;
    }
}
