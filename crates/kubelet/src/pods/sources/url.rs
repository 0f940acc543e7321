//! Manifests behind a URL, polled. A poll that fails says nothing about the Pods: the last set
//! stays.

use std::sync::Arc;
use std::time::Duration;

use api::pod::static_pod::Origin;
use api::pod::{Manifest, ManifestError};
use base::fnv::fnv1a128;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{Context, SourceName, SourceSender, SourceUpdate};

mod fetch;
pub use fetch::{FetchError, Fetcher};

/// One request, redirects included.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Failures told loudly; later ones only in detail, until one poll succeeds.
const LOUD_FAILURES: u32 = 3;

#[derive(Clone, Debug)]
pub struct UrlConfig {
    pub url: String,
    /// staticPodURLHeader.
    pub headers: Vec<(String, String)>,
    /// httpCheckFrequency.
    pub period: Duration,
}

/// Runs until the token is cancelled or nobody listens.
pub async fn run(
    config: UrlConfig,
    context: Context,
    tx: mpsc::Sender<SourceUpdate>,
    token: CancellationToken,
) {
    let mut sender = SourceSender::new(SourceName::Url, &context, tx, &token);
    let fetcher = Fetcher::new(config.headers.clone());
    let mut poll = Poll { config, context, content: None, pods: None, failures: 0 };
    loop {
        let answer = tokio::select! {
            () = token.cancelled() => return,
            answer = tokio::time::timeout(TIMEOUT, fetcher.get(&poll.config.url)) => answer,
        };
        poll.take_in(answer.unwrap_or(Err(FetchError::TimedOut)));
        if let Some(pods) = poll.pods.clone()
            && !sender.emit(pods).await
        {
            return;
        }
        tokio::select! {
            () = token.cancelled() => return,
            () = tokio::time::sleep(poll.config.period) => {}
        }
    }
}

struct Poll {
    config: UrlConfig,
    context: Context,
    content: Option<u128>,
    /// The last good set.
    pods: Option<Vec<Arc<Pod>>>,
    failures: u32,
}

impl Poll {
    fn take_in(&mut self, answer: Result<Vec<u8>, FetchError>) {
        let url = self.config.url.clone();
        let outcome = answer.map_err(|e| e.to_string()).and_then(|body| self.read(&body));
        match outcome {
            Ok(()) => {
                self.context.problems.clear(SourceName::Url, &url);
                if std::mem::take(&mut self.failures) > 0 {
                    tracing::info!(url, "read Pods from the URL again");
                }
            }
            Err(error) => {
                self.context.problems.set(SourceName::Url, &url, &error);
                if self.failures < LOUD_FAILURES {
                    tracing::warn!(url, error, "could not read Pods from the URL");
                } else {
                    tracing::debug!(url, error, "could not read Pods from the URL");
                }
                self.failures = self.failures.saturating_add(1);
            }
        }
    }

    fn read(&mut self, body: &[u8]) -> Result<(), String> {
        let url = self.config.url.as_str();
        if body.is_empty() {
            self.content = None;
            if self.pods.as_ref().is_none_or(|p| !p.is_empty()) {
                self.pods = Some(Vec::new());
            }
            return Err(format!("zero-length data received from {url}"));
        }
        let hash = fnv1a128(body);
        if self.content == Some(hash) {
            return Ok(());
        }
        let pods = parse(&self.context, body, url).map_err(|e| e.to_string())?;
        self.content = Some(hash);
        let old = self.pods.take().unwrap_or_default();
        self.pods = Some(pods.into_iter().map(|new| known(&old, new)).collect());
        Ok(())
    }
}

/// A Pod the last answer already had stays the same object, so that nobody takes it for news.
fn known(old: &[Arc<Pod>], new: Arc<Pod>) -> Arc<Pod> {
    let same = |p: &&Arc<Pod>| p.metadata.uid == new.metadata.uid && p.spec == new.spec;
    old.iter().find(same).cloned().unwrap_or(new)
}

/// One bad Pod spoils the whole answer, as upstream has it: the last good set stays.
fn parse(context: &Context, body: &[u8], url: &str) -> Result<Vec<Arc<Pod>>, ManifestError> {
    let pods = match context.decode(body, url)? {
        Manifest::Pod(pod) => vec![*pod],
        Manifest::List(pods) => pods,
    };
    pods.into_iter().map(|pod| context.prepare(pod, Origin::Url(url))).collect()
}

#[cfg(test)]
mod tests;
