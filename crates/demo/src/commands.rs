//! The parts that fit in a few lines.

use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use crate::signals::{CHLD, Held, INT, TERM, reap};

pub(crate) fn pause(_: &[String]) -> Result<ExitCode, String> {
    let held = Held::hold(&[INT, TERM, CHLD]);
    loop {
        match held.wait() {
            CHLD => reap(),
            _ => return Ok(ExitCode::SUCCESS),
        }
    }
}

pub(crate) fn sleep(args: &[String]) -> Result<ExitCode, String> {
    die_of_term(143);
    match args {
        [word] if word == "forever" => loop {
            thread::sleep(Duration::from_secs(3600));
        },
        [word] => thread::sleep(seconds(word)?),
        _ => return Err("how long?".into()),
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn exit(args: &[String]) -> Result<ExitCode, String> {
    die_of_term(143);
    let code = args.first().ok_or("which code?")?;
    let code: u8 = code.parse().map_err(|_| format!("{code:?} is no exit code"))?;
    if let Some(after) = option(args, "--after") {
        thread::sleep(seconds(after)?);
    }
    Ok(ExitCode::from(code))
}

pub(crate) fn ignore_term(_: &[String]) -> Result<ExitCode, String> {
    let held = Held::hold(&[INT, TERM, CHLD]);
    println!("ready");
    loop {
        match held.wait() {
            CHLD => reap(),
            signal => println!("heard signal {signal}, going on"),
        }
    }
}

pub(crate) fn hang(_: &[String]) -> Result<ExitCode, String> {
    let _held = Held::hold(&[INT, TERM]);
    loop {
        thread::sleep(Duration::from_secs(3600));
    }
}

pub(crate) fn print(args: &[String]) -> Result<ExitCode, String> {
    die_of_term(143);
    let number = |at: usize, what: &str| -> Result<u64, String> {
        let word = args.get(at).ok_or(format!("{what}?"))?;
        word.parse().map_err(|_| format!("{word:?} is no number"))
    };
    let (lines, rate) = (number(0, "how many lines")?, number(1, "how many per second")?);
    let to_stderr = args.iter().any(|a| a == "--stderr");
    let pause = (rate > 0).then(|| Duration::from_nanos(1_000_000_000 / rate));
    for n in 1..=lines {
        if to_stderr {
            eprintln!("line {n}");
        } else {
            println!("line {n}");
        }
        if let Some(pause) = pause {
            thread::sleep(pause);
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn write(args: &[String]) -> Result<ExitCode, String> {
    let [file, text] = args else { return Err("FILE and TEXT?".into()) };
    fs::write(file, text).map_err(|e| format!("{file}: {e}"))?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn append(args: &[String]) -> Result<ExitCode, String> {
    let [file, text] = args else { return Err("FILE and TEXT?".into()) };
    let mut open =
        fs::OpenOptions::new().create(true).append(true).open(file).map_err(|e| format!("{file}: {e}"))?;
    writeln!(open, "{text}").map_err(|e| format!("{file}: {e}"))?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn cat(args: &[String]) -> Result<ExitCode, String> {
    let mut out = io::stdout().lock();
    for file in args {
        let mut from = fs::File::open(file).map_err(|e| format!("{file}: {e}"))?;
        io::copy(&mut from, &mut out).map_err(|e| format!("{file}: {e}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn env(_: &[String]) -> Result<ExitCode, String> {
    for line in sorted_env() {
        println!("{line}");
    }
    Ok(ExitCode::SUCCESS)
}

/// The environment as `NAME=value` lines, sorted.
pub(crate) fn sorted_env() -> Vec<String> {
    let mut lines: Vec<String> = std::env::vars_os()
        .map(|(k, v)| format!("{}={}", k.to_string_lossy(), v.to_string_lossy()))
        .collect();
    lines.sort();
    lines
}

/// Makes TERM and INT end the program even as the first process of its namespace.
pub(crate) fn die_of_term(code: i32) {
    let held = Held::hold(&[INT, TERM]);
    thread::spawn(move || {
        held.wait();
        std::process::exit(code)
    });
}

/// The word after `name`.
pub(crate) fn option<'a>(args: &'a [String], name: &str) -> Option<&'a str> {
    let at = args.iter().position(|a| a == name)?;
    args.get(at + 1).map(String::as_str)
}

pub(crate) fn seconds(word: &str) -> Result<Duration, String> {
    let seconds: f64 = word.parse().map_err(|_| format!("{word:?} is no number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|e| format!("{word:?}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn options_are_the_word_after_their_name() {
        assert_eq!(option(&words("3 --after 2"), "--after"), Some("2"));
        assert_eq!(option(&words("3 --after"), "--after"), None);
        assert_eq!(option(&words("3"), "--after"), None);
    }

    #[test]
    fn mistakes_are_named() {
        for (part, line, want) in [
            (exit as fn(&[String]) -> Result<ExitCode, String>, "", "which code?"),
            (exit, "boat", "\"boat\" is no exit code"),
            (sleep, "long", "\"long\" is no number of seconds"),
            (print, "1", "how many per second?"),
            (write, "only-a-file", "FILE and TEXT?"),
        ] {
            assert_eq!(part(&words(line)).map(|_| ()), Err(want.to_owned()), "{line:?}");
        }
    }
}
