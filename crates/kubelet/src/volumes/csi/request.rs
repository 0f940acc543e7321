//! What a driver is asked, word for word.

use std::collections::BTreeMap;

use csi::Capabilities;
use csi::v1::VolumeCapability;
use csi::v1::volume_capability::access_mode::Mode;
use csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use kubelet_core::volumes::{CsiVolume, FsGroup};

/// How the volume is to be used. The group goes along only if the driver gives volumes away by itself.
pub(super) fn capability(
    volume: &CsiVolume,
    offers: Capabilities,
    group: Option<FsGroup>,
) -> VolumeCapability {
    let access_type = match volume.block {
        true => AccessType::Block(BlockVolume {}),
        false => AccessType::Mount(MountVolume {
            fs_type: volume.fs_type.clone(),
            mount_flags: volume.mount_options.clone(),
            volume_mount_group: group
                .filter(|_| offers.mount_group)
                .map(|g| g.gid.to_string())
                .unwrap_or_default(),
        }),
    };
    let mode = access_mode(volume.access_mode(), offers.single_node_multi_writer);
    VolumeCapability { access_mode: Some(AccessMode { mode: mode.into() }), access_type: Some(access_type) }
}

/// A driver that can tell one writer from several on a node is told.
fn access_mode(mode: &str, tells_apart: bool) -> Mode {
    match (mode, tells_apart) {
        ("ReadWriteOnce", false) | ("ReadWriteOncePod", false) => Mode::SingleNodeWriter,
        ("ReadWriteOnce", true) => Mode::SingleNodeMultiWriter,
        ("ReadWriteOncePod", true) => Mode::SingleNodeSingleWriter,
        ("ReadOnlyMany", _) => Mode::MultiNodeReaderOnly,
        ("ReadWriteMany", _) => Mode::MultiNodeMultiWriter,
        _ => Mode::Unknown,
    }
}

/// Later entries win.
pub(super) fn merged(
    first: &BTreeMap<String, String>,
    second: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    first.clone().into_iter().chain(second).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_modes_are_upstreams() {
        for (mode, plain, apart) in [
            ("ReadWriteOnce", Mode::SingleNodeWriter, Mode::SingleNodeMultiWriter),
            ("ReadWriteOncePod", Mode::SingleNodeWriter, Mode::SingleNodeSingleWriter),
            ("ReadOnlyMany", Mode::MultiNodeReaderOnly, Mode::MultiNodeReaderOnly),
            ("ReadWriteMany", Mode::MultiNodeMultiWriter, Mode::MultiNodeMultiWriter),
            ("Odd", Mode::Unknown, Mode::Unknown),
        ] {
            assert_eq!((access_mode(mode, false), access_mode(mode, true)), (plain, apart), "{mode}");
        }
    }
}
