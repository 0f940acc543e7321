//! Pods that run although nobody knows them.

use std::collections::BTreeSet;

use base::ids::PodUid;

use crate::observed::{ContainerState, FoundPod};

/// Pods found alive in the runtime that no task handles and no source lists: they are to be ended,
/// with [`crate::pod::ORPHAN_GRACE`]. None before every source has reported once, because until then
/// a Pod nobody lists may just not have been mentioned yet.
#[must_use]
pub fn orphans<'a>(
    found: &'a [FoundPod],
    handled: &BTreeSet<PodUid>,
    listed: &BTreeSet<PodUid>,
    sources_ready: bool,
) -> Vec<&'a FoundPod> {
    if !sources_ready {
        return Vec::new();
    }
    let unknown = |p: &&FoundPod| !handled.contains(&p.uid) && !listed.contains(&p.uid);
    found.iter().filter(unknown).filter(|p| lives(p)).collect()
}

fn lives(pod: &FoundPod) -> bool {
    let states = [ContainerState::Running, ContainerState::Unknown];
    pod.observed.sandboxes.iter().any(|s| s.ready)
        || pod.observed.containers.iter().any(|c| states.contains(&c.state))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::Observed;
    use crate::testing::{exited, instance, sandbox};

    #[test]
    fn only_live_unknown_pods_and_only_when_all_sources_spoke() {
        let pod = |uid: &str, observed: Observed| FoundPod {
            uid: uid.into(),
            name: uid.into(),
            namespace: "default".into(),
            observed,
        };
        let runs = || Observed { containers: vec![instance("app")], ..Default::default() };
        let found = [
            pod("handled", runs()),
            pod("listed", runs()),
            pod("orphan", runs()),
            pod("netns", Observed { sandboxes: vec![sandbox("s", 0, true)], ..Default::default() }),
            pod("dead", Observed { containers: vec![exited("app", 0)], ..Default::default() }),
        ];
        let (handled, listed) = (["handled".into()].into(), ["listed".into()].into());
        assert!(orphans(&found, &handled, &listed, false).is_empty());
        let names: Vec<&str> =
            orphans(&found, &handled, &listed, true).iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["orphan", "netns"]);
    }
}
