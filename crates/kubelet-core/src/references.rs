//! Objects of the API server that a Pod refers to: which ones, and what came of asking for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Container, PersistentVolume, Pod, PodSpec, Secret, Volume};

use crate::claims::{Claimed, ephemeral_claim};
use crate::container_spec::spec_of;

/// What is asked for, all of it in the Pod's own namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct References {
    pub config_maps: BTreeSet<String>,
    pub secrets: BTreeSet<String>,
    pub tokens: BTreeSet<TokenWant>,
    /// Names of PersistentVolumeClaims.
    pub claims: BTreeSet<String>,
    /// ClusterTrustBundles, all of them.
    pub trust_bundles: bool,
}

/// A token for the Pod's service account.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenWant {
    /// Empty: the API server's own audience.
    pub audience: String,
    pub seconds: i64,
}

/// What came of asking.
#[derive(Clone, Default)]
pub struct ReferencedObjects {
    /// There is an API server to ask.
    pub has_server: bool,
    pub config_maps: BTreeMap<String, Referenced<ConfigMap>>,
    pub secrets: BTreeMap<String, Referenced<Secret>>,
    /// Tokens, or why there is none.
    pub tokens: BTreeMap<TokenWant, Result<String, String>>,
    /// The volumes that claims are bound to, or why there is none.
    pub claims: BTreeMap<String, Result<Arc<Bound>, String>>,
    /// The bundles, or why there are none; none if nobody asked.
    pub trust_bundles: Option<Result<Vec<Arc<TrustBundle>>, String>>,
}

/// A ClusterTrustBundle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustBundle {
    pub name: String,
    /// Empty: of no signer.
    pub signer: String,
    pub labels: BTreeMap<String, String>,
    pub pem: String,
}

/// What a claim is bound to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bound {
    pub volume: PersistentVolume,
    /// Of the claim.
    pub claim_uid: String,
    /// What the claim says of its size.
    pub sizes: Claimed,
    /// Why this node is the wrong one for it.
    pub misplaced: Option<String>,
}

/// One object.
#[derive(Clone)]
pub enum Referenced<T> {
    Found(Arc<T>),
    /// The API server says that it does not exist.
    Missing,
    /// It is not known whether it exists; why, for the user.
    Failed(String),
}

// === impl References ===

impl References {
    /// Everything the Pod refers to, also what only its image pulls need.
    #[must_use]
    pub fn of_pod(pod: &Pod) -> References {
        let mut wants = Self::of_volumes(pod);
        let Some(spec) = &pod.spec else { return wants };
        spec.containers.iter().chain(spec.init_containers.iter().flatten()).for_each(|c| wants.add_env(c));
        for e in spec.ephemeral_containers.iter().flatten() {
            spec_of(pod, &e.name).iter().for_each(|c| wants.add_env(c));
        }
        wants.secrets.extend(pull_secrets(spec).map(str::to_owned));
        wants
    }

    /// What the Pod's volumes hold.
    #[must_use]
    pub fn of_volumes(pod: &Pod) -> References {
        let mut wants = References::default();
        let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
        volumes.for_each(|v| wants.add_volume(pod, v));
        wants
    }

    /// What a container's environment is made of.
    #[must_use]
    pub fn of_container(pod: &Pod, container: &str) -> References {
        let mut wants = References::default();
        spec_of(pod, container).iter().for_each(|c| wants.add_env(c));
        wants
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == References::default()
    }

    fn add_volume(&mut self, pod: &Pod, volume: &Volume) {
        if let Some(source) = &volume.config_map {
            self.config_maps.insert(source.name.clone());
        }
        if let Some(name) = volume.secret.as_ref().and_then(|s| s.secret_name.clone()) {
            self.secrets.insert(name);
        }
        self.claims.extend(volume.persistent_volume_claim.iter().map(|c| c.claim_name.clone()));
        self.claims.extend(volume.ephemeral.iter().map(|_| ephemeral_claim(pod, &volume.name)));
        for source in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
            self.config_maps.extend(source.config_map.iter().map(|c| c.name.clone()));
            self.secrets.extend(source.secret.iter().map(|s| s.name.clone()));
            self.tokens.extend(source.service_account_token.iter().map(TokenWant::of));
            self.trust_bundles |= source.cluster_trust_bundle.is_some();
        }
    }

    fn add_env(&mut self, container: &Container) {
        for from in container.env_from.iter().flatten() {
            self.config_maps.extend(from.config_map_ref.iter().map(|r| r.name.clone()));
            self.secrets.extend(from.secret_ref.iter().map(|r| r.name.clone()));
        }
        for source in container.env.iter().flatten().filter_map(|e| e.value_from.as_ref()) {
            self.config_maps.extend(source.config_map_key_ref.iter().map(|r| r.name.clone()));
            self.secrets.extend(source.secret_key_ref.iter().map(|r| r.name.clone()));
        }
    }
}

