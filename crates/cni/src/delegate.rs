//! The plugin that gives addresses: one of ours, called here, or another program.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use cni_core::fields::Fields;
use cni_core::request::Verb;
use cni_core::{CniError, Code, Request, Success};
use serde_json::Value;

use crate::plugin::Plugin;
use crate::{fixed, host_local};

/// What another program may print.
const OUTPUT_MAX: u64 = 1 << 20;

const OURS: &[Plugin] = &[host_local::PLUGIN, fixed::PLUGIN];

/// Addresses; there is at least one.
pub(crate) fn add(request: &Request) -> Result<Success, CniError> {
    let kind = kind(request)?;
    let answer = match ours(kind) {
        Some(plugin) => (plugin.add)(request)?,
        None => run(kind, Verb::Add, request)?.unwrap_or_default(),
    };
    let success = Success::read(&Fields::of(&answer, String::new())?)
        .map_err(|e| CniError { message: format!("the answer of {kind}: {}", e.message), ..e })?;
    if success.ips.is_empty() {
        return Err(CniError::field("ipam", format!("{kind} gave no address")));
    }
    Ok(success)
}

pub(crate) fn del(request: &Request) -> Result<(), CniError> {
    each(request, Verb::Del, |plugin| plugin.del)
}

pub(crate) fn check(request: &Request) -> Result<(), CniError> {
    each(request, Verb::Check, |plugin| plugin.check)
}

pub(crate) fn status(request: &Request) -> Result<(), CniError> {
    each(request, Verb::Status, |plugin| plugin.status)
}

pub(crate) fn gc(request: &Request) -> Result<(), CniError> {
    each(request, Verb::Gc, |plugin| plugin.gc)
}

/// Where there is no plugin for addresses there is nothing to do.
fn each(
    request: &Request,
    verb: Verb,
    ours_do: impl Fn(&Plugin) -> fn(&Request) -> Result<(), CniError>,
) -> Result<(), CniError> {
    let Some(kind) = request.ipam()? else { return Ok(()) };
    match ours(kind) {
        Some(plugin) => ours_do(plugin)(request),
        None => run(kind, verb, request).map(drop),
    }
}

fn kind(request: &Request) -> Result<&str, CniError> {
    request.ipam()?.ok_or_else(|| CniError::field("ipam.type", "it is missing"))
}

fn ours(kind: &str) -> Option<&'static Plugin> {
    OURS.iter().find(|plugin| plugin.name == kind)
}

fn run(kind: &str, verb: Verb, request: &Request) -> Result<Option<Value>, CniError> {
    if kind.contains('/') || kind.starts_with('.') {
        return Err(CniError::field("ipam.type", format!("{kind:?} is not the name of a plugin")));
    }
    let program = request.path.split(':').map(|dir| Path::new(dir).join(kind)).find(|path| path.is_file());
    let program = program.ok_or_else(|| {
        CniError::field("ipam.type", format!("there is no plugin {kind:?} in CNI_PATH {:?}", request.path))
    })?;
    let arguments: Vec<String> =
        request.arguments.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let failed = |e: std::io::Error| CniError::io(format_args!("running {}", program.display()), &e);
    let mut child = Command::new(&program)
        .env("CNI_COMMAND", verb.word())
        .env("CNI_CONTAINERID", &request.attachment.container)
        .env("CNI_NETNS", &request.namespace)
        .env("CNI_IFNAME", &request.attachment.interface)
        .env("CNI_ARGS", arguments.join(";"))
        .env("CNI_PATH", &request.path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        // One that does not read its input may still answer.
        let _ = input.write_all(Value::Object(request.config.clone()).to_string().as_bytes());
    }
    let mut output = Vec::new();
    if let Some(from) = child.stdout.take() {
        from.take(OUTPUT_MAX).read_to_end(&mut output).map_err(failed)?;
    }
    let is_success = child.wait().map_err(failed)?.success();
    let value: Option<Value> = serde_json::from_slice(&output).ok();
    if is_success {
        return Ok(value);
    }
    let told = |key: &str| value.as_ref().and_then(|value| value.get(key));
    let text = |key: &str| told(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let message = Some(text("msg")).filter(|text| !text.is_empty());
    Err(CniError {
        code: told("code").and_then(Value::as_u64).unwrap_or(Code::Io as u64),
        message: message.unwrap_or_else(|| format!("{kind} failed without saying why")),
        details: text("details"),
    })
}
