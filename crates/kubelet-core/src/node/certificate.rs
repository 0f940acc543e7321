//! Which names a certificate must carry, and when it is time for the next one.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use base::rng::Rng;
use base::time::Wall;
use k8s_openapi::api::core::v1::NodeAddress;

pub const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";
pub const ORGANIZATION: &str = "system:nodes";

/// Who a certificate speaks for, and under which names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    pub common_name: String,
    pub organizations: BTreeSet<String>,
    pub dns: BTreeSet<String>,
    pub ips: BTreeSet<IpAddr>,
}

/// A certificate that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub names: Names,
    pub not_before: Wall,
    pub not_after: Wall,
}

/// How much longer a certificate lives, in steps people can act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Remaining {
    Expired,
    Hour,
    Day,
    Week,
    /// Nothing to worry about.
    Plenty,
}

/// The names of a node's client certificate.
#[must_use]
pub fn client_names(node: &str) -> Names {
    Names {
        common_name: format!("system:node:{node}"),
        organizations: BTreeSet::from([ORGANIZATION.to_owned()]),
        ..Names::default()
    }
}

/// The names of its serving certificate; none before it has an address, because nobody could verify it.
#[must_use]
pub fn serving_names(node: &str, addresses: &[NodeAddress]) -> Option<Names> {
    let mut names = client_names(node);
    for a in addresses.iter().filter(|a| !a.address.is_empty()) {
        match (a.type_.as_str(), a.address.parse::<IpAddr>()) {
            ("Hostname" | "InternalIP" | "ExternalIP", Ok(ip)) => {
                names.ips.insert(ip);
            }
            ("Hostname" | "InternalDNS" | "ExternalDNS", _) => {
                names.dns.insert(a.address.clone());
            }
            _ => {}
        }
    }
    (!names.ips.is_empty()).then_some(names)
}

// === impl Held ===

impl Held {
    /// Whether it carries every wanted name; more than that does no harm.
    #[must_use]
    pub fn satisfies(&self, wanted: &Names) -> bool {
        let has = &self.names;
        has.common_name == wanted.common_name
            && wanted.organizations.is_subset(&has.organizations)
            && wanted.dns.is_subset(&has.dns)
            && wanted.ips.is_subset(&has.ips)
    }

    /// When to ask for the next one: between 70 and 90 % of its life, so that nodes made together do not all ask
    /// together.
    #[must_use]
    pub fn rotate_at(&self, rng: &mut Rng) -> Wall {
        let life = self.not_after.0.saturating_sub(self.not_before.0).max(0);
        let offset = life / 10 * 7 + i64::try_from(rng.below((life / 5).unsigned_abs())).unwrap_or(0);
        Wall(self.not_before.0.saturating_add(offset))
    }

    #[must_use]
    pub fn is_expired(&self, now: Wall) -> bool {
        now > self.not_after
    }

    /// How much longer it lives; a life too short for a step skips it.
    #[must_use]
    pub fn remaining(&self, now: Wall) -> Remaining {
        const HOUR: Duration = Duration::from_secs(3600);
        let life = self.not_after.since(self.not_before);
        let left = self.not_after.since(now);
        // Steps are for certificates that are not renewed although they should have been: never before 90 %.
        let late = left <= life / 10;
        let step = |limit: Duration| late && left <= limit;
        if self.is_expired(now) {
            Remaining::Expired
        } else if step(HOUR) {
            Remaining::Hour
        } else if step(HOUR * 24) {
            Remaining::Day
        } else if step(HOUR * 24 * 7) {
            Remaining::Week
        } else {
            Remaining::Plenty
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use base::rng::Rng;
    use proptest::prelude::*;

    fn held(names: Names, from: i64, to: i64) -> Held {
        Held { names, not_before: Wall::from_secs(from), not_after: Wall::from_secs(to) }
    }

    fn address(kind: &str, text: &str) -> NodeAddress {
        NodeAddress { type_: kind.into(), address: text.into() }
    }

    #[test]
    fn serving_names_come_from_the_addresses() {
        let all = [
            address("InternalIP", "10.0.0.1"),
            address("ExternalIP", "nonsense"),
            address("Hostname", "n1"),
            address("InternalDNS", "n1.internal"),
            address("InternalIP", "fd00::1"),
        ];
        let names = serving_names("n1", &all).unwrap();
        assert_eq!(names.common_name, "system:node:n1");
        assert_eq!(names.dns, ["n1", "n1.internal"].map(String::from).into());
        assert_eq!(names.ips.len(), 2);
        assert_eq!(serving_names("n1", &all[2..4]), None, "no address, no certificate");
        let by_ip = serving_names("n1", &[address("Hostname", "10.0.0.2")]).unwrap();
        assert!(by_ip.dns.is_empty() && by_ip.ips.len() == 1);
    }

    #[test]
    fn a_new_address_asks_for_a_new_certificate() {
        let one = serving_names("n1", &[address("InternalIP", "10.0.0.1")]).unwrap();
        let two =
            serving_names("n1", &[address("InternalIP", "10.0.0.1"), address("InternalIP", "10.0.0.2")])
                .unwrap();
        assert!(!held(one.clone(), 0, 1).satisfies(&two));
        assert!(held(two, 0, 1).satisfies(&one), "one name too many does no harm");
        assert!(!held(client_names("other"), 0, 1).satisfies(&client_names("n1")));
    }

    #[test]
    fn the_countdown_begins_only_when_a_renewal_is_overdue() {
        let day = 24 * 3600;
        let year = held(Names::default(), 0, 365 * day);
        let at = |days: i64| year.remaining(Wall::from_secs(days * day));
        assert_eq!(at(330), Remaining::Plenty);
        assert_eq!(at(359), Remaining::Week);
        assert_eq!(at(364), Remaining::Day);
        assert_eq!(year.remaining(Wall::from_secs(365 * day - 60)), Remaining::Hour);
        assert_eq!(at(366), Remaining::Expired);
        let short = held(Names::default(), 0, 600);
        assert_eq!(short.remaining(Wall::from_secs(500)), Remaining::Plenty, "not due yet");
        assert_eq!(short.remaining(Wall::from_secs(545)), Remaining::Hour);
    }

    proptest! {
        #[test]
        fn rotation_falls_between_seventy_and_ninety_percent(seed: u64, life in 10i64..400_000_000) {
            let at = held(Names::default(), 1000, 1000 + life).rotate_at(&mut Rng::new(seed)).0;
            let share = (at - 1000 * 1_000_000_000) as f64 / (life as f64 * 1e9);
            prop_assert!((0.699..=0.901).contains(&share), "{}", share);
        }
    }
}
