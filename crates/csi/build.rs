//! Compiles the protos without needing protoc.

use std::error::Error;

const PROTOS: [&str; 1] = ["node.proto"];

#[allow(clippy::print_stdout)]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(PROTOS, ["proto"])?;
    tonic_prost_build::configure()
        // Maps come out sorted, so that requests can be compared and printed.
        .btree_map(".")
        // Hold secrets; see `redact.rs`.
        .skip_debug([
            "csi.v1.NodeStageVolumeRequest",
            "csi.v1.NodePublishVolumeRequest",
            "csi.v1.NodeExpandVolumeRequest",
        ])
        // A driver answers Unimplemented to what it does not offer, as the protocol expects.
        .generate_default_stubs(true)
        .compile_fds(descriptors)?;
    Ok(())
}
