//! One Pod in one line, in the words kubectl uses.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kubelet_core::pod::tally::Tally;

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
