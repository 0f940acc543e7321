//! The one place that writes to the terminal.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::fmt::Display;

/// A line for the person who ran the command.
pub(crate) fn say(line: impl Display) {
    println!("{line}");
}

/// A line about something that went wrong.
pub(crate) fn complain(line: impl Display) {
    eprintln!("{line}");
}

/// A step that is about to take a while.
pub(crate) fn step(line: impl Display) {
    eprintln!("  · {line}");
}
