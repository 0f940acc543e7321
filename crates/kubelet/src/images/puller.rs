//! The one way to images.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::backoff::Backoff;
use base::duration::GoDuration;
use base::time::{Clock, Mono};
use cri::v1::{AuthConfig, Image, ImageSpec, PodSandboxConfig};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use k8s_openapi::api::core::v1::Pod;
use kubelet_core::images::{self, PullPolicy, TokenBucket, Verification};
use tokio::sync::Semaphore;
use tonic::Code;

use super::credentials::{Candidate, Credentials, Origin, PullSecret, secrets_for};
use super::records::Records;
use super::{ImageError, Reason};
use crate::events::{EventType, Recorder};
use crate::metrics::{Metrics, image_size_label};
use crate::ports::Runtime;

/// Makes sure that images are there; cheap to clone.
#[derive(Clone)]
pub struct ImagePuller(Arc<Inner>);

/// What the configuration says about pulling.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `serializeImagePulls`: one at a time.
    pub serialize: bool,
    /// `maxParallelImagePulls`; none is no limit.
    pub max_parallel: Option<u32>,
    /// `registryPullQPS`; zero is no limit.
    pub qps: f64,
    /// `registryBurst`.
    pub burst: u32,
    pub backoff_initial: Duration,
    pub backoff_max: Duration,
    pub verification: Verification,
}

/// One need for an image.
#[derive(Clone, Copy, Debug)]
pub struct Want<'a> {
    pub pod: &'a Pod,
    /// Whose image it is; none for an image volume, whose events belong to the Pod.
    pub container: Option<&'a str>,
    /// As the manifest writes it.
    pub image: &'a str,
    /// `imagePullPolicy` or the volume's `pullPolicy`.
    pub policy: Option<&'a str>,
    pub sandbox: &'a PodSandboxConfig,
    pub secrets: &'a [PullSecret],
}

/// An image that is there.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageRef {
    /// What CreateContainer gets as the image.
    pub reference: String,
    /// The name with its tag, as the runtime was asked for it.
    pub image: String,
    /// What the runtime says of it; none if it has just been pulled.
    pub found: Option<Image>,
}

struct Inner {
    runtime: Arc<dyn Runtime>,
    recorder: Recorder,
    clock: Arc<dyn Clock>,
    credentials: Credentials,
    records: Option<Records>,
    metrics: Option<Arc<Metrics>>,
    verification: Verification,
    permits: Option<Semaphore>,
    /// Held for a few map operations, never across an await.
    state: Mutex<State>,
}

struct State {
    bucket: TokenBucket,
    backoff: Backoff<FailureKey>,
    failures: HashMap<FailureKey, Failure>,
    flights: HashMap<FlightKey, WeakShared<BoxFuture<'static, Outcome>>>,
}

/// Pod UID and image as written.
type FailureKey = (String, String);
/// Image and logins: pulls that agree in both are one pull.
type FlightKey = (String, Vec<AuthConfig>);
type Outcome = Result<Pulled, Arc<str>>;

struct Failure {
    at: Mono,
    /// Reason and message of the last attempt.
    text: String,
}

#[derive(Clone, Debug)]
struct Pulled {
    reference: String,
    size: u64,
    took: Duration,
    /// The login that worked, by position.
    login: Option<usize>,
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Self {
            serialize: true,
            max_parallel: None,
            qps: 5.0,
            burst: 10,
            backoff_initial: Duration::from_secs(10),
            backoff_max: Duration::from_secs(300),
            verification: Verification::default(),
        }
    }
}

// === impl ImagePuller ===

impl ImagePuller {
    /// Without `records` nothing is kept on disk and no access is verified.
    #[must_use]
    pub fn new(
        settings: Settings,
        runtime: Arc<dyn Runtime>,
        recorder: Recorder,
        clock: Arc<dyn Clock>,
        credentials: Credentials,
        records: Option<Records>,
        metrics: Option<Arc<Metrics>>,
    ) -> Self {
        let permits = match settings.max_parallel {
            _ if settings.serialize => Some(1),
            limit => limit.filter(|n| *n > 0),
        };
        let state = State {
            bucket: TokenBucket::new(settings.qps, settings.burst, clock.now().mono),
            backoff: Backoff::new(settings.backoff_initial, settings.backoff_max),
            failures: HashMap::new(),
            flights: HashMap::new(),
        };
        Self(Arc::new(Inner {
            runtime,
            recorder,
            clock,
            credentials,
            records,
            metrics,
            verification: settings.verification,
            permits: permits.map(|n| Semaphore::new(n as usize)),
            state: Mutex::new(state),
        }))
    }

