//! The kernel, its control groups and options, the clock, the disk, the container runtime.

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use api::config::up::Up;
use base::finding::Finding;
use flate2::read::GzDecoder;

use super::{good, note, read, wrong};
use crate::up_cmd::{self, Chosen};

/// nftables as kube-proxy needs it.
const OLDEST: (u32, u32) = (5, 13);
/// This program was made later.
const NO_EARLIER: u64 = 1_780_000_000;
const OVERLAYFS_MAGIC: i64 = 0x794c_7630;
/// Images and the store need some room.
const LEAST: u64 = 1 << 30;

/// What containers and Services are made of: each as a part of the kernel or as a module.
const OPTIONS: &[(&str, &str)] = &[
    ("NAMESPACES", "containers"),
    ("NET_NS", "networks of Pods"),
    ("PID_NS", "containers"),
    ("IPC_NS", "containers"),
    ("UTS_NS", "containers"),
    ("CGROUPS", "limits"),
    ("MEMCG", "memory limits"),
    ("CGROUP_PIDS", "process limits"),
    ("CFS_BANDWIDTH", "processor limits"),
    ("SECCOMP", "seccomp profiles"),
    ("OVERLAY_FS", "images"),
    ("VETH", "networks of Pods"),
    ("BRIDGE", "networks of Pods"),
    ("NF_TABLES", "Services"),
    ("NF_CONNTRACK", "Services"),
    ("NFT_NAT", "Services"),
    ("NFT_MASQ", "networks of Pods"),
];

pub(super) fn root(_: &Up) -> Vec<Finding> {
    match rustix::process::geteuid().is_root() {
        true => vec![good("this is root")],
        false => vec![wrong("this is not root", "Containers need root: run it with sudo")],
    }
}

pub(super) fn kernel(_: &Up) -> Vec<Finding> {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    vec![match version(&release) {
        Some(version) if version < OLDEST => wrong(
            format!("the kernel is {release}"),
            format!("{}.{} is the oldest that Services work on: update the system", OLDEST.0, OLDEST.1),
        ),
        _ => good(format!("the kernel is {release}")),
    }]
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

pub(super) fn cgroups(_: &Up) -> Vec<Finding> {
    let unified = read("/sys/fs/cgroup/cgroup.controllers");
    let of_kernel = read("/proc/cgroups");
    let boot =
        ["/boot/firmware/cmdline.txt", "/boot/cmdline.txt"].into_iter().find(|f| Path::new(f).exists());
    judge_cgroups(&unified, &of_kernel, Path::new("/sys/fs/cgroup/memory").is_dir(), boot)
}

fn judge_cgroups(unified: &str, of_kernel: &str, has_v1_memory: bool, boot: Option<&str>) -> Vec<Finding> {
    let has = |name: &str| unified.split_whitespace().any(|controller| controller == name);
    let is_unified = !unified.trim().is_empty();
    let mut row = of_kernel.lines().filter_map(|line| line.strip_prefix("memory\t"));
    let is_off = row.next().is_some_and(|rest| rest.trim_end().ends_with("\t0"));
    if is_off || (is_unified && !has("memory")) {
        // As Raspberry Pi OS has it.
        let file = boot.unwrap_or("the boot loader's command line of the kernel");
        return vec![wrong(
            "the memory control group is switched off",
            format!("Add cgroup_enable=memory to the one line in {file} and restart the machine"),
        )];
    }
    let missing: Vec<&str> = ["cpu", "pids"].into_iter().filter(|name| is_unified && !has(name)).collect();
    if !missing.is_empty() {
        let text = format!("control group controllers are missing: {}", missing.join(", "));
        return vec![wrong(text, "The kernel, or whoever runs this container, has to give them")];
    }
    match (is_unified, has_v1_memory) {
        (true, _) => vec![good("control groups are of version 2, with cpu, memory and pids")],
        (false, true) => vec![note(
            "control groups are of version 1",
            "It works; version 2 is what upstream tests: systemd.unified_cgroup_hierarchy=1",
        )],
        (false, false) => {
            vec![wrong("no control groups are mounted", "Mount cgroup2 at /sys/fs/cgroup, as systemd does")]
        }
    }
}

pub(super) fn options(_: &Up) -> Vec<Finding> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let text = zipped("/proc/config.gz").unwrap_or_else(|| read(format!("/boot/config-{release}")));
    judge_options(&text)
}

fn judge_options(text: &str) -> Vec<Finding> {
    if text.is_empty() {
        return vec![note("the kernel does not say what it was built with", "")];
    }
    let is_on = |name: &str| {
        text.lines().any(|line| {
            let rest = line.strip_prefix("CONFIG_").and_then(|line| line.strip_prefix(name));
            matches!(rest, Some("=y" | "=m"))
        })
    };
    let missing: Vec<Finding> = OPTIONS
        .iter()
        .filter(|(name, _)| !is_on(name))
        .map(|(name, what)| {
            wrong(format!("the kernel lacks CONFIG_{name}, which {what} need"), "Another kernel is needed")
        })
        .collect();
    if missing.is_empty() { vec![good("the kernel has every option that is needed")] } else { missing }
}

fn zipped(path: &str) -> Option<String> {
    let mut text = String::new();
    GzDecoder::new(fs::File::open(path).ok()?).take(4 << 20).read_to_string(&mut text).ok()?;
    Some(text)
}

