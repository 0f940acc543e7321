//! The row of `kubectl get pods`.

use base::rfc3339::Moment;
use base::time::Wall;
use serde_json::Value;

use crate::doc;
use crate::kind::Column;
use crate::table;

pub(super) const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::text("Ready", "How many of its containers are ready"),
    Column::text("Status", "What the containers are doing, in one word"),
    Column::text("Restarts", "How often containers were restarted, and when last"),
    Column::AGE,
    Column::wide("IP", "The address of the Pod"),
    Column::wide("Node", "Where it runs"),
    Column::wide("Nominated Node", "Where it waits for others to make room"),
    Column::wide("Readiness Gates", "How many of its further conditions hold"),
];

pub(super) fn cells(pod: &Value, now: Wall) -> Vec<Value> {
    let summary = Summary::of(pod);
    let podip = doc::list(pod, "status.podIPs").first().map_or("", |ip| doc::text(ip, "ip"));
    vec![
        table::name(pod),
        format!("{}/{}", summary.ready, summary.total).into(),
        summary.reason.clone().into(),
        summary.restarts_cell(now).into(),
        table::age(pod, now).into(),
        table::or_none(podip).into(),
        table::text_or(pod, "spec.nodeName", "<none>").into(),
        table::text_or(pod, "status.nominatedNodeName", "<none>").into(),
        gates(pod).into(),
    ]
}

/// What the statuses of all containers come to.
struct Summary {
    ready: usize,
    total: usize,
    reason: String,
    restarts: i64,
    last_restart: Option<Moment>,
}

// === impl Summary ===

impl Summary {
    fn of(pod: &Value) -> Summary {
        let sidecars = doc::list(pod, "spec.initContainers").iter().filter(|c| is_sidecar(c)).count();
        let mut summary = Summary {
            ready: 0,
            total: doc::list(pod, "spec.containers").len() + sidecars,
            reason: first_reason(pod),
            restarts: 0,
            last_restart: None,
        };
        let is_initializing = summary.count_init(pod);
        if !is_initializing || condition(pod, "Initialized") == Some("True") {
            summary.count_main(pod);
        }
        if !doc::at(pod, "metadata.deletionTimestamp").is_null() {
            let is_over = matches!(doc::text(pod, "status.phase"), "Failed" | "Succeeded");
            if doc::text(pod, "status.reason") == "NodeLost" {
                summary.reason = "Unknown".to_owned();
            } else if !is_over {
                summary.reason = "Terminating".to_owned();
            }
        }
        summary
    }

    /// Init containers, up to the one that is not done yet. True if there is such a one.
    fn count_init(&mut self, pod: &Value) -> bool {
        let specs = doc::list(pod, "spec.initContainers");
        for (i, status) in doc::list(pod, "status.initContainerStatuses").iter().enumerate() {
            self.count_restarts(status);
            let name = doc::text(status, "name");
            let sidecar = specs.iter().any(|c| doc::text(c, "name") == name && is_sidecar(c));
            let terminated = doc::at(status, "state.terminated");
            let waiting = doc::text(status, "state.waiting.reason");
            if !terminated.is_null() && doc::int(terminated, "exitCode") == 0 {
                continue;
            }
            if sidecar && doc::is_true(status, "started") {
                self.ready += usize::from(doc::is_true(status, "ready"));
                continue;
            }
            self.reason = if !terminated.is_null() {
                format!("Init:{}", end_reason(terminated))
            } else if !matches!(waiting, "" | "PodInitializing") {
                format!("Init:{waiting}")
            } else {
                format!("Init:{i}/{}", specs.len())
            };
            return true;
        }
        false
    }

