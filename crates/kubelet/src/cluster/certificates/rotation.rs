//! One certificate, kept fresh.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::rng::Rng;
use base::time::{Clock, Wall};
use client::Client;
use client::kubeconfig::Source;
use kubelet_core::node::NodeEvent;
use kubelet_core::node::certificate::{Held, Names, Remaining, serving_names};
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use tls::Key;

use super::bootstrap::KEY_FILE;
use super::pem;
use super::signing::{self, Purpose, SigningError};
use super::store::{self, Store};
use crate::cluster::node_events::NodeEvents;
use crate::cluster::own_node::OwnNode;
use crate::host::files::remove;
use crate::metrics::Metrics;

/// The wall clock is read at least this often: certificates end by it, and it may jump.
const LOOK: Duration = Duration::from_secs(30);
/// Pauses after failures: doubling from the first, at the last for ever.
const PAUSE_MIN: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(32);
/// How long somebody may take to approve: a later certificate, and the first one.
const TIMEOUT: Duration = Duration::from_secs(15 * 60);
const FIRST_TIMEOUT: Duration = Duration::from_secs(3600);
/// A node that is refused for so long starts again, and reads its kubeconfig again: somebody may have put a new one
/// there. What it runs keeps running.
const GIVE_UP: Duration = Duration::from_secs(300);

#[derive(Clone)]
pub(super) struct RotationDeps {
    pub(super) purpose: Purpose,
    pub(super) store: Store,
    pub(super) wanted: Wanted,
    pub(super) client: Client,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) rng: Rng,
    pub(super) metrics: Arc<Metrics>,
    pub(super) events: NodeEvents,
}

/// Which names the certificate is to carry.
#[derive(Clone)]
pub(super) enum Wanted {
    Client(Names),
    /// Those of the node's addresses, whatever they are at the moment.
    Serving(Arc<str>, watch::Receiver<OwnNode>),
}

#[derive(Clone)]
pub(super) struct Rotation {
    deps: RotationDeps,
    /// How to ask without a certificate, and where the first key is kept meanwhile.
    bootstrap: Option<(Client, PathBuf)>,
    issued: Option<watch::Sender<Option<Arc<CertifiedKey>>>>,
    countdown: Countdown,
}

/// Says loudly, but once for each step, that a certificate's end comes nearer.
#[derive(Clone)]
pub(super) struct Countdown {
    purpose: Purpose,
    clock: Arc<dyn Clock>,
    events: NodeEvents,
    said: Remaining,
}

// === impl Rotation ===

impl Rotation {
    pub(super) fn new(deps: RotationDeps) -> Rotation {
        let countdown = Countdown::new(&deps);
        Rotation { deps, bootstrap: None, issued: None, countdown }
    }

    pub(super) fn with_bootstrap(self, client: Client, dir: &Path) -> Rotation {
        Rotation { bootstrap: Some((client, dir.join(KEY_FILE))), ..self }
    }

    pub(super) fn publishing(self, issued: watch::Sender<Option<Arc<CertifiedKey>>>) -> Rotation {
        Rotation { issued: Some(issued), ..self }
    }

    /// Ends only when cancelled, or when the node has no identity any more and cannot get one.
    pub(super) async fn run(mut self, token: CancellationToken) {
        token.run_until_cancelled(self.work()).await;
    }

