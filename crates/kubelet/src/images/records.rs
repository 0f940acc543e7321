//! Pull intents and pulled-image records on disk, under `<root>/image_manager`.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use base::time::Wall;
use kubelet_core::images::{self, PullIntent, PulledRecord, SecretRef, ServiceAccountRef, Verification};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::hex;

const PREFIX: &str = "sha256-";
const TEMPORARY: &str = ".tmp";
/// A record is not larger than this; whatever is was not written by us.
const FILE_MAX: u64 = 1 << 20;

/// A handle on the records; cheap to clone.
#[derive(Clone, Debug)]
pub struct Records(Arc<Store>);

#[derive(Debug)]
struct Store {
    pulling: PathBuf,
    pulled: PathBuf,
    /// Pulls in flight by image. Also the lock under which files change.
    flights: Mutex<HashMap<String, usize>>,
}

/// A pull in progress. Dropped without an outcome, its intent stays on disk: the runtime may have
/// got the image all the same, and then nobody's access to it is proved.
#[derive(Debug)]
pub(super) struct Intent {
    records: Records,
    image: String,
    ended: bool,
}

// === impl Records ===

impl Records {
    /// Opens the records under the kubelet's root directory, making the directories if need be.
    pub fn open(root: &Path) -> io::Result<Self> {
        let dir = root.join("image_manager");
        let store =
            Store { pulling: dir.join("pulling"), pulled: dir.join("pulled"), flights: Mutex::default() };
        for dir in [&store.pulling, &store.pulled] {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        Ok(Self(Arc::new(store)))
    }

    /// Settles what an earlier life left open: an intended image that is here now was pulled, nobody
    /// knows with what, so the next Pod has to prove its access.
    pub async fn adopt(&self, present: Vec<cri::v1::Image>, now: Wall) {
        self.run(move |store| {
            let intents: BTreeSet<String> =
                list::<PullIntent>(&store.pulling).into_iter().map(|intent| intent.image).collect();
            for image in present {
                for name in image.repo_digests.iter().chain(&image.repo_tags).filter(|n| intents.contains(*n))
                {
                    store.write_pulled(name, &image.id, None, now)?;
                    store.forget_intent(name)?;
                }
            }
            Ok(())
        })
        .await;
    }

    /// Whether a Pod with these secrets must pull an image that is here, and which service accounts need not.
    pub(super) async fn must_pull(
        &self,
        policy: Verification,
        image: &str,
        image_ref: &str,
        secrets: Vec<SecretRef>,
        now: Wall,
    ) -> (bool, Vec<ServiceAccountRef>) {
        let (image, image_ref) = (image.to_owned(), image_ref.to_owned());
        let verdict = self.run(move |store| {
            let intended = store.flying(&image) || store.intent(&image)?.is_some();
            let record = store.record(&image_ref)?;
            let (must, add) = images::must_pull(&policy, &image, intended, record.as_ref(), &secrets);
            if let Some(secret) = add {
                let kubernetes_secrets = vec![secret.clone()];
                let new = images::Credentials { kubernetes_secrets, ..Default::default() };
                store.write_pulled(&image, &image_ref, Some(&new), now)?;
            }
            Ok((must, images::accounts_of(record.as_ref(), &image).to_vec()))
        });
        // What cannot be read proves nothing.
        verdict.await.unwrap_or((true, Vec::new()))
    }

    /// Notes that a pull begins.
    pub(super) async fn intend(&self, image: &str) -> io::Result<Intent> {
        let name = image.to_owned();
        let written = self.try_run(move |store| {
            let mut flights = store.lock();
            write(&store.pulling, &name, &PullIntent::new(&name))?;
            *flights.entry(name).or_default() += 1;
            Ok(())
        });
        written.await?;
        Ok(Intent { records: self.clone(), image: image.to_owned(), ended: false })
    }

    /// Drops the records of images that are gone, unless they changed after `until`.
    pub async fn prune(&self, present: Vec<String>, until: Wall) {
        self.run(move |store| {
            let until = timestamp(until);
            for record in list::<PulledRecord>(&store.pulled) {
                if record.last_updated_time < until && !present.contains(&record.image_ref) {
                    remove(&store.pulled, &record.image_ref)?;
                }
            }
            Ok(())
        })
        .await;
    }

    /// Trouble with records never stops a Pod; it is logged.
    async fn run<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Store) -> io::Result<T> + Send + 'static,
    ) -> Option<T> {
        self.try_run(act).await.inspect_err(|error| tracing::error!(%error, "image pull records")).ok()
    }

    async fn try_run<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Store) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let store = self.0.clone();
        tokio::task::spawn_blocking(move || act(&store)).await.unwrap_or_else(|e| Err(io::Error::other(e)))
    }
}

