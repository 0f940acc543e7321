//! Files in memory that nobody can change any more.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{self, MemfdFlags, SealFlags};
use rustix::io::Errno;

/// Whether the file may be run as a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Data,
    Program,
}

/// A file with these bytes, for ever.
pub fn file(name: &str, bytes: &[u8], how: Use) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mode = if how == Use::Program { MemfdFlags::EXEC } else { MemfdFlags::NOEXEC_SEAL };
    let file = match fs::memfd_create(name, flags | mode) {
        // Before Linux 6.3 every such file could be run.
        Err(Errno::INVAL) => fs::memfd_create(name, flags)?,
        other => other?,
    };
    let mut file = File::from(file);
    file.write_all(bytes)?;
    fs::fcntl_add_seals(&file, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)?;
    Ok(file.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn what_is_sealed_cannot_be_written_by_any_way() {
        let fd = file("test", b"text", Use::Data).unwrap();
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        assert_eq!(std::fs::read(&path).unwrap(), b"text");
        assert!(File::options().write(true).open(&path).and_then(|mut f| f.write_all(b"x")).is_err());
        assert!(File::from(fd).set_len(0).is_err());
    }
}
