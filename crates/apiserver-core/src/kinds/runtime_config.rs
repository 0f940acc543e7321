//! `--runtime-config`: which of the kinds are served that are not always: those that upstream has switched off unless
//! somebody asks for them, and those that upstream leaves to a server of their own.

use std::collections::BTreeMap;

use super::{all, cluster_trust_bundle, node_metrics};
use crate::kind::Kind;

/// What was asked for: `group/version`, `group/version/resource`, `api/beta` or `api/all`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeConfig {
    wishes: BTreeMap<String, bool>,
}

/// With whether they are served where nobody says anything.
fn optional() -> Vec<(Kind, bool)> {
    vec![(cluster_trust_bundle::kind(), false), (node_metrics::nodes(), true), (node_metrics::pods(), true)]
}

// === impl RuntimeConfig ===

impl RuntimeConfig {
    /// Refuses names of nothing, and to switch off what is always served.
    pub fn new(wishes: BTreeMap<String, bool>) -> Result<Self, String> {
        let optional: Vec<Kind> = optional().into_iter().map(|(kind, _)| kind).collect();
        let always = all();
        for (name, on) in &wishes {
            let names = |kinds: &[Kind]| {
                kinds.iter().any(|k| levels(k).iter().any(|l| l == name) || resource(k) == *name)
            };
            match (names(&optional), names(&always)) {
                (true, _) => {}
                (false, true) if *on => {}
                (false, true) => return Err(format!("{name} is always served")),
                (false, false) => return Err(format!("unknown api groups {name}")),
            }
        }
        Ok(Self { wishes })
    }

    /// Every built-in kind that is served.
    #[must_use]
    pub fn built_in(&self) -> Vec<Kind> {
        let wanted = optional().into_iter().filter(|(kind, usual)| self.is_on(kind, *usual));
        all().into_iter().chain(wanted.map(|(kind, _)| kind)).collect()
    }

    /// The narrowest wish counts.
    fn is_on(&self, kind: &Kind, usual: bool) -> bool {
        let wish = |name: &String| self.wishes.get(name).copied();
        wish(&resource(kind)).or_else(|| levels(kind).iter().find_map(wish)).unwrap_or(usual)
    }
}

fn resource(kind: &Kind) -> String {
    format!("{}/{}/{}", kind.group, kind.version, kind.plural)
}

/// What names the kind among others, the narrowest first.
fn levels(kind: &Kind) -> [String; 3] {
    let maturity = if kind.version.contains("beta") { "api/beta" } else { "api/ga" };
    [format!("{}/{}", kind.group, kind.version), maturity.to_owned(), "api/all".to_owned()]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_wish_counts() {
        let rows = [
            ("", false),
            ("certificates.k8s.io/v1beta1=true", true),
            ("certificates.k8s.io/v1beta1/clustertrustbundles=true", true),
            ("api/all=true", true),
            ("api/beta=true", true),
            ("api/beta=true certificates.k8s.io/v1beta1=false", false),
            ("certificates.k8s.io/v1beta1=true certificates.k8s.io/v1beta1/clustertrustbundles=false", false),
            ("apps/v1=true", false),
        ];
        for (text, served) in rows {
            let wishes = text.split(' ').filter_map(|w| w.split_once('='));
            let wishes = wishes.map(|(name, on)| (name.to_owned(), on == "true")).collect();
            let kinds = RuntimeConfig::new(wishes).unwrap().built_in();
            assert_eq!(kinds.iter().any(|k| k.kind == "ClusterTrustBundle"), served, "{text}");
        }
        let metrics = |wishes: &[(&str, bool)]| {
            let wishes = wishes.iter().map(|(name, on)| ((*name).to_owned(), *on)).collect();
            let kinds = RuntimeConfig::new(wishes).unwrap().built_in();
            kinds.iter().filter(|k| k.group == node_metrics::GROUP).count()
        };
        assert_eq!((metrics(&[]), metrics(&[("metrics.k8s.io/v1beta1", false)])), (2, 0));
        let refused = |name: &str, on| RuntimeConfig::new([(name.to_owned(), on)].into()).unwrap_err();
        assert_eq!(refused("apps/v1", false), "apps/v1 is always served");
        assert_eq!(refused("apps/v9", true), "unknown api groups apps/v9");
    }
}