// === impl TokenWant ===

impl TokenWant {
    #[must_use]
    pub fn of(source: &k8s_openapi::api::core::v1::ServiceAccountTokenProjection) -> TokenWant {
        TokenWant {
            audience: source.audience.clone().unwrap_or_default(),
            seconds: source.expiration_seconds.unwrap_or(3600),
        }
    }
}

// === impl Referenced ===

/// Without the object, which may be a Secret.
impl<T> std::fmt::Debug for Referenced<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Referenced::Found(_) => f.write_str("Found"),
            Referenced::Missing => f.write_str("Missing"),
            Referenced::Failed(why) => f.debug_tuple("Failed").field(why).finish(),
        }
    }
}

// === impl ReferencedObjects ===

/// Without tokens and what is in Secrets.
impl std::fmt::Debug for ReferencedObjects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tokens = self.tokens.iter().map(|(want, token)| (want, token.as_ref().map(|_| "…")));
        f.debug_struct("ReferencedObjects")
            .field("has_server", &self.has_server)
            .field("config_maps", &self.config_maps)
            .field("secrets", &self.secrets)
            .field("tokens", &tokens.collect::<BTreeMap<_, _>>())
            .field("claims", &self.claims)
            .field("trust_bundles", &self.trust_bundles)
            .finish()
    }
}

impl ReferencedObjects {
    /// A ConfigMap; none if it is optional and does not exist.
    pub fn config_map(
        &self,
        namespace: &str,
        name: &str,
        optional: Option<bool>,
    ) -> Result<Option<&ConfigMap>, String> {
        let known = self.config_maps.get(name);
        self.look_up(known, ["configMap", "configmap"], namespace, name, optional == Some(true))
    }

    /// A Secret; none if it is optional and does not exist.
    pub fn secret(
        &self,
        namespace: &str,
        name: &str,
        optional: Option<bool>,
    ) -> Result<Option<&Secret>, String> {
        let known = self.secrets.get(name);
        self.look_up(known, ["secret", "secret"], namespace, name, optional == Some(true))
    }

    fn look_up<'a, T>(
        &self,
        known: Option<&'a Referenced<T>>,
        [kind, resource]: [&str; 2],
        namespace: &str,
        name: &str,
        optional: bool,
    ) -> Result<Option<&'a T>, String> {
        match known {
            Some(Referenced::Found(object)) => Ok(Some(object)),
            None if !self.has_server && optional => Ok(None),
            None if !self.has_server => {
                Err(format!("couldn't get {kind} {namespace}/{name}, no kubeClient defined"))
            }
            Some(Referenced::Missing) if optional => Ok(None),
            Some(Referenced::Missing) => Err(format!("{resource} {name:?} not found")),
            Some(Referenced::Failed(why)) => Err(why.clone()),
            None => Err(format!("object {namespace:?}/{name:?} not registered")),
        }
    }

    /// The volume a claim is bound to, or why there is none.
    pub fn volume_of(&self, claim: &str) -> Result<&Bound, String> {
        match self.claims.get(claim) {
            Some(Ok(volume)) => Ok(volume),
            Some(Err(why)) => Err(why.clone()),
            None => Err("nobody asked for it".to_owned()),
        }
    }

    /// All bundles, or why there are none.
    pub fn trust_bundles(&self) -> Result<&[Arc<TrustBundle>], String> {
        match &self.trust_bundles {
            Some(Ok(all)) => Ok(all),
            Some(Err(why)) => Err(why.clone()),
            None => Err("ClusterTrustBundle projection is not supported in static kubelet mode".to_owned()),
        }
    }

    /// A token, or why there is none.
    pub fn token(&self, want: &TokenWant) -> Result<&str, String> {
        match self.tokens.get(want) {
            Some(Ok(token)) => Ok(token),
            Some(Err(why)) => Err(why.clone()),
            None => Err("failed to fetch token: nobody asked for it".to_owned()),
        }
    }
}

