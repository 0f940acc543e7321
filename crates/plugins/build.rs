//! Compiles the protos without needing protoc.

use std::error::Error;

const PROTOS: [&str; 3] = ["registration.proto", "deviceplugin.proto", "podresources.proto"];

#[allow(clippy::print_stdout)]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(PROTOS, ["proto"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
