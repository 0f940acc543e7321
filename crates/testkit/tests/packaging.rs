//! The Debian package: takes the kubelet's place, and gives it back.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{command:?}: {}{}", text(&output.stdout), text(&output.stderr));
    output
}

#[allow(clippy::print_stderr)]
fn has_dpkg() -> bool {
    let found = Command::new("dpkg-deb").arg("--version").output().is_ok_and(|o| o.status.success());
    if !found {
        eprintln!("skipped: dpkg-deb is not installed");
    }
    found && rustix::process::geteuid().is_root()
}

fn script(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap_or(path)).unwrap_or_else(|e| panic!("{e}"));
    fs::write(path, text).unwrap_or_else(|e| panic!("{e}"));
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(path, mode).unwrap_or_else(|e| panic!("{e}"));
}

/// A package like upstream's: the same three files.
fn other_kubelet(dir: &Path) -> PathBuf {
    let root = dir.join("other");
    script(&root.join("usr/bin/kubelet"), "#!/bin/sh\necho other\n");
    for unit in ["kubelet.service", "kubelet.service.d/10-kubeadm.conf"] {
        script(&root.join("usr/lib/systemd/system").join(unit), "# other\n");
    }
    let control =
        "Package: kubelet\nVersion: 1.36.4-1\nArchitecture: all\nMaintainer: x <x@x>\nDescription: other\n";
    script(&root.join("DEBIAN/control"), control);
    let deb = dir.join("kubelet.deb");
    run(Command::new("dpkg-deb").arg("--build").arg(&root).arg(&deb));
    deb
}

/// dpkg on a machine that is a directory.
fn dpkg(machine: &Path, args: &[&str]) {
    for dir in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "var/log"] {
        fs::create_dir_all(machine.join(dir)).unwrap_or_else(|e| panic!("{e}"));
    }
    let status = machine.join("var/lib/dpkg/status");
    if !status.exists() {
        fs::write(&status, "").unwrap_or_else(|e| panic!("{e}"));
    }
    run(Command::new("dpkg")
        .arg(format!("--root={}", machine.display()))
        .args(["--force-script-chrootless", "--force-depends", "--log=/dev/null"])
        .args(args)
        .env("DPKG_ROOT", machine));
}

#[test]
fn the_package_takes_the_kubelets_place_and_gives_it_back() {
    if !has_dpkg() {
        return;
    }
    let dir = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
    let binary = dir.path().join("longshore");
    script(&binary, "#!/bin/sh\necho ours\n");
    run(Command::new(repository().join("packaging/debian/build")).arg(&binary).arg("0.1.0").arg(dir.path()));
    let arch = run(Command::new("dpkg").arg("--print-architecture")).stdout;
    let arch = String::from_utf8_lossy(&arch).trim().to_owned();
    let ours = dir.path().join(format!("longshore-kubelet_0.1.0_{arch}.deb"));
    let other = other_kubelet(dir.path());
    let machine = dir.path().join("machine");
    let kubelet = machine.join("usr/bin/kubelet");
    let unit = machine.join("usr/lib/systemd/system/kubelet.service");
    let control = run(Command::new("dpkg-deb").arg("--field").arg(&ours)).stdout;
    let control = String::from_utf8_lossy(&control).into_owned();
    // It needs no C library, this one.
    assert!(!control.contains("Depends:") && control.contains("\nConflicts: longshore\n"), "{control}");
    let says = |path: &Path| fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));

    dpkg(&machine, &["-i", &other.to_string_lossy()]);
    assert!(says(&kubelet).contains("echo other"));
    dpkg(&machine, &["-i", &ours.to_string_lossy()]);
    assert!(says(&kubelet).contains("echo ours"));
    assert!(says(&unit).contains("Type=notify"));
    assert!(says(&kubelet.with_extension("other")).contains("echo other"));
    // The same again is an upgrade, and changes nothing; so is a new version of the other one.
    dpkg(&machine, &["-i", &ours.to_string_lossy()]);
    dpkg(&machine, &["-i", &other.to_string_lossy()]);
    assert!(says(&kubelet).contains("echo ours"));
    dpkg(&machine, &["-r", "longshore-kubelet"]);
    assert!(says(&kubelet).contains("echo other"));
    assert!(says(&unit).contains("# other"));
    assert!(!kubelet.with_extension("other").exists());
}

#[test]
fn the_package_of_a_node_has_units_and_the_libc_that_its_program_needs() {
    if !has_dpkg() {
        return;
    }
    let dir = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
    let binary = dir.path().join("longshore");
    script(&binary, "#!/bin/sh\n# GLIBC_2.17 GLIBC_2.34 GLIBC_2.9\necho ours\n");
    let build = |out: &str| {
        let mut build = Command::new(repository().join("packaging/debian/build"));
        run(build.arg(&binary).arg("0.2.0").arg(dir.path().join(out)).env("SOURCE_DATE_EPOCH", "1780000000"));
        let arch = run(Command::new("dpkg").arg("--print-architecture")).stdout;
        dir.path().join(out).join(format!("longshore_0.2.0_{}.deb", String::from_utf8_lossy(&arch).trim()))
    };
    let deb = build("a");
    assert_eq!(fs::read(&deb).ok(), fs::read(build("b")).ok(), "two builds differ");
    let control =
        String::from_utf8_lossy(&run(Command::new("dpkg-deb").arg("--field").arg(&deb)).stdout).into_owned();
    for line in ["Package: longshore\n", "Version: 0.2.0\n", "Depends: libc6 (>= 2.34), libgcc-s1\n"] {
        assert!(control.contains(line), "{line:?} is not in\n{control}");
    }
    let machine = dir.path().join("machine");
    dpkg(&machine, &["-i", &deb.to_string_lossy()]);
    let units = machine.join("usr/lib/systemd/system");
    let mut commands: Vec<String> = Vec::new();
    for entry in fs::read_dir(&units).unwrap_or_else(|e| panic!("{e}")).flatten() {
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/longshore "));
        commands.push(line.and_then(|line| line.split(' ').next()).unwrap_or_default().to_owned());
    }
    commands.sort();
    let want = ["apiserver", "dns", "kube-controller-manager", "kube-proxy", "kube-scheduler", "up"];
    assert_eq!(commands, want);
    assert!(machine.join("usr/share/doc/longshore/changelog.Debian.gz").exists());
    dpkg(&machine, &["-r", "longshore"]);
    assert!(!machine.join("usr/bin/longshore").exists());
}

#[test]
fn the_drop_in_hands_over_all_that_kubeadm_writes() {
    let text = fs::read_to_string(repository().join("packaging/systemd/10-kubeadm.conf")).unwrap_or_default();
    for part in [
        "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf",
        "--kubeconfig=/etc/kubernetes/kubelet.conf",
        "--config=/var/lib/kubelet/config.yaml",
        "EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env",
        "EnvironmentFile=-/etc/default/kubelet",
        "ExecStart=\n",
        "$KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS",
    ] {
        assert!(text.contains(part), "{part}");
    }
}
