//! Parameters of the network namespace that the calling thread is in.

use std::io;
use std::path::{Path, PathBuf};

use cni_core::CniError;

fn path(name: &str) -> PathBuf {
    Path::new("/proc/sys").join(name)
}

pub(crate) fn read(name: &str) -> io::Result<String> {
    Ok(std::fs::read_to_string(path(name))?.trim_end().to_owned())
}

/// Writing takes a lock that the whole machine shares: what is so already is left alone.
pub(crate) fn set(name: &str, value: &str) -> Result<(), CniError> {
    if read(name).is_ok_and(|old| old == value) {
        return Ok(());
    }
    std::fs::write(path(name), value)
        .map_err(|e| CniError::io(format_args!("writing {value:?} to {name}"), &e))
}

/// Where the kernel has no such parameter there is nothing to set.
pub(crate) fn set_if_there(name: &str, value: &str) -> Result<(), CniError> {
    match read(name) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        _ => set(name, value),
    }
}
