//! DNS over UDP.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::UdpSocket;

use crate::resolver::{Looked, Proto, Resolver};
use crate::waiting::Waiting;

/// More than any question has.
const BUFFER: usize = 4096;
/// When the socket has an error of its own.
const PAUSE: Duration = Duration::from_millis(5);

/// Answers for ever. Who gets no place to wait for an upstream is not answered, and asks again.
pub(crate) async fn serve(socket: Arc<UdpSocket>, resolver: Arc<Resolver>, waiting: Arc<Waiting>) {
    let mut buffer = vec![0; BUFFER];
    loop {
        let (size, peer) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                // Mostly of a client that is gone; it is told to whoever reads next.
                tracing::debug!(%error, "receiving a question");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        // Port 0 cannot be answered.
        if peer.port() == 0 {
            continue;
        }
        match resolver.look(&buffer[..size], Proto::Udp, peer) {
            Looked::Nothing => {}
            Looked::Reply(bytes) => _ = socket.send_to(&bytes, peer).await,
            Looked::Outside(outside) => {
                let Some(place) = waiting.take(peer.ip()) else {
                    resolver.metrics.dropped.inc([]);
                    continue;
                };
                let (socket, asking) = (socket.clone(), resolver.clone());
                resolver.tasks.once("forwarded question", async move {
                    let bytes = asking.ask(*outside).await;
                    let _ = socket.send_to(&bytes, peer).await;
                    drop(place);
                });
            }
        }
    }
}
