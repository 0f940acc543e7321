//! Cgroups as systemd's slices: how they are called, and which properties hold them to what they may use.
//!
//! The properties are those upstream asks for, so that a node may go from one kubelet to the other and back.

use super::{Limits, Name};

/// From here on the period of a quota is a property.
const KNOWS_PERIOD: u32 = 242;
/// From here on processors are a property.
const KNOWS_CPUS: u32 = 244;
const SECOND: i64 = 1_000_000;
/// systemd counts a quota in hundredths of a processor.
const STEP: i64 = 10_000;
const INFINITE: u64 = u64::MAX;
/// Larger than any machine.
const CPU_MAX: usize = 1 << 16;

/// What depends on whom we talk to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// The number of systemd's version.
    pub version: u32,
    /// Cgroups of version 2 only.
    pub unified: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Property {
    pub name: &'static str,
    pub value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Text(String),
    Texts(Vec<String>),
    Truth(bool),
    Number(u64),
    Bytes(Vec<u8>),
}

/// What a slice is made with, its limits aside. Everything is counted from the beginning: the kernel does not add to
/// what a cgroup used before somebody counted.
#[must_use]
pub fn founding(name: &Name, dialect: Dialect) -> Vec<Property> {
    let disk = if dialect.unified { "IOAccounting" } else { "BlockIOAccounting" };
    let mut properties = vec![
        Property { name: "Description", value: Value::Text(format!("Pods of Kubernetes: {}", name.unit())) },
        // A slice is below the one its name says; this one starts that one.
        Property { name: "Wants", value: Value::Texts(vec![name.parent_unit()]) },
    ];
    let counted = ["MemoryAccounting", "CPUAccounting", disk, "TasksAccounting"];
    properties.extend(counted.map(|name| Property { name, value: Value::Truth(true) }));
    properties.push(Property { name: "DefaultDependencies", value: Value::Truth(false) });
    properties
}

/// What holds a slice to its limits. Huge pages are no property: they are written to their files.
#[must_use]
pub fn bounds(limits: &Limits, dialect: Dialect) -> Vec<Property> {
    let number = |name, value| Property { name, value: Value::Number(value) };
    let mut properties = Vec::new();
    if let Some(bytes) = limits.memory.filter(|bytes| *bytes != 0) {
        properties.push(number(if dialect.unified { "MemoryMax" } else { "MemoryLimit" }, positive(bytes)));
    }
    let kept = [("MemoryMin", limits.memory_min), ("MemoryLow", limits.memory_low)];
    for (name, bytes) in kept.into_iter().filter(|_| dialect.unified) {
        properties.extend(bytes.map(|bytes| number(name, positive(bytes))));
    }
    if let Some(shares) = limits.cpu_shares {
        properties.push(match dialect.unified {
            true => number("CPUWeight", positive(super::weight(shares))),
            false => number("CPUShares", positive(shares)),
        });
    }
    if let Some((quota, period)) = limits.cpu_quota {
        if dialect.version >= KNOWS_PERIOD {
            properties.push(number("CPUQuotaPeriodUSec", positive(period)));
        }
        properties.push(number("CPUQuotaPerSecUSec", per_second(quota, period).map_or(INFINITE, positive)));
    }
    if let Some(pids) = limits.pids {
        // None at all is not a number of tasks that systemd accepts.
        properties.push(number("TasksMax", positive(if pids == 0 { 1 } else { pids })));
    }
    if let Some(cpus) = limits.cpus.as_deref().and_then(mask)
        && dialect.version >= KNOWS_CPUS
    {
        properties.push(Property { name: "AllowedCPUs", value: Value::Bytes(cpus) });
    }
    properties
}

/// The limits systemd will write: a quota that is no whole number of hundredths is rounded up, so that what is below
/// gets all of its own.
#[must_use]
pub fn rounded(limits: &Limits) -> Limits {
    let round = |(quota, period): (i64, i64)| match per_second(quota, period) {
        Some(each) if quota.saturating_mul(SECOND) / period % STEP != 0 => {
            (each.saturating_mul(period) / SECOND, period)
        }
        _ => (quota, period),
    };
    Limits { cpu_quota: limits.cpu_quota.map(round), ..limits.clone() }
}

