//! Images from an archive that a client sends, and an archive for one that asks.

use std::io::{self, Read, Write};
use std::time::Duration;

use bytes::{Buf, Bytes};
use cri::archives_v1::archives_server::Archives;
use cri::archives_v1::{ExportRequest, ExportResponse, ImportRequest, ImportResponse, Imported};
use futures_util::stream;
use tokio::sync::mpsc;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};

use super::{ImageServer, on_disk};

/// Pieces that may wait for the disk.
const WAITING: usize = 4;
/// One archive at a time has its turn: each lies on the disk twice for a while.
const TURN: &str = "an archive";
/// A client that sends nothing for so long has stalled: others wait for its turn to end.
const STALL: Duration = Duration::from_secs(60);
/// What is sent of an archive at once.
const PIECE: usize = 256 << 10;

/// What a client sends, read where one may wait for it.
struct Pieces {
    from: mpsc::Receiver<io::Result<Bytes>>,
    now: Bytes,
}

/// What a client gets, written where one may wait for it.
struct Answer(mpsc::Sender<Result<ExportResponse, Status>>);

#[tonic::async_trait]
impl Archives for ImageServer {
    async fn import(
        &self,
        request: Request<Streaming<ImportRequest>>,
    ) -> Result<Response<ImportResponse>, Status> {
        let _turn = self.0.pulls.turn(TURN).await?;
        let mut sent = request.into_inner();
        let first = tokio::time::timeout(STALL, sent.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no archive came"))??.unwrap_or_default();
        let is_pinned = first.pin;
        let (to, from) = mpsc::channel(WAITING);
        let store = self.0.store.clone();
        let work = on_disk(move || {
            let images = images::import(&store, Pieces { from, now: first.data.into() })?;
            if is_pinned {
                images.iter().try_for_each(|image| store.pin(&image.id, true).map(drop))?;
            }
            Ok(images)
        });
        let receive = async {
            loop {
                // A part of an archive is no archive.
                let piece = match tokio::time::timeout(STALL, sent.message()).await {
                    Ok(Ok(Some(piece))) => Ok(Bytes::from(piece.data)),
                    Ok(Ok(None)) => return drop(to),
                    Ok(Err(status)) => Err(io::Error::other(status.message().to_owned())),
                    Err(_) => Err(io::ErrorKind::TimedOut.into()),
                };
                let is_torn = piece.is_err();
                if to.send(piece).await.is_err() || is_torn {
                    return drop(to);
                }
            }
        };
        let (images, ()) = tokio::join!(work, receive);
        let images: Vec<Imported> = images?
            .iter()
            .map(|image| Imported { id: image.id.clone(), names: image.tags.clone() })
            .collect();
        tracing::info!(images = images.len(), "images were imported");
        Ok(Response::new(ImportResponse { images }))
    }

    async fn export(
        &self,
        request: Request<ExportRequest>,
    ) -> Result<Response<BoxStream<ExportResponse>>, Status> {
        let names = request.into_inner().images;
        if names.is_empty() {
            return Err(Status::invalid_argument("images must not be empty"));
        }
        if let Some(missing) = names.iter().find(|name| self.0.store.find(name).is_none()) {
            return Err(Status::not_found(format!("there is no image {missing:?}")));
        }
        let turn = self.0.pulls.turn(TURN).await?;
        let (to, pieces) = mpsc::channel(WAITING);
        let store = self.0.store.clone();
        supervise::spawn("image_export", async move {
            let answer = Answer(to.clone());
            let written = on_disk(move || {
                images::export(&store, &names, std::io::BufWriter::with_capacity(PIECE, answer))
            });
            if let Err(status) = written.await {
                // A client that is gone hears nothing.
                let _ = to.send(Err(status)).await;
            }
            drop(turn);
        });
        let pieces = stream::unfold(pieces, |mut pieces| async move { Some((pieces.recv().await?, pieces)) });
        Ok(Response::new(Box::pin(pieces)))
    }
}

// === impl Answer ===

impl Write for Answer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = Ok(ExportResponse { data: bytes.to_vec() });
        // Who does not want the rest ends it.
        self.0.blocking_send(piece).map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// === impl Pieces ===

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.now.is_empty() {
            match self.from.blocking_recv() {
                Some(piece) => self.now = piece?,
                None => return Ok(0),
            }
        }
        let n = buffer.len().min(self.now.len());
        self.now.copy_to_slice(&mut buffer[..n]);
        Ok(n)
    }
}
