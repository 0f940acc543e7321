//! How a Pod ends: what is stopped, in which order, and with how much time.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use super::policy::{is_sidecar, kind_of};
use super::{ContainerKind, Stop};
use crate::observed::{ContainerState, Observed};

/// What still runs of the Pod, or may run. All stops happen at once; `after` holds back only the
/// stop signal of sidecars, which serve the others to the end and go in reverse order.
#[must_use]
pub fn stops(pod: &Pod, observed: &Observed) -> Vec<Stop> {
    let live = || {
        let states = [ContainerState::Running, ContainerState::Unknown];
        observed.containers.iter().filter(move |c| states.contains(&c.state))
    };
    let lives = |name: &str| live().any(|c| c.name == name);
    let spec = pod.spec.as_ref();
    let regular: Vec<&str> = spec
        .map_or(&[][..], |s| &s.containers)
        .iter()
        .map(|c| c.name.as_str())
        .filter(|n| lives(n))
        .collect();
    let sidecars: Vec<&str> = spec
        .and_then(|s| s.init_containers.as_deref())
        .unwrap_or_default()
        .iter()
        .filter(|c| is_sidecar(c) && lives(&c.name))
        .map(|c| c.name.as_str())
        .collect();
    live()
        .map(|c| {
            // Somebody's container that the Pod does not list stops like any other.
            let kind = kind_of(pod, &c.name).unwrap_or(ContainerKind::Regular);
            let later = sidecars.iter().skip_while(|n| **n != c.name).skip(1);
            let after = if kind == ContainerKind::Sidecar {
                regular.iter().chain(later).map(|n| (*n).to_owned()).collect()
            } else {
                Vec::new()
            };
            Stop { id: c.id.clone(), name: c.name.clone(), kind, after }
        })
        .collect()
}

/// The timeout for StopContainer: what the hook and the waiting left of the grace, but a container
/// always gets a moment to react.
#[must_use]
pub fn stop_grace(grace: i64, elapsed: Duration) -> i64 {
    let spent = i64::try_from(elapsed.as_secs()).unwrap_or(i64::MAX);
    grace.saturating_sub(spent).max(LEAST_GRACE)
}

const LEAST_GRACE: i64 = 2;

/// The grace of what runs without anybody knowing its Pod, in seconds.
pub const ORPHAN_GRACE: i64 = 1;

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Container, PodSpec};

    use super::*;
    use crate::observed::Container as Instance;
    use crate::testing::{instance, pod};

    fn names(stops: &[Stop]) -> Vec<(&str, Vec<&str>)> {
        stops.iter().map(|s| (s.name.as_str(), s.after.iter().map(String::as_str).collect())).collect()
    }

    fn observed(live: &[(&str, ContainerState)]) -> Observed {
        let containers = live.iter().map(|(n, state)| Instance { state: *state, ..instance(n) }).collect();
        Observed { containers, ..Default::default() }
    }

    #[test]
    fn sidecars_wait_for_the_regular_ones_and_for_later_sidecars() {
        let side = |name: &str| Container {
            name: name.into(),
            restart_policy: Some("Always".into()),
            ..Default::default()
        };
        let p = pod(PodSpec {
            init_containers: Some(vec![
                side("first"),
                Container { name: "once".into(), ..Default::default() },
                side("second"),
            ]),
            containers: vec![
                Container { name: "app".into(), ..Default::default() },
                Container { name: "done".into(), ..Default::default() },
            ],
            ..Default::default()
        });
        use ContainerState::{Exited, Running, Unknown};
        let o = observed(&[
            ("app", Running),
            ("done", Exited),
            ("first", Running),
            ("second", Unknown),
            ("stranger", Running),
        ]);
        assert_eq!(
            names(&stops(&p, &o)),
            [
                ("app", vec![]),
                ("first", vec!["app", "second"]),
                ("second", vec!["app"]),
                ("stranger", vec![]),
            ]
        );
    }

    #[test]
    fn the_stop_gets_what_is_left_but_two_seconds_at_least() {
        for (grace, elapsed_ms, want) in
            [(30, 0, 30), (30, 10_900, 20), (30, 29_000, 2), (30, 90_000, 2), (0, 0, 2), (-5, 0, 2)]
        {
            assert_eq!(stop_grace(grace, Duration::from_millis(elapsed_ms)), want);
        }
    }
}