/// The number in what systemd says its version is: `252.39-1~deb12u1`, `v245.4-1.fc32`.
#[must_use]
pub fn version(text: &str) -> Option<u32> {
    let text = text.trim_start_matches(['"', 'v']);
    let digits = text.find(|c: char| !c.is_ascii_digit()).map_or(text, |end| &text[..end]);
    digits.parse().ok()
}

// === impl Name ===

impl Name {
    /// The name of its slice: that of every slice above it, and its own.
    #[must_use]
    pub fn unit(&self) -> String {
        unit(&self.0)
    }

    /// The name of the slice above it.
    #[must_use]
    pub fn parent_unit(&self) -> String {
        unit(self.0.split_last().map_or(&[], |(_, above)| above))
    }
}

fn unit(words: &[String]) -> String {
    // A dash is a step down in the name of a slice.
    let words: Vec<String> = words.iter().map(|word| word.replace('-', "_")).collect();
    let name = if words.is_empty() { "-".to_owned() } else { words.join("-") };
    format!("{name}.slice")
}

/// Microseconds of a processor in a second of time, rounded up; none without a limit.
fn per_second(quota: i64, period: i64) -> Option<i64> {
    let exact = (quota > 0 && period > 0).then(|| quota.saturating_mul(SECOND) / period)?;
    Some(exact.saturating_add(STEP - 1) / STEP * STEP)
}

/// Less than nothing is no limit.
fn positive(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(INFINITE)
}

