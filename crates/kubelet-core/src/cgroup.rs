//! Where a Pod's cgroup is and what it holds the Pod to.
//!
//! Names are lists of words from the top; only the driver decides how they are written.

pub mod unit;

use std::collections::BTreeMap;
use std::time::Duration;

use api::pod::{Amount, QosClass, qos_class};
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};

use crate::downward::limits;
use crate::pod_resources::{Amounts, is_pod_level, overhead, pod_limits, pod_requests};
use crate::topology::wants::PodWant;

const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
const MIN_QUOTA: i64 = 1000;
/// The parent of every Pod's cgroup.
const PODS: &str = "kubepods";

/// Who makes cgroups on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    Cgroupfs,
    Systemd,
}

/// A cgroup, from the top.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(Vec<String>);

/// A word that cannot be the name of a cgroup.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot be part of the name of a cgroup")]
pub struct NameError(String);

/// What a cgroup may use. None: no limit is written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub cpu_shares: Option<i64>,
    /// Quota and period in microseconds; a quota of -1 lifts the limit.
    pub cpu_quota: Option<(i64, i64)>,
    pub memory: Option<i64>,
    /// Of version 2: bytes that are never taken from it, and bytes that are taken only where nobody else has any left.
    pub memory_min: Option<i64>,
    pub memory_low: Option<i64>,
    pub pids: Option<i64>,
    /// Processors, as the kernel lists them.
    pub cpus: Option<String>,
    /// Bytes by page size, in the kernel's notation.
    pub hugepages: BTreeMap<String, i64>,
}

/// What the configuration says about the cgroups of Pods.
#[derive(Clone, Debug)]
pub struct Rules {
    pub cfs_quota: bool,
    pub cfs_period: Duration,
    /// Guaranteed Pods get CPUs of their own: a quota on top would only take some of them away again.
    pub exclusive_cpus: bool,
    pub pids: Option<i64>,
    /// Page sizes of the machine, in the kernel's notation.
    pub hugepage_sizes: Vec<String>,
    /// Pods keep the memory they asked for when others want it (memoryReservationPolicy).
    pub reserves_memory: bool,
}

/// The cgroup of all Pods below the configured root.
pub fn all_pods(root: &str) -> Result<Name, NameError> {
    let words = root.split('/').filter(|word| !word.is_empty());
    words.chain([PODS]).try_fold(Name::default(), |name, word| name.child(word))
}

/// The cgroup of a class. Guaranteed Pods have none of their own.
#[must_use]
pub fn of_class(all: &Name, class: QosClass) -> Name {
    match class {
        QosClass::Guaranteed => all.clone(),
        QosClass::Burstable => all.known("burstable"),
        QosClass::BestEffort => all.known("besteffort"),
    }
}

/// The cgroup of one Pod.
pub fn of_pod(all: &Name, class: QosClass, uid: &str) -> Result<Name, NameError> {
    of_class(all, class).child(&format!("pod{uid}"))
}

/// The Pod that a cgroup with this name below its class belongs to.
#[must_use]
pub fn pod_uid(directory: &str, driver: Driver) -> Option<String> {
    match driver {
        Driver::Cgroupfs => directory.strip_prefix("pod").map(str::to_owned),
        Driver::Systemd => {
            let last = directory.strip_suffix(".slice")?.rsplit('-').next()?;
            last.strip_prefix("pod").map(|uid| uid.replace('_', "-"))
        }
    }
    .filter(|uid| !uid.is_empty())
}

/// What the whole Pod may use.
#[must_use]
pub fn pod_rules(pod: &Pod, rules: &Rules) -> Limits {
    let class = qos_class(pod);
    let (mut requests, mut limits) = (pod_requests(pod), pod_limits(pod));
    let cost = overhead(pod);
    add(&mut requests, &cost);
    // Overhead alone is not a limit: it raises one that is there.
    add_present(&mut limits, &cost);
    let amount = |of: &Amounts, name: &str| of.get(name).copied().unwrap_or(0);
    let request = match amount(&requests, "cpu") {
        0 if !requests.contains_key("cpu") => amount(&limits, "cpu"),
        stated => stated,
    };
    let bounded = |name: &str| match class {
        QosClass::Guaranteed => true,
        QosClass::Burstable => every_container_limits(pod, name),
        QosClass::BestEffort => false,
    };
    let period = i64::try_from(rules.cfs_period.as_micros()).unwrap_or(100_000);
    let has_own = || PodWant::new(pod).containers.iter().any(|c| c.cpus > 0);
    let asked = amount(&requests, "memory");
    let kept = |by: QosClass| (rules.reserves_memory && class == by && asked > 0).then_some(asked);
    let is_free = !rules.cfs_quota || rules.exclusive_cpus && has_own();
    let quota = if is_free { -1 } else { quota(amount(&limits, "cpu"), period) };
    Limits {
        cpu_shares: Some(if class == QosClass::BestEffort { MIN_SHARES } else { shares(request) }),
        cpu_quota: (bounded("cpu") && quota != 0).then_some((quota, period)),
        memory: Some(amount(&limits, "memory")).filter(|bytes| bounded("memory") && *bytes > 0),
        memory_min: kept(QosClass::Guaranteed),
        memory_low: kept(QosClass::Burstable),
        pids: rules.pids,
        cpus: None,
        hugepages: hugepages(&limits, &rules.hugepage_sizes),
    }
}