/// Names of the Secrets that hold logins for registries.
pub fn pull_secrets(spec: &PodSpec) -> impl Iterator<Item = &str> {
    let names = spec.image_pull_secrets.iter().flatten().map(|s| s.name.as_str());
    names.filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri_config::testing::pod;

    #[test]
    fn everything_the_pod_names_is_found() {
        let p = pod("
containers:
- name: main
  envFrom: [{configMapRef: {name: env-map}}, {secretRef: {name: env-secret}}]
initContainers:
- name: first
  env: [{name: A, valueFrom: {configMapKeyRef: {name: key-map, key: k}}}]
ephemeralContainers:
- name: debug
  env: [{name: A, valueFrom: {secretKeyRef: {name: key-secret, key: k}}}]
imagePullSecrets: [{name: pull}, {}]
volumes:
- {name: a, configMap: {name: vol-map}}
- {name: b, secret: {secretName: vol-secret}}
- name: c
  projected:
    sources:
    - configMap: {name: proj-map}
    - secret: {name: proj-secret}
    - serviceAccountToken: {path: t, audience: vault, expirationSeconds: 600}
    - serviceAccountToken: {path: u}");
        let wants = References::of_pod(&p);
        let all = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(" ");
        assert_eq!(all(&wants.config_maps), "env-map key-map proj-map vol-map");
        assert_eq!(all(&wants.secrets), "env-secret key-secret proj-secret pull vol-secret");
        let token = |audience: &str, seconds| TokenWant { audience: audience.into(), seconds };
        assert!(wants.tokens.into_iter().eq([token("", 3600), token("vault", 600)]));
        assert_eq!(all(&References::of_volumes(&p).secrets), "proj-secret vol-secret");
        assert_eq!(all(&References::of_container(&p, "main").config_maps), "env-map");
    }

    #[test]
    fn no_secret_is_shown() {
        let mut s = ReferencedObjects::default();
        let secret = Secret {
            string_data: Some(BTreeMap::from([("k".to_owned(), "hidden".to_owned())])),
            ..Default::default()
        };
        s.secrets.insert("s".into(), Referenced::Found(Arc::new(secret)));
        s.tokens.insert(TokenWant { audience: "a".into(), seconds: 1 }, Ok("hidden".into()));
        let file = crate::volumes::File { data: b"hidden".to_vec(), mode: 0o600, uid: 0 };
        let shown = format!("{s:?} {file:?}");
        assert!(!shown.contains("hidden") && !shown.contains("104, 105"), "{shown}");
        assert!(shown.contains("Found") && shown.contains("6 bytes"), "{shown}");
    }

    #[test]
    fn what_is_missing_is_named() {
        let mut s = ReferencedObjects::default();
        let map = |s: &ReferencedObjects, optional| {
            s.config_map("ns", "m", optional).map(|m| m.is_some()).unwrap_or_else(|e| {
                assert!(!e.is_empty());
                false
            })
        };
        let why = |s: &ReferencedObjects| s.config_map("ns", "m", None).err().unwrap_or_default();
        assert_eq!(why(&s), "couldn't get configMap ns/m, no kubeClient defined");
        assert!(!map(&s, Some(true)));
        s.has_server = true;
        assert_eq!(why(&s), "object \"ns\"/\"m\" not registered");
        s.config_maps.insert("m".into(), Referenced::Missing);
        assert_eq!(why(&s), "configmap \"m\" not found");
        s.config_maps.insert("m".into(), Referenced::Failed("timed out".into()));
        // Optional means that it may not exist, not that it may be unknown.
        assert_eq!(s.config_map("ns", "m", Some(true)).err().as_deref(), Some("timed out"));
        s.config_maps.insert("m".into(), Referenced::Found(Arc::default()));
        assert!(map(&s, None));
    }
}
