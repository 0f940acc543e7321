//! DNS over TCP: messages with their length in front, one after the other.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use serve::{Budget, Connection, Connections, Limits, Metrics, Plan, Proof, Stream, Times};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::resolver::{Looked, Proto, Resolver};

const TIMES: Times = Times {
    first: Duration::from_secs(10),
    idle: Duration::from_secs(10),
    busy: Some(Duration::from_secs(20)),
};
const LIMITS: Limits = Limits { remote: 512, local: 256, known: 0, per_source: 64, known_takes: 1 };

/// Places for all addresses together.
pub(crate) fn connections() -> Connections {
    let limits = LIMITS.within(Budget::now().share(40));
    Connections::new("dns", limits, Proof::Answer, TIMES, Arc::new(Metrics::default()))
}

pub(crate) async fn serve(
    listener: TcpListener,
    connections: Connections,
    resolver: Arc<Resolver>,
    token: CancellationToken,
) {
    let converse = move |stream, connection| converse(stream, connection, resolver.clone());
    serve::run(listener, connections, Plan::default(), token, converse).await;
}

/// Until either end has enough. How long one may stay without asking is for the listener to say.
async fn converse(mut stream: Stream<TcpStream>, connection: Connection, resolver: Arc<Resolver>) {
    let peer = connection.address().unwrap_or_else(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
    loop {
        let size = tokio::select! {
            size = stream.read_u16() => size,
            () = connection.finish() => return,
        };
        let Ok(size) = size else { return };
        let mut bytes = vec![0; usize::from(size)];
        if stream.read_exact(&mut bytes).await.is_err() {
            return;
        }
        let _asking = connection.ask();
        let reply = match resolver.look(&bytes, Proto::Tcp, peer) {
            // Nobody who asks says such a thing.
            Looked::Nothing => return,
            Looked::Reply(reply) => reply,
            Looked::Outside(outside) => resolver.ask(*outside).await,
        };
        let Ok(size) = u16::try_from(reply.len()) else { return };
        if stream.write_all(&[&size.to_be_bytes(), reply.as_slice()].concat()).await.is_err() {
            return;
        }
    }
}
