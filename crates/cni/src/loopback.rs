//! `loopback`: a container's own device is up.

use cni_core::success::{Interface, Ip, Success};
use cni_core::{CniError, Code, Request};
use ipnet::IpNet;
use serde_json::Value;
use sys::route::{LinkChange, Order};

use crate::device::{self, LOOPBACK, kernel};
use crate::plugin::{Plugin, pass_on};

pub(crate) const PLUGIN: Plugin =
    Plugin { name: "loopback", add, del, check, status: |_| Ok(()), gc: |_| Ok(()) };

const NAME: &str = "lo";

fn add(request: &Request) -> Result<Value, CniError> {
    let addresses = device::within(&device::namespace(request)?, || {
        let mut routing = device::routing()?;
        let up = LinkChange { is_up: Some(true), ..LinkChange::default() };
        routing.commit(&[Order::ChangeLink(LOOPBACK, up)], &[]).map_err(kernel)?;
        routing.addresses(Some(LOOPBACK)).map_err(kernel)
    })?;
    if let Some(strange) = addresses.iter().find(|address| !address.ip.is_loopback()) {
        let why = format!("{NAME} has address {}, which is not its own", strange.ip);
        return Err(CniError::new(Code::Taken, why));
    }
    if request.previous()?.is_some() {
        return pass_on(request);
    }
    let mut success = Success::default();
    success.interfaces.push(Interface {
        name: NAME.into(),
        mac: "00:00:00:00:00:00".into(),
        sandbox: request.namespace.clone(),
        ..Interface::default()
    });
    for is_v6 in [false, true] {
        let found = addresses.iter().find(|address| address.ip.is_ipv6() == is_v6);
        let address = found.and_then(|address| IpNet::new(address.ip, address.length).ok());
        success.ips.extend(address.map(|address| Ip { interface: Some(0), address, gateway: None }));
    }
    Ok(request.answer(&success))
}

fn del(request: &Request) -> Result<(), CniError> {
    let Some(namespace) = device::left_namespace(request)? else { return Ok(()) };
    device::within(&namespace, || {
        let down = LinkChange { is_up: Some(false), ..LinkChange::default() };
        device::routing()?.commit(&[Order::ChangeLink(LOOPBACK, down)], &[]).map_err(kernel)
    })
}

fn check(request: &Request) -> Result<(), CniError> {
    let is_up = device::within(&device::namespace(request)?, || {
        Ok(device::find(&mut device::routing()?, NAME)?.is_up)
    })?;
    match is_up {
        true => Ok(()),
        false => Err(CniError::new(Code::Changed, format!("{NAME} is down"))),
    }
}
