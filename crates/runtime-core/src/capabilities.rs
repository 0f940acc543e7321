//! Capabilities: their names and numbers, and which of them a container gets.

use crate::recipe::Capabilities;

/// By number.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// What a container gets that asks for nothing, as with containerd and Docker.
const DEFAULT: &[&str] = &[
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown capability {0:?}")]
pub struct UnknownCapability(pub String);

/// What a container asks for, with or without `CAP_`; `ALL` means every one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub is_privileged: bool,
    pub add: Vec<String>,
    pub drop: Vec<String>,
    pub ambient: Vec<String>,
}

/// The bit of one capability.
pub fn bit(name: &str) -> Result<u64, UnknownCapability> {
    let upper = name.to_ascii_uppercase();
    let short = upper.strip_prefix("CAP_").unwrap_or(&upper);
    let number = NAMES.iter().position(|known| *known == short);
    number.map(|n| 1 << n).ok_or_else(|| UnknownCapability(name.to_owned()))
}

/// Every capability that the machine may give. `known` are those of its kernel and of the daemon itself.
#[must_use]
pub fn all() -> u64 {
    (1 << NAMES.len()) - 1
}

impl Wanted {
    /// The bounding set. What is added and dropped by name wins over `ALL`; what is dropped, over what is added.
    pub fn bounding(&self, machine: u64) -> Result<u64, UnknownCapability> {
        let is_all = |name: &String| name.eq_ignore_ascii_case("ALL");
        let bits = |names: &[String]| {
            names.iter().filter(|n| !is_all(n)).try_fold(0, |sum, name| Ok(sum | bit(name)?))
        };
        let (add, drop) = (bits(&self.add)?, bits(&self.drop)?);
        if self.is_privileged {
            return Ok(machine);
        }
        let mut set = DEFAULT.iter().filter_map(|name| bit(name).ok()).fold(0, |sum, bit| sum | bit);
        if self.add.iter().any(is_all) {
            set = all();
        }
        if self.drop.iter().any(is_all) {
            set = 0;
        }
        Ok((set | add) & !drop & machine)
    }

    /// All five sets. A user other than root holds nothing but the ambient ones, as after any setuid; a program with
    /// file capabilities gets them from the bounding set.
    pub fn sets(&self, machine: u64, user: u32) -> Result<(u64, Capabilities), UnknownCapability> {
        let bounding = self.bounding(machine)?;
        let ambient = self.ambient.iter().try_fold(0, |sum, name| Ok(sum | bit(name)?))? & bounding;
        let held = if user == 0 { bounding } else { ambient };
        // Inheritable beyond the ambient ones would let programs gain what was dropped (CVE-2022-24769).
        let sets = Capabilities { effective: held, permitted: held, inheritable: ambient, ambient };
        Ok((bounding, sets))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn wanted(add: &[&str], drop: &[&str]) -> Wanted {
        let own = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        Wanted { add: own(add), drop: own(drop), ..Wanted::default() }
    }

    #[test]
    fn what_is_asked_for_is_what_one_gets() {
        let default = wanted(&[], &[]).bounding(all()).unwrap();
        assert_eq!(default, 0xa804_25fb, "as /proc/self/status shows it in a container of Docker");
        let net_admin = bit("NET_ADMIN").unwrap();
        let rows = [
            (wanted(&["NET_ADMIN"], &[]), default | net_admin),
            (wanted(&["CAP_NET_ADMIN"], &[]), default | net_admin),
            (wanted(&["net_admin"], &["NET_ADMIN"]), default),
            (wanted(&["ALL"], &[]), all()),
            (wanted(&[], &["ALL"]), 0),
            (wanted(&["NET_ADMIN"], &["ALL"]), net_admin),
            (wanted(&["ALL"], &["NET_ADMIN"]), all() & !net_admin),
            (wanted(&[], &["CHOWN"]), default & !1),
        ];
        for (wanted, want) in rows {
            assert_eq!(wanted.bounding(all()).unwrap(), want, "{wanted:?}");
        }
    }

    #[test]
    fn unknown_names_are_refused_even_for_the_privileged() {
        let wanted = Wanted { is_privileged: true, ..wanted(&["NET_ADMINN"], &[]) };
        assert_eq!(wanted.bounding(all()).unwrap_err().to_string(), "unknown capability \"NET_ADMINN\"");
    }

    #[test]
    fn another_user_than_root_holds_only_the_ambient_ones() {
        let wanted = Wanted { ambient: vec!["NET_BIND_SERVICE".into()], ..wanted(&[], &[]) };
        let (bounding, sets) = wanted.sets(all(), 1000).unwrap();
        let bind = bit("NET_BIND_SERVICE").unwrap();
        assert_eq!(sets, Capabilities { effective: bind, permitted: bind, inheritable: bind, ambient: bind });
        let (same, sets) = wanted.sets(all(), 0).unwrap();
        assert_eq!((same, sets.effective, sets.inheritable), (bounding, bounding, bind));
    }

    #[test]
    fn nobody_gets_what_the_machine_does_not_have() {
        let wanted = Wanted { is_privileged: true, ..Wanted::default() };
        assert_eq!(wanted.bounding(0b111).unwrap(), 0b111);
    }
}
