//! What the machine has, and what of it Pods may use.

use std::collections::BTreeMap;

use api::config::kubelet::KubeletConfiguration;
use base::quantity::Quantity;
use k8s_openapi::apimachinery::pkg::api::resource;

/// Amounts by resource name.
pub type Resources = BTreeMap<String, Quantity>;

pub const CPU: &str = "cpu";
pub const MEMORY: &str = "memory";
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
pub const PODS: &str = "pods";
const HUGE_PAGES: &str = "hugepages-";

/// The machine, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    pub cpus: i64,
    pub memory: i64,
    /// Size of the filesystem below the root directory; none if it cannot be known, or is not to be counted.
    pub ephemeral_storage: Option<i64>,
    /// Reserved huge pages: size of one page in bytes, and how many.
    pub huge_pages: BTreeMap<i64, i64>,
}

/// How many Pods the configuration allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodLimit {
    pub max: i64,
    /// Zero is no limit per core.
    pub per_core: i64,
}

/// What is kept back from Pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reserved {
    kube: Resources,
    system: Resources,
    /// The hard thresholds at which Pods would be evicted anyway.
    memory: Option<Threshold>,
    storage: Option<Threshold>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    Amount(Quantity),
    /// In upstream's single precision, because the result is rounded down to a byte and people compare it.
    Fraction(f32),
}

/// A reservation that does not fit the machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ReservationError(String);

/// All the machine has.
#[must_use]
pub fn capacity(machine: &Machine, pods: PodLimit) -> Resources {
    let mut all = Resources::from([
        (CPU.to_owned(), Quantity::from_milli(machine.cpus * 1000)),
        (MEMORY.to_owned(), Quantity::from_bytes(machine.memory)),
        (PODS.to_owned(), Quantity::from_value(pods.on(machine.cpus))),
    ]);
    if let Some(bytes) = machine.ephemeral_storage {
        all.insert(EPHEMERAL_STORAGE.to_owned(), Quantity::from_bytes(bytes));
    }
    for (size, count) in &machine.huge_pages {
        let name = format!("{HUGE_PAGES}{}", Quantity::from_bytes(*size));
        all.insert(name, Quantity::from_bytes(size.saturating_mul(*count)));
    }
    all
}

/// What Pods may use of it: never negative, and memory in huge pages is not memory.
#[must_use]
pub fn allocatable(capacity: &Resources, reserved: &Reserved) -> Resources {
    let floor = |q: Quantity| if q.is_negative() { Quantity::ZERO } else { q };
    let mut out: Resources = capacity
        .iter()
        .map(|(name, has)| (name.clone(), floor(has.minus(reserved.of(name, capacity)))))
        .collect();
    let huge = capacity.iter().filter(|(name, _)| is_huge_page(name));
    if let Some(memory) = out.get_mut(MEMORY) {
        huge.for_each(|(_, bytes)| *memory = floor(memory.minus(*bytes)));
    }
    out
}

#[must_use]
pub fn is_huge_page(name: &str) -> bool {
    name.starts_with(HUGE_PAGES)
}

/// Resources of plugins and operators: `vendor.domain/thing`, not Kubernetes' own.
#[must_use]
pub fn is_extended(name: &str) -> bool {
    name.split_once('/').is_some_and(|(domain, _)| {
        domain != "kubernetes.io" && !domain.ends_with(".kubernetes.io") && !domain.starts_with("requests.")
    })
}

/// The same as the API has it.
#[must_use]
pub fn to_api(resources: &Resources) -> BTreeMap<String, resource::Quantity> {
    resources.iter().map(|(k, q)| (k.clone(), resource::Quantity(q.to_string()))).collect()
}

// === impl PodLimit ===

impl PodLimit {
    #[must_use]
    pub fn on(self, cpus: i64) -> i64 {
        if self.per_core > 0 { self.max.min(self.per_core.saturating_mul(cpus)) } else { self.max }
    }
}

// === impl Reserved ===

impl Reserved {
    /// Reads the reservations of a valid configuration.
    #[must_use]
    pub fn new(config: &KubeletConfiguration, ignore_eviction: bool) -> Reserved {
        let mut kube = read(&config.kube_reserved);
        let mut system = read(&config.system_reserved);
        if let Some(cpus) = count_cpus(&config.reserved_system_cpus) {
            // An explicit set outranks both amounts.
            kube.remove(CPU);
            system.insert(CPU.to_owned(), Quantity::from_value(cpus));
        }
        let threshold = |signal: &str| {
            let text = config.eviction_hard.get(signal).filter(|_| !ignore_eviction)?;
            Threshold::parse(text)
        };
        Reserved {
            kube,
            system,
            memory: threshold("memory.available"),
            storage: threshold("nodefs.available"),
        }
    }

