//! `cargo xtask vm`: tests that need more of a kernel than this machine's has, in a machine of their own.
//!
//! Debian's cloud kernel and qemu come out of packages, unpacked under target/cache like everything else; what runs
//! inside is an archive in memory: the test binaries, the tools they call, and kernel modules. The processor is emulated,
//! so this is about right or wrong and never about speed.

mod cpio;
mod tree;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use fixture::{Doing, Failure, Result};

use crate::debs;
use crate::layout::Layout;
use crate::terminal::{say, step};

/// What is run if nothing is named, by package: IPVS, which needs ip_vs and dummy devices, slices, which need systemd, and
/// dead file servers, which need the kernel's NFS.
const DEFAULT_TESTS: [(&str, &str); 5] = [
    ("proxy", "packets_ipvs"),
    ("proxy", "packets_sctp::ipvs"),
    ("proxy", "agent_ipvs"),
    (UNDER_SYSTEMD, "slices"),
    (UNDER_SYSTEMD, "dead_share"),
];

/// Tests of this package run last, when systemd is the first process.
const UNDER_SYSTEMD: &str = "kubelet";

/// What the console says when the tests begin; the firmware and the kernel were before.
const BEGIN: &str = "vm-begins";

/// What the last line on the console begins with; the exit code follows.
const END: &str = "vm-ends-with ";

/// After which a machine is taken for stuck.
const LIMIT: Duration = Duration::from_secs(10 * 60);

/// What it is made of, as unpacked roots.
#[derive(Debug)]
pub(crate) struct Machine {
    /// A kernel, its modules, and qemu.
    root: PathBuf,
    systemd: PathBuf,
    nfs: PathBuf,
}

/// The tests of one binary.
#[derive(Clone, Debug, PartialEq)]
struct Suite {
    package: String,
    name: String,
    /// Only those whose name contains it.
    filter: Option<String>,
    program: PathBuf,
}

/// `[-p PACKAGE] [-- TEST[::FILTER]…]`: integration tests of a package.
pub(crate) fn vm(layout: &Layout, args: &[String]) -> Result<ExitCode> {
    let suites = parse(args)?;
    let machine = fetch(layout)?;
    let code = run_suites(layout, &machine, suites)?;
    Ok(ExitCode::from(code))
}

/// Everything the machine is made of. An error is a reason to do without it: no Debian, no network.
pub(crate) fn fetch(layout: &Layout) -> Result<Machine> {
    if std::env::consts::ARCH != "x86_64" {
        return Err(Failure::new("the emulated machine runs programs of x86_64 only"));
    }
    debs::fetch(layout, false)?;
    let (root, systemd) = (debs::fetch_machine(layout)?, debs::fetch_systemd(layout)?);
    Ok(Machine { root, systemd, nfs: debs::fetch_nfs(layout)? })
}

/// What is run if nothing is named. As everywhere, a busy machine gets a second try, for all to see.
pub(crate) fn run_default(layout: &Layout, machine: &Machine) -> Result<()> {
    let suites = parse(&[])?;
    if run_suites(layout, machine, suites.clone())? == 0 {
        return Ok(());
    }
    step("trying once more what failed in the emulated machine");
    match run_suites(layout, machine, suites)? {
        0 => Ok(()),
        code => Err(Failure::new(format!("tests in the emulated machine ended with {code}"))),
    }
}

fn run_suites(layout: &Layout, machine: &Machine, mut suites: Vec<Suite>) -> Result<u8> {
    step("building the tests for the emulated machine");
    build(layout, &mut suites)?;
    step("packing what runs inside");
    let archive = tree::pack(layout, machine, &suites)?;
    step("starting the machine");
    run(&machine.root, &archive)
}

fn parse(args: &[String]) -> Result<Vec<Suite>> {
    let (options, tests) = match args.iter().position(|arg| arg == "--") {
        Some(at) => (&args[..at], &args[at + 1..]),
        None => (args, &[][..]),
    };
    let package = match options {
        [] => "proxy".to_owned(),
        [flag, package] if flag == "-p" => package.clone(),
        _ => return Err(Failure::new("vm takes [-p PACKAGE] [-- TEST[::FILTER]…]")),
    };
    let suites: Vec<Suite> = match tests {
        [] => DEFAULT_TESTS.iter().map(|(package, name)| Suite::parse(package, name)).collect(),
        named => named.iter().map(|name| Suite::parse(&package, name)).collect(),
    };
    // They become words of a shell script.
    let is_word = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "_-:".contains(c));
    match tests.iter().find(|test| !is_word(test)) {
        Some(strange) => Err(Failure::new(format!("{strange:?} is not the name of a test"))),
        None => Ok(suites),
    }
}

/// Builds the tests, as a run of all tests does, and notes where they are.
fn build(layout: &Layout, suites: &mut [Suite]) -> Result<()> {
    let out = Command::new("cargo")
        .args(["test", "--no-run", "--locked", "--message-format=json", "--workspace"])
        .args(suites.iter().flat_map(|suite| ["--test", suite.name.as_str()]))
        .current_dir(&layout.root)
        .stderr(Stdio::inherit())
        .output()
        .doing(|| "running cargo test".into())?;
    if !out.status.success() {
        return Err(Failure::new("the tests do not build"));
    }
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let target = &message["target"];
        let (Some(program), "test") =
            (message["executable"].as_str(), target["kind"][0].as_str().unwrap_or_default())
        else {
            continue;
        };
        let manifest = message["manifest_path"].as_str().map(Path::new);
        let is_of =
            |package: &str| manifest == Some(&layout.root.join("crates").join(package).join("Cargo.toml"));
        suites
            .iter_mut()
            .filter(|suite| target["name"] == suite.name.as_str() && is_of(&suite.package))
            .for_each(|suite| suite.program = program.into());
    }
    match suites.iter().find(|suite| suite.program.as_os_str().is_empty()) {
        Some(suite) => Err(Failure::new(format!("{} has no tests {}", suite.package, suite.name))),
        None => Ok(()),
    }
}

