//! CNI plugins: a Pod's interface, addresses, ports and limits, over netlink and nf_tables alone.
//!
//! Each answers as a program, by its name ([`answer`]), and as a function ([`call`]). Calls block: who has other things to do
//! makes them on a thread that may wait.
//!
//! [`doctor`] looks at what they made. One file per plugin; [`PLUGINS`] is the table of them. What they share lies below: `delegate` (the plugin that gives
//! addresses), `device` (cables and what is set on them), `rules` (elements of our own table), `sysctl`.

mod bandwidth;
mod bridge;
mod delegate;
mod deletions;
mod device;
pub mod doctor;
mod firewall;
mod fixed;
mod host_local;
mod loopback;
mod plugin;
mod portmap;
mod ptp;
mod rules;
mod sysctl;
mod tuning;

pub use cni_core::request::Environment;
pub use cni_core::{CniError, Code};
use cni_core::{NEWEST, Request, VERSIONS, Verb, request};
use plugin::Plugin;
use serde_json::{Map, Value, json};

/// What a configuration may be long.
pub const INPUT_MAX: usize = 1 << 20;

/// A new plugin is one file and one line here.
const PLUGINS: &[Plugin] = &[
    bandwidth::PLUGIN,
    bridge::PLUGIN,
    firewall::PLUGIN,
    fixed::PLUGIN,
    host_local::PLUGIN,
    loopback::PLUGIN,
    portmap::PLUGIN,
    ptp::PLUGIN,
    tuning::PLUGIN,
];

/// What a program prints, and whether it did what it was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub is_success: bool,
    pub output: String,
}

/// The plugins' names.
pub fn names() -> impl Iterator<Item = &'static str> {
    PLUGINS.iter().map(|plugin| plugin.name)
}

/// What a plugin does when it is called as the contract says. `None` where it has nothing to tell.
pub fn call(plugin: &str, environment: &Environment, input: &[u8]) -> Result<Option<Value>, CniError> {
    let known = PLUGINS.iter().find(|known| known.name == plugin);
    let known = known.ok_or_else(|| CniError::new(Code::Config, format!("type: no plugin {plugin:?}")))?;
    // It is asked before there is a configuration.
    let has_none = environment.command == Verb::Version.word() && input.iter().all(u8::is_ascii_whitespace);
    let config = if has_none { Map::new() } else { decode(input)? };
    let request = Request::new(environment, config)?;
    match request.verb {
        Verb::Add => (known.add)(&request).map(Some),
        Verb::Del => (known.del)(&request).map(|()| None),
        Verb::Check => (known.check)(&request).map(|()| None),
        Verb::Status => (known.status)(&request).map(|()| None),
        Verb::Gc => (known.gc)(&request).map(|()| None),
        Verb::Version => Ok(Some(json!({"cniVersion": NEWEST, "supportedVersions": VERSIONS}))),
    }
}

/// The same for a program: what it prints.
#[must_use]
pub fn answer(plugin: &str, environment: &Environment, input: &[u8]) -> Answer {
    match call(plugin, environment, input) {
        Ok(value) => {
            let output = value.map(|value| format!("{value:#}\n")).unwrap_or_default();
            Answer { is_success: true, output }
        }
        Err(error) => {
            // In the caller's version, if it can be read at all.
            let config = decode(input).unwrap_or_default();
            let version = request::version(&cni_core::fields::Fields::new(&config));
            let error = error.to_json(&version.unwrap_or_else(|_| NEWEST.to_owned()));
            Answer { is_success: false, output: format!("{error:#}\n") }
        }
    }
}

/// Removes our tables where nothing is in them any more.
pub fn clean_up() -> Result<(), CniError> {
    rules::Rules::open()?.clean_up()
}

fn decode(input: &[u8]) -> Result<Map<String, Value>, CniError> {
    if input.len() > INPUT_MAX {
        let why = format!("the configuration is longer than {INPUT_MAX} bytes");
        return Err(CniError::new(Code::Decode, why));
    }
    match serde_json::from_slice(input) {
        Ok(Value::Object(config)) => Ok(config),
        Ok(_) => Err(CniError::new(Code::Decode, "the configuration is no object")),
        Err(e) => Err(CniError::new(Code::Decode, format!("the configuration is no JSON: {e}"))),
    }
}
