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
use std::process::{Command, ExitCode, Stdio};

use fixture::{Doing, Failure, Result};

use crate::debs;
use crate::layout::Layout;
use crate::terminal::{say, step};

/// What is run if nothing is named: the whole matrix of Services through IPVS, which needs ip_vs and dummy devices.
const DEFAULT_TESTS: [&str; 1] = ["packets_ipvs"];

/// What the last line on the machine's console begins with; the exit code follows.
const END: &str = "vm-ends-with ";

/// `[-p PACKAGE] [-- TEST…]`: integration tests of a package.
pub(crate) fn vm(layout: &Layout, args: &[String]) -> Result<ExitCode> {
    let (package, tests) = parse(args)?;
    debs::fetch(layout, false)?;
    let machine = debs::fetch_machine(layout)?;
    step(format_args!("building {}", tests.join(", ")));
    let programs = build(layout, &package, &tests)?;
    step("packing what runs inside");
    let archive = tree::pack(layout, &machine, &programs)?;
    step("starting the machine");
    run(&machine, &archive)
}

fn parse(args: &[String]) -> Result<(String, Vec<String>)> {
    let (options, tests) = match args.iter().position(|arg| arg == "--") {
        Some(at) => (&args[..at], &args[at + 1..]),
        None => (args, &[][..]),
    };
    let package = match options {
        [] => "proxy".to_owned(),
        [flag, package] if flag == "-p" => package.clone(),
        _ => return Err(Failure::new("vm takes [-p PACKAGE] [-- TEST…]")),
    };
    let tests = match tests {
        [] => DEFAULT_TESTS.map(str::to_owned).to_vec(),
        named => named.to_vec(),
    };
    Ok((package, tests))
}

/// Builds tests and says where they are.
fn build(layout: &Layout, package: &str, tests: &[String]) -> Result<Vec<PathBuf>> {
    let out = Command::new("cargo")
        .args(["test", "--no-run", "--locked", "--message-format=json", "--package", package])
        .args(tests.iter().flat_map(|test| ["--test", test.as_str()]))
        .current_dir(&layout.root)
        .stderr(Stdio::inherit())
        .output()
        .doing(|| "running cargo test".into())?;
    if !out.status.success() {
        return Err(Failure::new("the tests do not build"));
    }
    let lines = String::from_utf8_lossy(&out.stdout);
    let messages = lines.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let is_test = |message: &serde_json::Value| message["target"]["kind"][0] == "test";
    let built =
        messages.filter(is_test).filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    Ok(built.collect())
}

/// Shows the console until the machine ends, and says how it went inside.
fn run(machine: &Path, archive: &Path) -> Result<ExitCode> {
    let mut qemu = program(machine, "qemu", "usr/bin/qemu-system-x86_64")?
        .args([
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            "max",
            "-smp",
            "2",
            "-m",
            "3072",
            "-nographic",
            "-no-reboot",
        ])
        .args(["-nic", "none", "-append", "console=ttyS0 quiet panic=-1"])
        .args(["usr/share/qemu", "usr/share/seabios"].iter().flat_map(|dir| ["-L".into(), machine.join(dir)]))
        .arg("-kernel")
        .arg(kernel(machine)?)
        .arg("-initrd")
        .arg(archive)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .doing(|| "running qemu".into())?;
    let mut code = None;
    if let Some(console) = qemu.stdout.take() {
        for line in BufReader::new(console).split(b'\n').map_while(|line| line.ok()) {
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches('\r');
            match line.strip_prefix(END) {
                Some(number) => code = number.trim().parse::<u8>().ok(),
                None => say(line),
            }
        }
    }
    qemu.wait().doing(|| "waiting for qemu".into())?;
    match code {
        Some(code) => Ok(ExitCode::from(code)),
        None => Err(Failure::new("the machine ended before the tests did")),
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

fn libraries(machine: &Path) -> [PathBuf; 2] {
    ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"].map(|dir| machine.join(dir))
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
            parse(&args).ok()
        };
        let wanted = |package: &str, tests: &[&str]| {
            Some((package.to_owned(), tests.iter().map(|test| (*test).to_owned()).collect()))
        };
        assert_eq!(read(""), wanted("proxy", &["packets_ipvs"]));
        assert_eq!(read("-- packets_nft packets_ipvs"), wanted("proxy", &["packets_nft", "packets_ipvs"]));
        assert_eq!(read("-p sys -- kernel_nft"), wanted("sys", &["kernel_nft"]));
        assert_eq!(read("packets_ipvs"), None);
    }
}
