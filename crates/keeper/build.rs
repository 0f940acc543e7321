//! Compiles the freestanding program. Cargo cannot: it needs its own panic strategy and linker arguments.

use std::env;
use std::error::Error;
use std::path::PathBuf;
use std::process::Command;

#[allow(clippy::print_stdout)]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=program");
    for shared in ["wire.rs", "framing.rs"] {
        println!("cargo:rerun-if-changed=../runtime-core/src/{shared}");
    }
    let out = PathBuf::from(env::var("OUT_DIR")?).join("keeper");
    let mut rustc = Command::new(env::var("RUSTC")?);
    rustc.args(["--edition=2024", "--crate-name=keeper", "--crate-type=bin", "program/main.rs"]);
    rustc.args(["--target", &env::var("TARGET")?, "-o"]).arg(&out);
    rustc.args(["-Cpanic=abort", "-Copt-level=s", "-Clto=fat", "-Ccodegen-units=1", "-Cstrip=symbols"]);
    rustc.args(["-Crelocation-model=static", "-Ctarget-feature=+crt-static", "-Coverflow-checks=off"]);
    for argument in ["-nostartfiles", "-nostdlib", "-static", "-Wl,--build-id=none", "-Wl,-z,noexecstack"] {
        rustc.arg(format!("-Clink-arg={argument}"));
    }
    // A linker chosen for the target by the caller serves here too.
    let target = env::var("TARGET")?.replace('-', "_").to_uppercase();
    println!("cargo:rerun-if-env-changed=CARGO_TARGET_{target}_LINKER");
    if let Ok(linker) = env::var(format!("CARGO_TARGET_{target}_LINKER")) {
        rustc.arg(format!("-Clinker={linker}"));
    }
    let status = rustc.status()?;
    if !status.success() {
        return Err(format!("compiling the keeper: {status}").into());
    }
    Ok(())
}
