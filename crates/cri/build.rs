//! Compiles the CRI protos without needing protoc.

use std::error::Error;

const PROTOS: [&str; 7] = [
    "linux.proto",
    "sandbox.proto",
    "image.proto",
    "container.proto",
    "stats.proto",
    "runtime.proto",
    "archives.proto",
];

#[allow(clippy::print_stdout)]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(PROTOS, ["proto"])?;
    tonic_prost_build::configure()
        // Maps come out sorted, so that requests can be compared and printed.
        .btree_map(".")
        // Holds passwords; see `redact.rs`.
        .skip_debug(["runtime.v1.AuthConfig"])
        // A server answers Unimplemented to what it does not know, as the protocol expects.
        .generate_default_stubs(true)
        .compile_fds(descriptors)?;
    Ok(())
}
