//! Images from an archive that a client sends.

use std::io::{self, Read};

use bytes::{Buf, Bytes};
use cri::archives_v1::archives_server::Archives;
use cri::archives_v1::{ImportRequest, ImportResponse, Imported};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, Streaming};

use super::{ImageServer, on_disk};

/// Pieces that may wait for the disk.
const WAITING: usize = 4;
/// One archive at a time has its turn: each lies on the disk twice for a while.
const TURN: &str = "an archive";

/// What a client sends, read where one may wait for it.
struct Pieces {
    from: mpsc::Receiver<io::Result<Bytes>>,
    now: Bytes,
}

#[tonic::async_trait]
impl Archives for ImageServer {
    async fn import(
        &self,
        request: Request<Streaming<ImportRequest>>,
    ) -> Result<Response<ImportResponse>, Status> {
        let _turn = self.0.pulls.turn(TURN).await?;
        let mut sent = request.into_inner();
        let first = sent.message().await?.unwrap_or_default();
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
                let piece = match sent.message().await {
                    Ok(Some(piece)) => Ok(Bytes::from(piece.data)),
                    Ok(None) => return drop(to),
                    // A part of an archive is no archive.
                    Err(status) => Err(io::Error::other(status.message().to_owned())),
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
