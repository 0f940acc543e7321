//! Files that others read: whole or not at all, and not touched where nothing changed.

use std::fs;
use std::io;
use std::path::Path;

use crate::Error;

pub(crate) fn write(path: &Path, text: &str) -> Result<bool, Error> {
    if fs::read_to_string(path).is_ok_and(|there| there == text) {
        return Ok(false);
    }
    replace(path, text).map_err(|cause| Error::File { path: path.to_owned(), cause })?;
    Ok(true)
}

/// Whether a file is not there, or is one that we wrote: what somebody has changed stays.
pub(crate) fn is_ours_to_write(path: &Path, is_ours: &dyn Fn(&str) -> bool) -> Result<bool, Error> {
    match fs::read_to_string(path) {
        Ok(there) => Ok(is_ours(&there)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(cause) => Err(Error::File { path: path.to_owned(), cause }),
    }
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    // A name that no reader of configurations takes for one.
    let mut aside = path.as_os_str().to_owned();
    aside.push(".new");
    fs::write(&aside, text)?;
    fs::rename(&aside, path)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_did_not_change_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("flannel/subnet.env");
        assert!(
            write(&path, "a\n").unwrap() && !write(&path, "a\n").unwrap() && write(&path, "b\n").unwrap()
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "b\n");
        assert_eq!(path.parent().unwrap().read_dir().unwrap().count(), 1);
        assert!(write(&path.join("below"), "").is_err());
    }
}