/// Shows the console until the machine ends, and says how it went inside.
fn run(machine: &Path, archive: &Path) -> Result<u8> {
    let mut qemu = start(machine, archive)?;
    let watched = qemu.stdout.take().map(watch).unwrap_or_else(|| Err(Failure::new("qemu has no console")));
    let _ = qemu.kill();
    qemu.wait().doing(|| "waiting for qemu".into())?;
    watched
}

fn start(machine: &Path, archive: &Path) -> Result<Child> {
    let modules = machine.join("usr/lib/x86_64-linux-gnu/qemu");
    program(machine, "qemu", "usr/bin/qemu-system-x86_64")?
        .env("QEMU_MODULE_DIR", modules)
        .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1536"])
        .args([
            "-nographic",
            "-no-reboot",
            "-nic",
            "none",
            "-append",
            "console=ttyS0 quiet loglevel=1 panic=-1",
        ])
        .args(["usr/share/qemu", "usr/share/seabios"].iter().flat_map(|dir| ["-L".into(), machine.join(dir)]))
        .arg("-kernel")
        .arg(kernel(machine)?)
        .arg("-initrd")
        .arg(archive)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .doing(|| "running qemu".into())
}

/// The exit code, once the console has told it. What was said before the tests began is shown only if they never did.
fn watch(console: ChildStdout) -> Result<u8> {
    let (sender, lines) = mpsc::sync_channel(64);
    thread::spawn(move || {
        let lines = BufReader::new(console).split(b'\n').map_while(|line| line.ok());
        for line in lines {
            let line = String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned();
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let deadline = Instant::now() + LIMIT;
    let mut before = Some(Vec::new());
    let why = loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            // The firmware ends no line.
            Ok(line) if line.ends_with(BEGIN) => before = None,
            Ok(line) => match (line.strip_prefix(END), &mut before) {
                (Some(code), _) => {
                    return code
                        .trim()
                        .parse()
                        .map_err(|_| Failure::new(format!("the machine says {line:?}")));
                }
                (None, Some(before)) => before.push(line),
                (None, None) => say(line),
            },
            Err(RecvTimeoutError::Timeout) => break format!("did not end within {} s", LIMIT.as_secs()),
            Err(RecvTimeoutError::Disconnected) => break "ended before its tests did".to_owned(),
        }
    };
    before.into_iter().flatten().for_each(say);
    Err(Failure::new(format!("the emulated machine {why}")))
}

// === impl Suite ===

impl Suite {
    fn parse(package: &str, text: &str) -> Self {
        let (name, filter) = match text.split_once("::") {
            Some((name, filter)) => (name, Some(filter.to_owned())),
            None => (text, None),
        };
        Self { package: package.to_owned(), name: name.to_owned(), filter, program: PathBuf::new() }
    }

    fn is_under_systemd(&self) -> bool {
        self.package == UNDER_SYSTEMD
    }
}

/// A program of the unpacked root under a name, with the libraries and the linker that came with it.
fn program(machine: &Path, name: &str, path: &str) -> Result<Command> {
    let [first, second] = libraries(machine);
    let mut command = Command::new(first.join("ld-linux-x86-64.so.2"));
    let libraries = std::env::join_paths([first, second]).doing(|| "joining paths".into())?;
    command.args(["--argv0", name, "--library-path"]).arg(libraries).arg(machine.join(path));
    Ok(command)
}

fn libraries(root: &Path) -> [PathBuf; 2] {
    ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"].map(|dir| root.join(dir))
}

/// The only kernel that was unpacked.
fn kernel(machine: &Path) -> Result<PathBuf> {
    let boot = machine.join("boot");
    let entries = fs::read_dir(&boot).doing(|| format!("listing {}", boot.display()))?;
    let mut kernels = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-")));
    kernels.next().ok_or_else(|| Failure::new(format!("no kernel in {}", boot.display())))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_named_after_two_dashes() {
        let read = |line: &str| {
            let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let show = |suite: Suite| {
                let filter = suite.filter.map(|filter| format!("::{filter}")).unwrap_or_default();
                format!("{}/{}{filter}", suite.package, suite.name)
            };
            Some(parse(&args).ok()?.into_iter().map(show).collect::<Vec<String>>().join(" "))
        };
        let default =
            "proxy/packets_ipvs proxy/packets_sctp::ipvs proxy/agent_ipvs kubelet/slices kubelet/dead_share";
        assert_eq!(read("").as_deref(), Some(default));
        assert_eq!(read("-- nft ipvs::fate").as_deref(), Some("proxy/nft proxy/ipvs::fate"));
        assert_eq!(read("-p sys -- kernel_nft").as_deref(), Some("sys/kernel_nft"));
        assert_eq!(read("packets_ipvs"), None);
        assert_eq!(read("-- packets;reboot"), None);
    }
}
