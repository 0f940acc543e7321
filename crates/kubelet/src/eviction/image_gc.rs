//! Collects images that nobody uses: every five minutes by the marks of the configuration, and all of them when the node
//! is short of disk. What goes is decided in `kubelet_core::images`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cri::v1;
use kubelet_core::images::{ImagePolicy, ImageUse, Present, Unused, too_little_freed, with_default_tag};
use kubelet_core::observed::FoundPod;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::events::EventType;
use crate::pods::node::Node;
use crate::stats::Sampler;

const PERIOD: Duration = Duration::from_secs(300);

/// See the module.
pub struct ImageCollector {
    node: Arc<Node>,
    sampler: Arc<Sampler>,
    policy: ImagePolicy,
    /// Held while images go: nobody removes one twice.
    uses: Mutex<ImageUse>,
}

// === impl ImageCollector ===

impl ImageCollector {
    #[must_use]
    pub fn new(node: Arc<Node>, sampler: Arc<Sampler>, policy: ImagePolicy) -> ImageCollector {
        let uses = Mutex::new(ImageUse::new(node.now().mono));
        ImageCollector { node, sampler, policy, uses }
    }

    /// Runs until cancelled.
    pub async fn run(self: Arc<Self>, token: CancellationToken) {
        let work = async {
            let mut tick = tokio::time::interval(PERIOD);
            loop {
                tick.tick().await;
                if let Err(error) = self.collect().await {
                    self.tell("ImageGCFailed", &error);
                }
            }
        };
        token.run_until_cancelled(Box::pin(work)).await;
    }

    /// By age, then by the marks.
    async fn collect(&self) -> Result<(), String> {
        let mut uses = self.uses.lock().await;
        self.look(&mut uses).await?;
        let old = uses.too_old(&self.policy, self.node.now().mono);
        self.remove(&mut uses, old, "age").await?;
        let signals =
            self.sampler.signals().await.ok_or("the file system of images could not be read in time")?;
        let Some(disk) = signals.disks.images else { return Ok(()) };
        if disk.capacity == 0 {
            let message = "invalid capacity 0 on image filesystem";
            self.tell("InvalidDiskCapacity", message);
            return Err(message.to_owned());
        }
        let Some((bytes, used)) = self.policy.to_free(disk.capacity, disk.available) else { return Ok(()) };
        let chosen = uses.for_room(&self.policy, bytes, self.node.now().mono);
        let freed = self.remove(&mut uses, chosen, "space").await?;
        if freed < bytes {
            let message = too_little_freed(used, disk.capacity, freed);
            self.tell("FreeDiskSpaceFailed", &message);
            return Err(message);
        }
        Ok(())
    }

    /// Removes every image that nobody uses and that is old enough; how many bytes that were.
    pub async fn remove_unused(&self) -> Result<u64, String> {
        let mut uses = self.uses.lock().await;
        self.look(&mut uses).await?;
        let chosen = uses.for_room(&self.policy, u64::MAX, self.node.now().mono);
        self.remove(&mut uses, chosen, "space").await
    }

    /// What [`ImageCollector::remove_unused`] would remove.
    pub async fn unused(&self) -> Result<Vec<Unused>, String> {
        let mut uses = self.uses.lock().await;
        self.look(&mut uses).await?;
        Ok(uses.for_room(&self.policy, u64::MAX, self.node.now().mono))
    }

    async fn look(&self, uses: &mut ImageUse) -> Result<(), String> {
        let images = self.node.runtime.list_images().await.map_err(|e| e.to_string())?;
        // After the images: whoever began to use one meanwhile is seen.
        let found = self.node.observer.survey().await.map_err(|e| e.to_string())?;
        let in_use = in_use(&images, &self.words(&found));
        let present = |i: &v1::Image| Present { id: i.id.clone(), bytes: i.size, pinned: i.pinned };
        let present: Vec<Present> = images.iter().map(present).collect();
        uses.look(&present, &in_use, self.node.now().mono);
        Ok(())
    }

    /// Everything by which a container, dead or alive, or a volume of a Pod may call an image.
    fn words(&self, found: &[FoundPod]) -> BTreeSet<String> {
        let containers = found.iter().flat_map(|p| &p.observed.containers);
        let of_containers =
            containers.flat_map(|c| [c.image_id.clone(), c.image_ref.clone(), c.image.clone()]);
        let entries = self.node.board.all();
        let volumes = entries.iter().filter(|e| !e.finished).flat_map(|e| {
            let volumes = e.pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
            volumes.filter_map(|v| v.image.as_ref()?.reference.clone()).collect::<Vec<_>>()
        });
        let words = of_containers.chain(volumes).filter(|w| !w.is_empty());
        words.flat_map(|w| [with_default_tag(&w).unwrap_or_default(), w]).collect()
    }

    async fn remove(&self, uses: &mut ImageUse, chosen: Vec<Unused>, reason: &str) -> Result<u64, String> {
        let (mut freed, mut errors) = (0, Vec::new());
        for Unused { id, bytes } in chosen {
            let image = v1::ImageSpec { image: id.clone(), ..Default::default() };
            match self.node.runtime.remove_image(image).await {
                Ok(()) => {
                    tracing::info!(image = id, bytes, reason, "image removed");
                    self.node.metrics.image_garbage_collected_total.inc([reason]);
                    uses.forget(&id);
                    freed += bytes;
                }
                Err(error) => errors.push(error.to_string()),
            }
        }
        match errors.is_empty() {
            true => Ok(freed),
            false => Err(format!("images not removed: {}", errors.join("; "))),
        }
    }

    fn tell(&self, reason: &str, message: &str) {
        let name = &self.node.facts.cri_config.name;
        self.node.recorder.node(name, EventType::Warning, reason, message);
    }
}

/// The ids of images that go by one of these words.
fn in_use(images: &[v1::Image], words: &BTreeSet<String>) -> BTreeSet<String> {
    let is_meant = |i: &&v1::Image| {
        words.contains(&i.id) || i.repo_tags.iter().chain(&i.repo_digests).any(|name| words.contains(name))
    };
    images.iter().filter(is_meant).map(|i| i.id.clone()).collect()
}

impl std::fmt::Debug for ImageCollector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageCollector").field("policy", &self.policy).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_in_use_by_whichever_name_it_is_called() {
        let image = |id: &str, tag: &str, digest: &str| v1::Image {
            id: id.into(),
            repo_tags: vec![tag.into()],
            repo_digests: vec![digest.into()],
            ..Default::default()
        };
        let images = [
            image("a", "x:1", "x@1"),
            image("b", "y:1", "y@1"),
            image("c", "z:1", "z@1"),
            image("d", "q:1", "q@1"),
        ];
        let words = ["a", "y:1", "z@1", "unknown"].map(str::to_owned).into_iter().collect();
        assert_eq!(in_use(&images, &words), ["a", "b", "c"].map(str::to_owned).into_iter().collect());
    }
}
