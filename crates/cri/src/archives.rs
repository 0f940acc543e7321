//! Sending an archive with images to a runtime that takes them.

use futures_util::stream;
use tokio::sync::mpsc;
use tonic::Code;
use tonic::transport::Channel;

use crate::archives_v1::archives_client::ArchivesClient;
use crate::archives_v1::{ImportRequest, Imported};
use crate::client::channel;
use crate::{Endpoint, Error, Result};

/// A runtime that takes archives: ours.
#[derive(Clone, Debug)]
pub struct Archives {
    client: ArchivesClient<Channel>,
    endpoint: String,
}

// === impl Archives ===

impl Archives {
    /// Nothing is sent yet. Must be called inside a tokio runtime.
    #[must_use]
    pub fn new(endpoint: &Endpoint) -> Archives {
        Archives { client: ArchivesClient::new(channel(endpoint)), endpoint: endpoint.to_string() }
    }

    /// The archive's bytes as they come, until the sender is dropped.
    pub async fn import(&self, pieces: mpsc::Receiver<ImportRequest>) -> Result<Vec<Imported>> {
        const OP: &str = "import images into";
        let pieces = stream::unfold(pieces, |mut pieces| async move {
            let piece = pieces.recv().await?;
            Some((piece, pieces))
        });
        match self.client.clone().import(pieces).await {
            Ok(answer) => Ok(answer.into_inner().images),
            Err(status) if status.code() == Code::Unimplemented => {
                let why = "this runtime takes images from registries only";
                Err(Error::new(OP, &self.endpoint, Code::Unimplemented, why))
            }
            Err(status) => Err(Error::from_status(OP, &self.endpoint, &status)),
        }
    }
}
