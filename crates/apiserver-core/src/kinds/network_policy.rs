//! NetworkPolicy: which Pods may talk to which.

use api::field::FieldErrors;
use base::time::Wall;
use serde_json::{Value, json};

use super::{address, check, selector};
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, Strategy};
use crate::table;

const COLUMNS: &[Column] = &[Column::NAME, Column::text("Pod-Selector", "The Pods it is about"), Column::AGE];

pub(super) fn kind() -> Kind {
    Kind::new("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", NetworkPolicy).short(&["netpol"])
}

#[derive(Debug)]
struct NetworkPolicy;

// === impl NetworkPolicy ===

impl Strategy for NetworkPolicy {
    fn set_defaults(&self, object: &mut Value) {
        for rules in ["spec.ingress", "spec.egress"] {
            for rule in doc::list_mut(object, rules) {
                for port in doc::list_mut(rule, "ports") {
                    doc::fill(port, "protocol", "TCP");
                }
            }
        }
        if doc::list(object, "spec.policyTypes").is_empty() {
            let types = match doc::list(object, "spec.egress") {
                [] => json!(["Ingress"]),
                _ => json!(["Ingress", "Egress"]),
            };
            doc::set(object, "spec.policyTypes", types);
        }
    }

    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let spec = Field::root(object).get("spec");
        selector::validate(errors, &spec.get("podSelector"));
        for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
            for rule in spec.get(rules).items() {
                rule.get("ports").items().for_each(|p| port(errors, &p));
                rule.get(peers).items().for_each(|p| peer(errors, &p));
            }
        }
        let types = spec.get("policyTypes");
        if types.len() > 2 {
            let message = "may not specify more than two policyTypes";
            return errors.invalid(&types.at, types.value.clone(), message);
        }
        for kind in types.items() {
            check::one_of_if_set(errors, &kind, &["Ingress", "Egress"]);
        }
    }

    fn counts_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let pods = table::selector(doc::at(object, "spec.podSelector"));
        vec![table::name(object), pods.into(), table::age(object, now).into()]
    }
}

fn port(errors: &mut FieldErrors, entry: &Field<'_>) {
    check::one_of_if_set(errors, &entry.get("protocol"), &["TCP", "UDP", "SCTP"]);
    let (port, end) = (entry.get("port"), entry.get("endPort"));
    if port.is_set() {
        check::port_or_name(errors, &port);
    }
    let Some(last) = end.int() else { return };
    match port.value {
        Value::Null => errors.invalid(&end.at, last, "may not be specified when `port` is not specified"),
        Value::String(_) => errors.invalid(&end.at, last, "may not be specified when `port` is non-numeric"),
        first => {
            let first = first.as_i64().unwrap_or_default();
            if last < first {
                errors.invalid(&end.at, first, "must be greater than or equal to `port`");
            }
            check::port_number(errors, &end);
        }
    }
}

fn peer(errors: &mut FieldErrors, peer: &Field<'_>) {
    let (pods, namespaces, block) =
        (peer.get("podSelector"), peer.get("namespaceSelector"), peer.get("ipBlock"));
    selector::validate(errors, &pods);
    selector::validate(errors, &namespaces);
    if block.is_set() {
        ip_block(errors, &block);
    }
    match (block.is_set(), pods.is_set() || namespaces.is_set()) {
        (false, false) => errors.required(&peer.at, "must specify a peer"),
        (true, true) => errors.forbidden(&peer.at, "may not specify both ipBlock and another peer"),
        _ => {}
    }
}

fn ip_block(errors: &mut FieldErrors, block: &Field<'_>) {
    let cidr = block.get("cidr");
    if cidr.is_empty() {
        return errors.required(&cidr.at, "");
    }
    let Some(net) = address::cidr(errors, &cidr) else { return };
    for except in block.get("except").items() {
        let Some(hole) = address::cidr(errors, &except) else { continue };
        if !net.contains(&hole.network()) || net.prefix_len() >= hole.prefix_len() {
            errors.invalid(&except.at, except.text(), "must be a strict subset of `cidr`");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_and_refusals() {
        let mut object = json!({"metadata": {"name": "p"}, "spec": {"podSelector": {}, "egress": [
            {"ports": [{"port": "dns", "endPort": 5}, {"port": 10, "endPort": 5}],
             "to": [{}, {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/16"]}, "podSelector": {}}]}]}});
        NetworkPolicy.set_defaults(&mut object);
        assert_eq!(object["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
        assert_eq!(object["spec"]["egress"][0]["ports"][0]["protocol"], "TCP");
        let mut errors = FieldErrors::default();
        NetworkPolicy.validate(&object, &mut errors);
        assert_eq!(
            errors.to_string(),
            "[spec.egress[0].ports[0].endPort: Invalid value: 5: may not be specified when `port` is non-numeric, \
             spec.egress[0].ports[1].endPort: Invalid value: 10: must be greater than or equal to `port`, \
             spec.egress[0].to[0]: Required value: must specify a peer, \
             spec.egress[0].to[1].ipBlock.except[0]: Invalid value: \"11.0.0.0/16\": must be a strict subset of `cidr`, \
             spec.egress[0].to[1]: Forbidden: may not specify both ipBlock and another peer]"
        );
        assert_eq!(NetworkPolicy.cells(&object, Wall::from_secs(0))[1], "<none>");
    }
}