    async fn work(&mut self) {
        let mut rest = PAUSE_MIN;
        loop {
            let held = self.held();
            self.wait_until_due(held.as_ref()).await;
            let mut pause = PAUSE_MIN;
            let mut lost: Option<Instant> = None;
            let adopted = loop {
                let error = match self.rotate(held.as_ref()).await {
                    Ok(adopted) => break adopted,
                    Err(error) => error,
                };
                self.failed(&error);
                let gone = held.as_ref().is_none_or(|h| h.is_expired(self.now()));
                let answers = matches!(&error, SigningError::Api(e) if e.code().is_some());
                lost = lost.filter(|_| gone).or_else(|| gone.then(Instant::now));
                let is_too_late = lost.is_some_and(|since| since.elapsed() > GIVE_UP);
                if self.deps.purpose == Purpose::Client && answers && is_too_late {
                    tracing::error!("the node has no valid client certificate and gets none: starting again");
                    return;
                }
                self.look(held.as_ref());
                sleep(pause + self.deps.rng.up_to(pause / 10)).await;
                pause = (pause * 2).min(PAUSE_MAX);
            };
            if !adopted || self.lasts() {
                rest = PAUSE_MIN;
                continue;
            }
            // A signer whose certificates have ended when they come, or lack a name, is not asked as fast as it answers.
            tracing::warn!(
                signer = self.deps.purpose.signer(),
                "the new certificate has to be renewed at once"
            );
            sleep(rest + self.deps.rng.up_to(rest / 10)).await;
            rest = (rest * 2).min(PAUSE_MAX);
        }
    }

    /// Whether the certificate is good for a while.
    fn lasts(&mut self) -> bool {
        let (held, names, now) = (self.held(), self.deps.wanted.names(), self.now());
        held.is_some_and(|held| {
            names.is_none_or(|n| held.satisfies(&n))
                && held.rotate_at(&mut self.deps.rng).since(now) > PAUSE_MIN
        })
    }

    /// Sleeps until the certificate is due, or its names are no longer the right ones.
    async fn wait_until_due(&mut self, held: Option<&Held>) {
        let due = held.map(|h| h.rotate_at(&mut self.deps.rng));
        if let Some(due) = due {
            let at = jiff::Timestamp::from_second(due.secs()).unwrap_or_default();
            tracing::info!(signer = self.deps.purpose.signer(), renewal = %at, "certificate in use");
        }
        loop {
            self.look(held);
            let now = self.now();
            let names = self.deps.wanted.names();
            let late = due.is_none_or(|due| now >= due);
            let wrong = names.as_ref().is_some_and(|n| held.is_none_or(|h| !h.satisfies(n)));
            // Without a name to ask for there is nothing to do but wait for one.
            if names.is_some() && (late || wrong) {
                return;
            }
            let nap = due.map_or(LOOK, |due| due.since(now)).clamp(Duration::from_millis(100), LOOK);
            tokio::select! {
                () = sleep(nap) => {}
                () = self.deps.wanted.changed() => {}
            }
        }
    }

    /// False if the names changed before there was a certificate.
    async fn rotate(&mut self, held: Option<&Held>) -> Result<bool, SigningError> {
        let names = self.deps.wanted.names();
        let names = names.ok_or_else(|| SigningError::Key("the node has no address yet".to_owned()))?;
        let now = self.now();
        let no_longer = held.is_none_or(|h| h.is_expired(now));
        let rng = self.deps.rng.child();
        let (key, certificate) = match self.bootstrap.as_ref().filter(|_| no_longer) {
            Some((client, path)) => {
                let key = first_key(path).map_err(SigningError::Key)?;
                let name = Some(signing::bootstrap_name(&key, &names));
                let limit = (FIRST_TIMEOUT, rng);
                let pem = signing::certificate(client, Purpose::Client, &key, &names, name, limit).await;
                if matches!(pem, Err(SigningError::Refused { .. })) {
                    // The same key would find the same answer for ever.
                    let forgotten = remove(path);
                    forgotten.map_err(|e| SigningError::Key(format!("remove {}: {e}", path.display())))?;
                }
                (key, pem?)
            }
            None => {
                let key = Key::generate().map_err(|e| SigningError::Key(e.to_string()))?;
                let (client, purpose) = (self.deps.client.clone(), self.deps.purpose);
                let asking = signing::certificate(&client, purpose, &key, &names, None, (TIMEOUT, rng));
                // Whoever signs late must not sign for names that the node has no more.
                let pem = tokio::select! {
                    pem = asking => pem?,
                    () = self.deps.wanted.differ_from(&names) => return Ok(false),
                };
                (key, pem)
            }
        };
        self.adopt(&certificate, &key, &names, held).map_err(SigningError::Key)?;
        Ok(true)
    }

