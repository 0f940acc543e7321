//! Addresses and networks inside objects.

use std::net::IpAddr;

use api::field::FieldErrors;
use api::names;

use crate::doc::Field;

/// An address.
pub(super) fn ip(errors: &mut FieldErrors, field: &Field<'_>) -> Option<IpAddr> {
    match field.text().parse::<IpAddr>() {
        Ok(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_some() => {
            errors.invalid(&field.at, field.text(), "must not be an IPv4-mapped IPv6 address");
            None
        }
        Ok(ip) => Some(ip),
        Err(_) => {
            errors.each(&field.at, field.text(), names::ip(field.text()));
            None
        }
    }
}

/// An address traffic can be sent to from elsewhere.
pub(super) fn endpoint_ip(errors: &mut FieldErrors, field: &Field<'_>) -> Option<IpAddr> {
    let ip = ip(errors, field)?;
    let text = field.text();
    let (link_local, link_local_multicast) = match ip {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(v6) => (v6.is_unicast_link_local(), v6.segments()[0] & 0xff0f == 0xff02),
    };
    if ip.is_unspecified() {
        errors.invalid(&field.at, text, format!("may not be unspecified ({text})"));
    }
    if ip.is_loopback() {
        errors.invalid(&field.at, text, "may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    if link_local {
        errors.invalid(&field.at, text, "may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    if link_local_multicast {
        let message = "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)";
        errors.invalid(&field.at, text, message);
    }
    Some(ip)
}

/// A network such as `10.9.8.0/24`.
pub(super) fn cidr(errors: &mut FieldErrors, field: &Field<'_>) -> Option<ipnet::IpNet> {
    let text = field.text().trim();
    let Ok(net) = text.parse::<ipnet::IpNet>() else {
        let message = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
        errors.invalid(&field.at, text, message);
        return None;
    };
    if net.addr() != net.network() {
        errors.invalid(&field.at, text, "must not have bits set beyond the prefix length");
        return None;
    }
    Some(net)
}

/// Whether these are at most one of each family.
#[must_use]
pub(super) fn is_dual_stack(is_ipv6: &[bool]) -> bool {
    matches!(is_ipv6, [a, b] if a != b)
}
