//! One small server per Service that a load balancer asks about (`healthCheckNodePort`).

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderName, StatusCode, header};
use proxy_core::objects::{Family, ServiceKey};
use proxy_core::rules::NodePortAddresses;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{BindError, Health, bind, serve};
use crate::events::Notice;
use crate::observed::HealthChecks;

const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// What one family's servers need.
#[derive(Clone, Debug)]
pub struct Watched {
    pub node_name: String,
    pub family: Family,
    pub checks: watch::Receiver<HealthChecks>,
    /// Where node ports are served, as it was at the start.
    pub addresses: NodePortAddresses,
    pub health: Health,
    pub events: mpsc::Sender<Notice>,
    /// Who is connected, to the ports of all Services.
    pub connections: serve::Connections,
}

/// A server that runs.
struct Running {
    port: u16,
    local: watch::Sender<usize>,
    token: CancellationToken,
    listeners: JoinSet<()>,
}

#[derive(Clone)]
struct Answering {
    service: ServiceKey,
    local: watch::Receiver<usize>,
    health: Health,
}

/// Between two attempts to take a port that somebody else has.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// Keeps the servers in step until cancelled.
pub async fn serve_checks(mut watched: Watched, token: CancellationToken) {
    let mut running: BTreeMap<ServiceKey, Running> = BTreeMap::new();
    // Those whose port could not be had, which was said already.
    let mut refused: BTreeMap<ServiceKey, u16> = BTreeMap::new();
    loop {
        let wanted = watched.checks.borrow_and_update().clone();
        let is_over = |service: &ServiceKey, server: &mut Running| {
            wanted.get(service).is_none_or(|check| check.port != server.port)
        };
        let over: Vec<Running> = running.extract_if(.., is_over).map(|(_, server)| server).collect();
        over.iter().for_each(|server| server.token.cancel());
        for server in over {
            // Somebody else may be waiting for the port.
            server.listeners.join_all().await;
        }
        refused.retain(|service, port| wanted.get(service).is_some_and(|check| check.port == *port));
        for (service, check) in wanted {
            if let Some(server) = running.get(&service) {
                server.local.send_replace(check.local_endpoints);
                continue;
            }
            match start(&watched, &service, check.port, check.local_endpoints, &token) {
                Ok(server) => {
                    refused.remove(&service);
                    running.insert(service, server);
                }
                Err(error) => {
                    if refused.insert(service.clone(), check.port).is_none() {
                        watched.warn(&service, check.port, &error);
                    }
                }
            }
        }
        tokio::select! {
            () = token.cancelled() => return,
            changed = watched.checks.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(TRY_AGAIN), if !refused.is_empty() => {}
        }
    }
}

// === impl Watched ===

impl Watched {
    fn warn(&self, service: &ServiceKey, port: u16, error: &BindError) {
        tracing::error!(%service, %error, "the load balancer cannot ask about this Service");
        let node = &self.node_name;
        let name = service.to_string();
        let told = format!("node {node} failed to start healthcheck {name:?} on port {port}: {error}");
        let notice = Notice::warning("FailedToStartServiceHealthcheck", "Listen", told);
        // A full queue of events is no reason to wait.
        let _ = self.events.try_send(notice.about_service(service));
    }
}

/// On all addresses or on none.
fn start(
    watched: &Watched,
    service: &ServiceKey,
    port: u16,
    local: usize,
    parent: &CancellationToken,
) -> Result<Running, BindError> {
    let (sender, receiver) = watch::channel(local);
    let token = parent.child_token();
    let state = Answering { service: service.clone(), local: receiver, health: watched.health.clone() };
    let router = Router::new().fallback(answer).with_state(state);
    let bind = |ip| bind("a health check", SocketAddr::new(ip, port), true);
    let listeners = listen_on(watched).into_iter().map(bind).collect::<Result<Vec<_>, _>>()?;
    let tasks = listeners
        .into_iter()
        .map(|listener| serve(listener, router.clone(), watched.connections.clone(), token.clone()));
    let listeners = tasks.collect();
    Ok(Running { port, local: sender, token, listeners })
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
    (code, headers, body(service, local, is_healthy)).into_response()
}

