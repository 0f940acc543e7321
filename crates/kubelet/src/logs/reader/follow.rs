//! Carries a [`Cursor`] along as the log grows.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use inotify::{EventStream, Inotify, WatchMask};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{Cursor, Options, Step};
use crate::logs::LogPath;

/// Pieces of text that may wait for a slow reader.
const QUEUE: usize = 4;
/// After a rotation the runtime may still be writing its last bytes to the old file.
const SETTLE: Duration = Duration::from_millis(100);
/// Looks at the log even if no change was announced.
const LOOK: Duration = Duration::from_secs(1);

/// Opens and reads a log. With `options.follow` the text goes on until `ended` (cancelled when the container no
/// longer writes) and everything is read, or until the receiver is dropped.
pub async fn read(
    path: LogPath,
    options: Options,
    ended: CancellationToken,
) -> io::Result<mpsc::Receiver<io::Result<Bytes>>> {
    let cursor = blocking(move || Cursor::open(&path, &options)).await?;
    let (sender, receiver) = mpsc::channel(QUEUE);
    supervise::spawn("log_reader", async move {
        if let Err(error) = pump(cursor, options, &ended, &sender).await {
            // The reader may be gone; then nobody wants to know.
            let _ = sender.send(Err(error)).await;
        }
    });
    Ok(receiver)
}

/// The same as a stream. A log that is followed ends when `writes` says no, which is asked again whenever `changed`
/// ticks.
pub async fn stream(
    path: LogPath,
    options: Options,
    writes: Box<dyn Fn() -> bool + Send>,
    mut changed: watch::Receiver<u64>,
) -> io::Result<impl Stream<Item = io::Result<Bytes>>> {
    let ended = CancellationToken::new();
    let receiver = read(path, options, ended.clone()).await?;
    if options.follow {
        let ended = ended.clone();
        supervise::spawn("end_of_a_followed_log", async move {
            while writes() {
                tokio::select! {
                    () = ended.cancelled() => return,
                    news = changed.changed() => if news.is_err() { break },
                }
            }
            ended.cancel();
        });
    }
    // The guard ends the watching when the reader goes away first.
    let state = (receiver, ended.drop_guard());
    Ok(futures_util::stream::unfold(state, |(mut receiver, guard)| async move {
        let item = receiver.recv().await?;
        Some((item, (receiver, guard)))
    }))
}

async fn pump(
    mut cursor: Cursor,
    options: Options,
    ended: &CancellationToken,
    sender: &mpsc::Sender<io::Result<Bytes>>,
) -> io::Result<()> {
    let mut changes = options.follow.then(|| Changes::of(&cursor));
    let mut settled = false;
    loop {
        // Asked before the step: what was written until the end is still read.
        let last = ended.is_cancelled();
        let (step, back) = blocking(move || cursor.step().map(|step| (step, cursor))).await?;
        cursor = back;
        match step {
            Step::Text(text) => {
                if sender.send(Ok(text)).await.is_err() {
                    return Ok(());
                }
            }
            Step::Done => return Ok(()),
            Step::CaughtUp | Step::Rotated if !options.follow => return Ok(()),
            Step::CaughtUp if last => return Ok(()),
            Step::CaughtUp => {
                settled = false;
                let Some(changes) = &mut changes else { return Ok(()) };
                tokio::select! {
                    () = changes.wait() => {}
                    () = ended.cancelled() => {}
                    () = sender.closed() => return Ok(()),
                }
            }
            Step::Rotated if settled => {
                settled = false;
                cursor = blocking(move || cursor.advance().map(|()| cursor)).await?;
            }
            Step::Rotated => {
                tokio::time::sleep(SETTLE).await;
                settled = true;
            }
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// Wakes when the log directory changes; where inotify is exhausted, at intervals.
struct Changes(Option<EventStream<[u8; 4096]>>);

// === impl Changes ===

impl Changes {
    fn of(cursor: &Cursor) -> Self {
        let watch = || -> io::Result<EventStream<[u8; 4096]>> {
            let inotify = Inotify::init()?;
            let mask = WatchMask::MODIFY | WatchMask::CREATE | WatchMask::MOVE;
            inotify.watches().add(cursor.watch_path(), mask)?;
            inotify.into_event_stream([0; 4096])
        };
        Self(watch().inspect_err(|error| tracing::debug!(%error, "log directory is polled")).ok())
    }

    /// The news is that there is news; what it was shows in the files.
    async fn wait(&mut self) {
        let Some(events) = &mut self.0 else { return tokio::time::sleep(LOOK).await };
        if let Ok(None | Some(Err(_))) = tokio::time::timeout(LOOK, events.next()).await {
            self.0 = None;
        }
    }
}
