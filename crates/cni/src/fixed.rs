//! `static`: the addresses that the configuration names. Nothing is kept, so nothing is left.

use cni_core::{CniError, Code, Request, fixed};

use crate::plugin::Plugin;

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "static",
    add: |request| Ok(request.answer(&fixed::answer(request)?)),
    del: |_| Ok(()),
    check,
    status: |request| fixed::answer(request).map(drop),
    gc: |_| Ok(()),
};

fn check(request: &Request) -> Result<(), CniError> {
    let has = request.required_previous()?;
    for wanted in fixed::answer(request)?.ips {
        let found = has.ips.iter().find(|ip| ip.address == wanted.address);
        let is_right = found.is_some_and(|ip| wanted.gateway.is_none() || wanted.gateway == ip.gateway);
        if !is_right {
            let why = format!("address {} is not as it was given", wanted.address);
            return Err(CniError::new(Code::Changed, why));
        }
    }
    Ok(())
}
