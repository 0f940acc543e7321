//! How long certificates are good for.

use std::fs;
use std::path::Path;

use x509_parser::pem::Pem;

/// The certificates in a directory, and when each ends: seconds since 1970. One that cannot be read is left out: who uses it says
/// what is wrong with it.
pub(super) fn ends(dir: &Path) -> Vec<(String, i64)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut all: Vec<(String, i64)> = entries
        .filter_map(|entry| {
            let path = entry.path();
            let name = path.file_stem()?.to_str()?.to_owned();
            (path.extension()? == "crt").then(|| Some((name, end(&fs::read(&path).ok()?)?)))?
        })
        .collect();
    all.sort();
    all
}

fn end(pem: &[u8]) -> Option<i64> {
    let first = Pem::iter_from_buffer(pem).next()?.ok()?;
    let certificate = first.parse_x509().ok()?;
    Some(certificate.validity().not_after.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_certificate_has_no_end() {
        assert_eq!(end(b"nothing"), None);
        assert_eq!(ends(Path::new("/nonexistent")), []);
    }
}
