//! Which instance of a container a request for its log means.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, PodStatus};

/// The instance, as the number in its log file's name; or why there is none, in the words people search for.
pub fn choose(pod: &str, status: &PodStatus, container: &str, previous: bool) -> Result<i32, String> {
    let Some(status) = find(status, container) else {
        return Err(format!("container {container:?} in pod {pod:?} is not available"));
    };
    let state = status.state.as_ref();
    let has_last = status.last_state.as_ref().is_some_and(is_over);
    let started = state.is_some_and(|s| s.running.is_some() || is_over(s));
    match (previous, started) {
        (true, _) if !has_last => {
            Err(format!("previous terminated container {container:?} in pod {pod:?} not found"))
        }
        (true, true) => Ok((status.restart_count - 1).max(0)),
        (false, true) => Ok(status.restart_count),
        // Between two instances the last one is both the current and the previous.
        _ if has_last => Ok(status.restart_count),
        _ => Err(waiting(pod, container, state)),
    }
}

/// The status of a container of any kind.
#[must_use]
pub fn find<'a>(status: &'a PodStatus, container: &str) -> Option<&'a ContainerStatus> {
    let lists =
        [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    lists.into_iter().flatten().flatten().find(|s| s.name == container)
}

/// An end without an id is told of a container that never was.
fn is_over(state: &ContainerState) -> bool {
    state.terminated.as_ref().is_some_and(|t| t.container_id.as_ref().is_some_and(|id| !id.is_empty()))
}

fn waiting(pod: &str, container: &str, state: Option<&ContainerState>) -> String {
    if state.is_some_and(|s| s.terminated.is_some()) {
        return format!("container {container:?} in pod {pod:?} is terminated");
    }
    let waiting = state.and_then(|s| s.waiting.as_ref());
    let begin = format!("container {container:?} in pod {pod:?} is waiting to start");
    match waiting.map(|w| w.reason.as_deref().unwrap_or_default()) {
        Some("ErrImagePull") => format!("{begin}: image can't be pulled"),
        Some("ImagePullBackOff") => format!("{begin}: trying and failing to pull image"),
        Some(reason) => format!("{begin}: {reason}"),
        None => format!("{begin} - no logs yet"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn asked(status: Value, previous: bool) -> Result<i32, String> {
        let mut status = status;
        let fields =
            [("name", json!("c")), ("ready", json!(false)), ("image", json!("")), ("imageID", json!(""))];
        for (key, value) in fields {
            status[key] = value;
        }
        let status: PodStatus = serde_json::from_value(json!({ "containerStatuses": [status] })).unwrap();
        choose("p", &status, "c", previous)
    }

    #[test]
    fn the_instance_meant_is_found_or_the_reason_told() {
        let over = json!({"terminated": {"exitCode": 1, "containerID": "containerd://x"}});
        let never = json!({"terminated": {"exitCode": 137}});
        let waits = |reason: &str| json!({"waiting": {"reason": reason}});
        let running = json!({"running": {}});
        let rows = [
            (json!({"restartCount": 2, "state": running, "lastState": over}), false, Ok(2)),
            (json!({"restartCount": 2, "state": running, "lastState": over}), true, Ok(1)),
            (json!({"restartCount": 0, "state": running}), false, Ok(0)),
            (json!({"restartCount": 3, "state": waits("CrashLoopBackOff"), "lastState": over}), false, Ok(3)),
            (json!({"restartCount": 3, "state": waits("CrashLoopBackOff"), "lastState": over}), true, Ok(3)),
            (json!({"restartCount": 1, "state": over, "lastState": over}), false, Ok(1)),
            (
                json!({"restartCount": 0, "state": running}),
                true,
                Err("previous terminated container \"c\" in pod \"p\" not found"),
            ),
            (
                json!({"restartCount": 0, "state": waits("ContainerCreating")}),
                false,
                Err("container \"c\" in pod \"p\" is waiting to start: ContainerCreating"),
            ),
            (
                json!({"restartCount": 0, "state": waits("ErrImagePull")}),
                false,
                Err("container \"c\" in pod \"p\" is waiting to start: image can't be pulled"),
            ),
            (
                json!({"restartCount": 0, "state": waits("ImagePullBackOff")}),
                false,
                Err("container \"c\" in pod \"p\" is waiting to start: trying and failing to pull image"),
            ),
            (
                json!({"restartCount": 0, "state": never}),
                false,
                Err("container \"c\" in pod \"p\" is terminated"),
            ),
            (
                json!({"restartCount": 0}),
                false,
                Err("container \"c\" in pod \"p\" is waiting to start - no logs yet"),
            ),
        ];
        for (status, previous, expected) in rows {
            let found = asked(status.clone(), previous);
            assert_eq!(found, expected.map_err(str::to_owned), "{status} {previous}");
        }
        let none = choose("p", &PodStatus::default(), "c", false);
        assert_eq!(none, Err("container \"c\" in pod \"p\" is not available".to_owned()));
    }
}
