//! How much an image may ask of us. What a stranger wrote is never read without a bound.

/// The bounds of one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of a manifest, an index or a configuration.
    pub document: u64,
    /// Layers of an image; overlayfs itself ends at 500.
    pub layers: usize,
    /// Of one layer, uncompressed.
    pub layer_bytes: u64,
    /// Files, directories, links of one layer.
    pub layer_entries: u64,
    /// Of a whole archive that is imported.
    pub archive_bytes: u64,
    /// Files in an archive that is imported.
    pub archive_entries: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            document: 8 << 20,
            layers: 500,
            layer_bytes: 256 << 30,
            layer_entries: 8_000_000,
            archive_bytes: 512 << 30,
            archive_entries: 20_000,
        }
    }
}