    /// What is kept from Pods for good: without the eviction threshold, which they may eat into for a while.
    #[must_use]
    pub fn for_good(&self, name: &str) -> Quantity {
        let part = |from: &Resources| from.get(name).copied().unwrap_or_default();
        part(&self.system).plus(part(&self.kube))
    }

    /// All that is kept back, of every resource of which anything is.
    #[must_use]
    pub fn all(&self, capacity: &Resources) -> Resources {
        let kept = capacity.keys().map(|name| (name.clone(), self.of(name, capacity)));
        kept.filter(|(_, q)| *q != Quantity::ZERO).collect()
    }

    /// All that is kept back of one resource.
    fn of(&self, name: &str, capacity: &Resources) -> Quantity {
        let threshold = match name {
            MEMORY => self.memory,
            EPHEMERAL_STORAGE => self.storage,
            _ => None,
        };
        let has = capacity.get(name).copied().unwrap_or_default();
        let eviction = threshold.map(|t| t.of(has)).unwrap_or_default();
        self.for_good(name).plus(eviction)
    }

    /// Refuses what leaves nothing at all for Pods, which upstream does at start too.
    pub fn check(&self, capacity: &Resources) -> Result<(), ReservationError> {
        let too_much = capacity.iter().map(|(name, has)| (name, has, self.of(name, capacity)));
        let texts: Vec<String> = too_much
            .filter(|(_, has, kept)| kept > *has)
            .map(|(name, has, kept)| {
                format!(
                    "Resource {name:?} has a reservation of {kept} but capacity of {has}. Expected capacity >= reservation."
                )
            })
            .collect();
        match texts.is_empty() {
            true => Ok(()),
            false => {
                Err(ReservationError(format!("invalid Node Allocatable configuration. {}", texts.join(" "))))
            }
        }
    }
}

// === impl Threshold ===

impl Threshold {
    /// None for what does not parse, and for 0% and 100%, which turn a threshold off.
    #[must_use]
    pub fn parse(text: &str) -> Option<Threshold> {
        match text.strip_suffix('%') {
            Some(number) => {
                let percent: f32 = number.parse().ok()?;
                (percent > 0.0 && percent < 100.0).then_some(Threshold::Fraction(percent / 100.0))
            }
            None => text.parse().ok().map(Threshold::Amount),
        }
    }

    /// The amount it means of this much.
    #[must_use]
    pub fn of(self, capacity: Quantity) -> Quantity {
        match self {
            Threshold::Amount(q) => q,
            Threshold::Fraction(f) => {
                #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
                let bytes = (capacity.value() as f64 * f64::from(f)) as i64;
                Quantity::from_bytes(bytes)
            }
        }
    }
}

fn read(map: &BTreeMap<String, String>) -> Resources {
    map.iter().filter_map(|(k, v)| Some((k.clone(), v.parse().ok()?))).collect()
}

