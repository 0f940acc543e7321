//! From settings to running tasks.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::rng::Rng;
use client::Client;
use rustix::net::sockopt;
use supervise::Supervisor;
use tokio::net::{TcpListener, TcpSocket, UdpSocket};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::pages::{self, Page};
use crate::publish;
use crate::reload;
use crate::resolver::Resolver;
use crate::settings::{Error, Settings};
use crate::waiting::Waiting;
use crate::{informers, tcp, udp};

/// For tasks to end when the agent does.
const GRACE: Duration = Duration::from_secs(2);

/// Has its addresses, and answers nobody yet.
#[derive(Debug)]
pub struct Agent {
    settings: Settings,
    udp: Vec<Arc<UdpSocket>>,
    tcp: Vec<TcpListener>,
    pages: Vec<(Page, TcpListener)>,
}

// === impl Agent ===

impl Agent {
    /// Takes all addresses. Port 0 is any that is free, for UDP and TCP alike.
    pub async fn bind(settings: Settings) -> Result<Agent, Error> {
        // Before anybody counts them: each question that is passed on takes one for a while.
        serve::raise_open_files();
        let (mut udp, mut tcp) = (Vec::new(), Vec::new());
        for ip in &settings.listen {
            let flag = "--bind-address";
            let address = SocketAddr::new(*ip, settings.port);
            let fail = |cause| Error::Bind { what: "DNS over TCP", address, cause, flag };
            let listener = listen(address).map_err(fail)?;
            let address = listener.local_addr().map_err(fail)?;
            let fail = |cause| Error::Bind { what: "DNS over UDP", address, cause, flag };
            udp.push(Arc::new(UdpSocket::bind(address).await.map_err(fail)?));
            tcp.push(listener);
        }
        let wanted = [
            (Page::Health, settings.health, "--health-bind-address"),
            (Page::Ready, settings.ready, "--ready-bind-address"),
            (Page::Metrics, settings.metrics, "--metrics-bind-address"),
        ];
        let mut pages = Vec::new();
        for (page, address, flag) in wanted {
            let Some(address) = address else { continue };
            let fail = |cause| Error::Bind { what: page.name(), address, cause, flag };
            pages.push((page, listen(address).map_err(fail)?));
        }
        Ok(Agent { settings, udp, tcp, pages })
    }

    /// Where DNS is spoken.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.udp.iter().filter_map(|socket| socket.local_addr().ok()).collect()
    }

    /// Answers until cancelled.
    pub async fn run(self, client: Client, token: CancellationToken) -> Result<(), Error> {
        let own = self.addresses();
        let guard = token.child_token();
        let _stop = guard.clone().drop_guard();
        let tasks = Supervisor::new(guard.clone());
        let metrics = Arc::new(Metrics::new(&self.settings.version));
        let (news, live) = watch::channel(None);
        let resolver =
            Resolver::new(live, metrics.clone(), tasks.clone(), own.clone(), self.settings.clients.clone());
        let loader = reload::Loader::new(&self.settings, own, resolver.clone());
        let mut rng = Rng::new(self.settings.seed);
        // A file that is wrong at the start is the user's to mend; later the old one is kept.
        loader.start(&client, news, &tasks, &mut rng).await?;
        informers::start(&client, &resolver, &tasks, &mut rng);
        if let Some(published) = self.settings.publish.clone() {
            let client = client.clone();
            tasks.restart("kube-dns Service", move || publish::keep(client.clone(), published.clone()));
        }
        let waiting = Waiting::now();
        for socket in self.udp {
            let deps = (socket, resolver.clone(), waiting.clone());
            tasks.lasting("DNS over UDP", deps, |(socket, resolver, waiting), _| {
                udp::serve(socket, resolver, waiting)
            });
        }
        let connections = tcp::connections();
        for listener in self.tcp {
            let serving = tcp::serve(listener, connections.clone(), resolver.clone(), guard.clone());
            tasks.essential("DNS over TCP", serving);
        }
        for (page, listener) in self.pages {
            let router = pages::router(page, resolver.clone());
            tasks.essential("DNS pages", pages::serve(page, listener, router, guard.clone()));
        }
        tracing::info!(version = self.settings.version, "starting DNS");
        guard.cancelled().await;
        let failure = tasks.failure();
        tasks.stop(GRACE).await;
        match failure {
            Some(failure) if !token.is_cancelled() => Err(Error::Task(failure)),
            _ => Ok(()),
        }
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    if address.is_ipv6() {
        // The other family has a listener of its own.
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    socket.bind(address)?;
    socket.listen(128)
}
