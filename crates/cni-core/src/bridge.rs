//! `bridge` and `ptp`: what is made for a Pod, and what its addresses mean for it.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::error::{CniError, Code};
use crate::fields::Fields;
use crate::mac::Mac;
use crate::request::{Request, check_interface};
use crate::success::{Ip, RouteTo, Success};

const BRIDGE: &str = "cni0";

/// What `bridge` is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bridge {
    pub name: String,
    pub is_gateway: bool,
    pub is_default_gateway: bool,
    pub is_address_forced: bool,
    pub mtu: Option<u32>,
    pub is_hairpin: bool,
    pub is_promiscuous: bool,
    pub is_isolated: bool,
    pub vlan: Option<u16>,
    pub trunk: Vec<u16>,
    pub keeps_default_vlan: bool,
    /// Whether the kernel may look if others have an address before it is used.
    pub detects_duplicates: bool,
    pub is_interface_disabled: bool,
    pub mac: Option<Mac>,
    pub masquerade: bool,
    pub has_addresses: bool,
}

/// What `ptp` is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cable {
    pub mtu: Option<u32>,
    pub masquerade: bool,
}

/// What is done about the address of a gateway that a device should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayPlan {
    pub delete: Vec<IpNet>,
    pub add: Option<IpNet>,
}

// === impl Bridge ===

impl Bridge {
    pub fn read(request: &Request) -> Result<Self, CniError> {
        let fields = request.fields();
        let name = fields.text("bridge")?.filter(|name| !name.is_empty()).unwrap_or(BRIDGE);
        check_interface(name).map_err(|why| CniError::field("bridge", why))?;
        if fields.bool("macspoofchk")? {
            let why = "macspoofchk: rules of a bridge's own are not written";
            return Err(CniError::new(Code::Unsupported, why));
        }
        let is_default_gateway = fields.bool("isDefaultGateway")?;
        let vlan = fields.number("vlan", 0..=4094)?.filter(|id| *id > 0);
        let bridge = Self {
            name: name.to_owned(),
            is_gateway: fields.bool("isGateway")? || is_default_gateway,
            is_default_gateway,
            is_address_forced: fields.bool("forceAddress")?,
            mtu: mtu(&fields)?,
            is_hairpin: fields.bool("hairpinMode")?,
            is_promiscuous: fields.bool("promiscMode")?,
            is_isolated: fields.bool("portIsolation")?,
            vlan: vlan.and_then(|id| u16::try_from(id).ok()),
            trunk: trunk(&fields)?,
            keeps_default_vlan: fields.maybe_bool("preserveDefaultVlan")?.unwrap_or(true),
            detects_duplicates: fields.bool("enabledad")?,
            is_interface_disabled: fields.bool("disableContainerInterface")?,
            mac: mac(request)?,
            masquerade: masquerade(&fields)?,
            has_addresses: request.ipam()?.is_some(),
        };
        if bridge.is_hairpin && bridge.is_promiscuous {
            let why = "a bridge cannot be in hairpin and in promiscuous mode at the same time";
            return Err(CniError::field("hairpinMode", why));
        }
        if bridge.has_addresses && bridge.is_interface_disabled {
            return Err(CniError::field("disableContainerInterface", "with ipam there must be an interface"));
        }
        Ok(bridge)
    }

    #[must_use]
    pub fn has_vlans(&self) -> bool {
        self.vlan.is_some() || !self.trunk.is_empty()
    }

    /// Gateways and default routes that the addresses lead to, written into the answer. The addresses of the bridge.
    pub fn complete(&self, success: &mut Success) -> Result<Vec<IpNet>, CniError> {
        let mut gateways = Vec::new();
        for at in 0..success.ips.len() {
            let ip = &mut success.ips[at];
            ip.interface = Some(2);
            if ip.gateway.is_none() && self.is_gateway {
                ip.gateway = Some(first(ip.address));
            }
            let (gateway, is_v6) = (ip.gateway, ip.address.addr().is_ipv6());
            let length = ip.address.prefix_len();
            if self.is_default_gateway {
                add_default_route(success, is_v6, gateway);
            }
            if let Some(gateway) = gateway.filter(|_| self.is_gateway) {
                let address = IpNet::new(gateway, length);
                gateways.push(address.map_err(|e| CniError::field("ipam", e))?);
            }
        }
        Ok(gateways)
    }
}

/// The first address of a network that is not the network's own.
fn first(address: IpNet) -> IpAddr {
    match address.network() {
        IpAddr::V4(ip) => IpAddr::V4(ip.to_bits().wrapping_add(1).into()),
        IpAddr::V6(ip) => IpAddr::V6(ip.to_bits().wrapping_add(1).into()),
    }
}

fn add_default_route(success: &mut Success, is_v6: bool, gateway: Option<IpAddr>) {
    let everything = if is_v6 { "::/0" } else { "0.0.0.0/0" };
    let Ok(everything) = everything.parse::<IpNet>() else { return };
    match success.routes.iter_mut().find(|route| route.to == everything) {
        Some(route) => route.gateway = route.gateway.or(gateway),
        None => success.routes.push(RouteTo::new(everything, gateway)),
    }
}

/// Routes without a gateway of their own go by that of the first address of their family.
#[must_use]
pub fn routed(ips: &[Ip], routes: &[RouteTo]) -> Vec<RouteTo> {
    let gateway =
        |is_v6: bool| ips.iter().filter_map(|ip| ip.gateway).find(|gateway| gateway.is_ipv6() == is_v6);
    let with_gateway = |route: &RouteTo| RouteTo {
        gateway: route.gateway.or_else(|| gateway(route.to.addr().is_ipv6())),
        ..route.clone()
    };
    routes.iter().map(with_gateway).collect()
}