// === impl Intent ===

impl Intent {
    pub(super) async fn pulled(mut self, image_ref: &str, credentials: images::Credentials, now: Wall) {
        self.ended = true;
        let (image, image_ref) = (self.image.clone(), image_ref.to_owned());
        self.records
            .run(move |store| {
                // On failure the intent stays, so that the image still counts as ours.
                store
                    .write_pulled(&image, &image_ref, Some(&credentials), now)
                    .inspect_err(|_| store.land(&image))?;
                store.end(&image)
            })
            .await;
    }

    pub(super) async fn failed(mut self) {
        self.ended = true;
        let image = self.image.clone();
        self.records.run(move |store| store.end(&image)).await;
    }
}

impl Drop for Intent {
    fn drop(&mut self) {
        if !self.ended {
            self.records.0.land(&self.image);
        }
    }
}

// === impl Store ===

impl Store {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, usize>> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn flying(&self, image: &str) -> bool {
        self.lock().contains_key(image)
    }

    /// One pull less in flight; the intent stays.
    fn land(&self, image: &str) {
        decrement(&mut self.lock(), image);
    }

    /// One pull less in flight; with the last one the intent goes.
    fn end(&self, image: &str) -> io::Result<()> {
        let mut flights = self.lock();
        decrement(&mut flights, image);
        if flights.contains_key(image) { Ok(()) } else { self.forget_intent(image) }
    }

    fn intent(&self, image: &str) -> io::Result<Option<PullIntent>> {
        Ok(read::<PullIntent>(&self.pulling.join(file_name(image)))?.filter(|i| i.image == image))
    }

    fn forget_intent(&self, image: &str) -> io::Result<()> {
        remove(&self.pulling, image)
    }

    fn record(&self, image_ref: &str) -> io::Result<Option<PulledRecord>> {
        Ok(read::<PulledRecord>(&self.pulled.join(file_name(image_ref)))?
            .filter(|r| r.image_ref == image_ref))
    }

    fn write_pulled(
        &self,
        image: &str,
        image_ref: &str,
        credentials: Option<&images::Credentials>,
        now: Wall,
    ) -> io::Result<()> {
        let _changing = self.lock();
        let time = timestamp(now);
        let old = self.record(image_ref).unwrap_or_default();
        let fresh = old.is_none();
        let mut record = old.unwrap_or_else(|| PulledRecord::new(image_ref, &time));
        let changed = credentials.is_some_and(|new| record.merge(image, new, &time));
        if fresh || changed { write(&self.pulled, image_ref, &record) } else { Ok(()) }
    }
}

fn decrement(flights: &mut HashMap<String, usize>, image: &str) {
    if let Some(n) = flights.get_mut(image) {
        *n -= 1;
        if *n == 0 {
            flights.remove(image);
        }
    }
}

fn timestamp(now: Wall) -> String {
    jiff::Timestamp::from_second(now.secs()).unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_string()
}

fn file_name(key: &str) -> String {
    format!("{PREFIX}{}", hex(&Sha256::digest(key.as_bytes())))
}

/// The whole file appears at once or not at all.
fn write(dir: &Path, key: &str, value: &impl Serialize) -> io::Result<()> {
    let path = dir.join(file_name(key));
    let temporary = dir.join(file_name(key) + TEMPORARY);
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    let done = file.write_all(&serde_json::to_vec(value)?).and_then(|()| fs::rename(&temporary, path));
    done.inspect_err(|_| _ = fs::remove_file(&temporary))
}

fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let mut bytes = Vec::new();
    file.take(FILE_MAX).read_to_end(&mut bytes)?;
    // It stays where it is: without it the image would count as one that came with the node. The next pull replaces it.
    let record = serde_json::from_slice(&bytes);
    record.map(Some).map_err(|e| io::Error::other(format!("{} is corrupt: {e}", path.display())))
}

