//! One connection to a port.

use std::io;
use std::os::fd::OwnedFd;

use bytes::{Bytes, BytesMut};
use streaming::spdy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Pair;
use crate::streams::processes::Processes;

/// Until the port has said all it has to say, or its client wants nothing more of it: that one, too, waits for the end
/// of the stream with errors.
pub(super) async fn run(
    sandbox: &str,
    pair: Pair,
    processes: &dyn Processes,
    inputs: mpsc::Receiver<Bytes>,
    frames: &mpsc::Sender<BytesMut>,
    gone: &CancellationToken,
) {
    let done = async {
        let fd = processes
            .port_forward(sandbox, pair.port)
            .await
            .map_err(|status| io::Error::other(status.message().to_owned()))?;
        copy(fd, pair.data, inputs, frames).await
    };
    let why = match gone.run_until_cancelled(done).await {
        None | Some(Ok(())) => String::new(),
        Some(Err(error)) => format!("error forwarding port {} to pod {sandbox}: {error}", pair.port),
    };
    let mut out = BytesMut::new();
    spdy::put_data(&mut out, pair.error, why.as_bytes(), true);
    spdy::put_data(&mut out, pair.data, &[], true);
    // The client may be gone.
    let _ = frames.send(out).await;
}

async fn copy(
    fd: OwnedFd,
    stream: u32,
    inputs: mpsc::Receiver<Bytes>,
    frames: &mpsc::Sender<BytesMut>,
) -> io::Result<()> {
    let socket = std::net::TcpStream::from(fd);
    socket.set_nonblocking(true)?;
    let (mut from, to) = TcpStream::from_std(socket)?.into_split();
    let inward = async {
        hand_in(to, inputs).await;
        // The other direction says when it is over: a port may answer long after the last of its input.
        std::future::pending::<io::Result<()>>().await
    };
    let outward = async {
        let mut buffer = vec![0; spdy::PIECE];
        loop {
            let n = from.read(&mut buffer).await?;
            if n == 0 {
                return Ok(());
            }
            let mut out = BytesMut::with_capacity(n + 8);
            spdy::put_data(&mut out, stream, &buffer[..n], false);
            if frames.send(out).await.is_err() {
                return Ok(());
            }
        }
    };
    tokio::select! {
        done = inward => done,
        done = outward => done,
    }
}

/// Then closes this direction alone. A port that takes no more may still have something to say.
async fn hand_in(mut to: OwnedWriteHalf, mut inputs: mpsc::Receiver<Bytes>) {
    while let Some(bytes) = inputs.recv().await {
        if to.write_all(&bytes).await.is_err() {
            inputs.close();
        }
    }
    let _ = to.shutdown().await;
}