    /// From here on the new certificate is the one.
    fn adopt(&mut self, answer: &str, key: &Key, names: &Names, old: Option<&Held>) -> Result<(), String> {
        let (certificate, new) = pem::signed(answer, key)?;
        // A serving certificate that lacks a name is better than none. Under another's name the node is nobody.
        if self.deps.purpose == Purpose::Client && !new.satisfies(names) {
            let (got, want) = (&new.names.common_name, &names.common_name);
            return Err(format!(
                "the certificate that was signed is for {got:?} and not, with its groups, for {want:?}"
            ));
        }
        let now = self.now();
        let path = self.deps.store.write(&certificate, &key.to_pem(), now);
        let path = path.map_err(|e| format!("keep the new certificate: {e}"))?;
        if let Some((_, key_file)) = &self.bootstrap {
            remove(key_file).map_err(|e| format!("remove {}: {e}", key_file.display()))?;
        }
        if let Some(issued) = &self.issued {
            let pair = format!("{certificate}\n{}", key.to_pem());
            issued.send_replace(Some(certified(pair.as_bytes())?));
        }
        if let (Purpose::Serving, Some(old)) = (self.deps.purpose, old) {
            let age = now.since(old.not_before).as_secs_f64();
            self.deps.metrics.certificate_manager_server_rotation_seconds.observe([], age);
        }
        self.countdown.said = Remaining::Plenty;
        tracing::info!(signer = self.deps.purpose.signer(), file = %path.display(), "certificate renewed");
        Ok(())
    }

    /// Shows how long the certificate is good for. Alerts are built on it: it is there only where a certificate is
    /// renewed, and endless as long as there is none, as upstream has it.
    fn look(&mut self, held: Option<&Held>) {
        let gauge = match self.deps.purpose {
            Purpose::Client => &self.deps.metrics.certificate_manager_client_ttl_seconds,
            Purpose::Serving => &self.deps.metrics.certificate_manager_server_ttl_seconds,
        };
        #[allow(clippy::cast_precision_loss)]
        let left = |held: &Held| (held.not_after.secs() - self.now().secs()) as f64;
        gauge.set([], held.map_or(f64::INFINITY, left));
        if let Some(held) = held {
            self.countdown.look(held);
        }
    }

    fn failed(&self, error: &SigningError) {
        let metrics = &self.deps.metrics;
        match self.deps.purpose {
            Purpose::Client => metrics.certificate_manager_client_expiration_renew_errors.inc([]),
            Purpose::Serving => metrics.server_expiration_renew_errors.inc([]),
        }
        tracing::warn!(%error, signer = self.deps.purpose.signer(), "certificate not renewed");
    }

    /// The certificate on disk; one that cannot be read is none.
    fn held(&self) -> Option<Held> {
        let read = self.deps.store.read();
        let pem = match read {
            Ok(pem) => pem?,
            Err(error) => {
                tracing::warn!(%error, file = %self.deps.store.current_path().display(), "certificate not read");
                return None;
            }
        };
        pem::read(&pem)
            .map_err(|error| tracing::warn!(error, file = %self.deps.store.current_path().display(), "certificate not read"))
            .ok()
    }

    fn now(&self) -> Wall {
        self.deps.clock.now().wall
    }
}

// === impl Countdown ===

impl Countdown {
    pub(super) fn new(deps: &RotationDeps) -> Countdown {
        Countdown {
            purpose: deps.purpose,
            clock: deps.clock.clone(),
            events: deps.events.clone(),
            said: Remaining::Plenty,
        }
    }

