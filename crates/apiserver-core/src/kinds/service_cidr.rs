//! ServiceCIDR: where the addresses of Services come from.

use api::field::{FieldErrors, Path};
use base::time::Wall;
use serde_json::Value;

use super::{address, check};
use crate::doc::{self, Field};
use crate::kind::{Column, Kind, Strategy};
use crate::table;

const COLUMNS: &[Column] = &[Column::NAME, Column::text("CIDRs", "The networks"), Column::AGE];

pub(super) fn kind() -> Kind {
    Kind::new("networking.k8s.io", "v1", "ServiceCIDR", "servicecidrs", ServiceCidr)
        .cluster_scoped()
        .with_status()
}

#[derive(Debug)]
struct ServiceCidr;

// === impl ServiceCidr ===

impl Strategy for ServiceCidr {
    fn validate(&self, object: &Value, errors: &mut FieldErrors) {
        let cidrs = Field::root(object).get("spec").get("cidrs");
        match cidrs.len() {
            0 => return errors.required(&cidrs.at, "at least one CIDR required"),
            1 | 2 => {}
            _ => return errors.invalid(&cidrs.at, cidrs.value.clone(), "may only hold up to 2 values"),
        }
        let families: Vec<bool> =
            cidrs.items().filter_map(|c| Some(canonical(errors, &c)?.addr().is_ipv6())).collect();
        if families.len() == 2 && !address::is_dual_stack(&families) {
            let message =
                "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
            errors.invalid(&cidrs.at, cidrs.value.clone(), message);
        }
    }

    fn validate_update(&self, new: &Value, old: &Value, errors: &mut FieldErrors) {
        let at = Path::new("spec.cidrs");
        let (now, before) = (doc::list(new, "spec.cidrs"), doc::list(old, "spec.cidrs"));
        if now.len() == before.len() || (before.len() == 1 && now.len() == 2) {
            for (i, (cidr, _)) in now.iter().zip(before).enumerate().filter(|(_, (a, b))| a != b) {
                errors.invalid(&at.index(i), cidr.clone(), check::IMMUTABLE);
            }
            self.validate(new, errors);
        } else {
            errors.invalid(&at, doc::at(new, "spec.cidrs").clone(), check::IMMUTABLE);
        }
    }

    fn updates_unconditionally(&self) -> bool {
        false
    }

    fn columns(&self) -> &[Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Wall) -> Vec<Value> {
        let cidrs: Vec<&str> = doc::list(object, "spec.cidrs").iter().filter_map(Value::as_str).collect();
        vec![table::name(object), cidrs.join(",").into(), table::age(object, now).into()]
    }
}

fn canonical(errors: &mut FieldErrors, field: &Field<'_>) -> Option<ipnet::IpNet> {
    let net = address::cidr(errors, field)?;
    if net.to_string() != field.text() {
        errors.invalid(&field.at, field.text(), format!("must be in canonical form (\"{net}\")"));
    }
    Some(net)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_second_family_may_come() {
        let object = |cidrs: &[&str]| json!({"spec": {"cidrs": cidrs}});
        let update = |old: &[&str], new: &[&str]| {
            let mut errors = FieldErrors::default();
            ServiceCidr.validate_update(&object(new), &object(old), &mut errors);
            errors.to_string()
        };
        assert_eq!(update(&["10.0.0.0/24"], &["10.0.0.0/24", "fd00::/112"]), "[]");
        assert!(update(&["10.0.0.0/24"], &["10.0.1.0/24"]).contains("field is immutable"));
        assert!(update(&["10.0.0.0/24", "fd00::/112"], &["10.0.0.0/24"]).contains("field is immutable"));
        let mut errors = FieldErrors::default();
        ServiceCidr.validate(&object(&["10.0.0.0/24", "10.1.0.0/24"]), &mut errors);
        assert!(errors.to_string().contains("may specify no more than one IP for each IP family"));
    }
}
