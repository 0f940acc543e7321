//! An image is pulled: from name to manifest to configuration to layers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::image::Reference;
use client::Proxies;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use http::StatusCode;
use http::header::CONTENT_RANGE;
use images::documents::{Descriptor, Document, ImageConfig, Manifest, Platform};
use images::{Arrived, DiffId, Digest, Held, Image, Store};
use tokio::io::AsyncWriteExt;

use crate::connect::Trust;
use crate::error::Error;
use crate::exchange::{Answer, Session, Wanted};
use crate::hosts::{self, BadHosts};
use crate::login::Login;

/// Tries in a row that bring nothing.
const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// How images are pulled on this machine.
#[derive(Clone, Debug)]
pub struct Settings {
    /// In the layout of containerd's `certs.d`.
    pub hosts_dir: Option<PathBuf>,
    pub proxies: Proxies,
    /// A registry that sends nothing for so long has stalled.
    pub stall: Duration,
    /// Layers at once.
    pub parallel: usize,
}

/// The registries of the world, as this machine sees them. Files are read at each pull: a change counts at once.
#[derive(Clone, Debug)]
pub struct Registries(Settings);

/// What to pull, and as whom.
#[derive(Clone, Debug)]
pub struct Pull {
    pub name: String,
    pub login: Option<Login>,
}

/// A directory that goes with its owner.
struct Scratch(PathBuf);

// === impl Settings ===

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            hosts_dir: None,
            proxies: Proxies::default(),
            stall: Duration::from_secs(300),
            parallel: 3,
        }
    }
}

// === impl Registries ===

impl Registries {
    #[must_use]
    pub fn new(settings: Settings) -> Registries {
        Registries(settings)
    }

    /// Pulls an image into the store. Layers that are there are not asked for. Dropping the future ends the pull.
    pub async fn pull(&self, store: &Store, what: &Pull) -> Result<Arc<Image>, Error> {
        let name = Reference::parse(&what.name).map_err(images::Error::from)?;
        let sessions = self.sessions(&name, what.login.as_ref()).await?;
        let (top, manifest) = resolve(&sessions, &name, store).await?;
        let config = document(&sessions, &name, &manifest.config, "blobs", store).await?;
        let parsed = ImageConfig::parse(&config, store.limits())?;
        if parsed.diff_ids.len() != manifest.layers.len() {
            return Err(odd("manifest", "it has another number of layers than the configuration").into());
        }
        let size = manifest.layers.iter().map(|layer| layer.size).sum::<u64>() + manifest.config.size;
        let held = self.layers(store, &sessions, &name, &manifest, &parsed).await?;
        let id = manifest.config.digest.clone();
        // Nobody has asked the registry whether the tag beside a digest leads there, too.
        let tag = name.tag.filter(|_| name.digest.is_none());
        let name = Reference { tag, ..name };
        let arrived = Arrived { id, config, names: vec![name], manifest: Some(top), size };
        let to = store.clone();
        let image = on_disk(move || to.add_image(arrived, &parsed)).await?;
        // Held until the image has them.
        drop(held);
        Ok(image)
    }

    async fn sessions(&self, name: &Reference, login: Option<&Login>) -> Result<Vec<Session>, Error> {
        let (dir, domain) = (self.0.hosts_dir.clone(), name.domain.clone());
        let found = on_disk(move || {
            let hosts = hosts::hosts(dir.as_deref(), &domain)?;
            let with_trust = hosts.into_iter().map(|host| match Trust::of(&host.trust) {
                Ok(trust) => Ok((host, trust)),
                Err(why) => Err(BadHosts { file: dir.clone().unwrap_or_default(), why }),
            });
            with_trust.collect::<Result<Vec<_>, BadHosts>>()
        })
        .await?;
        let session = |(host, trust)| {
            Session::new(host, trust, self.0.proxies.clone(), self.0.stall, login.cloned(), &name.path)
        };
        Ok(found.into_iter().map(session).collect())
    }