/// What a cgroup gets of what is kept back for those in it: `kept` by resource name. `only_shares` is for who shall not be
/// killed for using more.
#[must_use]
pub fn reserved(kept: &BTreeMap<String, String>, only_shares: bool) -> Limits {
    let amount = |name: &str| kept.get(name).and_then(|q| Amount::parse(q).ok());
    let shares = Limits { cpu_shares: amount("cpu").map(|a| shares(a.milli())), ..Limits::default() };
    if only_shares {
        return shares;
    }
    let pages = kept.iter().filter_map(|(name, q)| {
        let size = name.strip_prefix("hugepages-")?.trim_end_matches('i');
        Some((format!("{size}B"), Amount::parse(q).ok()?.value()))
    });
    Limits {
        memory: amount("memory").map(|a| a.value()),
        pids: amount("pid").map(|a| a.value()),
        hugepages: pages.collect(),
        ..shares
    }
}

/// The memory that Pods of each class ask for together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AskedMemory {
    pub guaranteed: i64,
    pub burstable: i64,
}

impl AskedMemory {
    #[must_use]
    pub fn of<'a>(pods: impl Iterator<Item = &'a Pod>) -> AskedMemory {
        let mut all = AskedMemory::default();
        for pod in pods {
            let memory = |of: Amounts| of.get("memory").copied().unwrap_or(0);
            let asked = memory(pod_requests(pod)).saturating_add(memory(overhead(pod)));
            let slot = match qos_class(pod) {
                QosClass::Guaranteed => &mut all.guaranteed,
                QosClass::Burstable => &mut all.burstable,
                QosClass::BestEffort => continue,
            };
            *slot = slot.saturating_add(asked);
        }
        all
    }

    /// What is kept for the classes, where Pods keep what they asked for: a Pod's own part counts only as far as it is
    /// its class's.
    #[must_use]
    pub fn kept(self, reserves: bool) -> [(QosClass, Limits); 2] {
        let (min, low) = match reserves {
            true => (self.guaranteed.saturating_add(self.burstable), self.burstable),
            false => (0, 0),
        };
        [
            (QosClass::Guaranteed, Limits { memory_min: Some(min), ..Limits::default() }),
            (QosClass::Burstable, Limits { memory_low: Some(low), ..Limits::default() }),
        ]
    }

    /// What is left for the lower classes when so many percent of what others asked for are kept from them (qosReserved).
    /// None where it is not known what there is.
    #[must_use]
    pub fn bounds(self, allocatable: i64, percent: i64) -> Option<[(QosClass, Limits); 2]> {
        if allocatable <= 0 {
            return None;
        }
        let part =
            |asked: i64| i64::try_from(i128::from(asked) * i128::from(percent) / 100).unwrap_or(i64::MAX);
        let burstable = allocatable.saturating_sub(part(self.guaranteed)).max(0);
        let best_effort = burstable.saturating_sub(part(self.burstable)).max(0);
        let limit = |bytes| Limits { memory: Some(bytes), ..Limits::default() };
        Some([(QosClass::Burstable, limit(burstable)), (QosClass::BestEffort, limit(best_effort))])
    }
}