    /// Makes sure that the image is there and that the Pod may use it. Tells the Pod's story in
    /// events. Dropping the future gives the pull up, unless somebody else waits for the same one.
    pub async fn ensure(&self, want: Want<'_>) -> Result<ImageRef, ImageError> {
        let ensured = self.0.ensure(want).await;
        if let (Err(error), Some(_)) = (&ensured, want.container) {
            self.0.tell(want, EventType::Warning, "Failed", format!("Error: {}", error.reason.as_str()));
        }
        ensured
    }
}

impl fmt::Debug for ImagePuller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ImagePuller")
    }
}

// === impl Inner ===

impl Inner {
    async fn ensure(self: &Arc<Self>, want: Want<'_>) -> Result<ImageRef, ImageError> {
        let name = images::with_default_tag(want.image).map_err(|e| {
            let message = format!("Failed to apply default image tag {:?}: {e}", want.image);
            self.refuse(want, "InspectFailed", Reason::InvalidImageName, message)
        })?;
        let repository =
            images::repository(&name).map_err(|e| error(Reason::InvalidImageName, e.to_string()))?;
        let policy = PullPolicy::of(want.policy, want.image);
        let spec = ImageSpec {
            image: name.clone(),
            annotations: want.pod.metadata.annotations.clone().unwrap_or_default(),
            ..ImageSpec::default()
        };
        let mut logins = None;
        if policy != PullPolicy::Always {
            match self.present(want, &spec).await? {
                None if policy == PullPolicy::Never => return Err(self.never(want)),
                None => {}
                Some(found) => {
                    if !self.must_pull(want, &repository, &found.id, &mut logins).await? {
                        let text = format!(
                            "Container image {:?} already present on machine and can be accessed by the pod",
                            want.image
                        );
                        self.tell(want, EventType::Normal, "Pulled", text);
                        return Ok(ImageRef { reference: found.id.clone(), image: name, found: Some(found) });
                    }
                    // That it is here must not be told to one who may not use it.
                    if policy == PullPolicy::Never {
                        return Err(self.never(want));
                    }
                }
            }
        }
        self.check_backoff(want)?;
        let logins = match logins {
            Some(asked) => asked,
            None => self.logins(want, &repository).await?,
        };
        let reference = self.pull(want, spec, logins).await?;
        Ok(ImageRef { reference, image: name, found: None })
    }

    /// The image if the runtime has it.
    async fn present(&self, want: Want<'_>, spec: &ImageSpec) -> Result<Option<Image>, ImageError> {
        match self.runtime.image_status(spec.clone()).await {
            Ok(image) => Ok(image.filter(|i| !i.id.is_empty())),
            Err(e) => {
                let message = format!("Failed to inspect image {:?}: {}", want.image, e.grpc_text());
                Err(self.refuse(want, "InspectFailed", Reason::ImageInspectError, message))
            }
        }
    }

    /// Whether the Pod has yet to prove that it may use an image that is here. Providers are asked who it is only where
    /// that may matter, and then their logins are at hand for the pull.
    async fn must_pull(
        &self,
        want: Want<'_>,
        repository: &str,
        reference: &str,
        logins: &mut Option<Vec<Candidate>>,
    ) -> Result<bool, ImageError> {
        let Some(records) = &self.records else { return Ok(false) };
        // A broken one is named when a login is needed.
        let secrets = secrets_for(repository, want.secrets).unwrap_or_default();
        let now = self.clock.now().wall;
        let (must, accounts) =
            records.must_pull(self.verification.clone(), want.image, reference, secrets, now).await;
        if !must || accounts.is_empty() {
            return Ok(must);
        }
        let found = logins.insert(self.logins(want, repository).await?);
        let known =
            |c: &Candidate| matches!(&c.origin, Origin::Account(account) if accounts.contains(account));
        Ok(!found.iter().any(known))
    }

    async fn logins(&self, want: Want<'_>, repository: &str) -> Result<Vec<Candidate>, ImageError> {
        let found = self.credentials.lookup(repository, want.pod, want.secrets).await;
        found.map_err(|broken| error(Reason::ErrImagePull, broken.to_string()))
    }