/// A bridge has one address of version 4, and of version 6 one of each network; which one it has stays unless the
/// configuration says otherwise.
pub fn gateway_plan(
    device: &str,
    has: &[IpNet],
    wanted: IpNet,
    is_forced: bool,
) -> Result<GatewayPlan, CniError> {
    if has.contains(&wanted) {
        return Ok(GatewayPlan { delete: vec![], add: None });
    }
    let is_in_the_way = |other: &&IpNet| match (other, wanted) {
        (IpNet::V4(_), IpNet::V4(_)) => true,
        (IpNet::V6(_), IpNet::V6(_)) => other.contains(&wanted.addr()) || wanted.contains(&other.addr()),
        _ => false,
    };
    let delete: Vec<IpNet> = has.iter().filter(is_in_the_way).copied().collect();
    match delete.first() {
        Some(other) if !is_forced => {
            let why = format!(
                "{device} already has address {other}, and {wanted} is asked for; forceAddress is not set"
            );
            Err(CniError::new(Code::Taken, why))
        }
        _ => Ok(GatewayPlan { delete, add: Some(wanted) }),
    }
}

// === impl Cable ===

impl Cable {
    pub fn read(request: &Request) -> Result<Self, CniError> {
        let fields = request.fields();
        if request.ipam()?.is_none() {
            return Err(CniError::field(
                "ipam.type",
                "it is missing: a cable without addresses leads nowhere",
            ));
        }
        Ok(Self { mtu: mtu(&fields)?, masquerade: masquerade(&fields)? })
    }

    /// Every address is the container's, and every one needs a gateway.
    pub fn complete(&self, success: &mut Success) -> Result<(), CniError> {
        for ip in &mut success.ips {
            ip.interface = Some(1);
            if ip.gateway.is_none() {
                return Err(CniError::field("ipam", format!("address {} has no gateway", ip.address)));
            }
        }
        Ok(())
    }
}

fn mtu(fields: &Fields<'_>) -> Result<Option<u32>, CniError> {
    let mtu = fields.number("mtu", 0..=65535)?.filter(|mtu| *mtu > 0);
    Ok(mtu.and_then(|mtu| u32::try_from(mtu).ok()))
}

/// By nf_tables, whichever way is named: what packets meet is the same.
fn masquerade(fields: &Fields<'_>) -> Result<bool, CniError> {
    check_backend(fields, "ipMasqBackend")?;
    fields.bool("ipMasq")
}

pub(crate) fn check_backend(fields: &Fields<'_>, key: &str) -> Result<(), CniError> {
    match fields.text(key)? {
        None | Some("" | "nftables" | "iptables") => Ok(()),
        Some(other) => {
            Err(CniError::field(&fields.path(key), format!("{other:?} is not nftables or iptables")))
        }
    }
}

/// By argument, by convention, or as a capability; the last one counts.
fn mac(request: &Request) -> Result<Option<Mac>, CniError> {
    let mut mac = match request.argument("MAC") {
        Some(text) => Some(text.parse().map_err(|()| {
            CniError::new(Code::Environment, format!("CNI_ARGS MAC: {text:?} is not a hardware address"))
        })?),
        None => None,
    };
    for asked in [request.conventional()?, request.runtime()?].into_iter().flatten() {
        mac = asked.mac("mac")?.or(mac);
    }
    Ok(mac)
}

fn trunk(fields: &Fields<'_>) -> Result<Vec<u16>, CniError> {
    let mut ids = Vec::new();
    for one in fields.objects("vlanTrunk")? {
        let number = |key: &str| {
            let id = one.number(key, 1..=4094)?;
            Ok::<_, CniError>(id.and_then(|id| u16::try_from(id).ok()))
        };
        match (number("minID")?, number("maxID")?) {
            (Some(low), Some(high)) if low <= high => ids.extend(low..=high),
            (None, None) => {}
            (Some(_), Some(_)) => return Err(CniError::field(&one.path("minID"), "it is above maxID")),
            (Some(_), None) => return Err(CniError::field(&one.path("maxID"), "it is missing")),
            (None, Some(_)) => return Err(CniError::field(&one.path("minID"), "it is missing")),
        }
        ids.extend(number("id")?);
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

/// What is made for an attachment is named after it: who comes later finds it without a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The machine's end of the cable.
    pub host: String,
    pub host_mac: Mac,
    pub container_mac: Mac,
}

/// So long, and so begun, are the names of ours alone.
const HOST_BEGIN: &str = "vethc";
const HOST_LENGTH: usize = 15;

// === impl Names ===

impl Names {
    #[must_use]
    pub fn of(label: &str) -> Self {
        let hash = |salt: &str| base::fnv::fnv1a128(format!("{salt} {label}").as_bytes()).to_be_bytes();
        let mac = |salt: &str| Mac::local(hash(salt).first_chunk().copied().unwrap_or_default());
        let hex: String = hash("host")[..5].iter().map(|byte| format!("{byte:02x}")).collect();
        Self { host: format!("{HOST_BEGIN}{hex}"), host_mac: mac("host"), container_mac: mac("container") }
    }
}

/// Whether a device is one that we named.
#[must_use]
pub fn is_ours(name: &str) -> bool {
    name.len() == HOST_LENGTH && name.starts_with(HOST_BEGIN)
}
