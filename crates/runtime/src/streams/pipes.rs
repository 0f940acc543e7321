//! Descriptors of pipes, sockets and terminals, read and written without blocking.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;

#[derive(Debug)]
pub(super) struct Pipe(AsyncFd<OwnedFd>);

// === impl Pipe ===

impl Pipe {
    pub(super) fn new(fd: OwnedFd) -> io::Result<Pipe> {
        // Its replacement is unsafe code. What it warns of is a type whose descriptor changes; an OwnedFd's does not.
        #[allow(deprecated)]
        AsyncFd::new(fd).map(Pipe)
    }

    /// Zero at the end. A terminal whose last user is gone says EIO, which is its end.
    pub(super) async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut guard = self.0.readable().await?;
            match guard.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), &mut *buffer)?)) {
                Ok(Err(error)) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => {
                    return Ok(0);
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(result) => return result,
                Err(_would_block) => {}
            }
        }
    }

    pub(super) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut guard = self.0.writable().await?;
            match guard.try_io(|fd| Ok(rustix::io::write(fd.get_ref(), bytes)?)) {
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(written) => bytes = bytes.get(written?..).unwrap_or_default(),
                Err(_would_block) => {}
            }
        }
        Ok(())
    }
}
