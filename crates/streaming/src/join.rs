//! Two ends that understand each other: bytes go through as they come.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::Activity;

const PIECE: usize = 32 << 10;

/// Copies both ways until either end is done; then neither has anything to say to the other.
pub(super) async fn run<A, B>(client: A, runtime: B, activity: &Activity, idle: Duration)
where
    A: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_runtime, mut to_runtime) = tokio::io::split(runtime);
    let ended = tokio::select! {
        ended = hand_in(&mut from_client, &mut to_runtime, activity) => ended,
        ended = copy(&mut from_runtime, &mut to_client, activity) => ended,
        () = activity.cease(idle) => Ok(()),
    };
    if let Err(error) = ended {
        tracing::trace!(%error, "a joined stream broke");
    }
    let _ = tokio::time::timeout(super::CLOSE_TIMEOUT, to_client.shutdown()).await;
    super::linger(&mut from_client).await;
}

/// A runtime that takes nothing more may still have something to say: what the client says then goes nowhere.
async fn hand_in<R, W>(from: &mut R, to: &mut W, activity: &Activity) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let (mut buffer, mut hears) = (vec![0; PIECE], true);
    loop {
        let n = from.read(&mut buffer).await?;
        if n == 0 {
            return Ok(());
        }
        activity.mark();
        hears = hears && to.write_all(&buffer[..n]).await.is_ok() && to.flush().await.is_ok();
    }
}

async fn copy<R, W>(from: &mut R, to: &mut W, activity: &Activity) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut buffer = vec![0; PIECE];
    loop {
        let n = from.read(&mut buffer).await?;
        if n == 0 {
            return Ok(());
        }
        activity.mark();
        to.write_all(&buffer[..n]).await?;
        to.flush().await?;
    }
}
