//! SPDY inside WebSocket messages: the wrapping is taken off, the runtime gets what was inside.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use super::websocket::{self, Decoder, Message, Role};
use super::{Activity, CLOSE_TIMEOUT, PONGS};

const PIECE: usize = 32 << 10;

/// Goes on until either end is done.
pub(super) async fn run<A, B>(client: A, runtime: B, activity: &Activity, idle: Duration)
where
    A: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (from_runtime, to_runtime) = tokio::io::split(runtime);
    let (pong, pongs) = mpsc::channel(PONGS);
    let code = tokio::select! {
        code = unwrap(&mut from_client, to_runtime, pong, activity) => code,
        code = wrap(from_runtime, &mut to_client, pongs, activity) => code,
        () = activity.cease(idle) => Ok(websocket::GOING_AWAY),
    };
    let code = code.unwrap_or_else(|error| {
        tracing::trace!(%error, "a tunnelled stream broke");
        websocket::GOING_AWAY
    });
    close(&mut to_client, code).await;
    super::linger(&mut from_client).await;
}

/// Says goodbye, as long as somebody listens.
pub(super) async fn close(to_client: &mut (impl AsyncWrite + Unpin), code: u16) {
    let mut bye = BytesMut::new();
    websocket::put_close(&mut bye, None, code);
    let farewell = async {
        to_client.write_all(&bye).await?;
        to_client.shutdown().await
    };
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, farewell).await;
}

async fn unwrap<R, W>(
    from: &mut R,
    mut to: W,
    pong: mpsc::Sender<bytes::Bytes>,
    activity: &Activity,
) -> io::Result<u16>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut decoder = Decoder::new(Role::Server);
    loop {
        loop {
            match decoder.next_message() {
                Ok(Some(Message::Binary(bytes) | Message::Text(bytes))) => {
                    activity.mark();
                    to.write_all(&bytes).await?;
                    to.flush().await?;
                }
                // One that asks too often is answered less often.
                Ok(Some(Message::Ping(payload))) => drop(pong.try_send(payload)),
                Ok(Some(Message::Pong)) => {}
                Ok(Some(Message::Close(_))) => return Ok(websocket::NORMAL),
                Ok(None) => break,
                Err(broken) => return Ok(broken.code),
            }
        }
        if from.read_buf(decoder.buffer()).await? == 0 {
            return Ok(websocket::NORMAL);
        }
    }
}

async fn wrap<R, W>(
    mut from: R,
    to: &mut W,
    mut pongs: mpsc::Receiver<bytes::Bytes>,
    activity: &Activity,
) -> io::Result<u16>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let (mut buffer, mut out) = (vec![0; PIECE], BytesMut::new());
    loop {
        tokio::select! {
            n = from.read(&mut buffer) => match n? {
                0 => return Ok(websocket::NORMAL),
                n => {
                    activity.mark();
                    websocket::put_binary(&mut out, None, &[&buffer[..n]]);
                }
            },
            Some(payload) = pongs.recv() => websocket::put_pong(&mut out, None, &payload),
        }
        to.write_all(&out).await?;
        to.flush().await?;
        out.clear();
    }
}