/// Shares of the Burstable class: what its Pods ask for together, in millicores.
#[must_use]
pub fn shares(milli: i64) -> i64 {
    (milli.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

/// Version 2 counts from 1 to 10,000 where version 1 counts from 2 to 262,144.
#[must_use]
pub fn weight(shares: i64) -> i64 {
    1 + (shares.clamp(MIN_SHARES, MAX_SHARES) - MIN_SHARES) * 9999 / (MAX_SHARES - MIN_SHARES)
}

/// The least number of shares that is written as this weight.
#[must_use]
pub fn shares_of(weight: i64) -> i64 {
    let span = MAX_SHARES - MIN_SHARES;
    MIN_SHARES + ((weight.clamp(1, 10_000) - 1) * span + 9998) / 9999
}

/// What the Pod asks for of a processor, in millicores.
#[must_use]
pub fn requested(pod: &Pod) -> i64 {
    let cpu = |of: Amounts| of.get("cpu").copied().unwrap_or(0);
    cpu(pod_requests(pod)).saturating_add(cpu(overhead(pod)))
}

// === impl Name ===

impl Name {
    /// A cgroup by the path that people give it: `/kube/node`, or `/kube-node.slice` where systemd makes them.
    pub fn parse(path: &str, driver: Driver) -> Result<Name, NameError> {
        let words: Vec<String> = match driver {
            Driver::Cgroupfs => path.split('/').map(str::to_owned).collect(),
            Driver::Systemd => {
                let last = path.rsplit('/').find(|word| !word.is_empty()).unwrap_or_default();
                let unit = last.strip_suffix(".slice").unwrap_or(last);
                unit.split('-').map(|word| word.replace('_', "-")).collect()
            }
        };
        let words = words.iter().filter(|word| !word.is_empty());
        words.into_iter().try_fold(Name::default(), |name, word| name.child(word))
    }

    /// The cgroup of that word below this one.
    pub fn child(&self, word: &str) -> Result<Name, NameError> {
        let odd = word.is_empty() || word == "." || word == ".." || word.contains(['/', '\0', '\n']);
        if odd {
            return Err(NameError(word.to_owned()));
        }
        Ok(self.known(word))
    }

    fn known(&self, word: &str) -> Name {
        let mut words = self.0.clone();
        words.push(word.to_owned());
        Name(words)
    }

    /// Below the mount point of a hierarchy, without a leading slash.
    #[must_use]
    pub fn path(&self, driver: Driver) -> String {
        match driver {
            Driver::Cgroupfs => self.0.join("/"),
            Driver::Systemd => {
                let mut slices = Vec::with_capacity(self.0.len());
                let mut name = String::new();
                for word in &self.0 {
                    if !name.is_empty() {
                        name.push('-');
                    }
                    name.push_str(&word.replace('-', "_"));
                    slices.push(format!("{name}.slice"));
                }
                slices.join("/")
            }
        }
    }
}

/// As upstream shows one.
impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words: Vec<String> = self.0.iter().map(|word| format!("{word:?}")).collect();
        write!(f, "[{}]", words.join(" "))
    }
}

/// A Burstable Pod is bounded only where every one of its containers is, or where the Pod itself says so.
fn every_container_limits(pod: &Pod, resource: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    // A limit of nothing is no limit, as upstream has it.
    let states = |of: Option<&ResourceRequirements>| limits(of, resource).is_some_and(|amount| amount > 0);
    if is_pod_level(pod) && states(spec.resources.as_ref()) {
        return true;
    }
    let is_limited = |c: &Container| states(c.resources.as_ref());
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).all(is_limited)
}

fn quota(milli: i64, period: i64) -> i64 {
    if milli == 0 { 0 } else { (milli.saturating_mul(period) / 1000).max(MIN_QUOTA) }
}

/// Every size of the machine is bounded, by zero where the Pod names none of it.
fn hugepages(limits: &Amounts, sizes: &[String]) -> BTreeMap<String, i64> {
    let api_name = |size: &str| format!("hugepages-{}i", size.trim_end_matches('B'));
    sizes.iter().map(|s| (s.clone(), limits.get(&api_name(s)).copied().unwrap_or(0))).collect()
}

fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let slot = sum.entry(name.clone()).or_default();
        *slot = slot.saturating_add(*amount);
    }
}

