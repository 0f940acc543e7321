//! Limits of a container: which cgroup it has, and what is written into which of its files.

use std::collections::BTreeMap;

/// Who makes cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    Cgroupfs,
    Systemd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

/// As the CRI has them; what is zero or empty is not asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    pub cpu_period: i64,
    pub cpu_quota: i64,
    pub cpu_shares: i64,
    pub memory_limit: i64,
    /// Memory and swap together.
    pub memory_swap_limit: i64,
    pub cpuset_cpus: String,
    pub cpuset_mems: String,
    /// Size of a page as the kernel names it, bytes.
    pub hugepages: Vec<(String, u64)>,
    /// Files of version 2, by name.
    pub unified: BTreeMap<String, String>,
}

/// One file of a cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    pub controller: String,
    pub file: String,
    pub value: String,
    /// Where the machine does not have the file, a container may do without.
    pub is_optional: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadResources {
    #[error("{0:?} is not a file of a cgroup")]
    File(String),
    #[error("the limit of memory and swap is below that of memory")]
    Swap,
    #[error("cgroup parent {0:?}: {1}")]
    Parent(String, &'static str),
}

/// What a container may use besides the files that it opens: nodes that hold no data of the machine.
const DEVICES: [&str; 11] = [
    "c *:* m",
    "b *:* m",
    "c 1:3 rwm",
    "c 1:5 rwm",
    "c 1:7 rwm",
    "c 1:8 rwm",
    "c 1:9 rwm",
    "c 5:0 rwm",
    "c 5:1 rwm",
    "c 5:2 rwm",
    "c 136:* rwm",
];

/// The cgroup of a container below its Pod's, as a path below the root of the hierarchies. A slice of systemd is at the end
/// of the path that its name tells.
pub fn cgroup(driver: Driver, parent: &str, id: &str) -> Result<String, BadResources> {
    let bad = |why| BadResources::Parent(parent.to_owned(), why);
    if parent.split('/').any(|part| part == "..") {
        return Err(bad("it leads upwards"));
    }
    match driver {
        Driver::Cgroupfs => Ok(format!("{parent}/{id}").trim_matches('/').to_owned()),
        Driver::Systemd => {
            let slice = parent.rsplit('/').next().unwrap_or_default();
            let stem = slice.strip_suffix(".slice").ok_or_else(|| bad("it is not a slice of systemd"))?;
            let is_whole = !stem.is_empty() && stem != "-" && !stem.split('-').any(str::is_empty);
            if !is_whole {
                return Err(bad("it is not a slice of systemd"));
            }
            let mut path = String::new();
            for (at, _) in stem.match_indices('-').chain([(stem.len(), "")]) {
                path.push_str(&format!("/{}.slice", &stem[..at]));
            }
            Ok(format!("{path}/cri-longshore-{id}.scope").split_off(1))
        }
    }
}

/// What is written, in order. A limit that is lowered or raised together with another may have to be written twice.
pub fn settings(resources: &Resources, version: Version) -> Result<Vec<Setting>, BadResources> {
    let Resources { memory_limit, memory_swap_limit, .. } = *resources;
    if memory_limit > 0 && memory_swap_limit > 0 && memory_swap_limit < memory_limit {
        return Err(BadResources::Swap);
    }
    let mut out = match version {
        Version::V1 => first(resources),
        Version::V2 => second(resources),
    };
    for (file, value) in resources.unified.iter().filter(|_| version == Version::V2) {
        let is_file = file.contains('.') && !file.contains(['/', '\0']) && !file.starts_with("cgroup.");
        let controller =
            file.split('.').next().filter(|_| is_file).ok_or(BadResources::File(file.clone()))?;
        out.push(setting(controller, file, value));
    }
    Ok(out)
}

/// Of version 1: everything is forbidden, then what is harmless is allowed. On version 2 a program of the kernel does that
/// ([`crate::device_filter`]).
#[must_use]
pub fn devices(extra: &[String]) -> Vec<Setting> {
    let mut out = vec![setting("devices", "devices.deny", "a")];
    out.extend(device_rules(extra).iter().map(|rule| setting("devices", "devices.allow", rule)));
    out
}

/// What is harmless, and what was asked for.
#[must_use]
pub fn device_rules(extra: &[String]) -> Vec<String> {
    DEVICES.iter().map(ToString::to_string).chain(extra.iter().cloned()).collect()
}

fn first(r: &Resources) -> Vec<Setting> {
    let mut out = Vec::new();
    let mut number = |controller: &str, file: &str, value: i64| {
        if value != 0 {
            out.push(setting(controller, file, &value.to_string()));
        }
    };
    number("cpu", "cpu.shares", r.cpu_shares);
    number("cpu", "cpu.cfs_period_us", r.cpu_period);
    number("cpu", "cpu.cfs_quota_us", r.cpu_quota);
    number("memory", "memory.limit_in_bytes", r.memory_limit);
    if r.memory_swap_limit != 0 {
        let file = "memory.memsw.limit_in_bytes";
        out.push(Setting { is_optional: true, ..setting("memory", file, &r.memory_swap_limit.to_string()) });
    }
    cpusets(r, &mut out);
    out.extend(r.hugepages.iter().map(|(size, limit)| Setting {
        is_optional: true,
        ..setting("hugetlb", &format!("hugetlb.{size}.limit_in_bytes"), &limit.to_string())
    }));
    out
}

fn second(r: &Resources) -> Vec<Setting> {
    let mut out = Vec::new();
    if r.cpu_shares != 0 {
        out.push(setting("cpu", "cpu.weight", &weight(r.cpu_shares).to_string()));
    }
    if r.cpu_quota != 0 || r.cpu_period != 0 {
        let quota = if r.cpu_quota > 0 { r.cpu_quota.to_string() } else { "max".into() };
        let period = if r.cpu_period > 0 { r.cpu_period } else { 100_000 };
        out.push(setting("cpu", "cpu.max", &format!("{quota} {period}")));
    }
    let amount = |value: i64| if value < 0 { "max".to_owned() } else { value.to_string() };
    if r.memory_limit != 0 {
        out.push(setting("memory", "memory.max", &amount(r.memory_limit)));
    }
    // Version 2 counts swap alone.
    if r.memory_swap_limit != 0 {
        let both_known = r.memory_swap_limit > 0 && r.memory_limit > 0;
        let swap = if both_known { r.memory_swap_limit - r.memory_limit } else { r.memory_swap_limit };
        out.push(Setting { is_optional: true, ..setting("memory", "memory.swap.max", &amount(swap)) });
    }
    cpusets(r, &mut out);
    out.extend(r.hugepages.iter().map(|(size, limit)| Setting {
        is_optional: true,
        ..setting("hugetlb", &format!("hugetlb.{size}.max"), &limit.to_string())
    }));
    out
}

fn cpusets(r: &Resources, out: &mut Vec<Setting>) {
    for (file, value) in [("cpuset.cpus", &r.cpuset_cpus), ("cpuset.mems", &r.cpuset_mems)] {
        if !value.is_empty() {
            out.push(setting("cpuset", file, value));
        }
    }
}

/// Shares (2 to 262144) as a weight (1 to 10000), by the curve that makes 1024 shares the default weight of 100.
fn weight(shares: i64) -> u64 {
    let shares = shares.clamp(2, 262_144);
    if shares == 262_144 {
        return 10_000;
    }
    let log = (shares as f64).log2();
    let exponent = (log * log + 125.0 * log) / 612.0 - 7.0 / 34.0;
    10f64.powf(exponent).ceil() as u64
}

fn setting(controller: &str, file: &str, value: &str) -> Setting {
    Setting { controller: controller.into(), file: file.into(), value: value.into(), is_optional: false }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn written(resources: &Resources, version: Version) -> Vec<String> {
        settings(resources, version).unwrap().iter().map(|s| format!("{} = {}", s.file, s.value)).collect()
    }

    #[test]
    fn limits_are_written_in_the_words_of_each_version() {
        let resources = Resources {
            cpu_period: 100_000,
            cpu_quota: 50_000,
            cpu_shares: 1024,
            memory_limit: 1 << 20,
            memory_swap_limit: 3 << 20,
            cpuset_cpus: "0-1".into(),
            hugepages: vec![("2MB".into(), 0)],
            unified: BTreeMap::from([("memory.high".into(), "900000".into())]),
            ..Resources::default()
        };
        assert_eq!(
            written(&resources, Version::V1),
            [
                "cpu.shares = 1024",
                "cpu.cfs_period_us = 100000",
                "cpu.cfs_quota_us = 50000",
                "memory.limit_in_bytes = 1048576",
                "memory.memsw.limit_in_bytes = 3145728",
                "cpuset.cpus = 0-1",
                "hugetlb.2MB.limit_in_bytes = 0",
            ]
        );
        assert_eq!(
            written(&resources, Version::V2),
            [
                "cpu.weight = 100",
                "cpu.max = 50000 100000",
                "memory.max = 1048576",
                "memory.swap.max = 2097152",
                "cpuset.cpus = 0-1",
                "hugetlb.2MB.max = 0",
                "memory.high = 900000",
            ]
        );
    }

    #[test]
    fn no_limit_is_a_word_on_version_two() {
        let resources = Resources { cpu_quota: -1, memory_limit: -1, ..Resources::default() };
        assert_eq!(written(&resources, Version::V2), ["cpu.max = max 100000", "memory.max = max"]);
        assert_eq!(written(&Resources::default(), Version::V1), [""; 0]);
    }

    #[test]
    fn weights_follow_the_curve() {
        assert_eq!([2, 102, 1024, 262_144].map(weight), [1, 17, 100, 10_000]);
        assert!((2..3000).is_sorted_by_key(weight));
    }

    #[test]
    fn files_that_are_no_limits_are_refused() {
        for file in ["../memory.max", "cgroup.procs", "memory", "a/b.c"] {
            let unified = BTreeMap::from([(file.to_owned(), "1".to_owned())]);
            let resources = Resources { unified, ..Resources::default() };
            assert_eq!(settings(&resources, Version::V2), Err(BadResources::File(file.into())));
        }
        let swap = Resources { memory_limit: 2, memory_swap_limit: 1, ..Resources::default() };
        assert_eq!(settings(&swap, Version::V1), Err(BadResources::Swap));
    }

    #[test]
    fn cgroups_lie_below_their_pods() {
        let rows = [
            (Driver::Cgroupfs, "/kubepods/pod1", "kubepods/pod1/abc"),
            (Driver::Cgroupfs, "", "abc"),
            (Driver::Systemd, "kubepods.slice", "kubepods.slice/cri-longshore-abc.scope"),
            (
                Driver::Systemd,
                "/kubepods.slice/kubepods-pod1.slice",
                "kubepods.slice/kubepods-pod1.slice/cri-longshore-abc.scope",
            ),
        ];
        for (driver, parent, want) in rows {
            assert_eq!(cgroup(driver, parent, "abc").unwrap(), want);
        }
        let bad = [
            (Driver::Cgroupfs, "/a/../.."),
            (Driver::Systemd, "/kubepods"),
            (Driver::Systemd, "a--b.slice"),
            (Driver::Systemd, ".slice"),
        ];
        for (driver, parent) in bad {
            assert!(cgroup(driver, parent, "abc").is_err(), "{parent}");
        }
    }

    #[test]
    fn devices_are_forbidden_before_some_are_allowed() {
        let all = devices(&["c 10:229 rw".into()]);
        assert_eq!((all[0].file.as_str(), all[0].value.as_str()), ("devices.deny", "a"));
        assert!(all[1..].iter().all(|s| s.file == "devices.allow"));
        assert_eq!(all.last().unwrap().value, "c 10:229 rw");
    }
}
