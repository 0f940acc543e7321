//! Which machine this is, read from the places upstream reads.

use std::fs;
use std::path::Path;
use std::time::Duration;

/// The machine's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineIdentity {
    pub machine_id: String,
    pub system_uuid: String,
    pub boot_id: String,
    pub os_image: String,
    /// How long it has been up; none if unknown.
    pub boot_age: Option<Duration>,
}

/// Reads them; what cannot be read is empty.
#[must_use]
pub fn read_identity() -> MachineIdentity {
    read_below(Path::new("/"))
}

fn read_below(root: &Path) -> MachineIdentity {
    let read = |path: &str| {
        let text = fs::read_to_string(root.join(path)).ok()?;
        let text = text.trim_end_matches('\0').trim().to_owned();
        (!text.is_empty()).then_some(text)
    };
    let first = |paths: &[&str]| paths.iter().find_map(|p| read(p)).unwrap_or_default();
    MachineIdentity {
        machine_id: first(&["etc/machine-id", "var/lib/dbus/machine-id"]),
        system_uuid: first(&[
            "sys/class/dmi/id/product_uuid",
            "proc/device-tree/system-id",
            "proc/device-tree/vm,uuid",
            "etc/machine-id",
        ]),
        boot_id: first(&["proc/sys/kernel/random/boot_id"]),
        os_image: ["etc/os-release", "usr/lib/os-release"]
            .iter()
            .find_map(|p| pretty_name(&read(p)?))
            .unwrap_or_else(|| "Linux".to_owned()),
        boot_age: read("proc/uptime").and_then(|text| {
            let seconds: f64 = text.split_whitespace().next()?.parse().ok()?;
            Duration::try_from_secs_f64(seconds).ok()
        }),
    }
}

fn pretty_name(text: &str) -> Option<String> {
    let value = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    let value = value.trim().trim_matches(['"', '\'']).to_owned();
    (!value.is_empty()).then_some(value)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn each_name_comes_from_the_first_place_that_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert_eq!(read_below(root), MachineIdentity { os_image: "Linux".into(), ..Default::default() });
        write(root, "var/lib/dbus/machine-id", "dbus\n");
        write(root, "proc/sys/kernel/random/boot_id", "b-1\n");
        write(root, "etc/os-release", "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 13 (trixie)\"\nID=d\n");
        write(root, "proc/uptime", "12.50 20.00\n");
        let found = read_below(root);
        assert_eq!((found.machine_id.as_str(), found.system_uuid.as_str()), ("dbus", ""));
        assert_eq!(found.os_image, "Debian GNU/Linux 13 (trixie)");
        assert_eq!(found.boot_age, Some(Duration::from_millis(12_500)));
        write(root, "etc/machine-id", "etc\n");
        assert_eq!(read_below(root).machine_id, "etc");
        assert_eq!(read_below(root).system_uuid, "etc");
        write(root, "proc/device-tree/vm,uuid", "tree\0");
        assert_eq!(read_below(root).system_uuid, "tree");
        write(root, "sys/class/dmi/id/product_uuid", "dmi\n");
        assert_eq!(read_below(root).system_uuid, "dmi");
    }
}