    fn check_backoff(&self, want: Want<'_>) -> Result<(), ImageError> {
        let now = self.clock.now().mono;
        let key = failure_key(want);
        let mut state = self.lock();
        let blocked = state.failures.get(&key).and_then(|failure| {
            let until = state.backoff.blocked_until(&key, failure.at, now)?;
            Some((until, failure.text.clone()))
        });
        let Some((until, last)) = blocked else {
            state.failures.remove(&key);
            return Ok(());
        };
        drop(state);
        let text = format!("Back-off pulling image {:?}", want.image);
        self.tell(want, EventType::Normal, "BackOff", text.clone());
        let message = format!("{text}: {last}");
        Err(ImageError { reason: Reason::ImagePullBackOff, message, retry_at: Some(until) })
    }

    async fn pull(
        self: &Arc<Self>,
        want: Want<'_>,
        spec: ImageSpec,
        logins: Vec<Candidate>,
    ) -> Result<String, ImageError> {
        let intent = match &self.records {
            None => None,
            Some(records) => Some(records.intend(want.image).await.map_err(|e| {
                let image = want.image;
                let text = format!("Failed to record image pull intent for container image {image:?}: {e}");
                error(Reason::ErrImagePull, text)
            })?),
        };
        self.tell(want, EventType::Normal, "Pulling", format!("Pulling image {:?}", want.image));
        let begun = self.clock.now().mono;
        let auths: Vec<AuthConfig> = logins.iter().map(|c| c.auth.clone()).collect();
        match self.join(spec, auths, want.sandbox).await {
            Ok(pulled) => {
                let waited = self.clock.now().mono.since(begun);
                self.tell_pulled(want, &pulled, waited);
                if let Some(intent) = intent {
                    let login = pulled.login.and_then(|i| logins.get(i));
                    intent.pulled(&pulled.reference, proof(login), self.clock.now().wall).await;
                }
                let mut state = self.lock();
                let now = self.clock.now().mono;
                state.forget_idle(now);
                Ok(pulled.reference)
            }
            Err(text) => {
                if let Some(intent) = intent {
                    intent.failed().await;
                }
                let message = format!("Failed to pull image {:?}: {text}", want.image);
                self.tell(want, EventType::Warning, "Failed", message);
                Err(self.failed(want, &text))
            }
        }
    }

