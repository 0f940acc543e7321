//! `tuning`: parameters of a container's namespace, and of its device.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cni_core::fields::Fields;
use cni_core::mac::Mac;
use cni_core::tuning::{Change, Tuning, is_allowed};
use cni_core::{CniError, Code, Request};
use serde_json::{Value, json};
use sys::route::{Link, LinkChange, Order};

use crate::device::{self, kernel, within};
use crate::plugin::{Plugin, pass_on};
use crate::sysctl;

pub(crate) const PLUGIN: Plugin = Plugin { name: "tuning", add, del, check, status, gc: |_| Ok(()) };

/// Where it is kept what devices were like, as upstream's plugin does.
const DATA_DIR: &str = "/run/cni/tuning";
/// If it is there, only what is in it may be set.
const ALLOWED: &str = "/etc/cni/tuning/allowlist.conf";

fn add(request: &Request) -> Result<Value, CniError> {
    let tuning = read(request)?;
    let mut answer = pass_on(request)?;
    let interface = request.attachment.interface.as_str();
    within(&device::namespace(request)?, || {
        for (name, value) in &tuning.sysctls {
            sysctl::set(name, value)?;
        }
        if tuning.change.is_empty() {
            return Ok(());
        }
        let mut routing = device::routing()?;
        let link = device::find(&mut routing, interface)?;
        keep(&kept(request, tuning.data_dir.as_deref()), &tuning.change.before(&now(&link)))?;
        routing.commit(&[Order::ChangeLink(link.index, change(&tuning.change))], &[]).map_err(kernel)
    })?;
    if let Some(mac) = tuning.change.mac {
        rewrite_mac(&mut answer, interface, mac);
    }
    Ok(answer)
}

fn read(request: &Request) -> Result<Tuning, CniError> {
    let tuning = Tuning::read(request)?;
    let list = match fs::read_to_string(ALLOWED) {
        Ok(list) => list,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(tuning),
        Err(e) => return Err(CniError::io(format_args!("reading {ALLOWED}"), &e)),
    };
    match tuning.sysctls.iter().find(|(name, _)| !is_allowed(&list, name)) {
        Some((name, _)) => {
            Err(CniError::field(&format!("sysctl.{name}"), format!("{ALLOWED} does not allow it")))
        }
        None => Ok(tuning),
    }
}

fn del(request: &Request) -> Result<(), CniError> {
    let data_dir = request.fields().text("dataDir").ok().flatten().filter(|dir| !dir.is_empty());
    let path = kept(request, data_dir);
    let Ok(text) = fs::read_to_string(&path) else { return Ok(()) };
    // With the namespace goes the device: then there is nothing to change back.
    if let Some(namespace) = device::left_namespace(request)? {
        let before: Value = serde_json::from_str(&text).unwrap_or_default();
        let before = Fields::of(&before, path.display().to_string()).and_then(|fields| Change::read(&fields));
        let interface = request.attachment.interface.as_str();
        within(&namespace, || {
            let mut routing = device::routing()?;
            let link = routing.link(interface).map_err(kernel)?;
            match (link, before) {
                (Some(link), Ok(before)) => {
                    let order = Order::ChangeLink(link.index, change(&before));
                    routing.commit(&[order], &[rustix::io::Errno::NODEV]).map_err(kernel)
                }
                _ => Ok(()),
            }
        })?;
    }
    fs::remove_file(&path).or_else(|e| match e.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(CniError::io(format_args!("removing {}", path.display()), &e)),
    })
}

fn check(request: &Request) -> Result<(), CniError> {
    let tuning = read(request)?;
    request.required_previous()?;
    let interface = request.attachment.interface.as_str();
    within(&device::namespace(request)?, || {
        for (name, wanted) in &tuning.sysctls {
            let is = sysctl::read(name).map_err(|e| CniError::io(format_args!("reading {name}"), &e))?;
            // The kernel puts tabs where a person writes spaces.
            if is.split_whitespace().ne(wanted.split_whitespace()) {
                return Err(CniError::new(Code::Changed, format!("{name} was set to {wanted} and is {is}")));
            }
        }
        let link = device::find(&mut device::routing()?, interface)?;
        match tuning.change.difference(&now(&link)) {
            Some(difference) => Err(CniError::new(Code::Changed, difference)),
            None => Ok(()),
        }
    })
}

fn status(request: &Request) -> Result<(), CniError> {
    read(request).map(drop)
}

fn kept(request: &Request, data_dir: Option<&str>) -> PathBuf {
    let of = &request.attachment;
    Path::new(data_dir.unwrap_or(DATA_DIR)).join(format!("{}_{}.json", of.container, of.interface))
}

fn keep(path: &Path, before: &Change) -> Result<(), CniError> {
    let write = || {
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        fs::write(path, format!("{:#}", before.to_json()))
    };
    write().map_err(|e| CniError::io(format_args!("writing {}", path.display()), &e))
}

fn now(link: &Link) -> Change {
    Change {
        mac: link.mac.map(Mac),
        is_promiscuous: Some(link.is_promiscuous),
        mtu: Some(link.mtu),
        is_all_multicast: Some(link.is_all_multicast),
        queue_length: Some(link.queue_length),
    }
}

fn change(wanted: &Change) -> LinkChange<'static> {
    LinkChange {
        mac: wanted.mac.map(|mac| mac.0),
        is_promiscuous: wanted.is_promiscuous,
        mtu: wanted.mtu,
        is_all_multicast: wanted.is_all_multicast,
        queue_length: wanted.queue_length,
        ..LinkChange::default()
    }
}

fn rewrite_mac(answer: &mut Value, interface: &str, mac: Mac) {
    for told in answer.get_mut("interfaces").and_then(Value::as_array_mut).into_iter().flatten() {
        if told["name"] == interface && told.get("sandbox").is_some() {
            told["mac"] = json!(mac.to_string());
        }
    }
}
