//! What the kubelet remembers of its pulls, and what that proves to a later Pod. The kinds and their
//! JSON are upstream's, so that a node can change hands.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::policy::Verification;
use api::image::trim;

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// Beyond this many secrets per image, being allowed in is no longer written down.
const SECRETS_WRITTEN: usize = 100;

/// A pull has begun. It stands until the outcome is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PullIntent {
    pub kind: String,
    pub api_version: String,
    pub image: String,
}

/// The kubelet has pulled an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PulledRecord {
    pub kind: String,
    pub api_version: String,
    /// RFC 3339, to the second.
    pub last_updated_time: String,
    pub image_ref: String,
    /// By image name without tag and digest. None for a name: access must be proved anew.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub credential_mapping: BTreeMap<String, Credentials>,
}

/// With what an image was pulled, or proved accessible.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Credentials {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kubernetes_secrets: Vec<SecretRef>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kubernetes_service_accounts: Vec<ServiceAccountRef>,
    /// Anonymously, or with the node's own credentials: every Pod here may use it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub node_pods_accessible: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretRef {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub credential_hash: String,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAccountRef {
    pub uid: String,
    pub namespace: String,
    pub name: String,
}

/// Whether a Pod with these secrets must pull although the image is here, and the secret to add to the
/// record when it need not (the same credential under another name, or a renewed one).
#[must_use]
pub fn must_pull<'a>(
    policy: &Verification,
    image: &str,
    intended: bool,
    record: Option<&PulledRecord>,
    secrets: &'a [SecretRef],
) -> (bool, Option<&'a SecretRef>) {
    if !policy.required(image, intended || record.is_some()) {
        return (false, None);
    }
    let known = record.zip(trim(image).ok()).and_then(|(r, name)| r.credential_mapping.get(name));
    let Some(known) = known else { return (true, None) };
    if known.node_pods_accessible {
        return (false, None);
    }
    let room = known.kubernetes_secrets.len() < SECRETS_WRITTEN;
    for secret in secrets {
        for old in &known.kubernetes_secrets {
            let same_hash = !old.credential_hash.is_empty() && old.credential_hash == secret.credential_hash;
            let same_object = old.same_object(secret);
            if same_hash {
                return (false, (!same_object && room).then_some(secret));
            }
            if same_object && room {
                return (false, Some(secret));
            }
        }
    }
    (true, None)
}

/// The service accounts whose Pods need not pull the image, should nothing else speak for one.
#[must_use]
pub fn accounts_of<'r>(record: Option<&'r PulledRecord>, image: &str) -> &'r [ServiceAccountRef] {
    let known = record.zip(trim(image).ok()).and_then(|(r, name)| r.credential_mapping.get(name));
    known.map_or(&[], |c| &c.kubernetes_service_accounts)
}

// === impl PullIntent ===

impl PullIntent {
    #[must_use]
    pub fn new(image: &str) -> Self {
        Self { kind: "ImagePullIntent".into(), api_version: API_VERSION.into(), image: image.to_owned() }
    }
}

// === impl PulledRecord ===

impl PulledRecord {
    #[must_use]
    pub fn new(image_ref: &str, time: &str) -> Self {
        Self {
            kind: "ImagePulledRecord".into(),
            api_version: API_VERSION.into(),
            last_updated_time: time.to_owned(),
            image_ref: image_ref.to_owned(),
            credential_mapping: BTreeMap::new(),
        }
    }

    /// Adds what has newly been proved for an image. True if the record changed.
    pub fn merge(&mut self, image: &str, new: &Credentials, time: &str) -> bool {
        let Ok(name) = trim(image) else { return false };
        if *new == Credentials::default() {
            return false;
        }
        let known = self.credential_mapping.entry(name.to_owned()).or_default();
        let before = known.clone();
        if known.node_pods_accessible || new.node_pods_accessible {
            *known = Credentials { node_pods_accessible: true, ..Credentials::default() };
        } else {
            for secret in &new.kubernetes_secrets {
                known.kubernetes_secrets.retain(|old| !old.same_object(secret));
                known.kubernetes_secrets.push(secret.clone());
            }
            let place = |s: &SecretRef| (s.namespace.clone(), s.name.clone(), s.uid.clone());
            known.kubernetes_secrets.sort_by_key(place);
            known.kubernetes_service_accounts.extend(new.kubernetes_service_accounts.iter().cloned());
            known
                .kubernetes_service_accounts
                .sort_by_key(|s| (s.namespace.clone(), s.name.clone(), s.uid.clone()));
            known.kubernetes_service_accounts.dedup();
        }
        let changed = *known != before;
        if changed {
            self.last_updated_time = time.to_owned();
        }
        changed
    }
}

// === impl SecretRef ===

