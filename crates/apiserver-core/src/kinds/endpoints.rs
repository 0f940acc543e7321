//! Endpoints: the older list of where a Service's traffic goes.

use api::field::FieldErrors;
use api::names;
use base::time::Wall;
use serde_json::Value;

use super::{address, check};
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, Strategy};
use crate::table;

pub(super) const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];

const COLUMNS: &[Column] =
    &[Column::NAME, Column::text("Endpoints", "The addresses that are ready"), Column::AGE];
const DEPRECATED: &str = "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice";

pub(super) fn kind() -> Kind {
    Kind::core("Endpoints", "endpoints", Endpoints).short(&["ep"])
}

#[derive(Debug)]
struct Endpoints;

// === impl Endpoints ===

impl Strategy for Endpoints {
    fn set_defaults(&self, object: &mut Value) {
        for subset in doc::list_mut(object, "subsets") {
            for port in doc::list_mut(subset, "ports") {
                doc::fill_text(port, "protocol", "TCP");
            }
        }
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        for subset in Field::root(object).get("subsets").items() {
            let (ready, not_ready) = (subset.get("addresses"), subset.get("notReadyAddresses"));
            if ready.is_empty() && not_ready.is_empty() {
                errors.required(&subset.at, "must specify `addresses` or `notReadyAddresses`");
            }
            for address in ready.items().chain(not_ready.items()) {
                endpoint(errors, &address);
            }
            let ports = subset.get("ports");
            for p in ports.items() {
                port(errors, &p, ports.len() > 1);
            }
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        if new["subsets"] != old["subsets"] {
            self.validate(new, errors);
        }
    }

    fn warnings(&self, _new: &Value, _old: Option<&Value>) -> Vec<String> {
        vec![DEPRECATED.to_owned()]
    }

    fn creates_on_update(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        vec![table::name(object), ready_addresses(object).into(), table::age(object, now).into()]
    }
}

fn endpoint(errors: &mut FieldErrors, address: &Field<'_>) {
    address::endpoint_ip(errors, &address.get("ip"));
    let hostname = address.get("hostname");
    if !hostname.is_empty() {
        check::spelled(errors, &hostname, names::dns_label);
    }
    let node = address.get("nodeName");
    if node.is_set() {
        check::spelled(errors, &node, names::dns_subdomain);
    }
}

fn port(errors: &mut FieldErrors, port: &Field<'_>, needs_name: bool) {
    let name = port.get("name");
    if !name.is_empty() {
        check::spelled(errors, &name, names::dns_label);
    } else if needs_name {
        errors.required(&name.at, "");
    }
    check::port_number(errors, &port.get("port"));
    check::one_of(errors, &port.get("protocol"), PROTOCOLS);
    let app = port.get("appProtocol");
    if app.is_set() {
        check::spelled(errors, &app, names::qualified_name);
    }
}

fn ready_addresses(object: &Value) -> String {
    let subsets = doc::list(object, "subsets");
    if subsets.is_empty() {
        return "<none>".to_owned();
    }
    let mut all = Vec::new();
    for subset in subsets {
        let addresses = || doc::list(subset, "addresses").iter().map(|a| doc::text(a, "ip"));
        let ports = doc::list(subset, "ports");
        if ports.is_empty() {
            all.extend(addresses().map(str::to_owned));
        }
        for port in ports {
            let port = doc::int(port, "port");
            all.extend(addresses().map(|ip| match ip.contains(':') {
                true => format!("[{ip}]:{port}"),
                false => format!("{ip}:{port}"),
            }));
        }
    }
    table::first_few(&all, 3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn three_addresses_are_shown() {
        let ip = |i: u8| json!({"ip": format!("10.0.0.{i}")});
        let object = json!({"metadata": {"name": "e"}, "subsets": [
            {"addresses": [ip(1), ip(2)], "ports": [{"port": 80}, {"port": 443}]}]});
        assert_eq!(ready_addresses(&object), "10.0.0.1:80,10.0.0.2:80,10.0.0.1:443 + 1 more...");
        assert_eq!(ready_addresses(&json!({})), "<none>");
        assert_eq!(
            ready_addresses(&json!({"subsets": [{"addresses": [{"ip": "::1"}], "ports": [{"port": 1}]}]})),
            "[::1]:1"
        );
    }

    #[test]
    fn statuses() {
        let object = json!({"subsets": [{"addresses": [{"ip": "127.0.0.1"}], "ports": [
            {"port": 0, "protocol": "TCP"}, {"name": "b", "port": 1, "protocol": "X"}]}, {}]});
        let mut errors = FieldErrors::default();
        Endpoints.validate(&object, &mut errors);
        assert_eq!(
            errors.to_string(),
            "[subsets[0].addresses[0].ip: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, \
             ::1/128), subsets[0].ports[0].name: Required value, subsets[0].ports[0].port: Invalid value: 0: must be \
             between 1 and 65535, inclusive, subsets[0].ports[1].protocol: Unsupported value: \"X\": supported \
             values: \"SCTP\", \"TCP\", \"UDP\", subsets[1]: Required value: must specify `addresses` or \
             `notReadyAddresses`]"
        );
    }
}
