//! A Pod in a few words: how many of its containers are ready, what kubectl shows as its status, and why it waits.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// What the containers amount to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    pub ready: usize,
    pub total: usize,
    pub restarts: i32,
    pub last_restart: Option<Time>,
    /// What kubectl shows as the Pod's status.
    pub reason: String,
}

// === impl Tally ===

impl Tally {
    #[must_use]
    pub fn of(pod: &Pod) -> Tally {
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

/// Why a Pod is not what it shall be, as somebody wrote it down.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Why {
    /// Empty for the Pod as a whole.
    pub container: String,
    pub reason: String,
    pub message: String,
}

/// The most telling thing that a status says about a Pod that waits or has failed; none where all is well, or nobody said.
#[must_use]
pub fn why(status: &PodStatus) -> Option<Why> {
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    if !text(&status.message).is_empty() {
        return Some(Why { reason: text(&status.reason), message: text(&status.message), ..Why::default() });
    }
    let lists = [&status.init_container_statuses, &status.container_statuses];
    let all = || lists.into_iter().flatten().flatten();
    let waits = all().find_map(|s| {
        let waiting = s.state.as_ref()?.waiting.as_ref()?;
        let (reason, message) = (text(&waiting.reason), text(&waiting.message));
        let is_news =
            !message.is_empty() || !matches!(reason.as_str(), "ContainerCreating" | "PodInitializing");
        // What ended it last says more than that it is started again.
        let last = s.last_state.as_ref().and_then(|l| l.terminated.as_ref()).map(last_end);
        let message = match (message.is_empty(), last) {
            (_, Some(last)) if reason == "CrashLoopBackOff" => format!("{last}; {message}"),
            _ => message,
        };
        is_news.then(|| Why { container: s.name.clone(), reason, message })
    });
    waits.or_else(|| {
        all().find_map(|s| {
            let end = s.state.as_ref()?.terminated.as_ref().filter(|t| t.exit_code != 0)?;
            Some(Why { container: s.name.clone(), reason: ended(end), message: last_end(end) })
        })
    })
}

fn last_end(t: &ContainerStateTerminated) -> String {
    let how = match t.signal.filter(|s| *s != 0) {
        Some(signal) => format!("ended by signal {signal}"),
        None => format!("ended with exit code {}", t.exit_code),
    };
    match t.message.as_deref().map(str::trim).filter(|m| !m.is_empty()) {
        Some(message) => format!("{how}: {message}"),
        None => how,
    }
}

fn ended(t: &ContainerStateTerminated) -> String {
    match (t.reason.as_deref().filter(|r| !r.is_empty()), t.signal.filter(|s| *s != 0)) {
        (Some(reason), _) => reason.to_owned(),
        (None, Some(signal)) => format!("Signal:{signal}"),
        (None, None) => format!("ExitCode:{}", t.exit_code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_pod_waits_for_is_told_by_who_knows_most() {
        let of = |status| why(&serde_json::from_value::<PodStatus>(status).unwrap_or_default());
        let container = |state: serde_json::Value, last: serde_json::Value| {
            json!({"containerStatuses": [
                {"name": "fine", "ready": true, "restartCount": 0, "image": "", "imageID": "", "state": {"running": {}}},
                {"name": "c", "ready": false, "restartCount": 0, "image": "", "imageID": "", "state": state, "lastState": last},
            ]})
        };
        let why = |container: &str, reason: &str, message: &str| {
            Some(Why { container: container.into(), reason: reason.into(), message: message.into() })
        };
        let waiting =
            |reason: &str, message: &str| json!({"waiting": {"reason": reason, "message": message}});
        let table = [
            (json!({}), None),
            (json!({"reason": "Evicted", "message": "low on memory"}), why("", "Evicted", "low on memory")),
            (container(waiting("ContainerCreating", ""), json!({})), None),
            (
                container(waiting("ErrImagePull", "no such image"), json!({})),
                why("c", "ErrImagePull", "no such image"),
            ),
            (
                container(
                    waiting("CrashLoopBackOff", "back-off 10s"),
                    json!({"terminated": {"exitCode": 3, "message": "boom\n"}}),
                ),
                why("c", "CrashLoopBackOff", "ended with exit code 3: boom; back-off 10s"),
            ),
            (container(json!({"terminated": {"exitCode": 0, "reason": "Completed"}}), json!({})), None),
            (
                container(
                    json!({"terminated": {"exitCode": 137, "signal": 9, "reason": "OOMKilled"}}),
                    json!({}),
                ),
                why("c", "OOMKilled", "ended by signal 9"),
            ),
        ];
        for (status, want) in table {
            assert_eq!(of(status.clone()), want, "{status}");
        }
    }
}