fn add_present(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in sum.iter_mut().filter(|(_, amount)| **amount > 0) {
        *amount = amount.saturating_add(more.get(name).copied().unwrap_or(0));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cri_config::testing::pod;

    const UID: &str = "0a-1b";

    fn rules() -> Rules {
        Rules {
            cfs_quota: true,
            exclusive_cpus: false,
            cfs_period: Duration::from_millis(100),
            pids: None,
            hugepage_sizes: vec!["2MB".into()],
            reserves_memory: false,
        }
    }

    #[test]
    fn classes_keep_what_their_pods_asked_for() {
        let asks = |memory: &str, limit: &str| {
            pod(&format!(
                "containers: [{{name: main, resources: {{requests: {{cpu: 1, memory: {memory}}}, \
                 limits: {{cpu: 1, memory: {limit}}}}}}}]"
            ))
        };
        let nothing = pod("containers: [{name: main}]");
        let pods = [asks("100Mi", "100Mi"), asks("10Mi", "20Mi"), asks("30Mi", "40Mi"), nothing];
        let asked = AskedMemory::of(pods.iter());
        let mib = |n: i64| n << 20;
        assert_eq!(asked, AskedMemory { guaranteed: mib(100), burstable: mib(40) });
        let kept = asked.kept(true).map(|(_, l)| (l.memory_min, l.memory_low));
        assert_eq!(kept, [(Some(mib(140)), None), (None, Some(mib(40)))]);
        let off = asked.kept(false).map(|(_, l)| (l.memory_min, l.memory_low));
        assert_eq!(off, [(Some(0), None), (None, Some(0))]);
        let table = [
            (1000, 0, Some((1000, 1000))),
            (1000, 50, Some((950, 930))),
            (1000, 100, Some((900, 860))),
            (120, 100, Some((20, 0))),
            (0, 100, None),
        ];
        for (allocatable, percent, want) in table {
            let bounds = asked.bounds(mib(allocatable), percent);
            let bounds = bounds.map(|all| all.map(|(_, l)| l.memory.unwrap() >> 20));
            assert_eq!(bounds, want.map(|(a, b)| [a, b]), "{allocatable} {percent}");
        }
        let tiered = Rules { reserves_memory: true, ..rules() };
        let of = |pod: &Pod| pod_rules(pod, &tiered);
        assert_eq!((of(&pods[0]).memory_min, of(&pods[0]).memory_low), (Some(mib(100)), None));
        assert_eq!((of(&pods[1]).memory_min, of(&pods[1]).memory_low), (None, Some(mib(10))));
        assert_eq!((of(&pods[3]).memory_min, of(&pods[3]).memory_low), (None, None));
        assert_eq!(pod_rules(&pods[0], &rules()).memory_min, None);
    }

    #[test]
    fn names_by_class_and_driver() {
        let all = all_pods("/").unwrap();
        let name = |class| of_pod(&all, class, UID).unwrap();
        for (class, plain, slices) in [
            (QosClass::Guaranteed, "kubepods/pod0a-1b", "kubepods.slice/kubepods-pod0a_1b.slice"),
            (
                QosClass::Burstable,
                "kubepods/burstable/pod0a-1b",
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a_1b.slice",
            ),
            (
                QosClass::BestEffort,
                "kubepods/besteffort/pod0a-1b",
                "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod0a_1b.slice",
            ),
        ] {
            assert_eq!(name(class).path(Driver::Cgroupfs), plain);
            assert_eq!(name(class).path(Driver::Systemd), slices);
            for (driver, path) in [(Driver::Cgroupfs, plain), (Driver::Systemd, slices)] {
                let last = path.rsplit('/').next().unwrap();
                assert_eq!(pod_uid(last, driver).as_deref(), Some(UID), "{last}");
            }
        }
        assert_eq!(all_pods("/a/b").unwrap().path(Driver::Cgroupfs), "a/b/kubepods");
        assert_eq!(all_pods("/a/b").unwrap().to_string(), r#"["a" "b" "kubepods"]"#);
        for (word, driver) in [("burstable", Driver::Cgroupfs), ("kubepods-burstable.slice", Driver::Systemd)]
        {
            assert_eq!(pod_uid(word, driver), None);
        }
    }

    #[test]
    fn a_cgroup_by_the_path_that_people_give_it() {
        for (path, driver, want) in [
            ("/kube/node", Driver::Cgroupfs, "kube/node"),
            ("kube", Driver::Cgroupfs, "kube"),
            ("/kube.slice", Driver::Systemd, "kube.slice"),
            ("/kube.slice/kube-node.slice", Driver::Systemd, "kube.slice/kube-node.slice"),
            ("/my_kube.slice", Driver::Systemd, "my_kube.slice"),
        ] {
            assert_eq!(Name::parse(path, driver).unwrap().path(driver), want, "{path}");
        }
        assert!(Name::parse("/a/../b", Driver::Cgroupfs).is_err());
    }

    #[test]
    fn what_is_kept_back_is_what_its_cgroup_gets() {
        let kept = [
            ("cpu", "500m"),
            ("memory", "1Gi"),
            ("pid", "1000"),
            ("hugepages-2Mi", "4Mi"),
            ("ephemeral-storage", "1Gi"),
        ];
        let kept: BTreeMap<String, String> = kept.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let whole = reserved(&kept, false);
        assert_eq!((whole.cpu_shares, whole.memory, whole.pids), (Some(512), Some(1 << 30), Some(1000)));
        assert_eq!(whole.hugepages, BTreeMap::from([("2MB".to_owned(), 4 << 20)]));
        assert_eq!(reserved(&kept, true), Limits { cpu_shares: Some(512), ..Limits::default() });
        assert_eq!(reserved(&BTreeMap::new(), false), Limits::default());
    }

    #[test]
    fn a_uid_cannot_lead_elsewhere() {
        let all = all_pods("").unwrap();
        for uid in ["../../x", "a/b", "a\0b"] {
            assert!(of_pod(&all, QosClass::Guaranteed, uid).is_err(), "{uid:?}");
        }
        assert!(all_pods("/a/../b").is_err());
    }

    #[test]
    fn limits_by_class() {
        let row = |spec: &str| {
            let l = pod_rules(&pod(spec), &rules());
            (l.cpu_shares.unwrap(), l.cpu_quota.map(|q| q.0), l.memory)
        };
        let one = |resources: &str| format!("containers: [{{name: a, resources: {resources}}}]");
        for (spec, want) in [
            ("containers: [{name: a}]".to_owned(), (2, None, None)),
            (one("{requests: {cpu: 500m, memory: 1Mi}}"), (512, None, None)),
            (one("{limits: {cpu: 2, memory: 1Gi}}"), (2048, Some(200_000), Some(1 << 30))),
            (one("{requests: {cpu: 1}, limits: {cpu: 2}}"), (1024, Some(200_000), None)),
            (
                one("{limits: {cpu: 1m, memory: 1Mi}, requests: {cpu: 1m, memory: 1Mi}}"),
                (2, Some(1000), Some(1 << 20)),
            ),
            // One container without a limit leaves the Pod without one.
            (
                "containers: [{name: a, resources: {limits: {memory: 1Mi}}}, {name: b}]".to_owned(),
                (2, None, None),
            ),
            (
                "containers: [{name: a, resources: {limits: {memory: 1Mi, cpu: 1}}}, \
                  {name: b, resources: {limits: {memory: 0, cpu: '0'}}}]"
                    .to_owned(),
                (1024, None, None),
            ),
            (
                "{resources: {limits: {memory: 4Mi}}, containers: [{name: a}, {name: b}]}".to_owned(),
                (2, None, Some(4 << 20)),
            ),
            (
                "{overhead: {cpu: 250m, memory: 1Mi}, containers: [{name: a, \
                  resources: {limits: {cpu: 1, memory: 1Mi}, requests: {cpu: 1, memory: 1Mi}}}]}"
                    .to_owned(),
                (1280, Some(125_000), Some(2 << 20)),
            ),
        ] {
            assert_eq!(row(&spec), want, "{spec}");
        }
        let off = Rules { cfs_quota: false, ..rules() };
        let bounded = pod_rules(&pod(&one("{limits: {cpu: 2, memory: 1Gi}}")), &off);
        assert_eq!(bounded.cpu_quota, Some((-1, 100_000)));
        let pinned = Rules { exclusive_cpus: true, ..rules() };
        let whole = |cpu: &str| {
            let list = format!("{{cpu: {cpu}, memory: 1Gi}}");
            let of = format!("containers: [{{name: a, resources: {{requests: {list}, limits: {list}}}}}]");
            pod_rules(&pod(&of), &pinned).cpu_quota
        };
        assert_eq!((whole("2"), whole("1500m")), (Some((-1, 100_000)), Some((150_000, 100_000))));
        assert_eq!(bounded.hugepages, BTreeMap::from([("2MB".to_owned(), 0)]));
    }

    #[test]
    fn weights_and_shares_agree() {
        for (shares, want) in [(0, 1), (2, 1), (1024, 39), (262_144, 10_000), (i64::MAX, 10_000)] {
            assert_eq!(weight(shares), want, "{shares}");
        }
        for w in 1..=10_000 {
            assert_eq!(weight(shares_of(w)), w);
        }
    }
}
