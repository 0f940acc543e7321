//! `/healthz` and `/metrics` over plain HTTP, on an address of the machine's owner.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use hyper_util::service::TowerToHyperService;
use serve::{Budget, Connections, Http1, Limits, Plan, Proof, Stream, Times};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::daemon::Daemon;
use crate::image_service::ImageServer;
use crate::streams::Streams;

const HOW: Http1 = Http1 {
    head: 64 * 1024,
    idle: Duration::from_secs(90),
    body: Duration::from_secs(60),
    stall: Duration::from_secs(90),
};
const TIMES: Times =
    Times { first: Duration::from_secs(10), idle: HOW.idle, busy: Some(Duration::from_secs(60)) };
const LIMITS: Limits = Limits { remote: 64, local: 64, known: 0, per_source: 32, known_takes: 1 };

#[derive(Debug)]
pub(crate) struct Pages {
    listener: TcpListener,
    router: Router,
}

impl Pages {
    pub(crate) async fn bind(
        address: SocketAddr,
        daemon: Arc<Daemon>,
        images: ImageServer,
        streams: Streams,
    ) -> io::Result<Pages> {
        let metrics = move || async move {
            let kind = [(header::CONTENT_TYPE, base::metrics::CONTENT_TYPE)];
            let mut text = daemon.metrics.text(&daemon.books);
            // Writing into a string does not fail.
            let _ = images.metrics().write(&mut text).and_then(|()| streams.metrics().write(&mut text));
            (kind, text).into_response()
        };
        let router = Router::new().route("/healthz", get(|| async { "ok" })).route("/metrics", get(metrics));
        Ok(Pages { listener: TcpListener::bind(address).await?, router })
    }

    pub(crate) async fn serve(self, token: CancellationToken) {
        let limits = LIMITS.within(Budget::now().share(5));
        let connections = Connections::new("runtime pages", limits, Proof::Answer, TIMES, Arc::default());
        let router = self.router;
        let converse = move |stream: Stream<TcpStream>, connection| {
            serve::converse(HOW, stream, connection, TowerToHyperService::new(router.clone()))
        };
        serve::run(self.listener, connections, Plan::default(), token, converse).await;
    }
}
