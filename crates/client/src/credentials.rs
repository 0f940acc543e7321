//! What we show of ourselves at each moment: files change, plugins' answers expire.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use base64::Engine;
use http::HeaderValue;
use tokio::time::Instant;

use crate::exec::{self, Handed};
use crate::kubeconfig::{Config, ConfigError, Source};
use crate::tls::KeyPair;

/// How long a file's content is taken for granted.
const FILE_AGE: Duration = Duration::from_secs(10);
/// A handed-out credential is renewed this long before it expires.
const EARLY: jiff::SignedDuration = jiff::SignedDuration::from_secs(10);
/// Between two questions to a plugin after the server refused its credentials.
const REASK: Duration = Duration::from_secs(10);

pub(crate) struct Credentials {
    config: Config,
    token_file: Mutex<Option<(Instant, String)>>,
    handed: Arc<tokio::sync::Mutex<Option<(Instant, Handed)>>>,
    certificate: Mutex<Shown>,
}

/// The certificate in use, and how its files looked.
#[derive(Default)]
struct Shown {
    looked: Option<Instant>,
    stamp: Vec<Option<SystemTime>>,
}

// === impl Credentials ===

impl Credentials {
    pub(crate) fn new(config: Config) -> Credentials {
        Credentials {
            config,
            token_file: Mutex::default(),
            handed: Arc::default(),
            certificate: Mutex::default(),
        }
    }

    /// The same for another client, which sees files change by itself and asks a plugin together with this one.
    pub(crate) fn again(&self) -> Credentials {
        Credentials { handed: self.handed.clone(), ..Credentials::new(self.config.clone()) }
    }

    /// The Authorization header, if we show a token.
    pub(crate) async fn header(&self) -> Result<Option<HeaderValue>, String> {
        let identity = &self.config.identity;
        let text = if let Some(path) = &identity.token_file {
            Some(format!("Bearer {}", self.read_token(path)?))
        } else if let Some(token) = &identity.token {
            Some(format!("Bearer {token}"))
        } else if let Some((user, password)) = &identity.basic {
            let pair = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
            Some(format!("Basic {pair}"))
        } else if identity.exec.is_some() {
            self.handed().await?.token.map(|token| format!("Bearer {token}"))
        } else {
            None
        };
        let Some(text) = text else { return Ok(None) };
        let mut value =
            HeaderValue::from_str(&text).map_err(|_| "the token holds characters no header may hold")?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    /// The certificate to show, PEM.
    pub(crate) async fn key_pair(&self) -> Result<Option<KeyPair>, String> {
        let identity = &self.config.identity;
        match &identity.certificate {
            Some((chain, key)) => {
                let text = |e: ConfigError| e.to_string();
                Ok(Some((chain.read().map_err(text)?, key.read().map_err(text)?)))
            }
            None if identity.exec.is_some() => Ok(self.handed().await?.certificate),
            None => Ok(None),
        }
    }

    /// Whether the files of certificate and authority changed since the last question. Looks at most every few seconds.
    pub(crate) fn have_files_changed(&self) -> bool {
        let mut shown = self.certificate.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if shown.looked.is_some_and(|at| at.elapsed() < FILE_AGE) {
            return false;
        }
        let pair = self.config.identity.certificate.iter().flat_map(|(chain, key)| [chain, key]);
        let stamp: Vec<_> = pair.chain(&self.config.ca).map(modified).collect();
        let first = shown.looked.replace(Instant::now()).is_none();
        let changed = shown.stamp != stamp;
        shown.stamp = stamp;
        changed && !first
    }

    /// The server does not take what a plugin handed out: ask again, but not in a hurry.
    pub(crate) fn refused(&self) {
        // Whoever holds it is asking already.
        let Ok(mut handed) = self.handed.try_lock() else { return };
        if handed.as_ref().is_some_and(|(at, _)| at.elapsed() > REASK) {
            *handed = None;
        }
    }

    fn read_token(&self, path: &PathBuf) -> Result<String, String> {
        let mut cached = self.token_file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((_, token)) = cached.as_ref().filter(|(at, _)| at.elapsed() < FILE_AGE) {
            return Ok(token.clone());
        }
        match std::fs::read_to_string(path) {
            Ok(text) if !text.trim().is_empty() => {
                let token = text.trim().to_owned();
                *cached = Some((Instant::now(), token.clone()));
                Ok(token)
            }
            // A file being replaced is no reason to fail while an older token may still be good.
            other => match (cached.as_ref(), other) {
                (Some((_, token)), _) => Ok(token.clone()),
                (None, Ok(_)) => Err(format!("token file {} is empty", path.display())),
                (None, Err(e)) => Err(format!("reading token file {}: {e}", path.display())),
            },
        }
    }

    async fn handed(&self) -> Result<Handed, String> {
        let Some(exec) = &self.config.identity.exec else { return Ok(Handed::default()) };
        let mut handed = self.handed.clone().lock_owned().await;
        if let Some((_, current)) = handed.as_ref()
            && current.expires.is_none_or(|t| t.duration_since(jiff::Timestamp::now()) > EARLY)
        {
            return Ok(current.clone());
        }
        // Who asked may give up before a slow plugin has answered: the answer is kept for the next.
        let (exec, config) = (exec.clone(), self.config.clone());
        let asking = supervise::spawn("exec credential plugin", async move {
            let fresh = exec::ask(&exec, &config).await?;
            *handed = Some((Instant::now(), fresh.clone()));
            Ok(fresh)
        });
        asking.await.ok().flatten().unwrap_or_else(|| Err("asking the exec plugin was cut short".to_owned()))
    }
}

fn modified(source: &Source) -> Option<SystemTime> {
    match source {
        Source::Inline(_) => None,
        Source::File(path) => std::fs::metadata(path).and_then(|m| m.modified()).ok(),
    }
}
