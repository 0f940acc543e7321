//! The heartbeat: a Lease in `kube-node-lease` that the node renews four times in its life.

use std::time::Duration;

use base::time::Wall;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;

use super::owner;

pub const NAMESPACE: &str = "kube-node-lease";
/// Attempts to renew in a row before the next period.
pub const RENEW_TRIES: u32 = 5;
/// The longest pause between attempts to create it.
pub const PAUSE_MAX: Duration = Duration::from_secs(7);

/// How often it is renewed.
#[must_use]
pub fn period(lease_seconds: i32) -> Duration {
    Duration::from_secs(u64::try_from(lease_seconds).unwrap_or(40)) / 4
}

/// The lease to write: `base` is the one that was seen last. None if it is to be created, but its owner is not
/// known yet: a lease without one would outlive its node.
#[must_use]
pub fn renewed(
    base: Option<&Lease>,
    node: &str,
    uid: Option<&str>,
    seconds: i32,
    now: Wall,
) -> Option<Lease> {
    let mut lease = base.cloned().unwrap_or_else(|| {
        let mut new = Lease::default();
        new.metadata.name = Some(node.to_owned());
        new.metadata.namespace = Some(NAMESPACE.to_owned());
        new.spec.get_or_insert_default().holder_identity = Some(node.to_owned());
        new
    });
    if base.is_none() && uid.is_none() {
        return None;
    }
    let owners = lease.metadata.owner_references.get_or_insert_default();
    if let (true, Some(uid)) = (owners.is_empty(), uid) {
        owners.push(owner(node, uid));
    }
    let spec = lease.spec.get_or_insert_default();
    spec.lease_duration_seconds = Some(seconds);
    spec.renew_time = micro(now).map(MicroTime);
    Some(lease)
}

/// Microseconds are all the wire carries.
fn micro(now: Wall) -> Option<Timestamp> {
    Timestamp::from_microsecond(now.0.div_euclid(1000)).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_new_lease_belongs_to_its_node() {
        assert_eq!(renewed(None, "n1", None, 40, Wall(0)), None, "nobody to own it");
        let lease = renewed(None, "n1", Some("u1"), 40, Wall::from_secs(5)).unwrap();
        insta::assert_snapshot!(serde_json::to_string_pretty(&lease).unwrap());
    }

    #[test]
    fn a_renewal_keeps_what_is_there_and_finds_its_owner_late() {
        let mut old = renewed(None, "n1", Some("u1"), 40, Wall::from_secs(5)).unwrap();
        old.metadata.resource_version = Some("7".into());
        old.metadata.owner_references = None;
        let new = renewed(Some(&old), "n1", None, 20, Wall::from_secs(6)).unwrap();
        assert_eq!(new.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(new.spec.as_ref().unwrap().lease_duration_seconds, Some(20));
        assert_eq!(new.spec.as_ref().unwrap().renew_time.as_ref().unwrap().0.as_second(), 6);
        assert!(new.metadata.owner_references.as_ref().unwrap().is_empty());
        let owned = renewed(Some(&new), "n1", Some("u1"), 20, Wall::from_secs(7)).unwrap();
        assert_eq!(owned.metadata.owner_references.as_ref().unwrap()[0].uid, "u1");
        let again = renewed(Some(&owned), "n1", Some("u2"), 20, Wall::from_secs(8)).unwrap();
        assert_eq!(again.metadata.owner_references.unwrap()[0].uid, "u1", "an owner is never replaced");
    }

    #[test]
    fn four_renewals_fit_into_a_lease() {
        assert_eq!(period(40), Duration::from_secs(10));
        assert_eq!(period(3), Duration::from_millis(750));
    }
}
