//! Is the runtime there, and is its network? Asked every few seconds, told to every Pod task.

use std::sync::Arc;
use std::time::Duration;

use cri::v1;
use kubelet_core::cri_config::HandlerFeatures;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::ports::Runtime;

/// Period of the runtime's status probe.
const PERIOD: Duration = Duration::from_secs(5);
/// While it is not well, and right after the start, where a node waits to be ready for the first time.
const WORRIED: Duration = Duration::from_secs(1);
const STARTING: Duration = Duration::from_millis(100);
const STARTING_FOR: Duration = Duration::from_secs(120);
/// A runtime that takes longer for this question is silent.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What CRI Status said last. Optimistic until the runtime says otherwise: a Pod that tries too early
/// gets the runtime's own error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeHealth {
    pub runtime_ready: bool,
    pub network_ready: bool,
    pub network_message: String,
    /// Its own words when it says that it is not ready.
    pub runtime_message: String,
    /// It has said at least once that it is ready.
    pub answered: bool,
    /// When it last said so; none while it does.
    pub last_ready: Option<Instant>,
    /// Its handlers, as last told.
    pub handlers: Vec<v1::RuntimeHandler>,
    /// Whether it knows supplementalGroupsPolicy; none if it does not say.
    pub groups_policy: Option<bool>,
}

impl Default for RuntimeHealth {
    fn default() -> Self {
        Self {
            runtime_ready: true,
            network_ready: true,
            network_message: String::new(),
            runtime_message: String::new(),
            answered: false,
            last_ready: None,
            handlers: Vec::new(),
            groups_policy: None,
        }
    }
}

/// What a handler of the runtime can do. One that it does not name can do nothing special.
#[must_use]
pub fn features_of(handlers: &[v1::RuntimeHandler], name: &str) -> HandlerFeatures {
    let features = handlers.iter().find(|h| h.name == name).and_then(|h| h.features.as_ref());
    HandlerFeatures {
        recursive_read_only: features.is_some_and(|f| f.recursive_read_only_mounts),
        user_namespaces: features.is_some_and(|f| f.user_namespaces),
    }
}

/// Asks until cancelled: often until the runtime is well for the first time, every second while it is not.
pub async fn watch_health(
    runtime: Arc<dyn Runtime>,
    health: watch::Sender<RuntimeHealth>,
    token: CancellationToken,
) {
    let started = Instant::now();
    let mut seen = None;
    loop {
        let answer = timeout(TIMEOUT, runtime.status()).await;
        let mut next = match answer {
            Ok(Ok(answer)) => judge(answer),
            // Silence is no verdict: what the runtime said last still stands, of its network and of itself.
            Ok(Err(_)) | Err(_) => RuntimeHealth { runtime_ready: false, ..health.borrow().clone() },
        };
        if next.runtime_ready {
            seen = Some(Instant::now());
        }
        next.answered = seen.is_some();
        let good = next.runtime_ready && next.network_ready;
        health.send_if_modified(|old| {
            // A moment that moves would be a change at every answer: only the first of a silence is kept.
            next.last_ready = if next.runtime_ready { None } else { old.last_ready.or(seen) };
            let changed = *old != next;
            if changed {
                tracing::info!(
                    runtime_ready = next.runtime_ready,
                    network_ready = next.network_ready,
                    why = next.network_message,
                    "runtime health changed"
                );
                *old = next;
            }
            changed
        });
        let pause = match good {
            true => PERIOD,
            false if started.elapsed() < STARTING_FOR => STARTING,
            false => WORRIED,
        };
        tokio::select! {
            () = token.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

fn judge(answer: v1::StatusResponse) -> RuntimeHealth {
    let conditions = answer.status.map(|s| s.conditions).unwrap_or_default();
    let find = |kind: &str| conditions.iter().find(|c| c.r#type == kind);
    let (runtime, network) = (find("RuntimeReady"), find("NetworkReady"));
    let words = |what: &str, c: Option<&v1::RuntimeCondition>| match c {
        Some(c) if c.status => String::new(),
        Some(c) => text(what, c),
        // Upstream's words for a condition that is not there.
        None => format!("{what}: <nil>"),
    };
    RuntimeHealth {
        runtime_ready: runtime.is_some_and(|c| c.status),
        network_ready: network.is_some_and(|c| c.status),
        network_message: words("container runtime network not ready", network),
        runtime_message: words("container runtime not ready", runtime),
        handlers: answer.runtime_handlers,
        groups_policy: answer.features.map(|f| f.supplemental_groups_policy),
        ..Default::default()
    }
}

/// The words of events and of the node's condition, which people search for.
fn text(what: &str, c: &v1::RuntimeCondition) -> String {
    format!("{what}: {}={} reason:{} message:{}", c.r#type, c.status, c.reason, c.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(conditions: &[(&str, bool)]) -> v1::StatusResponse {
        let condition = |(kind, status): &(&str, bool)| v1::RuntimeCondition {
            r#type: (*kind).to_owned(),
            status: *status,
            reason: "R".to_owned(),
            message: "M".to_owned(),
        };
        let conditions = conditions.iter().map(condition).collect();
        v1::StatusResponse { status: Some(v1::RuntimeStatus { conditions }), ..Default::default() }
    }

    #[test]
    fn a_condition_that_is_missing_is_not_met() {
        let well = judge(answer(&[("RuntimeReady", true), ("NetworkReady", true)]));
        assert!(well.runtime_ready && well.network_ready);
        assert_eq!((well.runtime_message.as_str(), well.network_message.as_str()), ("", ""));
        let bare = judge(answer(&[]));
        assert!(!bare.runtime_ready && !bare.network_ready);
        assert_eq!(bare.runtime_message, "container runtime not ready: <nil>");
        assert_eq!(bare.network_message, "container runtime network not ready: <nil>");
        let half = judge(answer(&[("RuntimeReady", true), ("NetworkReady", false)]));
        assert!(half.runtime_ready && !half.network_ready);
        let words = "container runtime network not ready: NetworkReady=false reason:R message:M";
        assert_eq!(half.network_message, words);
    }

    #[test]
    fn every_handler_speaks_for_itself() {
        let handler = |name: &str, recursive_read_only_mounts, user_namespaces| v1::RuntimeHandler {
            name: name.to_owned(),
            features: Some(v1::RuntimeHandlerFeatures { recursive_read_only_mounts, user_namespaces }),
        };
        let bare = v1::RuntimeHandler { name: "bare".to_owned(), features: None };
        let all = [handler("", true, true), handler("vm", true, false), bare];
        let said = |name: &str| {
            let f = features_of(&all, name);
            (f.recursive_read_only, f.user_namespaces)
        };
        assert_eq!((said(""), said("vm")), ((true, true), (true, false)));
        assert_eq!((said("bare"), said("unknown")), ((false, false), (false, false)));
    }
}
