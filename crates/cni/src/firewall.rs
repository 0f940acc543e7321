//! `firewall`: whom the containers of a bridge may be reached by.
//!
//! No table of nf_tables can overrule what another one drops, so there is nothing to open: only to keep apart.

use cni_core::firewall::Policy;
use cni_core::table::{self, Entry, SetId};
use cni_core::{CniError, Code, Request};
use serde_json::Value;

use crate::device::{self, kernel};
use crate::plugin::{Plugin, pass_on};
use crate::rules::Rules;
use crate::sysctl;

pub(crate) const PLUGIN: Plugin = Plugin { name: "firewall", add, del: |_| Ok(()), check, status, gc };

const SETS: [SetId; 3] = [SetId::Bridges, SetId::SameBridge, SetId::IsolatedBridges];

fn add(request: &Request) -> Result<Value, CniError> {
    let policy = Policy::read(request)?;
    if policy == Policy::Isolated {
        // Else containers of one bridge would meet below the rules.
        for name in ["net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"] {
            sysctl::set_if_there(name, "1")?;
        }
    }
    let entries = entries(request, policy)?;
    if !entries.is_empty() {
        Rules::open()?.add(&entries)?;
    }
    pass_on(request)
}

fn check(request: &Request) -> Result<(), CniError> {
    let entries = entries(request, Policy::read(request)?)?;
    Rules::open()?.check(&entries)
}

fn status(request: &Request) -> Result<(), CniError> {
    Policy::read(request)?;
    Rules::open().map(drop).map_err(|e| CniError::new(Code::Unavailable, e.message))
}

fn gc(request: &Request) -> Result<(), CniError> {
    Rules::open()?.keep(&SETS, &request.network, &request.valid_attachments()?)
}

fn entries(request: &Request, policy: Policy) -> Result<Vec<Entry>, CniError> {
    let success = request.required_previous()?;
    if policy == Policy::Open {
        return Ok(vec![]);
    }
    let mut routing = device::routing()?;
    let mut entries = Vec::new();
    for told in success.interfaces.iter().filter(|told| told.sandbox.is_empty()) {
        let found = routing.link(&told.name).map_err(kernel)?;
        if found.is_some_and(|link| link.kind == "bridge") {
            entries.extend(table::isolation(&told.name, policy == Policy::Isolated, &request.network));
        }
    }
    match entries.is_empty() {
        true => Err(CniError::field("ingressPolicy", "prevResult has no bridge to keep containers apart on")),
        false => Ok(entries),
    }
}