/// How many CPUs a list like `0-3,8` names; none for the empty list.
#[must_use]
pub fn count_cpus(list: &str) -> Option<i64> {
    let mut cpus = std::collections::BTreeSet::new();
    for part in list.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<u32>().ok()?, last.trim().parse::<u32>().ok()?);
        // Larger than any machine; a typo must not eat the memory.
        if last > 1 << 16 {
            return None;
        }
        cpus.extend(first..=last);
    }
    (!cpus.is_empty()).then(|| i64::try_from(cpus.len()).unwrap_or(i64::MAX))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GI: i64 = 1 << 30;

    fn machine() -> Machine {
        Machine {
            cpus: 4,
            memory: 16 * GI,
            ephemeral_storage: Some(100 * GI),
            huge_pages: BTreeMap::from([(2 << 20, 512), (GI, 0)]),
        }
    }

    fn texts(resources: &Resources) -> Vec<String> {
        resources.iter().map(|(k, v)| format!("{k}={v}")).collect()
    }

    fn config(edit: impl FnOnce(&mut KubeletConfiguration)) -> KubeletConfiguration {
        let mut config = KubeletConfiguration::default();
        config.eviction_hard.clear();
        edit(&mut config);
        config
    }

    fn map(text: &[(&str, &str)]) -> BTreeMap<String, String> {
        text.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn capacity_is_written_as_upstream_writes_it() {
        let all = capacity(&machine(), PodLimit { max: 110, per_core: 0 });
        let want = [
            "cpu=4",
            "ephemeral-storage=100Gi",
            "hugepages-1Gi=0",
            "hugepages-2Mi=1Gi",
            "memory=16Gi",
            "pods=110",
        ];
        assert_eq!(texts(&all), want);
    }

    #[test]
    fn pods_are_limited_by_the_smaller_rule() {
        let on = |max, per_core| PodLimit { max, per_core }.on(4);
        assert_eq!([on(110, 0), on(110, 10), on(30, 10)], [110, 40, 30]);
    }

    #[test]
    fn allocatable_is_capacity_less_every_reservation() {
        let all = capacity(&machine(), PodLimit { max: 110, per_core: 0 });
        let cases: [(KubeletConfiguration, &[&str]); 4] = [
            (config(|_| {}), &["cpu=4", "ephemeral-storage=100Gi", "memory=15Gi", "pods=110"]),
            (
                config(|c| {
                    c.kube_reserved = map(&[("cpu", "250m"), ("memory", "1Gi"), ("pid", "100")]);
                    c.system_reserved = map(&[("cpu", "1"), ("ephemeral-storage", "10Gi")]);
                    c.eviction_hard = map(&[("memory.available", "512Mi"), ("nodefs.available", "10%")]);
                }),
                // 10 % in single precision is a little more than 10 %.
                &["cpu=2750m", "ephemeral-storage=85899345760", "memory=13824Mi", "pods=110"],
            ),
            (
                config(|c| {
                    c.kube_reserved = map(&[("cpu", "2")]);
                    c.system_reserved = map(&[("cpu", "500m")]);
                    c.reserved_system_cpus = "0-1".into();
                }),
                &["cpu=2", "ephemeral-storage=100Gi", "memory=15Gi", "pods=110"],
            ),
            (
                config(|c| c.kube_reserved = map(&[("memory", "20Gi")])),
                &["cpu=4", "ephemeral-storage=100Gi", "memory=0", "pods=110"],
            ),
        ];
        for (config, want) in cases {
            let mut got = allocatable(&all, &Reserved::new(&config, false));
            got.retain(|name, _| !is_huge_page(name));
            assert_eq!(texts(&got), want);
        }
    }

    #[test]
    fn a_reservation_larger_than_the_machine_is_refused() {
        let all = capacity(&machine(), PodLimit { max: 110, per_core: 0 });
        let config = config(|c| c.system_reserved = map(&[("memory", "17Gi")]));
        let error = Reserved::new(&config, false).check(&all).unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid Node Allocatable configuration. Resource \"memory\" has a reservation of 17Gi but capacity of 16Gi. Expected capacity >= reservation."
        );
    }

    #[test]
    fn thresholds_and_cpu_lists_are_read() {
        assert_eq!(Threshold::parse("0%"), None);
        assert_eq!(Threshold::parse("100%"), None);
        assert_eq!(Threshold::parse("100Mi").unwrap().of(Quantity::ZERO), Quantity::from_bytes(100 << 20));
        assert_eq!([count_cpus(""), count_cpus("0-3,2,8"), count_cpus("x")], [None, Some(5), None]);
    }

    #[test]
    fn extended_resources_have_a_foreign_domain() {
        for (name, want) in [
            ("nvidia.com/gpu", true),
            ("cpu", false),
            ("hugepages-2Mi", false),
            ("kubernetes.io/batch", false),
            ("node.kubernetes.io/x", false),
        ] {
            assert_eq!(is_extended(name), want, "{name}");
        }
    }

    proptest! {
        #[test]
        fn pods_never_get_more_than_there_is(memory in 0i64..1 << 40, pages in 0i64..1 << 20, kept in 0i64..1 << 40) {
            let m = Machine { memory, huge_pages: BTreeMap::from([(2 << 20, pages)]), ..machine() };
            let all = capacity(&m, PodLimit { max: 110, per_core: 0 });
            let config = config(|c| c.kube_reserved = map(&[("memory", &kept.to_string())]));
            let usable = allocatable(&all, &Reserved::new(&config, false));
            for (name, q) in &usable {
                prop_assert!(!q.is_negative() && *q <= all[name]);
            }
            prop_assert_eq!(usable[MEMORY].value(), (memory - kept).max(0).saturating_sub(pages << 21).max(0));
        }
    }
}
