//! `longshore check`: whether this machine can be a node, and what to change where it cannot.

mod machine;
mod networks;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use api::config::up::{FLAGS, Up};
use base::finding::{Finding, Grade};
use base::flags;
use serde_json::Value;

use crate::{console, doctor_cmd};

/// Looks at one thing.
type Look = fn(&Up) -> Vec<Finding>;

/// In the order in which people can do something about it.
const LOOKS: &[Look] = &[
    machine::root,
    machine::kernel,
    machine::cgroups,
    machine::options,
    machine::clock,
    machine::disk,
    machine::runtime,
    networks::address,
    networks::overlaps,
    networks::ports,
    networks::firewall,
];

pub(crate) fn main(args: &[OsString]) -> ExitCode {
    let parsed = match flags::parse(FLAGS, args.iter().cloned()) {
        Ok(parsed) => parsed,
        Err(mistakes) => {
            mistakes.iter().for_each(|mistake| console::err(&format!("Error: {mistake}\n")));
            return ExitCode::FAILURE;
        }
    };
    if parsed.values.get("help") == Some(&Value::Bool(true)) {
        console::out(&format!(
            "Find out whether this machine can be a node. Ends with 1 if something is wrong.\n\n\
             Usage:\n  longshore check [flags of longshore up]\n\nFlags:\n{}",
            flags::render_help(FLAGS, 100)
        ));
        return ExitCode::SUCCESS;
    }
    match Up::read(&parsed.values) {
        Ok(up) => {
            let findings: Vec<Finding> = LOOKS.iter().flat_map(|look| look(&up)).collect();
            doctor_cmd::show(&findings)
        }
        Err(error) => {
            console::err(&format!("Error: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

fn good(text: impl Into<String>) -> Finding {
    Finding { grade: Grade::Good, text: text.into(), advice: String::new() }
}

fn note(text: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { grade: Grade::Note, text: text.into(), advice: advice.into() }
}

fn wrong(text: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding { grade: Grade::Wrong, text: text.into(), advice: advice.into() }
}

/// A file of the kernel's or the system's; empty where it is not there.
fn read(path: impl AsRef<Path>) -> String {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}