    /// Takes part in a pull that is already running, or starts one.
    fn join(
        self: &Arc<Self>,
        spec: ImageSpec,
        auths: Vec<AuthConfig>,
        sandbox: &PodSandboxConfig,
    ) -> Shared<BoxFuture<'static, Outcome>> {
        let key = (spec.image.clone(), auths.clone());
        let mut state = self.lock();
        if let Some(flight) = state.flights.get(&key).and_then(WeakShared::upgrade) {
            return flight;
        }
        let (inner, own, sandbox) = (self.clone(), key.clone(), sandbox.clone());
        let flight = async move {
            let outcome = inner.fly(spec, auths, sandbox).await;
            inner.lock().flights.remove(&own);
            outcome
        };
        let flight = flight.boxed().shared();
        state.flights.retain(|_, flight| flight.upgrade().is_some());
        if let Some(weak) = flight.downgrade() {
            state.flights.insert(key, weak);
        }
        flight
    }

    /// Waits for its turn and tries one login after the other.
    async fn fly(&self, spec: ImageSpec, auths: Vec<AuthConfig>, sandbox: PodSandboxConfig) -> Outcome {
        let _permit = match &self.permits {
            Some(permits) => permits.acquire().await.ok(),
            None => None,
        };
        let begun = self.clock.now().mono;
        if !self.lock().bucket.try_take(begun) {
            return Err("pull QPS exceeded".into());
        }
        let logins: Vec<(Option<usize>, Option<AuthConfig>)> = match auths.is_empty() {
            true => vec![(None, None)],
            false => auths.into_iter().enumerate().map(|(i, auth)| (Some(i), Some(auth))).collect(),
        };
        let mut errors: Vec<String> = Vec::new();
        for (login, auth) in logins {
            match self.runtime.pull_image(spec.clone(), auth, Some(sandbox.clone())).await {
                Ok(reference) => {
                    let image = self.runtime.image_status(spec.clone()).await.ok().flatten();
                    let size = image.map_or(0, |i| i.size);
                    let took = self.clock.now().mono.since(begun);
                    return Ok(Pulled { reference, size, took, login });
                }
                Err(e) => {
                    let text = pull_error_text(&e);
                    if !errors.contains(&text) {
                        errors.push(text);
                    }
                }
            }
        }
        Err(match errors.as_slice() {
            [one] => one.as_str().into(),
            many => format!("[{}]", many.join(", ")).into(),
        })
    }

    /// Remembers the failure and says what the container waits for.
    fn failed(&self, want: Want<'_>, text: &str) -> ImageError {
        let error = classify(want.image, text);
        let key = failure_key(want);
        let now = self.clock.now().mono;
        let mut state = self.lock();
        state.forget_idle(now);
        let delay = state.backoff.fail(key.clone(), now);
        let text = format!("{}: {}", error.reason.as_str(), error.message);
        state.failures.insert(key, Failure { at: now, text });
        ImageError { retry_at: Some(now + delay), ..error }
    }

    fn tell_pulled(&self, want: Want<'_>, pulled: &Pulled, waited: Duration) {
        let millis = |d: Duration| GoDuration::from_millis(i64::try_from(d.as_millis()).unwrap_or(i64::MAX));
        let text = format!(
            "Successfully pulled image {:?} in {} ({} including waiting). Image size: {} bytes.",
            want.image,
            millis(pulled.took),
            millis(waited),
            pulled.size
        );
        self.tell(want, EventType::Normal, "Pulled", text);
        if let Some(metrics) = &self.metrics {
            metrics.image_pull_duration_seconds.observe_duration([image_size_label(pulled.size)], waited);
        }
    }

    fn never(&self, want: Want<'_>) -> ImageError {
        let text = format!("Container image {:?} is not present with pull policy of Never", want.image);
        self.refuse(want, "ErrImageNeverPull", Reason::ErrImageNeverPull, text)
    }

    fn refuse(&self, want: Want<'_>, event: &str, reason: Reason, message: String) -> ImageError {
        self.tell(want, EventType::Warning, event, message.clone());
        error(reason, message)
    }

    fn tell(&self, want: Want<'_>, kind: EventType, reason: &str, message: String) {
        match want.container {
            Some(name) => self.recorder.container(want.pod, name, kind, reason, message),
            None => self.recorder.pod(want.pod, kind, reason, message),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl State ===

impl State {
    fn forget_idle(&mut self, now: Mono) {
        self.backoff.forget_idle(now);
        let backoff = &self.backoff;
        self.failures.retain(|key, _| !backoff.delay(key).is_zero());
    }
}

fn failure_key(want: Want<'_>) -> FailureKey {
    (want.pod.metadata.uid.clone().unwrap_or_default(), want.image.to_owned())
}

fn error(reason: Reason, message: String) -> ImageError {
    ImageError { reason, message, retry_at: None }
}

/// What a pull with this login proves.
fn proof(login: Option<&Candidate>) -> images::Credentials {
    match login.map(|c| c.origin.clone()) {
        Some(Origin::Secret(secret)) => {
            images::Credentials { kubernetes_secrets: vec![secret], ..Default::default() }
        }
        Some(Origin::Account(account)) => {
            images::Credentials { kubernetes_service_accounts: vec![account], ..Default::default() }
        }
        Some(Origin::Node) | None => images::Credentials { node_pods_accessible: true, ..Default::default() },
    }
}

/// A status of Unknown says nothing, so only its message is shown.
fn pull_error_text(error: &cri::Error) -> String {
    if error.code == Code::Unknown { error.message.clone() } else { error.grpc_text() }
}

/// Runtimes put two special reasons at the front of the message.
fn classify(image: &str, text: &str) -> ImageError {
    let special = [
        ("RegistryUnavailable", Reason::RegistryUnavailable, "the registry is unavailable"),
        ("SignatureValidationFailed", Reason::SignatureValidationFailed, "the signature validation failed"),
    ];
    for (prefix, reason, words) in special {
        if let Some(rest) = text.strip_prefix(prefix) {
            return error(reason, format!("image pull failed for {image} because {words}{rest}"));
        }
    }
    error(Reason::ErrImagePull, text.to_owned())
}
