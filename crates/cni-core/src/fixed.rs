//! `static`: addresses that the configuration, or who asks, names itself.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::error::{CniError, Code};
use crate::fields::Fields;
use crate::request::Request;
use crate::success::{Dns, Ip, Success, routes};

/// What `static` answers.
pub fn answer(request: &Request) -> Result<Success, CniError> {
    let fields = request.fields();
    let ipam = fields.fields("ipam")?.ok_or_else(|| CniError::field("ipam", "it is missing"))?;
    let mut ips = Vec::new();
    for one in ipam.objects("addresses")? {
        let address = one.network("address")?;
        let address = address.ok_or_else(|| CniError::field(&one.path("address"), "it is missing"))?;
        ips.push(ip(address, one.ip("gateway")?));
    }
    for text in request.argument("IP").into_iter().flat_map(|ips| ips.split(',')) {
        ips.push(ip(parsed("CNI_ARGS IP", text.trim())?, None));
    }
    for text in request.argument("GATEWAY").into_iter().flat_map(|gateways| gateways.split(',')) {
        let gateway: IpAddr = text.trim().parse().map_err(|_| {
            CniError::new(Code::Environment, format!("CNI_ARGS GATEWAY: {text:?} is not an IP address"))
        })?;
        for ip in ips.iter_mut().filter(|ip| ip.address.contains(&gateway)) {
            ip.gateway = Some(gateway);
        }
    }
    // Each of these takes the place of what stood before.
    for asked in [request.conventional()?, request.runtime()?].into_iter().flatten() {
        let named = asked_for(&asked)?;
        if !named.is_empty() {
            ips = named;
        }
    }
    let dns = ipam.fields("dns")?.map_or(Ok(Dns::default()), |dns| Dns::read(&dns))?;
    Ok(Success { interfaces: vec![], ips, routes: routes(&ipam, "routes")?, dns })
}

fn asked_for(asked: &Fields<'_>) -> Result<Vec<Ip>, CniError> {
    let path = asked.path("ips");
    asked.texts("ips")?.iter().map(|text| Ok(ip(parsed(&path, text)?, None))).collect()
}

fn ip(address: IpNet, gateway: Option<IpAddr>) -> Ip {
    Ip { interface: None, address, gateway }
}

fn parsed(path: &str, text: &str) -> Result<IpNet, CniError> {
    let why = || format!("{text:?} is not an address with the length of its network, as in 10.1.0.3/16");
    text.parse().map_err(|_| CniError::field(path, why()))
}
