//! Images: which are here, and how a pull goes.

use std::collections::BTreeMap;
use std::time::Duration;

use cri::v1::{AuthConfig, Image, ImageSpec};
use cri::{Error, Result};
use tonic::Code;

/// How pulling an image goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pull {
    pub latency: Duration,
    /// The code and text of the failure, if it is to fail.
    pub error: Option<(Code, String)>,
    /// User name and password without which the registry refuses.
    pub needs: Option<(String, String)>,
}

#[derive(Debug, Default)]
pub(super) struct Images {
    present: BTreeMap<String, Image>,
    pulls: BTreeMap<String, Pull>,
}

// === impl Pull ===

impl Default for Pull {
    /// Succeeds at once, for anybody.
    fn default() -> Self {
        Self { latency: Duration::ZERO, error: None, needs: None }
    }
}

impl Pull {
    #[must_use]
    pub fn takes(latency: Duration) -> Self {
        Self { latency, ..Self::default() }
    }

    #[must_use]
    pub fn fails(code: Code, message: &str) -> Self {
        Self { error: Some((code, message.into())), ..Self::default() }
    }

    #[must_use]
    pub fn needs(username: &str, password: &str) -> Self {
        Self { needs: Some((username.into(), password.into())), ..Self::default() }
    }
}

// === impl Images ===

impl Images {
    pub(super) fn add(&mut self, name: &str) -> String {
        let id = digest(name);
        let repository = name.rsplit_once(['@', ':']).map_or(name, |(r, _)| r);
        let image = Image {
            id: id.clone(),
            repo_tags: vec![name.to_owned()],
            repo_digests: vec![format!("{repository}@{id}")],
            size: 5 << 20,
            spec: Some(ImageSpec { image: name.to_owned(), ..ImageSpec::default() }),
            ..Image::default()
        };
        self.present.insert(name.to_owned(), image);
        id
    }

    pub(super) fn script(&mut self, name: &str, pull: Pull) {
        self.pulls.insert(name.to_owned(), pull);
    }

    pub(super) fn pull_of(&self, name: &str) -> Pull {
        self.pulls.get(name).cloned().unwrap_or_default()
    }

    pub(super) fn find(&self, name: &str) -> Option<&Image> {
        self.present.get(name).or_else(|| {
            self.present.values().find(|i| i.id == name || i.repo_digests.iter().any(|d| d == name))
        })
    }

    pub(super) fn list(&self) -> Vec<Image> {
        self.present.values().cloned().collect()
    }

    pub(super) fn remove(&mut self, name: &str) -> bool {
        let Some(id) = self.find(name).map(|i| i.id.clone()) else { return false };
        self.present.retain(|_, i| i.id != id);
        true
    }

    pub(super) fn admit(pull: &Pull, name: &str, auth: Option<&AuthConfig>) -> Result<()> {
        let fail = |code, message: &str| Err(Error::new("pull image", name, code, message));
        if let Some((code, message)) = &pull.error {
            return fail(*code, message);
        }
        let given = auth.map(|a| (a.username.clone(), a.password.clone()));
        if pull.needs.is_some() && pull.needs != given {
            return fail(
                Code::Unknown,
                "pull access denied, repository does not exist or may require authorization",
            );
        }
        Ok(())
    }
}

fn digest(name: &str) -> String {
    let seed = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    let mut noise = base::rng::Rng::new(seed);
    let mut word = || noise.next_u64();
    format!("sha256:{:016x}{:016x}{:016x}{:016x}", word(), word(), word(), word())
}
