//! Everything that listens, and the watchdog.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::config::kubelet::Loaded;
use api::config::page::{page_address, page_url};
use streaming::Streams;
use supervise::Supervisor;

use super::{Builder, StartError, port, settings};
use crate::pods::beat::Beat;
use crate::pods::node::Node;
use crate::server::node_page::{self, Page};
use crate::server::secure::{self, ServerState};
use crate::server::{self, Check, Checks, Views, local_api, stats};
use crate::stats::Sampler;

/// There are no streams on the page.
const IDLE: Duration = Duration::from_secs(60);

/// Every address the kubelet answers on, taken but not served yet.
pub(super) struct Listeners {
    pub(super) open: Open,
    pub(super) local: local_api::Bound,
}

/// Those that answer HTTP on ports.
pub(super) struct Open {
    pub(super) healthz: Option<server::Bound>,
    pub(super) read_only: Option<server::Bound>,
    pub(super) secure: Option<secure::Open>,
    pub(super) page: Option<PageListener>,
}

/// Where the page of the node is shown: for this machine alone to whoever comes, elsewhere to who may.
pub(super) enum PageListener {
    Local(server::Bound),
    Guarded(secure::Open),
}

impl Builder<'_> {
    pub(super) async fn listeners(&self) -> Result<Listeners, StartError> {
        let config = &self.start.loaded.config;
        let bind = async |what, address: Option<SocketAddr>| match address {
            Some(address) => {
                server::bind(what, address).await.map(Some).map_err(|e| StartError::new(e.to_string()))
            }
            None => Ok(None),
        };
        let local = local_api::bind(&settings::socket(&self.dirs.root));
        let open = Open {
            healthz: bind("healthz", settings::listen(&config.healthz_bind_address, config.healthz_port)?)
                .await?,
            read_only: bind("read-only API", settings::listen(&config.address, config.read_only_port)?)
                .await?,
            secure: self.secure_listener().await?,
            page: self.page_listener().await?,
        };
        Ok(Listeners { open, local: local.map_err(|e| StartError::new(e.to_string()))? })
    }

    /// Port 10250, where the API server says who may come in.
    pub(super) async fn secure_listener(&self) -> Result<Option<secure::Open>, StartError> {
        let config = &self.start.loaded.config;
        if !config.enable_server {
            return Ok(None);
        }
        match settings::listen(&config.address, config.port)? {
            Some(address) => self.guarded(secure::WHAT, address).await,
            None => Ok(None),
        }
    }

    /// A port of HTTPS with the certificate, the authentication and the authorization of 10250; none where there is nobody who
    /// could say who may come in.
    async fn guarded(
        &self,
        what: &'static str,
        address: SocketAddr,
    ) -> Result<Option<secure::Open>, StartError> {
        let Loaded { config, flags, .. } = &self.start.loaded;
        let name = flags.node_name(&self.machine.hostname);
        let issued = self.cluster.as_ref().filter(|_| config.server_tls_bootstrap).map(|c| c.serving());
        let is_standalone = self.cluster.is_none();
        let Some(rules) = port::rules(&self.start.loaded, what, address, &name, issued, is_standalone)?
        else {
            return Ok(None);
        };
        let reviews = self.cluster.as_ref().map(|cluster| {
            Arc::new(secure::ApiReviews { client: cluster.client.clone(), name }) as Arc<dyn secure::Reviews>
        });
        let open = secure::open(rules, reviews, self.clock.clone()).await;
        open.map(Some).map_err(|e| StartError::new(e.to_string()))
    }

    async fn page_listener(&self) -> Result<Option<PageListener>, StartError> {
        let flag = &self.start.loaded.flags.node_page;
        let wrong = |e: String| StartError::new(format!("--node-page: {e}"));
        let Some(address) = page_address(flag).map_err(wrong)? else { return Ok(None) };
        let listener = match address.ip().is_loopback() {
            true => {
                let bound = server::bind("the node page", address).await;
                PageListener::Local(bound.map_err(|e| StartError::new(e.to_string()))?)
            }
            false => {
                PageListener::Guarded(self.guarded("the node page", address).await?.ok_or_else(|| {
                    let why = "nobody can say who may look: without an API server it is for 127.0.0.1 only";
                    wrong(format!("{address}: {why}"))
                })?)
            }
        };
        tracing::info!(url = page_url(address), "the node can be looked at in a browser");
        Ok(Some(listener))
    }

    fn start_page(&self, listener: PageListener, node: &Node, views: Views, tasks: &Supervisor) {
        let page = Page::new(views, node.recorder.clone(), node.pressures.subscribe(), &self.start.version);
        let (connections, token) = (self.ports.node_page(), tasks.token().clone());
        match listener {
            PageListener::Local(bound) => {
                tasks.essential("node_page", bound.serve(node_page::router(page, true), connections, token));
            }
            PageListener::Guarded(open) => {
                let router = node_page::router(page, false);
                let streams = Streams::new(IDLE);
                tasks.essential("node_page", secure::serve(open, router, streams, connections, token));
            }
        }
    }

    /// Health, the read-only API, the watchdog.
    pub(super) fn start_servers(
        &self,
        node: &Arc<Node>,
        beat: Beat,
        open: Open,
        sampler: Arc<Sampler>,
        tasks: &Supervisor,
    ) -> Result<(), StartError> {
        let (config, token) = (&self.start.loaded.config, tasks.token());
        let Open { healthz, read_only, secure, page } = open;
        if let Some(bound) = healthz {
            let router = server::healthz_router(Checks::new(vec![Check::ping()]));
            tasks.essential("healthz_server", bound.serve(router, self.ports.healthz(), token.clone()));
        }
        let checks = Checks::new(vec![
            Check::ping(),
            Check::log(),
            server::sync_loop(beat, config.sync_frequency.to_std()),
            self.device_check(node),
        ]);
        let views = Views {
            checks: checks.clone(),
            pods: node.board.clone(),
            metrics: node.metrics.clone(),
            probe_metrics: self.probe_metrics.clone(),
            connections: self.ports.metrics.clone(),
            runtime: node.runtime.clone(),
            config: Arc::new(config.to_v1beta1()),
            stats: stats::Sources {
                sampler,
                node_name: node.facts.cri_config.name.as_str().into(),
                volumes: self.figures.clone(),
            },
        };
        if let Some(bound) = read_only {
            let router = server::readonly_router(views.clone());
            tasks.essential("read_only_server", bound.serve(router, self.ports.read_only(), token.clone()));
        }
        if let Some(listener) = page {
            self.start_page(listener, node, views.clone(), tasks);
        }
        if let Some(open) = secure {
            let streams = Streams::new(config.streaming_connection_idle_timeout.to_std());
            let state = self.server_state(views, streams.clone());
            let (router, connections) = (secure::router(state), self.ports.secure());
            tasks.essential(
                "kubelet_server",
                secure::serve(open, router, streams, connections, token.clone()),
            );
        }
        self.start_watchdog(checks, tasks)
    }

    /// What is behind port 10250.
    pub(super) fn server_state(&self, views: Views, streams: Streams) -> ServerState {
        let (loaded, cluster) = (&self.start.loaded, self.cluster.clone());
        ServerState {
            views,
            streams,
            mirrors: Arc::new(move |uid| cluster.as_ref()?.api_pods.get(uid)?.mirrors),
            clock: self.clock.clone(),
            switches: port::switches(loaded),
            pod_logs: self.dirs.pod_logs.clone(),
            root: self.dirs.root.clone(),
            verbosity: self.start.verbosity.clone(),
            about: port::about(loaded, &self.start.version, self.clock.now().wall.secs()),
        }
    }

    pub(super) fn start_watchdog(&self, checks: Checks, tasks: &Supervisor) -> Result<(), StartError> {
        let systemd = self.start.systemd.clone();
        let limit = systemd.watchdog(std::process::id()).map_err(|e| StartError::new(e.to_string()))?;
        if let Some(limit) = limit {
            tasks.lasting("watchdog", (systemd, checks), move |(systemd, checks), end| async move {
                systemd.watch(limit, || checks.verdict(), end).await;
            });
        }
        Ok(())
    }
}
