//! Ranges of user ids for Pods with hostUsers=false: each Pod has its own, no two share an id.

use std::collections::{BTreeMap, BTreeSet};

use base::ids::PodUid;
use serde::{Deserialize, Serialize};

use crate::cri_config::{IdMapping, UserNamespace};

/// Ranges are whole multiples of this.
pub const UNIT: u32 = 65536;

/// Who holds which range.
#[derive(Clone, Debug)]
pub struct Ranges {
    ids_per_pod: u32,
    /// The first range and how many there are, counted in ranges.
    first: u32,
    count: u32,
    held: BTreeMap<PodUid, u32>,
    taken: BTreeSet<u32>,
}

/// What is kept on disk for one Pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub uid_mappings: Vec<MappingRecord>,
    pub gid_mappings: Vec<MappingRecord>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MappingRecord {
    pub host_id: u32,
    pub container_id: u32,
    pub length: u32,
}

/// Ranges that cannot be used, or a record that cannot be believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UsernsError(pub String);

// === impl Ranges ===

impl Ranges {
    /// `first_id` and `length` are what the host grants; the whole space above the first range where
    /// nobody restricts it (see [`Ranges::unrestricted`]).
    pub fn new(ids_per_pod: u32, first_id: u32, length: u32, max_pods: u32) -> Result<Self, UsernsError> {
        let wrong = |text: String| Err(UsernsError(text));
        if ids_per_pod == 0 || !ids_per_pod.is_multiple_of(UNIT) {
            return wrong(format!("kubelet user namespace length {ids_per_pod} is not a multiple of {UNIT}"));
        }
        if !first_id.is_multiple_of(ids_per_pod) {
            return wrong(format!("kubelet user assigned ID {first_id} is not a multiple of {ids_per_pod}"));
        }
        if first_id < ids_per_pod {
            // Id 0 of the host is root: never inside a Pod.
            return wrong(format!(
                "kubelet user assigned ID {first_id} must be greater or equal to {ids_per_pod}"
            ));
        }
        if !length.is_multiple_of(ids_per_pod) {
            return wrong(format!(
                "kubelet user assigned IDs length {length} is not a multiple of {ids_per_pod}"
            ));
        }
        let count = length / ids_per_pod;
        if count < max_pods {
            return wrong(format!("kubelet user assigned IDs are not enough to support {max_pods} pods"));
        }
        Ok(Self {
            ids_per_pod,
            first: first_id / ids_per_pod,
            count,
            held: BTreeMap::new(),
            taken: BTreeSet::new(),
        })
    }

    /// First id and length when the host restricts nothing: everything but the first range.
    #[must_use]
    pub fn unrestricted(ids_per_pod: u32) -> (u32, u32) {
        (ids_per_pod, 0u32.wrapping_sub(ids_per_pod))
    }

    /// The range of a Pod: the one it has, else the lowest free one.
    pub fn allocate(&mut self, pod: &PodUid) -> Result<UserNamespace, UsernsError> {
        if let Some(index) = self.held.get(pod) {
            return Ok(self.namespace(*index));
        }
        let free = (0..self.count)
            .find(|i| !self.taken.contains(i))
            .ok_or_else(|| UsernsError("could not find an empty slot to allocate a user namespace".into()))?;
        self.taken.insert(free);
        self.held.insert(pod.clone(), free);
        Ok(self.namespace(free))
    }

    /// Takes over what a record from disk says.
    pub fn adopt(&mut self, pod: &PodUid, record: &Record) -> Result<UserNamespace, UsernsError> {
        let wrong = |text: &str| Err(UsernsError(text.to_owned()));
        let ([uid], [gid]) = (&record.uid_mappings[..], &record.gid_mappings[..]) else {
            return wrong("invalid user namespace configuration: no more than one mapping allowed");
        };
        if uid != gid {
            return wrong("invalid user namespace configuration: GID and UID mapping should be identical");
        }
        if uid.container_id != 0 {
            return wrong("invalid user namespace configuration: UID 0 must be mapped");
        }
        if uid.length != self.ids_per_pod {
            return Err(UsernsError(format!("wrong user namespace length {}", uid.length)));
        }
        if !uid.host_id.is_multiple_of(self.ids_per_pod) {
            return Err(UsernsError(format!("wrong user namespace offset specified {}", uid.host_id)));
        }
        let index = (uid.host_id / self.ids_per_pod)
            .checked_sub(self.first)
            .filter(|i| *i < self.count)
            .ok_or_else(|| UsernsError(format!("id {} is out of range", uid.host_id)))?;
        match self.held.get(pod) {
            Some(held) if *held == index => return Ok(self.namespace(index)),
            Some(_) => {
                return Err(UsernsError(format!(
                    "different user namespace range already used by pod {:?}",
                    pod.as_str()
                )));
            }
            None => {}
        }
        if !self.taken.insert(index) {
            return Err(UsernsError(format!("range picked for pod {:?} already taken", pod.as_str())));
        }
        self.held.insert(pod.clone(), index);
        Ok(self.namespace(index))
    }

    /// The Pod is gone; its range may be given again.
    pub fn release(&mut self, pod: &PodUid) {
        if let Some(index) = self.held.remove(pod) {
            self.taken.remove(&index);
        }
    }

    fn namespace(&self, index: u32) -> UserNamespace {
        let host_id = (self.first + index) * self.ids_per_pod;
        let mapping = vec![IdMapping { host_id, container_id: 0, length: self.ids_per_pod }];
        UserNamespace { uids: mapping.clone(), gids: mapping }
    }
}

// === impl Record ===