    async fn layers(
        &self,
        store: &Store,
        sessions: &[Session],
        name: &Reference,
        manifest: &Manifest,
        config: &ImageConfig,
    ) -> Result<Vec<Held>, Error> {
        let all = config.diff_ids.iter().zip(&manifest.layers);
        let all: Vec<_> = all.map(|(id, blob)| layer(store, sessions, name, id, blob)).collect();
        stream::iter(all).buffer_unordered(self.0.parallel.max(1)).try_collect().await
    }
}

/// The manifest for this machine, and the digest that the name itself led to.
async fn resolve(sessions: &[Session], name: &Reference, store: &Store) -> Result<(Digest, Manifest), Error> {
    let (top, bytes) = match &name.digest {
        Some(digest) => {
            let digest: Digest = digest.parse().map_err(images::Error::from)?;
            let bytes = by_digest(sessions, name, &digest, "manifests", store.limits().document).await?;
            (digest, bytes)
        }
        None => {
            let tag = name.tag.as_deref().unwrap_or("latest");
            let most = to_usize(store.limits().document);
            let asked = first(
                sessions,
                |session| session.host.can_resolve,
                |session| async move {
                    let url = session.host.url(&name.path, &format!("manifests/{tag}"), &name.domain);
                    with_retries(|| get(session, &url, 0)).await?.bytes(most).await
                },
            );
            let bytes = asked.await?;
            (Digest::of(&bytes), bytes)
        }
    };
    let index = match Document::parse(&bytes, store.limits())? {
        Document::Manifest(manifest) => return Ok((top, manifest)),
        Document::Index(index) => index,
    };
    let here = Platform::of_this_machine();
    let Some(chosen) = index.choose(&here) else {
        return Err(Error::Platform { name: name.to_string(), architecture: here.architecture });
    };
    match Document::parse(&document(sessions, name, chosen, "manifests", store).await?, store.limits())? {
        Document::Manifest(manifest) => Ok((top, manifest)),
        Document::Index(_) => Err(odd("manifest", "an index within an index").into()),
    }
}

/// A document that is what its descriptor promises.
async fn document(
    sessions: &[Session],
    name: &Reference,
    what: &Descriptor,
    kind: &str,
    store: &Store,
) -> Result<Vec<u8>, Error> {
    by_digest(sessions, name, &what.digest, kind, store.limits().document).await
}

async fn by_digest(
    sessions: &[Session],
    name: &Reference,
    digest: &Digest,
    kind: &str,
    most: u64,
) -> Result<Vec<u8>, Error> {
    let asked = first(
        sessions,
        |session| session.host.can_pull,
        |session| async move {
            let url = session.host.url(&name.path, &format!("{kind}/{digest}"), &name.domain);
            let bytes = with_retries(|| get(session, &url, 0)).await?.bytes(to_usize(most)).await?;
            let mut reader = images::Hashing::like(digest, bytes.as_slice());
            std::io::copy(&mut reader, &mut std::io::sink()).map_err(images::Error::Archive)?;
            let (found, _) = reader.finish();
            if found == *digest {
                return Ok(bytes);
            }
            Err(images::Error::Mismatch { what: "the document", wanted: digest.clone(), found }.into())
        },
    );
    asked.await
}

async fn layer(
    store: &Store,
    sessions: &[Session],
    name: &Reference,
    id: &DiffId,
    blob: &Descriptor,
) -> Result<Held, Error> {
    if let Ok(held) = store.hold(std::slice::from_ref(id)) {
        return Ok(held);
    }
    if blob.size > store.limits().archive_bytes {
        let why = format!(
            "layer {} has {} bytes, and {} is the limit",
            blob.digest,
            blob.size,
            store.limits().archive_bytes
        );
        return Err(images::Error::Refused(why).into());
    }
    let brought = first(
        sessions,
        |session| session.host.can_pull,
        |session| async move {
            let scratch = Scratch(store.scratch()?);
            let file = scratch.0.join("blob");
            let url = session.host.url(&name.path, &format!("blobs/{}", blob.digest), &name.domain);
            download(session, &url, &file, blob.size).await?;
            let (store, id, digest) = (store.clone(), id.clone(), blob.digest.clone());
            on_disk(move || images::add_layer(&store, &id, &file, Some(&digest))).await
        },
    );
    brought.await
}

