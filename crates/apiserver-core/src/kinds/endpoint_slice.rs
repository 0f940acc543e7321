//! EndpointSlice: a part of where a Service's traffic goes.

use std::collections::BTreeSet;

use api::field::FieldErrors;
use api::names;
use base::time::Wall;
use serde_json::Value;

use super::{address, check, endpoints};
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, Strategy};
use crate::table;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::text("AddressType", "What the addresses are"),
    Column::text("Ports", "The ports of every endpoint"),
    Column::text("Endpoints", "The addresses"),
    Column::AGE,
];

pub(super) fn kind() -> Kind {
    Kind::new("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", EndpointSlice)
}

#[derive(Debug)]
struct EndpointSlice;

// === impl EndpointSlice ===

impl Strategy for EndpointSlice {
    fn set_defaults(&self, object: &mut Value) {
        for port in doc::list_mut(object, "ports") {
            doc::fill(port, "name", "");
            doc::fill(port, "protocol", "TCP");
        }
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let root = Field::root(object);
        check::one_of(errors, &root.get("addressType"), &["FQDN", "IPv4", "IPv6"]);
        ports(errors, &root.get("ports"));
        let all = root.get("endpoints");
        if all.len() > 1000 {
            return errors.too_many(&all.at, all.len(), 1000);
        }
        for endpoint in all.items() {
            self::endpoint(errors, &endpoint, doc::text(object, "addressType"));
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        self.validate(new, errors);
        check::immutable(errors, new, old, "addressType");
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let ports: Vec<String> = doc::list(object, "ports").iter().map(port_cell).collect();
        let addresses: Vec<String> = doc::list(object, "endpoints")
            .iter()
            .flat_map(|e| doc::list(e, "addresses"))
            .map(|a| a.as_str().unwrap_or_default().to_owned())
            .collect();
        let shown = |list: &[String]| match table::first_few(list, 3) {
            text if text.is_empty() => "<unset>".to_owned(),
            text => text,
        };
        vec![
            table::name(object),
            doc::text(object, "addressType").into(),
            shown(&ports).into(),
            shown(&addresses).into(),
            table::age(object, now).into(),
        ]
    }
}

fn port_cell(port: &Value) -> String {
    match (port["port"].as_i64(), port["name"].as_str()) {
        (Some(number), _) => number.to_string(),
        (None, Some(name)) => name.to_owned(),
        (None, None) => "*".to_owned(),
    }
}

fn ports(errors: &mut FieldErrors, ports: &Field<'_>) {
    if ports.len() > 20_000 {
        return errors.too_many(&ports.at, ports.len(), 20_000);
    }
    let mut seen = BTreeSet::new();
    for port in ports.items() {
        let name = port.get("name");
        if !name.is_empty() {
            check::spelled(errors, &name, names::dns_label);
        }
        if !seen.insert(name.text()) {
            errors.duplicate(&name.at, name.text());
        }
        check::one_of(errors, &port.get("protocol"), endpoints::PROTOCOLS);
        let app = port.get("appProtocol");
        if app.is_set() {
            check::spelled(errors, &app, names::qualified_name);
        }
    }
}

fn endpoint(errors: &mut FieldErrors, endpoint: &Field<'_>, address_type: &str) {
    let addresses = endpoint.get("addresses");
    match addresses.len() {
        0 => errors.required(&addresses.at, "must contain at least 1 address"),
        1..=100 => {}
        n => errors.too_many(&addresses.at, n, 100),
    }
    for address in addresses.items() {
        let wanted = match address_type {
            "IPv4" => false,
            "IPv6" => true,
            "FQDN" => {
                check::spelled(errors, &address, names::dns_subdomain);
                continue;
            }
            _ => continue,
        };
        if address::endpoint_ip(errors, &address).is_some_and(|ip| ip.is_ipv6() != wanted) {
            errors.invalid(&addresses.at, address.text(), format!("must be an {address_type} address"));
        }
    }
    for (name, rule) in
        [("nodeName", names::dns_subdomain as fn(&str) -> Vec<String>), ("hostname", names::dns_label)]
    {
        let field = endpoint.get(name);
        if field.is_set() {
            check::spelled(errors, &field, rule);
        }
    }
    let topology = endpoint.get("deprecatedTopology");
    if topology.len() > 16 {
        errors.too_many(&topology.at, topology.len(), 16);
    }
    check::labels(errors, &topology);
    let hints = endpoint.get("hints");
    self::hints(errors, &hints.get("forZones"), names::label_value);
    self::hints(errors, &hints.get("forNodes"), names::dns_subdomain);
}

fn hints(errors: &mut FieldErrors, hints: &Field<'_>, rule: fn(&str) -> Vec<String>) {
    if hints.len() > 8 {
        return errors.too_many(&hints.at, hints.len(), 8);
    }
    let mut seen = BTreeSet::new();
    for hint in hints.items() {
        let name = hint.get("name");
        if !seen.insert(name.text()) {
            errors.duplicate(&name.at, name.text());
        }
        check::spelled(errors, &name, rule);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cells_and_defaults() {
        let mut object = json!({"metadata": {"name": "s"}, "addressType": "IPv4", "ports": [{"port": 80}],
            "endpoints": [{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.2"]}]});
        EndpointSlice.set_defaults(&mut object);
        assert_eq!(object["ports"][0], json!({"name": "", "protocol": "TCP", "port": 80}));
        assert_eq!(
            json!(EndpointSlice.cells(&object, Wall::from_secs(0))),
            json!(["s", "IPv4", "80", "10.0.0.1,10.0.0.2", "<unknown>"])
        );
        assert_eq!(
            json!(&EndpointSlice.cells(&json!({}), Wall::from_secs(0))[2..4]),
            json!(["<unset>", "<unset>"])
        );
    }

    #[test]
    fn statuses() {
        let object = json!({"addressType": "IPv4", "ports": [{"name": "a", "protocol": "TCP"}, {"name": "a", "protocol": "TCP"}],
            "endpoints": [{"addresses": ["fd00::1"]}, {"addresses": []}]});
        let mut errors = FieldErrors::default();
        EndpointSlice.validate(&object, &mut errors);
        assert_eq!(
            errors.to_string(),
            "[ports[1].name: Duplicate value: \"a\", endpoints[0].addresses: Invalid value: \"fd00::1\": must be an \
             IPv4 address, endpoints[1].addresses: Required value: must contain at least 1 address]"
        );
    }
}
