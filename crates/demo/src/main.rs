//! The program inside the demo image: one static binary that plays every part a Pod may need.
//!
//! It is also the sandbox's first process (`demo pause`). It uses nothing but std, so that the image is one file.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod commands;
mod serve;
mod signals;

use std::process::ExitCode;

/// One part the program can play.
type Part = fn(&[String]) -> Result<ExitCode, String>;

const PARTS: &[(&str, &str, Part)] = &[
    ("pause", "hold the sandbox: reap orphans, exit 0 on TERM", commands::pause),
    (
        "serve",
        "[--port N] [--ready-after S]: a web page with /healthz, /readyz, /toggle, /env, /hostname",
        serve::serve,
    ),
    ("tcp", "PORT: accept connections and close them", serve::tcp),
    ("sleep", "SECONDS|forever: exit 0 when over, 143 on TERM", commands::sleep),
    ("exit", "CODE [--after S]: exit with that code", commands::exit),
    ("true", "exit 0", |_| Ok(ExitCode::SUCCESS)),
    ("false", "exit 1", |_| Ok(ExitCode::FAILURE)),
    ("ignore-term", "run until killed; TERM is heard and refused", commands::ignore_term),
    ("hang", "run until killed, in silence", commands::hang),
    (
        "print",
        "LINES RATE [--stderr]: print that many numbered lines, RATE per second (0: at once)",
        commands::print,
    ),
    ("write", "FILE TEXT: write a file", commands::write),
    ("append", "FILE TEXT: append a line to a file", commands::append),
    ("cat", "FILE...: print files", commands::cat),
    ("env", "print the environment, sorted", commands::env),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some((name, rest)) = args.split_first() else {
        return usage();
    };
    let Some((_, _, part)) = PARTS.iter().find(|(known, _, _)| known == name) else {
        return usage();
    };
    part(rest).unwrap_or_else(|words| {
        eprintln!("demo {name}: {words}");
        ExitCode::from(2)
    })
}

fn usage() -> ExitCode {
    eprintln!("demo <part> [arguments]\n");
    for (name, what, _) in PARTS {
        eprintln!("  {name:<12} {what}");
    }
    ExitCode::from(2)
}