impl SecretRef {
    fn same_object(&self, other: &Self) -> bool {
        (&self.uid, &self.namespace, &self.name) == (&other.uid, &other.namespace, &other.name)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const T: &str = "2026-01-02T03:04:05Z";

    fn secret(name: &str, hash: &str) -> SecretRef {
        SecretRef { uid: "u".into(), namespace: "ns".into(), name: name.into(), credential_hash: hash.into() }
    }

    fn with_secrets(secrets: &[SecretRef]) -> Credentials {
        Credentials { kubernetes_secrets: secrets.to_vec(), ..Credentials::default() }
    }

    fn record(image: &str, credentials: &Credentials) -> PulledRecord {
        let mut record = PulledRecord::new("sha256:1", T);
        record.merge(image, credentials, T);
        record
    }

    #[test]
    fn the_json_is_upstreams() {
        let node = Credentials { node_pods_accessible: true, ..Credentials::default() };
        let mut both = record("docker.io/a:1", &node);
        both.merge("b.io/x:2", &with_secrets(&[secret("s", "h")]), T);
        let text = serde_json::to_string(&both).unwrap();
        assert_eq!(
            text,
            r#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1","lastUpdatedTime":"2026-01-02T03:04:05Z","imageRef":"sha256:1","credentialMapping":{"b.io/x":{"kubernetesSecrets":[{"uid":"u","namespace":"ns","name":"s","credentialHash":"h"}]},"docker.io/a":{"nodePodsAccessible":true}}}"#
        );
        assert_eq!(serde_json::from_str::<PulledRecord>(&text).unwrap(), both);
        assert_eq!(
            serde_json::to_string(&PullIntent::new("a:1")).unwrap(),
            r#"{"kind":"ImagePullIntent","apiVersion":"kubelet.config.k8s.io/v1beta1","image":"a:1"}"#
        );
    }

    #[test]
    fn who_must_pull() {
        let policy = Verification::default();
        let image = "r.io/a:1";
        let node = record(image, &Credentials { node_pods_accessible: true, ..Credentials::default() });
        let mine = record(image, &with_secrets(&[secret("s", "h")]));
        let unknown = PulledRecord::new("sha256:1", T);
        type Row<'a> = (&'a str, bool, Option<&'a PulledRecord>, &'a [SecretRef], bool, bool);
        let rows: [Row<'_>; 10] = [
            ("preloaded", false, None, &[], false, false),
            ("being pulled by another", true, None, &[], true, false),
            ("pulled, nobody knows how", false, Some(&unknown), &[], true, false),
            ("pulled anonymously", false, Some(&node), &[], false, false),
            ("no secret", false, Some(&mine), &[], true, false),
            ("the same secret", false, Some(&mine), &[secret("s", "h")], false, false),
            ("the same, renewed", false, Some(&mine), &[secret("s", "new")], false, true),
            ("the same under another name", false, Some(&mine), &[secret("t", "h")], false, true),
            ("another secret", false, Some(&mine), &[secret("t", "x")], true, false),
            ("no hash is no proof", false, Some(&mine), &[secret("t", "")], true, false),
        ];
        for (what, intended, record, secrets, pull, write) in rows {
            let (must, add) = must_pull(&policy, image, intended, record, secrets);
            assert_eq!((must, add.is_some()), (pull, write), "{what}");
        }
        assert!(
            must_pull(&policy, "r.io/other:1", false, Some(&node), &[]).0,
            "another name of the same image"
        );
        assert!(!must_pull(&Verification::NeverVerify, image, true, Some(&mine), &[]).0);
        assert!(must_pull(&Verification::AlwaysVerify, image, false, None, &[]).0);
    }

    #[test]
    fn a_record_names_the_accounts_it_was_proved_for() {
        let account = ServiceAccountRef { uid: "u".into(), namespace: "ns".into(), name: "sa".into() };
        let proved = Credentials { kubernetes_service_accounts: vec![account.clone()], ..Default::default() };
        let mut record = record("r.io/a:1", &proved);
        assert!(!record.merge("r.io/a:2", &proved, T), "the same once more");
        assert_eq!(accounts_of(Some(&record), "r.io/a:3"), [account]);
        assert_eq!(accounts_of(Some(&record), "r.io/b:1"), []);
        assert_eq!(accounts_of(None, "r.io/a:1"), []);
        assert!(must_pull(&Verification::default(), "r.io/a:1", false, Some(&record), &[]).0);
        let text = serde_json::to_string(&record).unwrap();
        let want = r#"{"r.io/a":{"kubernetesServiceAccounts":[{"uid":"u","namespace":"ns","name":"sa"}]}}"#;
        assert!(text.contains(want), "{text}");
    }

    #[test]
    fn merging_only_ever_opens() {
        let mut record = record("a:1", &with_secrets(&[secret("s", "h")]));
        assert!(!record.merge("a:2", &with_secrets(&[secret("s", "h")]), "later"));
        assert_eq!(record.last_updated_time, T);
        assert!(record.merge("a:2", &with_secrets(&[secret("r", "h"), secret("s", "h2")]), "later"));
        assert_eq!(record.credential_mapping["a"].kubernetes_secrets, [secret("r", "h"), secret("s", "h2")]);
        assert!(record.merge("a", &Credentials { node_pods_accessible: true, ..Credentials::default() }, T));
        assert_eq!(record.credential_mapping["a"].kubernetes_secrets, []);
        assert!(!record.merge("a", &with_secrets(&[secret("s", "h")]), T), "open stays open");
        assert!(!record.merge("a", &Credentials::default(), T));
    }
}
