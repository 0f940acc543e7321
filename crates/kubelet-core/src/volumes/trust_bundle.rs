//! projected clusterTrustBundle: certificates of authorities, from one bundle or from all of a signer.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use api::selector::LabelSelector;
use k8s_openapi::api::core::v1::ClusterTrustBundleProjection;

use super::payload::private_file;
use super::{Context, Payload, atomic};
use crate::references::TrustBundle;

pub(super) fn add(
    context: &Context<'_>,
    source: &ClusterTrustBundleProjection,
    mode: i32,
    payload: &mut Payload,
) -> Result<(), String> {
    let all: Vec<&TrustBundle> = context.references.trust_bundles()?.iter().map(|b| &**b).collect();
    let optional = source.optional == Some(true);
    let chosen: Vec<&TrustBundle> = if let Some(name) = &source.name {
        let found = all.iter().copied().find(|b| b.name == *name);
        if found.is_none() && !optional {
            return Err(format!(
                "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io {name:?} not found"
            ));
        }
        found.into_iter().collect()
    } else if let Some(signer) = &source.signer_name {
        // No selector matches nothing, an empty one everything.
        let selector = source
            .label_selector
            .as_ref()
            .map(|s| LabelSelector::from_object(&serde_json::to_value(s).unwrap_or_default()));
        let fits = |labels: &BTreeMap<String, String>| {
            selector.as_ref().is_some_and(|s| s.matches(|key| labels.get(key).map(String::as_str)))
        };
        let found: Vec<_> = all.iter().copied().filter(|b| b.signer == *signer && fits(&b.labels)).collect();
        if found.is_empty() && !optional {
            return Err("combination of signerName and labelSelector matched zero ClusterTrustBundles".into());
        }
        found
    } else {
        return Err("ClusterTrustBundle projection requires either name or signerName to be set".into());
    };
    let data = normal(chosen.iter().map(|b| b.pem.as_str())).into_bytes();
    payload.insert(atomic::clean(&source.path), private_file(context.pod, data, mode));
    Ok(())
}

/// Every certificate once, without what stands between them, in an order that does not change.
fn normal<'a>(bundles: impl Iterator<Item = &'a str>) -> String {
    let mut bodies = BTreeSet::new();
    for text in bundles {
        let mut lines = text.lines().map(str::trim);
        while lines.by_ref().any(|line| line.starts_with("-----BEGIN ")) {
            let body = lines.by_ref().take_while(|line| !line.starts_with("-----END "));
            // A header of the block is no part of the certificate.
            let body: String = body.filter(|line| !line.contains(':')).collect();
            if !body.is_empty() {
                bodies.insert(body);
            }
        }
    }
    let mut out = String::new();
    for body in bodies {
        out.push_str("-----BEGIN CERTIFICATE-----\n");
        for line in body.as_bytes().chunks(64) {
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{}", String::from_utf8_lossy(line));
        }
        out.push_str("-----END CERTIFICATE-----\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_kept_once_and_nothing_else() {
        let one = "note\n-----BEGIN CERTIFICATE-----\nProc-Type: 4\nQUJD\nREVG\n-----END CERTIFICATE-----\n";
        let two = "-----BEGIN CERTIFICATE-----\nQUJDREVG\n-----END CERTIFICATE-----\njunk\n-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----";
        let block = |body: &str| format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n");
        assert_eq!(normal([one, two].into_iter()), block("AAAA") + &block("QUJDREVG"));
        assert_eq!(normal(["nothing"].into_iter()), "");
    }
}