/// Into a file, going on where it broke off.
async fn download(session: &Session, url: &str, file: &Path, size: u64) -> Result<(), Error> {
    let on_file = |act: &'static str| {
        let path = file.to_owned();
        move |source| Error::from(images::Error::Disk { act, path, source })
    };
    let mut out = tokio::fs::File::create(file).await.map_err(on_file("create"))?;
    let (mut at, mut idle) = (0u64, 0u32);
    while at < size {
        let before = at;
        let tried = async {
            let mut answer = get(session, url, at).await?;
            if !continues(&answer, at) {
                at = 0;
                out.set_len(0).await.map_err(on_file("empty"))?;
                tokio::io::AsyncSeekExt::rewind(&mut out).await.map_err(on_file("rewind"))?;
            }
            while let Some(piece) = answer.piece().await? {
                at += piece.len() as u64;
                if at > size {
                    let why = format!("it is longer than the {size} bytes that the manifest says");
                    return Err(Error::Refused { url: answer.url, why });
                }
                out.write_all(&piece).await.map_err(on_file("write"))?;
            }
            Ok(())
        };
        let outcome: Result<(), Error> = tried.await;
        let broke_off =
            || Error::Unavailable { host: session.host.name().to_owned(), why: "a layer broke off".into() };
        let error = match outcome {
            Ok(()) if at == size => break,
            Ok(()) => broke_off(),
            Err(error) => error,
        };
        idle = if at > before { 0 } else { idle + 1 };
        if !error.is_passing() || idle >= TRIES {
            return Err(error);
        }
        tokio::time::sleep(FIRST_PAUSE * 2u32.pow(idle)).await;
    }
    out.flush().await.map_err(on_file("write"))
}

/// Whether the answer begins where the file ends.
fn continues(answer: &Answer, at: u64) -> bool {
    let range = answer.response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    let start = range.and_then(|range| range.strip_prefix("bytes ")?.split('-').next()?.parse::<u64>().ok());
    at == 0 || (answer.response.status() == StatusCode::PARTIAL_CONTENT && start == Some(at))
}

async fn get(session: &Session, url: &str, offset: u64) -> Result<Answer, Error> {
    let accept: &[&str] = if url.contains("/manifests/") { Document::ACCEPT } else { &["*/*"] };
    session.get(&Wanted { url, accept, offset }).await
}

async fn with_retries<T, F>(mut act: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut tried = 0;
    loop {
        match act().await {
            Err(error) if error.is_passing() && tried + 1 < TRIES => {
                tokio::time::sleep(FIRST_PAUSE * 2u32.pow(tried)).await;
                tried += 1;
            }
            other => return other,
        }
    }
}

/// The first host that does; the error is that of the last one asked, which is the registry itself.
async fn first<'a, T, F>(
    sessions: &'a [Session],
    may: impl Fn(&Session) -> bool,
    mut act: impl FnMut(&'a Session) -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut last = None;
    for session in sessions.iter().filter(|session| may(session)) {
        match act(session).await {
            Err(error) if error.is_about_the_way() => {
                tracing::debug!(host = session.host.name(), %error, "a registry is passed over");
                last = Some(error);
            }
            other => return other,
        }
    }
    Err(last.unwrap_or_else(|| Error::Unavailable {
        host: "hosts.toml".into(),
        why: "it names no host for this".into(),
    }))
}

/// Work that waits for the disk.
async fn on_disk<T: Send + 'static, E: Send + 'static>(
    act: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, Error>
where
    Error: From<E>,
{
    match tokio::task::spawn_blocking(act).await {
        Ok(done) => Ok(done?),
        // Panicked, or the process is ending.
        Err(error) => Err(odd("image", error).into()),
    }
}

fn odd(what: &'static str, why: impl ToString) -> images::Error {
    images::Error::Document { what, why: why.to_string() }
}

fn to_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

// === impl Scratch ===

impl Drop for Scratch {
    fn drop(&mut self) {
        // One file lies in it. What resists is swept at the next start.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
