//! Services as environment variables, the oldest way to find them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;

/// A Service, as far as a variable can say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub namespace: String,
    pub name: String,
    pub cluster_ip: String,
    pub ports: Vec<Port>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    pub name: String,
    pub port: i32,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
}

/// The variables a Pod's containers see: of every Service in its namespace unless it declines, and of the API
/// server's in any case, which is how clients in the cluster find it.
pub fn service_env<'a>(pod: &Pod, services: impl Iterator<Item = &'a Service>) -> BTreeMap<String, String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let links = pod.spec.as_ref().and_then(|s| s.enable_service_links).unwrap_or(true);
    let mut env = BTreeMap::new();
    let mut api_server = None;
    let mut has_own = false;
    for service in services {
        if service.namespace == "default" && service.name == "kubernetes" {
            api_server = Some(service);
        } else if links && service.namespace == namespace {
            // As upstream has it: one of the Pod's own namespace takes the name from the API server's.
            has_own |= service.name == "kubernetes";
            add(&mut env, service);
        }
    }
    api_server.into_iter().filter(|_| !has_own).for_each(|s| add(&mut env, s));
    env
}

fn add(env: &mut BTreeMap<String, String>, service: &Service) {
    let Some(first) = service.ports.first() else { return };
    let prefix = variable(&service.name);
    let ip = &service.cluster_ip;
    let host = if ip.contains(':') { format!("[{ip}]") } else { ip.clone() };
    let url = |port: &Port| format!("{}://{host}:{}", port.protocol.to_lowercase(), port.port);
    env.insert(format!("{prefix}_SERVICE_HOST"), ip.clone());
    env.insert(format!("{prefix}_SERVICE_PORT"), first.port.to_string());
    env.insert(format!("{prefix}_PORT"), url(first));
    for port in &service.ports {
        if !port.name.is_empty() {
            env.insert(format!("{prefix}_SERVICE_PORT_{}", variable(&port.name)), port.port.to_string());
        }
        let of_port = format!("{prefix}_PORT_{}_{}", port.port, port.protocol.to_uppercase());
        env.insert(format!("{of_port}_PROTO"), port.protocol.to_lowercase());
        env.insert(format!("{of_port}_PORT"), port.port.to_string());
        env.insert(format!("{of_port}_ADDR"), ip.clone());
        env.insert(of_port, url(port));
    }
}

fn variable(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri_config::testing::pod;

    fn service(namespace: &str, name: &str, ip: &str, ports: &[(&str, i32, &str)]) -> Service {
        let port = |(name, port, protocol): &(&str, i32, &str)| Port {
            name: (*name).into(),
            port: *port,
            protocol: (*protocol).into(),
        };
        Service {
            namespace: namespace.into(),
            name: name.into(),
            cluster_ip: ip.into(),
            ports: ports.iter().map(port).collect(),
        }
    }

    #[test]
    fn the_variables_of_links() {
        let all = [
            service("default", "kubernetes", "10.96.0.1", &[("https", 443, "TCP")]),
            service("shop", "my-db", "fd00::2", &[("", 5432, "TCP"), ("dns-x", 53, "UDP")]),
            service("other", "db", "10.96.0.3", &[("", 1, "TCP")]),
        ];
        let p = pod("containers: []");
        let lines =
            |p: &Pod| service_env(p, all.iter()).iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>();
        let kubernetes = [
            "KUBERNETES_PORT=tcp://10.96.0.1:443",
            "KUBERNETES_PORT_443_TCP=tcp://10.96.0.1:443",
            "KUBERNETES_PORT_443_TCP_ADDR=10.96.0.1",
            "KUBERNETES_PORT_443_TCP_PORT=443",
            "KUBERNETES_PORT_443_TCP_PROTO=tcp",
            "KUBERNETES_SERVICE_HOST=10.96.0.1",
            "KUBERNETES_SERVICE_PORT=443",
            "KUBERNETES_SERVICE_PORT_HTTPS=443",
        ];
        let got = lines(&p);
        assert_eq!(got[..8], kubernetes);
        assert_eq!(
            got[8..],
            [
                "MY_DB_PORT=tcp://[fd00::2]:5432",
                "MY_DB_PORT_53_UDP=udp://[fd00::2]:53",
                "MY_DB_PORT_53_UDP_ADDR=fd00::2",
                "MY_DB_PORT_53_UDP_PORT=53",
                "MY_DB_PORT_53_UDP_PROTO=udp",
                "MY_DB_PORT_5432_TCP=tcp://[fd00::2]:5432",
                "MY_DB_PORT_5432_TCP_ADDR=fd00::2",
                "MY_DB_PORT_5432_TCP_PORT=5432",
                "MY_DB_PORT_5432_TCP_PROTO=tcp",
                "MY_DB_SERVICE_HOST=fd00::2",
                "MY_DB_SERVICE_PORT=5432",
                "MY_DB_SERVICE_PORT_DNS_X=53",
            ]
        );
        let unlinked = pod("{containers: [], enableServiceLinks: false}");
        assert_eq!(lines(&unlinked), kubernetes);

        // One of the Pod's own namespace takes the name, whoever is listed first.
        let own = service("shop", "kubernetes", "10.96.9.9", &[("", 1, "TCP")]);
        for both in [[&all[0], &own], [&own, &all[0]]] {
            let env = service_env(&p, both.into_iter());
            assert_eq!(env["KUBERNETES_SERVICE_HOST"], "10.96.9.9");
            assert!(!env.contains_key("KUBERNETES_SERVICE_PORT_HTTPS"), "{env:?}");
            assert_eq!(service_env(&unlinked, both.into_iter())["KUBERNETES_SERVICE_HOST"], "10.96.0.1");
        }
    }
}
