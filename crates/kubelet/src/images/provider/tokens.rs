//! Providers that act for a Pod's service account: who the Pod is, and what the provider may know of that.

use std::collections::{BTreeMap, BTreeSet};

use api::names;
use k8s_openapi::api::core::v1::Pod;
use kubelet_core::images::ServiceAccountRef;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::super::hex;
use crate::ports::Accounts;

/// The only version whose requests can carry a token.
const V1: &str = super::API_VERSIONS[0];
const GATE: &str = "KubeletServiceAccountTokenForCredentialProviders";

/// `tokenAttributes` of a provider.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct TokenAttributes {
    #[serde(default)]
    service_account_token_audience: String,
    require_service_account: Option<bool>,
    #[serde(default)]
    required_service_account_annotation_keys: Vec<String>,
    #[serde(default)]
    optional_service_account_annotation_keys: Vec<String>,
    #[serde(default)]
    cache_type: String,
}

/// For which Pod a provider is asked, and who can say who that is.
#[derive(Clone, Copy)]
pub(in crate::images) struct Asker<'a> {
    pub(in crate::images) pod: &'a Pod,
    pub(in crate::images) accounts: Option<&'a dyn Accounts>,
}

/// Who a Pod is, as a provider is told.
pub(super) struct Identity {
    pub(super) account: ServiceAccountRef,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) token: String,
}

/// For whom an answer is remembered; nobody in particular by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Speaker {
    account: Option<[String; 3]>,
    annotations: BTreeMap<String, String>,
    /// Of the token, where an answer is good for one token only. The token itself is nobody's business.
    token_hash: String,
}

// === impl TokenAttributes ===

impl TokenAttributes {
    pub(super) fn requires_account(&self) -> bool {
        self.require_service_account == Some(true)
    }

    /// Who the Pod is: `Some(None)` is nobody, where the provider does not mind, and `None` one whom it has nothing to
    /// say to. Such a Pod may simply not want what it offers, so that is no error.
    pub(super) async fn identify(&self, asker: Asker<'_>) -> Result<Option<Option<Identity>>, String> {
        let pod = asker.pod;
        let name = pod.spec.as_ref().and_then(|s| s.service_account_name.as_deref()).unwrap_or_default();
        if name.is_empty() {
            return Ok((!self.requires_account()).then_some(None));
        }
        let accounts = asker.accounts.ok_or("there is no API server to ask for service accounts")?;
        let account =
            accounts.account(pod).await.map_err(|e| format!("failed to get service account: {e}"))?;
        let mut annotations = BTreeMap::new();
        for key in &self.required_service_account_annotation_keys {
            let Some(value) = account.annotations.get(key) else {
                tracing::debug!(
                    pod = pod.metadata.name,
                    account = name,
                    key,
                    "required annotation not found"
                );
                return Ok(None);
            };
            annotations.insert(key.clone(), value.clone());
        }
        let optional = self.optional_service_account_annotation_keys.iter();
        annotations.extend(
            optional
                .filter_map(|k| account.annotations.get_key_value(k))
                .map(|(k, v)| (k.clone(), v.clone())),
        );
        let token = accounts.token(pod, &account.uid, &self.service_account_token_audience).await;
        let token = token.map_err(|e| format!("failed to get service account token: {e}"))?;
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let account = ServiceAccountRef { uid: account.uid, namespace, name: name.to_owned() };
        Ok(Some(Some(Identity { account, annotations, token })))
    }

    pub(super) fn speaker(&self, identity: &Identity) -> Speaker {
        let ServiceAccountRef { uid, namespace, name } = identity.account.clone();
        let hash = || hex(&Sha256::digest(identity.token.as_bytes()));
        Speaker {
            account: Some([namespace, name, uid]),
            annotations: identity.annotations.clone(),
            token_hash: if self.per_token() { hash() } else { String::new() },
        }
    }

    /// A token that comes back as the password is good for one Pod, and must not be remembered for its whole account.
    pub(super) fn check_echo<'a>(
        &self,
        identity: &Identity,
        mut passwords: impl Iterator<Item = &'a str>,
    ) -> Result<(), String> {
        if !self.per_token() && passwords.any(|p| p == identity.token) {
            return Err(
                "it returned the service account token as the password, which only cacheType Token allows"
                    .into(),
            );
        }
        Ok(())
    }

    fn per_token(&self) -> bool {
        self.cache_type == "Token"
    }

    pub(super) fn mistakes(&self, api_version: &str, gate: bool) -> Vec<String> {
        let mut found = Vec::new();
        let mut check = |wrong: bool, text: String| {
            if wrong {
                found.push(format!("tokenAttributes{text}"));
            }
        };
        check(!gate, format!(": not supported when the feature gate {GATE} is disabled"));
        check(api_version != V1, format!(": only supported for apiVersion {V1}"));
        check(
            self.service_account_token_audience.is_empty(),
            ".serviceAccountTokenAudience: required".into(),
        );
        check(self.require_service_account.is_none(), ".requireServiceAccount: required".into());
        let (required, optional) =
            (&self.required_service_account_annotation_keys, &self.optional_service_account_annotation_keys);
        check(
            self.require_service_account == Some(false) && !required.is_empty(),
            ".requiredServiceAccountAnnotationKeys: requireServiceAccount cannot be false when this is set"
                .into(),
        );
        for (field, keys) in [("required", required), ("optional", optional)] {
            let mut seen = BTreeSet::new();
            for key in keys {
                let at = format!(".{field}ServiceAccountAnnotationKeys: {key:?}");
                for why in names::qualified_name(&key.to_lowercase()) {
                    check(true, format!("{at}: {why}"));
                }
                check(!seen.insert(key), format!("{at}: duplicate"));
            }
        }
        let both: Vec<&String> = required.iter().filter(|k| optional.contains(k)).collect();
        check(!both.is_empty(), format!(": annotation keys cannot be both required and optional: {both:?}"));
        let known = ["ServiceAccount", "Token"].contains(&self.cache_type.as_str());
        check(
            !known,
            format!(".cacheType: {:?} is neither \"ServiceAccount\" nor \"Token\"", self.cache_type),
        );
        found
    }
}
