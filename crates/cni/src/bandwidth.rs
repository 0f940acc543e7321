//! `bandwidth`: what a container may receive and send a second.

use cni_core::bandwidth::{Bandwidth, Limit, device};
use cni_core::mac::Mac;
use cni_core::{CniError, Code, Request, table};
use rustix::io::Errno;
use serde_json::{Value, json};
use sys::route::{Form, Link, NewLink, Order, Queue, Routing};

use crate::device::{self, kernel, within};
use crate::plugin::{Plugin, pass_on};

pub(crate) const PLUGIN: Plugin = Plugin { name: "bandwidth", add, del, check, status, gc };

fn add(request: &Request) -> Result<Value, CniError> {
    let bandwidth = Bandwidth::read(request)?;
    if bandwidth.is_empty() {
        return pass_on(request);
    }
    request.required_previous()?;
    let mut answer = pass_on(request)?;
    let mut host = device::routing()?;
    let end = host_end(&mut host, request)?;
    if let Some(limit) = bandwidth.ingress {
        host.commit(&[Order::AddQueue(end.index, bucket(limit))], &[]).map_err(kernel)?;
    }
    if let Some(limit) = bandwidth.egress {
        let made = limit_sending(&mut host, request, &end, limit).inspect_err(|_| {
            let _ = del(request);
        })?;
        let mac = made.mac.map(|mac| Mac(mac).to_string()).unwrap_or_default();
        if let Some(interfaces) = answer.get_mut("interfaces").and_then(Value::as_array_mut) {
            interfaces.push(json!({"name": made.name, "mac": mac}));
        }
    }
    Ok(answer)
}

fn bucket(limit: Limit) -> Queue {
    Queue::TokenBucket { rate: limit.rate, burst: limit.burst, limit: limit.queue }
}

/// What arrives from a container cannot wait where it arrives: it is sent on by a device that has a queue.
fn limit_sending(host: &mut Routing, request: &Request, end: &Link, limit: Limit) -> Result<Link, CniError> {
    let name = device(&request.network, &request.attachment.container);
    let label = table::label(&request.network, &request.attachment);
    let link =
        NewLink { name: &name, form: Form::Ifb, mtu: Some(end.mtu), is_up: true, ..NewLink::default() };
    let describe = Order::Describe { name: &name, alias: &label, port: None };
    host.commit(&[Order::AddLink(link), describe], &[]).map_err(kernel)?;
    let made = device::find(host, &name)?;
    let orders = [
        Order::AddQueue(made.index, bucket(limit)),
        Order::AddQueue(end.index, Queue::Arrivals),
        Order::Redirect { from: end.index, to: made.index },
    ];
    host.commit(&orders, &[]).map_err(kernel)?;
    Ok(made)
}

/// The machine's end of the container's cable.
fn host_end(host: &mut Routing, request: &Request) -> Result<Link, CniError> {
    let interface = request.attachment.interface.as_str();
    let inside = within(&device::namespace(request)?, || device::find(&mut device::routing()?, interface))?;
    let none = || CniError::new(Code::Changed, format!("{interface} is no cable that ends at the machine"));
    let end = host.link_by_index(inside.peer.ok_or_else(none)?).map_err(kernel)?;
    end.filter(|end| end.peer == Some(inside.index)).ok_or_else(none)
}

fn del(request: &Request) -> Result<(), CniError> {
    let name = device(&request.network, &request.attachment.container);
    device::delete(&mut device::routing()?, &name).map(drop)
}

fn check(request: &Request) -> Result<(), CniError> {
    let bandwidth = Bandwidth::read(request)?;
    request.required_previous()?;
    let mut host = device::routing()?;
    let mut wanted = Vec::new();
    if let Some(limit) = bandwidth.ingress {
        wanted.push((host_end(&mut host, request)?, limit));
    }
    if let Some(limit) = bandwidth.egress {
        let name = device(&request.network, &request.attachment.container);
        wanted.push((device::find(&mut host, &name)?, limit));
    }
    for (link, limit) in wanted {
        let queues = host.queues(link.index).map_err(kernel)?;
        if !queues.iter().any(|(kind, rate)| kind == "tbf" && *rate == Some(limit.rate)) {
            let why = format!("{} is not limited to {} bytes a second", link.name, limit.rate);
            return Err(CniError::new(Code::Changed, why));
        }
    }
    Ok(())
}

fn status(request: &Request) -> Result<(), CniError> {
    Bandwidth::read(request).map(drop)
}

fn gc(request: &Request) -> Result<(), CniError> {
    let valid = request.valid_attachments()?;
    let labels: Vec<String> = valid.iter().map(|of| table::label(&request.network, of)).collect();
    let begin = table::label_of_network(&request.network);
    let mut host = device::routing()?;
    let is_left =
        |link: &&Link| link.kind == "ifb" && link.alias.starts_with(&begin) && !labels.contains(&link.alias);
    let links = host.links().map_err(kernel)?;
    let deletions: Vec<Order<'_>> =
        links.iter().filter(is_left).map(|link| Order::DeleteLink(link.index)).collect();
    host.commit(&deletions, &[Errno::NODEV]).map_err(kernel)
}
