//! Who pulls images, and who may say the logins.

use std::path::Path;
use std::sync::Arc;

use api::config::kubelet::Loaded;

use super::{Builder, StartError, settings};
use crate::events::Recorder;
use crate::images::{Credentials, ImagePuller, NodeFiles, Provider, Records, load_providers};
use crate::ports::Accounts;

impl Builder<'_> {
    pub(super) async fn images(
        &self,
        recorder: &Recorder,
        accounts: Option<Arc<dyn Accounts>>,
    ) -> Result<ImagePuller, StartError> {
        let providers = self.providers(accounts.is_some())?;
        let root = &self.dirs.root;
        let files = NodeFiles::usual(root, &self.start.working_dir, self.start.home.as_deref());
        let records = Records::open(root).map_err(|e| StartError::new(format!("open image records: {e}")))?;
        match self.runtime.list_images().await {
            Ok(present) => records.adopt(present, self.clock.now().wall).await,
            Err(error) => tracing::warn!(%error, "interrupted pulls not settled"),
        }
        Ok(ImagePuller::new(
            settings::images(&self.start.loaded)?,
            self.runtime.clone(),
            recorder.clone(),
            self.clock.clone(),
            Credentials::new(self.clock.clone(), Some(files), providers).with_accounts(accounts),
            Some(records),
            Some(self.metrics.clone()),
        ))
    }

    fn providers(&self, has_accounts: bool) -> Result<Vec<Provider>, StartError> {
        let Loaded { flags, gates, .. } = &self.start.loaded;
        if flags.image_credential_provider_config.is_empty() {
            return Ok(Vec::new());
        }
        let config = Path::new(&flags.image_credential_provider_config);
        let programs = Path::new(&flags.image_credential_provider_bin_dir);
        let tokens = gates.enabled("KubeletServiceAccountTokenForCredentialProviders");
        let all = load_providers(config, programs, tokens).map_err(|e| StartError::new(e.to_string()))?;
        let (usable, useless): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|p| has_accounts || !p.needs_accounts());
        for provider in useless {
            tracing::error!(
                provider = provider.name(),
                "credential provider passed over: it requires service accounts, and there is no API server to ask for them"
            );
        }
        Ok(usable)
    }
}
