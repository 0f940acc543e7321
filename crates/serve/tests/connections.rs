//! The loop with real sockets: who is served when others take all they can get.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use serve::{Http1, Limits, Pool, Times};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

mod support;
use support::{HOW, LIMITS, Server, TIMES, echoes, heard, soon, until, upgraded};

#[tokio::test]
async fn idle_and_half_finished_clients_shut_nobody_out() {
    let server = Server::usual().await;
    for beginning in [b"".as_slice(), b"GET / HTTP/1.1\r\nHost:"] {
        let mut held = Vec::new();
        for _ in 0..100 {
            let mut stream = server.connect().await;
            // It may have lost its place by now.
            let _ = stream.write_all(beginning).await;
            held.push(stream);
        }
        for _ in 0..20 {
            assert!(server.ask("GET / HTTP/1.1").await.ends_with("ok"));
        }
    }
    assert!(server.connections.count(Pool::Local) <= LIMITS.local);
    assert!(server.metrics.evicted.get(["test", "full"]) >= 180.0);
    assert_eq!(server.metrics.refused.get(["test", "full"]), 0.0);
}

#[tokio::test]
async fn who_keeps_a_served_connection_idle_makes_way_too() {
    let server = Server::usual().await;
    let mut held = Vec::new();
    for _ in 0..30 {
        let mut stream = server.connect().await;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut head = [0; 12];
        soon(stream.read_exact(&mut head)).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
        held.push(stream);
    }
    assert!(server.ask("GET / HTTP/1.1").await.ends_with("ok"));
}

#[tokio::test]
async fn a_stream_keeps_its_place_until_it_ends_and_no_stranger_ends_it() {
    let server = Server::usual().await;
    let mut stream = upgraded(&server, "X-Known: yes\r\n").await;
    let mut held = Vec::new();
    for _ in 0..50 {
        held.push(server.connect().await);
    }
    assert!(server.ask("GET / HTTP/1.1").await.ends_with("ok"));
    assert!(echoes(&mut stream).await);
    assert_eq!(server.connections.count(Pool::Known), 1);
    drop(stream);
    until(|| server.connections.count(Pool::Known) == 0).await;
}

#[tokio::test]
async fn when_all_who_are_known_are_at_work_the_next_is_served_as_a_stranger() {
    let server = Server::usual().await;
    let mut known = Vec::new();
    for _ in 0..LIMITS.known {
        known.push(upgraded(&server, "X-Known: yes\r\n").await);
    }
    assert!(server.ask("GET / HTTP/1.1\r\nX-Known: yes").await.ends_with("ok"));
    for stream in &mut known {
        assert!(echoes(stream).await);
    }
}

#[tokio::test]
async fn a_strangers_stream_is_told_to_go_when_only_streams_are_left() {
    let server = Server::usual().await;
    let mut streams = Vec::new();
    for _ in 0..LIMITS.local {
        streams.push(upgraded(&server, "").await);
    }
    assert!(server.ask("GET / HTTP/1.1").await.ends_with("ok"));
    assert_eq!(heard(&mut streams[0]).await, "");
    assert!(echoes(&mut streams[1]).await);
}

#[tokio::test]
async fn a_panic_is_counted_and_hurts_one_connection() {
    let server = Server::usual().await;
    assert_eq!(server.ask("GET /panic HTTP/1.1").await, "");
    assert!(server.ask("GET / HTTP/1.1").await.ends_with("ok"));
    until(|| server.metrics.panicked.get(["test"]) == 1.0).await;
    until(|| server.connections.count(Pool::Local) == 0).await;
}

#[tokio::test]
async fn the_clock_ends_who_never_asks_who_asks_no_more_and_who_takes_too_long() {
    let short = Duration::from_millis(200);
    let times = Times { first: short, idle: short, busy: Some(short) };
    let how = Http1 { idle: Duration::from_secs(90), ..HOW };
    let server = Server::start(LIMITS, times, how, Duration::ZERO).await;
    let rows = [
        ("", "", "nothing_asked"),
        ("GET / HTTP/1.1\r\nHost:", "", "nothing_asked"),
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200", "kept, and then nothing"),
        ("GET /wait HTTP/1.1\r\nHost: x\r\n\r\n", "", "too_long"),
    ];
    for (said, answer, why) in rows {
        let before = server.metrics.evicted.get(["test", why]);
        let mut stream = server.connect().await;
        stream.write_all(said.as_bytes()).await.unwrap();
        let heard = soon(heard(&mut stream)).await;
        assert!(heard.starts_with(answer) && heard.is_empty() == answer.is_empty(), "{said:?}: {heard:?}");
        if answer.is_empty() {
            until(|| server.metrics.evicted.get(["test", why]) == before + 1.0).await;
        }
    }
    // A stream is no request, and takes as long as it likes.
    let mut stream = upgraded(&server, "").await;
    tokio::time::sleep(short * 3).await;
    assert!(echoes(&mut stream).await);
}

#[tokio::test]
async fn a_body_that_trickles_is_given_up() {
    let how = Http1 { body: Duration::from_millis(300), ..HOW };
    let server = Server::start(LIMITS, TIMES, how, Duration::ZERO).await;
    let mut stream = server.connect().await;
    let head = "POST /body HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 100000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut reader, mut writer) = stream.split();
    let trickle = async {
        while writer.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        std::future::pending::<()>().await;
    };
    let mut text = Vec::new();
    tokio::select! {
        () = trickle => {}
        _ = soon(reader.read_to_end(&mut text)) => {}
    }
    assert!(text.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&text));
    let answer = server.ask("POST /body HTTP/1.1\r\nContent-Length: 0").await;
    assert!(answer.ends_with("0 bytes"), "{answer}");
}

#[tokio::test]
async fn a_server_that_stops_lets_requests_end_and_keeps_streams() {
    let server = Server::start(Limits { local: 20, ..LIMITS }, TIMES, HOW, Duration::from_secs(30)).await;
    let mut stream = upgraded(&server, "").await;
    let mut idle = server.connect().await;
    let mut waiting = server.connect().await;
    let head = "POST /body HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
    waiting.write_all(head.as_bytes()).await.unwrap();
    let mut go_on = [0; 25];
    soon(waiting.read_exact(&mut go_on)).await.unwrap();
    assert!(go_on.starts_with(b"HTTP/1.1 100"), "the request is under way");
    until(|| server.connections.count(Pool::Local) == 3).await;
    server.stop.cancel();
    assert_eq!(soon(heard(&mut idle)).await, "", "nothing was asked");
    waiting.write_all(b"ab").await.unwrap();
    assert!(soon(heard(&mut waiting)).await.ends_with("2 bytes"));
    soon(server.running).await.unwrap();
    assert!(echoes(&mut stream).await, "streams end by themselves");
    assert!(tokio::net::TcpStream::connect(server.address).await.is_err(), "the port is free");
}
