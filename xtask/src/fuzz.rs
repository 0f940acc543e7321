//! `cargo xtask fuzz NAME --minutes N`: libFuzzer on one parser. It needs the nightly compiler and cargo-fuzz.

use std::fs;
use std::process::{Command, ExitCode};

use fixture::{Doing, Failure, Result};

use crate::layout::Layout;

const USAGE: &str = "fuzz NAME [--minutes N]";

pub(crate) fn fuzz(layout: &Layout, args: &[String]) -> Result<ExitCode> {
    let (name, minutes) = parse(args)?;
    let seeds = layout.root.join("fuzz/seeds").join(name);
    if !seeds.is_dir() {
        return Err(Failure::new(format!("no parser {name:?}: fuzz/seeds has one directory for each")));
    }
    // What it finds interesting goes into the first directory; the seeds that are committed stay as they are.
    let corpus = layout.root.join("fuzz/corpus").join(name);
    fs::create_dir_all(&corpus).doing(|| format!("making {}", corpus.display()))?;
    let mut run = Command::new("cargo");
    run.args(["+nightly", "fuzz", "run", name]).arg(&corpus).arg(&seeds).current_dir(&layout.root);
    run.args(["--", &format!("-max_total_time={}", minutes * 60)]);
    let status = run.status().doing(|| "running cargo +nightly fuzz (cargo install cargo-fuzz)".into())?;
    if status.success() { Ok(ExitCode::SUCCESS) } else { Err(Failure::new(format!("{name}: {status}"))) }
}

fn parse(args: &[String]) -> Result<(&str, u64)> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        [name] => Ok((name, 1)),
        [name, "--minutes", n] => match n.parse() {
            Ok(minutes) if (1..=10_000).contains(&minutes) => Ok((name, minutes)),
            _ => Err(Failure::new("--minutes wants a number from 1 to 10000")),
        },
        _ => Err(Failure::new(USAGE)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parser_and_its_minutes_are_understood() {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(parse(&words("spdy")).ok(), Some(("spdy", 1)));
        assert_eq!(parse(&words("spdy --minutes 5")).ok(), Some(("spdy", 5)));
        for wrong in ["", "spdy --minutes", "spdy --minutes 0", "spdy 5"] {
            assert!(parse(&words(wrong)).is_err(), "{wrong}");
        }
    }
}
