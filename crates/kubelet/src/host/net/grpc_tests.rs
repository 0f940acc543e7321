#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::future::ready;

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::TcpListener;

use super::*;

/// A health server without a framework: answers by the name of the service asked for.
async fn serve() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let service = hyper::service::service_fn(answer);
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    port
}

async fn answer(
    request: ::http::Request<hyper::body::Incoming>,
) -> Result<::http::Response<http_body_util::combinators::BoxBody<Bytes, Infallible>>, Infallible> {
    assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
    let agent = request.headers()["user-agent"].to_str().unwrap().to_owned();
    assert!(agent.starts_with("kube-probe/1.36"), "{agent}");
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let service = CheckRequest::decode(&body[5..]).unwrap().service;
    if service == "hang" {
        std::future::pending::<()>().await;
    }
    let (status, code) = match service.as_str() {
        "good" => (1, "0"),
        "bad" => (2, "0"),
        "none" => (0, "12"),
        _ => (0, "5"),
    };
    let message = CheckResponse { status }.encode_to_vec();
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap());
    frame.put_slice(&message);
    let mut trailers = ::http::HeaderMap::new();
    trailers.insert("grpc-status", code.parse().unwrap());
    trailers.insert("grpc-message", "words".parse().unwrap());
    let body = Full::new(frame.freeze()).with_trailers(ready(Some(Ok(trailers))));
    Ok(::http::Response::builder().header("content-type", "application/grpc").body(body.boxed()).unwrap())
}

#[tokio::test]
async fn every_answer_has_its_own_words() {
    let port = serve().await;
    let ask = async |service, limit| health("127.0.0.1", port, service, limit).await;
    let second = Duration::from_secs(5);
    assert_eq!(ask("good", second).await.unwrap(), GrpcHealth::Serving);
    assert_eq!(ask("bad", second).await.unwrap(), GrpcHealth::NotServing("NOT_SERVING".into()));
    assert_eq!(ask("none", second).await.unwrap(), GrpcHealth::Unimplemented("words".into()));
    let error = ask("lost", second).await.unwrap_err().0;
    assert_eq!(error, "error: health rpc probe failed: rpc error: code = NotFound desc = words");
    let error = ask("hang", Duration::from_millis(200)).await.unwrap_err().0;
    assert_eq!(error, "timeout: health rpc did not complete within 200ms");
}

#[tokio::test]
async fn nobody_there() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let error = health("127.0.0.1", port, "", Duration::from_secs(1)).await.unwrap_err().0;
    assert!(
        error.starts_with(&format!("timeout: failed to connect service \"127.0.0.1:{port}\"")),
        "{error}"
    );
}

#[tokio::test]
async fn a_server_that_says_nonsense_too_much_or_nothing_is_a_failure_in_time() {
    use tokio::io::AsyncWriteExt;
    let settings: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    // A frame of 16 MiB is announced; HTTP/2 allows no such thing unasked.
    let huge: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1];
    for says in [b"HTTP/1.1 200 OK\r\n\r\n".as_slice(), &[0xff; 4096], settings, huge, &[]] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(async move {
            let mut held = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.write_all(says).await;
                held.push(stream);
            }
        });
        let asked = health("127.0.0.1", port, "", Duration::from_millis(500));
        let answer = tokio::time::timeout(Duration::from_secs(60), asked).await.unwrap();
        assert!(answer.is_err_and(|e| e.0.len() < 1000), "{says:?}");
        server.abort();
    }
}