/// To the letter as upstream writes it. Names of objects need no escaping.
fn body(service: &ServiceKey, local: usize, is_healthy: bool) -> String {
    let ServiceKey { namespace, name } = service;
    format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": \"{namespace}\",\n\t\t\"name\": \"{name}\"\n\t}},\n\
         \t\"localEndpoints\": {local},\n\t\"serviceProxyHealthy\": {is_healthy}\n}}"
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::sync::{FamilyReport, Report};
    use proxy_core::rules::HealthCheck;
    use std::sync::Arc;

    #[test]
    fn the_answer_is_json_in_lines() {
        let text = body(&ServiceKey::new("ns", "web"), 2, true);
        assert_eq!(text.lines().nth(5), Some("\t\"localEndpoints\": 2,"));
        let wanted = serde_json::json!({
            "service": {"namespace": "ns", "name": "web"}, "localEndpoints": 2, "serviceProxyHealthy": true,
        });
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), wanted);
    }

    #[tokio::test(start_paused = true)]
    async fn a_load_balancer_is_told_of_ready_pods_and_of_a_working_proxy() {
        let late = |since| {
            let family = FamilyReport {
                family: Family::V4,
                pending_since: since,
                synced_at: None,
                syncs: 0,
                failures: 0,
                repairs: 0,
                contested_by: None,
            };
            Report { families: vec![family], ..Report::default() }
        };
        let (good, bad) = (late(None), late(Some(tokio::time::Instant::now())));
        tokio::time::advance(Duration::from_secs(61)).await;
        // The Node is nobody's business here: it was never seen, and so is not eligible.
        let rows = [(&good, 0, 503), (&good, 1, 200), (&good, 3, 200), (&bad, 0, 503), (&bad, 3, 503)];
        for (report, local, code) in rows {
            let (_, report) = watch::channel(report.clone());
            let (_, node) = watch::channel(None);
            let state = Answering {
                service: ServiceKey::new("ns", "web"),
                local: watch::channel(local).1,
                health: Health::new(report, node, Duration::from_secs(30), Arc::default()),
            };
            let answer = answer(State(state)).await;
            let weight = answer.headers()[&WEIGHT].to_str().unwrap().to_owned();
            assert_eq!((answer.status().as_u16(), weight), (code, local.to_string()), "{local}");
        }
    }

    fn watched(wanted: HealthChecks, events: mpsc::Sender<Notice>) -> (watch::Sender<HealthChecks>, Watched) {
        let (sender, checks) = watch::channel(wanted);
        let (report, node) = (watch::channel(Report::default()).1, watch::channel(None).1);
        let watched = Watched {
            node_name: "n1".into(),
            family: Family::V4,
            checks,
            addresses: NodePortAddresses::Only([[127, 0, 0, 1].into()].into()),
            health: Health::new(report, node, Duration::from_secs(30), Arc::default()),
            events,
            connections: crate::server::Ports::new(Arc::default(), serve::Budget::of(1_000_000)).checks(),
        };
        (sender, watched)
    }

    /// What is answered; nothing if the server went away meanwhile.
    async fn asked_at(port: u16) -> std::io::Result<String> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    }

    /// On one thread, so that nobody is done before he was waited for.
    #[tokio::test]
    async fn two_services_change_ports_in_one_go() {
        let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let ports = [free(), free()].map(|listener| listener.local_addr().unwrap().port());
        let wanted = |[one, other]: [u16; 2]| {
            let check = |port| HealthCheck { port, local_endpoints: 1 };
            let keys = ["one", "other"].map(|name| ServiceKey::new("ns", name));
            HealthChecks::from_iter(keys.into_iter().zip([check(one), check(other)]))
        };
        let (events, mut told) = mpsc::channel(8);
        let (checks, watched) = watched(wanted(ports), events);
        tokio::spawn(serve_checks(watched, CancellationToken::new()));
        while tokio::net::TcpStream::connect(("127.0.0.1", ports[1])).await.is_err() {
            tokio::task::yield_now().await;
        }
        checks.send_replace(wanted([ports[1], ports[0]]));
        for (port, name) in [(ports[0], "other"), (ports[1], "one")] {
            let wanted = format!("\"name\": \"{name}\"");
            let is_it = async {
                while !asked_at(port).await.is_ok_and(|text| text.contains(&wanted)) {
                    tokio::task::yield_now().await;
                }
            };
            // Well before a refused port would be tried again.
            tokio::time::timeout(TRY_AGAIN / 2, is_it).await.unwrap();
        }
        assert!(told.try_recv().is_err(), "a port was refused");
    }

    #[tokio::test(start_paused = true)]
    async fn a_port_that_is_taken_is_tried_again_and_told_of_once() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let (events, mut told) = mpsc::channel(8);
        let check = HealthCheck { port, local_endpoints: 2 };
        let wanted = HealthChecks::from([(ServiceKey::new("ns", "web"), check)]);
        let (_checks, watched) = watched(wanted, events);
        tokio::spawn(serve_checks(watched, CancellationToken::new()));
        let notice = told.recv().await.unwrap();
        let about = format!("node n1 failed to start healthcheck \"ns/web\" on port {port}: ");
        assert!(format!("{notice:?}").contains(&format!("{about:?}")[1..about.len()]), "{notice:?}");
        tokio::time::sleep(3 * TRY_AGAIN).await;
        assert!(told.try_recv().is_err(), "told twice");
        drop(taken);
        tokio::time::sleep(2 * TRY_AGAIN).await;
        tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    }

    /// As many as an adversary in a Pod needed to make a load balancer drop the node.
    #[tokio::test]
    async fn nobody_is_shut_out_of_a_port_by_idle_or_half_finished_requests() {
        use tokio::io::AsyncWriteExt;
        let router = Router::new().fallback(|| async { "ok" });
        let ports = super::super::Ports::new(Arc::default(), serve::Budget::of(1_000_000));
        for connections in [ports.healthz(), ports.metrics(), ports.checks()] {
            let listener = bind("a test", "127.0.0.1:0".parse().unwrap(), true).unwrap();
            let port = listener.local_addr().unwrap().port();
            tokio::spawn(serve(listener, router.clone(), connections, CancellationToken::new()));
            for (count, beginning) in [(600, b"".as_slice()), (400, b"GET / HTTP/1.1\r\nHost:")] {
                let mut held = Vec::new();
                for _ in 0..count {
                    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                    // It may have lost its place already.
                    let _ = stream.write_all(beginning).await;
                    held.push(stream);
                }
                let answer = tokio::time::timeout(Duration::from_secs(10), asked_at(port)).await;
                let answer = answer.expect("an answer").unwrap();
                assert!(answer.ends_with("ok"), "after {beginning:?}: {answer}");
            }
        }
    }
}
