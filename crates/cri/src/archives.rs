//! Archives with images, to and from a runtime that takes and gives them.

use futures_util::stream;
use tokio::sync::mpsc;
use tonic::Code;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::archives_v1::archives_client::ArchivesClient;
use crate::archives_v1::{ExportRequest, ExportResponse, ImportRequest, Imported};
use crate::client::channel;
use crate::{Endpoint, Error, Result};

/// A runtime that takes archives: ours.
#[derive(Clone, Debug)]
pub struct Archives {
    client: ArchivesClient<Channel>,
    endpoint: String,
}

/// An archive that comes piece by piece.
#[derive(Debug)]
pub struct Export {
    pieces: Streaming<ExportResponse>,
    archives: Archives,
}

const EXPORT: &str = "export images from";

// === impl Archives ===

impl Archives {
    /// Nothing is sent yet. Must be called inside a tokio runtime.
    #[must_use]
    pub fn new(endpoint: &Endpoint) -> Archives {
        Archives { client: ArchivesClient::new(channel(endpoint)), endpoint: endpoint.to_string() }
    }

    /// The archive's bytes as they come, until the sender is dropped.
    pub async fn import(&self, pieces: mpsc::Receiver<ImportRequest>) -> Result<Vec<Imported>> {
        let pieces = stream::unfold(pieces, |mut pieces| async move {
            let piece = pieces.recv().await?;
            Some((piece, pieces))
        });
        match self.client.clone().import(pieces).await {
            Ok(answer) => Ok(answer.into_inner().images),
            Err(status) => Err(self.error("import images into", &status)),
        }
    }

    /// The images of these names. Each piece is to be asked for; there is no more after none.
    pub async fn export(&self, images: Vec<String>) -> Result<Export> {
        match self.client.clone().export(ExportRequest { images }).await {
            Ok(answer) => Ok(Export { pieces: answer.into_inner(), archives: self.clone() }),
            Err(status) => Err(self.error(EXPORT, &status)),
        }
    }

    fn error(&self, op: &'static str, status: &Status) -> Error {
        match status.code() {
            Code::Unimplemented => {
                let why = "this runtime takes images from registries only, and gives none";
                Error::new(op, &self.endpoint, Code::Unimplemented, why)
            }
            _ => Error::from_status(op, &self.endpoint, status),
        }
    }
}

// === impl Export ===

impl Export {
    pub async fn piece(&mut self) -> Result<Option<Vec<u8>>> {
        let piece = self.pieces.message().await.map_err(|status| self.archives.error(EXPORT, &status))?;
        Ok(piece.map(|piece| piece.data))
    }
}