    /// Watches a certificate that is somebody else's to renew.
    pub(super) async fn watch(mut self, certificate: Source, token: CancellationToken) {
        let work = async {
            loop {
                let read = certificate.read().map_err(|e| e.to_string());
                match read.and_then(|bytes| pem::read(&bytes)) {
                    Ok(held) => self.look(&held),
                    Err(error) => tracing::warn!(error, "the client certificate was not read"),
                }
                sleep(LOOK).await;
            }
        };
        token.run_until_cancelled(work).await;
    }

    fn look(&mut self, held: &Held) {
        let now = self.clock.now().wall;
        let what = match self.purpose {
            Purpose::Client => "client",
            Purpose::Serving => "serving",
        };
        let remaining = held.remaining(now);
        if remaining == Remaining::Plenty {
            // It was renewed: the next countdown begins anew.
            self.said = Remaining::Plenty;
        }
        if remaining >= self.said {
            return;
        }
        self.said = remaining;
        let at = jiff::Timestamp::from_second(held.not_after.secs()).unwrap_or_default();
        let message = match remaining {
            Remaining::Expired => format!("The kubelet's {what} certificate expired at {at}"),
            _ => format!("The kubelet's {what} certificate expires at {at} and is not renewed yet"),
        };
        tracing::error!(text = message, "a certificate is about to expire");
        let reason = "CertificateExpiring".to_owned();
        self.events.tell(NodeEvent { warning: true, reason, message });
    }
}

// === impl Wanted ===

impl Wanted {
    /// None while they are not known.
    fn names(&self) -> Option<Names> {
        match self {
            Wanted::Client(names) => Some(names.clone()),
            Wanted::Serving(node, own) => {
                let object = own.borrow().object.clone()?;
                let addresses = object.status.as_ref().and_then(|s| s.addresses.clone())?;
                serving_names(node, &addresses)
            }
        }
    }

    /// Waits until other names are known.
    async fn differ_from(&mut self, names: &Names) {
        while self.names().is_none_or(|now| now == *names) {
            self.changed().await;
        }
    }

    async fn changed(&mut self) {
        match self {
            Wanted::Client(_) => std::future::pending().await,
            Wanted::Serving(_, own) => {
                if own.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        }
    }
}

/// The key of the first request, kept until it is answered.
fn first_key(path: &Path) -> Result<Key, String> {
    if let Ok(pem) = std::fs::read(path)
        && let Ok(key) = Key::from_pem(&pem)
    {
        return Ok(key);
    }
    let key = Key::generate().map_err(|e| e.to_string())?;
    let dir = path.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(dir)
        .and_then(|()| store::write_private(path, key.to_pem().as_bytes()))
        .map_err(|e| format!("keep {}: {e}", path.display()))?;
    Ok(key)
}

/// Certificate and key of one PEM text, ready to be shown.
pub(super) fn certified(pem: &[u8]) -> Result<Arc<CertifiedKey>, String> {
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|e| e.to_string())?;
    let key = PrivateKeyDer::from_pem_slice(pem).map_err(|e| e.to_string())?;
    let key = any_supported_type(&key).map_err(|e| e.to_string())?;
    let pair = CertifiedKey::new(chain, key);
    pair.keys_match().map_err(|e| e.to_string())?;
    Ok(Arc::new(pair))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
#[path = "rotation_tests.rs"]
mod in_time;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_first_key_survives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pki").join(KEY_FILE);
        let key = first_key(&path).unwrap();
        assert_eq!(first_key(&path).unwrap().public_key(), key.public_key());
        std::fs::write(&path, "torn").unwrap();
        assert_ne!(first_key(&path).unwrap().public_key(), key.public_key());
    }

    #[test]
    fn a_pair_that_does_not_belong_together_is_refused() {
        let make = || {
            let key = rcgen::KeyPair::generate().unwrap();
            let params = rcgen::CertificateParams::new(vec!["n1".to_owned()]).unwrap();
            (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
        };
        let (a, b) = (make(), make());
        assert!(certified(format!("{}{}", a.0, a.1).as_bytes()).is_ok());
        assert!(certified(format!("{}{}", a.0, b.1).as_bytes()).is_err());
    }
}