    fn count_main(&mut self, pod: &Value) {
        // Once the main containers run, of the others only sidecars count.
        (self.restarts, self.last_restart) = (0, None);
        let specs = doc::list(pod, "spec.initContainers");
        for status in doc::list(pod, "status.initContainerStatuses") {
            let name = doc::text(status, "name");
            if specs.iter().any(|c| doc::text(c, "name") == name && is_sidecar(c)) {
                self.count_restarts(status);
            }
        }
        let (mut has_running, mut error) = (false, None);
        for status in doc::list(pod, "status.containerStatuses").iter().rev() {
            self.count_restarts(status);
            let terminated = doc::at(status, "state.terminated");
            let waiting = doc::text(status, "state.waiting.reason");
            if !waiting.is_empty() {
                self.reason = waiting.to_owned();
            } else if !terminated.is_null() {
                self.reason = end_reason(terminated);
                if doc::int(terminated, "exitCode") != 0 {
                    error = Some(self.reason.clone());
                }
            } else if doc::is_true(status, "ready") && !doc::at(status, "state.running").is_null() {
                has_running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" {
            if has_running && condition(pod, "Ready") == Some("True") {
                self.reason = "Running".to_owned();
            } else if let Some(error) = error {
                self.reason = error;
            } else if has_running {
                self.reason = "NotReady".to_owned();
            }
        }
    }

    fn count_restarts(&mut self, status: &Value) {
        self.restarts += doc::int(status, "restartCount");
        let finished = Moment::parse_lenient(doc::text(status, "lastState.terminated.finishedAt"));
        self.last_restart = self.last_restart.max(finished);
    }

    fn restarts_cell(&self, now: Wall) -> String {
        match self.last_restart {
            Some(at) if self.restarts != 0 => {
                let ago = table::short_duration(now.secs().saturating_sub(at.secs));
                format!("{} ({ago} ago)", self.restarts)
            }
            _ => self.restarts.to_string(),
        }
    }
}

fn first_reason(pod: &Value) -> String {
    let gated = doc::list(pod, "status.conditions")
        .iter()
        .any(|c| doc::text(c, "type") == "PodScheduled" && doc::text(c, "reason") == "SchedulingGated");
    match doc::text(pod, "status.reason") {
        _ if gated => "SchedulingGated".to_owned(),
        "" => doc::text(pod, "status.phase").to_owned(),
        reason => reason.to_owned(),
    }
}

fn end_reason(terminated: &Value) -> String {
    match (doc::text(terminated, "reason"), doc::int(terminated, "signal")) {
        ("", 0) => format!("ExitCode:{}", doc::int(terminated, "exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

fn is_sidecar(container: &Value) -> bool {
    doc::text(container, "restartPolicy") == "Always"
}

fn condition<'a>(pod: &'a Value, kind: &str) -> Option<&'a str> {
    let found = doc::list(pod, "status.conditions").iter().find(|c| doc::text(c, "type") == kind)?;
    Some(doc::text(found, "status"))
}

fn gates(pod: &Value) -> String {
    let gates = doc::list(pod, "spec.readinessGates");
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let open = gates.iter().filter(|g| condition(pod, doc::text(g, "conditionType")) == Some("True")).count();
    format!("{open}/{}", gates.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// READY, STATUS and RESTARTS at second 300.
    fn row(pod: Value) -> Value {
        json!(&cells(&pod, Wall::from_secs(300))[1..4])
    }

    fn status(name: &str, state: Value, restarts: i64) -> Value {
        let ready = state.get("running").is_some();
        json!({"name": name, "state": state, "ready": ready, "restartCount": restarts, "started": ready})
    }

    #[test]
    fn the_three_words_of_a_pod() {
        let running = json!({"running": {}});
        let two = json!([{"name": "a"}, {"name": "b"}]);
        let crash = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        let done = json!({"terminated": {"exitCode": 0, "reason": "Completed"}});
        let failed = json!({"terminated": {"exitCode": 2, "reason": "Error"}});
        let killed = json!({"terminated": {"exitCode": 137, "signal": 9}});
        let pod =
            |spec: Value, status: Value| json!({"metadata": {"name": "p"}, "spec": spec, "status": status});
        let main = |a: &Value, b: &Value| {
            pod(
                json!({"containers": two}),
                json!({"phase": "Running", "containerStatuses": [status("a", a.clone(), 1), status("b", b.clone(), 2)]}),
            )
        };
        assert_eq!(
            row(pod(json!({"containers": two}), json!({"phase": "Pending"}))),
            json!(["0/2", "Pending", "0"])
        );
        assert_eq!(row(main(&running, &running)), json!(["2/2", "Running", "3"]));
        assert_eq!(row(main(&crash, &running)), json!(["1/2", "CrashLoopBackOff", "3"]));
        assert_eq!(row(main(&running, &failed)), json!(["1/2", "Error", "3"]));
        assert_eq!(row(main(&done, &running)), json!(["1/2", "NotReady", "3"]));
        assert_eq!(row(main(&done, &failed)), json!(["0/2", "Error", "3"]));
        assert_eq!(row(main(&killed, &done)), json!(["0/2", "Signal:9", "3"]));
        let mut ready = main(&done, &running);
        ready["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
        assert_eq!(row(ready), json!(["1/2", "Running", "3"]));
        let mut restarted = main(&running, &running);
        restarted["status"]["containerStatuses"][0]["lastState"] =
            json!({"terminated": {"finishedAt": "1970-01-01T00:02:00Z"}});
        assert_eq!(row(restarted.clone()), json!(["2/2", "Running", "3 (3m ago)"]));
        restarted["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:00:00Z");
        assert_eq!(row(restarted.clone())[1], "Terminating");
        restarted["status"]["reason"] = json!("NodeLost");
        assert_eq!(row(restarted)[1], "Unknown");
        assert_eq!(row(pod(json!({}), json!({"phase": "Failed", "reason": "Evicted"})))[1], "Evicted");
    }

    #[test]
    fn init_containers_and_sidecars() {
        let spec = json!({"containers": [{"name": "a"}],
            "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}, {"name": "j"}]});
        let pod = |init: Value, main: Value| json!({"metadata": {"name": "p"}, "spec": spec, "status": {"phase": "Pending", "initContainerStatuses": init, "containerStatuses": main}});
        let done = json!({"terminated": {"exitCode": 0}});
        let running = json!({"running": {}});
        let initializing = json!({"waiting": {"reason": "PodInitializing"}});
        let a = |state: &Value| json!([status("a", state.clone(), 0)]);
        let init = |i: &Value, s: &Value, j: &Value| {
            json!([status("i", i.clone(), 4), status("s", s.clone(), 1), status("j", j.clone(), 0)])
        };
        assert_eq!(
            row(pod(init(&running, &initializing, &initializing), a(&initializing))),
            json!(["0/2", "Init:0/3", "4"])
        );
        assert_eq!(
            row(pod(init(&done, &running, &running), a(&initializing))),
            json!(["1/2", "Init:2/3", "5"])
        );
        let pull = json!({"waiting": {"reason": "ImagePullBackOff"}});
        assert_eq!(
            row(pod(init(&pull, &initializing, &initializing), a(&initializing)))[1],
            "Init:ImagePullBackOff"
        );
        let failed = json!({"terminated": {"exitCode": 3}});
        assert_eq!(
            row(pod(init(&failed, &initializing, &initializing), a(&initializing)))[1],
            "Init:ExitCode:3"
        );
        // Restarts of init containers that are done no longer count.
        assert_eq!(row(pod(init(&done, &running, &done), a(&running))), json!(["2/2", "Pending", "1"]));
    }

    #[test]
    fn the_wide_cells() {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "readinessGates": [{"conditionType": "x"}, {"conditionType": "y"}]},
            "status": {"podIPs": [{"ip": "10.0.0.1"}], "conditions": [{"type": "x", "status": "True"}]}});
        assert_eq!(json!(&cells(&pod, Wall::from_secs(0))[5..]), json!(["10.0.0.1", "n", "<none>", "1/2"]));
    }
}