pub(super) fn clock(_: &Up) -> Vec<Finding> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    if now < NO_EARLIER {
        return vec![wrong(
            "the clock is years behind",
            "Set it, or certificates made now end too early: timedatectl set-ntp true",
        )];
    }
    let is_followed = Path::new("/run/systemd/timesync/synchronized").exists()
        || Path::new("/run/chrony").is_dir()
        || Path::new("/run/ntpd.pid").exists();
    vec![match is_followed {
        true => good("the clock is kept right"),
        false => {
            note("nobody seems to keep the clock right", "Certificates need it: timedatectl set-ntp true")
        }
    }]
}

pub(super) fn disk(up: &Up) -> Vec<Finding> {
    let existing = up.data_dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
    let Ok(fs) = rustix::fs::statvfs(existing) else {
        return vec![wrong(
            format!("{} cannot be looked at", existing.display()),
            "Choose another with --data-dir",
        )];
    };
    let free = fs.f_bavail.saturating_mul(fs.f_frsize);
    let room = format!("{} MB are free for {}", free / 1_000_000, up.data_dir.display());
    vec![match free < LEAST {
        true => wrong(room, "Images need more: make room, or choose another disk with --data-dir"),
        false => good(room),
    }]
}

pub(super) fn runtime(up: &Up) -> Vec<Finding> {
    if up.disabled.contains("kubelet") {
        return Vec::new();
    }
    let choice = match up_cmd::Choice::of(up) {
        Ok(choice) => choice,
        Err(error) => return vec![wrong(error, "Look at the flags, and at the data directory")],
    };
    let mut findings = vec![match &choice.now {
        Chosen::Embedded => {
            let existing = up.data_dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
            judge_embedded(rustix::fs::statfs(existing).is_ok_and(|fs| fs.f_type == OVERLAYFS_MAGIC))
        }
        Chosen::Containerd { program } if program.is_file() => {
            good(format!("the container runtime is {}", choice.now))
        }
        Chosen::Containerd { program } => wrong(
            format!("{} is not there", program.display()),
            "Name another with --containerd, or change to the runtime in this program with --embedded-runtime",
        ),
        Chosen::Endpoint { socket } => match UnixStream::connect(socket) {
            Ok(_) => good(format!("the container runtime answers at {}", choice.now)),
            Err(error) => wrong(
                format!("nobody answers at {}: {error}", choice.now),
                "Start the runtime, or name another with --container-runtime-endpoint",
            ),
        },
    }];
    if let Some(before) = choice.before {
        findings.push(note(
            format!("the Pods of this node run on another container runtime: {before}"),
            "`longshore up` with these flags ends them there, and starts them again",
        ));
    }
    findings
}

fn judge_embedded(is_on_overlayfs: bool) -> Finding {
    match is_on_overlayfs {
        true => wrong(
            "the data directory lies on overlayfs, which the layers of containers cannot stand on",
            "Choose a directory on another file system with --data-dir",
        ),
        false => good("the container runtime is in this program"),
    }
}

#[cfg(test)]
mod tests {
    use base::finding::Grade;

    use super::*;

    #[test]
    fn kernels_are_compared_by_number() {
        assert_eq!(version("6.12.41+deb13-amd64"), Some((6, 12)));
        assert_eq!(version("5.10.0"), Some((5, 10)));
        assert!(version("5.10.0") < Some(OLDEST) && version("10.0-rc1") > Some(OLDEST));
        assert_eq!(version("odd"), None);
    }

    #[test]
    fn a_memory_group_that_is_off_is_told_with_the_file_to_change() {
        let off = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t0\t50\t1\nmemory\t0\t50\t0\n";
        let on = off.replace("memory\t0\t50\t0", "memory\t0\t50\t1");
        let rows: &[(&str, &str, bool, Grade, &str)] = &[
            ("cpuset cpu io memory pids", &on, false, Grade::Good, ""),
            ("cpuset cpu io pids", off, false, Grade::Wrong, "/boot/cmdline.txt"),
            ("", off, false, Grade::Wrong, "/boot/cmdline.txt"),
            ("cpu memory", &on, false, Grade::Wrong, "The kernel"),
            ("", &on, true, Grade::Note, "version 2"),
            ("", &on, false, Grade::Wrong, "Mount cgroup2"),
        ];
        for (unified, kernel, v1, grade, advice) in rows {
            let found = judge_cgroups(unified, kernel, *v1, Some("/boot/cmdline.txt"));
            assert_eq!(found.len(), 1);
            assert!(found[0].grade == *grade && found[0].advice.contains(advice), "{unified:?}: {found:?}");
        }
    }

    #[test]
    fn a_disk_that_layers_cannot_stand_on_is_told() {
        assert_eq!(judge_embedded(false).grade, Grade::Good);
        assert!(judge_embedded(true).advice.contains("--data-dir"));
    }

    #[test]
    fn an_option_that_is_missing_is_named_with_what_needs_it() {
        let all: String = OPTIONS.iter().map(|(name, _)| format!("CONFIG_{name}=m\n")).collect();
        assert_eq!(judge_options(&all)[0].grade, Grade::Good);
        let found = judge_options(&all.replace("CONFIG_VETH=m", "# CONFIG_VETH is not set"));
        assert_eq!(found[0].text, "the kernel lacks CONFIG_VETH, which networks of Pods need");
        assert_eq!(judge_options("")[0].grade, Grade::Note);
    }
}
