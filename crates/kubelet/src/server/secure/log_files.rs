//! Files of the node's log directory: how they are opened, and how they leave piece by piece.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use tokio::sync::mpsc;

/// Bytes read in one step, and steps that may wait for a slow reader.
pub(super) const PIECE: usize = 64 << 10;
const QUEUE: usize = 4;

/// Where pieces of an answer go.
pub(super) type Pieces = mpsc::Sender<io::Result<Bytes>>;

/// Opens without waiting for anybody, as a pipe would make us.
pub(super) fn open_below(root: &Path, path: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let top = rustix::fs::open(root, OFlags::DIRECTORY | flags, Mode::empty())?;
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let path = if path.is_empty() { "." } else { path };
    match rustix::fs::openat2(&top, path, flags, Mode::empty(), inside) {
        // A link with an absolute target, as the runtime's logs have one. Where it leads is opened without any.
        Err(Errno::XDEV) if !path.starts_with('/') => {
            let (root, target) = (root.canonicalize()?, root.join(path).canonicalize()?);
            let below = target.strip_prefix(&root).map_err(|_| Errno::XDEV)?;
            let inside = inside | ResolveFlags::NO_SYMLINKS;
            Ok(rustix::fs::openat2(&top, below, flags, Mode::empty(), inside)?)
        }
        opened => Ok(opened?),
    }
}

/// A way for pieces, and what comes out of it.
pub(super) fn channel() -> (Pieces, impl Stream<Item = io::Result<Bytes>> + Send + 'static) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let pieces =
        futures_util::stream::unfold(receiver, |mut r| async move { r.recv().await.map(|p| (p, r)) });
    (sender, pieces)
}

/// Whether all of it was taken.
pub(super) async fn copy(file: impl Read + Send + 'static, to: &Pieces) -> bool {
    let mut pieces = std::pin::pin!(pieces(file));
    while let Some(piece) = pieces.next().await {
        let broken = piece.is_err();
        if to.send(piece).await.is_err() || broken {
            return false;
        }
    }
    true
}

/// Each piece is read when it is asked for. A thread that waited for a slow reader would be one less for everybody.
pub(super) fn pieces(file: impl Read + Send + 'static) -> impl Stream<Item = io::Result<Bytes>> + Send {
    futures_util::stream::try_unfold(file, |mut file| async {
        let read = tokio::task::spawn_blocking(move || {
            let mut buffer = vec![0; PIECE];
            let n = file.read(&mut buffer)?;
            buffer.truncate(n);
            Ok((n > 0).then(|| (Bytes::from(buffer), file)))
        });
        read.await.map_err(io::Error::other)?
    })
}
