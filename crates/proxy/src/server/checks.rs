//! One small server per Service that a load balancer asks about (`healthCheckNodePort`).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderName, StatusCode, header};
use proxy_core::objects::{Family, ServiceKey};
use proxy_core::rules::NodePortAddresses;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{Health, bind, serve};
use crate::events::Notice;
use crate::observed::HealthChecks;

const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// What one family's servers need.
#[derive(Debug)]
pub struct Watched {
    pub family: Family,
    pub checks: watch::Receiver<HealthChecks>,
    /// Where node ports are served, as it was at the start.
    pub addresses: NodePortAddresses,
    pub health: Health,
    pub events: mpsc::Sender<Notice>,
}

/// A server that runs.
struct Running {
    port: u16,
    local: watch::Sender<usize>,
    token: CancellationToken,
}

#[derive(Clone)]
struct Answering {
    service: ServiceKey,
    local: watch::Receiver<usize>,
    health: Health,
}

/// Keeps the servers in step until cancelled.
pub async fn serve_checks(mut watched: Watched, token: CancellationToken) {
    let mut running: BTreeMap<ServiceKey, Running> = BTreeMap::new();
    loop {
        let wanted = watched.checks.borrow_and_update().clone();
        running.retain(|service, server| {
            let stays = wanted.get(service).is_some_and(|check| check.port == server.port);
            if !stays {
                server.token.cancel();
            }
            stays
        });
        for (service, check) in wanted {
            match running.get(&service) {
                Some(server) => {
                    server.local.send_replace(check.local_endpoints);
                }
                None => {
                    let server = start(&watched, &service, check.port, check.local_endpoints, &token);
                    running.insert(service, server);
                }
            }
        }
        tokio::select! {
            () = token.cancelled() => return,
            changed = watched.checks.changed() => if changed.is_err() { return },
        }
    }
}

fn start(
    watched: &Watched,
    service: &ServiceKey,
    port: u16,
    local: usize,
    parent: &CancellationToken,
) -> Running {
    let (sender, receiver) = watch::channel(local);
    let token = parent.child_token();
    let state = Answering { service: service.clone(), local: receiver, health: watched.health.clone() };
    let router = Router::new().fallback(answer).with_state(state);
    for ip in listen_on(watched) {
        match bind("a health check", SocketAddr::new(ip, port), true) {
            Ok(listener) => {
                tokio::spawn(serve(listener, router.clone(), token.clone()));
            }
            Err(error) => {
                tracing::error!(%service, %error, "the load balancer cannot ask about this Service");
                let notice = Notice::warning(
                    "FailedToStartServiceHealthcheck",
                    "Listen",
                    format!(
                        "node {} failed to start healthcheck {service} on port {port}: {}",
                        ip, error.cause
                    ),
                );
                // A full queue of events is no reason to wait.
                let _ = watched.events.try_send(notice.about_service(service));
            }
        }
    }
    Running { port, local: sender, token }
}

fn listen_on(watched: &Watched) -> Vec<IpAddr> {
    match (&watched.addresses, watched.family) {
        (NodePortAddresses::Only(ips), _) => ips.iter().copied().collect(),
        (NodePortAddresses::AllLocal { .. }, Family::V4) => vec![Ipv4Addr::UNSPECIFIED.into()],
        (NodePortAddresses::AllLocal { .. }, Family::V6) => vec![Ipv6Addr::UNSPECIFIED.into()],
    }
}

/// Good with a ready Pod here and a working proxy; whatever is asked for.
async fn answer(State(state): State<Answering>) -> Response {
    let local = *state.local.borrow();
    let is_healthy = state.health.is_healthy();
    let code = match local > 0 && is_healthy {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    let headers = [
        (header::CONTENT_TYPE, "application/json".to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (WEIGHT, local.to_string()),
    ];
    let service = &state.service;
    let body = json!({
        "service": {"namespace": &*service.namespace, "name": &*service.name},
        "localEndpoints": local,
        "serviceProxyHealthy": is_healthy,
    });
    (code, headers, body.to_string()).into_response()
}