/// Processors as bits, the first one lowest, from a list as the kernel writes it.
fn mask(list: &str) -> Option<Vec<u8>> {
    let mut bytes: Vec<u8> = Vec::new();
    for part in list.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if first > last || last > CPU_MAX {
            return None;
        }
        if bytes.len() <= last / 8 {
            bytes.resize(last / 8 + 1, 0);
        }
        (first..=last).for_each(|cpu| bytes[cpu / 8] |= 1 << (cpu % 8));
    }
    (!bytes.is_empty()).then_some(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use api::pod::QosClass;

    use super::super::{all_pods, of_class, of_pod};
    use super::*;

    const NEW: Dialect = Dialect { version: 252, unified: true };
    const OLD: Dialect = Dialect { version: 239, unified: false };

    fn shown(properties: &[Property]) -> Vec<String> {
        let show = |p: &Property| match &p.value {
            Value::Text(text) => format!("{}={text}", p.name),
            Value::Texts(texts) => format!("{}={}", p.name, texts.join(" ")),
            Value::Truth(truth) => format!("{}={truth}", p.name),
            Value::Number(u64::MAX) => format!("{}=infinity", p.name),
            Value::Number(number) => format!("{}={number}", p.name),
            Value::Bytes(bytes) => format!("{}={bytes:?}", p.name),
        };
        properties.iter().map(show).collect()
    }

    #[test]
    fn units_and_the_slices_above_them() {
        let all = all_pods("/").unwrap();
        let deep = all_pods("/my-root/b").unwrap();
        for (name, unit, parent) in [
            (Name::default(), "-.slice", "-.slice"),
            (all.clone(), "kubepods.slice", "-.slice"),
            (of_class(&all, QosClass::Burstable), "kubepods-burstable.slice", "kubepods.slice"),
            (
                of_pod(&all, QosClass::BestEffort, "0a-1b").unwrap(),
                "kubepods-besteffort-pod0a_1b.slice",
                "kubepods-besteffort.slice",
            ),
            (
                of_pod(&all, QosClass::Guaranteed, "0a-1b").unwrap(),
                "kubepods-pod0a_1b.slice",
                "kubepods.slice",
            ),
            (deep, "my_root-b-kubepods.slice", "my_root-b.slice"),
        ] {
            assert_eq!((name.unit().as_str(), name.parent_unit().as_str()), (unit, parent));
            if name != Name::default() {
                assert!(name.path(super::super::Driver::Systemd).ends_with(unit));
            }
        }
    }

    #[test]
    fn a_slice_is_founded_with_everything_counted() {
        let name = of_class(&all_pods("").unwrap(), QosClass::Burstable);
        assert_eq!(
            shown(&founding(&name, NEW)),
            [
                "Description=Pods of Kubernetes: kubepods-burstable.slice",
                "Wants=kubepods.slice",
                "MemoryAccounting=true",
                "CPUAccounting=true",
                "IOAccounting=true",
                "TasksAccounting=true",
                "DefaultDependencies=false",
            ]
        );
        assert!(shown(&founding(&name, OLD)).contains(&"BlockIOAccounting=true".to_owned()));
    }

    #[test]
    fn limits_become_properties() {
        let limits = Limits {
            cpu_shares: Some(1024),
            cpu_quota: Some((150_000, 100_000)),
            memory: Some(1 << 30),
            pids: Some(100),
            cpus: Some("0-2,9".to_owned()),
            ..Limits::default()
        };
        assert_eq!(
            shown(&bounds(&limits, NEW)),
            [
                "MemoryMax=1073741824",
                "CPUWeight=39",
                "CPUQuotaPeriodUSec=100000",
                "CPUQuotaPerSecUSec=1500000",
                "TasksMax=100",
                "AllowedCPUs=[7, 2]",
            ]
        );
        // An old one knows neither the period nor processors.
        assert_eq!(
            shown(&bounds(&limits, OLD)),
            ["MemoryLimit=1073741824", "CPUShares=1024", "CPUQuotaPerSecUSec=1500000", "TasksMax=100"]
        );
        assert_eq!(bounds(&Limits::default(), NEW), []);
        let none = Limits { cpu_quota: Some((-1, 100_000)), pids: Some(0), ..Limits::default() };
        assert_eq!(
            shown(&bounds(&none, NEW)),
            ["CPUQuotaPeriodUSec=100000", "CPUQuotaPerSecUSec=infinity", "TasksMax=1"]
        );
    }

    #[test]
    fn a_quota_is_rounded_up_to_hundredths() {
        for (quota, period, per_second, written) in [
            (100_000, 100_000, 1_000_000, 100_000),
            (1_000, 100_000, 10_000, 1_000),
            (12_345, 100_000, 130_000, 13_000),
            (33_300, 50_000, 670_000, 33_500),
            (1_000, 10_000, 100_000, 1_000),
        ] {
            let limits = Limits { cpu_quota: Some((quota, period)), ..Limits::default() };
            let want = format!("CPUQuotaPerSecUSec={per_second}");
            assert!(shown(&bounds(&limits, NEW)).contains(&want), "{quota} of {period}");
            let rounded = rounded(&limits);
            assert_eq!(rounded.cpu_quota, Some((written, period)));
            assert_eq!(bounds(&rounded, NEW), bounds(&limits, NEW));
        }
        let lifted = Limits { cpu_quota: Some((-1, 100_000)), ..Limits::default() };
        assert_eq!(rounded(&lifted), lifted);
    }

    #[test]
    fn versions_are_numbers_with_something_after_them() {
        for (text, want) in [
            ("252.39-1~deb12u1", Some(252)),
            ("v245.4-1.fc32", Some(245)),
            ("239", Some(239)),
            ("\"v257\"", Some(257)),
            ("", None),
            ("new", None),
        ] {
            assert_eq!(version(text), want, "{text}");
        }
    }

    #[test]
    fn processors_become_bits() {
        for (list, want) in [
            ("0", Some(vec![1])),
            ("0-7", Some(vec![255])),
            ("8", Some(vec![0, 1])),
            ("0-1,16-17\n", Some(vec![3, 0, 3])),
            ("", None),
            ("3-1", None),
            ("99999999", None),
            ("x", None),
        ] {
            assert_eq!(mask(list), want, "{list:?}");
        }
    }
}
