//! One Pod in one line, in the words kubectl uses.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

/// The cells of a Pod's line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) ready: String,
    pub(super) status: String,
    pub(super) restarts: String,
    pub(super) age: String,
    pub(super) ip: String,
    pub(super) node: String,
    pub(super) source: String,
}

impl Row {
    pub(super) fn of(pod: &Pod, now: Timestamp) -> Row {
        let (namespace, name) = kubelet::pods::sources::names(pod);
        let tally = Tally::of(pod);
        let status = pod.status.as_ref();
        let born = pod.metadata.creation_timestamp.as_ref().or(status.and_then(|s| s.start_time.as_ref()));
        let restarts = match &tally.last_restart {
            Some(at) if tally.restarts > 0 => format!("{} ({} ago)", tally.restarts, since(at, now)),
            _ => tally.restarts.to_string(),
        };
        let none = || "<none>".to_owned();
        Row {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ready: format!("{}/{}", tally.ready, tally.total),
            status: tally.reason,
            restarts,
            age: born.map_or_else(|| "<unknown>".to_owned(), |at| since(at, now)),
            ip: status.and_then(|s| s.pod_ip.clone()).unwrap_or_else(none),
            node: pod.spec.as_ref().and_then(|s| s.node_name.clone()).unwrap_or_else(none),
            source: source(pod).to_owned(),
        }
    }
}

fn source(pod: &Pod) -> &str {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.and_then(|a| a.get(api::pod::static_pod::SOURCE_ANNOTATION)).map_or("api", String::as_str)
}

/// What the containers amount to.
struct Tally {
    ready: usize,
    total: usize,
    restarts: i32,
    last_restart: Option<Time>,
    reason: String,
}

impl Tally {
    fn of(pod: &Pod) -> Tally {
        let spec = pod.spec.clone().unwrap_or_default();
        let status = pod.status.clone().unwrap_or_default();
        let inits = spec.init_containers.unwrap_or_default();
        let sidecars: Vec<&str> = inits
            .iter()
            .filter(|c| c.restart_policy.as_deref() == Some("Always"))
            .map(|c| c.name.as_str())
            .collect();
        let phase = status.phase.clone().unwrap_or_else(|| "Pending".to_owned());
        let mut tally = Tally {
            ready: 0,
            total: spec.containers.len() + sidecars.len(),
            restarts: 0,
            last_restart: None,
            reason: status.reason.clone().filter(|r| !r.is_empty()).unwrap_or(phase.clone()),
        };
        let initializing =
            tally.add_inits(&status.init_container_statuses.unwrap_or_default(), &sidecars, inits.len());
        let condition = |name: &str| {
            let conditions = status.conditions.as_deref().unwrap_or_default();
            conditions.iter().any(|c| c.type_ == name && c.status == "True")
        };
        if !initializing || condition("Initialized") {
            tally.add_regular(&status.container_statuses.unwrap_or_default(), condition("Ready"));
        }
        let over = matches!(phase.as_str(), "Succeeded" | "Failed");
        if pod.metadata.deletion_timestamp.is_some() && !over {
            tally.reason = "Terminating".to_owned();
        }
        tally
    }

    /// Counts init containers; true while one of them is still to finish.
    fn add_inits(&mut self, statuses: &[ContainerStatus], sidecars: &[&str], total: usize) -> bool {
        for (i, s) in statuses.iter().enumerate() {
            self.count(s);
            let state = s.state.clone().unwrap_or_default();
            let sidecar = sidecars.contains(&s.name.as_str());
            match (&state.terminated, &state.waiting) {
                (Some(t), _) if t.exit_code == 0 => continue,
                _ if sidecar && s.started == Some(true) => {
                    self.ready += usize::from(s.ready);
                    continue;
                }
                (Some(t), _) => self.reason = format!("Init:{}", ended(t)),
                (_, Some(w))
                    if w.reason.as_deref().is_some_and(|r| !r.is_empty() && r != "PodInitializing") =>
                {
                    self.reason = format!("Init:{}", w.reason.as_deref().unwrap_or_default());
                }
                _ => self.reason = format!("Init:{i}/{total}"),
            }
            return true;
        }
        false
    }

    fn add_regular(&mut self, statuses: &[ContainerStatus], pod_is_ready: bool) {
        let mut running = false;
        for s in statuses.iter().rev() {
            self.count(s);
            let state = s.state.clone().unwrap_or_default();
            let waiting = state.waiting.and_then(|w| w.reason).filter(|r| !r.is_empty());
            match (waiting, state.terminated) {
                (Some(reason), _) => self.reason = reason,
                (None, Some(t)) => self.reason = ended(&t),
                (None, None) if s.ready && state.running.is_some() => {
                    running = true;
                    self.ready += 1;
                }
                _ => {}
            }
        }
        // Some finished, some go on: the Pod as a whole is running.
        if self.reason == "Completed" && running {
            self.reason = if pod_is_ready { "Running" } else { "NotReady" }.to_owned();
        }
    }

    fn count(&mut self, s: &ContainerStatus) {
        self.restarts += s.restart_count;
        let ended =
            s.last_state.as_ref().and_then(|l| l.terminated.as_ref()).and_then(|t| t.finished_at.clone());
        self.last_restart = self.last_restart.take().max(ended);
    }
}

fn ended(t: &ContainerStateTerminated) -> String {
    match (t.reason.as_deref().filter(|r| !r.is_empty()), t.signal.filter(|s| *s != 0)) {
        (Some(reason), _) => reason.to_owned(),
        (None, Some(signal)) => format!("Signal:{signal}"),
        (None, None) => format!("ExitCode:{}", t.exit_code),
    }
}

/// How long ago, roughly: two units at most, the coarser the longer.
pub(super) fn since(at: &Time, now: Timestamp) -> String {
    let s = now.as_second().saturating_sub(at.0.as_second()).max(0);
    let (m, h, d) = (s / 60, s / 3600, s / 86400);
    let two = |big: i64, unit: char, small: i64, other: char| {
        if small == 0 { format!("{big}{unit}") } else { format!("{big}{unit}{small}{other}") }
    };
    match s {
        0..120 => format!("{s}s"),
        120..600 => two(m, 'm', s % 60, 's'),
        600..10_800 => format!("{m}m"),
        10_800..28_800 => two(h, 'h', m % 60, 'm'),
        28_800..172_800 => format!("{h}h"),
        172_800..691_200 => two(d, 'd', h % 24, 'h'),
        691_200..63_072_000 => format!("{d}d"),
        63_072_000..252_288_000 => two(d / 365, 'y', d % 365, 'd'),
        _ => format!("{}y", d / 365),
    }
}
