//! The kernel's log, for what it says of memory that ran out: upstream's OOM watcher.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use kubelet_core::oom::{Killed, OomReader};
use tokio::io::unix::AsyncFd;
use tokio_util::sync::CancellationToken;

/// Before the log is opened again.
const AGAIN: Duration = Duration::from_secs(60);

/// Calls `tell` for every process that the kernel killed for want of memory, until cancelled. A machine that does not let us
/// read its log is told of once.
pub(crate) async fn watch(tell: impl Fn(Killed), token: CancellationToken) {
    let work = async {
        loop {
            if let Err(error) = follow(&tell).await {
                tracing::warn!(%error, "the kernel's log cannot be read: processes killed for want of memory are not told of");
            }
            tokio::time::sleep(AGAIN).await;
        }
    };
    token.run_until_cancelled(Box::pin(work)).await;
}

/// It is a device: opening and reading it waits for nobody.
fn open() -> std::io::Result<File> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut file = File::options().read(true).custom_flags(nonblocking).open("/dev/kmsg")?;
    // What happened before us was told by who was there.
    file.seek(SeekFrom::End(0))?;
    Ok(file)
}

async fn follow(tell: &impl Fn(Killed)) -> std::io::Result<()> {
    let file = open()?;
    // Ours alone, and open for as long as it is registered.
    #[allow(deprecated)]
    let mut log = AsyncFd::new(file)?;
    let mut reader = OomReader::default();
    let mut record = vec![0; 8 << 10];
    loop {
        let mut ready = log.readable_mut().await?;
        match ready.get_inner_mut().read(&mut record) {
            Ok(0) => return Ok(()),
            Ok(n) => {
                let text = String::from_utf8_lossy(&record[..n]);
                reader.read(&text).into_iter().for_each(tell);
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => ready.clear_ready(),
            // EPIPE: the kernel wrote faster than we read, and what was overwritten is gone.
            Err(e) if e.kind() == ErrorKind::BrokenPipe => {}
            Err(e) => return Err(e),
        }
    }
}