impl From<&UserNamespace> for Record {
    fn from(ns: &UserNamespace) -> Self {
        let keep = |list: &[IdMapping]| {
            list.iter()
                .map(|m| MappingRecord { host_id: m.host_id, container_id: m.container_id, length: m.length })
                .collect()
        };
        Self { uid_mappings: keep(&ns.uids), gid_mappings: keep(&ns.gids) }
    }
}

/// First id and length from `getsubids kubelet`: `0: kubelet 65536 2147483648`.
pub fn parse_getsubids(text: &str) -> Result<(u32, u32), UsernsError> {
    let mut lines = text.trim_matches('\n').lines();
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return Err(UsernsError(format!("error parsing line {text:?}: it must contain only one line")));
    };
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, _, first, length] = words[..] else {
        return Err(UsernsError(format!("invalid line {line:?}")));
    };
    let number = |word: &str| {
        word.parse::<u32>().map_err(|e| UsernsError(format!("error parsing line {line:?}: {e}")))
    };
    Ok((number(first)?, number(length)?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn uid(n: u8) -> PodUid {
        PodUid::from(format!("u-{n}"))
    }

    fn ranges(count: u32) -> Ranges {
        Ranges::new(UNIT, UNIT * 3, UNIT * count, 1).unwrap()
    }

    #[test]
    fn what_the_host_may_grant() {
        let (first, length) = Ranges::unrestricted(UNIT);
        assert_eq!(u64::from(first) + u64::from(length), 1 << 32);
        assert!(Ranges::new(UNIT, first, length, 110).is_ok());
        for (per_pod, first, length, pods) in [
            (1000, UNIT, UNIT, 1),
            (0, UNIT, UNIT, 1),
            (UNIT, 1000, UNIT, 1),
            (UNIT, 0, UNIT, 1),
            (UNIT * 2, UNIT, UNIT * 2, 1),
            (UNIT, UNIT, UNIT + 1, 1),
            (UNIT, UNIT, UNIT * 2, 3),
        ] {
            assert!(Ranges::new(per_pod, first, length, pods).is_err(), "{per_pod} {first} {length} {pods}");
        }
    }

    #[test]
    fn records() {
        let mut r = ranges(2);
        let ns = r.allocate(&uid(1)).unwrap();
        let json = serde_json::to_string(&Record::from(&ns)).unwrap();
        let one = r#"[{"hostId":196608,"containerId":0,"length":65536}]"#;
        assert_eq!(json, format!("{{\"uidMappings\":{one},\"gidMappings\":{one}}}"));
        let record = Record::from(&ns);
        assert_eq!(r.adopt(&uid(1), &record).unwrap(), ns);
        assert!(r.adopt(&uid(2), &record).unwrap_err().0.contains("already taken"));
        let mut fresh = ranges(2);
        assert_eq!(fresh.adopt(&uid(2), &record).unwrap(), ns);
        assert_ne!(fresh.allocate(&uid(3)).unwrap(), ns);
        assert!(fresh.allocate(&uid(4)).is_err(), "both are taken");
        for bad in [
            r#"{"uidMappings":[],"gidMappings":[]}"#,
            r#"{"uidMappings":[{"hostId":196608,"containerId":1,"length":65536}],"gidMappings":[{"hostId":196608,"containerId":1,"length":65536}]}"#,
            r#"{"uidMappings":[{"hostId":0,"containerId":0,"length":65536}],"gidMappings":[{"hostId":0,"containerId":0,"length":65536}]}"#,
            r#"{"uidMappings":[{"hostId":196608,"containerId":0,"length":1}],"gidMappings":[{"hostId":196608,"containerId":0,"length":1}]}"#,
            r#"{"uidMappings":[{"hostId":196608,"containerId":0,"length":65536}],"gidMappings":[{"hostId":262144,"containerId":0,"length":65536}]}"#,
        ] {
            let record: Record = serde_json::from_str(bad).unwrap();
            assert!(ranges(2).adopt(&uid(1), &record).is_err(), "{bad}");
        }
    }

    #[test]
    fn subordinate_ids() {
        assert_eq!(parse_getsubids("0: kubelet 65536 2147483648\n").unwrap(), (65536, 2_147_483_648));
        for bad in [
            "",
            "0: kubelet 1",
            "0: kubelet a b",
            "0: kubelet 1 2\n1: kubelet 3 4\n",
            "0: kubelet 1 4294967296",
        ] {
            assert!(parse_getsubids(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        /// Whatever comes and goes, no two Pods ever share an id, root is never given, and a Pod keeps
        /// its range while it lives.
        #[test]
        fn no_id_is_given_twice(steps in prop::collection::vec((any::<bool>(), 0u8..12), 0..200)) {
            let mut r = ranges(8);
            let mut live: BTreeMap<u8, UserNamespace> = BTreeMap::new();
            for (take, n) in steps {
                if take {
                    match r.allocate(&uid(n)) {
                        Ok(ns) => {
                            let before = live.insert(n, ns.clone());
                            prop_assert!(before.is_none_or(|b| b == ns));
                        }
                        Err(_) => prop_assert!(live.len() == 8 && !live.contains_key(&n)),
                    }
                } else {
                    r.release(&uid(n));
                    live.remove(&n);
                }
                let starts: BTreeSet<u32> = live.values().map(|ns| ns.uids[0].host_id).collect();
                prop_assert_eq!(starts.len(), live.len());
                prop_assert!(starts.iter().all(|s| s % UNIT == 0 && (UNIT * 3..UNIT * 11).contains(s)));
            }
        }
    }
}