fn remove(dir: &Path, key: &str) -> io::Result<()> {
    match fs::remove_file(dir.join(file_name(key))) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Every file of ours that can be read; the rest is not our business.
fn list<T: DeserializeOwned>(dir: &Path) -> Vec<T> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let ours = |name: &str| name.starts_with(PREFIX) && !name.ends_with(TEMPORARY);
    let named = entries.flatten().filter(|e| e.file_name().to_str().is_some_and(ours));
    named.filter_map(|e| read(&e.path()).ok().flatten()).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const NOW: Wall = Wall(1_700_000_000_000_000_000);

    fn node() -> images::Credentials {
        images::Credentials { node_pods_accessible: true, ..Default::default() }
    }

    async fn must(records: &Records, image: &str, image_ref: &str) -> bool {
        records.must_pull(Verification::default(), image, image_ref, Vec::new(), NOW).await.0
    }

    fn names(dir: &Path) -> Vec<String> {
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[tokio::test]
    async fn files_are_where_upstream_puts_them() {
        let root = tempfile::tempdir().unwrap();
        let records = Records::open(root.path()).unwrap();
        let dir = root.path().join("image_manager");
        for sub in ["", "pulling", "pulled"] {
            assert_eq!(fs::metadata(dir.join(sub)).unwrap().permissions().mode() & 0o777, 0o700, "{sub}");
        }
        let intent = records.intend("secretorg/myimage:customtag").await.unwrap();
        let text = fs::read_to_string(dir.join("pulling").join(&names(&dir.join("pulling"))[0])).unwrap();
        assert!(text.contains(r#""kind":"ImagePullIntent""#), "{text}");
        intent.pulled("test-ref", node(), NOW).await;
        assert!(names(&dir.join("pulling")).is_empty());
        let file =
            dir.join("pulled/sha256-").to_str().unwrap().to_owned() + &hex(&Sha256::digest(b"test-ref"));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(fs::read_to_string(file).unwrap().contains(r#""lastUpdatedTime":"2023-11-14T22:13:20Z""#));
    }

    #[tokio::test]
    async fn a_pull_that_is_cut_off_leaves_its_intent_and_a_restart_settles_it() {
        let root = tempfile::tempdir().unwrap();
        let records = Records::open(root.path()).unwrap();
        assert!(!must(&records, "a:1", "ref").await, "preloaded");
        drop(records.intend("a:1").await.unwrap());
        assert!(must(&records, "a:1", "ref").await, "somebody may have pulled it");

        let records = Records::open(root.path()).unwrap();
        assert!(must(&records, "a:1", "ref").await, "and that survives a restart");
        let image = cri::v1::Image { id: "ref".into(), repo_tags: vec!["a:1".into()], ..Default::default() };
        records.adopt(vec![image], NOW).await;
        assert!(names(&root.path().join("image_manager/pulling")).is_empty());
        assert!(must(&records, "a:1", "ref").await, "pulled, nobody knows how");
        records.intend("a:1").await.unwrap().pulled("ref", node(), NOW).await;
        assert!(!must(&records, "a:1", "ref").await);

        records.prune(vec!["ref".into()], Wall(NOW.0 + 60_000_000_000)).await;
        assert!(!must(&records, "a:1", "ref").await);
        records.prune(Vec::new(), Wall(NOW.0 + 60_000_000_000)).await;
        assert!(names(&root.path().join("image_manager/pulled")).is_empty());
    }

    #[tokio::test]
    async fn intents_are_counted_and_a_broken_record_proves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let records = Records::open(root.path()).unwrap();
        let (one, two) = (records.intend("a:1").await.unwrap(), records.intend("a:1").await.unwrap());
        one.failed().await;
        assert_eq!(names(&root.path().join("image_manager/pulling")).len(), 1);
        two.failed().await;
        assert!(names(&root.path().join("image_manager/pulling")).is_empty());
        fs::write(root.path().join("image_manager/pulled").join(file_name("ref")), "{").unwrap();
        assert!(must(&records, "a:1", "ref").await);
        records.intend("a:1").await.unwrap().pulled("ref", node(), NOW).await;
        assert!(!must(&records, "a:1", "ref").await, "and is replaced");
    }
}
