//! The Pod's hostname and domain.

use k8s_openapi::api::core::v1::Pod;

use super::types::CriConfigError;
use crate::downward::{is_dns_label, is_dns_subdomain};

/// The kernel holds 64 bytes, one of them for the end.
const HOSTNAME_MAX: usize = 63;
const FQDN_MAX: usize = 64;

/// Short hostname and domain (empty without a subdomain).
pub(super) fn hostname_and_domain(
    pod: &Pod,
    cluster_domain: &str,
) -> Result<(String, String), CriConfigError> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let spec = pod.spec.clone().unwrap_or_default();
    if let Some(hostname) = &spec.hostname_override {
        if !is_dns_subdomain(hostname) {
            return Err(CriConfigError::config(format!(
                "pod HostnameOverride {hostname:?} is not a valid DNS subdomain"
            )));
        }
        return Ok((truncate(name, hostname)?, String::new()));
    }
    let hostname = match spec.hostname.as_deref().filter(|h| !h.is_empty()) {
        Some(h) if !is_dns_label(h) => {
            return Err(CriConfigError::config(format!("pod Hostname {h:?} is not a valid DNS label")));
        }
        Some(h) => h,
        None => name,
    };
    let domain = match spec.subdomain.as_deref().filter(|s| !s.is_empty()) {
        Some(s) if !is_dns_label(s) => {
            return Err(CriConfigError::config(format!("pod Subdomain {s:?} is not a valid DNS label")));
        }
        Some(s) => {
            format!("{s}.{}.svc.{cluster_domain}", pod.metadata.namespace.as_deref().unwrap_or_default())
        }
        None => String::new(),
    };
    Ok((truncate(name, hostname)?, domain))
}

/// What the kernel is told: the short name, or the full one with setHostnameAsFQDN.
pub(super) fn kernel_hostname(pod: &Pod, cluster_domain: &str) -> Result<String, CriConfigError> {
    let (hostname, domain) = hostname_and_domain(pod, cluster_domain)?;
    let as_fqdn = pod.spec.as_ref().and_then(|s| s.set_hostname_as_fqdn) == Some(true);
    if domain.is_empty() || !as_fqdn {
        return Ok(hostname);
    }
    let fqdn = format!("{hostname}.{domain}");
    if fqdn.len() > FQDN_MAX {
        return Err(CriConfigError::sandbox(format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long ({FQDN_MAX} characters is the max, {} characters requested)",
            fqdn.len()
        )));
    }
    Ok(fqdn)
}

fn truncate(pod: &str, hostname: &str) -> Result<String, CriConfigError> {
    if hostname.len() <= HOSTNAME_MAX {
        return Ok(hostname.to_owned());
    }
    let end = (0..=HOSTNAME_MAX).rev().find(|i| hostname.is_char_boundary(*i)).unwrap_or(0);
    let cut = hostname[..end].trim_end_matches(['-', '.']);
    if cut.is_empty() {
        return Err(CriConfigError::config(format!("hostname for pod {pod:?} was invalid: {hostname:?}")));
    }
    Ok(cut.to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::pod;
    use super::*;

    #[test]
    fn names() {
        let long = "a".repeat(62);
        for (spec, want) in [
            ("{}", Ok(("web", "", "web"))),
            ("hostname: h", Ok(("h", "", "h"))),
            ("{hostname: h, subdomain: s}", Ok(("h", "s.shop.svc.cluster.local", "h"))),
            (
                "{hostname: h, subdomain: s, setHostnameAsFQDN: true}",
                Ok(("h", "s.shop.svc.cluster.local", "h.s.shop.svc.cluster.local")),
            ),
            ("{hostname: h, subdomain: s, hostnameOverride: x.y}", Ok(("x.y", "", "x.y"))),
            ("setHostnameAsFQDN: true", Ok(("web", "", "web"))),
            ("hostname: A", Err("pod Hostname \"A\" is not a valid DNS label")),
            ("subdomain: a.b", Err("pod Subdomain \"a.b\" is not a valid DNS label")),
            ("hostnameOverride: -x", Err("pod HostnameOverride \"-x\" is not a valid DNS subdomain")),
        ] {
            let p =
                pod(&format!("{{containers: [], {}}}", spec.trim_matches(['{', '}'])).replace(", }", "}"));
            let got = hostname_and_domain(&p, "cluster.local")
                .and_then(|(h, d)| Ok((h, d, kernel_hostname(&p, "cluster.local")?)));
            match (got, want) {
                (Ok((h, d, k)), Ok(want)) => assert_eq!((&*h, &*d, &*k), want, "{spec}"),
                (Err(e), Err(want)) => assert_eq!(e.message, want),
                (got, want) => panic!("{spec}: {got:?} instead of {want:?}"),
            }
        }
        let mut p = pod("containers: []");
        p.metadata.name = Some(format!("{long}-.-tail"));
        assert_eq!(hostname_and_domain(&p, "d").unwrap().0, long);
        let mut p = pod("{containers: [], subdomain: s, setHostnameAsFQDN: true}");
        p.metadata.name = Some(long.clone());
        assert_eq!(
            kernel_hostname(&p, "d").unwrap_err().message,
            format!(
                "failed to construct FQDN from pod hostname and cluster domain, FQDN {long}.s.shop.svc.d is too long (64 characters is the max, 75 characters requested)"
            )
        );
    }
}
